"""The loop: sequences in an order that the seed decides, AdamW, a warm-up and a cosine, measurements on held-out text.

What decides a step is the seed, the number of the step, and the weights and moments so far. Nothing is drawn from a generator
that carries state from step to step, and a sequence's place in the order follows from its number alone. So a run that was
killed and resumed ends with the same bits as one that was not, on one machine with the same number of threads and processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headstart.errors import TrainingError
from headstart.pretrain.curriculum import num_active
from headstart.pretrain.model import FutureModel
from headstart.pretrain.objective import backward, measure
from headstart.pretrain.settings import PretrainSettings
from headstart.pretrain.tokens import Sequences
from headstart.pretrain.workers import Workers
from headstart.train.checkpoint import read_record, read_tensors, write_state

FORM = ("headstart-pretraining-checkpoint", 1)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(slots=True)
class Progress:
    """The place in a run."""

    step: int = 0
    num_tokens: int = 0  # seen, with repetitions
    seconds: float = 0.0
    losses: list[list[float | None]] = field(default_factory=list)  # of the steps since the last measurement; None: left out
    curve: list[dict[str, Any]] = field(default_factory=list)


Report = Callable[[Progress, float], None]
"""Hears of each step its loss of the next token."""


class Pretrainer:
    """Trains a model in place."""

    def __init__(
        self,
        model: FutureModel,
        text: Sequences,
        held_out: Sequences | None,
        settings: PretrainSettings,
        workers: Workers,
        *,
        checkpoint: Path,
        about: Mapping[str, Any],
        report: Report,
    ) -> None:
        self.model, self.text, self.held_out = model.to(workers.device), text, held_out
        self.settings, self.workers, self.about, self.progress = settings, workers, dict(about), Progress()
        self._checkpoint, self._report = checkpoint, report
        self._micro = settings.micro_batch or settings.batch // workers.count
        self._share = workers.share(settings.batch, self._micro)
        decayed = [values for values in model.parameters() if values.ndim > 1]
        others = [values for values in model.parameters() if values.ndim == 1]
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": others, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(
            groups, lr=settings.learning_rate, betas=settings.betas, weight_decay=settings.weight_decay
        )

    def resume(self) -> bool:
        """Go on from the checkpoint, if there is one."""
        if not self._checkpoint.exists():
            return False
        self.progress = Progress(**read_record(self._checkpoint, FORM)["progress"])
        stored = read_tensors(self._checkpoint)
        with torch.no_grad():
            for name, values in self.model.named_parameters():
                values.copy_(stored[name])
                if f"{name}.step" in stored:
                    moments = {key: stored[f"{name}.{key}"] for key in _MOMENTS}
                    on_device = {key: value.to(values.device) for key, value in moments.items() if key != "step"}
                    self._optimizer.state[values] = {"step": moments["step"], **on_device}
        return True

    def run(self) -> None:
        """Train to the end of the planned steps."""
        settings, progress, saved = self.settings, self.progress, time.monotonic()
        every = max(1, settings.steps // settings.evaluations)
        while progress.step < settings.steps:
            began = time.monotonic()
            losses = self._step()
            progress.seconds += time.monotonic() - began
            self._report(progress, losses[0])
            if progress.step % every == 0 or progress.step == settings.steps:
                self._observe()
            if time.monotonic() - saved > 60 * settings.checkpoint_minutes or progress.step == settings.steps:
                self.save()
                saved = time.monotonic()

    def save(self) -> None:
        """Write a checkpoint."""
        if not self.workers.is_first:
            return
        stored: dict[str, Tensor] = {}
        for name, values in self.model.named_parameters():
            stored[name] = values
            stored |= {f"{name}.{key}": self._optimizer.state[values][key] for key in self._optimizer.state.get(values, {})}
        record = {"format": FORM[0], "version": FORM[1], "progress": asdict(self.progress), "about": self.about}
        write_state(self._checkpoint, stored, record)

    def accuracies(self) -> Tensor:
        """Shares of held-out positions where exactly guess r of each head is right, [n, R]."""
        return self._measured()[1]

    def _step(self) -> list[float]:
        """One batch and its update; the losses by distance."""
        settings, progress = self.settings, self.progress
        active = num_active(settings.curriculum, settings.future_tokens, progress.step, settings.steps)
        weights = [0.0 if i >= active else settings.further_weight if i else 1.0 for i in range(settings.future_tokens)]
        self._optimizer.zero_grad(set_to_none=True)
        losses = torch.zeros(settings.future_tokens, device=self.workers.device)
        scale = self._micro / settings.batch
        with self._cast():
            for place in self._share:
                sequences = self.text.training(progress.step * settings.batch + place, self._micro)
                found = backward(self.model, torch.from_numpy(sequences).to(self.workers.device), weights, scale)
                losses += scale * found
        losses = self.workers.add(losses)
        self.workers.add_gradients(self.model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip or math.inf)
        if not math.isfinite(float(norm)):
            raise TrainingError(
                f"training stopped at step {progress.step + 1}: its gradient is not finite; lower the learning rate, begin anew"
            )
        rate = settings.learning_rate * self._rate(progress.step + 1)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        progress.step += 1
        progress.num_tokens += settings.batch * settings.context
        values: list[float] = losses.tolist()
        progress.losses.append([None if math.isnan(loss) else loss for loss in values])
        return values

    def _rate(self, step: int) -> float:
        """Factor of the learning rate: linear warm-up, then a cosine."""
        settings = self.settings
        warm = max(1, round(settings.warmup * settings.steps))
        if step <= warm:
            return step / warm
        done = (step - warm) / max(1, settings.steps - warm)
        return settings.final_rate + (1 - settings.final_rate) * 0.5 * (1 + math.cos(math.pi * done))

    def _observe(self) -> None:
        """Losses of training since the last time, and of held-out text, onto the curve."""
        progress = self.progress
        columns = [[loss for loss in column if loss is not None] for column in zip(*progress.losses, strict=True)]
        point: dict[str, Any] = {
            "step": progress.step,
            "tokens": progress.num_tokens,
            "loss": [sum(column) / len(column) if column else None for column in columns],
        }
        if self.held_out is not None:
            losses, shares = self._measured()
            point |= {"held_out_loss": losses.tolist(), "held_out_accuracy": shares[:, 0].tolist()}
        progress.curve.append(point)
        progress.losses = []

    def _measured(self) -> tuple[Tensor, Tensor]:
        """Held-out losses [n] and shares [n, R]; every process computes the same."""
        assert self.held_out is not None  # or nobody asks
        count = min(self.settings.evaluation_sequences, self.held_out.count)
        losses, shares = torch.zeros(()), torch.zeros(())
        with self._cast():
            for first in range(0, count, self._micro):
                sequences = self.held_out.in_order(first, min(self._micro, count - first))
                found = measure(self.model, torch.from_numpy(sequences).to(self.workers.device), self.settings.num_ranks)
                share = len(sequences) / count
                losses, shares = losses + share * found[0], shares + share * found[1]
        return losses, shares

    @contextmanager
    def _cast(self) -> Iterator[None]:
        """Products in bfloat16, if that is asked for. Casts of weights are not shared: heads' graphs are freed one by one."""
        is_on = self.settings.precision == "bfloat16"
        with torch.autocast(self.workers.device.type, dtype=torch.bfloat16, enabled=is_on, cache_enabled=False):
            yield
