"""A Hugging Face folder's weight files: checked before anything is loaded, and where each tensor lies.

Format: safetensors - eight bytes of header length, a JSON header with each tensor's type, shape and byte range, the data. A
sharded model has an index that maps tensors to files. Pickled weights (``*.bin``) are refused: unpickling runs code.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from headstart.errors import ModelError
from headstart.target.stored_tensor import StoredTensor
from headstart.tokenizer.text import read_json

INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_HEADER = 100_000_000  # bytes; the format's own limit
_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64}
_BITS |= {"F16": 16, "BF16": 16, "F32": 32, "F64": 64, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "C64": 64}


def folder_tensors(folder: Path) -> dict[str, StoredTensor]:
    """The folder's tensors by name. ``ModelError`` names what is missing, pickled, damaged or truncated."""
    tensors: dict[str, StoredTensor] = {}
    for file in _weight_files(folder):
        tensors |= read_safetensors(file)
    return tensors


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
            raise ModelError(f"{INDEX} in {folder.name} has no weight_map")
        files = sorted({folder / name for name in shards.values()})
        for file in files:
            if not file.is_file():
                raise ModelError(f"{folder.name} lacks the shard {file.name} that its index names; download it again")
        return files
    pickled = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickled:
        raise ModelError(
            f"{folder.name} has only pickled weights ({pickled[0].name}), which are never opened; save as safetensors"
        )
    raise ModelError(f"{folder.name} has no {_SINGLE} and no {INDEX}")


def read_safetensors(file: Path) -> dict[str, StoredTensor]:
    """Read a file's header; every tensor must lie inside the data and be as long as its shape says."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > _MAX_HEADER:
                raise ModelError(f"{file.name} is not a safetensors file: its header length is not sensible")
            if 8 + length > size:
                raise ModelError(f"{file.name} is truncated: its header alone needs {8 + length} bytes, the file has {size}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file.name} is not a safetensors file: its header is not JSON") from error
    if not isinstance(header, dict):
        raise ModelError(f"{file.name} is not a safetensors file: its header holds no object")
    start = 8 + length
    return {name: _tensor(file, name, entry, start, size - start) for name, entry in header.items() if name != "__metadata__"}


def _tensor(file: Path, name: str, entry: Any, start: int, num_bytes: int) -> StoredTensor:
    try:
        begin, end = entry["data_offsets"]
        shape = tuple(entry["shape"])
        kind = entry["dtype"]
        whole = all(type(value) is int and value >= 0 for value in (begin, end, *shape))
        sound = whole and begin <= end and (end - begin) * 8 == _BITS[kind] * prod(shape)
    except (KeyError, TypeError, ValueError):
        sound = False
    if not sound:
        raise ModelError(f"{file.name} is damaged: the entry of tensor {name} is not sensible")
    if end > num_bytes:
        raise ModelError(f"{file.name} is truncated: tensor {name} ends at data byte {end} of {num_bytes}; download it again")
    return StoredTensor(file, name, shape, kind, start + begin, end - begin)
