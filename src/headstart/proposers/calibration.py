"""Calibration: a proposer's probabilities against what really happened, per sequence and depth.

A model that is sure of itself need not be right. At each depth the hits among the children of accepted nodes are compared with
the sum of their estimates; the quotient, shrunk towards 1 until enough was seen, scales later estimates. It lives with its
sequence, so that drafts never depend on other requests.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

from headstart.tree import ROOT, Tree

_PRIOR_WEIGHT = 4.0  # expected hits that outweigh the prior
CERTAIN = 0.99


class Calibration:
    """Hits and expected hits by depth of one sequence."""

    def __init__(self) -> None:
        self._hits: list[float] = []
        self._expected: list[float] = []  # by the proposer's own estimates, before scaling

    def factor(self, depth: int) -> float:
        """What to scale estimates of this depth (1 for the root's children) by."""
        if depth > len(self._hits):
            return 1.0
        return (_PRIOR_WEIGHT + self._hits[depth - 1]) / (_PRIOR_WEIGHT + self._expected[depth - 1])

    def factors(self, num_depths: int) -> list[float]:
        """Those of the first depths."""
        return [self.factor(depth) for depth in range(1, num_depths + 1)]

    def scaled(self, probability: float, depth: int) -> float:
        """A calibrated estimate."""
        return min(probability * self.factor(depth), CERTAIN)

    def observe(self, tree: Tree, tokens: ListOf[int]) -> None:
        """A draft with calibrated estimates was verified and these tokens were committed, bonus included.

        Nodes of probability 0 are not the proposer's own: they lead on, but neither count as expected nor as hits.
        """
        row, factors = ROOT, [self.factor(depth + 1) for depth in range(len(tokens))]
        for depth, token in enumerate(tokens):
            expected = sum(tree.probabilities[child] for child in tree.children[row])
            child = tree.child(row, token)
            if expected:
                self._grow(depth + 1)
                self._expected[depth] += expected / factors[depth]
                self._hits[depth] += child is not None and tree.probabilities[child] > 0
            if child is None:
                return
            row = child

    def _grow(self, depth: int) -> None:
        for counts in (self._hits, self._expected):
            counts.extend([0.0] * (depth - len(counts)))
