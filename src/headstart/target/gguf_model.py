"""A GGUF file's weights as a transformers model.

The Llama family (llama.cpp's ``llama``, ``qwen2`` and ``qwen3``: Llama, Mistral, SmolLM, Qwen) is mapped here, since
transformers' own reader takes several times as long and drops Llama 3's rotary factors without a word. Every other architecture
goes through that reader.

GGUF stores the query and key rows of ``llama`` in interleaved rotary order (pairs side by side); transformers wants the two
halves one after the other. ``rope_freqs.weight`` divides the rotary frequencies.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ModelError
from headstart.target.gguf_file import GgufFile, GgufTensor
from headstart.target.quiet import quiet_transformers

_CONFIGS = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "qwen3": "Qwen3Config"}
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
_ROTARY_FACTORS = "rope_freqs.weight"


def gguf_causal_lm(file: GgufFile, dtype: Any) -> Any:
    """The model on the CPU in ``dtype``. ``ModelError`` for an unsupported architecture or a tensor too few or too many."""
    return _llama_family(file, dtype) if file.architecture in _CONFIGS else _through_transformers(file, dtype)


def _llama_family(file: GgufFile, dtype: Any) -> Any:
    import torch
    import transformers
    from huggingface_hub.errors import StrictDataclassError

    try:
        config = getattr(transformers, _CONFIGS[file.architecture])(**_settings(file))
    except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError) as error:
        raise ModelError(f"{file.path.name}: its settings fit no {file.architecture} model: {_first_line(error)}") from error
    weights = {
        _parameter_name(file, tensor): torch.from_numpy(_in_half_order(file, tensor, config)).to(dtype)
        for tensor in file.tensors.values()
        if tensor.name != _ROTARY_FACTORS
    }
    model_class = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    with quiet_transformers():
        try:
            model, info = model_class.from_pretrained(
                None, config=config, state_dict=weights, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{file.path.name}: its tensors do not fit its settings: {_first_line(error)}") from error
    check_loading(file.path.name, info)
    if _ROTARY_FACTORS in file.tensors:
        factors = torch.from_numpy(file.dequantize(file.tensors[_ROTARY_FACTORS]))
        model.model.rotary_emb.inv_freq /= factors
    return model


def _settings(file: GgufFile) -> dict[str, Any]:
    family = file.architecture

    def number(key: str, default: float | None = None) -> Any:
        key = f"{family}.{key}"
        value = file.need(key) if default is None else file.metadata.get(key, default)
        if not isinstance(value, (int, float)) or value <= 0:
            raise ModelError(f"{file.path.name} declares {key} as {value!r}, which is no single positive number")
        return value

    num_heads, width = number("attention.head_count"), number("embedding_length")
    if "token_embd.weight" not in file.tensors:
        raise ModelError(f"{file.path.name} has no token_embd.weight")
    if any("exps" in name for name in file.tensors):
        raise ModelError(f"{file.path.name} is a mixture of experts, which this GGUF reader does not support")
    settings: dict[str, Any] = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "hidden_size": width,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": number("attention.head_count_kv", num_heads),
        "head_dim": number("attention.key_length", width // num_heads),
        "max_position_embeddings": number("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rotary(file),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": file.metadata.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": file.metadata.get("tokenizer.ggml.padding_token_id"),
    }
    if family == "llama":
        settings["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return settings


def _rotary(file: GgufFile) -> dict[str, Any]:
    family = file.architecture
    base = {"rope_theta": file.metadata.get(f"{family}.rope.freq_base", 10000.0)}
    kind = file.metadata.get(f"{family}.rope.scaling.type", "none")
    if kind == "none":
        return base | {"rope_type": "default"}
    if kind == "linear":
        return base | {"rope_type": "linear", "factor": file.need(f"{family}.rope.scaling.factor")}
    raise ModelError(f"{file.path.name} scales its rotary embedding by {kind!r}, which this GGUF reader does not support")


def _parameter_name(file: GgufFile, tensor: GgufTensor) -> str:
    stem, _, suffix = tensor.name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    name = f"model.layers.{layer[1]}.{_IN_LAYER[layer[2]]}" if layer and layer[2] in _IN_LAYER else _OUTSIDE.get(stem)
    if name is None or suffix not in ("weight", "bias"):
        raise ModelError(f"{file.path.name} holds a tensor {tensor.name} that a {file.architecture} model does not have")
    return f"{name}.{suffix}"


def _in_half_order(file: GgufFile, tensor: GgufTensor, config: Any) -> NDArray[np.float32]:
    values = file.dequantize(tensor)
    permuted = re.fullmatch(r"blk\.\d+\.attn_([qk])\.(weight|bias)", tensor.name)
    if file.architecture != "llama" or not permuted:
        return values
    num_heads = config.num_attention_heads if permuted[1] == "q" else config.num_key_value_heads
    if values.shape[0] % (2 * num_heads):
        raise ModelError(f"{file.path.name}: tensor {tensor.name} does not divide into {num_heads} heads")
    pairs = values.reshape(num_heads, -1, 2, *values.shape[1:])  # (head, frequency, half, ...)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(values.shape))


def _through_transformers(file: GgufFile, dtype: Any) -> Any:
    if _ROTARY_FACTORS in file.tensors:
        raise ModelError(f"{file.path.name}: rotary factors of a {file.architecture} model cannot be read; use its HF folder")
    import transformers

    with quiet_transformers():
        try:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                file.path.parent, gguf_file=file.path.name, dtype=dtype, output_loading_info=True, ignore_mismatched_sizes=True
            )
        except (ValueError, KeyError, NotImplementedError, RuntimeError) as error:
            reason = _first_line(error)
            raise ModelError(f"{file.path.name}: a {file.architecture} model cannot be read from GGUF: {reason}") from error
    check_loading(file.path.name, info)
    return model


def check_loading(name: str, info: dict[str, Any]) -> None:
    """Refuse a model that transformers filled up with random weights; ``info`` is its loading report."""
    for what, phrase in (
        ("missing_keys", "lacks"),
        ("mismatched_keys", "has another shape of"),
        ("unexpected_keys", "also holds"),
    ):
        found = sorted(str(key[0] if isinstance(key, tuple) else key) for key in info.get(what) or ())
        if found:
            raise ModelError(f"{name} {phrase} the tensor {found[0]} ({len(found)} in all); it does not fit its config")


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
