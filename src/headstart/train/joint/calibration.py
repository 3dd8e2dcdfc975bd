"""The one number that makes a tuned base as sure as it was.

What heads pull a base to is doubt, first of all: its distributions get a little flatter at all places alike. The distance that
holds it back, KL(original || current), hardly sees that, since it grows with the square of the flattening; but the
log-probability of likely text falls with the flattening itself, and so perplexity rises by several times the distance. One
factor on all logits takes most of it back (temperature scaling, Guo et al. 2017, section 4.2, with the original's distributions
in the place of labels).

The factor is the one with the smallest KL(original || current) on text that was learned from. Neither held-out text nor the
tokens that stand in a text have a say in it, so it cannot make a base surer than it was for the sake of a low perplexity. It is
multiplied into the final norm before tensors are measured or saved; greedy choices stay as they are, but for rounding.

With u the logits of the current base without the output's bias, the distance is convex in the factor f:

    d/df = E_q[u] - E_p[u]        d2/df2 = Var_q[u]        p the original, q the current base at f

so that Newton's method needs two steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from headstart.train.base import FrozenModel
from headstart.train.corpus import Document
from headstart.train.joint.adapters import Adapters
from headstart.train.joint.objective import base_logits, some_of, states_of

_NUM_STEPS = 2
_FARTHEST = 2.0  # a factor beyond it, or below its inverse, is no slight flattening: the base is broken, and shall look so


class Calibration:
    """Text that the base learns from, and what the original says there."""

    def __init__(self, model: FrozenModel, adapters: Adapters, documents: Sequence[Document], rows: int, chunk: int) -> None:
        """``rows``: about so many places are looked at; ``chunk``: of them at once."""
        self._model, self._adapters, self._chunk = model, adapters, chunk
        self._documents = some_of(documents, rows)
        self._original = self._states()

    def applied(self, of_base: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Adapters with the final norm scaled, and the factor."""
        fixed = {name: tensor.detach() for name, tensor in of_base.items()}
        with self._adapters.on(fixed):
            current = self._states()
        factor = nearest_factor(self._model, self._original, current, self._chunk)
        return self._adapters.scaled(fixed, factor), factor

    def _states(self) -> Tensor:
        with torch.no_grad():
            return states_of(self._model.module, self._documents, self._model.device)


@torch.no_grad()
def nearest_factor(model: FrozenModel, original: Tensor, current: Tensor, chunk: int) -> float:
    """What to multiply the states ``current`` [n, D] by, so that the output says most nearly what it said of ``original``."""
    bias = base_logits(model, torch.zeros_like(current[:1])).float()
    factor = 1.0
    for _ in range(_NUM_STEPS):
        slope = curvature = 0.0
        for first in range(0, len(current), chunk):
            rows = slice(first, first + chunk)
            goal = base_logits(model, original[rows]).float().softmax(-1)
            logits = base_logits(model, current[rows]).float() - bias
            said = (factor * logits + bias).softmax(-1)
            mean = (said * logits).sum(-1)
            slope += float((mean - (goal * logits).sum(-1)).sum())
            curvature += float(((said * logits.square()).sum(-1) - mean.square()).sum())
        if not curvature > 0:  # nothing to scale, or no numbers
            return 1.0
        factor = min(max(factor - slope / curvature, 1 / _FARTHEST), _FARTHEST)
    return factor
