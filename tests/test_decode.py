"""THE loop on scripted targets: whatever is drafted, and in whatever company, a request's outcome is that of plain decoding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats  # type: ignore[import-untyped]

from headstart.decode import PROMPT_CHUNK, Decoder, Generation
from headstart.errors import ModelError, RequestError
from headstart.proposers.base import Observation, Proposer
from headstart.proposers.base import Sequence as View
from headstart.proposers.ngram import NgramProposer
from headstart.sampling import Sampling, log_softmax, sampling_names
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

V = 9
END = 0
NUM_NODES = (0, 1, 2, 4, 8, 15)
Request = tuple[tuple[int, ...], Sampling]

DRAFTS: dict[str, Callable[[ScriptedTarget, int], Proposer | None]] = {
    "none": lambda target, k: None,
    "oracle": OracleProposer,
    "oracle tree": lambda target, k: OracleProposer(target, k, width=3),
    "wrong": WrongProposer,
    "wrong tree": lambda target, k: WrongProposer(target, k, width=3),
    "half": HalfProposer,
    "half tree": lambda target, k: HalfProposer(target, k, width=2),
    "empty": EmptyProposer,
    "mix chain": lambda target, k: MixProposer(target, k, width=1),
    "mix tree": MixProposer,
    "ngram": lambda target, k: NgramProposer(),
}


def a_target(key: int = 0, **options: Any) -> ScriptedTarget:
    """Logits that depend on the last three tokens, so texts repeat themselves now and then."""
    return random_target(key, V, memory=3, end_tokens=[END], **options)


def outcome(generation: Generation) -> tuple[object, ...]:
    """Everything that a client can see of an answer."""
    assert len(generation.logprobs) == (len(generation.tokens) if generation.sampling.logprobs is not None else 0)
    return (
        tuple(generation.tokens), generation.finish_reason, generation.stop_reason, tuple(generation.logprobs), generation.seed
    )  # fmt: skip


def solo(target: ScriptedTarget, prompt: Sequence[int], sampling: Sampling, *, seed: int | None = None) -> list[Generation]:
    """The n answers of plain decoding, alone in the loop."""
    decoder = Decoder(target)
    generations = decoder.add(prompt, sampling, seed=seed)
    decoder.run()
    return generations


def drafted(
    target: ScriptedTarget, draft: str, num_nodes: int, prompt: Sequence[int], sampling: Sampling, *, seed: int | None = None
) -> Generation:
    """One answer with drafts, alone in the loop."""
    decoder = Decoder(target, DRAFTS[draft](target, num_nodes), num_nodes=num_nodes)
    (generation,) = decoder.add(prompt, sampling, seed=seed)
    decoder.run()
    assert target.num_open == 0
    return generation


# -- the master property --------------------------------------------------------------------------------------------------

samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.8, 1.0]),
    top_k=st.sampled_from([0, 3]),
    top_p=st.sampled_from([0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    logit_bias=st.dictionaries(st.integers(1, V - 1), st.sampled_from([-math.inf, 1.0]), max_size=2),
    min_tokens=st.integers(0, 5),
    max_tokens=st.sampled_from([5, 9, 24, None]),
    stop_token_ids=st.sampled_from([(), (4,)]),
    ignore_eos=st.booleans(),
    seed=st.integers(0, 2**62),
    logprobs=st.sampled_from([None, 0, 2]),
)
requests = st.tuples(st.lists(st.integers(0, V - 1), min_size=1, max_size=8).map(tuple), samplings)


@settings(max_examples=120)
@given(
    joins=st.lists(st.tuples(st.integers(0, 6), requests), min_size=1, max_size=8),
    leaves=st.dictionaries(st.integers(0, 9), st.integers(0, 7), max_size=2),
    draft=st.sampled_from(sorted(DRAFTS)),
    num_nodes=st.sampled_from(NUM_NODES),
    key=st.integers(0, 9),
)
def test_every_draft_in_every_company_gives_the_outcome_of_plain_decoding_alone(
    joins: list[tuple[int, Request]], leaves: dict[int, int], draft: str, num_nodes: int, key: int
) -> None:
    target = a_target(key, context_limit=40)
    proposer = DRAFTS[draft](target, num_nodes)
    decoder = Decoder(target, proposer, num_nodes=num_nodes)
    generations: dict[int, Generation] = {}
    step = 0
    while len(generations) < len(joins) or decoder.num_running:
        for index, (when, (prompt, sampling)) in enumerate(joins):
            if when == step:
                (generations[index],) = decoder.add(prompt, sampling)
        if leaves.get(step) in generations:
            decoder.cancel(generations[leaves[step]])
        before = {index: len(g.tokens) for index, g in generations.items() if not g.finished}
        streamed = {result.generation.key: result.tokens for result in decoder.step()}
        for index, length in before.items():
            assert streamed[generations[index].key] == tuple(generations[index].tokens[length:]) != (), "no progress"
        step += 1
    for index, (_, (prompt, sampling)) in enumerate(joins):
        (expected,) = solo(target, prompt, sampling)
        got = generations[index]
        if got.finish_reason == "cancelled":
            assert got.tokens == expected.tokens[: len(got.tokens)]
        else:
            assert outcome(got) == outcome(expected)
            assert got.sampler.counts == {t: got.tokens.count(t) for t in got.tokens}, "the penalties' state is a recount"
    assert target.num_open == 0 and target.cache_bytes() == 0
    assert not getattr(proposer, "known", None), "the proposer still holds sequences that left"


@pytest.mark.parametrize("draft", sorted(DRAFTS))
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.0])
def test_every_draft_of_every_size_gives_the_tokens_of_plain_decoding(draft: str, temperature: float) -> None:
    target = a_target(3)
    sampling = Sampling(temperature=temperature, ignore_eos=True, max_tokens=33, logprobs=1, frequency_penalty=0.1)
    (expected,) = solo(target, [1, 2, 3], sampling, seed=8)
    for num_nodes in NUM_NODES:
        assert outcome(drafted(target, draft, num_nodes, [1, 2, 3], sampling, seed=8)) == outcome(expected)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_runs_repeat_themselves_with_and_without_drafts(temperature: float) -> None:
    target = a_target(5)
    sampling = Sampling(temperature=temperature, seed=3, max_tokens=30)
    runs = [outcome(drafted(target, draft, 4, [5], sampling)) for draft in ("none", "none", "mix tree", "mix tree", "ngram")]
    assert len(set(runs)) == 1


# -- every parameter ------------------------------------------------------------------------------------------------------

GREEDY: dict[str, Any] = {"seed": 5, "max_tokens": 40}
STEADY: dict[str, Any] = GREEDY | {"temperature": 1.0}
MATTERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # field: (what is on anyway, the field's own value)
    "temperature": (GREEDY, {"temperature": 0.8}),
    "top_k": (STEADY, {"top_k": 2}),
    "top_p": (STEADY, {"top_p": 0.5}),
    "min_p": (STEADY, {"min_p": 0.5}),
    "repetition_penalty": (GREEDY, {"repetition_penalty": 1.8}),
    "presence_penalty": (GREEDY, {"presence_penalty": 1.5}),
    "frequency_penalty": (GREEDY, {"frequency_penalty": 0.8}),
    "logit_bias": (GREEDY, {"logit_bias": {6: -math.inf, 7: -1.0}}),
    "min_tokens": (GREEDY | {"logit_bias": {END: 3.0}}, {"min_tokens": 12}),
    "max_tokens": (GREEDY | {"ignore_eos": True}, {"max_tokens": 7}),
    "stop_token_ids": (GREEDY | {"ignore_eos": True}, {"stop_token_ids": (3, 4)}),
    "ignore_eos": (GREEDY | {"logit_bias": {END: 2.0}}, {"ignore_eos": True}),
    "seed": (STEADY, {"seed": 6}),
    "logprobs": (GREEDY, {"logprobs": 3}),
    "n": (STEADY, {"n": 3}),
}


def test_the_table_of_parameters_that_matter_is_complete() -> None:
    assert {*MATTERS, "stop"} == set(sampling_names()), "stop strings live a layer above and are tested there"


@pytest.mark.parametrize("name", sorted(MATTERS))
def test_every_parameter_acts_with_drafts_exactly_as_without(name: str) -> None:
    base, own = MATTERS[name]
    target = a_target(12)
    without, sampling = Sampling(**base), Sampling(**(base | own))
    expected = [outcome(g) for g in solo(target, [1, 2, 1], sampling)]
    assert expected != [outcome(g) for g in solo(target, [1, 2, 1], without)], f"{name} does not matter on this prompt"
    for draft in ("oracle", "wrong", "half tree", "mix tree", "mix chain", "ngram"):
        for num_nodes in (1, 4, 8):
            decoder = Decoder(target, DRAFTS[draft](target, num_nodes), num_nodes=num_nodes)
            generations = decoder.add([1, 2, 1], sampling)
            decoder.run()
            assert [outcome(g) for g in generations] == expected


@pytest.mark.parametrize("draft", ["none", "oracle", "wrong", "mix tree"])
def test_a_frequency_penalty_alternates_two_close_tokens_within_a_block(draft: str) -> None:
    a, b = 1, 2
    target = table_target({(): {a: 2.0, b: 1.5}}, 4)
    sampling = Sampling(frequency_penalty=0.4, max_tokens=9)
    assert drafted(target, draft, 4, [3], sampling).tokens == [a, a, b, a, b, a, b, a, b]


def test_a_draft_that_ignores_the_penalty_is_rejected_where_the_penalty_bites() -> None:
    a, b = 1, 2
    target = table_target({(): {a: 2.0, b: 1.5}}, 4)
    decoder = Decoder(target, Scripted([[a, a, a, a]]), num_nodes=4)
    (generation,) = decoder.add([3], Sampling(frequency_penalty=0.4, max_tokens=9))
    assert decoder.step()[0].tokens == (a,)
    assert decoder.step()[0].tokens == (a, b), "one of the four is right"
    decoder.run()
    assert generation.tokens == [a, a, b, a, b, a, b, a, b]


class Scripted:
    """Chains written down in advance, cut to the budget only by the loop itself."""

    name = "scripted chains"

    def __init__(self, chains: Sequence[Sequence[int]]) -> None:
        self.chains = list(chains)

    def propose(self, sequences: Sequence[View]) -> list[Tree]:
        drafts = [self.chains.pop(0) if self.chains else () for _ in sequences]
        return [Tree.chain([s.tokens[-1], *draft]) for s, draft in zip(sequences, drafts, strict=True)]

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def forget(self, key: int) -> None:
        pass


@pytest.mark.parametrize("num_nodes", NUM_NODES)
def test_min_tokens_is_exact_for_the_end_and_for_stop_tokens(num_nodes: int) -> None:
    target = table_target({(): {END: 9.0, 5: 8.0, 3: 1.0}}, 6, end_tokens=[END])
    for draft in ("oracle", "wrong", "mix tree"):
        got = drafted(target, draft, num_nodes, [1], Sampling(min_tokens=6, stop_token_ids=(5,)))
        assert (got.tokens, got.finish_reason, got.stop_reason) == ([3] * 6 + [END], "stop", END)
        got = drafted(target, draft, num_nodes, [1], Sampling(min_tokens=6, stop_token_ids=(5,), ignore_eos=True, max_tokens=9))
        assert got.tokens == [END] * 9, "an ignored end is a token like any other"


def test_penalty_counts_are_a_recount_of_committed_tokens_after_every_step() -> None:
    target = a_target(2)
    decoder = Decoder(target, WrongProposer(target, 8), num_nodes=8)
    (generation,) = decoder.add([1, 2], Sampling(presence_penalty=0.5, frequency_penalty=0.5, max_tokens=25))
    while decoder.num_running:
        decoder.step()
        assert generation.sampler.counts == {t: generation.tokens.count(t) for t in generation.tokens}
        assert generation.sampler.num_committed == len(generation.tokens)


# -- the distribution -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["oracle", "wrong tree", "mix tree", "ngram"])
def test_two_tokens_of_sampled_output_follow_the_targets_joint_distribution(draft: str) -> None:
    size, num_draws = 4, 2000
    target = random_target(1, size, scale=1.0)
    joint = np.zeros((size, size))
    first = np.exp(log_softmax(target.next_logits((1, 2))))
    for a in range(size):
        joint[a] = first[a] * np.exp(log_softmax(target.next_logits((1, 2, a))))
    counts = np.zeros((size, size))
    decoder = Decoder(target, DRAFTS[draft](target, 3), num_nodes=3)
    generations = [decoder.add([1, 2], Sampling(temperature=1, seed=seed, max_tokens=3))[0] for seed in range(num_draws)]
    decoder.run()
    for generation in generations:
        counts[generation.tokens[0], generation.tokens[1]] += 1
    assert stats.chisquare(counts.ravel(), joint.ravel() * num_draws).pvalue > 1e-4


def test_requests_without_a_seed_differ_and_report_a_seed_that_repeats_them() -> None:
    target = table_target({(): dict.fromkeys(range(8), 0.0)}, 8)
    answers = [drafted(target, "mix tree", 4, [1], Sampling(temperature=1, max_tokens=12)) for _ in range(50)]
    assert len({tuple(answer.tokens) for answer in answers}) > 40
    assert len({answer.seed for answer in answers}) == 50
    again = drafted(target, "oracle", 4, [1], Sampling(temperature=1, max_tokens=12, seed=answers[0].seed))
    assert outcome(again) == outcome(answers[0])


def test_a_batch_of_seeded_unseeded_greedy_and_penalised_requests_mixes_nothing_up() -> None:
    target = a_target(6)
    wanted = [
        Sampling(temperature=t, seed=seed, max_tokens=20, frequency_penalty=penalty, ignore_eos=True)
        for t in (0.0, 1.0) for seed in (None, 1, None, 2) for penalty in (0.0, 0.7)
    ]  # fmt: skip
    decoder = Decoder(target, MixProposer(target, 6), num_nodes=6)
    generations = [decoder.add([1, 2, 3], sampling)[0] for sampling in wanted]
    decoder.run()
    for generation, sampling in zip(generations, wanted, strict=True):
        assert outcome(generation) == outcome(solo(target, [1, 2, 3], sampling, seed=generation.seed)[0])


# -- log-probabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["none", "oracle", "wrong", "half tree", "mix tree"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_the_targets_own_for_accepted_corrected_and_bonus_tokens(draft: str, temperature: float) -> None:
    target = a_target(7, num_padding=3)
    sampling = Sampling(
        temperature=temperature, seed=1, top_k=4, presence_penalty=1.0, logprobs=2, max_tokens=23, ignore_eos=True
    )
    got = drafted(target, draft, 4, [1, 2], sampling)
    assert len(got.logprobs) == len(got.tokens) == 23
    for i, (token, entry) in enumerate(zip(got.tokens, got.logprobs, strict=True)):
        raw = log_softmax(target.next_logits((1, 2, *got.tokens[:i])))
        assert entry.token == token and entry.logprob == pytest.approx(raw[token], abs=1e-9)
        assert [t for t, _ in entry.top] == list(np.argsort(-raw, kind="stable")[:2])
        assert len(entry.top) == 2
    assert (got.stats.num_drafted > 0) == (draft != "none"), "drafting really ran"


def test_logprobs_of_a_request_that_is_cut_within_a_block_are_as_many_as_its_tokens() -> None:
    target = table_target([1, 2, 3, END, 4, 4], 5, end_tokens=[END])
    got = drafted(target, "oracle", 4, [1], Sampling(logprobs=0))
    assert got.tokens == [2, 3, END] and [entry.token for entry in got.logprobs] == [2, 3, END]


# -- endings --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_nodes", NUM_NODES)
@pytest.mark.parametrize("place", range(1, 9))
def test_an_end_at_every_offset_of_a_block_ends_there(num_nodes: int, place: int) -> None:
    script = [1, *[2] * place, END, *[3] * 12]
    target = table_target(script, 4, end_tokens=[END])
    got = drafted(target, "oracle", num_nodes, [1], Sampling())
    assert (got.tokens, got.finish_reason, got.stop_reason) == ([2] * place + [END], "stop", END)
    got = drafted(target, "oracle", num_nodes, [1], Sampling(stop_token_ids=(3,), ignore_eos=True))
    assert (got.tokens[-2:], got.stop_reason) == ([END, 3], 3)


@pytest.mark.parametrize("cap", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("draft", ["oracle", "mix tree", "wrong"])
def test_max_tokens_is_never_exceeded_and_nothing_is_drafted_past_it(cap: int, draft: str) -> None:
    target = a_target(1)
    sampling = Sampling(max_tokens=cap, ignore_eos=True, seed=1)
    got = drafted(target, draft, 4, [1, 2], sampling)
    assert (len(got.tokens), got.finish_reason) == (cap, "length")
    assert outcome(got) == outcome(solo(target, [1, 2], sampling)[0])
    for batch in target.feeds:
        for _, tree in batch:
            assert max(tree.depths) <= max(cap - 2, 1), "the prompt's pass and the bonus token bring one each"
    if cap == 0:
        assert target.num_forwards == 0 and got.stats.num_prompt_passes == 0


@pytest.mark.parametrize("draft", sorted(DRAFTS))
def test_no_row_is_fed_past_max_tokens_or_the_context(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, cap in ((12, None), (64, 6), (12, 11)):
        target = a_target(4, context_limit=limit)
        forward, deepest = target.forward, list[int]()

        def watching(
            batch: list[Feed], target: ScriptedTarget = target, forward: Any = forward, deepest: list[int] = deepest
        ) -> Any:
            deepest += [target.length(feed.slot) + max(feed.tree.depths) for feed in batch]
            return forward(batch)

        monkeypatch.setattr(target, "forward", watching)
        got = drafted(target, draft, 15, [1, 2, 3], Sampling(max_tokens=cap, ignore_eos=True))
        expected = min(limit - 3, cap if cap is not None else limit)
        assert (len(got.tokens), got.finish_reason) == (expected, "length")
        assert max(deepest) == 3 + expected - 2, "the last token is never fed, and nothing deeper is"


def test_a_prompt_that_leaves_room_for_one_token_gets_one_and_a_full_one_is_refused() -> None:
    target = a_target(0, context_limit=8)
    decoder = Decoder(target, OracleProposer(target))
    (last,) = decoder.add([1] * 7, Sampling(ignore_eos=True))
    for length in (8, 9):
        with pytest.raises(RequestError, match=f"the prompt has {length} tokens"):
            decoder.add([1] * length, Sampling())
    decoder.run()
    assert (len(last.tokens), last.finish_reason) == (1, "length")
    (after,) = decoder.add([1], Sampling(max_tokens=2))
    decoder.run()
    assert after.finished and target.num_open == 0


@pytest.mark.parametrize(
    ("prompt", "word"), [([], "empty"), ([1, V], "9"), ([-1], "-1"), ([1, "a"], "'a'; tokens"), ([1.5], "1.5")]
)
def test_a_prompt_that_the_model_cannot_read_is_refused(prompt: list[Any], word: str) -> None:
    decoder = Decoder(a_target())
    with pytest.raises(RequestError, match=word):
        decoder.add(prompt, Sampling())
    assert decoder.num_running == 0


# -- cache and counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_cache_holds_the_committed_tokens_after_every_step(temperature: float) -> None:
    target = a_target(9)
    decoder = Decoder(target, MixProposer(target, 6), num_nodes=6)
    for number in range(25):
        decoder.add([number % V, 1], Sampling(temperature=temperature, seed=number, max_tokens=24))
    while decoder.num_running:
        decoder.step()
        for running in decoder._running:
            text = tuple(running.generation.text)
            assert target.tokens(running.slot) == text[:-1], "all but the next root"
            assert target.length(running.slot) == running.num_cached == len(text) - 1


def test_a_long_prompt_is_cached_in_chunks_beside_running_sequences() -> None:
    target = a_target(2)
    decoder = Decoder(target, HalfProposer(target), num_nodes=4)
    (short,) = decoder.add([1, 2], Sampling(max_tokens=12, ignore_eos=True))
    decoder.step()
    prompt = [1 + i % 7 for i in range(2 * PROMPT_CHUNK + 3)]
    (long,) = decoder.add(prompt, Sampling(max_tokens=5, ignore_eos=True, logprobs=1))
    decoder.run()
    assert max(len(tree) for batch in target.feeds for _, tree in batch) == PROMPT_CHUNK
    assert outcome(short) == outcome(solo(target, [1, 2], short.sampling, seed=short.seed)[0])
    assert outcome(long) == outcome(solo(target, prompt, long.sampling, seed=long.seed)[0])
    assert long.stats.num_prompt_passes == 3


def test_stats_count_steps_drafts_and_accepted_nodes() -> None:
    target = a_target(3)
    decoder = Decoder(target, OracleProposer(target, 4), num_nodes=4)
    (generation,) = decoder.add([1], Sampling(max_tokens=16, ignore_eos=True))
    decoder.run()
    counted = generation.stats
    assert (counted.num_prompt_passes, counted.num_steps) == (1, 3)
    assert (counted.num_drafted, counted.num_accepted, counted.num_emitted) == (12, 12, 15)
    assert counted.acceptance_length == 5.0 and counted.accepted_histogram == [0, 0, 0, 0, 3]
    assert target.num_forwards == 4


def test_what_lies_behind_an_end_within_a_block_is_counted_neither_as_accepted_nor_as_emitted() -> None:
    target = table_target([1, 2, 3, END, 4, 4, 4], 5, end_tokens=[END])
    counted = drafted(target, "oracle", 4, [1], Sampling()).stats
    assert (counted.num_steps, counted.num_drafted, counted.num_accepted, counted.num_emitted) == (1, 4, 2, 2)


def test_plain_decoding_counts_a_length_of_one() -> None:
    (generation,) = solo(a_target(), [1], Sampling(max_tokens=9, ignore_eos=True))
    assert (generation.stats.acceptance_length, generation.stats.num_drafted, generation.stats.num_steps) == (1.0, 0, 8)


@pytest.mark.parametrize("draft", ["half tree", "mix tree", "ngram"])
@pytest.mark.parametrize("batch", range(2, 9))
def test_acceptance_of_a_sequence_does_not_depend_on_its_neighbours(draft: str, batch: int) -> None:
    target = a_target(8)
    decoder = Decoder(target, DRAFTS[draft](target, 6), num_nodes=6)
    wanted = [([1 + i % 5] * (3 + 7 * i), Sampling(max_tokens=10 + 3 * i, ignore_eos=True)) for i in range(batch)]
    generations = []
    for prompt, sampling in wanted:
        generations += decoder.add(prompt, sampling)
        decoder.step()
    decoder.run()
    for generation, (prompt, sampling) in zip(generations, wanted, strict=True):
        alone = drafted(target, draft, 6, prompt, sampling)
        assert outcome(generation)[:4] == outcome(alone)[:4]
        assert generation.stats == alone.stats


def test_the_hundredth_request_is_served_as_the_first() -> None:
    target = a_target(8)
    proposer = NgramProposer()
    decoder = Decoder(target, proposer, num_nodes=6)
    first: list[object] = []
    for number in range(100):
        (probe,) = decoder.add([1, 2, 1, 2], Sampling(max_tokens=20, ignore_eos=True))
        decoder.add([3] * (1 + number % 7), Sampling(max_tokens=1 + number % 9))
        decoder.run()
        first.append((tuple(probe.tokens), probe.stats))
    assert all(entry == first[0] for entry in first)
    assert target.num_open == 0 and target.cache_bytes() == 0 and not proposer._indexes


def test_drafting_that_pauses_and_resumes_accepts_as_one_that_never_paused() -> None:
    target = random_target(3, V, memory=1, scale=3.0)
    sampling = Sampling(max_tokens=80, ignore_eos=True)

    def run(pause: range) -> list[int]:
        decoder = Decoder(target, NgramProposer(), num_nodes=4)
        (generation,) = decoder.add([1], sampling)
        lengths = []
        while decoder.num_running:
            decoder.num_nodes = 0 if len(generation.tokens) in pause else 4
            lengths += [len(result.tokens) for result in decoder.step() if len(generation.tokens) > 40]
        return lengths

    never, paused = run(range(0)), run(range(10, 30))
    assert abs(np.mean(never[1:]) - np.mean(paused[1:])) <= 0.05 * np.mean(never[1:])


# -- n answers ------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.sampled_from(sorted(DRAFTS)), st.integers(0, 30), st.sampled_from([0.0, 1.0]), st.integers(1, 9))
def test_n_answers_are_n_requests_over_one_prompt_pass(n: int, draft: str, key: int, temperature: float, cap: int) -> None:
    target = a_target(key)
    decoder = Decoder(target, DRAFTS[draft](target, 4), num_nodes=4)
    sampling = Sampling(temperature=temperature, seed=key, n=n, max_tokens=cap, presence_penalty=0.3)
    generations = decoder.add([1, 2, 3], sampling)
    decoder.run()
    prompts = [tree for batch in target.feeds for _, tree in batch if len(tree) == 3 and tree.tokens == (1, 2, 3)]
    assert len(prompts) >= 1 and len(target.feeds[0]) == 1, "the prompt is computed once"
    assert len({generation.seed for generation in generations}) == n
    for generation in generations:
        single = Sampling(temperature=temperature, seed=generation.seed, max_tokens=cap, presence_penalty=0.3)
        assert outcome(generation) == outcome(solo(target, [1, 2, 3], single)[0])
    assert target.num_open == 0


def test_one_of_n_answers_may_be_cancelled_before_and_after_the_prompt() -> None:
    for steps in (0, 1, 3):
        target = a_target(1)
        decoder = Decoder(target, OracleProposer(target), num_nodes=2)
        generations = decoder.add([1] * 3, Sampling(temperature=1, seed=1, n=3, max_tokens=20, ignore_eos=True))
        for _ in range(steps):
            decoder.step()
        decoder.cancel(generations[0])
        decoder.cancel(generations[0])
        decoder.run()
        assert [g.finish_reason for g in generations] == ["cancelled", "length", "length"]
        assert target.num_open == 0


# -- progress, faults, cancelling -----------------------------------------------------------------------------------------


class Rude(WrongProposer):
    """More and deeper nodes than asked for, in the worst order, with nonsense for probabilities."""

    name = "rude"

    def _tree(self, sequence: View) -> Tree:
        tokens = [sequence.tokens[-1], *(t % V for t in range(60))]
        return Tree.chain(tokens, [1.0] + [1e-9] * 60)


def test_every_step_commits_a_token_and_keeps_its_budget_against_adversarial_drafts() -> None:
    target = a_target(1)
    decoder = Decoder(target, Rude(target), num_nodes=5)
    generations = [decoder.add([1 + i], Sampling(max_tokens=15, ignore_eos=True))[0] for i in range(3)]
    while decoder.num_running:
        before = [(len(g.tokens), g.finished) for g in generations]
        decoder.step()
        assert all(done or len(g.tokens) > num for g, (num, done) in zip(generations, before, strict=True))
    assert max(tree.num_drafted for batch in target.feeds for _, tree in batch) == 5
    assert all(outcome(g)[:4] == outcome(solo(target, g.prompt, g.sampling)[0])[:4] for g in generations)


class Faulty(OracleProposer):
    """Raises in one of its three methods at the n-th call."""

    def __init__(self, target: ScriptedTarget, method: str, calls: int, error: BaseException) -> None:
        super().__init__(target, 3)
        self.method, self.calls, self.error = method, calls, error

    def _count(self, method: str) -> None:
        if method == self.method:
            self.calls -= 1
            if self.calls == 0:
                raise self.error

    def propose(self, sequences: Sequence[View]) -> list[Tree]:
        self._count("propose")
        return super().propose(sequences)

    def observe(self, observations: Sequence[Observation]) -> None:
        self._count("observe")
        super().observe(observations)

    def forget(self, key: int) -> None:
        self._count("forget")
        super().forget(key)


def three_requests(decoder: Decoder) -> Iterator[Generation]:
    for length in (2, 9, 30):
        yield from decoder.add([1], Sampling(max_tokens=length, ignore_eos=True, n=2, temperature=1, seed=1))


@pytest.mark.parametrize("calls", [1, 2, 3])
@pytest.mark.parametrize("method", ["propose", "observe", "forget"])
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_a_fault_in_a_proposer_leaves_no_slot_open(method: str, calls: int, error: BaseException) -> None:
    target = a_target(1)
    decoder = Decoder(target, Faulty(target, method, calls, error), num_nodes=3)
    generations = list(three_requests(decoder))
    with pytest.raises(type(error)):
        decoder.run()
    decoder.close()
    assert target.num_open == 0 and decoder.num_running == 0
    assert all(generation.finished for generation in generations)


@pytest.mark.parametrize("name", ["open", "forward", "keep", "fork"])
@pytest.mark.parametrize("calls", range(1, 7))
def test_a_fault_in_the_target_leaves_no_slot_open(name: str, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    target = a_target(1)
    decoder = Decoder(target, OracleProposer(target, 2), num_nodes=2)
    generations = list(three_requests(decoder))
    original, left = getattr(target, name), [calls]

    def failing(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise MemoryError("no room")
        return original(*arguments)

    monkeypatch.setattr(target, name, failing)
    opened = name in ("open", "fork") and calls > 3 + 3 * (name == "open")
    if not opened:
        with pytest.raises(MemoryError):
            decoder.run()
    decoder.close()
    assert target.num_open == 0 and decoder.num_running == 0
    assert opened or all(generation.finished for generation in generations)


def test_nan_logits_are_the_models_fault_and_free_their_slot() -> None:
    target = ScriptedTarget(lambda prefix: np.full(V, np.nan if len(prefix) > 3 else 0.0, dtype=np.float32), V)
    decoder = Decoder(target)
    decoder.add([1], Sampling())
    with pytest.raises(ModelError, match="NaN"):
        decoder.run()
    decoder.close()
    assert target.num_open == 0


@pytest.mark.parametrize(
    ("tree", "word"), [(Tree.chain([2, 1]), "root"), (Tree.chain([1, V]), "token"), (Tree.chain([1, -1]), "token")]
)
def test_an_impossible_draft_is_the_proposers_fault_by_name(tree: Tree, word: str) -> None:
    target = table_target([1], V)

    class Wild(EmptyProposer):
        name = "wild"

        def _tree(self, sequence: View) -> Tree:
            return tree

    decoder = Decoder(target, Wild(target), num_nodes=4)
    decoder.add([1], Sampling(max_tokens=9))
    with pytest.raises(ValueError, match=f"proposer wild: .*{word}"):
        decoder.run()


def test_cancelling_computes_nothing_further_and_leaves_the_others_alone() -> None:
    target = a_target(3)
    decoder = Decoder(target, OracleProposer(target, 4), num_nodes=4)
    doomed, other = (decoder.add([n], Sampling(max_tokens=30, ignore_eos=True))[0] for n in (1, 2))
    for _ in range(2):
        decoder.step()
    committed = list(doomed.tokens)
    decoder.cancel(doomed)
    assert target.num_open == 1
    decoder.run()
    assert (doomed.tokens, doomed.finish_reason) == (committed, "cancelled") and len(committed) <= 6
    assert outcome(other)[:4] == outcome(solo(target, [2], other.sampling)[0])[:4]


def test_cancelling_what_has_not_joined_yet_opens_no_slot() -> None:
    target = a_target(3)
    decoder = Decoder(target, OracleProposer(target))
    (waiting,) = decoder.add([1], Sampling())
    decoder.cancel(waiting)
    assert decoder.num_running == 0 and decoder.step() == [] and target.num_forwards == 0


def test_one_proposer_serves_two_loops_at_once() -> None:
    target = a_target(8)
    proposer = NgramProposer()
    decoders = [Decoder(target, proposer, num_nodes=5) for _ in range(2)]
    sampling = Sampling(max_tokens=25, ignore_eos=True)
    generations = [decoder.add(prompt, sampling)[0] for decoder, prompt in zip(decoders, ([1, 2], [3, 4]), strict=True)]
    while any(decoder.num_running for decoder in decoders):
        for decoder in decoders:
            decoder.step()
    for generation in generations:
        assert generation.stats == drafted(target, "ngram", 5, generation.prompt, sampling).stats


def test_a_step_over_prompts_alone_is_timed_as_prompt() -> None:
    target = a_target(3)
    decoder = Decoder(target)
    decoder.add([1], Sampling(max_tokens=1))
    decoder.run()
    assert decoder.timings.prompt > 0 and decoder.timings.verify == 0


def test_estimates_are_judged_where_the_parent_was_accepted() -> None:
    """Of a chain that is right at depth 1 and wrong at 2, two nodes a step were tried: their estimates are 0.5 each."""
    target = random_target(1, 20)
    decoder = Decoder(target, HalfProposer(target, 4))
    (generation,) = decoder.add([1, 2, 3], Sampling(max_tokens=21), seed=0)
    decoder.run()
    stats = generation.stats
    assert stats.num_steps == 10
    assert stats.reliability.num_nodes[5] == sum(stats.reliability.num_nodes) == 20 - 1  # the last draft may be one deep only
    assert stats.reliability.num_accepted[5] == stats.num_accepted == 10
    assert stats.reliability.calibration_error == pytest.approx(0.5 / 19)
