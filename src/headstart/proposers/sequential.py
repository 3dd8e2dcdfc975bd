"""Drafts from sequential modules: a tree that grows level by level, each level by a module of its own (DeepSeek-V3 2024, 2.2).

Module m = 1..K reads the state of module m - 1 at a position t beside the token of t + m, and guesses the token of t + m + 1
(``heads/future.py``). Let the root stand at position P; the target's states are known up to P - 1. Then module m has a row
for each position up to P - m from committed tokens alone, of which the last reads the root. Behind it hang the drafted
tokens: a node of depth j stands at position P - m + j, reads its own token and what module m - 1 said of its parent, and the
nodes of depth m - 1 guess depth m. So what a module sees while it drafts is exactly what it saw in training, for any path of
the tree.

A module's cache, one slot a sequence, holds its rows of committed tokens but for the last; what module m - 1 said of positions
that module m was not fed yet is kept until it is. Caches begin with the prompt's last chunk, and anew behind a long pause.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any

from headstart.accept import Row
from headstart.heads.future import BoundFuture
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.children import choose_children
from headstart.proposers.future import MOST_BEHIND, committed_rows
from headstart.proposers.growth import Growth
from headstart.proposers.questions import asked_together
from headstart.target.base import Feed, Slot
from headstart.tree import ROOT, Tree

DEFAULT_RANKS = 8
_NOISY_CANDIDATES = 64  # of each node, that noise may rank
_LEAST_REACH = 0.05  # a node that is reached less often is not worth its share of a forward


class _States:
    """States of consecutive positions."""

    def __init__(self, heads: BoundFuture, first: int) -> None:
        self._heads, self.first, self._values = heads, first, None

    @property
    def end(self) -> int:
        """The position behind the last."""
        return self.first + (0 if self._values is None else len(self._values))

    def put(self, first: int, values: Any) -> None:
        """States from position ``first`` on, in place of those that were there."""
        before = None if self._values is None else self._values[: first - self.first]
        self._values = values if before is None or not len(before) else self._heads.gather([before, values])

    def get(self, first: int, end: int) -> Any:
        """States of the positions [first, end)."""
        assert self._values is not None
        return self._values[first - self.first : end - self.first]

    def drop(self, first: int) -> None:
        """Forget the positions before ``first``."""
        if self._values is not None and first > self.first:
            self._values, self.first = self._values[first - self.first :], first


@dataclass(slots=True)
class _Held:
    """What is held for a sequence."""

    states: list[_States]  # what each module reads, of positions that it was not fed yet
    start: int  # the first position of the caches
    root: int = -1
    slots: list[Slot] = field(default_factory=list)  # one a module
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(slots=True)
class _Draft:
    """A tree while it grows, at a level."""

    sequence: Sequence
    held: _Held
    growth: Growth
    own: dict[int, Any] = field(default_factory=dict)  # by node: what the module of the level before said of it, [1, D]

    @property
    def root_position(self) -> int:
        """P."""
        return len(self.sequence.tokens) - 1

    def fed(self) -> list[int]:
        """The frontier and its ancestors behind the root, parents first."""
        return sorted({node for leaf in self.growth.frontier for node in self.growth.path(leaf)})


class SequentialProposer:
    """Trees of sequential modules' guesses for the sequences in flight."""

    name = "mtp"
    hears_all = True

    def __init__(self, heads: BoundFuture, *, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_ranks``: most children a node."""
        self.heads, self.num_ranks = heads, num_ranks
        self._held: dict[int, _Held] = {}

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where no state is known yet."""
        trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        drafts = {i: draft for i, sequence in enumerate(sequences) if (draft := self._begin(sequence)) is not None}
        growing, module = list(drafts.values()), 0
        while growing:
            self._level(growing, module)
            growing, module = [draft for draft in growing if draft.growth.frontier], module + 1
        for i, draft in drafts.items():
            trees[i] = draft.growth.tree()
        return trees

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the target's states of what was committed, with one question for each scored batch."""
        layers = self.heads.config.watched
        for observation, states, own in asked_together(
            observations, committed_rows, lambda scored, rows: scored.states(rows, layers)
        ):
            self._take(observation, states[own])

    def forget(self, key: int) -> None:
        """Close the sequence's slots."""
        held = self._held.pop(key, None)
        if held is not None:
            self._close(held)

    def cache_bytes(self) -> int:
        """Bytes that the modules' caches hold."""
        return sum(layer.cache_bytes() for layer in self.heads.layers)

    def _take(self, observation: Observation, states: Any) -> None:
        held = self._held.get(observation.key)
        if held is None:  # positions count from the prompt's last chunk, until the text is seen
            held = self._held[observation.key] = self._fresh(0)
        held.states[0].put(held.states[0].end, states)
        held.root = observation.tokens[-1]
        if held.states[0].end - held.states[0].first > 2 * MOST_BEHIND:
            self._close(held)
            end, calibration = held.states[0].end, held.calibration
            fresh = self._fresh(end - MOST_BEHIND)
            fresh.states[0].put(fresh.start, held.states[0].get(fresh.start, end))
            fresh.root, fresh.calibration = held.root, calibration
            self._held[observation.key] = held = fresh
        if not observation.is_of_prompt:
            held.calibration.observe(observation.tree, observation.tokens)

    def _fresh(self, start: int) -> _Held:
        return _Held([_States(self.heads, start) for _ in self.heads.layers], start)

    def _close(self, held: _Held) -> None:
        for layer, slot in zip(self.heads.layers, held.slots, strict=False):
            layer.close(slot)

    def _begin(self, sequence: Sequence) -> _Draft | None:
        held = self._held.get(sequence.key)
        if held is None or held.root != sequence.tokens[-1] or sequence.max_nodes < 1:
            return None
        known = held.states[0].end - held.start  # each module needs a row of committed tokens
        num_levels = min(len(self.heads.layers), sequence.max_depth, known)
        if num_levels < 1:
            return None
        held.slots = held.slots or [layer.open() for layer in self.heads.layers]
        return _Draft(sequence, held, Growth(sequence, held.calibration, num_levels, _LEAST_REACH))

    def _level(self, drafts: ListOf[_Draft], module: int) -> None:
        """Catch up with what was committed and expand the frontier of every tree by one forward of the module."""
        layer, ahead = self.heads.layers[module], module + 1
        feeds, inputs, tokens, chains, fed = [], [], list[int](), list[int](), list[list[int]]()
        for draft in drafts:
            states, nodes = draft.held.states[module], draft.fed()
            end = draft.held.states[0].end - module  # the position behind the root's row
            shift = len(draft.sequence.tokens) - 1 - draft.held.states[0].end  # of positions in the text
            own = [draft.sequence.tokens[position + shift + ahead] for position in range(states.first, end)]
            inputs += [states.get(states.first, end), *(draft.own[draft.growth.nodes[node].parent] for node in nodes)]
            tree = _hung(own, draft.growth, nodes)
            tokens += tree.tokens
            feeds.append(Feed(draft.held.slots[module], tree))
            chains.append(len(own))
            fed.append(nodes)
        scored = layer.forward(feeds, self.heads.module_input(module, self.heads.gather(inputs), tokens))
        frontier: list[Row] = []
        for entry, (draft, feed, length, nodes) in enumerate(zip(drafts, feeds, chains, fed, strict=True)):
            layer.keep(feed.slot, tuple(range(length - 1)))  # the root's row is fed again
            said = scored.hidden([(entry, row) for row in range(len(feed.tree))])
            place = {ROOT: length - 1} | {node: length + i for i, node in enumerate(nodes)}
            draft.own = {node: said[row : row + 1] for node, row in place.items()}
            self._pass_on(draft.held, module, said[:length])
            frontier += [(entry, place[leaf]) for leaf in draft.growth.frontier]
        self._grow(drafts, scored, frontier)

    def _pass_on(self, held: _Held, module: int, said: Any) -> None:
        """What a module said of its new rows of committed tokens is what the next one reads."""
        read = held.states[module]
        if module + 1 < len(held.states):
            held.states[module + 1].put(read.first, said)
        read.drop(read.first + len(said) - 1)

    def _grow(self, drafts: ListOf[_Draft], scored: Any, frontier: ListOf[Row]) -> None:
        growths = [draft.growth for draft in drafts]
        places = [growth.place(leaf) for growth in growths for leaf in growth.frontier]
        is_noisy = any(place.sequence.sampler.sampling.temperature > 0 for place in places)
        ids, logprobs = scored.likeliest(frontier, max(self.num_ranks, _NOISY_CANDIDATES) if is_noisy else self.num_ranks)
        children = iter(choose_children(places, self.heads.base_ids(ids), logprobs, self.num_ranks, owner=self.name))
        for growth in growths:
            growth.add({leaf: next(children) for leaf in growth.frontier})


def _hung(chain: ListOf[int], growth: Growth, nodes: ListOf[int]) -> Tree:
    """Committed tokens one below the other, and drafted nodes below the last of them."""
    row = {ROOT: len(chain) - 1} | {node: len(chain) + i for i, node in enumerate(nodes)}
    own = [growth.nodes[node] for node in nodes]
    return Tree(
        (*chain, *(node.token for node in own)),
        (*range(-1, len(chain) - 1), *(row[node.parent] for node in own)),
        (1.0,) * (len(chain) + len(own)),
    )
