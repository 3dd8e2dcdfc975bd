"""The native engine: the Llama family's decoder stack in C++, on a CPU, without PyTorch.

The stack computes a forest of rows in one call, whatever mixture of prompts, plain steps and drafts they belong to, and holds
the caches. Its promise: a row's logits are the same to the last bit for any number of rows, any tree, any batch, and any number
of threads, so that verification gives exactly the tokens of plain decoding.

What stands here is the seam: trees become flat arrays, rows are found again among the scored ones, and misuse is refused.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from headstart import _native
from headstart.errors import ModelError, RequestError
from headstart.target.base import HIDDEN, BaseWeights, Feed, ModelSize, Slot
from headstart.target.native_forward import forward
from headstart.target.native_operations import NativeOperations
from headstart.target.native_scored import NativeScored, Watched
from headstart.target.native_weights import NativeWeights
from headstart.tree import Path

KV_DTYPES = ("bfloat16", "float32")


class NativeTarget:
    """Implements ``Target`` over a packed model."""

    engine = "native"
    home: FilePath | None = None

    def __init__(
        self,
        weights: NativeWeights,
        *,
        name: str,
        vocab_size: int,
        end_tokens: Iterable[int] = (),
        kv_dtype: str = "auto",
    ) -> None:
        """``vocab_size``: ids that may be sampled. ``kv_dtype`` "auto": float32 beside float32 weights, else bfloat16."""
        if kv_dtype == "auto":
            kv_dtype = "float32" if weights.dtype == "float32" else "bfloat16"
        self.name, self.dtype, self.kv_dtype = name, weights.dtype, kv_dtype
        self.vocab_size, self.end_tokens = vocab_size, frozenset(end_tokens)
        settings = weights.settings
        self.hidden_size, self.context_limit = settings.hidden_size, settings.context_limit
        self.num_layers = settings.num_layers
        self.fingerprint = weights.sample.fingerprint(settings.num_layers)
        self._weights = weights
        self._operations = NativeOperations(weights.dtype)
        self._watched: Watched | None = None
        self._watching = threading.Lock()
        try:
            self._model = _native.Model(settings.stack(vocab_size, kv_dtype), weights.tensors)
        except ValueError as error:
            raise ModelError(f"{name}: the native engine refuses the model: {error}") from error

    def open(self) -> Slot:
        """A slot with an empty cache."""
        return Slot(self._model.open())

    def length(self, slot: Slot) -> int:
        """Committed rows of a slot."""
        return self._model.length(slot)

    def forward(self, batch: Sequence[Feed]) -> NativeScored:
        """Score all rows; RequestError behind the context limit, ValueError if slots are misused."""
        for feed in batch:
            self._refuse_excess(feed)
        return forward(self._model, batch, watched=self._watched)

    def keep(self, slot: Slot, path: Path) -> None:
        """Commit these rows of the slot's last forward, a path from row 0 on; forget its others. Empty: forget all."""
        self._model.keep(slot, np.array(path, dtype=np.int64))

    def watch(self, layers: Sequence[int]) -> None:
        """Keep the residual streams before these layers too, of every row fed; ModelError for a layer that is none.

        Streams keep their places, so that a forward of another thread, and who watched before, read what they expect.
        """
        if not all(layer == HIDDEN or 0 <= layer <= self.num_layers for layer in layers):
            raise ModelError(f"{self.name} has {self.num_layers} layers; heads want to read before layer {max(layers)}")
        with self._watching:
            known = self._watched.layers if self._watched else ()
            every = tuple(dict.fromkeys((*known, *layers)))
            if every == known:
                return
            ends = [self.num_layers if layer == HIDDEN else layer for layer in every]
            self._model.watch(np.array(ends, dtype=np.int64))
            norm: Any = self._weights.tensors["norm"]
            self._watched = Watched(every, norm, self._weights.settings.norm_epsilon)

    def fork(self, slot: Slot) -> Slot:
        """A new slot with the same committed rows."""
        return Slot(self._model.fork(slot))

    def close(self, slot: Slot) -> None:
        """Free a slot."""
        self._model.close(slot)

    def base_weights(self) -> BaseWeights:
        """The embedding and the output matrix, packed; the same object when tied."""
        embedding = self._weights.tensors["embedding"]
        return BaseWeights(embedding, self._weights.tensors.get("output", embedding))

    @property
    def operations(self) -> NativeOperations:
        """Operations over packed matrices."""
        return self._operations

    def cache_bytes(self) -> int:
        """Bytes that the caches of all open slots hold."""
        return self._model.cache_bytes()

    def size(self) -> ModelSize:
        """Bytes and weights that a forward reads, by the packed matrices."""
        tensors = dict(self._weights.tensors)
        if "output" in tensors:
            del tensors["embedding"]  # looked up, not read
        settings = self._weights.settings
        weight_bytes = sum(t.nbytes if isinstance(t, np.ndarray) else t.num_bytes for t in tensors.values())
        num_bytes = 4 if self.kv_dtype == "float32" else 2
        per_position = 2 * settings.num_layers * settings.num_kv_heads * settings.head_size * num_bytes
        return ModelSize(weight_bytes, sum(math.prod(tensor.shape) for tensor in tensors.values()), per_position)

    def time_attention(self, on: bool) -> None:
        """Start (or stop) counting; it costs some 5 microseconds a forward."""
        self._model.enable_profile(on)

    def attention_seconds(self) -> float:
        """Seconds since counting began, as the first worker saw them."""
        return self._model.profile()["attention"]

    def first_layers(self, count: int) -> NativeTarget:
        """A target of the first ``count`` layers; weights are shared, caches are not. RequestError if there are not as many."""
        if not 0 < count < self.num_layers:
            raise RequestError(
                f"{count} layers of {self.name} were asked for; it has {self.num_layers}, so 1 to {self.num_layers - 1} make "
                "a draft"
            )
        kept = tuple(f"layers.{layer}." for layer in range(count))
        tensors = {
            name: tensor
            for name, tensor in self._weights.tensors.items()
            if not name.startswith("layers.") or name.startswith(kept)
        }
        return NativeTarget(
            replace(self._weights, settings=self._weights.settings.first(count), tensors=tensors),
            name=f"{self.name}, first {count} layers",
            vocab_size=self.vocab_size,
            end_tokens=self.end_tokens,
            kv_dtype=self.kv_dtype,
        )

    def _refuse_excess(self, feed: Feed) -> None:
        rows = len(feed.tree)
        room = self.context_limit - self._model.length(feed.slot)
        if rows > room:  # only then may it be too deep
            deepest = max(feed.tree.depths) + 1
            if deepest > room:
                needed = self.context_limit - room + deepest
                raise RequestError(f"{needed} positions are needed; the context of {self.name} ends at {self.context_limit}")


def runtime() -> dict[str, Any]:
    """Threads and instruction set."""
    return {"threads": _native.num_threads(), "isa": _native.isa()}
