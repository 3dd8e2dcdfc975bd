"""Heads of a model that was trained to predict several tokens at once, by the model's own trunk.

A model with n future tokens (Gloeckle et al. 2024, "Better & Faster Large Language Models via Multi-token Prediction") is a
trunk f_s, n heads of one layer each and one unembedding f_u (last norm and output matrix) for all of them:

    p(token t + i | tokens up to t) = softmax(f_u(f_i(f_s(tokens up to t)))),  i = 1..n

Head 1 is the model's next-token path: trunk, head 1 and f_u are saved as an ordinary Llama model. What stands here are the
heads 2..n, which guess depth 1..n - 1 of a draft behind the root. The variants of its appendix B say what a head reads:

* ``parallel``: head i is a decoder layer over the trunk's states.
* ``causal``: head i is a decoder layer over head i - 1.
* ``anticausal``: head i is a decoder layer over head i + 1, so the heads are the last layers of the next-token path itself, and
  guessing is f_u over the streams between them: no tensors but the norm.
* ``linear``: the trunk is the whole next-token path, head i one matrix over its states.

And ``sequential``, the modules of DeepSeek-V3 (2024, section 2.2): module i reads module i - 1's state beside the embedding
of a token, so that its guess depends on what was drafted before. With RMS norms N and a projection M [D, 2 D], for the
position t

    x = M [N(state of module i - 1 at t); N(embedding of token t + i - 1)],   state of module i = decoder layer(x)

All read residual streams of the base in front of a layer, or behind its last one (``target.watch``).

Letters: n rows, K = n - 1 heads, D hidden size, V' output rows, R guesses a head.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headstart.errors import HeadsError
from headstart.heads.layout import BoundHeads, HostHeads, OutputWeights, checked_vocab, require_counts, written_sizes
from headstart.heads.operations import Array, DraftLayer, Operations
from headstart.layer_sizes import LayerSizes

Variant = Literal["parallel", "causal", "anticausal", "linear", "sequential"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
LAYERED = ("parallel", "causal", "sequential")  # whose heads are decoder layers of their own
LAYER = "layers.0."
NORM = "norm.weight"
MODULE_INPUT = ("eh_proj.weight", "enorm.weight", "hnorm.weight")
"""Of a sequential module, under the names of DeepSeek-V3's checkpoints: M, the norm of embeddings, the norm of states."""


