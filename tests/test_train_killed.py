"""A training that is killed at any point and gone on with ends with the same weights, bit for bit; for every kind of run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(not hasattr(os, "fork"), reason="trainings are killed in forked processes")
def test_killed_runs_end_like_those_that_were_not(tmp_path: Path) -> None:
    kinds = ["medusa", "hydra", "mtp", "joint"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HEADSTART_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_runs.py"), str(tmp_path), *kinds],
        capture_output=True, text=True, timeout=600, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines()]
    assert {run["kind"] for run in runs} == set(kinds)
    for run in runs:
        assert run["killed"], run
        assert all(run["same"].values()), run
        assert not run["litter"], run
