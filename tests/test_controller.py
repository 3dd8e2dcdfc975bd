"""``auto``: never slower than plain decoding, on a clock of the tests' own; and never another text."""

from __future__ import annotations

import random
import zlib
from collections.abc import Sequence as ListOf
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headstart.decode import Decoder
from headstart.plan.automatic import automatic
from headstart.plan.controller import AutoProposer
from headstart.plan.explain import tables
from headstart.plan.profile import Clock as AnyClock
from headstart.proposers.base import Observation, Planner, Proposer, Sequence
from headstart.proposers.ngram import NgramProposer
from headstart.sampling import Sampling
from headstart.tree import ROOT, Tree, TreeBuilder
from scripted import EmptyProposer, HalfProposer, Logits, MixProposer, OracleProposer, WrongProposer, random_target
from synthetic import BFLOAT16, SMALL, Clock, Costly, Seconds, SyntheticTarget, auto, decode

VOCAB = 120
LAG = 37  # of copied text
GOOD = ((0.40, 0.12, 0.06, 0.04), (0.25, 0.08, 0.05), (0.18, 0.06))
"""Shares of positions at which a head's first, second, ... guess is right, by depth."""


def uniform(*key: object) -> float:
    return zlib.crc32(repr(key).encode()) * 2654435761 % 2**32 / 2**32


class Text:
    """What the target says: random tokens, or with the share ``copied(position)`` those ``LAG`` places back."""

    def __init__(self, seed: int, copied: float = 0.0, begin: int = 0) -> None:
        self.seed, self.copied, self.begin = seed, copied, begin

    def __call__(self, prefix: tuple[int, ...]) -> Logits:
        place, logits = len(prefix), np.zeros(VOCAB, dtype=np.float32)
        copies = place >= self.begin and uniform(self.seed, place) < self.copied and place > LAG
        logits[prefix[place - LAG] if copies else int(VOCAB * uniform(self.seed, place, prefix[-1]))] = 10.0
        return logits


class Heads:
    """Guesses of parallel heads that are right as often as ``shares`` say, and say ``estimates``."""

    name = "heads"

    def __init__(self, target: SyntheticTarget, shares: object = GOOD, estimates: object = None) -> None:
        self.target, self.shares, self.estimates = target, shares, estimates or shares

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        return [self._tree(sequence) for sequence in sequences]

    def observe(self, observations: ListOf[Observation]) -> None:
        pass

    def forget(self, key: int) -> None:
        pass

    def _tree(self, sequence: Sequence) -> Tree:
        builder, level = TreeBuilder(sequence.tokens[-1]), [(ROOT, tuple[int, ...]())]
        left = min(sequence.max_nodes, 11)
        for shares, estimates in zip(self.shares, self.estimates, strict=True):  # type: ignore[call-overload]
            below = []
            for row, path in level[:2]:
                for token, estimate in self._guesses(sequence, path, shares, estimates):
                    if left and len(path) < sequence.max_depth:
                        below.append((builder.add(row, token, estimate), (*path, token)))
                        left -= 1
            level = below
        return builder.build()

    def _guesses(self, sequence: Sequence, path: tuple[int, ...], shares: object, estimates: object) -> list[tuple[int, float]]:
        right = sequence.sampler.pick(self.target.next_logits((*sequence.tokens, *path)), path)
        chance, total, hit = uniform("heads", len(sequence.tokens), path), 0.0, -1
        for rank, share in enumerate(shares):  # type: ignore[arg-type, var-annotated]
            total += share
            if hit < 0 and chance < total:
                hit = rank
        ranked: list[float] = list(estimates)  # type: ignore[call-overload]
        return [(right if rank == hit else (right + 1 + rank) % VOCAB, value) for rank, value in enumerate(ranked)]


USELESS = ((0.0, 0.0, 0.0), (0.0, 0.0))
SURE = ((0.7, 0.1, 0.05), (0.6, 0.1))


def world(text: Text, cost: Seconds = BFLOAT16) -> SyntheticTarget:
    return SyntheticTarget(text, VOCAB, Clock(), cost)


def copier(target: SyntheticTarget) -> Proposer:
    return Costly(NgramProposer(), target.clock, fixed=1e-5, each=2e-5)


