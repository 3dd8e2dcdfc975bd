"""The native engine behind the target's seam: the same model as PyTorch's, from every kind of file, in every dtype."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from chat_model import TEMPLATE, chat_tokenizer
from gguf_files import BYTE_LEVEL, byte_level_tokenizer, llama_tensors, write_llama
from headstart import _native
from headstart.decode import Decoder
from headstart.errors import HeadsError, ModelError, RequestError
from headstart.heads import mtp
from headstart.heads.medusa import MedusaConfig, MedusaHeads, initial_tensors
from headstart.heads.mtp import MtpConfig, MtpHeads
from headstart.llm import LLM
from headstart.proposers.choose import choose_proposer
from headstart.sampling import Sampler, Sampling, log_softmax
from headstart.target import native_weights
from headstart.target.base import Feed, Slot, Target
from headstart.target.checkpoint import Checkpoint
from headstart.target.hf import HfTarget
from headstart.target.loading import Loaded, load_model, own_layers
from headstart.target.native import NativeTarget
from headstart.target.native_operations import NativeOperations
from headstart.target.native_settings import native_settings, obstacle
from headstart.target.stored_tensor import StoredTensor
from headstart.tree import Tree
from numpy_operations import NumpyOperations
from tiny import tiny_gpt2, tiny_llama, tiny_mistral, tiny_qwen2, tiny_qwen3, tiny_smollm3

IDS = (5, 9, 17, 3, 30, 12, 25, 8, 19, 4, 11)
TREE = Tree((21, 6, 14, 33, 7), (-1, 0, 0, 1, 2), (1.0,) * 5)  # two branches of two
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: tiny_llama(head_dim=16),
    "tied": lambda: tiny_llama(head_dim=16, tie_word_embeddings=True),
    "llama with biases": lambda: tiny_llama(head_dim=16, attention_bias=True, mlp_bias=True),
    "llama3 rope": lambda: tiny_llama(head_dim=16, rope_parameters=LLAMA3),
    "linear rope": lambda: tiny_llama(head_dim=16, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0}),
    "mistral": lambda: tiny_mistral(head_dim=16),
    "mistral without a window": lambda: tiny_mistral(head_dim=16, sliding_window=None),
    "qwen2": lambda: tiny_qwen2(num_attention_heads=2, num_key_value_heads=1),
    "qwen2 with a window": lambda: tiny_qwen2(
        num_attention_heads=2, num_key_value_heads=1, use_sliding_window=True, sliding_window=6, max_window_layers=1
    ),
    "qwen3": lambda: tiny_qwen3(head_dim=16),
    "smollm3": lambda: tiny_smollm3(head_dim=16, tie_word_embeddings=True),
    "smollm3 with biases and a window": lambda: tiny_smollm3(
        head_dim=16, attention_bias=True, mlp_bias=True, use_sliding_window=True, sliding_window=6, no_rope_layers=[0, 1]
    ),
    "smollm3 with named layers": lambda: tiny_smollm3(
        head_dim=16, use_sliding_window=True, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    ),
}


def save_folder(folder: Path, model: Any) -> Path:
    """A model as transformers saves it, with a tokenizer of characters."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer = chat_tokenizer()
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<e>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "tiny", tiny_llama(head_dim=16))


def native(path: Path, **options: Any) -> NativeTarget:
    target = load_model(str(path), engine="native", **options).target
    assert isinstance(target, NativeTarget)
    return target


