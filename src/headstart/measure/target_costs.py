"""What a target's forwards cost on this machine now: T(rows), and the least that they could take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headstart.measure.entries import Costs
from headstart.measure.trials import Progress
from headstart.plan.profile import Profile, measured
from headstart.target.base import SizedTarget, Target
from headstart.target.limits import Limits, measured_limits

_SECONDS = 1.0  # for T(rows), before and after: more than a load can spend


class TargetCosts:
    """T(rows) and the machine's limits, measured beside the runs; the best of before and after counts."""

    def __init__(self, target: Target, progress: Progress) -> None:
        progress(0, 1, f"{target.dtype}: measuring T(rows)")
        self._target = target
        self._limits: Limits | None = measured_limits(target.engine, target.dtype)
        self._profile: Profile = measured(target, seconds=_SECONDS)

    def look_again(self) -> None:
        """Measure once more, now that the runs are over."""
        again, profile = measured_limits(self._target.engine, self._target.dtype), measured(self._target, seconds=_SECONDS)
        if self._limits and again:
            self._limits = Limits(
                max(self._limits.bytes_per_second, again.bytes_per_second),
                max(self._limits.operations_per_second, again.operations_per_second),
            )
        if profile.rows == self._profile.rows:
            fastest = tuple(map(min, profile.seconds, self._profile.seconds))
            slope = (profile.row_position_seconds + self._profile.row_position_seconds) / 2
            self._profile = Profile(profile.rows, fastest, profile.context, slope)

    def of(self, prompt_tokens: Sequence[int], price: float | None) -> Costs:
        """With what a bench knows."""
        size = self._target.size() if isinstance(self._target, SizedTarget) else None
        return Costs(prompt_tokens, size, self._limits, self._profile, price)

    def describe(self) -> dict[str, Any]:
        """What the record says of a target."""
        known = self.of((), None)
        profile = self._profile
        limits, size = known.limits, known.size
        floor = [1000 * limits.seconds(size, rows, profile.context) for rows in profile.rows] if limits and size else None
        return {
            "rows": list(profile.rows),
            "ms": [1000 * seconds for seconds in profile.seconds],
            "limit_ms": floor,
            "context": profile.context,
            "us_per_row_and_position": 1e6 * profile.row_position_seconds,
            "gb_per_second": limits.bytes_per_second / 1e9 if limits else None,
            "gop_per_second": limits.operations_per_second / 1e9 if limits else None,
            "weight_bytes": size.weight_bytes if size else None,
            "num_weights": size.num_weights if size else None,
            "cache_bytes_per_position": size.cache_bytes_per_position if size else None,
        }
