"""The five measurements, each against figures that are known by construction."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headstart.measure.target_costs as target_costs
from chat_model import chat_tokenizer
from headstart.accept import choose_rule
from headstart.decode import Decoder
from headstart.errors import DataError, RequestError
from headstart.llm import LLM
from headstart.measure import measure, prompt_set
from headstart.measure.configurations import BatchRun, Output, Proposing
from headstart.measure.cost import cost, utilisation
from headstart.measure.intervals import Rate, interval, percentiles
from headstart.measure.points import Point, encoded
from headstart.measure.prompts import BUILT_IN, Prompt, parse
from headstart.measure.quality import distance, from_original, perplexity
from headstart.measure.record import read_record
from headstart.measure.replay import Pattern, Replay, Round, drawn, shared, shuffled, slower
from headstart.measure.trials import Bench, Trial
from headstart.plan.forecast import Forward, PlainSteps, step_seconds
from headstart.plan.profile import Profile
from headstart.proposers.choose import Guesser
from headstart.sampling import Sampling, log_softmax
from headstart.stats import Ranks, Stats
from headstart.target.base import ModelSize
from headstart.target.limits import Limits
from headstart.timings import PARTS, Timings
from headstart.tree import Tree
from scripted import HalfProposer, MixProposer, OracleProposer, ScriptedTarget, random_target

PROFILE = Profile((1, 2, 4, 64), (1.0, 1.0, 1.5, 20.0))


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_costs, "measured", lambda _, **__: PROFILE)
    monkeypatch.setattr(target_costs, "measured_limits", lambda *_: Limits(1e9, 1e12))


def scripted_llm(memory: int | None = 2) -> LLM:
    tokenizer = chat_tokenizer()
    target = random_target(3, tokenizer.vocab_size, memory=memory)
    return LLM(target, tokenizer, Guesser("none", None, 0))


# overhead by part


def test_the_parts_of_a_step_leave_no_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks once a reading: every tick between the first reading and the last belongs to one part."""
    ticks = itertools.count()
    last = 0

    def clock() -> float:
        nonlocal last
        last = next(ticks)
        return float(last)

    monkeypatch.setattr("headstart.timings.time.perf_counter", clock)
    target = random_target(1, 30)
    decoder = Decoder(target, MixProposer(target), num_nodes=8)
    decoder.add([1, 2, 3], Sampling(max_tokens=20, ignore_eos=True), seed=0)
    first = None
    while decoder.num_running:
        if first is None:
            first = last + 1  # `restart` reads it
        decoder.step()
    assert first is not None
    timings = decoder.timings
    assert timings.total == last - first
    assert all(getattr(timings, part) > 0 for part in PARTS)
    assert timings.prompt > 0
    assert timings.num_steps == target.num_forwards - 1
    assert sum(rows * n for rows, n in timings.steps_by_rows.items()) == sum(
        len(tree) for feed in target.feeds[1:] for _, tree in feed
    )


def test_attention_is_asked_of_engines_that_can_tell() -> None:
    class Timed(ScriptedTarget):
        spent = 0.0

        def time_attention(self, on: bool) -> None:
            self.on = on

        def attention_seconds(self) -> float:
            self.spent += 1.0
            return self.spent

    target = Timed(lambda _: np.eye(8, dtype=np.float32)[3], 8)
    decoder = Decoder(target)
    decoder.add([1], Sampling(max_tokens=5), seed=0)
    decoder.run()
    assert decoder.timings.attention == 4.0  # of four steps behind the prompt, one second each


def test_counts_and_seconds_are_those_of_the_same_repeats() -> None:
    """Who drafts by the clock takes more steps in one repeat than in another; the middle one stands for all."""
    runs = [
        BatchRun(
            (Output(tuple(range(13)), Stats(num_steps=n, num_emitted=12)),), float(n), Timings(steps_by_rows=Counter({3: n}))
        )
        for n in (6, 12, 8)
    ]
    trial = Trial(Proposing("auto", scripted_llm()), [runs])
    (sample,) = trial.samples([Prompt("one", "chat", "say it")])
    timings = trial.timings()
    assert timings is not None
    assert (sample.stats.num_steps, sample.stats.acceptance_length, sample.seconds) == (8, 1.5, 8.0)
    assert timings.num_steps == 8


