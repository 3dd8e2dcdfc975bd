"""Combined proposers: the merged tree, what each member is told, and members that pause."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decode import Decoder
from headstart.proposers.base import Observation, Proposer
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.combined import CombinedProposer, Tally
from headstart.proposers.draft_model import DraftModelProposer
from headstart.proposers.ngram import NgramProposer
from headstart.proposers.suffix import SuffixProposer
from headstart.proposers.walk import MIN_REACH, DepthWalk, TreeWalk, combine, grow
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed
from headstart.tree import ROOT, Draws, Tree, TreeBuilder
from scripted import (
    EmptyProposer,
    HalfProposer,
    MixProposer,
    OracleProposer,
    ScriptedProposer,
    ScriptedTarget,
    WrongProposer,
    random_target,
)

VOCAB = 12


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees under token 0 whose children's estimates add up to less than 1."""
    builder, rows = TreeBuilder(0), [ROOT]
    for _ in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from(rows))
        rows.append(builder.add(parent, draw(st.integers(0, 3)), draw(st.floats(0.05, 0.24))))
    return builder.build()


@st.composite
def beliefs(draw: st.DrawFn) -> dict[int, float]:
    """What a walk may say of a node's children."""
    shares = draw(st.dictionaries(st.integers(0, 5), st.floats(0.001, 1), max_size=4))
    scale = draw(st.floats(0.05, 1)) / max(sum(shares.values()), 1)
    return {token: share * scale for token, share in shares.items()}


def words(tree: Tree) -> set[tuple[int, ...]]:
    """Nodes as the tokens that lead to them."""
    return {tuple(tree.tokens[row] for row in tree.path(node)) for node in range(1, len(tree))}


# Joint probabilities


@given(st.lists(beliefs(), min_size=1, max_size=4))
def test_joint_estimates_are_probabilities_in_any_order_of_the_members(said: list[dict[int, float]]) -> None:
    joint = combine(said)
    assert joint.keys() == set().union(*said)
    assert all(0 < value <= 1 for value in joint.values())
    assert sum(joint.values()) <= 1 + 1e-9
    for other in itertools.permutations(said):
        assert combine(other) == pytest.approx(joint, abs=0.02)  # where somebody is certain, who came first matters a little


@given(beliefs())
def test_silence_changes_nothing(said: dict[int, float]) -> None:
    assert combine([said]) == said
    assert combine([{}, said, {}]) == said


@given(beliefs().filter(lambda said: 0 < sum(said.values()) < 0.99))
def test_agreement_makes_sure_and_contradiction_makes_doubt(said: dict[int, float]) -> None:
    token = max(said, key=lambda t: said[t])
    agreed = combine([said, {token: 0.5}])
    assert agreed[token] > said[token] - 1e-12
    assert combine([said, {99: 0.5}])[token] <= said[token]


def test_dempsters_rule_by_hand() -> None:
    joint = combine([{1: 0.6, 2: 0.2}, {1: 0.5, 3: 0.3}])
    conflict = 0.6 * 0.3 + 0.2 * 0.5 + 0.2 * 0.3
    assert joint[1] == pytest.approx((0.6 * 0.5 + 0.6 * 0.2 + 0.2 * 0.5) / (1 - conflict))
    assert joint[2] == pytest.approx(0.2 * 0.2 / (1 - conflict))
    assert joint[3] == pytest.approx(0.2 * 0.3 / (1 - conflict))


def test_nobody_has_a_veto() -> None:
    assert combine([{1: 1.0}, {2: 1.0}]) == pytest.approx({1: 0.99 / 1.99, 2: 0.99 / 1.99})
    assert sum(combine([{1: 0.9, 2: 0.8}, {3: 0.5}]).values()) < 1


# The merged tree


@given(st.lists(trees(), min_size=1, max_size=3), st.integers(0, 20), st.integers(0, 6))
def test_the_merged_tree_is_the_union_of_the_members_paths_cut_by_the_budget(
    members: list[Tree], nodes: int, depth: int
) -> None:
    union = set().union(*map(words, members))
    walks = [TreeWalk(tree) for tree in members]
    whole = grow(0, walks, 99, 99).tree
    assert words(whole) <= union
    reach = dict(zip(map(tuple, paths(whole)), whole.path_probabilities(), strict=True))
    for word in union - words(whole):  # left out only because hardly ever right, or below such a node
        assert word[:-1] not in reach or reach[word[:-1]] < 50 * MIN_REACH
    cut = grow(0, walks, nodes, depth).tree
    assert cut.num_drafted <= nodes
    assert max(cut.depths) <= depth
    inside = sorted((reach[word] for word in words(whole) if len(word) <= depth), reverse=True)
    assert sorted(cut.path_probabilities()[1:], reverse=True) == pytest.approx(inside[:nodes])


