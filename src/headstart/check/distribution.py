"""Does speculation draw what the model would draw? For rules of acceptance that keep the distribution but not the tokens.

Behind a prompt a few hundred short answers are drawn with speculation, each with a seed of its own. The first token of an
answer comes from the prompt's own pass, so it conditions the test but is not in it: what is tested are the tokens behind it,
each against the target's exact processed distribution behind the very prefix that was drawn. Given the prefixes these draws are
independent, so their chi-squares add up (``goodness.py``). Prefixes that were met too rarely to fill two cells say nothing and
are left out; which ones these are depends on earlier tokens alone.

Truncation keeps the number of tokens small and thereby the test sharp; a rule of acceptance works on the processed distribution
and cannot tell the difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headstart.check.goodness import Goodness, Group, goodness
from headstart.check.identity import Report
from headstart.decode import PROMPT_CHUNK
from headstart.llm import LLM
from headstart.sampling import Sampler, Sampling, nth_seed
from headstart.target.base import Feed, Target
from headstart.tree import ROOT, Tree, TreeBuilder

NUM_PROMPTS = 4
NUM_TOKENS = 4  # of an answer: one from the prompt's pass, and steps whose drafts are two and three deep
_IN_FLIGHT = 32  # answers to one prompt at once
_LEAST_VISITS = 12  # of a prefix whose next token is tested; two cells need ten
KINDS: Mapping[str, Sampling] = {
    "top-k 8": Sampling(temperature=1.0, top_k=8),
    "top-p 0.9, penalties": Sampling(
        temperature=0.8, top_p=0.9, top_k=20, repetition_penalty=1.1, presence_penalty=0.4, frequency_penalty=0.3
    ),
}

Prefix = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Suspect:
    """The prompt whose draws lie farthest from the target's distribution."""

    prompt: str
    sampling: str
    p_value: float


@dataclass(frozen=True, slots=True)
class Distribution:
    """The test of one proposer and one rule, over all prompts, and the prompt that looks worst by itself."""

    result: Goodness
    suspect: Suspect


def kinds(seed: int) -> dict[str, Sampling]:
    """The kinds of sampling that draws are made under, in turn over the prompts."""
    return {name: replace(s, max_tokens=NUM_TOKENS, ignore_eos=True, seed=seed) for name, s in KINDS.items()}


def check_distribution(
    llm: LLM, names: Sequence[str], prompts: Sequence[Sequence[int]], *, draws: int, level: float, seed: int, report: Report
) -> Distribution:
    """Draw behind each prompt and test; ``level`` is that of a single test."""
    groups: list[Group] = []
    suspects: list[Suspect] = []
    for number, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        kind, sampling = list(kinds(seed).items())[number % len(KINDS)]
        answers = draw(llm, prompt, sampling, draws, report)
        own = transitions(llm.target, prompt, sampling, answers)
        groups += own
        suspects.append(Suspect(name, kind, goodness(own, level=level, seed=seed).p_value))
    result = goodness(groups, level=level, seed=seed)
    return Distribution(result, min(suspects, key=lambda suspect: suspect.p_value))


def draw(llm: LLM, prompt: Sequence[int], sampling: Sampling, count: int, report: Report) -> list[Prefix]:
    """Answers [count] of a few tokens to one prompt, each with a seed of its own."""
    answers: list[Prefix] = []
    while len(answers) < count:
        number = min(_IN_FLIGHT, count - len(answers))
        seed = nth_seed(sampling.seed or 0, 1 + len(answers))  # of a whole group, whose members are told apart by n
        report(0, f"{llm.proposer_name}, distribution")
        (answer,) = llm.generate_encoded([prompt], replace(sampling, n=number, seed=seed))
        answers += [choice.tokens for choice in answer.choices]
        report(number, f"{llm.proposer_name}, distribution")
    return answers


def transitions(target: Target, prompt: Sequence[int], sampling: Sampling, answers: Sequence[Prefix]) -> list[Group]:
    """Draws behind every prefix that was met often enough, with the target's own probabilities there."""
    visits = Counter(answer[:length] for answer in answers for length in range(1, len(answer)))
    prefixes = sorted((prefix for prefix, times in visits.items() if times >= _LEAST_VISITS), key=lambda p: (len(p), p))
    followers: dict[Prefix, Counter[int]] = {prefix: Counter() for prefix in prefixes}
    for answer in answers:
        for length in range(1, len(answer)):
            if answer[:length] in followers:
                followers[answer[:length]][answer[length]] += 1
    groups = []
    for prefix, probabilities in exact_distributions(target, prompt, sampling, prefixes).items():
        counts = np.zeros(probabilities.size, dtype=np.int64)
        for token, times in followers[prefix].items():
            counts[token] = times
        places = np.flatnonzero((counts > 0) | (probabilities > 0))
        groups.append(Group(counts[places], probabilities[places]))
    return groups


def exact_distributions(
    target: Target, prompt: Sequence[int], sampling: Sampling, prefixes: Sequence[Prefix]
) -> dict[Prefix, NDArray[np.float64]]:
    """The processed distribution [V] behind each prefix; ``prefixes`` are closed under shortening, shorter ones first."""
    sampler = Sampler(sampling, vocab_size=target.vocab_size, prompt=prompt, end_tokens=target.end_tokens)
    rows: dict[Prefix, int] = {(): ROOT}
    builder = TreeBuilder(prompt[-1])
    for prefix in prefixes:
        rows[prefix] = builder.add(rows[prefix[:-1]], prefix[-1], 1.0)
    if not prefixes:
        return {}
    slot = target.open()
    try:
        for start in range(0, len(prompt) - 1, PROMPT_CHUNK):
            chunk = prompt[start : min(start + PROMPT_CHUNK, len(prompt) - 1)]
            target.forward([Feed(slot, Tree.chain(chunk), len(chunk))])
            target.keep(slot, tuple(range(len(chunk))))
        scored = target.forward([Feed(slot, builder.build())])
        found = {p: sampler.distribution(scored.logits([(0, rows[p])])[0], p) for p in prefixes}
        target.keep(slot, ())
    finally:
        target.close(slot)
    return found
