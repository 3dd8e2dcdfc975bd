"""What the proposers of one sequence offer together: one tree of the likeliest paths, each node with its chance and its owners.

Members are asked node by node where they can be, so that copies go on behind guesses and guesses behind copies, and their
estimates are joined (``proposers/walk.py``, ``combined.py``). A node's *kind* says who named it and whether others named
something else in its place; chances are learnt by kind (``chances.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headstart.plan.chances import MOST, Chances, OwnChances
from headstart.proposers.walk import MIN_REACH, Estimates, Walk, grown_in_python
from headstart.tree import ROOT, Tree


class Share(NamedTuple):
    """Of some rows those that a member named and no cheaper one: their reaches, summed, and their number; all that it named."""

    reach: float
    num_own: int
    num_named: int


@dataclass(slots=True)
class Offer:
    """Nodes of one sequence, parents first; row 0 is the root. One entry a row in every list."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    estimates: tuple[float, ...]  # joint
    own_estimates: tuple[Estimates, ...]  # of each member that was asked, in the order of ``bits``; 0: it did not name the node
    bits: tuple[int, ...]  # of the members that were asked
    owners: list[int]  # one bit a member
    depths: tuple[int, ...]
    kinds: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)  # of being committed once the parent is
    reaches: list[float] = field(default_factory=list)  # of being committed

    @classmethod
    def of(cls, root: int, walks: dict[int, Walk], max_nodes: int, max_depth: int, least_reach: float = MIN_REACH) -> Offer:
        """The likeliest paths of what the members' walks say, by the members' bits."""
        grown, bits = grown_in_python(root, list(walks.values()), max_nodes, max_depth, least_reach), tuple(walks)
        owners = [sum([bit for bit, value in zip(bits, row, strict=True) if value > 0]) for row in grown.estimates]
        tree = grown.tree
        return cls(tree.tokens, tree.parents, tree.probabilities, grown.estimates, bits, owners, tree.depths)

    def weigh(self, chances: Chances, own: OwnChances) -> None:
        """Find every node's kind, chance and reach."""
        rows = range(1, len(self.tokens))
        offering = [0] * len(self.tokens)  # who offered children of a row
        for row in rows:
            offering[self.parents[row]] |= self.owners[row]
        self.kinds, self.chances, self.reaches = [0], [1.0], [1.0]
        factors: dict[int, float] = {}
        for row in rows:
            owners, parent = self.owners[row], self.parents[row]
            kind = 2 * owners + bool(offering[parent] & ~owners)
            factor = factors.get(kind)
            if factor is None:
                factor = factors[kind] = own.factor(kind)
            chance = min(chances.scaled(kind, self.depths[row], self.estimates[row]) * factor, MOST)
            self.kinds.append(kind)
            self.chances.append(chance)
            self.reaches.append(self.reaches[parent] * chance)

    def tree(self, rows: Sequence[int]) -> Tree:
        """The draft of these rows, which hold the parent of each."""
        kept = [ROOT, *rows]
        index = {row: place for place, row in enumerate(kept)}
        tokens, parents, chances = self.tokens, self.parents, self.chances
        return Tree.grown(
            tuple([tokens[row] for row in kept]),
            (-1, *[index[parents[row]] for row in rows]),
            tuple([chances[row] for row in kept]),
        )

    def own_tree(self, verified: Tree, rows: Sequence[int], bit: int) -> Tree:
        """The verified draft of these rows as a member sees it: with its own estimates."""
        if bit not in self.bits:
            return verified.estimated((1.0, *[0.0] * len(rows)))
        place, own = self.bits.index(bit), self.own_estimates
        return verified.estimated((1.0, *[own[row][place] for row in rows]))

    def share(self, rows: Sequence[int], bit: int, cheaper: int) -> Share:
        """What a member has of these rows. ``cheaper``: the bits of cheaper members."""
        named = [row for row in rows if self.owners[row] & bit]
        own = [row for row in named if not self.owners[row] & cheaper]
        return Share(sum([self.reaches[row] for row in own], 0.0), len(own), len(named))

    def learn(self, committed: Sequence[int], chances: Chances, own: OwnChances) -> list[int]:
        """Judge all nodes whose parent was committed; the rows that were right, from the root's child down."""
        children: dict[int, list[int]] = {}
        for row in range(1, len(self.tokens)):
            children.setdefault(self.parents[row], []).append(row)
        row, path = ROOT, list[int]()
        for depth, token in enumerate(committed, start=1):
            right = None
            for child in children.get(row, ()):
                is_hit = self.tokens[child] == token
                kind, estimate = self.kinds[child], self.estimates[child]
                factor = own.factor(kind)
                own.observe(kind, chances.scaled(kind, depth, estimate), is_hit)
                chances.observe(kind, depth, estimate, is_hit, factor)
                if is_hit:
                    right = child
            if right is None:
                break
            path.append(right)
            row = right
        return path
