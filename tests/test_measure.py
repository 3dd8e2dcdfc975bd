"""Measuring: prompt sets, the tie rule, interleaving, and what the record says."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headstart.measure.bench as bench
import headstart.measure.target_costs as target_costs
from chat_model import chat_tokenizer, tiny_loaded
from headstart.accept import Row
from headstart.errors import DataError, RequestError
from headstart.llm import LLM
from headstart.lossless import compare, first_difference
from headstart.measure import MeasureSettings, Prompt, measure, prompt_set
from headstart.measure.configurations import BatchRun, Output
from headstart.measure.environment import without_path
from headstart.measure.prompts import parse, spread
from headstart.measure.report import check_writable, save_json
from headstart.measure.samples import Sample
from headstart.measure.tables import aligned
from headstart.plan.profile import Profile
from headstart.proposers.choose import Guesser, choose_proposer
from headstart.sampling import Sampling
from headstart.stats import Stats
from headstart.target.base import Feed
from headstart.target.limits import Limits
from scripted import ScriptedScored, ScriptedTarget

TEXTS = ["why is the sky so blue?", "write a short tale.", "tell me, who are you?", "list some trees, please."]


@pytest.fixture(scope="module")
def llm() -> LLM:
    loaded = tiny_loaded()
    return LLM(loaded.target, loaded.tokenizer, choose_proposer("ngram", loaded.target, loaded.tokenizer))


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose costs are known, so that no test waits for them to be measured."""
    monkeypatch.setattr(target_costs, "measured", lambda _, **__: Profile((1, 2, 4, 64), (1.0, 1.0, 1.5, 20.0)))
    monkeypatch.setattr(target_costs, "measured_limits", lambda *_: Limits(1e9, 1e12))


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


# prompts


def test_three_layouts_of_a_prompt_are_read(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "c"}]
    path = write_lines(
        tmp_path / "p.jsonl",
        {"question_id": 81, "category": "chat", "turns": ["a", "later"]},
        {"prompt": "b", "id": "x"},
        {"messages": messages, "category": "rag"},
    )
    prompts = prompt_set(path).prompts
    assert prompts == (Prompt("81", "a", "chat"), Prompt("x", "b", "all"), Prompt("3", messages, "rag"))


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "an object"),
        ('{"conversations": [{"from": "gpt", "value": "a"}]}', "nobody asks anything"),
        ('{"conversations": [{"from": "human"}]}', "`from` and `value`"),
        ('{"conversations": [{"from": "human", "value": " "}]}', "holds no text"),
        ('{"text": "a"}', "found only 'text'"),
        ('{"prompt": "a", "turns": ["b"]}', "found prompt and turns"),
        ('{"prompt": " "}', "holds no text"),
        ('{"turns": []}', "list of the user's turns"),
        ('{"messages": ["a"]}', "role and content"),
        ('{"messages": "a"}', "`messages` is a value of type str; it must be a list of objects with `role` and `content`"),
        ('{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "has a part of type image_url"),
        ('{"prompt": 5}', "`prompt` holds a value of type int; write text, or a conversation as `messages`"),
        ('{"turns": [["a"]]}', "`turns` holds a value of type list; write text"),
        ('{"prompt": null}', "`prompt` holds nothing; write text"),
        ("[" * 100_000, "nested beyond reason"),
    ],
)
def test_a_bad_line_is_named_by_its_number(line: str, reason: str) -> None:
    with pytest.raises(DataError, match=r"p\.jsonl, line 3") as caught:
        parse(f'{{"prompt": "a"}}\n\n{line}\n'.encode(), "p.jsonl")
    assert reason in str(caught.value)


