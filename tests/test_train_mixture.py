"""What a corpus consists of: kinds of a file, mixtures, other languages, long contexts, copies."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chat_model import tiny_loaded
from headstart.errors import DataError, RequestError
from headstart.train import Event, train
from headstart.train.corpus import Document, statistics
from headstart.train.duplicates import without_copies
from headstart.train.kinds import KINDS, follow_up, open_turn
from headstart.train.mixture import kinds_of, read_kinds
from test_train_heads import SETTINGS, chats
from test_train_writer import CODEC, PASSAGES, chatty, writer, written

GERMAN: list[dict[str, Any]] = [
    {"name": "fragen", "share": 2, "openings": ["was ist", "warum"], "continuations": ["und dann"], "follow_ups": 1},
    {"name": "geschichte", "share": 1, "openings": ["schreib"], "gives_passages": True, "answer_factor": 2},
    {"name": "lang", "share": 1, "requests": ["{documents}\n\nwas?"], "num_documents": [6, 6], "document_words": [90, 90]},
]


def kinds_file(tmp_path: Path, kinds: Any = GERMAN) -> str:
    path = tmp_path / "kinds.json"
    path.write_text(json.dumps(kinds), encoding="utf-8")
    return str(path)


def test_kinds_of_a_file_set_the_model_going_in_their_language(tmp_path: Path) -> None:
    kinds = kinds_of(kinds_file(tmp_path), "")
    made = writer(chatty(3), kinds=kinds)
    documents = [found.document for found in written(made, 60)]
    assert {document.kind.removesuffix("-second") for document in documents} == {"fragen", "geschichte"}
    shares = statistics(documents)["share_by_kind"]
    assert shares["fragen"] == pytest.approx(2 / 3, abs=0.15)
    texts = [CODEC.decode(document.tokens) for document in documents]
    assert all("<u>was ist" in text or "<u>warum" in text or "<u>schreib" in text for text in texts)
    assert any("<u>und dann" in text for text in texts)


def test_a_kind_of_many_documents_makes_a_long_prompt(tmp_path: Path) -> None:
    built_in = {kind.name: kind for kind in KINDS}
    own = {kind.name: kind for kind in read_kinds(Path(kinds_file(tmp_path)))}
    rng = random.Random(0)
    assert 500 < len(open_turn(own["lang"], rng, PASSAGES).text.split()) < 620
    assert len(open_turn(built_in["long"], rng, PASSAGES).text.split()) > 900
    assert follow_up(own["fragen"], rng) == "und dann"
    assert follow_up(own["geschichte"], rng) != "und dann"


def test_a_mixture_names_kinds_and_their_shares() -> None:
    chosen = kinds_of("", "code=2,chat=1.5,reading")
    assert [(kind.name, kind.share) for kind in chosen[:2]] == [("code", 2.0), ("chat", 1.5)]
    assert chosen[2] == next(kind for kind in KINDS if kind.name == "reading")
    assert kinds_of("", "") == KINDS


@pytest.mark.parametrize(
    ("mixture", "complaint"),
    [
        ("cod=1", "'cod', which there is not; did you mean code"),
        ("code=none", "gives code the share 'none'"),
        ("code=0", "must be a number above 0"),
        ("code=1,code=2", "'code' twice"),
        ("reading=1", "every kind reads passages, and none gives them"),
        ("code=1,reading=1", "reading reads passages, and no kind gives them"),
    ],
)
def test_a_mixture_that_cannot_be_written_is_refused(mixture: str, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint):
        kinds_of("", mixture)


@pytest.mark.parametrize(
    ("kinds", "complaint"),
    [
        ({}, "holds no list of kinds"),
        ([], "holds no list of kinds"),
        (["chat"], "kind 1: expected an object"),
        ([{"name": "a", "share": 1}], "neither openings nor requests"),
        ([{"name": "a", "openings": ["b"]}], "it has no share"),
        ([GERMAN[0], GERMAN[0]], "names the kind 'fragen' twice"),
        ([GERMAN[0] | {"opening": ["x"]}], "no field 'opening'; did you mean openings"),
        ([GERMAN[0] | {"share": 0}], "share must be a number above 0"),
        ([GERMAN[0] | {"share": True}], "share must be a number above 0"),
        ([GERMAN[0] | {"follow_ups": 2}], "follow_ups must be a number from 0 to 1"),
        ([GERMAN[0] | {"gives_passages": 1}], "gives_passages must be true or false"),
        ([GERMAN[0] | {"name": ""}], "name must be a text"),
        ([GERMAN[0] | {"openings": "x"}], "openings must be a list of texts"),
        ([GERMAN[0] | {"openings": ["{text}"]}], "has the field 'text'; known are documents"),
        ([GERMAN[0] | {"openings": ["{"]}], "is no text with fields"),
        ([GERMAN[0] | {"num_documents": [3, 2]}], "num_documents must be two whole numbers"),
    ],
)
def test_a_file_of_kinds_that_cannot_be_used_is_named(tmp_path: Path, kinds: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        read_kinds(Path(kinds_file(tmp_path, kinds)))


def test_a_run_writes_the_kinds_that_it_is_told(tmp_path: Path) -> None:
    options = {"corpus_tokens": 200, "writer_batch": 8, "answer_tokens": 12, "question_tokens": 24, "epochs": 1}
    train(tiny_loaded(), out=tmp_path / "heads", settings=SETTINGS.changed(**options, mixture="code=1,chat=1"))
    record = json.loads((tmp_path / "heads" / "training.json").read_text())
    assert record["corpus"]["tokens_by_kind"].keys() == {"code", "chat"}
    assert record["corpus"]["longest_document"] > 12


@pytest.mark.parametrize("name", ["kinds", "mixture"])
def test_what_is_to_be_written_has_no_effect_where_nothing_is(tmp_path: Path, name: str) -> None:
    settings = SETTINGS.changed(**{name: "code"})
    with pytest.raises(RequestError, match=f"{name} has no effect with data"):
        train(tiny_loaded(), out=tmp_path / "heads", data=chats(tmp_path / "chats.jsonl"), settings=settings)
    settings = SETTINGS.changed(**{name: kinds_file(tmp_path) if name == "kinds" else "code"})
    with pytest.raises(RequestError, match="without a chat template"):
        train(tiny_loaded(chat=False), out=tmp_path / "heads", settings=settings)


def text(*tokens: int) -> Document:
    return Document("text", 0.0, tokens, ((0, len(tokens)),))


def test_copies_are_left_out_and_what_is_only_alike_is_not() -> None:
    one, other = tuple(range(40)), tuple(range(100, 140))
    changed = (*one[:20], 99, *one[21:])
    found = without_copies([text(*one), text(*other), text(*one), text(*changed)], 0.9)
    assert found == [text(*one), text(*other), text(*changed)]
    assert without_copies([text(*one), text(*changed)], 0.5) == [text(*one)]
    assert without_copies([text(5, 6), text(5, 6), text(6, 5)], 0.9) == [text(5, 6), text(6, 5)]


@given(
    documents=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=14), max_size=12),
    most=st.floats(0, 1, allow_nan=False),
)
def test_the_first_of_equal_documents_stays_and_one_keeps_all(documents: list[list[int]], most: float) -> None:
    texts = [text(*tokens) for tokens in documents]
    kept = without_copies(texts, most)
    assert kept == [document for document in texts if document in kept][: len(kept)] or len(kept) <= len(texts)
    assert kept[:1] == texts[:1]
    assert without_copies(texts, 1.0) == texts
    assert without_copies(kept, most) == kept
    if most < 1:
        assert len(set(kept)) == len(kept)


def test_data_says_its_kinds_and_its_copies_are_left_out(tmp_path: Path) -> None:
    lines: list[Any] = [{"kind": "verse", "text": "".join(chr(97 + (7 * i + j * j) % 26) for j in range(16))} for i in range(8)]
    lines += [{"turns": ["go on", f"so it goes {'xyz'[i % 3]}. and more of it"]} for i in range(6)]
    path = tmp_path / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, [*lines, lines[3], lines[-1]])))
    events: list[Event] = []
    settings = SETTINGS.changed(epochs=1, max_copied=0.95)
    train(tiny_loaded(), out=tmp_path / "heads", data=path, settings=settings, report=events.append)
    assert any(event.message == "5 of 16 documents are copies, and left out" for event in events)
    record = json.loads((tmp_path / "heads" / "training.json").read_text())
    assert record["corpus"]["documents_by_kind"] == {"verse": 8, "chat": 3}
    path.write_text(json.dumps({"kind": 5, "text": "abc"}))
    with pytest.raises(DataError, match="line 1: kind must be a string"):
        train(tiny_loaded(), out=tmp_path / "other", data=path, settings=settings)
