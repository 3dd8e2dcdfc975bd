"""What the native engine must know of a model, read from a ``config.json``'s words; and which models it cannot run.

The native stack is that of the Llama family: RMS norms, rotary positions over whole heads, grouped-query attention (full or
within a sliding window), SwiGLU. Llama, Mistral, Qwen2 and Qwen3 differ by biases, norms on queries and keys, and windows; in
SmolLM3 every fourth layer has no rotary positions (Yang et al. 2025, "RoPE to NoPE and back again").
Rotary frequencies are plain, scaled as a whole (``linear``), or scaled by wavelength (``llama3``; Meta's Llama 3.1 reference
code): long waves by ``factor``, short ones not at all, those between by interpolation. All layers share them.
Where a config says a thing twice, the reading is that of transformers 5: ``rope_scaling`` replaces ``rope_parameters``, and
``layer_types`` alone says which layers have a window (a ``mistral`` that has them is what transformers calls Ministral).

A model that declares anything else is left to PyTorch: :func:`obstacle` says in words what stands in the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ModelError
from headstart.target.checkpoint import Checkpoint

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
_ROPES = ("default", "linear", "llama3")
_LAYERS = ("full_attention", "sliding_attention")
_FOREIGN_TYPES = {"BOOL", "C64", "F64", "F4", "F8_E4M3", "F8_E5M2", "F8_E8M0"}
_FOREIGN_TYPES |= {f"{sign}{bits}" for sign in "IU" for bits in (8, 16, 32, 64)}
_LANES = 16  # the sizes of heads, hidden states and MLPs are multiples of it
_QWEN3_HEAD_SIZE = 128  # where a config does not say it
_MISTRAL_WINDOW, _QWEN_WINDOW, _QWEN_FULL_LAYERS = 4096, 4096, 28  # likewise
_ROTARY_BASE, _SMOLLM3_ROTARY_BASE, _SMOLLM3_INTERVAL = 10_000.0, 2_000_000.0, 4  # likewise
_ATTENTION = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "attention_output": "o_proj"}
_MLP = {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}


class Part(NamedTuple):
    """One tensor that the model needs: transformers' name, the native stack's, and its shape."""

    stored_name: str
    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NativeSettings:
    """Sizes of a stack of the Llama family, and which optional parts it has."""

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    inner_size: int
    norm_epsilon: float
    context_limit: int
    num_embeddings: int  # rows of the embedding, padding rows included
    is_tied: bool  # whether the embedding is the output matrix, too
    inverse_frequencies: NDArray[np.float64]  # [head_size / 2]
    windows: tuple[int, ...]  # positions that each layer sees, its own included; 0: all
    rotary: tuple[bool, ...]  # whether each layer turns its queries and keys by their positions
    biased: frozenset[str]  # projections that have a bias
    has_qk_norms: bool

    def parts(self) -> Iterator[Part]:
        """Every tensor of the model."""
        wide, vocabulary = self.hidden_size, self.num_embeddings
        yield Part("model.embed_tokens.weight", "embedding", (vocabulary, wide))
        yield Part("model.norm.weight", "norm", (wide,))
        if not self.is_tied:
            yield Part("lm_head.weight", "output", (vocabulary, wide))
        for layer in range(self.num_layers):
            yield from self._layer(f"model.layers.{layer}.", f"layers.{layer}.")

    def _layer(self, stored: str, own: str) -> Iterator[Part]:
        wide, inner = self.hidden_size, self.inner_size
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        yield Part(f"{stored}input_layernorm.weight", f"{own}attention_norm", (wide,))
        yield Part(f"{stored}post_attention_layernorm.weight", f"{own}mlp_norm", (wide,))
        if self.has_qk_norms:
            for norm in ("q_norm", "k_norm"):
                yield Part(f"{stored}self_attn.{norm}.weight", f"{own}{norm}", (self.head_size,))
        sizes = {"q": (queries, wide), "k": (keys, wide), "v": (keys, wide), "attention_output": (wide, queries)}
        sizes |= {"gate": (inner, wide), "up": (inner, wide), "down": (wide, inner)}
        for name, shape in sizes.items():
            module = f"self_attn.{_ATTENTION[name]}" if name in _ATTENTION else f"mlp.{_MLP[name]}"
            yield Part(f"{stored}{module}.weight", f"{own}{name}", shape)
            if name in self.biased:
                yield Part(f"{stored}{module}.bias", f"{own}{name}_bias", shape[:1])

    def first(self, count: int) -> NativeSettings:
        """The settings of the first ``count`` layers."""
        return replace(self, num_layers=count, windows=self.windows[:count], rotary=self.rotary[:count])

    def stack(self, vocab_size: int, kv_dtype: str) -> dict[str, Any]:
        """What the compiled stack is told; ``vocab_size``: ids that may be sampled."""
        names = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "inner_size", "norm_epsilon")
        told = {name: getattr(self, name) for name in (*names, "context_limit", "inverse_frequencies")}
        told |= {"windows": list(self.windows), "rotary": list(self.rotary)}
        return told | {"vocab_size": vocab_size, "kv_dtype": kv_dtype}


def obstacle(checkpoint: Checkpoint) -> str | None:
    """Why the native engine cannot run a model, as the end of a sentence; None if it can."""
    config = checkpoint.config
    if checkpoint.family not in FAMILIES:
        return f"the native engine knows no {checkpoint.family} models"
    try:
        missing = _foreign(config)
    except ModelError as error:
        raise ModelError(f"{checkpoint.name}: its settings fit no {checkpoint.family} model: {error}") from None
    weights = (tensor for name, tensor in checkpoint.tensors.items() if name.endswith((".weight", ".bias")))
    kinds = {tensor.kind for tensor in weights} & _FOREIGN_TYPES
    if missing is None and kinds:
        missing = f"weights of the type {min(kinds)}"
    return None if missing is None else f"the native engine does not know {missing}"


def _foreign(config: Mapping[str, Any]) -> str | None:
    """The first thing that a config declares and the stack does not have."""
    rope = _rope(config)
    kind = rope.get("rope_type", rope.get("type", "default"))
    part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", 1))
    layers = config.get("layer_types")
    known_layers = layers is None or (isinstance(layers, list) and all(layer in _LAYERS for layer in layers))
    sizes = {"heads of the size": _head_size(config)}
    sizes |= {f"models of the {name}": _whole(config, name) for name in ("hidden_size", "intermediate_size")}
    found = {
        "weights that were quantized for PyTorch": config.get("quantization_config") is not None,
        f"the activation {config.get('hidden_act')}": config.get("hidden_act", "silu") != "silu",
        f"rotary positions of the kind {kind}": kind not in _ROPES,
        "rotary positions of each kind of layer": any(isinstance(value, dict) for value in rope.values()),
        "rotary positions on a part of a head": part not in (1, None),
        f"layers of the kinds {layers}": not known_layers,
    }
    found |= {f"{what} {size}, only multiples of {_LANES}": size % _LANES != 0 for what, size in sizes.items()}
    return next((what for what, is_there in found.items() if is_there), None)


def native_settings(checkpoint: Checkpoint) -> NativeSettings:
    """Read the settings of a model without obstacle. ``ModelError`` names one that is missing or makes no sense."""
    config = checkpoint.config
    try:
        num_heads, num_layers = _whole(config, "num_attention_heads"), _whole(config, "num_hidden_layers")
        rotary = _rotary(config, num_layers, len(checkpoint.tensors))
        settings = NativeSettings(
            num_layers=num_layers,
            hidden_size=_whole(config, "hidden_size"),
            num_heads=num_heads,
            num_kv_heads=_whole(config, "num_key_value_heads", num_heads),
            head_size=_head_size(config),
            inner_size=_whole(config, "intermediate_size"),
            norm_epsilon=_positive(config, "rms_norm_eps", 1e-6),
            context_limit=_whole(config, "max_position_embeddings"),
            num_embeddings=_whole(config, "vocab_size"),
            is_tied=_is_tied(checkpoint),
            inverse_frequencies=_inverse_frequencies(config, checkpoint.rotary_factors),
            windows=_windows(config, rotary),
            rotary=rotary,
            biased=_biased(config),
            has_qk_norms=checkpoint.family == "qwen3",
        )
    except ModelError as error:
        raise ModelError(f"{checkpoint.name}: its settings fit no {checkpoint.family} model: {error}") from None
    if settings.num_heads % settings.num_kv_heads:
        raise ModelError(
            f"{checkpoint.name}: its settings fit no {checkpoint.family} model: {settings.num_heads} heads do not divide "
            f"into {settings.num_kv_heads} groups"
        )
    return settings


def _whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    value = default if value is None else value
    if type(value) is not int or not 0 < value < 1 << 31:
        raise ModelError(f"{name} is {value!r}, which is no whole number above 0")
    return value


def _positive(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = config.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelError(f"{name} is {value!r}, which is no number above 0")
    return float(value)


def _head_size(config: Mapping[str, Any]) -> int:
    fallback = _QWEN3_HEAD_SIZE if config.get("model_type") == "qwen3" else None
    if fallback is None and config.get("head_dim") is None:
        fallback = _whole(config, "hidden_size") // _whole(config, "num_attention_heads")
    return _whole(config, "head_dim", fallback)


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rotary settings in the words of transformers 5; older folders spread them over ``rope_scaling`` and others."""
    base = _SMOLLM3_ROTARY_BASE if config.get("model_type") == "smollm3" else _ROTARY_BASE
    name = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    found = config.get(name) or {}
    if not isinstance(found, dict):
        raise ModelError(f"{name} is {found!r}, which holds no named settings")
    return {"rope_theta": config.get("rope_theta", base)} | found


