"""``rejection``: drawn tokens are accepted or rejected one by one so that what comes out follows the target.

With a token x drawn from q, accept it with the chance ``min(1, p(x) / q(x))``; if it is rejected, the token comes from what q
left uncovered, the residual ``norm((p - q)+)`` (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023). Several draws at one
node go one after the other: the next is weighed against the residual so far, by the q it was drawn from, which without
replacement is q without the tokens before it, renormalised (recursive rejection: Jeon et al. 2024, "Recursive speculative
decoding"; Chen et al. 2024, "Sequoia", Algorithm 2). The draws of several proposers simply follow each other.

Children that were chosen deterministically are point masses. Their test and the final draw from the residual are one and the
same thing: the draw is made, and if it is a child, the walk goes on there. So with a proposer that draws nothing, and at
temperature 0, the rule is ``exact``.

:func:`weighed` is the rule without its chance, which is how the tests enumerate it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from headstart.accept.base import Draft, Node, Questions, Rule, Verdict, drawn, passes, picks, walk
from headstart.tree import Draws

Floats = NDArray[np.float64]


def weighed(p: Floats, draws: Sequence[Draws]) -> Generator[tuple[int, float], None, Floats]:
    """Each drawn token with its chance of being accepted if none before it was; returns the residual [V] after them all."""
    residual, mass = p.copy(), float(p.sum())  # the residual is not normalised
    for one in draws:
        q = one.probabilities.copy()
        for token in one.tokens:
            place = int(np.flatnonzero(one.ids == token)[0])
            yield token, min(1.0, float(residual[token]) / (mass * float(q[place])))
            covered = residual[one.ids]
            residual[one.ids] = np.maximum(covered - mass * q, 0.0)
            left = float(residual.sum())
            if left <= 0:  # q covers p: no rejection, but for rounding
                residual[one.ids] = covered
                break
            mass = left
            q[place] = 0.0
            rest = float(q.sum())
            if rest <= 0:
                break
            q /= rest
    return residual / mass


def rejection(scored: Questions, drafts: Sequence[Draft]) -> list[Verdict]:
    """Walk all drafts side by side and decide each node by what its children were drawn from."""

    def decide(nodes: Sequence[Node]) -> list[int]:
        weighs = [bool(node.draft.tree.drawn(node.row)) and not node.draft.is_greedy for node in nodes]
        plain = iter(picks(scored, [node for node, weigh in zip(nodes, weighs, strict=True) if not weigh]))
        return [_decided(scored, node) if weigh else next(plain) for node, weigh in zip(nodes, weighs, strict=True)]

    return walk(drafts, decide)


def _decided(scored: Questions, node: Node) -> int:
    """The token behind a node whose children were drawn."""
    sampler, tests = node.draft.sampler, weighed(node.probabilities(scored), node.draft.tree.drawn(node.row))
    number = 0
    while True:
        try:
            token, chance = next(tests)
        except StopIteration as end:
            return drawn(sampler, node.path, end.value)
        if passes(sampler, len(node.path), number, chance):
            return token
        number += 1


REJECTION = Rule("rejection", rejection, choice="drawn", is_lossless=True, repeats_plain=False)
