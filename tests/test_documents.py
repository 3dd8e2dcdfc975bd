"""The documents: what they show runs, what they name exists, what is generated is up to date."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from cyclopts import App
from packaging.requirements import Requirement

import headstart
from chat_model import save_chat_model, tiny_base, tiny_loaded
from headstart.cli.app import VERBS, make_app
from headstart.llm import LLM
from headstart.lossless import Difference
from headstart.measure import measure
from headstart.measure.cost import utilisation
from headstart.measure.quality import Quality
from headstart.measure.walkthrough import walkthrough
from headstart.proposers.base import Observation
from headstart.proposers.base import Sequence as InFlight
from headstart.proposers.choose import Guesser
from headstart.sampling import Sampling
from headstart.target import loading
from headstart.target.base import ModelSize
from headstart.target.limits import Limits
from headstart.timings import Timings
from headstart.train import train
from headstart.train.data import read_jsonl
from headstart.train.settings import TrainSettings
from headstart.tree import Tree

ROOT = Path(__file__).parent.parent
TEXTS = {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]}
FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


build = _module(ROOT / "docs" / "build.py")
BLOCKS = [(name, match) for name, text in sorted(TEXTS.items()) for match in build.BLOCK.finditer(text)]


def fenced(language: str, text: str) -> list[str]:
    return [match["body"] for match in FENCE.finditer(text) if match["language"] == language]


# generated blocks


@pytest.mark.parametrize(("document", "block"), BLOCKS, ids=[f"{name}-{block['name']}" for name, block in BLOCKS])
def test_a_generated_block_is_up_to_date(document: str, block: re.Match[str]) -> None:
    assert build.filled(block) == block[0], f"{document} is out of date; run `python docs/build.py`"


def test_a_missing_record_is_one_clear_line_and_leaves_its_block(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    old = "<!-- begin: speed:benchmarks/none.json -->\nold\n<!-- end: speed:benchmarks/none.json -->"
    new, missing = build.renewed(old)
    assert new == old
    assert missing == ["block speed:benchmarks/none.json: benchmarks/none.json does not exist; `benchmarks/run` writes it"]


def test_the_curve_of_a_training_record_becomes_a_table(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "ROOT", trained)
    points = json.loads((trained / "training.json").read_text())["progress"]["curve"]
    lines = build.curve("training.json").splitlines()
    assert lines[0].startswith("| million rows trained on | L predicted, 16 rows |")
    assert len([line for line in lines if line.startswith("| 0.")]) == len(points) >= 2
    assert f"{points[-1]['length']:.3f}" in lines[1 + len(points)]


def test_the_table_of_batches_has_a_row_a_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(build, "ROOT", tmp_path)
    ways = {
        "plain": {"tokens_per_second": 113.4, "speedup": 1.0, "speedup_interval": [1.0, 1.0]},
        "hydra": {"tokens_per_second": 170.1, "speedup": 1.5, "speedup_interval": [1.31, 1.62]},
    }
    points = {f"x{batch}": {"dtype": "bfloat16", "batch": batch, "temperature": 0.7, "ways": ways} for batch in (1, 32)}
    record = {
        "points": points,
        "machine": {"cpu": "CPU", "cores": 2, "threads": 2},
        "prompts": {"number": 32, "name": "p.jsonl"},
        "settings": {"tokens": 128, "limit": 16},
        "commit": "c0ffee",
        "date": "2026-11-30T00:00:00",
    }
    (tmp_path / "table.json").write_text(json.dumps(record))
    lines = build.batches("table.json").splitlines()
    assert lines[0] == "| in flight | T | plain, tokens/s | `hydra` |"
    assert lines[2:4] == ["| 1 | 0.7 | 113 | 1.50 (1.31–1.62) |", "| 32 | 0.7 | 113 | 1.50 (1.31–1.62) |"]


# Python


@pytest.fixture
def real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each model is loaded once, however often the documents load it."""
    monkeypatch.setattr(loading, "load_model", cache(loading.load_model))


def _python_blocks() -> Iterator[Any]:
    for name, text in sorted(TEXTS.items()):
        for number, body in enumerate(fenced("python", build.BLOCK.sub("", text))):
            yield pytest.param(body, id=f"{name}-{number}")


@pytest.mark.parametrize("body", list(_python_blocks()))
@pytest.mark.usefixtures("real_model")
def test_a_python_block_runs(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands, but for answers that are cut shorter."""
    exec(compile(re.sub(r"max_tokens=\d+", "max_tokens=12", body), "document", "exec"), {"__name__": "document"})
    assert "print" not in body or capsys.readouterr().out.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as transformers saves it."""
    return Path(save_chat_model(tmp_path_factory.mktemp("models") / "tiny-chat"))


def _run(example: str, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [example, *arguments])
    runpy.run_path(str(ROOT / "examples" / example), run_name="__main__")


def test_the_proposer_of_ones_own_says_what_plain_decoding_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run("own_proposer.py", monkeypatch, str(folder))
    out = capsys.readouterr().out
    assert "as plain: True" in out
    assert re.search(r"\d+ steps, L = \d", out)


def test_the_proposers_are_compared_in_a_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run("compare_proposers.py", monkeypatch, str(folder), "tell me.")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        "proposer",
        "none",
        "ngram",
        "suffix",
        "draft_model",
        "medusa",
        "hydra",
        "combined",
        "auto",
    ]
    without_heads = [line for line in lines[1:] if "no heads fit" in line]
    assert [line.split()[0] for line in without_heads] == ["medusa", "hydra"]
    assert all(line.split()[-1] == "yes" for line in lines[1:] if line not in without_heads)


