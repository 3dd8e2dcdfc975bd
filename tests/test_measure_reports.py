"""What is made of records: comparisons with their noise, CSV, and the page."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import headstart.measure.target_costs as target_costs
from chat_model import chat_tokenizer
from headstart.cli import app
from headstart.errors import DataError
from headstart.llm import LLM
from headstart.measure import measure
from headstart.measure.compare import compare
from headstart.measure.page.page import page
from headstart.measure.page.steps import steps
from headstart.measure.page.svg import Bar, Series, bars, lines, number
from headstart.measure.prompts import prompt_set
from headstart.measure.record import record_head
from headstart.measure.report import Report, as_csv, as_json
from headstart.measure.settings import MeasureSettings
from headstart.plan.profile import Profile
from headstart.proposers.choose import Guesser
from headstart.sampling import Sampling
from headstart.target.limits import Limits
from scripted import random_target

PROMPTS = [f"why {word}?" for word in ("so", "now", "you", "it", "then", "here", "them", "me")]


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target_costs, "measured", lambda _, **__: Profile((1, 2, 4, 64), (1.0, 1.0, 1.5, 20.0)))
        patch.setattr(target_costs, "measured_limits", lambda *_: Limits(1e9, 1e12))
        tokenizer = chat_tokenizer()
        llm = LLM(random_target(3, tokenizer.vocab_size, memory=1), tokenizer, Guesser("none", None, 0))
        found = measure(
            llm, PROMPTS, proposers=["ngram", "suffix"], batch=[1, 4], temperature=[0, 0.7], max_tokens=30, ignore_eos=True
        )
    return json.loads(json.dumps(found.record))  # type: ignore[no-any-return]


def changed(record: dict[str, Any], proposer: str, factor: float, what: str = "seconds") -> dict[str, Any]:
    """The same record with one proposer's times (or steps) multiplied."""
    other = copy.deepcopy(record)
    for entry in other["configurations"]:
        if entry["proposer"] == proposer:
            entry["answers"][what] = [factor * value for value in entry["answers"][what]]
    return other


# comparing


def test_a_record_is_no_better_or_worse_than_itself(record: dict[str, Any]) -> None:
    found = compare(record, record)
    assert (found.problem, found.notes, len(found.compared)) == (None, (), 12)
    assert {one.verdict for one in found.compared} == {"noise"}
    assert found.describe()["problem"] is None
    assert all(len(row) == len(found.table().header) for row in found.table().rows)


def test_a_slower_proposer_is_worse_and_a_faster_one_better(record: dict[str, Any]) -> None:
    slower = compare(record, changed(record, "ngram", 1.25))
    assert slower.problem is not None and slower.problem.startswith(
        "4 of 12 configurations became worse: ngram at batch 1, temperature 0: speedup 0.800"
    )
    verdicts = {(one.b["proposer"], one.verdict) for one in slower.compared}
    assert verdicts == {("plain", "noise"), ("ngram", "worse"), ("suffix", "noise")}
    faster = compare(record, changed(record, "ngram", 0.8))
    assert faster.problem is None
    assert {one.verdict for one in faster.compared if one.b["proposer"] == "ngram"} == {"better"}


def test_a_machine_that_is_slower_as_a_whole_is_said_and_not_blamed(record: dict[str, Any]) -> None:
    other = record
    for name in ("plain", "ngram", "suffix"):
        other = changed(other, name, 2.0)
    found = compare(record, other)
    assert found.problem is None
    assert {(one.b["proposer"], one.verdict) for one in found.compared} == {
        ("plain", "machine or engine"), ("ngram", "noise"), ("suffix", "noise")
    }  # fmt: skip


def test_more_steps_for_the_same_text_are_worse_whatever_the_clock_says(record: dict[str, Any]) -> None:
    found = compare(record, changed(record, "suffix", 1.1, "steps"))
    assert found.problem is not None and "L 0.909 of what it was" in found.problem


def test_faults_are_worse(record: dict[str, Any]) -> None:
    other = copy.deepcopy(record)
    other["configurations"][1]["faults"] = 2
    assert "2 faults instead of 0" in (compare(record, other).problem or "")


def test_noise_between_prompts_is_noise(record: dict[str, Any]) -> None:
    record = copy.deepcopy(record)
    for entry in record["configurations"]:
        entry["answers"]["seconds"] = [float(tokens) for tokens in entry["answers"]["tokens"]]
    other = copy.deepcopy(record)
    for entry in other["configurations"]:
        if entry["proposer"] == "ngram":
            entry["answers"]["seconds"] = [s * (1.5 if i % 2 else 0.7) for i, s in enumerate(entry["answers"]["seconds"])]
    assert {one.verdict for one in compare(record, other).compared if one.b["proposer"] == "ngram"} == {"noise"}


