"""Drafts from an MTP layer: a tree that grows level by level, each level from the layer's own outputs.

The layer (``heads/mtp.py``) reads a token together with the hidden state that predicted it. Its cache, one slot a sequence,
holds a row for each committed token behind the prompt, made from the target's true states. A step:

1. one forward over the tokens that were committed since the last one, with the target's states, and the root behind them; they
   are kept, and the root's row guesses depth 1;
2. a forward a level: nodes of the deepest level, with the layer's own output for their parent in place of the state the target
   has not computed yet; their likeliest children join, and the ``max_nodes`` likeliest paths stay (EAGLE-2, Li et al. 2024;
   ``growth.py``).

Drafted rows are forgotten again; each level feeds the nodes it needs anew, which costs rows, not forwards. Penalties and bias
are not applied to the guesses, which costs hits, never correctness; how children are chosen from them is in ``children.py``.

States come with every step's observation, also while nobody asks for drafts, so the cache catches up after a pause. It begins
where the prompt ends, as in training, and begins anew behind a pause longer than ``MOST_BEHIND`` tokens: what it does not hold,
it does not attend to.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headstart.accept import Row
from headstart.heads.mtp import BoundMtp
from headstart.heads.operations import LayerScored
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.children import choose_children
from headstart.proposers.growth import Growth
from headstart.target.base import Feed
from headstart.tree import ROOT, Tree

DEFAULT_RANKS = 8
MOST_BEHIND = 512
_NOISY_CANDIDATES = 64  # the layer's likeliest tokens, that noise may rank
_LEAST_REACH = 0.05  # a node that is reached less often is not worth its share of a forward


@dataclass(frozen=True, slots=True)
class _States:
    """Some rows [start, stop) of what one question to the target gave."""

    hidden: Any  # [rows, D]
    start: int
    stop: int


@dataclass(slots=True)
class _State:
    """What is held for a sequence."""

    slot: Any = None
    behind: list[int] = field(default_factory=list)  # committed tokens that the layer was not fed yet; the last one is the root
    states: list[_States] = field(default_factory=list)  # the target's state before each of them
    calibration: Calibration = field(default_factory=Calibration)

    def keep_last(self, count: int) -> None:
        """Forget all but the last tokens behind."""
        left = len(self.behind) - count
        del self.behind[:left]
        while left > 0:
            first = self.states[0]
            size = first.stop - first.start
            if size <= left:
                del self.states[0]
            else:
                self.states[0] = _States(first.hidden, first.start + left, first.stop)
            left -= size


class _Draft:
    """A tree while it grows. A node's ``row`` is where the layer's own output for it lies in the pool of states."""

    def __init__(self, growth: Growth, state: _State) -> None:
        self.growth, self.state = growth, state
        self.given = -1  # place in the pool of the state that the root is fed with

    def fed(self) -> list[int]:
        """The frontier and its ancestors, parents first."""
        return sorted({ROOT, *(node for leaf in self.growth.frontier for node in self.growth.path(leaf))})

    def places(self, nodes: ListOf[int]) -> list[int]:
        """In the pool, of the states that nodes are fed with: what is known of their parents."""
        known = self.growth.nodes
        return [self.given if node == ROOT else known[known[node].parent].row for node in nodes]


class MtpProposer:
    """Trees of an MTP layer's guesses for the sequences in flight."""

    name = "mtp"
    hears_all = True

    def __init__(self, heads: BoundMtp, *, num_levels: int | None = None, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_levels``: forwards a step, so the deepest node (None: as in training); ``num_ranks``: most children a node."""
        self.heads, self.layer, self.num_ranks = heads, heads.layer, num_ranks
        self.num_levels = heads.config.num_steps if num_levels is None else num_levels
        self.num_passes = 0
        self._states: dict[int, _State] = {}

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where no hidden state is known yet."""
        trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        drafts = {i: draft for i, sequence in enumerate(sequences) if (draft := self._begin(sequence)) is not None}
        growing = list(drafts.values())
        if not growing:
            return trees
        pool = self._first_level(growing)
        while growing := [draft for draft in growing if draft.growth.frontier]:
            pool = self._next_level(growing, pool)
        for i, draft in drafts.items():
            trees[i] = draft.growth.tree()
        return trees

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the target's states before all committed tokens, with one question for each scored batch."""
        while observations:
            scored = observations[0].scored
            together = [observation for observation in observations if observation.scored is scored]
            rows = [observation.rows for observation in together]
            hidden, start = scored.hidden([row for path in rows for row in path]), 0
            for observation, path in zip(together, rows, strict=True):
                state = self._commit(observation, _States(hidden, start, start + len(path)))
                start += len(path)
                if not observation.is_of_prompt:
                    state.calibration.observe(observation.tree, observation.tokens)
            observations = [observation for observation in observations if observation.scored is not scored]

    def forget(self, key: int) -> None:
        """Close the sequence's slot."""
        state = self._states.pop(key, None)
        if state is not None and state.slot is not None:
            self.layer.close(state.slot)

    def cache_bytes(self) -> int:
        """Bytes that the layer's caches hold."""
        return self.layer.cache_bytes()

    def _commit(self, observation: Observation, states: _States) -> _State:
        state = self._states.setdefault(observation.key, _State())
        state.behind.extend(observation.tokens)
        state.states.append(states)
        if len(state.behind) > 2 * MOST_BEHIND:
            state.keep_last(MOST_BEHIND)
            if state.slot is not None:
                self.layer.close(state.slot)
                state.slot = None
        return state

    def _begin(self, sequence: Sequence) -> _Draft | None:
        state = self._states.get(sequence.key)
        num_levels = min(self.num_levels, sequence.max_depth)
        if state is None or num_levels < 1 or sequence.max_nodes < 1 or state.behind[-1] != sequence.tokens[-1]:
            return None
        if state.slot is None:
            state.slot = self.layer.open()
        return _Draft(Growth(sequence, state.calibration, num_levels, _LEAST_REACH), state)

    def _first_level(self, drafts: ListOf[_Draft]) -> Any:
        """Catch up and guess depth 1; returns the pool of states: those that were fed, and the roots' own outputs."""
        feeds, pieces, end = [], [], 0
        for draft in drafts:
            behind = Tree.chain(draft.state.behind)
            feeds.append(Feed(draft.state.slot, behind, len(behind) - 1))
            pieces += [states.hidden[states.start : states.stop] for states in draft.state.states]
            end += len(behind)
            draft.given = end - 1
        pool = self.heads.gather(pieces)
        scored = self.layer.forward(feeds, pool)
        for draft, feed in zip(drafts, feeds, strict=True):
            self.layer.keep(feed.slot, tuple(range(feed.first_scored)))  # the root is fed again with each level
            draft.state.keep_last(1)
        rows = [(entry, feed.first_scored) for entry, feed in enumerate(feeds)]
        return self._grown([draft.growth for draft in drafts], scored, rows, pool)

    def _next_level(self, drafts: ListOf[_Draft], pool: Any) -> Any:
        """Expand the frontier of every tree by one forward."""
        feeds, places, rows = [], list[int](), list[Row]()
        for entry, draft in enumerate(drafts):
            chosen = draft.fed()
            places += draft.places(chosen)
            first = chosen.index(draft.growth.frontier[0])  # the deepest nodes came last into the tree
            feeds.append(Feed(draft.state.slot, draft.growth.tree(chosen), first))
            rows += [(entry, row) for row in range(first, len(chosen))]
        scored = self.layer.forward(feeds, self.heads.operations.take(pool, np.array(places)))
        for feed in feeds:
            self.layer.keep(feed.slot, ())
        return self._grown([draft.growth for draft in drafts], scored, rows, pool)

    def _grown(self, growths: ListOf[Growth], scored: LayerScored, rows: ListOf[Row], pool: Any) -> Any:
        """Hang children below the frontiers, scored in ``rows``; returns the pool with their own outputs behind the rest."""
        self.num_passes += 1
        places = [growth.place(leaf) for growth in growths for leaf in growth.frontier]
        is_noisy = any(place.sequence.sampler.sampling.temperature > 0 for place in places)
        count = max(self.num_ranks, _NOISY_CANDIDATES) if is_noisy else self.num_ranks
        ids, logprobs = self.heads.likeliest(scored, rows, count)
        children = iter(choose_children(places, ids, logprobs, self.num_ranks, owner=self.name))
        row = len(pool)
        for growth in growths:
            for leaf in growth.frontier:
                growth.nodes[leaf].row, row = row, row + 1
            growth.add({leaf: next(children) for leaf in growth.frontier})
        return self.heads.gather([pool, scored.hidden(rows)])