@dataclass(frozen=True)
class FutureConfig:
    """Sizes of the heads 2..n, under the names of transformers' configs."""

    kind: ClassVar[str] = "mtp"

    variant: Variant
    num_heads: int  # K
    num_base_layers: int  # of the next-token path
    hidden_size: int
    vocab_size: int  # of the base model
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    draft_vocab: tuple[int, ...] | None = None  # base ids of the output rows; None: all

    def __post_init__(self) -> None:
        require_counts(self, [field.name for field in fields(self) if field.type == "int"])
        if self.variant not in VARIANTS:
            raise HeadsError(f"mtp heads: variant is {self.variant!r}; it must be one of {', '.join(VARIANTS)}")
        for name in ("rms_norm_eps", "rope_theta"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or not (math.isfinite(value) and value > 0):
                raise HeadsError(f"mtp heads: {name} is {value!r}; it must be a finite number above 0")
        if self.variant == "anticausal" and self.num_heads >= self.num_base_layers:
            raise HeadsError(f"mtp heads: {self.num_heads} anticausal heads need more than {self.num_base_layers} layers")
        object.__setattr__(self, "draft_vocab", checked_vocab(self.kind, self.draft_vocab, self.vocab_size))

    @property
    def watched(self) -> tuple[int, ...]:
        """The layers of the base in front of which the heads read; the number of layers stands for the end."""
        end = self.num_base_layers
        if self.variant == "anticausal":
            return tuple(end - depth for depth in range(1, self.num_heads + 1))
        return (end - 1,) if self.variant == "parallel" else (end,)

    def head_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of the tensors of one head."""
        wide = self.hidden_size
        if self.variant == "linear":
            return {"weight": (wide, wide)}
        own = decoder_layer_shapes(self) if self.variant in LAYERED else {}
        if self.variant == "sequential":
            projection, *norms = MODULE_INPUT
            own |= {projection: (wide, 2 * wide), **dict.fromkeys(norms, (wide,))}
        return own

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor; the norm is that of the base."""
        own = self.head_shapes().items()
        heads = {f"{head_name(i)}{name}": shape for i in range(self.num_heads) for name, shape in own}
        return heads | {NORM: (self.hidden_size,)}

    def sizes(self) -> dict[str, Any]:
        """What ``config.json`` says, without the draft vocabulary (a tensor)."""
        return written_sizes(self)


def decoder_layer_shapes(sizes: LayerSizes) -> dict[str, tuple[int, ...]]:
    """Name and shape of the tensors of one decoder layer over states (``target/draft_layer.py``)."""
    wide, inner = sizes.hidden_size, sizes.intermediate_size
    query, kv = sizes.num_attention_heads * sizes.head_dim, sizes.num_key_value_heads * sizes.head_dim
    attention = {"q": (query, wide), "k": (kv, wide), "v": (kv, wide), "o": (wide, query)}
    mlp = {"gate": (inner, wide), "up": (inner, wide), "down": (wide, inner)}
    shapes: dict[str, tuple[int, ...]] = {
        f"{LAYER}{name}.weight": (wide,) for name in ("hidden_norm", "post_attention_layernorm")
    }
    shapes |= {f"{LAYER}self_attn.{name}_proj.weight": shape for name, shape in attention.items()}
    return shapes | {f"{LAYER}mlp.{name}_proj.weight": shape for name, shape in mlp.items()}


def head_name(index: int) -> str:
    """What the names of the tensors of the guesses of depth ``index`` + 1 begin with."""
    return f"heads.{index}."


@dataclass(frozen=True, eq=False)
class FutureHeads(HostHeads):
    """The heads 2..n on the host; ``bind`` brings them to an engine."""

    config_type = FutureConfig

    config: FutureConfig

    def bind(self, operations: Operations, base: OutputWeights) -> BoundFuture:
        """The heads in an engine's arrays, over the base model's matrices."""
        return BoundFuture(self, operations, base)


class BoundFuture(BoundHeads):
    """The heads 2..n on an engine."""

    config: FutureConfig

    def __init__(self, heads: FutureHeads, operations: Operations, base: OutputWeights) -> None:
        super().__init__(heads, operations, base)
        self._output = self._base_rows(base.output)
        self._norm = self._tensors[NORM]
        self._heads = [_named(self._tensors, head_name(index)) for index in range(self.config.num_heads)]
        self.layers: list[DraftLayer] = []
        if self.config.variant in LAYERED:
            self.layers = [
                operations.draft_layer(self.config, self._layer(own), base.embedding, self._output) for own in self._heads
            ]

    def _layer(self, own: dict[str, Array]) -> dict[str, Array]:
        return {name: tensor for name, tensor in own.items() if name not in MODULE_INPUT} | {NORM: self._norm}

    def module_input(self, index: int, states: Array, tokens: Sequence[int]) -> Array:
        """What the decoder layer of a sequential module reads [n, D]: states [n, D] of the module before, and a token each."""
        ops, own, epsilon = self.operations, self._heads[index], self.config.rms_norm_eps
        projection, of_embeddings, of_states = (own[name] for name in MODULE_INPUT)
        embedded = ops.take(self._embedding, np.asarray(tokens, dtype=np.int64))
        parts = [ops.rms_norm(states, of_states, epsilon), ops.rms_norm(embedded, of_embeddings, epsilon)]
        return ops.linear(ops.concat(parts), projection)

    def read_out(self, states: Array, num_ranks: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Guesses [n, K, R] without layers of their own, from what was watched [n, F * D]; base ids and probabilities."""
        ops, config = self.operations, self.config
        if config.variant == "linear":
            states = ops.concat([ops.linear(states, own["weight"]) for own in self._heads])
        normed = ops.rms_norm(ops.fold(states, config.hidden_size), self._norm, config.rms_norm_eps)
        rows, probabilities = ops.top_k(ops.linear(normed, self._output), min(num_ranks, int(self._output.shape[0])))
        shape = (-1, config.num_heads, rows.shape[1])
        return self.base_ids(rows).reshape(shape), probabilities.reshape(shape)


def _named(tensors: dict[str, Array], beginning: str) -> dict[str, Array]:
    return {name.removeprefix(beginning): tensor for name, tensor in tensors.items() if name.startswith(beginning)}
