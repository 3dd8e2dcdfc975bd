"""What-if answers without a model: numbers in, sentences and numbers out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from headstart.errors import RequestError, require
from headstart.plan.economics import (
    MAX_CHAIN,
    StepTimes,
    accepted_in_chain,
    best_chain,
    break_even_length,
    chance_for_length,
    per_million,
    savings,
    savings_line,
    speedup,
)

_MS = 1000.0


@dataclass(frozen=True, slots=True)
class WhatIf:
    """What is supposed. Either L, or the chance p of a drafted token and the length k of a chain."""

    l: float | None = None  # acceptance length, bonus token included
    p: float | None = None  # chance that a drafted token is accepted once those before it are
    k: int | None = None  # drafted tokens in a chain
    t_model: float | None = None  # ms of a plain step
    t_overhead: float | None = None  # ms that a step with drafts takes on top
    t_draft: float | None = None  # ms that each drafted token takes on top

    def __post_init__(self) -> None:
        for name, least, most in (
            ("l", 1.0, math.inf),
            ("p", 0.0, 1.0),
            ("t_overhead", 0.0, math.inf),
            ("t_draft", 0.0, math.inf),
        ):
            value = getattr(self, name)
            fits = value is None or (isinstance(value, int | float) and math.isfinite(value) and least <= value <= most)
            require(fits, name, value, f"a number from {least:g}" + (f" to {most:g}" if most < math.inf else " on"))
        is_time = self.t_model is None or (
            isinstance(self.t_model, int | float) and math.isfinite(self.t_model) and self.t_model > 0
        )
        require(is_time, "t_model", self.t_model, "a number above 0")
        is_count = self.k is None or (type(self.k) is int and 1 <= self.k <= MAX_CHAIN)
        require(is_count, "k", self.k, f"a whole number from 1 to {MAX_CHAIN}")
        self._refuse_idle()

    def _refuse_idle(self) -> None:
        if self.l is not None and (self.p is not None or self.k is not None):
            raise RequestError("give either l, or p and k: l says already what they would give")
        if self.l is None and self.p is None:
            raise RequestError("there is nothing to calculate: give l, or p with k or t_model, or a model to measure")
        if self.p is not None and self.k is None and self.t_model is None:
            raise RequestError("p alone gives nothing: add k, the number of drafted tokens, or t_model")
        for name in ("t_overhead", "t_draft"):
            if getattr(self, name) is not None and self.t_model is None:
                raise RequestError(f"{name} has no effect without t_model; add it")
        if self.t_draft is not None and self.p is None:
            raise RequestError("t_draft has no effect without p; with l give all of it as t_overhead")


@dataclass(frozen=True, slots=True)
class Answer:
    """Sentences, and the same as numbers."""

    lines: tuple[str, ...]
    figures: Mapping[str, Any]


def answer(given: WhatIf, *, price: float | None = None, device_hours: float | None = None) -> Answer:
    """What follows. ``price``: of a device-hour; ``device_hours``: of plain decoding, a month."""
    if price is not None and given.t_model is None:
        raise RequestError("price has no effect without t_model, from which a token's cost follows; add it")
    if device_hours is not None and price is None:
        raise RequestError("gpu_hours has no effect without price; add it")
    lines: list[str] = []
    supposed = asdict(given) | {"price": price, "gpu_hours": device_hours}
    figures: dict[str, Any] = {"given": {name: value for name, value in supposed.items() if value is not None}}
    times = None if given.t_model is None else StepTimes(given.t_model, given.t_overhead or 0.0, given.t_draft or 0.0)
    k = given.k
    if k is None and given.p is not None and times is not None:
        k, _ = best_chain(given.p, times)
    length = _length(given, k, lines, figures)
    if times is not None:
        factor = _speed(given, times, k, length, lines, figures)
        if price is not None:
            _money(times.model / _MS, factor, price, device_hours, lines, figures)
    if not lines:
        raise RequestError("l alone gives nothing: add t_model, ms of a plain step, and t_overhead, what drafts add to it")
    return Answer(tuple(lines), figures)


def _length(given: WhatIf, k: int | None, lines: list[str], figures: dict[str, Any]) -> float:
    if given.l is not None:
        return given.l
    assert given.p is not None and k is not None
    accepted = accepted_in_chain(given.p, k)
    figures |= {"k": k, "accepted": accepted, "acceptance_length": 1 + accepted}
    terms = " + ".join(f"{given.p**place:.4g}" for place in range(1, min(k, 8) + 1)) + (" + ..." if k > 8 else "")
    if k == 0:
        lines.append(f"no number of drafted tokens pays at p = {given.p:g}")
    else:
        lines.append(f"a chain of {k} at p = {given.p:g}: {terms} = {accepted:.4f} accepted a step, L = {1 + accepted:.4f}")
    return 1 + accepted


def _speed(given: WhatIf, times: StepTimes, k: int | None, length: float, lines: list[str], figures: dict[str, Any]) -> float:
    drafting = times.drafting(k or 0) if k != 0 else times.model
    factor, least = speedup(length, times.model, drafting), break_even_length(times.model, drafting)
    figures |= {"speedup": factor, "break_even_length": least, "ms_per_token": drafting / length}
    lines.append(f"speedup: {length:.4g} * {times.model:g} / {drafting:g} = {factor:.2f}, {drafting / length:.2f} ms a token")
    lines.append(f"speculation loses below L = {least:.3f}")
    if given.p is None or not k:
        return factor
    chance = chance_for_length(least, k)
    figures["break_even_chance"] = chance
    lines[-1] += (
        f", which a chain of {k} has at p = {chance:.3f}" if chance is not None else f"; no p lets a chain of {k} reach it"
    )
    best, its = best_chain(given.p, times)
    figures |= {"best_k": best, "best_speedup": its}
    what = f"{best} drafted tokens, {its:.2f} times as fast" if best else "none"
    capped = ", and no longer chain was tried" if best == MAX_CHAIN else ""
    lines.append(f"best at p = {given.p:g}: {what}{capped}")
    if given.p == 1:
        return factor
    better = min(given.p + 0.05, 1.0)
    faster = speedup(1 + accepted_in_chain(better, k), times.model, drafting)
    figures["with_better_p"] = {"p": better, "speedup": faster}
    lines.append(f"a head with p = {better:.3g} instead of {given.p:.3g} gives {faster:.2f}")
    return factor


def _money(
    plain_seconds: float, factor: float, price: float, device_hours: float | None, lines: list[str], figures: dict[str, Any]
) -> None:
    require(math.isfinite(price) and price >= 0, "price", price, "a number, 0 or more: what an hour of the device costs")
    plain = per_million(plain_seconds, price)
    figures["per_million_tokens"] = {"plain": plain, "accelerated": plain / factor}
    lines.append(f"a million tokens cost {plain:.4g} plain and {plain / factor:.4g} accelerated, one sequence at a time")
    if device_hours is not None:
        require(math.isfinite(device_hours) and device_hours >= 0, "gpu_hours", device_hours, "a number, 0 or more")
        figures["savings"] = savings(factor, device_hours, price)
        lines.append(savings_line(figures["savings"], device_hours, price))
