"""What every rule of acceptance works on: a draft under verification, questions to the scored batch, a verdict.

A *rule* decides which drafted tokens become text. ``exact`` and its kin walk down the tree and decide one node after the other
(:func:`walk`); ``block`` weighs whole paths. Chance comes from counters alone: the pick's own noise at the position of the
token, and uniform numbers from seeds of their own, so a request with a seed is answered alike whenever the drafts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.sampling import Sampler, own_seed, uniform
from headstart.tree import ROOT, Path, Tree

Row = tuple[int, int]
"""Entry of the batch, row of that entry's tree."""

Choice = Literal["likeliest", "coupled", "drawn"]
"""How a draft's children are chosen at temperature > 0 (``proposers/children.py``); each rule has one it works best with."""

_TESTS, _RESIDUALS = "tests of acceptance", "draws from a residual"


class Questions(Protocol):
    """What the rules ask of a scored batch."""

    def pick(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> list[int]:
        """The plain sampler's token of each row, behind the drafted tokens of each path."""

    def probabilities(
        self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        """The distribution [rows, V] that the plain sampler picks from at each row (``Sampler.distribution``)."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree under verification: where its rows stand in the batch, and where its root is (the last row of a prompt)."""

    entry: int
    tree: Tree
    sampler: Sampler
    start: int = ROOT

    @property
    def is_greedy(self) -> bool:
        """Whether the plain sampler leaves nothing to chance."""
        return self.sampler.sampling.temperature == 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification found: the accepted rows behind the start, and the tokens to commit.

    There is one token more than rows: the bonus token, or an accepted token that was drafted and got no row.
    """

    path: Path
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A row that a walk has reached, and the drafted tokens that led there."""

    draft: Draft
    row: int
    path: tuple[int, ...]

    @property
    def at(self) -> Row:
        """Where the engine finds it."""
        return self.draft.entry, self.row

    def probabilities(self, scored: Questions) -> NDArray[np.float64]:
        """The target's processed distribution [V] of the token behind this node."""
        distribution: NDArray[np.float64] = scored.probabilities([self.at], [self.draft.sampler], [self.path])[0]
        return distribution


Verify = Callable[[Questions, Sequence[Draft]], list[Verdict]]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of acceptance and what it promises."""

    name: str
    verify: Verify
    choice: Choice  # of children at temperature > 0
    is_lossless: bool  # every token follows the target's processed distribution
    repeats_plain: bool  # same seed, same tokens as plain decoding at any temperature; at temperature 0 every rule does

    @property
    def note(self) -> str | None:
        """What a user must be told."""
        if self.is_lossless:
            return None
        return f"accept {self.name} is lossy: sampled text does not follow the model's own distribution"


def walk(drafts: Sequence[Draft], decide: Callable[[Sequence[Node]], list[int]]) -> list[Verdict]:
    """Go down all drafts side by side: ``decide`` gives the token behind each node, and where that is a child, on it goes."""
    rows = [draft.start for draft in drafts]
    paths: list[Path] = [() for _ in drafts]
    tokens: list[tuple[int, ...]] = [() for _ in drafts]
    walking = list(range(len(drafts)))
    while walking:
        decided = decide([Node(drafts[i], rows[i], tokens[i]) for i in walking])
        onward = []
        for i, token in zip(walking, decided, strict=True):
            child = drafts[i].tree.child(rows[i], token)
            tokens[i] = (*tokens[i], token)
            if child is not None:
                rows[i] = child
                paths[i] = (*paths[i], child)
                onward.append(i)
        walking = onward
    return [Verdict(path, taken) for path, taken in zip(paths, tokens, strict=True)]


def picks(scored: Questions, nodes: Sequence[Node]) -> list[int]:
    """The plain sampler's token behind each node, in one question to the engine."""
    if not nodes:
        return []
    return scored.pick([node.at for node in nodes], [node.draft.sampler for node in nodes], [node.path for node in nodes])


def drawn(sampler: Sampler, path: Sequence[int], weights: NDArray[np.float64]) -> int:
    """A token behind the drafted tokens ``path``, drawn in proportion to ``weights`` [V]."""
    sums = np.cumsum(weights)
    share = uniform(own_seed(sampler.seed, _RESIDUALS), sampler.position + len(path), 0)
    token = int(np.searchsorted(sums, share * sums[-1], side="right"))
    return token if token < len(weights) else int(np.flatnonzero(weights)[-1])  # the product was rounded up


def passes(sampler: Sampler, path_length: int, number: int, chance: float) -> bool:
    """Whether the number-th test behind ``path_length`` drafted tokens succeeds, which has this chance."""
    return uniform(own_seed(sampler.seed, _TESTS), sampler.position + path_length, number) < chance
