"""Training-time test: an MTP layer unrolled over its own outputs, as it will be run when it drafts.

A layer that learns from the target's states alone meets its own, poorer ones when it drafts, and its guesses fall apart after
the first (EAGLE-3, Li et al. 2025, section 3.2). So in training it is run ``num_steps`` steps. At step s = 0.. the row i of a
segment holds the text's token i + s and the layer's output of step s - 1 (at step 0 the target's state), stands at position
i + s and guesses token i + s + 1. It sees what it will see while drafting: the rows up to i of step 0, which are those of
committed tokens, and behind them its own rows of the steps 1..s, nothing else. Those keys stand only on the diagonal, so their
scores are dot products of rows, not a product of matrices.

What the layer's cache holds before a row is a text (``inputs.py``): the prompt and the answer so far, or the answer alone. Of
rows that guess nothing, like those of the prompt, keys and values of step 0 are all that is ever read.

Letters: n rows that guess, m rows of their texts, S steps, D the model's width, H query heads, G heads of keys and values, d
their width.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from headstart.heads.mtp import FUSE, MtpConfig
from headstart.target.torch_draft_layer import finished, grouped, last_norm, projected
from headstart.train.inputs import Inputs


def unrolled(config: MtpConfig, tensors: Mapping[str, Tensor], embedding: Tensor, texts: Inputs) -> list[Tensor]:
    """What the output matrix reads at each of S steps, [n, D] each, for the guessing rows of whole texts.

    Rows behind each other guess behind each other. One whose text ends before step s holds nothing of meaning there: nothing
    can be learnt from it.
    """
    starts = [rows.start for rows, _ in texts.borders]
    lengths = torch.diff(texts.ends, prepend=texts.ends.new_zeros(1))
    first = torch.repeat_interleave(texts.ends.new_tensor(starts), lengths)
    places = torch.arange(len(texts.tokens), device=first.device) - first  # in the text, so in the layer's cache
    states = functional.linear(texts.states, tensors[FUSE]) if FUSE in tensors else texts.states
    q, k, v = projected(config, tensors, embedding[texts.tokens].to(states.dtype), states, places)
    own_places, roots = places[texts.places], texts.tokens[texts.places]
    attention = _Attention(config, texts, own_places)
    state = finished(config, tensors, states[texts.places], attention(q[texts.places], k, v))
    outputs = [last_norm(config, tensors, state)]
    for step in range(1, config.num_steps):
        embedded = embedding[torch.roll(roots, -step)].to(states.dtype)
        q, k, v = projected(config, tensors, embedded, state, own_places + step)
        state = finished(config, tensors, state, attention(q, k, v))
        outputs.append(last_norm(config, tensors, state))
    return outputs


class _Attention:
    """Attention of step after step; holds the keys and values of the steps so far."""

    def __init__(self, config: MtpConfig, texts: Inputs, places: Tensor) -> None:
        """``places`` [n]: of the guessing rows in their texts."""
        self._heads, self._texts, self._places = config.num_attention_heads, texts.borders, places
        self._scale = config.head_dim**-0.5
        self._committed: tuple[Tensor, Tensor] | None = None  # [H, m, d], of step 0
        self._own: list[tuple[Tensor, Tensor]] = []  # [H, n, d], of later steps

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """What rows with queries [n, H, d] find, [n, H * d]; keys and values [m or n, G, d] join first."""
        pair = grouped(k, self._heads), grouped(v, self._heads)
        if self._committed is None:
            self._committed = pair
        else:
            self._own.append(pair)
        queries = q.transpose(0, 1) * self._scale  # [H, n, d]
        diagonal = [(queries * keys).sum(-1, keepdim=True) for keys, _ in self._own]  # [H, n, 1] each
        found = [self._text(text, rows, queries, diagonal) for text, rows in self._texts]
        return torch.cat(found, dim=1).transpose(0, 1).flatten(1)

    def _text(self, text: slice, rows: slice, queries: Tensor, diagonal: list[Tensor]) -> Tensor:
        assert self._committed is not None  # of step 0
        keys, values = (each[:, text] for each in self._committed)
        num_keys = keys.shape[1]
        unseen = torch.arange(num_keys, device=keys.device) > self._places[rows, None]
        scores = (queries[:, rows] @ keys.transpose(1, 2)).masked_fill(unseen, -torch.inf)
        weights = torch.cat([scores, *(score[:, rows] for score in diagonal)], dim=-1).float().softmax(-1).to(values.dtype)
        found = weights[..., :num_keys] @ values
        for step, (_, own) in enumerate(self._own):
            found = found + weights[..., num_keys + step, None] * own[:, rows]
        return found
