"""``measure``: every configuration at every operating point answers the same prompts, interleaved, on one machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headstart.accept import EXACT
from headstart.errors import DataError, require
from headstart.guessers import NONE, check_use
from headstart.llm import LLM, sampling_from
from headstart.measure.against import against, check_against
from headstart.measure.configurations import NAMES, Configuration, Proposing, check_proposers, configure
from headstart.measure.cost import mean_positions
from headstart.measure.entries import Costs, Measured, entry
from headstart.measure.points import Point, encoded, points
from headstart.measure.prompts import Content, Prompt, PromptSet, prompt_set
from headstart.measure.quality import Quality, distance, from_original, perplexity
from headstart.measure.record import dead_drafts, record_head
from headstart.measure.replay import Replay
from headstart.measure.report import Report
from headstart.measure.settings import PLAIN, MeasureSettings, measured_sampling, settings_from
from headstart.measure.target_costs import TargetCosts
from headstart.measure.trials import Bench, Progress, Trial, run
from headstart.measure.walkthrough import walkthrough
from headstart.plan.forecast import Forward
from headstart.proposers.choose import AUTO
from headstart.sampling import Sampling
from headstart.target.base import Target, TimedTarget


def measure(
    llm: LLM | Sequence[LLM],
    prompts: str | Path | PromptSet | Iterable[Content | Prompt] | None = None,
    settings: MeasureSettings | None = None,
    *,
    sampling: Sampling | None = None,
    num_nodes: int | None = None,
    options: Mapping[str, Any] | None = None,
    original: LLM | None = None,
    progress: Progress | None = None,
    **named: Any,
) -> Report:
    """Measure proposers against plain decoding. ``named``: fields of the settings and of the sampling, by name.

    ``llm``: a model, or the same one in several dtypes. ``prompts`` None: the built-in set. ``options`` (heads, growth,
    draft, ...) go to the proposers that read them. ``original``: the model that this one was made of, whose distance is
    measured. Plain decoding is added if it is missing.
    """
    llms = [llm] if isinstance(llm, LLM) else llm
    check_arguments(llms, settings, MeasureSettings, num_nodes, options)
    chosen, rest = settings_from(settings, named)
    wanted = measured_sampling(sampling_from(sampling, rest))
    notes: list[str] = []
    chosen_prompts = prompt_set(prompts, chosen.limit, chosen.categories)
    check_asked(chosen, wanted, chosen_prompts, num_nodes, options or {}, own=llms[0].proposer_name)
    show = progress or _silent
    with ExitStack() as processes:
        benches = [
            bench
            for one in llms
            for bench in _benches(one, chosen, wanted, chosen_prompts, num_nodes, options or {}, processes, notes)
        ]
        costs = {one.target.dtype: TargetCosts(one.target, show) for one in llms}
        with _timed([one.target for one in llms]):
            run(benches, chosen.repeat, show)
    for found in costs.values():
        found.look_again()
    record = record_head(llms, chosen_prompts, chosen, benches[0].point.sampling)
    entries, findings = [], []
    for bench in benches:
        known = costs[bench.point.dtype].of([len(tokens) for tokens in bench.encoded], chosen.price)
        judged = _judge(bench, chosen_prompts.prompts, known)
        findings += dead_drafts(judged)
        entries += [entry(one, judged[0], bench.point.describe(), known) for one in judged]
    return Report(
        record
        | {
            "notes": [*dict.fromkeys(notes), *dict.fromkeys(findings)],
            "targets": {dtype: found.describe() for dtype, found in costs.items()},
            "configurations": entries,
            "explain": _explanations(benches),
            "original": _original(benches[0], original),
            "walkthrough": _walkthrough(benches[0], entries),
        }
    )


def check_asked(
    settings: MeasureSettings,
    sampling: Sampling,
    prompts: PromptSet,
    num_nodes: int | None,
    options: Mapping[str, Any],
    *,
    own: str = AUTO,
) -> None:
    """RequestError, DataError or HeadsError for what can be measured with no model, and so before one is loaded.

    ``own``: the model's own proposer, which is measured where none is named.
    """
    largest = max(settings.batch)
    if largest > len(prompts.prompts) and largest > 1:
        raise DataError(
            f"batch {largest} needs as many prompts and {prompts.name} has {len(prompts.prompts)} here; "
            "raise --limit, or lower --batch"
        )
    points("", settings, measured_sampling(sampling))
    names = [PLAIN if name in NONE else name for name in settings.proposers]
    is_plain = bool(names) and set(names) == {PLAIN}
    for rule in settings.rules(EXACT):
        check_use(is_plain, False, num_nodes, rule)
    if names or own == AUTO:
        check_proposers(names or (PLAIN, AUTO), options, num_nodes, NAMES)
    check_against(settings.against, settings.against_python, sampling)


def check_arguments(llms: Sequence[object], settings: object, kind: type, num_nodes: object, options: object) -> None:
    """RequestError for an argument of a type that cannot be meant."""
    is_model = isinstance(llms, list | tuple) and llms and all(isinstance(llm, LLM) for llm in llms)
    given = llms[0] if isinstance(llms, list | tuple) and llms else llms
    require(is_model, "llm", given, "a loaded model, such as load('smollm2')")
    require(settings is None or isinstance(settings, kind), "settings", settings, f"a {kind.__name__}")
    require(num_nodes is None or type(num_nodes) is int, "num_nodes", num_nodes, "a whole number")
    require(options is None or isinstance(options, Mapping), "options", options, "a mapping from names to values")


def _proposers(settings: MeasureSettings, llm: LLM, notes: list[str]) -> list[str]:
    """The configurations' names, plain first."""
    names = [PLAIN if name in NONE else name for name in settings.proposers]
    if not names:
        own = PLAIN if llm.proposer_name in NONE else llm.proposer_name
        fixed = (llm.heads.config.kind,) if own == AUTO and llm.heads else ()
        names = list(dict.fromkeys((PLAIN, "ngram", *fixed, own)))
    if PLAIN not in names:
        notes.append("plain was added: speedups and losslessness refer to it")
    return [PLAIN, *(name for name in names if name != PLAIN)]


