"""Drafts from an MTP layer: a tree that grows level by level, each level from the layer's own outputs.

The layer (``heads/mtp.py``) reads a token together with the state that predicted it. Its cache, one slot a sequence, holds a
row for each committed token, made from the target's true states. A step:

1. one forward over the tokens that were committed since the last one, with the target's states, and the root behind them; they
   are kept, and the root's row guesses depth 1;
2. a forward a level: nodes of the deepest level, with the layer's own output for their parent in place of the state the target
   has not computed yet; their likeliest children join, and the ``max_nodes`` likeliest paths stay (EAGLE-2, Li et al. 2024;
   ``growth.py``).

Drafted rows are forgotten again; each level feeds the nodes it needs anew, which costs rows, not forwards. Penalties and bias
are not applied to the guesses, which costs hits, never correctness; how children are chosen from them is in ``children.py``.

States come with every chunk of a prompt and with every step's observation, also while nobody asks for drafts. They wait, as
feeding a row costs time and may be for nothing; when ``MOST_BEHIND`` wait, they are fed all at once, which costs least a row,
so memory stays bounded and a pause of any length loses nothing. The answers to one prompt share what is read of it until their
first tokens differ. The cache of a layer that was trained without prompts begins where the prompt ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headstart.accept import Row
from headstart.heads.mtp import BoundMtp, MtpConfig
from headstart.heads.operations import LayerScored
from headstart.proposers.base import Observation, PromptChunk, Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.children import choose_children
from headstart.proposers.growth import Growth
from headstart.target.base import HIDDEN, Feed, Scored
from headstart.tree import ROOT, Tree

DEFAULT_RANKS = 8
MOST_BEHIND = 512
_NOISY_CANDIDATES = 64  # the layer's likeliest tokens, that noise may rank
_LEAST_REACH = 0.05  # a node that is reached less often is not worth its share of a forward


def watched(config: MtpConfig) -> tuple[int, ...]:
    """What the target has to be watched for; nothing where the states of scored rows are enough."""
    return config.eagle_aux_hidden_state_layer_ids or ((HIDDEN,) if config.reads_prompt else ())


@dataclass(slots=True)
class _Text:
    """Committed text as the layer knows it. Row by row a state of the target, and the token that stands behind it.

    While a prompt is read the last state has no token yet.
    """

    end: int = 0  # position behind the last state
    slot: Any = None
    behind: list[int] = field(default_factory=list)  # tokens that the layer was not fed yet; of an answer the last is the root
    states: list[Any] = field(default_factory=list)  # of the target, [rows, F * D] each: in front of those tokens
    num_states: int = 0  # rows of them
    num_readers: int = 1  # answers that share it

    @property
    def is_open(self) -> bool:
        """Whether the token behind the last state is yet to come."""
        return self.num_states > len(self.behind)

    def ends_with(self, root: int) -> bool:
        """Whether this token is the one behind the last state."""
        return not self.is_open and self.behind[-1:] == [root]

    def add(self, tokens: ListOf[int], states: Any) -> None:
        """Tokens that were committed, and the states of the rows in front of each of them, or of the tokens themselves."""
        self.behind.extend(tokens)
        self.states.append(states)
        self.num_states += len(states)
        self.end += len(states)

    def keep_last(self) -> None:
        """All but the last row were fed."""
        del self.behind[: self.num_states - 1]
        self.states, self.num_states = [self.states[-1][-1:]], 1


@dataclass(slots=True)
class _State:
    """What is held for a sequence."""

    text: _Text
    calibration: Calibration = field(default_factory=Calibration)


class _Draft:
    """A tree while it grows. A node's ``row`` is where the layer's own output for it lies in the pool of states."""

    def __init__(self, growth: Growth, text: _Text) -> None:
        self.growth, self.text = growth, text
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
        """``num_levels``: forwards a step, so the deepest node (None: as in training); ``num_ranks``: most children a node.

        The target has to be watched for what :func:`watched` says.
        """
        self.heads, self.layer, self.num_ranks = heads, heads.layer, num_ranks
        self.num_levels = heads.config.num_steps if num_levels is None else num_levels
        self.num_passes = 0
        self._watched = watched(heads.config)
        self._states: dict[int, _State] = {}

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where no state is known yet."""
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

    def read_prompt(self, chunks: ListOf[PromptChunk]) -> None:
        """Take the target's states of prompts, if the layer was trained to see them."""
        if not self.heads.config.reads_prompt or not chunks:
            return
        states, start, texts = self._given(chunks[0].scored, [row for chunk in chunks for row in chunk.rows]), 0, []
        for chunk in chunks:
            text, length = self._text_of(chunk), len(chunk.tokens)
            follows = text.is_open  # else nothing is known in front of its first token, or that token is known already
            text.add(chunk.tokens if follows else chunk.tokens[1:], states[start : start + length])
            texts.append(text)
            start += length
        self._catch_up(texts)

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the target's states before all committed tokens, with one question for each scored batch."""
        texts = [self._own_text(observation) for observation in observations]
        new: list[tuple[Observation, _Text]] = []
        for observation, text in zip(observations, texts, strict=True):
            if text.is_open:  # its prompt was read
                text.behind.extend(observation.tokens)
            else:
                new.append((observation, text))
        while new:
            scored = new[0][0].scored
            together = [(observation, text) for observation, text in new if observation.scored is scored]
            paths = [observation.rows for observation, _ in together]
            states, start = self._given(scored, [row for path in paths for row in path]), 0
            for (observation, text), path in zip(together, paths, strict=True):
                text.add(observation.tokens, states[start : start + len(path)])
                start += len(path)
                if not observation.is_of_prompt:
                    self._states[observation.key].calibration.observe(observation.tree, observation.tokens)
            new = [(observation, text) for observation, text in new if observation.scored is not scored]
        self._catch_up(texts)

    def forget(self, key: int) -> None:
        """Close the sequence's slot."""
        state = self._states.pop(key, None)
        if state is not None:
            self._leave(state.text)

    def cache_bytes(self) -> int:
        """Bytes that the layer's caches hold."""
        return self.layer.cache_bytes()

    def _given(self, scored: Scored, rows: ListOf[Row]) -> Any:
        return scored.states(rows, self._watched) if self._watched else scored.hidden(rows)

    def _text_of(self, chunk: PromptChunk) -> _Text:
        """What is known of a prompt so far: as far as this chunk, or nothing."""
        known = self._states.get(chunk.keys[0])
        if known is not None and known.text.end == chunk.start:
            return known.text
        text = _Text(chunk.start, num_readers=len(chunk.keys))
        for key in chunk.keys:
            state = self._states.get(key)
            if state is None:
                self._states[key] = _State(text)
            else:
                self._leave(state.text)
                state.text = text
        return text

    def _own_text(self, observation: Observation) -> _Text:
        """The text of this answer alone, so that its tokens can follow."""
        state = self._states.get(observation.key)
        if state is None:
            state = self._states[observation.key] = _State(_Text())
        shared = state.text
        if shared.num_readers > 1:
            shared.num_readers -= 1
            slot = None if shared.slot is None else self.layer.fork(shared.slot)
            state.text = _Text(shared.end, slot, list(shared.behind), list(shared.states), shared.num_states)
        return state.text

    def _leave(self, text: _Text) -> None:
        text.num_readers -= 1
        if not text.num_readers and text.slot is not None:
            self.layer.close(text.slot)

    def _catch_up(self, texts: Iterable[_Text]) -> None:
        """Feed what waits where it has become much; the last row waits on, as the root is fed with each draft."""
        long = [text for text in texts if text.num_states > MOST_BEHIND]
        if not long:
            return
        feeds, pieces = [], []
        for text in long:
            self._open(text)
            rows = text.num_states - 1
            feeds.append(Feed(text.slot, Tree.chain(text.behind[:rows]), rows))
            pieces.append(self.heads.gather(text.states)[:rows])
        self.layer.forward(feeds, self.heads.fused(self.heads.gather(pieces)))
        for text, feed in zip(long, feeds, strict=True):
            self.layer.keep(feed.slot, tuple(range(feed.first_scored)))
            text.keep_last()

    def _open(self, text: _Text) -> None:
        if text.slot is None:
            text.slot = self.layer.open()

    def _begin(self, sequence: Sequence) -> _Draft | None:
        state = self._states.get(sequence.key)
        num_levels = min(self.num_levels, sequence.max_depth)
        if state is None or num_levels < 1 or sequence.max_nodes < 1 or not state.text.ends_with(sequence.tokens[-1]):
            return None
        self._open(state.text)
        return _Draft(Growth(sequence, state.calibration, num_levels, _LEAST_REACH), state.text)

    def _first_level(self, drafts: ListOf[_Draft]) -> Any:
        """Catch up and guess depth 1; returns the pool of states: those that the roots are fed with, and their own outputs."""
        feeds, pieces, ends = [], list[Any](), list[int]()
        for number, draft in enumerate(drafts):
            behind = Tree.chain(draft.text.behind)
            feeds.append(Feed(draft.text.slot, behind, len(behind) - 1))
            pieces += draft.text.states
            ends.append((ends[-1] if ends else -1) + len(behind))
            draft.given = number
        states = self.heads.fused(self.heads.gather(pieces))
        scored = self.layer.forward(feeds, states)
        for draft, feed in zip(drafts, feeds, strict=True):
            self.layer.keep(feed.slot, tuple(range(feed.first_scored)))  # the root is fed again with each level
            draft.text.keep_last()
        rows = [(entry, feed.first_scored) for entry, feed in enumerate(feeds)]
        pool = self.heads.operations.take(states, np.array(ends))
        return self._grown([draft.growth for draft in drafts], scored, rows, pool)

    def _next_level(self, drafts: ListOf[_Draft], pool: Any) -> Any:
        """Expand the frontier of every tree by one forward."""
        feeds, places, rows = [], list[int](), list[Row]()
        for entry, draft in enumerate(drafts):
            chosen = draft.fed()
            places += draft.places(chosen)
            first = chosen.index(draft.growth.frontier[0])  # the deepest nodes came last into the tree
            feeds.append(Feed(draft.text.slot, draft.growth.tree(chosen), first))
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
