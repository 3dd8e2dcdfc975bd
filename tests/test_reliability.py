"""How far heads' estimates can be trusted: counted on held-out text, kept on the card, read again."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.errors import HeadsError
from headstart.heads.base import load_heads
from headstart.heads.reliability import EDGES, PRIOR, Reliability
from headstart.plan import chances
from headstart.train.acceptance import ReliabilityCounter, measure_ranks
from test_train_heads import BASE, STATES, fresh, objective
from test_train_heads import run as trained


def test_the_bins_are_those_in_which_chances_are_learnt() -> None:
    assert EDGES == chances.EDGES


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_guesses_behind_right_ones_are_counted_by_depth_and_size(kind: str) -> None:
    goal = objective(BASE, kind=kind)
    tensors = fresh(goal.form)
    counter = ReliabilityCounter(goal.form.config.num_heads)
    ranks = measure_ranks(goal.form, tensors, goal.base, STATES, list(range(30)), 4, counter)
    found = counter.reliability()
    for depth in range(1, goal.form.config.num_heads + 1):
        behind = (ranks[:, depth - 1] >= 0) & ((ranks[:, : depth - 1] < 4).all(1))
        assert sum(found.num_guesses[depth - 1]) == 4 * behind.sum()
        right, expected = found.of_depth(depth)
        assert right == (ranks[behind, depth - 1] < 4).sum()
        assert 0 <= expected <= behind.sum() + 1e-3, "the estimates of one place add up to one at most"


@given(estimates=st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30), seed=st.integers(0, 9))
def test_what_is_counted_survives_json_and_scales_estimates(estimates: list[float], seed: int) -> None:
    right = np.random.default_rng(seed).random(len(estimates)) < np.array(estimates)
    counter = ReliabilityCounter(2)
    counter.add(2, np.array(estimates, dtype=np.float32), right)
    found = counter.reliability()
    assert Reliability.from_record(json.loads(json.dumps(asdict(found)))) == found
    hits, expected = found.of_depth(2)
    assert hits == right.sum()
    assert expected == pytest.approx(sum(estimates), abs=1e-4)
    assert found.factor(1, 0.5) == 1.0, "nothing was seen there"
    for estimate in estimates:
        place = int(np.digitize(np.float32(estimate), EDGES))
        assert found.factor(2, estimate) == (PRIOR + found.num_right[1][place]) / (PRIOR + found.expected[1][place])
        assert found.factor(7, estimate) == found.factor(2, estimate)


def test_sure_and_always_right_is_no_error_and_sure_and_wrong_is() -> None:
    counter = ReliabilityCounter(2)
    counter.add(1, np.ones(8, dtype=np.float32), np.ones(8, dtype=bool))
    counter.add(2, np.ones(8, dtype=np.float32), np.zeros(8, dtype=bool))
    found = counter.reliability()
    assert (found.error(1), found.error(2)) == (0.0, 1.0)
    assert found.factor(1, 1.0) == 1.0
    assert found.factor(2, 1.0) == PRIOR / (PRIOR + 8)


def test_trained_heads_bring_it_along_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    result = trained(tmp_path)
    heads = load_heads(tmp_path / "heads")
    found = heads.card.acceptance.reliability
    assert found is not None and found == result.after.reliability
    assert len(found.expected) == heads.config.num_heads
    config = tmp_path / "heads" / "config.json"
    record = json.loads(config.read_text())
    record["acceptance"]["reliability"]["expected"] = [[1.0]]
    config.write_text(json.dumps(record))
    with pytest.raises(HeadsError, match="counts of reliability"):
        load_heads(tmp_path / "heads")
