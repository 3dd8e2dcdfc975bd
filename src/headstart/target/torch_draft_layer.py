"""A drafting layer in PyTorch: its mathematics, which training unrolls as well, and its caches for decoding.

Norms are computed in float32, everything else in the weights' dtype.

Letters: n rows, m keys, D the target's width, H query heads, G heads of keys and values, d their width.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from headstart.layer_sizes import LayerSizes
from headstart.target.base import Feed, Slot
from headstart.target.draft_layer import inverse_frequencies, reads_embedding
from headstart.target.hf_lock import alone
from headstart.target.hf_scored import HfScored
from headstart.tree import Path

Weights = Mapping[str, Tensor]


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``x`` over its root mean square, times ``weight``."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)).to(x.dtype) * weight


def projected(
    sizes: LayerSizes, weights: Weights, embedded: Tensor, hidden: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Turned queries [n, H, d] and keys [n, G, d], and values [n, G, d], of rows at ``positions`` [n]."""
    return projected_at(sizes, weights, embedded, hidden, turns(sizes, positions))


def turns(sizes: LayerSizes, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [n, d / 2] of the rotary angles at ``positions`` [n], in float64."""
    frequencies = torch.from_numpy(inverse_frequencies(sizes)).to(positions.device)
    angles = positions[:, None].double() * frequencies
    return angles.cos(), angles.sin()


def projected_at(
    sizes: LayerSizes, weights: Weights, embedded: Tensor | None, hidden: Tensor, turns: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """The same at known angles; without ``embedded`` the layer reads the states alone."""
    read = rms_norm(hidden, weights["layers.0.hidden_norm.weight"], sizes.rms_norm_eps)
    if embedded is not None:
        beside = rms_norm(embedded, weights["layers.0.input_layernorm.weight"], sizes.rms_norm_eps)
        read = torch.cat([beside, read], dim=-1)
    q, k, v = (
        functional.linear(read, weights[f"layers.0.self_attn.{name}_proj.weight"]).view(len(read), -1, sizes.head_dim)
        for name in "qkv"
    )
    cosines, sines = (turn.to(q.dtype)[:, None] for turn in turns)
    return _turned(q, cosines, sines), _turned(k, cosines, sines), v


def finished(sizes: LayerSizes, weights: Weights, hidden: Tensor, attended: Tensor) -> Tensor:
    """The layer's own output [n, D], from the states that it was given and what attention found [n, H * d]."""
    x = hidden + functional.linear(attended, weights["layers.0.self_attn.o_proj.weight"])
    read = rms_norm(x, weights["layers.0.post_attention_layernorm.weight"], sizes.rms_norm_eps)
    gate, up = (functional.linear(read, weights[f"layers.0.mlp.{name}_proj.weight"]) for name in ("gate", "up"))
    return x + functional.linear(functional.silu(gate) * up, weights["layers.0.mlp.down_proj.weight"])


def last_norm(sizes: LayerSizes, weights: Weights, own: Tensor) -> Tensor:
    """What the output matrix reads, of the layer's own output [n, D]."""
    return rms_norm(own, weights["norm.weight"], sizes.rms_norm_eps)


def grouped(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values [m, G, d] as [H, m, d], each head of them for its group of query heads."""
    return x.transpose(0, 1).repeat_interleave(num_heads // x.shape[1], dim=0)


@dataclass(slots=True)
class _Cache:
    keys: Tensor  # [length, G, d]
    values: Tensor
    fed: tuple[Tensor, Tensor] | None = None  # of the last forward, until keep


class TorchDraftLayer:
    """Implements ``heads.operations.DraftLayer``."""

    def __init__(self, sizes: LayerSizes, weights: Weights, embedding: Tensor, output: Tensor) -> None:
        self._sizes, self._weights, self._embedding, self._output = sizes, weights, embedding, output
        self._caches: dict[Slot, _Cache] = {}
        self._next = 0
        self.lock: AbstractContextManager[Any] = threading.RLock()

    @alone
    def open(self) -> Slot:
        """A slot with an empty cache."""
        empty = self._output.new_empty((0, self._sizes.num_key_value_heads, self._sizes.head_dim))
        return self._hold(_Cache(empty, empty))

    def length(self, slot: Slot) -> int:
        """Committed rows of a slot."""
        return len(self._caches[slot].keys)

    @alone
    @torch.no_grad()
    def forward(self, batch: Sequence[Feed], hidden: Tensor) -> HfScored:
        """Score all rows over the output matrix; ``hidden`` [R, D] stand in the order of the feeds' rows."""
        device = self._output.device
        tokens = torch.tensor([token for feed in batch for token in feed.tree.tokens], device=device)
        places = [self.length(feed.slot) + depth for feed in batch for depth in feed.tree.depths]
        positions = torch.tensor(places, device=device)
        embedded = self._embedding[tokens] if reads_embedding(self._weights) else None
        q, k, v = projected_at(self._sizes, self._weights, embedded, hidden, turns(self._sizes, positions))
        attended, scored, row_of, begin = [], list[int](), dict[tuple[int, int], int](), 0
        for entry, feed in enumerate(batch):
            rows = slice(begin, begin + len(feed.tree))
            attended.append(self._attend(feed, q[rows], k[rows], v[rows]))
            for row in range(feed.first_scored, len(feed.tree)):
                row_of[entry, row] = len(scored)
                scored.append(begin + row)
            begin = rows.stop
        own = finished(self._sizes, self._weights, hidden, torch.cat(attended))
        own = own.index_select(0, torch.tensor(scored, dtype=torch.int64, device=device))
        logits = functional.linear(last_norm(self._sizes, self._weights, own), self._output)
        return HfScored(logits, own, row_of)

    @alone
    def keep(self, slot: Slot, path: Path) -> None:
        """Commit these rows of the slot's last forward, a path from row 0 on; forget its others."""
        cache = self._caches[slot]
        assert cache.fed is not None  # a forward comes first
        keys, values = (rows[list(path)] for rows in cache.fed)
        cache.keys, cache.values = torch.cat([cache.keys, keys]), torch.cat([cache.values, values])
        cache.fed = None

    @alone
    def fork(self, slot: Slot) -> Slot:
        """A new slot with the same committed rows."""
        return self._hold(_Cache(self._caches[slot].keys, self._caches[slot].values))  # which are replaced, never written to

    @alone
    def close(self, slot: Slot) -> None:
        """Free a slot."""
        del self._caches[slot]

    @alone
    def cache_bytes(self) -> int:
        """Bytes that the caches of all open slots hold."""
        return sum(2 * cache.keys.nelement() * cache.keys.element_size() for cache in self._caches.values())

    def _hold(self, cache: _Cache) -> Slot:
        slot, self._next = Slot(self._next), self._next + 1
        self._caches[slot] = cache
        return slot

    def _attend(self, feed: Feed, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What the rows of one tree find, [n, H * d]: they see the slot's committed rows, their ancestors and themselves."""
        cache = self._caches[feed.slot]
        assert cache.fed is None, "keep follows each forward"
        cache.fed = k, v
        heads = self._sizes.num_attention_heads
        keys, values = grouped(torch.cat([cache.keys, k]), heads), grouped(torch.cat([cache.values, v]), heads)
        seen = torch.ones(len(q), keys.shape[1], dtype=torch.bool, device=q.device)
        seen[:, len(cache.keys) :] = torch.from_numpy(feed.tree.ancestors()).to(q.device)
        found = functional.scaled_dot_product_attention(q.transpose(0, 1), keys, values, attn_mask=seen)
        return found.transpose(0, 1).flatten(1)


def _turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)
