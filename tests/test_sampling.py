"""The plain sampler against a straightforward reference, and its noise against the statistics of an exact sample."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from headstart.errors import ModelError, RequestError
from headstart.sampling import Sampler, Sampling, fresh_seed, gumbel, log_softmax, nth_seed, sampling_names

V = 12
GOLDEN_NOISE = [2.256828494283608, -0.24094935452870553, -0.12008584324053781]
GOLDEN_SEEDS = (8430369225095084303, 8085905411993364802)


def sampler(
    sampling: Sampling,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    ends: Sequence[int] = (),
    seed: int = 0,
    size: int = V,
) -> Sampler:
    made = Sampler(sampling, vocab_size=size, prompt=prompt, end_tokens=ends, seed=seed)
    made.commit(output)
    return made


def as_logits(*values: float) -> NDArray[np.float32]:
    return np.array(values, dtype=np.float32)


def reference(
    logits: NDArray[np.float32], s: Sampling, prompt: Sequence[int], output: Sequence[int], ends: Sequence[int]
) -> NDArray[np.float64]:
    """The processed distribution, token by token in plain Python; the tail is cut one filter after the other."""
    x = [float(value) for value in logits]
    for t in set(prompt) | set(output):
        x[t] = x[t] / s.repetition_penalty if x[t] > 0 else x[t] * s.repetition_penalty
    for t, times in Counter(output).items():
        x[t] -= s.presence_penalty + s.frequency_penalty * times
    for t, bias in s.logit_bias.items():
        x[t] += bias
    if len(output) < s.min_tokens:
        for t in set(s.stop_token_ids) | (set() if s.ignore_eos else set(ends)):
            x[t] = -math.inf
    if s.temperature == 0:
        return np.array([float(t == x.index(max(x))) for t in range(len(x))])
    return cut_tail([value / s.temperature for value in x], s)


def cut_tail(x: list[float], s: Sampling) -> NDArray[np.float64]:
    if s.top_k:
        border = sorted(x, reverse=True)[min(s.top_k, len(x)) - 1]
        x = [value if value >= border else -math.inf for value in x]
    if s.top_p < 1:
        p, mass = softmax(x), 0.0
        kept = []
        for t in sorted(range(len(x)), key=lambda t: (-p[t], t)):
            if mass >= s.top_p:
                break
            kept.append(t)
            mass += p[t]
        x = [value if t in kept else -math.inf for t, value in enumerate(x)]
    p = softmax(x)
    return softmax([value if p[t] >= s.min_p * max(p) else -math.inf for t, value in enumerate(x)])


def softmax(x: Sequence[float]) -> NDArray[np.float64]:
    weights = np.array([math.exp(value - max(x)) for value in x])
    return np.asarray(weights / weights.sum(), dtype=np.float64)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.integers(0, V + 2),
    top_p=st.sampled_from([0.05, 0.33, 0.71, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.21, 0.77]),
    repetition_penalty=st.sampled_from([0.8, 1.0, 1.3]),
    presence_penalty=st.sampled_from([-0.5, 0.0, 0.7]),
    frequency_penalty=st.sampled_from([-0.2, 0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(0, V - 1), st.sampled_from([-math.inf, -2.0, 0.0, 1.5]), max_size=3),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.lists(st.integers(0, V - 1), max_size=2).map(tuple),
    ignore_eos=st.booleans(),
)
texts = st.lists(st.integers(0, V - 1), max_size=6)


@given(samplings, texts, texts, st.integers(0, 2**32), st.integers(0, 5))
def test_the_processed_distribution_is_the_references(
    s: Sampling, prompt: list[int], output: list[int], key: int, split: int
) -> None:
    logits = np.random.default_rng(key).normal(0, 3, V).astype(np.float32)
    path = output[split:]  # drafted tokens count as output behind which the pick stands
    got = sampler(s, prompt=prompt, output=output[:split], ends=[1]).distribution(logits, path)
    np.testing.assert_allclose(got, reference(logits, s, prompt, output, [1]), atol=1e-12)


@given(samplings, texts, texts, st.integers(0, 2**32))
def test_the_pick_is_the_argmax_of_log_p_and_noise(s: Sampling, prompt: list[int], output: list[int], seed: int) -> None:
    logits = np.random.default_rng(seed).normal(0, 3, V).astype(np.float32)
    p = reference(logits, s, prompt, output, [1])
    noise = gumbel(seed, len(prompt) + len(output), np.arange(V))
    with np.errstate(divide="ignore"):
        expected = int(np.argmax(np.log(p) + (noise if s.temperature else 0)))
    assert sampler(s, prompt=prompt, output=output, ends=[1], seed=seed).pick(logits) == expected


@given(texts, texts)
def test_drafted_tokens_act_as_committed_ones_and_leave_no_trace(output: list[int], path: list[int]) -> None:
    s = Sampling(temperature=1, repetition_penalty=1.2, presence_penalty=0.5, frequency_penalty=0.5, min_tokens=4)
    logits = np.random.default_rng(3).normal(0, 3, V).astype(np.float32)
    drafting, committed = sampler(s, output=output, ends=[0]), sampler(s, output=output + path, ends=[0])
    before = dict(drafting.counts)
    assert drafting.pick(logits, path) == committed.pick(logits)
    np.testing.assert_array_equal(drafting.distribution(logits, path), committed.distribution(logits))
    assert drafting.counts == before == dict(Counter(output))
    assert drafting.num_committed == len(output)


def test_the_argmax_shortcut_is_claimed_only_where_it_holds() -> None:
    plain = sampler(Sampling(top_k=3, top_p=0.5, min_p=0.1), ends=[0])
    assert plain.is_argmax()
    changes: list[dict[str, Any]] = [{"temperature": 0.5}, {"repetition_penalty": 1.1}, {"presence_penalty": 0.1}]
    for fields in (*changes, {"frequency_penalty": 0.1}, {"logit_bias": {1: 1.0}}):
        assert not sampler(Sampling(**fields), ends=[0]).is_argmax(), fields
    early = sampler(Sampling(min_tokens=3), output=[5], ends=[0])
    assert [early.is_argmax(length) for length in range(4)] == [False, False, True, True]
    assert sampler(Sampling(min_tokens=3)).is_argmax(), "nothing can end it, so nothing is banned"


@pytest.mark.parametrize("temperature", [0.0, 1.0, 1e-300, 1e300])
@pytest.mark.parametrize("scale", [1e-308, 1e308])
def test_absurd_penalties_never_give_nan_or_a_warning(temperature: float, scale: float) -> None:
    for strength in (-1e308, 0.0, 1e308):
        sampling = Sampling(
            temperature=temperature, repetition_penalty=scale, presence_penalty=strength, frequency_penalty=strength,
            logit_bias={3: 1e308}, top_p=0.9, min_p=0.1, top_k=3,
        )  # fmt: skip
        sampler = Sampler(sampling, vocab_size=5, prompt=[0, 1], seed=1)
        sampler.commit([1, 2, 1])
        distribution = sampler.distribution(np.array([2, -2, 0, -np.inf, 1], dtype=np.float32))
        assert distribution.sum() == pytest.approx(1.0)


def test_ties_of_the_argmax_go_to_the_lowest_id() -> None:
    assert sampler(Sampling()).pick(as_logits(0, 2, 1, 2, 2)) == 1


def test_ties_at_the_top_k_border_stay() -> None:
    p = sampler(Sampling(temperature=1, top_k=2), size=5).distribution(as_logits(3, 1, 2, 2, 2))
    assert list(np.flatnonzero(p)) == [0, 2, 3, 4]


@pytest.mark.parametrize(("top_p", "kept"), [(0.39, 1), (0.41, 2), (0.69, 2), (0.71, 3), (0.99, 4)])
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: int) -> None:
    p = np.array([0.4, 0.3, 0.2, 0.1])
    got = sampler(Sampling(temperature=1, top_p=top_p), size=4).distribution(np.log(p).astype(np.float32))
    assert np.count_nonzero(got) == kept


def test_ties_at_the_top_p_border_go_to_the_lower_id() -> None:
    p = sampler(Sampling(temperature=1, top_p=0.5), size=4).distribution(as_logits(0, 0, 0, 0))
    np.testing.assert_allclose(p, [0.5, 0.5, 0, 0])


@pytest.mark.parametrize("scale", [0.05, 1.0, 6.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_top_p_over_a_large_vocabulary_is_the_same_set(scale: float, top_p: float) -> None:
    logits = np.random.default_rng(0).normal(0, scale, 9000).astype(np.float32)
    weights = np.exp(logits.astype(np.float64) - logits.max())
    order = np.argsort(-weights, kind="stable")
    mass = np.cumsum(weights[order]) / weights.sum()
    expected = set(order[: int(np.searchsorted(mass, top_p)) + 1].tolist())
    ids, _ = sampler(Sampling(temperature=1, top_p=top_p), size=9000).candidates(logits)
    assert set(ids.tolist()) == expected


def test_min_p_compares_with_the_likeliest_token() -> None:
    logits = np.log(np.array([0.5, 0.26, 0.14, 0.1])).astype(np.float32)
    kept = [
        np.count_nonzero(sampler(Sampling(temperature=1, min_p=m), size=4).distribution(logits)) for m in (0.1, 0.25, 0.5, 1)
    ]
    assert kept == [4, 3, 2, 1]


def test_temperature_comes_before_the_tail_is_cut() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
    cold = sampler(Sampling(temperature=0.2, top_p=0.85), size=3).distribution(logits)
    hot = sampler(Sampling(temperature=1.0, top_p=0.85), size=3).distribution(logits)
    assert [int(np.count_nonzero(p)) for p in (cold, hot)] == [1, 3]


def test_repetition_penalty_sees_the_prompt_and_the_others_do_not() -> None:
    logits = as_logits(2, -2, 2, -2)
    repeated = sampler(Sampling(temperature=1, repetition_penalty=2), prompt=[0, 1], output=[3], size=4)
    np.testing.assert_allclose(repeated.candidates(logits)[1], np.array([1, -4, 2, -4]) - 2)
    for once in (Sampling(temperature=1, presence_penalty=1.0), Sampling(temperature=1, frequency_penalty=0.5)):
        said = sampler(once, prompt=[0, 0, 1], output=[2, 2], size=4)
        np.testing.assert_allclose(said.candidates(logits)[1], np.array([2, -2, 1, -2]) - 2)


def test_a_bias_of_minus_infinity_bans_at_any_temperature() -> None:
    logits = as_logits(50, 0, 0)
    for temperature in (0.0, 1.0):
        made = sampler(Sampling(temperature=temperature, logit_bias={0: -math.inf}), size=3)
        assert made.distribution(logits)[0] == 0 and made.pick(logits) != 0


def test_min_tokens_bans_the_end_and_the_stop_tokens() -> None:
    s = Sampling(min_tokens=2, stop_token_ids=(1,))
    logits = as_logits(9, 8, 7)
    assert [sampler(s, output=[2] * n, ends=[0], size=3).pick(logits) for n in range(4)] == [2, 2, 0, 0]
    free = replace(s, ignore_eos=True)
    assert sampler(free, ends=[0], size=3).pick(logits) == 0, "an end that is ignored is no end"
    assert sampler(free, ends=[0], size=3).pick(as_logits(0, 9, 8)) == 2


def test_banning_everything_is_refused() -> None:
    made = sampler(Sampling(logit_bias={0: -math.inf, 1: -math.inf}, min_tokens=1), ends=[2], size=3)
    with pytest.raises(RequestError, match="ban every token"):
        made.pick(as_logits(0, 0, 0))
    assert made.pick(as_logits(0, 0, 0), [1]) == 2, "behind min_tokens the end is left"


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_and_infinite_logits_are_the_models_fault(bad: float, temperature: float) -> None:
    with pytest.raises(ModelError, match="NaN"):
        sampler(Sampling(temperature=temperature), size=3).pick(as_logits(0, bad, 1))
    with pytest.raises(ModelError, match="NaN"):
        sampler(Sampling(temperature=temperature), size=2).pick(as_logits(-math.inf, -math.inf))


def test_logits_of_minus_infinity_are_never_picked() -> None:
    p = sampler(Sampling(temperature=1, repetition_penalty=1.5), prompt=[0], size=3).distribution(as_logits(-math.inf, 0, 0))
    np.testing.assert_allclose(p, [0, 0.5, 0.5])


@pytest.mark.parametrize("temperature", [1e-320, 1e-30, 1e-6])
def test_a_tiny_temperature_is_the_argmax_without_a_warning(temperature: float) -> None:
    assert sampler(Sampling(temperature=temperature), size=4).pick(as_logits(1, 30, 40, -5)) == 2


def test_padding_rows_of_the_output_matrix_are_never_sampled() -> None:
    logits = as_logits(0, 1, 100, 100)
    assert sampler(Sampling(), size=2).pick(logits) == 1
    assert sampler(Sampling(temperature=1), size=2).distribution(logits).shape == (2,)


def test_end_tokens_that_the_vocabulary_does_not_have_are_ignored() -> None:
    made = sampler(Sampling(min_tokens=2), ends=[1, 99], size=3)
    assert made.stop_tokens == {1}
    assert made.pick(as_logits(0, 5, 1)) == 2


@pytest.mark.parametrize("fields", [{"logit_bias": {V: 1.0}}, {"logit_bias": {-1: 1.0}}, {"stop_token_ids": (V,)}])
def test_token_ids_outside_the_vocabulary_are_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match=next(iter(fields))):
        sampler(Sampling(**fields))


# -- the noise ------------------------------------------------------------------------------------------------------------


def test_noise_is_a_pure_function_of_seed_position_and_token() -> None:
    ids = np.array([7, 0, 100_000, 3])
    whole = gumbel(5, 9, np.arange(100_001))
    np.testing.assert_array_equal(gumbel(5, 9, ids), whole[ids])
    for other in (gumbel(6, 9, ids), gumbel(5, 10, ids), gumbel(5, 9, ids + 1)):
        assert not np.any(other == whole[ids])


def test_noise_never_changes_between_versions() -> None:
    """Seeds that users wrote down keep their meaning."""
    np.testing.assert_allclose(gumbel(1, 2, np.array([0, 1, 49151])), GOLDEN_NOISE, rtol=1e-12)
    assert (nth_seed(1, 1), nth_seed(1, 2)) == GOLDEN_SEEDS


@pytest.mark.parametrize("axis", ["tokens", "positions", "seeds"])
def test_noise_is_gumbel_distributed_along_every_axis(axis: str) -> None:
    if axis == "tokens":
        noise = gumbel(11, 3, np.arange(50_000))
    elif axis == "positions":
        noise = np.array([gumbel(11, position, np.array([4]))[0] for position in range(8000)])
    else:
        noise = np.array([gumbel(seed, 3, np.array([4]))[0] for seed in range(8000)])
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-3


def test_noise_of_neighbouring_positions_and_seeds_is_independent() -> None:
    grid = np.stack([gumbel(seed, position, np.arange(200)) for seed in (1, 2) for position in range(20)])
    correlations = np.asarray(np.corrcoef(grid))[np.triu_indices(40, 1)]
    assert np.abs(correlations).max() < 5 / math.sqrt(200)
    assert stats.kstest(correlations * math.sqrt(200), "norm").pvalue > 1e-3


def test_noise_is_finite_at_both_ends_of_the_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest 64-bit output would round to 1 with 53 bits and a half, and give infinite noise."""
    step, increment = 0x9E3779B97F4A7C15, (1 << 64) - 1

    def unmix(z: int) -> int:  # the inverse of SplitMix64's output function
        def unshift(value: int, bits: int) -> int:
            result = value
            for _ in range(64 // bits + 1):
                result = value ^ (result >> bits)
            return result

        z = unshift(z, 31) * pow(0x94D049BB133111EB, -1, 1 << 64) & increment
        z = unshift(z, 27) * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) & increment
        return unshift(z, 30)

    for output in (increment, 0):
        key = (unmix(output) - step) % (1 << 64)  # of token 0
        monkeypatch.setattr("headstart.sampling._mix", lambda z, key=key: key)
        assert np.isfinite(gumbel(0, 0, np.array([0]))).all()


