"""Drafts from Hydra heads: trees that grow level by level, each level one small pass over all sequences.

The heads guess what follows a node from the state of that node, which depends on the tokens drafted before it
(``heads/hydra.py``). So the tree grows by the heads' own confidence (``growth.py``): a level is one batched call for the
frontier of all sequences, and growth stops where the likeliest path is not worth a further call.

Children are chosen in ``children.py``. q is the heads' own softmax among their likeliest candidates; penalties and bias are not
applied to it, which costs hits but never correctness. Estimates are scaled by how often each depth was right in this sequence
so far (``calibration.py``).
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf

import numpy as np

from headstart.heads.hydra import BoundHydra
from headstart.heads.operations import Array
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import CERTAIN
from headstart.proposers.children import choose_children, coupling
from headstart.proposers.growth import Growth
from headstart.proposers.hidden import HiddenStates, SequenceState
from headstart.tree import ROOT, Tree

DEFAULT_RANKS = 8
_NOISY_CANDIDATES = 64  # of each node, that the noise may rank
_TINY = 1e-30
_LEAST_REACH = 0.08  # a node that is reached less often is not worth its share of a pass


class HydraProposer:
    """Trees of Hydra guesses for the sequences in flight."""

    name = "hydra"

    def __init__(self, heads: BoundHydra, *, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_ranks``: children a node, at most."""
        self.heads, self.num_ranks = heads, num_ranks
        self.num_passes = 0
        self._states = HiddenStates(heads.operations)

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where no hidden state is known yet."""
        trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        known = [(i, state) for i, sequence in enumerate(sequences) if (state := self._states.known(sequence))]
        if not known:
            return trees
        asking, states = [sequences[i] for i, _ in known], [state for _, state in known]
        make = self._drafted if self._is_compiled(asking) else self._grown
        for (i, _), tree in zip(known, make(asking, states), strict=True):
            trees[i] = tree
        return trees

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the hidden states behind the new roots, and learn how far the estimates can be trusted."""
        self._states.observe(observations)

    def forget(self, key: int) -> None:
        """Free what is held for the sequence."""
        self._states.forget(key)

    def _is_compiled(self, sequences: ListOf[Sequence]) -> bool:
        """Whether the engine makes whole drafts; it knows coupled children and, at temperature 0, the likeliest ones."""
        return self.heads.cell is not None and all(
            sequence.choice == "coupled" or sequence.sampler.sampling.temperature == 0 for sequence in sequences
        )

    def _drafted(self, sequences: ListOf[Sequence], states: ListOf[SequenceState]) -> list[Tree]:
        """Trees that the engine grows."""
        assert self.heads.cell is not None
        levels = [self._num_levels(sequence) for sequence in sequences]
        found, num_passes = self.heads.cell.draft(
            self._states.gather(states),
            [sequence.tokens[-1] for sequence in sequences],
            [sequence.max_nodes for sequence in sequences],
            levels,
            [sequence.least_reach for sequence in sequences],
            [state.calibration.factors(num) for state, num in zip(states, levels, strict=True)],
            self.num_ranks,
            _LEAST_REACH,
            CERTAIN,
            self.heads.vocabulary,
            [coupling(sequence, num) for sequence, num in zip(sequences, levels, strict=True)],
            _NOISY_CANDIDATES,
        )
        self.num_passes += num_passes
        return [Tree.grown(*tree) for tree in found]

    def _grown(self, sequences: ListOf[Sequence], known: ListOf[SequenceState]) -> list[Tree]:
        """The same, level by level."""
        growths = [
            Growth(sequence, state.calibration, self._num_levels(sequence), _LEAST_REACH)
            for sequence, state in zip(sequences, known, strict=True)
        ]
        hidden = self._states.gather(known)
        growing = growths
        for row, growth in enumerate(growing):
            growth.nodes[ROOT].row = row
        states = self._grow(growing, hidden)
        while growing := [growth for growth in growing if growth.frontier]:
            states = self._grow(growing, self._parents(growing, states))
        return [growth.tree() for growth in growths]

    def _num_levels(self, sequence: Sequence) -> int:
        return min(self.heads.config.num_heads, sequence.max_depth)

    def _grow(self, growths: ListOf[Growth], parents: Array) -> Array:
        """Hang children under the frontiers, whose nodes' states [n, D] are returned; ``parents`` are those above them."""
        places = [growth.place(leaf) for growth in growths for leaf in growth.frontier]
        is_noisy = any(place.sequence.sampler.sampling.temperature > 0 for place in places)
        num_candidates = _NOISY_CANDIDATES if is_noisy else self.num_ranks
        nodes = [growth.nodes[leaf] for growth in growths for leaf in growth.frontier]
        self.num_passes += 1
        tokens, depth = [node.token for node in nodes], nodes[0].depth
        states, ids, probabilities = self.heads.level(parents, tokens, depth, num_candidates)
        logprobs = np.log(np.maximum(probabilities, _TINY))
        chosen = iter(choose_children(places, ids, logprobs, self.num_ranks, owner=self.name))
        for growth in growths:
            growth.add({leaf: next(chosen) for leaf in growth.frontier})
        return states

    def _parents(self, growths: ListOf[Growth], states: Array) -> Array:
        """States [n, D] above the new frontiers, out of those of the level before."""
        leaves = [growth.nodes[leaf] for growth in growths for leaf in growth.frontier]
        parents = [growth.nodes[growth.nodes[leaf].parent].row for growth in growths for leaf in growth.frontier]
        for row, node in enumerate(leaves):
            node.row = row
        return self.heads.operations.take(states, np.array(parents))
