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

This file is the definition of the pick, to the last bit: logarithms, exponentials and sums are those of ``arithmetic.py``. An
engine may compute it faster, never differently; ``Sampler.plan`` tells it what to compute.
"""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headstart.arithmetic import exp, log, total
from headstart.errors import ModelError, RequestError, require

_MASK = (1 << 64) - 1
_MOST = (1 << 31) - 1  # of a count
_GOLDEN = 0x9E3779B97F4A7C15  # SplitMix64's increment
_LARGEST = 1e300  # a penalised or biased logit; an absurd penalty must not make two infinities meet
_NONE = np.empty(0, dtype=np.int64)
_ROUGHNESS = 1e-6  # far more than numpy's logarithms are off
_CLEAR = 1e-9  # relative to a sum, far more than exponentials and orders of summing differ
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
        for name, wanted in (("stop", "a string or a list of strings"), ("stop_token_ids", "a list of whole numbers")):
            given = getattr(self, name)
            is_list = given is None or (isinstance(given, Iterable) and not isinstance(given, str | bytes | bytearray))
            require(is_list, name, given, wanted)
            object.__setattr__(self, name, () if given is None else tuple(given))
        require(isinstance(self.logit_bias, Mapping), "logit_bias", self.logit_bias, "a mapping from token ids to numbers")
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        for entry in fields(self):
            object.__setattr__(self, entry.name, _python(getattr(self, entry.name)))
        self._check_numbers()
        self._check_counts()
        self._check_tokens()

    def _check_numbers(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            require(_is_number(getattr(self, name)), name, getattr(self, name), "a finite number")
        require(self.temperature >= 0, "temperature", self.temperature, "0 or more")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1")
        require(0 <= self.min_p <= 1, "min_p", self.min_p, "between 0 and 1")
        require(self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "above 0")

    def _check_counts(self) -> None:
        for name, least in (("top_k", 0), ("min_tokens", 0), ("max_tokens", 0), ("n", 1), ("logprobs", 0)):
            value = getattr(self, name)
            if value is not None or name not in ("max_tokens", "logprobs"):
                require(_is_int(value) and value >= least, name, value, f"a whole number, {least} or more")
        for name in ("top_k", "n", "logprobs"):  # engines take them as machine words
            value = getattr(self, name) or 0
            require(value <= _MOST, name, value, f"at most {_MOST}")
        valid = self.max_tokens is None or self.min_tokens <= self.max_tokens
        require(valid, "min_tokens", self.min_tokens, f"at most max_tokens ({self.max_tokens})")
        require(self.seed is None or _is_int(self.seed), "seed", self.seed, "a whole number")

    def _check_tokens(self) -> None:
        require(all(isinstance(s, str) and s for s in self.stop), "stop", self.stop, "strings that are not empty")
        require(all(_is_int(t) for t in self.stop_token_ids), "stop_token_ids", self.stop_token_ids, "whole numbers")
        biases = all(_is_int(t) and (_is_number(b) or b == -math.inf) for t, b in self.logit_bias.items())
        require(biases, "logit_bias", self.logit_bias, "token ids with finite numbers (-inf bans a token)")
        require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "true or false")


def sampling_names() -> tuple[str, ...]:
    """Names of all sampling parameters, in their order."""
    return tuple(f.name for f in fields(Sampling))


def fresh_seed() -> int:
    """A seed from the operating system, for a request that brings none."""
    return int.from_bytes(os.urandom(8), "little") >> 1


def nth_seed(seed: int, index: int) -> int:
    """Seed of the index-th of n answers; the first one keeps the request's own."""
    return seed if index == 0 else _mix((seed & _MASK) ^ _mix(index)) >> 1


def noise_key(seed: int, position: int) -> int:
    """What seed and position contribute to the noise, 64 bits."""
    return _mix(_mix(seed & _MASK) + position)


def own_seed(seed: int, purpose: str) -> int:
    """A seed whose noise is independent of the pick's (its positions are not negative), for whatever else needs chance."""
    return noise_key(seed, -1 - zlib.crc32(purpose.encode()))


