"""``headstart plan MODEL``: measure what speculation costs and gives here, and forecast it for every batch.

Every proposer that the model can have is run at a few numbers of nodes, at one sequence in flight and at four, interleaved
with plain decoding as in a measurement. T(rows) is timed before and after, and replays (``replay.py``) say how much slower
forwards are at each configuration's own pace. Forecasts of both batches are set against the clock of the same run: that is
the plan's own proof. Texts of a batch end at different times, so a proof takes as many sequences as were in flight on
average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from headstart.errors import DataError, HeadsError, RequestError
from headstart.guessers import NONE
from headstart.llm import LLM
from headstart.measure.configurations import Proposing, check_proposers
from headstart.measure.plan_settings import MEASURED_BATCHES, PlanSettings
from headstart.measure.points import Point, encoded
from headstart.measure.prompts import Content, Prompt, PromptSet, prompt_set
from headstart.measure.record import record_head
from headstart.measure.replay import Replay
from headstart.measure.settings import PLAIN, MeasureSettings, measured_sampling
from headstart.measure.tables import Table
from headstart.measure.target_costs import TargetCosts
from headstart.measure.trials import Bench, Progress, Trial, run
from headstart.plan.economics import per_million
from headstart.plan.forecast import Forward
from headstart.plan.forecast_batches import BATCHES, Choice, Drafting, Line, Pace, Plain, best, choice
from headstart.plan.verdict import better_head, break_even, saved, verdict
from headstart.proposers.choose import AUTO, HEADS
from headstart.sampling import Sampling
from headstart.stats import Stats
from headstart.timings import Timings
from headstart.tree import Path, optimal_paths

FORMAT, VERSION = "headstart-plan", 1
_NAMES = ("ngram", "suffix", *HEADS, "combined")


@dataclass(frozen=True, slots=True)
class Plan:
    """What ``plan`` returns. ``record`` is the JSON object."""

    record: dict[str, Any]

    def tables(self) -> list[Table]:
        """T(rows), the best choice by batch, and forecasts beside the clock."""
        return [_cost_table(self.record), _batch_table(self.record), _proof_table(self.record)]

    @property
    def lines(self) -> list[str]:
        """The answer in words, the verdict first."""
        return list(self.record["answers"])


def plan(
    llm: LLM,
    prompts: str | FilePath | PromptSet | Iterable[Content | Prompt] | None = None,
    settings: PlanSettings | None = None,
    *,
    progress: Progress | None = None,
    **named: Any,
) -> Plan:
    """Measure and forecast. ``named``: fields of the settings, by name; ``prompts`` None: the built-in set."""
    unknown = next((name for name in named if name not in {f.name for f in fields(PlanSettings)}), None)
    if unknown is not None:
        raise RequestError(f"a plan has no option {unknown}; known are {', '.join(f.name for f in fields(PlanSettings))}")
    chosen = replace(settings or PlanSettings(), **named)
    read = prompt_set(prompts, chosen.limit)
    check_asked(chosen, read)
    show = progress or (lambda done, total, what: None)
    sampling = measured_sampling(Sampling(max_tokens=chosen.max_tokens, temperature=chosen.temperature))
    configurations, skipped = _configurations(llm, chosen)
    texts = encoded(llm, read, None)
    benches = [
        Bench(
            Point(llm.target.dtype, batch, sampling),
            llm.target,
            [Trial(c) for c in configurations],
            texts,
            [Replay(llm.target) for _ in configurations],
        )
        for batch in MEASURED_BATCHES
    ]
    costs = TargetCosts(llm.target, show)
    run(benches, 1, show)
    costs.look_again()
    profile = costs.of([], chosen.price).profile
    assert profile is not None
    forward = Forward(profile, _positions(texts, benches[0]))
    plain = _plain(benches, forward)
    draftings = [_drafting(benches, place, plain) for place in range(1, len(configurations))]
    head = record_head([llm], read, MeasureSettings(), sampling) | {"format": FORMAT, "version": VERSION}
    choices = [best(plain, draftings, batch) for batch in BATCHES]
    proof = _proof(benches, plain, draftings)
    return Plan(
        head
        | {
            "price": chosen.price,
            "target": costs.describe(),
            "notes": [f"{name} was not tried: {reason}" for name, reason in skipped],
            "draftings": [
                _described(drafting) | {"tree": [list(path) for path in _tree(trial)]}
                for drafting, trial in zip(draftings, benches[0].trials[1:], strict=True)
            ],
            "by_batch": [_forecast(found, chosen.price) for found in choices],
            "proof": proof,
            "answers": _answers(choices, proof, benches, chosen),
        }
    )


def check_asked(settings: PlanSettings, prompts: PromptSet) -> None:
    """RequestError or DataError for what cannot be planned with any model, and so before one is loaded."""
    if len(prompts.prompts) < MEASURED_BATCHES[-1]:
        raise DataError(f"a plan needs {MEASURED_BATCHES[-1]} prompts or more and {prompts.name} has {len(prompts.prompts)}")
    for name in settings.proposers:
        if name in NONE:
            raise RequestError(f"{name} decoding is what a plan compares with; leave it out of the proposers")
        if name == AUTO:
            raise RequestError("auto decides by itself what a plan would tell you; name what it chooses from, or nothing")
    check_proposers(settings.proposers, {}, None, _NAMES)


def _configurations(llm: LLM, settings: PlanSettings) -> tuple[list[Proposing], list[tuple[str, str]]]:
    """Plain first; proposers that nobody asked for by name are left out where the model cannot have them."""
    names = settings.proposers or _NAMES
    found, skipped = [Proposing(PLAIN, llm.with_proposer("none"))], []
    for name in names:
        try:
            found += [Proposing(name, llm.with_proposer(name, num_nodes=nodes)) for nodes in settings.nodes]
        except (HeadsError, RequestError) as reason:
            if settings.proposers:
                raise
            skipped.append((name, str(reason)))
    return found, skipped


def _positions(texts: Sequence[Sequence[int]], bench: Bench) -> float:
    """Cached positions of a sequence, halfway through its answer."""
    answers = [len(output.tokens) for output in bench.trials[0].outputs]
    return sum(len(text) + answer / 2 for text, answer in zip(texts, answers, strict=True)) / len(texts)


def _plain(benches: Sequence[Bench], forward: Forward) -> Plain:
    slower, overhead = {}, {}
    for bench in benches:
        timings = _timings(bench.trials[0])
        slower[bench.point.batch] = timings.verify / timings.num_steps / forward.mean(timings.steps_by_rows)
        overhead[bench.point.batch] = (timings.stepping - timings.verify) / timings.num_steps
    return Plain(forward, Pace(slower), Line.through(overhead))


def _drafting(benches: Sequence[Bench], place: int, plain: Plain) -> Drafting:
    asking, slower = {}, {}
    for bench in benches:
        own, base = _timings(bench.trials[place]), _timings(bench.trials[0])
        beside = [(timings.stepping - timings.verify) / timings.num_steps for timings in (own, base)]
        asking[bench.point.batch] = beside[0] - beside[1]
        slower[bench.point.batch] = plain.pace.at(bench.point.batch) * _slower(bench, place, plain.forward)
    trial = benches[0].trials[place]
    return Drafting(
        trial.configuration.name,
        trial.configuration.num_nodes,
        _stats(trial).acceptance_length,
        _timings(trial).steps_by_rows,
        Line.through(asking),
        Pace(slower),
    )


def _slower(bench: Bench, place: int, forward: Forward) -> float:
    """Replayed forwards over T(rows) of this configuration, beside the same of plain decoding."""
    paces = bench.slower(place, forward)
    return paces[1] if paces else 1.0


def _timings(trial: Trial) -> Timings:
    """DataError where no answer went beyond its first token."""
    timings = trial.timings()
    assert timings is not None
    if not timings.num_steps:
        raise DataError("every answer ended with its first token, so that there is nothing to plan; give other prompts")
    return timings


def _stats(trial: Trial) -> Stats:
    total = Stats()
    for output in trial.outputs:
        total.add(output.stats)
    return total


def _proof(benches: Sequence[Bench], plain: Plain, draftings: Sequence[Drafting]) -> list[dict[str, Any]]:
    """Speedups in decoding as forecast, and as the clock of this run has them."""
    found = []
    for bench in benches:
        usual, in_flight = _seconds_per_token(bench.trials[0]), _in_flight(bench.trials[0])
        for drafting, trial in zip(draftings, bench.trials[1:], strict=True):
            own = choice(plain, drafting, _in_flight(trial))
            clock, forecast = usual / _seconds_per_token(trial), plain.seconds_per_token(in_flight) / own.seconds_per_token
            found.append(
                {
                    "proposer": drafting.proposer,
                    "nodes": drafting.num_nodes,
                    "batch": bench.point.batch,
                    "predicted": forecast,
                    "measured": clock,
                    "over_measured": forecast / clock,
                }
            )
    return found


def _seconds_per_token(trial: Trial) -> float:
    """By the clock, prompts left out."""
    return _timings(trial).stepping / max(_stats(trial).num_emitted, 1)


def _in_flight(trial: Trial) -> float:
    """Sequences of a step, on average."""
    return _stats(trial).num_steps / _timings(trial).num_steps


def _described(drafting: Drafting) -> dict[str, Any]:
    return {
        "proposer": drafting.proposer,
        "nodes": drafting.num_nodes,
        "acceptance_length": drafting.length,
        "rows": drafting.mean_rows,
        "asking_ms_fixed": 1000 * drafting.asking.fixed,
        "asking_ms_per_sequence": 1000 * drafting.asking.each,
    }


def _forecast(found: Choice, price: float | None) -> dict[str, Any]:
    plain, fast = found.plain_seconds_per_token, found.seconds_per_token
    return {
        "batch": found.num_sequences,
        "proposer": found.drafting.proposer,
        "nodes": found.drafting.num_nodes,
        "acceptance_length": found.drafting.length,
        "break_even_length": found.break_even_length,
        "plain_ms_per_token": 1000 * found.plain_step,
        "ms_per_token": 1000 * found.step / found.drafting.length,
        "speedup": found.speedup,
        "plain_per_million_tokens": None if price is None else per_million(plain, price),
        "per_million_tokens": None if price is None else per_million(fast, price),
    }


def _answers(
    choices: Sequence[Choice], proof: Sequence[Mapping[str, Any]], benches: Sequence[Bench], settings: PlanSettings
) -> list[str]:
    first = choices[0]
    depth = _depth(benches[0], first)
    clock = {(one["proposer"], one["nodes"], one["batch"]): one["measured"] for one in proof}
    measured = [clock.get((one.drafting.proposer, one.drafting.num_nodes, one.num_sequences)) for one in choices]
    found = [verdict(choices, measured), break_even(first, depth)]
    found.append(_tree_line(benches[0], first))
    better = better_head(first, depth)
    found += [better] if better else []
    last = choices[-1]
    found.append(
        f"at batch {last.num_sequences} a step over {last.num_sequences} rows takes {1000 * last.plain_step:.1f} ms beside "
        f"{1000 * first.plain_step:.1f} ms at batch 1, and drafting gives {last.speedup:.2f}"
    )
    if settings.gpu_hours is not None and settings.price is not None:
        found.append(saved(first, settings.gpu_hours, settings.price))
    return found


def _trial(bench: Bench, found: Choice) -> Trial:
    """That of a choice."""
    way = (found.drafting.proposer, found.drafting.num_nodes)
    return next(t for t in bench.trials[1:] if (t.configuration.name, t.configuration.num_nodes) == way)


def _tree(trial: Trial) -> list[Path]:
    """The static tree that fits best what this configuration's guesses came to, by depth and rank."""
    table = _stats(trial).ranks.acceptance
    accuracies = np.zeros((len(table), max(map(len, table), default=0)))
    for depth, row in enumerate(table):
        accuracies[depth, : len(row)] = [share or 0.0 for share in row]
    return optimal_paths(accuracies, trial.configuration.num_nodes)


