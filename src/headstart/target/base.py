"""The target seam: what an engine must offer to be decoded with.

A target holds *slots*, one sequence's cache each. One ``forward`` takes any mixture of prompts, plain steps and drafts for many
slots, since all of them are trees (``tree.py``): row r of a tree stands at position ``length(slot) + depth(r)`` and attends to
the slot's committed rows and to its own ancestors. Rows of different slots never see each other. ``keep`` commits one path of
the last forward and forgets every other row of it, so a rejected draft leaves no trace.

``Scored`` stays where the engine computed it and answers questions about single rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, NewType, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from headstart.accept import Row
from headstart.sampling import Sampler
from headstart.tree import Path, Tree

Slot = NewType("Slot", int)

Hidden = Any
"""Hidden states in the engine's own array type; only the engine's own ``Operations`` look inside."""

HIDDEN = -1
"""In place of a layer to watch: what the output matrix reads, of every row and not of the scored ones alone."""


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows for one slot. Rows before ``first_scored`` are only cached (a prompt's rows, but for its last one)."""

    slot: Slot
    tree: Tree
    first_scored: int = 0


@dataclass(frozen=True, slots=True)
class ChosenLogprob:
    """Log-probability of the chosen token and of the k likeliest, of the raw distribution (before any processing)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # (token, logprob), likeliest first


class Scored(Protocol):
    """A forward's results. Rows are (entry of the batch, row of its tree); rows before ``first_scored`` may not be asked."""

    def pick(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> list[int]:
        """The plain sampler's token of each row, as ``Sampler.pick`` defines it."""

    def probabilities(
        self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        """The distribution [rows, V] that the plain sampler picks from, as ``Sampler.distribution`` defines it."""

    def logits(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Raw logits [rows, V]."""

    def logprobs(self, rows: Sequence[Row], tokens: Sequence[int], num_top: int) -> list[ChosenLogprob]:
        """Raw log-probability of one token a row, and the row's ``num_top`` likeliest."""

    def likeliest(self, rows: Sequence[Row], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The min(k, V) likeliest tokens of each row, likeliest first, ties to the lowest id, and their raw log-probabilities.

        Both are [rows, min(k, V)]; V: ids that may be sampled. Which of equally likely tokens are the last is left open.
        """

    def hidden(self, rows: Sequence[Row]) -> Hidden:
        """Last hidden states [rows, D] (what the output matrix reads), detached from the cache."""

    def states(self, rows: Sequence[Row], layers: Sequence[int]) -> Hidden:
        """What is watched at these F layers [rows, F * D], of any row that was fed, scored or not.

        ValueError for a layer that was not watched when the rows were fed.
        """


def watched_places(watched: Sequence[int], layers: Sequence[int]) -> list[int]:
    """Where these layers stand among those that are watched; ValueError for one that is not."""
    missing = [layer for layer in layers if layer not in watched]
    if missing:
        raise ValueError(f"layers {missing} are not watched, but {list(watched)}; call watch before the rows are fed")
    return [watched.index(layer) for layer in layers]


@dataclass(frozen=True, slots=True)
class BaseWeights:
    """The base model's matrices that heads may read, in the engine's own array type."""

    embedding: Any  # [V, D]
    output: Any  # [V, D]; the same object when tied


class Target(Protocol):
    """A model that verifies drafts."""

    name: str  # as the user wrote it
    engine: str  # "hf", "native"
    dtype: str  # of most weights: "float32", "bfloat16", and natively "int8", "q4_0", "q4_1"
    vocab_size: int  # ids that may be sampled; padding rows of the output matrix are not counted
    hidden_size: int
    context_limit: int  # positions 0..context_limit - 1 exist
    end_tokens: frozenset[int]
    fingerprint: str  # of the weights; equal for the same model in another file format or dtype
    home: FilePath | None  # the folder that it was loaded from, in which heads may lie

    def open(self) -> Slot:
        """A slot with an empty cache."""

    def length(self, slot: Slot) -> int:
        """Committed rows of a slot."""

    def forward(self, batch: Sequence[Feed]) -> Scored:
        """Score all rows. Each slot stands at most once in a batch, and ``keep`` follows before its next forward."""

    def keep(self, slot: Slot, path: Path) -> None:
        """Commit these rows of the slot's last forward, a path from row 0 on; forget its others. Empty: forget all."""

    def watch(self, layers: Sequence[int]) -> None:
        """From now on ``Scored.states`` knows the residual streams before these layers too; the number of layers: at the end.

        ``HIDDEN`` among them: what the output matrix reads. Who watched others before goes on reading them. ModelError if the
        model has no such layer.
        """

    def fork(self, slot: Slot) -> Slot:
        """A new slot with the same committed rows."""

    def close(self, slot: Slot) -> None:
        """Free a slot."""

    def base_weights(self) -> BaseWeights:
        """The embedding and the output matrix, for heads."""

    @property
    def operations(self) -> Any:
        """The engine's ``heads.base.Operations``."""

    def cache_bytes(self) -> int:
        """Bytes that the caches of all open slots hold."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a forward must read and compute at least, attention's products apart."""

    weight_bytes: int  # read once a forward, whatever its rows; an embedding that is only looked up is left out
    num_weights: int  # each takes part in one multiplication and one addition for every row
    cache_bytes_per_position: int  # read once a sequence and forward


@runtime_checkable
class TimedTarget(Protocol):
    """A target that can tell how long its attention took."""

    def time_attention(self, on: bool) -> None:
        """Start (or stop) counting."""

    def attention_seconds(self) -> float:
        """Seconds since then, as one of its threads saw them."""


@runtime_checkable
class SizedTarget(Protocol):
    """A target that knows its own size."""

    def size(self) -> ModelSize:
        """Bytes and operations of a forward."""
