"""The machine's limits as the native engine meets them: huge pages read by all threads, and products of its own kernels."""

from __future__ import annotations

import time

import numpy as np

from headstart import _native
from headstart.target.limits import PRODUCT, PRODUCTS, READ_BYTES, READS, Limits

_KINDS = {"float32": "float32", "bfloat16": "bfloat16", "int8": "q8_0", "q8_0": "q8_0", "q4_0": "q4_0", "q4_1": "q4_1"}
_BYTES_OF_32 = {"float32": 128, "bfloat16": 64, "q8_0": 34, "q4_0": 18, "q4_1": 20}  # weights


def native_limits(dtype: str) -> Limits:
    """Bandwidth and peak with weights of this dtype."""
    kind = _KINDS[dtype]
    source = np.zeros(PRODUCT * PRODUCT // 32 * _BYTES_OF_32[kind], dtype=np.uint8)
    matrix = _native.Matrix(source, kind, kind, PRODUCT, PRODUCT, None)
    rows = np.random.default_rng(0).standard_normal((PRODUCT, PRODUCT), dtype=np.float32)
    seconds = []
    for _ in range(PRODUCTS):
        started = time.perf_counter()
        matrix.linear(rows, None)
        seconds.append(time.perf_counter() - started)
    milliseconds = min(_native.read_times(READ_BYTES, READS))
    return Limits(1e3 * READ_BYTES / milliseconds, 2 * PRODUCT**3 / min(seconds))
