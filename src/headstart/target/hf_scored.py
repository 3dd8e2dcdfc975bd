"""What a forward of the PyTorch engine found: logits and hidden states of the scored rows, kept where they were computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.accept import Row
from headstart.sampling import Sampler, log_softmax, unusable_logits
from headstart.target.base import ChosenLogprob, watched_places


@dataclass(frozen=True, slots=True)
class Streams:
    """What was watched of a forward, and where each entry's rows begin."""

    values: Tensor  # [R, all layers * D]
    starts: dict[int, int]
    layers: tuple[int, ...]  # in the order of their streams

    def chosen(self, rows: Sequence[Row], layers: Sequence[int]) -> Tensor:
        """[rows, F * D] of these F layers, as a copy."""
        index = torch.tensor([self.starts[entry] + row for entry, row in rows], dtype=torch.int64, device=self.values.device)
        found = self.values.index_select(0, index)
        places = watched_places(self.layers, layers)
        if places == list(range(len(self.layers))):
            return found
        return found.view(len(rows), len(self.layers), -1)[:, places].flatten(1)


class HfScored:
    """Implements ``Scored``. ``logits`` are [n, V] and ``hidden`` [n, D]; ``places`` finds each scored row among the n."""

    def __init__(self, logits: Tensor, hidden: Tensor, places: dict[Row, int], streams: Streams | None = None) -> None:
        self._logits, self._hidden, self._places, self._streams = logits, hidden, places, streams
        self._argmax: dict[int, int] = {}

    def pick(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> list[int]:
        """The plain sampler's token of each row; plain argmaxes are taken without moving the logits."""
        places = [self._places[row] for row in rows]
        greedy = [sampler.is_argmax(len(path)) for sampler, path in zip(samplers, paths, strict=True)]
        self._find_argmax([place for place, is_greedy in zip(places, greedy, strict=True) if is_greedy])
        return [
            self._argmax[place] if is_greedy else sampler.pick(self._host([place])[0], path)
            for place, is_greedy, sampler, path in zip(places, greedy, samplers, paths, strict=True)
        ]

    def probabilities(
        self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]
    ) -> NDArray[np.float64]:
        """What the plain sampler picks from, [rows, V]."""
        return np.stack([s.distribution(x, path) for x, s, path in zip(self.logits(rows), samplers, paths, strict=True)])

    def logits(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Raw logits [rows, V]."""
        return self._host([self._places[row] for row in rows])

    def logprobs(self, rows: Sequence[Row], tokens: Sequence[int], num_top: int) -> list[ChosenLogprob]:
        """Raw log-probability of one token a row, and the row's ``num_top`` likeliest, ties to the lowest id."""
        return [
            ChosenLogprob(token, float(values[token]), _likeliest(values, num_top))
            for values, token in zip(log_softmax(self.logits(rows)), tokens, strict=True)
        ]

    def likeliest(self, rows: Sequence[Row], k: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The min(k, V) likeliest tokens of each row and their raw log-probabilities, to the precision of float32."""
        x = self._logits.index_select(0, self._index([self._places[row] for row in rows])).float()
        values, ids = x.topk(min(k, x.shape[-1]), dim=-1)
        if not values[:, 0].isfinite().all():
            raise unusable_logits()
        host = (values - x.logsumexp(dim=-1, keepdim=True)).cpu().numpy().astype(np.float64)
        tokens = ids.cpu().numpy()
        order = np.lexsort((tokens, -host))  # topk leaves the order of ties open
        return np.take_along_axis(tokens, order, axis=1), np.take_along_axis(host, order, axis=1)

    def hidden(self, rows: Sequence[Row]) -> Tensor:
        """What the output matrix read for these rows, [rows, D], as a copy."""
        return self._hidden.index_select(0, self._index([self._places[row] for row in rows]))

    def states(self, rows: Sequence[Row], layers: Sequence[int]) -> Tensor:
        """What is watched at these layers, [rows, F * D], as a copy."""
        if self._streams is None:
            raise ValueError("no layer is watched")
        return self._streams.chosen(rows, layers)

    def _find_argmax(self, places: Sequence[int]) -> None:
        wanted = [place for place in places if place not in self._argmax]
        if not wanted:
            return
        if self._logits.device.type != "cpu":  # one transfer for the whole walk down the trees
            wanted = list(range(self._logits.shape[0]))
        x = self._logits.index_select(0, self._index(wanted))
        best = x.amax(dim=-1, keepdim=True)
        ids = torch.arange(x.shape[-1], device=x.device)
        lowest = torch.where(x == best, ids, x.shape[-1]).amin(dim=-1)  # argmax leaves ties open
        lowest = lowest.masked_fill(~best[:, 0].isfinite(), -1)
        found = dict(zip(wanted, lowest.tolist(), strict=True))
        if any(found[place] < 0 for place in places if place in found):
            raise unusable_logits()
        self._argmax |= found

    def _host(self, places: Sequence[int]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = self._logits.index_select(0, self._index(places)).float().cpu().numpy()
        return values

    def _index(self, places: Sequence[int]) -> Tensor:
        return torch.tensor(places, dtype=torch.int64, device=self._logits.device)


def _likeliest(values: NDArray[np.float64], count: int) -> tuple[tuple[int, float], ...]:
    count = min(count, values.size)
    if count == 0:
        return ()
    ids = np.flatnonzero(values >= np.partition(values, -count)[-count])
    order = ids[np.argsort(-values[ids], kind="stable")][:count]
    return tuple((int(i), float(values[i])) for i in order)
