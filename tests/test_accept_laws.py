"""What holds for every rule of acceptance with every proposer: progress, limits, company, seeds, temperature 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headstart.accept import RULES, choose_rule
from headstart.decode import Decoder, Generation
from headstart.errors import RequestError
from headstart.proposers.base import Proposer
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.ngram import NgramProposer
from headstart.sampling import Sampling
from headstart.tree import Tree
from scripted import ScriptedTarget, random_target
from test_proposers import PROPOSERS, noisy_draft

VOCAB = 12
PROMPTS = [[1, 2, 3], [4], [1, 2, 1, 2, 1], list(range(9))]
every_rule = pytest.mark.parametrize("rule", RULES)
every_proposer = pytest.mark.parametrize("proposer", PROPOSERS)


def decode(
    target: ScriptedTarget,
    proposer: Proposer | None,
    rule: str,
    sampling: Sampling,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    seeds: Sequence[int] = range(9),
) -> list[Generation]:
    decoder = Decoder(target, proposer, num_nodes=8, rule=choose_rule(rule))
    generations = [decoder.add(prompt, sampling, seed=seed)[0] for prompt, seed in zip(prompts, seeds, strict=False)]
    while decoder.num_running:
        before = [len(generation.tokens) for generation in generations]
        decoder.step()
        after = [len(generation.tokens) for generation in generations]
        assert all(b > a or g.finished for a, b, g in zip(before, after, generations, strict=True)), "a step without a token"
    return generations


@every_rule
@every_proposer
def test_at_temperature_0_every_rule_is_plain_decoding(rule: str, proposer: str) -> None:
    target = random_target(0, VOCAB, memory=2)
    sampling = Sampling(max_tokens=14, repetition_penalty=1.2, frequency_penalty=0.3)
    plain = decode(target, None, "exact", sampling)
    guessed = decode(target, PROPOSERS[proposer](target), rule, sampling)
    assert [g.tokens for g in guessed] == [g.tokens for g in plain]


@every_rule
@every_proposer
def test_neighbours_change_nothing_and_a_seed_is_answered_alike(rule: str, proposer: str) -> None:
    target = random_target(1, VOCAB, memory=2, end_tokens=[0])
    sampling = Sampling(max_tokens=14, temperature=0.9, top_p=0.95, presence_penalty=0.2, min_tokens=3)
    together = decode(target, PROPOSERS[proposer](target), rule, sampling)
    for seed, (prompt, generation) in enumerate(zip(PROMPTS, together, strict=True)):
        (alone,) = decode(target, PROPOSERS[proposer](target), rule, sampling, [prompt], [seed])
        assert alone.tokens == generation.tokens
        assert alone.stats == generation.stats
        assert alone.finish_reason == generation.finish_reason


@every_rule
@every_proposer
@settings(max_examples=4, deadline=None)
@given(limit=st.integers(1, 9), seed=st.integers(0, 99), temperature=st.sampled_from([0.5, 1.3]))
def test_limits_hold(rule: str, proposer: str, limit: int, seed: int, temperature: float) -> None:
    target = random_target(2, VOCAB, memory=2, context_limit=16, end_tokens=[0])
    sampling = Sampling(max_tokens=limit, temperature=temperature, logit_bias={5: -np.inf}, top_k=7)
    for generation in decode(target, PROPOSERS[proposer](target), rule, sampling, seeds=range(seed, seed + 4)):
        assert 1 <= len(generation.tokens) <= limit
        assert 5 not in generation.tokens
        assert generation.finish_reason == ("stop" if generation.tokens[-1] == 0 else "length")
        assert target.num_open == 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_where_nothing_is_drawn_a_lossless_rule_repeats_plain_decoding(rule: str) -> None:
    target = random_target(3, VOCAB, memory=1)
    sampling = Sampling(max_tokens=30, temperature=1.0)
    plain = decode(target, None, "exact", sampling)
    assert [g.tokens for g in decode(target, NgramProposer(), rule, sampling)] == [g.tokens for g in plain]


@pytest.mark.parametrize("proposer", ["medusa dynamic", "medusa static", "medusa unmeasured", "draft_model"])
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_proposers_that_rank_by_a_distribution_draw_from_it(rule: str, proposer: str) -> None:
    target = random_target(4, VOCAB, memory=2)
    guesser = PROPOSERS[proposer](target)
    decode(target, guesser, rule, Sampling(max_tokens=12, temperature=1.0))
    drafts = [tree for batch in target.feeds for _, tree in batch if tree.num_drafted and tree.tokens[0] != tree.tokens[1]]
    drawn = [tree for tree in drafts if tree.draws]
    assert drawn
    for tree in drawn:
        for row, children in enumerate(tree.children):
            named = {token for draws in tree.drawn(row) for token in draws.tokens}
            assert {tree.tokens[child] for child in children} <= named
            for draws in tree.drawn(row):
                assert draws.probabilities.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_draft_equal_to_the_target_is_always_accepted(rule: str) -> None:
    target = random_target(4, VOCAB)
    guesser = PROPOSERS["draft_model itself"](target)
    for generation in decode(target, guesser, rule, Sampling(max_tokens=40, temperature=1.0)):
        assert generation.stats.acceptance_length > 2.5


def test_the_text_of_a_lossless_rule_has_the_frequencies_of_plain_decoding() -> None:
    """The whole loop, seeds as the only chance: two samples of first words, by a chi-square test that is no close call."""
    from scipy.stats import chi2_contingency  # type: ignore[import-untyped]

    target = random_target(5, 4, memory=2, scale=1.0)
    number = 600
    tables = []
    for rule in (None, "rejection", "block"):
        counts = np.zeros(16)
        guesser = PROPOSERS["draft_model"](target) if rule else None
        decoder = Decoder(target, guesser, num_nodes=5, rule=choose_rule(rule or "exact"))
        shift = 0 if rule is None else number
        generations = [
            decoder.add([1], Sampling(max_tokens=3, temperature=1.0), seed=seed + shift)[0] for seed in range(number)
        ]
        decoder.run()
        for generation in generations:
            first, second = generation.tokens[1:]
            counts[4 * first + second] += 1
        tables.append(counts)
    for counts in tables[1:]:
        seen = np.stack([tables[0], counts])
        assert chi2_contingency(seen[:, seen.sum(axis=0) > 0]).pvalue > 1e-4


def test_options_of_another_rule_are_refused() -> None:
    with pytest.raises(RequestError, match=r"did you mean rejection\?"):
        choose_rule("rejecton")
    with pytest.raises(RequestError, match="known: exact, rejection, block, typical"):
        choose_rule("zzz")
    with pytest.raises(RequestError, match="option delta has no effect with accept block; it belongs to typical"):
        choose_rule("block", delta=0.2)
    with pytest.raises(RequestError, match=r"epsilon is 0; it must be above 0 and at most 1"):
        choose_rule("typical", epsilon=0)


def test_a_draft_from_tokens_that_the_target_does_not_have_is_a_fault_of_the_proposer() -> None:
    from headstart.tree import Draws

    class Foreign(NgramProposer):
        def propose(self, sequences: Sequence[InFlight]) -> list[Tree]:
            draws = Draws((1,), np.array([1, 99]), np.array([0.5, 0.5]))
            return [Tree((s.tokens[-1], 1), (-1, 0), (1.0, 0.5), ((draws,), ())) for s in sequences]

    with pytest.raises(ValueError, match="token that the target does not have"):
        decode(random_target(0, 4), Foreign(), "rejection", Sampling(max_tokens=4, temperature=1.0), [[1]])


def test_the_drafts_wish_of_a_rule_reaches_the_proposer() -> None:
    wishes: list[str] = []

    class Asked(NgramProposer):
        def propose(self, sequences: Sequence[InFlight]) -> list[Tree]:
            wishes.extend(sequence.choice for sequence in sequences)
            return super().propose(sequences)

    target = random_target(0, 4)
    for rule in RULES:
        decode(target, Asked(), rule, Sampling(max_tokens=2, temperature=1.0), [[1, 1]])
        decode(noisy_draft(target), Asked(), rule, Sampling(max_tokens=3, temperature=1.0), [[1, 1]])
    assert list(dict.fromkeys(wishes)) == ["coupled", "drawn", "likeliest"]