def test_what_only_one_record_has_is_named_and_other_prompts_are_refused(record: dict[str, Any]) -> None:
    fewer = copy.deepcopy(record)
    fewer["configurations"] = [e for e in record["configurations"] if e["proposer"] != "suffix"]
    found = compare(record, fewer)
    assert len(found.notes) == 4 and found.notes[0].startswith("in A alone: proposer suffix, accept exact")
    assert found.problem is not None and found.problem.startswith("B lacks 4 of A's configurations: proposer suffix")
    assert compare(fewer, record).problem is None
    other = copy.deepcopy(record)
    other["prompts"]["sha256"] = "0"
    with pytest.raises(DataError, match="of different prompts"):
        compare(record, other)
    for entry in other["configurations"]:
        entry["dtype"] = "int8"
    other["prompts"]["sha256"] = record["prompts"]["sha256"]
    with pytest.raises(DataError, match="share no configuration"):
        compare(record, other)


@pytest.mark.parametrize(
    ("name", "value"), [("presence_penalty", 0.5), ("top_p", 0.9), ("seed", 7), ("logit_bias", {"5": 1.0})]
)
def test_records_of_other_sampling_are_refused(record: dict[str, Any], name: str, value: Any) -> None:
    other = copy.deepcopy(record)
    other["sampling"][name] = value
    with pytest.raises(DataError, match=f"of different sampling .{name} is"):
        compare(record, other)


def test_json_is_what_any_reader_takes(record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    one = copy.deepcopy(record)
    one["prompts"]["ids"] = one["prompts"]["ids"][:1]
    for entry in one["configurations"]:
        entry["answers"] = {name: values[:1] for name, values in entry["answers"].items()}
    path = tmp_path / "one.json"
    path.write_text(json.dumps(one), encoding="utf-8")
    assert app.run(["measure", "--compare", str(path), str(path), "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=refuse)
    assert (told["compared"][0]["speed"]["low"], told["compared"][0]["speed"]["high"]) == (0.0, None)
    assert json.loads(as_json({"a": (float("nan"), 1.5, [{"b": float("-inf")}])}), parse_constant=refuse) == {
        "a": [None, 1.5, [{"b": None}]]
    }


def test_a_ban_is_recorded_as_the_option_takes_it() -> None:
    tokenizer = chat_tokenizer()
    llm = LLM(random_target(3, tokenizer.vocab_size, memory=1), tokenizer, Guesser("none", None, 0))
    found = record_head([llm], prompt_set(["hi"]), MeasureSettings(), Sampling(logit_bias={5: -math.inf, 6: 1.0}))
    assert found["sampling"]["logit_bias"] == {5: "-inf", 6: 1.0}


def test_chance_has_no_part_in_records_of_temperature_0(record: dict[str, Any]) -> None:
    greedy = copy.deepcopy(record)
    greedy["configurations"] = [e for e in record["configurations"] if not e["temperature"]]
    other = copy.deepcopy(greedy)
    other["sampling"] |= {"seed": 7, "top_p": 0.9, "temperature": 0.3}
    assert compare(greedy, other).notes == ()


def test_other_engines_and_nodes_are_noted(record: dict[str, Any]) -> None:
    other = copy.deepcopy(record)
    record = record | {"kv_dtype": "bfloat16"}
    other["engine"], other["kv_dtype"] = "other", "float32"
    other["configurations"][1]["nodes"] += 1
    notes = compare(record, other).notes
    assert notes[0].startswith("the engines are") and notes[1].startswith("the cache's dtypes are") and len(notes) == 3
    assert notes[2].startswith("proposer ngram") and "drafts have" in notes[2]


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("configurations",), 5),
        (("configurations", 0), "x"),
        (("configurations", 0, "acceptance_length"), None),
        (("configurations", 1, "answers"), {}),
        (("configurations", 1, "speedup"), "fast"),
        (("prompts",), []),
        (("machine",), None),
        (("targets",), 3),
    ],
)
def test_a_damaged_record_is_one_clear_line(
    record: dict[str, Any], names: tuple[Any, ...], value: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged: Any = copy.deepcopy(record)
    place = damaged
    for name in names[:-1]:
        place = place[name]
    place[names[-1]] = value
    whole, path = tmp_path / "whole.json", tmp_path / "damaged.json"
    whole.write_text(json.dumps(record), encoding="utf-8")
    path.write_text(json.dumps(damaged), encoding="utf-8")
    found = [
        (app.run(line), capsys.readouterr())
        for line in (
            ["measure", "--record", str(path), "--html", str(tmp_path / "x.html")],
            ["measure", "--compare", str(whole), str(path)],
        )
    ]
    refused = [written.err for status, written in found if status]
    assert refused
    for err in refused:
        last = err.splitlines()[-1]  # behind the record's own notes
        assert last.startswith("error: ") and "damaged.json is damaged (" in last


# CSV


def test_a_line_a_configuration(record: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(record))))
    assert len(rows) == 12
    for row, entry in zip(rows, record["configurations"], strict=True):
        assert (row["proposer"], float(row["speedup"])) == (entry["proposer"], entry["speedup"])
        assert float(row["latency.ms_per_token.p90"]) == entry["latency"]["ms_per_token"]["p90"]
        assert float(row["cost.device_seconds_per_token"]) == entry["cost"]["device_seconds_per_token"]


# the page


