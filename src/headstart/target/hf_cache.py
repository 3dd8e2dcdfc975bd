"""A transformers cache that serves many slots from one pool per layer.

Each layer holds keys and values as [slots, heads, capacity, dim], made at its first update, so any head shape works. Rows of a
forward are written behind the committed ones; a slot alone, or neighbouring slots together, are read as a view, without a
copy. What lies behind a slot's committed rows is never read unless a mask lets it through, so forgetting rows costs nothing,
and committing a path moves only the rows that do not stand in their place already.

Sliding-window layers keep all rows as well: right, not minimal.

Letters: B slots of a group, H heads, R rows, S pool slots, C capacity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

_MIN_CAPACITY = 256


@dataclass(slots=True)
class _Layer:
    keys: Tensor  # [S, H, C, dim]
    values: Tensor  # [S, H, C, dim of values]


class PooledCache(Cache):  # type: ignore[misc]
    """What transformers sees is one group of slots at a time, chosen by :meth:`aim`."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self._pools: dict[int, _Layer] = {}
        self._num_slots = 1
        self._capacity = _MIN_CAPACITY
        self._slots: Tensor | slice = slice(0, 1)
        self._rows: Tensor | slice = slice(0, 0)
        self._columns: Tensor | None = None
        self._start, self._end = 0, 0

    def aim(self, slots: Sequence[int], lengths: Sequence[int], num_rows: int, limit: int, device: torch.device) -> int:
        """Serve these slots (ascending) in the next model call, ``num_rows`` rows each; returns the keys a row sees, at most.

        Shorter entries of a group carry padding rows, so the capacity may exceed ``limit`` by them.
        """
        self._start, self._end = max(lengths), max(lengths) + num_rows
        self._num_slots = max(self._num_slots, _doubled(self._num_slots, slots[-1] + 1))
        if self._end > self._capacity:
            self._capacity = max(self._end, min(_doubled(self._capacity, self._end), limit))
        neighbours = slots[-1] - slots[0] + 1 == len(slots)
        self._slots = slice(slots[0], slots[-1] + 1) if neighbours else torch.tensor(slots, device=device)
        if neighbours and min(lengths) == max(lengths):
            self._rows, self._columns = slice(lengths[0], self._end), None
        else:
            self._rows = torch.tensor(slots, device=device)[:, None]
            self._columns = torch.tensor(lengths, device=device)[:, None] + torch.arange(num_rows, device=device)
        return self._end

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the rows' keys and values [B, H, R, dim] and return all that the group may see, [B, H, KV, dim]."""
        layer = self._layer(layer_idx, key_states, value_states)
        return self._exchange(layer.keys, key_states), self._exchange(layer.values, value_states)

    def _exchange(self, pool: Tensor, states: Tensor) -> Tensor:
        if self._columns is None:
            pool[self._slots, :, self._rows] = states
        else:
            pool[self._rows, :, self._columns] = states.transpose(1, 2)
        return pool[self._slots, :, : self._end] if isinstance(self._slots, slice) else pool[:, :, : self._end][self._slots]

    def _layer(self, index: int, keys: Tensor, values: Tensor) -> _Layer:
        layer = self._pools.get(index)
        if layer is None:
            layer = self._pools[index] = _Layer(self._empty(keys), self._empty(values))
        elif layer.keys.shape[0] < self._num_slots or layer.keys.shape[2] < self._capacity:
            layer.keys, layer.values = self._grown(layer.keys), self._grown(layer.values)
        return layer

    def _empty(self, like: Tensor) -> Tensor:
        # zeros, not garbage: a masked key has weight 0, and 0 * NaN would be NaN
        return like.new_zeros((self._num_slots, like.shape[1], self._capacity, like.shape[3]))

    def _grown(self, pool: Tensor) -> Tensor:
        grown = self._empty(pool)
        grown[: pool.shape[0], :, : pool.shape[2]] = pool
        return grown

    def move(self, slot: int, start: int, rows: Sequence[int]) -> None:
        """Gather rows ``start + rows`` of a slot (ascending) to the places from ``start`` on."""
        settled = next((place for place, row in enumerate(rows) if place != row), len(rows))
        if settled == len(rows):
            return
        source = torch.tensor([start + row for row in rows[settled:]], device=next(self._tensors()).device)
        for pool in self._tensors():
            pool[slot, :, start + settled : start + len(rows)] = pool[slot].index_select(1, source)

    def copy(self, source: int, destination: int, length: int) -> None:
        """Copy the first ``length`` rows of a slot to another one."""
        if length == 0:
            return
        self._num_slots = max(self._num_slots, _doubled(self._num_slots, destination + 1))
        for layer in self._pools.values():
            if layer.keys.shape[0] < self._num_slots:
                layer.keys, layer.values = self._grown(layer.keys), self._grown(layer.values)
        for pool in self._tensors():
            pool[destination, :, :length] = pool[source, :, :length]

    def wipe(self, slot: int) -> None:
        """Forget a slot's rows, so that nothing of them, a NaN above all, reaches the slot's next sequence."""
        for pool in self._tensors():
            pool[slot : slot + 1].zero_()

    def clear(self) -> None:
        """Give all memory back."""
        self._pools.clear()
        self._num_slots, self._capacity = 1, _MIN_CAPACITY

    def bytes_per_slot(self) -> int:
        """Bytes that each slot occupies."""
        return sum(pool[0].numel() * pool.element_size() for pool in self._tensors())

    def _tensors(self) -> Iterator[Tensor]:
        for layer in self._pools.values():
            yield layer.keys
            yield layer.values

    def __len__(self) -> int:
        return len(self._pools)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows before those of the model call; the longest slot's, since transformers asks for one number."""
        del layer_idx
        return self._start

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Keys and their offset; masks are given explicitly, so this only has to agree with :meth:`update`."""
        del query_length, layer_idx
        return self._end, 0


def _doubled(size: int, needed: int) -> int:
    while size < needed:
        size *= 2
    return size
