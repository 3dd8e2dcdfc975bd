"""``auto``, built for a model: its members, their order, and what is known of them before the first request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headstart.decode import Decoder
from headstart.plan.controller import MAX_NODES, AutoProposer
from headstart.plan.profile import Clock
from headstart.plan.profile_cache import profile_of
from headstart.proposers.base import Proposer
from headstart.proposers.choose import AUTO, Guesser, choose_members
from headstart.sampling import Sampling
from headstart.target.base import Target
from headstart.tokenizer import Tokenizer
from headstart.tree import Tree

_TRIAL_PROMPT, _TRIAL_TOKENS = 32, 6


def choose_auto(target: Target, tokenizer: Tokenizer, **options: Any) -> Guesser:
    """``auto`` over all that can guess for this model; options as of ``choose_members``."""
    members = choose_members(target, tokenizer, **options)
    return Guesser(
        AUTO,
        automatic(target, {member.name: member.proposer for member in members if member.proposer}),
        MAX_NODES,
        heads=next((member.heads for member in members if member.heads), None),
        notes=tuple(note for member in members for note in member.notes),
        past_outputs=members[0].past_outputs,
    )


def automatic(target: Target, proposers: dict[str, Proposer], *, clock: Clock = time.perf_counter) -> AutoProposer:
    """``auto`` over these proposers; the target is profiled and each of them tried.

    They are asked in the order of their cost. Where a text depends on its drafts, the last of them is asked alone.
    """
    profile = profile_of(target, clock=clock)
    calls = {name: _trial(target, proposer, clock) for name, proposer in proposers.items()}
    names = sorted(calls, key=lambda name: min(calls[name], default=0.0))
    steady = names.index(list(proposers)[-1]) if proposers else None  # not by cost, which the clock decides
    auto = AutoProposer([(name, proposers[name]) for name in names], profile, steady=steady, clock=clock)
    for place, name in enumerate(names):
        if calls[name]:
            auto.ledger.tried(place, min(calls[name]))
    return auto


class _Timed:
    """A proposer whose calls are timed."""

    def __init__(self, proposer: Proposer, clock: Clock) -> None:
        self.name, self._proposer, self._clock = proposer.name, proposer, clock
        self.observe: Callable[..., None] = proposer.observe
        self.forget: Callable[[int], None] = proposer.forget
        self.seconds: list[float] = []

    def propose(self, sequences: Any) -> list[Tree]:
        started = self._clock()
        trees = self._proposer.propose(sequences)
        self.seconds.append(self._clock() - started)
        return trees


def _trial(target: Target, proposer: Proposer, clock: Clock) -> list[float]:
    """Seconds of some calls, the first one left out."""
    timed = _Timed(proposer, clock)
    decoder = Decoder(target, timed, num_nodes=7)
    prompt = [(7 + 41 * i) % target.vocab_size for i in range(min(_TRIAL_PROMPT, target.context_limit // 2))]
    decoder.add(prompt, Sampling(max_tokens=_TRIAL_TOKENS, ignore_eos=True), seed=0)
    try:
        decoder.run()
    finally:
        decoder.close()
    return timed.seconds[1:] or timed.seconds
