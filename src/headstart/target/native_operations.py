"""The operations that heads are written in, over numpy arrays and the native engine's packed matrices.

Arrays are float32 [n, columns]; weights are packed, rounded as the model's own are: float32 and bfloat16 as such, and int8
blocks beside a model of int8 or 4-bit blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headstart import _native
from headstart.target.draft_layer import LayerSizes
from headstart.target.native_draft_layer import NativeDraftLayer

Array = NDArray[np.float32]

_BLOCK = 32  # inputs of a block


class NativeOperations:
    """Implements ``heads.operations.Operations`` beside a model of some dtype."""

    def __init__(self, dtype: str) -> None:
        self.kind = dtype if dtype in ("float32", "bfloat16") else "q8_0"

    def array(self, values: NDArray[np.float32]) -> _native.Matrix | Array:
        """A weight [out, in] as a packed matrix; a vector as it is."""
        values = np.ascontiguousarray(values, dtype=np.float32)
        if values.ndim == 1:
            return values
        outputs, inputs = values.shape
        kind = "bfloat16" if self.kind == "q8_0" and inputs % _BLOCK else self.kind
        return _native.Matrix(values.reshape(-1).view(np.uint8), "float32", kind, outputs, inputs, None)

    def take(self, matrix: _native.Matrix | Array, ids: NDArray[np.int64]) -> Array:
        """Rows of an array or of a weight, as an array of their own."""
        return matrix.rows(ids) if isinstance(matrix, _native.Matrix) else matrix[ids]

    def select(self, weight: _native.Matrix, ids: NDArray[np.int64]) -> _native.Matrix:
        """Rows of a weight, as a weight of the same kind."""
        return weight.select(ids)

    def stack(self, rows: Sequence[Array]) -> Array:
        """Hidden states of single rows, each [1, D], as [n, D]."""
        return np.concatenate(rows)

    def concat(self, parts: Sequence[Array]) -> Array:
        """Arrays [n, D_i] side by side, as [n, sum of D_i]."""
        return np.concatenate(parts, axis=1)

    def fold(self, x: Array, width: int) -> Array:
        """``x`` [n, k * width] read as [n * k, width], row by row."""
        return x.reshape(-1, width)

    def linear(self, x: Array, weight: _native.Matrix, bias: Array | None = None) -> Array:
        """``x`` [n, in] times ``weight`` [out, in] transposed, plus ``bias`` [out]."""
        return weight.linear(x, bias)

    def silu(self, x: Array) -> Array:
        """X * sigmoid(x), elementwise."""
        with np.errstate(over="ignore"):  # exp grows beyond float32 where the sigmoid is 0
            result: Array = x / (1 + np.exp(-x))
        return result

    def add(self, a: Array, b: Array) -> Array:
        """Elementwise sum."""
        result: Array = a + b
        return result

    def draft_layer(
        self,
        sizes: LayerSizes,
        tensors: Mapping[str, _native.Matrix | Array],
        embedding: _native.Matrix,
        output: _native.Matrix,
    ) -> NativeDraftLayer:
        """A decoder layer with caches of its own."""
        return NativeDraftLayer(sizes, tensors, embedding, output, self.kind)

    def top_k(self, logits: Array, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices [n, k] of the k largest logits a row, largest first, and their softmax probabilities [n, k]."""
        return _native.top_probabilities(logits, np.arange(len(logits)), k)

    def numpy(self, x: Array) -> NDArray[np.float32]:
        """The values on the host."""
        return x
