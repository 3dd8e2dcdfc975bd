"""Does a sample come from the distribution that it should come from? A test whose false alarms and blind spots are known.

A *group* is a number of draws from one known distribution: the tokens that followed one prefix. Tokens that are expected fewer
than five times share a cell (their choice depends on the distribution alone, never on the draws). The statistic is Pearson's
chi-square, summed over all groups. Its p-value does not lean on the chi-square approximation: the same statistic is computed
for thousands of samples drawn from the true distributions with a seeded generator, and ``(1 + larger ones) / (1 + samples)`` is
a valid p-value for any number of draws (Davison and Hinkley 1997, section 4.2.5; Phipson and Smyth 2010).

*Power*. By the Cauchy-Schwarz inequality a distribution whose total variation from the true one is d has a chi-square distance
of at least 4 d^2, and by Jensen's the same holds for averages over groups. So a bias of d, on average over N draws, shifts the
statistic at least as much as a noncentrality of 4 N d^2 does, and the smallest d that is found with a given probability follows
from the noncentral chi-square distribution. Here the approximation is used; it is good to a few percent.

Several tests share one level by Holm's step-down rule (Holm 1979), which holds whatever their dependence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

NUM_SIMULATIONS = 20_000
_LEAST_EXPECTED = 5.0  # draws in a cell
_TINY = 1e-300
_PRECISION = 1e-14
_BLOCK = 2_000_000  # numbers simulated at once


@dataclass(frozen=True, slots=True)
class Group:
    """Draws from one distribution: ``counts`` [n] of the tokens whose true ``probabilities`` [n] sum to 1."""

    counts: Counts
    probabilities: Floats

    @property
    def num_draws(self) -> int:
        """All of them."""
        return int(self.counts.sum())

    @property
    def num_impossible(self) -> int:
        """Draws of tokens that the distribution never gives: one is enough to know."""
        return int(self.counts[self.probabilities <= 0].sum())

    def pooled(self) -> Group:
        """The same draws in cells that are expected at least five times each; likely tokens have one of their own."""
        order = np.argsort(-self.probabilities, kind="stable")[: np.count_nonzero(self.probabilities > 0)]
        counts, probabilities = self.counts[order], self.probabilities[order]
        num_own = int((probabilities * self.num_draws >= _LEAST_EXPECTED).sum())
        while 0 < num_own < len(order) and probabilities[num_own:].sum() * self.num_draws < _LEAST_EXPECTED:
            num_own -= 1  # the rest is too small to stand alone
        if num_own == len(order):
            return Group(counts, probabilities)
        return Group(
            np.append(counts[:num_own], counts[num_own:].sum()),
            np.append(probabilities[:num_own], probabilities[num_own:].sum()),
        )


@dataclass(frozen=True, slots=True)
class Goodness:
    """The test's outcome. ``smallest_bias``: the mean total variation that it finds with the power that was asked for."""

    statistic: float
    degrees: int
    num_draws: int
    p_value: float
    smallest_bias: float

    def describe(self) -> dict[str, Any]:
        """What a record says about it."""
        finite = math.isfinite(self.statistic)
        return {
            "statistic": self.statistic if finite else None,  # JSON knows no infinity
            "degrees_of_freedom": self.degrees,
            "draws": self.num_draws,
            "p_value": self.p_value,
            "smallest_bias": self.smallest_bias,
        }


def goodness(groups: Sequence[Group], *, level: float, power: float = 0.95, seed: int = 0) -> Goodness:
    """Test all groups together. ``level`` is that of the single test whose power is stated."""
    pooled = [group for group in (group.pooled() for group in groups) if len(group.counts) > 1]
    degrees = sum(len(group.counts) - 1 for group in pooled)
    num_draws = sum(group.num_draws for group in pooled)
    bias = smallest_bias(num_draws, degrees, level=level, power=power)
    if any(group.num_impossible for group in groups):
        return Goodness(math.inf, degrees, num_draws, 0.0, bias)
    observed = sum((chi_square(group.counts, group) for group in pooled), np.zeros(1))
    found = float(observed.sum())
    return Goodness(found, degrees, num_draws, _simulated_p_value(found, pooled, seed), bias)


