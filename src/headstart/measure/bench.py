"""The run: every configuration answers the same prompts, interleaved, on one machine at one time.

A machine's speed drifts (neighbours, clocks, temperature), so configurations never run one after the other: each batch of
prompts goes through all of them before the next batch, and who goes first rotates. One batch warms up first and is not counted.
Over repeats each batch's time is the median of its own times. A batch's seconds are shared out among its sequences by their
number of target passes, which makes times of categories exact for batches of one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from headstart.decode import Timings
from headstart.errors import DataError, require
from headstart.llm import LLM, sampling_from
from headstart.lossless import Difference, compare
from headstart.measure.configurations import BatchRun, Configuration, configure
from headstart.measure.prompts import Content, Prompt, PromptSet, prompt_set
from headstart.measure.record import Measured, Sample, record_of
from headstart.measure.report import Report
from headstart.measure.settings import PLAIN, MeasureSettings, measured_sampling
from headstart.proposers.choose import AUTO
from headstart.sampling import Sampling
from headstart.target.base import Target

Progress = Callable[[int, int, str], None]
"""Called before each piece of work with its number, how many there are, and what it is."""

_WARM_UP_TOKENS = 8


@dataclass(slots=True)
class _Trial:
    """One configuration's runs: [batch][repeat]."""

    configuration: Configuration
    runs: list[list[BatchRun]] = field(default_factory=list)


def measure(
    llm: LLM,
    prompts: str | Path | PromptSet | Iterable[Content | Prompt],
    settings: MeasureSettings | None = None,
    *,
    sampling: Sampling | None = None,
    num_nodes: int | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **named: Any,
) -> Report:
    """Measure proposers against plain decoding. ``named``: fields of the settings and of the sampling, by name.

    ``options`` (heads, growth, draft, ...) go to the proposers that read them. Plain decoding is added if it is missing.
    """
    check_arguments(llm, settings, MeasureSettings, num_nodes, options)
    chosen, wanted = _settings(settings, sampling, named)
    notes: list[str] = []
    names = _proposers(chosen, llm, notes)
    rule = chosen.rule(llm.rule)
    notes += [rule.note] if rule.note else []
    chosen_prompts = prompt_set(prompts, chosen.limit)
    encoded = _encode(llm, chosen_prompts, wanted)
    configurations = configure(llm, names, wanted, num_nodes=num_nodes, options=options or {}, rule=rule)
    trials = [_Trial(configuration) for configuration in configurations]
    _run(trials, encoded, chosen, wanted, progress or _silent)
    measured = _judge(llm.target, trials, chosen_prompts.prompts, encoded, chosen, wanted)
    return Report(record_of(llm, chosen_prompts, chosen, wanted, measured, notes))


def check_arguments(llm: object, settings: object, kind: type, num_nodes: object, options: object) -> None:
    """RequestError for an argument of a type that cannot be meant."""
    require(isinstance(llm, LLM), "llm", llm, "a loaded model, such as load('smollm2')")
    require(settings is None or isinstance(settings, kind), "settings", settings, f"a {kind.__name__}")
    require(num_nodes is None or type(num_nodes) is int, "num_nodes", num_nodes, "a whole number")
    require(options is None or isinstance(options, Mapping), "options", options, "a mapping from names to values")


def _settings(
    settings: MeasureSettings | None, sampling: Sampling | None, named: Mapping[str, Any]
) -> tuple[MeasureSettings, Sampling]:
    own = {f.name for f in fields(MeasureSettings)}
    mine = {name: value for name, value in named.items() if name in own}
    rest = {name: value for name, value in named.items() if name not in own}
    return replace(settings or MeasureSettings(), **mine), measured_sampling(sampling_from(sampling, rest))


def _proposers(settings: MeasureSettings, llm: LLM, notes: list[str]) -> list[str]:
    """The configurations' names, plain first."""
    names = [PLAIN if name == "none" else name for name in settings.proposers]
    if not names:
        own = PLAIN if llm.proposer_name == "none" else llm.proposer_name
        fixed = (llm.heads.config.kind,) if own == AUTO and llm.heads else ()
        names = list(dict.fromkeys((PLAIN, "ngram", *fixed, own)))
    if PLAIN not in names:
        notes.append("plain was added: speedups and losslessness refer to it")
    return [PLAIN, *(name for name in names if name != PLAIN)]


