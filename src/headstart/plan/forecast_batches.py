"""What drafting gives at any number of sequences in flight, from measurements at a few of them.

Five things are measured: T(rows); how much slower than T forwards are at a configuration's own pace (``measure/replay.py``);
what plain decoding takes beside its forward; what asking a proposer takes; and, for each proposer and number of drafted nodes,
the acceptance length and the sizes of its drafts. L does not depend on the batch, since a sequence's text does not. The two
costs that are not T grow as a line with the sequences. What remains is arithmetic:

    speedup(n) = L * (slower(n) T(n) + overhead(n)) / (own slower(n) T(rows at n) + overhead(n) + asking(n))

Only decoding is forecast: prompts cost the same with and without drafts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.plan.forecast import Forward

BATCHES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds by the number of sequences: ``fixed + each * n``, never below zero."""

    fixed: float
    each: float

    @classmethod
    def through(cls, points: Mapping[int, float]) -> Line:
        """The line through the smallest and the largest batch that were measured; a level one if there is only one."""
        first, last = min(points), max(points)
        each = (points[last] - points[first]) / (last - first) if last > first else 0.0
        return cls(points[first] - each * first, each)

    def at(self, num_sequences: float) -> float:
        """Seconds for so many sequences."""
        return max(self.fixed + self.each * num_sequences, 0.0)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much slower than T(rows) forwards are, by sequences in flight: straight between those measured, level beyond."""

    slower: Mapping[int, float]

    def at(self, num_sequences: float) -> float:
        """For so many sequences."""
        batches = sorted(self.slower)
        return float(np.interp(num_sequences, batches, [self.slower[batch] for batch in batches]))


@dataclass(frozen=True, slots=True)
class Drafting:
    """One proposer with one number of nodes."""

    proposer: str
    num_nodes: int
    length: float  # L
    steps_by_rows: Mapping[int, int]  # at one sequence in flight
    asking: Line
    pace: Pace

    def rows_of(self, num_sequences: int) -> Mapping[int, float]:
        """How likely each number of rows is in a step of so many sequences, which draft independently of each other.

        T rises in stairs, so T of the mean is not the mean of T.
        """
        one = np.zeros(max(self.steps_by_rows) + 1)
        for rows, count in self.steps_by_rows.items():
            one[rows] = count / sum(self.steps_by_rows.values())
        together = one
        for _ in range(num_sequences - 1):
            together = np.convolve(together, one)
        return {rows: float(share) for rows, share in enumerate(together) if share > 0}

    @property
    def mean_rows(self) -> float:
        """Of one sequence and step."""
        return sum(rows * n for rows, n in self.steps_by_rows.items()) / max(sum(self.steps_by_rows.values()), 1)


@dataclass(frozen=True, slots=True)
class Plain:
    """Plain decoding: T(rows), its pace, and what a step takes beside its forward."""

    forward: Forward
    pace: Pace
    overhead: Line

    def step(self, num_sequences: float) -> float:
        """Seconds of a step."""
        return self.pace.at(num_sequences) * self.forward.seconds(num_sequences) + self.overhead.at(num_sequences)

    def seconds_per_token(self, num_sequences: float) -> float:
        """Device-seconds."""
        return self.step(num_sequences) / num_sequences


@dataclass(frozen=True, slots=True)
class Choice:
    """What one way of drafting gives at one batch. Seconds of a step; the rate is in tokens a second."""

    drafting: Drafting
    num_sequences: float
    plain_step: float
    step: float

    @property
    def speedup(self) -> float:
        """Over plain decoding of the same batch."""
        return self.drafting.length * self.plain_step / self.step

    @property
    def break_even_length(self) -> float:
        """The L below which it loses."""
        return self.step / self.plain_step

    def with_length(self, length: float) -> float:
        """The speedup if L were another one, the drafts being as large as they are."""
        return length * self.plain_step / self.step

    @property
    def seconds_per_token(self) -> float:
        """Device-seconds."""
        return self.step / (self.num_sequences * self.drafting.length)

    @property
    def plain_seconds_per_token(self) -> float:
        """Device-seconds without drafts."""
        return self.plain_step / self.num_sequences


def choice(plain: Plain, drafting: Drafting, num_sequences: float) -> Choice:
    """The forecast of one way with so many sequences in flight, on average."""
    full = int(num_sequences)
    verify = plain.forward.mean(drafting.rows_of(full))
    if num_sequences > full:
        verify += (num_sequences - full) * (plain.forward.mean(drafting.rows_of(full + 1)) - verify)
    step = drafting.pace.at(num_sequences) * verify + plain.overhead.at(num_sequences) + drafting.asking.at(num_sequences)
    return Choice(drafting, num_sequences, plain.step(num_sequences), step)


def best(plain: Plain, draftings: Sequence[Drafting], num_sequences: int) -> Choice:
    """The way that gives most at this batch, which may still be less than plain decoding."""
    return max((choice(plain, drafting, num_sequences) for drafting in draftings), key=lambda found: found.speedup)
