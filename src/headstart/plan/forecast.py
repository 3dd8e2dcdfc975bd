"""What decoding with drafts costs, from T(rows), the price of asking, and the acceptance length.

A step of plain decoding takes ``step`` seconds over ``n`` rows, one for each sequence in flight. A step that verifies a
draft of ``rows`` rows takes

    step + scale * (T(rows) - T(n)) + asking

with T from the profile (``profile.py``) and ``scale`` what the machine's forward took in plain decoding over what the
profile says, so a slow phase of the machine cancels. Every step emits L tokens a sequence instead of one. Nothing of the
drafting run's own forwards enters: comparing the forecast with the clock tests the model of the cost, and not the clock.
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

    def mean(self, steps_by_rows: Mapping[int, int]) -> float:
        """Mean seconds of forwards with these numbers of rows."""
        total = sum(steps_by_rows.values())
        return sum(count * self.seconds(rows) for rows, count in steps_by_rows.items()) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class PlainSteps:
    """Plain decoding at one operating point, as it was measured. Seconds of a step; ``verify`` is its forward alone."""

    step: float
    verify: float
    steps_by_rows: Mapping[int, int]


def step_seconds(forward: Forward, plain: PlainSteps, steps_by_rows: Mapping[int, int], asking: float) -> float:
    """Seconds of a step with drafts of these sizes; ``asking`` is what the proposer takes in a step."""
    usual = forward.mean(plain.steps_by_rows)
    scale = plain.verify / usual if usual and plain.verify else 1.0
    return plain.step + scale * (forward.mean(steps_by_rows) - usual) + asking
