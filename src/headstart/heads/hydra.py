"""Hydra heads: a guess also sees the tokens that were drafted before it.

Parallel heads (``heads/medusa.py``) guess every depth from the hidden state alone, so their deeper guesses do not know what the
draft says so far. Sequential heads read the drafted tokens too (Ankner et al. 2024, "Hydra: Sequentially-Dependent Draft Heads
for Medusa Decoding"): deeper guesses stay good, and the draft has to be made depth by depth.

The published head k is an MLP of its own over [h; e_1; ...; e_k], with h the target's last hidden state, e_1 the embedding of
the root, and e_2 ... e_k those of the tokens drafted up to there. Ours carries a state instead, and all depths share one cell:

    s_0 = h
    s_k = s_{k-1} + V SiLU(W [s_{k-1}; e_k] + b_k)
    logits of depth k = O s_k

with W [m, 2 D], V [D, m] = 0 at first (a fresh head says what the base's own output says), O the base's output matrix, frozen,
of which ``draft_vocab`` keeps only some rows (Zhao et al. 2025, "FR-Spec"). One cell is a few megabytes however deep the draft,
so that it stays in the cache between depths; a node needs nothing of its ancestors but their last state.

The mathematics stands once, in :func:`next_states`, over ``operations.py``: training calls it with autograd's arrays and the
text's own tokens, decoding with the engine's arrays and the drafted ones.

Letters: n rows, K depths, D hidden size, m inner size, V' output rows, R guesses a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headstart.heads.base import Tensors
from headstart.heads.layout import (
    BoundHeads,
    HostHeads,
    OutputWeights,
    checked_vocab,
    require_counts,
    written_sizes,
)
from headstart.heads.operations import Array, Cell, Level, Operations

Guesses = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Base ids [n, R] and their probabilities [n, R], likeliest first."""


@dataclass(frozen=True)
class HydraConfig:
    """Sizes of Hydra heads."""

    kind: ClassVar[str] = "hydra"

    num_heads: int  # K: depths that the cell was trained for
    hidden_size: int
    vocab_size: int  # of the base model
    inner_size: int
    draft_vocab: tuple[int, ...] | None = None  # base ids of the output rows; None: all

    def __post_init__(self) -> None:
        require_counts(self, ("num_heads", "hidden_size", "vocab_size", "inner_size"))
        object.__setattr__(self, "draft_vocab", checked_vocab(self.kind, self.draft_vocab, self.vocab_size))

    @property
    def num_outputs(self) -> int:
        """V': rows of the output matrix."""
        return self.vocab_size if self.draft_vocab is None else len(self.draft_vocab)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""
        wide, inner = self.hidden_size, self.inner_size
        shapes: dict[str, tuple[int, ...]] = {"cell.weight": (inner, 2 * wide), "cell.project": (wide, inner)}
        return shapes | {f"heads.{head}.bias": (inner,) for head in range(self.num_heads)}

    def sizes(self) -> dict[str, Any]:
        """What ``config.json`` says, without the draft vocabulary (a tensor)."""
        return written_sizes(self)


def next_states(ops: Operations, tensors: Mapping[str, Array], states: Array, embeddings: Array, depth: int) -> Array:
    """States [n, D] of nodes of ``depth`` (0: the root) from their parents' [n, D] and the embeddings [n, D] of their tokens.

    The parent of the root is the target's hidden state; what the output matrix reads of a node guesses its children.
    """
    inner = ops.linear(ops.concat([states, embeddings]), tensors["cell.weight"], tensors[f"heads.{depth}.bias"])
    return ops.add(states, ops.linear(ops.silu(inner), tensors["cell.project"]))


def initial_tensors(config: HydraConfig, rng: np.random.Generator) -> Tensors:
    """Tensors of fresh heads, which say what the base's own output says; no two share their storage."""
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in config.shapes().items()}
    border = (2 * config.hidden_size) ** -0.5  # the cell is zero through V, so W may start anywhere and must start somewhere
    tensors["cell.weight"] = rng.uniform(-border, border, tensors["cell.weight"].shape).astype(np.float32)
    return tensors


@dataclass(frozen=True, eq=False)
class HydraHeads(HostHeads):
    """Hydra heads on the host; ``bind`` brings them to an engine."""

    config_type = HydraConfig

    config: HydraConfig

    def bind(self, operations: Operations, base: OutputWeights) -> BoundHydra:
        """The heads in an engine's arrays, over the base model's matrices."""
        return BoundHydra(self, operations, base)


class BoundHydra(BoundHeads):
    """Hydra heads on an engine."""

    config: HydraConfig

    def __init__(self, heads: HydraHeads, operations: Operations, base: OutputWeights) -> None:
        super().__init__(heads, operations, base)
        self._output = self._base_rows(base.output)
        tensors, depths = self._tensors, range(self.config.num_heads)
        biases = [tensors[f"heads.{depth}.bias"] for depth in depths]
        self._cell = operations.cell(tensors["cell.weight"], tensors["cell.project"], biases, base.embedding, self._output)

    def level(self, parents: Array, token_ids: Sequence[int], depth: int, num_ranks: int) -> Level:
        """``states`` of these nodes and ``guesses`` behind them, in one operation where the engine has it."""
        num_ranks = min(num_ranks, self.config.num_outputs)
        if self._cell is None:
            states = self.states(parents, token_ids, depth)
            return states, *self.guesses(states, num_ranks)
        states, rows, probabilities = self._cell.level(parents, np.array(token_ids, dtype=np.int64), depth, num_ranks)
        return states, self.base_ids(rows), probabilities

    @property
    def cell(self) -> Cell | None:
        """The engine's own cell, which makes levels and whole drafts in one call; None: it has none for these sizes."""
        return self._cell

    @property
    def vocabulary(self) -> NDArray[np.int64] | None:
        """The base's ids of output rows; None: they are the same."""
        return self._ids

    def states(self, parents: Array, token_ids: Sequence[int], depth: int) -> Array:
        """States [n, D] of nodes of ``depth`` (below K) with these tokens, from their parents' states [n, D]."""
        embeddings = self.operations.take(self._embedding, np.asarray(token_ids, dtype=np.int64))
        return next_states(self.operations, self._tensors, parents, embeddings, depth)

    def logits(self, states: Array) -> Array:
        """Logits [n, V'] of what may follow nodes with these states [n, D]."""
        return self.operations.linear(states, self._output)

    def guesses(self, states: Array, num_ranks: int) -> Guesses:
        """The ``num_ranks`` likeliest base ids behind nodes with these states [n, D], and their probabilities."""
        rows, probabilities = self.operations.top_k(self.logits(states), min(num_ranks, self.config.num_outputs))
        return self.base_ids(rows), probabilities