def test_picks_are_exact_samples_over_positions_and_over_seeds() -> None:
    logits = np.random.default_rng(1).normal(0, 1.5, 8).astype(np.float32)
    s = Sampling(temperature=0.9)
    p = sampler(s, size=8).distribution(logits)
    num_draws = 6000
    seeds = [sampler(s, seed=seed, size=8).pick(logits) for seed in range(num_draws)]
    walking = sampler(s, seed=77, size=8)
    positions = []
    for _ in range(num_draws):
        positions.append(walking.pick(logits))
        walking.commit(positions[-1:])
    for draws in (seeds, positions):
        assert stats.chisquare(np.bincount(draws, minlength=8), p * num_draws).pvalue > 1e-3
    pairs = np.bincount(8 * np.array(positions[:-1]) + positions[1:], minlength=64).reshape(8, 8)
    assert stats.chi2_contingency(pairs[:, p * num_draws > 60][p * num_draws > 60]).pvalue > 1e-3


def test_truncated_picks_are_exact_samples_too() -> None:
    logits = np.random.default_rng(2).normal(0, 1, V).astype(np.float32)
    s = Sampling(temperature=1.3, top_k=6, top_p=0.9, min_p=0.05, logit_bias={0: 2.0})
    p = sampler(s).distribution(logits)
    draws = np.bincount([sampler(s, seed=seed).pick(logits) for seed in range(6000)], minlength=V)
    assert draws[p == 0].sum() == 0
    assert stats.chisquare(draws[p > 0], p[p > 0] * 6000).pvalue > 1e-3