class Reader(HTMLParser):
    """Checks that what opens closes, and collects addresses and headings."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_whole_and_asks_for_nothing_from_outside(record: dict[str, Any], tmp_path: Path) -> None:
    Report(record).save_html(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    reader = Reader()
    reader.feed(text)
    assert (reader.open, reader.addresses) == ([], [])
    assert "http" not in text.replace("http-equiv", "") and "@import" not in text and "url(" not in text
    words = "".join(reader.text)
    for heading in ("Speedup by sequences in flight", "Speedup by temperature", "T(rows)", "Acceptance by position", "Cost"):
        assert heading in words
    assert "One generation, step by step" in words and "prefers-color-scheme: dark" in text and "width=device-width" in text


def test_a_page_shows_text_and_not_markup(record: dict[str, Any]) -> None:
    hostile = copy.deepcopy(record)
    hostile["model"] = hostile["notes"] = "<script>alert(1)</script>"
    hostile["notes"] = ["<b>x</b>"]
    for step in hostile["walkthrough"]["steps"]:
        step["committed"] = ["</p><script>"]
        for node in step["nodes"]:
            node["text"] = '"><img src=x>'
    reader = Reader()
    reader.feed(page(hostile))
    assert (reader.open, reader.addresses) == ([], [])
    assert "<img" not in page(hostile) and page(hostile).count("<script>") == 1


def test_every_step_of_the_generation_is_drawn(record: dict[str, Any]) -> None:
    drawn, walk = steps(record), record["walkthrough"]["steps"]
    assert drawn.count('class="step"') == len(walk)
    nodes = [node for step in walk for node in step["nodes"]]
    assert drawn.count('class="node taken"') == sum(node["accepted"] for node in nodes) > 0
    assert drawn.count('class="node left"') == sum(not node["accepted"] for node in nodes) > 0
    assert steps({"walkthrough": None}) == ""


def test_plots_stay_inside_their_frame() -> None:
    drawn = lines([Series("a", [(1, 0.5), (32, 7.3)]), Series("b", [(1, 2.0)], 1)], "x", "y", level=1.0)
    assert all(0 <= float(y) <= 320 for y in re.findall(r'(?:cy|y1|y2)="([-\d.]+)"', drawn))
    drawn = bars([Bar("plain", [(1.0, 0)], "1"), Bar("a", [(1.0, 0), (2.0, 1)], "3", (2.0, 4.0))], level=1.0)
    assert all(0 <= float(x) <= 640 for x in re.findall(r'x[12]?="([-\d.]+)"', drawn))
    drawn = bars([Bar("hydra", [(24.94, 0)], "24.94 ms"), Bar("a-name-of-some-length", [(3.0, 0)], "3")])
    begins = [float(x) for x in re.findall(r'<text class="tick" x="([\d.]+)"', drawn)]
    assert begins[1] + 12 * len("24.94 ms") <= 640  # 12: a letter of a phone's text
    assert begins[0] == begins[2] >= 12 * 20
    assert [number(x) for x in (0.0, 1.0, 0.12345, 12.3456, 12345.6)] == ["0", "1", "0.123", "12.3", "12346"]
    assert "<svg" in lines([Series("flat", [(1, 0.0)])], "x", "y")


# the command line


def _run(capsys: pytest.CaptureFixture[str], *line: str) -> tuple[int, str, str]:
    status = app.run(["measure", *line])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_records_are_shown_and_compared_without_measuring(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(record))
    b.write_text(json.dumps(changed(record, "ngram", 2.0)))
    status, out, err = _run(capsys, "--record", str(a), "--html", str(tmp_path / "p.html"), "--csv", str(tmp_path / "p.csv"))
    assert status == 0 and "speed, and losslessness" in out and "plain was added" in err
    assert (tmp_path / "p.html").exists() and (tmp_path / "p.csv").exists()
    status, out, err = _run(capsys, "--compare", str(a), str(a))
    assert (status, err) == (0, "") and "B over A" in out
    status, out, err = _run(capsys, "--compare", str(a), str(b), "--json", str(tmp_path / "c.json"))
    assert status == 1 and "4 of 12 configurations became worse" in err
    assert json.loads((tmp_path / "c.json").read_text())["problem"] in err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ([], "name a model to measure"),
        (["--record", "none.json"], "cannot read the record none.json"),
        (["smollm2", "--record", "none.json"], "a model has no effect with --record"),
        (["--record", "none.json", "--limit", "3"], "--limit has no effect with --record"),
        (["--record", "none.json", "--repeat", "1"], "an option, also with its usual value, has no effect with --record"),
        (["--url", "http://a", "--top-k", "5"], "--top-k has no effect with --url"),
        (["--url", "http://a", "--price", "2"], "--price has no effect with --url"),
        (["--url", "http://a,"], "--url http://a, names an empty address"),
        (["--compare", "a.json", "b.json", "--html", "x.html"], "--html has no effect with --compare"),
        (["--compare", "a.json", "b.json", "--price", "2"], "--price has no effect with --compare"),
    ],
)
def test_a_mistake_is_one_line(line: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = _run(capsys, *line)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert reason in err
