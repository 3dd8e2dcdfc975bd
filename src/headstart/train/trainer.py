"""The loop: batches of documents, AdamW, held-out acceptance now and then, the best tensors kept.

It trains whatever tensors it is given by whatever goal they have: heads alone (``losses.py``), or heads and the base's adapters
together (``joint``).

What decides a step is the seed, the number of the epoch and of the batch, and the tensors and moments so far: nothing is drawn
from a generator that carries state from step to step. So a resumed run repeats the bits of an uninterrupted one (on one machine
with the same number of threads).

The number of steps is fixed before the first one, from ``epochs`` and from the time that a trial step takes; the learning rate
warms up and falls along a cosine over them. Training loss goes on falling when acceptance no longer rises (overtraining), so
the heads that are kept are those of the best measured L, not the last.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from headstart.errors import TrainingError
from headstart.heads.base import Acceptance
from headstart.train.acceptance import PREDICTED_ROWS
from headstart.train.checkpoint import Progress, load_checkpoint, save_checkpoint
from headstart.train.settings import TrainSettings

Tensors = dict[str, Tensor]
_TRIALS = 4  # steps that tell how long one takes
_MARGIN = 0.95  # of the time left; measuring and writing take some


class Rows(Protocol):
    """What a step learns from."""

    @property
    def num_rows(self) -> int:
        """Rows."""

    def to(self, device: torch.device) -> Self:
        """The same where it is computed with."""


B = TypeVar("B", bound=Rows)
Taken = TypeVar("Taken", bound=Rows, contravariant=True)
Given = TypeVar("Given", bound=Rows, covariant=True)


class Goal(Protocol[Taken]):
    """What is learned."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def num_targets(self, batch: Taken) -> list[int]:
        """How much there is to learn from, by whatever parts."""

    def backward(self, tensors: Mapping[str, Tensor], batch: Taken, generator: torch.Generator) -> float:
        """Add the gradient of the batch's loss to ``tensors`` and return the loss."""


