"""One hypothesis profile for everybody: the same examples in every run, and no clock."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ["HEADSTART_CACHE"] = "off"  # tests neither read nor write what belongs to the user

settings.register_profile(
    "stable", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("stable")