def refused(path: Path, match: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        load_model(str(path), **options)
    assert "\n" not in str(caught.value)


def changed(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def logits(target: Target) -> NDArray[np.float32]:
    """Logits of a prompt in two chunks, of a tree behind it, and of a row behind one of its branches, two slots at once."""
    slot, other = target.open(), target.open()
    target.forward([Feed(slot, Tree.chain(IDS[:4]), 4)])
    target.keep(slot, (0, 1, 2, 3))
    prompt = target.forward([Feed(other, Tree.chain(IDS[:3])), Feed(slot, Tree.chain(IDS[4:]), 5)])
    target.keep(slot, tuple(range(7)))
    target.keep(other, (0, 1, 2))
    tree = target.forward([Feed(slot, TREE), Feed(other, Tree.root(7))])
    found = [prompt.logits([(0, 2), (1, 5), (1, 6)]), tree.logits([(0, row) for row in range(5)]), tree.logits([(1, 0)])]
    target.keep(slot, (0, 2, 4))
    target.keep(other, ())
    found.append(target.forward([Feed(slot, Tree.root(2))]).logits([(0, 0)]))
    target.close(slot)
    target.close(other)
    return np.concatenate(found)


def error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Root mean square error over the spread."""
    return float(np.sqrt(np.mean((found - expected) ** 2)) / expected.std())


# The same model


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_gives_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    path = save_folder(tmp_path / "model", FAMILIES[family]())
    expected = load_model(str(path), engine="hf")
    loaded = load_model(str(path))
    assert (loaded.target.engine, loaded.notes) == ("native", ())
    assert loaded.target.fingerprint == expected.target.fingerprint
    assert loaded.target.end_tokens == expected.target.end_tokens
    reference = logits(expected.target)
    assert error(logits(loaded.target), reference) < 1e-5
    rounded = native(path, dtype="bfloat16")
    assert rounded.fingerprint == expected.target.fingerprint
    assert 1e-5 < error(logits(rounded), reference) < 0.05


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_gives_the_logits_of_transformers(tmp_path: Path, tied: bool) -> None:
    model = tiny_llama(head_dim=16, vocab_size=len(BYTE_LEVEL), tie_word_embeddings=tied)
    factors = np.linspace(1, 8, 8).astype(np.float32)
    path = write_llama(tmp_path / "m.gguf", model, tensors={"rope_freqs.weight": factors})
    expected, found = load_model(str(path), engine="hf"), load_model(str(path))
    assert found.target.engine == "native"
    assert found.source == expected.source
    assert found.target.fingerprint == expected.target.fingerprint
    assert error(logits(found.target), logits(expected.target)) < 1e-5


@pytest.mark.parametrize(
    ("keys", "scaling"),
    [
        ({"scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 4.0}, 4.0),
        ({"scaling.factor": 4.0, "scale_linear": 2.0}, 4.0),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, 4.0),
        ({"scaling.type": "linear", "scale_linear": 4.0}, 4.0),
        ({"scaling.type": "linear"}, 1.0),
        ({"scaling.factor": 0.0}, 1.0),
        ({"scaling.type": "none", "scaling.factor": 4.0, "dimension_count": 16}, 1.0),
    ],
)
def test_a_gguf_file_scales_rotary_positions_as_llama_cpp_does(tmp_path: Path, keys: dict[str, Any], scaling: float) -> None:
    rope = {"rope_type": "linear", "factor": scaling, "rope_theta": 500.0}
    model = tiny_llama(head_dim=16, vocab_size=len(BYTE_LEVEL), rope_parameters=rope)
    path = write_llama(tmp_path / "m.gguf", model, rotary(keys))
    expected = logits(HfTarget(model, name="tiny", dtype="float32"))
    for engine in ("native", "hf"):
        assert error(logits(load_model(str(path), engine=engine).target), expected) < 1e-5


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"dimension_count": 8}, r"llama\.rope\.dimension_count as 8; .* whole heads alone, here 16"),
        ({"scaling.factor": -1.0}, r"llama\.rope\.scaling\.factor as -1\.0"),
        ({"scale_linear": "x"}, r"llama\.rope\.scale_linear as 'x'"),
        ({"scaling.type": "yarn", "scaling.factor": 4.0}, "by 'yarn'"),
    ],
)
def test_rotary_keys_of_a_gguf_file_that_no_engine_follows_are_refused(
    tmp_path: Path, keys: dict[str, Any], reason: str
) -> None:
    model = tiny_llama(head_dim=16, vocab_size=len(BYTE_LEVEL))
    refused(write_llama(tmp_path / "m.gguf", model, rotary(keys)), rf"^m\.gguf .*{reason}")


def rotary(keys: dict[str, Any]) -> Callable[[gguf.GGUFWriter], None]:
    """A tokenizer, and keys below ``llama.rope``."""

    def write(writer: gguf.GGUFWriter) -> None:
        byte_level_tokenizer(writer)
        for key, value in keys.items():
            kind = {str: "string", int: "uint32", float: "float32"}[type(value)]
            getattr(writer, f"add_{kind}")(f"llama.rope.{key}", value)

    return write


def test_a_smollm3_file_turns_no_fourth_layer(tmp_path: Path) -> None:
    model = tiny_smollm3(head_dim=16, vocab_size=len(BYTE_LEVEL), num_hidden_layers=5, no_rope_layer_interval=4)
    path = write_llama(tmp_path / "m.gguf", model, architecture="smollm3")
    expected = logits(HfTarget(model, name="tiny", dtype="float32"))
    for engine in ("native", "hf"):
        assert error(logits(load_model(str(path), engine=engine).target), expected) < 1e-5


QUANTIZED = {
    "Q4_0": ("q4_0", 0.1),
    "Q4_1": ("q4_1", 0.1),
    "Q8_0": ("int8", 0.1),
    "BF16": ("bfloat16", 0.02),
    "F16": ("bfloat16", 0.03),
    "Q5_1": ("int8", 0.1),
}


@pytest.mark.parametrize("stored", QUANTIZED)
def test_blocks_are_taken_as_they_are_and_others_converted_with_a_note(tmp_path: Path, stored: str) -> None:
    model = tiny_llama(head_dim=16, vocab_size=len(BYTE_LEVEL), hidden_size=64, intermediate_size=96)
    path = write_llama(tmp_path / "q.gguf", model, quantization=gguf.GGMLQuantizationType[stored])
    dtype, tolerance = QUANTIZED[stored]
    loaded = load_model(str(path))
    expected = load_model(str(path), engine="hf", dtype="float32").target  # the dequantised weights
    assert (loaded.target.engine, loaded.target.dtype) == ("native", dtype)
    assert loaded.target.fingerprint == expected.fingerprint
    reference = logits(expected)
    assert error(logits(loaded.target), reference) < tolerance  # activations are rounded as well
    assert error(logits(native(path, dtype="float32")), reference) < 1e-5
    for other in ("float32", "bfloat16", "int8"):
        target = native(path, dtype=other)
        assert (target.dtype, target.fingerprint) == (other, expected.fingerprint)
    assert len(loaded.notes) == (stored in ("F16", "Q5_1"))
    assert all("q.gguf: " in note and ("float16" if stored == "F16" else stored) in note for note in loaded.notes)


def test_matrices_of_one_file_keep_their_own_kinds(tmp_path: Path) -> None:
    model = tiny_llama(head_dim=16, vocab_size=len(BYTE_LEVEL), hidden_size=64, intermediate_size=96)
    path = write_llama(tmp_path / "m.gguf", model, quantization=gguf.GGMLQuantizationType.Q4_1)
    file_kinds = {"token_embd.weight": "Q8_0", "blk.0.ffn_up.weight": "Q4_0"}
    rewrite(path, model, file_kinds)
    target = native(path)
    assert target.dtype == "q4_1"
    assert target.base_weights().embedding.kind == "q8_0"
    assert error(logits(target), logits(load_model(str(path), engine="hf").target)) < 0.1


def rewrite(path: Path, model: Any, kinds: dict[str, str]) -> None:
    """The same file with other types for some matrices."""
    original = gguf.GGUFWriter.add_tensor

    def add(self: Any, name: str, value: NDArray[Any], **options: Any) -> None:
        if name in kinds:
            kind = gguf.GGMLQuantizationType[kinds[name]]
            value, options = gguf.quantize(llama_tensors(model)[name], kind), {"raw_dtype": kind}
        original(self, name, value, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", add)
        write_llama(path, model, quantization=gguf.GGMLQuantizationType.Q4_1)


def test_float16_folders_say_that_they_are_rounded(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "half", tiny_llama(head_dim=16).half())
    loaded = load_model(str(path))
    assert loaded.target.dtype == "bfloat16"
    assert [note.split(":")[0] for note in loaded.notes] == ["half"]
    assert load_model(str(path), dtype="float32").notes == ()


def test_a_header_of_any_length_is_read(folder: Path) -> None:
    expected = logits(native(folder))
    data = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    for padding in (1, 2, 3):
        moved = (length + padding).to_bytes(8, "little") + data[8 : 8 + length] + b" " * padding + data[8 + length :]
        (folder / "model.safetensors").write_bytes(moved)
        assert np.array_equal(logits(native(folder)), expected)


def test_the_source_is_not_mapped_again_beside_the_packed_weights(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One read of a row can map a whole large matrix, which then counts on top of everything that is packed."""
    read: list[str] = []
    data, packed = StoredTensor.data, native_weights.packed

    def reading(tensor: StoredTensor) -> NDArray[np.uint8]:
        read.append(tensor.name)
        return data(tensor)

    def packing(*given: Any) -> _native.Matrix:
        read.append("a matrix is packed")
        return packed(*given)

    monkeypatch.setattr(StoredTensor, "data", reading)
    monkeypatch.setattr(native_weights, "packed", packing)
    native(folder)
    embedding = max(place for place, name in enumerate(read) if "embed_tokens" in name)
    assert read[:embedding].count("a matrix is packed") <= 1  # the largest is the first, and this may be it


def test_padding_rows_are_neither_kept_nor_sampled(tmp_path: Path) -> None:
    size = chat_tokenizer().vocab_size
    path = save_folder(tmp_path / "padded", tiny_llama(head_dim=16, vocab_size=size + 9))
    target = native(path)
    assert target.vocab_size == size
    assert target.base_weights().output.shape == (size, 32)
    assert target.fingerprint == load_model(str(path), engine="hf").target.fingerprint
    assert error(logits(target), logits(load_model(str(path), engine="hf").target)) < 1e-5


def test_a_stored_output_matrix_that_differs_unties_the_model(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "both", tiny_llama(head_dim=16))
    changed(path, tie_word_embeddings=True)
    assert error(logits(native(path)), logits(load_model(str(path), engine="hf").target)) < 1e-5


def test_older_folders_spell_their_rotary_settings_otherwise(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "old", FAMILIES["llama3 rope"]())
    expected = logits(native(path))
    config = json.loads((path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    (path / "config.json").write_text(json.dumps(config))
    assert np.array_equal(logits(native(path)), expected)


def test_an_older_rotary_scaling_replaces_the_newer_settings(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "both", FAMILIES["llama3 rope"]())
    changed(path, rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=700.0)
    assert error(logits(native(path)), logits(load_model(str(path), engine="hf").target)) < 1e-5


LAYERS = [["full_attention", "sliding_attention"], ["sliding_attention", "full_attention"], ["full_attention"] * 2]


@pytest.mark.parametrize("layers", [*LAYERS, None])
@pytest.mark.parametrize("family", ["mistral", "qwen2", "qwen3", "smollm3"])
def test_layers_slide_as_they_are_named(tmp_path: Path, family: str, layers: list[str] | None) -> None:
    """``IDS`` is longer than the window; SmolLM3's named layers slide even where its flag does not say so."""
    makers = {"mistral": tiny_mistral, "qwen2": tiny_qwen2, "qwen3": tiny_qwen3, "smollm3": tiny_smollm3}
    sizes: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1} if family == "qwen2" else {"head_dim": 16}
    path = save_folder(tmp_path / "layers", makers[family](**sizes))
    uses = {} if family == "smollm3" else {"use_sliding_window": True}
    changed(path, sliding_window=6, max_window_layers=1, layer_types=layers, **uses)
    assert error(logits(native(path)), logits(load_model(str(path), engine="hf").target)) < 1e-5


# The first layers


def test_the_first_layers_share_the_weights_and_equal_those_of_transformers(folder: Path) -> None:
    target = native(folder)
    shallow = own_layers(target, "1")
    assert isinstance(shallow, NativeTarget)
    assert shallow.base_weights().embedding is target.base_weights().embedding
    expected = own_layers(load_model(str(folder), engine="hf").target, "1")
    assert (shallow.name, shallow.fingerprint) == (expected.name, expected.fingerprint)
    assert error(logits(shallow), logits(expected)) < 1e-5
    for count, match in (("2", "it has 2, so 1 to 1 make a draft"), ("0", "0 layers of tiny")):
        with pytest.raises(RequestError, match=match):
            own_layers(target, count)
    with pytest.raises(ModelError, match="'x' is no number of layers"):
        own_layers(target, "x")


# The answers about rows


def scored_rows(target: NativeTarget) -> tuple[Any, Sequence[tuple[int, int]]]:
    slots = [target.open(), target.open()]
    scored = target.forward([Feed(slots[0], Tree.chain(IDS), 8), Feed(slots[1], TREE)])
    return scored, [(1, 4), (0, 9), (1, 0), (0, 8), (0, 10)]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.8),
        Sampling(temperature=1.3, top_k=9, top_p=0.9, min_p=0.02),
        Sampling(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2, logit_bias={3: 2.0, 7: float("-inf")}),
        Sampling(temperature=0.7, repetition_penalty=1.3, min_tokens=9),
    ],
)
def test_picks_are_those_of_the_sampler(folder: Path, sampling: Sampling) -> None:
    target = native(folder)
    scored, rows = scored_rows(target)
    samplers = [
        Sampler(sampling, vocab_size=target.vocab_size, prompt=IDS, end_tokens=target.end_tokens, seed=seed)
        for seed in range(len(rows))
    ]
    paths = [[6, 14], [], [21], [], [5]]
    expected = [sampler.pick(row, path) for sampler, row, path in zip(samplers, scored.logits(rows), paths, strict=True)]
    assert scored.pick(rows, samplers, paths) == expected


