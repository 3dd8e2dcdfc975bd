"""Medusa heads: parallel guesses from one hidden state.

Head k = 1..K reads the target's last hidden state h behind a token t and guesses the token k + 1 positions behind t: depth k of
the draft, whose *root* is what the target picks from h. A head is a residual block or several, then an output matrix (Cai et
al. 2024, "Medusa", section 2.1.1):

    x = h + SiLU(W h + b),    logits = O x

With W = 0 and b = 0 at first, a fresh head says what the base model's own output says. Two departures, each by config:

* ``sees_root``: when heads draft, the root is known already. The first block reads its embedding e as well,
  ``x = h + SiLU(W [h; e] + b)``; further blocks are as published. This is the project's default form.
* ``inner_size`` m: a block ``x + V SiLU(W x + b)`` with W [m, in] and V [D, m] = 0 at first, to choose a head's size freely.

``output`` says where O comes from: the base's own matrix, tied and frozen (``base``), one trained matrix a head (``own``), or
one trained matrix for all heads (``shared``). ``draft_vocab`` keeps only the rows of some tokens (Zhao et al. 2025, "FR-Spec").

The mathematics stands once, in :func:`medusa_states` and :func:`medusa_logits`, over ``operations.py``: training calls it with
autograd's arrays, decoding with the engine's. All K first blocks are one packed product, and so are all K outputs if they share
their matrix.

Letters: n rows, K heads, D hidden size, m inner size, V' output rows, R guesses a head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headstart.errors import HeadsError
from headstart.heads.base import Tensors
from headstart.heads.layout import (
    BoundHeads,
    HostHeads,
    OutputWeights,
    checked_vocab,
    require_counts,
    written_sizes,
)
from headstart.heads.operations import Array, Operations

Output = Literal["base", "own", "shared"]


@dataclass(frozen=True)
class MedusaConfig:
    """Sizes and layout of Medusa heads."""

    kind: ClassVar[str] = "medusa"

    num_heads: int
    hidden_size: int
    vocab_size: int  # of the base model
    num_blocks: int = 1  # residual blocks a head
    sees_root: bool = True
    output: Output = "base"
    inner_size: int | None = None  # None: the published square block
    draft_vocab: tuple[int, ...] | None = None  # base ids of the output rows; None: all

    def __post_init__(self) -> None:
        require_counts(self, ("num_heads", "hidden_size", "vocab_size", "num_blocks", "inner_size"))
        if self.output not in get_args(Output):
            raise HeadsError(f"medusa heads: output is {self.output!r}; it must be one of {', '.join(get_args(Output))}")
        object.__setattr__(self, "draft_vocab", checked_vocab(self.kind, self.draft_vocab, self.vocab_size))

    @property
    def num_outputs(self) -> int:
        """V': rows of an output matrix."""
        return self.vocab_size if self.draft_vocab is None else len(self.draft_vocab)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; the first blocks of all heads lie packed in ``first``."""
        heads, wide, inner = self.num_heads, self.hidden_size, self.inner_size or self.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "first.weight": (heads * inner, wide * 2 if self.sees_root else wide),
            "first.bias": (heads * inner,),
        }
        for head in range(heads):
            if self.inner_size is not None:
                shapes[f"heads.{head}.first.project"] = (wide, inner)
            for block in range(1, self.num_blocks):
                shapes[f"heads.{head}.blocks.{block}.weight"] = (inner, wide)
                shapes[f"heads.{head}.blocks.{block}.bias"] = (inner,)
                if self.inner_size is not None:
                    shapes[f"heads.{head}.blocks.{block}.project"] = (wide, inner)
        return shapes | dict.fromkeys(self.output_names(), (self.num_outputs, wide))

    def output_names(self) -> list[str]:
        """Names of the trained output matrices."""
        names = {"base": [], "shared": ["output"], "own": [f"heads.{head}.output" for head in range(self.num_heads)]}
        return names[self.output]

    def sizes(self) -> dict[str, Any]:
        """What ``config.json`` says, without the draft vocabulary (a tensor)."""
        return written_sizes(self)


def medusa_states(
    ops: Operations, config: MedusaConfig, tensors: Mapping[str, Array], hidden: Array, roots: Array | None
) -> Array:
    """What the output matrices read: [n * K, D], the K heads of a row one behind the other.

    ``hidden`` [n, D]; ``roots`` [n, D] are the embeddings of the roots, or None for the published form.
    """
    num_rows, num_heads = int(hidden.shape[0]), config.num_heads
    read = ops.concat([hidden, roots]) if config.sees_root else hidden
    inner = ops.silu(ops.linear(read, tensors["first.weight"], tensors["first.bias"]))
    inner = ops.fold(inner, config.inner_size or config.hidden_size)  # [n * K, m]
    residual = ops.take(hidden, np.repeat(np.arange(num_rows), num_heads))
    if config.inner_size is None and config.num_blocks == 1:
        return ops.add(residual, inner)
    order = np.arange(num_rows * num_heads).reshape(num_rows, num_heads)
    heads = []
    for head in range(num_heads):
        delta = ops.take(inner, order[:, head])
        if config.inner_size is not None:
            delta = ops.linear(delta, tensors[f"heads.{head}.first.project"])
        x = ops.add(hidden, delta)
        for block in range(1, config.num_blocks):
            x = _block(ops, tensors, f"heads.{head}.blocks.{block}", x, projects=config.inner_size is not None)
        heads.append(x)
    return ops.fold(ops.concat(heads), config.hidden_size)


def medusa_logits(
    ops: Operations,
    config: MedusaConfig,
    tensors: Mapping[str, Array],
    hidden: Array,
    roots: Array | None,
    outputs: Sequence[Array],
) -> list[Array]:
    """K logits [n, V'] from ``hidden`` [n, D]; ``outputs`` is one matrix [V', D] for all heads, or one a head."""
    states = medusa_states(ops, config, tensors, hidden, roots)
    order = np.arange(int(hidden.shape[0]) * config.num_heads).reshape(-1, config.num_heads)
    matrices = list(outputs) * config.num_heads if len(outputs) == 1 else outputs
    return [ops.linear(ops.take(states, order[:, head]), matrices[head]) for head in range(config.num_heads)]


def initial_tensors(config: MedusaConfig, rng: np.random.Generator, base_output: NDArray[np.float32] | None = None) -> Tensors:
    """Tensors of fresh heads, which say what the base's own output says; no two share their storage.

    ``base_output`` [V, D] is needed for trained output matrices, which start as copies of its rows.
    """
    tensors: Tensors = {}
    for name, shape in config.shapes().items():
        if name in config.output_names():
            if base_output is None:
                raise HeadsError(f"medusa heads: output {config.output!r} starts as a copy of the base's matrix; give it")
            rows = np.arange(config.vocab_size) if config.draft_vocab is None else np.array(config.draft_vocab)
            tensors[name] = base_output[rows].astype(np.float32, copy=True)
        elif config.inner_size is not None and name.endswith(".weight"):
            border = shape[1] ** -0.5  # the block is zero through V, so W may start anywhere and must start somewhere
            tensors[name] = rng.uniform(-border, border, shape).astype(np.float32)
        else:
            tensors[name] = np.zeros(shape, dtype=np.float32)
    return tensors


@dataclass(frozen=True, eq=False)
class MedusaHeads(HostHeads):
    """Medusa heads on the host; ``bind`` brings them to an engine."""

    config_type = MedusaConfig

    config: MedusaConfig

    def bind(self, operations: Operations, base: OutputWeights) -> BoundMedusa:
        """The heads in an engine's arrays, over the base model's matrices."""
        return BoundMedusa(self, operations, base)


class BoundMedusa(BoundHeads):
    """Medusa heads on an engine."""

    config: MedusaConfig

    def __init__(self, heads: MedusaHeads, operations: Operations, base: OutputWeights) -> None:
        super().__init__(heads, operations, base)
        names = self.config.output_names()
        own = [self._tensors[name] for name in names]
        self._outputs = own or [self._base_rows(base.output)]

    def logits(self, hidden: Array, root_ids: Sequence[int]) -> list[Array]:
        """K logits [n, V'] from hidden states [n, D] and the token that follows each."""
        return medusa_logits(self.operations, self.config, self._tensors, hidden, self._roots(root_ids), self._outputs)

    def guesses(self, hidden: Array, root_ids: Sequence[int], num_ranks: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ``num_ranks`` likeliest base ids of each head [n, K, R] and their probabilities [n, K, R], likeliest first."""
        ops, num_heads = self.operations, self.config.num_heads
        num_ranks = min(num_ranks, self.config.num_outputs)
        if len(self._outputs) == 1:
            states = medusa_states(ops, self.config, self._tensors, hidden, self._roots(root_ids))
            rows, probabilities = ops.top_k(ops.linear(states, self._outputs[0]), num_ranks)
        else:
            pairs = [ops.top_k(logits, num_ranks) for logits in self.logits(hidden, root_ids)]
            rows = np.stack([rows for rows, _ in pairs], axis=1)
            probabilities = np.stack([probabilities for _, probabilities in pairs], axis=1)
        rows = rows.reshape(-1, num_heads, num_ranks)
        probabilities = probabilities.reshape(-1, num_heads, num_ranks)
        return self.base_ids(rows), probabilities

    def _roots(self, root_ids: Sequence[int]) -> Array | None:
        if not self.config.sees_root:
            return None
        return self.operations.take(self._embedding, np.asarray(root_ids, dtype=np.int64))


def _block(ops: Operations, tensors: Mapping[str, Array], name: str, x: Array, *, projects: bool) -> Array:
    """``x + SiLU(W x + b)``, with V in front of the SiLU's result if the block has an inner size."""
    inner = ops.silu(ops.linear(x, tensors[f"{name}.weight"], tensors[f"{name}.bias"]))
    return ops.add(x, ops.linear(inner, tensors[f"{name}.project"]) if projects else inner)
