"""Damaged and hostile model files: every one is a ``ModelError`` of one line or a model that loads.

Never another error, a crash or a huge allocation: the memory of the whole process is limited meanwhile, so that a size taken
from a file on trust fails the test.
"""

from __future__ import annotations

import json
import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save
from tokenizers import Tokenizer, models

from gguf_bytes import INNER, WIDTH, Kind, Tensor, byte_level, encode, llama, sentencepiece
from headstart.errors import ModelError
from headstart.target.base import Feed
from headstart.target.loading import load_model
from headstart.tree import Tree

SPARE = 1 << 30  # bytes that a load may take beyond what the process has
UNDER_SANITIZER = "libasan" in os.environ.get("LD_PRELOAD", "")  # it reserves terabytes of addresses itself
HOSTILE: list[Any] = [
    True,
    0,
    -1,
    3,
    1 << 31,
    1 << 40,
    (1 << 64) - 1,
    0.5,
    float("nan"),
    float("inf"),
    -1e300,
    1e-320,
    "",
    "\0",
]
HOSTILE += ["{%", [], [0], [-1], ["a"], [1 << 62] * 3, [0.5]]
SPLICES = [b"\xff" * 8, (1 << 63).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"), bytes(8), b"\xff" * 4, bytes(4)]


@pytest.fixture(scope="module", autouse=True)
def _limited_memory() -> Iterator[None]:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    if not UNDER_SANITIZER:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + SPARE, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, limits)


def loads(path: Path) -> bool:
    """Whether a file or folder loads, and then computes one row."""
    try:
        loaded = load_model(str(path), engine="native")
    except ModelError as error:
        assert str(error)
        assert "\n" not in str(error)
        return False
    slot = loaded.target.open()
    scored = loaded.target.forward([Feed(slot, Tree.root(0))])
    assert scored.logits([(0, 0)]).shape == (1, loaded.target.vocab_size)
    loaded.target.close(slot)
    return True


def flipped(whole: bytes, header: int, seed: int) -> bytes:
    """Some bytes of the header overwritten, each time another way."""
    chance = random.Random(seed)
    data = bytearray(whole)
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(header)
        new = chance.choice([bytes([data[at] ^ (1 << chance.randrange(8))]), bytes([chance.randrange(256)]), *SPLICES])
        data[at : at + len(new)] = new
    return bytes(data)


# GGUF


@pytest.fixture(params=[(byte_level, Kind.Q8_0), (sentencepiece, Kind.Q4_1)], ids=["byte-level", "sentencepiece"])
def model(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Tensor]]:
    tokenizer, kind = request.param
    return llama(tokenizer(), kind)


def test_the_sound_file_loads(model: tuple[dict[str, Any], dict[str, Tensor]], tmp_path: Path) -> None:
    path = tmp_path / "sound.gguf"
    path.write_bytes(encode(*model))
    assert loads(path)


def test_a_truncated_gguf_file_is_refused(model: tuple[dict[str, Any], dict[str, Tensor]], tmp_path: Path) -> None:
    whole = encode(*model)
    path = tmp_path / "cut.gguf"
    for length in [*range(64), *range(64, len(whole) - 32, 397)]:
        path.write_bytes(whole[:length])
        assert not loads(path), length


def test_flipped_bytes_of_a_gguf_header(model: tuple[dict[str, Any], dict[str, Tensor]], tmp_path: Path) -> None:
    metadata, tensors = model
    whole, header = encode(metadata, tensors), len(encode(metadata, {}))
    infos = len(encode(metadata, {name: tensor._replace(data=b"") for name, tensor in tensors.items()}))
    path = tmp_path / "flipped.gguf"
    for seed in range(150):
        path.write_bytes(flipped(whole, header, seed))
        loads(path)
        path.write_bytes(whole[:header] + flipped(whole[header:], infos - header, seed))  # the tensors' shapes, types, offsets
        loads(path)


@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_any_value_under_any_key(model: tuple[dict[str, Any], dict[str, Tensor]], value: Any, tmp_path: Path) -> None:
    metadata, tensors = model
    path = tmp_path / "value.gguf"
    for key in metadata:
        path.write_bytes(encode(metadata | {key: value}, tensors))
        loads(path)


