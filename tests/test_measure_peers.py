"""Other projects' engines in processes of their own; a small one that only pretends stands for them."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import headstart.measure.against as against_module
import headstart.measure.target_costs as target_costs
from chat_model import chat_tokenizer
from headstart.errors import ModelError, RequestError
from headstart.llm import LLM
from headstart.measure import MeasureSettings, measure
from headstart.measure.against import PYTHON, Package, UnavailableError, against, gguf_file
from headstart.measure.peers.worker import Worker
from headstart.plan.profile import Profile
from headstart.proposers.choose import Guesser
from headstart.sampling import Sampling
from headstart.target.limits import Limits
from scripted import random_target

ENGINE = """
import os

class Engine:
    def __init__(self, path, threads):
        print("what a library says at its start")
        self.threads = int(threads)

    def describe(self):
        return {"version": "pretender 1.0", "pid": os.getpid()}

    def answer(self, prompts, limits, ends, sampling):
        if sampling["temperature"] == 0.5:
            raise ValueError("no halves")
        if sampling["temperature"] == 0.25:
            os._exit(3)
        print("and amid its work")
        answers = [{"tokens": [5] * n, "first": 0.25, "last": 0.25 + 0.5 * (n - 1)} for n in limits]
        self.asked = [prompts, limits, ends, sampling]
        return {"answers": answers, "seconds": 4.0}

    def last(self):
        return self.asked
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "engine.py"
    path.write_text(ENGINE, encoding="utf-8")
    return path


@pytest.fixture
def llm(engine: Path, monkeypatch: pytest.MonkeyPatch) -> LLM:
    """A model that seems to come from a file, and the pretender in llama.cpp's place."""
    monkeypatch.setattr(target_costs, "measured", lambda *_, **__: Profile((1, 2, 4, 64), (1.0, 1.0, 1.5, 20.0)))
    monkeypatch.setattr(target_costs, "measured_limits", lambda *_: Limits(1e9, 1e12))
    package = Package(str(engine), "llama_cpp_that_nobody_has", "llama-cpp-python", "llama-server")
    monkeypatch.setitem(against_module.PACKAGES, "llama.cpp", package)
    monkeypatch.delenv(PYTHON, raising=False)
    tokenizer = chat_tokenizer()
    target = random_target(3, tokenizer.vocab_size, memory=1)
    source = {"kind": "file", "format": "gguf MOSTLY_Q4_1"}
    return LLM(target, tokenizer, Guesser("none", None, 0), source=source, location="some.gguf")


def start(engine: Path) -> Worker:
    return Worker("pretender", sys.executable, engine, ("path", "2"), 2)


def test_a_worker_answers_whatever_its_libraries_print(engine: Path) -> None:
    worker = start(engine)
    asked: dict[str, Any] = {"prompts": [[1, 2]], "limits": [3], "ends": [9], "sampling": {"temperature": 0}}
    assert worker.description["version"] == "pretender 1.0"
    assert worker.ask("answer", **asked)["answers"][0]["tokens"] == [5, 5, 5]
    assert worker.ask("last") == [*asked.values()]
    worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.description["pid"], 0)


def test_what_fails_in_a_worker_is_one_clear_line(engine: Path) -> None:
    worker = start(engine)
    asked: dict[str, Any] = {"prompts": [[1]], "limits": [1], "ends": []}
    with pytest.raises(ModelError, match="pretender, answer: ValueError: no halves"):
        worker.ask("answer", sampling={"temperature": 0.5}, **asked)
    with pytest.raises(ModelError, match="pretender: the process ended while answer"):
        worker.ask("answer", sampling={"temperature": 0.25}, **asked)
    worker.close()
    engine.write_text("import nothing_of_that_name")
    with pytest.raises(ModelError, match="loading: ModuleNotFoundError"):
        start(engine)
    with pytest.raises(ModelError, match="no-python cannot be run: No such file"):
        Worker("pretender", "no-python", engine, (), 1)