def _tree_line(bench: Bench, found: Choice) -> str:
    trial = _trial(bench, found)
    paths = " ".join(f"({','.join(map(str, path))})" for path in _tree(trial)) or "none at all"
    return (
        f"its trees follow each step's own estimates, {_depth(bench, found)} deep in the mean; if one had to serve all steps, "
        f"by the ranks accepted here: {paths}"
    )


def _depth(bench: Bench, found: Choice) -> int:
    """Mean depth of the drafts of a choice, of the steps that drafted."""
    drafted = _stats(_trial(bench, found)).drafted_by_position
    return max(round(sum(drafted) / drafted[0]) if drafted and drafted[0] else 1, 1)


def _cost_table(record: dict[str, Any]) -> Table:
    target = record["target"]
    rows = [["ms of a forward", *(f"{t:.2f}" for t in target["ms"])]]
    if target["limit_ms"]:
        rows.append(["the machine's limit", *(f"{t:.2f}" for t in target["limit_ms"])])
    return Table("T(rows)", ["rows", *map(str, target["rows"])], rows)


def _batch_table(record: dict[str, Any]) -> Table:
    header = ["batch", "proposer", "nodes", "L", "loses below L", "plain ms/token", "ms/token", "speedup"]
    priced = record["price"] is not None
    header += ["plain per million", "per million"] if priced else []
    rows = []
    for one in record["by_batch"]:
        cells = [str(one["batch"]), one["proposer"], str(one["nodes"])]
        cells += [
            f"{one[name]:.2f}"
            for name in ("acceptance_length", "break_even_length", "plain_ms_per_token", "ms_per_token", "speedup")
        ]
        cells += [f"{one[name]:.4g}" for name in ("plain_per_million_tokens", "per_million_tokens")] if priced else []
        rows.append(cells)
    return Table("forecast of the best choice by sequences in flight (ms a token as one sequence sees them)", header, rows)


def _proof_table(record: dict[str, Any]) -> Table:
    rows = [
        [
            one["proposer"],
            str(one["nodes"]),
            str(one["batch"]),
            f"{one['predicted']:.2f}",
            f"{one['measured']:.2f}",
            f"{one['over_measured'] - 1:+.1%}",
        ]
        for one in record["proof"]
    ]
    return Table("speedup in decoding: forecast and clock", ["proposer", "nodes", "batch", "forecast", "clock", "off by"], rows)
