"""The header of a GGUF file: what it declares about model and tokenizer, and where its tensors lie.

Format: the GGUF specification of ggml, versions 2 and 3, little-endian: magic, version, counts; key-value pairs; tensor infos
(name, shape, type, offset); aligned tensor data. Everything is checked against the file's length before anything is used, so a
damaged or truncated file is named as such and never half loaded. The ``gguf`` library gives the types, the block sizes and the
dequantisation; its own reader takes seconds for a vocabulary and trusts the file.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from headstart.errors import ModelError
from headstart.target.stored_tensor import StoredTensor

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {0: "B", 1: "b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A checked header. ``metadata`` holds numbers, booleans, text, and lists of these."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]

    @property
    def architecture(self) -> str:
        """The family, as llama.cpp names it (``llama``, ``qwen2``, ...)."""
        return str(self.need("general.architecture"))

    def need(self, key: str) -> Any:
        """A metadata value that the model cannot do without."""
        if key not in self.metadata:
            raise ModelError(f"{self.path.name} declares no {key}")
        return self.metadata[key]


def read_gguf(path: Path) -> GgufFile:
    """Read and check a header. ``ModelError`` says whether the file is missing, of another format, damaged or truncated."""
    if path.is_dir():
        raise ModelError(f"{path} is a folder, not a GGUF file")
    if path.exists() and not path.is_file():
        raise ModelError(f"{path} is a device or a pipe, not a GGUF file")
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise ModelError(f"{path.name} is not a GGUF file: it does not begin with the letters GGUF")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Header(path, data).read()
    except FileNotFoundError:
        raise ModelError(f"There is no file {path}") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error


class _Header:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 4

    def read(self) -> GgufFile:
        self._check_version()
        num_tensors, num_pairs = self._scalar("<Q"), self._scalar("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._text()
            metadata[key] = self._value(self._scalar("<I"))
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            self._damaged(f"alignment {alignment}")
        start = -(-self.position // alignment) * alignment
        tensors = [self._place(start, *info) for info in infos]
        by_name = {tensor.name: tensor for tensor in tensors}
        if len(by_name) < len(tensors):
            self._damaged("two tensors of one name")
        return GgufFile(self.path, metadata, by_name)

    def _check_version(self) -> None:
        version = self._scalar("<I")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            what = "big-endian" if swapped in _VERSIONS else f"of version {version}"
            raise ModelError(
                f"{self.path.name} is a GGUF file {what}; only little-endian files of versions 2 and 3 can be read"
            )

    def _damaged(self, what: str) -> NoReturn:
        raise ModelError(f"{self.path.name} is damaged: its header holds {what}")

    def _take(self, count: int) -> int:
        """Move past ``count`` bytes; where they begin."""
        begin = self.position
        if count > self.size - begin:
            raise ModelError(f"{self.path.name} is truncated: its header ends at byte {self.size}; download it again")
        self.position = begin + count
        return begin

    def _scalar(self, form: str) -> Any:
        return struct.unpack_from(form, self.data, self._take(struct.calcsize(form)))[0]

    def _text(self) -> str:
        length = self._scalar("<Q")
        begin = self._take(length)
        try:
            return self.data[begin : begin + length].decode()
        except UnicodeDecodeError:
            self._damaged(f"text at byte {begin} that is not UTF-8")

    def _value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            self._damaged(f"a value of unknown type {kind}")
        return self._array()

    def _array(self) -> list[Any]:
        kind, length = self._scalar("<I"), self._scalar("<Q")
        if kind in _SCALARS:
            form = _SCALARS[kind]
            begin = self._take(length * struct.calcsize(form))
            return list(struct.unpack_from(f"<{length}{form[-1]}", self.data, begin))
        read: Callable[[], Any] = self._text if kind == _STRING else lambda: self._damaged("a list of lists")
        return [read() for _ in range(length)]

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, num_dimensions = self._text(), self._scalar("<I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            self._damaged(f"a tensor {name!r} with {num_dimensions} dimensions")
        shape = tuple(self._scalar("<Q") for _ in range(num_dimensions))
        if 0 in shape:
            self._damaged(f"a tensor {name!r} without values")
        return name, shape[::-1], self._scalar("<I"), self._scalar("<Q")

    def _place(self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> StoredTensor:
        import gguf

        try:
            stored = gguf.GGMLQuantizationType(kind)
            block, block_bytes = gguf.GGML_QUANT_SIZES[stored]
        except (ValueError, KeyError):
            self._damaged(f"a tensor {name!r} of unknown type {kind}")
        if shape[-1] % block:
            self._damaged(f"a tensor {name!r} whose rows of {shape[-1]} values do not divide into blocks of {block}")
        num_bytes = prod(shape) // block * block_bytes
        end = start + offset + num_bytes
        if end > self.size:
            raise ModelError(
                f"{self.path.name} is truncated: tensor {name} ends at byte {end}, the file at {self.size}; download it again"
            )
        return StoredTensor(self.path, name, shape, stored.name, start + offset, num_bytes)