def test_a_step_by_the_wall_clock_is_what_its_parts_sum_to() -> None:
    record = measure(scripted_llm(), ["why is it so?", "tell me."], proposers=["plain", "ngram"], max_tokens=60).record
    for entry in record["configurations"]:
        timings = entry["timings"]
        assert sum(timings[part] for part in PARTS) <= timings["step"] + 1e-9


# acceptance


def test_ranks_count_tried_nodes_by_depth_and_rank() -> None:
    target = random_target(5, 40)
    decoder = Decoder(target, HalfProposer(target, 8, width=3), num_nodes=8)
    (generation,) = decoder.add([1, 2], Sampling(max_tokens=24, ignore_eos=True), seed=0)
    decoder.run()
    ranks = generation.stats.ranks
    # right at depth 1, with the highest estimate; wrong at depth 2, whose children were tried
    assert ranks.num_accepted[0][0] == ranks.num_tried[0][0] == generation.stats.num_accepted
    assert sum(ranks.num_accepted[0][1:]) == 0
    assert sum(ranks.num_accepted[1]) == 0 and ranks.num_tried[1][0] > 0
    assert ranks.acceptance[0][0] == 1.0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=30), st.integers(0, 30))
def test_ranks_add_up(seen: list[tuple[int, int, bool]], cut: int) -> None:
    whole, first, second = Ranks(), Ranks(), Ranks()
    for place, one in enumerate(seen):
        whole.observe(*one)
        (first if place < cut else second).observe(*one)
    first.add(second)
    assert first == whole


def test_an_answer_says_which_of_its_tokens_were_drafted() -> None:
    tokenizer = chat_tokenizer()
    target = random_target(2, tokenizer.vocab_size)
    llm = LLM(target, tokenizer, Guesser("oracle", OracleProposer(target, 3), 3))
    answer = llm.generate("why?", max_tokens=9, ignore_eos=True)
    assert answer.drafted == (False, True, True, True, False, True, True, True, False)
    assert sum(answer.drafted) == answer.stats.num_accepted
    assert 0 < answer.seconds_to_first <= answer.seconds


# latency, intervals


def test_percentiles_are_interpolated() -> None:
    assert percentiles([]) is None
    assert percentiles([float(i) for i in range(11)]) == {"median": 5.0, "p10": 1.0, "p90": 9.0}


@given(st.lists(st.tuples(st.integers(1, 99), st.floats(0.1, 9.0)), min_size=2, max_size=20), st.floats(0.5, 2.0))
def test_a_common_factor_is_certain_and_a_swap_inverts(pairs: list[tuple[int, float]], factor: float) -> None:
    tokens, seconds = [float(n) for n, _ in pairs], [s for _, s in pairs]
    faster = [s / factor for s in seconds]
    found = interval([Rate(tokens, faster)], [Rate(tokens, seconds)])
    assert found is not None
    assert found.value == pytest.approx(factor)
    assert [found.low, found.high] == pytest.approx([factor, factor])
    same = interval([Rate(tokens, seconds)], [Rate(tokens, seconds)])
    assert same is not None and same.is_noise


def test_prompts_that_contradict_each_other_are_noise_and_a_single_one_tells_nothing() -> None:
    tokens = [100.0] * 8
    noise = interval([Rate(tokens, [1.0, 2.0] * 4)], [Rate(tokens, [2.0, 1.0] * 4)])
    assert noise is not None and noise.is_noise and noise.value == 1.0
    one = interval([Rate([10.0], [1.0])], [Rate([10.0], [2.0])])
    assert one is not None and one.value == 2.0 and one.is_noise
    assert interval([Rate([1.0], [0.0])], [Rate([1.0], [0.0])]) is None


# cost


def test_the_cost_of_tokens() -> None:
    assert cost(200, 4.0, 3.6) == {"device_seconds_per_token": 0.02, "per_million_tokens": pytest.approx(20.0)}
    assert cost(200, 4.0, None)["per_million_tokens"] is None
    assert cost(0, 4.0, 1.0) == {"device_seconds_per_token": None, "per_million_tokens": None}


