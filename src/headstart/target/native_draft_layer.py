"""A drafting layer on the compiled stack: a model of one layer that reads hidden states beside embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart import _native
from headstart.errors import HeadsError
from headstart.layer_sizes import LayerSizes
from headstart.target.base import Feed, Slot
from headstart.target.draft_layer import inverse_frequencies, reads_embedding
from headstart.target.native_forward import forward
from headstart.target.native_scored import NativeScored
from headstart.tree import Path

_NAMES = {  # as they are saved, and as the compiled stack calls them
    "layers.0.input_layernorm": "layers.0.embedding_norm",
    "layers.0.hidden_norm": "layers.0.attention_norm",
    "layers.0.self_attn.q_proj": "layers.0.q",
    "layers.0.self_attn.k_proj": "layers.0.k",
    "layers.0.self_attn.v_proj": "layers.0.v",
    "layers.0.self_attn.o_proj": "layers.0.attention_output",
    "layers.0.post_attention_layernorm": "layers.0.mlp_norm",
    "layers.0.mlp.gate_proj": "layers.0.gate",
    "layers.0.mlp.up_proj": "layers.0.up",
    "layers.0.mlp.down_proj": "layers.0.down",
    "norm": "norm",
}
_MOST_POSITIONS = 1 << 20  # no limit of its own: it never holds more rows than the target


class NativeDraftLayer:
    """Implements ``heads.operations.DraftLayer``; every row has the same bits in any batch, tree and number of threads."""

    def __init__(
        self,
        sizes: LayerSizes,
        tensors: Mapping[str, _native.Matrix | NDArray[np.float32]],
        embedding: _native.Matrix,
        output: _native.Matrix,
        kind: str,
    ) -> None:
        """``kind``: of the weights; beside float32 the cache is float32 too. HeadsError if the stack refuses the sizes."""
        settings = {
            "num_layers": 1,
            "hidden_size": sizes.hidden_size,
            "num_heads": sizes.num_attention_heads,
            "num_kv_heads": sizes.num_key_value_heads,
            "head_size": sizes.head_dim,
            "inner_size": sizes.intermediate_size,
            "context_limit": _MOST_POSITIONS,
            "vocab_size": output.shape[0],
            "norm_epsilon": sizes.rms_norm_eps,
            "inverse_frequencies": inverse_frequencies(sizes).tolist(),
            "windows": [0],
            "rotary": [True],
            "kv_dtype": "float32" if kind == "float32" else "bfloat16",
            "reads_hidden": True,
            "beside_embedding": reads_embedding(tensors),
        }
        names = {saved: native for saved, native in _NAMES.items() if f"{saved}.weight" in tensors}
        parts: dict[str, Any] = {native: tensors[f"{saved}.weight"] for saved, native in names.items()}
        try:
            self._model = _native.Model(settings, parts | {"embedding": embedding, "output": output})
        except ValueError as error:
            raise HeadsError(f"the native engine refuses these heads: {error}") from error

    def open(self) -> Slot:
        """A slot with an empty cache."""
        return Slot(self._model.open())

    def length(self, slot: Slot) -> int:
        """Committed rows of a slot."""
        return self._model.length(slot)

    def forward(self, batch: Sequence[Feed], hidden: NDArray[np.float32]) -> NativeScored:
        """Score all rows over the output matrix; ``hidden`` [R, D] stand in the order of the feeds' rows."""
        return forward(self._model, batch, hidden)

    def keep(self, slot: Slot, path: Path) -> None:
        """Commit these rows of the slot's last forward, a path from row 0 on; forget its others."""
        self._model.keep(slot, np.array(path, dtype=np.int64))

    def fork(self, slot: Slot) -> Slot:
        """A new slot with the same committed rows."""
        return Slot(self._model.fork(slot))

    def close(self, slot: Slot) -> None:
        """Free a slot."""
        self._model.close(slot)

    def cache_bytes(self) -> int:
        """Bytes that the caches of all open slots hold."""
        return self._model.cache_bytes()
