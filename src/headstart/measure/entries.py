"""One configuration's entry in the record: the five measurements, at one operating point.

Counts and rates are those of ``stats.py``, parts of a step those of ``timings.py``. ``tokens`` are all tokens of the
answers, the one of each prompt's pass included; ``acceptance_length`` counts steps alone; ``seconds`` are wall time,
prompts included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headstart.accept import EXACT, Rule
from headstart.lossless import Difference
from headstart.measure import cost
from headstart.measure.intervals import Rate, interval, percentiles
from headstart.measure.quality import Quality
from headstart.measure.samples import Sample, num_tokens, pooled, seconds
from headstart.plan.forecast import PlainSteps, step_seconds
from headstart.plan.profile import Profile
from headstart.target.base import ModelSize
from headstart.target.limits import Limits
from headstart.timings import PARTS, Timings


@dataclass(frozen=True, slots=True)
class Measured:
    """One configuration's results; ``differences`` is None where tokens cannot be compared."""

    name: str
    num_nodes: int
    samples: Sequence[Sample]
    timings: Timings | None
    differences: Sequence[Difference] | None
    rule: Rule | None = EXACT
    wall_seconds: float = 0.0
    quality: Quality | None = None
    replayed: float | None = None  # seconds of its forwards in replays

    @property
    def is_lossless(self) -> bool | None:
        """Whether it lost nothing; None where that cannot be seen from its tokens."""
        if self.rule is not None and not self.rule.is_lossless:
            return False
        return None if self.differences is None else not any(d.kind == "fault" for d in self.differences)


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known of a target's costs, apart from its runs."""

    prompt_tokens: Sequence[int]  # of each prompt
    size: ModelSize | None = None
    limits: Limits | None = None
    profile: Profile | None = None
    price: float | None = None


def entry(measured: Measured, plain: Measured, point: Mapping[str, Any], costs: Costs) -> dict[str, Any]:
    """The entry; ``plain`` is the plain decoding of the same point."""
    stats, timings = pooled(measured.samples), measured.timings
    categories = dict.fromkeys(sample.category for sample in measured.samples)
    in_flight = stats.num_steps / timings.num_steps if timings and timings.num_steps else float(point["batch"])
    positions = cost.mean_positions(costs.prompt_tokens, [len(s.tokens) for s in measured.samples], in_flight)
    core = _core(measured.samples, plain.samples)
    return {
        "proposer": measured.name,
        "accept": measured.rule.name if measured.rule else None,
        "lossless": measured.is_lossless,
        **point,
        "nodes": measured.num_nodes,
        "in_flight": in_flight,
        **core,
        "speedup_interval": _interval(measured.samples, plain.samples),
        "latency": _latency(measured.samples),
        **_comparison(measured),
        "quality": asdict(measured.quality) if measured.quality else None,
        "timings": _timings(measured),
        "cost": cost.cost(core["tokens"], core["seconds"], costs.price),
        "utilisation": cost.utilisation(timings, costs.size, costs.limits, positions),
        "predicted": _predicted(measured, plain),
        "ranks": asdict(stats.ranks),
        "reliability": asdict(stats.reliability),
        "looping": _looping(measured.samples),
        "by_category": {name: _core(_of(measured, name), _of(plain, name)) for name in categories},
        "answers": {
            "tokens": [len(sample.tokens) for sample in measured.samples],
            "seconds": [sample.seconds for sample in measured.samples],
            "steps": [sample.stats.num_steps for sample in measured.samples],
            "emitted": [sample.stats.num_emitted for sample in measured.samples],
        },
    }


def _of(measured: Measured, category: str) -> list[Sample]:
    return [sample for sample in measured.samples if sample.category == category]


def _core(samples: Sequence[Sample], plain: Sequence[Sample]) -> dict[str, Any]:
    stats = pooled(samples)
    tokens, taken = num_tokens(samples), seconds(samples)
    return {
        "tokens": tokens,
        "seconds": taken,
        "tokens_per_second": _ratio(tokens, taken),
        "ms_per_token": 1000 * _ratio(taken, tokens),
        "steps": stats.num_steps,
        "drafted": stats.num_drafted,
        "accepted": stats.num_accepted,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_by_position": stats.acceptance_by_position,
        "accepted_histogram": stats.accepted_histogram,
        "calibration_error": stats.reliability.calibration_error,
        "speedup": _ratio(tokens * seconds(plain), taken * num_tokens(plain)),
    }


def _interval(samples: Sequence[Sample], plain: Sequence[Sample]) -> list[float] | None:
    own, base = (Rate([len(s.tokens) for s in part], [s.seconds for s in part]) for part in (samples, plain))
    found = interval([own], [base])
    return None if found is None or len(samples) < 2 else [found.low, found.high]


def _latency(samples: Sequence[Sample]) -> dict[str, Any]:
    """Milliseconds over answers."""
    tokens = [1000 * s.latency.token for s in samples if s.latency.token is not None]
    firsts = [1000 * s.latency.first for s in samples if s.latency.first is not None]
    return {"ms_per_token": percentiles(tokens), "ms_to_first_token": percentiles(firsts)}


def _comparison(measured: Measured) -> dict[str, Any]:
    if measured.differences is None:
        return {"identical": None, "ties": None, "faults": None, "differences": []}
    kinds = [difference.kind for difference in measured.differences]
    return {
        "identical": f"{len(measured.samples) - len(kinds)}/{len(measured.samples)}",
        "ties": kinds.count("tie"),
        "faults": kinds.count("fault"),
        "differences": [difference.describe() for difference in measured.differences],
    }


def _timings(measured: Measured) -> dict[str, float] | None:
    """Milliseconds: parts of a step, the step as the wall clock has it, and prompts."""
    timings = measured.timings
    if timings is None:
        return None
    steps = max(timings.num_steps, 1)
    found = {part: 1000 * getattr(timings, part) / steps for part in (*PARTS, "attention")}
    found["step"] = 1000 * (measured.wall_seconds - timings.prompt) / steps
    return found | {"prompt": 1000 * timings.prompt / max(len(measured.samples), 1)}


def _predicted(measured: Measured, plain: Measured) -> dict[str, float] | None:
    """What the forecast says of this configuration, beside what the clock says; None where nothing was replayed."""
    own, base = measured.timings, plain.timings
    if own is None or base is None or measured.replayed is None or plain.replayed is None:
        return None
    steps = base.num_steps
    usual = PlainSteps((plain.wall_seconds - base.prompt) / steps, base.verify / steps, plain.replayed)
    asking = (own.stepping - own.verify) / own.num_steps - (base.stepping - base.verify) / steps
    taken = base.prompt + own.num_steps * step_seconds(usual, measured.replayed, asking)
    tokens = num_tokens(measured.samples)
    measured_ms = 1000 * _ratio(seconds(measured.samples), tokens)
    ms = 1000 * _ratio(taken, tokens)
    return {
        "ms_per_token": ms,
        "speedup": _ratio(tokens * seconds(plain.samples), taken * num_tokens(plain.samples)),
        "over_measured": _ratio(ms, measured_ms),
        "forward_ms": 1000 * measured.replayed,
    }


def _looping(samples: Sequence[Sample]) -> dict[str, Any]:
    looping = [sample for sample in samples if sample.is_looping]
    others = [sample for sample in samples if not sample.is_looping]
    return {
        "share": len(looping) / max(len(samples), 1),
        "acceptance_length_with": pooled(looping).acceptance_length if looping else None,
        "acceptance_length_without": pooled(others).acceptance_length if others else None,
    }


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
