"""Training-time test: an MTP layer unrolled over its own outputs, as it will be run when it drafts.

A layer that learns from the target's states alone meets its own, poorer ones when it drafts, and its guesses fall apart after
the first (EAGLE-3, Li et al. 2025, section 3.2). So in training it is run ``num_steps`` steps. At step s = 0.. the row i of a
segment holds the text's token i + s and the layer's output of step s - 1 (at step 0 the target's state), stands at position
i + s and guesses token i + s + 1. It sees what it will see while drafting: the rows up to i of step 0, which are those of
committed tokens, and behind them its own rows of the steps 1..s, nothing else. Those keys stand only on the diagonal, so their
scores are dot products of rows, not a product of matrices.

Segments are supervised spans (``capture.py``), so a layer's context begins where the model's answer begins; in decoding its
cache does too.

Letters: n rows, S steps, D the model's width, H query heads, G heads of keys and values, d their width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from headstart.heads.mtp import MtpConfig
from headstart.target.torch_draft_layer import finished, grouped, last_norm, projected


def unrolled(
    config: MtpConfig,
    tensors: Mapping[str, Tensor],
    embedding: Tensor,
    hidden: Tensor,
    roots: Tensor,
    remaining: Tensor,
) -> list[Tensor]:
    """What the output matrix reads at each of S steps, [n, D] each, for rows of whole segments.

    ``hidden`` [n, D] are the target's states, ``roots`` [n] the tokens behind them, ``remaining`` [n] the rows of the segment
    from each on. A row whose text ends before step s holds nothing of meaning there: nothing can be learnt from it.
    """
    segments = _segments(remaining)
    places = torch.cat([torch.arange(stop - start, device=roots.device) for start, stop in segments])
    attention = _Attention(config, segments)
    state, outputs = hidden, []
    for step in range(config.num_steps):
        tokens = torch.roll(roots, -step)
        embedded = embedding[tokens].to(hidden.dtype)
        q, k, v = projected(config, tensors, embedded, state, places + step)
        state = finished(config, tensors, state, attention(q, k, v))
        outputs.append(last_norm(config, tensors, state))
    return outputs


def _segments(remaining: Tensor) -> list[tuple[int, int]]:
    """Where each segment's rows begin and end."""
    found, start = list[tuple[int, int]](), 0
    lengths = remaining.tolist()
    while start < len(lengths):
        stop = start + lengths[start]
        if stop > len(lengths):
            raise ValueError("rows must be those of whole segments")
        found.append((start, stop))
        start = stop
    return found


class _Attention:
    """Attention of step after step; holds the keys and values of the steps so far."""

    def __init__(self, config: MtpConfig, segments: list[tuple[int, int]]) -> None:
        self._heads, self._segments = config.num_attention_heads, segments
        self._scale = config.head_dim**-0.5
        self._committed: tuple[Tensor, Tensor] | None = None  # [H, n, d], of step 0
        self._own: list[tuple[Tensor, Tensor]] = []  # likewise, of later steps

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What rows with queries [n, H, d] find, [n, H * d]; their own keys and values [n, G, d] join first."""
        pair = grouped(k, self._heads), grouped(v, self._heads)
        if self._committed is None:
            self._committed = pair
        else:
            self._own.append(pair)
        queries = q.transpose(0, 1) * self._scale  # [H, n, d]
        diagonal = [(queries * keys).sum(-1, keepdim=True) for keys, _ in self._own]  # [H, n, 1] each
        found = [self._segment(slice(start, stop), queries, diagonal) for start, stop in self._segments]
        return torch.cat(found, dim=1).transpose(0, 1).flatten(1)

    def _segment(self, rows: slice, queries: Tensor, diagonal: list[Tensor]) -> Tensor:
        assert self._committed is not None  # of step 0
        keys, values = (each[:, rows] for each in self._committed)
        num_rows = keys.shape[1]
        unseen = torch.ones(num_rows, num_rows, dtype=torch.bool, device=keys.device).triu(1)
        scores = (queries[:, rows] @ keys.transpose(1, 2)).masked_fill(unseen, -torch.inf)
        weights = torch.cat([scores, *(score[:, rows] for score in diagonal)], dim=-1).float().softmax(-1).to(values.dtype)
        found = weights[..., :num_rows] @ values
        for step, (_, own) in enumerate(self._own):
            found = found + weights[..., num_rows + step, None] * own[:, rows]
        return found
