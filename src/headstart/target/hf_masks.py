"""Explicit attention masks and positions: how a tree is shown to a model that was written for chains.

Row r of a tree stands at position ``length + depth(r)``. It sees the slot's committed rows, its ancestors and itself. In a
layer with a sliding window it sees, of those, the ones at most ``window - 1`` positions back, which for tree rows is a distance
in depth, not in rows. Masks are additive, as every attention implementation of transformers takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.tree import ROOT, Tree

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """Which kinds of attention a model's layers have, and the window of the sliding ones."""

    kinds: frozenset[str]
    window: int | None

    def masks(self, trees: Sequence[Tree], lengths: Sequence[int], shape: tuple[int, int], like: Tensor) -> object:
        """A mask [B, 1, R, KV], or one for each kind if the layers differ; ``shape`` is (R, KV)."""
        full = None
        made: dict[str, Tensor] = {}
        for kind in sorted(self.kinds):
            window = self.window if kind == SLIDING else None
            if window is not None and max(n + max(t.depths) for t, n in zip(trees, lengths, strict=True)) < window:
                window = None  # nothing has left the window yet
            if window is not None:
                made[kind] = _additive(visible(trees, lengths, shape, window), like)
            else:
                full = _additive(visible(trees, lengths, shape), like) if full is None else full
                made[kind] = full
        return made if len(made) > 1 else next(iter(made.values()))


def visible(
    trees: Sequence[Tree], lengths: Sequence[int], shape: tuple[int, int], window: int | None = None
) -> NDArray[np.bool_]:
    """[B, R, KV]: whether a row sees a key. Padding rows see their tree's root, since a softmax needs something."""
    mask = np.zeros((len(trees), *shape), dtype=np.bool_)
    for entry, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        rows, keys = len(tree), length + len(tree)
        own = mask[entry, :rows, :keys]
        own[:, :length] = True
        own[:, length:] = np.tri(rows, dtype=np.bool_) if tree.is_chain else tree.ancestors()
        if window is not None:
            depths = np.asarray(tree.depths) + length
            own &= np.concatenate((np.arange(length), depths)) > depths[:, None] - window
        mask[entry, rows:, length + ROOT] = True
    return mask


def _additive(mask: NDArray[np.bool_], like: Tensor) -> Tensor:
    hidden = torch.from_numpy(~mask).to(like.device)
    zeros = torch.zeros(hidden.shape, dtype=like.dtype, device=like.device)
    return zeros.masked_fill_(hidden, torch.finfo(like.dtype).min)[:, None]


def positions(trees: Sequence[Tree], lengths: Sequence[int], num_rows: int) -> NDArray[np.int64]:
    """[B, R]: the position of each row; padding rows repeat their tree's root."""
    places = np.repeat(np.asarray(lengths, dtype=np.int64)[:, None], num_rows, axis=1)
    for entry, tree in enumerate(trees):
        places[entry, : len(tree)] += tree.depths
    return places


def tokens(trees: Sequence[Tree], num_rows: int) -> NDArray[np.int64]:
    """[B, R]: the token of each row; padding rows carry token 0."""
    ids = np.zeros((len(trees), num_rows), dtype=np.int64)
    for entry, tree in enumerate(trees):
        ids[entry, : len(tree)] = tree.tokens
    return ids
