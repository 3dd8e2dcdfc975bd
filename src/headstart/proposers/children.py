"""Which candidates become a node's children, and how likely each is to be accepted.

A proposer that ranks tokens by a distribution q asks here. Three ways:

* ``likeliest``: the largest q. The only way at temperature 0.
* ``coupled`` (for the rule ``exact``): the largest ``log q + g`` with the noise g that the plain sampler will use at that
  position. Where q is near the target's p, both have the same winner (Daliri et al. 2024, "Coupling without communication and
  drafter-invariant speculative decoding").
* ``drawn`` (for ``rejection`` and ``block``): draws from q without replacement, the largest ``log q + g`` with noise of the
  proposer's own, which is independent of the pick's (Kool et al. 2019, "Stochastic beams and where to find them"). The children
  come with q and with all that was drawn (``tree.Draws``), which the rule weighs against p.

At temperature > 0, q is the softmax of the candidates' log-probabilities over the temperature, after the request's top-k, top-p
and min-p. It need not be near p, and need not cover the vocabulary: that costs hits, never correctness.

The estimates, of which ``calibration.py`` corrects the level:

* Likeliest: q itself.
* Coupled: g is known, so the estimate uses it. Think of the target's score of a token as ``log q + g`` plus an unknown error:
  then a child is sure if its score stands far above the others, and not if they tie. A softmax of ``a (log q + g)`` says so,
  times the mass that q gives to the candidates at all, which is little at high temperatures. a is smaller the larger the error:
  for heads it is what a few hundred positions of SmolLM2's heads at temperature 1 asked for (0.6 to 0.8 at every depth); for a
  whole model, which knows its own pick, it is set by hand.
* Drawn: a share that grows with q's own concentration, falling by rank. It does not look at what was drawn, so the shape of a
  tree that is grown by these estimates does not depend on it either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.accept import Choice
from headstart.heads.operations import Coupling
from headstart.proposers.base import Sequence
from headstart.sampling import noise_key, own_seed, rough_gumbel
from headstart.tree import Draws

Floats = NDArray[np.float64]

_SHARPNESS, _SHARPNESS_OF_MODELS = 0.7, 2.0  # a
_NEVER = -700.0  # a log-probability below which a candidate is none
_AHEAD = 1e-9
_FEW = 64  # candidates of a node
_DRAWN_HIT = 0.5  # a first draw from a flat q is accepted that often; from a certain one always
_DRAWN_FALL = 0.5  # each further draw takes this share of what the first would, of what is left


@dataclass(frozen=True, slots=True)
class Place:
    """A node that wants children: its sequence and the drafted tokens that lead to it, the root excluded."""

    sequence: Sequence
    path: tuple[int, ...] = ()

    @property
    def position(self) -> int:
        """Where the children stand."""
        return len(self.sequence.tokens) + len(self.path)

    @property
    def choice(self) -> Choice:
        """How children are chosen here."""
        return self.sequence.choice if self.sequence.sampler.sampling.temperature > 0 else "likeliest"


@dataclass(frozen=True, slots=True)
class Children:
    """Children of one node, the most promising first, with the estimates; ``draws`` is there if they were drawn."""

    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    draws: Draws | None = None


def choose_children(
    places: ListOf[Place],
    ids: NDArray[np.int64],
    logprobs: Floats,
    num_children: int,
    *,
    owner: str,
    picks: ListOf[int | None] | None = None,
) -> list[Children]:
    """Children of n nodes, at most ``num_children`` each, from candidates ``ids`` [n, m] with their ``logprobs`` [n, m].

    ``logprobs`` are raw, before temperature; minus infinity is no candidate. ``owner`` names the proposer: draws of two never
    share their noise. ``picks``: the proposer's own pick of each node by the sampler's noise over all that q covers, where it
    is known; it is the first coupled child, also if it is no candidate.
    """
    num_children = min(num_children, ids.shape[1])
    if all(place.sequence.sampler.sampling.temperature == 0 for place in places):
        return _likeliest(ids, logprobs, num_children)
    choices = [place.choice for place in places]
    logs = _tempered(places, logprobs)
    noise = _noise(places, choices, ids, owner)
    if picks is not None:
        ids, logs, noise = _led(places, choices, picks, ids, logs, noise)
    scores = logs + noise
    best = _largest(scores, num_children)
    if picks is None:
        coupled = _mass(places, logprobs) * _softmax(_SHARPNESS * scores)
    else:
        coupled = _softmax(_SHARPNESS_OF_MODELS * scores)
    found = []
    for row, choice in enumerate(choices):
        chosen = best[row][scores[row, best[row]] > -np.inf]
        tokens = tuple(ids[row, chosen].tolist())
        if choice == "drawn":
            q = np.exp(logs[row])
            draws = Draws(tokens, ids[row][q > 0], q[q > 0])
            found.append(Children(tokens, _drawn_hits(q, len(tokens)), draws))
        else:
            estimates = coupled[row, chosen] if choice == "coupled" else np.exp(logs[row, chosen])
            found.append(Children(tokens, tuple(estimates.tolist())))
    return found


def coupling(sequence: Sequence, num_levels: int) -> Coupling | None:
    """What the engine needs to couple children of ``num_levels`` depths; None where there is no noise."""
    sampler, sampling = sequence.sampler, sequence.sampler.sampling
    if sampling.temperature == 0:
        return None
    keys = [noise_key(sampler.seed, len(sequence.tokens) + depth) for depth in range(num_levels)]
    return Coupling(
        keys, sampling.temperature, sampling.top_k, sampling.top_p, sampler.log_min_p, sampler.vocab_size, _SHARPNESS
    )


def _likeliest(ids: NDArray[np.int64], logprobs: Floats, num_children: int) -> list[Children]:
    """The likeliest children of every node, where nothing else is weighed: at temperature 0."""
    if ids.shape[1] > _FEW:
        best = _largest(logprobs, num_children)
        ids, logprobs = np.take_along_axis(ids, best, axis=1), np.take_along_axis(logprobs, best, axis=1)
    found = []
    for tokens, logs in zip(
        ids.tolist(), logprobs.tolist(), strict=True
    ):  # for a few numbers a dozen calls of numpy take longer
        ranked = sorted([(-x, i) for i, x in enumerate(logs) if x > -math.inf])[:num_children]
        found.append(Children(tuple([tokens[i] for _, i in ranked]), tuple([math.exp(-x) for x, _ in ranked])))
    return found


def _mass(places: ListOf[Place], logprobs: Floats) -> Floats:
    """What q gives to the candidates at all [n, 1]; heat takes from it, the more the more tokens there are besides."""
    mass: Floats = np.minimum(np.exp(logprobs).sum(axis=1), 1.0)
    for row, place in enumerate(places):
        sampler = place.sequence.sampler
        power, num_others = 1 / (sampler.sampling.temperature or 1.0), sampler.vocab_size - logprobs.shape[1]
        if power < 1 and num_others > 0 and not sampler.truncates:
            others = num_others * ((1 - mass[row]) / num_others) ** power  # at most: if they are equally likely
            within = np.exp(power * logprobs[row]).sum()
            mass[row] = within / (within + others)
    return mass.reshape(-1, 1)


def _tempered(places: ListOf[Place], logprobs: Floats) -> Floats:
    """Log q [n, m]; at temperature 0 the log-probabilities as they are."""
    temperatures = np.array([place.sequence.sampler.sampling.temperature for place in places])
    noisy = [row for row, temperature in enumerate(temperatures) if temperature > 0]
    if not noisy:
        return logprobs
    logs = logprobs.astype(np.float64, copy=True)
    with np.errstate(over="ignore"):
        scaled = (logs[noisy] - logs[noisy].max(axis=1, keepdims=True)) / temperatures[noisy, None]
    for i, row in enumerate(noisy):
        if places[row].sequence.sampler.truncates:
            kept, _ = places[row].sequence.sampler.truncated(logs[row])
            outside = np.ones(logs.shape[1], dtype=np.bool_)
            outside[kept] = False
            scaled[i, outside] = -np.inf
    scaled -= np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    scaled[scaled < _NEVER] = -np.inf
    logs[noisy] = scaled
    return logs


def _noise(places: ListOf[Place], choices: ListOf[Choice], ids: NDArray[np.int64], owner: str) -> Floats:
    """Gumbel noise [n, m] of the candidates; 0 where the likeliest are wanted."""
    noise = np.zeros(ids.shape)
    rows = [row for row, choice in enumerate(choices) if choice != "likeliest"]
    if rows:
        keys = np.array([_key(places[row], choices[row], owner) for row in rows], dtype=np.uint64)
        noise[rows] = rough_gumbel(keys, ids[rows])
    return noise


def _key(place: Place, choice: Choice, owner: str) -> int:
    """The noise key of a node: the sampler's own for coupling; for draws one that no other node and no other proposer has."""
    seed = place.sequence.sampler.seed
    if choice == "coupled":
        return noise_key(seed, place.position)
    key = noise_key(own_seed(seed, f"draws of {owner}"), place.position)
    for token in place.path:
        key = noise_key(key, token)
    return key


