"""What goes wrong around a training: a disk that fills, a file cut in the middle, a tokenizer without a template."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chat_model import save_chat_model, tiny_loaded
from headstart.errors import DataError, TrainingError
from headstart.folders import new_folder, recover
from headstart.train import Event, train
from headstart.train.corpus import Corpus, write_json
from headstart.train.model_folder import save_model
from test_train_heads import SETTINGS, chats, documents
from test_train_joint import SETTINGS as JOINT

CORPUS = SETTINGS.changed(corpus_tokens=300, writer_batch=8, answer_tokens=12, question_tokens=24, epochs=2)


@contextmanager
def disk_of(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes: what a full disk says, without filling one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("num_bytes", "file"),
    [
        (1000, "states/hidden.bin"),
        (60_000, "checkpoint.safetensors"),
        (100_000, "checkpoint.safetensors"),
    ],  # at first, and later
)
def test_a_disk_that_fills_is_one_line_and_leaves_nothing_half_written(tmp_path: Path, num_bytes: int, file: str) -> None:
    data = chats(tmp_path / "chats.jsonl", 40)
    settings = SETTINGS.changed(epochs=2, checkpoint_minutes=0)
    with disk_of(num_bytes), pytest.raises(TrainingError, match=rf"work/{file} cannot be read or written: File too large$"):
        train(tiny_loaded(), data=data, out=tmp_path / "heads", settings=settings)
    assert not list(tmp_path.rglob("*.tmp")) and not list(tmp_path.glob(".heads*"))
    assert all(path.stat().st_size == 0 for path in tmp_path.rglob("*.bin")) == (num_bytes == 1000)
    resumed = train(tiny_loaded(), data=data, out=tmp_path / "heads", settings=settings)  # there is room again
    straight = train(tiny_loaded(), data=data, out=tmp_path / "straight", settings=settings)
    assert resumed.after == straight.after
    same = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("heads", "straight")]
    assert same[0] == same[1]


def test_a_disk_that_fills_while_the_model_is_saved_leaves_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = save_chat_model(tmp_path / "model", head_dim=16), chats(tmp_path / "chats.jsonl", 40)
    options: dict[str, Any] = {"data": data, "out": tmp_path / "heads", "settings": JOINT.changed(joint_epochs=1)}
    first = train(model, model_out=tmp_path / "tuned", **options)
    size = (tmp_path / "tuned" / "model.safetensors").stat().st_size
    before = files(tmp_path / "tuned")
    options |= {"init": tmp_path / "heads.work" / "first", "resume": False}

    def save(*arguments: Any) -> None:
        with disk_of(size - 1):
            save_model(*arguments)

    monkeypatch.setattr("headstart.train.joint.run.save_model", save)
    with pytest.raises(TrainingError, match="tuned: the model cannot be written"):
        train(model, model_out=tmp_path / "tuned", **options)
    assert files(tmp_path / "tuned") == before and first.tuned is not None
    assert not list(tmp_path.glob(".tuned*"))


def test_a_corpus_that_fills_the_disk_keeps_its_whole_lines(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus", "f" * 16)
    corpus.append(documents(5))
    before = files(tmp_path)
    with disk_of(len(before["corpus/documents.jsonl"]) + 50), pytest.raises(OSError, match="File too large"):
        corpus.append(documents(9))
    assert files(tmp_path) == before
    with disk_of(3), pytest.raises(OSError, match="File too large"):
        write_json(tmp_path / "corpus" / "meta.json", {"long": "text"})
    assert files(tmp_path) == before


def test_a_corpus_cut_in_the_middle_loses_its_last_line_and_says_so(tmp_path: Path) -> None:
    first = train(tiny_loaded(), out=tmp_path / "heads", corpus=tmp_path / "corpus", settings=CORPUS)
    path = tmp_path / "corpus" / "documents.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    events: list[Event] = []
    again = train(tiny_loaded(), out=tmp_path / "again", corpus=tmp_path / "corpus", settings=CORPUS, report=events.append)
    assert any("the last line of" in event.message and "cut in the middle" in event.message for event in events)
    assert again.num_corpus_tokens >= 300 and first.num_corpus_tokens >= 300
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_run_whose_corpus_was_cut_is_not_gone_on_with(tmp_path: Path) -> None:
    def die(event: Event) -> None:
        if event.stage == "train" and event.total and event.done == 2:
            raise KeyboardInterrupt

    options: dict[str, Any] = {"corpus": tmp_path / "corpus", "settings": CORPUS.changed(checkpoint_minutes=0, batch_rows=20)}
    with pytest.raises(KeyboardInterrupt):
        train(tiny_loaded(), out=tmp_path / "heads", report=die, **options)
    path = tmp_path / "corpus" / "documents.jsonl"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TrainingError, match=r"was made with \d+ documents, of which \d+ are left; restore them"):
        train(tiny_loaded(), out=tmp_path / "heads", **options)


@pytest.mark.parametrize("cut", [1, 10, 20])
def test_data_cut_in_the_middle_is_named_by_its_line(tmp_path: Path, cut: int) -> None:
    path = chats(tmp_path / "chats.jsonl", 10)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"chats.jsonl, line 10: "):
        train(tiny_loaded(), out=tmp_path / "heads", data=path, settings=SETTINGS)
    assert not (tmp_path / "heads").exists()


def test_chats_for_a_model_without_a_template_are_refused_and_texts_are_not(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: the model has no chat template; give plain text instead of chats"):
        train(tiny_loaded(chat=False), out=tmp_path / "heads", data=chats(tmp_path / "chats.jsonl", 10), settings=SETTINGS)
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps({"text": "abcdefghijklm"[i:] + "nop" * 3}) for i in range(12)))
    assert train(tiny_loaded(chat=False), out=tmp_path / "heads", data=texts, settings=SETTINGS.changed(epochs=1)).path.exists()


def test_a_model_without_a_template_writes_texts_of_its_own(tmp_path: Path) -> None:
    result = train(tiny_loaded(chat=False), out=tmp_path / "heads", settings=CORPUS.changed(epochs=1))
    record = json.loads((tmp_path / "heads" / "training.json").read_text())
    assert record["corpus"]["tokens_by_kind"].keys() == {"text"} and result.num_corpus_tokens >= 300


def stands(path: Path, text: str) -> None:
    path.mkdir()
    (path / "a").write_text(text)


@pytest.mark.parametrize("complete", [True, False])
def test_a_process_that_was_killed_while_it_replaced_a_folder_leaves_one_of_the_two(tmp_path: Path, complete: bool) -> None:
    stands(tmp_path / ".heads.1.new", "new")
    stands(tmp_path / (".heads.1.old" if complete else "heads"), "old")
    recover(tmp_path / "heads")
    assert files(tmp_path) == {"heads/a": b"new" if complete else b"old"}


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    stands(tmp_path / "heads", "old")
    with pytest.raises(RuntimeError), new_folder(tmp_path / "heads") as new:
        (new / "a").write_text("new")
        raise RuntimeError
    assert files(tmp_path) == {"heads/a": b"old"}
    with new_folder(tmp_path / "heads") as new:
        (new / "b").write_text("new")
    assert files(tmp_path) == {"heads/b": b"new"}
    assert os.listdir(tmp_path) == ["heads"]