def test_any_key_may_be_missing(model: tuple[dict[str, Any], dict[str, Tensor]], tmp_path: Path) -> None:
    metadata, tensors = model
    path = tmp_path / "missing.gguf"
    for key in metadata:
        path.write_bytes(encode({other: value for other, value in metadata.items() if other != key}, tensors))
        loads(path)


def test_any_tensor_may_be_missing_or_of_another_shape_or_type(
    model: tuple[dict[str, Any], dict[str, Tensor]], tmp_path: Path
) -> None:
    metadata, tensors = model
    path = tmp_path / "tensors.gguf"
    for name, tensor in tensors.items():
        rows, *rest = tensor.shape
        others: list[Tensor | None] = [None, tensor._replace(kind=Kind.F32 if rest else Kind.I32)]
        others += [tensor._replace(shape=shape) for shape in ((1, *tensor.shape), (rows - 1, *rest), (1, 32), (rows * WIDTH,))]
        for other in others:
            kept = {other_name: kept for other_name, kept in tensors.items() if other_name != name}
            path.write_bytes(encode(metadata, kept | ({name: other} if other else {})))
            assert not loads(path), (name, other and other[:2])


# Hugging Face folders


WORDS = ["<s>", "<e>", "<u>", *"abcdefghij"]
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": WIDTH // 2,
    "vocab_size": len(WORDS),
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def weights() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    head, layer = WIDTH // 2, "model.layers.0"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (CONFIG["vocab_size"], WIDTH),
        "model.norm": (WIDTH,),
        f"{layer}.input_layernorm": (WIDTH,),
        f"{layer}.post_attention_layernorm": (WIDTH,),
        f"{layer}.self_attn.q_proj": (WIDTH, WIDTH),
        f"{layer}.self_attn.k_proj": (head, WIDTH),
        f"{layer}.self_attn.v_proj": (head, WIDTH),
        f"{layer}.self_attn.o_proj": (WIDTH, WIDTH),
        f"{layer}.mlp.gate_proj": (INNER, WIDTH),
        f"{layer}.mlp.up_proj": (INNER, WIDTH),
        f"{layer}.mlp.down_proj": (WIDTH, INNER),
    }
    return {f"{name}.weight": np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(save(weights()))
    words = models.WordLevel({word: id for id, word in enumerate(WORDS)}, unk_token="<u>")
    Tokenizer(words).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_the_sound_folder_loads(folder: Path) -> None:
    assert loads(folder)


def test_truncated_safetensors_are_refused(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in [*range(64), *range(64, len(whole), 397)]:
        path.write_bytes(whole[:length])
        assert not loads(folder), length


def test_flipped_bytes_of_a_safetensors_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    for seed in range(300):
        path.write_bytes(flipped(whole, header, seed))
        loads(folder)


@pytest.mark.parametrize("value", [*HOSTILE, None, {}, [[]], 1 << 200, "9" * 5000], ids=lambda value: repr(value)[:20])
def test_any_value_in_the_entry_of_a_tensor(folder: Path, value: Any) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    name = "model.layers.0.self_attn.k_proj.weight"
    begin, end = header[name]["data_offsets"]
    for changed in (
        value,
        header[name] | {"dtype": value},
        header[name] | {"shape": value},
        header[name] | {"shape": [value]},
        header[name] | {"shape": [value, 0]},
        header[name] | {"data_offsets": value},
        header[name] | {"data_offsets": [value, end]},
        header[name] | {"data_offsets": [begin, value]},
        header[name] | {"data_offsets": [value, value], "shape": [0]},
    ):
        text = json.dumps(header | {name: changed}).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])
        assert not loads(folder), changed


@pytest.mark.parametrize("value", [*HOSTILE, None, {}, [[]], 1 << 200], ids=lambda value: repr(value)[:20])
def test_any_value_in_the_config(folder: Path, value: Any) -> None:
    for key in CONFIG:
        (folder / "config.json").write_text(json.dumps(CONFIG | {key: value}))
        loads(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000, '{"a":' * 100_000, "\ud800", "1" * 10_000])
@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_json_that_is_none(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text, errors="surrogatepass")
    assert not loads(folder)
