"""Members of ``auto``: whom asking pays for, and when those that did not earn their cost are tried again."""

from __future__ import annotations

import itertools

import pytest

from headstart.plan.members import Cost, Member, Standing, Traits

STEP, COST = 4e-3, 1e-3  # seconds


def member(cost: float = COST) -> Member:
    made = Member(Traits("heads"), 1)
    made.called(1, cost, is_probe=False)
    return made


def asked(of: Member, standing: Standing, num_steps: int, gain: float, where: int = 0) -> list[int]:
    """Steps in which the member is asked, and each time earns ``gain`` seconds."""
    steps = []
    for step in range(1, num_steps + 1):
        entries, is_probe = of.chosen([(standing, where)], step, STEP)
        if entries:
            steps.append(step)
            of.called(1, of.cost.seconds(1), is_probe=is_probe)
            of.earned(standing, where, gain, 1, is_probe)
    return steps


@pytest.mark.parametrize("elsewhere", [None, 3 * COST])
def test_who_nearly_earns_the_cost_is_asked_as_often_as_the_loss_allows(elsewhere: float | None) -> None:
    """Some unlucky steps must not switch a member off for good, whatever it earns in another situation."""
    standing = Standing(gains=[0.9 * COST, elsewhere, None])
    steps = asked(member(), standing, 400, 0.9 * COST)
    assert len(steps) > 50
    assert len(steps) * 0.1 * COST <= 0.0051 * 400 * STEP


@pytest.mark.parametrize("elsewhere", [None, 3 * COST])
def test_until_the_loss_can_be_afforded_nobody_need_ask_whether_it_can(elsewhere: float | None) -> None:
    """But in another situation the member may be worth its cost, so that each step must be looked at."""
    of, standing = member(), Standing(gains=[0.6 * COST, elsewhere, None])
    looked_at = asked_at = 0
    for step in range(1, 401):
        if not of.is_idle(step):
            looked_at += 1
            entries, is_probe = of.chosen([(standing, 0)], step, STEP)
            if entries:
                asked_at += 1
                of.called(1, COST, is_probe=is_probe)
                of.earned(standing, 0, 0.6 * COST, 1, is_probe)
    assert asked_at == pytest.approx(400 * 0.005 * STEP / (0.4 * COST), rel=0.1)
    assert looked_at < 2 * asked_at + 2 if elsewhere is None else looked_at == 400


def test_waking_up_for_a_call_counts_as_a_part_of_what_it_loses() -> None:
    of, standing, waking = member(), Standing(gains=[0.9 * COST, None, None]), 0.4 * COST
    steps = [
        step for step in range(1, 401) if not of.is_idle(step) and of.chosen([(standing, 0)], step, STEP, waking=waking)[0]
    ]
    assert len(steps) == pytest.approx(400 * 0.005 * STEP / (0.5 * COST), rel=0.1)


def test_whoever_waits_for_another_situation_waits_in_vain_while_nobody_cheaper_is_asked() -> None:
    of, standing = member(), Standing(gains=[0.6 * COST, 3 * COST, None])
    assert of.chosen([(standing, 0)], 1, STEP, is_settled=True) == ([], False)
    assert of.is_idle(2)


def test_whose_luck_returns_is_on_again() -> None:
    of, standing = member(), Standing(gains=[0.6 * COST, None, None])
    steps = asked(of, standing, 200, 2 * COST)
    assert len(steps) > 150


def test_a_useless_member_loses_little_at_first_and_then_less() -> None:
    steps = asked(member(), Standing(gains=[0.0, None, None]), 2000, 0.0)
    assert 0 < len(steps) < 15
    assert steps[-1] - steps[-2] > 3 * (steps[1] - steps[0])


def test_who_was_never_tried_and_earns_nothing_is_soon_asked_no_more() -> None:
    """What is believed of it at first is a guess, which the first experiences outweigh."""
    steps = asked(member(), Standing(), 2000, 0.0)
    assert sum(step < 20 for step in steps) <= 4
    assert len(steps) < 15


def test_a_cheap_member_never_waits_long() -> None:
    steps = asked(member(1e-6), Standing(gains=[0.0, None, None]), 400, 0.0)
    assert max(b - a for a, b in itertools.pairwise(steps)) == 8


def test_a_member_that_is_off_is_tried_on_new_text() -> None:
    of, old = member(), Standing(gains=[0.0, None, None])
    assert of.chosen([(old, 0)], 1, STEP) == ([], False)
    assert of.is_idle(2)
    assert of.chosen([(old, 0), (Standing(), 0)], 2, STEP) == ([1], True)
    of.earned(old, 0, 0.0, 0, is_probe=False)
    assert of.chosen([(old, 0)], 3, STEP) == ([], True)


def test_what_was_in_vain_in_other_texts_does_not_put_off_the_second_trial_on_a_new_one() -> None:
    """Nothing can be copied at a text's beginning; some steps later much may be."""
    of = member(1e-6)
    step = asked(of, Standing(gains=[0.0, None, None]), 2000, 0.0)[-1] + 1
    of._doublings = 3  # as behind hundreds of dear failures
    of._postpone(step, STEP, 1)
    of._due = step + 64
    new = Standing()
    assert of.chosen([(new, 0)], step, STEP) == ([0], True)
    of.earned(new, 0, 0.0, 0, is_probe=True)
    later = next(later for later in range(step + 1, step + 65) if not of.is_idle(later))
    assert later == step + 8


def test_a_member_that_is_off_is_tried_on_new_text_where_the_cheaper_ones_are_not_sure() -> None:
    """While a copy runs it can show nothing; the trial that counts comes when the copy ends."""
    of, old, new = member(), Standing(gains=[0.0, None, None]), Standing()
    of.earned(old, 0, 0.0, 0, is_probe=False)
    assert of.chosen([(old, 0)], 1, STEP) == ([], False)
    assert of.chosen([(new, 2)], 2, STEP) == ([0], True)
    of.earned(new, 2, 0.0, 0, is_probe=True)
    assert of.chosen([(new, 2)], 3, STEP) == ([], True)
    assert of.chosen([(new, 0)], 4, STEP) == ([0], True)
    of.earned(new, 0, 0.0, 0, is_probe=True)
    assert of.chosen([(new, 0)], 5, STEP) == ([], True)


def test_a_long_time_with_many_sequences_does_not_make_one_look_dear() -> None:
    cost = Cost()
    for _ in range(3):
        cost.observe(1, 1.1e-3)
    for _ in range(500):
        cost.observe(32, 1e-3 + 32e-4)
    assert cost.seconds(32) == pytest.approx(4.2e-3, rel=0.02)
    assert cost.seconds(1) == pytest.approx(1.1e-3, rel=0.1)


def test_as_long_as_all_calls_are_equally_large_half_of_the_cost_is_fixed() -> None:
    cost = Cost()
    cost.observe(4, 2e-3)
    assert cost.line == pytest.approx((1e-3, 0.25e-3))
