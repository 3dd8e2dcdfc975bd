"""Counting: one definition of the acceptance length and of the rates.

A *step* is one target forward over a draft, with its acceptance. The pass over a prompt also yields a token, with and without
speculation, so it is counted apart and enters neither L nor the rates.

* acceptance length ``L = emitted / steps``: tokens per target step, bonus included; plain decoding has L = 1;
* acceptance rate ``accepted / drafted``;
* ``accepted_by_position[d]``: steps whose accepted path is longer than d; ``drafted_by_position[d]``: steps that drafted that
  deep. Their quotient, the acceptance by position, is the share of drafts of that depth that were accepted there.

Accepted per step 2, 0, 4, 1 with four drafted in a chain: 4 steps, 16 drafted, 7 accepted, 11 emitted, L = 2.75, rate 0.4375,
accepted by position 3, 2, 1, 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NUM_BINS = 10


@dataclass(slots=True)
class Reliability:
    """Proposers' estimates against what happened, in ten bins of the estimate.

    Only nodes whose parent was accepted count: behind a rejected node nothing is tried.
    """

    num_nodes: list[int] = field(default_factory=lambda: [0] * NUM_BINS)
    num_accepted: list[int] = field(default_factory=lambda: [0] * NUM_BINS)
    estimated: list[float] = field(default_factory=lambda: [0.0] * NUM_BINS)  # sum of the estimates

    def observe(self, estimate: float, is_accepted: bool) -> None:
        """A node with an accepted parent was accepted or not."""
        place = min(int(NUM_BINS * estimate), NUM_BINS - 1)
        self.num_nodes[place] += 1
        self.num_accepted[place] += is_accepted
        self.estimated[place] += estimate

    def add(self, other: Reliability) -> None:
        """Add another's counts to these."""
        for place in range(NUM_BINS):
            self.num_nodes[place] += other.num_nodes[place]
            self.num_accepted[place] += other.num_accepted[place]
            self.estimated[place] += other.estimated[place]

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error: distance of a bin's mean estimate from its accepted share, weighed by nodes."""
        total = sum(self.num_nodes)
        gaps = (abs(estimated - hits) for estimated, hits in zip(self.estimated, self.num_accepted, strict=True))
        return sum(gaps) / total if total else None


@dataclass(slots=True)
class Ranks:
    """Nodes by depth and rank: the rank-th likeliest child of its parent, by the proposer's estimates, both from 0.

    Only nodes whose parent was accepted count, as in :class:`Reliability`.
    """

    num_tried: list[list[int]] = field(default_factory=list)  # [depth][rank]
    num_accepted: list[list[int]] = field(default_factory=list)

    def observe(self, depth: int, rank: int, is_accepted: bool) -> None:
        """A node with an accepted parent was accepted or not."""
        self._widen(depth + 1, rank + 1)
        self.num_tried[depth][rank] += 1
        self.num_accepted[depth][rank] += is_accepted

    def add(self, other: Ranks) -> None:
        """Add another's counts to these."""
        for depth, counts in enumerate(other.num_tried):
            self._widen(depth + 1, len(counts))
            for rank, count in enumerate(counts):
                self.num_tried[depth][rank] += count
                self.num_accepted[depth][rank] += other.num_accepted[depth][rank]

    @property
    def acceptance(self) -> list[list[float | None]]:
        """Share of the tried nodes of each depth and rank that were accepted; None where none was tried."""
        pairs = zip(self.num_accepted, self.num_tried, strict=True)
        return [[hits / n if n else None for hits, n in zip(*rows, strict=True)] for rows in pairs]

    def _widen(self, num_depths: int, num_ranks: int) -> None:
        for counts in (self.num_tried, self.num_accepted):
            counts.extend([] for _ in range(num_depths - len(counts)))
            row = counts[num_depths - 1]
            row.extend([0] * (num_ranks - len(row)))


@dataclass(slots=True)
class Stats:
    """Counters of one sequence or of many; they add up."""

    num_steps: int = 0
    num_prompt_passes: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_emitted: int = 0  # in steps, so without the token of the prompt's pass
    drafted_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    accepted_histogram: list[int] = field(default_factory=list)  # steps that accepted exactly 0, 1, 2, ... drafted tokens
    reliability: Reliability = field(default_factory=Reliability, compare=False)  # its sums round with the batch
    ranks: Ranks = field(default_factory=Ranks, compare=False)  # so do the estimates that order siblings

    def record(self, *, num_drafted: int, depth: int, num_accepted: int, num_emitted: int) -> None:
        """Count one step: nodes and depth of its draft, accepted nodes, and tokens that reached the text.

        A step that an end cuts short emits fewer tokens than it verified; what lies behind the cut is not accepted either.
        """
        self.num_steps += 1
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        self.num_emitted += num_emitted
        _increment(self.drafted_by_position, range(depth))
        _increment(self.accepted_by_position, range(num_accepted))
        _increment(self.accepted_histogram, (num_accepted,))

    def add(self, other: Stats) -> None:
        """Add another's counts to these."""
        for name in ("num_steps", "num_prompt_passes", "num_drafted", "num_accepted", "num_emitted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("drafted_by_position", "accepted_by_position", "accepted_histogram"):
            mine, theirs = getattr(self, name), getattr(other, name)
            mine.extend([0] * (len(theirs) - len(mine)))
            for i, count in enumerate(theirs):
                mine[i] += count
        self.reliability.add(other.reliability)
        self.ranks.add(other.ranks)

    @property
    def acceptance_length(self) -> float:
        """L: tokens per target step, bonus included (1 if there was no step)."""
        return self.num_emitted / self.num_steps if self.num_steps else 1.0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted nodes that were accepted."""
        return self.num_accepted / self.num_drafted if self.num_drafted else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of the drafts that reached each depth whose node there was accepted."""
        accepted = self.accepted_by_position + [0] * len(self.drafted_by_position)
        return [hits / tries for hits, tries in zip(accepted, self.drafted_by_position, strict=False) if tries]


def _increment(counts: list[int], positions: range | tuple[int, ...]) -> None:
    for position in positions:
        counts.extend([0] * (position + 1 - len(counts)))
        counts[position] += 1
