"""Costs and budgets: T(rows) measured, cached and corrected; which nodes are worth a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.cache import VARIABLE
from headstart.plan.budget import allot
from headstart.plan.chances import Chances, OwnChances
from headstart.plan.members import Member, Traits
from headstart.plan.offer import Offer
from headstart.plan.profile import Profile, interpolated, measured, spot_check
from headstart.plan.profile_cache import KIND, key_of, profile_of
from headstart.plan.stepcost import StepCost
from headstart.proposers.walk import TreeWalk
from headstart.tree import Tree
from scripted import random_target
from synthetic import BFLOAT16, Clock, SyntheticTarget, table_cost

PROFILE = Profile((1, 8, 16, 32), (0.008, 0.010, 0.014, 0.026), 256, 1e-7)


def target_of(clock: Clock, **options: object) -> SyntheticTarget:
    return SyntheticTarget(random_target(0, 20).next_logits, 20, clock, BFLOAT16, **options)


# budget


@st.composite
def trees(draw: st.DrawFn) -> list[list[tuple[int, float]]]:
    """Some trees as (parent, reach) a row; the root has no parent."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        rows = [(-1, 1.0)]
        for _ in range(draw(st.integers(0, 3))):
            parent = draw(st.integers(0, len(rows) - 1))
            rows.append((parent, rows[parent][1] * draw(st.sampled_from((0.0, 0.1, 0.4, 0.5, 0.9, 1.0)))))
        found.append(rows)
    return found


@given(trees(), st.lists(st.floats(0, 2), min_size=10, max_size=10))
def test_no_set_of_whole_paths_makes_sequences_wait_less(forest: list[list[tuple[int, float]]], steps: list[float]) -> None:
    seconds = [1.0 + sum(steps[:k]) for k in range(10)]  # any rising T, convex or not

    def waiting(chosen: Collection[tuple[int, int]]) -> float:
        gains = [sum(tree[row][1] for s, row in chosen if s == entry) for entry, tree in enumerate(forest)]
        return seconds[len(chosen)] * sum(1 / (1 + gain) for gain in gains)

    budget = allot([[reach for _, reach in tree] for tree in forest], len(forest), seconds)
    nodes = [(s, r) for s, tree in enumerate(forest) for r in range(1, len(tree))]
    best = math.inf
    for size in range(len(nodes) + 1):
        for chosen in itertools.combinations(nodes, size):
            if all(forest[s][r][0] == 0 or (s, forest[s][r][0]) in chosen for s, r in chosen):
                best = min(best, waiting(chosen))
    assert waiting([(s, r) for s, rows in enumerate(budget.rows) for r in rows]) == pytest.approx(best)
    assert budget.num_tokens == pytest.approx(
        len(forest) + sum(forest[s][r][1] for s, rows in enumerate(budget.rows) for r in rows)
    )
    for tree, rows in zip(forest, budget.rows, strict=True):
        assert rows == sorted(rows)
        assert all(tree[row][0] in (0, *rows) for row in rows), "a node was chosen without its parent"


def test_one_long_copy_does_not_slow_down_everybody_else() -> None:
    """Five tokens more of one sequence would make the rate of all eight larger, and seven of them slower."""
    seconds = [1.0 + 0.1 * k for k in range(6)]
    copies, silent = [1.0] + [0.98] * 5, [1.0]
    assert allot([copies], 1.0, seconds).rows == [[1, 2, 3, 4, 5]]
    assert allot([copies, *[silent] * 7], 8.0, seconds).rows == [[]] * 8


def test_a_step_of_t_is_looked_over() -> None:
    """The ninth row opens a new tile and does not pay, the ten behind it fill it and do."""
    seconds = [1.0] * 8 + [1.8] * 24
    budget = allot([[1.0] + [0.95] * 31], 1.0, seconds)
    assert len(budget.rows[0]) == 31


def test_nothing_is_drafted_where_every_row_costs_a_step() -> None:
    budget = allot([[1.0, 0.9], [1.0, 0.99]], 2.0, [1.0, 2.0, 3.0])
    assert budget.rows == [[], []]
    assert budget.num_tokens == 2.0


def test_a_gain_within_the_margin_is_left() -> None:
    reaches, seconds = [[1.0, 0.11]], [1.0, 1.1]
    assert allot(reaches, 1.0, seconds).rows == [[1]]
    assert allot(reaches, 1.0, seconds, margin=0.02).rows == [[]]


def test_rows_go_where_they_shorten_the_waiting() -> None:
    """A likely second token of one sequence is worth a little less than the first chance of another."""
    budget = allot([[1.0, 0.2, 0.1], [1.0, 0.9, 0.8]], 2.0, [1.0, 1.05, 1.1, 1.6, 2.2])
    assert budget.rows == [[1], [1]]


