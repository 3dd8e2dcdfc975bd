"""Counts that a user relies on: fixed heads on fixed prompts accept what they always did, and a dead draft is said aloud."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.decode import Decoder
from headstart.heads.base import Acceptance, BaseIdentity, HeadsCard
from headstart.heads.medusa import MedusaConfig, MedusaHeads
from headstart.measure.entries import Measured
from headstart.measure.record import dead_drafts
from headstart.measure.samples import Sample
from headstart.proposers.base import Proposer
from headstart.proposers.draft_model import DraftModelProposer
from headstart.proposers.medusa import MedusaProposer
from headstart.proposers.ngram import NgramProposer
from headstart.sampling import Sampling
from headstart.stats import Stats
from headstart.target.base import BaseWeights
from scripted import ScriptedTarget, hash_generator

V, HEADS = 24, 3
OFTEN, SELDOM = (np.random.default_rng(seed).permutation(V) for seed in (1, 2))
"""The usual and the unusual successor of each token."""
PROMPTS = [[i % V, (7 * i + 3) % V, (5 * i + 1) % V] for i in range(20)]


class ChainTarget(ScriptedTarget):
    """Text in which a token is mostly followed by its usual successor; its hidden state shows the last token."""

    def __init__(self) -> None:
        super().__init__(_chain_logits, V, hidden_size=V, name="chain")

    def hidden_state(self, prefix: tuple[int, ...]) -> NDArray[np.float32]:
        state: NDArray[np.float32] = np.eye(V, dtype=np.float32)[prefix[-1]]
        return state

    def base_weights(self) -> BaseWeights:
        return BaseWeights(np.eye(V, dtype=np.float32), np.eye(V, dtype=np.float32))


def _chain_logits(prefix: Sequence[int]) -> NDArray[np.float32]:
    usual = hash_generator("chain", tuple(prefix[-4:])).random() < 0.7
    logits = np.linspace(0.0, -0.5, V)
    logits[[OFTEN[prefix[-1]], SELDOM[prefix[-1]]]] = (4.0, 2.5) if usual else (2.5, 4.0)
    return logits.astype(np.float32)


def fixed_heads(target: ScriptedTarget) -> MedusaHeads:
    """Heads that know the successors, written down rather than trained: head k reads them off the root."""
    config = MedusaConfig(num_heads=HEADS, hidden_size=V, vocab_size=V)
    weight = np.zeros((HEADS, V, 2 * V), dtype=np.float32)
    for root in range(V):
        token = root
        for head in range(HEADS):
            weight[head, SELDOM[token], V + root] = 4.0
            weight[head, OFTEN[token], V + root] = 6.0
            token = OFTEN[token]
    bias = np.tile(np.linspace(0, -0.1, V, dtype=np.float32), HEADS)  # no two guesses tie
    tensors = {"first.weight": weight.reshape(-1, 2 * V), "first.bias": bias}
    measured = Acceptance(((0.6, 0.2, 0.01), (0.4, 0.15, 0.01), (0.3, 0.1, 0.01)))
    return MedusaHeads(config, tensors, HeadsCard(BaseIdentity.of(target), measured))


def fixed_medusa(target: ScriptedTarget, growth: str) -> MedusaProposer:
    return MedusaProposer(fixed_heads(target).bind(target.operations, target.base_weights()), growth)


def small_chain(target: ScriptedTarget) -> DraftModelProposer:
    """A draft that sees the last token alone."""
    return DraftModelProposer(ScriptedTarget(lambda prefix: _chain_logits(prefix[-1:]), V))


PROPOSERS: dict[str, Callable[[ScriptedTarget], Proposer]] = {
    "ngram": lambda target: NgramProposer(),
    "medusa": lambda target: fixed_medusa(target, "dynamic"),
    "medusa static": lambda target: fixed_medusa(target, "static"),
    "draft_model": small_chain,
}
STORED: dict[tuple[str, float], tuple[int, int, int]] = {
    ("ngram", 0.0): (274, 771, 506),
    ("ngram", 1.0): (669, 2012, 111),
    ("medusa", 0.0): (216, 1477, 564),
    ("medusa", 1.0): (297, 2030, 483),
    ("medusa static", 0.0): (241, 1642, 539),
    ("medusa static", 1.0): (302, 2030, 478),
    ("draft_model", 0.0): (230, 1596, 550),
    ("draft_model", 1.0): (245, 1666, 535),
}
"""(steps, drafted, accepted) of all prompts. Fewer accepted tokens are a regression; change a number only with its reason."""


def counts(name: str, temperature: float) -> Stats:
    target = ChainTarget()
    decoder = Decoder(target, PROPOSERS[name](target), num_nodes=7)
    total = Stats()
    for number, prompt in enumerate(PROMPTS):
        (generation,) = decoder.add(prompt, Sampling(max_tokens=40, temperature=temperature, seed=number))
        decoder.run()
        total.add(generation.stats)
    return total


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", PROPOSERS)
def test_twenty_prompts_are_accepted_as_they_always_were(name: str, temperature: float) -> None:
    found = counts(name, temperature)
    assert (found.num_steps, found.num_drafted, found.num_accepted) == STORED[name, temperature]
    assert found.num_emitted == 20 * 39
    assert sum(count * number for number, count in enumerate(found.accepted_histogram)) == found.num_accepted
    assert sum(found.accepted_by_position) == found.num_accepted


@pytest.mark.parametrize("name", PROPOSERS)
def test_every_fresh_engine_accepts_the_same_tokens(name: str) -> None:
    assert counts(name, 0.0) == counts(name, 0.0)


@pytest.mark.parametrize(
    ("num_steps", "num_accepted", "is_dead"), [(200, 0, True), (200, 1, True), (200, 2, False), (199, 0, False)]
)
def test_a_draft_that_is_never_accepted_is_said_aloud(num_steps: int, num_accepted: int, is_dead: bool) -> None:
    stats = Stats()
    for step in range(num_steps):
        hit = int(step < num_accepted)
        stats.record(num_drafted=4, depth=2, num_accepted=hit, num_emitted=1 + hit)
    sample = Sample("chat", tuple(range(9)), stats, 1.0)
    notes = dead_drafts([Measured("medusa", 4, [sample], None, [])])
    assert bool(notes) == is_dead
    assert all("medusa" in note and "check" in note for note in notes)


def test_plain_decoding_is_no_dead_draft() -> None:
    stats = Stats()
    for _ in range(300):
        stats.record(num_drafted=0, depth=0, num_accepted=0, num_emitted=1)
    assert dead_drafts([Measured("plain", 0, [Sample("chat", (1,), stats, 1.0)], None, [])]) == []
