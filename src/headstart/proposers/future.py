"""Drafts from the heads of a model that was trained to predict several tokens (``heads/future.py``).

Their guesses do not depend on what is drafted before them, so they are Medusa's case: one ranked list a depth, and a tree of
the likeliest combinations (``medusa.py``). Only where the lists come from differs. A head with a layer of its own has a
cache, one slot a sequence, which holds a row for each committed position; a step feeds it the positions that the last steps
committed and asks the last one. Heads without a layer read the last position's streams alone.

A cache begins with the prompt's last chunk (``decode.PROMPT_CHUNK`` rows), as far as the model computed it in one forward, and
begins anew behind a pause longer than ``MOST_BEHIND`` tokens.

Letters: n sequences, K heads, R guesses a head, F watched layers, D hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.heads.future import BoundFuture
from headstart.proposers.base import Observation, Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.medusa import DEFAULT_RANKS, GROWTHS, DepthProposer
from headstart.proposers.questions import asked_together
from headstart.target.base import Feed, Slot
from headstart.tree import Tree

MOST_BEHIND = 512

Guesses = tuple[NDArray[np.int64], NDArray[np.float64]]


@dataclass(slots=True)
class Held:
    """What is held for a sequence."""

    root: int = -1
    slots: list[Slot] = field(default_factory=list)  # one a layer
    behind: list[Any] = field(default_factory=list)  # streams [rows, F * D] of committed positions that no layer was fed yet
    num_behind: int = 0
    calibration: Calibration = field(default_factory=Calibration)


def committed_rows(observation: Observation) -> list[tuple[int, int]]:
    """The rows of positions that are committed and were not before: a prompt's whole chunk, or the accepted path."""
    entry, last = observation.row
    is_prompt = observation.is_of_prompt
    return [(entry, row) for row in range(last + 1)] if is_prompt else observation.rows


class StreamStates:
    """Streams of the sequences in flight, and the caches of the heads over them."""

    def __init__(self, heads: BoundFuture) -> None:
        self._heads = heads
        self._held: dict[int, Held] = {}

    def observe(self, observations: ListOf[Observation]) -> None:
        """Take the streams of what was committed, with one question for each scored batch."""
        layers = self._heads.config.watched
        for observation, streams, own in asked_together(
            observations, self._wanted, lambda scored, rows: scored.states(rows, layers)
        ):
            self._take(observation, streams[own])

    def forget(self, key: int) -> None:
        """Close the sequence's slots."""
        held = self._held.pop(key, None)
        if held is not None:
            self._close(held)

    def known(self, sequence: Sequence) -> Held | None:
        """What is held for this root, if a draft may use it."""
        held = self._held.get(sequence.key)
        is_right = held is not None and held.root == sequence.tokens[-1] and min(sequence.max_nodes, sequence.max_depth) > 0
        return held if is_right else None

    def guesses(self, states: ListOf[Held], num_ranks: int) -> Guesses:
        """The likeliest tokens of every depth [n, K, R] and their probabilities [n, K, R]."""
        heads = self._heads
        if not heads.layers:
            return heads.read_out(heads.gather([held.behind[-1][-1:] for held in states]), num_ranks)
        for held in states:
            held.slots = held.slots or [layer.open() for layer in heads.layers]
        sizes = [held.num_behind for held in states]
        streams = heads.gather([piece for held in states for piece in held.behind])
        found = []
        for depth, layer in enumerate(heads.layers):
            chained = heads.config.variant == "causal"
            batch = [
                Feed(held.slots[depth], _chain(num), 0 if chained else num - 1) for held, num in zip(states, sizes, strict=True)
            ]
            scored = layer.forward(batch, streams)
            found.append(scored.likeliest([(entry, num - 1) for entry, num in enumerate(sizes)], num_ranks))
            if chained:
                streams = scored.hidden([(entry, row) for entry, num in enumerate(sizes) for row in range(num)])
            for held, num in zip(states, sizes, strict=True):
                layer.keep(held.slots[depth], tuple(range(num - 1)))  # the last row is fed again, should it be asked again
        for held in states:
            held.behind, held.num_behind = [held.behind[-1][-1:]], 1
        ids, logprobs = (np.stack(part, axis=1) for part in zip(*found, strict=True))
        return heads.base_ids(ids), np.exp(logprobs)

    def cache_bytes(self) -> int:
        """Bytes that the caches of the heads hold."""
        return sum(layer.cache_bytes() for layer in self._heads.layers)

    def _wanted(self, observation: Observation) -> list[tuple[int, int]]:
        rows = committed_rows(observation)
        return rows if self._heads.layers else rows[-1:]

    def _take(self, observation: Observation, streams: Any) -> None:
        held = self._held.setdefault(observation.key, Held())
        held.root = observation.tokens[-1]
        held.behind.append(streams)
        held.num_behind += len(streams)
        if not self._heads.layers:
            held.behind, held.num_behind = [streams], len(streams)
        elif held.num_behind > 2 * MOST_BEHIND:
            held.behind = [self._heads.gather(held.behind)[-MOST_BEHIND:]]
            held.num_behind = MOST_BEHIND
            self._close(held)
        if not observation.is_of_prompt:
            held.calibration.observe(observation.tree, observation.tokens)

    def _close(self, held: Held) -> None:
        for layer, slot in zip(self._heads.layers, held.slots, strict=False):
            layer.close(slot)
        held.slots = []


class FutureProposer(DepthProposer):
    """Trees of the guesses of a model's own future-token heads."""

    name = "mtp"

    def __init__(self, heads: BoundFuture, *, num_ranks: int = DEFAULT_RANKS) -> None:
        """``num_ranks``: guesses a head that may enter a tree, at most."""
        self._streams = StreamStates(heads)
        self.heads, self.hears_all = heads, bool(heads.layers)  # caches need every step
        super().__init__(self._streams, heads.heads.card, GROWTHS[0], num_ranks)

    def cache_bytes(self) -> int:
        """Bytes that the caches of the heads hold."""
        return self._streams.cache_bytes()


def _chain(num_rows: int) -> Tree:
    """Rows one below the other; heads read no tokens."""
    return Tree.chain([0] * num_rows)
