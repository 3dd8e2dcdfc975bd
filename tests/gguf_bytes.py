"""GGUF files as bytes, written without the gguf library: so that a file may hold what no writer would write."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import gguf
import numpy as np

from gguf_files import BYTE_LEVEL, CONTROL, MERGES, NORMAL, PIECES, TEMPLATE, USER_DEFINED

WIDTH, INNER, HEAD = 32, 64, 16
Kind = gguf.GGMLQuantizationType


class Tensor(NamedTuple):
    shape: tuple[int, ...]  # outermost first
    kind: int
    data: bytes


def encode(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """A file of version 3, aligned to 32 bytes."""
    pairs = b"".join(_text(key) + _value(value) for key, value in metadata.items())
    infos, data = b"", b""
    for name, tensor in tensors.items():
        shape = b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
        infos += _text(name) + struct.pack("<I", len(tensor.shape)) + shape + struct.pack("<IQ", tensor.kind, len(data))
        data += _padded(tensor.data)
    return _padded(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + pairs + infos) + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Iq", 11, value) if value < 1 << 63 else struct.pack("<IQ", 10, value)
    if isinstance(value, float):
        return struct.pack("<Id", 12, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    items = [_value(item) for item in value] or [struct.pack("<I", 4)]
    return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(value)) + b"".join(item[4:] for item in items)


def byte_level() -> dict[str, Any]:
    """A tokenizer's metadata: gpt2's kind."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": BYTE_LEVEL,
        "tokenizer.ggml.token_type": [NORMAL] * (len(BYTE_LEVEL) - 3) + [CONTROL, CONTROL, USER_DEFINED],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.bos_token_id": BYTE_LEVEL.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": BYTE_LEVEL.index("<|im_end|>"),
        "tokenizer.chat_template": TEMPLATE,
    }


def sentencepiece() -> dict[str, Any]:
    """A tokenizer's metadata: llama's kind."""
    tokens, scores, types = zip(*PIECES, strict=True)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": list(scores),
        "tokenizer.ggml.token_type": list(types),
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def llama(tokenizer: Mapping[str, Any], kind: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and tensors of a tied Llama of one layer, its matrices in blocks of ``kind``."""
    metadata = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "general.file_type": 0,
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": WIDTH // HEAD,
        "llama.attention.head_count_kv": 1,
        "llama.attention.key_length": HEAD,
        "llama.attention.value_length": HEAD,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": HEAD,
        "llama.rope.freq_base": 10000.0,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.0,
        **tokenizer,
    }
    shapes = {"attn_q": (WIDTH, WIDTH), "attn_k": (HEAD, WIDTH), "attn_v": (HEAD, WIDTH), "attn_output": (WIDTH, WIDTH)}
    shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    matrices = {f"blk.0.{name}.weight": shape for name, shape in shapes.items()}
    matrices["token_embd.weight"] = (len(tokenizer["tokenizer.ggml.tokens"]), WIDTH)
    numbers = np.random.default_rng(0)
    tensors = {
        name: Tensor(shape, kind, gguf.quantize(numbers.normal(size=shape).astype(np.float32), kind).tobytes())
        for name, shape in matrices.items()
    }
    norms = dict.fromkeys(("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"))
    return metadata, tensors | {name: Tensor((WIDTH,), Kind.F32, np.ones(WIDTH, np.float32).tobytes()) for name in norms}
