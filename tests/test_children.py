"""Choosing children: the likeliest, those that meet the sampler's noise, or draws that come with what they were drawn from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headstart.accept import Choice
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.children import Children, Place, choose_children
from headstart.sampling import Sampler, Sampling, gumbel, log_softmax

V = 7


def place(
    choice: Choice, *, seed: int = 3, tokens: Sequence[int] = (1, 2), path: tuple[int, ...] = (), **fields: float
) -> Place:
    sampling = Sampling(**fields)  # type: ignore[arg-type]
    sampler = Sampler(sampling, vocab_size=V, prompt=tokens, seed=seed)
    return Place(InFlight(0, tokens, len(tokens), sampler, 8, 8, choice), path)


def choose(where: Place, logprobs: NDArray[np.float64], count: int = 3, owner: str = "test") -> Children:
    return choose_children([where], np.arange(len(logprobs))[None], logprobs[None], count, owner=owner)[0]


def logprobs(seed: int = 0, size: int = V) -> NDArray[np.float64]:
    return log_softmax(np.random.default_rng(seed).standard_normal(size).astype(np.float32) * 2)


@pytest.mark.parametrize("choice", ["likeliest", "coupled", "drawn"])
def test_at_temperature_0_children_are_the_likeliest_whatever_the_choice(choice: Choice) -> None:
    x = logprobs()
    children = choose(place(choice), x)
    assert children.tokens == tuple(np.argsort(-x)[:3].tolist())
    assert children.probabilities == pytest.approx(np.exp(np.sort(x)[::-1][:3]))
    assert children.draws is None


def test_coupled_children_are_the_samplers_own_order_if_q_is_p() -> None:
    x = logprobs()
    children = choose(place("coupled", temperature=0.8, seed=11, path=(5,)), x)
    noisy = x / 0.8 + gumbel(11, 3, np.arange(V))
    assert children.tokens == tuple(np.argsort(-noisy)[:3].tolist())
    sampler = Sampler(Sampling(temperature=0.8), vocab_size=V, prompt=[1, 2], seed=11)
    assert children.tokens[0] == sampler.pick(x.astype(np.float32), [5])


def test_a_known_pick_is_the_first_coupled_child_also_if_it_is_no_candidate() -> None:
    where, x = place("coupled", temperature=1.0), logprobs(1)[None]
    for pick in (4, 6):
        ids = np.array([[0, 1, 2, 3, 4, 5, 5 if pick == 4 else 4]])[:, :6]
        (children,) = choose_children([where], ids, x[:, :6], 3, owner="test", picks=[pick])
        assert children.tokens[0] == pick
        assert children.probabilities[0] == max(children.probabilities)


@pytest.mark.parametrize("fields", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.4}])
@pytest.mark.parametrize("choice", ["likeliest", "coupled", "drawn"])
def test_what_the_request_cuts_off_is_no_candidate(choice: Choice, fields: dict[str, float]) -> None:
    x = logprobs()
    where = place(choice, temperature=0.9, **fields)  # type: ignore[arg-type]
    kept = set(where.sequence.sampler.candidates(x.astype(np.float32))[0].tolist())
    assert set(choose(where, x, V).tokens) <= kept


@pytest.mark.parametrize("choice", ["likeliest", "coupled", "drawn"])
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12), st.floats(0.05, 3.0))
def test_estimates_are_chances_of_different_events(choice: Choice, seed: int, size: int, temperature: float) -> None:
    where = place(choice, temperature=temperature, seed=seed)
    children = choose(where, logprobs(seed, size), 4)
    assert len(set(children.tokens)) == len(children.tokens) == min(4, size)
    assert all(0 <= estimate <= 1 for estimate in children.probabilities)
    assert sum(children.probabilities) <= 1 + 1e-9
    assert list(children.probabilities) == sorted(children.probabilities, reverse=True)


@pytest.mark.parametrize("temperature", [1.0, 2.0, 5.0, 20.0])
def test_heat_takes_chances_from_the_candidates_to_all_other_tokens(temperature: float) -> None:
    """The picks of the plain sampler fall on the candidates as often as the estimates say, or more."""
    size, tokens, hits, expected = 3000, list(range(8)), 0, 0.0
    x = log_softmax(np.random.default_rng(4).standard_normal(size).astype(np.float32) * 3)
    likeliest = np.argsort(-x)[:8]
    for seed in range(200):
        sampler = Sampler(Sampling(temperature=temperature), vocab_size=size, prompt=[1], seed=seed)
        where = Place(InFlight(0, [1], 1, sampler, 8, 8, "coupled"))
        (children,) = choose_children([where], likeliest[None], x[likeliest][None], len(tokens), owner="test")
        hits += sampler.pick(x.astype(np.float32)) in children.tokens
        expected += sum(children.probabilities)
    assert expected / 200 < hits / 200 + 0.1
    assert temperature > 1 or expected / 200 == pytest.approx(np.exp(x[likeliest]).sum())


def test_draws_come_with_their_distribution_and_every_drawn_token() -> None:
    x = logprobs()
    children = choose(place("drawn", temperature=0.5), x)
    assert children.draws is not None
    assert children.draws.tokens == children.tokens
    expected = np.exp(x / 0.5) / np.exp(x / 0.5).sum()
    np.testing.assert_allclose(children.draws.probabilities, expected, rtol=1e-12)
    np.testing.assert_array_equal(children.draws.ids, np.arange(V))


def test_first_and_second_draws_follow_q_without_replacement() -> None:
    x = np.log(np.array([0.5, 0.3, 0.2]))
    number = 4000
    pairs = Counter(choose(place("drawn", temperature=1.0, seed=seed), x, 2).tokens for seed in range(number))
    q = np.exp(x)
    for (first, second), count in pairs.items():
        share = q[first] * q[second] / (1 - q[first])
        assert abs(count / number - share) < 5 * (share / number) ** 0.5
    assert len(pairs) == 6


def test_draws_share_their_noise_with_nothing() -> None:
    flat = np.zeros(64)
    ids = np.arange(64)[None]

    def order(where: Place, owner: str = "test") -> tuple[int, ...]:
        return choose_children([where], ids, flat[None], 64, owner=owner)[0].tokens

    base = place("drawn", temperature=1.0)
    orders = [
        order(base),
        order(base, "another proposer"),
        order(place("coupled", temperature=1.0)),
        order(place("drawn", temperature=1.0, seed=4)),
        order(place("drawn", temperature=1.0, tokens=(1, 2, 3))),
        order(place("drawn", temperature=1.0, path=(5,))),
        order(place("drawn", temperature=1.0, path=(6,))),
        order(place("drawn", temperature=1.0, path=(5, 6))),
        order(place("drawn", temperature=1.0, path=(6, 5))),
    ]
    assert len(set(orders)) == len(orders)
    assert order(base) == orders[0]


def test_a_batch_is_what_its_rows_are_alone() -> None:
    places = [
        place("coupled", temperature=0.7),
        place("likeliest"),
        place("drawn", temperature=1.2, path=(4,)),
        place("likeliest", temperature=0.3),
        place("coupled", temperature=0.7, seed=9, top_k=3),
    ]
    x = np.stack([logprobs(i) for i in range(len(places))])
    together = choose_children(places, np.tile(np.arange(V), (len(places), 1)), x, 4, owner="test")
    for where, row, children in zip(places, x, together, strict=True):
        alone = choose(where, row, 4)
        assert (children.tokens, children.probabilities) == (alone.tokens, alone.probabilities)
