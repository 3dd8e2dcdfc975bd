"""What every kind of heads has in common: sizes that are checked, written and read, rounded tensors, the base's output rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Protocol, Self, cast

import numpy as np
from numpy.typing import NDArray

from headstart.errors import HeadsError
from headstart.heads.base import DRAFT_VOCAB, HeadsCard, HeadsConfig, Tensors
from headstart.heads.operations import Array, Operations

_MOST, _MOST_COUNTED = 1 << 31, 1 << 10  # of a width, and of layers, blocks or heads, whose tensors are listed by name


class OutputWeights(Protocol):
    """The base model's matrices, [V, D] each."""

    @property
    def embedding(self) -> Any:
        """Read for drafted tokens."""

    @property
    def output(self) -> Any:
        """Read by heads without an output matrix of their own."""


def require_counts(config: HeadsConfig, names: Iterable[str]) -> None:
    """HeadsError that names the first of these sizes that is no whole number in reach; None is allowed as a default."""
    defaults = {entry.name: entry.default for entry in fields(cast(Any, config))}
    for name in names:
        value = getattr(config, name)
        if value is None and defaults[name] is None:
            continue
        most = _MOST_COUNTED if name.startswith("num_") else _MOST
        if type(value) is not int or not 1 <= value <= most:
            raise HeadsError(f"{config.kind} heads: {name} is {value!r}; it must be a whole number from 1 to {most}")


def checked_vocab(kind: str, ids: Iterable[int] | None, vocab_size: int) -> tuple[int, ...] | None:
    """A draft vocabulary as a config holds it; HeadsError unless it lists different ids of the base."""
    if ids is None:
        return None
    chosen = tuple(int(i) for i in ids)
    if not chosen or len(set(chosen)) < len(chosen) or min(chosen) < 0 or max(chosen) >= vocab_size:
        raise HeadsError(f"{kind} heads: {DRAFT_VOCAB} must list different token ids below {vocab_size}")
    return chosen


def written_sizes(config: Any) -> dict[str, Any]:
    """What ``config.json`` says of a config, without the draft vocabulary (a tensor)."""
    return {f.name: getattr(config, f.name) for f in fields(config) if f.name != DRAFT_VOCAB}


def check_sizes(config_type: Any, sizes: Mapping[str, Any]) -> None:
    """HeadsError that names the first size which ``config.json`` misses or which is unknown."""
    known = {f.name for f in fields(config_type)} - {DRAFT_VOCAB}
    for what, names in (("misses", known - sizes.keys()), ("has an unknown", sizes.keys() - known)):
        if names:
            raise HeadsError(f"{config_type.kind} heads: 'sizes' {what} {min(names)!r}")


def rounded_tensors(kind: str, tensors: Tensors) -> Tensors:
    """The tensors with float16 values, which are saved in half the bytes."""
    with np.errstate(over="ignore"):
        halves = {name: values.astype(np.float16).astype(np.float32) for name, values in tensors.items()}
    for name, values in halves.items():
        if not np.isfinite(values).all():
            raise HeadsError(f"{kind} heads: tensor {name!r} is too large for float16; save it unrounded")
    return halves


def base_rows(ops: Operations, output: Array, ids: NDArray[np.int64] | None, vocab_size: int) -> Array:
    """The base's output matrix as heads read it: the rows of their draft vocabulary ``ids``, or all without padding rows."""
    if ids is not None:
        return ops.select(output, ids)
    if int(output.shape[0]) == vocab_size:
        return output
    return ops.select(output, np.arange(vocab_size))


@dataclass(frozen=True, eq=False)
class HostHeads:
    """Heads on the host, as a folder holds them; a kind names its config and says how it is bound to an engine."""

    config_type: ClassVar[Any]

    config: Any
    tensors: Tensors
    card: HeadsCard | None = None

    @classmethod
    def from_saved(
        cls, sizes: Mapping[str, Any], draft_vocab: tuple[int, ...] | None, tensors: Tensors, card: HeadsCard
    ) -> Self:
        """Heads out of what a folder holds."""
        check_sizes(cls.config_type, sizes)
        return cls(cls.config_type(**sizes, draft_vocab=draft_vocab), tensors, card)

    def rounded(self) -> Self:
        """The same heads with float16 values, which are saved in half the bytes."""
        return replace(self, tensors=rounded_tensors(self.config.kind, self.tensors))


class BoundHeads:
    """Heads on an engine: their tensors as its arrays, over the base model's matrices."""

    heads: Any
    config: Any

    def __init__(self, heads: HostHeads, operations: Operations, base: OutputWeights) -> None:
        self.heads, self.config, self.operations = heads, heads.config, operations
        self._embedding = base.embedding
        self._tensors = {name: operations.array(values) for name, values in heads.tensors.items()}
        self._ids = None if self.config.draft_vocab is None else np.array(self.config.draft_vocab, dtype=np.int64)

    def base_ids(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The base's ids of output rows."""
        return rows if self._ids is None else self._ids[rows]

    def gather(self, states: Sequence[Array]) -> Array:
        """Hidden states of some pieces, each [n, D], as one array."""
        return states[0] if len(states) == 1 else self.operations.stack(states)

    def _base_rows(self, output: Array) -> Array:
        """The base's output matrix as these heads read it."""
        return base_rows(self.operations, output, self._ids, self.config.vocab_size)
