"""The engine's walks and drafts are those of Python's own code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart import _native
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.suffix import CompiledText, PythonText
from headstart.proposers.walk import DepthWalk, TreeWalk, grow, grown_in_python
from headstart.sampling import Sampler, Sampling
from headstart.tree import Tree, TreeBuilder

VOCAB = 6
TEXTS = st.lists(st.integers(0, 3), min_size=1, max_size=120)


def in_flight(tokens: Sequence[int], temperature: float = 0.0) -> InFlight:
    sampler = Sampler(Sampling(temperature=temperature), vocab_size=VOCAB, seed=9)
    return InFlight(0, tokens, len(tokens), sampler, 15, 15)


def both_texts(
    tokens: Sequence[int], num_prompt: int, cuts: Sequence[int], temperature: float
) -> tuple[PythonText, CompiledText]:
    """The two texts, both having heard of the tokens piece by piece."""
    texts = PythonText(tokens[:num_prompt], num_prompt), CompiledText(tokens[:num_prompt], num_prompt)
    for text in texts:
        for end in (*sorted(cut for cut in cuts if num_prompt <= cut < len(tokens)), len(tokens)):
            text.update(in_flight(tokens[:end], temperature))
    return texts


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    builder, shares = TreeBuilder(0), {0: 1.0}
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.sampled_from(sorted(shares)))
        share = draw(st.floats(0.001, 0.7)) * shares[parent]
        row = builder.add(parent, draw(st.integers(0, VOCAB - 1)), share)
        shares[parent] -= share
        shares.setdefault(row, 1.0)
    return builder.build()


@st.composite
def guesses(draw: st.DrawFn) -> DepthWalk:
    depths, ranks = draw(st.integers(0, 4)), draw(st.integers(1, 4))
    tokens = [draw(st.permutations(range(VOCAB)))[:ranks] for _ in range(depths)]
    values = [[draw(st.sampled_from([0.0, 0.05, 0.11, 0.2, 0.24])) for _ in range(ranks)] for _ in range(depths)]
    return DepthWalk(np.array(tokens, dtype=np.int64).reshape(depths, ranks), np.array(values).reshape(depths, ranks))


@given(TEXTS, st.integers(1, 120), st.lists(st.integers(0, 120), max_size=4), st.sampled_from([0.0, 0.8]), st.data())
def test_a_compiled_text_copies_what_a_text_in_python_copies(
    tokens: list[int], num_prompt: int, cuts: list[int], temperature: float, data: st.DataObject
) -> None:
    python, compiled = both_texts(tokens, min(num_prompt, len(tokens)), cuts, temperature)
    there: Any = python.start()
    here: Any = compiled.walk.start()
    for depth in range(6):
        expected, found = python.children(there), compiled.walk.children(here)
        assert list(found) == list(expected)  # their order decides between equals
        assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-9)
        if not depth:
            assert compiled.walk.first_estimate() == pytest.approx(python.first_estimate(), rel=1e-9)
        token = data.draw(st.integers(0, 3))
        there, here = python.step(there, token), compiled.walk.step(here, token)


@settings(max_examples=200)
@given(
    TEXTS,
    st.lists(st.one_of(trees().map(TreeWalk), guesses()), max_size=3),
    st.integers(0, 20),
    st.integers(0, 8),
    st.sampled_from([0.0, 0.005, 0.1]),
)
def test_a_compiled_draft_is_the_one_grown_in_python(
    tokens: list[int], others: list[Any], max_nodes: int, max_depth: int, least_reach: float
) -> None:
    python, compiled = both_texts(tokens, 1, (), 0.0)
    expected = grown_in_python(0, [*others, python], max_nodes, max_depth, least_reach)
    found = grow(0, [*others, compiled.walk], max_nodes, max_depth, least_reach)
    assert found.tree.tokens == expected.tree.tokens
    assert found.tree.parents == expected.tree.parents
    np.testing.assert_allclose(found.tree.probabilities, expected.tree.probabilities, rtol=1e-9)
    np.testing.assert_allclose(np.array(found.estimates), np.array(expected.estimates), rtol=1e-9)


@given(trees(), guesses(), TEXTS)
def test_compiled_walks_also_grow_beside_walks_that_are_not(tree: Tree, depths: DepthWalk, tokens: list[int]) -> None:
    python, compiled = both_texts(tokens, 1, (), 0.0)

    class Foreign(TreeWalk):
        def compiled(self) -> None:
            return None

    expected = grown_in_python(0, [Foreign(tree), depths, python], 15, 9)
    found = grow(0, [Foreign(tree), depths, compiled.walk], 15, 9)
    assert (found.tree.tokens, found.tree.parents) == (expected.tree.tokens, expected.tree.parents)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one entry a row"):
        _native.TreeWalk([1, 2], [-1], [1.0])
    with pytest.raises(ValueError, match="every parent stands before its child"):
        _native.TreeWalk([1, 2], [-1, 1], [1.0, 0.5])
    given: dict[str, Any] = {"latest": 8, "most_matches": 24, "tail": 32, "classes": [0, 1], "prior": [0.5] * 8}
    given |= {"prior_weight": 8.0, "weight_of_noise": 0.3, "noise_of_others": 1.0}
    faults: list[dict[str, Any]] = [
        {"latest": 0},
        {"prior": [0.5] * 7},
        {"classes": [2]},
        {"classes": []},
        {"prior_weight": 0.0},
    ]
    for wrong in faults:
        with pytest.raises(ValueError, match=r"prior|bounds"):
            _native.Copying([1], **(given | wrong))
    nobody: Any = [None]
    with pytest.raises(ValueError, match="a walk is None"):
        _native.grow(0, nobody, 3, 3, 0.0, 0.99)
