"""Stored tensors into the native engine's packed matrices.

Tensors are packed one by one, the largest first, straight from the mapped file, whose pages are given back before the next one
is read: what lies in memory at most is the packed model and one source tensor.

Which form a matrix takes is up to ``dtype``. "auto" keeps what the file stores where a kernel reads it as it is (float32,
bfloat16, blocks Q4_0, Q4_1 and Q8_0); float16 becomes bfloat16, and any other type of block int8 (blocks of 32 with a scale,
which is Q8_0). "float32", "bfloat16" and "int8" turn every matrix into that. Norms and biases are float32 always.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart import _native
from headstart.errors import ModelError
from headstart.target.checkpoint import Checkpoint
from headstart.target.fingerprint import fingerprint, sampled_rows
from headstart.target.native_settings import NativeSettings, Part
from headstart.target.stored_tensor import StoredTensor

_SOURCES = {
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "Q8_0": "q8_0",
    "Q4_0": "q4_0",
    "Q4_1": "q4_1",
}
_KINDS = {"float32": "float32", "bfloat16": "bfloat16", "int8": "q8_0"}  # by dtype
_NAMES = {kind: dtype for dtype, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """The rows by which a model is known (``fingerprint.py``)."""

    num_embeddings: int
    embedding: NDArray[np.float32]
    output: NDArray[np.float32]
    norm: NDArray[np.float32]

    def fingerprint(self, num_layers: int) -> str:
        """The fingerprint of a model with so many layers."""
        return fingerprint(
            num_layers=num_layers,
            vocab_size=self.num_embeddings,
            embedding=self.embedding,
            output=self.output,
            norm=self.norm,
        )


@dataclass(frozen=True, slots=True)
class NativeWeights:
    """A packed model. ``tensors`` are named as the compiled stack names them."""

    settings: NativeSettings
    tensors: Mapping[str, _native.Matrix | NDArray[np.float32]]
    sample: Sample
    dtype: str  # of most weights in the layers: a dtype, or a kind of blocks
    notes: tuple[str, ...] = ()  # what was stored in another form than it is used in


def pack(checkpoint: Checkpoint, settings: NativeSettings, dtype: str, vocab_size: int) -> NativeWeights:
    """Pack a model's tensors; embedding and output rows behind ``vocab_size`` are padding and left out.

    ``ModelError`` names a tensor that is missing, superfluous, misshapen or unfit for the dtype.
    """
    parts = _checked(checkpoint, settings)
    sample = _sample(checkpoint, settings)  # first, since the system may map far more of the file than the rows that are read
    tensors: dict[str, _native.Matrix | NDArray[np.float32]] = {}
    for part in sorted(parts, key=lambda part: -checkpoint.tensors[part.stored_name].num_bytes):
        stored = checkpoint.tensors[part.stored_name]
        if len(part.shape) == 1:
            tensors[part.name] = _finite(checkpoint, stored)
        else:
            outputs = vocab_size if part.name in ("embedding", "output") else part.shape[0]
            tensors[part.name] = packed(checkpoint.name, stored, _kind(stored.kind, dtype), outputs)
    found = Counter[str]()
    for name, tensor in tensors.items():
        if name.startswith("layers.") and isinstance(tensor, _native.Matrix):
            found[tensor.kind] += tensor.shape[0] * tensor.shape[1]
    kind = found.most_common(1)[0][0]
    notes = _notes(checkpoint, parts) if dtype == "auto" else ()
    return NativeWeights(settings, tensors, sample, _NAMES.get(kind, kind), notes)


def packed(name: str, stored: StoredTensor, kind: str, outputs: int) -> _native.Matrix:
    """The first ``outputs`` rows of a stored matrix as a packed one."""
    order = None if stored.order is None else stored.order[:outputs]
    inputs = stored.shape[1]
    if stored.kind in _SOURCES:
        data, source = stored.data(), _SOURCES[stored.kind]
        data = data if order is not None else data[:outputs]
        data = data.reshape(-1)
    else:
        ids = np.arange(outputs)
        data, source, order = stored.rows(ids).reshape(-1).view(np.uint8), "float32", None
    try:
        return _native.Matrix(data, source, kind, outputs, inputs, order)
    except ValueError as error:
        raise ModelError(f"{name}: tensor {stored.name} cannot be packed as {_NAMES.get(kind, kind)}: {error}") from error


def _kind(stored: str, dtype: str) -> str:
    if dtype != "auto":
        return _KINDS[dtype]
    source = _SOURCES.get(stored, "q8_0")
    return "bfloat16" if source == "float16" else source


def _checked(checkpoint: Checkpoint, settings: NativeSettings) -> list[Part]:
    """All parts of the model; each of them is there and shaped as it must be."""
    parts = []
    for part in settings.parts():
        stored = checkpoint.tensors.get(part.stored_name)
        if stored is None:
            raise ModelError(f"{checkpoint.name} lacks the tensor {part.stored_name}; it does not fit its config")
        if stored.shape != part.shape:
            raise ModelError(
                f"{checkpoint.name} has another shape of the tensor {part.stored_name}: {list(stored.shape)}, where its "
                f"config says {list(part.shape)}"
            )
        parts.append(part)
    if checkpoint.is_complete:
        surplus = checkpoint.tensors.keys() - {part.stored_name for part in parts}
        if surplus:
            raise ModelError(f"{checkpoint.name} also holds the tensor {min(surplus)}; it does not fit its config")
    return parts


def _finite(checkpoint: Checkpoint, stored: StoredTensor) -> NDArray[np.float32]:
    values = stored.values()
    if not np.isfinite(values).all():
        raise ModelError(f"{checkpoint.name}: tensor {stored.name} holds values that are no finite numbers")
    return values


def _sample(checkpoint: Checkpoint, settings: NativeSettings) -> Sample:
    embedding = checkpoint.tensors["model.embed_tokens.weight"]
    output = embedding if settings.is_tied else checkpoint.tensors["lm_head.weight"]
    ids = sampled_rows(settings.num_embeddings)
    norm = checkpoint.tensors["model.norm.weight"].values()
    return Sample(settings.num_embeddings, embedding.rows(ids), output.rows(ids), norm)


def _notes(checkpoint: Checkpoint, parts: Sequence[Part]) -> tuple[str, ...]:
    kinds = {checkpoint.tensors[part.stored_name].kind for part in parts if len(part.shape) == 2}
    notes = []
    if "F16" in kinds:
        notes.append(f"{checkpoint.name}: float16 weights are rounded to bfloat16; --dtype float32 keeps them exact")
    others = sorted(kinds - _SOURCES.keys())
    if others:
        notes.append(f"{checkpoint.name}: weights of the type {', '.join(others)} become int8 blocks, which are larger")
    return tuple(notes)
