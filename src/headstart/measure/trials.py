"""Trials: one configuration at one operating point, its runs, and what is judged of them.

A machine's speed drifts (neighbours, clocks, temperature), so trials never run one after the other: each batch of prompts goes
through all of them before the next batch, and who goes first rotates. One batch warms up first and is not counted. Over repeats
each batch's time is the median of its own times. A batch's seconds are shared out among its sequences by their number of target
passes, which makes times of categories exact for batches of one.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from headstart.lossless import Difference, compare
from headstart.measure.configurations import BatchRun, Configuration, Output
from headstart.measure.cost import mean_positions
from headstart.measure.points import Point
from headstart.measure.prompts import Prompt
from headstart.measure.replay import NUM_REPLAYS, Pattern, Replay, share_of, slower
from headstart.measure.samples import Latency, Sample
from headstart.plan.forecast import Forward
from headstart.sampling import Sampling
from headstart.target.base import Target
from headstart.timings import PARTS, Timings

Progress = Callable[[int, int, str], None]
"""Called before each piece of work with its number, how many there are, and what it is."""

_WARM_UP_TOKENS = 8
_Entry = TypeVar("_Entry")


@dataclass(slots=True)
class Trial:
    """One configuration's runs: [batch][repeat]."""

    configuration: Configuration
    runs: list[list[BatchRun]] = field(default_factory=list)

    @property
    def outputs(self) -> list[Output]:
        """The first answer to each prompt."""
        return [output for runs in self.runs for output in runs[0].outputs]

    def samples(self, prompts: Sequence[Prompt]) -> list[Sample]:
        """One a prompt, with times that are medians over the repeats."""
        samples: list[Sample] = []
        for runs in self.runs:
            seconds = statistics.median(run.seconds for run in runs)
            outputs = _middle(runs).outputs
            passes = [output.stats.num_steps + output.stats.num_prompt_passes for output in outputs]
            for index, output in enumerate(outputs):
                share = seconds * passes[index] / max(sum(passes), 1)
                latency = Latency(
                    _median([run.outputs[index].latency.first for run in runs]),
                    _median([run.outputs[index].latency.token for run in runs]),
                )
                samples.append(Sample(prompts[len(samples)].category, output.tokens, output.stats, share, latency))
        return samples

    def timings(self) -> Timings | None:
        """Parts of the loop, each the sum over the batches so far of its median over repeats."""
        measured = [[run.timings for run in runs if run.timings] for runs in self.runs if runs]
        if not all(measured):
            return None
        total = Timings()
        for part in (*PARTS, "prompt", "attention"):
            setattr(total, part, sum(statistics.median(getattr(t, part) for t in runs) for runs in measured))
        for runs in self.runs:
            timings = _middle(runs).timings if runs else None
            total.steps_by_rows += timings.steps_by_rows if timings else Counter()
        return total

    def wall_seconds(self) -> float:
        """Time of all batches."""
        return sum(statistics.median(run.seconds for run in runs) for runs in self.runs)


@dataclass(slots=True)
class Bench:
    """The trials of one point, plain decoding first, and the prompts that they answer."""

    point: Point
    target: Target
    trials: list[Trial]
    encoded: list[list[int]]
    replays: list[Replay] = field(default_factory=list)  # of each trial; none: forwards are not replayed

    @property
    def batches(self) -> list[list[list[int]]]:
        """The prompts in groups that are in flight together."""
        size = self.point.batch
        return [self.encoded[i : i + size] for i in range(0, len(self.encoded), size)]

    def replay(self, share: float) -> None:
        """Replay the forwards of each trial, as far as they are known."""
        for trial, replay in zip(self.trials, self.replays, strict=bool(self.replays)):
            replay.play(self._pattern(trial), share)

    def slower(self, place: int, forward: Forward) -> tuple[float, float] | None:
        """Plain decoding's pace in replays, and how much slower the trial at this place is."""
        return slower(self.replays[place], self.replays[0], forward)

    def replayed(self, place: int, forward: Forward) -> float | None:
        """Seconds of a forward of the trial at this place, at its pace in replays."""
        timings, paces = self.trials[place].timings(), self.slower(place, forward)
        return paces[0] * paces[1] * forward.mean(timings.steps_by_rows) if timings and paces else None

    def _pattern(self, trial: Trial) -> Pattern | None:
        timings = trial.timings()
        done = [(prompts, runs[0].outputs) for prompts, runs in zip(self.batches, trial.runs, strict=True) if runs]
        if timings is None or not timings.num_steps:
            return None
        pairs = [pair for prompts, outputs in done for pair in zip(prompts, outputs, strict=True)]
        prompts, answers = [len(prompt) for prompt, _ in pairs], [len(output.tokens) for _, output in pairs]
        return Pattern(
            timings.steps_by_rows,
            max(timings.num_steps // len(done), 1),
            (timings.stepping - timings.verify) / timings.num_steps,
            self.point.batch,
            sum(output.stats.num_steps for _, output in pairs) / timings.num_steps,
            mean_positions(prompts, answers, 1.0),
        )

    def differences(self, trial: Trial, prompts: Sequence[Prompt]) -> list[Difference] | None:
        """Where its answers part from plain's; None where tokens cannot tell."""
        sampling = self.point.sampling
        if not trial.configuration.is_comparable(sampling):
            return None
        plain, size = [output.tokens for output in self.trials[0].outputs], self.point.batch
        found = []
        for index, (prompt, tokens) in enumerate(zip(prompts, self.encoded, strict=True)):
            answers = [run.outputs[index % size].tokens for run in trial.runs[index // size]]
            first = _first_fault(self.target, prompt.id, tokens, plain[index], answers, sampling)
            found += [first] if first else []
        return found


def run(benches: Sequence[Bench], repeat: int, progress: Progress) -> None:
    """Answer all prompts in all trials of all points, taking turns, and replay some forwards in between."""
    total = repeat * sum(len(bench.trials) * len(bench.batches) for bench in benches)
    for bench in benches:
        for trial in bench.trials:
            progress(0, total, f"{trial.configuration.name}: warming up")
            trial.configuration.run(bench.batches[0], _short(bench.point.sampling))
            trial.runs = [[] for _ in bench.batches]
    done = 0
    rounds = max(len(bench.batches) for bench in benches)
    every = -(-rounds * repeat // NUM_REPLAYS)
    num_replays = len(range(every // 2, rounds * repeat, every))
    for number in range(repeat):
        for place in range(rounds):
            for bench in _rotated(benches, place + number):
                batches = bench.batches
                for trial in _rotated(bench.trials, place + number) if place < len(batches) else ():
                    progress(done, total, trial.configuration.name)
                    trial.runs[place].append(trial.configuration.run(batches[place], bench.point.sampling))
                    done += 1
            if (number * rounds + place) % every == every // 2:
                for bench in benches:
                    bench.replay(share_of(len(bench.batches) * repeat, num_replays))
    progress(done, total, "comparing")


def _rotated(entries: Sequence[_Entry], first: int) -> list[_Entry]:
    first %= len(entries)
    return [*entries[first:], *entries[:first]]


def _short(sampling: Sampling) -> Sampling:
    return replace(sampling, min_tokens=0, max_tokens=min(_WARM_UP_TOKENS, sampling.max_tokens or _WARM_UP_TOKENS))


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _middle(runs: Sequence[BatchRun]) -> BatchRun:
    """The repeat with the middle number of steps, for all that is counted: who drafts by the clock differs from run to run."""
    return sorted(runs, key=lambda run: run.timings.steps_by_rows.total() if run.timings else 0)[len(runs) // 2]


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
