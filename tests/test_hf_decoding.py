"""The loop on the PyTorch engine: whatever guesses, in whatever dtype and company, the text is that of plain decoding.

PyTorch may round a pass over many rows differently from a pass over one, so a difference is judged by ``lossless.py``:
only a tie within the measured rounding is forgiven.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chat_model import tiny_loaded
from headstart.decode import Decoder, Generation
from headstart.heads.base import Acceptance, BaseIdentity, HeadsCard, load_heads
from headstart.heads.medusa import MedusaConfig, MedusaHeads
from headstart.lossless import compare
from headstart.proposers.base import Proposer
from headstart.proposers.draft_model import DraftModelProposer
from headstart.proposers.medusa import MedusaProposer
from headstart.proposers.ngram import NgramProposer
from headstart.sampling import Sampling
from headstart.target.hf import HfTarget
from headstart.train import train
from test_train_heads import SETTINGS, chats
from tiny import tiny_llama, tiny_target

Make = Callable[[HfTarget], Proposer]


def random_heads(target: HfTarget) -> MedusaProposer:
    settings = MedusaConfig(num_heads=3, hidden_size=target.hidden_size, vocab_size=target.vocab_size)
    rng = np.random.default_rng(3)
    tensors = {name: 0.1 * rng.standard_normal(shape).astype(np.float32) for name, shape in settings.shapes().items()}
    measured = Acceptance(((0.5, 0.2), (0.3, 0.1), (0.2, 0.1)))
    heads = MedusaHeads(settings, tensors, HeadsCard(BaseIdentity.of(target), measured))
    return MedusaProposer(heads.bind(target.operations, target.base_weights()))


PROPOSERS: dict[str, Make] = {
    "ngram": lambda target: NgramProposer(),
    "medusa": random_heads,
    "draft_model": lambda target: DraftModelProposer(tiny_target(), num_levels=3),
    "poor draft_model": lambda target: DraftModelProposer(tiny_target(seed=1), num_levels=3),
}


def run(target: HfTarget, proposer: Proposer | None, prompts: list[list[int]], sampling: Sampling) -> list[Generation]:
    """All prompts at once; prompt i has the seed i."""
    decoder = Decoder(target, proposer, num_nodes=7)
    generations = [decoder.add(prompt, sampling, seed=i)[0] for i, prompt in enumerate(prompts)]
    decoder.run()
    return generations


def some_prompts(number: int, longest: int = 60) -> list[list[int]]:
    rng = np.random.default_rng(number)
    lengths = np.linspace(3, longest, number).astype(int)
    return [[int(token) for token in rng.integers(3, 64, length)] for length in lengths]


@cache
def roomy_target(dtype: str) -> HfTarget:
    model = tiny_llama(max_position_embeddings=4096)
    return HfTarget(model, name="roomy", dtype=dtype)


@pytest.mark.parametrize("length", [16, 512, 2048])
@pytest.mark.parametrize(("dtype", "draft_dtype"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float32")])
def test_a_draft_of_another_dtype_changes_nothing_however_long_the_prompt(dtype: str, draft_dtype: str, length: int) -> None:
    target = roomy_target(dtype)
    sampling = Sampling(max_tokens=48)
    prompt = some_prompts(2, length)[1]
    guesser = DraftModelProposer(roomy_target(draft_dtype), num_levels=3)
    (plain,) = run(target, None, [prompt], sampling)
    (guessed,) = run(target, guesser, [prompt], sampling)
    difference = compare(target, str(length), prompt, plain.tokens, guessed.tokens, sampling, seed=0)
    assert difference is None or difference.kind == "tie", difference
    assert guessed.stats.acceptance_length > 1.5


@pytest.mark.parametrize("name", PROPOSERS)
def test_twenty_prompts_read_the_same_in_every_run_with_and_without_drafts(name: str) -> None:
    target, prompts = tiny_target(), some_prompts(20)
    sampling = Sampling(max_tokens=24, ignore_eos=True)
    plain, again = (run(target, None, prompts, sampling) for _ in range(2))
    guessed, repeated = (run(target, PROPOSERS[name](target), prompts, sampling) for _ in range(2))
    texts = [[generation.tokens for generation in generations] for generations in (plain, again, guessed, repeated)]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert [g.stats for g in guessed] == [g.stats for g in repeated]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("batch", [2, 4, 8])
@pytest.mark.parametrize("name", PROPOSERS)
def test_a_sequence_is_drafted_for_in_company_as_it_is_alone(name: str, batch: int, temperature: float) -> None:
    target, prompts = tiny_target(), some_prompts(2 * batch)
    decoder = Decoder(target, PROPOSERS[name](target), num_nodes=7)
    wanted = [Sampling(max_tokens=6 + 5 * (i % 4), temperature=temperature, seed=i, ignore_eos=True) for i in range(2 * batch)]
    waiting = list(zip(prompts, wanted, strict=True))[::-1]
    together = []
    while waiting or decoder.num_running:
        while waiting and decoder.num_running < batch:
            together += decoder.add(*waiting.pop())
            decoder.step()
        decoder.step()
    for generation, prompt, sampling in zip(together, prompts, wanted, strict=True):
        (alone,) = run(target, PROPOSERS[name](target), [prompt], sampling)
        assert generation.tokens == alone.tokens
        assert generation.stats == alone.stats


@pytest.mark.parametrize("name", PROPOSERS)
def test_a_slot_that_served_another_request_drafts_as_a_fresh_engine(name: str) -> None:
    first, second = some_prompts(2)
    sampling = Sampling(max_tokens=40, ignore_eos=True)
    used, fresh = tiny_target(), tiny_target()
    proposer = PROPOSERS[name](used)
    run(used, proposer, [first], sampling)
    (behind,) = run(used, proposer, [second], sampling)
    (alone,) = run(fresh, PROPOSERS[name](fresh), [second], sampling)
    assert (behind.tokens, behind.stats) == (alone.tokens, alone.stats)


@pytest.mark.parametrize("name", ["medusa", "draft_model"])
def test_drafting_that_was_off_for_a_while_accepts_as_if_it_never_was(name: str) -> None:
    target, (prompt,) = tiny_target(), some_prompts(1)

    def accepted_behind(pause: range) -> list[int]:
        decoder = Decoder(target, PROPOSERS[name](target), num_nodes=7)
        (generation,) = decoder.add(prompt, Sampling(max_tokens=120, ignore_eos=True))
        accepted = []
        while decoder.num_running:
            decoder.num_nodes = 0 if len(generation.tokens) in pause else 7
            accepted += [result.num_accepted for result in decoder.step() if len(generation.tokens) > 60]
        return accepted[1:]

    never, paused = (float(np.mean(accepted_behind(pause))) for pause in (range(0), range(20, 40)))
    assert abs(never - paused) <= max(0.05 * never, 0.05)


def test_the_drafts_cache_is_its_slots_and_nothing_is_left_of_it() -> None:
    target, draft = tiny_target(), tiny_target(seed=1)
    guesser = DraftModelProposer(draft)
    decoder = Decoder(target, guesser, num_nodes=4)
    for prompt in some_prompts(5):
        decoder.add(prompt, Sampling(max_tokens=20, ignore_eos=True))
    decoder.step()
    decoder.step()
    layers, heads, dim, capacity, keys_and_values, size = 2, 2, 8, 256, 2, 4
    assert guesser.cache_bytes() == 5 * layers * heads * dim * capacity * keys_and_values * size
    decoder.run()
    assert guesser.cache_bytes() == 0


def test_steps_with_and_without_drafts_in_turn_hold_no_more_tensors_each_time() -> None:
    target = tiny_target(max_position_embeddings=1024)
    decoder = Decoder(target, random_heads(target), num_nodes=7)
    (generation,) = decoder.add([5, 6, 7], Sampling(max_tokens=900, ignore_eos=True))
    alive = []
    for number in range(200):
        decoder.num_nodes = 7 * (number % 2)
        decoder.step()
        if number in (60, 160):
            gc.collect()
            alive.append(sum(issubclass(type(entry), torch.Tensor) for entry in gc.get_objects()))
    assert not generation.finished
    assert alive[1] <= alive[0] + 2
    decoder.close()


@pytest.mark.parametrize(("target_ids", "draft_ids"), [(60, 64), (64, 60), (60, 60)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_rows_of_either_model_are_neither_drafted_nor_said(target_ids: int, draft_ids: int, temperature: float) -> None:
    def padded(num_ids: int, seed: int) -> HfTarget:
        model = tiny_llama(seed)
        bias = torch.zeros(64)
        bias[num_ids:] = 50.0  # tempting
        model.get_output_embeddings().bias = torch.nn.Parameter(bias)
        return HfTarget(model, name="padded", dtype="float32", vocab_size=num_ids)

    target = padded(target_ids, 0)
    prompt = [5, 6, 7, 8]
    sampling = Sampling(max_tokens=40, temperature=temperature, seed=3)
    (plain,) = run(target, None, [prompt], sampling)
    for proposer in (DraftModelProposer(padded(draft_ids, 0)), random_heads(target)):  # an impossible draft would raise
        (guessed,) = run(target, proposer, [prompt], sampling)
        assert guessed.tokens == plain.tokens
        assert max(guessed.tokens) < target_ids
        assert guessed.stats.num_drafted > 0


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads for the tiny chat model, trained on answers with a pattern."""
    folder = tmp_path_factory.mktemp("trained")
    train(tiny_loaded(), out=folder / "heads", data=chats(folder / "chats.jsonl"), settings=SETTINGS.changed(epochs=12))
    return folder / "heads"


@pytest.mark.parametrize("growth", ["dynamic", "static"])
@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1, "presence_penalty": 0.2}]
)
def test_trained_heads_say_the_256_tokens_of_plain_decoding(trained: Path, growth: str, fields: dict[str, Any]) -> None:
    target = tiny_loaded().target
    target.context_limit = 512  # rotary positions go on
    heads = load_heads(trained, target)
    proposer = MedusaProposer(heads.bind(target.operations, target.base_weights()), growth)
    prompt, sampling = [1, 8, 9, 10], Sampling(max_tokens=256, ignore_eos=True, seed=7, **fields)
    (plain,) = run(target, None, [prompt], sampling)  # type: ignore[arg-type]
    (guessed,) = run(target, proposer, [prompt], sampling)  # type: ignore[arg-type]
    assert len(plain.tokens) == 256
    assert guessed.stats.num_accepted > 0
    difference = compare(target, "trained", prompt, plain.tokens, guessed.tokens, sampling, seed=7)
    assert difference is None or difference.kind == "tie", f"first difference at {difference.index}: {difference}"
