"""The PyTorch engine: any transformers causal language model with an attention cache, on a CPU or a GPU.

A forward runs the model once for each group of feeds with similar numbers of rows, so that a prompt never pads a plain step.
Trees reach the model as explicit masks and positions (``hf_masks.py``), all slots share one cache (``hf_cache.py``), and a hook
in front of the output matrix hands it the scored rows alone. What that hook sees is also what heads read as hidden states.

PyTorch does not promise that a row's logits are the same bit for bit whatever stands beside it: two ways of computing one row
may differ by rounding, and an argmax may fall differently where two logits nearly tie.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.accept import Row
from headstart.errors import ModelError, RequestError
from headstart.target.base import BaseWeights, Feed, ModelSize, Slot
from headstart.target.fingerprint import fingerprint, sampled_rows
from headstart.target.hf_cache import PooledCache
from headstart.target.hf_lock import alone
from headstart.target.hf_masks import positions, tokens
from headstart.target.hf_packed import pack_linears
from headstart.target.hf_scored import HfScored, Streams
from headstart.target.hf_support import cache_keyword, check_trees, layer_kinds
from headstart.target.hf_watch import Watcher, final_norm
from headstart.target.torch_operations import TorchOperations
from headstart.tree import ROOT, Path, Tree

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_MAX_GROUP_ROWS = 4096  # of one model call, which bounds its activations


@dataclass(slots=True)
class _Sequence:
    length: int = 0  # committed rows
    pending: Tree | None = None  # rows of the last forward, until keep


class HfTarget:
    """Implements ``Target`` over a transformers model.

    The model is put into eval mode, converted if another dtype is asked for, and on a CPU its linear layers are packed
    (``hf_packed.py``).
    """

    engine = "hf"
    home: FilePath | None = None

    def __init__(
        self,
        model: Any,
        *,
        name: str,
        dtype: str | None = None,
        end_tokens: Iterable[int] = (),
        vocab_size: int | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """``vocab_size``: ids that may be sampled, if fewer than the output matrix has rows. ModelError if unsuited.

        ``lock``: that of a target which shares modules with this one.
        """
        self.lock = lock or threading.RLock()
        if dtype is not None and dtype not in _DTYPES:
            raise ModelError(f"unknown dtype {dtype!r}; choose one of {', '.join(_DTYPES)}")
        self._layer_kinds = layer_kinds(model)
        self._cache_keyword = cache_keyword(model)
        self.model = model.eval() if dtype is None else model.to(_DTYPES[dtype]).eval()
        self.name, self.dtype = name, str(model.dtype).removeprefix("torch.")
        self.end_tokens = frozenset(end_tokens)
        config = model.config.get_text_config(decoder=True)
        self._output = model.get_output_embeddings()
        self._limit = getattr(config, "max_position_embeddings", None)
        if self._output is None or self._limit is None:
            missing = "output matrix" if self._output is None else "max_position_embeddings"
            raise ModelError(f"{type(model).__name__} has no {missing}")
        rows = int(self._output.weight.shape[0])
        self.vocab_size = rows if vocab_size is None else vocab_size
        if not 0 < self.vocab_size <= rows:
            raise ModelError(f"vocab_size is {vocab_size}; the output matrix has {rows} rows")
        self.hidden_size = int(self._output.weight.shape[1])
        self.context_limit = int(self._limit)
        self.fingerprint = _fingerprint(model, config.num_hidden_layers)
        self._operations = TorchOperations(model.dtype, self._output.weight.device)
        self._cache = PooledCache()
        self._sequences: dict[Slot, _Sequence] = {}
        self._free: list[int] = []
        self._scored_rows: Tensor | None = None
        self._hidden: Tensor | None = None
        self._watcher: Watcher | None = None
        pack_linears(self.model)
        self._output.register_forward_pre_hook(self._select)
        check_trees(self)

    @alone
    def open(self) -> Slot:
        """A slot with an empty cache; the lowest that is free, so that slots in use are neighbours."""
        slot = Slot(heapq.heappop(self._free) if self._free else len(self._sequences))
        self._sequences[slot] = _Sequence()
        return slot

    @alone
    def length(self, slot: Slot) -> int:
        """Committed rows of a slot."""
        return self._sequence(slot).length

    @alone
    def forward(self, batch: Sequence[Feed]) -> HfScored:
        """Score all rows; RequestError behind the context limit, ValueError if slots are misused."""
        self._refuse_misuse(batch)
        logits, hidden, streams = [], [], list[Tensor]()
        places: dict[Row, int] = {}
        starts: dict[int, int] = {}
        for group in _groups(batch):
            rows = [(entry, row) for entry in group for row in range(batch[entry].first_scored, len(batch[entry].tree))]
            places |= {row: len(places) + i for i, row in enumerate(rows)}
            found = self._run([batch[entry] for entry in group])
            logits.append(found[0])
            hidden.append(found[1])
            if self._watcher is not None:
                width = self._watcher.num_rows
                starts |= {entry: sum(map(len, streams)) + i * width for i, entry in enumerate(group)}
                streams.append(self._watcher.take())
        for feed in batch:
            self._sequence(feed.slot).pending = feed.tree
        watched = Streams(torch.cat(streams), starts, self._watcher.layers) if self._watcher else None
        if len(logits) == 1:
            return HfScored(logits[0], hidden[0], places, watched)
        return HfScored(torch.cat(logits), torch.cat(hidden), places, watched)

    @alone
    def keep(self, slot: Slot, path: Path) -> None:
        """Commit these rows of the slot's last forward, a path from row 0 on; forget its others. Empty: forget all."""
        sequence = self._sequence(slot)
        tree = sequence.pending
        if tree is None:
            raise ValueError(f"slot {slot} has no forward to keep rows of")
        if any(not 0 <= row < len(tree) or tree.parents[row] != before for before, row in zip((-1, *path), path, strict=False)):
            raise ValueError(f"{path} is no path from the root of the tree that slot {slot} was fed")
        self._cache.move(slot, sequence.length, path)
        sequence.length += len(path)
        sequence.pending = None

    @alone
    def watch(self, layers: Sequence[int]) -> None:
        """Keep the residual streams before these layers too, of every row fed; ModelError if a layer is not found."""
        before = self._watcher
        known = before.layers if before else ()
        every = tuple(dict.fromkeys((*known, *layers)))
        if every == known:
            return
        self._watcher = Watcher(self.model, every, self.name)
        if before:
            before.close()

    @alone
    def fork(self, slot: Slot) -> Slot:
        """A new slot with the same committed rows."""
        length = self.length(slot)
        copy = self.open()
        self._cache.copy(slot, copy, length)
        self._sequences[copy].length = length
        return copy

    @alone
    def close(self, slot: Slot) -> None:
        """Free a slot; with the last one the cache gives its memory back."""
        self._sequence(slot)
        del self._sequences[slot]
        heapq.heappush(self._free, slot)
        self._cache.wipe(slot)
        if not self._sequences:
            self._free.clear()
            self._cache.clear()

    def base_weights(self) -> BaseWeights:
        """The embedding and the output matrix, without gradients; the same object when tied."""
        embedding, output = self.model.get_input_embeddings().weight, self._output.weight
        detached = embedding.detach()
        return BaseWeights(detached, detached if output is embedding else output.detach())

    @property
    def operations(self) -> TorchOperations:
        """Operations in the model's dtype and on its device."""
        return self._operations

    @alone
    def cache_bytes(self) -> int:
        """Bytes that the caches of all open slots hold."""
        return self._cache.bytes_per_slot() * len(self._sequences)

    def size(self) -> ModelSize:
        """Bytes and weights that a forward reads; tied matrices count once."""
        embedding, output = self.model.get_input_embeddings().weight, self._output.weight
        weights = {weight.data_ptr(): weight for weight in self.model.parameters()}
        if embedding.data_ptr() != output.data_ptr():
            del weights[embedding.data_ptr()]  # looked up, not read
        config = self.model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        per_position = 2 * config.num_hidden_layers * heads * width * output.element_size()
        return ModelSize(sum(w.nbytes for w in weights.values()), sum(w.numel() for w in weights.values()), per_position)

    @alone
    @torch.no_grad()
    def plain_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Logits [n, vocab_size] of one chain by the model's own forward, without any of this engine's machinery."""
        found = self.model(input_ids=torch.tensor([list(ids)], device=self._operations.device), use_cache=False)
        values: NDArray[np.float32] = found.logits[0, :, : self.vocab_size].float().cpu().numpy()
        return values

    @torch.no_grad()
    def _run(self, feeds: Sequence[Feed]) -> tuple[Tensor, Tensor]:
        """Logits [n, V] and hidden states [n, D] of the scored rows of one group, in order of entries and rows."""
        device = self._operations.device
        trees = [feed.tree for feed in feeds]
        lengths = [self.length(feed.slot) for feed in feeds]
        num_rows = max(map(len, trees))
        num_keys = self._cache.aim([feed.slot for feed in feeds], lengths, num_rows, self.context_limit, device)
        flat = [i * num_rows + row for i, feed in enumerate(feeds) for row in range(feed.first_scored, len(feed.tree))]
        self._scored_rows = torch.tensor(flat, dtype=torch.int64, device=device)
        try:
            found = self.model(
                input_ids=torch.from_numpy(tokens(trees, num_rows)).to(device),
                attention_mask=self._layer_kinds.masks(trees, lengths, (num_rows, num_keys), self._output.weight),
                position_ids=torch.from_numpy(positions(trees, lengths, num_rows)).to(device),
                use_cache=True,
                **{self._cache_keyword: self._cache},
            )
            hidden = self._hidden
        finally:
            self._scored_rows = self._hidden = None
        assert hidden is not None
        return found.logits[0, :, : self.vocab_size], hidden[0]

    def _select(self, module: object, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """Hand the output matrix the scored rows of all entries as [1, n, D] in place of [B, R, D]; silent outside forward."""
        if self._scored_rows is None:
            return None
        self._hidden = inputs[0].flatten(0, 1).index_select(0, self._scored_rows)[None]
        return (self._hidden,)

    def _sequence(self, slot: Slot) -> _Sequence:
        sequence = self._sequences.get(slot)
        if sequence is None:
            raise ValueError(f"slot {slot} is not open")
        return sequence

    def _refuse_misuse(self, batch: Sequence[Feed]) -> None:
        if not batch or len({feed.slot for feed in batch}) < len(batch):
            raise ValueError("a batch holds at least one feed, and each slot at most once")
        for feed in batch:
            sequence = self._sequence(feed.slot)
            if sequence.pending is not None:
                raise ValueError(f"slot {feed.slot} waits for keep; call it before the slot's next forward")
            if not ROOT <= feed.first_scored <= len(feed.tree):
                raise ValueError(f"first_scored is {feed.first_scored}; the tree has {len(feed.tree)} rows")
            needed = sequence.length + max(feed.tree.depths) + 1
            if needed > self.context_limit:
                raise RequestError(f"{needed} positions are needed; the context of {self.name} ends at {self.context_limit}")


def _groups(batch: Sequence[Feed]) -> list[list[int]]:
    """Entries to run together: similar numbers of rows (no row is padded beyond twice its tree), ascending slots."""
    groups: list[list[int]] = []
    largest = 0
    for entry in sorted(range(len(batch)), key=lambda entry: -len(batch[entry].tree)):
        rows = len(batch[entry].tree)
        if groups and 2 * rows >= largest and (len(groups[-1]) + 1) * largest <= _MAX_GROUP_ROWS:
            groups[-1].append(entry)
        else:
            groups.append([entry])
            largest = rows
    return [sorted(group, key=lambda entry: batch[entry].slot) for group in groups]


def _fingerprint(model: Any, num_layers: int) -> str:
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    ids = torch.from_numpy(sampled_rows(embedding.shape[0]))
    decoder = model.get_decoder()
    norm = getattr(final_norm(decoder), "weight", None)
    return fingerprint(
        num_layers=num_layers,
        vocab_size=int(embedding.shape[0]),
        embedding=_host(embedding[ids.to(embedding.device)]),
        output=_host(output[ids.to(output.device)]),
        norm=None if norm is None else _host(norm),
    )


def _host(values: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().float().cpu().numpy()
    return array
