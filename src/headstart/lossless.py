"""Tell a fault from two tokens that tie within the engine's rounding, where a text differs from plain decoding.

An engine that promises bitwise equality has nothing to explain. One that does not (PyTorch) may round a pass over many rows
differently from a pass over one, and where two tokens score almost the same the other one wins. The rule: at the first
difference,

* the *gap* is how far plain's own scores (noise included at temperature > 0), computed afresh, are from choosing either token;
* the *measured difference* is how far the scores move there when the same text goes through the target row by row, as plain
  decoding does, and many rows at once;
* the difference is a *tie* if the measured difference is not zero and the gap is at most twice as large, otherwise a *fault*.

Both passes are made afresh, over committed text alone and without any draft. So an error in a draft's mask, positions or cache
cannot explain itself: it moves the suspect's text, not the measurement. Twice, since both tokens' scores may move, in opposite
directions. Behind the first difference the two texts answer different questions and are not compared.

The gap is the score's distance between both picks. When truncation decides (top-k, top-p, min-p cut one of them off), it is the
distance to that border instead; top-p's border is a probability mass m, whose log-odds move by at most as much as twice
the scores do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headstart.decode import PROMPT_CHUNK
from headstart.sampling import Sampler, Sampling, gumbel
from headstart.target.base import Feed, Target
from headstart.tree import Tree

_ROWS = (PROMPT_CHUNK, 16, 5)  # rows of the many-row passes: the widest, and what drafts use


@dataclass(frozen=True, slots=True)
class Difference:
    """The first token that differs from plain decoding; ``gap`` is None where the answers do not end alike."""

    prompt: str
    index: int  # in the answer, from 0
    plain: int | None  # None: this text ends here
    other: int | None
    gap: float | None
    measured: float | None

    @property
    def kind(self) -> Literal["tie", "fault"]:
        """Whether rounding explains it."""
        if self.gap is None or self.measured is None:
            return "fault"
        return "tie" if self.measured > 0 and self.gap <= 2 * self.measured else "fault"

    def describe(self) -> dict[str, Any]:
        """What a record says about it."""
        return {
            "prompt": self.prompt,
            "index": self.index,
            "kind": self.kind,
            "plain": self.plain,
            "other": self.other,
            "gap": None if self.gap == math.inf else self.gap,  # JSON knows no infinity
            "measured_difference": self.measured,
        }


def first_difference(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token at which two answers part; None if they are equal."""
    if list(plain) == list(other):
        return None
    pairs = enumerate(zip(plain, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(plain), len(other)))


def compare(
    target: Target, name: str, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], sampling: Sampling, seed: int
) -> Difference | None:
    """Where ``other`` parts from ``plain``, and whether a tie explains it. ``prompt`` and answers are token ids."""
    index = first_difference(plain, other)
    if index is None:
        return None
    if index in (len(plain), len(other)):  # equal tokens must end alike
        pick, rival = _at(plain, index), _at(other, index)
        return Difference(name, index, pick, rival, None, None)
    sampler = Sampler(sampling, vocab_size=target.vocab_size, prompt=prompt, end_tokens=target.end_tokens, seed=seed)
    sampler.commit(plain[:index])
    free = replace(sampling, top_k=0, top_p=1.0, min_p=0.0)
    scorer = Sampler(free, vocab_size=target.vocab_size, prompt=prompt, end_tokens=target.end_tokens, seed=seed)
    scorer.commit(plain[:index])
    one = _row_by_row(target, prompt, plain[:index])
    scores = _dense(scorer, one)
    text = [*prompt, *plain[:index]]
    measured = max(_distance(scores, _dense(scorer, _last_logits(target, text, rows))) for rows in _ROWS)
    gap = max(_need(sampler, one, scores, token, len(text)) for token in (plain[index], other[index]))
    return Difference(name, index, plain[index], other[index], gap, measured)


def leading_gap(target: Target, prompt: Sequence[int], answer: Sequence[int], sampling: Sampling, seed: int) -> float | None:
    """How far plain's best score behind ``answer`` is above its second best, noise included; None if only one token is left."""
    sampler = Sampler(sampling, vocab_size=target.vocab_size, prompt=prompt, end_tokens=target.end_tokens, seed=seed)
    sampler.commit(answer)
    ids, scores = sampler.candidates(_row_by_row(target, prompt, answer))
    if sampling.temperature > 0:
        scores = scores + gumbel(seed, len(prompt) + len(answer), ids)
    if ids.size < 2:
        return None
    second, best = np.partition(scores, -2)[-2:]
    return float(best - second)


