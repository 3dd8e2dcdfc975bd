"""What a machine can do at best: bytes read a second, and operations a second, measured now.

A forward cannot take less than ``max(bytes / bandwidth, operations / peak)`` (the roofline: Williams, Waterman and
Patterson 2009). Bandwidth is that of a plain read of far more bytes than any cache holds; peak is the best of some large
products with weights of the target's own kind, by the engine at hand. So the peak is what this engine's kernels reach when
nothing else holds them up, which may be less than the processor's data sheet says. Both take some tenths of a second
together.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstart.target.base import ModelSize

READ_BYTES = 256 << 20
READS, PRODUCTS = 5, 5  # of which the best counts
PRODUCT = 1024  # rows, inputs and outputs of the large product


@dataclass(frozen=True, slots=True)
class Limits:
    """A machine's best, with one engine and one kind of weights."""

    bytes_per_second: float
    operations_per_second: float

    def seconds(self, size: ModelSize, num_rows: float, num_positions: float) -> float:
        """The least that a forward can take: over so many rows, with so many cached positions of all sequences together."""
        moved = size.weight_bytes + num_positions * size.cache_bytes_per_position
        operations = 2 * size.num_weights * num_rows
        return max(moved / self.bytes_per_second, operations / self.operations_per_second)


def measured_limits(engine: str, dtype: str) -> Limits | None:
    """Bandwidth and peak now; None for an engine that is not ours."""
    if engine == "native":
        from headstart.target.native_limits import native_limits

        return native_limits(dtype)
    if engine == "hf":
        from headstart.target.hf_limits import hf_limits

        return hf_limits(dtype)
    return None
