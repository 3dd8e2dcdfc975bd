"""Suffix matching against brute force, and past outputs in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decode import Decoder
from headstart.errors import RequestError
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.occurrences import LATEST, MOST_MATCHES, TAIL, Occurrences
from headstart.proposers.past import MIN_MATCH, PastOutputs
from headstart.proposers.suffix import SuffixProposer
from headstart.sampling import Sampler, Sampling, gumbel
from headstart.tree import Tree
from scripted import random_target, table_target

VOCAB = 12
TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=LATEST - 1)


def in_flight(tokens: Sequence[int], *, key: int = 0, nodes: int = 15, depth: int = 15, prompt: int | None = None) -> InFlight:
    num_prompt = len(tokens) if prompt is None else prompt
    sampler = Sampler(Sampling(), vocab_size=VOCAB, prompt=tokens[:num_prompt], seed=7)
    return InFlight(key, list(tokens), num_prompt, sampler, nodes, depth)


def searched(text: Sequence[int], tail: Sequence[int]) -> dict[int, int]:
    """Brute force: positions whose token follows the end of text + tail somewhere earlier, and how far they match."""
    whole = [*text, *tail]
    found = {}
    for position in range(1, len(whole)):
        length = 0
        while length < position and whole[position - 1 - length] == whole[-1 - length]:
            length += 1
        if length:
            found[position] = length
    return found


# Occurrences


@given(TEXT)
def test_matches_agree_with_a_search(tokens: list[int]) -> None:
    occurrences = Occurrences()
    for i, token in enumerate(tokens):
        occurrences.append(token)
        assert occurrences.matches == searched(tokens[: i + 1], ())


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 60))
def test_a_text_taken_in_whole_matches_like_one_that_grew(tokens: list[int], cut: int) -> None:
    whole, grown = Occurrences(), Occurrences()
    whole.start(tokens[:cut])
    for token in tokens[cut:]:
        whole.append(token)
    for token in tokens:
        grown.append(token)
    assert whole.tokens == grown.tokens
    assert whole.positions == grown.positions
    assert {p: min(n, TAIL) for p, n in whole.matches.items()}.keys() == grown.matches.keys()
    assert all(whole.matches[p] == n for p, n in grown.matches.items() if n < TAIL)


@given(TEXT, st.lists(st.integers(0, 3), min_size=1, max_size=6))
def test_drafted_tokens_match_as_if_they_were_said(tokens: list[int], path: list[int]) -> None:
    occurrences = Occurrences()
    occurrences.start(tokens)
    matches = occurrences.matches
    for depth, token in enumerate(path):
        matches = occurrences.step(matches, path[:depth], token)
        expected = searched(tokens, path[: depth + 1])
        inside = {p: n for p, n in expected.items() if p <= len(tokens) or n > p - len(tokens)}
        assert inside.items() <= matches.items() <= expected.items()
        assert max(matches, default=0) <= len(tokens) + depth


def test_a_tail_without_a_follower_matches_nothing() -> None:
    occurrences = Occurrences()
    occurrences.start([1, 2, 3, 4])
    assert occurrences.matches == {}


def test_only_so_many_matches_are_carried_along() -> None:
    occurrences = Occurrences()
    for _ in range(500):
        occurrences.append(5)
        assert len(occurrences.matches) <= MOST_MATCHES
    assert max(occurrences.matches.values()) == 499


# The proposer


def test_a_draft_branches_where_the_text_did() -> None:
    tokens = [1, 2, 7, 4, 1, 2, 8, 4, 1, 2, 7, 5, 1, 2]
    (tree,) = SuffixProposer().propose([in_flight(tokens)])
    first = {tree.tokens[child]: tree.probabilities[child] for child in tree.children[0]}
    assert first.keys() >= {7, 8}
    assert first[7] == pytest.approx(2 * first[8])  # it followed twice
    seven = tree.child(0, 7)
    assert seven is not None
    assert {tree.tokens[child] for child in tree.children[seven]} >= {4, 5}


def test_longer_matches_come_first_and_shorter_ones_share_the_rest() -> None:
    tokens = [1, 2, 3, 9, 5, 3, 6, 1, 2, 3]
    (tree,) = SuffixProposer().propose([in_flight(tokens, depth=1)])
    first = {tree.tokens[child]: tree.probabilities[child] for child in tree.children[0]}
    assert list(first) == [9, 6]
    assert sum(first.values()) < 1


@given(TEXT)
def test_estimates_are_shares_of_the_longest_matches(tokens: list[int]) -> None:
    (tree,) = SuffixProposer().propose([in_flight(tokens, depth=1)])
    drafted = {tree.tokens[child]: tree.probabilities[child] for child in tree.children[0]}
    matches = searched(tokens, ())
    assert drafted.keys() == {tokens[p] for p in matches}
    if matches and max(matches.values()) <= 3:  # classes of one length each
        longest = Counter(tokens[p] for p, n in matches.items() if n == max(matches.values()))
        shares = {token: drafted[token] / count for token, count in longest.items()}
        assert min(shares.values()) == pytest.approx(max(shares.values()))
        assert all(drafted[token] <= max(shares.values()) * len(matches) for token in drafted)


@pytest.mark.parametrize("period", [1, 2, 3, 7])
def test_a_loop_of_any_period_is_drafted_to_full_depth(period: int) -> None:
    loop = list(range(period))
    (tree,) = SuffixProposer().propose([in_flight([*(loop * (14 // period + 2)), *loop], nodes=40, depth=12)])
    deepest = max(range(len(tree)), key=lambda row: tree.depths[row])
    assert [tree.tokens[row] for row in tree.path(deepest)] == (loop * 12)[:12]


def test_it_learns_from_what_is_committed_though_it_was_not_asked() -> None:
    tokens = [1, 2] * 4
    trusting, doubting = SuffixProposer(), SuffixProposer()
    said = {}
    for guesser, then in ((trusting, [1, 2, 1, 2]), (doubting, [3, 1, 2, 4, 1, 2, 5, 1, 2, 1, 2])):
        guesser.propose([in_flight(tokens)])
        text = [*tokens, *then]
        (tree,) = guesser.propose([in_flight(text, prompt=len(tokens))])
        said[guesser] = tree.probabilities[1]
    assert said[trusting] > said[doubting]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8))
def test_drafts_are_the_same_after_pauses(steps: list[tuple[int, bool]]) -> None:
    guesser, tokens = SuffixProposer(), [1, 2, 3]
    rng = random_target(0, VOCAB, memory=1)
    for num_new, asked in steps:
        if asked:
            fresh = SuffixProposer()
            assert guesser.propose([in_flight(tokens, prompt=3)]) == fresh.propose([in_flight(tokens, prompt=3)])
        for _ in range(num_new):
            tokens = [*tokens, int(rng.next_logits(tuple(tokens)).argmax())]


def test_a_repetitive_text_is_decoded_in_few_steps() -> None:
    target = table_target([1, 2, 3, 4, 5, 6] * 12, VOCAB)
    decoder = Decoder(target, SuffixProposer(), num_nodes=15)
    (generation,) = decoder.add([0], Sampling(max_tokens=60))
    decoder.run()
    assert generation.stats.num_steps < 25


def test_the_samplers_noise_weighs_the_roots_children() -> None:
    """Over many seeds, the child with the larger noise is the likelier one; the rule's own draws know nothing of it."""
    tokens = [1, 2, 7, 4, 1, 2, 8, 5, 1, 2]
    for seed in range(20):
        sampler = Sampler(Sampling(temperature=1.0), vocab_size=VOCAB, prompt=tokens, seed=seed)
        coupled, drawn = (
            SuffixProposer().propose([InFlight(0, tokens, len(tokens), sampler, 9, 1, choice)])[0]
            for choice in ("coupled", "drawn")
        )
        noise = gumbel(seed, len(tokens), np.array([7, 8]))
        seven, eight = coupled.child(0, 7), coupled.child(0, 8)
        assert seven is not None and eight is not None
        assert (coupled.probabilities[seven] > coupled.probabilities[eight]) == (noise[0] > noise[1])
        assert sum(coupled.probabilities[1:]) < 1
        assert drawn == SuffixProposer().propose([in_flight(tokens, depth=1, nodes=9)])[0]