def test_greedy_and_sampled_rows_may_stand_in_one_question(folder: Path) -> None:
    target = native(folder)
    scored, rows = scored_rows(target)
    samplings = [Sampling(), Sampling(temperature=1), Sampling(), Sampling(temperature=2), Sampling()]
    samplers = [Sampler(sampling, vocab_size=target.vocab_size, seed=4) for sampling in samplings]
    expected = [sampler.pick(row) for sampler, row in zip(samplers, scored.logits(rows), strict=True)]
    assert scored.pick(rows, samplers, [()] * 5) == expected


@pytest.mark.parametrize("num_top", [0, 3])
def test_logprobs_are_those_of_the_definition(folder: Path, num_top: int) -> None:
    scored, rows = scored_rows(native(folder))
    values = log_softmax(scored.logits(rows))
    for row, token, found in zip(values, IDS, scored.logprobs(rows, IDS[:5], num_top), strict=False):
        order = np.argsort(-row, kind="stable")[:num_top]
        assert (found.token, found.logprob) == (token, row[token])
        assert found.top == tuple((int(i), row[i]) for i in order)


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_the_likeliest_are_those_of_the_definition(folder: Path, k: int) -> None:
    scored, rows = scored_rows(native(folder))
    values = log_softmax(scored.logits(rows))
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    ids, found = scored.likeliest(rows, k)
    assert np.array_equal(ids, order)
    assert np.array_equal(found, np.take_along_axis(values, order, axis=1))