def test_prompts_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read the prompts"):
        prompt_set(tmp_path / "missing.jsonl")
    with pytest.raises(DataError, match="holds no prompt"):
        prompt_set(write_lines(tmp_path / "empty.jsonl"))
    with pytest.raises(DataError, match="not UTF-8"):
        parse(b"\xff", "p.jsonl")
    with pytest.raises(DataError, match="limit is 0"):
        prompt_set(["a"], limit=0)
    wrong: Any
    for wrong, what in ((b"x", "bytes"), (5, "a value of type int"), (None, "nothing"), ({}, "a value of type dict")):
        with pytest.raises(DataError, match=f"prompt 2 is {what}; give text, or a list of messages with role and content"):
            prompt_set(["a", wrong])
    with pytest.raises(DataError, match=r"prompt 1: Message 0 \(user\) has a part of type audio"):
        prompt_set([[{"role": "user", "content": [{"type": "audio"}]}]])


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=40), st.integers(1, 45))
def test_a_limit_is_spread_evenly_and_keeps_the_order(categories: list[str], limit: int) -> None:
    prompts = [Prompt(str(i), "x", category) for i, category in enumerate(categories)]
    chosen = spread(prompts, limit)
    assert len(chosen) == min(limit, len(prompts))
    assert [int(p.id) for p in chosen] == sorted({int(p.id) for p in chosen})
    shares = {c: sum(p.category == c for p in chosen) for c in categories}
    for category in shares:
        available = categories.count(category)
        assert shares[category] == available or shares[category] >= max(shares.values()) - 1


def test_the_same_limit_chooses_the_same_prompts_of_the_whole_range() -> None:
    prompts = [Prompt(str(i), "x") for i in range(10)]
    assert [p.id for p in spread(prompts, 3)] == ["0", "3", "6"]


# the tie rule


class Rounding(ScriptedTarget):
    """Passes over several rows move the second token's logit, as rounding would."""

    shift = 0.0

    def forward(self, batch: Sequence[Feed]) -> ScriptedScored:
        scored = super().forward(batch)
        return _Moved(scored.prefixes, scored.first_scored, self)


class _Moved(ScriptedScored):
    def logits(self, rows: Sequence[Row]) -> Any:
        logits = super().logits(rows).copy()
        for index, (entry, _) in enumerate(rows):
            if len(self.prefixes[entry]) > 1:
                logits[index, 1] += self.target.shift  # type: ignore[attr-defined]
        return logits


def rounding_target(logits: Sequence[float], shift: float) -> Rounding:
    target = Rounding(lambda prefix: np.array(logits, dtype=np.float32), vocab_size=len(logits))
    target.shift = shift
    return target


@pytest.mark.parametrize(
    ("gap", "shift", "kind"), [(0.25, 0.25, "tie"), (0.25, 0.125, "tie"), (0.25, 0.0625, "fault"), (0.25, 0.0, "fault")]
)
def test_a_difference_is_a_tie_only_within_twice_the_measured_rounding(gap: float, shift: float, kind: str) -> None:
    target = rounding_target([1.0, 1.0 - gap, -3.0], shift)
    found = compare(target, "p", [2] * 20, [0, 0, 0], [0, 1, 2], Sampling(), 0)
    assert found is not None
    assert (found.kind, found.index) == (kind, 1)
    assert found.gap == pytest.approx(gap)
    assert found.measured == pytest.approx(shift)
    assert target.num_open == 0


def test_no_difference_no_finding_and_an_early_end_is_a_fault() -> None:
    target = rounding_target([1.0, 1.0, 0.0], 9.0)
    assert compare(target, "p", [0], [1, 2], [1, 2], Sampling(), 0) is None
    for plain, other in (([1, 2], [1]), ([1], [1, 2])):
        found = compare(target, "p", [0], plain, other, Sampling(), 0)
        assert found is not None
        assert (found.kind, found.index, found.gap) == ("fault", 1, None)


def test_processed_scores_decide_with_noise_and_penalties() -> None:
    target = rounding_target([1.0, 0.75, -3.0], 0.25)
    penalised = Sampling(presence_penalty=0.25)  # what was said scores 0.25 less: the two tie exactly
    found = compare(target, "p", [2] * 20, [0, 0], [0, 1], penalised, 0)
    assert found is not None
    assert found.gap == pytest.approx(0.0)
    warm = Sampling(temperature=0.5, seed=3)
    found = compare(target, "p", [2] * 20, [0, 0], [0, 1], warm, 3)
    assert found is not None
    assert found.measured == pytest.approx(0.5)  # logits over temperature
    assert found.gap != pytest.approx(0.5)  # noise stands between them


