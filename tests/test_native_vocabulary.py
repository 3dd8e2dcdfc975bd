"""The native functions over the vocabulary are those of sampling.py to the last bit, on every instruction set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headstart import arithmetic
from headstart.errors import ModelError, RequestError
from headstart.sampling import Sampler, Sampling, gumbel, log_softmax, noise_key

native: Any = pytest.importorskip("headstart._native")

SIZES = (1, 3, 64, 65, 130, 700, 5003)
ROWS = np.arange(3)


@pytest.fixture(autouse=True, scope="module", params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = native.isa()
    native.choose_isa(request.param)
    yield request.param
    native.choose_isa(before)


def random_logits(key: int, size: int, *, rows: int = 3) -> NDArray[np.float32]:
    """Rows with many ties, some of them peaked, a few values minus infinity."""
    rng = np.random.default_rng(key)
    x = rng.normal(0, rng.choice([0.02, 1.0, 4.0, 30.0]), (rows, size)).astype(np.float32)
    if rng.random() < 0.7:
        x = np.round(x * 2).astype(np.float32) / np.float32(2)
    if rng.random() < 0.3:
        x[rng.random((rows, size)) < 0.2] = -np.inf
        x[:, rng.integers(size)] = 1
    return x


def native_pick(sampler: Sampler, logits: NDArray[np.float32], path: Sequence[int] = ()) -> int:
    return int(native.pick(logits, *sampler.plan(logits, path)))


def native_distribution(sampler: Sampler, logits: NDArray[np.float32], path: Sequence[int] = ()) -> NDArray[np.float64]:
    probabilities: NDArray[np.float64] = native.distribution(logits, *sampler.plan(logits, path))
    return probabilities


# -- arithmetic and noise -------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(2.0**-1022, allow_infinity=False), max_size=40))
def test_log_is_the_same(values: list[float]) -> None:
    x = np.array(values, dtype=np.float64)
    np.testing.assert_array_equal(native.log(x), arithmetic.log(x))


@given(st.lists(st.floats(max_value=0, allow_nan=False), max_size=40))
def test_exp_is_the_same(values: list[float]) -> None:
    x = np.array(values, dtype=np.float64)
    np.testing.assert_array_equal(native.exp(x), arithmetic.exp(x))


def test_log_and_exp_are_the_same_over_dense_ranges() -> None:
    rng = np.random.default_rng(1)
    u = np.concatenate([rng.random(200_000) + 2.0**-53, 1 - np.arange(1, 1000) * 2.0**-53, np.arange(1, 1000) * 2.0**-53])
    np.testing.assert_array_equal(native.log(u), arithmetic.log(u))
    x = np.concatenate([-rng.random(100_000) * 40, -rng.random(100_000) * 720, -rng.random(1000) * 1e-12])
    np.testing.assert_array_equal(native.exp(x), arithmetic.exp(x))


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 49_152])
def test_total_is_the_same(size: int) -> None:
    x = np.random.default_rng(size).random(size)
    assert native.total(x) == (arithmetic.total(x)[0] if size else 0)


ids = st.lists(st.one_of(st.integers(0, 200_000), st.sampled_from([0, 2**31, 2**63 - 1])), max_size=20)


@given(st.integers(-(2**70), 2**70), st.one_of(st.integers(0, 5000), st.sampled_from([2**31, 2**63])), ids)
def test_noise_is_the_same(seed: int, position: int, tokens: list[int]) -> None:
    at = np.array(tokens, dtype=np.int64)
    np.testing.assert_array_equal(native.gumbel(noise_key(seed, position), at), gumbel(seed, position, at))


@pytest.mark.parametrize("output", [0, (1 << 64) - 1, 1 << 12, (1 << 64) - (1 << 12) - 1])
def test_noise_is_the_same_and_finite_at_both_ends_of_the_uniform(output: int, monkeypatch: pytest.MonkeyPatch) -> None:
    key = (unmixed(output) - 0x9E3779B97F4A7C15) % (1 << 64)  # token 0 then draws this output of the generator
    monkeypatch.setattr("headstart.sampling._mix", lambda z: key)
    noise = native.gumbel(key, np.array([0]))
    assert np.isfinite(noise).all() and abs(noise[0]) <= 36.8
    np.testing.assert_array_equal(noise, gumbel(0, 0, np.array([0])))


def unmixed(z: int) -> int:
    """The number that SplitMix64's output function turns into ``z``."""
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        result = z
        for _ in range(3):
            result = z ^ (result >> shift)
        z = result * pow(factor, -1, 1 << 64) % (1 << 64)
    return z


# -- picks ----------------------------------------------------------------------------------------------------------------


samplings = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.1, 0.8, 1.0, 1.7, 30.0]),
        "top_k": st.one_of(st.just(0), st.integers(1, 40), st.sampled_from([500, 4999, 6000])),
        "top_p": st.sampled_from([1.0, 1.0, 0.05, 0.5, 0.9, 0.999, 1 - 2.0**-53]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-320, 0.013, 0.21, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 0.8, 1.3]),
        "presence_penalty": st.sampled_from([0.0, -0.5, 0.7, 1e308]),
        "frequency_penalty": st.sampled_from([0.0, 0.4]),
    }
)