def heads(target: SyntheticTarget, shares: object = GOOD, estimates: object = None) -> Proposer:
    return Costly(Heads(target, shares, estimates), target.clock, fixed=6e-4, each=2e-5)


def prompts(number: int, length: int = 60) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(VOCAB) for _ in range(length)] for _ in range(number)]


def seconds(
    text: Text,
    cost: Seconds,
    batch: int,
    number: int,
    tokens: int,
    *proposers: str,
    shares: object = GOOD,
    estimates: object = None,
    num_nodes: int = 31,
) -> float:
    """What decoding takes with ``auto`` over the named members, or with one of them alone, or plain."""
    target = world(text, cost)
    made = {"copy": copier(target), "heads": heads(target, shares, estimates)}
    chosen: Proposer | None = None
    if proposers[:1] == ("auto",):
        chosen = auto(target, **made)
    elif proposers:
        chosen = made[proposers[0]]
    return decode(target, chosen, prompts(number), Sampling(max_tokens=tokens), batch=batch, num_nodes=num_nodes)[0]


@pytest.mark.parametrize("cost", [BFLOAT16, SMALL], ids=["bfloat16", "small"])
@pytest.mark.parametrize(("batch", "number", "tokens"), [(1, 4, 250), (4, 8, 120), (16, 16, 100), (32, 32, 60)])
def test_unguessable_text_with_useless_but_sure_heads_is_as_fast_as_plain(
    cost: Seconds, batch: int, number: int, tokens: int
) -> None:
    text = Text(1)
    plain = seconds(text, cost, batch, number, tokens)
    ours = seconds(text, cost, batch, number, tokens, "auto", shares=USELESS, estimates=SURE)
    assert plain / ours > 0.97


@pytest.mark.parametrize(("batch", "number", "tokens"), [(4, 8, 120), (16, 16, 100), (32, 32, 60)])
def test_good_guesses_do_no_harm_where_rows_are_dear(batch: int, number: int, tokens: int) -> None:
    text = Text(2, copied=0.5)
    plain = seconds(text, SMALL, batch, number, tokens)
    assert plain / seconds(text, SMALL, batch, number, tokens, "auto") > 0.97


@pytest.mark.parametrize("cost", [BFLOAT16, SMALL], ids=["bfloat16", "small"])
@pytest.mark.parametrize("copied", [0.0, 0.5, 0.9])
def test_it_is_about_as_fast_as_the_best_fixed_choice(cost: Seconds, copied: float) -> None:
    text = Text(3, copied)
    run = (text, cost, 1, 4, 200)
    fixed = [seconds(*run, name, num_nodes=nodes) for name in ("copy", "heads") for nodes in (3, 7)]
    assert min(*fixed, seconds(*run)) / seconds(*run, "auto") > 0.95  # learning included, which 800 tokens do not hide


def test_text_that_becomes_copyable_is_noticed() -> None:
    """After 500 unguessable tokens the copying proposer is off; the copied part must be fast all the same."""
    target = world(Text(4, copied=0.95, begin=560))
    proposer = auto(target, copy=copier(target))
    generation = Decoder(target, proposer, num_nodes=31)
    (sequence,) = generation.add(prompts(1)[0], Sampling(max_tokens=800), seed=0)
    while len(sequence.tokens) < 500:
        generation.step()
    assert not proposer.describe()["members"][0]["is_on"]
    started, before = target.clock.now, sequence.stats.num_steps
    generation.run()
    assert 300 / (sequence.stats.num_steps - before) > 2.5
    assert (target.clock.now - started) / 300 < 0.6 * 0.009


def test_a_new_text_is_tried_at_once() -> None:
    """Behind an unguessable text the copying proposer is off; of the next one nobody knows that yet."""
    guessable, copied = prompts(2)[1], Text(4, copied=0.95)
    unguessable = Text(4)
    target = world(lambda prefix: (copied if prefix[0] == guessable[0] else unguessable)(prefix))  # type: ignore[arg-type]
    copy = Costly(NgramProposer(), target.clock, fixed=1e-5)
    proposer = auto(target, copy=copy)
    decode(target, proposer, prompts(1), Sampling(max_tokens=500))
    assert not proposer.describe()["members"][0]["is_on"]
    decoder, before = Decoder(target, proposer, num_nodes=31), len(copy.asked)
    decoder.add(guessable, Sampling(max_tokens=20), seed=0)
    decoder.step()
    decoder.step()
    assert len(copy.asked) == before + 1
    decoder.run()


