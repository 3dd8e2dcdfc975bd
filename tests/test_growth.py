"""Trees that grow level by level: the likeliest paths of all, whatever grows them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.proposers.base import Sequence
from headstart.proposers.calibration import Calibration
from headstart.proposers.children import Children
from headstart.proposers.growth import Growth
from headstart.sampling import Sampler, Sampling
from headstart.tree import ROOT, Draws, Tree
from scripted import hash_generator

RANKS = 3


def sequence(max_nodes: int) -> Sequence:
    return Sequence(0, [5], 1, Sampler(Sampling(), vocab_size=9, prompt=[5], seed=0), max_nodes, 9)


def children_of(seed: int, path: tuple[int, ...]) -> Children:
    """Tokens 0 to 2, the likeliest first, with estimates that depend on the path."""
    estimates = np.sort(hash_generator(seed, path).dirichlet(np.ones(RANKS + 1))[:RANKS])[::-1]
    return Children(tuple(range(RANKS)), tuple(estimates.tolist()))


def grown(seed: int, max_nodes: int, num_levels: int, least_reach: float = 0.0) -> tuple[Tree, int]:
    """The tree and the number of nodes that were expanded."""
    growth, num_expanded = Growth(sequence(max_nodes), Calibration(), num_levels, least_reach), 0
    while growth.frontier:
        num_expanded += len(growth.frontier)
        assert {growth.nodes[leaf].depth for leaf in growth.frontier} == {growth.depth}
        growth.add({leaf: children_of(seed, growth.place(leaf).path) for leaf in growth.frontier})
    return growth.tree(), num_expanded


def reaches(tree: Tree) -> dict[tuple[int, ...], float]:
    words = {row: tuple(tree.tokens[node] for node in tree.path(row)) for row in range(1, len(tree))}
    return {words[row]: reach for row, reach in enumerate(tree.path_probabilities()) if row != ROOT}


@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(1, 4))
def test_a_grown_tree_holds_the_likeliest_of_all_paths(seed: int, max_nodes: int, num_levels: int) -> None:
    every = {
        path: prod(children_of(seed, path[:i]).probabilities[token] for i, token in enumerate(path))
        for depth in range(1, num_levels + 1)
        for path in product(range(RANKS), repeat=depth)
    }
    expected = sorted(every.values(), reverse=True)[:max_nodes]
    found = reaches(grown(seed, max_nodes, num_levels)[0])
    assert sorted(found.values(), reverse=True) == pytest.approx(expected)
    assert found == pytest.approx({path: every[path] for path in found})


@given(st.integers(0, 10**6), st.floats(0.01, 0.9))
def test_what_is_hardly_reached_is_not_expanded(seed: int, least: float) -> None:
    tree, num_expanded = grown(seed, 200, 4, least)  # there is room for every path
    found = reaches(tree)
    for path in found:
        assert len(path) == 1 or found[path[:-1]] >= least
    assert num_expanded == 1 + sum(reach >= least and len(path) < 4 for path, reach in found.items())


@pytest.mark.parametrize(("least", "expanded"), [(0.75, [0.5, 0.3]), (0.85, [])])
def test_a_level_must_be_worth_a_pass_as_a_whole(least: float, expanded: list[float]) -> None:
    growth = Growth(replace(sequence(200), least_reach=least), Calibration(), 4, 0.1)
    growth.add({ROOT: Children((0, 1, 2), (0.5, 0.3, 0.09))})
    assert [growth.nodes[leaf].reach for leaf in growth.frontier] == expanded


def test_nothing_is_expanded_whose_children_could_not_stay() -> None:
    growth = Growth(sequence(2), Calibration(), 4)
    growth.add({ROOT: Children((0, 1, 2), (0.5, 0.3, 0.1))})
    assert [growth.nodes[leaf].token for leaf in growth.frontier] == [0]
    growth.add({growth.frontier[0]: Children((0,), (0.5,))})  # 0.25 is less than what is there
    assert not growth.frontier


def test_estimates_are_calibrated_by_depth() -> None:
    calibration = Calibration()
    for _ in range(50):
        calibration.observe(Tree.chain([0, 1, 2], [1.0, 0.9, 0.5]), [1, 7])  # depth 1 always right, depth 2 never
    growth = Growth(sequence(8), calibration, 2)
    while growth.frontier:
        growth.add({leaf: Children((1,), (0.5,)) for leaf in growth.frontier})
    tree = growth.tree()
    assert tree.probabilities[1] > 0.5 > 10 * tree.probabilities[2]


def test_what_children_were_drawn_from_stays_with_their_parent() -> None:
    growth = Growth(sequence(1), Calibration(), 1)
    draws = Draws((4, 2), np.array([2, 4]), np.array([0.5, 0.5]))
    growth.add({ROOT: Children((4, 2), (0.5, 0.3), draws)})
    tree = growth.tree()
    assert tree.tokens == (5, 4)  # the other one found no room
    assert tree.drawn(ROOT) == (draws,)
