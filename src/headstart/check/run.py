"""The check: every proposer of a model against plain decoding.

``exact`` is checked by identity: the answers to every prompt, greedy and sampled, with and without penalties. ``rejection`` and
``block`` draw other tokens than plain decoding does, so they are checked by identity at temperature 0 and by a test of their
distribution above. ``typical`` changes the distribution on purpose; there is nothing to prove.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from headstart.accept import Rule
from headstart.check.distribution import NUM_PROMPTS, check_distribution
from headstart.check.identity import compare_answers, plain_answers, samplings
from headstart.check.prompts import BUILT_IN
from headstart.check.report import Checked, CheckReport, report_of
from headstart.check.settings import CheckSettings
from headstart.errors import DataError, HeadsError, RequestError, require
from headstart.guessers import NONE, check_guesser
from headstart.llm import LLM
from headstart.measure.bench import check_arguments
from headstart.measure.configurations import check_proposers, own_options
from headstart.measure.prompts import Content, Prompt, PromptSet, prompt_set, spread
from headstart.proposers.choose import AUTO, PROPOSERS

Progress = Callable[[float, float, str], None]
"""Called before and after each piece of work with what is done, what there is, and what it is."""

_PLAIN = "none"
_NAMES = (*(name for name in PROPOSERS if name not in NONE), AUTO)


def check(
    llm: LLM,
    prompts: str | Path | PromptSet | Iterable[Content | Prompt] | None = None,
    settings: CheckSettings | None = None,
    *,
    num_nodes: int | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **named: Any,
) -> CheckReport:
    """Prove that speculation changes nothing, or show the first difference. ``named``: fields of the settings, by name.

    ``prompts`` None: a built-in set of several kinds. ``options`` (heads, growth, draft, ...) go to the proposers that read
    them.
    """
    check_arguments([llm], settings, CheckSettings, num_nodes, options)
    chosen = _settings(settings, named)
    _refuse_plain(chosen, num_nodes)
    rule = chosen.rule(llm.rule)
    chosen.refuse_idle(rule)
    accelerated, skipped = _accelerated(llm, chosen, rule, num_nodes, options or {})
    chosen_prompts = prompt_set(_built_in(llm) if prompts is None else prompts, chosen.limit)
    if prompts is None:
        chosen_prompts = replace(chosen_prompts, name="the built-in set")
    encoded = _encode(llm, chosen_prompts)
    names = [prompt.id for prompt in chosen_prompts.prompts]
    kinds = samplings(rule, chosen.max_tokens, chosen.seed)
    drawn_behind = [] if rule.repeats_plain else _drawn_behind(chosen_prompts)
    answers = len(kinds) * len(encoded) * (1 + len(accelerated))
    work = _Work(progress, answers + len(accelerated) * len(drawn_behind) * chosen.draws * _DRAW)
    expected = plain_answers(llm.with_proposer(_PLAIN), encoded, kinds, work.done)
    checked = []
    for fast in accelerated:
        identity = compare_answers(fast, names, encoded, expected, kinds, chosen.batch, work.done)
        distribution = None
        if drawn_behind and not identity.faults:
            distribution = check_distribution(
                fast,
                [names[i] for i in drawn_behind],
                [encoded[i] for i in drawn_behind],
                draws=chosen.draws,
                level=chosen.level / len(accelerated),
                seed=chosen.seed,
                report=lambda count, what: work.done(count * _DRAW, what),
            )
        checked.append(Checked(fast.proposer_name, fast.num_nodes, identity, distribution))
    return report_of(llm, chosen_prompts, replace(chosen, accept=rule.name), checked, skipped)


def check_asked(settings: CheckSettings, num_nodes: int | None, options: Mapping[str, Any]) -> None:
    """RequestError or HeadsError for what cannot be checked with any model, and so before one is loaded."""
    _refuse_plain(settings, num_nodes)
    if settings.proposers:
        check_proposers(settings.proposers, options, num_nodes, _NAMES)
        return
    for name, own in own_options(_NAMES, options).items():
        if name == AUTO:  # it reads every option
            check_guesser(name, num_nodes=num_nodes, **own)


def _refuse_plain(settings: CheckSettings, num_nodes: int | None) -> None:
    require(num_nodes is None or num_nodes >= 1, "num_nodes", num_nodes, "1 or more: without drafts there is nothing to check")
    if set(settings.proposers) & set(NONE):
        raise RequestError("plain decoding is what the others are checked against; leave it out of the proposers")


_DRAW = 0.05  # work of one draw beside that of one answer, for the progress


class _Work:
    """Counts what is done."""

    def __init__(self, progress: Progress | None, total: float) -> None:
        self._progress, self._total, self._done = progress, total, 0.0

    def done(self, count: float, what: str) -> None:
        self._done += count
        if self._progress:
            self._progress(self._done, self._total, what)


def _settings(settings: CheckSettings | None, named: Mapping[str, Any]) -> CheckSettings:
    known = [f.name for f in fields(CheckSettings)]
    unknown = next((name for name in named if name not in known), None)
    if unknown is not None:
        raise RequestError(f"a check has no option {unknown}; known are {', '.join(known)}")
    return replace(settings or CheckSettings(), **named)


def _built_in(llm: LLM) -> list[Prompt]:
    """The built-in prompts that leave room for an answer."""
    return [prompt for prompt in BUILT_IN if len(llm.encode(prompt.content)) < llm.target.context_limit]


def _encode(llm: LLM, prompts: PromptSet) -> list[list[int]]:
    encoded = [llm.encode(prompt.content) for prompt in prompts.prompts]
    room = llm.target.context_limit
    for prompt, tokens in zip(prompts.prompts, encoded, strict=True):
        if len(tokens) >= room:
            raise DataError(
                f"prompt {prompt.id} of {prompts.name} has {len(tokens)} tokens and the model's context {room}: "
                "nothing is left for an answer; shorten or remove it"
            )
    return encoded


def _accelerated(
    llm: LLM, settings: CheckSettings, rule: Rule, num_nodes: int | None, options: Mapping[str, Any]
) -> tuple[list[LLM], list[tuple[str, str]]]:
    """The model with each proposer; of those that nobody asked for by name, the ones it cannot have are skipped."""
    names = settings.proposers or _NAMES
    found: list[LLM] = []
    skipped: list[tuple[str, str]] = []
    refused: list[HeadsError | RequestError] = []
    own = own_options(names, options)
    for name in names:
        try:
            found.append(llm.with_proposer(name, num_nodes=num_nodes, **own[name]).with_rule(rule))
        except (HeadsError, RequestError) as error:
            if settings.proposers:
                raise
            refused += [error] if own[name] else []
            skipped.append((name, str(error)))
    if refused and not any(own[one.proposer_name] for one in found):  # what was given on purpose serves none of them
        raise refused[0]
    return found, skipped


def _drawn_behind(prompts: PromptSet) -> list[int]:
    """Places of the prompts that draws are made behind, spread over the categories."""
    chosen = {prompt.id for prompt in spread(prompts.prompts, NUM_PROMPTS)}
    return [index for index, prompt in enumerate(prompts.prompts) if prompt.id in chosen]
