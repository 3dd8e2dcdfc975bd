"""Proposers: what they draft, that nothing they do changes the text, and that they hold nothing of a sequence that left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.decode import Decoder, Generation
from headstart.errors import HeadsError, ModelError, RequestError
from headstart.heads.base import Acceptance, BaseIdentity, HeadsCard
from headstart.heads.hydra import HydraConfig, HydraHeads
from headstart.heads.medusa import MedusaConfig, MedusaHeads
from headstart.heads.mtp import MtpConfig, MtpHeads
from headstart.proposers.base import Observation, Proposer
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.combined import CombinedProposer
from headstart.proposers.draft_model import DraftModelProposer
from headstart.proposers.hydra import HydraProposer
from headstart.proposers.medusa import MedusaProposer
from headstart.proposers.mtp import MtpProposer
from headstart.proposers.ngram import NgramProposer
from headstart.proposers.suffix import SuffixProposer
from headstart.proposers.vocabulary import check_vocabularies
from headstart.sampling import Sampler, Sampling, gumbel, log_softmax
from headstart.target.base import Feed
from headstart.tree import Tree
from scripted import (
    EmptyProposer,
    HalfProposer,
    MixProposer,
    OracleProposer,
    ScriptedTarget,
    WrongProposer,
    random_target,
    table_target,
)

VOCAB = 12
ACCEPTANCE = Acceptance(((0.5, 0.2, 0.1), (0.3, 0.1, 0.05), (0.2, 0.1, 0.02)))


def in_flight(
    tokens: Sequence[int], *, key: int = 0, nodes: int = 8, depth: int = 8, vocab: int = VOCAB, sampling: Sampling | None = None
) -> InFlight:
    sampler = Sampler(sampling or Sampling(), vocab_size=vocab, prompt=tokens, seed=7)
    return InFlight(key, list(tokens), len(tokens), sampler, nodes, depth)


def observation(
    target: ScriptedTarget, tokens: Sequence[int], committed: Sequence[int], tree: Tree, key: int = 0
) -> Observation:
    """What a plain pass over ``tokens`` would report before ``committed`` follows."""
    slot = target.open()
    scored = target.forward([Feed(slot, Tree.chain(tokens))])
    target.close(slot)
    return Observation(key, tree, tuple(committed), scored, (0, len(tokens) - 1))


def medusa_heads(target: ScriptedTarget, acceptance: Acceptance | None = ACCEPTANCE, **changes: Any) -> MedusaHeads:
    settings = MedusaConfig(num_heads=3, hidden_size=target.hidden_size, vocab_size=target.vocab_size, **changes)
    rng = np.random.default_rng(3)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in settings.shapes().items()}
    return MedusaHeads(settings, tensors, HeadsCard(BaseIdentity.of(target), acceptance))


def medusa(target: ScriptedTarget, growth: str = "dynamic", acceptance: Acceptance | None = ACCEPTANCE) -> MedusaProposer:
    return MedusaProposer(medusa_heads(target, acceptance).bind(target.operations, target.base_weights()), growth)


def hydra(target: Any, **changes: Any) -> HydraProposer:
    sizes = HydraConfig(4, target.hidden_size, target.vocab_size, inner_size=8, **changes)
    rng = np.random.default_rng(3)
    tensors = {name: 0.4 * rng.standard_normal(shape).astype(np.float32) for name, shape in sizes.shapes().items()}
    return HydraProposer(HydraHeads(sizes, tensors).bind(target.operations, target.base_weights()), num_ranks=4)


def mtp(target: Any, draft_vocab: tuple[int, ...] | None = None, **options: Any) -> MtpProposer:
    settings = MtpConfig(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        intermediate_size=12,
        draft_vocab=draft_vocab,
    )
    rng = np.random.default_rng(4)
    tensors = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in settings.shapes().items()}
    return MtpProposer(MtpHeads(settings, tensors).bind(target.operations, target.base_weights()), **options)


def noisy_draft(target: ScriptedTarget, seed: int = 1, **options: Any) -> ScriptedTarget:
    """A draft model near the target: its logits with some noise."""
    noise = random_target(seed, target.vocab_size, scale=1.0)
    return ScriptedTarget(lambda p: target.next_logits(p) + noise.next_logits(p), target.vocab_size, **options)


PROPOSERS: Mapping[str, Callable[[ScriptedTarget], Proposer]] = {
    "ngram": lambda target: NgramProposer(),
    "suffix": lambda target: SuffixProposer(),
    "combined": lambda target: CombinedProposer([SuffixProposer(), medusa(target)]),
    "combined static": lambda target: CombinedProposer([medusa(target, "static"), NgramProposer()]),
    "combined of many": lambda target: CombinedProposer(
        [SuffixProposer(), medusa(target), hydra(target), mtp(target), DraftModelProposer(noisy_draft(target))]
    ),
    "medusa dynamic": lambda target: medusa(target),
    "medusa static": lambda target: medusa(target, "static"),
    "medusa unmeasured": lambda target: medusa(target, acceptance=None),
    "hydra": lambda target: hydra(target),
    "mtp": lambda target: mtp(target),
    "mtp with few words": lambda target: mtp(target, (2, 3, 5, 7, 11), num_ranks=3),
    "draft_model": lambda target: DraftModelProposer(noisy_draft(target)),
    "draft_model short context": lambda target: DraftModelProposer(noisy_draft(target, context_limit=12)),
    "draft_model padded": lambda target: DraftModelProposer(noisy_draft(target, num_padding=5)),
    "draft_model itself": lambda target: DraftModelProposer(target_twin(target)),
    "oracle": lambda target: OracleProposer(target),
    "oracle tree": lambda target: OracleProposer(target, 8, width=3),
    "wrong": lambda target: WrongProposer(target),
    "half": lambda target: HalfProposer(target),
    "empty": lambda target: EmptyProposer(target),
    "mix": lambda target: MixProposer(target),
}
SAMPLINGS = {
    "greedy": Sampling(max_tokens=16),
    "greedy with penalties": Sampling(max_tokens=16, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2),
    "sampled": Sampling(max_tokens=16, temperature=0.9),
    "sampled and truncated": Sampling(
        max_tokens=16, temperature=0.8, top_p=0.9, top_k=6, min_p=0.01, seed=4, logit_bias={2: 1.0}
    ),
    "ends early": Sampling(max_tokens=16, min_tokens=4, stop_token_ids=(5, 6), temperature=1.0),
}


def target_twin(target: ScriptedTarget, **options: Any) -> ScriptedTarget:
    """The same model again, as a draft."""
    return ScriptedTarget(target.next_logits, target.vocab_size, **options)


def decode(
    target: ScriptedTarget, proposer: Proposer | None, prompts: Sequence[Sequence[int]], sampling: Sampling, num_nodes: int = 8
) -> list[Generation]:
    decoder = Decoder(target, proposer, num_nodes=num_nodes)
    generations = [decoder.add(prompt, sampling, seed=i + 1) for i, prompt in enumerate(prompts)]
    decoder.run()
    return [generation for (generation,) in generations]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_no_proposer_changes_the_text(proposer: str, sampling: Sampling) -> None:
    target = random_target(0, VOCAB, memory=2)
    prompts = [[1, 2, 3], [4], [1, 2, 1, 2, 1]]
    plain = decode(target, None, prompts, sampling)
    guessed = decode(target, PROPOSERS[proposer](target), prompts, sampling)
    assert [g.tokens for g in guessed] == [g.tokens for g in plain]
    assert [g.finish_reason for g in guessed] == [g.finish_reason for g in plain]


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_do_not_depend_on_the_neighbours(proposer: str, temperature: float) -> None:
    target = random_target(1, VOCAB, memory=2)
    prompts = [[1, 2, 3], [4], [1, 2, 1, 2, 1], list(range(9))]
    sampling = Sampling(max_tokens=14, temperature=temperature)
    together = decode(target, PROPOSERS[proposer](target), prompts, sampling)
    shared = PROPOSERS[proposer](target)  # one after the other in one proposer
    for i, prompt in enumerate(prompts):
        decoder = Decoder(target, shared, num_nodes=8)
        (alone,) = decoder.add(prompt, sampling, seed=i + 1)
        decoder.run()
        assert alone.tokens == together[i].tokens
        assert alone.stats == together[i].stats


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_nothing_is_held_of_sequences_that_left(proposer: str) -> None:
    target = random_target(2, VOCAB)
    guesser = PROPOSERS[proposer](target)
    decode(target, guesser, [[1], [2, 3], [4, 5, 6]], Sampling(max_tokens=9))
    assert target.num_open == 0
    held = {"_indexes", "_states", "_texts", "_grown", "_tallies", "known"} & vars(guesser).keys()
    assert all(not vars(guesser)[name] for name in held)
    if isinstance(guesser, DraftModelProposer):
        assert guesser.cache_bytes() == 0


@pytest.mark.parametrize("proposer", PROPOSERS)
@settings(max_examples=8, deadline=None)
@given(nodes=st.integers(0, 9), depth=st.integers(0, 4), temperature=st.sampled_from([0.0, 1.0]))
def test_drafts_stay_within_the_budget(proposer: str, nodes: int, depth: int, temperature: float) -> None:
    target = random_target(3, VOCAB)
    guesser, prompt = PROPOSERS[proposer](target), [1, 2, 3, 1, 2]
    guesser.observe([observation(target, prompt[:-1], prompt[-1:], Tree.root(1))])
    sequence = in_flight(prompt, nodes=nodes, depth=depth, sampling=Sampling(temperature=temperature))
    (tree,) = guesser.propose([sequence])
    assert tree.tokens[0] == 2
    assert tree.num_drafted <= nodes
    assert max(tree.depths) <= depth
    assert all(0 <= p <= 1 for p in tree.probabilities)


# Prompt lookup


def test_the_longest_match_is_copied() -> None:
    #        1 2 3 9 was said, later 8 2 3 7: the tail 1 2 3 matches the older one with three tokens
    tokens = [1, 2, 3, 9, 8, 2, 3, 7, 1, 2, 3]
    (tree,) = NgramProposer().propose([in_flight(tokens, nodes=3)])
    assert tree.tokens == (3, 9, 8, 2)
    assert tree.is_chain


def test_the_most_recent_of_equal_matches_is_copied() -> None:
    (tree,) = NgramProposer().propose([in_flight([1, 2, 7, 1, 2, 8, 1, 2], nodes=1)])
    assert tree.tokens == (2, 8)


def test_the_tail_never_matches_itself() -> None:
    (tree,) = NgramProposer().propose([in_flight([1, 2, 3, 4])])
    assert tree.num_drafted == 0


def test_a_loop_is_copied_to_full_depth() -> None:
    (tree,) = NgramProposer().propose([in_flight([5, 1, 2, 1, 2], nodes=6)])
    assert tree.tokens == (2, 1, 2, 1, 2, 1, 2)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data())
def test_the_index_grows_with_the_text_and_agrees_with_a_search(tokens: list[int], data: st.DataObject) -> None:
    guesser, length = NgramProposer(), data.draw(st.integers(1, len(tokens)))
    for end in (length, len(tokens)):
        said = tokens[:end]
        (tree,) = guesser.propose([in_flight(said, nodes=1)])
        expected: tuple[int, ...] = ()
        for n in (3, 2, 1):
            starts = [i for i in range(end - n) if said[i : i + n] == said[end - n :]] if n <= end else []
            if starts:
                expected = (said[starts[-1] + n],)
                break
        assert tree.tokens[1:] == expected


def test_lookup_learns_what_its_matches_are_worth() -> None:
    guesser, target = NgramProposer(), random_target(0, VOCAB)
    tokens = [1, 2] * 4
    first = guesser.propose([in_flight(tokens, nodes=4)])[0].probabilities[1]
    guesser.observe([observation(target, tokens, [1, 2, 1, 2, 5], Tree.root(2))])
    better = guesser.propose([in_flight(tokens, nodes=4)])[0].probabilities[1]
    guesser.observe([observation(target, tokens, [7], Tree.root(2))])
    worse = guesser.propose([in_flight(tokens, nodes=4)])[0].probabilities[1]
    assert worse < better
    assert first < better


# Medusa


def test_medusa_drafts_nothing_before_it_saw_a_hidden_state() -> None:
    target = random_target(0, VOCAB)
    assert medusa(target).propose([in_flight([1, 2])]) == [Tree.root(2)]


def test_medusa_drafts_nothing_from_a_stale_hidden_state() -> None:
    target = random_target(0, VOCAB)
    guesser = medusa(target)
    guesser.observe([observation(target, [1], [2], Tree.root(1))])
    assert guesser.propose([in_flight([1, 2, 5])]) == [Tree.root(5)]


@pytest.mark.parametrize("growth", ["static", "dynamic"])
def test_the_greedy_medusa_tree_holds_the_likeliest_guesses(growth: str) -> None:
    target = random_target(0, VOCAB)
    guesser = medusa(target, growth)
    guesser.observe([observation(target, [1], [2], Tree.root(1))])
    (tree,) = guesser.propose([in_flight([1, 2], nodes=5)])
    tokens, _ = guesser.heads.guesses(target.hidden_state((1,))[None], [2], 3)
    assert tree.num_drafted == 5
    for depth in (1, 2, 3):
        drafted = {t for t, d in zip(tree.tokens, tree.depths, strict=True) if d == depth}
        assert drafted <= set(tokens[0, depth - 1].tolist())
    assert tree.child(0, int(tokens[0, 0, 0])) is not None


def test_the_greedy_hydra_tree_follows_the_heads_down_every_path() -> None:
    target = random_target(0, VOCAB)
    guesser = hydra(target)
    assert guesser.propose([in_flight([1, 2])]) == [Tree.root(2)]  # no hidden state is known
    guesser.observe([observation(target, [1], [2], Tree.root(1))])
    assert guesser.propose([in_flight([1, 2, 5])]) == [Tree.root(5)]  # it belongs to another root
    (tree,) = guesser.propose([in_flight([1, 2], nodes=6, depth=3)])
    assert tree.num_drafted == 6 and max(tree.depths) <= 3
    bound, states = guesser.heads, {0: target.hidden_state((1,))[None]}
    for row, parent in enumerate(tree.parents):
        states[row] = bound.states(states[max(parent, 0)], [tree.tokens[row]], tree.depths[row])
        if tree.children[row]:
            ids, probabilities = bound.guesses(states[row], 4)
            kept = len(tree.children[row])
            assert {tree.tokens[child] for child in tree.children[row]} == set(ids[0, :kept].tolist())
            best = tree.child(row, int(ids[0, 0]))
            assert best is not None and tree.probabilities[best] == pytest.approx(min(probabilities[0, 0], 0.99), rel=1e-4)


def test_a_hydra_draft_does_not_depend_on_its_neighbours() -> None:
    target = random_target(0, VOCAB)
    words = [[1], [4, 3], [6, 6, 2]]

    def drafts(chosen: list[int]) -> list[Tree]:
        guesser = hydra(target)
        guesser.observe([observation(target, words[i], [2], Tree.root(1), key=i) for i in chosen])
        return guesser.propose([in_flight([*words[i], 2], key=i, nodes=3 + 2 * i) for i in chosen])

    for i, together in enumerate(drafts([0, 1, 2])):
        (alone,) = drafts([i])
        assert (alone.tokens, alone.parents) == (together.tokens, together.parents)


def test_the_noisy_hydra_tree_ranks_guesses_with_the_samplers_own_noise() -> None:
    target = random_target(0, VOCAB)
    guesser = hydra(target)
    guesser.observe([observation(target, [1, 3], [2], Tree.root(1))])
    (tree,) = guesser.propose([in_flight([1, 3, 2], nodes=8, depth=1, sampling=Sampling(temperature=0.7))])
    logits = guesser.heads.logits(guesser.heads.states(target.hidden_state((1, 3))[None], [2], 0))[0]
    scores = log_softmax(logits) / 0.7 + gumbel(7, 3, np.arange(VOCAB))
    assert set(tree.tokens[1:]) == set(np.argsort(-scores)[: tree.num_drafted].tolist())


def test_the_noisy_medusa_tree_ranks_guesses_with_the_samplers_own_noise() -> None:
    target = random_target(0, VOCAB)
    guesser = medusa(target, "static")
    guesser.observe([observation(target, [1, 3], [2], Tree.root(1))])
    (tree,) = guesser.propose([in_flight([1, 3, 2], nodes=2, depth=2, sampling=Sampling(temperature=0.7))])
    logits = guesser.heads.logits(target.hidden_state((1, 3))[None], [2])
    ids = np.arange(VOCAB)
    best = [int(np.argmax(log_softmax(x)[0] / 0.7 + gumbel(7, 3 + d, ids))) for d, x in enumerate(logits)]
    paths = {tuple(tree.tokens[row] for row in tree.path(node)) for node in range(1, len(tree))}
    assert (best[0],) in paths
    assert all(word[1] == best[1] for word in paths if len(word) == 2)


def test_static_trees_need_measured_acceptance() -> None:
    with pytest.raises(HeadsError, match="dynamic"):
        medusa(random_target(0, VOCAB), "static", acceptance=None)
    with pytest.raises(RequestError, match="growth is 'wild'"):
        medusa(random_target(0, VOCAB), "wild")


@pytest.mark.parametrize("proposer", ["medusa dynamic", "hydra", "mtp"])
def test_a_prompt_says_nothing_about_the_estimates(proposer: str) -> None:
    """It was not drafted, so nothing of it was missed: two prompts that end alike are drafted for alike."""
    target = ScriptedTarget(random_target(0, VOCAB, memory=1).next_logits, VOCAB)
    target.hidden_state = lambda prefix: random_target(1, 8, memory=1).next_logits(prefix[-1:])  # type: ignore[method-assign]
    trees = []
    for prompt in ([5], [3, 9, 4, 5]):
        guesser = PROPOSERS[proposer](target)
        guesser.observe([observation(target, prompt, [7], Tree.chain(prompt))])
        trees += guesser.propose([in_flight([*prompt, 7])])
    assert trees[0] == trees[1] and trees[0].num_drafted > 0


def test_all_sequences_share_one_head_pass() -> None:
    target = random_target(0, VOCAB)
    guesser = medusa(target)
    guesser.observe([observation(target, [1], [2], Tree.root(1), key) for key in range(4)])
    before = target.operations.num_products
    trees = guesser.propose([in_flight([1, 2], key=key) for key in (3, 0, 2)])
    assert target.operations.num_products == before + 2
    assert trees[0] == trees[1] == trees[2]


# Draft model


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("penalty", [0.0, 0.7])
def test_a_draft_equal_to_the_target_is_always_accepted(temperature: float, penalty: float) -> None:
    target = random_target(4, VOCAB)
    guesser = DraftModelProposer(target_twin(target), num_levels=3)
    sampling = Sampling(max_tokens=25, temperature=temperature, frequency_penalty=penalty)
    (generation,) = decode(target, guesser, [[1, 2]], sampling, num_nodes=24)
    assert generation.stats.accepted_histogram == [0, 0, 0, 6]


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9}, {"top_k": 500}, {"repetition_penalty": 1.2}])
def test_a_draft_equal_to_the_target_is_accepted_wherever_the_noise_falls(fields: dict[str, float]) -> None:
    """Also where most picks are outside the few hundred likeliest tokens."""
    target = random_target(4, 900, scale=0.5)
    guesser = DraftModelProposer(target_twin(target), num_levels=3)
    sampling = Sampling(max_tokens=25, temperature=1.5, **fields)  # type: ignore[arg-type]
    (generation,) = decode(target, guesser, [[1, 2]], sampling, num_nodes=24)
    assert generation.stats.accepted_histogram == [0, 0, 0, 6]


def test_the_draft_tree_is_the_likeliest_of_its_product_tree() -> None:
    draft = random_target(5, 4, scale=1.0)
    guesser = DraftModelProposer(draft, num_levels=3)
    (tree,) = guesser.propose([in_flight([1, 2], nodes=6, vocab=4)])
    values: list[float] = []
    stack: list[tuple[tuple[int, ...], float]] = [((1, 2), 1.0)]
    while stack:
        prefix, reach = stack.pop()
        if len(prefix) < 5:
            shares = np.exp(log_softmax(draft.next_logits(prefix)))
            stack += [((*prefix, token), reach * float(share)) for token, share in enumerate(shares)]
            values += [reach * float(share) for share in shares]
    assert sorted(tree.path_probabilities()[1:], reverse=True) == pytest.approx(sorted(values, reverse=True)[:6])


def test_the_draft_takes_one_forward_a_level_over_all_sequences() -> None:
    draft = random_target(5, VOCAB)
    guesser = DraftModelProposer(draft, num_levels=3)
    guesser.propose([in_flight([1, 2, 3], key=0), in_flight([4], key=1), in_flight([5, 6], key=2, depth=1)])
    assert draft.num_forwards == 3
    assert [len(batch) for batch in draft.feeds] == [3, 2, 2]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.booleans()), min_size=1, max_size=8))
def test_the_draft_stays_right_after_pauses_and_foreign_tokens(steps: list[tuple[int, bool]]) -> None:
    draft, rng = random_target(6, VOCAB), np.random.default_rng(0)
    guesser, tokens = DraftModelProposer(draft), [1, 2, 3]
    for num_new, asked in steps:
        if asked:
            fresh = DraftModelProposer(target_twin(draft)).propose([in_flight(tokens)])
            assert guesser.propose([in_flight(tokens)]) == fresh
        tokens = [*tokens, *rng.integers(0, VOCAB, num_new).tolist()]
    assert guesser.propose([in_flight(tokens)]) == guesser.propose([in_flight(tokens)])  # asking twice does no harm


def test_a_long_prompt_reaches_the_draft_in_chunks() -> None:
    target = random_target(7, VOCAB, memory=3)
    guesser = DraftModelProposer(target_twin(target))
    prompt = np.random.default_rng(0).integers(0, VOCAB, 1200).tolist()
    (tree,) = guesser.propose([in_flight(prompt)])
    assert max(len(tree) for batch in guesser.draft.feeds for _, tree in batch) <= 512  # type: ignore[attr-defined]
    assert tree.child(0, int(np.argmax(target.next_logits(tuple(prompt))))) is not None


def test_drafting_stops_at_the_drafts_context_limit_for_that_sequence_alone() -> None:
    target = random_target(8, VOCAB, context_limit=128)
    guesser = DraftModelProposer(target_twin(target, context_limit=32))
    decoder = Decoder(target, guesser, num_nodes=8)
    (long,) = decoder.add([1] * 20, Sampling(max_tokens=60))
    (short,) = decoder.add([2], Sampling(max_tokens=25))
    decoder.run()
    plain = decode(target, None, [[1] * 20], Sampling(max_tokens=60))[0]
    assert long.tokens == plain.tokens
    assert 0 < long.stats.num_accepted <= 13
    assert short.stats.acceptance_length > 3


def test_acceptance_recovers_after_drafting_was_off() -> None:
    target = random_target(9, VOCAB)
    decoder = Decoder(target, DraftModelProposer(target_twin(target), num_levels=3), num_nodes=24)
    (generation,) = decoder.add([1, 2, 3], Sampling(max_tokens=60))
    while len(generation.tokens) < 21:
        decoder.step()
    decoder.num_nodes = 0
    while len(generation.tokens) < 40:
        decoder.step()
    num_accepted, num_steps = generation.stats.num_accepted, generation.stats.num_steps
    decoder.num_nodes = 24
    decoder.run()
    assert generation.stats.num_accepted - num_accepted == 3 * (generation.stats.num_steps - num_steps) == 15


def test_tokens_that_the_draft_does_not_have_end_drafting_quietly() -> None:
    draft = random_target(0, VOCAB - 2)
    trees = DraftModelProposer(draft).propose([in_flight([1, VOCAB - 1, 2], key=0), in_flight([1, 2], key=1)])
    assert trees[0] == Tree.root(2)
    assert trees[1].num_drafted == 8


class Words:
    def __init__(self, *words: str | None) -> None:
        self.words, self.vocab_size = words, len(words)

    def token_text(self, token: int) -> str | None:
        return self.words[token]

    def token_id(self, text: str) -> int | None:
        return self.words.index(text) if text in self.words else None


@pytest.mark.parametrize("draft", [("a", "b", "c"), ("a", "b", "c", None, None), ("a", "b", "c", "extra"), ("a", "b")])
def test_vocabularies_that_differ_in_padding_fit(draft: tuple[str | None, ...]) -> None:
    check_vocabularies(Words("a", "b", "c", None), Words(*draft))


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        (("a", "x", "y"), r"token 1 is 'b' in the target and 'x' in the draft"),
        (("a", None, "c", "b"), r"token 1 is 'b' in the target and None in the draft"),
    ],
)
def test_the_first_token_on_which_vocabularies_differ_is_named(draft: tuple[str | None, ...], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        check_vocabularies(Words("a", "b", "c"), Words(*draft))


def test_a_table_target_plays_its_script() -> None:
    target = table_target([0, 7, 8, 2, 9], 10, end_tokens=(2,))
    (generation,) = decode(target, OracleProposer(target, 8), [[5]], Sampling(max_tokens=9))
    assert generation.tokens == [7, 8, 2]
    assert generation.stop_reason == 2


# On a real engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    "proposer", ["ngram", "suffix", "medusa", "medusa static", "hydra", "mtp", "combined", "draft_model", "draft_model itself"]
)
def test_no_proposer_changes_the_text_of_a_torch_model(proposer: str, temperature: float) -> None:
    pytest.importorskip("torch")
    from tiny import tiny_target

    target = tiny_target()
    guessers: dict[str, Callable[[], Proposer]] = {
        "ngram": NgramProposer,
        "suffix": SuffixProposer,
        "combined": lambda: CombinedProposer([SuffixProposer(), real_medusa(target, "dynamic")]),
        "medusa": lambda: real_medusa(target, "dynamic"),
        "medusa static": lambda: real_medusa(target, "static"),
        "hydra": lambda: hydra(target),
        "mtp": lambda: mtp(target),
        "draft_model": lambda: DraftModelProposer(tiny_target(seed=1)),
        "draft_model itself": lambda: DraftModelProposer(tiny_target(), num_levels=3),
    }
    guesser = guessers[proposer]()
    sampling = Sampling(max_tokens=24, temperature=temperature, ignore_eos=True)
    prompts = [[1, 5, 6, 7], [1, 9], [3, 4] * 6]
    generations = []
    for used in (None, guesser):
        decoder = Decoder(target, used, num_nodes=12)
        added = [decoder.add(prompt, sampling, seed=i) for i, prompt in enumerate(prompts)]
        decoder.run()
        generations.append([generation for (generation,) in added])
    plain, guessed = generations
    assert [g.tokens for g in guessed] == [g.tokens for g in plain]
    assert sum(g.stats.num_drafted for g in guessed) > 0
    if proposer == "draft_model itself":
        assert all(g.stats.acceptance_length > 2 for g in guessed)
    if isinstance(guesser, DraftModelProposer):
        assert guesser.cache_bytes() == 0


def real_medusa(target: Any, growth: str) -> MedusaProposer:
    """Untrained heads over a torch engine."""
    heads = medusa_heads(target, inner_size=8)
    return MedusaProposer(heads.bind(target.operations, target.base_weights()), growth)


def test_a_draft_whose_logits_are_no_numbers_has_nothing_to_say() -> None:
    target = random_target(3, 16)
    broken = ScriptedTarget(lambda prefix: np.full(16, np.nan, dtype=np.float32), 16)
    decoder = Decoder(target, DraftModelProposer(broken))
    (guessed,) = decoder.add([1, 2, 3], Sampling(max_tokens=6))
    decoder.run()
    plain = Decoder(target)
    (expected,) = plain.add([1, 2, 3], Sampling(max_tokens=6))
    plain.run()
    assert guessed.tokens == expected.tokens
    assert broken.num_open == 0
