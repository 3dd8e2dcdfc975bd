"""Rules of acceptance with all their chance enumerated: every draft, test and pick, with its probability.

A rule is run as it is, but its random events (``passes``, ``drawn``, the engine's ``pick``) ask a :class:`Chance`,
which tries all their outcomes one after the other. So what is checked is the code that decodes, not a copy of it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.accept import Draft, Row
from headstart.accept import block as block_rule
from headstart.accept import rejection as rejection_rule
from headstart.accept.base import Verify
from headstart.sampling import Sampler, Sampling
from headstart.tree import ROOT, Draws, Tree, TreeBuilder

Floats = NDArray[np.float64]
Word = tuple[int, ...]
Model = Callable[[Word], Floats]
"""The distribution behind drafted tokens."""


class Chance:
    """Replays a run of random events with every combination of outcomes that is possible."""

    def __init__(self) -> None:
        self._script: list[int] = []
        self._taken: list[tuple[int, int]] = []  # choice, number of choices
        self.probability = 1.0

    def event(self, shares: Sequence[float] | Floats) -> int:
        """One random event; the outcome of this run."""
        at, possible = len(self._taken), [outcome for outcome, share in enumerate(shares) if share > 0]
        choice = self._script[at] if at < len(self._script) else 0
        self._taken.append((choice, len(possible)))
        self.probability *= float(shares[possible[choice]])
        return possible[choice]

    def runs(self, run: Callable[[], Any]) -> Iterator[tuple[float, Any]]:
        """Results of ``run`` with their probabilities."""
        while True:
            self._taken, self.probability = [], 1.0
            result = run()
            yield self.probability, result
            while self._taken and self._taken[-1][0] == self._taken[-1][1] - 1:
                self._taken.pop()
            if not self._taken:
                return
            self._script = [choice for choice, _ in self._taken[:-1]] + [self._taken[-1][0] + 1]


@dataclass
class Asked:
    """A scored batch of one tree whose picks are random events."""

    target: Model
    chance: Chance

    def pick(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> list[int]:
        return [self.chance.event(self.target(tuple(path))) for path in paths]

    def probabilities(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> Floats:
        return np.stack([self.target(tuple(path)) for path in paths])


@dataclass
class Shape:
    """How many children are drawn at a node, and what hangs below each of them, by rank."""

    num_drawn: int
    below: Mapping[int, Shape] = field(default_factory=dict)
    num_rows: int | None = None  # draws beyond these get no row
    sure: tuple[int, ...] = ()  # children that are chosen whatever is drawn


def chain(length: int) -> Shape:
    return Shape(1, {0: chain(length - 1)} if length > 1 else {})


def drafts(shape: Shape, models: Sequence[Model], chance: Chance, edit: Callable[[Draws], Draws] = lambda d: d) -> Tree:
    """One draft: every node draws from each of the models in turn."""
    builder = TreeBuilder(0)

    def expand(row: int, word: Word, node: Shape) -> None:
        hung: list[int] = []
        for model in models:
            q = model(word)
            left, tokens = q.copy(), list[int]()
            for _ in range(min(node.num_drawn, int((q > 0).sum()))):
                token = chance.event(left / left.sum())
                left[token] = 0.0
                tokens.append(token)
            if tokens:
                ids = np.flatnonzero(q > 0)
                drawn = edit(Draws(tuple(tokens), ids, q[ids]))
                builder.draw(row, drawn)
                hung += [token for token in drawn.tokens if token not in hung]
        for rank, token in enumerate([*hung[: node.num_rows], *(t for t in node.sure if t not in hung)]):
            child = builder.add(row, token, 0.5)
            if rank in node.below:
                expand(child, (*word, token), node.below[rank])

    expand(ROOT, (), shape)
    return builder.build()


def outputs(
    verify: Verify, draft: Callable[[Chance], Tree], target: Model, monkeypatch: pytest.MonkeyPatch
) -> dict[Word, float]:
    """The probability of every tuple of tokens that the rule may commit."""
    chance = Chance()
    sampler = Sampler(Sampling(temperature=1.0), vocab_size=len(target(())), prompt=[0])

    def passes(sampler: Sampler, path_length: int, number: int, share: float) -> bool:
        assert 0 <= share <= 1
        return bool(chance.event([1 - share, share]))

    def drawn(sampler: Sampler, path: Sequence[int], weights: Floats) -> int:
        return chance.event(weights / weights.sum())

    for module in (rejection_rule, block_rule):
        monkeypatch.setattr(module, "passes", passes)
        monkeypatch.setattr(module, "drawn", drawn)

    def run() -> Word:
        return verify(Asked(target, chance), [Draft(0, draft(chance), sampler)])[0].tokens

    shares: dict[Word, float] = defaultdict(float)
    for probability, tokens in chance.runs(run):
        shares[tokens] += probability
    return shares


def error(shares: Mapping[Word, float], target: Model) -> float:
    """The largest error of the law of the text: what is committed, gone on with by the target, against the target alone."""
    size, length = len(target(())), max(map(len, shares))
    worst = 0.0
    for word in itertools.product(range(size), repeat=length):
        ways = [share * _going_on(target, tokens, word) for tokens, share in shares.items() if word[: len(tokens)] == tokens]
        worst = max(worst, abs(sum(ways) - _going_on(target, (), word)))
    return worst


def _going_on(target: Model, tokens: Word, word: Word) -> float:
    share = 1.0
    for length in range(len(tokens), len(word)):
        share *= float(target(word[:length])[word[length]])
    return share


def expected_length(shares: Mapping[Word, float]) -> float:
    """L: tokens a step."""
    return sum(share * len(tokens) for tokens, share in shares.items())
