"""Tiny decoders with random weights, for the native engine, and what they compute, in plain float64 numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart import _native

Array = NDArray[Any]
Entry = tuple[int, Sequence[int], Sequence[int], int]
"""Slot, tokens, parents, first scored row."""

MATRICES = ("q", "k", "v", "attention_output", "gate", "up", "down")


@dataclass(frozen=True)
class Sizes:
    num_layers: int = 2
    hidden_size: int = 64
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 16
    inner_size: int = 96
    vocab_size: int = 50
    context_limit: int = 512
    norm_epsilon: float = 1e-5
    windows: tuple[int, ...] = (0, 0)
    rotary: tuple[bool, ...] = (True, True)
    biases: tuple[str, ...] = ()
    head_norms: bool = False
    tied: bool = True
    inverse_frequencies: tuple[float, ...] = field(default=())

    def frequencies(self) -> list[float]:
        """As given, or the plain ones of base 10,000."""
        if self.inverse_frequencies:
            return list(self.inverse_frequencies)
        return [float(10_000.0 ** (-2 * i / self.head_size)) for i in range(self.head_size // 2)]

    def settings(self, kv_dtype: str = "float32") -> dict[str, Any]:
        """What ``_native.Model`` wants to know."""
        names = (
            "num_layers",
            "hidden_size",
            "num_heads",
            "num_kv_heads",
            "head_size",
            "inner_size",
            "norm_epsilon",
            "context_limit",
        )
        found = {name: getattr(self, name) for name in (*names, "vocab_size")}
        found |= {"inverse_frequencies": self.frequencies(), "windows": list(self.windows), "rotary": list(self.rotary)}
        return found | {"kv_dtype": kv_dtype}

    def shape(self, matrix: str) -> tuple[int, int]:
        """[outputs, inputs] of a layer's matrix."""
        query, kv = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        outputs = {"q": query, "k": kv, "v": kv, "gate": self.inner_size, "up": self.inner_size}.get(matrix, self.hidden_size)
        return outputs, {"attention_output": query, "down": self.inner_size}.get(matrix, self.hidden_size)


def random_weights(sizes: Sizes, seed: int = 0) -> dict[str, Array]:
    """Float32 matrices and vectors by the names of ``_native.Model``; no output matrix if tied."""
    rng = np.random.default_rng(seed)

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    weights = {"embedding": normal(sizes.vocab_size, sizes.hidden_size), "norm": 1 + normal(sizes.hidden_size, scale=0.1)}
    if not sizes.tied:
        weights["output"] = normal(sizes.vocab_size, sizes.hidden_size)
    for layer in range(sizes.num_layers):
        prefix = f"layers.{layer}."
        for name in MATRICES:
            outputs, inputs = sizes.shape(name)
            weights[prefix + name] = normal(outputs, inputs, scale=1.5 * inputs**-0.5)
            if name in sizes.biases:
                weights[f"{prefix}{name}_bias"] = normal(outputs, scale=0.5)
        for name in ("attention_norm", "mlp_norm"):
            weights[prefix + name] = 1 + normal(sizes.hidden_size, scale=0.1)
        for name in ("q_norm", "k_norm") if sizes.head_norms else ():
            weights[prefix + name] = 1 + normal(sizes.head_size, scale=0.3)
    return {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in weights.items()}


def packed(values: Array, kind: str) -> _native.Matrix:
    """A float32 array as a matrix of this kind; 4-bit kinds come from blocks written here."""
    outputs, inputs = values.shape
    if kind in ("q4_0", "q4_1"):
        return _native.Matrix(_four_bit_blocks(values, kind), kind, kind, outputs, inputs)
    return _native.Matrix(values.reshape(-1).view(np.uint8), "float32", kind, outputs, inputs)


def _four_bit_blocks(values: Array, kind: str) -> Array:
    """GGUF's blocks of 32: float16 scale (and minimum), then 16 bytes of which the low halves come first."""
    blocks = values.reshape(-1, 32)
    if kind == "q4_1":
        low = blocks.min(axis=1, keepdims=True).astype(np.float16)
        scale = ((blocks.max(axis=1, keepdims=True) - low) / 15).astype(np.float16)
        head = np.concatenate([scale, low], axis=1).view(np.uint8)
        digits = np.rint((blocks - low.astype(np.float32)) / scale.astype(np.float32))
    else:
        scale = (np.abs(blocks).max(axis=1, keepdims=True) / 7).astype(np.float16)
        head = scale.view(np.uint8)
        digits = np.rint(blocks / scale.astype(np.float32)) + 8
    digits = np.clip(digits, 0, 15).astype(np.uint8)
    return np.concatenate([head, digits[:, :16] | (digits[:, 16:] << 4)], axis=1).reshape(-1)


