"""Pretraining from one command: text in, folder out; runs that are killed and go on; several processes; what is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from headstart.cli.app import run as command
from headstart.errors import DataError, RequestError, TrainingError
from headstart.llm import load
from headstart.pretrain import pretrain
from headstart.pretrain.tokens import Sequences, byte_tokenizer, choose_tokenizer, read_documents, token_stream
from headstart.pretrain.workers import Workers
from headstart.tokenizer import Detokenizer, Tokenizer

TINY: dict[str, Any] = {
    "width": 32, "heads": 1, "layers": 3, "future_tokens": 2, "context": 16, "batch": 4, "steps": 8, "evaluations": 2,
    "evaluation_sequences": 4, "checkpoint_minutes": 0.0, "held_out": 0.2,
}  # fmt: skip
WORDS = b"the cat sat on the mat and the dog lay by the door, " * 12


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_bytes(WORDS)
    return path


def weights(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors") | load_file(folder / "heads" / "model.safetensors")


def equal(one: Path, other: Path) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all((mine[name] == theirs[name]).all() for name in mine)


def flags() -> list[str]:
    return [part for name, value in TINY.items() for part in (f"--{name.replace('_', '-')}", str(value))]


def environment(**more: str) -> dict[str, str]:
    source = str(Path(__file__).parent.parent / "src")
    return os.environ | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"} | more


KILLED = """
import os, signal
import headstart.pretrain.trainer as trainer
written = trainer.write_state
count = 0
def write_state(path, tensors, record):
    global count
    count += 1
    if count == {dies}:
        if {before}:
            path.with_name(path.name + ".tmp").write_bytes(b"half a file")
        else:
            written(path, tensors, record)
        os.kill(os.getpid(), signal.SIGKILL)
    written(path, tensors, record)
