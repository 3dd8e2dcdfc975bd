"""``typical``: a drafted token is accepted if the target finds it likely enough. Lossy.

A child x is accepted if ``p(x) > min(epsilon, delta exp(-H(p)))`` with p the target's processed distribution at its parent and
H its entropy; the longest accepted path is taken, of equally long ones the likelier (Cai et al. 2024, "Medusa", section 2.3.1;
the defaults are those of its code). Where the target is unsure, less is asked for.

This is no sampling rule: likely tokens come more often than they should, and no temperature makes up for it. Use it where
plausible text is enough. At temperature 0 only the target's own choice passes, so it is ``exact`` there. The bonus token is the
plain sampler's pick (the published code takes the argmax), so that with an empty draft this is plain decoding as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from headstart.accept.base import Draft, Node, Questions, Rule, Verdict, picks
from headstart.accept.exact import exact
from headstart.errors import RequestError

EPSILON = 0.09
DELTA = 0.3


def threshold(p: NDArray[np.float64], epsilon: float, delta: float) -> float:
    """What a token's probability must exceed, where the target says p [V]."""
    likely = p[p > 0]
    return min(epsilon, delta * math.exp(float(likely @ np.log(likely))))


def typical(scored: Questions, drafts: Sequence[Draft], *, epsilon: float = EPSILON, delta: float = DELTA) -> list[Verdict]:
    """The longest path of likely enough tokens of each draft."""
    greedy = iter(exact(scored, [draft for draft in drafts if draft.is_greedy]))
    ends = [_longest(scored, draft, epsilon, delta) for draft in drafts if not draft.is_greedy]
    bonus = iter(picks(scored, ends))
    sampled = iter(Verdict(_rows(node), (*node.path, next(bonus))) for node in ends)
    return [next(greedy) if draft.is_greedy else next(sampled) for draft in drafts]


def _longest(scored: Questions, draft: Draft, epsilon: float, delta: float) -> Node:
    """The node where the longest accepted path ends."""
    best = Node(draft, draft.start, ())
    level = [(0.0, best)]  # log-probability of the path, its end
    while level:
        best = max(level, key=lambda reached: reached[0])[1]
        below = []
        for logprob, node in level:
            children = draft.tree.children[node.row]
            if not children:
                continue
            p = node.probabilities(scored)
            least = threshold(p, epsilon, delta)
            for child in children:
                token = draft.tree.tokens[child]
                if p[token] > least:
                    below.append((logprob + math.log(p[token]), Node(draft, child, (*node.path, token))))
        level = below
    return best


def _rows(node: Node) -> tuple[int, ...]:
    return node.draft.tree.path(node.row) if node.path else ()


def typical_rule(epsilon: float = EPSILON, delta: float = DELTA) -> Rule:
    """The rule with its two borders; RequestError if one lies outside (0, 1]."""
    for name, value in (("epsilon", epsilon), ("delta", delta)):
        if not 0 < value <= 1:
            raise RequestError(f"{name} is {value!r}; it must be above 0 and at most 1")
    verify = partial(typical, epsilon=epsilon, delta=delta)
    return Rule("typical", verify, choice="likeliest", is_lossless=False, repeats_plain=False)
