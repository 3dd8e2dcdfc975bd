"""Drafts from Medusa heads: one head pass over all sequences, then a tree a sequence.

The heads read the last hidden state that the target computed for a sequence, and guess every depth of the draft at once
(``heads/medusa.py``). What they guess is a product of ranked lists; which of its nodes enter the draft is the tree's shape:

* ``static``: the best tree for the node budget by the accuracies that were measured when the heads were trained
  (``tree.optimal_paths``); node (i, j) is the j-th guess of depth 2 under the i-th guess of depth 1.
* ``dynamic``: the nodes whose paths are likeliest by this step's own probabilities (``tree.grow``), each head's scaled by how
  often it was right in this sequence so far (``calibration.py``).

Temperature 0 drafts the likeliest guesses. At a temperature T > 0 the target's pick is ``argmax(log p + g)`` with noise g that
depends on the request's seed, the position and the token alone, so guesses are ranked by ``log q / T + g`` with the same g
(Daliri et al. 2024; ``accept.py``), among the head's likeliest candidates. The rank then says more of a guess than q does, so
both shapes use the measured accuracies by rank. q is the head's own softmax at the request's temperature; penalties, bias and
truncation are not applied to it, which costs hits but never correctness.

Letters: n sequences, K heads, R ranks.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import HeadsError, RequestError
from headstart.heads.medusa import BoundMedusa
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import Calibration
from headstart.sampling import gumbel
from headstart.tree import Path, Tree, grow, optimal_paths

GROWTHS = ("dynamic", "static")
DEFAULT_RANKS = 10
_NOISY_CANDIDATES = 64  # of each head, that the noise may rank


@dataclass(slots=True)
class _State:
    """The last hidden state of a sequence: a row of what one question to the engine gave."""

    hidden: Any = None  # [rows, D]
    row: int = 0
    root: int = -1  # the token that follows it
    calibration: Calibration = field(default_factory=Calibration)


class MedusaProposer:
    """Trees of Medusa guesses for the sequences in flight."""

    name = "medusa"

    def __init__(self, heads: BoundMedusa, growth: str = "dynamic", *, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_ranks``: guesses a head that may enter a tree, at most; static trees need measured acceptance."""
        if growth not in GROWTHS:
            raise RequestError(f"growth is {growth!r}; it must be one of {', '.join(GROWTHS)}")
        self.heads, self.growth, self.num_ranks = heads, growth, num_ranks
        card = heads.heads.card
        self._accuracies: NDArray[np.float64] | None = None
        if card is not None and card.acceptance is not None:
            self._accuracies = card.acceptance.array()[:, :num_ranks]
        elif growth == "static":
            raise HeadsError("these heads hold no measured acceptance, which static trees are built by; use growth dynamic")
        self._states: dict[int, _State] = {}
        self._paths = lru_cache(maxsize=256)(self._optimal_paths)

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where no hidden state is known yet."""
        trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        asking = [i for i, sequence in enumerate(sequences) if self._is_known(sequence)]
        if not asking:
            return trees
        states = [self._states[sequences[i].key] for i in asking]
        noisy = any(sequences[i].sampler.sampling.temperature > 0 for i in asking)
        num_guesses = max(self.num_ranks, _NOISY_CANDIDATES) if noisy else self.num_ranks
        tokens, probabilities = self.heads.guesses(self._gather(states), [state.root for state in states], num_guesses)
        for i, state, ids, values in zip(asking, states, tokens, probabilities, strict=True):
            trees[i] = self._tree(sequences[i], state.calibration, ids, values)
        return trees

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the hidden states behind the new roots, with one question for each scored batch."""
        while observations:
            scored = observations[0].scored
            together = [observation for observation in observations if observation.scored is scored]
            hidden = scored.hidden([observation.row for observation in together])
            for row, observation in enumerate(together):
                state = self._states.setdefault(observation.key, _State())
                state.hidden, state.row, state.root = hidden, row, observation.tokens[-1]
                state.calibration.observe(observation.tree, observation.tokens)
            observations = [observation for observation in observations if observation.scored is not scored]

    def forget(self, key: int) -> None:
        """Free what is held for the sequence."""
        self._states.pop(key, None)

    def _is_known(self, sequence: Sequence) -> bool:
        """Whether a hidden state right before this root is held, and a draft may use it."""
        state = self._states.get(sequence.key)
        return state is not None and state.root == sequence.tokens[-1] and min(sequence.max_nodes, sequence.max_depth) > 0

    def _gather(self, states: ListOf[_State]) -> Any:
        """Hidden states [n, D]; as they lie if they are exactly what the engine gave."""
        hidden, ops = states[0].hidden, self.heads.operations
        if all(state.hidden is hidden for state in states):
            rows = [state.row for state in states]
            return hidden if rows == list(range(int(hidden.shape[0]))) else ops.take(hidden, np.array(rows))
        return ops.stack([ops.take(state.hidden, np.array([state.row])) for state in states])

    def _tree(
        self, sequence: Sequence, calibration: Calibration, tokens: NDArray[np.int64], probabilities: NDArray[np.float64]
    ) -> Tree:
        """The tree of one sequence from its guesses [K, R]."""
        depth = min(sequence.max_depth, len(tokens))
        tokens, values = tokens[:depth], probabilities[:depth]
        noisy = sequence.sampler.sampling.temperature > 0
        if noisy:
            tokens, values = _coupled(sequence, tokens, values)
        tokens, values = tokens[:, : self.num_ranks], values[:, : self.num_ranks]
        root = sequence.tokens[-1]
        if self._accuracies is not None and (noisy or self.growth == "static"):
            paths = self._paths(sequence.max_nodes, depth, tokens.shape[1])
            return Tree.from_paths(root, paths, tokens, self._accuracies)
        factors = np.array([[calibration.factor(d)] for d in range(1, depth + 1)])
        return grow(root, tokens, np.minimum(values * factors, 0.99), sequence.max_nodes)

    def _optimal_paths(self, num_nodes: int, depth: int, num_ranks: int) -> list[Path]:
        assert self._accuracies is not None  # static trees are refused without
        return optimal_paths(self._accuracies[:depth, :num_ranks], num_nodes)


def _coupled(
    sequence: Sequence, tokens: NDArray[np.int64], probabilities: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Guesses [K, R] in falling order of ``log q / T + g``, with their q at temperature T, largest first.

    A node of depth d stands at position ``len(tokens) + d - 1``, where the sampler picks with that position's noise. The
    probabilities keep their own order: what stands first is the likeliest hit, whatever q it has.
    """
    logs = np.log(np.maximum(probabilities, 1e-30)) / sequence.sampler.sampling.temperature
    noise = np.stack([gumbel(sequence.sampler.seed, len(sequence.tokens) + d, ids) for d, ids in enumerate(tokens)])
    order = np.argsort(-(logs + noise), axis=1, kind="stable")
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return np.take_along_axis(tokens, order, axis=1), weights / weights.sum(axis=1, keepdims=True)
