"""The plain sampler: the one function that says which token comes next.

Plain decoding picks a token from the target's logits, the tokens before it, the request's parameters, its seed and the
position, and from nothing else. Verification evaluates this same function at every node of a draft, so what it commits is what
plain decoding would have said (see ``accept.py``).

* Temperature 0: the argmax of the processed logits, ties to the lowest id. Truncation (top-k, top-p, min-p) never removes the
  argmax, so it is fulfilled by doing nothing.
* Temperature > 0: ``argmax_x(log p(x) + g(seed, position, x))`` with p the processed distribution and g Gumbel noise, which is
  an exact sample of p (Gumbel 1954; Maddison et al. 2014). The noise comes from a counter-based generator: the output of
  SplitMix64 (Steele, Lea and Flood 2014) at counter ``token`` under a key made of seed and position. No state is carried from
  token to token, so nothing has to be rolled back when a draft is rejected.

Order of processing: repetition penalty (prompt and output), presence and frequency penalty (output only), logit bias, the ban
on ending before ``min_tokens``, temperature, top-k, top-p, min-p. The first five change logits, the last three cut the tail.

This file is the definition of the pick. An engine may compute it faster, never differently.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from headstart.errors import ModelError, RequestError

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment
_LARGEST = 1e300  # a penalised logit; an absurd penalty must not make two infinities meet
_LIKELY = 1024  # top-p looks at this many candidates before it sorts the whole vocabulary


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a request may ask of the sampler. Every default stands here and nowhere else."""

    temperature: float = 0.0
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # divides positive and multiplies negative logits of tokens in prompt and output
    presence_penalty: float = 0.0  # subtracted once from tokens in the output
    frequency_penalty: float = 0.0  # subtracted for each occurrence in the output
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    max_tokens: int | None = None  # None: up to the context limit
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None  # None: one from the operating system; the answer reports it
    n: int = 1
    logprobs: int | None = None  # None: off; k: the chosen token and the k likeliest, of the raw distribution

    def __post_init__(self) -> None:
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name in ("stop", "stop_token_ids"):
            _require(isinstance(getattr(self, name), Iterable), name, getattr(self, name), "a list")
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _require(isinstance(self.logit_bias, Mapping), "logit_bias", self.logit_bias, "a mapping from token ids to numbers")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        self._check_numbers()
        self._check_counts()
        self._check_tokens()

    def _check_numbers(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            _require(_is_number(getattr(self, name)), name, getattr(self, name), "a finite number")
        _require(self.temperature >= 0, "temperature", self.temperature, "0 or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1")
        _require(self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "above 0")

    def _check_counts(self) -> None:
        for name, least in (("top_k", 0), ("min_tokens", 0), ("max_tokens", 0), ("n", 1), ("logprobs", 0)):
            value = getattr(self, name)
            if value is not None or name not in ("max_tokens", "logprobs"):
                _require(_is_int(value) and value >= least, name, value, f"a whole number, {least} or more")
        valid = self.max_tokens is None or self.min_tokens <= self.max_tokens
        _require(valid, "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        _require(self.seed is None or _is_int(self.seed), "seed", self.seed, "a whole number")

    def _check_tokens(self) -> None:
        _require(all(isinstance(s, str) and s for s in self.stop), "stop", self.stop, "strings that are not empty")
        _require(all(_is_int(t) for t in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "whole numbers")
        biases = all(_is_int(t) and (_is_number(b) or b == -math.inf) for t, b in self.logit_bias.items())
        _require(biases, "logit_bias", self.logit_bias, "token ids with finite numbers (-inf bans a token)")
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "true or false")


def sampling_names() -> tuple[str, ...]:
    """Names of all sampling parameters, in their order."""
    return tuple(f.name for f in fields(Sampling))


def fresh_seed() -> int:
    """A seed from the operating system, for a request that brings none."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def nth_seed(seed: int, index: int) -> int:
    """Seed of the index-th of n answers; the first one keeps the request's own."""
    return seed if index == 0 else _mix((seed & _MASK) ^ _mix(index)) >> 1


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise of ``tokens`` [n] at a position: a pure function of its arguments."""
    key = _mix(_mix(seed & _MASK) + position)
    with np.errstate(over="ignore"):
        z = np.uint64(key) + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    uniform = ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52  # exact, so strictly inside (0, 1)
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities [..., V] of raw logits, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


class Sampler:
    """The plain sampler of one sequence: its parameters, its seed and the tokens committed so far."""

    def __init__(
        self, sampling: Sampling, *, vocab_size: int, prompt: Sequence[int] = (), end_tokens: Iterable[int] = (), seed: int = 0
    ) -> None:
        """``end_tokens`` are the model's own end-of-sequence ids; ``vocab_size`` counts the ids that may be sampled."""
        self.sampling, self.seed, self.vocab_size = sampling, seed, vocab_size
        for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            for token in ids:
                _require(0 <= token < vocab_size, name, token, f"a token id below {vocab_size}")
        ends = () if sampling.ignore_eos else (token for token in end_tokens if 0 <= token < vocab_size)  # configs overstate
        self.stop_tokens = frozenset(sampling.stop_token_ids) | frozenset(ends)
        self._prompt = frozenset(prompt)
        self._prompt_length = len(prompt)
        self._counts: dict[int, int] = {}
        self._num_committed = 0
        bias = {t: b for t, b in sampling.logit_bias.items() if b}
        self._bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self._bias = np.fromiter(bias.values(), dtype=np.float64, count=len(bias))
        self._penalises = sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0

    @property
    def num_committed(self) -> int:
        """Tokens committed after the prompt."""
        return self._num_committed

    @property
    def counts(self) -> Mapping[int, int]:
        """Occurrences of each committed token."""
        return self._counts

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens became part of the text."""
        for token in tokens:
            self._counts[token] = self._counts.get(token, 0) + 1
        self._num_committed += len(tokens)

    def is_argmax(self, path_length: int = 0) -> bool:
        """Whether the pick behind ``path_length`` drafted tokens is the argmax of the raw logits."""
        bans = self.stop_tokens and self._num_committed + path_length < self.sampling.min_tokens
        return self.sampling.temperature == 0 and not (self._penalises or self._bias.size or bans)

    def pick(self, logits: NDArray[np.float32], path: Sequence[int] = ()) -> int:
        """The plain sampler's token from raw ``logits`` [V], behind the drafted tokens ``path`` (root excluded)."""
        ids, values = self.candidates(logits, path)
        if self.sampling.temperature == 0:
            return int(ids[np.argmax(values)])
        position = self._prompt_length + self._num_committed + len(path)
        return int(ids[np.argmax(values + gumbel(self.seed, position, ids))])

    def distribution(self, logits: NDArray[np.float32], path: Sequence[int] = ()) -> NDArray[np.float64]:
        """The processed distribution [V] that :meth:`pick` samples; one-hot at temperature 0."""
        ids, values = self.candidates(logits, path)
        dense = np.zeros(self.vocab_size)
        if self.sampling.temperature == 0:
            dense[ids[np.argmax(values)]] = 1.0
        else:
            weights = np.exp(values - values.max())
            dense[ids] = weights / weights.sum()
        return dense

    def candidates(
        self, logits: NDArray[np.float32], path: Sequence[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids [n] in ascending order that survive truncation, and their processed log-weights [n] (not normalised)."""
        x = self._processed(logits[: self.vocab_size], path)
        settings = self.sampling
        if settings.temperature == 0:
            return np.arange(x.size), x
        with np.errstate(over="ignore"):  # the best token stays at 0 however small the temperature
            x = (x - x.max()) / settings.temperature
        ids = np.flatnonzero(x > -math.inf)
        if 0 < settings.top_k < ids.size:
            values = x[ids]
            ids = ids[values >= np.partition(values, -settings.top_k)[-settings.top_k]]  # ties at the border stay
        if settings.top_p < 1:
            ids = _nucleus(x, ids, settings.top_p)
        if settings.min_p > 0:
            values = x[ids]
            ids = ids[values >= values.max() + math.log(settings.min_p)]
        return ids, x[ids]

    def _processed(self, logits: NDArray[np.float32], path: Sequence[int]) -> NDArray[np.float64]:
        """Raw logits [V] after penalties, bias and the ban on ending early, in float64."""
        x = logits.astype(np.float64)
        if not np.isfinite(x.max()):
            raise ModelError("the model's logits hold NaN or infinity; try another dtype (float32) or check the weights")
        settings = self.sampling
        if self._penalises:
            counts = dict(self._counts)
            for token in path:
                counts[token] = counts.get(token, 0) + 1
            if settings.repetition_penalty != 1:
                seen = np.fromiter(self._prompt | counts.keys(), dtype=np.int64)
                seen = seen[seen < x.size]
                scale = settings.repetition_penalty
                with np.errstate(over="ignore"):
                    scaled = np.where(x[seen] > 0, x[seen] / scale, x[seen] * scale)
                x[seen] = np.clip(scaled, -_LARGEST, _LARGEST, where=np.isfinite(x[seen]), out=scaled)
            said = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
            times = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
            with np.errstate(over="ignore"):
                x[said] -= np.clip(settings.presence_penalty + settings.frequency_penalty * times, -_LARGEST, _LARGEST)
        x[self._bias_ids] += self._bias
        if self._num_committed + len(path) < settings.min_tokens:
            x[list(self.stop_tokens)] = -math.inf
        if x.max() == -math.inf:
            raise RequestError("logit_bias and min_tokens together ban every token; loosen one of them")
        return x


def _nucleus(x: NDArray[np.float64], ids: NDArray[np.int64], top_p: float) -> NDArray[np.int64]:
    """The smallest set of likeliest ids whose probability reaches ``top_p``; ties go to the lower id."""
    weights = np.exp(x[ids] - x[ids].max())
    total = weights.sum()
    likely = ids
    if ids.size > 4 * _LIKELY:  # a sort of the whole vocabulary costs milliseconds and is rarely needed
        border = np.partition(weights, -_LIKELY)[-_LIKELY]
        inside = weights > border  # strictly above: ties at the border are never split
        if weights[inside].sum() >= top_p * total:
            likely, weights = ids[inside], weights[inside]
    order = np.argsort(-weights, kind="stable")
    mass = np.cumsum(weights[order])
    size = int(np.searchsorted(mass, top_p * total)) + 1
    return np.sort(likely[order[:size]])


def _mix(z: int) -> int:
    """SplitMix64's output function on one 64-bit number."""
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _require(valid: object, name: str, value: object, expected: str) -> None:
    if not valid:
        raise RequestError(f"{name} is {value!r}; it must be {expected}")