def test_hidden_states_are_what_the_output_matrix_reads(folder: Path) -> None:
    target = native(folder)
    scored, rows = scored_rows(target)
    hidden = scored.hidden(rows)
    product = target.operations.linear(hidden, target.base_weights().output)
    assert np.allclose(product, scored.logits(rows), atol=1e-5)
    hidden[:] = 0  # a copy
    assert scored.hidden(rows).any()


def test_rows_before_the_first_scored_one_may_not_be_asked(folder: Path) -> None:
    scored, _ = scored_rows(native(folder))
    with pytest.raises(KeyError, match="not scored"):
        scored.logits([(0, 7)])


def test_logits_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "nan", tiny_llama(head_dim=16))
    weights = load_file(path / "model.safetensors")
    weights["model.embed_tokens.weight"][5] = float("nan")
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    target = native(path)
    scored = target.forward([Feed(target.open(), Tree.root(5))])
    with pytest.raises(ModelError, match="NaN or infinity"):
        scored.pick([(0, 0)], [Sampler(Sampling(), vocab_size=target.vocab_size)], [()])
    with pytest.raises(ModelError, match="NaN or infinity"):
        scored.likeliest([(0, 0)], 3)


# Slots


def test_slots_are_opened_forked_kept_and_closed(folder: Path) -> None:
    target = native(folder)
    slot = target.open()
    target.forward([Feed(slot, Tree.chain(IDS), len(IDS))])
    target.keep(slot, tuple(range(len(IDS))))
    twin = target.fork(slot)
    assert (target.length(slot), target.length(twin)) == (len(IDS), len(IDS))
    assert target.cache_bytes() > 0
    rows = target.forward([Feed(slot, TREE), Feed(twin, TREE)]).logits([(0, 4), (1, 4)])
    assert np.array_equal(rows[0], rows[1])
    target.close(slot)
    target.close(twin)
    assert target.cache_bytes() == 0
    with pytest.raises(ValueError, match="slot"):
        target.length(slot)


