"""Drafts of an MTP layer: a cache that holds the committed text and nothing else, and trees that grow from own outputs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart import decode
from headstart.decode import Decoder, Generation
from headstart.heads.mtp import BoundMtp, MtpConfig, MtpHeads
from headstart.proposers import mtp
from headstart.proposers.base import Observation, PromptChunk
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.mtp import MtpProposer
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed
from headstart.tree import ROOT, Tree, TreeBuilder
from numpy_draft_layer import NumpyDraftLayer
from scripted import MixProposer, ScriptedTarget, random_target

VOCAB = 12
PROMPT = [3, 1, 4]


def bound(target: ScriptedTarget, **changes: Any) -> BoundMtp:
    config = MtpConfig(
        **{
            "hidden_size": target.hidden_size,
            "vocab_size": target.vocab_size,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 4,
            "intermediate_size": 12,
        }
        | changes
    )
    rng = np.random.default_rng(4)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in config.shapes().items()}
    return MtpHeads(config, tensors).bind(target.operations, target.base_weights())


def in_flight(tokens: Sequence[int], *, nodes: int = 8, depth: int = 8, temperature: float = 0.0, key: int = 0) -> InFlight:
    sampler = Sampler(Sampling(temperature=temperature), vocab_size=VOCAB, prompt=tokens, seed=7)
    return InFlight(key, list(tokens), len(PROMPT), sampler, nodes, depth)


def told(target: ScriptedTarget, tokens: Sequence[int], committed: Sequence[int], tree: Tree, *, key: int = 0) -> Observation:
    """What a step over ``tree`` reports that committed these tokens behind ``tokens``; its root is the last of ``tokens``."""
    slot = target.open()
    before = tokens[:-1] if len(tree) > 1 else tokens[: len(tokens) - len(tree)]
    if before:
        target.forward([Feed(slot, Tree.chain(before))])
        target.keep(slot, tuple(range(len(before))))
    scored = target.forward([Feed(slot, tree)])
    target.close(slot)
    row = ROOT
    for token in committed[:-1]:
        child = tree.child(row, token)
        assert child is not None
        row = child
    return Observation(key, tree, tuple(committed), scored, (0, row))


def prompted(target: ScriptedTarget, proposer: MtpProposer, root: int, key: int = 0) -> list[int]:
    """The prompt's pass; the text so far."""
    slot = target.open()
    tree = Tree.chain(PROMPT)
    scored = target.forward([Feed(slot, tree, len(PROMPT) - 1)])
    target.close(slot)
    proposer.observe([Observation(key, tree, (root,), scored, (0, len(PROMPT) - 1))])
    return [*PROMPT, root]


STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5), st.booleans(), st.integers(0, VOCAB - 1)),
    min_size=1,
    max_size=6,
)


def a_draft(root: int, path: Sequence[int], other: int) -> Tree:
    """A tree that holds a path and, in front of it, branches that are no part of it."""
    builder = TreeBuilder(root)
    row = ROOT
    for token in path:
        if other != token:
            builder.add(row, other, 0.5)
        row = builder.add(row, token, 0.5)
    return builder.build()


@settings(max_examples=40, deadline=None)
@given(steps=STEPS, temperature=st.sampled_from([0.0, 0.8]))
def test_drafts_are_those_of_a_layer_that_reads_the_whole_text_at_once(
    steps: list[tuple[list[int], bool, int]], temperature: float
) -> None:
    """Whatever was accepted or rejected, and whether or not it was asked in between: to the last bit."""
    target = random_target(0, VOCAB, memory=2)
    heads = bound(target)
    asked, fresh = MtpProposer(heads), MtpProposer(heads)
    text = prompted(target, asked, 5)
    prompted(target, fresh, 5)
    for committed, is_asked, other in steps:
        if is_asked:
            asked.propose([in_flight(text, temperature=temperature)])
        tree = a_draft(text[-1], committed[:-1], other)
        for proposer in (asked, fresh):
            proposer.observe([told(target, text, committed, tree)])
        text = [*text, *committed]
    sequence = in_flight(text, temperature=temperature)
    assert asked.propose([sequence]) == fresh.propose([sequence])
    assert heads.layer.cache_bytes() == 2 * (len(text) - len(PROMPT) - 1)  # of both; roots are not kept


def test_the_greedy_tree_holds_the_likeliest_tokens_behind_each_drafted_one() -> None:
    target = random_target(0, VOCAB, memory=2)
    heads = bound(target)
    proposer = MtpProposer(heads, num_ranks=3)
    text = prompted(target, proposer, 5)
    tree = proposer.propose([in_flight(text, nodes=10)])[0]
    assert tree.num_drafted == 10 and max(tree.depths) > 1
    layer, state = heads.layer, target.hidden_state(tuple(PROMPT))[None]
    for row in range(len(tree)):
        slot = layer.open()
        path = [ROOT, *tree.path(row)]
        states = state
        for end in range(1, len(path) + 1):  # each drafted token with the layer's own output for the one before
            chain = Tree.chain([tree.tokens[node] for node in path[:end]])
            found = layer.forward([Feed(slot, chain)], states)
            layer.keep(slot, ())
            states = np.concatenate([states, found.hidden([(0, end - 1)])])
        ids, logprobs = heads.likeliest(found, [(0, len(path) - 1)], 3)
        children = tree.children[row]
        assert [tree.tokens[child] for child in children] == ids[0, : len(children)].tolist()
        np.testing.assert_allclose([tree.probabilities[child] for child in children], np.exp(logprobs[0, : len(children)]))