@settings(max_examples=150)
@given(samplings, st.sampled_from(SIZES), st.integers(0, 2**32), st.data())
def test_picks_are_the_same(parameters: dict[str, Any], size: int, key: int, data: st.DataObject) -> None:
    tokens = st.lists(st.integers(0, size - 1), max_size=8)
    bias = st.dictionaries(st.integers(0, size - 1), st.sampled_from([-math.inf, -2.0, 1.5, 1.7e308]), max_size=3)
    s = Sampling(**parameters, logit_bias=data.draw(bias), min_tokens=data.draw(st.integers(0, 3)))
    made = Sampler(s, vocab_size=size, prompt=data.draw(tokens), end_tokens=data.draw(tokens), seed=key)
    made.commit(data.draw(tokens))
    path = data.draw(tokens)
    for row in random_logits(key, size):
        try:
            expected = made.pick(row, path)
        except RequestError:
            with pytest.raises(RequestError, match="ban every token"):
                native_pick(made, row, path)
            with pytest.raises(RequestError, match="ban every token"):
                native_distribution(made, row, path)
        else:
            assert native_pick(made, row, path) == expected
            np.testing.assert_array_equal(native_distribution(made, row, path), made.distribution(row, path), strict=True)


REAL = [
    {},
    {"temperature": 0.0},
    {"min_p": 0.05},
    {"top_k": 50},
    {"top_k": 2000},
    {"top_p": 0.9},
    {"top_p": 0.9999},
    {"top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "logit_bias": {5: -math.inf, 48_000: 12.0}},
    {"temperature": 0.0, "repetition_penalty": 1.2, "logit_bias": {77: 9.0}},
]


@pytest.mark.parametrize("parameters", REAL, ids=str)
def test_picks_are_the_same_over_a_real_vocabulary(parameters: dict[str, Any]) -> None:
    rng = np.random.default_rng(3)
    s = Sampling(**{"temperature": 0.8, **parameters})
    for scale in (0.1, 1.0, 3.0):
        row = rng.normal(0, scale, 49_152).astype(np.float32)
        for seed in range(4):
            made = Sampler(s, vocab_size=row.size, prompt=rng.integers(0, row.size, 300).tolist(), seed=seed)
            made.commit(rng.integers(0, row.size, 40).tolist())
            assert native_pick(made, row) == made.pick(row)
        np.testing.assert_array_equal(native_distribution(made, row), made.distribution(row), strict=True)


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.75, 1 / 3])
def test_a_nucleus_that_ends_exactly_at_its_mass_is_the_same(top_p: float) -> None:
    """Equal weights and powers of two add up to the wanted mass without rounding, so the last bit decides."""
    rows = [np.zeros(1024, dtype=np.float32), np.repeat(np.log(np.array([4, 2, 1, 1])), 300).astype(np.float32)]
    for row in rows:
        for seed in range(30):
            made = Sampler(Sampling(temperature=1, top_p=top_p, logit_bias={7: 0.5}), vocab_size=row.size, seed=seed)
            assert native_pick(made, row) == made.pick(row)
            np.testing.assert_array_equal(native_distribution(made, row), made.distribution(row), strict=True)


def test_a_plan_reads_nothing_but_the_changed_tokens() -> None:
    row = random_logits(0, 700)[0]
    made = Sampler(Sampling(temperature=1, presence_penalty=1.0, logit_bias={9: 1.0}), vocab_size=700, seed=1)
    made.commit([4, 4, 600])
    blind = np.full_like(row, np.nan)
    blind[[4, 9, 600]] = row[[4, 9, 600]]
    plan, whole = made.plan(blind, [8]), made.plan(row, [8])
    assert plan.ids.tolist() == [4, 8, 9, 600] and np.isnan(plan.values[1])
    np.testing.assert_array_equal(np.delete(plan.values, 1), np.delete(whole.values, 1))
    assert plan[2:] == whole[2:]


@pytest.mark.parametrize("bad", [[0, math.nan, 1], [0, math.inf, 1], [-math.inf] * 3, [math.nan] * 3])
def test_unusable_logits_are_the_models_fault(bad: list[float]) -> None:
    logits = np.array([bad], dtype=np.float32)
    row = np.zeros(1, dtype=np.int64)
    for temperature in (0.0, 1.0):
        with pytest.raises(ModelError, match="NaN or infinity"):
            native_pick(Sampler(Sampling(temperature=temperature), vocab_size=3), logits[0])
    for ask in (native.argmax, lambda *a: native.top_k(*a, 2), lambda *a: native.top_probabilities(*a, 1)):
        with pytest.raises(ModelError, match="NaN or infinity"):
            ask(logits, row)
    with pytest.raises(ModelError, match="NaN or infinity"):
        native.log_softmax(logits, row, np.zeros((1, 1), dtype=np.int64))


# -- argmax, top-k, log-softmax -------------------------------------------------------------------------------------------


