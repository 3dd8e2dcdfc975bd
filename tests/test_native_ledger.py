"""The engine's ledger decides what the one in Python decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import _native
from headstart.plan import chances, ledger, members, stepcost
from headstart.plan.compiled_ledger import CompiledLedger, new_ledger
from headstart.plan.ledger import Batch, PythonLedger, Step
from headstart.plan.members import Traits
from headstart.plan.profile import Profile
from headstart.proposers.walk import TreeWalk
from headstart.sampling import Sampling
from headstart.tree import ROOT, Tree, TreeBuilder
from synthetic import BFLOAT16, SMALL, Seconds, auto, decode
from test_controller import Text, copier, heads, prompts, world

VOCAB = 5
MEMBERS = [Traits("first"), Traits("second"), Traits("third")]
PROFILES = [
    Profile((1, 2, 4, 8, 16), (1.0e-3, 1.02e-3, 1.1e-3, 1.2e-3, 2e-3), 256, 1e-7),
    Profile((1, 8, 16), (1e-3, 3e-3, 6e-3)),
    Profile((1,), (1e-3,)),
]


class Foreign(TreeWalk):
    """A walk that the engine does not have."""

    def compiled(self) -> None:
        return None


@st.composite
def walks(draw: st.DrawFn) -> TreeWalk:
    builder, shares = TreeBuilder(0), {ROOT: 1.0}
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from(sorted(shares)))
        share = draw(st.floats(0.001, 0.95)) * shares[parent]
        row = builder.add(parent, draw(st.integers(0, VOCAB - 1)), share)
        shares[parent] -= share
        shares.setdefault(row, 1.0)
    return (Foreign if draw(st.booleans()) else TreeWalk)(builder.build())


KEYS = st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True)
STEPS = st.lists(
    st.tuples(
        KEYS,
        st.integers(0, 3),  # rows of prompts in it
        st.lists(walks(), min_size=9, max_size=9),
        st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5), min_size=3, max_size=3),
        st.sampled_from([1e-5, 1e-4, 5e-4]),  # seconds of a call
        st.sampled_from([0.5, 1.0, 1.3]),  # of a step, over those of one row
        st.sampled_from([1, 1, 1, 5, 70]),  # steps until the next one
        st.one_of(st.none(), st.integers(0, 3)),  # who leaves
    ),
    min_size=1,
    max_size=14,
)


@settings(max_examples=150)
@given(st.sampled_from(PROFILES), STEPS)
def test_all_that_is_decided_is_decided_alike(profile: Profile, steps: Sequence[Any]) -> None:
    there, here = PythonLedger(profile, MEMBERS), new_ledger(profile, MEMBERS)
    assert isinstance(here, CompiledLedger)
    for one in (there, here):
        one.tried(0, 2e-5)
        one.tried(1, 3e-4)
    number = 0
    for keys, num_prompt, said, committed, seconds, speed, pause, gone in steps:
        number += pause
        batch = Batch(keys, [0] * len(keys), [6] * len(keys), [4] * len(keys), len(keys) + num_prompt, 300.0)
        ours, theirs = here.begin(number, batch), there.begin(number, batch)
        _asked_alike(ours, theirs, said, seconds)
        assert ours.offer() == theirs.offer() == ours.has_offers == theirs.has_offers
        if ours.has_offers:
            ours.share_out(1e-4)
            theirs.share_out(1e-4)
        assert ours.num_drafted == theirs.num_drafted
        trees = [ours.draft(entry) for entry in range(len(keys))]
        for tree, expected in zip(trees, [theirs.draft(entry) for entry in range(len(keys))], strict=True):
            _require_same(tree, expected)
        for key, tree in zip(keys, trees, strict=True):
            for place in range(len(MEMBERS)):
                verified = tree or Tree.root(0)
                _require_same(ours.own_tree(key, verified, place), theirs.own_tree(key, verified, place))
        tokens = committed[: len(keys)]
        ours.observe([*keys, 99], [*tokens, [1]], speed * 1e-3)
        theirs.observe([*keys, 99], [*tokens, [1]], speed * 1e-3)
        ours.charge(2e-4)
        theirs.charge(2e-4)
        if gone is not None:
            here.forget(gone)
            there.forget(gone)
        _require_alike(here, there, number, keys, profile)


def _asked_alike(ours: Step, theirs: Step, said: Sequence[TreeWalk], seconds: float) -> None:
    due = list(ours.due())
    assert due == list(theirs.due())
    for place in due:
        call, expected = ours.choose(place), theirs.choose(place)
        assert (list(call.entries), list(call.sizes)) == (list(expected.entries), list(expected.sizes))
        assert call.least_reach == pytest.approx(expected.least_reach, rel=1e-9)
        if call.entries:
            told = [said[3 * place + entry] for entry in call.entries]
            ours.told(place, told, seconds, place)
            theirs.told(place, told, seconds, place)
        assert ours.was_asked(place) == theirs.was_asked(place) == bool(call.entries)
    assert ours.has_asked == theirs.has_asked


def _require_same(tree: Tree | None, expected: Tree | None) -> None:
    assert (tree is None) == (expected is None)
    if tree is not None and expected is not None:
        assert (tree.tokens, tree.parents) == (expected.tokens, expected.parents)
        np.testing.assert_allclose(tree.probabilities, expected.probabilities, rtol=1e-9)


def _require_alike(here: CompiledLedger, there: PythonLedger, number: int, keys: Sequence[int], profile: Profile) -> None:
    assert (here.num_timed, here.num_sequences()) == (there.num_timed, there.num_sequences())
    for rows in (1, 3, 12, 40):
        assert here.seconds(rows) == pytest.approx(there.seconds(rows), rel=1e-9)
    for place in range(len(MEMBERS)):
        assert here.describe(place) == pytest.approx(there.describe(place), rel=1e-9)
        assert here.is_untried(place, keys) == there.is_untried(place, keys)
        for later in (1, 2, 9, 100):
            assert here.is_idle(place, number + later) == there.is_idle(place, number + later)


@pytest.mark.parametrize("cost", [BFLOAT16, SMALL], ids=["bfloat16", "small"])
@pytest.mark.parametrize(("text", "batch"), [(Text(1), 1), (Text(2, copied=0.7), 1), (Text(3, copied=0.4), 4)])
def test_whole_answers_take_the_same_time(text: Text, batch: int, cost: Seconds) -> None:
    """On a clock on which only forwards and calls take time, everything repeats exactly."""
    found = []
    for make in (CompiledLedger, PythonLedger):
        target = world(text, cost)
        proposer = auto(target, copy=copier(target), heads=heads(target))
        calls = [proposer.ledger.describe(place)["cost_ms"] for place in (0, 1)]
        proposer.ledger = make(proposer.profile, proposer.traits)
        for place, milliseconds in enumerate(calls):
            proposer.ledger.tried(place, milliseconds / 1000)
        taken = decode(target, proposer, prompts(4), Sampling(max_tokens=120), batch=batch, num_nodes=31)[0]
        found.append((taken, proposer.describe()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    assert found[0][1]["steps_by_drafted_rows"] == found[1][1]["steps_by_drafted_rows"]
    for ours, theirs in zip(found[0][1]["members"], found[1][1]["members"], strict=True):
        assert ours.pop("proposer") == theirs.pop("proposer")
        assert ours == pytest.approx(theirs, rel=1e-9)


def native_ledger(**changes: Any) -> _native.Ledger:
    numbers = ledger.NUMBERS | chances.NUMBERS | members.NUMBERS | stepcost.NUMBERS
    numbers |= {"context": 0, "row_position_seconds": 0.0, "min_reach": 0.005, "certain": 0.99}
    given: dict[str, Any] = {"num_members": 2, "rows": [1, 8], "seconds": [1e-3, 2e-3], "numbers": numbers}
    given |= {"edges": chances.EDGES, "priors": chances.PRIORS, "sure": members.SURE}
    return _native.Ledger(**(given | changes))


def test_what_does_not_fit_is_refused() -> None:
    for changes, fault in (
        ({"num_members": 9}, "eight members"),
        ({"rows": [], "seconds": []}, "profile"),
        ({"rows": [2], "seconds": [1.0]}, "profile"),
        ({"rows": [1, 1], "seconds": [1.0, 1.0]}, "profile"),
        ({"rows": [1, 2], "seconds": [1.0]}, "profile"),
        ({"rows": [1, 2], "seconds": [1.0, 0.0]}, "profile"),
        ({"numbers": {}}, "lack context"),
        ({"priors": [1.0]}, "one entry a depth and size"),
    ):
        with pytest.raises(ValueError, match=fault):
            native_ledger(**changes)
    here = native_ledger()
    here.tried(0, 1e-5)
    with pytest.raises(ValueError, match="one entry a sequence"):
        here.begin(1, [1, 2], [0], [6], [4], 1, 10.0)
    with pytest.raises(IndexError):
        here.describe(2)
    with pytest.raises(ValueError, match="at least one row"):
        here.seconds(0)
    step = here.begin(1, [1], [0], [6], [4], 1, 10.0)
    with pytest.raises(ValueError, match="asked last"):
        step.told(0, [0.5], 1e-4, 0)
    assert step.choose(0)[0] == (0,)
    step.told(0, [0.5], 1e-4, 0)
    with pytest.raises(ValueError, match="a walk is None"):
        step.offer(0, [None], [1])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="one entry a row"):
        step.offer_grown(0, [0, 1], [-1, 0], [1.0, 0.5], [[0.0], [0.5, 0.5]], [1])
    with pytest.raises(ValueError, match="every parent stands before its child"):
        step.offer_grown(0, [0, 1], [-1, 1], [1.0, 0.5], [[0.0], [0.5]], [1])
    with pytest.raises(IndexError):
        step.offer_grown(1, [0, 1], [-1, 0], [1.0, 0.5], [[0.0], [0.5]], [1])
    with pytest.raises(ValueError, match="one entry a sequence"):
        step.observe([1], [], 1e-3)
    with pytest.raises(IndexError):
        step.draft(1)


def test_a_step_keeps_its_ledger() -> None:
    step = native_ledger().begin(1, [1], [0], [6], [4], 1, 10.0)
    assert step.due() == [0, 1]
    assert step.draft(0) is None