def test_one_forward_a_level_for_all_sequences() -> None:
    target = random_target(0, VOCAB, memory=2)
    proposer = MtpProposer(bound(target))
    layer = proposer.layer
    assert isinstance(layer, NumpyDraftLayer)
    texts = [prompted(target, proposer, root, key=root) for root in (5, 6, 7)]
    trees = proposer.propose([in_flight(text, key=text[-1], nodes=16) for text in texts])
    assert layer.num_forwards == max(max(tree.depths) for tree in trees) == 4
    before = layer.num_forwards
    proposer.propose([in_flight(text, key=text[-1], depth=1) for text in texts])
    assert layer.num_forwards == before + 1


def test_nothing_is_drafted_before_a_state_is_known_or_behind_a_token_that_nobody_reported() -> None:
    target = random_target(0, VOCAB)
    proposer = MtpProposer(bound(target))
    assert proposer.propose([in_flight([1, 2])]) == [Tree.root(2)]
    text = prompted(target, proposer, 5)
    assert proposer.propose([in_flight([*text, 9])]) == [Tree.root(9)]
    assert proposer.propose([in_flight(text, nodes=0)]) == [Tree.root(5)]


def test_a_long_pause_holds_little_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    target = random_target(0, VOCAB, memory=2)
    heads = bound(target)
    proposer, fresh = MtpProposer(heads), MtpProposer(heads)
    text = prompted(target, proposer, 5)
    prompted(target, fresh, 5)
    proposer.propose([in_flight(text)])
    for i in range(11):
        committed = [i % VOCAB, (i * 5) % VOCAB] if i % 3 else [i % VOCAB]
        tree = Tree.chain([text[-1], *committed[:-1]])
        for each, most in ((fresh, 512), (proposer, 4)):
            monkeypatch.setattr(mtp, "MOST_BEHIND", most)
            each.observe([told(target, text, committed, tree)])
        text = [*text, *committed]
        held = proposer._states[0].text
        assert len(held.behind) == held.num_states == sum(map(len, held.states)) <= 4
    assert proposer.propose([in_flight(text)]) == fresh.propose([in_flight(text)])
    proposer.forget(0)
    fresh.forget(0)
    assert proposer.cache_bytes() == 0 and isinstance(heads.layer, NumpyDraftLayer) and not heads.layer.rows


class Moody:
    """Now and then asks the layer, or throws its draft away, or lets another's be verified: as a plan may do."""

    name = "moody"

    def __init__(self, inner: MtpProposer, other: MixProposer, moods: Sequence[str]) -> None:
        self.inner, self.other, self.moods = inner, other, itertools.cycle(moods)
        self.read_prompt, self.observe, self.forget = inner.read_prompt, inner.observe, inner.forget

    def propose(self, sequences: Sequence[InFlight]) -> list[Tree]:
        mood = next(self.moods)
        if mood == "off":
            return [Tree.root(sequence.tokens[-1]) for sequence in sequences]
        drafts = self.inner.propose(sequences) if mood != "other" else []
        return drafts if mood == "own" else self.other.propose(sequences)