def tensors(weights: Mapping[str, Array], kind: str) -> dict[str, Any]:
    """Matrices packed, vectors as they are."""
    return {name: packed(values, kind) if values.ndim == 2 else values for name, values in weights.items()}


def stored(weights: Mapping[str, Array], kind: str) -> dict[str, Array]:
    """The same weights as the engine sees them after packing, in float64."""

    def read(values: Array) -> Array:
        if values.ndim == 1:
            return values.astype(np.float64)
        rows: Array = packed(values, kind).rows(np.arange(len(values)))
        return rows.astype(np.float64)

    return {name: read(values) for name, values in weights.items()}


def make_model(sizes: Sizes, kind: str = "float32", kv_dtype: str = "float32", seed: int = 0) -> _native.Model:
    """A random decoder on the native engine."""
    return _native.Model(sizes.settings(kv_dtype), tensors(random_weights(sizes, seed), kind))


def forward(model: _native.Model, *entries: Entry) -> _native.Result:
    """One forward over (slot, tokens, parents, first scored row)."""
    starts = np.cumsum([0, *(len(tokens) for _, tokens, _, _ in entries)])
    flat_tokens = [token for _, tokens, _, _ in entries for token in tokens]
    flat_parents = [parent for _, _, parents, _ in entries for parent in parents]
    return model.forward(
        np.array([slot for slot, _, _, _ in entries], dtype=np.int64),
        starts.astype(np.int64),
        np.array(flat_tokens, dtype=np.int32),
        np.array(flat_parents, dtype=np.int32),
        np.array([first for _, _, _, first in entries], dtype=np.int64),
    )


def chain(slot: int, tokens: Sequence[int], first_scored: int = 0) -> Entry:
    """A prompt."""
    return slot, tokens, range(-1, len(tokens) - 1), first_scored


def keep(model: _native.Model, slot: int, path: Sequence[int]) -> None:
    """Commit a path."""
    model.keep(slot, np.array(path, dtype=np.int64))


def feed(model: _native.Model, slot: int, tokens: Sequence[int]) -> tuple[Array, Array]:
    """Feed and keep a chain; copies of its logits and hidden states."""
    result = forward(model, chain(slot, tokens))
    keep(model, slot, range(len(tokens)))
    return result.logits.copy(), result.hidden.copy()


def reference(sizes: Sizes, weights: Mapping[str, Array], ids: Sequence[int]) -> tuple[Array, Array]:
    """Logits [n, V] and normalised hidden states [n, D] of one chain, in float64."""
    weights = {name: values.astype(np.float64) for name, values in weights.items()}
    x = weights["embedding"][list(ids)]
    for layer in range(sizes.num_layers):
        own = {name.removeprefix(f"layers.{layer}."): values for name, values in weights.items() if f"layers.{layer}." in name}
        x = x + _attention(sizes, own, _norm(x, own["attention_norm"], sizes), layer)
        normed = _norm(x, own["mlp_norm"], sizes)
        gate = _affine(own, "gate", normed)
        x = x + _affine(own, "down", gate / (1 + np.exp(-gate)) * _affine(own, "up", normed))
    hidden = _norm(x, weights["norm"], sizes)
    return hidden @ weights.get("output", weights["embedding"]).T, hidden


def _norm(x: Array, weight: Array, sizes: Sizes) -> Array:
    scaled: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + sizes.norm_epsilon) * weight
    return scaled


def _affine(own: Mapping[str, Array], name: str, x: Array) -> Array:
    return x @ own[name].T + own.get(f"{name}_bias", 0.0)


def _attention(sizes: Sizes, own: Mapping[str, Array], x: Array, layer: int) -> Array:
    n, half, window = len(x), sizes.head_size // 2, sizes.windows[layer]

    def heads(name: str) -> Array:  # [heads, n, head_size]
        found = _affine(own, name, x).reshape(n, -1, sizes.head_size)
        if f"{name}_norm" in own:
            found = _norm(found, own[f"{name}_norm"], sizes)
        return found.transpose(1, 0, 2)

    def turned(found: Array) -> Array:
        if not sizes.rotary[layer]:
            return found
        angles = np.arange(n)[:, None] * np.array(sizes.frequencies())
        cos, sin, a, b = np.cos(angles), np.sin(angles), found[..., :half], found[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    group = sizes.num_heads // sizes.num_kv_heads
    q, k, v = turned(heads("q")), turned(heads("k")).repeat(group, axis=0), heads("v").repeat(group, axis=0)
    distance = np.arange(n)[:, None] - np.arange(n)
    seen = (distance >= 0) & ((window == 0) | (distance < window))
    scores = np.where(seen, q @ k.transpose(0, 2, 1) / np.sqrt(sizes.head_size), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (weights / weights.sum(-1, keepdims=True)) @ v
    return _affine(own, "attention_output", mixed.transpose(1, 0, 2).reshape(n, -1))
