"""What decoding with drafts costs, from T(rows), the price of asking, and the acceptance length.

A step of plain decoding takes ``step`` seconds over ``n`` rows, one for each sequence in flight. A step that verifies a
draft of ``rows`` rows takes

    step + scale * (T(rows) - T(n)) + asking

with T timed apart from the run, ``scale`` what the machine's forward took in plain decoding over that, so a slow phase of the
machine cancels, and ``asking`` all that a step takes more beside its forward. Every step emits L tokens a sequence instead of
one. Nothing of the drafting run's own forwards enters: comparing the forecast with the clock tests the model of the cost, and
not the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headstart.plan.profile import Profile, interpolated


@dataclass(frozen=True, slots=True)
class Forward:
    """T(rows) of one target, behind a mean number of cached positions."""

    profile: Profile
    positions: float

    def seconds(self, rows: float) -> float:
        """T(rows), also between two whole numbers."""
        low = int(rows)
        first, second = interpolated(self.profile.rows, self.profile.seconds, [max(low, 1), low + 1])
        found = first + (rows - max(low, 1)) * (second - first)
        return max(found + self.profile.row_position_seconds * (self.positions - self.profile.context) * rows, 0.2 * found)

    def mean(self, steps_by_rows: Mapping[int, float]) -> float:
        """Mean seconds of forwards with these numbers of rows."""
        total = sum(steps_by_rows.values())
        return sum(count * self.seconds(rows) for rows, count in steps_by_rows.items()) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class PlainSteps:
    """Plain decoding at one operating point. Seconds of a step, of its forward alone, and of that forward timed apart."""

    step: float
    verify: float
    forward: float


def step_seconds(plain: PlainSteps, forward: float, asking: float) -> float:
    """Seconds of a step whose forward takes ``forward``, timed apart; ``asking``: what it takes more beside its forward."""
    scale = plain.verify / plain.forward if plain.forward and plain.verify else 1.0
    return plain.step + scale * (forward - plain.forward) + asking
