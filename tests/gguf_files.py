"""Tiny GGUF files, written in code: a Llama of two layers with a byte-level or a SentencePiece tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from headstart.tokenizer.detokenizer import byte_alphabet

CONTROL, USER_DEFINED, NORMAL, BYTE = 3, 4, 1, 6
ALPHABET = sorted(byte_alphabet(), key=lambda character: byte_alphabet()[character])
MERGES = ["Ġ t", "t h", "1 2", "12 3"]
BYTE_LEVEL = [*ALPHABET, *(merge.replace(" ", "") for merge in MERGES), "<|im_start|>", "<|im_end|>", "<tool>"]
TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content + '<|im_end|>' }}{% endfor %}"
PIECES = [("<unk>", 0.0, 2), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
PIECES += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
PIECES += [("▁ab", -1.0, NORMAL), ("ab", -2.0, NORMAL), ("▁a", -3.0, NORMAL), ("▁", -4.0, NORMAL), ("a", -5.0, NORMAL)]
PIECES += [("b", -6.0, NORMAL)]


def byte_level_tokenizer(writer: gguf.GGUFWriter, pre: str | None = "smollm", **changes: Any) -> None:
    types = [NORMAL] * (len(BYTE_LEVEL) - 3) + [CONTROL, CONTROL, USER_DEFINED]
    writer.add_tokenizer_model(changes.get("model", "gpt2"))
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(changes.get("tokens", BYTE_LEVEL))
    writer.add_token_types(changes.get("types", types))
    writer.add_token_merges(changes.get("merges", MERGES))
    writer.add_bos_token_id(changes.get("bos", BYTE_LEVEL.index("<|im_start|>")))
    writer.add_eos_token_id(BYTE_LEVEL.index("<|im_end|>"))
    writer.add_chat_template(TEMPLATE)
    if "add_bos" in changes:
        writer.add_add_bos_token(changes["add_bos"])


def sentencepiece_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens, scores, types = zip(*PIECES, strict=True)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(tokens))
    writer.add_token_scores(list(scores))
    writer.add_token_types(list(types))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def interleaved(weight: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Query or key rows as GGUF keeps them: the two rotary halves of a head side by side."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def llama_tensors(model: Any) -> dict[str, NDArray[np.float32]]:
    """A transformers Llama's weights under GGUF's names."""
    config = model.config
    inner = {
        "input_layernorm": "attn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    weights = {name: value.detach().float().numpy() for name, value in model.named_parameters()}
    tensors = {"token_embd.weight": weights["model.embed_tokens.weight"], "output_norm.weight": weights["model.norm.weight"]}
    if "lm_head.weight" in weights:
        tensors["output.weight"] = weights["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for theirs, ours in inner.items():
            tensors[f"blk.{layer}.{ours}.weight"] = weights[f"model.layers.{layer}.{theirs}.weight"]
        for ours, num_heads in (("attn_q", config.num_attention_heads), ("attn_k", config.num_key_value_heads)):
            name = f"blk.{layer}.{ours}.weight"
            tensors[name] = interleaved(tensors[name], num_heads)
    return tensors


def write_llama(
    path: Path, model: Any, tokenizer: Any = byte_level_tokenizer, architecture: str = "llama", **more: Any
) -> Path:
    """``more``: ``tensors`` to add or (None) leave out, the file's ``quantization``, a false ``num_heads``."""
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(more.get("num_heads", config.num_attention_heads))
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_file_type(int(more.get("file_type", gguf.LlamaFileType.ALL_F32)))
    tokenizer(writer)
    quantization = more.get("quantization")
    for name, value in (llama_tensors(model) | more.get("tensors", {})).items():
        if value is None:
            continue
        if quantization is not None and value.ndim == 2:
            writer.add_tensor(name, gguf.quantize(value, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(name, value.astype(np.float32))
    finish(writer)
    return path


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
