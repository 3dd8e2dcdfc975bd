"""L and tokens a second of every rule of acceptance, at three temperatures; what coupling the drafts with the noise gains.

    python benchmarks/accepting.py PROMPTS RECORD [--limit PROMPTS] [--proposers NAME,NAME] [--tokens N]

Native engine, bfloat16, one sequence at a time. All cases answer a prompt before the next prompt comes, and who goes first
rotates, so that a machine's drift meets all of them. The draft model is the target again with int8 weights: it cannot pay, but
it shows what the rules make of a draft that is nearly right. ``exact`` runs twice at temperature > 0: with children that are
coupled with the sampler's noise, as it always does, and with the likeliest ones.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import headstart as hs
from headstart.accept import EXACT, RULES, Rule, choose_rule
from headstart.llm import LLM
from headstart.measure.environment import commit, machine, versions
from headstart.measure.prompts import prompt_set
from headstart.measure.report import save_json

TEMPERATURES = (0.0, 0.7, 1.0)
OPTIONS: dict[str, dict[str, str]] = {"draft_model": {"draft": "smollm2", "draft_dtype": "int8"}}
WARM_UP_TOKENS = 8


@dataclass
class Case:
    """One way of decoding, and what came of it."""

    llm: LLM
    proposer: str
    rule: Rule
    temperature: float
    stats: hs.Stats = field(default_factory=hs.Stats)
    tokens: int = 0
    seconds: float = 0.0
    identical: int = 0  # answers that are plain's

    def answer(self, prompt: list[int], seed: int, max_tokens: int) -> tuple[int, ...]:
        """Tokens of the answer."""
        sampling = hs.Sampling(max_tokens=max_tokens, temperature=self.temperature, seed=seed)
        started = time.perf_counter()
        answer = self.llm.generate_encoded([prompt], sampling)[0]
        self.seconds += time.perf_counter() - started
        self.stats.add(answer.stats)
        self.tokens += len(answer.tokens)
        return answer.tokens

    def describe(self) -> dict[str, Any]:
        """What the record says of it."""
        return {
            "proposer": self.proposer,
            "accept": self.rule.name,
            "children": self.rule.choice,  # at temperature > 0
            "temperature": self.temperature,
            "lossless": self.rule.is_lossless,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_second": self.tokens / self.seconds,
            "steps": self.stats.num_steps,
            "drafted": self.stats.num_drafted,
            "accepted": self.stats.num_accepted,
            "acceptance_length": self.stats.acceptance_length,
            "acceptance_by_position": self.stats.acceptance_by_position,
            "identical": self.identical,
        }


def main() -> None:
    """Run all cases and write the record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("prompts")
    parser.add_argument("record")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--proposers", default="hydra,draft_model")
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    chosen = prompt_set(given.prompts, given.limit)
    plain = hs.load("smollm2", proposer="none", target="native", dtype="bfloat16")
    cases = cases_of(plain, given.proposers.split(","))
    encoded = [plain.encode(prompt.content) for prompt in chosen.prompts]
    for case in cases:
        replace(case, stats=hs.Stats()).answer(encoded[0], 0, WARM_UP_TOKENS)
    for number, prompt in enumerate(encoded):
        first = number * 7 % len(cases)
        answers = {id(case): case.answer(prompt, number, given.tokens) for case in (*cases[first:], *cases[:first])}
        expected = {case.temperature: answers[id(case)] for case in cases if case.proposer == "plain"}
        for case in cases:
            case.identical += answers[id(case)] == expected[case.temperature]
        print(f"{number + 1} of {len(encoded)} prompts", file=sys.stderr)
    save_json(
        given.record,
        {
            "format": "headstart-accepting",
            "version": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": versions(),
            "machine": machine(),
            "model": plain.target.name,
            "engine": plain.target.engine,
            "dtype": plain.target.dtype,
            "prompts": chosen.describe(),
            "max_tokens": given.tokens,
            "cases": [case.describe() for case in cases],
        },
    )


def cases_of(plain: LLM, proposers: list[str]) -> list[Case]:
    """Plain decoding and every proposer with every rule, at every temperature."""
    guessing = {name: plain.with_proposer(name, **OPTIONS.get(name, {})) for name in proposers}
    cases = []
    for temperature in TEMPERATURES:
        cases.append(Case(plain, "plain", EXACT, temperature))
        rules = [choose_rule(name) for name in RULES]
        if temperature > 0:
            rules.append(replace(EXACT, choice="likeliest"))
        for name, llm in guessing.items():
            cases += [Case(llm.with_rule(rule), name, rule, temperature) for rule in rules]
    return cases


if __name__ == "__main__":
    main()
