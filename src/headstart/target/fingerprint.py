"""A short name for a model's weights that survives a change of file format or dtype.

Heads are trained on one base model's hidden states and are worthless on another's, so they store its fingerprint. It is the
hash of the sizes, of the final norm, and of 64 evenly spaced rows of the embedding and of the output matrix, all rounded to
bfloat16: the same model in float32 and in bfloat16 agrees. Quantising a model changes its weights and so its fingerprint.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_NUM_ROWS = 64
_NUM_DIGITS = 16


def sampled_rows(vocab_size: int) -> NDArray[np.int64]:
    """The rows of the embedding and of the output matrix that enter the fingerprint."""
    return np.unique(np.linspace(0, vocab_size - 1, _NUM_ROWS).astype(np.int64))


def fingerprint(
    *,
    num_layers: int,
    vocab_size: int,
    embedding: NDArray[np.float32],
    output: NDArray[np.float32],
    norm: NDArray[np.float32] | None,
) -> str:
    """16 hex digits; ``embedding`` and ``output`` are [n, D], the :func:`sampled_rows` of matrices with ``vocab_size`` rows."""
    digest = hashlib.sha256(f"{embedding.shape[1]} {num_layers} {vocab_size}".encode())
    for values in (embedding, output, norm):
        digest.update(b"-" if values is None else _bfloat16(values).tobytes())
    return digest.hexdigest()[:_NUM_DIGITS]


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Upper halves after rounding to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4").astype(np.uint64)
    rounded: NDArray[np.uint16] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")
    return rounded
