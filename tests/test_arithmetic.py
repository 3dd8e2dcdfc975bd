"""The logarithm, exponential and sum that numpy and C++ share: close to the truth, and the same as their plain definition."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart import arithmetic

SMALLEST = 2.0**-1022


@given(st.floats(SMALLEST, allow_infinity=False))
def test_log_is_within_a_few_units_of_the_last_place(x: float) -> None:
    assert math.isclose(arithmetic.log(np.array([x]))[0], math.log(x), rel_tol=6e-16)


@given(st.integers(1, 2**53 - 1))
def test_log_is_accurate_for_every_uniform_also_next_to_one(k: int) -> None:
    assert math.isclose(arithmetic.log(np.array([k * 2.0**-53]))[0], math.log(k * 2.0**-53), rel_tol=6e-16)


@given(st.floats(arithmetic.LOWEST, 0))
def test_exp_is_within_a_few_units_of_the_last_place(x: float) -> None:
    assert math.isclose(arithmetic.exp(np.array([x]))[0], math.exp(x), rel_tol=6e-16)


def test_exact_values_and_the_far_end() -> None:
    np.testing.assert_array_equal(arithmetic.exp(np.array([0.0, -0.0, -708.1, -math.inf])), [1, 1, 0, 0])
    assert arithmetic.log(np.array([1.0]))[0] == 0
    assert math.isnan(arithmetic.exp(np.array([math.nan]))[0])


@pytest.mark.parametrize("size", [1, 511, 512, 513, 5000])
def test_total_adds_in_the_order_that_it_promises(size: int) -> None:
    x = np.random.default_rng(size).random((2, size)) * 10.0 ** np.arange(-8, 8)[np.arange(size) % 16]
    expected = []
    for row in x:
        lanes = [0.0] * arithmetic.LANES
        for i, value in enumerate(row.tolist()):
            lanes[i % arithmetic.LANES] += value
        while len(lanes) > 1:
            half = len(lanes) // 2
            lanes = [low + high for low, high in zip(lanes[:half], lanes[half:], strict=True)]
        expected.append(lanes)
    np.testing.assert_array_equal(arithmetic.total(x), expected)
    np.testing.assert_allclose(arithmetic.total(x)[:, 0], [math.fsum(row) for row in x], rtol=1e-14)


def test_any_shape_and_stride_gives_the_values_of_its_elements() -> None:
    x = -np.random.default_rng(0).random((3, 20_000)) - 1e-3
    np.testing.assert_array_equal(arithmetic.exp(x[:, ::2]), np.stack([arithmetic.exp(row.copy()) for row in x[:, ::2]]))
    np.testing.assert_array_equal(arithmetic.log(-x.T), arithmetic.log(-x).T)
    assert arithmetic.log(np.array(2.0)).shape == ()