def test_utilisation_is_the_limit_over_the_clock() -> None:
    size, limits = ModelSize(weight_bytes=1000, num_weights=500, cache_bytes_per_position=10), Limits(1000.0, 1000.0)
    few = utilisation(Timings(verify=8.0, steps_by_rows=Counter({1: 4})), size, limits, positions=20.0)
    assert few is not None  # 1200 bytes take 1.2 seconds, 1000 operations one; a step took two
    assert (few["limit_ms"], few["of_limit"], few["of_bandwidth"], few["of_peak"]) == (1200.0, 0.6, 0.6, 0.5)
    many = utilisation(Timings(verify=8.0, steps_by_rows=Counter({1: 2, 3: 2})), size, limits, positions=20.0)
    assert many is not None
    assert (many["rows"], many["limit_ms"], many["of_limit"]) == (2.0, 2000.0, 1.0)
    assert utilisation(None, size, limits, 0.0) is utilisation(Timings(), size, limits, 0.0) is None


# quality


def test_perplexity_and_distances_are_those_of_the_definition() -> None:
    target = random_target(4, 30, scale=1.0)
    prompt, answer = [1, 2, 3], (4, 5, 6, 7)
    drafted = (False, True, True, False)
    rows = [log_softmax(target.next_logits((*prompt, *answer[:i])).copy()) for i in range(4)]
    logprobs = [float(row[token]) for row, token in zip(rows, answer, strict=True)]
    output = Output(answer, Stats(), drafted=drafted)
    assert perplexity(target, [prompt], [output]).perplexity == pytest.approx(math.exp(-sum(logprobs) / 4))
    warm = Sampling(temperature=0.5, seed=3)
    found = distance(target, [prompt], [output], warm)
    sharp = [row * 2 - np.log(np.exp(row * 2).sum()) for row in rows]
    p = [math.exp(float(row[token])) for row, token, is_drafted in zip(sharp, answer, drafted, strict=True) if is_drafted]
    assert found.kl == pytest.approx(sum(-math.log(x) for x in p) / 4)
    assert found.total_variation == pytest.approx(sum(1 - x for x in p) / 4)
    assert found.differing is not None and 0 < found.differing <= 1


def test_plain_text_has_no_distance_from_itself() -> None:
    llm = scripted_llm()
    warm = Sampling(temperature=0.8, seed=1, max_tokens=12)
    prompt = llm.encode("why?")
    answer = llm.generate_encoded([prompt], warm)[0]
    found = distance(llm.target, [prompt], [Output(answer.tokens, answer.stats, drafted=answer.drafted)], warm)
    assert (found.kl, found.total_variation, found.differing) == (0.0, 0.0, 0.0)


def test_a_base_beside_its_original() -> None:
    base, other = random_target(4, 30, scale=1.0), random_target(5, 30, scale=1.0)
    output = Output((4, 5), Stats())
    same = from_original(base, base, [[1, 2]], [output])
    assert (same.kl, same.total_variation, same.differing) == (0.0, 0.0, 0.0)
    found = from_original(base, other, [[1, 2]], [output])
    own, its = (np.stack([log_softmax(t.next_logits(x).copy()) for x in ((1, 2), (1, 2, 4))]) for t in (base, other))
    assert found.kl == pytest.approx(float((np.exp(own) * (own - its)).sum(axis=1).mean()))
    assert found.total_variation == pytest.approx(float(np.abs(np.exp(own) - np.exp(its)).sum(axis=1).mean() / 2))
    with pytest.raises(RequestError, match="the original must share them"):
        from_original(base, random_target(1, 31), [[1]], [output])


def test_only_a_lossy_rule_at_a_temperature_is_compared_with_the_base() -> None:
    record = measure(
        scripted_llm(),
        ["why?", "tell me."],
        proposers=["ngram"],
        accept=["exact", "typical"],
        temperature=[0, 1],
        max_tokens=20,
    ).record
    kinds = {(e["proposer"], e["accept"], e["temperature"]): e["quality"] is not None for e in record["configurations"]}
    assert kinds == {
        ("plain", "exact", 0.0): False, ("ngram", "exact", 0.0): False, ("ngram", "typical", 0.0): False,
        ("plain", "exact", 1.0): True, ("ngram", "exact", 1.0): False, ("ngram", "typical", 1.0): True,
    }  # fmt: skip


