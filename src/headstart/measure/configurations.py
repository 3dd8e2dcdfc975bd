"""What is measured side by side: plain decoding, the proposers with each rule of acceptance, and other projects' engines.

A configuration turns a batch of prompts (token ids) into outputs and says how long that took. All of one dtype share one
target, so weights, dtype and threads are the same.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from headstart.accept import EXACT, Rule
from headstart.errors import RequestError
from headstart.guessers import NONE, check_guesser
from headstart.heads.base import kind_of_heads
from headstart.llm import LLM, Answer
from headstart.measure.samples import UNKNOWN, Latency
from headstart.measure.settings import AGAINST, PLAIN
from headstart.proposers.choose import AUTO, HEADS, PROPOSERS
from headstart.sampling import Sampling
from headstart.stats import Stats
from headstart.timings import Timings

Prompts = Sequence[Sequence[int]]

NAMES = (PLAIN, AUTO, *(name for name in PROPOSERS if name not in NONE))
"""What a measurement calls the proposers: plain decoding is one of them here."""

_OPTION_USERS = {
    "heads": (*HEADS, "combined", AUTO),
    "growth": ("medusa", "combined", AUTO),
    "allow_other_base": (*HEADS, "combined", AUTO),
    "draft": ("draft_model", "combined", AUTO),
    "draft_dtype": ("draft_model", "combined", AUTO),
}


@dataclass(frozen=True, slots=True)
class Output:
    """One prompt's answer; ``tokens`` are ids, ``drafted`` says which of them were drafted and accepted."""

    tokens: tuple[int, ...]
    stats: Stats
    latency: Latency = UNKNOWN
    drafted: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchRun:
    """What a configuration made of one batch; ``timings`` is None where the loop is not ours."""

    outputs: tuple[Output, ...]
    seconds: float
    timings: Timings | None = None


class Configuration(Protocol):
    """One way of decoding."""

    name: str
    num_nodes: int

    @property
    def rule(self) -> Rule | None:
        """The rule of acceptance; None: not ours."""

    def is_comparable(self, sampling: Sampling) -> bool:
        """Whether its tokens must be plain's."""

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """Answer a batch, all of it in flight at once."""

    def explain(self) -> dict[str, Any] | None:
        """Why it drafted as it did, if it decides that itself."""


class Proposing:
    """Headstart's loop with one proposer."""

    def __init__(self, name: str, llm: LLM) -> None:
        self.name, self.llm, self.num_nodes, self.rule = name, llm, llm.num_nodes, llm.rule

    def is_comparable(self, sampling: Sampling) -> bool:
        """Under a rule that repeats plain decoding, and without temperature under every rule."""
        return self.rule.repeats_plain or sampling.temperature == 0

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """One call of the loop."""
        started = time.perf_counter()
        answers = self.llm.generate_encoded(prompts, sampling, batch=len(prompts))
        seconds = time.perf_counter() - started
        outputs = tuple(Output(a.tokens, a.stats, _latency(a), a.drafted) for a in answers)
        return BatchRun(outputs, seconds, answers[0].timings)

    def explain(self) -> dict[str, Any] | None:
        """The reasons of ``auto``."""
        return self.llm.explain() if self.name == AUTO else None


def _latency(answer: Answer) -> Latency:
    behind = len(answer.tokens) - 1
    return Latency(answer.seconds_to_first, (answer.seconds - answer.seconds_to_first) / behind if behind > 0 else None)


def configure(
    llm: LLM, proposers: Sequence[str], rules: Sequence[Rule], *, num_nodes: int | None, options: Mapping[str, Any]
) -> list[Configuration]:
    """The configurations by name and rule, plain once; ``options`` that no proposer reads are refused."""
    own = own_options(proposers, options)
    made: list[Configuration] = []
    for name in proposers:
        proposing = _with_proposer(llm, name, num_nodes, own[name])
        for place, rule in enumerate([EXACT] if name == PLAIN else rules):
            if place and name == AUTO:  # what it learns and explains is of one rule
                proposing = llm.with_proposer(name, num_nodes=num_nodes, **own[name])
            made.append(Proposing(name, proposing.with_rule(rule)))
    return made


def check_proposers(names: Sequence[str], options: Mapping[str, Any], num_nodes: int | None, known: Sequence[str]) -> None:
    """RequestError or HeadsError for names that are not ``known``, and for options that no model could follow."""
    for name in names:
        if name in AGAINST:
            raise RequestError(f"{name} is no proposer but an engine of its own; measure it with --against {name}")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            raise RequestError(f"unknown proposer {name!r}; {hint}")
    own = own_options(names, options)
    for name in names:
        check_guesser(name, num_nodes=None if name == PLAIN else num_nodes, **own[name])


def own_options(proposers: Sequence[str], options: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The options that each proposer reads; RequestError for one that none of them reads."""
    given = {name: value for name, value in options.items() if value not in (None, False)}
    for name in given:
        users = _OPTION_USERS.get(name)
        if users is None:
            raise RequestError(f"unknown option {name}; known are {', '.join(_OPTION_USERS)}")
        if set(users) & set(proposers):
            users = _users(name, given[name])
        if not set(users) & set(proposers):
            raise RequestError(f"option {name} has no effect without proposer {' or '.join(users)}; add it to the proposers")
    return {name: {key: value for key, value in given.items() if name in _users(key, value)} for name in proposers}


def _users(option: str, value: Any) -> tuple[str, ...]:
    """The proposers that read an option; a folder of heads is for those of its kind."""
    return (kind_of_heads(value), "combined", AUTO) if option == "heads" else _OPTION_USERS[option]


def _with_proposer(llm: LLM, name: str, num_nodes: int | None, own: Mapping[str, Any]) -> LLM:
    if name == PLAIN:
        return llm.with_proposer("none")
    keeps_outputs = llm.past_outputs is not None  # a repeated run would copy the first one
    if name == llm.proposer_name and not own and num_nodes is None and not keeps_outputs:
        return llm
    return llm.with_proposer(name, num_nodes=num_nodes, **own)


def plain_stats(num_tokens: int) -> Stats:
    """Counters of plain decoding: the prompt's pass gives one token, each step one more."""
    stats = Stats(num_prompt_passes=1)
    for _ in range(num_tokens - 1):
        stats.record(num_drafted=0, depth=0, num_accepted=0, num_emitted=1)
    return stats
