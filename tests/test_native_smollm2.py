"""The native engine on the real model: the same tokens and the same logits, to the last bit, in whatever way they are computed.

A smaller version of `benchmarks/bits.py`, which goes over whole prompt sets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headstart as hs
from headstart import _native, decode
from headstart.heads.base import BaseIdentity, HeadsCard, save_heads
from headstart.heads.mtp import MtpConfig, MtpHeads, initial_tensors
from headstart.target.base import Feed, Target
from headstart.tree import Tree

PROMPTS = (
    "Why is the sky blue? Answer in three sentences.",
    "Write a Python function that adds the numbers of a list.",
    "Summarise: The ship left the harbour at dawn. By noon the wind had died and the ship lay still until night.",
)
DTYPES = ("auto", "bfloat16", "int8")  # auto: the file's own blocks of 4 and 8 bits
SAMPLINGS = {"greedy": hs.Sampling(max_tokens=16), "sampled": hs.Sampling(max_tokens=16, temperature=0.8, seed=4)}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("none", {}),
    "ngram": ("ngram", {}),
    "combined": ("combined", {}),
    "medusa, grown": ("medusa", {"growth": "dynamic", "num_nodes": 15}),
    "medusa, static": ("medusa", {"growth": "static"}),
    "hydra": ("hydra", {"num_nodes": 15}),
    "own layers": ("draft_model", {"draft": "layers:4", "num_nodes": 3}),
}
Logits = np.ndarray[Any, np.dtype[np.float32]]


@pytest.fixture(scope="module", params=DTYPES)
def plain(request: pytest.FixtureRequest) -> hs.LLM:
    return hs.load("smollm2", target="native", dtype=request.param, proposer="none")


@pytest.fixture(scope="module")
def expected(plain: hs.LLM) -> dict[str, list[hs.Answer]]:
    """One sequence at a time, whole prompts."""
    return {name: plain.generate_many(PROMPTS, sampling) for name, sampling in SAMPLINGS.items()}


@pytest.fixture
def threads() -> Iterator[Any]:
    before = _native.num_threads()
    yield _native.set_num_threads
    _native.set_num_threads(before)


@pytest.mark.parametrize("request_name", SAMPLINGS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_decoding_gives_the_same_tokens(
    plain: hs.LLM,
    expected: dict[str, list[hs.Answer]],
    way: str,
    request_name: str,
    threads: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All sequences in flight at once, chunked prompts, another number of threads."""
    monkeypatch.setattr(decode, "PROMPT_CHUNK", 7)
    threads(1 if _native.num_threads() > 1 else 2)
    name, options = WAYS[way]
    answers = plain.with_proposer(name, **options).generate_many(PROMPTS, SAMPLINGS[request_name], batch=len(PROMPTS))
    for ours, theirs in zip(answers, expected[request_name], strict=True):
        assert ours.tokens == theirs.tokens
        assert name == "none" or ours.stats.num_drafted > 0


@pytest.mark.parametrize("request_name", SAMPLINGS)
def test_an_mtp_layer_changes_no_token(
    plain: hs.LLM, expected: dict[str, list[hs.Answer]], request_name: str, tmp_path: Path
) -> None:
    """None ships, so this one is random; its sizes are real, and it reads prompts and features."""
    sizes = (plain.target.hidden_size, plain.target.vocab_size, 9, 3, 64, 1152)
    reads: dict[str, Any] = {"eagle_aux_hidden_state_layer_ids": (2, 15, 27), "reads_prompt": True}
    config = MtpConfig(*sizes, **reads, draft_vocab=tuple(range(2, 4000)))
    tensors = initial_tensors(config, np.random.default_rng(0), 3.0)
    noise = np.random.default_rng(1).normal(scale=0.01, size=config.shapes()["layers.0.mlp.down_proj.weight"])
    tensors["layers.0.mlp.down_proj.weight"] += noise.astype(np.float32)
    save_heads(tmp_path / "heads", MtpHeads(config, tensors, HeadsCard(BaseIdentity.of(plain.target))))
    guessing = plain.with_proposer("mtp", heads=str(tmp_path / "heads"))
    answers = guessing.generate_many(PROMPTS, SAMPLINGS[request_name], batch=len(PROMPTS))
    for ours, theirs in zip(answers, expected[request_name], strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.stats.num_drafted > 0


def test_logits_are_the_same_to_the_last_bit_row_by_row_in_one_pass_in_a_tree_and_beside_others(plain: hs.LLM) -> None:
    target = plain.target
    text = plain.encode(PROMPTS[0])
    whole = _logits(target, text, [text])
    for rows in (1, 5, 16):
        assert np.array_equal(whole, _logits(target, text, [text[i : i + rows] for i in range(0, len(text), rows)])), rows
    assert np.array_equal(whole, _beside_others(target, text, plain.encode(PROMPTS[1])))
    assert np.array_equal(whole[-4:], _in_a_tree(target, text))


def _logits(target: Target, text: list[int], chunks: list[list[int]]) -> Logits:
    """[text, V], computed chunk by chunk."""
    slot = target.open()
    found = []
    for chunk in chunks:
        scored = target.forward([Feed(slot, Tree.chain(chunk))])
        found.append(scored.logits([(0, row) for row in range(len(chunk))]))
        target.keep(slot, tuple(range(len(chunk))))
    target.close(slot)
    return np.concatenate(found)


def _beside_others(target: Target, text: list[int], other: list[int]) -> Logits:
    """[text, V], with another prompt in the same pass before and behind it."""
    slots = [target.open() for _ in range(3)]
    scored = target.forward([Feed(slot, Tree.chain(tokens)) for slot, tokens in zip(slots, (other, text, other), strict=True)])
    found = scored.logits([(1, row) for row in range(len(text))])
    for slot in slots:
        target.close(slot)
    return found


def _in_a_tree(target: Target, text: list[int]) -> Logits:
    """[4, V]: the last four tokens as a path of a tree that holds siblings, behind the text before."""
    slot = target.open()
    target.forward([Feed(slot, Tree.chain(text[:-4]), len(text) - 4)])
    target.keep(slot, tuple(range(len(text) - 4)))
    a, b, c, d = text[-4:]
    tree = Tree((a, 11, b, 12, 13, c, 14, d), (-1, 0, 0, 1, 2, 2, 5, 5), (1.0,) * 8)
    found = target.forward([Feed(slot, tree)]).logits([(0, row) for row in (0, 2, 5, 7)])
    target.close(slot)
    return found
