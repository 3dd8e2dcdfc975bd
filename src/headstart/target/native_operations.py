"""The operations that heads are written in, over numpy arrays and the native engine's packed matrices.

Arrays are float32 [n, columns]; weights are packed: float32 beside a float32 model, and 4-bit blocks beside any other. A draft
is made for every step and its weights are read each time, so their bytes are most of its cost, while a guess that is a little
off costs only a guess: on held-out text the sequential heads of SmolLM2-135M lose 1% of L to 4-bit blocks, and a draft takes
two thirds of the time of int8 blocks, a third of that of bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from headstart import _native
from headstart.errors import HeadsError
from headstart.layer_sizes import LayerSizes
from headstart.target.native_draft_layer import NativeDraftLayer

Array = NDArray[np.float32]

_BLOCK = 32  # inputs of a block
_CELL_INNER = 16  # outputs that a kernel computes at once


class NativeOperations:
    """Implements ``heads.operations.Operations`` beside a model of some dtype."""

    def __init__(self, dtype: str) -> None:
        self.kind = "float32" if dtype == "float32" else "q4_1"

    def array(self, values: NDArray[np.float32]) -> _native.Matrix | Array:
        """A weight [out, in] as a packed matrix; a vector as it is."""
        values = np.ascontiguousarray(values, dtype=np.float32)
        return values if values.ndim == 1 else self._packed(values)

    def take(self, matrix: _native.Matrix | Array, ids: NDArray[np.int64]) -> Array:
        """Rows of an array or of a weight, as an array of their own."""
        return matrix.rows(ids) if isinstance(matrix, _native.Matrix) else matrix[ids]

    def select(self, weight: _native.Matrix, ids: NDArray[np.int64]) -> _native.Matrix:
        """Rows of a weight, as a weight; what stands in 4-bit blocks already is not rounded again."""
        return weight.select(ids) if weight.kind in ("q4_0", "q4_1") else self._packed(weight.rows(ids))

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

    def rms_norm(self, x: Array, weight: Array, epsilon: float) -> Array:
        """Rows of ``x`` [n, D] over their root mean square, times ``weight`` [D]."""
        scaled: Array = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + np.float32(epsilon)) * weight
        return scaled

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

    def cell(
        self,
        inner: _native.Matrix,
        project: _native.Matrix,
        biases: Sequence[Array],
        embedding: _native.Matrix,
        output: _native.Matrix,
    ) -> _native.Cell | None:
        """The engine's own cell; None for an inner size that its kernels do not take."""
        if inner.shape[0] % _CELL_INNER:
            return None
        return _native.Cell(embedding, inner, project, output, [bias.tolist() for bias in biases])

    def top_k(self, logits: Array, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Indices [n, k] of the k largest logits a row, largest first, and their softmax probabilities [n, k]."""
        return _native.top_probabilities(logits, np.arange(len(logits)), k)

    def numpy(self, x: Array) -> NDArray[np.float32]:
        """The values on the host."""
        return x

    def _packed(self, values: Array) -> _native.Matrix:
        outputs, inputs = values.shape
        if self.kind == "q4_1" and inputs % _BLOCK == 0:
            return _native.Matrix(_blocks(values).reshape(-1), "q4_1", "q4_1", outputs, inputs, None)
        kind = "float32" if self.kind == "float32" else "bfloat16"
        return _native.Matrix(values.reshape(-1).view(np.uint8), "float32", kind, outputs, inputs, None)


def _blocks(values: Array) -> NDArray[np.uint8]:
    """Rows [out, in] as q4_1 blocks, bytes [out, in / 32, 20]: from the block's least to its largest value in 15 steps.

    GGUF's layout (csrc/formats.h): float16 scale, float16 minimum, then 16 bytes, of which byte j holds weight j in its low
    half and weight j + 16 in its high one. HeadsError where float16 cannot hold a block's range.
    """
    blocks = values.reshape(len(values), -1, _BLOCK)
    least = blocks.min(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        ends = np.concatenate([(blocks.max(axis=-1, keepdims=True) - least) / 15, least], axis=-1).astype(np.float16)
    if not np.isfinite(ends).all():
        raise HeadsError("these heads have weights too large for 4-bit blocks; decode with dtype float32")
    scale, minimum = (ends[..., [end]].astype(np.float32) for end in (0, 1))
    steps = np.rint((blocks - minimum) / np.where(scale == 0, 1, scale)).clip(0, 15).astype(np.uint8)
    nibbles = steps[..., : _BLOCK // 2] | steps[..., _BLOCK // 2 :] << 4
    return np.concatenate([ends.view(np.uint8), nibbles], axis=-1)