trainer.write_state = write_state
import torch
torch.set_num_threads(1)
from headstart.pretrain import pretrain
pretrain({data!r}, {out!r}, **{options!r})
"""


def test_a_run_that_is_killed_twice_ends_with_the_same_bits(tmp_path: Path, text: Path) -> None:
    """Once while a checkpoint is half written, once right behind one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pretrain(text, tmp_path / "whole", **TINY)
    for dies, before in ((4, True), (2, False)):
        script = KILLED.format(dies=dies, before=before, data=str(text), out=str(tmp_path / "killed"), options=TINY)
        ended = subprocess.run([sys.executable, "-c", script], env=environment(), check=False, capture_output=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
        assert not (tmp_path / "killed").exists()
    result = pretrain(text, tmp_path / "killed", **TINY)
    torch.set_num_threads(threads)
    assert result.progress.step == TINY["steps"]
    assert equal(tmp_path / "whole", tmp_path / "killed")
    whole, killed = (json.loads((tmp_path / name / "pretraining.json").read_text()) for name in ("whole", "killed"))
    assert whole["curve"] == killed["curve"] and len(whole["curve"]) == 2
    assert not any((tmp_path / "killed.work").iterdir())


def test_two_processes_learn_what_one_does(tmp_path: Path, text: Path) -> None:
    """Through ``accelerate launch``, on the CPU: the same losses but for the order of sums."""
    arguments = ["--data", str(text), *flags(), "--micro-batch", "2"]
    launch = "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    program = [sys.executable, *launch.split(), "--dynamo_backend", "no", "--module", "headstart", "pretrain", *arguments]
    program += ["--out", str(tmp_path / "two")]
    ended = subprocess.run(program, env=environment(), check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr.decode()
    one = pretrain(text, tmp_path / "one", **TINY, micro_batch=2)
    two = json.loads((tmp_path / "two" / "pretraining.json").read_text())
    assert two["machine"]["processes"] == 2
    for mine, theirs in zip(one.progress.curve, two["curve"], strict=True):
        np.testing.assert_allclose(mine["loss"], theirs["loss"], rtol=1e-4)
        np.testing.assert_allclose(mine["held_out_loss"], theirs["held_out_loss"], rtol=1e-4)


def test_the_command_reads_a_file_of_options_and_measures_what_it_trained(
    tmp_path: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "run.toml"
    lines = [f"data = [{str(text)!r}]", "steps = 4", *(f"{name} = {value}" for name, value in TINY.items() if name != "steps")]
    config.write_text("\n".join(lines))
    out = tmp_path / "model"
    assert command(["pretrain", "--config", str(config), "--out", str(out), "--steps", "3", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], len(found["curve"][-1]["held_out_loss"])) == (3, 2)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the cat"}\n')
    asked = ["measure", str(out), "--prompts", str(prompts), "--proposer", "plain,mtp", "--max-tokens", "8", "--json", "-"]
    assert command(asked) == 0
    record = json.loads(capsys.readouterr().out)
    assert [entry["proposer"] for entry in record["configurations"]] == ["plain", "mtp"]
    assert record["configurations"][1]["identical"] == "1/1"
    assert command(["pretrain", "--config", str(config), "--out", str(out)]) == 1
    assert "holds the model of a finished run" in capsys.readouterr().err
    config.write_text("stepps = 3")
    assert command(["pretrain", "--config", str(config)]) == 1
    assert "has no option stepps; did you mean steps?" in capsys.readouterr().err


def test_a_run_goes_on_only_as_it_began(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("headstart.pretrain.run.save_model", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        pretrain(text, out, **TINY)
    assert not out.exists()
    with pytest.raises(TrainingError, match=r"belongs to a run with other settings \(seed\)"):
        pretrain(text, out, **TINY, seed=1)
    text.write_bytes(WORDS + b"more")
    with pytest.raises(TrainingError, match=r"other settings \(text\)"):
        pretrain(text, out, **TINY)
    result = pretrain(text, out, **TINY, seed=1, resume=False)
    assert result.progress.step == 8 and out.is_dir()


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "model"
    with monkeypatch.context() as patched, pytest.raises(TrainingError, match=r"model cannot be written .*No space left"):
        patched.setattr("headstart.pretrain.folder.save_heads", full)
        pretrain(text, out, **TINY)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.work", "text.txt"]
    assert pretrain(text, out, **TINY).progress.step == 8  # from the checkpoint of the last step
    with monkeypatch.context() as patched, pytest.raises(TrainingError, match=r"checkpoint\.safetensors cannot be .*No space"):
        patched.setattr(Path, "write_bytes", full)
        pretrain(text, tmp_path / "other", **TINY)
    assert not list((tmp_path / "other.work").iterdir())


def test_something_else_is_not_replaced(tmp_path: Path, text: Path) -> None:
    with pytest.raises(RequestError, match="exists and holds no pretrained model"):
        pretrain(text, tmp_path, **TINY)


def test_bfloat16_and_a_trained_tokenizer(tmp_path: Path, text: Path) -> None:
    options = TINY | {
        "precision": "bfloat16",
        "tokenizer": "bpe:300",
        "variant": "sequential",
        "curriculum": "forward",
        "steps": 4,
    }
    result = pretrain(text, tmp_path / "model", **options)
    assert [len(point["loss"]) for point in result.progress.curve] == [2, 2] and result.progress.curve[0]["loss"][1] is None
    llm = load(str(tmp_path / "model"), proposer="mtp")
    assert llm.target.vocab_size < 300 and "the" in llm.tokenizer.backend.get_vocab()
    answer = llm.generate("the cat", max_tokens=6, ignore_eos=True)
    assert answer.tokens == llm.with_proposer("none").generate("the cat", max_tokens=6, ignore_eos=True).tokens


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"text": "whole"}\n{"text": "cut o', "line 2 is no JSON object with a 'text'; is the file cut off?"),
        (b'{"words": "none"}\n', "line 1 is no JSON object with a 'text'"),
        (b"", "there is no text to learn from"),
    ],
)
def test_files_that_are_cut_off_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "text.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        pretrain(path, tmp_path / "model", **TINY)
    assert not (tmp_path / "model").exists()


def test_tokenizers_are_chosen_by_name_and_refused_with_a_reason(tmp_path: Path) -> None:
    documents = [("a", "the cät sat".encode()), ("b", b"\xff\xfe")]
    with pytest.raises(RequestError, match="bpe:SIZE with a SIZE above 256"):
        choose_tokenizer("bpe:12", documents)
    with pytest.raises(RequestError, match=r"it must be bytes, bpe:SIZE, a tokenizer\.json or a folder with one"):
        choose_tokenizer(str(tmp_path / "none"), documents)
    trained = choose_tokenizer("bpe:270", documents)
    with pytest.raises(DataError, match="b is no UTF-8 text at byte 0; the tokenizer bytes takes any file"):
        token_stream(trained, documents, held_out=0.0, seed=0)
    file = tmp_path / "tokenizer.json"
    file.write_text(trained.backend.to_str())
    assert choose_tokenizer(str(tmp_path), documents).end_id == trained.end_id
    file.write_text(trained.backend.to_str().replace("<|endoftext|>", "<odd>"))
    with pytest.raises(DataError, match="has no end-of-text token"):
        choose_tokenizer(str(file), documents)


def test_a_tokenizer_file_neither_cuts_nor_pads_and_is_named_if_it_fails(tmp_path: Path) -> None:
    documents = [("a", b"one two three " * 30)]
    trained = choose_tokenizer("bpe:270", documents)
    file = tmp_path / "tokenizer.json"
    expected = trained.encode([documents[0][1]], ["a"])[0].tolist()
    trained.backend.enable_truncation(max_length=3)
    trained.backend.enable_padding(length=5000)
    trained.backend.save(str(file))
    assert choose_tokenizer(str(file), documents).encode([documents[0][1]], ["a"])[0].tolist() == expected
    state = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(state | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}), encoding="utf-8")
    with pytest.raises(DataError, match="cannot encode the documents: chunk size"):
        choose_tokenizer(str(file), documents).encode([b"a"], ["a"])
    file.write_text(
        json.dumps(state | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}), encoding="utf-8"
    )
    with pytest.raises(DataError, match=r"tokenizer\.json in .* cannot be parsed: Precompiled"):
        choose_tokenizer(str(file), documents)