def test_probes_of_a_useless_member_become_rare() -> None:
    target = world(Text(5), SMALL)
    useless = Costly(Heads(target, USELESS, SURE), target.clock, fixed=6e-4)
    proposer = auto(target, heads=useless)
    decode(target, proposer, prompts(1), Sampling(max_tokens=1500))
    trial, asked = 5, len(useless.asked)
    assert trial < asked < 60
    assert proposer.describe()["members"][0]["is_on"] is False


def test_while_nobody_is_asked_few_steps_are_observed() -> None:
    target = world(Text(5))
    useless = Costly(Heads(target, shares=((0.01,),)), target.clock, fixed=0.001)
    proposer = auto(target, heads=useless)
    observed = 0
    observe = proposer.observe

    def counting(observations: ListOf[Observation]) -> None:
        nonlocal observed
        observed += 1
        observe(observations)

    proposed = 0
    propose = proposer.propose

    def counted(sequences: ListOf[Sequence]) -> list[Tree]:
        nonlocal proposed
        proposed += 1
        return propose(sequences)

    proposer.observe, proposer.propose = counting, counted  # type: ignore[method-assign]
    decode(target, proposer, prompts(1), Sampling(max_tokens=1500))
    assert observed < 700
    assert proposed < 700
    assert proposer.describe()["steps"] == 1499
    heard = observed
    proposer.traits[0] = replace(proposer.traits[0], hears_all=True)
    decode(target, proposer, prompts(1), Sampling(max_tokens=1500))
    assert observed - heard > 1490


class Hesitant:
    """Says what the inner proposer says behind half of all tokens, else nothing."""

    name = "hesitant"
    reads_text_alone = True

    def __init__(self, inner: Proposer) -> None:
        self.inner, self.told = inner, 0

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        trees = self.inner.propose(sequences)
        return [
            tree if uniform("says", len(sequence.tokens)) < 0.5 else Tree.root(sequence.tokens[-1])
            for sequence, tree in zip(sequences, trees, strict=True)
        ]

    def observe(self, observations: ListOf[Observation]) -> None:
        self.told += 1

    def forget(self, key: int) -> None:
        self.inner.forget(key)


@pytest.mark.parametrize("is_deaf", [True, False])
def test_a_step_in_which_nobody_said_anything_is_not_observed(is_deaf: bool) -> None:
    """Unless a member needs to hear what was said."""
    target = world(Text(5))
    hesitant = Hesitant(OracleProposer(target))
    proposer = auto(target, hesitant=hesitant)
    proposer.traits[0] = replace(proposer.traits[0], reads_text_alone=is_deaf)
    decode(target, proposer, prompts(1), Sampling(max_tokens=600))
    described = proposer.describe()
    silent, steps = described["steps_by_drafted_rows"]["0"], described["steps"]
    assert 0.3 * steps < silent < 0.9 * steps
    if is_deaf:
        assert hesitant.told <= steps - 0.9 * silent
    else:
        assert hesitant.told > 0.9 * steps


def test_a_prompt_in_the_same_step_does_not_make_drafting_look_free() -> None:
    """Beside 400 rows of a prompt every drafted row costs what rows cost there, and a token is worth what it always is."""
    target = world(Text(6, copied=0.9))
    proposer = auto(target, copy=copier(target))
    decoder = Decoder(target, proposer, num_nodes=31)
    decoder.add(prompts(1)[0], Sampling(max_tokens=200), seed=0)
    for _ in range(20):
        decoder.step()
    decoder.add(prompts(1, length=400)[0], Sampling(max_tokens=3), seed=1)
    decoder.step()
    (_, draft), (_, prompt) = target.feeds[-1]
    assert len(prompt) == 400
    assert draft.num_drafted < 12
    decoder.run()


def test_no_nodes_is_plain_decoding() -> None:
    target = world(Text(7))
    proposer = auto(target, copy=copier(target))
    asked = proposer.describe()["steps"]
    _, (generation,) = decode(target, proposer, prompts(1), Sampling(max_tokens=20), num_nodes=0)
    assert generation.stats.num_drafted == 0
    assert proposer.describe()["steps"] == asked