def test_llama_cpp_is_measured_beside_plain_decoding(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    close = Worker.close

    def watched(worker: Worker) -> None:
        ended.append(worker.name)
        close(worker)

    monkeypatch.setattr(Worker, "close", watched)
    record = measure(llm, ["why?", "so?"], proposers=["plain"], against=["llama.cpp"], max_tokens=5).record
    peer = record["configurations"][1]
    assert (peer["proposer"], peer["accept"], peer["timings"], peer["identical"]) == ("llama.cpp", None, None, None)
    assert (peer["tokens"], peer["seconds"], peer["steps"], peer["acceptance_length"]) == (10, 8.0, 8, 1.0)
    assert (peer["latency"]["ms_per_token"]["median"], peer["latency"]["ms_to_first_token"]["median"]) == (500.0, 250.0)
    assert peer["predicted"] is None and peer["utilisation"] is None
    assert any(note.startswith("llama.cpp is pretender 1.0, ") and "Q4_1" in note for note in record["notes"])
    assert ended == ["llama.cpp"]


def test_an_engine_is_asked_for_what_plain_decoding_is_asked_for(llm: LLM, engine: Path) -> None:
    with ExitStack() as processes:
        (peer,), _ = against(llm, ["llama.cpp"], processes)
        peer.run([[1, 2, 3], [4]], Sampling(max_tokens=6, seed=3, stop_token_ids=(8,), temperature=0.75, top_k=4))
        worker: Any = peer.__dict__["_worker"]
        prompts, limits, ends, sampling = worker.ask("last")
    assert (prompts, limits) == ([[1, 2, 3], [4]], [6, 6])
    assert ends == sorted({8, *llm.target.end_tokens})
    assert sampling == {"temperature": 0.75, "top_k": 4, "top_p": 1.0, "min_p": 0.0, "seed": 3}


def test_an_option_that_is_another_one_elsewhere_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match=r"option presence_penalty cannot be compared with llama\.cpp"):
        measure(llm, ["why?"], proposers=["plain"], against=["llama.cpp"], max_tokens=4, presence_penalty=0.5)
    with pytest.raises(RequestError, match=r"against_python has no effect without against llama\.cpp or openvino"):
        MeasureSettings(against_python=sys.executable)
    with pytest.raises(RequestError, match=r"against_python is 'no-python'; it must be a Python that can be run"):
        measure(llm, ["why?"], proposers=["plain"], against=["llama.cpp"], against_python="no-python", max_tokens=4)


def test_an_engine_that_is_not_installed_is_said_with_the_way_out(llm: LLM, engine: Path) -> None:
    engine.write_text("import llama_cpp_that_nobody_has")
    notes = measure(llm, ["why?"], proposers=["plain"], against=["llama.cpp"], max_tokens=4).record["notes"]
    assert [note.partition(": ")[0] for note in notes] == ["llama.cpp was not measured"]
    assert "--against-python" in notes[0] and "--url" in notes[0] and sys.executable not in notes[0]


def test_only_the_file_that_was_loaded_is_taken(llm: LLM) -> None:
    assert gguf_file(llm, "or --url") == Path("some.gguf")
    llm.source["kind"] = "folder"
    with pytest.raises(UnavailableError, match="this model is a folder; load a GGUF file, or --url"):
        gguf_file(llm, "or --url")
    llm.location = None
    with pytest.raises(UnavailableError, match="--url"):
        gguf_file(llm, "or --url")


def test_a_python_without_an_engine_is_known_by_what_the_engine_imports_first() -> None:
    package = against_module.PACKAGES["openvino"]
    source = (against_module._PEERS / package.file).read_text(encoding="utf-8")
    imported = [line.split()[1] for line in source.splitlines() if line.startswith("import ")]
    assert package.module == next(name for name in imported if name.startswith("openvino"))
