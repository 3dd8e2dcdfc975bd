"""What a forward of the native engine found: logits and hidden states of the scored rows, where the engine wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart import _native
from headstart.accept import Row
from headstart.sampling import Sampler
from headstart.target.base import HIDDEN, ChosenLogprob, watched_places


@dataclass(frozen=True, slots=True)
class Watched:
    """Which streams the stack writes, and the norm in front of the output matrix, as the stack's own up to rounding.

    The norm is for rows that the stack did not score: their hidden states come from the stream behind all layers.
    """

    layers: tuple[int, ...]  # in the order of the streams
    norm: NDArray[np.float32]  # [D]
    epsilon: float

    def chosen(self, states: NDArray[np.float32], layers: Sequence[int]) -> NDArray[np.float32]:
        """Of [rows, all * D] the streams of these F layers, [rows, F * D]; a copy unless they are all, in order."""
        wide = len(self.norm)
        places = watched_places(self.layers, layers)
        if places != list(range(states.shape[1] // wide)):
            states = states.reshape(len(states), -1, wide)[:, places].reshape(len(states), -1)
        for place in (place for place, layer in enumerate(layers) if layer == HIDDEN):
            part = states[:, place * wide : (place + 1) * wide]
            part *= self.norm / np.sqrt((part * part).mean(axis=1, keepdims=True) + np.float32(self.epsilon))
        return states


class NativeScored:
    """Implements ``Scored`` over a result of the compiled stack, which its arrays keep alive."""

    def __init__(
        self,
        result: _native.Result,
        first_row: Sequence[int],
        first_scored: Sequence[int],
        starts: Sequence[int],
        watched: Watched | None = None,
    ) -> None:
        """Row 0 of each entry is row ``starts`` of all, and would be row ``first_row`` of the scored ones, if it was scored."""
        self._logits = result.logits  # [S, V]
        self._hidden = result.hidden  # [S, D]
        self._result = result
        self._first_row, self._first_scored, self._starts, self._watched = first_row, first_scored, starts, watched

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

    def states(self, rows: Sequence[Row], layers: Sequence[int]) -> NDArray[np.float32]:
        """What is watched at these layers, [rows, F * D], as a copy."""
        if self._watched is None:
            raise ValueError("no layer is watched")
        return self._watched.chosen(self._result.states[[self._starts[entry] + row for entry, row in rows]], layers)

    def _places(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        first, scored, places = self._first_row, self._first_scored, list[int]()
        for entry, row in rows:
            if row < scored[entry]:
                raise KeyError("a row before first_scored was not scored")
            places.append(first[entry] + row)
        return np.array(places, dtype=np.int64)
