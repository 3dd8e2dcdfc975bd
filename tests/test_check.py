"""``headstart check`` on scripted targets: what is right passes, and every kind of wrong acceptance is found and shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from collections.abc import Sequence as ListOf
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headstart.accept import Draft, Rule, Verdict, choose_rule, rejection
from headstart.check import check, goodness
from headstart.check.distribution import KINDS, check_distribution, exact_distributions, transitions
from headstart.check.identity import GREEDY, SAMPLED
from headstart.decode import Generation
from headstart.errors import DataError, HeadsError, RequestError
from headstart.llm import LLM
from headstart.proposers.base import Sequence
from headstart.proposers.choose import Guesser
from headstart.proposers.draft_model import DraftModelProposer
from headstart.tree import ROOT, Draws, Tree, TreeBuilder
from scripted import (
    HalfProposer,
    MixProposer,
    OracleProposer,
    ScriptedProposer,
    ScriptedScored,
    ScriptedTarget,
    WrongProposer,
    random_target,
)
from test_llm import byte_tokenizer
from test_proposers import noisy_draft

PROMPTS = ["why?", "so it goes, so it goes", "1, 2, 3"]


class LikelyProposer(ScriptedProposer):
    """Under every node of the likeliest path the two likeliest tokens, the less likely one first."""

    name = "likely"

    def _tree(self, sequence: Sequence) -> Tree:
        builder, row, path = TreeBuilder(sequence.tokens[-1]), ROOT, list(sequence.tokens)
        for _ in range(min(sequence.max_depth, sequence.max_nodes // 2)):
            best, second = (int(token) for token in np.argsort(-self.target.next_logits(tuple(path)), kind="stable")[:2])
            builder.add(row, second, 0.3)
            row = builder.add(row, best, 0.6)
            path.append(best)
        return builder.build()


class IdleProposer(ScriptedProposer):
    """Never has an idea."""

    name = "idle"

    def _tree(self, sequence: Sequence) -> Tree:
        return Tree.root(sequence.tokens[-1])


PROPOSERS: dict[str, type[ScriptedProposer]] = {
    "likely": LikelyProposer,
    "oracle": OracleProposer,
    "wrong": WrongProposer,
    "half": HalfProposer,
    "mix": MixProposer,
}
Verify = Callable[[Any, ListOf[Draft]], list[Verdict]]


class Scripted(LLM):
    """A scripted model with scripted proposers by name."""

    def with_proposer(self, name: str, *, num_nodes: int | None = None, **options: Any) -> LLM:
        assert isinstance(self.target, ScriptedTarget)
        if name not in PROPOSERS:
            return super().with_proposer(name, num_nodes=num_nodes, **options)
        return Scripted(self.target, self.tokenizer, Guesser(name, PROPOSERS[name](self.target, 6, width=3), 6))

    def with_rule(self, rule: Rule) -> LLM:
        return Scripted(self.target, self.tokenizer, self._guesser, rule=rule)


def model(*, scale: float = 2.0, memory: int = 3) -> LLM:
    tokenizer = byte_tokenizer(["alpha ", "beta ", "gamma"])
    target = random_target(1, tokenizer.vocab_size, scale=scale, memory=memory, end_tokens=tokenizer.end_tokens)
    return Scripted(target, tokenizer, Guesser("none", None, 0))


def run(**settings: Any) -> Any:
    return check(model(), PROMPTS, max_tokens=12, **settings)


# what is right


def test_right_proposers_pass_and_the_record_says_what_was_compared() -> None:
    report = run(proposers=list(PROPOSERS))
    assert report.passed
    assert report.verdict.startswith("identical: 60 answers")
    for entry in report.record["proposers"]:
        assert entry["identity"]["answers"] == len(PROMPTS) * (len(GREEDY) + len(SAMPLED))
        assert entry["identity"]["identical"] == entry["identity"]["answers"]
        assert entry["drafted"] > 0
    assert [row[-1] for row in report.rows()] == ["right"] * len(PROPOSERS)
    json.dumps(report.record, allow_nan=False)


def test_without_names_every_proposer_that_the_model_can_have_is_checked() -> None:
    report = run()
    assert [entry["proposer"] for entry in report.record["proposers"]][:1] == ["ngram"]
    reasons = {entry["proposer"]: entry["reason"] for entry in report.record["skipped"]}
    assert "no heads fit" in reasons["medusa"]
    assert "needs a model" in reasons["draft_model"]


def test_progress_ends_where_it_was_said_to() -> None:
    seen: list[tuple[float, float]] = []
    run(proposers=["oracle", "wrong"], progress=lambda done, total, what: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == seen[0][1]


def test_the_built_in_prompts_are_used_where_none_are_given() -> None:
    report = check(model(), proposers=["oracle"], max_tokens=2, limit=5)
    assert report.record["prompts"]["number"] == 5
    assert len(report.record["prompts"]["categories"]) == 5


# what is wrong


def walk(pick: Callable[[ScriptedScored, Draft, int, list[int]], int]) -> Verify:
    """A rule that goes down each draft by itself; ``pick`` says which token comes behind a row."""

    def verify(scored: ScriptedScored, drafts: ListOf[Draft]) -> list[Verdict]:
        verdicts = []
        for draft in drafts:
            row, path, tokens = draft.start, list[int](), list[int]()
            while True:
                tokens.append(pick(scored, draft, row, tokens))
                child = draft.tree.child(row, tokens[-1])
                if child is None:
                    break
                row = child
                path.append(child)
            verdicts.append(Verdict(tuple(path), tuple(tokens)))
        return verdicts

    return verify


def takes_second_best(scored: ScriptedScored, draft: Draft, row: int, path: list[int]) -> int:
    """Whatever is drafted and among the two likeliest."""
    best = np.argsort(-scored.logits([(draft.entry, row)])[0], kind="stable")[:2]
    drafted = [draft.tree.tokens[child] for child in draft.tree.children[row]]
    likely = [int(token) for token in best if token in drafted]
    return likely[-1] if likely else draft.sampler.pick(scored.logits([(draft.entry, row)])[0], path)


def forgets_the_path(scored: ScriptedScored, draft: Draft, row: int, path: list[int]) -> int:
    """Penalties and noise of the root for every row."""
    return draft.sampler.pick(scored.logits([(draft.entry, row)])[0], [])


def reads_the_root(scored: ScriptedScored, draft: Draft, row: int, path: list[int]) -> int:
    """The root's logits for every row."""
    return draft.sampler.pick(scored.logits([(draft.entry, draft.start)])[0], path)


