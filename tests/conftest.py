"""One hypothesis profile for everybody: the same examples in every run, and no clock. A cache folder of the tests' own.

Where tests run in several processes at a time, each computes on one thread: pools of more would wait for one another.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

if "PYTEST_XDIST_WORKER" in os.environ:  # before anything counts the cores
    os.environ |= {"HEADSTART_THREADS": "1", "OMP_NUM_THREADS": "1"}

settings.register_profile(
    "stable", max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("stable")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Tests neither read nor write what belongs to the user."""
    os.environ["HEADSTART_CACHE"] = str(tmp_path_factory.mktemp("cache"))