def _inverse_frequencies(config: Mapping[str, Any], factors: NDArray[np.float32] | None) -> NDArray[np.float64]:
    with np.errstate(all="ignore"):
        frequencies = _frequencies(config)
        if factors is not None:
            frequencies = frequencies / factors
    if not (np.isfinite(frequencies) & (frequencies > 0)).all():
        raise ModelError("its rotary frequencies are not all finite and above 0")
    return frequencies


def _frequencies(config: Mapping[str, Any]) -> NDArray[np.float64]:
    rope, size = _rope(config), _head_size(config)
    frequencies = _positive(rope, "rope_theta") ** -(np.arange(0, size, 2, dtype=np.float64) / size)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "linear":
        frequencies /= _positive(rope, "factor")
    elif kind == "llama3":
        frequencies = _by_wavelength(frequencies, rope, config)
    return frequencies


def _by_wavelength(frequencies: NDArray[np.float64], rope: Mapping[str, Any], config: Mapping[str, Any]) -> NDArray[np.float64]:
    factor, low, high = (_positive(rope, name) for name in ("factor", "low_freq_factor", "high_freq_factor"))
    name = "original_max_position_embeddings"
    trained = _positive(rope if name in rope else config, name)
    if low >= high:
        raise ModelError(f"low_freq_factor is {low}, which is not below high_freq_factor")
    turns = trained * frequencies / (2 * math.pi)  # within the context that the model was first trained on
    share = np.clip((turns - low) / (high - low), 0, 1)  # 0: scale whole, 1: leave as it is
    scaled: NDArray[np.float64] = frequencies * (share + (1 - share) / factor)
    return scaled


