"""Drafts from a second, smaller model with the same vocabulary: a tree of its best guesses.

The draft model is an engine of its own (any ``Target``) with one slot a sequence (Leviathan et al. 2023 and Chen et al. 2023,
for a chain). The tree grows level by level (``growth.py``), each level one draft forward for all sequences.

Children are chosen from the draft's own distribution after the request's penalties and bias (``children.py``). The engine is
asked for the few likeliest tokens; at temperature > 0 for a few hundred and, where children are coupled, for the draft's own
pick, which comes first wherever it stands. Penalties, biases and bans can lift any token, so a request with some has whole rows
of logits looked through.

A draft slot holds only committed tokens, a proper prefix of ``Sequence.tokens``: nodes are fed and forgotten again, and what
was committed since the last call is fed first. So the draft stays right after pauses, after full acceptance and behind tokens
that it never drafted. Each level feeds the nodes it needs anew, which costs rows, not forwards. A sequence longer than the
draft's context is drafted for no more; the others are not affected.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as ListOf
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headstart.accept import Row
from headstart.errors import ModelError, RequestError
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.children import Children, choose_children
from headstart.proposers.growth import Growth
from headstart.target.base import Feed, Scored, Slot, Target
from headstart.tree import ROOT, Tree

DEFAULT_LEVELS = 5
DEFAULT_RANKS = 8
CATCH_UP_CHUNK = 512  # committed tokens fed in one forward
_NOISY_CANDIDATES = 256  # the draft's likeliest tokens, that the noise may rank


@dataclass(slots=True)
class _State:
    """What is held for a sequence."""

    slot: Slot
    calibration: Calibration = field(default_factory=Calibration)


class _DraftGrowth(Growth):
    """A tree that grows by what the draft says behind the tokens of its slot."""

    def __init__(self, sequence: Sequence, state: _State, num_levels: int) -> None:
        super().__init__(sequence, state.calibration, num_levels)
        self.slot = state.slot

    def feed_rows(self) -> list[int]:
        """The frontier and its ancestors, parents first."""
        return sorted({ROOT, *(node for leaf in self.frontier for node in self.path(leaf))})


class _Leaf:
    """A frontier node, and where the draft scores it."""

    def __init__(self, growth: _DraftGrowth, node: int, row: Row) -> None:
        self.node, self.row, self.sampler = node, row, growth.sequence.sampler
        self.place = growth.place(node)


class DraftModelProposer:
    """Trees of a draft model's best guesses for the sequences in flight."""

    name = "draft_model"

    def __init__(self, draft: Target, *, num_levels: int = DEFAULT_LEVELS, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_levels``: draft forwards a step, so the deepest node; ``num_ranks``: children a node, at most."""
        self.draft, self.num_levels, self.num_ranks = draft, num_levels, num_ranks
        self.num_passes = 0
        self._states: dict[int, _State] = {}

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where the draft's context or vocabulary ends, or nothing may be drafted."""
        trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        growths: dict[int, _DraftGrowth] = {}
        for i, sequence in enumerate(sequences):
            growth = self._begin(sequence)
            if growth is not None:
                growths[i] = growth
        self._catch_up(list(growths.values()))
        growing = list(growths.values())
        while growing:
            growing = self._grow(growing)
        for i, growth in growths.items():
            trees[i] = growth.tree()
        return trees

    def observe(self, observations: ListOf[Observation]) -> None:
        """Learn how far the draft's probabilities can be trusted; its cache catches up when it is next asked."""
        for observation in observations:
            state = self._states.get(observation.key)
            if state is not None:
                state.calibration.observe(observation.tree, observation.tokens)

    def forget(self, key: int) -> None:
        """Close the sequence's slot."""
        state = self._states.pop(key, None)
        if state is not None:
            self.draft.close(state.slot)

    def cache_bytes(self) -> int:
        """Bytes that the draft's caches hold."""
        return self.draft.cache_bytes()

    def _begin(self, sequence: Sequence) -> _DraftGrowth | None:
        room = self.draft.context_limit - len(sequence.tokens)  # depth that may still be fed behind the root
        num_levels = min(self.num_levels, sequence.max_depth, room + 1)
        if room < 0:
            self.forget(sequence.key)
        if num_levels < 1 or sequence.max_nodes < 1:
            return None
        state = self._states.get(sequence.key)
        cached = self.draft.length(state.slot) if state else 0
        if max(sequence.tokens[cached:]) >= self.draft.vocab_size:
            return None
        if state is None:
            state = self._states[sequence.key] = _State(self.draft.open())
        return _DraftGrowth(sequence, state, num_levels)

    def _catch_up(self, growths: ListOf[_DraftGrowth]) -> None:
        """Feed what was committed since the last call, up to a last chunk that goes with the root."""
        while True:
            feeds = []
            for growth in growths:
                cached, tokens = self.draft.length(growth.slot), growth.sequence.tokens
                if len(tokens) - cached > CATCH_UP_CHUNK:
                    chunk = Tree.chain(tokens[cached : cached + CATCH_UP_CHUNK])
                    feeds.append(Feed(growth.slot, chunk, len(chunk)))
            if not feeds:
                return
            self.draft.forward(feeds)
            for feed in feeds:
                self.draft.keep(feed.slot, tuple(range(len(feed.tree))))

    def _grow(self, growths: ListOf[_DraftGrowth]) -> list[_DraftGrowth]:
        """One draft forward: expand the frontier of every tree; returns those that grow on."""
        self.num_passes += 1
        feeds, leaves, num_caught_up = [], list[_Leaf](), []
        for entry, growth in enumerate(growths):
            # Committed tokens are left to feed only before the first level, when the root is the whole tree.
            behind = growth.sequence.tokens[self.draft.length(growth.slot) : -1]
            chosen = growth.feed_rows()
            tree = Tree.chain([*behind, growth.nodes[ROOT].token]) if behind else growth.tree(chosen)
            rows = [len(behind) + chosen.index(leaf) for leaf in growth.frontier]
            feeds.append(Feed(growth.slot, tree, rows[0]))
            leaves += [_Leaf(growth, node, (entry, row)) for node, row in zip(growth.frontier, rows, strict=True)]
            num_caught_up.append(len(behind))
        children: list[dict[int, Children]] = [{} for _ in growths]
        for leaf, chosen_ones in self._children(self.draft.forward(feeds), leaves):
            children[leaf.row[0]][leaf.node] = chosen_ones
        for growth, hung, count in zip(growths, children, num_caught_up, strict=True):
            growth.add(hung)
            self.draft.keep(growth.slot, tuple(range(count)))
        return [growth for growth in growths if growth.frontier]

    def _children(self, scored: Scored, leaves: ListOf[_Leaf]) -> Iterator[tuple[_Leaf, Children]]:
        """Frontier nodes with their children; left out: those that the draft has nothing to say about."""
        asked = [leaf for leaf in leaves if leaf.sampler.keeps_logits(len(leaf.place.path))]
        if asked:
            with suppress(ModelError):  # logits that are no numbers
                yield from self._of_likeliest(scored, asked)
        for leaf in leaves:
            if not leaf.sampler.keeps_logits(len(leaf.place.path)):
                with suppress(ModelError, RequestError):  # or the request bans all that the draft knows
                    yield leaf, self._of_touched(leaf, scored.logits([leaf.row])[0])

    def _of_likeliest(self, scored: Scored, leaves: ListOf[_Leaf]) -> Iterator[tuple[_Leaf, Children]]:
        """Children from the likeliest tokens and, where they are coupled, the draft's own pick, which may be any token."""
        coupled = [leaf for leaf in leaves if leaf.place.choice == "coupled"]
        found = scored.pick(
            [leaf.row for leaf in coupled], [leaf.sampler for leaf in coupled], [leaf.place.path for leaf in coupled]
        )
        known = {leaf.row: pick for leaf, pick in zip(coupled, found, strict=True) if pick < leaf.sampler.vocab_size}
        is_noisy = any(leaf.sampler.sampling.temperature > 0 for leaf in leaves)
        surplus = max(0, self.draft.vocab_size - min(leaf.sampler.vocab_size for leaf in leaves))
        count = surplus + (max(self.num_ranks, _NOISY_CANDIDATES) if is_noisy else self.num_ranks)
        ids, logprobs = scored.likeliest([leaf.row for leaf in leaves], count)
        for row, leaf in enumerate(leaves):
            logprobs[row, ids[row] >= leaf.sampler.vocab_size] = -np.inf  # tokens that only the draft has
        picks = [known.get(leaf.row) for leaf in leaves]
        yield from zip(leaves, self._chosen(leaves, ids, logprobs, picks), strict=True)

    def _of_touched(self, leaf: _Leaf, logits: NDArray[np.float32]) -> Children:
        """Children from whole logits [V], any of which a penalty, a bias or a ban may move."""
        size = leaf.sampler.vocab_size
        known = min(self.draft.vocab_size, size)
        dense = np.full(size, -np.inf, dtype=np.float32)
        dense[:known] = logits[:known]  # no padding rows; tokens that only the target has are never drafted
        x = leaf.sampler.processed(dense, leaf.place.path)
        x -= x.max()
        x -= np.log(np.exp(x).sum())
        pick = leaf.sampler.pick(dense, leaf.place.path) if leaf.place.choice == "coupled" else None
        return self._chosen([leaf], np.arange(size)[None], x[None], [pick])[0]

    def _chosen(
        self, leaves: ListOf[_Leaf], ids: NDArray[np.int64], logprobs: NDArray[np.float64], picks: ListOf[int | None]
    ) -> list[Children]:
        places = [leaf.place for leaf in leaves]
        return choose_children(places, ids, logprobs, self.num_ranks, owner=self.name, picks=picks)