def test_it_stays_within_the_nodes_it_was_given() -> None:
    target = world(Text(8, copied=0.95))
    _, (generation,) = decode(target, auto(target, copy=copier(target)), prompts(1), Sampling(max_tokens=150), num_nodes=5)
    assert generation.stats.num_drafted > 0
    assert max(len(tree) for feed in target.feeds[-30:] for _, tree in feed) == 6


MEMBERS = {
    "oracle": OracleProposer,
    "wrong": WrongProposer,
    "half": HalfProposer,
    "empty": EmptyProposer,
    "mix": MixProposer,
}


class Erratic:
    """A clock that says anything, but never goes back."""

    def __init__(self, seed: int) -> None:
        self._rng, self._now = random.Random(seed), 0.0

    def __call__(self) -> float:
        self._now += self._rng.choice((0.0, 1e-6, 1e-3, 0.05, 2.0)) * self._rng.random()
        return self._now


@given(
    st.lists(st.sampled_from(sorted(MEMBERS)), min_size=1, max_size=3, unique=True),
    st.sampled_from((0.0, 0.8)),
    st.integers(1, 5),
    st.integers(0, 10_000),
)
def test_whatever_the_clock_says_the_text_is_that_of_plain_decoding(
    names: list[str], temperature: float, batch: int, seed: int
) -> None:
    target = random_target(seed % 7, 24, memory=3)
    clock: AnyClock = Erratic(seed)
    proposer = automatic(target, {name: MEMBERS[name](target, 4, width=2) for name in names}, clock=clock)
    sampling = Sampling(max_tokens=25, temperature=temperature, seed=seed)
    answers = []
    for guesser in (None, proposer):
        decoder = Decoder(target, guesser, num_nodes=9)
        joined = [g for i in range(batch) for g in decoder.add([1 + i, 2, 3], sampling)]
        decoder.run()
        answers.append([g.tokens for g in joined])
    assert answers[0] == answers[1]
    assert target.num_open == 0
    assert proposer.ledger.num_sequences() == 0


class Drawn:
    """``auto`` under a rule whose text depends on the draft."""

    name = "drawn"

    def __init__(self, proposer: AutoProposer) -> None:
        self.inner, self.expect, self.rests = proposer, proposer.expect, proposer.rests
        self.observe, self.forget, self.describe = proposer.observe, proposer.forget, proposer.describe

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        return self.inner.propose([replace(sequence, choice="drawn") for sequence in sequences])


@pytest.mark.parametrize(("temperature", "is_free"), [(0.8, False), (0.0, True)])
def test_drafts_do_not_follow_the_clock_where_the_text_depends_on_them(temperature: float, is_free: bool) -> None:
    seen = []
    for seed in range(3):
        target = random_target(3, 24, memory=3)
        proposer = automatic(target, {"half": HalfProposer(target, 3), "mix": MixProposer(target, 12)}, clock=Erratic(seed))
        target.feeds.clear()
        decoder = Decoder(target, Drawn(proposer), num_nodes=31)
        decoder.add([1, 2, 3], Sampling(max_tokens=40, temperature=temperature, seed=5))
        decoder.run()
        seen.append([[tree.tokens for _, tree in feed] for feed in target.feeds])
    assert (seen[0] == seen[1] == seen[2]) is not is_free
    if not is_free:
        assert 4 < max(len(tokens) for feed in seen[0] for tokens in feed) <= 8


def test_a_loop_that_rests_does_not_silence_another_one() -> None:
    """Drafts on which a text depends are made whatever a neighbour's loop decides."""

    def drafts(neighbour: bool) -> list[ListOf[int]]:
        target = world(Text(4))
        proposer = auto(target, heads=heads(target, shares=((0.0,) * 4, (0.0,) * 3, (0.0,) * 2), estimates=GOOD))
        resting = Decoder(target, proposer, num_nodes=31)
        (unguessable,) = resting.add(prompts(1)[0], Sampling(max_tokens=2000))
        while not proposer.rests([unguessable.key]):
            assert not unguessable.finished
            resting.step()
        decoder = Decoder(target, Drawn(proposer), num_nodes=31)
        (drafted,) = decoder.add(prompts(2)[1], Sampling(max_tokens=40, temperature=0.5, seed=5))
        fed: list[ListOf[int]] = []
        while not drafted.finished:
            if neighbour:
                resting.step()
            target.feeds.clear()
            decoder.step()
            fed.append(target.feeds[0][0][1].tokens)
        return fed

    assert drafts(neighbour=True) == drafts(neighbour=False)
    assert any(len(tokens) > 1 for tokens in drafts(neighbour=True)[1:])


