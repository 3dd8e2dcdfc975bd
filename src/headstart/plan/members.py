"""One proposer among those that ``auto`` may ask: what asking costs, what it earned, and when it is tried again.

*Cost*: seconds of a call as ``fixed + per_sequence * k`` for k sequences, a least-squares line through the calls so far, older
ones forgotten. A trial at load gives the first of them. All that a step with drafts takes beside its forward is in it,
and where nobody was asked for a while, the steps around the call that are not rested through are as well (*waking*).

*Earnings*: seconds that a member's own nodes save in a step, as the budget saw them: the sum of their reaches times the
seconds of a token, less the rows they take. A node that a cheaper member offers as well is that one's. The mean is kept for
each sequence and, as the start of new ones, over all; and apart by how sure the cheaper members already are of the next token:
heads are worth little while a long copy runs, and much where it ends.

*Probing*: a member that lately earned less than its cost, but more than half of it, goes on being asked as often as the
expected loss fits into half a per cent of the time, so that some unlucky steps decide nothing. One that earns less still is
off: asked again now and then, which takes at most half a per cent of the time and ever less while it fails, and for each new
text at once, once more where the cheaper members are not sure of what follows. Its nodes take no row unless they pay. A probe
whose right guesses would have paid is repeated at once, so that text which becomes predictable is noticed within a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from headstart.proposers.base import Proposer

NUM_SITUATIONS = 3
SURE = (0.3, 0.7)  # estimates that tell situations apart
_COST_FORGET = 0.95
_LEAST_VARIANCE = 0.01  # of the square of the mean: calls of less different sizes tell nothing of the shares
_LEAST_SLOPE = 0.01  # of a call that is all the sequences': no call costs the same for any number
_MOST_OVER_COST = 1.25  # a call that took longer was disturbed, or found its weights cold after a pause
_GAIN_STEP, _PROBE_STEP, _POOLED_STEP = 0.2, 0.5, 0.1
_FIRST_STEPS = 2.0  # experience n = 0, 1, ... in a situation of a text weighs 1 / (n + 2) at least: before, all was a guess
_PROBE_SHARE = 0.005
_NEARLY = 0.5  # of its cost: a member that earns more is not off, but asked as often as its loss allows
_MIN_PROBE_STEPS, _MAX_DOUBLINGS = 8, 3
_UNTRIED = 3.0  # times its cost: what a member is believed to earn before it was tried
_LESS_WHERE_SURE = 0.4  # what a member earns where the cheaper ones are one step surer, until it is known
_HIT_RATE, _MOST_LEAST_REACH = 0.5, 0.6  # of a first guess behind a drafted token; a surer level is always followed
_PASSES_STEP = 0.05
_FIRST_SIZE, _SPARE_SIZE, _GROWTH, _SIZE_STEP = 8, 3, 1.5, 0.2
NUMBERS = {
    "cost_forget": _COST_FORGET,
    "least_variance": _LEAST_VARIANCE,
    "least_slope": _LEAST_SLOPE,
    "most_over_cost": _MOST_OVER_COST,
    "gain_step": _GAIN_STEP,
    "probe_step": _PROBE_STEP,
    "pooled_step": _POOLED_STEP,
    "first_steps": _FIRST_STEPS,
    "probe_share": _PROBE_SHARE,
    "nearly": _NEARLY,
    "min_probe_steps": _MIN_PROBE_STEPS,
    "max_doublings": _MAX_DOUBLINGS,
    "untried": _UNTRIED,
    "less_where_sure": _LESS_WHERE_SURE,
    "hit_rate": _HIT_RATE,
    "most_least_reach": _MOST_LEAST_REACH,
    "passes_step": _PASSES_STEP,
    "first_size": _FIRST_SIZE,
    "spare_size": _SPARE_SIZE,
    "growth": _GROWTH,
    "size_step": _SIZE_STEP,
}
"""By the names that the engine has for them."""


def situation(surest: float) -> int:
    """How sure the surest of the cheaper members is of the next token: hardly, somewhat, very."""
    return sum(surest >= border for border in SURE)


class Cost:
    """Seconds of a call by its number of sequences."""

    def __init__(self) -> None:
        self._weight = self._k = self._kk = self._t = self._kt = 0.0
        self._ratio: float | None = None  # of the fixed seconds to those of a sequence, when calls of different sizes last told

    @property
    def is_known(self) -> bool:
        """Whether there was a call."""
        return self._weight > 0

    @property
    def line(self) -> tuple[float, float]:
        """Fixed seconds and seconds a sequence: their sum as it was lately, their shares as calls of different sizes told."""
        if not self.is_known:
            return 0.0, 0.0
        mean_k, mean_t = self._k / self._weight, self._t / self._weight
        ratio = mean_k if self._ratio is None else self._ratio  # half of it, as long as all calls were equally large
        each = mean_t / (ratio + mean_k)
        return ratio * each, each

    def seconds(self, num_sequences: int) -> float:
        """Of a call for so many sequences."""
        fixed, each = self.line
        return fixed + each * num_sequences

    def observe(self, num_sequences: int, seconds: float) -> None:
        """A call took so long."""
        if self.is_known and num_sequences * self._weight <= 2 * self._k:  # not far more sequences than ever before
            seconds = min(seconds, _MOST_OVER_COST * self.seconds(num_sequences))
        self._weight = _COST_FORGET * self._weight + 1.0
        self._k = _COST_FORGET * self._k + num_sequences
        self._kk = _COST_FORGET * self._kk + num_sequences**2
        self._t = _COST_FORGET * self._t + seconds
        self._kt = _COST_FORGET * self._kt + num_sequences * seconds
        mean_k, mean_t = self._k / self._weight, self._t / self._weight
        variance = self._kk / self._weight - mean_k**2
        if mean_t > 0 and variance >= _LEAST_VARIANCE * mean_k**2:
            slope = (self._kt / self._weight - mean_k * mean_t) / variance
            slope = min(max(slope, _LEAST_SLOPE * mean_t / mean_k), mean_t / mean_k)
            self._ratio = mean_t / slope - mean_k


@dataclass(slots=True)
class Standing:
    """What a member earned in one sequence."""

    gains: list[float | None] = field(default_factory=lambda: [None] * NUM_SITUATIONS)
    num_earned: list[int] = field(default_factory=lambda: [0] * NUM_SITUATIONS)  # experiences behind each gain
    size: float = _FIRST_SIZE  # nodes that found a row lately

    @property
    def is_new(self) -> bool:
        """Whether the member was never asked for this sequence."""
        return all(gain is None for gain in self.gains)

    @property
    def is_untried(self) -> bool:
        """Whether the member was never asked where nobody else was sure, which is where it is worth most."""
        return self.gains[0] is None

    def num_asked(self, most: int) -> int:
        """Nodes to ask for: a few more than lately found a row."""
        return min(most, math.ceil(_GROWTH * self.size) + _SPARE_SIZE)


@dataclass(slots=True)
class Earnings:
    """Sums for the explanation."""

    num_calls: int = 0
    num_asked: int = 0  # sequences, summed over the calls
    num_probes: int = 0  # of them
    num_obeyed: int = 0  # of them, where the rule of acceptance left no choice
    seconds: float = 0.0
    num_verified: int = 0
    num_accepted: int = 0
    saved_seconds: float = 0.0  # as planned, less rows, before the member's own cost


@dataclass(frozen=True, slots=True)
class Traits:
    """What must be known of a proposer to keep its books."""

    name: str
    hears_all: bool = False  # its own cache needs every step
    reads_text_alone: bool = False  # and so need not be told what a step said

    @classmethod
    def of(cls, name: str, proposer: Proposer) -> Traits:
        """A proposer's."""
        return cls(name, getattr(proposer, "hears_all", False), getattr(proposer, "reads_text_alone", False))


