"""The budget of a step: which drafted nodes are worth a row.

Every sequence in flight offers a tree whose nodes have a probability of being reached. A step that verifies a set of nodes
emits ``num_tokens + sum of their probabilities`` tokens in expectation, one of each sequence plus the accepted ones, and takes
``T(rows)``. The best set of k nodes is the k likeliest of all trees: a node is never likelier than its parent, so with parents
first among equals every such prefix consists of whole paths. Which k is best is found by trying all of them, zero included: T
has steps where a kernel's tile is full, so the first k that gains nothing need not be the last word (DSpark, 2026, stops
there).

    k* = argmax over k of (num_tokens + sum of the k largest probabilities) / T(k)

With many sequences in flight even T(0) is on the slope of T, so that no node earns its row: speculation ends by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The chosen rows of every tree, rising, the root left out; expected tokens and seconds of the step."""

    rows: list[list[int]]
    num_tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        """Expected tokens a second."""
        return self.num_tokens / self.seconds


def allot(reaches: Sequence[Sequence[float]], num_tokens: float, seconds: Sequence[float], *, margin: float = 0.0) -> Budget:
    """Choose the nodes that make expected tokens per second largest.

    ``reaches[s][r]``: probability that row r of sequence s's tree is reached; row 0 is the root, and no row is likelier than
    its parent, which stands before it. ``num_tokens``: what the step emits without any draft. ``seconds[k]``: what the step
    costs with k drafted nodes over all sequences, overhead included; nodes beyond its end are never chosen. ``margin``: share
    by which drafting must beat plain decoding, or nothing is drafted.
    """
    offers = [(-reach, row, entry) for entry, tree in enumerate(reaches) for row, reach in enumerate(tree) if row]
    offers.sort()
    del offers[len(seconds) - 1 :]
    expected = best_tokens = float(num_tokens)
    best, best_rate = 0, (1 + margin) * num_tokens / seconds[0]
    for count, (negative, _, _) in enumerate(offers, start=1):
        expected -= negative
        rate = expected / seconds[count]
        if rate > best_rate:
            best, best_rate, best_tokens = count, rate, expected
    rows: list[list[int]] = [[] for _ in reaches]
    for _, row, entry in sorted(offers[:best], key=lambda offer: offer[1]):
        rows[entry].append(row)
    return Budget(rows, best_tokens, seconds[best])
