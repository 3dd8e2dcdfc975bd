"""The machine's limits as PyTorch meets them: a sum over a large array, and a large product."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from headstart.target.limits import PRODUCT, PRODUCTS, READ_BYTES, READS, Limits


def hf_limits(dtype: str) -> Limits:
    """Bandwidth and peak in this dtype, on the GPU where there is one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    read = torch.ones(READ_BYTES // 4, device=device)
    factor = torch.zeros(PRODUCT, PRODUCT, dtype=getattr(torch, dtype), device=device)
    reading, multiplying = _fastest(read.sum, READS), _fastest(lambda: factor @ factor, PRODUCTS)
    return Limits(READ_BYTES / reading, 2 * PRODUCT**3 / multiplying)


def _fastest(work: Callable[[], object], times: int) -> float:
    seconds = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
