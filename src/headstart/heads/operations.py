"""The handful of operations that a head is written in.

A head's mathematics is written once, over these operations. Each engine provides them over its own arrays, so the same
definition trains (autograd sees through PyTorch's), decodes on a GPU and, with the native engine, decodes without PyTorch.
Shapes: n rows, D the model's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = Any
"""An array of the engine's own type."""


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

    def silu(self, x: Array) -> Array:
        """Elementwise x * sigmoid(x)."""

    def add(self, a: Array, b: Array) -> Array:
        """Elementwise sum."""

    def top_k(self, logits: Array, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices [n, k] of the k largest logits a row, largest first, and their softmax probabilities [n, k]."""

    def numpy(self, x: Array) -> NDArray[np.float32]:
        """The values on the host."""
