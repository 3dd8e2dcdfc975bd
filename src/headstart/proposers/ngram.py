"""Prompt lookup: what followed the last tokens before, may follow them again.

The last 3 tokens (else 2, else 1) are looked up in prompt and output, the most recent occurrence first, and the tokens behind
that occurrence are the draft, a chain (Saxena 2023, "Prompt lookup decoding"). It costs no model, and pays where text is
copied: summaries, questions about a passage, code edits, loops.

The copy may run into the tokens it has just drafted, as in LZ77, so a loop of any period is drafted to full depth.

A node's probability is the share of drafted tokens of that match length which turned out right in this sequence so far, shrunk
towards a prior: short matches are right less often, and texts differ widely. Nothing is shared between sequences, so a
sequence's drafts never depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from headstart.proposers.base import Observation, Sequence
from headstart.tree import Tree

MAX_MATCH = 3
_PRIOR = (0.3, 0.5, 0.7)  # share right by match length 1, 2, 3
_PRIOR_WEIGHT = 8.0  # drafted tokens that outweigh the prior


@dataclass(slots=True)
class _Index:
    """What one sequence said: every n-gram that has a follower, and where the latest one's follower stands."""

    follower: dict[tuple[int, ...], int] = field(default_factory=dict)
    num_indexed: int = 0  # followers 1..num_indexed - 1 are known
    drafted: tuple[int, ...] = ()  # of the last step
    match: int = 0  # its match length
    hits: list[float] = field(default_factory=lambda: [p * _PRIOR_WEIGHT for p in _PRIOR])  # by match length - 1
    tries: list[float] = field(default_factory=lambda: [_PRIOR_WEIGHT] * MAX_MATCH)

    def update(self, tokens: ListOf[int]) -> None:
        """Index the new tokens; the n-grams at the very end have no follower yet, so the tail never matches itself."""
        for position in range(max(self.num_indexed, 1), len(tokens)):
            for length in range(1, min(MAX_MATCH, position) + 1):
                self.follower[tuple(tokens[position - length : position])] = position
        self.num_indexed = len(tokens)

    def find(self, tokens: ListOf[int]) -> tuple[int, int]:
        """Length of the longest match of the tail and the position of what followed it; (0, 0) if there is none."""
        for length in range(min(MAX_MATCH, len(tokens)), 0, -1):
            position = self.follower.get(tuple(tokens[len(tokens) - length :]))
            if position is not None:
                return length, position
        return 0, 0

    def learn(self, committed: ListOf[int]) -> None:
        """Count how far the last draft was right; what stands behind its first mistake was not tried."""
        for drafted, token in zip(self.drafted, committed, strict=False):
            self.tries[self.match - 1] += 1
            if drafted != token:
                break
            self.hits[self.match - 1] += 1
        self.drafted = ()


class NgramProposer:
    """Prompt lookup over the sequences in flight."""

    name = "ngram"

    def __init__(self) -> None:
        self._indexes: dict[int, _Index] = {}

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """A chain a sequence, as long as the budget allows; the root alone where nothing matches."""
        return [self._chain(sequence) for sequence in sequences]

    def observe(self, observations: ListOf[Observation]) -> None:
        """Learn how often matches of each length are right."""
        for observation in observations:
            index = self._indexes.get(observation.key)
            if index is not None:
                index.learn(observation.tokens)

    def forget(self, key: int) -> None:
        """Free the sequence's index."""
        self._indexes.pop(key, None)

    def _chain(self, sequence: Sequence) -> Tree:
        tokens, index = sequence.tokens, self._indexes.setdefault(sequence.key, _Index())
        index.update(tokens)
        index.match, position = index.find(tokens)
        drafted: list[int] = []
        if index.match:
            for source in range(position, position + min(sequence.max_nodes, sequence.max_depth)):
                drafted.append(tokens[source] if source < len(tokens) else drafted[source - len(tokens)])
        index.drafted = tuple(drafted)
        if not drafted:
            return Tree.root(tokens[-1])
        share = index.hits[index.match - 1] / index.tries[index.match - 1]
        return Tree.chain([tokens[-1], *drafted], [1.0] + [share] * len(drafted))