@given(trees(), st.integers(0, 9))
def test_one_members_tree_stays_as_it_is(tree: Tree, nodes: int) -> None:
    grown = grow(0, [TreeWalk(tree)], nodes, 99)
    expected = [reach for reach in sorted(tree.path_probabilities()[1:], reverse=True) if reach >= MIN_REACH]
    assert sorted(grown.tree.path_probabilities()[1:], reverse=True) == pytest.approx(expected[:nodes])
    assert all(estimates == (p,) for estimates, p in zip(grown.estimates[1:], grown.tree.probabilities[1:], strict=True))


def test_a_copied_chain_goes_on_behind_a_guessed_token() -> None:
    """Token 7 is guessed; what followed "5 7" before is copied behind it."""
    tokens = [5, 7, 8, 9, 1, 5, 6, 2, 5]
    guesser = Fixed("guess", Tree((5, 7), (-1, 0), (1.0, 0.9)))
    (tree,) = CombinedProposer([SuffixProposer(), guesser]).propose([in_flight(tokens)])
    assert {(7,), (7, 8), (7, 8, 9)} <= words(tree)


def test_draws_stay_with_the_node_whose_children_they_are() -> None:
    """A rule that weighs draws must see all of them, also where the merged tree has no row for a drawn token."""
    draws = [Draws((token, 9), np.array([token, 9]), np.array([0.5, 0.5])) for token in (1, 2)]
    drawn = Tree((5, 1, 2), (-1, 0, 1), (1.0, 0.6, 0.5), ((draws[0],), (draws[1],), ()))
    combined = CombinedProposer([Fixed("guess", Tree((5, 3), (-1, 0), (1.0, 0.3))), Fixed("draw", drawn)])
    (tree,) = combined.propose([in_flight([5])])
    assert tree.drawn(ROOT) == (draws[0],)
    one, three = tree.child(ROOT, 1), tree.child(ROOT, 3)
    assert one is not None and three is not None
    assert tree.drawn(one) == (draws[1],)
    assert tree.drawn(three) == ()


def test_parallel_guesses_weigh_less_behind_a_path_that_they_do_not_know() -> None:
    guesses = DepthWalk(np.array([[1, 2], [3, 4]]), np.array([[0.5, 0.2], [0.6, 0.0]]))
    alone = grow(0, [guesses], 9, 9)
    assert words(alone.tree) == {(1,), (2,), (1, 3), (2, 3)}
    assert sorted(alone.tree.probabilities) == [0.2, 0.5, 0.6, 0.6, 1.0]
    beside = grow(0, [guesses, TreeWalk(Tree.chain([0, 1, 5], [1.0, 0.5, 0.5]))], 9, 9)
    one = beside.tree.child(ROOT, 1)
    assert one is not None
    three = beside.tree.child(one, 3)
    assert three is not None
    assert beside.tree.probabilities[three] == pytest.approx(combine([{3: 0.48}, {5: 0.5}])[3])
    assert beside.estimates[three] == (0.6, 0.0)  # what it said, so that it can learn how good that was


def test_two_members_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        CombinedProposer([NgramProposer(), NgramProposer()])


# What members are told


class Fixed:
    """Always the same tree; remembers what it was told."""

    def __init__(self, name: str, tree: Tree) -> None:
        self.name, self.tree = name, tree
        self.asked: list[int] = []
        self.told: list[Observation] = []
        self.forgotten: list[int] = []

    def propose(self, sequences: Sequence[InFlight]) -> list[Tree]:
        self.asked += [sequence.key for sequence in sequences]
        return [self.tree.pruned(sequence.max_nodes, sequence.max_depth) for sequence in sequences]

    def observe(self, observations: Sequence[Observation]) -> None:
        self.told += observations

    def forget(self, key: int) -> None:
        self.forgotten.append(key)


def in_flight(tokens: Sequence[int], *, key: int = 0, nodes: int = 8, depth: int = 8) -> InFlight:
    sampler = Sampler(Sampling(), vocab_size=VOCAB, prompt=tokens, seed=7)
    return InFlight(key, list(tokens), len(tokens), sampler, nodes, depth)