def _benches(
    llm: LLM,
    settings: MeasureSettings,
    sampling: Sampling,
    prompts: PromptSet,
    num_nodes: int | None,
    options: Mapping[str, Any],
    processes: ExitStack,
    notes: list[str],
) -> list[Bench]:
    rules = settings.rules(llm.rule)
    notes += [rule.note for rule in rules if rule.note]
    made = configure(llm, _proposers(settings, llm, notes), rules, num_nodes=num_nodes, options=options)
    others, missing = against(llm, settings.against, processes, settings.against_python)
    notes += missing
    texts = {length: encoded(llm, prompts, length) for length in settings.prompt_tokens or (None,)}
    return [
        _bench(point, llm.target, [*made, *others], texts[point.prompt_tokens])
        for point in points(llm.target.dtype, settings, sampling)
    ]


def _bench(point: Point, target: Target, configurations: Sequence[Configuration], texts: list[list[int]]) -> Bench:
    replays = [Replay(target) for _ in configurations]
    return Bench(point, target, [Trial(configuration) for configuration in configurations], texts, replays)


@contextmanager
def _timed(targets: Sequence[Target]) -> Iterator[None]:
    """Let engines that can tell their attention's time do so."""
    able = [target for target in targets if isinstance(target, TimedTarget)]
    for target in able:
        target.time_attention(True)
    try:
        yield
    finally:
        for target in able:
            target.time_attention(False)


def _judge(bench: Bench, prompts: Sequence[Prompt], known: Costs) -> list[Measured]:
    found = []
    answers = [len(output.tokens) for output in bench.trials[0].outputs]
    forward = Forward(known.profile, mean_positions(known.prompt_tokens, answers, 1.0)) if known.profile else None
    is_lossy = [_is_lossy(trial, bench.point) for trial in bench.trials]
    for place, (trial, lossy) in enumerate(zip(bench.trials, is_lossy, strict=True)):
        configuration = trial.configuration
        found.append(
            Measured(
                configuration.name,
                configuration.num_nodes,
                trial.samples(prompts),
                trial.timings(),
                bench.differences(trial, prompts),
                configuration.rule,
                trial.wall_seconds(),
                _quality(bench, trial, lossy) if lossy or (any(is_lossy) and configuration.name == PLAIN) else None,
                bench.replayed(place, forward) if forward else None,
            )
        )
    return found


def _is_lossy(trial: Trial, point: Point) -> bool:
    rule = trial.configuration.rule
    return rule is not None and not rule.is_lossless and point.sampling.temperature > 0


def _quality(bench: Bench, trial: Trial, is_lossy: bool) -> Quality:
    if is_lossy:
        return distance(bench.target, bench.encoded, trial.outputs, bench.point.sampling)
    return perplexity(bench.target, bench.encoded, trial.outputs)


def _original(bench: Bench, original: LLM | None) -> dict[str, Any] | None:
    """How far the base is from what it was made of, behind its plain answers of the first point."""
    if original is None:
        return None
    outputs = bench.trials[0].outputs
    found = from_original(bench.target, original.target, bench.encoded, outputs)
    own = perplexity(bench.target, bench.encoded, outputs).perplexity
    return {"model": original.target.name, "own_perplexity": own} | asdict(found)


def _explanations(benches: Sequence[Bench]) -> list[dict[str, Any]]:
    """Why ``auto`` drafted as it did, once a dtype and rule."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for bench in benches:
        for trial in bench.trials:
            reasons, rule = trial.configuration.explain(), trial.configuration.rule
            if reasons is not None and rule is not None:
                found[bench.point.dtype, rule.name] = {"dtype": bench.point.dtype, "accept": rule.name, **reasons}
    return list(found.values())


def _walkthrough(bench: Bench, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The steps of the first prompt's answer with the fastest proposer of the first point."""
    ours = [
        (entries[place]["tokens_per_second"], trial.configuration)
        for place, trial in enumerate(bench.trials)
        if isinstance(trial.configuration, Proposing) and trial.configuration.name != PLAIN
    ]
    if not ours:
        return None
    fastest = max(ours, key=lambda pair: pair[0])[1]
    steps = walkthrough(fastest.llm, bench.encoded[0], bench.point.sampling)
    return {"proposer": fastest.name, "accept": fastest.rule.name, "prompt": 0, "steps": steps}


def _silent(done: int, total: int, what: str) -> None:
    """No progress is shown."""
