"""Spread and chance: percentiles, and intervals of ratios by the bootstrap.

Prompts differ far more than repetitions do, so what is resampled are the prompts (Efron 1979, "Bootstrap methods: another look
at the jackknife"), and all parts of a ratio keep their common prompts (a paired bootstrap). The seed is fixed: the same record
gives the same interval. What happens to a whole run, such as a machine that is slower today, is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.95
_RESAMPLES = 2000
_SEED = 0

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Interval:
    """A ratio, and the interval in which it lies with a probability of 95%."""

    value: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether it cannot be told from 1; what the rounding of sums leaves of 1 is 1."""
        return self.low <= 1.0 + _ROUNDING and self.high >= 1.0 - _ROUNDING


@dataclass(frozen=True, slots=True)
class Rate:
    """A sum over a sum, such as tokens over seconds; entry i of both belongs to prompt i."""

    over: Sequence[float]
    under: Sequence[float]


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Median, p10 and p90, interpolated; None if there is nothing."""
    if not values:
        return None
    low, middle, high = np.percentile(np.asarray(values, dtype=np.float64), [10, 50, 90]).tolist()
    return {"median": middle, "p10": low, "p90": high}


def interval(over: Sequence[Rate], under: Sequence[Rate]) -> Interval | None:
    """The product of some rates over that of others, all of the same prompts. None: there is nothing to divide by."""
    table = np.array(
        [[rate.over, rate.under] for rate in over] + [[rate.under, rate.over] for rate in under], dtype=np.float64
    )  # [rates, 2, prompts]
    value = _product(table.sum(axis=2, keepdims=True))
    if not np.isfinite(value).all():
        return None
    count = table.shape[2]
    if count < 2:
        return Interval(float(value[0]), 0.0, float("inf"))
    chosen = np.random.default_rng(_SEED).integers(0, count, (_RESAMPLES, count))
    ratios = _product(table[:, :, chosen].sum(axis=3))
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(ratios[np.isfinite(ratios)], [tail, 100 - tail]).tolist()
    return Interval(float(value[0]), low, high)


def _product(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of quotients [rates, 2, n]: [n]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        product: NDArray[np.float64] = np.prod(sums[:, 0] / sums[:, 1], axis=0)
    return product
