"""Drafts from a second, smaller model with the same vocabulary: a tree of its best guesses.

The draft model is an engine of its own (any ``Target``) with one slot a sequence (Leviathan et al. 2023 and Chen et al. 2023,
for a chain). The tree grows level by level: one draft forward scores all nodes of the deepest level, of all sequences at once;
their likeliest children join, and the ``max_nodes`` nodes with the likeliest paths stay (EAGLE-2, Li et al. 2024, does the same
with its head). Growth ends when a level has no survivor, at ``max_depth``, or after ``num_levels`` forwards.

* Temperature 0: the children of a node are the draft's likeliest tokens behind it, after the request's penalties and bias.
* Temperature > 0: they are the top k of ``log q + g`` with q the draft's own processed distribution and g the noise that the
  plain sampler will use there (``accept.py``), and a child's estimate follows from its rank.

The engine is asked for the few likeliest tokens; at temperature > 0 for a few hundred, and for the draft's own pick, which is
the first of that order wherever it stands. Penalties, biases and bans can lift any token, so a request with some has whole rows
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
from headstart.sampling import gumbel
from headstart.target.base import Feed, Scored, Slot, Target
from headstart.tree import ROOT, Tree

DEFAULT_LEVELS = 5
DEFAULT_RANKS = 8
CATCH_UP_CHUNK = 512  # committed tokens fed in one forward
_NOISY_CANDIDATES = 256  # the draft's likeliest tokens, that the noise may rank
_COUPLED_HIT = 0.6  # prior: the first coupled child is hit that often, each further one this share less
_COUPLED_FALL = 0.4

_Candidates = tuple[NDArray[np.int64], NDArray[np.float64]]  # ids [n], log-weights [n]; at temperature 0 log-probabilities


@dataclass(slots=True)
class _State:
    """What is held for a sequence."""

    slot: Slot
    calibration: Calibration = field(default_factory=Calibration)


@dataclass(slots=True)
class _Node:
    token: int
    parent: int
    probability: float
    reach: float  # product along the path
    depth: int


class _Growth:
    """One sequence's tree while it grows."""

    def __init__(self, sequence: Sequence, state: _State, num_levels: int) -> None:
        self.sequence, self.state = sequence, state
        self.nodes = [_Node(sequence.tokens[-1], -1, 1.0, 1.0, 0)]
        self.frontier = [ROOT]  # nodes that the next forward expands
        self.num_levels = num_levels

    @property
    def depth(self) -> int:
        """Depth of the frontier."""
        return self.nodes[self.frontier[0]].depth

    def path(self, index: int) -> list[int]:
        """Nodes from the root's child down to this one."""
        path: list[int] = []
        while index != ROOT:
            path.append(index)
            index = self.nodes[index].parent
        return path[::-1]

    def feed_rows(self) -> list[int]:
        """The frontier and its ancestors, parents first."""
        return sorted({ROOT, *(node for leaf in self.frontier for node in self.path(leaf))})

    def add(self, children: ListOf[tuple[int, int, float]]) -> None:
        """Hang (parent, token, probability) below the frontier; keep the likeliest paths, and expand what is new among them."""
        first, depth = len(self.nodes), self.depth + 1
        for parent, token, probability in children:
            reach = self.nodes[parent].reach * probability
            self.nodes.append(_Node(token, parent, probability, reach, depth))
        order = sorted(range(1, len(self.nodes)), key=lambda i: (-self.nodes[i].reach, i))  # parents come before children
        kept = [ROOT, *sorted(order[: self.sequence.max_nodes])]
        index = {old: new for new, old in enumerate(kept)}
        nodes = [self.nodes[old] for old in kept]
        for node in nodes[1:]:
            node.parent = index[node.parent]
        self.nodes = nodes
        self.frontier = [new for new, old in enumerate(kept) if old >= first] if depth < self.num_levels else []

    def tree(self, rows: ListOf[int]) -> Tree:
        """These nodes as a tree."""
        index = {row: i for i, row in enumerate(rows)}
        nodes = [self.nodes[row] for row in rows]
        parents = tuple(-1 if node.parent < 0 else index[node.parent] for node in nodes)
        return Tree(tuple(node.token for node in nodes), parents, tuple(node.probability for node in nodes))


