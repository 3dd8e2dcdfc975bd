"""The plan: the field's formulas, forecasts from costs that are known by construction, and the verdict in words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headstart.measure.target_costs as target_costs
from chat_model import chat_tokenizer
from headstart.cli import app
from headstart.errors import DataError, RequestError
from headstart.llm import LLM
from headstart.measure.plan_settings import PlanSettings
from headstart.measure.planning import plan
from headstart.plan.economics import (
    StepTimes,
    accepted_in_chain,
    best_chain,
    break_even_length,
    chance_for_length,
    per_million,
    savings,
    speedup,
)
from headstart.plan.forecast import Forward
from headstart.plan.forecast_batches import BATCHES, Choice, Drafting, Line, Pace, Plain, best, choice
from headstart.plan.profile import Profile
from headstart.plan.verdict import better_head, break_even, saved, verdict
from headstart.plan.whatif import WhatIf, answer
from headstart.proposers.choose import Guesser
from headstart.target.limits import Limits
from scripted import ScriptedTarget, random_target

CHANCES, COUNTS = st.floats(0.0, 0.99), st.integers(1, 20)


# formulas


def test_the_worked_examples() -> None:
    assert speedup(3, 20, 23) == pytest.approx(2.6087, abs=1e-4)
    assert accepted_in_chain(0.8, 4) == pytest.approx(0.8 + 0.64 + 0.512 + 0.4096) == pytest.approx(2.3616)
    assert per_million(0.02, 3.6) == pytest.approx(20.0)
    assert savings(2.0, 700, 2.0) == pytest.approx(700.0)
    assert savings(0.5, 10, 1.0) == pytest.approx(-10.0)


@given(CHANCES, COUNTS)
def test_the_chance_is_the_inverse_of_the_length(p: float, k: int) -> None:
    found = chance_for_length(1 + accepted_in_chain(p, k), k)
    assert found == pytest.approx(p, abs=1e-6)
    assert chance_for_length(k + 1.5, k) is None


@given(st.floats(1.0, 50.0), st.floats(0.0, 50.0))
def test_at_the_break_even_length_nothing_is_gained_or_lost(step: float, more: float) -> None:
    assert speedup(break_even_length(step, step + more), step, step + more) == pytest.approx(1.0)


@given(CHANCES, st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_the_best_chain_is_the_best_of_all(p: float, overhead: float, draft: float) -> None:
    times = StepTimes(10.0, overhead, draft)
    k, factor = best_chain(p, times)
    every = [speedup(1 + accepted_in_chain(p, n), 10.0, times.drafting(n)) for n in range(1, 65)]
    assert factor == pytest.approx(max(1.0, *every))
    assert (k == 0) == (max(every) <= 1)


# what if


def test_what_if_answers_in_sentences_and_numbers() -> None:
    found = answer(WhatIf(l=3, t_model=20, t_overhead=3))
    assert found.lines == ("speedup: 3 * 20 / 23 = 2.61, 7.67 ms a token", "speculation loses below L = 1.150")
    assert found.figures["speedup"] == pytest.approx(60 / 23)
    found = answer(WhatIf(p=0.8, k=4))
    assert found.lines == ("a chain of 4 at p = 0.8: 0.8 + 0.64 + 0.512 + 0.4096 = 2.3616 accepted a step, L = 3.3616",)
    found = answer(WhatIf(p=0.7, k=3, t_model=20, t_overhead=2, t_draft=1), price=3.6, device_hours=100)
    assert found.figures["acceptance_length"] == pytest.approx(1 + 0.7 + 0.49 + 0.343)
    assert found.figures["speedup"] == pytest.approx(2.533 * 20 / 25)
    assert found.figures["with_better_p"]["p"] == pytest.approx(0.75)
    assert found.figures["per_million_tokens"]["plain"] == pytest.approx(20.0)
    assert found.figures["savings"] == pytest.approx(360 * (1 - 25 / (2.533 * 20)))
    assert "a head with p = 0.75 instead of 0.7 gives" in " ".join(found.lines)
    found = answer(WhatIf(l=1, t_model=20, t_overhead=10), price=2, device_hours=1000)
    assert found.lines[-1] == "1000 device-hours a month at 2 each cost 2000 in its currency; drafting costs 1000 more"
    found = answer(WhatIf(p=1, k=3, t_model=20))
    assert "instead of" not in " ".join(found.lines) and "with_better_p" not in found.figures
    assert answer(WhatIf(p=0.01, t_model=1, t_overhead=9)).lines[0] == "no number of drafted tokens pays at p = 0.01"


@pytest.mark.parametrize(
    ("numbers", "others", "reason"),
    [
        ({}, {}, "nothing to calculate"),
        ({"l": 3, "p": 0.8}, {}, "either l, or p and k"),
        ({"l": 0.5}, {}, "l is 0.5; it must be a number from 1 on"),
        ({"p": 1.5, "k": 2}, {}, "p is 1.5; it must be a number from 0 to 1"),
        ({"p": 0.5}, {}, "p alone gives nothing"),
        ({"p": 0.5, "k": 0}, {}, "k is 0"),
        ({"l": 2, "t_overhead": 3}, {}, "t_overhead has no effect without t_model"),
        ({"l": 2, "t_model": 3, "t_draft": 1}, {}, "t_draft has no effect without p"),
        ({"l": 2, "t_model": 0}, {}, "t_model is 0"),
        ({"l": 2, "t_model": float("nan")}, {}, "t_model is nan"),
        ({"l": 2}, {}, "l alone gives nothing: add t_model"),
        ({"l": 2}, {"price": 1.0}, "price has no effect without t_model"),
        ({"l": 2, "t_model": 1}, {"device_hours": 1.0}, "gpu_hours has no effect without price"),
        ({"l": 2, "t_model": 1}, {"price": -1.0}, "price is -1.0"),
    ],
)
def test_what_cannot_be_calculated_is_refused(numbers: dict[str, Any], others: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        answer(WhatIf(**numbers), **others)


# forecasts


FORWARD = Forward(Profile((1, 8, 16, 64), (1.0, 1.0, 2.0, 8.0)), positions=0.0)
TWICE = Pace({1: 2.0, 4: 2.0})
PLAIN = Plain(FORWARD, TWICE, overhead=Line(0.25, 0.25))


def drafting(length: float, nodes: int = 7, asking: float = 0.5, name: str = "medusa") -> Drafting:
    return Drafting(name, nodes, length, {nodes + 1: 10}, Line(0.0, asking), TWICE)


def test_a_line_goes_through_both_ends_and_never_below_zero() -> None:
    assert [Line.through({1: 1.0, 4: 2.5}).at(n) for n in (1, 2, 4, 8)] == [1.0, 1.5, 2.5, 4.5]
    assert Line.through({1: 1.0}).at(9) == 1.0
    assert Line.through({1: 1.0, 4: 0.1}).at(32) == 0.0


def test_a_forecast_is_arithmetic_over_what_was_measured() -> None:
    one = choice(PLAIN, drafting(2.5), 1)
    assert (one.plain_step, one.step) == (2.0 * 1.0 + 0.5, 2.0 * 1.0 + 0.5 + 0.5)
    assert one.speedup == pytest.approx(2.5 * 2.5 / 3.0)
    assert one.break_even_length == pytest.approx(1.2)
    assert one.with_length(1.2) == pytest.approx(1.0)
    two = choice(PLAIN, drafting(2.5), 2)  # 16 rows
    assert (two.plain_step, two.step) == (2.0 + 0.75, 2 * 2.0 + 0.75 + 1.0)
    assert (two.seconds_per_token, two.plain_seconds_per_token) == (5.75 / 5.0, 2.75 / 2)
    assert best(PLAIN, [drafting(1.5), drafting(2.5), drafting(2.0)], 1).drafting.length == 2.5


def test_a_pace_is_that_of_the_nearest_batches() -> None:
    assert [Pace({4: 3.0, 1: 1.5}).at(n) for n in (1, 2, 4, 32)] == [1.5, 2.0, 3.0, 3.0]
    slow = replace(drafting(2.5), pace=Pace({1: 3.0}))
    assert choice(PLAIN, slow, 1).step == 3.0 * 1.0 + 0.5 + 0.5
    part = choice(PLAIN, slow, 2.5)  # 20 rows: 2.5 at the profile's pace
    assert part.step == pytest.approx(3.0 * 2.5 + 0.875 + 1.25)
    assert PLAIN.seconds_per_token(2.5) == pytest.approx((2.0 + 0.875) / 2.5)


def test_drafts_of_many_sizes_cost_their_mean_at_one_sequence() -> None:
    mixed = Drafting("ngram", 15, 1.5, {1: 1, 16: 1}, Line(0.0, 0.0), TWICE)
    assert choice(PLAIN, mixed, 1).step == 2.0 * 1.5 + 0.5
    assert mixed.mean_rows == 8.5
    assert mixed.rows_of(2) == {2: 0.25, 17: 0.5, 32: 0.25}
    assert choice(PLAIN, mixed, 2).step == pytest.approx(2.0 * (0.25 * 1.0 + 0.5 * 2.125 + 0.25 * 4.0) + 0.75)
    between = choice(PLAIN, mixed, 1.5).step
    assert between == pytest.approx(2.0 * (0.5 * 1.5 + 0.5 * 2.3125) + 0.625)


def _choices(*speedups: float) -> list[Choice]:
    return [Choice(drafting(1.0), batch, factor, 1.0) for batch, factor in zip(BATCHES, speedups, strict=False)]


@pytest.mark.parametrize(
    ("speedups", "begins"),
    [
        ((1.5, 1.4, 1.2), "deploy: medusa with 7 nodes gives 1.50 at batch 1, and it pays at every batch up to 4"),
        ((1.5, 1.4, 1.0, 0.8), "deploy up to batch 2: medusa with 7 nodes gives 1.50 at batch 1"),
        ((1.01, 0.9), "do not deploy"),
        ((1.0, 1.2, 1.0), "deploy from batch 2 to 2"),
    ],
)
def test_the_verdict_in_words(speedups: tuple[float, ...], begins: str) -> None:
    assert verdict(_choices(*speedups)).startswith(begins)


def test_the_verdict_says_where_drafting_loses() -> None:
    assert verdict(_choices(1.5, 1.4, 1.01, 0.8)).endswith("behind that drafting loses, 0.80 at batch 8 being the least")
    assert verdict(_choices(1.5, 1.4, 1.01)).endswith("behind that it is not worth it, 1.01 at batch 4")
    assert "being the least" not in verdict(_choices(1.5, 1.4))


@pytest.mark.parametrize(
    ("clock", "told"),
    [
        ((1.4, None, 1.2), "deploy: medusa with 7 nodes gives 1.50 at batch 1, and it pays at every batch up to 4"),
        (
            (1.4, None, 0.8),
            "deploy up to batch 2: medusa with 7 nodes gives 1.50 at batch 1; "
            "at batch 4 it is forecast to give 1.20, and loses by the clock, 0.80",
        ),
        (
            (0.9, None, 1.1),
            "deploy from batch 2 to 4: medusa with 7 nodes gives 1.40 at batch 2; "
            "at batch 1 it is forecast to give 1.50, and loses by the clock, 0.90",
        ),
    ],
)
def test_no_batch_is_recommended_against_the_clock(clock: tuple[float | None, ...], told: str) -> None:
    assert verdict(_choices(1.5, 1.4, 1.2), clock) == told


def test_a_forecast_that_only_the_clock_denies_is_said() -> None:
    told = verdict(_choices(1.5, 0.9), (0.9, None))
    assert told.startswith("do not deploy") and told.endswith(
        "at batch 1 it is forecast to give 1.50, and loses by the clock, 0.90"
    )


def test_break_even_and_a_better_head_in_words() -> None:
    one = choice(PLAIN, drafting(1 + 0.7 + 0.49 + 0.343), 1)
    assert break_even(one, 3).startswith("medusa with 7 nodes loses below L = 1.20 (it has 2.53); as one chance for each of 3")
    assert "(it has 0.70)" in break_even(one, 3)
    length = 1 + 0.75 + 0.75**2 + 0.75**3
    told = better_head(one, 3)
    assert told is not None
    assert told.startswith(f"p from 0.70 to 0.75 gives L = {length:.2f} and {length * 2.5 / 3:.2f} instead of")
    assert better_head(choice(PLAIN, drafting(9.0), 1), 3) is None
    assert saved(one, 100, 2.0) == (
        "at batch 1, 100 device-hours a month at 2 each cost 200 in its currency; drafting saves 105.3 of it"
    )
    assert "drafting costs 200 more" in saved(_choices(0.5)[0], 100, 2.0)


# the measured plan


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> LLM:
    monkeypatch.setattr(target_costs, "measured", lambda _, **__: Profile((1, 2, 4, 64), (1.0, 1.0, 1.5, 20.0)))
    monkeypatch.setattr(target_costs, "measured_limits", lambda *_: Limits(1e9, 1e12))
    tokenizer = chat_tokenizer()
    return LLM(random_target(3, tokenizer.vocab_size, memory=1), tokenizer, Guesser("none", None, 0))


def test_a_plan_forecasts_every_batch_and_sets_itself_against_the_clock(llm: LLM) -> None:
    found = plan(llm, nodes=(1, 3), limit=4, max_tokens=30, price=1.0, gpu_hours=10.0)
    record = found.record
    json.dumps(record, allow_nan=False)
    assert (record["format"], record["version"]) == ("headstart-plan", 1)
    assert [one["batch"] for one in record["by_batch"]] == list(BATCHES)
    ways = {(one["proposer"], one["nodes"]) for one in record["draftings"]}
    assert ways == {(name, nodes) for name in ("ngram", "suffix", "combined") for nodes in (1, 3)}
    assert {(one["proposer"], one["nodes"], one["batch"]) for one in record["proof"]} == {
        (*way, b) for way in ways for b in (1, 4)
    }
    assert all(one["measured"] > 0 and one["predicted"] > 0 for one in record["proof"])
    for one in record["draftings"]:
        assert len(one["tree"]) <= one["nodes"] and all(path[:-1] in [[], *one["tree"]] for path in one["tree"])
    assert any(one["tree"][:1] == [[0]] for one in record["draftings"])
    assert any("serve all steps, by the ranks accepted here: (0)" in line for line in found.lines)
    assert any(note.startswith("medusa was not tried: no heads fit") for note in record["notes"])
    assert found.lines[0].startswith(("deploy", "do not deploy")) and "device-hours" in found.lines[-1]
    assert [len(row) for table in found.tables() for row in table.rows] == [
        len(table.header) for table in found.tables() for _ in table.rows
    ]


def test_answers_of_one_token_are_nothing_to_plan(llm: LLM) -> None:
    end = next(iter(llm.tokenizer.end_tokens))
    ends = np.eye(llm.target.vocab_size, dtype=np.float32)[end]
    target = ScriptedTarget(lambda _: ends, llm.target.vocab_size, end_tokens=tuple(llm.tokenizer.end_tokens))
    with pytest.raises(DataError, match="every answer ended with its first token"):
        plan(LLM(target, llm.tokenizer, Guesser("none", None, 0)), proposers=("ngram",), nodes=(1,), limit=4)


def test_a_plan_refuses_what_it_cannot_do(llm: LLM) -> None:
    with pytest.raises(DataError, match="a plan needs 4 prompts or more and given has 2"):
        plan(llm, ["a", "b"])
    with pytest.raises(RequestError, match="a plan has no option nods"):
        plan(llm, nods=3)
    with pytest.raises(RequestError, match="unknown proposer 'lookup'"):
        plan(llm, proposers=("lookup",))
    for options, reason in (
        ({"nodes": (0,)}, "nodes is"),
        ({"limit": 2}, "limit is 2"),
        ({"price": "x"}, "price is 'x'"),
        ({"gpu_hours": 3.0}, "gpu_hours has no effect without price"),
    ):
        wrong: Any = options
        with pytest.raises(RequestError, match=reason):
            replace(PlanSettings(), **wrong)


def _run(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    status = app.run(["plan", *line])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_calculator_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = _run(capsys, "--l", "3", "--t-model", "20", "--t-overhead", "3")
    assert (status, out.splitlines()[0]) == (0, "speedup: 3 * 20 / 23 = 2.61, 7.67 ms a token")
    status, out, _ = _run(capsys, "--p", "0.8", "--k", "4", "--json", "-")
    assert json.loads(out)["accepted"] == pytest.approx(2.3616)


@pytest.mark.parametrize(
    ("line", "status", "reason"),
    [
        ([], 1, "nothing to calculate"),
        (["--p", "0.8", "--k", "4", "--limit", "9"], 1, "option limit has no effect without a model"),
        (["--p", "0.8", "--k", "4", "--dtype", "int8"], 1, "option dtype has no effect without a model"),
        (["no/such/model", "--p", "0.8"], 1, "option p has no effect with a model"),
        (["--p", "much", "--k", "4"], 2, "much"),
        (["--l", "3", "--t-model", "20", "--price", "cheap"], 2, "cheap"),
    ],
)
def test_a_mistake_is_one_line(line: list[str], status: int, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    found, out, err = _run(capsys, *line)
    assert (found, out, err.count("\n")) == (status, "", 1)
    assert reason in err


def test_the_calculator_says_where_it_stopped_looking_and_what_it_was_given() -> None:
    found = answer(WhatIf(p=0.8, k=4, t_model=20, t_overhead=3), price=1.5)
    assert any("64 drafted tokens" in line and "no longer chain was tried" in line for line in found.lines)
    assert found.figures["given"] == {"p": 0.8, "k": 4, "t_model": 20, "t_overhead": 3, "price": 1.5}
    own_price = answer(WhatIf(p=0.8, k=4, t_model=20, t_overhead=3, t_draft=1.0))
    assert not any("no longer chain was tried" in line for line in own_price.lines)
    assert answer(WhatIf(l=1e308, t_model=1e308, t_overhead=1)).figures["speedup"] == 1e308