def test_log_softmax_is_exact_for_large_logits() -> None:
    got = log_softmax(np.array([[1000.0, 1000.0], [-1000.0, 0.0]], dtype=np.float32))
    np.testing.assert_allclose(got, np.array([[-math.log(2)] * 2, [-1000.0, 0.0]]))


# -- seeds and validation -------------------------------------------------------------------------------------------------


def test_the_first_of_n_answers_keeps_the_seed_and_the_others_get_their_own() -> None:
    for seed in (0, 1, 2**63, -5):
        seeds = [nth_seed(seed, index) for index in range(100)]
        assert seeds[0] == seed and len(set(seeds)) == 100
        assert all(0 <= other < 2**63 for other in seeds[1:])
    assert not {nth_seed(1, i) for i in range(50)} & {nth_seed(2, i) for i in range(50)}


def test_fresh_seeds_differ() -> None:
    assert len({fresh_seed() for _ in range(100)}) == 100
    assert all(0 <= fresh_seed() < 2**63 for _ in range(100))


NAN, INF = math.nan, math.inf
NOT_NUMBERS = [NAN, INF, -INF, True, "1", None, 10**400]
INVALID: dict[str, list[Any]] = {
    "temperature": [-0.1, *NOT_NUMBERS],
    "top_k": [2**63, -1, 1.0, True, "1", None, NAN],
    "top_p": [0, -0.1, 1.01, *NOT_NUMBERS],
    "min_p": [-0.1, 1.01, *NOT_NUMBERS],
    "repetition_penalty": [0, -1, *NOT_NUMBERS],
    "presence_penalty": NOT_NUMBERS,
    "frequency_penalty": NOT_NUMBERS,
    "logit_bias": [{1: NAN}, {1: INF}, {1: "2"}, {1: True}, {1: None}, {"1": 2.0}, {True: 1.0}, [1, 2], None, "x"],
    "min_tokens": [-1, 1.0, True, "1", None, NAN],
    "max_tokens": [-1, 1.0, True, "1", NAN],
    "stop": ["", ("a", ""), (1,), 5, (None,), b"a"],
    "stop_token_ids": [(1.0,), (True,), ("1",), "12", 5, b"1"],
    "ignore_eos": [1, 0, "no", None],
    "seed": [1.0, True, "1", NAN],
    "n": [0, -1, 1.0, True, "1", None, 2**31],
    "logprobs": [-1, 1.0, True, "1", 2**70],
}