@pytest.mark.parametrize(
    ("sampling", "gap"),
    [
        (Sampling(temperature=1.0, top_k=1), 0.25),
        (Sampling(temperature=1.0, min_p=0.9), 0.25 + math.log(0.9)),
        (Sampling(temperature=1.0, top_p=0.5), math.log(math.exp(0.25))),
    ],
)
def test_a_token_that_truncation_cut_off_is_as_far_away_as_the_border(sampling: Sampling, gap: float) -> None:
    """Two tokens 0.25 apart hold masses of odds exp(0.25); each cut is just wide enough for the first one."""
    target = rounding_target([1.0, 0.75, -1e9], 0.25)
    seed = next(s for s in range(100) if _noise_prefers_second(s))
    found = compare(target, "p", [2], [0], [1], sampling, seed)
    assert found is not None
    assert found.gap == pytest.approx(gap, abs=1e-6)


def _noise_prefers_second(seed: int) -> bool:
    from headstart.sampling import gumbel

    noise = gumbel(seed, 1, np.arange(2))
    return bool(noise[1] - noise[0] > 0.5)


def test_a_banned_token_is_never_explained() -> None:
    target = rounding_target([1.0, 1.0, 0.0], 5.0)
    found = compare(target, "p", [2] * 20, [0], [1], Sampling(logit_bias={1: -math.inf}), 0)
    assert found is not None
    assert (found.kind, found.gap, found.describe()["gap"]) == ("fault", math.inf, None)


def test_a_plain_text_that_the_scores_deny_is_no_tie_either() -> None:
    target = rounding_target([1.0, 0.75, -3.0], 0.25)
    found = compare(target, "p", [2] * 20, [2], [0], Sampling(), 0)
    assert found is not None
    assert found.kind == "fault"
    assert found.gap == pytest.approx(4.0)


def test_first_difference() -> None:
    assert first_difference([1, 2], (1, 2)) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1]) == 1
    assert first_difference([], [1]) == 0


def test_a_real_engines_wrong_token_is_a_fault(llm: LLM) -> None:
    prompt = llm.encode(TEXTS[0])
    plain = llm.with_proposer("none").generate(TEXTS[0], max_tokens=8, ignore_eos=True).tokens
    wrong = [*plain[:5], (plain[5] + 1) % llm.target.vocab_size, *plain[6:]]
    found = compare(llm.target, "p", prompt, plain, wrong, Sampling(max_tokens=8), 0)
    assert found is not None
    assert (found.kind, found.index) == ("fault", 5)


# the run