def test_rules_take_only_their_own_options() -> None:
    llm = scripted_llm()
    cases: list[dict[str, Any]] = [{"accept": ["exact", "block"], "epsilon": 0.1}, {"accept": ["exact"], "delta": 0.1}]
    for options in cases:
        with pytest.raises(RequestError, match="no effect"):
            measure(llm, ["a"], proposers=["ngram"], **options)
    assert choose_rule("typical").is_lossless is False


# operating points


def test_every_combination_is_measured_beside_its_own_plain_decoding() -> None:
    record = measure(
        scripted_llm(), ["why?", "tell me.", "who?"], proposers=["plain", "ngram"], batch=[1, 3], temperature=[0, 0.7],
        prompt_tokens=[8, 30], max_tokens=[4, 9], ignore_eos=True,
    ).record  # fmt: skip
    points = [(e["batch"], e["temperature"], e["prompt_tokens"], e["max_tokens"]) for e in record["configurations"][::2]]
    assert sorted(set(points)) == sorted(points) == sorted(itertools.product((1, 3), (0.0, 0.7), (8, 30), (4, 9)))
    entries = record["configurations"]
    for plain, other in zip(entries[::2], entries[1::2], strict=True):
        assert (plain["proposer"], plain["speedup"], other["identical"]) == ("plain", 1.0, "3/3")
        assert plain["tokens"] == 3 * plain["max_tokens"]
    full = next(e for e in record["configurations"] if e["batch"] == 3)
    assert full["in_flight"] == 3.0


def test_prompts_are_brought_to_the_length_that_was_asked_for() -> None:

    llm = scripted_llm()
    prompts = prompt_set(["why is the sky so blue today?", "who?"])
    own = [llm.encode(prompt.content) for prompt in prompts.prompts]
    for length in (3, 20, 100):
        found = encoded(llm, prompts, length)
        assert [len(tokens) for tokens in found] == [length, length]
        for tokens, whole in zip(found, own, strict=True):
            assert tokens[-min(length, len(whole)) :] == whole[-min(length, len(whole)) :]
    with pytest.raises(DataError, match="prompt_tokens is 5000 and the model's context 4096"):
        encoded(llm, prompts, 5000)


# prompts


def test_the_built_in_set_has_six_categories_of_ten() -> None:
    chosen = prompt_set(None)
    assert list(chosen.categories.values()) == [10] * 6
    assert len({prompt.id for prompt in chosen.prompts}) == len({str(prompt.content) for prompt in chosen.prompts}) == 60
    assert chosen.name == "the built-in set" and BUILT_IN.is_file()


def test_sharegpt_files_are_lines_or_one_list() -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}, {"from": "human", "value": "c"}]
    told = {"conversations": [{"from": "system", "value": "be kind"}, *turns], "id": "x"}
    entries = [{"conversations": turns}, told]
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "a"}]
    for text in ("\n".join(map(json.dumps, entries)), json.dumps(entries, indent=1)):
        assert [prompt.content for prompt in parse(text.encode(), "p.json")] == ["a", messages]


# records, forecasts


def test_a_record_of_another_version_or_format_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    cases: list[tuple[Any, str]] = [
        ({"format": "headstart-measure", "version": 1}, "version 1 and this program reads version 2; measure anew"),
        ({"format": "headstart-check", "version": 1}, "a record of the format headstart-check"),
        ([1], "is no record"),
        ({"format": "headstart-measure", "version": 2, "configurations": []}, "a record of nothing"),
    ]
    for content, reason in cases:
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=reason):
            read_record(path)
    for damaged in ("{", '{"format": "headstart-measure", "version": 2, "configurations": [{"seconds": NaN}]}'):
        path.write_text(damaged)
        with pytest.raises(DataError, match="is no JSON"):
            read_record(path)
    with pytest.raises(DataError, match="cannot read the record"):
        read_record(tmp_path / "none.json")
    answers = {"tokens": [3], "seconds": [0.5], "steps": [2], "emitted": [2]}
    whole = dict.fromkeys(("model", "machine", "prompts", "targets", "date", "commit"), "x") | {
        "format": "headstart-measure", "version": 2, "configurations": [{"proposer": "plain", "answers": answers}],
    }  # fmt: skip
    path.write_text(json.dumps(whole))
    assert read_record(path)["machine"] == "x"
    for damage, reason in (
        ({"configurations": [{"proposer": "plain"}]}, "it has no 'answers'"),
        (
            {"configurations": [{"proposer": "plain", "answers": answers | {"steps": []}}]},
            "some answers of plain lack a figure",
        ),
        ({"configurations": [{"proposer": "plain", "answers": 3}]}, "is damaged"),
    ):
        path.write_text(json.dumps({**whole, **damage}))
        with pytest.raises(DataError, match=reason):
            read_record(path)
    del whole["machine"]
    path.write_text(json.dumps(whole))
    with pytest.raises(DataError, match="it has no 'machine'"):
        read_record(path)