def test_every_field_has_its_table_of_invalid_values() -> None:
    assert tuple(INVALID) == sampling_names()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in INVALID.items() for value in values])
def test_an_invalid_value_is_refused_by_the_fields_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{name} is "):
        Sampling(**{name: value})


def test_min_tokens_above_max_tokens_is_refused() -> None:
    with pytest.raises(RequestError, match="min_tokens is 5; it must be at most max_tokens"):
        Sampling(min_tokens=5, max_tokens=4)


def test_valid_values_at_the_borders_are_taken() -> None:
    fields: dict[str, Any] = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 1, "repetition_penalty": 0.1}
    fields |= {"presence_penalty": -2, "logit_bias": {0: -INF}, "min_tokens": 0, "max_tokens": 0, "stop": "END"}
    s = Sampling(**fields, stop_token_ids=[3, 4], seed=-(2**70), n=1, logprobs=0)  # type: ignore[arg-type]
    assert (s.stop, s.stop_token_ids) == (("END",), (3, 4))
    assert Sampling(stop=None, stop_token_ids=None) == Sampling()  # type: ignore[arg-type]


def test_a_sampling_does_not_change_with_the_callers_mapping() -> None:
    bias = {1: 2.0}
    s = Sampling(logit_bias=bias)
    bias[2] = NAN
    assert s.logit_bias == {1: 2.0}


def test_numbers_of_numpy_are_taken_as_pythons_own() -> None:
    numbers: dict[str, Any] = {"temperature": np.float32(0.5), "top_k": np.int64(3), "seed": np.int32(7)}
    tokens: dict[str, Any] = {"stop_token_ids": np.array([4]), "logit_bias": {np.int64(5): np.float32(1)}}
    given = Sampling(**numbers, **tokens)
    assert given == Sampling(temperature=0.5, top_k=3, seed=7, stop_token_ids=(4,), logit_bias={5: 1.0})
    seen = (given.temperature, given.top_k, *given.stop_token_ids, *given.logit_bias)
    assert [type(value) for value in seen] == [float, int, int, int]
    wrong: Any = np.float64(3.0)
    with pytest.raises(RequestError, match="top_k is"):
        Sampling(top_k=wrong)
