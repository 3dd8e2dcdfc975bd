"""Heads' operations over numpy arrays: the plainest engine there is, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numpy_draft_layer import NumpyDraftLayer

Array = NDArray[np.float32]


class NumpyOperations:
    """Counts its matrix products, since the overhead of a head pass is their number."""

    def __init__(self) -> None:
        self.num_products = 0

    def array(self, values: NDArray[np.float32]) -> Array:
        return np.asarray(values, dtype=np.float32)

    def take(self, matrix: Array, ids: NDArray[np.int64]) -> Array:
        return matrix[ids]

    def select(self, weight: Array, ids: NDArray[np.int64]) -> Array:
        return weight[ids]

    def stack(self, rows: Sequence[Array]) -> Array:
        return np.concatenate(rows, axis=0)

    def concat(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=1)

    def fold(self, x: Array, width: int) -> Array:
        return x.reshape(-1, width)

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        self.num_products += 1
        product: Array = x @ weight.T
        return product if bias is None else product + bias

    def rms_norm(self, x: Array, weight: Array, epsilon: float) -> Array:
        scaled: Array = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + epsilon) * weight
        return scaled

    def silu(self, x: Array) -> Array:
        result: Array = x / (1 + np.exp(-x))
        return result

    def add(self, a: Array, b: Array) -> Array:
        result: Array = a + b
        return result

    def draft_layer(self, sizes: Any, tensors: Mapping[str, Array], embedding: Array, output: Array) -> NumpyDraftLayer:
        return NumpyDraftLayer(sizes, tensors, embedding, output)

    def cell(self, inner: Array, project: Array, biases: Sequence[Array], embedding: Array, output: Array) -> None:
        """None: a cell is composed of the operations here."""

    def top_k(self, logits: Array, k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        order = np.argsort(-logits, axis=-1, kind="stable")[:, :k].astype(np.int64)
        weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
        probabilities = weights / weights.sum(axis=-1, keepdims=True)
        return order, np.take_along_axis(probabilities, order, axis=-1)

    def numpy(self, x: Any) -> NDArray[np.float32]:
        return np.asarray(x, dtype=np.float32)