class Source(Protocol[Given]):
    """Where batches come from."""

    def batch(self, documents: Sequence[int]) -> Given:
        """Rows of these documents, by their numbers."""

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Held-out acceptance, what else the curve shall show, and whether these tensors may be kept."""

    acceptance: Acceptance
    notes: Mapping[str, float] = field(default_factory=dict)
    may_keep: bool = True


class Trainer(Generic[B]):
    """Trains tensors in place."""

    def __init__(
        self,
        objective: Goal[B],
        tensors: Tensors,
        states: Source[B],
        documents: Sequence[int],
        settings: TrainSettings,
        *,
        evaluate: Callable[[Tensors], Measured],
        rate_of: Callable[[str], float] = lambda name: 1.0,
        keep: Callable[[Tensors, Acceptance, Progress], None] = lambda tensors, acceptance, progress: None,
        checkpoint: Path | None = None,
        about: Mapping[str, Any] | None = None,
        report: Callable[[Progress, float], None] = lambda progress, loss: None,
    ) -> None:
        """``documents``: numbers of those to learn from; ``keep`` saves the best tensors, ``report`` hears each step's loss.

        ``rate_of``: a tensor's learning rate over that of the settings.
        """
        self.objective, self.states, self.settings, self.about = objective, states, settings, dict(about or {})
        self.tensors = {name: tensor.detach().clone().requires_grad_(True) for name, tensor in tensors.items()}
        self.documents = list(documents)
        self._evaluate, self._keep, self._report, self._checkpoint = evaluate, keep, report, checkpoint
        factors = {name: rate_of(name) for name in self.tensors}
        groups = [
            {"params": [self.tensors[name] for name in self.tensors if factors[name] == factor], "factor": factor}
            for factor in dict.fromkeys(factors.values())
        ]
        self.optimizer = torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )
        self.progress = Progress(total_steps=0)
        self._order: list[list[int]] = []
        self._order_epoch = -1

    def plan(self, seconds: float | None) -> None:
        """Measure the heads as they are and fix the number of steps: ``epochs`` of the text, or what fits ``seconds``."""
        began = time.monotonic()
        measured = self._observe()
        measuring = (time.monotonic() - began) * (self.settings.evaluations + 1)
        per_epoch = len(self._batches(0))
        total = max(1, math.ceil(self.settings.epochs * per_epoch))
        if seconds is not None:
            each = self._seconds_a_step()
            total = max(1, min(total, int((seconds - measuring) * _MARGIN / each)))
        self.progress.total_steps = total
        self.save()  # before any heads are kept: a folder of heads without a checkpoint is a finished run
        self._keep_if_best(measured)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint."""
        stored, self.progress = load_checkpoint(path)
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor.copy_(stored[name])
                if f"{name}.exp_avg" in stored:
                    moments = {key: stored[f"{name}.{key}"].to(tensor.device) for key in ("exp_avg", "exp_avg_sq")}
                    self.optimizer.state[tensor] = {"step": stored[f"{name}.step"], **moments}
        if not self.progress.step:  # stopped before the untouched tensors were kept
            self._keep_if_best(self._evaluate(self.tensors))

    def run(self, deadline: float | None = None, stop_after: int | None = None) -> None:
        """Train to the planned end, or stop cleanly at ``deadline`` (``time.monotonic``) or after so many steps."""
        progress, saved = self.progress, time.monotonic()
        every = max(1, progress.total_steps // self.settings.evaluations)
        while progress.step < progress.total_steps and (stop_after is None or progress.step < stop_after):
            began = time.monotonic()
            if deadline is not None and began >= deadline:
                break
            loss = self._step()
            if math.isfinite(loss):
                progress.losses.append(loss)
            progress.seconds += time.monotonic() - began
            self._report(progress, loss)
            if progress.step % every == 0 or progress.step == progress.total_steps:
                self._measure()
            if time.monotonic() - saved > 60 * self.settings.checkpoint_minutes:
                self.save()
                saved = time.monotonic()
        self.save()

    def save(self) -> None:
        """Write a checkpoint, if there is a place for it."""
        if self._checkpoint is None:
            return
        stored: Tensors = dict(self.tensors)
        for name, tensor in self.tensors.items():
            for key, value in self.optimizer.state.get(tensor, {}).items():
                stored[f"{name}.{key}"] = value
        save_checkpoint(self._checkpoint, stored, self.progress, self.about)

    def _step(self) -> float:
        """One batch: the update, or its being skipped. Returns its loss."""
        progress, settings = self.progress, self.settings
        batch = self._batch(self._next_batch())
        progress.step += 1
        progress.num_tokens += batch.num_rows
        self.optimizer.zero_grad(set_to_none=True)
        generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + progress.step)
        learnable = any(self.objective.num_targets(batch))
        loss = self.objective.backward(self.tensors, batch, generator) if learnable else math.nan
        norm = math.nan
        if math.isfinite(loss):
            largest = settings.clip or math.inf
            norm = float(torch.nn.utils.clip_grad_norm_(list(self.tensors.values()), largest))
        if not math.isfinite(norm):
            self._skip("its loss is not finite" if learnable else "it holds nothing to learn from")
            return math.nan
        progress.num_bad = 0
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate * group["factor"] * self._rate(progress.step)
        self.optimizer.step()
        return loss

    def _skip(self, reason: str) -> None:
        progress = self.progress
        progress.num_skipped += 1
        progress.num_bad += 1
        if progress.num_bad > self.settings.max_bad_batches:
            raise TrainingError(
                f"training stopped at step {progress.step}: {progress.num_bad} batches in a row were of no use,"
                f" the last because {reason}; lower learning_rate or look at the data"
            )

    def _rate(self, step: int) -> float:
        """Factor of the learning rate: linear warm-up, then a cosine down to a twentieth."""
        total = self.progress.total_steps
        warm = max(1, round(self.settings.warmup * total))
        if step <= warm:
            return step / warm
        return 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, total - warm)))

    def _measure(self) -> None:
        self._keep_if_best(self._observe())

    def _observe(self) -> Measured:
        """Acceptance on held-out text, noted on the curve."""
        progress = self.progress
        measured = self._evaluate(self.tensors)
        found = measured.acceptance
        if not progress.before:
            progress.before = asdict(found)
        length = found.predicted_length[PREDICTED_ROWS[-1]]
        point = {"step": progress.step, "tokens": progress.num_tokens, "length": length, "top1": found.by_position[0]}
        loss = {"loss": float(np.mean(progress.losses))} if progress.losses else {}
        progress.curve.append(point | dict(measured.notes) | loss)
        progress.losses = []
        return measured

    def _keep_if_best(self, measured: Measured) -> None:
        progress, length = self.progress, measured.acceptance.predicted_length[PREDICTED_ROWS[-1]]
        if measured.may_keep and length > progress.best_length:
            progress.best_length, progress.best_step = length, progress.step
            self._keep(self.tensors, measured.acceptance, progress)

    def _batch(self, documents: Sequence[int]) -> B:
        return self.states.batch(documents).to(self.objective.device)

    def _next_batch(self) -> list[int]:
        progress = self.progress
        if progress.batch >= len(self._batches(progress.epoch)):
            progress.epoch, progress.batch = progress.epoch + 1, 0
        progress.batch += 1
        return self._batches(progress.epoch)[progress.batch - 1]

    def _batches(self, epoch: int) -> list[list[int]]:
        """The epoch's batches: documents in an order of its own, each batch about ``batch_rows`` rows."""
        if epoch != self._order_epoch:
            order = np.random.default_rng([self.settings.seed, epoch]).permutation(len(self.documents))
            batches: list[list[int]] = [[]]
            rows = 0
            for i in order:
                document = self.documents[i]
                if rows >= self.settings.batch_rows:
                    batches.append([])
                    rows = 0
                batches[-1].append(document)
                rows += self.states.rows_of(document)
            self._order, self._order_epoch = batches, epoch
        return self._order

    def _seconds_a_step(self) -> float:
        """A trial step's time, without an update: the median behind the first, which warms caches; one may meet a pause."""
        batches = self._batches(0)
        times = []
        for number in range(_TRIALS):
            began = time.monotonic()
            batch = self._batch(batches[number % len(batches)])
            if any(self.objective.num_targets(batch)):
                self.objective.backward(self.tensors, batch, torch.Generator().manual_seed(number))
            times.append(time.monotonic() - began)
        self.optimizer.zero_grad(set_to_none=True)
        return max(statistics.median(times[1:]), 1e-6)