@given(st.sampled_from(SIZES), st.integers(0, 2**32), st.lists(st.integers(0, 2), max_size=4))
def test_argmax_takes_the_lowest_of_equal_ids(size: int, key: int, rows: list[int]) -> None:
    logits = random_logits(key, size)
    got = native.argmax(logits, np.array(rows, dtype=np.int64))
    assert got.dtype == np.int64 and got.tolist() == [int(logits[row].argmax()) for row in rows]


@pytest.mark.parametrize("threads", [1, 2, 3])
@given(st.sampled_from([8191, 8192, 8197, 49_152]), st.integers(0, 2**32), st.integers(0, 49_151), st.booleans())
def test_argmax_of_a_long_row_is_the_same_for_any_number_of_threads(
    threads: int, size: int, key: int, place: int, is_banned: bool
) -> None:
    logits = np.random.default_rng(key).integers(-9, 10, (1, size)).astype(np.float32)  # equals in every part
    if is_banned:
        logits[0, : min(place, size - 1)] = -np.inf
    before = native.num_threads()
    native.set_num_threads(threads)
    try:
        assert native.argmax(logits, np.array([0])).tolist() == [int(logits[0].argmax())]
        logits[0, place % size] = np.nan
        with pytest.raises(ModelError, match="NaN or infinity"):
            native.argmax(logits, np.array([0]))
    finally:
        native.set_num_threads(before)


@given(st.sampled_from(SIZES), st.integers(0, 2**32), st.integers(1, 700))
def test_top_k_is_the_stable_order(size: int, key: int, k: int) -> None:
    logits = random_logits(key, size)
    expected = np.argsort(-logits, axis=-1, kind="stable")[:, :k]
    tokens, values = native.top_k(logits, ROWS, k)
    np.testing.assert_array_equal(tokens, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(logits, expected, axis=-1))
    likely, probabilities = native.top_probabilities(logits, ROWS, k)
    np.testing.assert_array_equal(likely, expected)
    weights = np.exp(logits.astype(np.float64) - logits.max(axis=-1, keepdims=True))
    wanted = np.take_along_axis(weights / weights.sum(axis=-1, keepdims=True), expected, axis=-1)
    np.testing.assert_allclose(probabilities, wanted, rtol=1e-12, atol=1e-300)


@given(st.sampled_from([*SIZES, 49_152]), st.integers(0, 2**32), st.data())
def test_log_softmax_is_the_same(size: int, key: int, data: st.DataObject) -> None:
    logits = random_logits(key, size)
    tokens = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=6, max_size=6))).reshape(3, 2)
    np.testing.assert_array_equal(
        native.log_softmax(logits, ROWS, tokens), np.take_along_axis(log_softmax(logits), tokens, axis=-1)
    )


def test_rows_may_be_a_window_of_wider_ones() -> None:
    wide = random_logits(5, 700)
    np.testing.assert_array_equal(native.argmax(wide[:, :130], ROWS), wide[:, :130].argmax(axis=-1))


# -- what is refused ------------------------------------------------------------------------------------------------------


def test_rows_and_tokens_outside_are_refused() -> None:
    logits = random_logits(1, 65)
    for row in (-1, 3):
        with pytest.raises(IndexError, match="outside"):
            native.argmax(logits, np.array([row]))
    for token in (-1, 65):
        with pytest.raises(IndexError, match="outside"):
            native.log_softmax(logits, np.array([0]), np.array([[token]]))
    with pytest.raises(ValueError, match="one row for each"):
        native.log_softmax(logits, np.array([0]), np.zeros((2, 1), dtype=np.int64))
    with pytest.raises(ValueError, match="k must be"):
        native.top_k(logits, ROWS, 0)
    with pytest.raises(ValueError, match="next to each other"):
        native.argmax(logits.T, ROWS)
    with pytest.raises(ValueError, match="no columns"):
        native.argmax(logits[:, :0], ROWS)


def test_logits_of_another_type_are_refused_instead_of_copied() -> None:
    with pytest.raises(TypeError):
        native.argmax(random_logits(1, 65).astype(np.float64), ROWS)


BAD_PLANS: list[dict[str, Any]] = [
    {"ids": [65]},
    {"ids": [-1]},
    {"ids": [3, 3], "values": [0.0, 0.0]},
    {"ids": [4, 3], "values": [0.0, 0.0]},
    {"ids": [1], "values": [0.0, 0.0]},
    {"values": [math.nan]},
    {"values": [math.inf]},
    {"temperature": -1.0},
    {"temperature": math.nan},
    {"top_k": -1},
    {"top_p": 0.0},
    {"top_p": math.nan},
    {"log_min_p": 0.1},
    {"log_min_p": math.nan},
]


@pytest.mark.parametrize("bad", BAD_PLANS, ids=str)
def test_a_plan_that_no_sampler_makes_is_refused(bad: dict[str, Any]) -> None:
    plan = {"ids": [1], "values": [0.0], "temperature": 1.0, "top_k": 0, "top_p": 1.0, "log_min_p": -math.inf, "key": 1} | bad
    plan["ids"], plan["values"] = np.array(plan["ids"], dtype=np.int64), np.array(plan["values"])
    with pytest.raises((ValueError, IndexError)):
        native.pick(random_logits(1, 65)[0], **plan)
