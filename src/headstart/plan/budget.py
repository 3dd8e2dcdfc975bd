"""The budget of a step: which drafted nodes are worth a row.

Every sequence in flight offers a tree whose nodes have a probability of being reached. A step that verifies a set of nodes
takes ``T(rows)`` and gives a sequence one token and, of its nodes, as many more as the sum of their probabilities, its gain.
So a sequence waits ``T(rows) / (1 + gain)`` for a token, and what is made smallest is the mean of that over the sequences:

    k* = argmin over k of T(k) * sum over sequences of 1 / (1 + gain of the sequence)

For one sequence that is the largest rate of tokens. For several it is not: a rate over all would let one sequence's long copy
slow down all the others, and auto's promise, never slower than plain decoding, is made to each of them. (Tokens a second over
all are the measure of SmartSpec, Liu et al. 2024.)

The best set of k nodes is found by taking each time the node that shortens the waiting most. Within a tree that is the
likeliest one; a node is never likelier than its parent, so with parents first among equals whole paths are taken; and what a
sequence's next node saves is less than what its last one did, so the order by savings is the order of taking. Which k is best
is found by trying all of them, zero included: T has steps where a kernel's tile is full, so the first k that gains nothing
need not be the last word (DSpark, 2026, stops there). With many sequences in flight even T(0) is on the slope of T, so that no
node earns its row: speculation ends by itself.
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
    """Choose the nodes that make the mean time to a token shortest.

    ``reaches[s][r]``: probability that row r of sequence s's tree is reached; row 0 is the root, and no row is likelier than
    its parent, which stands before it. ``num_tokens``: what the step emits without any draft. ``seconds[k]``: what the step
    costs with k drafted nodes over all sequences, overhead included; nodes beyond its end are never chosen. ``margin``: share
    by which drafting must beat plain decoding, or nothing is drafted.
    """
    offers = [offer for entry, tree in enumerate(reaches) for offer in _savings(entry, tree)]
    offers.sort()
    del offers[len(seconds) - 1 :]
    waiting = float(len(reaches))
    best, best_time = 0, seconds[0] * waiting / (1 + margin)
    for count, (less, *_) in enumerate(offers, start=1):
        waiting += less
        time = seconds[count] * waiting
        if time < best_time:
            best, best_time = count, time
    rows: list[list[int]] = [[] for _ in reaches]
    for _, _, entry, row in offers[:best]:
        rows[entry].append(row)
    for chosen in rows:
        chosen.sort()
    expected = num_tokens + sum(reaches[entry][row] for entry, chosen in enumerate(rows) for row in chosen)
    return Budget(rows, expected, seconds[best])


def _savings(entry: int, tree: Sequence[float]) -> list[tuple[float, int, int, int]]:
    """What each further node takes off the steps that a sequence waits for a token (below zero), its place, entry and row."""
    rows = sorted(range(1, len(tree)), key=lambda row: (-tree[row], row))
    tokens, steps, last, found = 1.0, 1.0, -1.0, []
    for place, row in enumerate(rows):
        tokens += tree[row]
        fewer = 1 / tokens
        last = max(
            last, fewer - steps
        )  # not less than the one before by rounding either, or a node could come before its parent
        steps = fewer
        found.append((last, place, entry, row))
    return found