def chi_square(counts: Counts, group: Group) -> Floats:
    """Pearson's statistic of samples [..., n] of a group's size."""
    expected = group.num_draws * group.probabilities
    statistic: Floats = np.atleast_1d((np.square(counts - expected) / expected).sum(axis=-1))
    return statistic


def smallest_bias(num_draws: int, degrees: int, *, level: float, power: float) -> float:
    """The total variation, averaged over the draws, that a test of ``level`` finds with probability ``power``; at most 1."""
    if not degrees or not num_draws:
        return 1.0
    border = chi_square_quantile(level, degrees)
    noncentrality = _root(lambda x: noncentral_tail(border, degrees, x) - power, 0.0, 4.0 * num_draws)
    return math.sqrt(noncentrality / (4.0 * num_draws))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, adjusted so that each may be held against the level of all."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def chi_square_tail(x: float, degrees: float) -> float:
    """Probability that a chi-square variable is larger than x."""
    return gamma_tail(degrees / 2, x / 2)


def chi_square_quantile(tail: float, degrees: float) -> float:
    """The x whose tail has this probability."""
    top = degrees + 10.0
    while chi_square_tail(top, degrees) > tail:
        top *= 2
    return _root(lambda x: tail - chi_square_tail(x, degrees), 0.0, top)


def noncentral_tail(x: float, degrees: float, noncentrality: float) -> float:
    """Probability that a noncentral chi-square variable is larger than x: central ones, mixed by a Poisson variable."""
    mean = noncentrality / 2
    spread = 12 * math.sqrt(mean) + 40  # beyond it the weights are nothing
    total = 0.0
    for number in range(max(0, int(mean - spread)), int(mean + spread) + 1):
        weight = math.exp(number * math.log(mean) - mean - math.lgamma(number + 1)) if mean else float(number == 0)
        if weight > 0:
            total += weight * chi_square_tail(x, degrees + 2 * number)
    return min(total, 1.0)


def gamma_tail(a: float, x: float) -> float:
    """The regularised upper incomplete gamma function Q(a, x): by its series below a + 1, by its continued fraction above."""
    if x <= 0:
        return 1.0
    scale = math.exp(a * math.log(x) - x - math.lgamma(a))
    return max(0.0, 1.0 - scale * _series(a, x)) if x < a + 1 else scale * _fraction(a, x)


def _series(a: float, x: float) -> float:
    term = total = 1 / a
    while term > total * _PRECISION:
        a += 1
        term *= x / a
        total += term
    return total


def _fraction(a: float, x: float) -> float:
    """Lentz's method on 1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - 2 (2 - a) / ...))."""
    b = x + 1 - a
    c, d = 1 / _TINY, 1 / b
    value = d
    for i in range(1, 100_000):
        factor = -i * (i - a)
        b += 2
        d = 1 / _off_zero(factor * d + b)
        c = _off_zero(b + factor / c)
        value *= c * d
        if abs(c * d - 1) < _PRECISION:
            break
    return value


def _off_zero(x: float) -> float:
    return x if abs(x) > _TINY else _TINY


def _root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses zero between two points; the upper one if it does not."""
    if rising(high) < 0:
        return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high


def _simulated_p_value(found: float, groups: Sequence[Group], seed: int) -> float:
    rng = np.random.default_rng(seed)
    statistics = np.zeros(NUM_SIMULATIONS)
    for group in groups:
        block = max(1, _BLOCK // len(group.counts))
        for start in range(0, NUM_SIMULATIONS, block):
            part = statistics[start : start + block]
            samples = rng.multinomial(group.num_draws, group.probabilities / group.probabilities.sum(), size=len(part))
            part += chi_square(samples, group)
    return float((1 + (statistics >= found * (1 - 1e-12)).sum()) / (1 + NUM_SIMULATIONS))
