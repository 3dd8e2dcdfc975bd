"""The real model with the heads that ship: what a newcomer runs must be true."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import headstart as hs
from headstart.heads.base import find_heads, load_heads
from headstart.lossless import compare
from headstart.target.base import Feed
from headstart.target.hf_reference import ReferenceDecoder
from headstart.tree import Tree

PROMPTS = (
    "Why is the sky blue? Answer in three sentences.",
    "Write a Python function that adds the numbers of a list.",
    "Summarise: The ship left the harbour at dawn. By noon the wind had died and the ship lay still until night.",
    "Tom has 5 apples and buys 7 more. He gives 3 to Anna. How many apples does Tom have?",
)
STORED_LENGTHS = {"medusa": 2.07, "hydra": 2.16}  # of the shipped heads on these prompts, 64 tokens each, 16 rows
GREEDY = hs.Sampling(max_tokens=24)
SAMPLED = hs.Sampling(
    max_tokens=24, temperature=0.8, top_p=0.95, seed=3, repetition_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1
)
SAMPLINGS = {"greedy": GREEDY, "every penalty": SAMPLED}
GUESSERS: dict[str, dict[str, Any]] = {
    "ngram": {},
    "suffix": {},
    "medusa": {},
    "hydra": {},
    "combined": {"draft": "layers:4"},
    "draft_model": {"draft": "layers:4"},
}


@pytest.fixture(scope="module")
def plain() -> hs.LLM:
    return hs.load("smollm2", proposer="none")


@pytest.fixture(scope="module")
def plain_on_pytorch() -> hs.LLM:
    return hs.load("smollm2", proposer="none", target="hf")


@pytest.fixture(scope="module")
def expected(plain: hs.LLM) -> dict[str, list[hs.Answer]]:
    return {name: plain.generate_many(PROMPTS, sampling, batch=4) for name, sampling in SAMPLINGS.items()}


@pytest.mark.parametrize("request_name", SAMPLINGS)
@pytest.mark.parametrize("name", GUESSERS)
def test_the_text_is_that_of_plain_decoding(
    plain: hs.LLM, expected: dict[str, list[hs.Answer]], name: str, request_name: str
) -> None:
    sampling = SAMPLINGS[request_name]
    answers = plain.with_proposer(name, **GUESSERS[name]).generate_many(PROMPTS, sampling, batch=2)
    for prompt, ours, theirs in zip(PROMPTS, answers, expected[request_name], strict=True):
        assert ours.stats.num_drafted > 0, prompt
        assert ours.tokens == theirs.tokens, prompt


@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
@pytest.mark.parametrize("name", GUESSERS)
def test_other_rules_are_plain_decoding_at_temperature_0_and_repeat_themselves_above(
    plain: hs.LLM, expected: dict[str, list[hs.Answer]], name: str, rule: str
) -> None:
    """Their text at a temperature is another one, but that of the request and its seed alone, in company and as a stream."""
    guessing = plain.with_proposer(name, **GUESSERS[name]).with_accept(rule)
    greedy = guessing.generate_many(PROMPTS[:2], GREEDY, batch=2)
    assert [answer.tokens for answer in greedy] == [answer.tokens for answer in expected["greedy"][:2]]
    warm = hs.Sampling(max_tokens=16, temperature=0.8, top_p=0.95, seed=3)
    together = guessing.generate_many(PROMPTS[:2], warm, batch=2)
    for prompt, answer in zip(PROMPTS, together, strict=False):
        assert answer.accept == rule and answer.stats.num_drafted > 0
        assert [token for step in guessing.stream(prompt, warm) for token in step.tokens] == list(answer.tokens)


@pytest.mark.parametrize("request_name", SAMPLINGS)
def test_what_the_clock_decides_does_not_change_the_text(
    plain: hs.LLM, expected: dict[str, list[hs.Answer]], request_name: str
) -> None:
    guessing = plain.with_proposer("auto")
    for batch in (1, 3):
        answers = guessing.generate_many(PROMPTS, SAMPLINGS[request_name], batch=batch)
        assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected[request_name]]
    assert guessing.explain()["steps"] > 0


def test_pytorch_may_part_from_plain_decoding_at_a_tie_alone(plain_on_pytorch: hs.LLM) -> None:
    plain, prompt = plain_on_pytorch, PROMPTS[1]
    ours, theirs = plain.with_proposer("medusa").generate(prompt, SAMPLED), plain.generate(prompt, SAMPLED)
    difference = compare(plain.target, prompt, plain.encode(prompt), theirs.tokens, ours.tokens, SAMPLED, seed=3)
    assert difference is None or difference.kind == "tie", difference


def test_plain_decoding_gives_the_tokens_of_transformers(plain_on_pytorch: hs.LLM) -> None:
    plain = plain_on_pytorch
    reference = ReferenceDecoder(plain.target, GREEDY)
    for prompt in PROMPTS[:2]:
        tokens = plain.encode(prompt)
        (theirs,) = reference.generate([tokens])
        difference = compare(plain.target, prompt, tokens, plain.generate(prompt, GREEDY).tokens, theirs, GREEDY, seed=0)
        assert difference is None or difference.kind == "tie", difference


def test_both_engines_see_the_same_model(plain: hs.LLM, plain_on_pytorch: hs.LLM) -> None:
    assert (plain.target.engine, plain_on_pytorch.target.engine) == ("native", "hf")
    assert plain.target.fingerprint == plain_on_pytorch.target.fingerprint
    rows = []
    for llm in (hs.load("smollm2", proposer="none", dtype="float32"), plain_on_pytorch):
        slot = llm.target.open()
        tokens = llm.encode(PROMPTS[0])
        rows.append(llm.target.forward([Feed(slot, Tree.chain(tokens))]).logits([(0, row) for row in range(len(tokens))]))
        llm.target.close(slot)
    assert np.abs(rows[0] - rows[1]).max() < 1e-3 * rows[1].std()


@pytest.mark.parametrize("kind", STORED_LENGTHS)
def test_the_shipped_heads_are_found_and_guess_as_well_as_they_did(plain: hs.LLM, kind: str) -> None:
    folder = find_heads(plain.target.fingerprint, kind)
    assert folder is not None
    heads = load_heads(folder, plain.target)
    assert heads.card.provenance["corpus_tokens"] > 0
    guessing = plain.with_proposer(kind, num_nodes=15)
    answers = guessing.generate_many(PROMPTS, hs.Sampling(max_tokens=64), batch=4)
    total = hs.Stats()
    for answer in answers:
        total.add(answer.stats)
    assert total.acceptance_length == pytest.approx(STORED_LENGTHS[kind], abs=0.06)  # a rounded tie may move a few tokens