def test_every_example_is_run_here() -> None:
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == {"own_proposer.py", "compare_proposers.py"}


# data and records


def _data(document: str, tmp_path: Path) -> Path:
    (body,) = fenced("json", TEXTS[document])
    path = tmp_path / "data.jsonl"
    path.write_text(body, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Heads trained on the example of training.md."""
    path = tmp_path_factory.mktemp("trained")
    settings = TrainSettings(
        minutes=0, epochs=2, draft_vocab=0, base_dtype="float32", evaluation_rows=100, held_out=0.3, decoded_prompts=2
    )
    train(tiny_loaded(), out=path / "heads", data=_data("docs/training.md", path), settings=settings)
    return path / "heads"


def test_every_layout_of_training_data_is_supervised(tmp_path: Path) -> None:
    base = tiny_base()
    documents = read_jsonl(_data("docs/training.md", tmp_path), base.codec, base.end_tokens, 256)
    assert [document.kind for document in documents] == ["chat", "chat", "chat", "text"]
    assert all(document.num_supervised > 10 for document in documents)


@pytest.mark.parametrize("file", ["config.json", "training.json"])
def test_the_fields_of_a_heads_folder_are_the_documented_ones(trained: Path, file: str) -> None:
    _, _, text = TEXTS["docs/training.md"].partition(f"<!-- fields of {file} -->\n")
    assert _documented(text.partition("\n\n")[0]) == json.loads((trained / file).read_text()).keys()


def test_the_fields_of_a_measurement_are_the_documented_ones(tmp_path: Path) -> None:
    loaded = tiny_loaded()
    llm = LLM(loaded.target, loaded.tokenizer, Guesser("none", None, 0), source=_source(loaded.source))
    prompts = _data("docs/measuring.md", tmp_path)
    report = measure(llm, prompts, proposers=["plain", "auto"], against="transformers", max_tokens=6, original=llm, price=1)
    found = set(_paths(json.loads(json.dumps(report.record))))
    found |= set(_paths({"walkthrough": {"steps": walkthrough(_guessing(), [1, 2, 3], Sampling(max_tokens=4))}}))
    found |= {f"configurations[].quality.{entry.name}" for entry in fields(Quality)}
    found |= {f"configurations[].utilisation.{name}" for name in _utilisation()}
    found |= {f"configurations[].differences[].{name}" for name in Difference("1", 0, 1, 2, 0.1, 0.2).describe()}
    _, _, text = TEXTS["docs/measuring.md"].partition("## The record")
    assert found | {"machine.gpu"} == _documented(text)


class _Guess:
    """Drafts a token in every step; what ``auto`` drafts is up to the clock."""

    name = "guess"

    def propose(self, sequences: Sequence[InFlight]) -> list[Tree]:
        return [Tree.chain([sequence.tokens[-1], 0][: 1 + sequence.max_nodes]) for sequence in sequences]

    def observe(self, observations: Sequence[Observation]) -> None:
        pass

    def forget(self, key: int) -> None:
        pass


def _guessing() -> LLM:
    loaded = tiny_loaded()
    return LLM(loaded.target, loaded.tokenizer, Guesser("guess", _Guess(), 1), source=_source(loaded.source))


def _utilisation() -> dict[str, float]:
    found = utilisation(Timings(verify=1.0, steps_by_rows=Counter({1: 1})), ModelSize(1, 1, 1), Limits(1.0, 1.0), 1.0)
    assert found is not None
    return found


def _source(source: Any) -> dict[str, Any]:
    return {name: getattr(source, name) for name in ("kind", "name", "format", "revision")}


def _documented(text: str) -> set[str]:
    """The names in the first column of the tables."""
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


OPEN = {
    "versions": "LIBRARY",
    "prompts.categories": "CATEGORY",
    "configurations[].by_category": "CATEGORY",
}
LEAVES = ("sampling.logit_bias", "explain")
LISTS = ("configurations", "configurations[].differences", "walkthrough.steps", "walkthrough.steps[].nodes")


def _paths(value: Any, path: str = "") -> Iterator[str]:
    """Paths of all fields; the names within an open map are one, and a category's figures are the whole's."""
    if isinstance(value, dict) and path not in LEAVES:
        for key, entry in value.items():
            if path in OPEN:
                yield f"{path}.{OPEN[path]}"
                if isinstance(entry, dict):
                    yield from _paths(entry, path.rpartition(".")[0])
            elif path == "targets":
                yield from _paths(entry, "targets.DTYPE")
            else:
                yield from _paths(entry, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list) and path in LISTS:
        if not value:
            yield path
        for entry in value:
            yield from _paths(entry, f"{path}[]")
    else:
        yield path


# commands


@cache
def _app() -> App:
    return make_app()


def _parse(arguments: str) -> None:
    """Raise if the command line would be refused; nothing is run."""
    _app().parse_args(arguments, exit_on_error=False, print_error=False)


def _shell_lines() -> Iterator[Any]:
    for name, text in sorted(TEXTS.items()):
        for body in fenced("sh", text):
            for line in body.splitlines():
                yield pytest.param(line, id=f"{name}-{line[:50]}")


@pytest.mark.parametrize("line", list(_shell_lines()))
def test_a_shell_line_is_a_command_that_would_be_accepted(line: str) -> None:
    words = shlex.split(line, comments=True)
    if words[0] == "headstart":
        _parse(shlex.join(words[1:]))
    elif words[:2] == ["accelerate", "launch"]:  # a test of pretraining launches it
        _parse(shlex.join(words[words.index("headstart") + 1 :]))
    elif words[0] == "make":
        assert words[1] in _make_targets()
    else:
        assert words[:2] == [".", ".venv/bin/activate"], f"nothing tests {line!r}"


def test_the_commands_of_the_benchmarks_would_be_accepted() -> None:
    text = (ROOT / "benchmarks" / "run").read_text("utf-8").replace("\\\n", " ")
    commands = re.findall(r'^ +"\$headstart" (.*)$', text, re.MULTILINE)
    for command in commands:
        _parse(command)
    functions = re.findall(r"^(\w+)\(\) \{$", text, re.MULTILINE)
    scripts = re.findall(r'^ +"\$python" "\$here/(\w+\.py)"', text, re.MULTILINE)
    assert all((ROOT / "benchmarks" / script).exists() for script in scripts)
    assert len(commands) + len(scripts) == len(functions)
    assert f'"${{@:-{" ".join(functions)}}}"' in text
    for name in re.findall(r"benchmarks/run PROMPTS (\w+)", "".join(TEXTS.values())):
        assert name in functions


def test_options_and_verbs_that_the_documents_name_exist() -> None:
    known = set(re.findall(r"--[a-z][a-z0-9-]+", TEXTS["docs/cli.md"])) | {"--check"}  # docs/build.py's own
    for name, text in TEXTS.items():
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", FENCE.sub("", text))) <= known, name
        for verbs in re.findall(r"`headstart ([a-z| ]+)", text):
            assert set(verbs.split(" | ") if "|" in verbs else verbs.split()[:1]) <= set(VERBS), name
        for target in re.findall(r"`make ([\w-]+)", text):
            assert target in _make_targets(), name


def _make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def test_the_readme_and_the_gate_call_the_same_test_target() -> None:
    gate = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    (readme,) = {line.split("#")[0].strip() for line in TEXTS["README.md"].splitlines() if line.startswith("make test")}
    assert readme in gate
    assert all(line.split()[1] in _make_targets() for line in gate if line.startswith("make "))


# links, names, versions


@pytest.mark.parametrize("document", list(TEXTS))
def test_links_lead_somewhere(document: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", FENCE.sub("", TEXTS[document])):
        file, _, anchor = link.partition("#")
        path = (ROOT / document).parent / file if file else ROOT / document
        assert file.startswith("https://") or path.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}, link


def test_files_that_the_documents_name_exist() -> None:
    names = set(re.findall(r"`((?:tests|docs|benchmarks|examples)/[\w./]+)`", "".join(TEXTS.values())))
    packaged = set(re.findall(r"`((?:target|proposers|heads|measure|train)/[a-z_]+\.py)`", "".join(TEXTS.values())))
    for path in [*(ROOT / name for name in names), *(ROOT / "src" / "headstart" / name for name in packaged)]:
        assert path.exists(), path


def test_tests_that_the_documents_name_exist() -> None:
    named = re.findall(r"`(tests/\w+\.py)::(\w+)`", "".join(TEXTS.values()))
    assert len(named) > 20
    for file, name in named:
        assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8"), f"{file}::{name}"


@pytest.mark.parametrize("name", headstart.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert re.search(rf"`(hs\.)?{name}\b", "".join(TEXTS.values()))


@pytest.fixture
def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return found


def test_the_version_stands_once(project: dict[str, Any]) -> None:
    assert project["version"] == headstart.__version__
    assert f"## {headstart.__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_pinned_versions_lie_in_the_ranges(project: dict[str, Any]) -> None:
    normal: Callable[[str], str] = lambda name: re.sub(r"[-_.]+", "-", name).lower()  # noqa: E731
    lines = [line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line and not line.startswith("#")]
    pinned = {normal(name): version for name, _, version in (line.partition("==") for line in lines)}
    for text in [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[normal(requirement.name)]), text