@pytest.mark.parametrize("broken", [takes_second_best, forgets_the_path, reads_the_root])
def test_a_wrong_verification_is_found_and_shown(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Rule("exact", walk(broken), "coupled", is_lossless=True, repeats_plain=True)
    monkeypatch.setattr("headstart.check.settings.choose_rule", lambda _: rule)
    report = run(proposers=["likely"], accept="exact")
    assert not report.passed
    assert report.verdict.startswith("likely changes the text: fault in prompt ")
    (entry,) = report.record["proposers"]
    first = entry["identity"]["differences"][0]
    assert (first["kind"], first["sampling"] in {**GREEDY, **SAMPLED}) == ("fault", True)
    assert first["plain"] != first["other"]
    assert first["top_2_gap"] > 0
    assert f"token {first['index']}: plain says {first['plain']} {first['plain_text']!r}" in report.problem
    assert report.rows()[0][-1] == "WRONG"


def test_an_answer_that_stops_too_early_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Generation.sequence

    def short(generation: Generation, *arguments: Any) -> Sequence:
        generation.limit = 5
        return whole(generation, *arguments)

    monkeypatch.setattr(Generation, "sequence", short)
    report = run(proposers=["oracle"])
    assert not report.passed
    first = report.record["proposers"][0]["identity"]["differences"][0]
    assert (first["other"], first["gap"], first["top_2_gap"]) == (None, None, None)


# distributions


def suspect(verify: Verify, monkeypatch: pytest.MonkeyPatch, *, proposer: str = "likely", draws: int = 200) -> Any:
    """The test of the distribution of a rule; the target is peaked, so that drafts are often right."""
    monkeypatch.setattr(goodness, "NUM_SIMULATIONS", 2000)
    rule = Rule("suspect", verify, "likeliest", is_lossless=True, repeats_plain=False)
    llm = model(scale=3.0, memory=1).with_proposer(proposer).with_rule(rule)
    prompts = [llm.encode(prompt) for prompt in PROMPTS[:2]]
    return check_distribution(llm, PROMPTS[:2], prompts, draws=draws, level=0.001, seed=0, report=lambda *_: None)


def honest(scored: ScriptedScored, draft: Draft, row: int, path: list[int]) -> int:
    """A draw of the target's own, independent of the pick's noise."""
    distribution = draft.sampler.distribution(scored.logits([(draft.entry, row)])[0], path)
    return int(_rng(draft, path).choice(distribution.size, p=distribution))


def likes_drafts(scored: ScriptedScored, draft: Draft, row: int, path: list[int]) -> int:
    """Independent tests min(1, p / q) of children that were chosen, not drawn (q is taken as even): METHODS, rules 2 and 3."""
    distribution = draft.sampler.distribution(scored.logits([(draft.entry, row)])[0], path)
    rng, children = _rng(draft, path), draft.tree.children[row]
    for child in children:
        token = draft.tree.tokens[child]
        if rng.random() < min(1.0, distribution[token] * len(children)):
            return token
    return int(rng.choice(distribution.size, p=distribution))


def forgets_the_residual(scored: ScriptedScored, draft: Draft, row: int, path: list[int]) -> int:
    """A child is accepted with its probability, but what was rejected may be drawn again."""
    distribution = draft.sampler.distribution(scored.logits([(draft.entry, row)])[0], path)
    rng = _rng(draft, path)
    for child in draft.tree.children[row]:
        token = draft.tree.tokens[child]
        if rng.random() < distribution[token]:
            return token
    return int(rng.choice(distribution.size, p=distribution))


def with_residual(scored: ScriptedScored, draft: Draft, row: int, path: list[int]) -> int:
    """The rule of a chosen child, as it should be: accept with p(x), else zero it and renormalise."""
    left = draft.sampler.distribution(scored.logits([(draft.entry, row)])[0], path)
    rng = _rng(draft, path)
    for child in draft.tree.children[row]:
        token = draft.tree.tokens[child]
        if left[token] > 0 and rng.random() < left[token] / left.sum():
            return token
        left[token] = 0.0
    return int(rng.choice(left.size, p=left / left.sum())) if left.sum() else draft.tree.tokens[draft.tree.children[row][0]]


def _rng(draft: Draft, path: list[int]) -> np.random.Generator:
    return np.random.default_rng([abs(draft.sampler.seed), draft.sampler.num_committed + len(path)])


@pytest.mark.parametrize("rule", [honest, with_residual])
def test_rules_that_keep_the_distribution_pass(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = suspect(walk(rule), monkeypatch)
    assert found.result.p_value > 0.001
    assert found.result.degrees > 20
    assert found.result.smallest_bias < 0.15


@pytest.mark.parametrize("rule", [likes_drafts, forgets_the_residual, takes_second_best])
def test_biased_rules_are_found(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert suspect(walk(rule), monkeypatch).result.p_value < 0.001


Weighed = Generator[tuple[int, float], None, NDArray[np.float64]]


def independent_tests(p: NDArray[np.float64], draws: ListOf[Draws]) -> Weighed:
    """Every draw against p itself, one residual in the end."""
    (one,) = draws
    q = np.zeros_like(p)
    q[one.ids] = one.probabilities
    for token in one.tokens:
        yield token, min(1.0, float(p[token] / q[token]))
    residual = np.maximum(p - q, 0)
    return residual / residual.sum() if residual.sum() > 0 else p


def without_residual(p: NDArray[np.float64], draws: ListOf[Draws]) -> Weighed:
    """A rejected token's mass is given back."""
    (one,) = draws
    q = dict(zip(one.ids.tolist(), one.probabilities.tolist(), strict=True))
    for token in one.tokens:
        yield token, min(1.0, float(p[token]) / q[token])
    return p


@pytest.mark.parametrize("weighed", [None, independent_tests, without_residual])
def test_the_rules_of_this_project_pass_and_their_biased_variants_are_found(
    weighed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With children that a draft model drew, through the whole loop."""
    monkeypatch.setattr(goodness, "NUM_SIMULATIONS", 2000)
    llm = model(scale=3.0, memory=1)
    assert isinstance(llm.target, ScriptedTarget)
    guesser = Guesser("draft_model", DraftModelProposer(noisy_draft(llm.target)), 6)
    drawing = LLM(llm.target, llm.tokenizer, guesser, rule=choose_rule("rejection"))
    if weighed is not None:
        monkeypatch.setattr(rejection, "weighed", weighed)
    prompts = [llm.encode(prompt) for prompt in PROMPTS[:2]]
    found = check_distribution(drawing, PROMPTS[:2], prompts, draws=200, level=0.001, seed=0, report=lambda *_: None)
    assert (found.result.p_value < 0.001) == (weighed is not None)
    assert found.result.smallest_bias < 0.16  # is found in 95 of 100 cases; those here are far larger


def test_the_whole_test_is_calm_where_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodness, "NUM_SIMULATIONS", 300)
    llm = model(scale=3.0, memory=1).with_proposer("likely")
    prompt = [llm.encode(PROMPTS[0])]
    p_values = [
        check_distribution(llm, ["one"], prompt, draws=60, level=0.001, seed=seed, report=lambda *_: None).result.p_value
        for seed in range(12)
    ]
    assert 0.01 < min(p_values) < 0.5 < max(p_values)


def test_draws_are_held_against_the_targets_own_distribution() -> None:
    llm = model(scale=3.0, memory=1)
    sampling = next(iter(KINDS.values()))
    prompt = llm.encode("why?")
    answers = [(1, 2, 3)] * 50 + [(1, 4, 3)] * 45 + [(7, 1, 1)] * 3
    groups = transitions(llm.target, prompt, sampling, answers)
    assert [group.num_draws for group in groups] == [95, 50, 45]  # behind 1, behind 1 2, behind 1 4; 7 was met too rarely
    exact = exact_distributions(llm.target, prompt, sampling, [(1,), (1, 2)])
    assert all(distribution.sum() == pytest.approx(1.0) for distribution in exact.values())
    assert isinstance(llm.target, ScriptedTarget)
    assert llm.target.num_open == 0


# requests


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"proposers": ["plain"]}, RequestError, "plain decoding is what the others are checked against"),
        ({"proposers": ["medusa"]}, HeadsError, "no heads fit"),
        ({"proposers": ["oracl"]}, RequestError, "unknown proposer"),
        ({"proposers": "ngram"}, RequestError, "a list of names"),
        ({"options": {"heads": "nowhere"}}, HeadsError, "nowhere is not a heads folder"),
        ({"options": {"wings": 1}}, RequestError, "unknown option wings"),
        ({"temperature": 1.0}, RequestError, "a check has no option temperature"),
        ({"num_nodes": 0}, RequestError, "num_nodes is 0; it must be 1 or more: without drafts there is nothing to check"),
        ({"proposers": ["ngram", "ngram"]}, RequestError, "proposer ngram is given twice"),
        ({"accept": "typical"}, RequestError, "accept typical changes the distribution on purpose"),
        ({"accept": "blck"}, RequestError, "unknown accept rule 'blck'; did you mean block"),
        ({"draws": 7, "accept": "exact"}, RequestError, "draws has no effect with accept exact"),
        ({"level": 0.5}, RequestError, "level has no effect with accept exact"),
        ({"draws": 0}, RequestError, "draws is 0"),
        ({"level": 1}, RequestError, "level is 1"),
        ({"seed": "x"}, RequestError, "seed is 'x'"),
        ({"prompts": ["x" * 5000]}, DataError, "nothing is left for an answer"),
        ({"prompts": []}, DataError, "holds no prompt"),
    ],
)
def test_what_cannot_be_checked_is_refused_by_name(options: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        check(model(), **{"prompts": PROMPTS, **options})


def test_a_proof_without_drafts_is_none() -> None:
    """Answers of one token leave no room for a draft: they are identical, and show nothing."""
    found = check(model(), PROMPTS, max_tokens=1, proposers=["likely"])
    assert not found.passed and found.record["passed"] is False
    assert found.verdict.startswith("nothing was drafted, and so nothing is shown")
    assert found.rows()[0][-1] == "untested"


def test_who_drafted_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROPOSERS, "idle", IdleProposer)
    found = run(proposers=["likely", "idle"])
    assert found.passed and found.verdict.endswith("; idle drafted nothing and was not tested")
    assert [row[-1] for row in found.rows()] == ["right", "untested"]


def test_the_same_check_says_the_same_again() -> None:
    first, second = (run(proposers=["half"]).record for _ in range(2))
    assert first["proposers"] == second["proposers"]
