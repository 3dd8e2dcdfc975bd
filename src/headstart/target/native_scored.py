"""What a forward of the native engine found: logits and hidden states of the scored rows, where the engine wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart import _native
from headstart.accept import Row
from headstart.sampling import Sampler
from headstart.target.base import ChosenLogprob


@dataclass(frozen=True, slots=True)
class LastNorm:
    """The norm in front of the output matrix, for rows that the stack did not score; as the stack's own up to rounding."""

    weight: NDArray[np.float32]  # [D]
    epsilon: float
    places: tuple[int, ...]  # of the watched streams, those that it is meant for

    def apply(self, states: NDArray[np.float32]) -> None:
        """Normalise these parts of [rows, F * D] in place."""
        wide = len(self.weight)
        for place in self.places:
            part = states[:, place * wide : (place + 1) * wide]
            part *= self.weight / np.sqrt((part * part).mean(axis=1, keepdims=True) + np.float32(self.epsilon))


class NativeScored:
    """Implements ``Scored`` over a result of the compiled stack, which its arrays keep alive."""

    def __init__(
        self,
        result: _native.Result,
        first_row: Sequence[int],
        first_scored: Sequence[int],
        starts: Sequence[int],
        last_norm: LastNorm | None = None,
    ) -> None:
        """Row 0 of each entry is row ``starts`` of all, and would be row ``first_row`` of the scored ones, if it was scored."""
        self._logits = result.logits  # [S, V]
        self._hidden = result.hidden  # [S, D]
        self._result = result
        self._first_row, self._first_scored, self._starts, self._last_norm = first_row, first_scored, starts, last_norm

    def pick(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> list[int]:
        """The plain sampler's token of each row."""
        places = self._places(rows)
        picks = [-1] * len(rows)
        greedy = []
        for i, (sampler, path) in enumerate(zip(samplers, paths, strict=True)):
            if sampler.is_argmax(len(path)):
                greedy.append(i)
            else:
                logits = self._logits[places[i]]
                picks[i] = _native.pick(logits, *sampler.plan(logits, path))
        if greedy:
            for i, token in zip(greedy, _native.argmax(self._logits, places[greedy]).tolist(), strict=True):
                picks[i] = token
        return picks

    def probabilities(
        self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        """What the plain sampler picks from, [rows, V]."""
        found = []
        for place, sampler, path in zip(self._places(rows), samplers, paths, strict=True):
            logits = self._logits[place]
            found.append(_native.distribution(logits, *sampler.plan(logits, path)))
        return np.stack(found)

    def logits(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Raw logits [rows, V], as a copy."""
        return self._logits[self._places(rows)]

    def logprobs(self, rows: Sequence[Row], tokens: Sequence[int], num_top: int) -> list[ChosenLogprob]:
        """Raw log-probability of one token a row, and the row's ``num_top`` likeliest, ties to the lowest id."""
        places = self._places(rows)
        chosen = np.array(tokens, dtype=np.int64)[:, None]
        top = _native.top_k(self._logits, places, num_top)[0] if num_top else np.empty((len(rows), 0), dtype=np.int64)
        ids = np.concatenate([chosen, top], axis=1)
        found = []
        for (token, *likeliest), (own, *values) in zip(
            ids.tolist(), _native.log_softmax(self._logits, places, ids).tolist(), strict=True
        ):
            found.append(ChosenLogprob(token, own, tuple(zip(likeliest, values, strict=True))))
        return found

    def likeliest(self, rows: Sequence[Row], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The min(k, V) likeliest tokens of each row, ties to the lowest id, and their raw log-probabilities."""
        places = self._places(rows)
        ids = _native.top_k(self._logits, places, k)[0]
        return ids, _native.log_softmax(self._logits, places, ids)

    def hidden(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """What the output matrix read for these rows, [rows, D], as a copy."""
        return self._hidden[self._places(rows)]

    def states(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """What is watched, [rows, F * D], as a copy."""
        states = self._result.states[[self._starts[entry] + row for entry, row in rows]]
        if self._last_norm is not None:
            self._last_norm.apply(states)
        return states

    def _places(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        first, scored = self._first_row, self._first_scored
        if any(row < scored[entry] for entry, row in rows):
            raise KeyError("a row before first_scored was not scored")
        return np.array([first[entry] + row for entry, row in rows], dtype=np.int64)
