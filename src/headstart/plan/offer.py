"""What the proposers of one sequence offer together: one tree of the likeliest paths, each node with its chance and its owners.

Members are asked node by node where they can be, so that copies go on behind guesses and guesses behind copies, and their
estimates are joined (``proposers/walk.py``, ``combined.py``). A node's *kind* says who named it and whether others named
something else in its place; chances are learnt by kind (``chances.py``).

Offers are grown, weighed and judged in every step with drafts, so the engine does it where there is one (csrc/offer.h);
:class:`PythonOffer` is the definition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headstart.plan.chances import Chances, OwnChances
from headstart.proposers.compiled import native
from headstart.proposers.walk import CERTAIN, MIN_REACH, Estimates, Grown, Walk, compiled_walks, grown_in_python
from headstart.tree import ROOT, Tree


class Offer(Protocol):
    """Nodes of one sequence, parents first; row 0 is the root."""

    @property
    def reaches(self) -> Sequence[float]:
        """Of being committed, a row each."""

    def tree(self, rows: Sequence[int]) -> Tree:
        """The draft of these rows, rising, which hold the parent of each."""

    def own_tree(self, verified: Tree, rows: Sequence[int], bit: int) -> Tree:
        """The verified draft of these rows as a member sees it: with its own estimates."""

    def share(self, rows: Sequence[int], bit: int, cheaper: int) -> tuple[float, int, int]:
        """The reaches, summed, and the number of rows that a member named and no cheaper one; the number of all it named."""

    def learn(self, committed: Sequence[int], chances: Chances, own: OwnChances) -> list[int]:
        """Judge all nodes whose parent was committed; the rows that were right, from the root's child down."""


def offer_of(
    root: int,
    walks: Mapping[int, Walk],
    chances: Chances,
    own: OwnChances,
    *,
    max_nodes: int,
    max_depth: int,
    least_reach: float = MIN_REACH,
) -> Offer:
    """The likeliest paths of what the members' walks say, by the members' bits, weighed."""
    bits = tuple(walks)
    if native is None:
        grown = grown_in_python(root, list(walks.values()), max_nodes, max_depth, least_reach)
        return PythonOffer.of(grown, bits, chances, own)
    compiled = compiled_walks(walks.values())
    if compiled is not None:
        offer = native.Offer.grown(root, compiled, bits, max_nodes, max_depth, least_reach, CERTAIN)
    else:
        tree, estimates = grown_in_python(root, list(walks.values()), max_nodes, max_depth, least_reach)
        offer = native.Offer(tree.tokens, tree.parents, tree.probabilities, estimates, bits)
    return CompiledOffer(offer, chances, own)


class CompiledOffer:
    """An offer in the engine."""

    __slots__ = ("_offer", "reaches")

    def __init__(self, offer: Any, chances: Chances, own: OwnChances) -> None:
        """``offer``: a native one, ``chances`` and ``own`` native ones as well."""
        offer.weigh(chances, own)
        self._offer, self.reaches = offer, offer.reaches

    def tree(self, rows: Sequence[int]) -> Tree:
        """The draft of these rows."""
        return Tree.grown(*self._offer.draft(rows))

    def own_tree(self, verified: Tree, rows: Sequence[int], bit: int) -> Tree:
        """The draft as a member sees it."""
        return verified.estimated(self._offer.estimates(rows, bit))

    def share(self, rows: Sequence[int], bit: int, cheaper: int) -> tuple[float, int, int]:
        """What a member has of these rows."""
        found: tuple[float, int, int] = self._offer.share(rows, bit, cheaper)
        return found

    def learn(self, committed: Sequence[int], chances: Chances, own: OwnChances) -> list[int]:
        """Judge what can be judged."""
        found: list[int] = self._offer.learn(committed, chances, own)
        return found


@dataclass(slots=True)
class PythonOffer:
    """:class:`Offer` where there is no engine. One entry a row in every list."""

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
    def of(cls, grown: Grown, bits: Iterable[int], chances: Chances, own: OwnChances) -> PythonOffer:
        """A draft that was grown from the walks of these members."""
        bits = tuple(bits)
        owners = [sum([bit for bit, value in zip(bits, row, strict=True) if value > 0]) for row in grown.estimates]
        tree = grown.tree
        offer = cls(tree.tokens, tree.parents, tree.probabilities, grown.estimates, bits, owners, tree.depths)
        offer._weigh(chances, own)
        return offer

    def tree(self, rows: Sequence[int]) -> Tree:
        """The draft of these rows."""
        kept = [ROOT, *rows]
        index = {row: place for place, row in enumerate(kept)}
        tokens, parents, chances = self.tokens, self.parents, self.chances
        return Tree.grown(
            tuple([tokens[row] for row in kept]),
            (-1, *[index[parents[row]] for row in rows]),
            tuple([chances[row] for row in kept]),
        )

    def own_tree(self, verified: Tree, rows: Sequence[int], bit: int) -> Tree:
        """The draft as a member sees it."""
        if bit not in self.bits:
            return verified.estimated((1.0, *[0.0] * len(rows)))
        place, own = self.bits.index(bit), self.own_estimates
        return verified.estimated((1.0, *[own[row][place] for row in rows]))

    def share(self, rows: Sequence[int], bit: int, cheaper: int) -> tuple[float, int, int]:
        """What a member has of these rows."""
        named = [row for row in rows if self.owners[row] & bit]
        own = [row for row in named if not self.owners[row] & cheaper]
        return sum([self.reaches[row] for row in own], 0.0), len(own), len(named)

    def learn(self, committed: Sequence[int], chances: Chances, own: OwnChances) -> list[int]:
        """Judge what can be judged."""
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

    def _weigh(self, chances: Chances, own: OwnChances) -> None:
        """Find every node's kind, chance and reach."""
        rows = range(1, len(self.tokens))
        offering = [0] * len(self.tokens)  # who offered children of a row
        for row in rows:
            offering[self.parents[row]] |= self.owners[row]
        self.kinds, self.chances, self.reaches = [0], [1.0], [1.0]
        for row in rows:
            owners, parent = self.owners[row], self.parents[row]
            kind = 2 * owners + bool(offering[parent] & ~owners)
            known = chances.scaled(kind, self.depths[row], self.estimates[row])
            chance = min(known * own.factor(kind), chances.most)
            self.kinds.append(kind)
            self.chances.append(chance)
            self.reaches.append(self.reaches[parent] * chance)
