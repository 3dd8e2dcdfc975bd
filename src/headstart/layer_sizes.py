"""The sizes of one decoder layer, which heads give and engines build it by."""

from __future__ import annotations

from typing import Protocol


class LayerSizes(Protocol):
    """Of a decoder layer, under the names of transformers' configs."""

    @property
    def hidden_size(self) -> int:
        """D."""

    @property
    def num_attention_heads(self) -> int:
        """Query heads."""

    @property
    def num_key_value_heads(self) -> int:
        """Heads of keys and values."""

    @property
    def head_dim(self) -> int:
        """Width of a head."""

    @property
    def intermediate_size(self) -> int:
        """Inner width of the MLP."""

    @property
    def rms_norm_eps(self) -> float:
        """Epsilon of all norms."""

    @property
    def rope_theta(self) -> float:
        """Base of the rotary frequencies."""
