"""The native decoder computes what its architecture says, in every kind of weights, and refuses what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from headstart import _native
from native_models import (
    MATRICES,
    Sizes,
    chain,
    feed,
    forward,
    keep,
    make_model,
    packed,
    random_weights,
    reference,
    stored,
    tensors,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

IDS = [int(token) for token in np.random.default_rng(1).integers(0, 50, 150)]

SIZE_NAMES = [name for name, value in Sizes().settings().items() if isinstance(value, int)]

FAMILIES = {
    "llama": Sizes(),
    "multi-head, untied": Sizes(num_kv_heads=4, tied=False),
    "mistral": Sizes(windows=(7, 7)),
    "one window": Sizes(windows=(0, 33)),
    "qwen2": Sizes(biases=("q", "k", "v")),
    "qwen3": Sizes(head_norms=True, head_size=32),
    "smollm3": Sizes(num_layers=4, windows=(0, 0, 0, 30), rotary=(True, True, True, False)),
    "no positions at all": Sizes(rotary=(False, False), head_norms=True),
    "all biases": Sizes(biases=MATRICES),
    "wide heads": Sizes(num_heads=3, num_kv_heads=1, head_size=64),
}


@pytest.fixture(params=_native.available_isas())
def every_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _native.isa()
    _native.choose_isa(request.param)
    yield request.param
    _native.choose_isa(before)


@pytest.mark.parametrize("sizes", FAMILIES.values(), ids=FAMILIES)
def test_float32_equals_the_reference(sizes: Sizes, every_isa: str) -> None:
    model = make_model(sizes)
    logits, hidden = feed(model, model.open(), IDS)
    expected_logits, expected_hidden = reference(sizes, random_weights(sizes), IDS)
    np.testing.assert_allclose(hidden, expected_hidden, atol=2e-5)
    np.testing.assert_allclose(logits, expected_logits, atol=2e-4)


@pytest.mark.parametrize(
    ("kind", "largest"), [("float32", 0.006), ("bfloat16", 0.01), ("q8_0", 0.04), ("q4_0", 0.04), ("q4_1", 0.04)]
)
@pytest.mark.parametrize(("kv_dtype", "head_size"), [("float32", 16), ("bfloat16", 32)])
def test_rounded_kinds_stay_near_the_reference(
    kind: str, largest: float, kv_dtype: str, head_size: int, every_isa: str
) -> None:
    """Relative error of hidden states over the same weights: activations are rounded too, and the cache.

    Blocks of 32 inputs span two heads of 16.
    """
    sizes = Sizes(windows=(0, 20), biases=("q", "k", "v"), tied=False, head_size=head_size)
    model = make_model(sizes, kind, kv_dtype)
    _, hidden = feed(model, model.open(), IDS)
    _, expected = reference(sizes, stored(random_weights(sizes), kind), IDS)
    assert np.linalg.norm(hidden - expected) < largest * np.linalg.norm(expected)


@pytest.mark.parametrize("inner_size", [96, 224])  # one group of 96 outputs, two whole ones and a rest
@pytest.mark.parametrize(
    "gated_kinds", [("q8_0", "bfloat16", "q4_0"), ("float32", "q4_1", "bfloat16"), ("q4_0", "q8_0", "float32")]
)
def test_matrices_of_one_layer_may_be_of_different_kinds(inner_size: int, gated_kinds: tuple[str, str, str]) -> None:
    sizes = Sizes(inner_size=inner_size)
    weights = random_weights(sizes)
    kinds = dict(zip(MATRICES, ("q4_1", "q8_0", "bfloat16", "float32", *gated_kinds), strict=True))
    mixed: dict[str, Any] = tensors(weights, "float32")
    expected = dict(weights)
    for layer in range(sizes.num_layers):
        for name, kind in kinds.items():
            key = f"layers.{layer}.{name}"
            mixed[key] = packed(weights[key], kind)
            expected[key] = mixed[key].rows(np.arange(len(weights[key])))
    model = _native.Model(sizes.settings(), mixed)
    _, hidden = feed(model, model.open(), IDS)
    _, wanted = reference(sizes, expected, IDS)
    assert np.linalg.norm(hidden - wanted) < 0.04 * np.linalg.norm(wanted)


def _llama() -> tuple[Any, Sizes]:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500.0,
    }
    config = transformers.LlamaConfig(
        **_config(), rope_parameters=scaling, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    )
    return transformers.LlamaForCausalLM(config), Sizes(biases=MATRICES)


def _mistral() -> tuple[Any, Sizes]:
    model = transformers.MistralForCausalLM(
        transformers.MistralConfig(**_config(), sliding_window=9, tie_word_embeddings=False)
    )
    return model, Sizes(windows=(9, 9), tied=False)


def _qwen2() -> tuple[Any, Sizes]:
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_config(), tie_word_embeddings=True))
    return model, Sizes(biases=("q", "k", "v"))


def _qwen3() -> tuple[Any, Sizes]:
    config = transformers.Qwen3Config(**_config() | {"head_dim": 32}, tie_word_embeddings=False)
    return transformers.Qwen3ForCausalLM(config), Sizes(head_size=32, head_norms=True, tied=False)


def _smollm3() -> tuple[Any, Sizes]:
    config = transformers.SmolLM3Config(
        **_config() | {"num_hidden_layers": 5},
        no_rope_layer_interval=2,
        use_sliding_window=True,
        sliding_window=9,
        attention_bias=True,
        mlp_bias=True,
    )
    sizes = Sizes(num_layers=5, windows=(0, 9, 0, 9, 0), rotary=(True, False, True, False, True), biases=MATRICES)
    return transformers.SmolLM3ForCausalLM(config), sizes


def _config() -> dict[str, Any]:
    sizes = Sizes()
    return {
        "vocab_size": sizes.vocab_size,
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.inner_size,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_size,
        "rms_norm_eps": sizes.norm_epsilon,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


_NAMES = {
    "input_layernorm.weight": "attention_norm",
    "post_attention_layernorm.weight": "mlp_norm",
    "self_attn.q_norm.weight": "q_norm",
    "self_attn.k_norm.weight": "k_norm",
    "self_attn.o_proj.weight": "attention_output",
    "self_attn.o_proj.bias": "attention_output_bias",
    **{f"self_attn.{name}_proj.weight": name for name in "qkv"},
    **{f"self_attn.{name}_proj.bias": f"{name}_bias" for name in "qkv"},
    **{f"mlp.{name}_proj.weight": name for name in ("gate", "up", "down")},
    **{f"mlp.{name}_proj.bias": f"{name}_bias" for name in ("gate", "up", "down")},
}


def _named(model: Any, sizes: Sizes) -> dict[str, Any]:
    found = {name: values.numpy() for name, values in model.state_dict().items()}
    weights = {"embedding": found["model.embed_tokens.weight"], "norm": found["model.norm.weight"]}
    if not sizes.tied:
        weights["output"] = found["lm_head.weight"]
    for name, values in found.items():
        if name.startswith("model.layers."):
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            weights[f"layers.{layer}.{_NAMES[rest]}"] = values
    return weights


@pytest.mark.parametrize("build", [_llama, _mistral, _qwen2, _qwen3, _smollm3])
def test_equals_transformers(build: Callable[[], tuple[Any, Sizes]]) -> None:
    torch.manual_seed(0)
    theirs, sizes = build()
    with torch.no_grad():
        for values in theirs.parameters():  # their initial weights are so small that nothing would be told apart
            scale, mean = (1.5 * values.shape[-1] ** -0.5, 0) if values.ndim == 2 else (0.2, 1)
            values.copy_(torch.randn_like(values) * scale + mean)
        expected = theirs.eval()(input_ids=torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    sizes = replace(sizes, inverse_frequencies=tuple(theirs.model.rotary_emb.inv_freq.double().tolist()))
    ours = _native.Model(sizes.settings(), tensors(_named(theirs, sizes), "float32"))
    logits, _ = feed(ours, ours.open(), IDS)
    np.testing.assert_allclose(logits, expected, atol=2e-4)


def test_only_rows_from_first_scored_on_are_scored() -> None:
    model = make_model(Sizes())
    slots = [model.open() for _ in range(4)]
    whole = forward(model, chain(slots[0], IDS[:9]))
    result = forward(model, chain(slots[1], IDS[:9], 8), chain(slots[2], IDS[:9], 9), chain(slots[3], IDS[:9], 3))
    assert result.num_rows == 7 and result.logits.shape == (7, 50) and result.hidden.shape == (7, 64)
    np.testing.assert_array_equal(result.logits, whole.logits[[8, 3, 4, 5, 6, 7, 8]])
    np.testing.assert_array_equal(result.hidden, whole.hidden[[8, 3, 4, 5, 6, 7, 8]])


def test_padding_rows_of_the_output_matrix_are_not_shown() -> None:
    sizes = Sizes()
    weights = tensors(random_weights(sizes), "bfloat16")
    model = _native.Model(sizes.settings() | {"vocab_size": 47}, weights)
    whole = _native.Model(sizes.settings(), weights)
    logits, _ = feed(model, model.open(), IDS[:5])
    assert logits.shape == (5, 47)
    np.testing.assert_array_equal(logits, feed(whole, whole.open(), IDS[:5])[0][:, :47])


def test_a_result_stays_as_it_was() -> None:
    """Also after later forwards, and after its model is gone."""
    model = make_model(Sizes())
    slot = model.open()
    result = forward(model, chain(slot, IDS[:9]))
    logits, before = result.logits, result.logits.copy()
    for _ in range(5):
        keep(model, slot, ())
        forward(model, chain(slot, IDS[9:18]))
    del model, result
    np.testing.assert_array_equal(logits, before)


def test_the_profile_counts_only_when_asked() -> None:
    model = make_model(Sizes())
    feed(model, model.open(), IDS)
    assert set(model.profile().values()) == {0.0}
    model.enable_profile(True)
    feed(model, model.open(), IDS)
    assert set(model.profile()) == {"linear", "attention", "other"} and min(model.profile().values()) > 0


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *[(name, value) for name in SIZE_NAMES for value in (-1, 0, 2**40, 2**70, 1.5, "x", None)],
        ("hidden_size", 24),
        ("num_heads", 3),
        ("head_size", 24),
        ("head_size", 2**25),
        ("vocab_size", 51),
        ("norm_epsilon", float("nan")),
        ("norm_epsilon", -1.0),
        ("inverse_frequencies", [1.0]),
        ("inverse_frequencies", [float("inf")] * 8),
        ("inverse_frequencies", 5),
        ("inverse_frequencies", ["a"] * 8),
        ("windows", [0]),
        ("windows", [0, -1]),
        ("windows", [0, 2**40]),
        ("windows", [0, 1.5]),
        ("rotary", [True]),
        ("rotary", [True] * 3),
        ("rotary", [True, 0]),
        ("rotary", [1, 1]),
        ("rotary", [True, None]),
        ("rotary", True),
        ("rotary", "tf"),
        ("kv_dtype", "float16"),
        ("kv_dtype", 3),
        ("colour", 3),
    ],
)
def test_wrong_settings_are_refused_by_name(setting: str, value: object) -> None:
    weights = tensors(random_weights(Sizes()), "float32")
    with pytest.raises(ValueError, match=setting):
        _native.Model(Sizes().settings() | {setting: value}, weights)


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("num_layers", 1, "windows"),
        ("hidden_size", 128, "embedding is a matrix of 50 x 64; it must be 50 x 128"),
        ("num_heads", 2, r"layers\.0\.q is a matrix of 64 x 64; it must be 32 x 64"),
        ("num_kv_heads", 4, r"layers\.0\.k is a matrix of 32 x 64; it must be 64 x 64"),
        ("head_size", 32, "inverse_frequencies has 8 values"),
        ("inner_size", 112, r"layers\.0\.gate is a matrix of 96 x 64; it must be 112 x 64"),
    ],
)
def test_settings_that_contradict_the_tensors_are_refused(setting: str, value: int, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        _native.Model(Sizes().settings() | {setting: value}, tensors(random_weights(Sizes()), "float32"))


@pytest.mark.parametrize("name", list(Sizes().settings()))
def test_missing_settings_are_refused_by_name(name: str) -> None:
    settings = Sizes().settings()
    del settings[name]
    with pytest.raises(ValueError, match=f"setting '{name}' is missing"):
        _native.Model(settings, tensors(random_weights(Sizes()), "float32"))


@pytest.mark.parametrize("name", list(random_weights(replace(Sizes(num_layers=1), biases=("q",), head_norms=True))))
def test_wrong_tensors_are_refused_by_name(name: str) -> None:
    sizes = Sizes(num_layers=1, windows=(0,), rotary=(True,), biases=("q",), head_norms=True)
    weights = random_weights(sizes)
    good = tensors(weights, "float32")
    _native.Model(sizes.settings(), good)
    half = weights[name][..., : weights[name].shape[-1] // 2]
    wrong = packed(np.ascontiguousarray(half), "float32") if half.ndim == 2 else half
    other = weights["norm"] if half.ndim == 2 else good["embedding"]
    for bad in (wrong, other, None, 3, np.zeros((2, 2, 2), dtype=np.float32)):
        with pytest.raises(ValueError, match=name.rsplit(".", 1)[-1]):
            _native.Model(sizes.settings(), good | {name: bad})
    if name not in ("layers.0.q_bias", "layers.0.q_norm", "layers.0.k_norm"):
        with pytest.raises(ValueError, match=f"'{name}' is missing"):
            _native.Model(sizes.settings(), {key: value for key, value in good.items() if key != name})


def test_unknown_tensors_are_refused_by_name() -> None:
    good = tensors(random_weights(Sizes()), "float32")
    with pytest.raises(ValueError, match=r"layers\.2\.q"):
        _native.Model(Sizes().settings(), good | {"layers.2.q": good["layers.0.q"]})
