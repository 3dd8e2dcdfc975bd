"""The native cell: a level in one call is the level composed of single operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headstart import _native
from headstart.accept import Choice
from headstart.errors import ModelError
from headstart.heads.hydra import BoundHydra, HydraConfig, HydraHeads
from headstart.heads.operations import Coupling
from headstart.proposers.base import Observation
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.hydra import HydraProposer
from headstart.sampling import Sampler, Sampling
from headstart.target.native_operations import NativeOperations
from headstart.tree import Tree

V, D, K = 80, 32, 3


class Weights:
    def __init__(self, matrix: _native.Matrix) -> None:
        self.embedding = self.output = matrix


def bound(dtype: str, inner: int = 48, draft_vocab: tuple[int, ...] | None = None) -> BoundHydra:
    rng, ops = np.random.default_rng(3), NativeOperations(dtype)
    config = HydraConfig(num_heads=K, hidden_size=D, vocab_size=V, inner_size=inner, draft_vocab=draft_vocab)
    tensors = {name: rng.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in config.shapes().items()}
    matrix = ops.array(rng.standard_normal((V, D)).astype(np.float32))
    assert isinstance(matrix, _native.Matrix)
    return HydraHeads(config, tensors).bind(ops, Weights(matrix))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q4_1"])
@pytest.mark.parametrize("draft_vocab", [None, tuple(range(70, 3, -1))])
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 11), depth=st.integers(0, K - 1), ranks=st.integers(1, 90))
def test_a_level_is_what_its_operations_give(
    dtype: str, draft_vocab: tuple[int, ...] | None, seed: int, rows: int, depth: int, ranks: int
) -> None:
    heads, rng = bound(dtype, draft_vocab=draft_vocab), np.random.default_rng(seed)
    parents, tokens = rng.standard_normal((rows, D)).astype(np.float32), rng.integers(0, V, rows).tolist()
    states, ids, probabilities = heads.level(parents, tokens, depth, ranks)
    expected = heads.states(parents, tokens, depth)
    # Activations are rounded to bytes beside 4-bit weights, so a last bit of an exponential may become a step of 1/127.
    np.testing.assert_allclose(states, expected, atol=1e-5 if dtype == "float32" else 0.05)
    found, values = heads.guesses(states, ranks)
    np.testing.assert_array_equal(ids, found)
    np.testing.assert_array_equal(probabilities, values)


def test_a_row_is_the_same_beside_any_others() -> None:
    heads, rng = bound("bfloat16"), np.random.default_rng(0)
    parents, tokens = rng.standard_normal((9, D)).astype(np.float32), list(range(9))
    together = heads.level(parents, tokens, 1, 5)
    for row in range(9):
        alone = heads.level(parents[row : row + 1], [tokens[row]], 1, 5)
        for one, all_rows in zip(alone, together, strict=True):
            np.testing.assert_array_equal(one[0], all_rows[row])


def test_inner_sizes_that_no_kernel_takes_are_composed() -> None:
    heads = bound("float32", inner=20)
    assert heads._cell is None
    states, ids, _ = heads.level(np.ones((2, D), dtype=np.float32), [1, 2], 0, 4)
    assert states.shape == (2, D) and ids.shape == (2, 4)


def cell() -> _native.Cell:
    found = bound("float32")._cell
    assert isinstance(found, _native.Cell)
    return found


def test_what_does_not_fit_is_refused() -> None:
    ops, row = NativeOperations("float32"), np.zeros((1, D), dtype=np.float32)
    one = np.zeros(1, dtype=np.int64)
    for tokens, depth in ((one + V, 0), (one - 1, 0), (one, K), (one, -1)):
        with pytest.raises(IndexError, match=r"token|depth"):
            cell().level(row, tokens, depth, 3)
    for parents, tokens, k in (
        (row, np.zeros(2, dtype=np.int64), 3),
        (row[:, 1:].copy(), one, 3),
        (row[:0], one[:0], 3),
        (row, one, 0),
    ):
        with pytest.raises(ValueError, match=r"parents|k must"):
            cell().level(parents, tokens, 0, k)

    def matrix(outputs: int, inputs: int) -> _native.Matrix:
        found = ops.array(np.zeros((outputs, inputs), dtype=np.float32))
        assert isinstance(found, _native.Matrix)
        return found

    right = {"embedding": (V, D), "inner": (48, 2 * D), "project": (D, 48), "output": (V, D)}
    for name, shape in {"embedding": (V, D + 16), "inner": (48, D), "project": (D, 32), "output": (V, D - 16)}.items():
        with pytest.raises(ValueError, match="it must be"):
            _native.Cell(**{key: matrix(*value) for key, value in (right | {name: shape}).items()}, biases=[[0.0] * 48])
    for biases in ([], [[0.0] * 47]):
        with pytest.raises(ValueError, match="bias"):
            _native.Cell(**{key: matrix(*value) for key, value in right.items()}, biases=biases)
    with pytest.raises(ValueError, match="multiple of 16"):
        _native.Cell(matrix(V, D), matrix(20, 2 * D), matrix(D, 20), matrix(V, D), [[0.0] * 20])


def test_states_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(ModelError, match=r"finite|NaN|usable"):
        cell().level(np.full((1, D), np.nan, dtype=np.float32), np.zeros(1, dtype=np.int64), 0, 3)


def asked(tokens: list[int], nodes: int, depth: int, least_reach: float, sampling: Sampling | None = None) -> InFlight:
    sampler = Sampler(sampling or Sampling(), vocab_size=V, seed=1)
    return InFlight(len(tokens), tokens, len(tokens), sampler, nodes, depth, least_reach=least_reach)


class Found:
    """Hidden states as a target hands them out."""

    def __init__(self, hidden: NDArray[np.float32]) -> None:
        self.states = hidden

    def hidden(self, rows: Sequence[tuple[int, int]]) -> NDArray[np.float32]:
        return self.states[[row for row, _ in rows]]


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    min_p=st.sampled_from([0.0, 0.05, 1.0]),
)


@pytest.mark.parametrize("draft_vocab", [None, tuple(range(70, 3, -1))])
@given(
    seed=st.integers(0, 10**6),
    samples=st.lists(samplings, min_size=4, max_size=4),
    limits=st.lists(st.tuples(st.integers(1, 14), st.integers(1, 5), st.sampled_from([0.0, 0.2, 0.7])), min_size=1, max_size=4),
    ranks=st.integers(1, 6),
    right=st.lists(st.booleans(), max_size=5),
)
def test_a_draft_in_one_call_is_the_one_grown_level_by_level(
    draft_vocab: tuple[int, ...] | None,
    seed: int,
    samples: list[Sampling],
    limits: list[tuple[int, int, float]],
    ranks: int,
    right: list[bool],
) -> None:
    proposer, rng = HydraProposer(bound("float32", draft_vocab=draft_vocab), num_ranks=ranks), np.random.default_rng(seed)
    found: Any = Found(rng.standard_normal((len(limits), D)).astype(np.float32))
    sequences = [asked([3] * (i + 1), *limit, sampling=samples[i]) for i, limit in enumerate(limits)]
    told = [Observation(s.key, Tree.chain([1, 3]), (3,), found, (i, 1)) for i, s in enumerate(sequences)]
    proposer.observe(told)
    for is_right in right:  # so that estimates are scaled
        tree = Tree.chain([3, 3, 3], [1.0, 0.5, 0.4])
        tokens = (3, 3, 3) if is_right else (3,)
        proposer.observe([Observation(s.key, tree, tokens, found, (i, 0)) for i, s in enumerate(sequences)])
    states: Any = [proposer._states.known(sequence) for sequence in sequences]
    expected, num_passes = proposer._grown(sequences, states), proposer.num_passes
    drafted = proposer.propose(sequences)
    assert proposer._is_compiled(sequences) and proposer.num_passes == 2 * num_passes
    for one, other in zip(drafted, expected, strict=True):
        assert (one.tokens, one.parents) == (other.tokens, other.parents)
        np.testing.assert_allclose(one.probabilities, other.probabilities, rtol=1e-6)  # 1 - mass at a high temperature


def test_other_choices_of_children_are_grown_in_python() -> None:
    proposer, warm = HydraProposer(bound("float32")), Sampling(temperature=1.0)
    for choice, compiled in (("coupled", True), ("drawn", False), ("likeliest", False)):
        sequence = replace(asked([3], 4, 2, 0.0, warm), choice=cast(Choice, choice))
        assert proposer._is_compiled([sequence]) is compiled
    assert proposer._is_compiled([replace(asked([3], 4, 2, 0.0), choice="drawn")]), "at temperature 0 all choices are one"


def test_drafts_that_do_not_fit_are_refused() -> None:
    hidden = np.zeros((1, D), dtype=np.float32)
    given: dict[str, Any] = {"hidden": hidden, "roots": [1], "max_nodes": [3], "num_levels": [2], "least_reach": [0.0]}
    given |= {"factors": [[1.0, 1.0]], "num_ranks": 2, "least_node_reach": 0.0, "certain": 0.99}
    assert cell().draft(**given)[1] == 2
    noise = Coupling([1, 2], 1.0, 0, 1.0, -math.inf, V, 0.7)
    assert cell().draft(**given, noises=[noise], num_candidates=4)[1] == 2
    misshapen: list[dict[str, Any]] = [
        {"hidden": hidden[:, 1:].copy()},
        {"roots": []},
        {"roots": [1, 2]},
        {"max_nodes": [0]},
        {"num_levels": [0]},
        {"factors": [[1.0]]},
        {"num_ranks": 0},
        {"base_ids": np.zeros(3, dtype=np.int64)},
        {"noises": [noise, noise], "num_candidates": 4},
        {"noises": [noise], "num_candidates": 1},
        {"noises": [noise._replace(keys=[1])], "num_candidates": 4},
        {"noises": [noise._replace(temperature=0.0)], "num_candidates": 4},
        {"noises": [noise._replace(temperature=float("nan"))], "num_candidates": 4},
    ]
    for wrong in misshapen:
        with pytest.raises(ValueError, match=r"entry|number|rows|draft|num_ranks|base_ids|temperature"):
            cell().draft(**(given | wrong))
    outside: list[dict[str, Any]] = [{"num_levels": [K + 1], "factors": [[1.0] * 9]}, {"roots": [V]}]
    for wrong in outside:
        with pytest.raises(IndexError, match=r"levels|token"):
            cell().draft(**(given | wrong))
    with pytest.raises(ModelError, match="NaN"):
        cell().draft(**(given | {"hidden": hidden + np.nan}))
