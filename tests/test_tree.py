"""Laws of trees: shapes, masks, and the two ways of choosing a shape against exhaustive search."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headstart.tree import ROOT, Path, Tree, TreeBuilder, expected_length, grow, optimal_paths


@st.composite
def trees(draw: st.DrawFn, max_rows: int = 12) -> Tree:
    builder = TreeBuilder(draw(st.integers(0, 9)))
    num_rows = 1
    for _ in range(draw(st.integers(0, max_rows - 1))):
        row = builder.add(draw(st.integers(0, num_rows - 1)), draw(st.integers(0, 9)), draw(st.floats(0, 1)))
        num_rows = max(num_rows, row + 1)
    return builder.build()


@st.composite
def accuracy_tables(draw: st.DrawFn) -> NDArray[np.float64]:
    num_depths, num_ranks = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    values = draw(st.lists(st.integers(0, 100), min_size=num_depths * num_ranks, max_size=num_depths * num_ranks))
    return np.array(values, dtype=np.float64).reshape(num_depths, num_ranks) / 100


def all_shapes(num_depths: int, num_ranks: int, num_nodes: int) -> set[frozenset[Path]]:
    """Every set of at most ``num_nodes`` paths that holds each path's parent."""
    shapes: set[frozenset[Path]] = {frozenset()}
    newest = set(shapes)
    for _ in range(num_nodes):
        newest = {
            shape | {(*parent, rank)}
            for shape in newest
            for parent in [(), *shape]
            for rank in range(num_ranks)
            if len(parent) < num_depths and (*parent, rank) not in shape
        }
        shapes |= newest
    return shapes


def all_paths(num_depths: int, num_ranks: int) -> Iterator[Path]:
    for depth in range(1, num_depths + 1):
        yield from itertools.product(range(num_ranks), repeat=depth)


@given(trees())
def test_the_mask_of_a_tree_is_reachability(tree: Tree) -> None:
    mask = tree.ancestors()
    for row in range(len(tree)):
        reachable = {ROOT, *tree.path(row)} if row else {ROOT}
        assert set(np.flatnonzero(mask[row])) == reachable


@given(trees())
def test_depth_is_the_length_of_the_path(tree: Tree) -> None:
    assert tree.depths == tuple(len(tree.path(row)) for row in range(len(tree)))


@given(trees(), st.data())
def test_a_text_follows_the_rows_that_carry_its_tokens(tree: Tree, data: st.DataObject) -> None:
    path = tree.path(data.draw(st.integers(0, len(tree) - 1)))
    tokens = [tree.tokens[row] for row in path]
    assert tree.followed(tokens) == path
    assert tree.followed([*tokens, 10]) == path, "no row carries 10"
    assert tree.followed([10, *tokens]) == ()


@given(trees())
def test_a_child_is_found_by_its_token(tree: Tree) -> None:
    for row, parent in enumerate(tree.parents[1:], start=1):
        assert tree.child(parent, tree.tokens[row]) == row
        assert row in tree.children[parent]
    assert tree.child(ROOT, 10) is None


@given(trees(), st.integers(0, 12), st.integers(0, 5))
def test_pruning_keeps_the_likeliest_paths_within_the_limits(tree: Tree, max_nodes: int, max_depth: int) -> None:
    pruned = tree.pruned(max_nodes, max_depth)
    assert pruned.num_drafted <= max_nodes
    assert max(pruned.depths) <= max_depth
    within = [p for p, depth in zip(tree.path_probabilities(), tree.depths, strict=True) if 0 < depth <= max_depth]
    assert sorted(pruned.path_probabilities()[1:], reverse=True) == sorted(within, reverse=True)[:max_nodes]

    def words(t: Tree) -> set[tuple[int, ...]]:
        return {tuple(t.tokens[r] for r in t.path(row)) for row in range(len(t))}

    assert words(pruned) <= words(tree)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_a_chain_has_one_child_a_node(tokens: list[int]) -> None:
    chain = Tree.chain(tokens)
    assert chain.is_chain
    assert chain.tokens == tuple(tokens)
    assert chain.depths == tuple(range(len(tokens)))
    assert chain.num_drafted == len(tokens) - 1
    assert chain.path(len(tokens) - 1) == tuple(range(1, len(tokens)))