def test_bytes_are_their_own_ids_and_come_back() -> None:
    everything = bytes(range(256))
    own = byte_tokenizer()
    assert (own.vocab_size, own.end_id) == (257, 256)
    assert own.encode([everything], ["all"])[0].tolist() == list(everything)
    tokenizer = Tokenizer(own.backend, special_tokens={"eos_token": own.end})
    sample = "tabs\t, «ünïcödé», 漢字 and\n\nlines"
    assert tokenizer.encode(sample) == list(sample.encode())
    detokenizer = Detokenizer(tokenizer)
    assert "".join(detokenizer.feed(token) for token in sample.encode()) + detokenizer.finish() == sample


def test_every_epoch_shows_every_sequence_once_in_an_order_of_its_own() -> None:
    sequences = Sequences(np.arange(103, dtype=np.int32), 10, 3, seed=0)
    assert sequences.count == 10
    orders = [sequences.training(first, 10)[:, 0].tolist() for first in (0, 10)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]) == list(range(0, 100, 10))
    np.testing.assert_array_equal(
        sequences.training(7, 6), np.concatenate([sequences.training(7, 3), sequences.training(10, 3)])
    )
    np.testing.assert_array_equal(np.diff(sequences.training(0, 10), axis=1), 1)
    with pytest.raises(DataError, match="there are 12 tokens held out, and a sequence needs 13"):
        Sequences(np.arange(12, dtype=np.int32), 10, 3, 0, "held out")


def test_documents_are_joined_by_end_tokens_in_an_order_of_the_seed(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": letter * 3}) + "\n" for letter in "abcdefgh"))
    stream = token_stream(byte_tokenizer(), read_documents([path]), held_out=0.25, seed=0)
    assert (len(stream.train), len(stream.held_out), stream.num_documents) == (24, 8, 8)
    assert stream.train.reshape(-1, 4)[:, 3].tolist() == [256] * 6
    assert sorted(np.concatenate([stream.train, stream.held_out])[::4].tolist()) == list(b"abcdefgh")
    other = token_stream(byte_tokenizer(), read_documents([path]), held_out=0.25, seed=1)
    assert other.fingerprint != stream.fingerprint


def test_batches_that_cannot_be_shared_out_are_refused() -> None:
    workers = Workers("cpu")
    assert workers.share(8, 4) == [0, 4]
    workers.count, workers.rank = 2, 1
    assert workers.share(8, 2) == [2, 6]
    with pytest.raises(RequestError, match="batch is 6; with 2 processes it must be a multiple of 4"):
        workers.share(6, 2)
