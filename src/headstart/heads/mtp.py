"""Multi-token prediction: one decoder layer that is run several steps on its own outputs.

A row of the layer is a token together with the hidden state that predicted it: the target's last hidden state h (what its
output matrix reads) in front of a committed token, the layer's own output in front of a drafted one. Attention reads the
normalised embedding of the token beside the normalised state, over 2D inputs, and sees the rows before it; the state itself is
the residual stream (``target/draft_layer.py`` has the equations). So unlike parallel heads each guess depends on all tokens
drafted so far, through embeddings, states and attention:

    step 1: row (h, root)            -> own output a1, guesses depth 1
    step 2: row (a1, a drafted token) -> own output a2, guesses depth 2; and so on

In front of committed tokens the state may also be fused from features, the residual streams before F layers of the base (low,
middle and high), by one matrix: ``fc`` [D, F D] times [low; middle; high]. On own outputs nothing changes: the layer's output
stands in for the fused state.

Source: EAGLE-3 (Li et al. 2025, section 3.1) with the fused features, and without them the modules of DeepSeek-V3 (2024,
section 2.2, "MTP"), whose first step reads the last hidden state. The base's embedding and output matrix are shared and frozen;
``draft_vocab`` keeps some rows of the latter (FR-Spec, Zhao et al. 2025). Names of tensors and sizes are those of EAGLE-3
checkpoints.

A fresh layer adds nothing to its residual stream (``o_proj`` and ``down_proj`` are zero), and a fresh ``fc`` lets the highest
feature through, so it says what the base's own output says of the state, as other fresh heads do.

Letters: n rows, D hidden size, F features, V' output rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from headstart.errors import HeadsError
from headstart.heads.base import HeadsCard, Tensors
from headstart.heads.layout import (
    HostHeads,
    OutputWeights,
    base_rows,
    checked_vocab,
    require_counts,
    written_sizes,
)
from headstart.heads.operations import Array, DraftLayer, LayerScored, Operations, Row

FUSE = "fc.weight"
_LAYER = "layers.0."
_ZERO_AT_FIRST = (f"{_LAYER}self_attn.o_proj.weight", f"{_LAYER}mlp.down_proj.weight")


@dataclass(frozen=True)
class MtpConfig:
    """Sizes of an MTP layer, under the names of transformers' configs."""

    kind: ClassVar[str] = "mtp"

    hidden_size: int
    vocab_size: int  # of the base model
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    num_steps: int = 4  # steps on its own outputs that it was trained for
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    eagle_aux_hidden_state_layer_ids: tuple[int, ...] | None = None  # features: streams before these layers; None: hidden state
    reads_prompt: bool = False  # whether it was trained with the prompt in its cache; else that begins where the prompt ends
    draft_vocab: tuple[int, ...] | None = None  # base ids of the output rows; None: all

    def __post_init__(self) -> None:
        require_counts(self, [field.name for field in fields(self) if field.type == "int"])
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
                raise HeadsError(f"mtp heads: {name} is {value!r}; it must be a finite number above 0")
        if self.num_attention_heads % self.num_key_value_heads:
            raise HeadsError("mtp heads: num_attention_heads must be a multiple of num_key_value_heads")
        if self.head_dim % 2:
            raise HeadsError(f"mtp heads: head_dim is {self.head_dim}; it must be even, for rotary positions")
        if not isinstance(self.reads_prompt, bool):
            raise HeadsError(f"mtp heads: reads_prompt is {self.reads_prompt!r}; it must be true or false")
        object.__setattr__(self, "eagle_aux_hidden_state_layer_ids", _layers(self.eagle_aux_hidden_state_layer_ids))
        object.__setattr__(self, "draft_vocab", checked_vocab(self.kind, self.draft_vocab, self.vocab_size))

    @property
    def num_heads(self) -> int:
        """Depths whose acceptance is measured: one a step."""
        return self.num_steps

    @property
    def num_features(self) -> int:
        """F; 0: it reads the last hidden state."""
        return len(self.eagle_aux_hidden_state_layer_ids or ())

    @property
    def num_outputs(self) -> int:
        """V': output rows."""
        return self.vocab_size if self.draft_vocab is None else len(self.draft_vocab)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor."""
        wide, inner = self.hidden_size, self.intermediate_size
        query, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        attention = {"q": (query, 2 * wide), "k": (kv, 2 * wide), "v": (kv, 2 * wide), "o": (wide, query)}
        mlp = {"gate": (inner, wide), "up": (inner, wide), "down": (wide, inner)}
        norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        shapes: dict[str, tuple[int, ...]] = {f"{_LAYER}{name}.weight": (wide,) for name in norms}
        shapes |= {f"{_LAYER}self_attn.{name}_proj.weight": shape for name, shape in attention.items()}
        shapes |= {f"{_LAYER}mlp.{name}_proj.weight": shape for name, shape in mlp.items()}
        fuse = {FUSE: (wide, self.num_features * wide)} if self.num_features else {}
        return shapes | {"norm.weight": (wide,)} | fuse

    def sizes(self) -> dict[str, Any]:
        """What ``config.json`` says, without the draft vocabulary (a tensor)."""
        return written_sizes(self)


def _layers(ids: Any) -> tuple[int, ...] | None:
    if ids is None:
        return None
    listed = tuple(ids) if isinstance(ids, list | tuple) else ()
    are_layers = all(type(layer) is int and layer >= 0 for layer in listed)
    if not listed or not are_layers or sorted(set(listed)) != list(listed):
        raise HeadsError(
            f"mtp heads: eagle_aux_hidden_state_layer_ids is {ids!r}; it must list layers of the base model from low to high"
        )
    return listed


def initial_tensors(config: MtpConfig, rng: np.random.Generator, last_norm: float | NDArray[np.float32]) -> Tensors:
    """Tensors of a fresh layer. ``last_norm``: the weights that make the base's output of a normalised state.

    For hidden states that is their root mean square, for features the weights of the base's own last norm [D].
    """
    tensors: Tensors = {}
    for name, shape in config.shapes().items():
        if name in _ZERO_AT_FIRST:
            tensors[name] = np.zeros(shape, dtype=np.float32)
        elif name == FUSE:
            tensors[name] = np.eye(shape[0], shape[1], k=shape[1] - shape[0], dtype=np.float32)
        elif len(shape) == 1:
            tensors[name] = np.full(shape, last_norm if name == "norm.weight" else 1.0, dtype=np.float32)
        else:
            border = shape[1] ** -0.5
            tensors[name] = rng.uniform(-border, border, shape).astype(np.float32)
    return tensors


@dataclass(frozen=True, eq=False)
class MtpHeads(HostHeads):
    """An MTP layer on the host; ``bind`` brings it to an engine."""

    config_type = MtpConfig

    config: MtpConfig

    @classmethod
    def from_saved(
        cls, sizes: Mapping[str, Any], draft_vocab: tuple[int, ...] | None, tensors: Tensors, card: HeadsCard
    ) -> Self:
        """Heads out of what a folder holds; older folders have neither features nor prompts."""
        older = {"eagle_aux_hidden_state_layer_ids": None, "reads_prompt": False}
        return super().from_saved(older | dict(sizes), draft_vocab, tensors, card)

    def bind(self, operations: Operations, base: OutputWeights) -> BoundMtp:
        """The layer in an engine's arrays, over the base model's matrices."""
        return BoundMtp(self, operations, base)


class BoundMtp:
    """An MTP layer on an engine."""

    def __init__(self, heads: MtpHeads, operations: Operations, base: OutputWeights) -> None:
        self.heads, self.config, self.operations = heads, heads.config, operations
        self._ids = None if self.config.draft_vocab is None else np.array(self.config.draft_vocab, dtype=np.int64)
        tensors = {name: operations.array(values) for name, values in heads.tensors.items()}
        self._fuse = tensors.pop(FUSE, None)
        output = base_rows(operations, base.output, self._ids, self.config.vocab_size)
        self.layer: DraftLayer = operations.draft_layer(self.config, tensors, base.embedding, output)

    def likeliest(
        self, scored: LayerScored, rows: Sequence[Row], num_ranks: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The ``num_ranks`` likeliest base ids behind each row, likeliest first, and their log-probabilities; [rows, ranks]."""
        ids, values = scored.likeliest(rows, num_ranks)
        return ids if self._ids is None else self._ids[ids], values

    def fused(self, states: Array) -> Array:
        """What the layer reads in front of committed tokens [n, D], of the target's features [n, F * D] or hidden states."""
        return states if self._fuse is None else self.operations.linear(states, self._fuse)

    def gather(self, states: Sequence[Array]) -> Array:
        """States of some pieces, each [n, D] or [n, F * D], as one array."""
        return states[0] if len(states) == 1 else self.operations.stack(states)
