"""Drafts from Medusa heads: one head pass over all sequences, then a tree a sequence.

The heads read the last hidden state that the target computed for a sequence, and guess every depth of the draft at once
(``heads/medusa.py``). What they guess is a product of ranked lists; which of its nodes enter the draft is the tree's shape:

* ``static``: the best tree for the node budget by the accuracies that were measured when the heads were trained
  (``tree.optimal_paths``); node (i, j) is the j-th guess of depth 2 under the i-th guess of depth 1.
* ``dynamic``: the nodes whose paths are likeliest by this step's own probabilities (``tree.grow``), each head's scaled by how
  often it was right in this sequence so far (``calibration.py``).

The guesses of a depth are chosen in ``children.py``. At temperature > 0 q is the head's own softmax at the request's
temperature, among the head's likeliest candidates; penalties and bias are not applied to it, which costs hits but never
correctness. Where children are drawn, each node draws its own, and the shape goes by rank, since it is made before the draws.

Letters: n sequences, K heads, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.errors import HeadsError, RequestError
from headstart.heads.base import HeadsCard
from headstart.heads.medusa import BoundMedusa
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.children import Place, choose_children
from headstart.proposers.hidden import HiddenStates, SequenceState
from headstart.proposers.walk import SILENT, DepthWalk, TreeWalk, Walk
from headstart.tree import ROOT, Path, Tree, TreeBuilder, grow, optimal_paths

GROWTHS = ("dynamic", "static")
DEFAULT_RANKS = 10
_CERTAIN = 0.99
_NOISY_CANDIDATES = 64  # of each head, that the noise may rank


class _Guesses(NamedTuple):
    """What the heads guess for one sequence, and from which candidates."""

    tokens: NDArray[np.int64]  # [K, R], the most promising of each depth first
    values: NDArray[np.float64]  # [K, R]: estimates; 0: no guess
    ids: NDArray[np.int64]  # [K, m]
    logs: NDArray[np.float64]  # [K, m]


class Source(Protocol):
    """Where parallel guesses come from, and what is held of each sequence for it."""

    def observe(self, observations: ListOf[Observation]) -> None:
        """What a step committed."""

    def forget(self, key: int) -> None:
        """The sequence left."""

    def known(self, sequence: Sequence) -> Any:
        """What is held for this root, with its ``calibration``, if a draft may use it; else None."""

    def guesses(self, states: ListOf[Any], num_ranks: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The likeliest tokens of every depth [n, K, R] and their probabilities [n, K, R], likeliest first."""


