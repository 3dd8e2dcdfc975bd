"""What tuning did to the base, on text that it did not learn from: the price of guesses that are easier to make.

* *Perplexity*: exp of the mean negative log-probability of the text's own tokens, before and after.
* *Divergence*: KL(original || tuned) in nats, the mean over places; what sampling at temperature 1 would notice.
* *Agreement*: the share of places where both say the same token greedily.

All of it is teacher-forced, at the supervised places. Nothing of it says whether answers are as good for people; a benchmark of
the user's own task does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.train.base import FrozenModel
from headstart.train.joint.objective import base_logits


@dataclass(frozen=True, slots=True)
class Quality:
    """A tuned base beside its origin."""

    num_rows: int
    perplexity_before: float
    perplexity_after: float
    divergence: float  # nats a place
    agreement: float  # share of places with the same greedy token

    @property
    def rise(self) -> float:
        """Share by which perplexity rose; below 0 if it fell."""
        return self.perplexity_after / self.perplexity_before - 1

    def __str__(self) -> str:
        return (
            f"held-out perplexity {self.perplexity_before:.3f} before, {self.perplexity_after:.3f} after ({self.rise:+.2%}), "
            f"divergence {self.divergence:.4f} nats, greedy agreement {self.agreement:.1%} ({self.num_rows} places)"
        )


@torch.no_grad()
def quality(before: FrozenModel, after: FrozenModel, originals: Tensor, tuned: Tensor, tokens: Tensor, chunk: int) -> Quality:
    """Compare two models by their states [n, D] in front of the text's ``tokens`` [n], a chunk of rows at a time."""
    if not len(tokens):
        raise ValueError("nothing to compare on")
    sums = torch.zeros(3, dtype=torch.float64)
    same = 0
    for first in range(0, len(tokens), chunk):
        rows = slice(first, first + chunk)
        old = base_logits(before, originals[rows]).float().log_softmax(-1)
        new = base_logits(after, tuned[rows]).float().log_softmax(-1)
        wanted = tokens[rows, None]
        parts: Sequence[Tensor] = (-old.gather(1, wanted), -new.gather(1, wanted), old.exp() * (old - new))
        sums += torch.stack([part.double().sum().cpu() for part in parts])
        same += int((old.argmax(-1) == new.argmax(-1)).sum())
    means = [float(value) / len(tokens) for value in sums]
    return Quality(len(tokens), math.exp(means[0]), math.exp(min(means[1], 700.0)), max(means[2], 0.0), same / len(tokens))
