"""The engine's offers, chances and budgets are those of Python's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import _native
from headstart.plan.budget import allot, allotted_in_python
from headstart.plan.chances import PythonChances, PythonOwnChances, new_chances, new_own_chances
from headstart.plan.offer import CompiledOffer, Offer, PythonOffer, offer_of
from headstart.proposers.walk import TreeWalk, Walk, grown_in_python
from headstart.tree import ROOT, Tree, TreeBuilder

VOCAB = 5
BITS = (1, 2, 4)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    builder, shares = TreeBuilder(0), {ROOT: 1.0}
    for _ in range(draw(st.integers(0, 10))):
        parent = draw(st.sampled_from(sorted(shares)))
        share = draw(st.floats(0.001, 0.9)) * shares[parent]
        row = builder.add(parent, draw(st.integers(0, VOCAB - 1)), share)
        shares[parent] -= share
        shares.setdefault(row, 1.0)
    return builder.build()


class Foreign(TreeWalk):
    """A walk that the engine does not have."""

    def compiled(self) -> None:
        return None


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(BITS), st.tuples(trees(), st.booleans()), min_size=1),
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6),
        st.booleans(),  # of which of two sequences
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200)
@given(STEPS, st.integers(0, 12), st.integers(0, 6), st.randoms(use_true_random=False))
def test_a_compiled_offer_weighs_and_learns_what_one_in_python_does(
    steps: Sequence[tuple[dict[int, tuple[Tree, bool]], list[int], bool]], max_nodes: int, max_depth: int, random: Any
) -> None:
    python, compiled = PythonChances(), new_chances()
    own, own_compiled = (PythonOwnChances(), PythonOwnChances()), (new_own_chances(), new_own_chances())
    for said, committed, which in steps:
        walks: dict[int, Walk] = {bit: (Foreign if foreign else TreeWalk)(tree) for bit, (tree, foreign) in said.items()}
        grown = grown_in_python(0, list(walks.values()), max_nodes, max_depth)
        there = PythonOffer.of(grown, tuple(walks), python, own[which])
        here = offer_of(0, walks, compiled, own_compiled[which], max_nodes=max_nodes, max_depth=max_depth)
        assert isinstance(here, CompiledOffer)
        _require_same(there, here, _closed(grown.tree, random))
        assert here.learn(committed, compiled, own_compiled[which]) == there.learn(committed, python, own[which])
    for kind in range(16):
        assert own_compiled[0].factor(kind) == pytest.approx(own[0].factor(kind), rel=1e-9)
        for estimate in (0.01, 0.3, 0.99):
            assert compiled.scaled(kind, 2, estimate) == pytest.approx(python.scaled(kind, 2, estimate), rel=1e-9)


def _require_same(there: Offer, here: Offer, rows: list[int]) -> None:
    np.testing.assert_allclose(here.reaches, there.reaches, rtol=1e-9)
    expected, found = there.tree(rows), here.tree(rows)
    assert (found.tokens, found.parents) == (expected.tokens, expected.parents)
    np.testing.assert_allclose(found.probabilities, expected.probabilities, rtol=1e-9)
    for place, bit in enumerate(BITS):
        own, own_expected = here.own_tree(found, rows, bit), there.own_tree(expected, rows, bit)
        np.testing.assert_allclose(own.probabilities, own_expected.probabilities, rtol=1e-9)
        assert here.share(rows, bit, sum(BITS[:place])) == pytest.approx(there.share(rows, bit, sum(BITS[:place])))


def _closed(tree: Tree, random: Any) -> list[int]:
    """Some rows that hold the parent of each."""
    kept = {ROOT}
    for row in range(1, len(tree)):
        if tree.parents[row] in kept and random.random() < 0.6:
            kept.add(row)
    return sorted(kept - {ROOT})


@st.composite
def forests(draw: st.DrawFn) -> list[list[float]]:
    """Reaches of several trees; equal ones are likely."""
    forest = []
    for _ in range(draw(st.integers(1, 4))):
        reaches = [1.0]
        for _ in range(draw(st.integers(0, 8))):
            reaches.append(draw(st.sampled_from(reaches)) * draw(st.sampled_from([1.0, 0.9, 0.5, 0.25, 0.1])))
        forest.append(reaches)
    return forest


@given(forests(), st.lists(st.sampled_from([0.0, 0.01, 0.05, 0.3]), min_size=1, max_size=30), st.sampled_from([0.0, 0.02]))
def test_a_compiled_budget_is_the_one_of_python(forest: list[list[float]], rises: list[float], margin: float) -> None:
    seconds = np.cumsum([1.0, *rises[1:]]).tolist()
    expected = allotted_in_python(forest, len(forest), seconds, margin)
    found = allot(forest, len(forest), seconds, margin=margin)
    assert found.rows == expected.rows
    assert found.seconds == expected.seconds
    assert found.num_tokens == pytest.approx(expected.num_tokens)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one entry a row"):
        _native.Offer([0, 1], [-1, 0], [1.0, 0.5], [[0.0], [0.5, 0.5]], [1])
    with pytest.raises(ValueError, match="every parent stands before its child"):
        _native.Offer([0, 1], [-1, 1], [1.0, 0.5], [[0.0], [0.5]], [1])
    with pytest.raises(ValueError, match="a walk is None"):
        _native.Offer.grown(0, [None], [1], 5, 5, 0.0, 0.99)  # type: ignore[list-item]
    offer = _native.Offer([0, 1, 2], [-1, 0, 1], [1.0, 0.5, 0.5], [[0.0], [0.5], [0.5]], [1])
    with pytest.raises(IndexError):
        offer.share([1], 1, 0)  # it was not weighed
    chances, own = _native.Chances([0.5], [1.0, 1.0], 0.9, 0.98), _native.OwnChances(1.0, 0.9)
    offer.weigh(chances, own)
    for rows in ([2], [3], [-1], [0], [1, 1, 5]):
        with pytest.raises(ValueError, match=r"parent|this row"):
            offer.draft(rows)
    with pytest.raises(ValueError, match="this row"):
        offer.estimates([7], 1)
    with pytest.raises(ValueError, match="one entry a depth and size"):
        _native.Chances([0.5], [1.0, 1.0, 1.0], 0.9, 0.98)
    with pytest.raises(ValueError, match="at least 1"):
        chances.observe(1, 0, 0.5, True)
    with pytest.raises(ValueError, match="eight members"):
        own.observe(1 << 40, 0.5, True)
    with pytest.raises(ValueError, match="without drafts"):
        _native.allot([[1.0, 0.5]], 1.0, [], 0.0)
