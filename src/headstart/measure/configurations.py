"""What is measured side by side: plain decoding, the proposers, and transformers' own ``generate`` as a reference.

A configuration turns a batch of prompts (token ids) into outputs and says how long that took. All of them share one target, so
weights, dtype and threads are the same.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headstart.accept import Rule
from headstart.decode import Timings
from headstart.errors import RequestError
from headstart.heads.base import kind_of_heads
from headstart.llm import LLM
from headstart.measure.settings import PLAIN, TRANSFORMERS
from headstart.proposers.choose import AUTO, HEADS
from headstart.sampling import Sampling
from headstart.stats import Stats
from headstart.target.base import Target

Prompts = Sequence[Sequence[int]]

_OPTION_USERS = {
    "heads": (*HEADS, "combined", AUTO),
    "growth": ("medusa", "combined", AUTO),
    "allow_other_base": (*HEADS, "combined", AUTO),
    "draft": ("draft_model", "combined", AUTO),
    "draft_dtype": ("draft_model", "combined", AUTO),
}


@dataclass(frozen=True, slots=True)
class Output:
    """One prompt's answer; ``tokens`` are ids."""

    tokens: tuple[int, ...]
    stats: Stats


@dataclass(frozen=True, slots=True)
class BatchRun:
    """What a configuration made of one batch."""

    outputs: tuple[Output, ...]
    seconds: float
    timings: Timings = field(default_factory=Timings)


class Configuration(Protocol):
    """One way of decoding."""

    name: str
    num_nodes: int
    is_comparable: bool  # whether its tokens must be plain's

    @property
    def rule(self) -> Rule | None:
        """The rule of acceptance; None: not ours."""

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """Answer a batch, all of it in flight at once."""

    def explain(self) -> dict[str, Any] | None:
        """Why it drafted as it did, if it decides that itself."""


class Proposing:
    """Headstart's loop with one proposer."""

    def __init__(self, name: str, llm: LLM, sampling: Sampling) -> None:
        self.name, self._llm, self.num_nodes, self.rule = name, llm, llm.num_nodes, llm.rule
        self.is_comparable = llm.rule.repeats_plain or sampling.temperature == 0

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """One call of the loop."""
        started = time.perf_counter()
        answers = self._llm.generate_encoded(prompts, sampling, batch=len(prompts))
        seconds = time.perf_counter() - started
        return BatchRun(tuple(Output(a.tokens, a.stats) for a in answers), seconds, answers[0].timings)

    def explain(self) -> dict[str, Any] | None:
        """The reasons of ``auto``."""
        return self._llm.explain() if self.name == AUTO else None


class Reference:
    """transformers' ``generate`` on the same model object. With temperature its noise is its own, so only speed compares."""

    name = TRANSFORMERS
    num_nodes = 0
    rule = None

    def __init__(self, target: Target, sampling: Sampling) -> None:
        if target.engine != "hf":
            raise RequestError(f"proposer transformers needs a transformers model; the engine here is {target.engine}")
        from headstart.target.hf_reference import ReferenceDecoder

        self._decoder = ReferenceDecoder(target, sampling)
        self.is_comparable = sampling.temperature == 0

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """One call of ``generate``."""
        started = time.perf_counter()
        answers = self._decoder.generate(prompts)
        seconds = time.perf_counter() - started
        return BatchRun(tuple(Output(tuple(tokens), _plain_stats(len(tokens))) for tokens in answers), seconds)

    def explain(self) -> dict[str, Any] | None:
        """It does not draft."""
        return None


def configure(
    llm: LLM, proposers: Sequence[str], sampling: Sampling, *, num_nodes: int | None, options: Mapping[str, Any], rule: Rule
) -> list[Configuration]:
    """The configurations by name; ``options`` go to the proposers that read them, and are refused if none does."""
    own = own_options(proposers, options)
    return [_configuration(llm, name, sampling, num_nodes, own[name], rule) for name in proposers]


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
    return (kind_of_heads(value), "combined") if option == "heads" else _OPTION_USERS[option]


def _configuration(
    llm: LLM, name: str, sampling: Sampling, num_nodes: int | None, own: Mapping[str, Any], rule: Rule
) -> Configuration:
    if name == TRANSFORMERS:
        return Reference(llm.target, sampling)
    if name == PLAIN:
        return Proposing(name, llm.with_proposer("none"), sampling)
    keeps_outputs = llm.past_outputs is not None  # a repeated run would copy the first one
    if name == llm.proposer_name and not own and num_nodes is None and not keeps_outputs:
        return Proposing(name, llm.with_rule(rule), sampling)
    return Proposing(name, llm.with_proposer(name, num_nodes=num_nodes, **own).with_rule(rule), sampling)


def _plain_stats(num_tokens: int) -> Stats:
    """Counters of plain decoding: the prompt's pass gives one token, each step one more."""
    stats = Stats(num_prompt_passes=1)
    for _ in range(num_tokens - 1):
        stats.record(num_drafted=0, depth=0, num_accepted=0, num_emitted=1)
    return stats