class _LastStates(HiddenStates):
    """Guesses of Medusa heads."""

    def __init__(self, heads: BoundMedusa) -> None:
        super().__init__(heads.operations)
        self._heads = heads

    def guesses(self, states: ListOf[SequenceState], num_ranks: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self._heads.guesses(self.gather(states), [state.root for state in states], num_ranks)


class DepthProposer:
    """Trees of parallel guesses for the sequences in flight: one ranked list a depth, whatever is drafted before it."""

    name = "depths"

    def __init__(self, source: Source, card: HeadsCard | None, growth: str, num_ranks: int) -> None:
        if growth not in GROWTHS:
            raise RequestError(f"growth is {growth!r}; it must be one of {', '.join(GROWTHS)}")
        self.growth, self.num_ranks, self._source = growth, num_ranks, source
        self._accuracies: NDArray[np.float64] | None = None
        if card is not None and card.acceptance is not None:
            self._accuracies = card.acceptance.array()[:, :num_ranks]
        elif growth == "static":
            raise HeadsError("these heads hold no measured acceptance, which static trees are built by; use growth dynamic")
        self._paths = lru_cache(maxsize=256)(self._optimal_paths)

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where no hidden state is known yet."""
        asked = zip(sequences, self._guesses(sequences), strict=True)
        return [self._tree(sequence, guesses) if guesses else Tree.root(sequence.tokens[-1]) for sequence, guesses in asked]

    def walks(self, sequences: ListOf[Sequence]) -> list[Walk]:
        """The guesses of each sequence, to be hung under any node of their depth; static and drawn trees stay as they are."""
        asked = zip(sequences, self._guesses(sequences), strict=True)
        return [self._walk(sequence, guesses) if guesses else SILENT for sequence, guesses in asked]

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the hidden states behind the new roots, and learn how far the estimates can be trusted."""
        self._source.observe(observations)

    def forget(self, key: int) -> None:
        """Free what is held for the sequence."""
        self._source.forget(key)

    def _guesses(self, sequences: ListOf[Sequence]) -> list[_Guesses | None]:
        """What the heads guess for each sequence; None where no hidden state is known yet."""
        found: list[_Guesses | None] = [None] * len(sequences)
        known = [(i, state) for i, sequence in enumerate(sequences) if (state := self._source.known(sequence))]
        if not known:
            return found
        states = [state for _, state in known]
        noisy = any(sequences[i].sampler.sampling.temperature > 0 for i, _ in known)
        num_guesses = max(self.num_ranks, _NOISY_CANDIDATES) if noisy else self.num_ranks
        guessed = self._source.guesses(states, num_guesses)
        for (i, state), ids, values in zip(known, *guessed, strict=True):
            found[i] = self._ranked(sequences[i], state.calibration, ids, values)
        return found

    def _ranked(
        self, sequence: Sequence, calibration: Calibration, tokens: NDArray[np.int64], probabilities: NDArray[np.float64]
    ) -> _Guesses:
        """The guesses of one sequence from candidates [K, m] with their q."""
        depth = min(sequence.max_depth, len(tokens))
        ids, logs = tokens[:depth], np.log(np.maximum(probabilities[:depth], 1e-30))
        places = [Place(sequence, (0,) * level) for level in range(depth)]  # heads do not see what is drafted before them
        chosen = choose_children(places, ids, logs, self.num_ranks, owner=self.name)
        guessed = np.zeros((depth, max(len(children.tokens) for children in chosen)), dtype=np.int64)
        values = np.zeros(guessed.shape)
        for level, children in enumerate(chosen):
            guessed[level, : len(children.tokens)] = children.tokens
            values[level, : len(children.tokens)] = children.probabilities
            values[level] *= calibration.factor(level + 1)
        return _Guesses(guessed, np.minimum(values, _CERTAIN), ids, logs)

    def _tree(self, sequence: Sequence, guesses: _Guesses) -> Tree:
        """The tree of one sequence."""
        tokens, values, ids, logs = guesses
        if Place(sequence).choice == "drawn":
            ranks = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
            return _drawn(sequence, self._shaped(sequence, ranks, values), ids, logs, self.name)
        return self._shaped(sequence, tokens, values)

    def _walk(self, sequence: Sequence, guesses: _Guesses) -> Walk:
        """The same, node by node."""
        if self.growth == "static" or Place(sequence).choice == "drawn":
            return TreeWalk(self._tree(sequence, guesses))
        return DepthWalk(guesses.tokens, guesses.values)

    def _shaped(self, sequence: Sequence, guesses: NDArray[np.int64], values: NDArray[np.float64]) -> Tree:
        """The tree of ``guesses`` [K, R] with ``values`` [K, R], by rank alone or by value."""
        root, num_nodes = sequence.tokens[-1], sequence.max_nodes
        if self.growth == "dynamic" or self._accuracies is None:
            return grow(root, guesses, values, num_nodes)
        depth, num_ranks = guesses.shape
        paths = [p for p in self._paths(num_nodes, depth, num_ranks) if all(values[d, r] > 0 for d, r in enumerate(p))]
        return Tree.from_paths(root, paths, guesses, self._accuracies)

    def _optimal_paths(self, num_nodes: int, depth: int, num_ranks: int) -> list[Path]:
        assert self._accuracies is not None  # static trees are refused without
        return optimal_paths(self._accuracies[:depth, :num_ranks], num_nodes)


class MedusaProposer(DepthProposer):
    """Trees of Medusa guesses."""

    name = "medusa"

    def __init__(self, heads: BoundMedusa, growth: str = "dynamic", *, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_ranks``: guesses a head that may enter a tree, at most; static trees need measured acceptance."""
        self.heads = heads
        super().__init__(_LastStates(heads), heads.heads.card, growth, num_ranks)


def _drawn(sequence: Sequence, shape: Tree, ids: NDArray[np.int64], logs: NDArray[np.float64], owner: str) -> Tree:
    """A tree whose children are drawn anew at every node; ``shape`` has ranks of draws for tokens.

    Nodes of one depth share their candidates, ids [K, R] and log-probabilities [K, R], but not their draws: what is found out
    about one node's children must say nothing of another's.
    """
    builder, rows = TreeBuilder(sequence.tokens[-1]), {ROOT: ROOT}
    words: dict[int, tuple[int, ...]] = {ROOT: ()}
    for depth in range(max(shape.depths)):
        inner = [row for row in rows if shape.depths[row] == depth and shape.children[row]]
        places = [Place(sequence, words[row]) for row in inner]
        width = max(len(shape.children[row]) for row in inner)
        own_ids, own_logs = np.repeat(ids[[depth]], len(inner), axis=0), np.repeat(logs[[depth]], len(inner), axis=0)
        for row, children in zip(inner, choose_children(places, own_ids, own_logs, width, owner=owner), strict=True):
            assert children.draws is not None
            builder.draw(rows[row], children.draws)
            for child in shape.children[row]:
                token = children.tokens[shape.tokens[child]]
                rows[child] = builder.add(rows[row], token, shape.probabilities[child])
                words[child] = (*words[row], token)
    return builder.build()
