"""T(rows) while decoding: the profile, corrected by the steps that really happen.

A machine has slow and fast phases, its memory and its arithmetic do not slow down together, and contexts grow. So

    T(rows) = profile(rows) * exp(scale + correction(rows)) + rows * positions * seconds of a row and position

where ``scale`` follows the machine quickly and belongs to all row counts, and ``correction`` stands at each profiled row count,
moves slowly, and moves faster where nothing was seen for long: what was last measured a thousand steps ago is hardly known.

Noise makes steps slower, never faster, and sometimes much slower. So a step says little that took far longer than expected, and
more that took less: errors are cut at +16% and -30% before they count.

What is timed is a whole step but for the proposing: the forward, the walk through the tree and the committing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from headstart.plan.profile import Profile

_SLOWER, _FASTER = 0.15, -0.35  # logarithms beyond which an error does not count
_SCALE_GAIN = 0.04
_KNOT_GAIN, _KNOT_GAIN_STALE, _STALE_STEPS = 0.08, 0.4, 100
_LEAST_SHARE = 0.2  # a shorter context than the profile's takes something off, never all
_MAX_CORRECTION = 3.0  # e^3: what no machine does between load and now
NUMBERS = {
    "slower": _SLOWER,
    "faster": _FASTER,
    "scale_gain": _SCALE_GAIN,
    "knot_gain": _KNOT_GAIN,
    "stale_gain": _KNOT_GAIN_STALE,
    "stale_steps": _STALE_STEPS,
    "least_share": _LEAST_SHARE,
    "most_correction": _MAX_CORRECTION,
}
"""By the names that the engine has for them."""


class StepCost:
    """Seconds of a step by its rows, as well as they are known now."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._rows = profile.rows
        self._scale = 0.0
        self._corrections = [0.0] * len(profile.rows)
        self._last_seen = [0] * len(profile.rows)
        self.num_steps = 0
        self._times: list[float] = []  # at the profiled row counts now, none above a later one; empty: to be computed

    @property
    def scale(self) -> float:
        """How much slower than at load the machine is now (1: not at all)."""
        return math.exp(self._scale)

    def seconds(self, rows: int, positions: float | None = None) -> float:
        """T(rows) behind so many cached positions a row (None: as profiled)."""
        return self.range(rows, rows, positions)[0]

    def range(self, first: int, last: int, positions: float | None = None) -> list[float]:
        """T of ``first`` to ``last`` rows."""
        rows, times, slope = self._rows, self._times or self._risen(), self._slope(positions)
        found, after = [], bisect_right(rows, first)
        for n in range(first, last + 1):
            while after < len(rows) and rows[after] <= n:
                after += 1
            low = max(min(after, len(rows) - 1) - 1, 0)  # behind the last count T goes on as its last piece does
            width = rows[-1] if len(rows) == 1 else rows[low + 1] - rows[low]
            rise = times[-1] if len(rows) == 1 else times[low + 1] - times[low]
            t = times[low] + rise * (n - rows[low]) / width
            found.append(max(t + slope * n, _LEAST_SHARE * t))
        return found

    def num_steps_unseen(self, rows: int) -> int:
        """Steps since one with about so many rows was timed."""
        return self.num_steps - max(self._last_seen[knot] for knot, weight in self._near(rows) if weight >= 0.5)

    def observe(self, rows: int, seconds: float, positions: float | None = None) -> None:
        """A step with so many rows took so long."""
        self.num_steps += 1
        near = self._near(rows)
        expected = sum(weight * self._knot(knot) for knot, weight in near)  # by these alone, or they would drift below others
        if rows > self._rows[-1]:
            expected = self.seconds(rows)
        expected = max(expected + self._slope(positions) * rows, _LEAST_SHARE * expected)
        error = min(max(math.log(max(seconds, 1e-9) / expected), _FASTER), _SLOWER)
        self._scale = _limited(self._scale + _SCALE_GAIN * error)
        for knot, weight in near:
            unseen = min((self.num_steps - self._last_seen[knot]) / _STALE_STEPS, 1.0)
            gain = _KNOT_GAIN + (_KNOT_GAIN_STALE - _KNOT_GAIN) * unseen
            self._corrections[knot] = _limited(self._corrections[knot] + weight * gain * error)
            if weight >= 0.5:
                self._last_seen[knot] = self.num_steps
        self._times = []

    def _risen(self) -> list[float]:
        least = math.inf
        for place in reversed(range(len(self._rows))):
            least = min(least, self._knot(place))
            self._times.append(least)
        self._times.reverse()
        return self._times

    def _knot(self, place: int) -> float:
        return self.profile.seconds[place] * math.exp(self._scale + self._corrections[place])

    def _slope(self, positions: float | None) -> float:
        profile = self.profile
        return 0.0 if positions is None else profile.row_position_seconds * (positions - profile.context)

    def _near(self, rows: int) -> Sequence[tuple[int, float]]:
        """The profiled row counts around this one, and how near each is."""
        after = bisect_right(self._rows, rows)
        if after == len(self._rows):
            return ((after - 1, 1.0),)
        low, high = self._rows[after - 1], self._rows[after]
        share = (rows - low) / (high - low)
        return ((after - 1, 1.0 - share), (after, share))


def _limited(value: float) -> float:
    return min(max(value, -_MAX_CORRECTION), _MAX_CORRECTION)
