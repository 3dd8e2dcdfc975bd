"""Sizes of a model with n future tokens that has as many parameters as the plain model it is compared with.

Gloeckle et al. 2024 (section 3) take one layer from the trunk for each head that is added, so that a gain cannot come from
size. ``layers`` always means the plain model's L. With n heads the trunk keeps

    parallel, causal      L - n layers, and n heads of one layer: the next-token path is L - n + 1 layers deep
    anticausal            L - n layers, and the n heads are one behind the other: L layers deep
    linear, sequential    L layers less what n - 1 heads weigh, rounded: a matrix, or a module, is not quite a number of layers

Parameters are counted without embedding and output matrix, which all of them share in the same size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from headstart.heads.future import LAYERED, FutureConfig, Variant, decoder_layer_shapes
from headstart.pretrain.settings import PretrainSettings

_UNIT = 32  # inner widths are multiples of it, so that 4-bit blocks fit


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Of trunk, heads and matrices, under the names of transformers' configs."""

    variant: Variant
    num_future: int  # n
    num_layers: int  # L
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    context: int
    rope_theta: float
    rms_norm_eps: float = 1e-5

    @classmethod
    def of(cls, settings: PretrainSettings, vocab_size: int) -> ModelSizes:
        """The sizes that the settings ask for."""
        width, heads = settings.width, settings.heads
        return cls(
            variant=settings.variant,
            num_future=settings.future_tokens,
            num_layers=settings.layers,
            hidden_size=width,
            num_attention_heads=heads,
            num_key_value_heads=settings.kv_heads or heads,
            head_dim=width // heads,
            intermediate_size=settings.inner or math.ceil(width * 8 / 3 / _UNIT) * _UNIT,
            vocab_size=vocab_size,
            context=settings.context,
            rope_theta=settings.rope_theta,
        )

    @property
    def num_further(self) -> int:
        """Heads beside the next-token path, n - 1."""
        return self.num_future - 1

    @property
    def num_base_layers(self) -> int:
        """Depth of the next-token path."""
        if self.variant == "anticausal":
            return self.num_layers
        if self.variant in ("parallel", "causal"):
            return self.num_layers - self.num_further
        return max(1, self.num_layers - round(self.num_further * self.head_parameters / self.layer_parameters))

    @property
    def num_trunk_layers(self) -> int:
        """Layers that all heads share."""
        if self.variant == "anticausal":
            return self.num_layers - self.num_future
        return self.num_base_layers - (1 if self.variant in ("parallel", "causal") else 0)

    @property
    def layer_parameters(self) -> int:
        """Of one decoder layer."""
        return sum(math.prod(shape) for shape in decoder_layer_shapes(self).values())

    @property
    def head_parameters(self) -> int:
        """Of one head beside the next-token path."""
        if self.variant == "linear":
            return self.hidden_size**2
        if self.variant == "sequential":
            return self.layer_parameters + 2 * self.hidden_size**2 + 2 * self.hidden_size
        return self.layer_parameters if self.variant in LAYERED else 0

    @property
    def body_parameters(self) -> int:
        """Of everything but embedding and output matrix."""
        own = self.num_base_layers * self.layer_parameters + self.num_further * self.head_parameters
        return own + self.hidden_size  # the last norm

    def heads_config(self) -> FutureConfig | None:
        """Sizes of the heads as they are saved; None for a plain model."""
        if not self.num_further:
            return None
        return FutureConfig(
            variant=self.variant,
            num_heads=self.num_further,
            num_base_layers=self.num_base_layers,
            hidden_size=self.hidden_size,
            vocab_size=self.vocab_size,
            num_attention_heads=self.num_attention_heads,
            num_key_value_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            intermediate_size=self.intermediate_size,
            rms_norm_eps=self.rms_norm_eps,
            rope_theta=self.rope_theta,
        )
