"""Acceptance: whatever was drafted, the tokens are the plain sampler's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headstart.accept import Draft, Row, Verdict, exact
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed
from headstart.tree import Tree, TreeBuilder
from scripted import ScriptedTarget, random_target, table_target

V = 4


def verify(target: ScriptedTarget, tree: Tree, sampler: Sampler) -> Verdict:
    scored = target.forward([Feed(target.open(), tree)])
    return exact(scored, [Draft(0, tree, sampler)])[0]


def plain(target: ScriptedTarget, root: int, sampler: Sampler, count: int) -> tuple[int, ...]:
    taken: list[int] = []
    for _ in range(count):
        taken.append(sampler.pick(target.next_logits((root, *taken)), taken))
    return tuple(taken)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    builder = TreeBuilder(draw(st.integers(0, V - 1)))
    size = 1
    for _ in range(draw(st.integers(0, 20))):
        row = builder.add(draw(st.integers(0, size - 1)), draw(st.integers(0, V - 1)), 0.5)
        size = max(size, row + 1)
    return builder.build()


@given(trees(), st.sampled_from([0.0, 0.8, 1.0]), st.integers(0, 2**40))
def test_any_tree_commits_what_plain_decoding_says(tree: Tree, temperature: float, seed: int) -> None:
    target = random_target(seed, V)
    s = Sampling(temperature=temperature, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.1)
    sampler = Sampler(s, vocab_size=V, prompt=[tree.tokens[0]], seed=seed)
    verdict = verify(target, tree, sampler)
    assert verdict.tokens == plain(target, tree.tokens[0], sampler, len(verdict.tokens))
    assert len(verdict.tokens) == len(verdict.path) + 1
    assert tuple(tree.tokens[row] for row in verdict.path) == verdict.tokens[:-1]
    last = verdict.path[-1] if verdict.path else 0
    assert verdict.path == tree.path(last)
    assert tree.child(last, verdict.tokens[-1]) is None, "the walk goes as deep as it can"


@given(trees())
def test_the_order_of_siblings_changes_nothing(tree: Tree) -> None:
    target = random_target(1, V)
    sampler = Sampler(Sampling(temperature=1), vocab_size=V, prompt=[tree.tokens[0]], seed=4)
    rows = sorted(range(1, len(tree)), key=lambda row: (tree.depths[row], -tree.tokens[row]))
    new = {0: 0} | {row: i for i, row in enumerate(rows, start=1)}
    mirrored = Tree(
        (tree.tokens[0], *(tree.tokens[row] for row in rows)),
        (-1, *(new[tree.parents[row]] for row in rows)),
        (1.0, *(tree.probabilities[row] for row in rows)),
    )
    assert verify(target, mirrored, sampler).tokens == verify(target, tree, sampler).tokens


def test_a_root_alone_is_a_plain_step() -> None:
    target = table_target([0, 3, 2], V)
    assert verify(target, Tree.root(1), Sampler(Sampling(), vocab_size=V)) == Verdict((), (3,))


def test_drafts_of_one_batch_are_walked_side_by_side_with_one_question_a_level() -> None:
    target = table_target([0, 1, 2, 3, 0, 1], V)
    drafts = [Tree.chain([0, 1, 2, 3]), Tree.root(2), Tree.chain([3, 1, 0])]
    scored = target.forward([Feed(target.open(), tree) for tree in drafts])
    questions: list[list[Row]] = []

    class Counting:
        def pick(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> list[int]:
            questions.append(list(rows))
            return scored.pick(rows, samplers, paths)

        def probabilities(
            self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]
        ) -> NDArray[np.float64]:
            raise AssertionError("exact asks for picks alone")

    samplers = [Sampler(Sampling(), vocab_size=V) for _ in drafts]
    verdicts = exact(Counting(), [Draft(i, tree, s) for i, (tree, s) in enumerate(zip(drafts, samplers, strict=True))])
    assert [verdict.tokens for verdict in verdicts] == [(1, 2, 3, 0), (1,), (1, 2)]
    assert questions == [[(0, 0), (1, 0), (2, 0)], [(0, 1), (2, 1)], [(0, 2)], [(0, 3)]]


def test_the_walk_starts_at_the_last_row_of_a_prompt() -> None:
    target = table_target([0, 1, 2, 3, 0], V)
    tree = Tree.chain([2, 2, 2])
    scored = target.forward([Feed(target.open(), tree, first_scored=2)])
    assert exact(scored, [Draft(0, tree, Sampler(Sampling(), vocab_size=V), start=2)]) == [Verdict((), (3,))]


def test_no_drafts_ask_nothing() -> None:
    target = table_target([0, 1], V)
    assert exact(target.forward([Feed(target.open(), Tree.root(0))]), []) == []
