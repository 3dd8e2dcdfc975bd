"""The lossless rules follow the target's distribution, by enumeration; what only looks like them is found out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from enumerated import Chance, Model, Shape, Word, chain, drafts, error, expected_length, outputs
from headstart.accept import block, rejection
from headstart.accept.base import Verify
from headstart.accept.typical import threshold, typical_rule
from headstart.tree import Draws, Tree
from scripted import hash_generator

Floats = NDArray[np.float64]
V = 3
RULES: dict[str, Verify] = {"rejection": rejection.rejection, "block": block.block}
TINY = 1e-12


def random_model(name: str, near: Model | None = None) -> Model:
    """Random distributions, half way to another model's if one is given."""

    @cache
    def model(word: Word) -> Floats:
        shares: Floats = hash_generator(name, word).dirichlet([0.7] * V)
        mixed: Floats = shares if near is None else (shares + near(word)) / 2
        return mixed

    return model


def fixed(*shares: float) -> Model:
    return lambda word: np.array(shares)


P = random_model("p")
Q = random_model("q", P)
FAR = random_model("far")
PAIRS: dict[str, tuple[Model, Model]] = {
    "near": (P, Q),
    "far": (P, FAR),
    "equal": (P, P),
    "disjoint": (fixed(0.4, 0.6, 0.0), fixed(0.0, 0.0, 1.0)),
    "one-hot q": (P, fixed(0.0, 1.0, 0.0)),
    "one-hot p": (fixed(0.0, 0.0, 1.0), Q),
    "both one-hot": (fixed(0.0, 1.0, 0.0), fixed(0.0, 1.0, 0.0)),
    "q covers part": (P, lambda word: np.array([0.3, 0.7, 0.0])),
}
SHAPES: dict[str, Shape] = {
    "one": chain(1),
    "chain": chain(3),
    "two": Shape(2),
    "all": Shape(3),
    "tree": Shape(2, {0: Shape(2), 1: Shape(1)}),
    "deep": Shape(2, {0: Shape(1, {0: Shape(2)})}),
    "rows dropped": Shape(2, {0: Shape(2, num_rows=1)}, num_rows=1),
    "no row left": Shape(1, {0: Shape(1, num_rows=0)}),
    "with a sure child": Shape(1, {0: Shape(1), 1: Shape(1)}, sure=(1,)),
    "sure children alone": Shape(0, {0: Shape(0, sure=(0,))}, sure=(2, 1)),
}


def law(rule: str, shape: Shape, target: Model, models: Sequence[Model], patch: pytest.MonkeyPatch) -> dict[Word, float]:
    return outputs(RULES[rule], lambda chance: drafts(shape, models, chance), target, patch)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", RULES)