@given(trees())
def test_other_estimates_leave_the_shape_as_it_is(tree: Tree) -> None:
    told = tree.estimated((1.0,) + (0.25,) * tree.num_drafted)
    again = Tree(tree.tokens, tree.parents, told.probabilities, tree.draws)
    assert told == again == Tree.grown(tree.tokens, tree.parents, told.probabilities)
    assert (told.children, told.depths, told.is_chain) == (again.children, again.depths, again.is_chain)


def test_a_root_alone_is_a_plain_step() -> None:
    tree = Tree.root(7)
    assert (len(tree), tree.num_drafted, tree.is_chain, tree.children) == (1, 0, True, ((),))


@pytest.mark.parametrize(
    ("tokens", "parents"),
    [((), ()), ((1, 2), (-1,)), ((1, 2), (0, 0)), ((1, 2), (-1, 1)), ((1, 2, 2), (-1, 0, 0)), ((1, 2), (-1, -1))],
)
def test_what_is_no_tree_is_refused(tokens: tuple[int, ...], parents: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"tree|root|children"):
        Tree(tokens, parents, (1.0,) * len(tokens))


def test_a_token_drafted_twice_under_one_parent_is_one_node_with_the_likelier_estimate() -> None:
    builder = TreeBuilder(0)
    first = builder.add(ROOT, 5, 0.2)
    assert builder.add(ROOT, 5, 0.6) == first
    assert builder.build() == Tree((0, 5), (-1, 0), (1.0, 0.6))


@settings(max_examples=60, deadline=None)
@given(accuracy_tables(), st.integers(0, 5))
def test_the_static_tree_has_the_largest_expectation_of_all_trees(accuracies: NDArray[np.float64], num_nodes: int) -> None:
    paths = optimal_paths(accuracies, num_nodes)
    assert len(paths) <= num_nodes
    assert all(path[:-1] in paths for path in paths if len(path) > 1)
    num_depths, num_ranks = accuracies.shape
    shapes = all_shapes(num_depths, num_ranks, num_nodes)
    best = max(expected_length(shape, accuracies) for shape in shapes)
    assert expected_length(paths, accuracies) == pytest.approx(best, abs=1e-12)


def test_a_later_rank_that_is_more_accurate_is_taken_first() -> None:
    accuracies = np.array([[0.1, 0.5], [0.2, 0.3]])
    assert optimal_paths(accuracies, 2) == [(1,), (1, 1)]


def test_an_impossible_guess_is_never_planned() -> None:
    assert optimal_paths(np.array([[0.5, 0.0], [0.0, 0.0]]), 4) == [(0,)]


@settings(deadline=None)
@given(accuracy_tables(), st.integers(0, 8))
def test_growth_takes_the_likeliest_nodes_of_the_product_tree(table: NDArray[np.float64], num_nodes: int) -> None:
    probabilities = -np.sort(-table, axis=1)
    num_depths, num_ranks = probabilities.shape
    tokens = np.arange(num_depths * num_ranks).reshape(num_depths, num_ranks)
    grown = grow(99, tokens, probabilities, num_nodes)
    values = [float(np.prod([probabilities[d, r] for d, r in enumerate(p)])) for p in all_paths(num_depths, num_ranks)]
    best = sorted((value for value in values if value > 0), reverse=True)[:num_nodes]
    assert sorted(grown.path_probabilities()[1:], reverse=True) == pytest.approx(best)


def test_a_static_shape_is_filled_by_depth_and_rank() -> None:
    tokens = np.array([[10, 11], [20, 21]])
    values = np.array([[0.6, 0.2], [0.5, 0.1]])
    tree = Tree.from_paths(1, [(0, 1), (1,), (0,), (1, 0)], tokens, values)
    assert tree.tokens == (1, 10, 11, 21, 20)
    assert tree.parents == (-1, 0, 0, 1, 2)
    assert tree.probabilities == (1.0, 0.6, 0.2, 0.1, 0.5)
    assert sum(tree.path_probabilities()) == pytest.approx(expected_length([(0, 1), (1,), (0,), (1, 0)], values))