# profile


@given(
    st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=6),
    st.lists(st.integers(1, 200), min_size=1, max_size=20),
)
def test_interpolation_never_falls_and_hits_what_was_measured(times: list[float], wanted: list[int]) -> None:
    rows = [2**i for i in range(len(times))]
    found = interpolated(rows, times, sorted(wanted))
    assert all(a <= b for a, b in itertools.pairwise(found))
    assert interpolated(rows, sorted(times), rows) == pytest.approx(sorted(times))


def test_profile_finds_the_costs_of_rows_and_of_positions() -> None:
    clock = Clock()
    target = target_of(clock)
    profile = measured(target, clock=clock)
    assert target.num_open == 0, "slots were left open"
    assert clock.now < 0.6
    assert profile.row_position_seconds == pytest.approx(0.25e-6, rel=1e-3)
    for rows, seconds in zip(profile.rows, profile.seconds, strict=True):
        assert seconds == pytest.approx(BFLOAT16(rows, rows * profile.context), rel=1e-3)


def test_a_slow_model_is_measured_at_a_few_row_counts() -> None:
    clock = Clock()
    target = target_of(clock)
    target.speed = 50.0
    profile = measured(target, clock=clock)
    assert profile.rows == (1, 4, 8, 16)


def test_a_short_context_is_no_obstacle() -> None:
    clock = Clock()
    profile = measured(target_of(clock, context_limit=12), clock=clock)
    assert profile.rows[0] == 1
    assert profile.rows[-1] < 12


@pytest.mark.parametrize(
    ("rows", "seconds"),
    [((), ()), ((2,), (1.0,)), ((1, 1), (1.0, 1.0)), ((1,), (0.0,)), ((1,), (float("nan"),)), ((1, 2), (1.0,))],
)
def test_impossible_profiles_are_refused(rows: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="profile"):
        Profile(rows, seconds)


# its cache


def test_a_profile_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    clock = Clock()
    target = target_of(clock)
    first = profile_of(target, clock=clock)
    started = clock.now
    assert profile_of(target, clock=clock) == first
    assert clock.now - started < 0.1, "it was measured again"
    assert [file.suffix for file in (tmp_path / KIND).iterdir()] == [".json"], "a temporary file was left"


def test_a_cached_profile_that_is_no_longer_true_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    clock = Clock()
    target = target_of(clock)
    profile_of(target, clock=clock)
    target.cost = table_cost({1: 1.0, 8: 8.0, 64: 64.0})
    found = profile_of(target, clock=clock)
    assert found.seconds[found.rows.index(8)] == pytest.approx(0.008, rel=0.01)
    target.speed = 3.0  # a slower machine has the same shape
    assert spot_check(target, found, clock=clock)


@pytest.mark.parametrize("change", ["engine", "dtype", "fingerprint"])
def test_another_model_has_another_profile(change: str) -> None:
    target = target_of(Clock())
    key = key_of(target)
    setattr(target, change, "other")
    assert key_of(target) != key


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"context": ', '"context": -'),
        lambda text: text.replace('"rows": [\n   1,', '"rows": [\n   2,'),
        lambda text: text.replace('"seconds"', '"times"'),
        lambda text: text.replace('"value": {', '"value": 1, "other": {'),
        lambda text: "[" * 100_000,
        lambda text: "\x00",
    ],
)
def test_a_damaged_profile_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[str], str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    clock = Clock()
    target = target_of(clock)
    profile = profile_of(target, clock=clock)
    (file,) = (tmp_path / KIND).iterdir()
    whole = file.read_text()
    assert damage(whole) != whole
    file.write_text(damage(whole))
    started = clock.now
    assert profile_of(target, clock=clock).rows == profile.rows
    assert clock.now - started > 0.1
    assert file.read_text()[:20] == whole[:20], "the damaged file stays"


# its correction


def test_a_slower_machine_is_followed_at_rows_that_were_not_seen() -> None:
    cost = StepCost(PROFILE)
    for _ in range(300):
        for rows in (1, 8):
            cost.observe(rows, 2 * PROFILE.seconds[PROFILE.rows.index(rows)])
    assert cost.seconds(1) == pytest.approx(0.016, rel=0.05)
    assert cost.seconds(32) == pytest.approx(0.052, rel=0.6)
    assert cost.seconds(32) > 0.026


def test_each_row_count_is_corrected_by_itself() -> None:
    cost = StepCost(PROFILE)
    for _ in range(300):
        cost.observe(1, 0.008)
        cost.observe(8, 0.013)
    assert cost.seconds(1) == pytest.approx(0.008, rel=0.05)
    assert cost.seconds(8) == pytest.approx(0.013, rel=0.05)