def test_the_rule_follows_the_target(rule: str, shape: str, pair: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, model = PAIRS[pair]
    shares = law(rule, SHAPES[shape], target, [model], monkeypatch)
    assert sum(shares.values()) == pytest.approx(1, abs=TINY)
    assert error(shares, target) < TINY


@pytest.mark.parametrize("rule", RULES)
def test_drafts_of_several_proposers_follow_each_other(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for shape in (Shape(1), Shape(2, num_rows=2), Shape(1, {0: Shape(1), 1: Shape(1)}, sure=(2,))):
        assert error(law(rule, shape, P, [Q, FAR], monkeypatch), P) < TINY


@pytest.mark.parametrize("rule", RULES)
def test_dropping_rows_by_what_was_drawn_biases_nothing(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token stays among the draws, so the rule sees it; that is what makes pruning by probability safe."""

    def draft(chance: Chance) -> Tree:
        tree = drafts(chain(2), [Q], chance)
        return tree if len(tree) < 3 or Q(())[tree.tokens[1]] > 0.4 else tree.pruned(1, 1)

    assert error(outputs(RULES[rule], draft, P, monkeypatch), P) < TINY


def test_block_keeps_at_least_as_much_as_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = 0
    for number in range(6):
        target = random_model(f"p{number}")
        model = random_model(f"q{number}", target)
        for shape in (chain(2), Shape(2, {0: Shape(1), 1: Shape(1)})):
            token, whole = (expected_length(law(rule, shape, target, [model], monkeypatch)) for rule in RULES)
            assert whole > token - TINY
            longer += whole > token + 1e-3
    assert longer > 3


def test_one_test_accepts_with_the_published_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 - TV (Leviathan et al. 2023, theorem 3.5)."""
    shares = law("rejection", chain(1), P, [Q], monkeypatch)
    assert expected_length(shares) - 1 == pytest.approx(float(np.minimum(P(()), Q(())).sum()), abs=TINY)


# What looks like a lossless rule


def test_the_likeliest_children_tested_as_if_they_were_drawn_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def draft(chance: Chance) -> Tree:
        q = Q(())
        best = tuple(np.argsort(-q)[:2].tolist())
        return Tree((0, *best), (-1, 0, 0), (1.0, 0.5, 0.5), ((Draws(best, np.arange(V), q),), (), ()))

    for verify in RULES.values():
        assert error(outputs(verify, draft, P, monkeypatch), P) > 0.01


def test_discarding_a_draw_because_it_is_unlikely_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def draft(chance: Chance) -> Tree:
        def likely_ones(draws: Draws) -> Draws:
            kept = tuple(t for t in draws.tokens if draws.probabilities[list(draws.ids).index(t)] > 0.3)
            return Draws(kept, draws.ids, draws.probabilities)

        return drafts(chain(1), [Q], chance, likely_ones)

    for verify in RULES.values():
        assert error(outputs(verify, draft, P, monkeypatch), P) > 0.01


Weighed = Callable[[Floats, Sequence[Draws]], Generator[tuple[int, float], None, Floats]]


def independent_tests(p: Floats, draws: Sequence[Draws]) -> Generator[tuple[int, float], None, Floats]:
    """Every draw against p itself, one residual in the end."""
    q = draws[0].probabilities
    for token in draws[0].tokens:
        yield token, min(1.0, float(p[token] / q[token]))
    residual: Floats = np.maximum(p - q, 0)
    residual /= residual.sum()
    return residual


def draft_not_renormalised(p: Floats, draws: Sequence[Draws]) -> Generator[tuple[int, float], None, Floats]:
    """The draft keeps its shares behind a rejection."""
    residual, q = p.copy(), draws[0].probabilities.copy()
    for token in draws[0].tokens:
        yield token, min(1.0, float(residual[token] / q[token]))
        left = np.maximum(residual - q, 0)
        residual = left / left.sum() if left.sum() > 0 else residual
        q[token] = 0
    return residual


@pytest.mark.parametrize("variant", [independent_tests, draft_not_renormalised])
def test_biased_variants_are_found_out(variant: Weighed, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fixed(0.2, 0.3, 0.5)
    model = fixed(0.5, 0.2, 0.3)
    assert error(law("rejection", Shape(2), whole, [model], monkeypatch), whole) < TINY
    monkeypatch.setattr(rejection, "weighed", variant)
    assert error(law("rejection", Shape(2), whole, [model], monkeypatch), whole) > 0.01


# Typical acceptance


def test_typical_acceptance_is_lossy_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = typical_rule(0.3, 0.9)
    target = fixed(0.2, 0.35, 0.45)
    shares = outputs(rule.verify, lambda chance: Tree.chain([0, 1]), target, monkeypatch)
    assert error(shares, target) > 0.1
    assert not rule.is_lossless
    assert "lossy" in str(rule.note)


def test_the_border_of_typical_acceptance_falls_with_the_entropy() -> None:
    flat, sure = np.full(100, 0.01), np.array([0.0, 1.0])
    assert threshold(sure, 0.09, 0.3) == 0.09
    assert threshold(flat, 0.09, 0.3) == pytest.approx(0.3 / 100)


def test_the_longest_typical_path_is_taken_and_of_two_the_likelier(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {(): [0.5, 0.4, 0.1], (1,): [0.3, 0.3, 0.4], (0,): [0.05, 0.05, 0.9]}

    def target(word: Word) -> Floats:
        return np.array(table.get(word, [1.0, 0.0, 0.0]))

    tree = Tree((0, 0, 1, 2, 2, 0), (-1, 0, 0, 0, 2, 2), (1.0,) * 6)  # 0, 1, 2 and below 1: 2, 0
    shares = outputs(typical_rule(0.2, 0.99).verify, lambda chance: tree, target, monkeypatch)
    assert shares == {(1, 2, 0): 1.0}
