"""How far a lossy rule's text is from the base model, and a changed base from its original.

Accelerated against its base: the answers are read once more by the base, token by token, without any draft.

* *Perplexity* is that of the answers' tokens under the base's own distribution, before any processing: ``exp`` of the mean of
  ``-log p(token)``.
* *KL* and *total variation* are means over the visited positions between what the rule emits there, given its draft, and
  the processed distribution p that plain decoding draws from. ``typical`` takes a drafted token for certain where it passes
  its border, so there KL is ``-log p(token)`` and total variation ``1 - p(token)``; where none passes it draws from p
  itself, and both are 0.
* *Differing* is the share of tokens that plain decoding would not have said there, with the same seed behind the same text.

Base against its original (a Medusa-2 base was trained further): both read the base's own plain answers. KL is ``sum of p
log(p / o)`` with p the base's and o the original's raw distribution, total variation half of ``sum of |p - o|``, differing
the share of positions whose likeliest tokens differ, and the perplexity that of the base's answers under the original.

Rules that are lossless in distribution (rejection, block) have a distance of zero by proof; ``headstart check`` tests it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headstart.decode import PROMPT_CHUNK
from headstart.errors import RequestError
from headstart.measure.configurations import Output
from headstart.sampling import Sampler, Sampling, log_softmax
from headstart.target.base import Feed, Scored, Target
from headstart.tree import Tree

_ROWS = 128  # read at once


@dataclass(frozen=True, slots=True)
class Quality:
    """Means over all positions of all answers; what was not compared is None."""

    perplexity: float
    kl: float | None = None
    total_variation: float | None = None
    differing: float | None = None


def perplexity(target: Target, prompts: Sequence[Sequence[int]], outputs: Sequence[Output]) -> Quality:
    """Of answers under a target."""
    found = [
        value for prompt, output in zip(prompts, outputs, strict=True) for value in _logprobs(target, prompt, output.tokens)
    ]
    return Quality(_perplexity(found))


def distance(target: Target, prompts: Sequence[Sequence[int]], outputs: Sequence[Output], sampling: Sampling) -> Quality:
    """Of answers that a lossy rule accepted, from the target's own."""
    logprobs: list[float] = []
    kl: list[float] = []
    variation: list[float] = []
    differing: list[bool] = []
    for prompt, output in zip(prompts, outputs, strict=True):
        sampler = Sampler(
            sampling, vocab_size=target.vocab_size, prompt=prompt, end_tokens=target.end_tokens, seed=sampling.seed or 0
        )
        for scored, first, tokens in _read(target, prompt, output.tokens):
            rows = [(0, row) for row in range(len(tokens))]
            logprobs += [entry.logprob for entry in scored.logprobs(rows, tokens, 0)]
            for row, token in zip(rows, tokens, strict=True):
                path, is_drafted = output.tokens[: first + row[1]], output.drafted[first + row[1]]
                differing.append(scored.pick([row], [sampler], [path])[0] != token)
                p = float(scored.probabilities([row], [sampler], [path])[0][token]) if is_drafted else 1.0
                kl.append(-float(np.log(p)))
                variation.append(1.0 - p)
    return Quality(_perplexity(logprobs), _mean(kl), _mean(variation), _mean(differing))


def from_original(base: Target, original: Target, prompts: Sequence[Sequence[int]], outputs: Sequence[Output]) -> Quality:
    """Of a base model from the one that it was made of, behind the base's answers; RequestError for another vocabulary."""
    if base.vocab_size != original.vocab_size:
        raise RequestError(
            f"{original.name} has {original.vocab_size} tokens and {base.name} {base.vocab_size}; the original must share them"
        )
    logprobs: list[float] = []
    kl: list[float] = []
    variation: list[float] = []
    differing: list[bool] = []
    for prompt, output in zip(prompts, outputs, strict=True):
        pairs = zip(_read(base, prompt, output.tokens), _read(original, prompt, output.tokens), strict=True)
        for (ours, _, tokens), (theirs, _, _) in pairs:
            own, other = (_log_distributions(scored, len(tokens), base.vocab_size) for scored in (ours, theirs))
            p = np.exp(own)
            logprobs += other[np.arange(len(tokens)), list(tokens)].tolist()
            kl += np.where(p > 0, p * (own - other), 0.0).sum(axis=1).tolist()
            variation += (np.abs(p - np.exp(other)).sum(axis=1) / 2).tolist()
            differing += (own.argmax(axis=1) != other.argmax(axis=1)).tolist()
    return Quality(_perplexity(logprobs), _mean(kl), _mean(variation), _mean(differing))


def _log_distributions(scored: Scored, num_rows: int, vocab_size: int) -> NDArray[np.float64]:
    return log_softmax(scored.logits([(0, row) for row in range(num_rows)])[:, :vocab_size].astype(np.float64))


def _logprobs(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    found: list[float] = []
    for scored, _, tokens in _read(target, prompt, answer):
        found += [entry.logprob for entry in scored.logprobs([(0, row) for row in range(len(tokens))], tokens, 0)]
    return found


def _read(target: Target, prompt: Sequence[int], answer: Sequence[int]) -> Iterator[tuple[Scored, int, Sequence[int]]]:
    """An answer in pieces: scored rows, the place of the first, and the answer's tokens behind each row."""
    text = [*prompt, *answer[:-1]]
    before = len(prompt) - 1
    slot = target.open()
    try:
        for first in range(0, before, PROMPT_CHUNK):
            chunk = text[first : min(first + PROMPT_CHUNK, before)]
            target.forward([Feed(slot, Tree.chain(chunk), len(chunk))])
            target.keep(slot, tuple(range(len(chunk))))
        for first in range(0, len(answer), _ROWS):
            tokens = answer[first : first + _ROWS]
            chunk = text[before + first : before + first + len(tokens)]
            scored = target.forward([Feed(slot, Tree.chain(chunk))])
            yield scored, first, tokens
            target.keep(slot, tuple(range(len(chunk))))
    finally:
        target.close(slot)


def _perplexity(logprobs: Sequence[float]) -> float:
    return float(np.exp(-_mean(logprobs)))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.asarray(values, dtype=np.float64))) if values else 0.0