def _encode(llm: LLM, prompts: PromptSet, sampling: Sampling) -> list[list[int]]:
    limit = llm.target.context_limit
    encoded = []
    for prompt in prompts.prompts:
        tokens = llm.encode(prompt.content)
        if len(tokens) >= limit:
            raise DataError(
                f"prompt {prompt.id} of {prompts.name} has {len(tokens)} tokens and the model's context {limit}: "
                "nothing is left for an answer; shorten or remove it"
            )
        encoded.append(tokens)
    return encoded


def _run(
    trials: Sequence[_Trial], encoded: Sequence[list[int]], settings: MeasureSettings, sampling: Sampling, progress: Progress
) -> None:
    batches = [encoded[i : i + settings.batch] for i in range(0, len(encoded), settings.batch)]
    total = len(trials) * len(batches) * settings.repeat
    short = replace(sampling, min_tokens=0, max_tokens=min(_WARM_UP_TOKENS, sampling.max_tokens or _WARM_UP_TOKENS))
    for trial in trials:
        progress(0, total, f"{trial.configuration.name}: warming up")
        trial.configuration.run(batches[0], short)
        trial.runs = [[] for _ in batches]
    done = 0
    for repeat in range(settings.repeat):
        for number, batch in enumerate(batches):
            first = (number + repeat) % len(trials)
            for trial in (*trials[first:], *trials[:first]):
                progress(done, total, trial.configuration.name)
                trial.runs[number].append(trial.configuration.run(batch, sampling))
                done += 1
    progress(done, total, "comparing")


def _judge(
    target: Target,
    trials: Sequence[_Trial],
    prompts: Sequence[Prompt],
    encoded: Sequence[list[int]],
    settings: MeasureSettings,
    sampling: Sampling,
) -> list[Measured]:
    plain = [output.tokens for runs in trials[0].runs for output in runs[0].outputs]
    measured = []
    for trial in trials:
        differences: list[Difference] | None = None
        if trial.configuration.is_comparable:
            differences = []
            for index, (prompt, tokens) in enumerate(zip(prompts, encoded, strict=True)):
                answers = [run.outputs[index % settings.batch].tokens for run in trial.runs[index // settings.batch]]
                found = _first_fault(target, prompt.id, tokens, plain[index], answers, sampling)
                differences += [found] if found else []
        samples = _samples(trial, prompts, settings.batch)
        configuration = trial.configuration
        timings = _median_timings(trial.runs)
        rule, reasons = configuration.rule, configuration.explain()
        measured.append(Measured(configuration.name, configuration.num_nodes, samples, timings, differences, rule, reasons))
    return measured


def _first_fault(
    target: Target,
    name: str,
    prompt: Sequence[int],
    plain: Sequence[int],
    answers: Sequence[Sequence[int]],
    sampling: Sampling,
) -> Difference | None:
    """The first difference of any repeat from plain; a fault counts before a tie."""
    seed = sampling.seed or 0
    different = list(dict.fromkeys(tuple(answer) for answer in answers if tuple(answer) != tuple(plain)))
    found = [compare(target, name, prompt, plain, answer, sampling, seed) for answer in different]
    judged = [difference for difference in found if difference]
    return min(judged, key=lambda difference: difference.kind) if judged else None  # "fault" < "tie"


def _samples(trial: _Trial, prompts: Sequence[Prompt], batch: int) -> list[Sample]:
    samples = []
    for number, runs in enumerate(trial.runs):
        seconds = statistics.median(run.seconds for run in runs)
        outputs = runs[0].outputs
        passes = [output.stats.num_steps + output.stats.num_prompt_passes for output in outputs]
        for index, output in enumerate(outputs):
            share = seconds * passes[index] / max(sum(passes), 1)
            samples.append(Sample(prompts[number * batch + index].category, output.tokens, output.stats, share))
    return samples


def _median_timings(batches: Sequence[Sequence[BatchRun]]) -> Timings:
    """Parts of the loop, each the sum over batches of its median over repeats."""
    total = Timings()
    for part in fields(Timings):
        seconds = sum(statistics.median(getattr(run.timings, part.name) for run in runs) for runs in batches)
        setattr(total, part.name, seconds)
    return total


def _silent(done: int, total: int, what: str) -> None:
    """No progress is shown."""