def verdict(tree: Tree, tokens: Sequence[int], key: int = 0) -> Observation:
    target = random_target(0, VOCAB)
    slot = target.open()
    scored = target.forward([Feed(slot, tree)])
    return Observation(key, tree, tuple(tokens), scored, (0, 0))


LEFT = Tree((5, 1, 2, 3), (-1, 0, 1, 1), (1.0, 0.6, 0.5, 0.3))  # 1 -> 2 | 3
RIGHT = Tree((5, 1, 4, 2), (-1, 0, 0, 1), (1.0, 0.4, 0.3, 0.7))  # 1 -> 2, 4


def test_each_member_sees_its_own_estimates_at_the_rows_that_were_verified() -> None:
    left, right = Fixed("left", LEFT), Fixed("right", RIGHT)
    combined = CombinedProposer([left, right])
    (tree,) = combined.propose([in_flight([5])])
    assert words(tree) == {(1,), (1, 2), (1, 3), (4,)}
    verified = tree.pruned(3, 9)
    seen = verdict(verified, [1, 2, 7])
    combined.observe([seen])
    for member, own in ((left, LEFT), (right, RIGHT)):
        (told,) = member.told
        assert (told.tree.tokens, told.tree.parents) == (verified.tokens, verified.parents)
        assert (told.tokens, told.scored, told.row) == (seen.tokens, seen.scored, seen.row)
        theirs = dict(zip(map(tuple, paths(own)), own.probabilities, strict=True))
        assert told.tree.probabilities == tuple(theirs.get(tuple(path), 0.0) for path in paths(verified))
    assert words(verified) == {(1,), (1, 2), (4,)}
    tallies = combined.tallies(0)
    assert replace(tallies["left"], expected=0) == Tally(num_drafts=1, num_drafted=2, num_accepted=2)
    assert replace(tallies["right"], expected=0) == Tally(num_drafts=1, num_drafted=3, num_accepted=2)
    assert tallies["left"].expected == pytest.approx(0.6 + 0.5)
    assert tallies["right"].expected == pytest.approx(0.4 + 0.3 + 0.7)


def paths(tree: Tree) -> list[list[int]]:
    return [[tree.tokens[row] for row in tree.path(node)] for node in range(len(tree))]


def test_what_one_member_alone_brought_is_counted() -> None:
    combined = CombinedProposer([Fixed("left", LEFT), Fixed("right", RIGHT)])
    (tree,) = combined.propose([in_flight([5])])
    said = combined.drafted(0)
    assert said["left"][1:] != said["right"][1:]
    combined.observe([verdict(tree, [1, 3, 7])])
    assert {name: (tally.num_accepted, tally.num_alone) for name, tally in combined.tallies(0).items()} == {
        "left": (2, 1),
        "right": (1, 0),
    }
    assert combined.drafted(0) == {}
    combined.forget(0)
    assert combined.tallies(0) == {}


def test_only_the_members_that_are_asked_take_part() -> None:
    left, right = Fixed("left", LEFT), Fixed("right", RIGHT)
    combined = CombinedProposer([left, right])
    sequences = [in_flight([5], key=key) for key in range(4)]
    trees = combined.propose(sequences, [{"left", "right"}, {"left"}, {"right"}, ()])
    assert list(map(words, trees)) == [words(LEFT) | words(RIGHT), words(LEFT), words(RIGHT), set()]
    assert (left.asked, right.asked) == ([0, 1], [0, 2])
    combined.observe([verdict(tree, [1, 7], key) for key, tree in enumerate(trees)])
    assert [told.key for told in left.told] == [told.key for told in right.told] == [0, 1, 2, 3]
    assert left.told[2].tree.probabilities == (1.0, 0.0, 0.0, 0.0)
    for key in range(4):
        combined.forget(key)
    assert left.forgotten == right.forgotten == [0, 1, 2, 3]


# In the loop


class Fickle(CombinedProposer):
    """Asks one member, all, or none, in turn."""

    def __init__(self, members: Sequence[Proposer]) -> None:
        super().__init__(members)
        self.num_asked = 0

    def propose(self, sequences: Sequence[InFlight], asked: Sequence[Collection[str]] | None = None) -> list[Tree]:
        names = [set(self.members), *({name} for name in self.members), set[str]()]
        asked = [names[(self.num_asked + i) % len(names)] for i in range(len(sequences))]
        self.num_asked += 1
        return super().propose(sequences, asked)


