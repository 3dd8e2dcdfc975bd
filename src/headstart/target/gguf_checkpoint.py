"""A GGUF file of the Llama family in the words of transformers: settings, names and the order of rows.

llama.cpp's ``llama``, ``qwen2``, ``qwen3`` and ``smollm3`` are Llama, Mistral, SmolLM and Qwen. GGUF stores the query and key
rows of ``llama`` and ``smollm3`` in interleaved rotary order (pairs side by side); transformers wants the two halves one after
the other. ``rope_freqs.weight`` divides the rotary frequencies (Llama 3). GGUF has no key for the layers of ``smollm3`` without
rotary positions: llama.cpp takes every fourth, always, and so does this reader. Rotary scaling, too, is read as llama.cpp reads
it: ``linear`` where no type is given, by ``rope.scaling.factor`` or (old files) ``rope.scale_linear``; no factor, or 0, is 1.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ModelError
from headstart.target.checkpoint import Checkpoint
from headstart.target.gguf_file import GgufFile
from headstart.target.stored_tensor import StoredTensor

FAMILIES = ("llama", "qwen2", "qwen3", "smollm3")
_INTERLEAVED = ("llama", "smollm3")
_SMOLLM3_INTERVAL = 4
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROTARY_FACTORS = "rope_freqs.weight"


def gguf_checkpoint(file: GgufFile) -> Checkpoint:
    """Translate a file of one of the ``FAMILIES``. ``ModelError`` for settings or tensors that such a model does not have."""
    config = _config(file)
    tensors = {
        _parameter_name(file, tensor): _in_half_order(file, tensor, config)
        for tensor in file.tensors.values()
        if tensor.name != ROTARY_FACTORS
    }
    return Checkpoint(file.path.name, config, tensors, _rotary_factors(file, config["head_dim"] // 2), is_complete=True)


def _config(file: GgufFile) -> dict[str, Any]:
    family = file.architecture

    def number(key: str, default: float | None = None, *, kinds: tuple[type, ...] = (int,)) -> Any:
        key = f"{family}.{key}"
        value = file.need(key) if default is None else file.metadata.get(key, default)
        if type(value) not in kinds or not value > 0:
            raise ModelError(f"{file.path.name} declares {key} as {value!r}, which is no single positive number")
        return value

    num_heads, width = number("attention.head_count"), number("embedding_length")
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path.name} has no token_embd.weight")
    if any("exps" in name for name in file.tensors):
        raise ModelError(f"{file.path.name} is a mixture of experts, which this GGUF reader does not support")
    head_size = number("attention.key_length", width // num_heads)
    config: dict[str, Any] = {
        "model_type": family,
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": number("attention.head_count_kv", num_heads),
        "head_dim": head_size,
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon", kinds=(float, int)),
        "rope_parameters": _rotary(file, head_size),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if family == "smollm3":
        config["no_rope_layer_interval"] = _SMOLLM3_INTERVAL
    if family in ("llama", "smollm3"):
        config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return config


def _rotary(file: GgufFile, head_size: int) -> dict[str, Any]:
    name, prefix = file.path.name, f"{file.architecture}.rope"
    turned = file.metadata.get(f"{prefix}.dimension_count", head_size)
    if turned != head_size:
        raise ModelError(
            f"{name} declares {prefix}.dimension_count as {turned!r}; this GGUF reader supports rotary positions over whole "
            f"heads alone, here {head_size}"
        )
    base = {"rope_theta": file.metadata.get(f"{prefix}.freq_base", 10000.0)}
    kind = file.metadata.get(f"{prefix}.scaling.type", "linear")
    if kind not in ("none", "linear"):
        raise ModelError(f"{name} scales its rotary embedding by {kind!r}, which this GGUF reader does not support")
    key = next((key for key in (f"{prefix}.scaling.factor", f"{prefix}.scale_linear") if key in file.metadata), None)
    factor = file.metadata[key] if key and kind == "linear" else 1.0
    if type(factor) not in (int, float) or not 0 <= factor < math.inf:
        raise ModelError(f"{name} declares {key} as {factor!r}, which is no single positive number")
    if factor in (0, 1):
        return base | {"rope_type": "default"}
    return base | {"rope_type": "linear", "factor": float(factor)}


def _rotary_factors(file: GgufFile, count: int) -> NDArray[np.float32] | None:
    tensor = file.tensors.get(ROTARY_FACTORS)
    if tensor is None:
        return None
    if tensor.shape != (count,):
        raise ModelError(f"{file.path.name}: tensor {ROTARY_FACTORS} is {list(tensor.shape)}; it must hold {count} factors")
    return tensor.values()


def _parameter_name(file: GgufFile, tensor: StoredTensor) -> str:
    stem, _, suffix = tensor.name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    name = f"model.layers.{layer[1]}.{_IN_LAYER[layer[2]]}" if layer and layer[2] in _IN_LAYER else _OUTSIDE.get(stem)
    if name is None or suffix not in ("weight", "bias"):
        raise ModelError(f"{file.path.name} holds a tensor {tensor.name} that a {file.architecture} model does not have")
    return f"{name}.{suffix}"


def _in_half_order(file: GgufFile, tensor: StoredTensor, config: dict[str, Any]) -> StoredTensor:
    permuted = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", tensor.name)
    if file.architecture not in _INTERLEAVED or not permuted:
        return tensor
    num_heads, rows = config["num_attention_heads" if permuted[1] == "q" else "num_key_value_heads"], tensor.shape[0]
    if rows % (2 * num_heads):
        raise ModelError(f"{file.path.name}: tensor {tensor.name} does not divide into {num_heads} heads")
    pairs = np.arange(rows).reshape(num_heads, -1, 2)  # (head, frequency, half)
    return replace(tensor, order=np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(-1)))
