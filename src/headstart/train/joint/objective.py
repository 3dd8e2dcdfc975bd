"""The loss of a base and its heads together (Medusa-2, Cai et al. 2024, sections 2.2.2 and 2.3.2).

    L = KL(original || current) + lambda_0 * (the heads' loss)

Text that the model wrote itself is a poor label for the model: it says one token where the model had a distribution, and a base
that learns from such labels gets worse. So the base's own part is its distance from what it was, at every supervised place and
over the whole vocabulary, and the original is the same model with its adapters off.

The order saves memory, as in Gloeckle et al. 2024 (section 2, "memory-efficient implementation"): the trunk runs once; from its
states, taken as a leaf, come the gradients of both parts, ``chunk_rows`` rows of logits at a time; they are gathered there, and
the trunk is walked back once.

Letters: n rows, D the model's width, V the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from headstart.train.base import FrozenModel
from headstart.train.capture import Batch, batch_of, by_length, num_rows
from headstart.train.corpus import Document
from headstart.train.inputs import spans_of
from headstart.train.joint.adapters import Adapters, split
from headstart.train.losses import Objective, mixed_cross_entropy

_ROWS_AT_ONCE = 1024  # of documents side by side


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Documents whose hidden states are yet to be computed."""

    documents: tuple[Document, ...]
    rows: Batch  # their states are missing

    @property
    def num_rows(self) -> int:
        """Rows."""
        return self.rows.num_rows

    def to(self, device: torch.device) -> TextBatch:
        """The batch where the model is."""
        return TextBatch(self.documents, self.rows.to(device))


class Texts:
    """Documents themselves, where states change with every step and none can be kept."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""
        return num_rows(self._documents[document])

    def batch(self, documents: Sequence[int]) -> TextBatch:
        """Rows of the segments of these documents."""
        chosen = tuple(self._documents[i] for i in documents)
        rows = sum(map(num_rows, chosen))
        return TextBatch(chosen, batch_of(torch.empty(rows, 0), torch.zeros(rows, dtype=torch.long), chosen))


def some_of(documents: Sequence[Document], rows: int) -> list[Document]:
    """Documents with about ``rows`` rows in sum, the same ones whatever their order."""
    chosen: list[Document] = []
    for document in sorted(documents, key=lambda document: document.digest):
        if sum(map(num_rows, chosen)) >= rows:
            break
        chosen.append(document)
    return chosen


def states_of(module: torch.nn.Module, documents: Sequence[Document], device: torch.device) -> Tensor:
    """Hidden states [n, D] of the rows of these documents, by the model as it is now.

    Documents of like length go through it side by side; behind the end of a shorter one stands padding, which causal attention
    does not see.
    """
    places = [[place - 1 for start, stop in spans_of(document) for place in range(start, stop)] for document in documents]
    found: dict[int, Tensor] = {}
    for group in by_length(documents, _ROWS_AT_ONCE):
        length = max(places[i][-1] + 1 if places[i] else 0 for i in group)
        if not length:
            continue
        tokens = torch.zeros(len(group), length, dtype=torch.long)
        for row, i in zip(tokens, group, strict=True):
            read = documents[i].tokens[:length]
            row[: len(read)] = torch.tensor(read)
        states = module.get_decoder()(input_ids=tokens.to(device), use_cache=False).last_hidden_state  # type: ignore[operator]
        found |= {i: states[row, torch.tensor(places[i], device=device)] for row, i in enumerate(group) if places[i]}
    return torch.cat([found[i] for i in sorted(found)])


def base_logits(model: FrozenModel, hidden: Tensor) -> Tensor:
    """What the base's output says of states [n, D], in its own dtype: [n, V]."""
    bias = getattr(model.module.get_output_embeddings(), "bias", None)
    bias = None if bias is None else bias[: model.vocab_size]
    return functional.linear(hidden.to(model.output.dtype), model.output[: model.vocab_size], bias)


@dataclass(frozen=True, slots=True)
class JointObjective:
    """How a base and its heads are judged while they learn together."""

    heads: Objective  # weighted by lambda_0
    model: FrozenModel
    adapters: Adapters

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.model.device

    def num_targets(self, batch: TextBatch) -> list[int]:
        """Rows that each head can learn from."""
        return self.heads.num_targets(batch.rows)

    def backward(self, tensors: Mapping[str, Tensor], batch: TextBatch, generator: torch.Generator) -> float:
        """Add the gradient of the batch's loss to ``tensors`` and return the loss."""
        of_heads, of_base = split(tensors)
        with torch.no_grad():
            original = states_of(self.model.module, batch.documents, self.device)
        with self.adapters.on(of_base):
            states = states_of(self.model.module, batch.documents, self.device)
        leaf = states.detach().float().requires_grad_()
        loss = self.heads.backward(of_heads, replace(batch.rows, hidden=leaf, original=original), generator)
        for first in range(0, batch.num_rows, self.heads.chunk_rows):
            rows = slice(first, first + self.heads.chunk_rows)
            part = divergence(self.model, original[rows], leaf[rows]) / batch.num_rows
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        assert leaf.grad is not None
        states.backward(leaf.grad.to(states.dtype))  # type: ignore[no-untyped-call]
        return loss


def divergence(model: FrozenModel, original: Tensor, current: Tensor) -> Tensor:
    """KL(original || current) in nats, summed over rows, of what the output says of states [n, D]."""
    with torch.no_grad():
        logs = base_logits(model, original).float().log_softmax(-1)
        goal = logs.exp()
        entropy = -(goal * logs).sum()
    unread = torch.zeros(len(original), dtype=torch.long, device=original.device)
    return mixed_cross_entropy(base_logits(model, current), unread, goal, 1.0) - entropy