def test_a_forecast_scales_forwards_that_were_timed_apart_by_what_plain_decoding_took() -> None:
    forward = Forward(Profile((1, 2, 4), (1.0, 1.0, 2.0)), positions=0.0)
    assert [forward.seconds(rows) for rows in (1, 2, 3, 4, 6)] == [1.0, 1.0, 1.5, 2.0, 3.0]
    plain = PlainSteps(step=2.5, verify=2.0, forward=1.0)
    assert step_seconds(plain, 1.0, 0.0) == 2.5
    assert step_seconds(plain, 2.0, 0.25) == 2.5 + 2.0 * (2.0 - 1.0) + 0.25


@given(st.dictionaries(st.integers(1, 40), st.integers(1, 30), min_size=1), st.integers(1, 60))
def test_replayed_sizes_are_those_of_the_run(counts: dict[int, int], number: int) -> None:
    sizes = drawn(counts, number)
    assert len(sizes) == number and Counter(shuffled(sizes)) == Counter(sizes)
    for rows, count in counts.items():
        assert abs(sizes.count(rows) - number * count / sum(counts.values())) <= 1
    assert Counter(drawn(counts, sum(counts.values()))) == Counter(counts)
    assert all(
        sum(shared(rows, n)) == rows and max(shared(rows, n)) - min(shared(rows, n)) <= 1 for rows in counts for n in (1, 3)
    )


def test_a_replay_feeds_the_runs_rows_and_leaves_nothing_behind() -> None:
    target = ScriptedTarget(lambda _: np.zeros(30, dtype=np.float32), 30)
    replay = Replay(target)
    forward = Forward(Profile((1, 2, 4), (1.0, 1.0, 2.0)), positions=0.0)
    assert slower(replay, replay, forward) is None
    pattern = Pattern(Counter({2: 3, 1: 1, 6: 2}), num_steps=6, pause=1e-4, batch=2, in_flight=1.5, positions=7.4)
    replay.play(pattern, 1.0)
    fed = [[len(tree) for _, tree in feeds] for feeds in target.feeds]
    assert fed[:2] == [[7], [7]]
    assert sorted(map(sum, fed[2:])) == [1, 2, 2, 2, 6, 6]
    assert all(len(rows) == {1: 1, 2: 1, 6: 2}[sum(rows)] for rows in fed[2:])
    (played,) = replay.rounds
    assert played is not None and played.seconds > 0
    assert played.steps_by_rows == {1: 1.0, 2: 3.0, 6: 2.0}
    assert slower(replay, replay, forward) == pytest.approx((played.seconds / (10 / 6), 1.0))
    assert target.num_open == 0