def test_members_see_the_verified_draft_with_their_own_estimates() -> None:
    """Whatever was merged and cut; 0 at nodes that a member did not name."""
    target = world(Text(9, copied=0.8))
    seen: list[tuple[Tree, tuple[int, ...]]] = []

    class Watching(NgramProposer):
        hears_all = True

        def observe(self, observations: ListOf[Observation]) -> None:
            seen.extend((o.tree, o.tokens) for o in observations)
            super().observe(observations)

    proposer = auto(target, copy=Watching(), heads=heads(target))
    seen.clear()
    target.feeds.clear()
    _, (generation,) = decode(target, proposer, prompts(1), Sampling(max_tokens=80))
    named = [sum(p > 0 for p in tree.probabilities[1:]) for tree, _ in seen[1:]]
    assert [tree.tokens for tree, _ in seen] == [feed[0][1].tokens for feed in target.feeds[: len(seen)]]
    assert max(named) > 3
    assert any(count < tree.num_drafted for count, (tree, _) in zip(named, seen[1:], strict=True))
    assert [*(token for _, tokens in seen for token in tokens)] == generation.tokens[: sum(len(t) for _, t in seen)]


def test_it_explains_itself() -> None:
    target = world(Text(10, copied=0.6))
    proposer = auto(target, copy=copier(target), heads=heads(target))
    assert isinstance(proposer, Planner)
    decode(target, proposer, prompts(2), Sampling(max_tokens=60))
    described = proposer.describe()
    assert sum(described["steps_by_drafted_rows"].values()) == described["steps"]
    assert described["profile"]["ms_now"][0] == pytest.approx(8.6, rel=0.1)
    by_name = {member["proposer"]: member for member in described["members"]}
    assert by_name["heads"]["cost_ms"] == pytest.approx(0.62, rel=0.01)
    assert list(by_name) == ["copy", "heads"], "the cheapest is asked first"
    assert by_name["copy"]["accepted"] > 0
    for header, rows in tables(described):
        assert rows
        assert all(len(row) == len(header) for row in rows)


def test_it_says_what_a_rule_made_it_draft() -> None:
    target = world(Text(9, copied=0.3))
    proposer = auto(target, copy=copier(target), heads=heads(target))
    decoder = Decoder(target, Drawn(proposer), num_nodes=31)
    (generation,) = decoder.add([1, 2, 3], Sampling(max_tokens=40, temperature=0.5, seed=5))
    decoder.run()
    described, stats = proposer.describe(), generation.stats
    num_steps = stats.num_steps - 1  # the last one has room for no draft
    assert sum(described["steps_by_drafted_rows"].values()) == described["steps"] == num_steps
    copy, guesses = described["members"]
    assert copy["asked"] == copy["verified"] == 0
    assert guesses["asked"] == guesses["without_choice"] == num_steps
    assert (guesses["verified"], guesses["accepted"]) == (stats.num_drafted, stats.num_accepted)
    _, (header, rows), _ = tables(described)
    assert [row[1] for row in rows] == ["on", "always"] and rows[1][header.index("ms it saves")] == "-"


def test_an_aborted_step_is_not_timed() -> None:
    target = world(Text(11))
    proposer: AutoProposer = auto(target, copy=copier(target))
    decoder = Decoder(target, proposer, num_nodes=7)
    decoder.add(prompts(1)[0], Sampling(max_tokens=20), seed=0)
    decoder.step()
    decoder.step()
    timed = proposer.ledger.num_timed
    forward = target.forward

    def broken(batch: object) -> object:
        raise KeyboardInterrupt

    target.forward = broken  # type: ignore[assignment, method-assign]
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    decoder.close()
    target.forward = forward  # type: ignore[method-assign]
    target.clock.now += 100
    again = Decoder(target, proposer, num_nodes=7)
    again.add(prompts(1)[0], Sampling(max_tokens=3), seed=0)
    again.step()
    assert proposer.ledger.num_timed == timed
    assert proposer.ledger.seconds(1) < 0.02
