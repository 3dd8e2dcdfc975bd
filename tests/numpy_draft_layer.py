"""A drafting decoder layer in plain float64 numpy, row by row: what the engines' layers must compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headstart.layer_sizes import LayerSizes
from headstart.sampling import log_softmax
from headstart.target.base import Feed, Slot
from headstart.tree import Path

Array = NDArray[Any]


class NumpyLayerScored:
    def __init__(self, logits: dict[tuple[int, int], Array], own: dict[tuple[int, int], Array]) -> None:
        self._logits, self._own = logits, own

    def logits(self, rows: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
        return np.stack([self._logits[row] for row in rows]).astype(np.float32)

    def likeliest(self, rows: Sequence[tuple[int, int]], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        values = log_softmax(self.logits(rows))
        order = np.argsort(-values, axis=1, kind="stable")[:, :k].astype(np.int64)
        return order, np.take_along_axis(values, order, axis=1)

    def hidden(self, rows: Sequence[tuple[int, int]]) -> Array:
        return np.stack([self._own[row] for row in rows])


class NumpyDraftLayer:
    """Implements ``heads.operations.DraftLayer``; counts its forwards and the rows that it was fed."""

    def __init__(self, sizes: LayerSizes, tensors: Mapping[str, Array], embedding: Array, output: Array) -> None:
        self.sizes, self.output, self.embedding = sizes, output.astype(np.float64), embedding.astype(np.float64)
        self.weights = {name.removeprefix("layers.0."): np.asarray(v, dtype=np.float64) for name, v in tensors.items()}
        self.rows: dict[Slot, list[tuple[Array, Array]]] = {}  # committed keys and values
        self.pending: dict[Slot, list[tuple[Array, Array]]] = {}
        self.num_opened = self.num_forwards = self.num_rows = 0

    def open(self) -> Slot:
        self.num_opened += 1
        self.rows[Slot(self.num_opened)] = []
        return Slot(self.num_opened)

    def length(self, slot: Slot) -> int:
        return len(self.rows[slot])

    def fork(self, slot: Slot) -> Slot:
        twin = self.open()
        self.rows[twin] = list(self.rows[slot])
        return twin

    def close(self, slot: Slot) -> None:
        del self.rows[slot]
        self.pending.pop(slot, None)

    def cache_bytes(self) -> int:
        return sum(map(len, self.rows.values()))

    def keep(self, slot: Slot, path: Path) -> None:
        fed = self.pending.pop(slot)
        self.rows[slot] += [fed[row] for row in path]

    def forward(self, batch: Sequence[Feed], hidden: Array) -> NumpyLayerScored:
        self.num_forwards += 1
        self.num_rows += len(hidden)
        assert len(hidden) == sum(len(feed.tree) for feed in batch)
        logits, own, at = {}, {}, 0
        for entry, feed in enumerate(batch):
            assert feed.slot not in self.pending, "keep comes first"
            fed: list[tuple[Array, Array]] = []
            for row, token in enumerate(feed.tree.tokens):
                position = self.length(feed.slot) + feed.tree.depths[row]
                state = np.asarray(hidden[at + row], dtype=np.float64)
                read = np.concatenate([self._norm(self.embedding[token], "input_layernorm"), self._norm(state, "hidden_norm")])
                fed.append((self._turned(self._heads("k", read), position), self._heads("v", read)))
                ancestors = [fed[i] for i in np.flatnonzero(feed.tree.ancestors()[row])]
                found = self._attended(self._turned(self._heads("q", read), position), self.rows[feed.slot] + ancestors)
                x = state + self.weights["self_attn.o_proj.weight"] @ found
                normed = self._norm(x, "post_attention_layernorm")
                gate = self.weights["mlp.gate_proj.weight"] @ normed
                inner = gate / (1 + np.exp(-gate)) * (self.weights["mlp.up_proj.weight"] @ normed)
                x = x + self.weights["mlp.down_proj.weight"] @ inner
                if row >= feed.first_scored:
                    own[entry, row], logits[entry, row] = x, self.output @ self._norm(x, "norm")
            self.pending[feed.slot] = fed
            at += len(feed.tree)
        return NumpyLayerScored(logits, own)

    def _norm(self, x: Array, name: str) -> Array:
        scaled: Array = x / np.sqrt((x * x).mean() + self.sizes.rms_norm_eps) * self.weights[f"{name}.weight"]
        return scaled

    def _heads(self, name: str, read: Array) -> Array:
        projected: Array = self.weights[f"self_attn.{name}_proj.weight"] @ read
        return projected.reshape(-1, self.sizes.head_dim)

    def _turned(self, x: Array, position: int) -> Array:
        half = self.sizes.head_dim // 2
        angles = position * self.sizes.rope_theta ** (-np.arange(half) / half)
        a, b = x[:, :half], x[:, half:]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=1)

    def _attended(self, q: Array, seen: Sequence[tuple[Array, Array]]) -> Array:
        group = self.sizes.num_attention_heads // self.sizes.num_key_value_heads
        found = []
        for head, query in enumerate(q):
            scores = np.array([keys[head // group] @ query for keys, _ in seen]) / np.sqrt(self.sizes.head_dim)
            weights = np.exp(scores - scores.max())
            found.append((weights / weights.sum()) @ np.stack([values[head // group] for _, values in seen]))
        return np.concatenate(found)