def _at(tokens: Sequence[int], index: int) -> int | None:
    return tokens[index] if index < len(tokens) else None


def _row_by_row(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> NDArray[np.float32]:
    """Logits [V] behind prompt and answer, the answer's tokens fed one by one as plain decoding feeds them."""
    chunks = [list(prompt[i : i + PROMPT_CHUNK]) for i in range(0, len(prompt), PROMPT_CHUNK)]
    return _run(target, [*chunks, *([token] for token in answer)])


def _last_logits(target: Target, text: Sequence[int], rows: int) -> NDArray[np.float32]:
    """Logits [V] behind a text that goes through in passes of ``rows`` rows; the last pass is a full one."""
    first = len(text) % rows or rows
    return _run(target, [list(text[:first]), *(list(text[i : i + rows]) for i in range(first, len(text), rows))])


def _run(target: Target, chunks: Sequence[list[int]]) -> NDArray[np.float32]:
    slot = target.open()
    logits = np.zeros(0, dtype=np.float32)
    try:
        for number, chunk in enumerate(chunks):
            last = number == len(chunks) - 1
            scored = target.forward([Feed(slot, Tree.chain(chunk), len(chunk) - 1 if last else len(chunk))])
            if last:
                logits = scored.logits([(0, len(chunk) - 1)])[0]
            target.keep(slot, tuple(range(len(chunk))))
        return logits
    finally:
        target.close(slot)


def _dense(sampler: Sampler, logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Processed scores [V] without truncation; banned tokens stand at minus infinity."""
    ids, values = sampler.candidates(logits)
    scores = np.full(sampler.vocab_size, -math.inf)
    scores[ids] = values
    return scores


def _distance(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Largest change of a score [V]."""
    allowed = np.isfinite(a) & np.isfinite(b)
    return float(np.abs(a[allowed] - b[allowed]).max())


def _need(sampler: Sampler, logits: NDArray[np.float32], scores: NDArray[np.float64], token: int, position: int) -> float:
    """How far the scores are from choosing ``token``: 0 if they do, infinite if it is banned."""
    if not np.isfinite(scores[token]):
        return math.inf
    noisy = scores
    if sampler.sampling.temperature > 0:
        noisy = scores + gumbel(sampler.seed, position, np.arange(sampler.vocab_size))
    kept, _ = sampler.candidates(logits)
    best = int(kept[np.argmax(noisy[kept])])
    if token == best:
        return 0.0
    cut = _border(sampler.sampling, scores, token, inside=False)
    overtaking = max(float(noisy[best] - noisy[token]), cut)
    others = noisy[kept[kept != best]]
    if not others.size:
        return overtaking
    left_over = max(_border(sampler.sampling, scores, best, inside=True), float(others.max() - noisy[token]), cut)
    return min(overtaking, left_over)


def _border(sampling: Sampling, scores: NDArray[np.float64], token: int, *, inside: bool) -> float:
    """Distance of a token's score from being cut off (``inside``), or from not being cut off; 0 if it already is so."""
    sign = 1.0 if inside else -1.0
    margins = [sign * margin for margin in _margins(sampling, scores, token)]
    return max(0.0, min(margins, default=math.inf) if inside else max(margins, default=0.0))


def _margins(sampling: Sampling, scores: NDArray[np.float64], token: int) -> list[float]:
    """For each truncation that is on: how far inside (above 0) or outside of it the token stands."""
    if sampling.temperature == 0:
        return []
    margins = []
    ordered = np.sort(scores)[::-1]
    if 0 < sampling.top_k < ordered.size:
        rank_border = ordered[sampling.top_k - 1] if scores[token] < ordered[sampling.top_k - 1] else ordered[sampling.top_k]
        margins.append(float(scores[token] - rank_border))
        ordered = ordered[: sampling.top_k]
    if sampling.top_p < 1:
        weights = np.exp(ordered - ordered[0])
        before = float(weights[ordered > scores[token]].sum() / weights.sum())
        margins.append(_log_odds(sampling.top_p) - _log_odds(before))
    if sampling.min_p > 0:
        margins.append(float(scores[token] - ordered[0] - math.log(sampling.min_p)))
    return margins


def _log_odds(mass: float) -> float:
    if mass <= 0:
        return -math.inf
    return math.inf if mass >= 1 else math.log(mass / (1 - mass))
