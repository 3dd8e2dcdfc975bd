"""Drafts of an MTP layer: a cache that holds the committed text and nothing else, and trees that grow from own outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.heads.mtp import BoundMtp, MtpConfig, MtpHeads
from headstart.proposers import mtp
from headstart.proposers.base import Observation
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.calibration import Calibration
from headstart.proposers.mtp import MtpProposer
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed
from headstart.tree import ROOT, Tree, TreeBuilder
from numpy_draft_layer import NumpyDraftLayer
from scripted import ScriptedTarget, random_target

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


def test_a_long_pause_holds_little_and_begins_the_cache_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mtp, "MOST_BEHIND", 4)
    target = random_target(0, VOCAB, memory=2)
    heads = bound(target)
    proposer, fresh = MtpProposer(heads), MtpProposer(heads)
    text = prompted(target, proposer, 5)
    proposer.propose([in_flight(text)])
    for i in range(11):
        committed = [i % VOCAB, (i * 5) % VOCAB] if i % 3 else [i % VOCAB]
        tree = Tree.chain([text[-1], *committed[:-1]])
        proposer.observe([told(target, text, committed, tree)])
        text = [*text, *committed]
        state = proposer._states[0]
        assert len(state.behind) == sum(piece.stop - piece.start for piece in state.states) <= 8
    held = len(state.behind)
    for end in range(len(text) - held, len(text)):
        fresh.observe([told(target, text[:end], [text[end]], Tree.root(text[end - 1]))])
    for each in (proposer, fresh):
        each._states[0].calibration = Calibration()  # the two were told of different drafts
    assert proposer.propose([in_flight(text)]) == fresh.propose([in_flight(text)])
    proposer.forget(0)
    fresh.forget(0)
    assert proposer.cache_bytes() == 0 and isinstance(heads.layer, NumpyDraftLayer) and not heads.layer.rows
