"""Spread and chance: percentiles, and intervals of a ratio of times by the bootstrap.

Prompts differ far more than repetitions do, so what is resampled are the prompts (Efron 1979, "Bootstrap methods: another
look at the jackknife"), and both sides of a ratio keep their common prompts (a paired bootstrap). The seed is fixed: the
same record gives the same interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
_RESAMPLES = 2000
_SEED = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio, and the interval in which it lies with a probability of 95%."""

    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether it cannot be told from 1."""
        return self.low <= 1.0 <= self.high


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median, p10 and p90, interpolated; None if there is nothing."""
    if not values:
        return None
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), [10, 50, 90]).tolist()
    return {"median": middle, "p10": low, "p90": high}


def ratio_interval(
    tokens: Sequence[float], seconds: Sequence[float], base_tokens: Sequence[float], base_seconds: Sequence[float]
) -> Interval | None:
    """How many times as many tokens a second as the base; entry i of each belongs to prompt i. None: nothing to divide by."""
    table = np.array([tokens, seconds, base_tokens, base_seconds], dtype=np.float64)
    value = _ratio(table.sum(axis=1, keepdims=True))
    if not np.isfinite(value).all():
        return None
    count = table.shape[1]
    if count < 2:
        return Interval(float(value[0]), 0.0, float("inf"))
    chosen = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, count))
    ratios = _ratio(table[:, chosen].sum(axis=2))
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(ratios[np.isfinite(ratios)], [tail, 100 - tail]).tolist()
    return Interval(float(value[0]), low, high)


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Tokens a second over those of the base, of sums [4, n]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: NDArray[np.float64] = (sums[0] / sums[1]) / (sums[2] / sums[3])
    return ratio