def named(proposer: ScriptedProposer, name: str) -> ScriptedProposer:
    proposer.name = name
    return proposer


def members_of(target: ScriptedTarget) -> Mapping[str, Sequence[Proposer]]:
    twin = ScriptedTarget(target.next_logits, target.vocab_size)
    return {
        "copying": [NgramProposer(), SuffixProposer()],
        "right and wrong": [OracleProposer(target), WrongProposer(target)],
        "random": [named(MixProposer(target, seed=1), "one"), named(MixProposer(target, seed=2), "two"), SuffixProposer()],
        "half and a draft": [HalfProposer(target), DraftModelProposer(twin)],
        "nothing": [EmptyProposer(target)],
        "alone": [SuffixProposer()],
    }


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("fickle", [False, True])
@pytest.mark.parametrize("members", members_of(random_target(0, VOCAB)))
def test_no_combination_changes_the_text(members: str, fickle: bool, temperature: float) -> None:
    target = random_target(1, VOCAB, memory=2)
    sampling = Sampling(max_tokens=20, temperature=temperature)
    texts = []
    chosen = members_of(target)[members]
    combined = (Fickle if fickle else CombinedProposer)(chosen)
    for proposer in (None, combined):
        decoder = Decoder(target, proposer, num_nodes=9)
        generations = [decoder.add(prompt, sampling, seed=i)[0] for i, prompt in enumerate([[1, 2, 3], [4], [1, 2] * 4])]
        decoder.run()
        texts.append([generation.tokens for generation in generations])
    assert texts[0] == texts[1]
    assert not combined._grown
    assert not combined._tallies
    assert target.num_open == 0


def test_the_order_of_the_members_does_not_matter() -> None:
    target = random_target(2, VOCAB, memory=2)
    lengths = []
    for order in itertools.permutations(range(3)):
        members: list[Proposer] = [SuffixProposer(), HalfProposer(target), MixProposer(target)]
        decoder = Decoder(target, CombinedProposer([members[i] for i in order]), num_nodes=30)
        (generation,) = decoder.add([1, 2, 3], Sampling(max_tokens=40))
        decoder.run()
        lengths.append(generation.stats.num_steps)
    assert len(set(lengths)) == 1


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["suffix", "draft_model", "both", "none"]), min_size=1, max_size=10))
def test_a_member_that_paused_drafts_as_if_it_never_had(asked: list[str]) -> None:
    target = random_target(6, VOCAB, memory=2)
    combined = CombinedProposer([SuffixProposer(), DraftModelProposer(ScriptedTarget(target.next_logits, VOCAB))])
    tokens = [1, 2, 3, 1, 2]
    for names in asked:
        chosen = {"both": {"suffix", "draft_model"}, "none": set[str]()}.get(names, {names})
        sequence = InFlight(0, list(tokens), 5, in_flight(tokens).sampler, 9, 9)
        (tree,) = combined.propose([sequence], [chosen])
        committed = [int(target.next_logits(tuple(tokens)).argmax())]
        combined.observe([verdict(tree, committed)])
        tokens += committed
    sequence = InFlight(0, list(tokens), 5, in_flight(tokens).sampler, 9, 9)
    (suffix,) = combined.propose([sequence], [{"suffix"}])
    assert suffix == SuffixProposer().propose([sequence])[0]
    (drafted,) = combined.propose([sequence], [{"draft_model"}])
    (fresh,) = DraftModelProposer(ScriptedTarget(target.next_logits, VOCAB)).propose([sequence])
    assert words(drafted) == words(fresh)


def test_the_oracle_is_accepted_whoever_stands_beside_it() -> None:
    target = random_target(4, VOCAB)
    decoder = Decoder(
        target, CombinedProposer([WrongProposer(target), OracleProposer(target, 4), SuffixProposer()]), num_nodes=40
    )
    (generation,) = decoder.add([1, 2], Sampling(max_tokens=41))
    decoder.run()
    assert generation.stats.acceptance_length > 3
    assert generation.tokens == [int(t) for t in plain(target, [1, 2], 41)]


def plain(target: ScriptedTarget, prompt: list[int], num_tokens: int) -> list[int]:
    decoder = Decoder(target)
    (generation,) = decoder.add(prompt, Sampling(max_tokens=num_tokens))
    decoder.run()
    return generation.tokens
