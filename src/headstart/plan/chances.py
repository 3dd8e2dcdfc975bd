"""What a node's probability is worth: estimates against what happened.

A proposer's estimate is right on average at best, and useless heads are as sure of themselves as good ones. So estimates are
compared with the committed text: of the nodes whose parent was committed, how many were, and how many should have been by their
estimates? The quotient, shrunk towards 1 until enough was seen, scales later estimates. Two of them are multiplied:

* one for all sequences, by the estimate's size, its depth, and its *kind*: which proposers offered the node, and whether others
  offered something else in its place. Nodes on which two proposers agree are likelier than either says, contested ones less.
  So a new sequence profits from what earlier ones showed, and useless heads are found out once;
* one for the sequence at hand, which forgets quickly: texts differ, and change. What it explains is not held against all the
  others: a long text that nobody can guess says that much about itself, and little about proposers.

Outcomes do not depend on the budget. The text is the plain sampler's whatever was drafted, so a node that was cut away is
judged by the committed tokens as well as one that was verified. Only nodes whose parent was committed count.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
_NUM_BINS = len(EDGES) + 1
_NUM_DEPTHS = 3  # the third stands for all deeper ones
_MIDDLES = (0.01, *((a + b) / 2 for a, b in itertools.pairwise(EDGES)), 0.95)
_PRIOR_OBSERVATIONS = 10.0
_MIN_PRIOR, _MAX_PRIOR = 0.2, 2.0  # in expected hits
PRIORS = tuple(min(max(_PRIOR_OBSERVATIONS * middle, _MIN_PRIOR), _MAX_PRIOR) for middle in _MIDDLES) * _NUM_DEPTHS
_FORGET = 0.996  # an observation
_OWN_PRIOR, _OWN_FORGET = 1.0, 0.96
MOST = 0.98
NUMBERS = {"forget": _FORGET, "most": MOST, "own_prior": _OWN_PRIOR, "own_forget": _OWN_FORGET}
"""By the names that the engine has for them."""


class Chances:
    """What all sequences together have shown, by kind."""

    def __init__(self) -> None:
        self._hits: dict[int, list[float]] = {}
        self._expected: dict[int, list[float]] = {}

    def scaled(self, kind: int, depth: int, estimate: float) -> float:
        """The chance of a node at this depth (1: the root's children) once its parent is committed."""
        hits = self._hits.get(kind)
        if hits is None:
            return min(estimate, MOST)
        place = _place(depth, estimate)
        prior = PRIORS[place]
        return min(estimate * (prior + hits[place]) / (prior + self._expected[kind][place]), MOST)

    def observe(self, kind: int, depth: int, estimate: float, is_hit: bool, factor: float = 1.0) -> None:
        """A node with a committed parent was committed itself, or not. ``factor``: the sequence's own, before this."""
        hits = self._hits.get(kind)
        if hits is None:
            hits = self._hits[kind] = [0.0] * (_NUM_BINS * _NUM_DEPTHS)
            self._expected[kind] = [0.0] * (_NUM_BINS * _NUM_DEPTHS)
        expected, place = self._expected[kind], _place(depth, estimate)
        hits[place] = _FORGET * hits[place] + is_hit
        expected[place] = _FORGET * expected[place] + min(estimate * factor, 1.0)


class OwnChances:
    """What one sequence has shown, beside what all have."""

    def __init__(self) -> None:
        self._hits: dict[int, float] = {}
        self._expected: dict[int, float] = {}

    def factor(self, kind: int) -> float:
        """What to scale a kind's chances by."""
        return (_OWN_PRIOR + self._hits.get(kind, 0.0)) / (_OWN_PRIOR + self._expected.get(kind, 0.0))

    def observe(self, kind: int, chance: float, is_hit: bool) -> None:
        """A node with this chance, by what all sequences showed, was committed or not."""
        self._hits[kind] = _OWN_FORGET * self._hits.get(kind, 0.0) + is_hit
        self._expected[kind] = _OWN_FORGET * self._expected.get(kind, 0.0) + chance


def _place(depth: int, estimate: float) -> int:
    return (min(depth, _NUM_DEPTHS) - 1) * _NUM_BINS + bisect_right(EDGES, estimate)
