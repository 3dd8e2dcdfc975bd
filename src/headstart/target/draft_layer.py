"""A decoder layer that drafts: what it computes.

The shape is EAGLE-3's (Li et al. 2025, "EAGLE-3", section 3.1), so that its tensors carry the names other engines know:

    x = hidden                                                     residual stream: the state given with the row
    x += o_proj(attention(q, k, v of [input_layernorm(embedding); hidden_norm(hidden)]))
    x += down_proj(silu(gate_proj(n)) * up_proj(n)),   n = post_attention_layernorm(x)
    own output x;   logits = output matrix * norm(x)

Without an ``input_layernorm`` among its tensors attention reads the normalised state alone: an ordinary decoder layer over
given states, as the heads of a model that was trained to predict several tokens are (Gloeckle et al. 2024).

A row is a token together with a hidden state that has seen everything before it: the target's, or the layer's own output for
the row above. Norms are RMS norms, positions rotary, attention grouped. Each engine has one: ``native_draft_layer.py`` is the
compiled stack with one layer, ``torch_draft_layer.py`` also trains.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
from numpy.typing import NDArray

from headstart.layer_sizes import LayerSizes


def reads_embedding(tensors: Container[str]) -> bool:
    """Whether the attention of a layer with these tensors reads the tokens' embeddings beside the states."""
    return "layers.0.input_layernorm.weight" in tensors


def inverse_frequencies(sizes: LayerSizes) -> NDArray[np.float64]:
    """Of the plain rotary positions, [head_dim / 2]."""
    exponents = np.arange(0, sizes.head_dim, 2, dtype=np.float64) / sizes.head_dim
    found: NDArray[np.float64] = sizes.rope_theta**-exponents
    return found
