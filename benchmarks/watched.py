"""A target that remembers a digest of the logits at every committed position, whichever way they were computed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headstart.target.base import Feed, Scored, Slot, Target
from headstart.tree import Path


def digest(logits: np.ndarray[Any, np.dtype[np.float32]]) -> bytes:
    """Of one row's bits."""
    return hashlib.sha256(logits.tobytes()).digest()


@dataclass(slots=True)
class Trace:
    """One sequence as the target saw it."""

    tokens: list[int] = field(default_factory=list)  # committed
    digests: dict[int, bytes] = field(default_factory=dict)  # by position, where logits were computed


class WatchedTarget:
    """Implements ``Target`` over another one. ``traces`` are in the order in which slots were opened."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._traces: dict[Slot, Trace] = {}
        self._fed: dict[Slot, tuple[int, Feed, Scored]] = {}
        self.traces: list[Trace] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def open(self) -> Slot:
        """A slot with an empty cache."""
        slot = self._target.open()
        self._traces[slot] = Trace()
        self.traces.append(self._traces[slot])
        return slot

    def forward(self, batch: Sequence[Feed]) -> Scored:
        """Score all rows."""
        scored = self._target.forward(batch)
        self._fed |= {feed.slot: (entry, feed, scored) for entry, feed in enumerate(batch)}
        return scored

    def keep(self, slot: Slot, path: Path) -> None:
        """Commit rows, and remember what their logits were."""
        entry, feed, scored = self._fed.pop(slot)
        trace = self._traces[slot]
        start = len(trace.tokens)
        rows = [(start + index, row) for index, row in enumerate(path) if row >= feed.first_scored]
        if rows:
            logits = scored.logits([(entry, row) for _, row in rows])
            for (position, _), values in zip(rows, logits, strict=True):
                trace.digests[position] = digest(values)
        trace.tokens.extend(feed.tree.tokens[row] for row in path)
        self._target.keep(slot, path)

    def fork(self, slot: Slot) -> Slot:
        """A new slot with the same committed rows."""
        copy = self._target.fork(slot)
        seen = self._traces[slot]
        self._traces[copy] = Trace(list(seen.tokens), dict(seen.digests))
        self.traces.append(self._traces[copy])
        return copy

    def close(self, slot: Slot) -> None:
        """Free a slot."""
        self._fed.pop(slot, None)
        self._target.close(slot)