def check_held(target: ScriptedTarget, proposer: MtpProposer, generation: Generation) -> None:
    """What is held of an answer, fed and not yet fed, is what a layer makes of its whole text at once."""
    heads, text = proposer.heads, generation.text
    layer: Any = heads.layer
    held = proposer._states[generation.key].text
    assert not held.is_open and held.end == len(text) - 1 and held.num_states == len(held.behind) <= mtp.MOST_BEHIND
    given = np.stack([target.watched_states(tuple(text[:end]), mtp.watched(heads.config)) for end in range(1, len(text))])
    fed = layer.rows[held.slot] if held.slot is not None else []
    assert text[1 + len(fed) :] == held.behind
    np.testing.assert_array_equal(np.concatenate(held.states), given[len(fed) :])
    slot = layer.open()
    layer.forward([Feed(slot, Tree.chain(text[1:]))], heads.fused(given))
    layer.keep(slot, tuple(range(len(fed))))
    for mine, anew in zip(fed, layer.rows[slot], strict=True):
        for one, other in zip(mine, anew, strict=True):  # fc rounds differently for one row and for many
            np.testing.assert_allclose(one, other, rtol=1e-5 if heads.config.num_features else 0, atol=1e-6)
    layer.close(slot)


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=11),  # a prompt
        st.integers(1, 3),  # answers to it
        st.integers(0, 5),  # steps until the next one joins
        st.one_of(st.none(), st.integers(0, 6)),  # steps until one of its answers is cancelled
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=REQUESTS,
    moods=st.lists(st.sampled_from(["own", "other", "thrown away", "off"]), min_size=1, max_size=6),
    temperature=st.sampled_from([0.0, 1.0]),
    layers=st.sampled_from([None, (0, 2)]),
    chunk=st.integers(1, 5),
    most=st.integers(2, 6),
)
def test_whatever_happens_the_layer_knows_the_whole_text(
    requests: list[tuple[list[int], int, int, int | None]],
    moods: list[str],
    temperature: float,
    layers: tuple[int, ...] | None,
    chunk: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Chunked prompts, several answers to one, answers that are cancelled, pauses, drafts of others, rejected ones."""
    monkeypatch.setattr(decode, "PROMPT_CHUNK", chunk)
    monkeypatch.setattr(mtp, "MOST_BEHIND", most)
    target = random_target(0, VOCAB, memory=2)
    heads = bound(target, reads_prompt=True, eagle_aux_hidden_state_layer_ids=layers)
    target.watch(mtp.watched(heads.config))
    proposer = MtpProposer(heads)
    decoder = Decoder(target, Moody(proposer, MixProposer(target, 4), moods), num_nodes=5)
    plain = Decoder(target)
    generations, expected, gone = list[Generation](), list[Generation](), set[int]()
    for prompt, n, steps, cancelled in requests:
        sampling = Sampling(max_tokens=9, temperature=temperature, n=n, seed=3)
        joined = decoder.add(prompt, sampling)
        generations += joined
        expected += plain.add(prompt, sampling)
        for step in range(steps):
            if step == cancelled:
                decoder.cancel(joined[0])
                gone.add(joined[0].key)
            advance(target, decoder, proposer, generations)
    while decoder.num_running:
        advance(target, decoder, proposer, generations)
    plain.run()
    for mine, theirs in zip(generations, expected, strict=True):
        assert mine.tokens == theirs.tokens or (mine.key in gone and mine.tokens == theirs.tokens[: len(mine.tokens)])
    assert not proposer._states and isinstance(heads.layer, NumpyDraftLayer) and not heads.layer.rows


def advance(target: ScriptedTarget, decoder: Decoder, proposer: MtpProposer, generations: Sequence[Generation]) -> None:
    decoder.step()
    for generation in generations:
        if generation.tokens and not generation.finished:
            check_held(target, proposer, generation)


def test_drafts_are_made_behind_the_prompt_and_not_behind_the_answer_alone() -> None:
    target = random_target(0, VOCAB, memory=2)
    trees = []
    for reads_prompt in (True, False):
        heads = bound(target, reads_prompt=reads_prompt)
        target.watch(mtp.watched(heads.config))
        proposer = MtpProposer(heads)
        decoder = Decoder(target, proposer, num_nodes=6)
        decoder.add([3, 1, 4, 1, 5, 9, 2, 6], Sampling(max_tokens=9))
        decoder.step()
        (generation,) = (running.generation for running in decoder._running)
        trees.append(proposer.propose([generation.sequence(6, "coupled")])[0])
        decoder.close()
    assert trees[0] != trees[1]


def test_a_text_that_is_computed_anew_or_from_a_known_prefix_on_begins_there() -> None:
    target = random_target(0, VOCAB, memory=2)
    heads = bound(target, reads_prompt=True)
    target.watch(mtp.watched(heads.config))
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    proposer, fresh = MtpProposer(heads), MtpProposer(heads)

    def read(each: MtpProposer, start: int, stop: int) -> None:
        slot = target.open()
        if start:
            target.forward([Feed(slot, Tree.chain(text[:start]), start)])
            target.keep(slot, tuple(range(start)))
        scored = target.forward([Feed(slot, Tree.chain(text[start:stop]), stop - start)])
        target.close(slot)
        each.read_prompt([PromptChunk((0,), start, tuple(text[start:stop]), scored, 0)])

    def first(each: MtpProposer, root: int) -> None:
        tree, slot = Tree.chain(text[4:]), target.open()
        target.forward([Feed(slot, Tree.chain(text[:4]), 4)])
        target.keep(slot, tuple(range(4)))
        scored = target.forward([Feed(slot, tree, len(tree) - 1)])
        target.close(slot)
        each.observe([Observation(0, tree, (root,), scored, (0, len(tree) - 1))])

    for borders in ((0, 3), (3, 8)):
        read(fresh, *borders)
    for borders in ((0, 6), (0, 4), (4, 8)):  # it was evicted after six tokens, and computed anew
        read(proposer, *borders)
    for each in (fresh, proposer):
        first(each, 7)
    asked = [in_flight([*text, 7])]
    assert proposer.propose(asked) == fresh.propose(asked)
    beginning = MtpProposer(heads)
    read(beginning, 4, 8)  # its prefix was cached by someone else
    first(beginning, 7)
    held = beginning._states[0].text
    assert (held.end, held.behind) == (8, [9, 2, 6, 7])
    assert beginning.propose(asked)[0].num_drafted > 0
