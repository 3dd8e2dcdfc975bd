"""A scripted target, whose next-token logits are any function of the tokens so far, and scripted drafts against it.

``ScriptedTarget`` implements the whole target seam in exact arithmetic and asserts that its caller obeys the protocol, so a law
that holds on it holds by logic, not by luck with rounding. The drafts are named as in the project's collection of cases:
oracle (the target's own continuation), wrong (never the target's choice), half (right on every other position), empty, mix
(random trees of random correctness).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from pathlib import Path as FilePath

import numpy as np
from numpy.typing import NDArray

from headstart.accept import Row
from headstart.proposers.base import Observation, Sequence
from headstart.sampling import Sampler, log_softmax, unusable_logits
from headstart.target.base import HIDDEN, BaseWeights, ChosenLogprob, Feed, Slot, watched_places
from headstart.tree import ROOT, Path, Tree, TreeBuilder
from numpy_operations import NumpyOperations

Logits = NDArray[np.float32]
NextLogits = Callable[[tuple[int, ...]], NDArray[np.float32]]

PADDING_LOGIT = 100.0  # padding rows look tempting, so that whoever forgets to cut them off is caught


def hash_generator(*key: object) -> np.random.Generator:
    """A random generator that depends on the key alone."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "little"))


@dataclass
class ScriptedScored:
    """Results of one forward."""

    prefixes: list[list[tuple[int, ...]]]  # of each entry's rows: all tokens up to and with the row
    first_scored: list[int]
    target: ScriptedTarget

    def prefix(self, row: Row) -> tuple[int, ...]:
        entry, index = row
        assert self.first_scored[entry] <= index < len(self.prefixes[entry]), f"row {row} was not scored"
        return self.prefixes[entry][index]

    def logits(self, rows: ListOf[Row]) -> Logits:
        if not rows:
            return np.zeros((0, self.target.vocab_size + self.target.num_padding), dtype=np.float32)
        return np.stack([self.target.padded_logits(self.prefix(row)) for row in rows])

    def pick(self, rows: ListOf[Row], samplers: ListOf[Sampler], paths: ListOf[ListOf[int]]) -> list[int]:
        assert len(rows) == len(samplers) == len(paths)
        logits = self.logits(rows)
        return [sampler.pick(x, path) for x, sampler, path in zip(logits, samplers, paths, strict=True)]

    def probabilities(self, rows: ListOf[Row], samplers: ListOf[Sampler], paths: ListOf[ListOf[int]]) -> NDArray[np.float64]:
        return np.stack([s.distribution(x, path) for x, s, path in zip(self.logits(rows), samplers, paths, strict=True)])

    def logprobs(self, rows: ListOf[Row], tokens: ListOf[int], num_top: int) -> list[ChosenLogprob]:
        answers = []
        for row, token in zip(rows, tokens, strict=True):
            values = log_softmax(self.target.next_logits(self.prefix(row)))
            top = np.argsort(-values, kind="stable")[:num_top]
            answers.append(ChosenLogprob(token, float(values[token]), tuple((int(t), float(values[t])) for t in top)))
        return answers

    def likeliest(self, rows: ListOf[Row], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        logits = self.logits(rows)[:, : self.target.vocab_size]
        if not np.isfinite(logits.max(axis=1)).all():
            raise unusable_logits()
        values = log_softmax(logits)
        ids = np.argsort(-values, axis=1, kind="stable")[:, :k]
        return ids, np.take_along_axis(values, ids, axis=1)

    def hidden(self, rows: ListOf[Row]) -> Logits:
        return np.stack([self.target.hidden_state(self.prefix(row)) for row in rows])

    def states(self, rows: ListOf[Row], layers: ListOf[int]) -> Logits:
        prefixes = [self.prefixes[entry][row] for entry, row in rows]
        return np.stack([self.target.watched_states(prefix, layers) for prefix in prefixes])


@dataclass
class _Cache:
    rows: list[int] = field(default_factory=list)
    pending: Tree | None = None  # fed and not yet kept


class ScriptedTarget:
    """The target seam over ``next_logits(tokens so far) -> logits [vocab_size]``.

    ``feeds`` records every batch as a list of (slot, tree). ``num_padding`` adds rows to the logits that may never be sampled.
    """

    engine = "scripted"
    dtype = "float32"
    home: FilePath | None = None
    watched: tuple[int, ...] = ()

    def __init__(
        self,
        next_logits: NextLogits,
        vocab_size: int,
        *,
        context_limit: int = 4096,
        end_tokens: ListOf[int] = (),
        num_padding: int = 0,
        hidden_size: int = 8,
        name: str = "scripted",
    ) -> None:
        self._next_logits, self.vocab_size, self.num_padding = next_logits, vocab_size, num_padding
        self.context_limit, self.end_tokens, self.name = context_limit, frozenset(end_tokens), name
        self.hidden_size = hidden_size
        self.fingerprint = f"scripted-{name}-{vocab_size}-{hidden_size}"
        self.operations = NumpyOperations()
        self.feeds: list[list[tuple[Slot, Tree]]] = []
        self._caches: dict[Slot, _Cache] = {}
        self._num_opened = 0
        self._memory: dict[tuple[int, ...], Logits] = {}

    def next_logits(self, prefix: tuple[int, ...]) -> Logits:
        """Raw logits [vocab_size] behind these tokens."""
        logits = self._memory.get(prefix)
        if logits is None:
            logits = np.asarray(self._next_logits(prefix), dtype=np.float32)
            assert logits.shape == (self.vocab_size,), f"next_logits gave {logits.shape} for {self.vocab_size} tokens"
            self._memory[prefix] = logits
        return logits

    def padded_logits(self, prefix: tuple[int, ...]) -> Logits:
        """What the output matrix would give: padding rows included."""
        return np.concatenate([self.next_logits(prefix), np.full(self.num_padding, PADDING_LOGIT, dtype=np.float32)])

    def hidden_state(self, prefix: tuple[int, ...]) -> Logits:
        """A vector [hidden_size] that only this prefix has."""
        return hash_generator("hidden", prefix).standard_normal(self.hidden_size).astype(np.float32)

    def watch(self, layers: ListOf[int]) -> None:
        self.watched = tuple(dict.fromkeys((*self.watched, *layers)))

    def watched_states(self, prefix: tuple[int, ...], layers: ListOf[int]) -> Logits:
        """What these layers read, which must be watched, [F * hidden_size]: hidden states of this prefix, one a layer."""
        watched_places(self.watched, layers)
        own = [
            self.hidden_state(prefix)
            if layer == HIDDEN
            else hash_generator("stream", layer, prefix).standard_normal(self.hidden_size)
            for layer in layers
        ]
        return np.concatenate(own).astype(np.float32)

    @property
    def num_open(self) -> int:
        """Slots that were opened and not closed."""
        return len(self._caches)

    @property
    def num_forwards(self) -> int:
        """Calls of ``forward``."""
        return len(self.feeds)

    def tokens(self, slot: Slot) -> tuple[int, ...]:
        """Committed tokens of a slot."""
        return tuple(self._caches[slot].rows)

    def open(self) -> Slot:
        slot = Slot(self._num_opened)
        self._num_opened += 1
        self._caches[slot] = _Cache()
        return slot

    def length(self, slot: Slot) -> int:
        return len(self._caches[slot].rows)

    def forward(self, batch: ListOf[Feed]) -> ScriptedScored:
        assert batch, "a forward has rows"
        assert len({feed.slot for feed in batch}) == len(batch), "a slot stands at most once in a batch"
        prefixes = []
        for feed in batch:
            cache = self._caches[feed.slot]
            assert cache.pending is None, "keep comes before the next forward of a slot"
            assert len(cache.rows) + max(feed.tree.depths) < self.context_limit, "a row stands outside the context"
            assert all(0 <= token < self.vocab_size for token in feed.tree.tokens), "a token outside the vocabulary was fed"
            assert 0 <= feed.first_scored <= len(feed.tree)
            cache.pending = feed.tree
            rows: list[tuple[int, ...]] = []
            for token, parent in zip(feed.tree.tokens, feed.tree.parents, strict=True):
                before = tuple(cache.rows) if parent < 0 else rows[parent]
                rows.append((*before, token))
            prefixes.append(rows)
        self.feeds.append([(feed.slot, feed.tree) for feed in batch])
        return ScriptedScored(prefixes, [feed.first_scored for feed in batch], self)

    def keep(self, slot: Slot, path: Path) -> None:
        cache = self._caches[slot]
        assert cache.pending is not None, "keep follows a forward"
        tree, parent = cache.pending, -1
        for row in path:
            assert tree.parents[row] == parent, f"{path} is not a path from row 0 on"
            cache.rows.append(tree.tokens[row])
            parent = row
        cache.pending = None

    def fork(self, slot: Slot) -> Slot:
        assert self._caches[slot].pending is None, "keep comes before a fork"
        twin = self.open()
        self._caches[twin].rows = list(self._caches[slot].rows)
        return twin

    def close(self, slot: Slot) -> None:
        del self._caches[slot]

    def base_weights(self) -> BaseWeights:
        matrix = hash_generator("output", self.vocab_size, self.hidden_size).standard_normal(
            (self.vocab_size, self.hidden_size)
        )
        weights = matrix.astype(np.float32)
        return BaseWeights(weights, weights)

    def cache_bytes(self) -> int:
        return sum(8 * len(cache.rows) for cache in self._caches.values())


def table_target(
    table: Mapping[tuple[int, ...], Mapping[int, float]] | ListOf[int], vocab_size: int, **options: object
) -> ScriptedTarget:
    """A target written as a table.

    A list of tokens: the argmax behind n tokens is entry n, whatever they are (the last entry goes on for ever). A mapping: the
    logits of the longest listed suffix of the tokens so far (the empty one is the default); tokens not named get -20.
    """
    if isinstance(table, Mapping):
        rules = table

        def by_suffix(prefix: tuple[int, ...]) -> Logits:
            logits = np.full(vocab_size, -20.0, dtype=np.float32)
            suffix = next(s for s in sorted(rules, key=len, reverse=True) if prefix[len(prefix) - len(s) :] == s)
            for token, value in rules[suffix].items():
                logits[token] = value
            return logits

        return ScriptedTarget(by_suffix, vocab_size, **options)  # type: ignore[arg-type]
    tokens = list(table)

    def by_position(prefix: tuple[int, ...]) -> Logits:
        logits = np.zeros(vocab_size, dtype=np.float32)
        logits[tokens[min(len(prefix), len(tokens) - 1)]] = 10.0
        return logits

    return ScriptedTarget(by_position, vocab_size, **options)  # type: ignore[arg-type]


def random_target(
    seed: int, vocab_size: int, *, scale: float = 2.0, memory: int | None = None, **options: object
) -> ScriptedTarget:
    """Hash-based normal logits: a deterministic function of the prefix (or of its last ``memory`` tokens)."""

    def next_logits(prefix: tuple[int, ...]) -> Logits:
        seen = prefix if memory is None else prefix[len(prefix) - min(memory, len(prefix)) :]
        return (scale * hash_generator("logits", seed, seen).standard_normal(vocab_size)).astype(np.float32)

    return ScriptedTarget(next_logits, vocab_size, **options)  # type: ignore[arg-type]


class ScriptedProposer:
    """A proposer that knows the target; subclasses say which nodes are right.

    Each step drafts a spine of ``num_nodes`` nodes; with ``width`` > 1 every spine node gets that many wrong siblings as well,
    within the sequence's budget.
    """

    name = "scripted"

    def __init__(self, target: ScriptedTarget, num_nodes: int = 4, *, width: int = 1) -> None:
        self.target, self.num_nodes, self.width = target, num_nodes, width
        self.known: set[int] = set()
        self.observed: list[Observation] = []

    def is_right(self, depth: int) -> bool:
        raise NotImplementedError

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        self.known.update(sequence.key for sequence in sequences)
        return [self._tree(sequence) for sequence in sequences]

    def observe(self, observations: ListOf[Observation]) -> None:
        self.observed.extend(observations)

    def forget(self, key: int) -> None:
        self.known.discard(key)

    def _pick(self, sequence: Sequence, path: ListOf[int]) -> int:
        """The target's own choice behind the drafted tokens."""
        return sequence.sampler.pick(self.target.next_logits((*sequence.tokens, *path)), path)

    def _tree(self, sequence: Sequence) -> Tree:
        builder, row, path = TreeBuilder(sequence.tokens[-1]), ROOT, list[int]()
        left = min(self.num_nodes, sequence.max_nodes)
        for depth in range(1, sequence.max_depth + 1):
            if not left:
                break
            right = self._pick(sequence, path)
            token = right if self.is_right(depth) else (right + 1) % self.target.vocab_size
            siblings = [t % self.target.vocab_size for t in range(right + 1, right + self.width + 1)]
            spine = builder.add(row, token, 0.5)
            left -= 1
            for sibling in [t for t in siblings if t not in (token, right)][: min(self.width - 1, left)]:
                builder.add(row, sibling, 0.1)
                left -= 1
            row, path = spine, [*path, token]
        return builder.build()


class OracleProposer(ScriptedProposer):
    """The target's own continuation."""

    name = "oracle"

    def is_right(self, depth: int) -> bool:
        return True


class WrongProposer(ScriptedProposer):
    """Never the target's choice."""

    name = "wrong"

    def is_right(self, depth: int) -> bool:
        return False


class HalfProposer(ScriptedProposer):
    """Right on every other position."""

    name = "half"

    def is_right(self, depth: int) -> bool:
        return depth % 2 == 1


class EmptyProposer(ScriptedProposer):
    """Nothing to say."""

    name = "empty"

    def _tree(self, sequence: Sequence) -> Tree:
        return Tree.root(sequence.tokens[-1])


class MixProposer(ScriptedProposer):
    """Random trees (or chains, with ``width`` 1) of random size and correctness; a function of seed and tokens."""

    name = "mix"

    def __init__(self, target: ScriptedTarget, num_nodes: int = 8, *, width: int = 3, seed: int = 0) -> None:
        super().__init__(target, num_nodes, width=width)
        self.seed = seed

    def _tree(self, sequence: Sequence) -> Tree:
        rng = hash_generator("mix", self.seed, tuple(sequence.tokens))
        builder = TreeBuilder(sequence.tokens[-1])
        paths: list[tuple[int, list[int]]] = [(ROOT, [])]
        for _ in range(int(rng.integers(0, min(self.num_nodes, sequence.max_nodes) + 1))):
            parent, path = paths[-1] if self.width == 1 else paths[int(rng.integers(len(paths)))]
            if len(path) == sequence.max_depth:
                continue
            right = rng.random() < 0.6
            token = self._pick(sequence, path) if right else int(rng.integers(self.target.vocab_size))
            row = builder.add(parent, token, float(rng.random()))
            if row == len(paths):
                paths.append((row, [*path, token]))
        return builder.build()