class _Leaf:
    """A frontier node, and where the draft scores it."""

    def __init__(self, growth: _Growth, node: int, row: Row) -> None:
        self.growth, self.node, self.row, self.sampler = growth, node, row, growth.sequence.sampler
        self.is_noisy = self.sampler.sampling.temperature > 0
        self.path = [growth.nodes[above].token for above in growth.path(node)]


class DraftModelProposer:
    """Trees of a draft model's best guesses for the sequences in flight."""

    name = "draft_model"

    def __init__(self, draft: Target, *, num_levels: int = DEFAULT_LEVELS, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_levels``: draft forwards a step, so the deepest node; ``num_ranks``: children a node, at most."""
        self.draft, self.num_levels, self.num_ranks = draft, num_levels, num_ranks
        self._states: dict[int, _State] = {}

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        """One tree a sequence; the root alone where the draft's context or vocabulary ends, or nothing may be drafted."""
        trees = [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        growths: dict[int, _Growth] = {}
        for i, sequence in enumerate(sequences):
            growth = self._begin(sequence)
            if growth is not None:
                growths[i] = growth
        self._catch_up(list(growths.values()))
        growing = list(growths.values())
        while growing:
            growing = self._grow(growing)
        for i, growth in growths.items():
            trees[i] = growth.tree(range(len(growth.nodes)))
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

    def _begin(self, sequence: Sequence) -> _Growth | None:
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
        return _Growth(sequence, state, num_levels)

    def _catch_up(self, growths: ListOf[_Growth]) -> None:
        """Feed what was committed since the last call, up to a last chunk that goes with the root."""
        while True:
            feeds = []
            for growth in growths:
                cached, tokens = self.draft.length(growth.state.slot), growth.sequence.tokens
                if len(tokens) - cached > CATCH_UP_CHUNK:
                    chunk = Tree.chain(tokens[cached : cached + CATCH_UP_CHUNK])
                    feeds.append(Feed(growth.state.slot, chunk, len(chunk)))
            if not feeds:
                return
            self.draft.forward(feeds)
            for feed in feeds:
                self.draft.keep(feed.slot, tuple(range(len(feed.tree))))

    def _grow(self, growths: ListOf[_Growth]) -> list[_Growth]:
        """One draft forward: expand the frontier of every tree; returns those that grow on."""
        feeds, leaves, num_caught_up = [], list[_Leaf](), []
        for entry, growth in enumerate(growths):
            # Committed tokens are left to feed only before the first level, when the root is the whole tree.
            behind = growth.sequence.tokens[self.draft.length(growth.state.slot) : -1]
            chosen = growth.feed_rows()
            tree = Tree.chain([*behind, growth.nodes[ROOT].token]) if behind else growth.tree(chosen)
            rows = [len(behind) + chosen.index(leaf) for leaf in growth.frontier]
            feeds.append(Feed(growth.state.slot, tree, rows[0]))
            leaves += [_Leaf(growth, node, (entry, row)) for node, row in zip(growth.frontier, rows, strict=True)]
            num_caught_up.append(len(behind))
        children: list[list[tuple[int, int, float]]] = [[] for _ in growths]
        for leaf, (ids, values) in self._candidates(self.draft.forward(feeds), leaves):
            children[leaf.row[0]] += self._children(leaf, ids, values)
        for growth, hung, count in zip(growths, children, num_caught_up, strict=True):
            growth.add(hung)
            self.draft.keep(growth.state.slot, tuple(range(count)))
        return [growth for growth in growths if growth.frontier]

    def _candidates(self, scored: Scored, leaves: ListOf[_Leaf]) -> Iterator[tuple[_Leaf, _Candidates]]:
        """Leaves with the tokens that may follow; left out: those that the draft has nothing to say about."""
        asked = [leaf for leaf in leaves if leaf.sampler.keeps_logits(len(leaf.path))]
        if asked:
            with suppress(ModelError):  # logits that are no numbers
                yield from self._likeliest(scored, asked)
        for leaf in leaves:
            if not leaf.sampler.keeps_logits(len(leaf.path)):
                with suppress(ModelError, RequestError):  # or the request bans all that the draft knows
                    yield leaf, self._touched(leaf, scored.logits([leaf.row])[0])

    def _likeliest(self, scored: Scored, leaves: ListOf[_Leaf]) -> Iterator[tuple[_Leaf, _Candidates]]:
        """Candidates from the likeliest tokens; at temperature > 0 with the draft's own pick, which may be any token."""
        noisy = [leaf for leaf in leaves if leaf.is_noisy]
        rows = [leaf.row for leaf in noisy]
        found = scored.pick(rows, [leaf.sampler for leaf in noisy], [leaf.path for leaf in noisy])
        picks = dict(zip(rows, found, strict=True))
        surplus = max(0, self.draft.vocab_size - min(leaf.sampler.vocab_size for leaf in leaves))
        count = surplus + (max(self.num_ranks, _NOISY_CANDIDATES) if noisy else self.num_ranks)
        for leaf, ids, values in zip(leaves, *scored.likeliest([leaf.row for leaf in leaves], count), strict=True):
            known = ids < leaf.sampler.vocab_size
            places, weights = leaf.sampler.truncated(values[known])
            ids, pick = ids[known][places], picks.get(leaf.row, leaf.sampler.vocab_size)
            if pick < leaf.sampler.vocab_size:
                others = ids != pick
                ids, weights = np.array([pick, *ids[others]]), np.array([np.inf, *weights[others]])
            yield leaf, (ids, weights)

    def _touched(self, leaf: _Leaf, logits: NDArray[np.float32]) -> _Candidates:
        """Candidates from whole logits [V], any of which a penalty, a bias or a ban may move."""
        known = min(self.draft.vocab_size, leaf.sampler.vocab_size)
        dense = np.full(leaf.sampler.vocab_size, -np.inf, dtype=np.float32)
        dense[:known] = logits[:known]  # no padding rows; tokens that only the target has are never drafted
        ids, values = leaf.sampler.candidates(dense, leaf.path)
        values = values - values.max()
        return ids, values - np.log(np.exp(values).sum())

    def _children(self, leaf: _Leaf, ids: NDArray[np.int64], values: NDArray[np.float64]) -> list[tuple[int, int, float]]:
        """(parent, token, estimate) of a frontier node's children, from its candidates [n]."""
        sequence, depth = leaf.growth.sequence, len(leaf.path) + 1
        num_ranks = min(self.num_ranks, sequence.max_nodes)
        if leaf.is_noisy:
            noise = gumbel(leaf.sampler.seed, len(sequence.tokens) + depth - 1, ids)
            best = _largest(values + noise, num_ranks)
            estimates = _COUPLED_HIT * _COUPLED_FALL ** np.arange(len(best))
        else:
            best = _largest(values, num_ranks)
            estimates = np.exp(values[best])
        return [
            (leaf.node, int(ids[i]), leaf.growth.state.calibration.scaled(float(estimate), depth))
            for i, estimate in zip(best, estimates, strict=True)
            if estimate > 0
        ]


def _largest(values: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Indices of the k largest values, largest first, ties to the lowest."""
    if k < len(values):
        border = np.partition(values, -k)[-k]
        likely = np.flatnonzero(values >= border)
        return likely[np.argsort(-values[likely], kind="stable")][:k]
    return np.argsort(-values, kind="stable")
