"""The test of a distribution: its special functions, its calibration, its power, and its correction for many tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from headstart.check import goodness as g
from headstart.check.goodness import Group, goodness

LEVEL = 0.001


@given(degrees=st.floats(0.5, 3000), x=st.floats(0, 6000))
def test_the_chi_square_tail_is_scipys(degrees: float, x: float) -> None:
    assert g.chi_square_tail(x, degrees) == pytest.approx(stats.chi2.sf(x, degrees), rel=1e-9, abs=1e-300)


@given(degrees=st.integers(1, 2000), tail=st.floats(1e-9, 0.999))
def test_the_quantile_has_its_tail(degrees: int, tail: float) -> None:
    assert g.chi_square_quantile(tail, degrees) == pytest.approx(stats.chi2.isf(tail, degrees), rel=1e-9)


@settings(max_examples=15)
@given(degrees=st.integers(1, 1000), noncentrality=st.floats(0, 300), x=st.floats(0.1, 2000))
def test_the_noncentral_tail_is_scipys(degrees: int, noncentrality: float, x: float) -> None:
    expected = stats.ncx2.sf(x, degrees, noncentrality) if noncentrality else stats.chi2.sf(x, degrees)
    assert g.noncentral_tail(x, degrees, noncentrality) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(
    probabilities=st.lists(st.floats(0, 1), min_size=2, max_size=30).filter(lambda p: sum(p) > 0),
    num_draws=st.integers(1, 400),
    seed=st.integers(0, 1000),
)
def test_pooling_keeps_all_draws_and_no_cell_is_expected_too_rarely(
    probabilities: list[float], num_draws: int, seed: int
) -> None:
    true = np.array(probabilities) / sum(probabilities)
    group = Group(np.random.default_rng(seed).multinomial(num_draws, true), true)
    pooled = group.pooled()
    assert pooled.num_draws == num_draws
    assert pooled.probabilities.sum() == pytest.approx(1.0)
    assert len(pooled.counts) == 1 or (pooled.probabilities * num_draws).min() >= 5 * (1 - 1e-12)


def groups(rng: np.random.Generator, shift: float = 0.0, num_draws: int = 400) -> list[Group]:
    """Draws from twelve distributions, of which a likely half gained ``shift`` of the mass."""
    made = []
    for number in range(12):
        true = np.random.default_rng(number).dirichlet(np.full(2 + number, 0.7))
        up = np.argsort(-true)[: max(1, true.size // 2)]
        drawn = true.copy()
        down = np.setdiff1d(np.arange(true.size), up)
        moved = min(shift, float(true[down].sum()))
        drawn[up] += moved * true[up] / true[up].sum()
        drawn[down] -= moved * true[down] / true[down].sum()
        made.append(Group(rng.multinomial(num_draws, drawn / drawn.sum()), true))
    return made


def test_p_values_are_uniform_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(g, "NUM_SIMULATIONS", 200)
    monkeypatch.setattr(g, "smallest_bias", lambda *_, **__: 1.0)  # of no interest here
    rng = np.random.default_rng(5)
    p_values = [goodness(groups(rng, num_draws=60)[:6], level=LEVEL, seed=i).p_value for i in range(200)]
    assert stats.kstest(p_values, "uniform").pvalue > 0.01
    assert np.mean(np.array(p_values) < 0.05) < 0.09


def test_a_bias_of_the_stated_size_is_found_as_often_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(g, "NUM_SIMULATIONS", 500)
    rng = np.random.default_rng(6)
    level = 0.01
    stated = goodness(groups(rng, num_draws=2000), level=level).smallest_bias
    assert 0.01 < stated < 0.06
    monkeypatch.setattr(g, "smallest_bias", lambda *_, **__: stated)
    found = [goodness(groups(rng, shift=stated, num_draws=2000), level=level).p_value < level for _ in range(40)]
    assert np.mean(found) >= 0.9  # 0.95 or more by the bound, which halves of equal mass attain
    missed = [goodness(groups(rng, shift=stated / 6, num_draws=2000), level=level).p_value < level for _ in range(20)]
    assert np.mean(missed) < 0.5


def test_one_impossible_token_is_enough() -> None:
    result = goodness([Group(np.array([500, 499, 1]), np.array([0.5, 0.5, 0.0]))], level=LEVEL)
    assert result.p_value == 0.0
    assert result.describe()["statistic"] is None


def test_no_draws_say_nothing() -> None:
    result = goodness([], level=LEVEL)
    assert (result.p_value, result.smallest_bias) == (1.0, 1.0)


def test_more_draws_find_smaller_biases() -> None:
    biases = [g.smallest_bias(n, 50, level=LEVEL, power=0.95) for n in (500, 2000, 8000)]
    assert biases[0] == pytest.approx(2 * biases[1], rel=1e-6)
    assert biases[1] == pytest.approx(2 * biases[2], rel=1e-6)


def test_holm_corrects_for_many_tests() -> None:
    assert g.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert g.holm([0.9, 0.8]) == [1.0, 1.0]
    assert g.holm([]) == []


@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_adjusted_p_values_keep_their_order_and_never_fall(p_values: list[float]) -> None:
    adjusted = g.holm(p_values)
    assert all(a >= p for a, p in zip(adjusted, p_values, strict=True))
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()