def test_positions_behind_the_context_limit_are_refused(folder: Path) -> None:
    target = native(folder)
    slot = target.open()
    with pytest.raises(RequestError, match="257 positions are needed; the context of tiny ends at 256"):
        target.forward([Feed(slot, Tree.chain([3] * 257))])
    wide = Tree((1, *range(2, 40)), (-1, *(0,) * 38), (1.0,) * 39)  # many rows, one position
    target.forward([Feed(slot, Tree.chain([3] * 254), 254)])
    target.keep(slot, tuple(range(254)))
    assert target.forward([Feed(slot, wide)]).logits([(0, 38)]).shape == (1, target.vocab_size)
    target.keep(slot, ())
    with pytest.raises(RequestError, match="257 positions are needed"):
        target.forward([Feed(slot, Tree.chain([3] * 3))])
    assert target.length(slot) == 254


def test_the_cache_takes_the_dtype_that_was_asked_for(folder: Path) -> None:
    wide, narrow = (native(folder, kv_dtype=kv_dtype) for kv_dtype in ("float32", "bfloat16"))
    assert native(folder).kv_dtype == "float32"
    assert native(folder, dtype="bfloat16").kv_dtype == "bfloat16"
    sizes = []
    for target in (wide, narrow):
        slot = target.open()
        target.forward([Feed(slot, Tree.chain(IDS), len(IDS))])
        target.keep(slot, tuple(range(len(IDS))))
        sizes.append(target.cache_bytes())
    assert sizes[0] == 2 * sizes[1]


# Decoding


