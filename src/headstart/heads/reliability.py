"""How far heads' estimates can be trusted, by depth and size, as held-out text showed it when they were trained.

A head that gives a guess 0.6 should be right six times in ten. Decoding learns its own corrections (a sequence's by depth,
``proposers/calibration.py``; all sequences' by depth and size, ``plan/chances.py``), but begins with none; these counts are
what a beginning can be made of: of the guesses at each depth whose estimate lies between two edges, how many there were, how
many were right, and how many should have been by their estimates. Only guesses behind right ones count, as in decoding.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Of the estimates' bins; those of ``plan/chances.py``."""
PRIOR = 4.0  # expected hits that outweigh what was seen

Counts = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Reliability:
    """Counts [K][bins] of guesses, right ones, and those expected to be right."""

    num_guesses: Counts
    num_right: Counts
    expected: Counts
    edges: tuple[float, ...] = EDGES

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Reliability:
        """What ``asdict`` and JSON made of it; ValueError if the counts do not fit each other."""
        edges = tuple(float(edge) for edge in record["edges"])
        read = cls(_counts(record["num_guesses"]), _counts(record["num_right"]), _counts(record["expected"]), edges)
        tables = (read.num_guesses, read.num_right, read.expected)
        if {len(row) for table in tables for row in table} != {len(edges) + 1} or len({len(table) for table in tables}) > 1:
            raise ValueError("its counts of reliability have not one row a depth, and one number a bin")
        return read

    def of_depth(self, depth: int) -> tuple[float, float]:
        """Right guesses and expected ones at a depth (1: the root's children), over all sizes."""
        return sum(self.num_right[depth - 1]), sum(self.expected[depth - 1])

    def factor(self, depth: int, estimate: float) -> float:
        """What to scale an estimate at this depth by, shrunk towards 1 where little was seen; deeper depths: the last one's."""
        place = bisect_right(self.edges, estimate)
        row = min(depth, len(self.expected)) - 1
        return (PRIOR + self.num_right[row][place]) / (PRIOR + self.expected[row][place])

    def error(self, depth: int) -> float:
        """Expected calibration error at a depth: distance of a bin's mean estimate from its share of right ones."""
        row = depth - 1
        total = sum(self.num_guesses[row])
        gaps = (abs(e - hits) for e, hits in zip(self.expected[row], self.num_right[row], strict=True))
        return sum(gaps) / total if total else 0.0


def _counts(table: Sequence[Sequence[float]]) -> Counts:
    return tuple(tuple(float(count) for count in row) for row in table)