def test_single_slow_steps_hardly_count() -> None:
    cost = StepCost(PROFILE)
    for step in range(200):
        cost.observe(1, 0.8 if step % 10 == 0 else 0.008)
    assert cost.seconds(1) == pytest.approx(0.008, rel=0.1)


def test_longer_contexts_cost_more_for_each_row() -> None:
    cost = StepCost(PROFILE)
    assert cost.seconds(8, 1256) - cost.seconds(8, 256) == pytest.approx(8 * 1000 * 1e-7)
    assert cost.range(1, 8, 256) == pytest.approx([cost.seconds(n) for n in range(1, 9)])
    assert min(cost.range(1, 8, 0)) > 0


def test_a_time_that_was_disturbed_at_load_does_not_lift_those_of_more_rows() -> None:
    """One row took 30 ms at load by accident; steps of eight rows show that it cannot."""
    cost = StepCost(Profile((1, 8, 16), (0.030, 0.030, 0.032)))
    for _ in range(200):
        cost.observe(8, 0.010)
    assert cost.seconds(8) == pytest.approx(0.010, rel=0.05)
    assert cost.seconds(1) <= cost.seconds(8)
    for _ in range(100):
        cost.observe(1, 0.008)
    assert cost.seconds(1) == pytest.approx(0.008, rel=0.1)
    assert cost.seconds(8) == pytest.approx(0.010, rel=0.3)  # what was not seen follows the scale alone


def test_unseen_row_counts_are_known() -> None:
    cost = StepCost(PROFILE)
    for _ in range(50):
        cost.observe(8, 0.010)
    assert cost.num_steps_unseen(8) == 0
    assert cost.num_steps_unseen(1) == 50


# chances


def test_chances_approach_what_happens() -> None:
    chances, own = Chances(), OwnChances()
    assert chances.scaled(2, 1, 0.6) == pytest.approx(0.6)
    for step in range(400):
        chances.observe(2, 1, 0.6, step % 5 == 0)
        own.observe(2, 0.6, step % 5 == 0)
    assert chances.scaled(2, 1, 0.6) == pytest.approx(0.2, abs=0.04)
    assert 0.6 * own.factor(2) == pytest.approx(0.2, abs=0.08)
    assert chances.scaled(2, 1, 0.1) == pytest.approx(0.1), "another size of estimate was not seen"
    assert chances.scaled(4, 1, 0.6) == pytest.approx(0.6), "nor another kind"


def test_a_further_pass_must_be_worth_its_price() -> None:
    member = Member(Traits("leveled"), 1)
    assert member.least_reach(1, 0.004, 0.0) == 0.0  # nothing is known of its passes
    for _ in range(3):
        member.called(1, 0.001, 2, is_probe=False)
    # A pass takes 0.5 ms, and what it adds is right half of the time behind a node that is reached.
    assert member.least_reach(1, 0.004, 0.0) == pytest.approx(0.0005 / (0.5 * 0.004))
    assert member.least_reach(1, 0.004, 0.0002) == pytest.approx(0.0007 / (0.5 * 0.004))
    assert member.least_reach(1, 0.0, 0.0) == 0.0  # no step with drafts was timed yet
    assert member.least_reach(1, 1e-6, 0.0) == 0.6  # a sure node is followed whatever it costs


def _decoded(chances: Chances, hits: Iterable[bool]) -> None:
    """One sequence, of whose only guess (60% sure) it is known each time whether it was right."""
    own = OwnChances()
    for is_hit in hits:
        _offer(chances, own).learn([1 if is_hit else 2], chances, own)


def _chance(chances: Chances) -> float:
    """Of the guess in a new sequence."""
    return _offer(chances, OwnChances()).reaches[1]


def _offer(chances: Chances, own: OwnChances) -> Offer:
    guess = TreeWalk(Tree.chain((0, 1), (1.0, 0.6)))
    offer = Offer.of(0, {1: guess}, max_nodes=15, max_depth=15)
    offer.weigh(chances, own)
    return offer


def test_an_unguessable_text_is_not_held_against_the_next_one() -> None:
    chances = Chances()
    for _ in range(10):
        _decoded(chances, (i % 5 < 3 for i in range(50)))
    good = _chance(chances)
    assert abs(good - 0.6) < 0.1
    _decoded(chances, [False] * 300)
    assert _chance(chances) > 0.7 * good


def test_useless_guesses_are_found_out_over_some_texts() -> None:
    chances = Chances()
    for _ in range(6):
        _decoded(chances, [False] * 100)
    assert _chance(chances) < 0.15