def _rotary(config: Mapping[str, Any], num_layers: int, num_tensors: int) -> tuple[bool, ...]:
    if num_layers > num_tensors:
        raise ModelError(f"num_hidden_layers is {num_layers}, but there are only {num_tensors} tensors")
    if config["model_type"] != "smollm3":
        return (True,) * num_layers
    flags = config.get("no_rope_layers")  # 1 where there *are* rotary positions
    if flags is None:
        interval = _whole(config, "no_rope_layer_interval", _SMOLLM3_INTERVAL)
        return tuple((layer + 1) % interval != 0 for layer in range(num_layers))
    if not isinstance(flags, list) or len(flags) < num_layers or any(flag not in (0, 1) for flag in flags):
        raise ModelError(f"no_rope_layers is {flags!r}; it must name each of {num_layers} layers by 0 or 1")
    return tuple(bool(flag) for flag in flags[:num_layers])


def _windows(config: Mapping[str, Any], rotary: tuple[bool, ...]) -> tuple[int, ...]:
    if config["model_type"] == "llama":  # it has no windows, whatever its config says
        return (0,) * len(rotary)
    window = _window(config)
    kinds = config.get("layer_types")
    slides = _slides(config, rotary) if kinds is None else tuple(kind == "sliding_attention" for kind in kinds)
    if len(slides) != len(rotary):
        raise ModelError(f"layer_types names {len(slides)} layers of {len(rotary)}")
    if kinds is not None and any(slides) and not window:
        raise ModelError("layer_types names layers of sliding_attention, but no sliding_window is in use")
    return tuple(window if does_slide else 0 for does_slide in slides)


def _window(config: Mapping[str, Any]) -> int:
    """Positions that a sliding layer sees; 0 where the config has no window."""
    family = config["model_type"]
    default = _MISTRAL_WINDOW if family == "mistral" else None if family == "smollm3" else _QWEN_WINDOW
    # SmolLM3's use_sliding_window only says which layers slide where layer_types does not
    is_off = family in ("qwen2", "qwen3") and not config.get("use_sliding_window")
    if is_off or config.get("sliding_window", default) is None:
        return 0
    return _whole(config, "sliding_window", default)


def _slides(config: Mapping[str, Any], rotary: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers have the window, if there is one, where ``layer_types`` does not say it."""
    family = config["model_type"]
    if family == "mistral":
        return (True,) * len(rotary)
    if family == "smollm3":
        return tuple(bool(config.get("use_sliding_window")) and not is_rotary for is_rotary in rotary)
    first = config.get("max_window_layers", _QWEN_FULL_LAYERS)
    if type(first) is not int:
        raise ModelError(f"max_window_layers is {first!r}, which is no whole number")
    return tuple(layer >= first for layer in range(len(rotary)))


def _biased(config: Mapping[str, Any]) -> frozenset[str]:
    family = config["model_type"]
    if family == "qwen2":
        return frozenset("qkv")
    found: set[str] = set()
    if family in ("llama", "qwen3", "smollm3") and config.get("attention_bias"):
        found |= set(_ATTENTION)
    if family in ("llama", "smollm3") and config.get("mlp_bias"):
        found |= set(_MLP)
    return frozenset(found)


def _is_tied(checkpoint: Checkpoint) -> bool:
    """As declared; but where both matrices are stored and differ, both are used (as transformers does)."""
    if not checkpoint.config.get("tie_word_embeddings", checkpoint.family == "smollm3"):
        return False
    output, embedding = (checkpoint.tensors.get(name) for name in ("lm_head.weight", "model.embed_tokens.weight"))
    if output is None or embedding is None or output.shape != embedding.shape:
        return True
    return output.kind == embedding.kind and np.array_equal(output.data(), embedding.data())