# Past outputs


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=30), max_size=12), st.integers(1, 60))
def test_past_outputs_stay_within_their_bound(outputs: list[list[int]], size: int) -> None:
    past = PastOutputs(size)
    for output in outputs:
        past.add(output)
        assert len(past) <= size
        held = past._tokens
        grams = {tuple(held[i : i + MIN_MATCH]) for i in range(len(held) - MIN_MATCH)}
        assert past._index.keys() <= grams
        positions = [p for places in past._index.values() for p in places]
        assert len(positions) == len(set(positions)) <= len(held)
        assert all(0 <= p - past._first < len(held) for p in positions)
    past.clear()
    assert len(past) == 0
    assert not past._index


def test_the_oldest_outputs_leave_first() -> None:
    past = PastOutputs(24)
    past.add([1, 2, 3, 4, 5, 6])
    past.add([5, 6, 7, 8, 9, 1])
    before = past.matches([1, 2, 3])
    assert [token for token, _ in past.followers(before)] == [4]
    for _ in range(3):
        past.add([7, 7, 7, 8, 8, 8])
    assert past.matches([1, 2, 3]) == {}
    assert past.followers(before) == []  # a match that was carried along ends


def test_matches_do_not_run_from_one_output_into_the_next() -> None:
    past = PastOutputs(100)
    past.add([1, 2, 3, 4])
    past.add([5, 6, 7, 8])
    matches = past.step(past.matches([1, 2, 3]), (2, 3, 4))
    assert past.followers(matches) == []


def test_a_match_in_past_outputs_is_as_long_as_it_goes_back() -> None:
    past = PastOutputs(100)
    past.add([9, 1, 2, 3, 4, 5])
    assert list(past.matches([8, 1, 2, 3, 4]).values()) == [4]
    assert list(past.step(past.matches([0, 1, 2, 3]), (2, 3, 4)).values()) == [4]


def test_a_finished_output_helps_the_next_sequence_and_changes_no_text() -> None:
    target, past = random_target(3, VOCAB, memory=3), PastOutputs(1000)
    answers = []
    for proposer in (None, SuffixProposer(past), SuffixProposer(past)):
        decoder = Decoder(target, proposer, num_nodes=8)
        (generation,) = decoder.add([1, 2, 3], Sampling(max_tokens=40))
        decoder.run()
        answers.append(generation)
    plain, first, second = answers
    assert first.tokens == second.tokens == plain.tokens
    assert len(past) == 2 * 41
    assert second.stats.num_steps < first.stats.num_steps / 2
    past.clear()
    assert SuffixProposer(past).propose([in_flight([1, 2, 3])]) == [Tree.root(3)]


def test_a_store_without_room_is_refused() -> None:
    with pytest.raises(RequestError, match="past outputs hold 0 tokens"):
        PastOutputs(0)