@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
@pytest.mark.parametrize(
    ("proposer", "options"), [("ngram", {}), ("draft_model", {"draft": "layers:1"}), ("medusa", {}), ("mtp", {})]
)
def test_the_tokens_are_those_of_plain_decoding(
    folder: Path, proposer: str, options: dict[str, Any], dtype: str, tmp_path: Path
) -> None:
    loaded = load_model(str(folder), dtype=dtype)
    if proposer in ("medusa", "mtp"):
        options = {"heads": save_heads_of(loaded, tmp_path / "heads", proposer)}
    plain = LLM(loaded.target, loaded.tokenizer, choose_proposer("none", loaded.target, loaded.tokenizer))
    guessing = plain.with_proposer(proposer, **options)
    prompts = ["why so blue, why so blue?", "write it", "what is that? what is that?"]
    for sampling in (Sampling(max_tokens=40), Sampling(max_tokens=40, temperature=0.9, seed=5, repetition_penalty=1.1)):
        expected = plain.generate_many(prompts, sampling)
        found = guessing.generate_many(prompts, sampling, batch=3)
        assert [answer.tokens for answer in found] == [answer.tokens for answer in expected]
        assert sum(answer.stats.num_drafted for answer in found) > 0


def save_heads_of(loaded: Loaded, path: Path, kind: str) -> str:
    from headstart.heads.base import BaseIdentity, HeadsCard, save_heads

    card, rng, vocab = HeadsCard(BaseIdentity.of(loaded.target)), np.random.default_rng(0), tuple(range(3, 40))
    if kind == "mtp":
        layer = MtpConfig(32, loaded.target.vocab_size, 2, 1, 16, 48, draft_vocab=vocab)
        save_heads(path, MtpHeads(layer, mtp.initial_tensors(layer, rng, 1.0), card))
    else:
        config = MedusaConfig(2, 32, loaded.target.vocab_size, draft_vocab=vocab, inner_size=8)
        save_heads(path, MedusaHeads(config, initial_tensors(config, rng), card))
    return str(path)


def test_a_request_that_ends_early_frees_its_slot(folder: Path) -> None:
    target = native(folder)
    decoder = Decoder(target)
    decoder.add(IDS, Sampling(max_tokens=5))
    decoder.step()
    decoder.close()
    assert target.cache_bytes() == 0


# Heads


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q4_1"])
@pytest.mark.parametrize("changes", [{}, {"sees_root": False, "output": "own"}, {"inner_size": 16, "num_blocks": 2}])
def test_heads_guess_as_over_plain_arrays(dtype: str, changes: dict[str, Any]) -> None:
    random = np.random.default_rng(2)
    embedding = random.normal(size=(50, 32)).astype(np.float32)
    config = MedusaConfig(**{"num_heads": 3, "hidden_size": 32, "vocab_size": 48, **changes})
    tensors = {name: random.normal(size=shape, scale=0.2).astype(np.float32) for name, shape in config.shapes().items()}
    heads = MedusaHeads(config, tensors)
    hidden = random.normal(size=(4, 32)).astype(np.float32)
    operations = NativeOperations(dtype)
    packed = operations.array(embedding)
    assert isinstance(packed, _native.Matrix)
    assert packed.kind == ("float32" if dtype == "float32" else "q4_1")
    found = heads.bind(operations, Weights(packed)).logits(hidden, [1, 2, 3, 4])
    expected = heads.bind(NumpyOperations(), Weights(embedding)).logits(hidden, [1, 2, 3, 4])
    tolerance = 1e-5 if dtype == "float32" else 0.2
    assert max(map(error, found, expected)) < tolerance
    ids, probabilities = heads.bind(operations, Weights(packed)).guesses(hidden, [1, 2, 3, 4], 5)
    assert ids.shape == probabilities.shape == (4, 3, 5)
    for head, values in enumerate(found):
        rows, weights = NumpyOperations().top_k(values, 5)
        assert np.array_equal(ids[:, head], rows)
        assert np.allclose(probabilities[:, head], weights, atol=1e-6)


class Weights:
    """One matrix for both ends."""

    def __init__(self, matrix: Any) -> None:
        self.embedding = self.output = matrix


def test_matrices_that_no_block_fits_are_kept_in_bfloat16() -> None:
    matrix = NativeOperations("int8").array(np.ones((4, 24), dtype=np.float32))
    assert isinstance(matrix, _native.Matrix)
    assert matrix.kind == "bfloat16"


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_four_bits_are_off_by_half_a_step_at_most(seed: int, size: float) -> None:
    values = size * np.random.default_rng(seed).standard_normal((3, 64)).astype(np.float32)
    values[0, :32] = 0.25  # a block without a range
    matrix = NativeOperations("bfloat16").array(values)
    assert isinstance(matrix, _native.Matrix)
    steps = np.ptp(values.reshape(3, 2, 32), axis=-1, keepdims=True) / 15
    off = np.abs(matrix.rows(np.arange(3)) - values).reshape(3, 2, 32)
    assert (off <= 0.51 * steps + 2e-3 * np.abs(values).max()).all()


