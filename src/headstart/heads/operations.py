"""The handful of operations that a head is written in.

A head's mathematics is written once, over these operations. Each engine provides them over its own arrays, so the same
definition trains (autograd sees through PyTorch's), decodes on a GPU and, with the native engine, decodes without PyTorch.
Shapes: n rows, D the model's width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from headstart.tree import Path, Tree

Array = Any
"""An array of the engine's own type."""

Level = tuple[Array, NDArray[np.int64], NDArray[np.float64]]
"""A level of a draft: states [n, D], ids [n, k] and probabilities [n, k] of what may follow, likeliest first."""

Row = tuple[int, int]
"""Entry of a batch, row of that entry's tree."""


class Fed(Protocol):
    """Rows for one slot of a drafting layer: a tree whose rows from ``first_scored`` on get logits (``target.base.Feed``)."""

    @property
    def slot(self) -> Any:
        """Whose rows these are."""

    @property
    def tree(self) -> Tree:
        """Their tokens; row r stands at position ``length(slot) + depth(r)`` and sees its ancestors."""

    @property
    def first_scored(self) -> int:
        """Rows before it are only cached."""


class LayerScored(Protocol):
    """What a drafting layer found for its scored rows, each (entry of the batch, row of its tree)."""

    def likeliest(self, rows: Sequence[Row], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The min(k, V') likeliest output rows of each, likeliest first, and their log-probabilities; both [rows, k]."""

    def logits(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Raw logits [rows, V']."""

    def hidden(self, rows: Sequence[Row]) -> Array:
        """The layer's own output [rows, D], before its last norm: what the rows below are fed with."""


class DraftLayer(Protocol):
    """One decoder layer over (embedding of a token, hidden state before it), with a cache for each slot.

    As with a target, ``keep`` follows each forward of a slot and commits one path of it.
    """

    def open(self) -> Any:
        """A slot with an empty cache."""

    def length(self, slot: Any) -> int:
        """Committed rows of a slot."""

    def forward(self, batch: Sequence[Any], hidden: Array) -> LayerScored:
        """Score rows (:class:`Fed`); ``hidden`` [R, D] holds one state a row, in the order of the batch."""

    def keep(self, slot: Any, path: Path) -> None:
        """Commit a path of the slot's last forward, from row 0 on; forget its other rows."""

    def fork(self, slot: Any) -> Any:
        """A new slot with the same committed rows."""

    def close(self, slot: Any) -> None:
        """Free a slot."""

    def cache_bytes(self) -> int:
        """Bytes that the caches of all open slots hold."""


class Coupling(NamedTuple):
    """What couples drafted children with the picks behind a sequence's root (``proposers/children.py``)."""

    keys: Sequence[int]  # of the noise, one a depth
    temperature: float  # above 0
    top_k: int  # 0: off
    top_p: float
    log_min_p: float  # minus infinity: off
    vocab_size: int  # tokens that may be sampled
    sharpness: float  # how much a lead in noisy log-probability says


class Cell(Protocol):
    """The recurrent cell of sequential heads (``heads/hydra.py``), one call a level of a draft."""

    def level(self, parents: Array, tokens: NDArray[np.int64], depth: int, k: int) -> Level:
        """States [n, D] of nodes of ``depth``, and the k likeliest output rows behind each with their probabilities [n, k]."""

    def draft(
        self,
        hidden: Array,
        roots: Sequence[int],
        max_nodes: Sequence[int],
        num_levels: Sequence[int],
        least_reach: Sequence[float],
        factors: Sequence[Sequence[float]],
        num_ranks: int,
        least_node_reach: float,
        certain: float,
        base_ids: NDArray[np.int64] | None = None,
        noises: Sequence[Coupling | None] = (),
        num_candidates: int = 0,
    ) -> tuple[list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]], int]:
        """Whole drafts of n sequences, grown as in ``proposers/growth.py``, and the passes that were made.

        Tokens, parents and probabilities of each. ``hidden`` [n, D]; lists have one entry a sequence, ``factors`` [n][levels]
        scale estimates by depth; ``base_ids``: tokens of the output rows. Noise ranks ``num_candidates`` of each node.
        """


class Operations(Protocol):
    """What an engine computes for heads."""

    def array(self, values: NDArray[np.float32]) -> Array:
        """Weights in the engine's dtype and on its device."""

    def take(self, matrix: Array, ids: NDArray[np.int64]) -> Array:
        """Rows of an array or of a weight, as an array of their own."""

    def select(self, weight: Array, ids: NDArray[np.int64]) -> Array:
        """Rows of a weight, as a weight."""

    def stack(self, rows: Sequence[Array]) -> Array:
        """Hidden states of single rows, each [1, D], as [n, D]."""

    def concat(self, parts: Sequence[Array]) -> Array:
        """Arrays [n, D_i] side by side, as [n, sum of D_i]."""

    def fold(self, x: Array, width: int) -> Array:
        """``x`` [n, k * width] read as [n * k, width], row by row: what a packed product of k heads gives each of them."""

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """``x`` [n, in] times ``weight`` [out, in] transposed, plus ``bias`` [out]."""

    def rms_norm(self, x: Array, weight: Array, epsilon: float) -> Array:
        """Rows of ``x`` [n, D] over their root mean square, times ``weight`` [D]."""

    def silu(self, x: Array) -> Array:
        """Elementwise x * sigmoid(x)."""

    def add(self, a: Array, b: Array) -> Array:
        """Elementwise sum."""

    def draft_layer(self, sizes: Any, tensors: Mapping[str, Array], embedding: Array, output: Array) -> DraftLayer:
        """A decoder layer with caches (``target/draft_layer.py``); its logits are over the rows of ``output`` [V', D]."""

    def cell(self, inner: Array, project: Array, biases: Sequence[Array], embedding: Array, output: Array) -> Cell | None:
        """A cell in one operation, where the engine has one for these sizes; None: it is composed of the others here."""

    def top_k(self, logits: Array, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices [n, k] of the k largest logits a row, largest first, and their softmax probabilities [n, k]."""

    def numpy(self, x: Array) -> NDArray[np.float32]:
        """The values on the host."""
