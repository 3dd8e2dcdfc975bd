"""One tensor of a weight file, left where it lies until it is wanted.

GGUF and safetensors files differ in their headers alone: behind them, a tensor is a range of bytes with a shape and a type. It
is mapped into memory when it is read, and the mapping goes away with the array, so that a model's source never lies in memory
beside its packed form as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ModelError

_CHUNK = 1 << 22  # values that are dequantised at once


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """``shape`` is outermost first; ``kind`` is the type as ggml and safetensors call it: F32, F16, BF16, Q4_1, ..."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: str
    offset: int  # in the file
    num_bytes: int
    order: NDArray[np.int64] | None = None  # the file's row of each row, where the file keeps them in another order

    def data(self) -> NDArray[np.uint8]:
        """The bytes [rows, bytes of a row] (one row for a vector), mapped, in the file's order of rows."""
        rows = self.shape[0] if len(self.shape) > 1 else 1
        mapped: NDArray[np.uint8] = np.memmap(self.path, np.uint8, "r", self.offset, (self.num_bytes,))
        return mapped.reshape(rows, -1)

    def values(self) -> NDArray[np.float32]:
        """All values [shape]."""
        data = self.data()
        if len(self.shape) == 1:
            vector = self._dequantized(data).reshape(self.shape)
            return vector.copy() if self.order is None else vector[self.order]
        return self._rows(data, np.arange(self.shape[0])).reshape(self.shape)

    def rows(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some rows of a matrix [n, columns]."""
        return self._rows(self.data(), ids)

    def _rows(self, data: NDArray[np.uint8], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        ids = ids if self.order is None else self.order[ids]
        width = int(np.prod(self.shape[1:]))
        values = np.empty((len(ids), width), dtype=np.float32)
        step = max(_CHUNK // width, 1)
        for begin in range(0, len(ids), step):
            values[begin : begin + step] = self._dequantized(data[ids[begin : begin + step]])
        return values

    def _dequantized(self, data: NDArray[np.uint8]) -> NDArray[np.float32]:
        import gguf

        try:
            with np.errstate(all="ignore"):  # what is no finite number is the reader's to refuse
                found = gguf.dequantize(np.ascontiguousarray(data), gguf.GGMLQuantizationType[self.kind])
        except (NotImplementedError, KeyError):
            raise ModelError(f"{self.path.name}: tensor {self.name} is stored as {self.kind}, which cannot be read") from None
        return np.asarray(found, dtype=np.float32)