class Member:
    """A proposer's books."""

    def __init__(self, traits: Traits, bit: int) -> None:
        """``bit``: marks the member's nodes; cheaper members have lower ones."""
        self.name, self.bit = traits.name, bit
        self.cost, self.earnings = Cost(), Earnings()
        self._pooled: list[float | None] = [None] * NUM_SITUATIONS
        self._due = 0
        self._doublings = 0
        self._allowance = 0.0  # seconds that asking may lose
        self._resumes = 0  # the step in which the allowance suffices, while it nearly earns its cost
        self._passes_a_call: float | None = None

    def least_reach(self, num_sequences: int, token_seconds: float, row_seconds: float) -> float:
        """What the reaches of a level must sum up to, to be worth a further pass in which so many sequences take part.

        A pass behind nodes of reach r brings some that are reached with r times the member's hit rate, and are worth that share
        of a token; it takes a row and the sequence's share of the pass.
        """
        if not self._passes_a_call or not token_seconds:
            return 0.0
        pass_seconds = self.cost.seconds(num_sequences) / self._passes_a_call / num_sequences
        return min((pass_seconds + row_seconds) / (_HIT_RATE * token_seconds), _MOST_LEAST_REACH)

    def chosen(
        self,
        standings: Sequence[tuple[Standing, int]],
        step: int,
        step_seconds: float,
        *,
        waking: float = 0.0,
        is_settled: bool = False,
    ) -> tuple[list[int], bool]:
        """Which sequences to ask, by (standing, situation), and whether it is a probe.

        Those with the largest gains are taken as long as the sum of gains less the cost of the call grows. ``waking``: seconds
        that a call costs more where nobody was asked before. ``is_settled``: no cheaper member was asked, so that the situation
        cannot become another one.
        """
        if self.is_idle(step):
            new = [i for i, (standing, where) in enumerate(standings) if standing.is_new or (standing.is_untried and not where)]
            if new and self._due:  # what was in vain in other texts does not put off the second trial on this one
                due, self._doublings = self._due, 0
                self._postpone(step, step_seconds, self.cost.seconds(len(standings)) + waking)
                self._due = min(due, self._due)
            return new, True
        if self._due:
            self._postpone(step, step_seconds, self.cost.seconds(len(standings)) + waking)
            return list(range(len(standings))), True
        fixed, each = self.cost.line
        gains = sorted(((self._gain(*entry), i) for i, entry in enumerate(standings)), reverse=True)
        total = best_total = 0.0
        best = 0
        for count, (gain, _) in enumerate(gains, start=1):
            total += gain - each
            if total - fixed > best_total:
                best, best_total = count, total - fixed
        if best:
            return sorted(i for _, i in gains[:best]), False
        if not self._may_pay(standings):
            self._doublings = 0
            self._postpone(step, step_seconds, self.cost.seconds(len(standings)) + waking)
            return [], False
        loss = fixed - total + waking
        if self._can_afford(loss, step_seconds):
            return list(range(len(standings))), False
        if is_settled or not self._may_pay(standings, 1.0):  # whatever the situation
            self._save_up(loss, step, step_seconds)
        return [], False

    def is_idle(self, step: int) -> bool:
        """Whether it is off and not to be probed yet, or earns less than its cost and must wait."""
        return step < max(self._due, self._resumes)

    def _may_pay(self, standings: Sequence[tuple[Standing, int]], share: float = _NEARLY) -> bool:
        """Whether asking for all of them earns this share of the cost, in the situation of now or another."""
        total = sum(max(self._gain(standing, where) for where in range(NUM_SITUATIONS)) for standing, _ in standings)
        return total > share * self.cost.seconds(len(standings))

    def _can_afford(self, loss: float, step_seconds: float) -> bool:
        """Whether asking at an expected loss stays within the share of time that may be lost so."""
        self._allowance += _PROBE_SHARE * step_seconds
        if self._allowance < loss:
            return False
        self._allowance = 0.0
        return True

    def _save_up(self, loss: float, step: int, step_seconds: float) -> None:
        """Wait for the step in which the loss can be afforded; looking at each step between would cost more than it brings."""
        missing = max(loss - self._allowance, 0.0)
        self._resumes = step + math.ceil(missing / (_PROBE_SHARE * step_seconds))
        self._allowance += missing

    def earned(self, standing: Standing, where: int, gain: float, num_verified: int, is_probe: bool) -> None:
        """An asked sequence's nodes earned so many seconds in a step, before the cost of asking."""
        pooled, own = self._pooled[where], standing.gains[where]
        own = self._gain(standing, where) if own is None else own
        pooled = own if pooled is None else pooled
        weight = max(_PROBE_STEP if is_probe else _GAIN_STEP, 1 / (standing.num_earned[where] + _FIRST_STEPS))
        standing.num_earned[where] += 1
        standing.gains[where] = own = own + weight * (gain - own)
        self._pooled[where] = pooled + _POOLED_STEP * (gain - pooled)
        if is_probe and own > self.cost.seconds(1):
            self._due = 0
        standing.size = max(num_verified, standing.size + _SIZE_STEP * (num_verified - standing.size))
        self.earnings.saved_seconds += gain

    def called(self, num_sequences: int, seconds: float, num_passes: int = 0, *, is_probe: bool) -> None:
        """The member was asked for so many sequences, and made so many passes."""
        self.cost.observe(num_sequences, seconds)
        if num_passes:
            known = num_passes if self._passes_a_call is None else self._passes_a_call
            self._passes_a_call = known + _PASSES_STEP * (num_passes - known)
        own = self.earnings
        own.num_calls += 1
        own.num_asked += num_sequences
        own.num_probes += num_sequences * is_probe
        own.seconds += seconds

    def obeyed(self, num_sequences: int, seconds: float) -> None:
        """The member was asked for so many sequences because the rule of acceptance leaves no choice."""
        own = self.earnings
        own.num_calls += 1
        own.num_asked += num_sequences
        own.num_obeyed += num_sequences
        own.seconds += seconds

    def probe_again(self, step: int) -> None:
        """The last probe knew what came: ask again at once."""
        if self._due:
            self._due = step + 1

    def describe(self) -> dict[str, Any]:
        """Costs and earnings, in milliseconds."""
        fixed, each = self.cost.line
        own = self.earnings
        return {
            "cost_ms": 1000 * (fixed + each),
            "cost_ms_fixed": 1000 * fixed,
            "cost_ms_per_sequence": 1000 * each,
            "calls": own.num_calls,
            "asked": own.num_asked,
            "probes": own.num_probes,
            "without_choice": own.num_obeyed,
            "propose_ms": 1000 * own.seconds,
            "verified": own.num_verified,
            "accepted": own.num_accepted,
            "saved_ms": 1000 * own.saved_seconds,
            "is_on": not self._due,
        }

    def _gain(self, standing: Standing, where: int) -> float:
        """Seconds that asking may save: as in this situation so far, else as a part of a similar one, else worth a trial."""
        for less_sure in range(where + 1):
            for gains in (standing.gains, self._pooled):
                known = gains[where - less_sure]
                if known is not None:
                    return known * _LESS_WHERE_SURE**less_sure
        return _UNTRIED * self.cost.seconds(1)

    def _postpone(self, step: int, step_seconds: float, cost: float) -> None:
        steps = cost / (_PROBE_SHARE * step_seconds) * 2**self._doublings
        self._due = step + math.ceil(max(steps, _MIN_PROBE_STEPS))
        self._doublings = min(self._doublings + 1, _MAX_DOUBLINGS)