def uniform(seed: int, position: int, index: int) -> float:
    """The index-th uniform number in (0, 1) of a position."""
    return float(_uniform(noise_key(seed, position), np.array([index]))[0])


def rough_gumbel(keys: NDArray[np.uint64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise of ``tokens`` [n, m] under a noise key a row [n], to within rounding: for guesses, not for the pick."""
    noise: NDArray[np.float64] = -np.log(-np.log(_uniform(keys[:, None], tokens)))
    return noise


def gumbel(seed: int, position: int, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Gumbel noise of ``tokens`` [n] at a position: a pure function of its arguments."""
    return -log(-log(_uniform(noise_key(seed, position), tokens)))


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Log-probabilities [..., V] of raw logits, in float64."""
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= log(total(exp(x)))
    return x


def unusable_logits() -> ModelError:
    """The error for logits whose maximum is no finite number."""
    return ModelError("the model's logits hold NaN or infinity; try another dtype (float32) or check the weights")


def every_token_banned() -> RequestError:
    """The error for a request that leaves no token to pick."""
    return RequestError("logit_bias and min_tokens together ban every token; loosen one of them")


class Plan(NamedTuple):
    """One pick, as an engine needs it beside the raw logits [V]: the arguments of ``_native.pick``, in their order."""

    ids: NDArray[np.int64]  # [m], ascending: the tokens that penalties, bias and bans touch
    values: NDArray[np.float64]  # [m]: what their logits become; minus infinity: banned
    temperature: float
    top_k: int
    top_p: float
    log_min_p: float  # minus infinity: off
    key: int  # of the noise


class Sampler:
    """The plain sampler of one sequence: its parameters, its seed and the tokens committed so far."""

    def __init__(
        self, sampling: Sampling, *, vocab_size: int, prompt: Sequence[int] = (), end_tokens: Iterable[int] = (), seed: int = 0
    ) -> None:
        """``end_tokens`` are the model's own end-of-sequence ids; ``vocab_size`` counts the ids that may be sampled."""
        self.sampling, self.seed, self.vocab_size = sampling, seed, vocab_size
        for name, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            for token in ids:
                require(0 <= token < vocab_size, name, token, f"a token id below {vocab_size}")
        ends = () if sampling.ignore_eos else (token for token in end_tokens if 0 <= token < vocab_size)  # configs overstate
        self.stop_tokens = frozenset(sampling.stop_token_ids) | frozenset(ends)
        tokens = np.fromiter(prompt, dtype=np.int64, count=len(prompt))
        self._prompt = np.unique(tokens[tokens < vocab_size])
        self._prompt_length = len(prompt)
        self._counts: dict[int, int] = {}
        self._num_committed = 0
        least = np.array([max(sampling.min_p, sys.float_info.min)], dtype=np.float64)
        self._log_min_p = float(log(least)[0]) if sampling.min_p else -math.inf
        self._stop_ids = np.array(sorted(self.stop_tokens), dtype=np.int64)
        bias = {t: b for t, b in sampling.logit_bias.items() if b}
        self._bias_ids = np.fromiter(bias.keys(), dtype=np.int64, count=len(bias))
        self._bias = np.fromiter(bias.values(), dtype=np.float64, count=len(bias))
        self._penalises = sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0

    @property
    def num_committed(self) -> int:
        """Tokens committed after the prompt."""
        return self._num_committed

    @property
    def position(self) -> int:
        """Where the next token will stand."""
        return self._prompt_length + self._num_committed

    @property
    def truncates(self) -> bool:
        """Whether top-k, top-p or min-p is on."""
        return self.sampling.top_k > 0 or self.sampling.top_p < 1 or self.sampling.min_p > 0

    @property
    def log_min_p(self) -> float:
        """The logarithm of min-p; minus infinity: off."""
        return self._log_min_p

    @property
    def counts(self) -> Mapping[int, int]:
        """Occurrences of each committed token."""
        return self._counts

    def commit(self, tokens: Sequence[int]) -> None:
        """Tokens became part of the text."""
        for token in tokens:
            self._counts[token] = self._counts.get(token, 0) + 1
        self._num_committed += len(tokens)

    def keeps_logits(self, path_length: int = 0) -> bool:
        """Whether no penalty, bias or ban touches the raw logits behind ``path_length`` drafted tokens."""
        return not (self._penalises or self._bias.size or self._bans(path_length).size)

    def is_argmax(self, path_length: int = 0) -> bool:
        """Whether the pick behind ``path_length`` drafted tokens is the argmax of the raw logits."""
        return self.sampling.temperature == 0 and self.keeps_logits(path_length)

    def plan(self, logits: NDArray[np.float32], path: Sequence[int] = ()) -> Plan:
        """Everything that decides the pick behind ``path``; of ``logits`` [V] only the values of changed tokens are read."""
        s = self.sampling
        key = noise_key(self.seed, self.position + len(path))
        return Plan(*self.changes(logits, path), s.temperature, s.top_k, s.top_p, self._log_min_p, key)

    def pick(self, logits: NDArray[np.float32], path: Sequence[int] = ()) -> int:
        """The plain sampler's token from raw ``logits`` [V], behind the drafted tokens ``path`` (root excluded)."""
        ids, values = self.candidates(logits, path)
        if self.sampling.temperature == 0:
            return int(ids[np.argmax(values)])
        uniform = _uniform(noise_key(self.seed, self.position + len(path)), ids)
        roughly = values - np.log(-np.log(uniform))  # any logarithm finds the few that can be the best
        near = np.flatnonzero(roughly >= roughly.max() - _ROUGHNESS)
        return int(ids[near[np.argmax(values[near] - log(-log(uniform[near])))]])

    def distribution(self, logits: NDArray[np.float32], path: Sequence[int] = ()) -> NDArray[np.float64]:
        """The processed distribution [V] that :meth:`pick` samples; one-hot at temperature 0."""
        ids, values = self.candidates(logits, path)
        dense = np.zeros(self.vocab_size)
        if self.sampling.temperature == 0:
            dense[ids[np.argmax(values)]] = 1.0
        else:
            dense[ids] = exp(values)
            dense /= total(dense)
        return dense

    def candidates(
        self, logits: NDArray[np.float32], path: Sequence[int] = ()
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids [n] in ascending order that survive truncation, and their processed log-weights [n] (not normalised)."""
        return self.truncated(self.processed(logits[: self.vocab_size], path))

    def processed(self, logits: NDArray[np.float32], path: Sequence[int]) -> NDArray[np.float64]:
        """Raw logits [V] after penalties, bias and the ban on ending early, in float64: temperature comes next."""
        x = logits.astype(np.float64)
        if not np.isfinite(x.max()):
            raise unusable_logits()
        ids, values = self.changes(logits, path)
        x[ids] = values
        if x.max() == -math.inf:
            raise every_token_banned()
        return x

    def truncated(self, x: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Places [n], ascending, of the log-weights ``x`` that survive truncation, and what they weigh [n] at the temperature.

        ``x`` may be of a few tokens alone, the likeliest; they then count as the whole distribution.
        """
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
            ids = ids[x[ids] >= self._log_min_p]
        return ids, x[ids]

    def changes(self, logits: NDArray[np.float32], path: Sequence[int] = ()) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Ids [m], ascending, that penalties, bias and the ban on ending early touch, and the values [m] they give them."""
        bans, seen, said, times = self._bans(len(path)), _NONE, _NONE, _NONE
        if self._penalises:
            said, times = self._said(path)
        if self.sampling.repetition_penalty != 1:
            seen = np.concatenate([self._prompt, said])
        touched = np.concatenate([seen, said, self._bias_ids, bans])
        if not touched.size:
            return _NONE, np.empty(0)
        ids = np.unique(touched)
        x = logits[ids].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # logits that are not finite are the pick's to report
            if seen.size:
                self._repeat(x, np.searchsorted(ids, seen))
            penalties = self.sampling.presence_penalty + self.sampling.frequency_penalty * times
            x[np.searchsorted(ids, said)] -= np.clip(penalties, -_LARGEST, _LARGEST)
            x[np.searchsorted(ids, self._bias_ids)] += self._bias
        x = np.where(x == -math.inf, x, np.clip(x, -_LARGEST, _LARGEST))
        x[np.searchsorted(ids, bans)] = -math.inf
        return ids, x

    def _repeat(self, x: NDArray[np.float64], places: NDArray[np.int64]) -> None:
        scale, values = self.sampling.repetition_penalty, x[places]
        scaled = np.where(values > 0, values / scale, values * scale)
        x[places] = np.clip(scaled, -_LARGEST, _LARGEST, where=np.isfinite(values), out=scaled)

    def _said(self, path: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids of the output behind ``path`` and how often they occur."""
        counts = self._counts
        if path:
            counts = dict(counts)
            for token in path:
                counts[token] = counts.get(token, 0) + 1
        ids = np.fromiter(counts.keys(), dtype=np.int64, count=len(counts))
        times = np.fromiter(counts.values(), dtype=np.int64, count=len(counts))
        inside = ids < self.vocab_size
        return ids[inside], times[inside]

    def _bans(self, path_length: int) -> NDArray[np.int64]:
        return self._stop_ids if self._num_committed + path_length < self.sampling.min_tokens else _NONE


def _nucleus(x: NDArray[np.float64], ids: NDArray[np.int64], top_p: float) -> NDArray[np.int64]:
    """The smallest set of likeliest ids whose probability reaches ``top_p``; ties go to the lower id.

    ``x`` [V] are log-weights of which the largest is 0. Weights are added up from the likeliest on, one by one.
    """
    small = _small_nucleus(x[ids], top_p) if ids.size > 4 * _LIKELY else None
    if small is not None:
        return ids[small]
    dense = np.zeros_like(x)
    weights = dense[ids] = exp(x[ids])
    order = np.argsort(-weights, kind="stable")
    size = int(np.searchsorted(np.cumsum(weights[order]), top_p * total(dense)[0])) + 1
    return np.sort(ids[order[:size]])


def _small_nucleus(x: NDArray[np.float64], top_p: float) -> NDArray[np.int64] | None:
    """Places of the nucleus of log-weights [n]; None where it is large or rounding could move its border.

    A sort of the whole vocabulary costs milliseconds and is rarely needed, and any exponential finds a clear border.
    """
    weights = np.exp(x)
    inside = np.flatnonzero(weights > np.partition(weights, -_LIKELY)[-_LIKELY])
    order = inside[np.argsort(-weights[inside], kind="stable")]
    wanted = top_p * weights.sum()
    first, last = np.searchsorted(np.cumsum(weights[order]), [wanted * (1 - _CLEAR), wanted * (1 + _CLEAR)])
    gaps = -np.diff(x[order[: last + 2]])
    if first != last or last + 1 >= order.size or np.any((gaps != 0) & (gaps < _CLEAR)):
        return None
    return np.sort(order[: last + 1])


def _uniform(key: int | NDArray[np.uint64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Uniform numbers of ``tokens`` [n], or [n, m] under keys [n, 1]; strictly inside (0, 1), exact multiples of 2^-53."""
    with np.errstate(over="ignore"):
        z = np.asarray(key, dtype=np.uint64) + (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    numbers: NDArray[np.float64] = ((z >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return numbers


def _mix(z: int) -> int:
    """SplitMix64's output function on one 64-bit number."""
    z = (z + _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _python(value: Any) -> Any:
    """Numbers of other libraries, such as numpy's, as Python's own, which engines and JSON take."""
    if isinstance(value, dict):
        return {_python(token): _python(bias) for token, bias in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_python, value))
    if isinstance(value, int | float):
        return value
    return int(value) if isinstance(value, Integral) else float(value) if isinstance(value, Real) else value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