def test_all_proposers_say_the_same_and_the_record_holds_their_counts(llm: LLM, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", *({"prompt": text, "category": f"c{i % 2}"} for i, text in enumerate(TEXTS)))
    report = measure(llm, path, proposers=["plain", "ngram"], max_tokens=24, repeat=2, ignore_eos=True)
    record = report.record
    assert (record["format"], record["version"], record["engine"], record["model"]) == ("headstart-measure", 2, "hf", "tiny")
    assert record["prompts"]["categories"] == {"c0": 2, "c1": 2}
    assert record["prompts"]["number"] == 4
    assert len(record["prompts"]["sha256"]) == 64
    assert record["sampling"]["max_tokens"] == 24
    plain, ngram = record["configurations"]
    assert [c["proposer"] for c in (plain, ngram)] == ["plain", "ngram"]
    assert (plain["tokens"], plain["steps"], plain["drafted"], plain["acceptance_length"]) == (96, 92, 0, 1.0)
    assert plain["speedup"] == 1.0
    assert ngram["tokens"] == 96
    assert ngram["accepted"] == 92 - ngram["steps"]
    assert ngram["acceptance_length"] == pytest.approx(92 / ngram["steps"])
    assert (ngram["identical"], ngram["faults"], ngram["lossless"], ngram["accept"]) == ("4/4", 0, True, "exact")
    assert sum(c["steps"] for c in ngram["by_category"].values()) == ngram["steps"]
    assert sum(c["seconds"] for c in ngram["by_category"].values()) == pytest.approx(ngram["seconds"])
    parts = {"propose", "tree", "verify", "sample", "commit", "other"}
    assert set(ngram["timings"]) == parts | {"attention", "prompt", "step"}
    assert ngram["answers"]["emitted"] and sum(ngram["answers"]["emitted"]) == 92
    assert ngram["latency"]["ms_per_token"]["p10"] <= ngram["latency"]["ms_per_token"]["median"]
    assert ngram["cost"] == {"device_seconds_per_token": ngram["seconds"] / 96, "per_million_tokens": None}
    assert sum(map(sum, ngram["ranks"]["num_accepted"])) == ngram["accepted"]
    assert report.num_faults == 0
    json.dumps(record, allow_nan=False)


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.8, "top_p": 0.95, "seed": 5}, {"repetition_penalty": 1.3}])
def test_batches_and_sampling_change_nothing(llm: LLM, fields: dict[str, Any]) -> None:
    report = measure(llm, TEXTS, proposers=["plain", "ngram"], max_tokens=16, batch=3, **fields)
    assert [c["identical"] for c in report.record["configurations"]] == ["4/4", "4/4"]
    assert all(c["batch"] == 3 for c in report.record["configurations"])


def test_transformers_own_generate_agrees(llm: LLM) -> None:
    report = measure(llm, TEXTS, proposers=["plain"], against=["transformers"], max_tokens=16, batch=3, repetition_penalty=1.2)
    reference = report.record["configurations"][1]
    assert (reference["identical"], reference["accept"], reference["timings"]) == ("4/4", None, None)


def test_transformers_sampled_text_is_not_compared(llm: LLM) -> None:
    report = measure(llm, TEXTS[:2], proposers=["plain"], against="transformers", max_tokens=8, temperature=0.7, min_p=0.1)
    reference = report.record["configurations"][1]
    assert (reference["identical"], reference["faults"], reference["lossless"]) == (None, None, None)
    assert "transformers" in report.table()