def test_weights_that_four_bits_cannot_hold_are_one_line() -> None:
    with pytest.raises(HeadsError, match="too large for 4-bit blocks"):
        NativeOperations("bfloat16").array(np.full((1, 32), 1e6, dtype=np.float32))


def test_silu_is_silent_at_the_ends() -> None:
    x = np.array([[-1e4, -100, 0, 100, 1e4]], dtype=np.float32)
    assert NativeOperations("float32").silu(x).tolist() == [[0, 0, 0, 100, 1e4]]


# The choice of the engine


def test_a_model_of_another_family_runs_on_pytorch_with_a_reason(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "other", tiny_gpt2())
    loaded = load_model(str(path))
    assert loaded.target.engine == "hf"
    assert loaded.notes == (
        "other runs on PyTorch, several times slower on a CPU than the native engine: the native engine knows no gpt2 models",
    )
    assert load_model(str(path), engine="hf").notes == ()
    refused(path, "other cannot run on the native engine: the native engine knows no gpt2 models", engine="native")


@pytest.mark.parametrize(("name", "size"), [("hidden_size", 40), ("intermediate_size", 100)])
def test_a_model_of_another_width_runs_on_pytorch_with_a_reason(tmp_path: Path, name: str, size: int) -> None:
    loaded = load_model(str(save_folder(tmp_path / "wide", tiny_llama(head_dim=16, **{name: size}))))
    assert loaded.target.engine == "hf"
    assert loaded.notes[0].endswith(f"does not know models of the {name} {size}, only multiples of 16")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"head_dim": 8}, "heads of the size 8, only multiples of 16"),
        ({"hidden_size": 40}, "models of the hidden_size 40, only multiples of 16"),
        ({"intermediate_size": 100}, "models of the intermediate_size 100, only multiples of 16"),
        ({"hidden_act": "gelu"}, "the activation gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rotary positions of the kind yarn"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None}, "the kind dynamic"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "the kind dynamic"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}, "rotary positions of each kind of layer"),
        ({"partial_rotary_factor": 0.5}, "rotary positions on a part of a head"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights that were quantized for PyTorch"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layers of the kinds .*chunked_attention"),
        ({"model_type": "mistral", "layer_types": ["full_attention", "conv"]}, "layers of the kinds .*conv"),
        ({"model_type": "gemma"}, "knows no gemma models"),
    ],
)
def test_what_the_stack_does_not_have_is_named(folder: Path, changes: dict[str, Any], reason: str) -> None:
    refused(changed(folder, **changes), f"cannot run on the native engine: .*{reason}", engine="native")


def test_foreign_types_are_named_only_where_they_belong_to_the_model(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.rotary_emb.inv_freq"] = torch.ones(8, dtype=torch.float64)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_model(str(folder)).target.engine == "native"
    weights["model.norm.weight"] = weights["model.norm.weight"].double()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, "does not know weights of the type F64", engine="native")


def test_without_the_compiled_module_pytorch_is_taken_with_a_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "headstart._native", None)
    loaded = load_model(str(folder))
    assert loaded.target.engine == "hf"
    assert "has no compiled engine" in loaded.notes[0]
    refused(folder, "has no compiled engine", engine="native")
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(folder, r"pip install 'headstart\[torch\]' \(tiny runs on PyTorch, .* has no compiled engine", engine="auto")


def test_an_instruction_set_that_is_not_there_is_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise ValueError("HEADSTART_ISA is 'mmx'; choose one of portable")

    monkeypatch.setattr(_native, "isa", unknown)
    refused(folder, "HEADSTART_ISA is 'mmx'")


