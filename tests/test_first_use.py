"""The short check when heads meet a model for the first time, and the cache that remembers it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headstart as hs
from headstart import cache
from headstart.accept import Draft, Questions, Rule, Verdict, exact
from headstart.decode import Decoder
from headstart.errors import HeadsError
from headstart.first_use import check_first_use
from headstart.proposers.base import Proposer
from headstart.proposers.choose import Guesser
from scripted import MixProposer, ScriptedTarget, random_target
from test_llm import byte_tokenizer

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(3, dtype=np.float32)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def target(seed: int = 1) -> ScriptedTarget:
    return random_target(seed, byte_tokenizer([]).vocab_size, memory=3, name=f"model {seed}")


def first_use(model: ScriptedTarget, tensors: dict[str, Any] = TENSORS, seconds: float = 60.0) -> int:
    """Forwards that it took."""
    encode = byte_tokenizer([]).encode
    before = model.num_forwards
    heads: Any = SimpleNamespace(config=SimpleNamespace(kind="mix"), tensors=tensors)
    check_first_use(model, heads, encode, lambda: Guesser("mix", MixProposer(model, 6), 6), seconds=seconds)
    assert model.num_open == 0
    return model.num_forwards - before


def test_it_runs_once_for_each_model_and_each_set_of_heads(folder: Path) -> None:
    model = target()
    assert first_use(model) > 32
    assert first_use(model) == 0
    changed = {**TENSORS, "b": TENSORS["b"] + 1}
    assert first_use(model, changed) > 0
    assert first_use(model, changed) == 0
    assert first_use(target(2)) > 0
    files = list((folder / "first-use").iterdir())
    assert len(files) == 3
    assert all(json.loads(file.read_text())["value"]["tokens"] == 8 * 32 for file in files)


def test_it_ends_in_time_and_compares_what_there_is() -> None:
    assert 5 <= first_use(target(), seconds=0.0) <= 12


def test_a_fault_is_an_error_each_time_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(scored: Questions, drafts: Sequence[Draft]) -> list[Verdict]:
        verdicts = exact(scored, drafts)
        return [
            Verdict(v.path, (*v.tokens[:-1], 5)) if draft.tree.num_drafted else v
            for v, draft in zip(verdicts, drafts, strict=True)
        ]

    model = target()
    with monkeypatch.context() as patched:
        rule = Rule("exact", wrong, "coupled", is_lossless=True, repeats_plain=True)
        patched.setattr("headstart.first_use.Decoder", partial(Decoder, rule=rule))
        for _ in range(2):
            with pytest.raises(HeadsError, match=r"mix changes the text of model 1: behind '.*', token"):
                first_use(model)
    assert first_use(model) > 0


def test_nothing_is_kept_where_nothing_shall_be(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.VARIABLE, cache.OFF)
    model = target()
    assert first_use(model) > 0
    assert first_use(model) > 0
    assert not folder.exists()


def test_a_damaged_or_foreign_file_counts_as_none(folder: Path) -> None:
    key = {"model": "x"}
    cache.remember("kind", key, {"n": 1})
    assert cache.recall("kind", key) == {"n": 1}
    assert cache.recall("other", key) is None
    (file,) = (folder / "kind").iterdir()
    for content in ("", "[", "[]", "null", '{"key": {"model": "y"}, "value": 1}'):
        file.write_text(content)
        assert cache.recall("kind", key) is None
    cache.remember("kind", key, 2)
    assert cache.recall("kind", key) == 2
    assert [entry.name for entry in (folder / "kind").iterdir()] == [file.name]


def test_a_folder_that_cannot_be_made_is_no_error(folder: Path) -> None:
    folder.write_text("a file stands here")
    cache.remember("kind", {}, 1)
    assert cache.recall("kind", {}) is None
    assert first_use(target()) > 0


def test_loading_heads_checks_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def compared(*_: object) -> int:
        seen.append("compared")
        return 1

    monkeypatch.setattr("headstart.first_use._compare", compared)
    for proposer in ("medusa", "medusa", "ngram"):
        hs.load("smollm2", proposer=proposer)
        assert seen == ["compared"]


def test_heads_that_are_one_of_several_proposers_are_checked_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def compared(target: object, proposer: Proposer, *_: object) -> int:
        asked.append(proposer.name)
        return 1

    monkeypatch.setattr("headstart.first_use._compare", compared)
    llm = hs.load("smollm2", proposer="combined")
    assert llm.heads is not None
    assert asked == [llm.heads.config.kind]


def test_the_heads_that_ship_pass(folder: Path) -> None:
    hs.load("smollm2", proposer="medusa")
    (file,) = (folder / "first-use").iterdir()
    assert json.loads(file.read_text())["value"]["tokens"] >= 5