def _led(
    places: ListOf[Place],
    choices: ListOf[Choice],
    picks: ListOf[int | None],
    ids: NDArray[np.int64],
    logs: Floats,
    noise: Floats,
) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Candidates in which each coupled node's own pick has the largest score; it replaces the least likely if it was none."""
    ids, logs, noise = ids.copy(), logs.copy(), noise.copy()
    for row, (place, choice, pick) in enumerate(zip(places, choices, picks, strict=True)):
        if choice != "coupled" or pick is None:
            continue
        found = np.flatnonzero(ids[row] == pick)
        at = int(found[0]) if found.size else int(np.argmin(logs[row]))
        if not found.size:
            ids[row, at], logs[row, at] = pick, -np.inf
            key = np.array([noise_key(place.sequence.sampler.seed, place.position)], dtype=np.uint64)
            noise[row, at] = rough_gumbel(key, ids[row : row + 1, at : at + 1])[0, 0]
        least = np.max(logs[row] + noise[row]) - noise[row, at] + _AHEAD
        logs[row, at] = max(logs[row, at], least)
    return ids, logs, noise


def _largest(scores: Floats, count: int) -> NDArray[np.int64]:
    """Columns [n, count] of the largest scores of each row, largest first, ties to the lowest column."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def _softmax(scores: Floats) -> Floats:
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: Floats = weights / weights.sum(axis=1, keepdims=True)
    return shares


def _drawn_hits(q: Floats, count: int) -> tuple[float, ...]:
    """Chances that each of ``count`` draws is accepted and none before it."""
    first = _DRAWN_HIT + (1 - _DRAWN_HIT) * float(q @ q)
    hits, left = [], 1.0
    for rank in range(count):
        hits.append(left * first * _DRAWN_FALL**rank)
        left -= hits[-1]
    return tuple(hits)
