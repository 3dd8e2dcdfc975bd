"""Plain and accelerated answers, token by token.

Under ``accept="exact"`` the same request has the same tokens with any proposer, at any temperature, under every penalty; under
``rejection`` and ``block`` it has them where nothing is left to chance, at temperature 0. Plain answers are decoded one at a
time, accelerated ones several at once, so that neighbours are under suspicion, too.

On the native engine not one token may differ. PyTorch rounds a pass over many rows differently from a pass over one, so there a
difference counts as a fault unless ``lossless.py`` explains it as a tie within that rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headstart.accept import Rule
from headstart.llm import LLM
from headstart.lossless import Difference, compare, leading_gap
from headstart.sampling import Sampling
from headstart.stats import Stats

_PENALTIES: dict[str, Any] = {"repetition_penalty": 1.1, "presence_penalty": 0.4, "frequency_penalty": 0.3}
GREEDY: Mapping[str, Sampling] = {"greedy": Sampling(), "greedy, penalties": Sampling(**_PENALTIES)}
SAMPLED: Mapping[str, Sampling] = {
    "sampled": Sampling(temperature=1.0),
    "sampled, penalties and truncation": Sampling(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02, **_PENALTIES),
}

Answers = Mapping[str, Sequence[Sequence[int]]]
"""By kind of sampling: the tokens of each prompt's answer."""

Report = Callable[[int, str], None]
"""Called with the number of answers that are done since the last call, and what comes next."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Where an answer parts from plain decoding, as a user can read it."""

    sampling: str
    difference: Difference
    plain_text: str
    other_text: str
    leading_gap: float | None  # of plain's two best scores there; None where an answer ended

    def describe(self) -> dict[str, Any]:
        """What a record says about it."""
        texts = {"sampling": self.sampling, "plain_text": self.plain_text, "other_text": self.other_text}
        return self.difference.describe() | texts | {"top_2_gap": self.leading_gap}

    def __str__(self) -> str:
        """One line."""
        found = self.difference
        sides = f"plain says {_named(found.plain, self.plain_text)}, this {_named(found.other, self.other_text)}"
        gap = "" if self.leading_gap is None else f" (top-2 gap {self.leading_gap:.3g})"
        return f"{found.kind} in prompt {found.prompt}, {self.sampling}, token {found.index}: {sides}{gap}"


@dataclass(slots=True)
class Identity:
    """What came of comparing one proposer's answers with plain ones."""

    num_answers: int = 0
    num_tokens: int = 0
    differences: list[Fault] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)

    @property
    def faults(self) -> list[Fault]:
        """Differences that rounding does not explain."""
        return [found for found in self.differences if found.difference.kind == "fault"]

    def describe(self) -> dict[str, Any]:
        """What a record says about it."""
        return {
            "answers": self.num_answers,
            "tokens": self.num_tokens,
            "identical": self.num_answers - len(self.differences),
            "ties": len(self.differences) - len(self.faults),
            "faults": len(self.faults),
            "differences": [found.describe() for found in self.differences],
        }


def samplings(rule: Rule, max_tokens: int, seed: int) -> dict[str, Sampling]:
    """The kinds of sampling under which a rule of acceptance must give plain decoding's own tokens."""
    kinds = dict(GREEDY) | (dict(SAMPLED) if rule.repeats_plain else {})
    return {name: replace(sampling, max_tokens=max_tokens, seed=seed) for name, sampling in kinds.items()}


def plain_answers(plain: LLM, prompts: Sequence[Sequence[int]], kinds: Mapping[str, Sampling], report: Report) -> Answers:
    """What must be said."""
    answers: dict[str, list[tuple[int, ...]]] = {}
    for name, sampling in kinds.items():
        answers[name] = []
        for prompt in prompts:
            report(0, f"plain, {name}")
            answers[name].append(plain.generate_encoded([prompt], sampling)[0].tokens)
            report(1, f"plain, {name}")
    return answers


def compare_answers(
    llm: LLM,
    names: Sequence[str],
    prompts: Sequence[Sequence[int]],
    expected: Answers,
    kinds: Mapping[str, Sampling],
    batch: int,
    report: Report,
) -> Identity:
    """Answer every prompt in every way and compare; ``names`` are those of the prompts."""
    result = Identity()
    for kind, sampling in kinds.items():
        for start in range(0, len(prompts), batch):
            part = range(start, min(start + batch, len(prompts)))
            report(0, f"{llm.proposer_name}, {kind}")
            answers = llm.generate_encoded([prompts[i] for i in part], sampling, batch=batch)
            for index, answer in zip(part, answers, strict=True):
                result.num_answers += 1
                result.num_tokens += len(answer.tokens)
                result.stats.add(answer.stats)
                wanted = expected[kind][index]
                found = _fault(llm, kind, names[index], prompts[index], wanted, answer.tokens, sampling)
                result.differences += [found] if found else []
            report(len(part), f"{llm.proposer_name}, {kind}")
    return result


def _fault(
    llm: LLM, kind: str, name: str, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], sampling: Sampling
) -> Fault | None:
    seed = sampling.seed or 0
    found = compare(llm.target, name, prompt, plain, other, sampling, seed)
    if found is None:
        return None
    gap = None
    if found.plain is not None and found.other is not None:
        gap = leading_gap(llm.target, prompt, plain[: found.index], sampling, seed)
    return Fault(kind, found, _text(llm, found.plain), _text(llm, found.other), gap)


def _text(llm: LLM, token: int | None) -> str:
    return "" if token is None else llm.tokenizer.decode([token], skip_special_tokens=False)


def _named(token: int | None, text: str) -> str:
    return "nothing" if token is None else f"{token} {text!r}"
