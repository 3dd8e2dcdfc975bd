"""A draft tree that grows level by level, for proposers that must see a token before they can guess what follows it.

One pass of the proposer scores all nodes of the deepest level, the *frontier*, of all sequences at once. Their children join,
the ``max_nodes`` nodes with the likeliest paths stay, and those of them that are new are the next frontier (EAGLE-2, Li et al.
2024, section 4). Growth ends when no survivor's children could stay, when none of its paths is likely enough to be worth a
further pass, or after ``num_levels`` passes.

A node's reach is the product of the calibrated estimates on its path, so a child never reaches further than its parent, and
what is kept is closed under parents.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from headstart.proposers.base import Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.children import Children, Place
from headstart.tree import ROOT, Draws, Tree


@dataclass(slots=True)
class Node:
    """A drafted token (or the root) and how likely it is to be reached."""

    token: int
    parent: int  # -1: it is the root
    probability: float
    reach: float  # product along the path
    depth: int
    draws: Draws | None = None  # what its children were drawn from
    row: int = -1  # where the proposer finds what it computed for this node


class Growth:
    """One sequence's tree while it grows."""

    def __init__(self, sequence: Sequence, calibration: Calibration, num_levels: int, least_reach: float = 0.0) -> None:
        """``num_levels``: passes, so the deepest node; nodes of less than ``least_reach`` are not expanded."""
        self.sequence, self.calibration = sequence, calibration
        self.num_levels, self.least_reach = num_levels, least_reach
        self.nodes = [Node(sequence.tokens[-1], -1, 1.0, 1.0, 0)]
        self.frontier = [ROOT]  # nodes that the next pass expands, all of one depth
        self._kept: list[int] = []  # the likeliest nodes so far, without the root
        self._border = 0.0  # what a further node must surpass

    @property
    def depth(self) -> int:
        """Depth of the frontier."""
        return self.nodes[self.frontier[0]].depth

    def path(self, index: int) -> list[int]:
        """Nodes from the root's child down to this one."""
        path: list[int] = []
        while index != ROOT:
            path.append(index)
            index = self.nodes[index].parent
        return path[::-1]

    def place(self, index: int) -> Place:
        """The node as one that wants children."""
        return Place(self.sequence, tuple([self.nodes[above].token for above in self.path(index)]))

    def add(self, children: Mapping[int, Children]) -> None:
        """Hang children below nodes of the frontier; keep the likeliest paths, and expand what is new among them."""
        nodes, first, depth = self.nodes, len(self.nodes), self.depth + 1
        for parent, hung in children.items():
            nodes[parent].draws = hung.draws
            reach = nodes[parent].reach
            for token, estimate in zip(hung.tokens, hung.probabilities, strict=True):
                probability = self.calibration.scaled(estimate, depth)
                if reach * probability > self._border:
                    nodes.append(Node(token, parent, probability, reach * probability, depth))
        likeliest = sorted([*self._kept, *range(first, len(nodes))], key=lambda i: -nodes[i].reach)  # ties: parents first
        self._kept = likeliest[: self.sequence.max_nodes]
        if len(self._kept) == self.sequence.max_nodes:
            self._border = nodes[self._kept[-1]].reach
        self.frontier = []
        if depth < self.num_levels:
            new = sorted(i for i in self._kept if i >= first)
            # No child reaches further than its parent, so behind the least likely node of a full draft nothing can be gained.
            worth = [i for i in new if nodes[i].reach >= self.least_reach and nodes[i].reach > self._border]
            if sum([nodes[i].reach for i in worth]) >= self.sequence.least_reach:
                self.frontier = worth

    def tree(self, rows: ListOf[int] | None = None) -> Tree:
        """These nodes as a tree, parents first; None: what is kept."""
        rows = [ROOT, *sorted(self._kept)] if rows is None else rows
        index = {-1: -1} | {row: i for i, row in enumerate(rows)}
        nodes = [self.nodes[row] for row in rows]
        draws = tuple([(node.draws,) if node.draws else () for node in nodes])
        return Tree(
            tuple([node.token for node in nodes]),
            tuple([index[node.parent] for node in nodes]),
            tuple([node.probability for node in nodes]),
            draws if any(draws) else (),
        )