def test_a_number_of_threads_that_makes_no_sense_is_one_line_at_load(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unusable() -> int:
        raise ValueError("HEADSTART_THREADS must be a whole number from 1 to 1024, not 'x'")

    monkeypatch.setattr(_native, "num_threads", unusable)
    refused(folder, "HEADSTART_THREADS must be a whole number")


def test_options_of_the_native_engine_are_refused_elsewhere(folder: Path) -> None:
    refused(folder, "dtype int8 exists on the native engine alone.*: the target hf was chosen", dtype="int8", engine="hf")
    refused(folder, "kv_dtype float32 exists on the native engine alone", kv_dtype="float32", engine="hf")
    changed(folder, hidden_act="gelu")
    refused(folder, "dtype int8 exists .*: the native engine does not know the activation gelu", dtype="int8")


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of machines without CUDA")
def test_a_gpu_is_looked_for_where_the_device_is_open(folder: Path) -> None:
    assert load_model(str(folder), device="auto").target.engine == "native"
    refused(folder, "computes on the CPU alone", device="cuda", engine="native")
    refused(folder, "no CUDA device", device="cuda")


def test_int8_needs_rows_of_whole_blocks(tmp_path: Path) -> None:
    path = save_folder(tmp_path / "narrow", tiny_llama(head_dim=16))  # its inner size is 48
    refused(path, r"narrow: tensor model\.layers\.\d\.mlp\.down_proj\.weight cannot be packed as int8", dtype="int8")


# Settings that make no sense


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 0},
        {"num_hidden_layers": "2"},
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 3},
        {"hidden_size": -32},
        {"hidden_size": 10**12},
        {"hidden_size": None},
        {"num_attention_heads": 0},
        {"num_attention_heads": True},
        {"num_key_value_heads": 3},
        {"num_key_value_heads": [1, 2]},
        {"head_dim": 32},
        {"head_dim": 16.0},
        {"intermediate_size": {}},
        {"vocab_size": 10},
        {"rms_norm_eps": -1},
        {"rms_norm_eps": "tiny"},
        {"max_position_embeddings": 0},
        {"rope_parameters": {"rope_type": "linear", "factor": 0}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 2.0}},
        {"rope_parameters": LLAMA3 | {"low_freq_factor": 9}},
        {"rope_parameters": {"rope_theta": float("nan")}},
        {"rope_scaling": [1, 2]},
        {"model_type": "mistral", "sliding_window": -1},
        {"model_type": "mistral", "layer_types": ["full_attention"]},
        {"model_type": "mistral", "sliding_window": None, "layer_types": ["full_attention", "sliding_attention"]},
        {"model_type": "qwen2", "layer_types": ["full_attention"]},
        {"model_type": "qwen2", "sliding_window": 4, "layer_types": ["full_attention", "sliding_attention"]},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "layer_types": ["full_attention"]},
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 4, "max_window_layers": "x"},
        {"model_type": "qwen3"},
        {"model_type": "smollm3", "no_rope_layers": [1]},
        {"model_type": "smollm3", "no_rope_layers": [1, "x"]},
        {"model_type": "smollm3", "no_rope_layers": 1},
        {"model_type": "smollm3", "no_rope_layer_interval": 0},
        {"tie_word_embeddings": True, "vocab_size": 4},
    ],
)
def test_settings_that_make_no_sense_are_one_line(folder: Path, changes: dict[str, Any]) -> None:
    refused(changed(folder, **changes), "^tiny", engine="native")


def test_tensors_that_do_not_fit_are_named_alike_by_both_engines(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    for tensors, match in (
        ({key: value for key, value in weights.items() if key != name}, f"lacks the tensor {name}"),
        (weights | {name: torch.ones(8, 32)}, f"has another shape of the tensor {name}"),
    ):
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        for engine in ("native", "hf"):
            refused(folder, match, engine=engine)


def test_norms_must_be_finite(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = float("inf")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, r"model\.norm\.weight holds values that are no finite numbers", engine="native")


def test_a_smollm_like_config_is_read_without_its_optional_entries() -> None:
    config = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "vocab_size": 100,
        "rope_theta": 100.0,
        "rope_scaling": None,
    }
    checkpoint = Checkpoint("m", config, {"a": None, "b": None})  # type: ignore[dict-item]
    assert obstacle(Checkpoint("m", config, {})) is None
    settings = native_settings(checkpoint)
    assert (settings.head_size, settings.num_kv_heads, settings.norm_epsilon) == (16, 4, 1e-6)
    assert settings.inverse_frequencies[:2].tolist() == [1.0, pytest.approx(100 ** (-1 / 8))]
    assert (settings.windows, settings.biased, settings.is_tied) == ((0,), frozenset(), False)
    assert [part.name for part in settings.parts()][:3] == ["embedding", "norm", "output"]


def test_slots_misused_are_value_errors(folder: Path) -> None:
    target = native(folder)
    slot = target.open()
    with pytest.raises(ValueError, match="slot"):
        target.forward([Feed(Slot(99), Tree.root(1))])
    target.forward([Feed(slot, TREE)])
    with pytest.raises(ValueError, match=r"path|row"):
        target.keep(slot, (0, 3))
