"""``block``: whole paths are accepted or rejected, which keeps more tokens than one test a token.

Block verification (Sun et al. 2025, "Block verification accelerates speculative decoding") weighs a drafted chain as a whole:
the running product of ``p / q``, cut at 1 after every factor, is the chance of keeping all of it, and shorter prefixes get
what that left. Traversal verification (Weng et al. 2025, "Traversal verification for speculative tree decoding") does the same
on a tree whose children were drawn without replacement, and is block verification on a chain. Leaves come first:

* a node's weight is ``min(1, w p(x) / q(x))`` with w, p and q of its parent, the root's is 1;
* the first leaf is accepted with the chance of its weight, and with it its whole path and one token more from its p;
* if it is rejected, it goes, and its parent takes over what it left: ``S = sum((w p - q)+)``, ``p = norm((w p - q)+)``,
  ``w = S / (S + 1 - w)``, and q loses the token and is renormalised. Without children the parent is a leaf itself.

The root is accepted in the end, so there is always a token. Children that were chosen deterministically are draws from a point
mass. Every node needs chance of its own, so draws must be independent between nodes, which ``proposers/children.py`` sees to.

At temperature 0, and where nothing was drawn, weighing paths gains nothing over ``exact``, which then decides.
:func:`weighed` is the rule without its chance, which is how the tests enumerate it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.accept.base import Draft, Node, Questions, Rule, Verdict, drawn, passes
from headstart.accept.exact import exact
from headstart.tree import Draws, Tree

Floats = NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Standing:
    """Where a node stands: its weight now, and the target's distribution behind it, less what rejected children took."""

    rows: tuple[int, ...]  # accepted with it, itself last
    tokens: tuple[int, ...]  # drafted tokens that lead to it
    weight: float
    is_row: bool = True  # whether the target scored it
    p: Floats | None = None  # [V], not normalised; None: as the target said

    def reject(self, q: Floats, ids: NDArray[np.int64]) -> None:
        """A child that was drawn from q [m] over ids [m] was rejected."""
        assert self.p is not None
        mass = float(self.p.sum())
        covered = self.p[ids]
        self.p[ids] = np.maximum(covered - mass / self.weight * q, 0.0)
        left = self.weight / mass * float(self.p.sum())
        rejected = left + (1 - self.weight)
        if rejected <= 0:  # q covers p: no rejection, but for rounding
            self.p[ids] = covered
        else:
            self.weight = left / rejected


def weighed(tree: Tree, start: int, distribution: Callable[[int, tuple[int, ...]], Floats]) -> Iterator[tuple[float, Standing]]:
    """Each node, leaves first, with its chance of being accepted if none before it was; the start comes last, with chance 1.

    ``distribution(row, path)`` is p [V] behind a row to which the drafted tokens ``path`` lead.
    """
    yield from _below(tree, start, Standing((), (), 1.0), distribution)


def _below(
    tree: Tree, row: int, node: Standing, distribution: Callable[[int, tuple[int, ...]], Floats]
) -> Iterator[tuple[float, Standing]]:
    """Trials of a node's descendants, then of the node itself."""
    sources = _sources(tree, row)
    if sources and node.weight > 0:
        node.p = distribution(row, node.tokens).copy()
    for source in sources:
        q = source.probabilities.copy()
        for token in source.tokens:
            if node.weight <= 0 or node.p is None:
                break
            place = int(np.flatnonzero(source.ids == token)[0])
            ratio = float(node.p[token]) / float(node.p.sum()) / float(q[place])
            child = tree.child(row, token)
            below = Standing(
                node.rows if child is None else (*node.rows, child),
                (*node.tokens, token),
                min(1.0, node.weight * ratio),
                child is not None,
            )
            if child is None:
                yield below.weight, below
            else:
                yield from _below(tree, child, below, distribution)
            node.reject(q, source.ids)
            q[place] = 0.0
            rest = float(q.sum())
            if rest <= 0:
                break
            q /= rest
    yield node.weight, node


def _sources(tree: Tree, row: int) -> list[Draws]:
    """What a node's children were drawn from; a point mass for each that was not drawn."""
    sources = list(tree.drawn(row))
    known = {token for one in sources for token in one.tokens}
    others = [tree.tokens[child] for child in tree.children[row] if tree.tokens[child] not in known]
    return sources + [Draws((token,), np.array([token]), np.ones(1)) for token in others]


def block(scored: Questions, drafts: Sequence[Draft]) -> list[Verdict]:
    """Weigh the paths of each draft that was drawn; the others are walked as ``exact`` does."""
    weighs = [bool(draft.tree.draws) and not draft.is_greedy for draft in drafts]
    plain = iter(exact(scored, [draft for draft, weigh in zip(drafts, weighs, strict=True) if not weigh]))
    return [_verdict(scored, draft) if weigh else next(plain) for draft, weigh in zip(drafts, weighs, strict=True)]


def _verdict(scored: Questions, draft: Draft) -> Verdict:
    def distribution(row: int, path: tuple[int, ...]) -> Floats:
        return Node(draft, row, path).probabilities(scored)

    accepted = Standing((), (), 1.0)
    for number, (chance, node) in enumerate(weighed(draft.tree, draft.start, distribution)):
        accepted = node
        if passes(draft.sampler, 0, number, chance):
            break
    if not accepted.is_row:
        return Verdict(accepted.rows, accepted.tokens)
    row = accepted.rows[-1] if accepted.rows else draft.start
    if accepted.p is None:
        (bonus,) = scored.pick([(draft.entry, row)], [draft.sampler], [accepted.tokens])
    else:
        bonus = drawn(draft.sampler, accepted.tokens, accepted.p)
    return Verdict(accepted.rows, (*accepted.tokens, bonus))


BLOCK = Rule("block", block, choice="drawn", is_lossless=True, repeats_plain=False)
