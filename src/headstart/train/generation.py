"""Writing many texts at once with a transformers model.

Prompts are padded on the left, so that all texts grow at the same index; texts that ended leave the batch and its cache.
transformers' own masks see the padding, and positions are given explicitly, so a text does not depend on its neighbours (in
float32 up to rounding). Tokens are drawn from the 64 likeliest with min-p 0.05 (Nguyen et al. 2024): a cheap cut, good enough
for a corpus, and no claim about any distribution is made for it.

The cache grows in place with spare room: appending by concatenation would copy all of it for every token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from headstart.train.base import FrozenModel

_LIKELIEST = 64
_MIN_P = 0.05


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, [batch, heads, capacity, size]; what is in use is a view."""

    keys: Any  # of the parent, whose types are not read
    values: Any
    is_initialized: bool

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        used = self.keys.shape[-2] if self.is_initialized else 0
        needed = used + key_states.shape[-2]
        if not self.is_initialized:
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
            self._key_room, self._value_room = _room(key_states, needed), _room(value_states, needed)
        elif needed > self._key_room.shape[-2]:
            self._key_room = _copied(_room(key_states, needed), self.keys)
            self._value_room = _copied(_room(value_states, needed), self.values)
        self._key_room[:, :, used:needed] = key_states
        self._value_room[:, :, used:needed] = value_states
        self.keys, self.values = self._key_room[:, :, :needed], self._value_room[:, :, :needed]
        return self.keys, self.values

    def keep(self, rows: Tensor) -> None:
        """Forget all texts but these."""
        used = self.keys.shape[-2]
        self._key_room, self._value_room = self._key_room[rows], self._value_room[rows]
        self.keys, self.values = self._key_room[:, :, :used], self._value_room[:, :, :used]


def _room(like: Tensor, needed: int) -> Tensor:
    batch, heads, _, size = like.shape
    return like.new_empty(batch, heads, needed + needed // 2 + 32, size)


def _copied(room: Tensor, used: Tensor) -> Tensor:
    room[:, :, : used.shape[-2]] = used
    return room


@dataclass(frozen=True, slots=True)
class Text:
    """A continuation of m tokens, and what the model had in mind before each of them."""

    tokens: tuple[int, ...]
    hidden: Tensor | None = None  # [m, D]: the state that each token was drawn from
    greedy: Tensor | None = None  # [m]: the argmax there


@torch.inference_mode()
def write(
    model: FrozenModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    *,
    max_new: int,
    stop_tokens: frozenset[int],
    generator: torch.Generator,
    abandon: float = 0.0,
    keep_states: bool = False,
) -> list[Text]:
    """Continuations of ``prompts``, each up to and including its stop token or ``max_new`` tokens.

    ``temperatures`` holds one a prompt; 0 writes greedily. An end right at the start is never written. Once
    no more than the share ``abandon`` of the texts is unfinished, these are cut off: a few long ones would run almost alone.
    ``keep_states`` hands out the hidden states too, so that nobody has to compute them again.
    """
    device = model.device
    width = max(map(len, prompts))
    ids = torch.zeros(len(prompts), width, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(list(prompt))
        mask[row, width - len(prompt) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    cache = Cache(layer_class_to_replicate=_RoomyLayer)
    temperature = torch.tensor(temperatures, dtype=torch.float32, device=device)
    alive = list(range(len(prompts)))
    texts: list[list[int]] = [[] for _ in prompts]
    stops = torch.tensor(sorted(stop_tokens), dtype=torch.long, device=device)
    hidden = _last_hidden(model, ids, mask, cache)
    room = hidden.new_empty(len(prompts), max_new, hidden.shape[-1]) if keep_states else None
    greedy = ids.new_empty(len(prompts), max_new)
    for length in range(max_new):
        logits = model.logits(hidden).float()
        greedy[alive, length] = logits.argmax(-1)
        if room is not None:
            room[alive, length] = hidden
        if length == 0:
            logits[:, stops] = -torch.inf
        tokens = _draw(logits, temperature[alive], generator)
        for row, token in zip(alive, tokens.tolist(), strict=True):
            texts[row].append(token)
        going = ~torch.isin(tokens, stops)
        if int(going.sum()) <= abandon * len(prompts) or length == max_new - 1:
            break
        if not bool(going.all()):
            rows = going.nonzero()[:, 0]
            if len(rows) <= 0.9 * len(alive):  # moving the cache costs about a step, so a few finished texts wait
                alive = [alive[row] for row in rows.tolist()]
                tokens, mask = tokens[rows], mask[rows]
                for layer in cache.layers:
                    layer.keep(rows)
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        hidden = _last_hidden(model, tokens[:, None], mask, cache)
    return [_text(_up_to_stop(text, stop_tokens), row, room, greedy) for row, text in enumerate(texts)]


def _last_hidden(model: FrozenModel, ids: Tensor, mask: Tensor, cache: Any) -> Tensor:
    """Last hidden states [batch, D] after new columns ``ids``; ``mask`` covers the cached columns too."""
    positions = (mask.cumsum(1) - 1).clamp_min(0)[:, -ids.shape[1] :]
    states = model.states(input_ids=ids, attention_mask=mask, position_ids=positions, cache=cache)
    return states[:, -1]


def _draw(logits: Tensor, temperature: Tensor, generator: torch.Generator) -> Tensor:
    """One token a row: the likeliest at temperature 0, else drawn from the likeliest 64 above min-p."""
    values, tokens = logits.topk(min(_LIKELIEST, logits.shape[-1]), dim=-1)
    warm = temperature[:, None] > 0
    scaled = (values - values[:, :1]) / torch.where(warm, temperature[:, None], 1.0)
    probabilities = scaled.softmax(-1)
    probabilities = torch.where(probabilities >= _MIN_P * probabilities[:, :1], probabilities, 0.0)
    choice = torch.multinomial(probabilities, 1, generator=generator)
    return tokens.gather(1, torch.where(warm, choice, 0))[:, 0]


def _text(tokens: list[int], row: int, room: Tensor | None, greedy: Tensor) -> Text:
    if room is None:
        return Text(tuple(tokens))
    return Text(tuple(tokens), room[row, : len(tokens)].cpu(), greedy[row, : len(tokens)].cpu())


def _up_to_stop(text: list[int], stop_tokens: frozenset[int]) -> list[int]:
    end = next((i for i, token in enumerate(text) if token in stop_tokens), None)
    return text if end is None else text[: end + 1]