def test_plain_is_added_and_said_so(llm: LLM) -> None:
    record = measure(llm, TEXTS[:1], proposers=["ngram"], max_tokens=4).record
    assert [c["proposer"] for c in record["configurations"]] == ["plain", "ngram"]
    assert any("plain was added" in note for note in record["notes"])
    record = measure(llm, TEXTS[:1], max_tokens=4).record
    assert [c["proposer"] for c in record["configurations"]] == ["plain", "ngram"]
    assert record["notes"] == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"proposers": "plain,ngram"}, "a list of names"),
        ({"proposers": ["ngram", "ngram"]}, "given twice"),
        ({"proposers": ["ngrm"]}, "did you mean ngram"),
        ({"batch": 0}, "batch is 0"),
        ({"batch": [1, "4"]}, r"batch is \[1, '4'\]"),
        ({"batch": [2, 2]}, "batch 2 is given twice"),
        ({"batch": []}, "batch is"),
        ({"price": "cheap"}, "price is 'cheap'; it must be a number"),
        ({"price": -1.0}, "price is -1.0"),
        ({"price": float("nan")}, "price is nan"),
        ({"against": ["vlm"]}, "against vlm is not known; known are transformers, llama.cpp"),
        ({"prompt_tokens": 0}, "prompt_tokens is 0"),
        ({"temperature": [0.0, -1.0]}, "temperature"),
        ({"repeat": 0}, "repeat is 0"),
        ({"n": 2}, "option n has no effect"),
        ({"logprobs": 1}, "option logprobs has no effect"),
        ({"max_tokens": 0}, "max_tokens is 0|max_tokens is \\(0,\\)"),
        ({"temprature": 1.0}, "did you mean temperature"),
        ({"options": {"heads": "folder"}}, "no effect without proposer medusa"),
        ({"options": {"head": "folder"}}, "unknown option head"),
        ({"against": ["transformers"], "presence_penalty": 0.5}, "presence_penalty cannot be compared"),
    ],
)
def test_what_cannot_take_effect_is_refused_by_name(llm: LLM, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        measure(llm, TEXTS[:1], **options)


def test_a_prompt_longer_than_the_context_is_named(llm: LLM, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", {"prompt": "a"}, {"prompt": "a" * 300, "id": "long-one"})
    with pytest.raises(DataError, match=r"prompt long-one of p\.jsonl has \d+ tokens and the model's context 256"):
        measure(llm, path, max_tokens=4)


def test_an_engine_without_torch_is_measured_and_refuses_the_reference() -> None:
    tokenizer = chat_tokenizer()
    target = ScriptedTarget(
        lambda p: np.eye(tokenizer.vocab_size, dtype=np.float32)[(p[-1] * 7 + 3) % 40], tokenizer.vocab_size
    )
    llm = LLM(target, tokenizer, Guesser("none", None, 0))
    record = measure(llm, TEXTS[:2], proposers=["plain", "ngram"], max_tokens=60).record
    assert record["engine"] == "scripted"
    assert record["configurations"][1]["identical"] == "2/2"
    assert record["configurations"][1]["acceptance_length"] > 2  # it loops, so looking back pays
    assert record["configurations"][1]["looping"]["share"] == 1.0
    record = measure(llm, TEXTS[:1], proposers=["plain"], against=["transformers"], max_tokens=4).record
    assert record["notes"] == [
        "transformers was not measured: it needs the model's files, and this model was not loaded from any"
    ]
    others = ["llama.cpp", "openvino", "vllm"]
    notes = measure(llm, TEXTS[:1], proposers=["plain"], against=others, max_tokens=4).record["notes"]
    assert [note.partition(" was not measured: ")[0] for note in notes] == others
    assert all("--url" in note for note in notes)
    with pytest.raises(RequestError, match="transformers is no proposer but an engine of its own; measure it with --against"):
        measure(llm, TEXTS[:1], proposers=["transformers"])


class _Fake:
    """A configuration whose times are given."""

    num_nodes = 0
    rule = None

    def __init__(self, name: str, log: list[str], seconds: Sequence[float], tokens: tuple[int, ...] = (5,)) -> None:
        self.name, self._log, self._seconds, self._tokens = name, log, iter(seconds), tokens

    def run(self, prompts: Any, sampling: Sampling) -> BatchRun:
        self._log.append(self.name)
        outputs = tuple(Output(self._tokens, Stats(num_prompt_passes=1)) for _ in prompts)
        return BatchRun(outputs, next(self._seconds))

    def is_comparable(self, sampling: Sampling) -> bool:
        return True

    def explain(self) -> None:
        return None


def test_configurations_are_interleaved_rotated_and_timed_by_medians(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    fakes = [_Fake("plain", log, [99.0, 1, 1, 9, 9, 2, 2]), _Fake("other", log, [99.0, 1, 1, 1, 1, 1, 1])]
    monkeypatch.setattr(bench, "configure", lambda *_, **__: fakes)
    seen: list[tuple[int, int, str]] = []
    record = measure(llm, TEXTS[:2], repeat=3, progress=lambda *what: seen.append(what)).record
    assert log == ["plain", "other", "plain", "other", "other", "plain", "other", "plain", "plain", "other", "plain", "other",
                   "other", "plain"]  # fmt: skip
    assert [c["seconds"] for c in record["configurations"]] == [4.0, 2.0]
    assert record["configurations"][1]["speedup"] == 2.0
    assert (12, 12, "comparing") in seen


def test_a_wrong_text_is_counted_as_a_fault_and_listed(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    fakes = [_Fake("plain", log, [1.0] * 3, (5, 6)), _Fake("other", log, [1.0] * 3, (5, 7))]
    monkeypatch.setattr(bench, "configure", lambda *_, **__: fakes)
    report = measure(llm, [Prompt("q7", TEXTS[0])])
    entry = report.record["configurations"][1]
    assert (entry["identical"], entry["ties"], entry["faults"], report.num_faults) == ("0/1", 0, 1, 1)
    assert entry["differences"][0]["prompt"] == "q7"
    assert entry["differences"][0]["index"] == 1


# record and report


def test_looping_outputs_are_those_with_many_repeated_grams() -> None:
    assert Sample("c", (1, 2, 3, 4) * 8, Stats(), 0.0).is_looping
    assert not Sample("c", tuple(range(32)), Stats(), 0.0).is_looping
    assert not Sample("c", (1, 2), Stats(), 0.0).is_looping


def test_a_record_names_no_path(tmp_path: Path) -> None:
    assert without_path(str(tmp_path)) == tmp_path.name
    assert without_path("./model") == "model"
    assert without_path("org/model") == "org/model"
    assert without_path("smollm2") == "smollm2"


def test_saving_replaces_the_file_whole(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    path.write_text("old")
    report = measure(llm, TEXTS[:1], max_tokens=4)
    report.save(path)
    assert json.loads(path.read_text()) == json.loads(json.dumps(report.record))
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
    with pytest.raises(DataError, match="cannot write"):
        save_json(tmp_path / "missing" / "record.json", {})


def test_what_is_no_file_is_written_to_and_a_link_stays_one(tmp_path: Path) -> None:
    """Renaming something over /dev/null or a pipe would take it from everybody else."""
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to("real.json")
    check_writable(link)
    save_json(link, {"a": 1})
    assert link.is_symlink() and json.loads(real.read_text()) == {"a": 1}
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "missing" / "x.json")
    with pytest.raises(DataError, match="there is no folder"):
        check_writable(dangling)
    os.mkfifo(pipe)
    check_writable(pipe)
    with ThreadPoolExecutor() as reader:
        read = reader.submit(pipe.read_text)
        save_json(pipe, {"b": 2})
        assert json.loads(read.result(timeout=60)) == {"b": 2}
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_a_device_that_takes_nothing_more_is_one_line() -> None:
    check_writable("/dev/full")
    with pytest.raises(DataError, match="cannot write /dev/full: No space left"):
        save_json("/dev/full", {})
    assert Path("/dev/full").is_char_device()


def test_the_table_is_aligned_text() -> None:
    assert aligned(("a", "b"), [["long", "1"], ["x", "22"]]) == "a      b\nlong   1\nx     22"
    assert aligned(("a",), [["two\nlines \x1b[31mred ünï"]]) == "a\ntwo\\nlines \\x1b[31mred ünï"


def test_settings_stand_once() -> None:
    assert MeasureSettings() == MeasureSettings(proposers=(), limit=None, batch=(1,), repeat=1)
    one: Any = {"batch": 4, "temperature": 1, "accept": "exact"}
    assert MeasureSettings(**one) == MeasureSettings(batch=(4,), temperature=(1,), accept=("exact",))


@pytest.mark.parametrize(
    ("accept", "temperature"), [("rejection", 0.0), ("rejection", 0.9), ("typical", 0.0), ("typical", 0.9)]
)
def test_the_record_claims_no_more_than_the_rule_does(llm: LLM, accept: str, temperature: float) -> None:
    report = measure(llm, TEXTS[:2], proposers=["ngram"], accept=accept, temperature=temperature, max_tokens=6)
    plain, guessed = report.record["configurations"]
    assert (plain["accept"], plain["lossless"], plain["identical"]) == ("exact", True, "2/2")
    assert guessed["accept"] == accept
    assert guessed["identical"] == ("2/2" if temperature == 0 else None)
    assert guessed["lossless"] == (False if accept == "typical" else True if temperature == 0 else None)
    assert any("lossy" in note for note in report.record["notes"]) == (accept == "typical")


def test_a_measurement_refuses_options_of_another_rule(llm: LLM) -> None:
    with pytest.raises(RequestError, match="option epsilon has no effect with accept exact"):
        measure(llm, TEXTS[:1], proposers=["ngram"], epsilon=0.1)
