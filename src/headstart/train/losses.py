"""The loss of heads, a few rows at a time.

Head k = 1..K at a row with root x reads the row's hidden state, a sequential one also the k - 1 tokens behind the root, and
predicts the token k places behind it. The published loss (Medusa-1, Cai et al. 2024, equation 1) is cross-entropy with the
text's token, weighted 0.8^k. The target may be mixed with the base's own distribution at that place, ``soft_weight`` of it: the
base has seen the tokens in between and knows what else could have come, which says far more than one sampled token
(distillation, Hinton et al. 2015).

Both run over the draft vocabulary alone, or over a random part of it. Places whose token lies outside the draft vocabulary
teach nothing and are left out; acceptance counts them as misses.

Logits exist for ``chunk_rows`` rows at a time: each chunk's gradient is taken at once, and the sum is that of the whole batch.

Letters: n rows, c rows of a chunk, K heads, V' draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headstart.train.base import Base
from headstart.train.capture import Batch
from headstart.train.forms import Form
from headstart.train.settings import TrainSettings


@dataclass(frozen=True, slots=True)
class FrozenBase:
    """What of the base model training reads."""

    embedding: Tensor  # [V, D]
    output: Tensor  # [V', D]: the output rows of the draft vocabulary
    places: Tensor  # [V]: place of a token in the draft vocabulary, -1 outside


@dataclass(frozen=True, slots=True)
class Objective:
    """How heads are judged while they learn."""

    form: Form
    base: FrozenBase
    head_decay: float
    soft_weight: float
    vocab_sample: int
    chunk_rows: int
    compute_dtype: torch.dtype
    weight: float = 1.0  # of the whole loss, where another one stands beside it

    @classmethod
    def of(cls, base: Base, form: Form, settings: TrainSettings, weight: float = 1.0) -> Objective:
        """The loss that the settings ask for."""
        model, vocab = base.model, form.config.draft_vocab
        ids = torch.arange(model.vocab_size) if vocab is None else torch.tensor(vocab)
        places = torch.full((model.vocab_size,), -1, dtype=torch.long)
        places[ids] = torch.arange(len(ids))
        output = model.output[ids.to(model.device)].float()
        return cls(
            form,
            FrozenBase(model.embedding, output, places.to(model.device)),
            settings.head_decay,
            settings.soft_weight,
            settings.vocab_sample,
            settings.chunk_rows,
            torch.bfloat16 if base.dtype == "bfloat16" else torch.float32,
            weight,
        )

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.base.embedding.device

    def num_targets(self, batch: Batch) -> list[int]:
        """Rows of the batch that each head can learn from."""
        return [int((places >= 0).sum()) for places in self._targets(batch)]

    def backward(self, tensors: Mapping[str, Tensor], batch: Batch, generator: torch.Generator) -> float:
        """Add the gradient of the batch's loss to ``tensors`` and return the loss (0 if there is nothing to learn from)."""
        targets = self._targets(batch)
        counts = [int((places >= 0).sum()) for places in targets]
        base_rows, targets = self._sampled(targets, generator)
        base_output = self.base.output if base_rows is None else self.base.output[base_rows]
        base_output = base_output.to(self.compute_dtype)
        outputs = [
            matrix if matrix is base_output or base_rows is None else matrix[base_rows]
            for matrix in self.form.outputs(tensors, base_output)
        ]
        trained = any(output.requires_grad for output in outputs)
        total = 0.0
        for rows in batch.pieces(self.chunk_rows, whole_texts=self.form.reads_texts):
            if not any(bool((places[rows] >= 0).any()) for places in targets):
                continue
            loss = self._chunk(tensors, batch, rows, targets, counts, base_output, outputs)
            loss.backward(retain_graph=base_rows is not None and trained)  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        return total

    def _targets(self, batch: Batch) -> list[Tensor]:
        """For each head [n]: the place of the token it should guess, -1 where there is none."""
        targets = []
        places = self.base.places[batch.roots]
        for depth in range(1, self.form.config.num_heads + 1):
            shifted = torch.full_like(places, -1)
            shifted[: max(batch.num_rows - depth, 0)] = places[depth:]
            targets.append(torch.where(batch.remaining > depth, shifted, -1))
        return targets

    def _sampled(self, targets: list[Tensor], generator: torch.Generator) -> tuple[Tensor | None, list[Tensor]]:
        """Rows of the draft vocabulary for this batch (None: all), and the targets as places among them."""
        size = len(self.base.output)
        if not 0 < self.vocab_sample < size:
            return None, targets
        wanted = torch.cat([places[places >= 0] for places in targets])
        chosen = torch.randperm(size, generator=generator)[: self.vocab_sample].to(wanted.device)
        rows = torch.unique(torch.cat([wanted, chosen]))
        index = torch.full((size,), -1, dtype=torch.long, device=rows.device)
        index[rows] = torch.arange(len(rows), device=rows.device)
        return rows, [torch.where(places >= 0, index[places.clamp_min(0)], -1) for places in targets]

    def _chunk(
        self,
        tensors: Mapping[str, Tensor],
        batch: Batch,
        rows: slice,
        targets: list[Tensor],
        counts: list[int],
        base_output: Tensor,
        outputs: list[Tensor],
    ) -> Tensor:
        """The share of these rows in the batch's loss."""
        dtype, device = self.compute_dtype, batch.hidden.device
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = self.form.guessed(tensors, batch, rows, outputs)
            ahead = batch.judging[rows.start : rows.stop + self.form.config.num_heads].to(base_output.dtype)
            with torch.no_grad():
                soft = functional.linear(ahead, base_output) if self.soft_weight > 0 else None
        soft = None if soft is None else soft.float().softmax(-1)  # [c + K, V']
        loss = batch.hidden.new_zeros((), dtype=torch.float32)
        for depth, (scores, places, count) in enumerate(zip(logits, targets, counts, strict=True), start=1):
            known = (places[rows] >= 0).nonzero()[:, 0]
            if not len(known):
                continue
            hard = places[rows][known]
            part = mixed_cross_entropy(scores[known], hard, None if soft is None else soft[known + depth], self.soft_weight)
            loss = loss + self.weight * self.head_decay**depth / count * part
        return loss


def mixed_cross_entropy(scores: Tensor, hard: Tensor, soft: Tensor | None, soft_weight: float) -> Tensor:
    """Sum over rows of the cross-entropy of softmax(scores) [n, V'] with ``(1 - w) * onehot(hard) + w * soft`` [n, V']."""
    weight = 0.0 if soft is None else soft_weight
    loss: Tensor = _MixedCrossEntropy.apply(scores, hard, soft, weight)  # type: ignore[no-untyped-call]
    return loss


class _MixedCrossEntropy(torch.autograd.Function):
    """Its gradient, softmax(scores) minus the goal, falls off as the loss is computed: two passes over [n, V'] are saved."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, hard: Tensor, soft: Tensor | None, soft_weight: float) -> Tensor:
        values, hard = scores.float(), hard[:, None]
        normaliser = values.logsumexp(-1, keepdim=True)
        loss = normaliser.sum() - (1 - soft_weight) * values.gather(1, hard).sum()
        gradient = (values - normaliser).exp_()
        if soft is not None:
            loss = loss - soft_weight * (soft * values).sum()
            gradient.sub_(soft, alpha=soft_weight)
        gradient.scatter_add_(1, hard, gradient.new_full(hard.shape, soft_weight - 1))
        ctx.save_for_backward(gradient.to(scores.dtype))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * gradients[0].to(gradient.dtype), None, None, None