def test_a_replay_is_shorter_than_a_batch_but_begins_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first forwards behind a prompt are slow: they must not weigh more than in a batch, which has more of the others."""
    target = ScriptedTarget(lambda _: np.zeros(30, dtype=np.float32), 30)
    times = iter([5.0] * 4 + [1.0] * 20)
    monkeypatch.setattr(Replay, "_forward", lambda *_: next(times))
    replay = Replay(target)
    replay.play(Pattern(Counter({1: 60}), num_steps=60, pause=0.0, batch=1, in_flight=1.0, positions=9.0), 0.1)
    (played,) = replay.rounds
    assert played is not None
    assert (played.seconds, played.steps_by_rows[1]) == pytest.approx(((4 * 5.0 + 56 * 1.0) / 60, 60.0))


def test_a_replay_is_held_against_plain_decodings_of_its_round() -> None:
    """The machine was slow in the second round, and one configuration stalled in the last."""
    forward = Forward(Profile((1, 2, 4), (1.0, 1.0, 2.0)), positions=0.0)
    plain, own = Replay(cast(Any, None)), Replay(cast(Any, None))
    plain.rounds = [None, *(Round(seconds, {1: 9.0}) for seconds in (1.0, 2.0, 1.0, 1.1))]
    own.rounds = [Round(seconds, {4: 3.0}) for seconds in (3.0, 3.0, 6.0, 3.0, 9.9)]
    assert slower(own, plain, forward) == pytest.approx((1.05, 1.5))
    assert slower(plain, plain, forward) == pytest.approx((1.05, 1.0))


def test_a_run_whose_later_drafts_are_larger_is_forecast_by_all_of_them() -> None:
    """Early replays know the rows of the first batches alone; what they tell is the pace."""
    forward = Forward(Profile((1, 2, 4), (1.0, 1.0, 2.0)), positions=0.0)
    plain, own = Replay(cast(Any, None)), Replay(cast(Any, None))
    plain.rounds = [Round(1.0, {1: 9.0}), Round(1.0, {1: 9.0})]
    own.rounds = [Round(1.2, {1: 9.0}), Round(1.8, {1: 3.0, 4: 3.0})]
    trials = [
        Trial(Proposing(name, scripted_llm()), [[one_run(counts)]]) for name, counts in (("plain", {1: 9}), ("ngram", {4: 5}))
    ]
    bench = Bench(Point("float32", 1, Sampling()), cast(Any, None), trials, [[1]], [plain, own])
    assert bench.replayed(1, forward) == pytest.approx(1.2 * 2.0)
    assert bench.replayed(0, forward) == pytest.approx(1.0)


def one_run(steps_by_rows: dict[int, int]) -> BatchRun:
    steps = sum(steps_by_rows.values())
    output = Output(tuple(range(13)), Stats(num_steps=steps, num_emitted=12))
    return BatchRun((output,), float(steps), Timings(steps_by_rows=Counter(steps_by_rows)))


def test_steps_too_wide_for_the_context_are_not_replayed() -> None:
    """A chunk of several long prompts beside a step of one sequence."""
    target = ScriptedTarget(lambda _: np.zeros(30, dtype=np.float32), 30, context_limit=20)
    replay = Replay(target)
    replay.play(Pattern(Counter({31: 2, 1: 6}), num_steps=8, pause=0.0, batch=2, in_flight=1.2, positions=18.0), 1.0)
    assert {sum(len(tree) for _, tree in feeds) for feeds in target.feeds[2:]} == {1, 31}
    assert all(len(tree) < 20 for feeds in target.feeds for _, tree in feeds)
    alone = Replay(target)
    alone.play(Pattern(Counter({31: 2}), num_steps=2, pause=0.0, batch=1, in_flight=1.0, positions=18.0), 1.0)
    assert alone.rounds == [None]
    assert target.num_open == 0


def test_forwards_are_replayed_between_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[tuple[Pattern, float]] = []

    def play(replay: Replay, pattern: Pattern, share: float) -> None:
        played.append((pattern, share))
        replay.rounds.append(Round(0.5, pattern.steps_by_rows))

    monkeypatch.setattr(Replay, "play", play)
    texts = [f"why {'so ' * n}?" for n in range(20)]
    record = measure(scripted_llm(), texts, proposers=["plain", "ngram"], max_tokens=6, ignore_eos=True).record
    assert record["configurations"][0]["predicted"]["forward_ms"] == pytest.approx(500.0)
    plain, ngram = played[::2], played[1::2]
    assert len(plain) == len(ngram) == 7
    assert plain[-1][0].in_flight == 1.0 and plain[-1][0].pause > 0
    assert {share for _, share in played} == {0.15 * 20 / 7}


def test_the_walkthrough_shows_what_was_accepted() -> None:
    llm = scripted_llm()
    record = measure(llm, ["why?"], proposers=["plain", "ngram"], max_tokens=40, ignore_eos=True).record
    steps = record["walkthrough"]["steps"]
    assert steps[0]["nodes"] == [] and steps[0]["root"] is None
    assert sum(len(step["committed"]) for step in steps) == 40
    for step in steps:
        assert sum(node["accepted"] for node in step["nodes"]) == step["num_accepted"]
        Tree(
            (0, *range(1, len(step["nodes"]) + 1)),
            (-1, *(n["parent"] for n in step["nodes"])),
            (1.0,) * (len(step["nodes"]) + 1),
        )
