"""Other projects' engines on the same weights, in the same run. What cannot be measured here is said.

``transformers`` runs in this process: its own ``generate`` on the model that is decoded here where that is a transformers
model, else on the same files, loaded once more. ``llama.cpp`` and ``openvino`` run in processes of their own (``peers/``),
under a Python that may be another one than this, on the very GGUF file that was loaded here and with as many threads.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headstart.errors import HeadstartError, ModelError, RequestError
from headstart.llm import LLM
from headstart.measure.configurations import BatchRun, Configuration, Output, Prompts, plain_stats
from headstart.measure.peers.peer import Peer, check_comparable
from headstart.measure.peers.worker import Worker
from headstart.measure.settings import LLAMA_CPP, OPENVINO, TRANSFORMERS
from headstart.sampling import Sampling
from headstart.target.base import Target
from headstart.target.loading import BUNDLED
from headstart.target.machine import num_cores, runtime

PYTHON = "HEADSTART_AGAINST_PYTHON"
"""The environment's name for the Python that runs other engines, where none is given."""

_PEERS = Path(__file__).parent / "peers"
_LOSSY_IN_TRANSFORMERS = "bfloat16"  # for weights that transformers cannot hold as they are
_STORED_AS = {"bfloat16": "bf16", "float32": "f32"}  # in the names of GGUF's storage types


class UnavailableError(Exception):
    """An engine cannot run here; the message ends a sentence."""


@dataclass(frozen=True, slots=True)
class Package:
    """An engine that runs in a process of its own: its file in ``peers/``, what its Python needs, and its server."""

    file: str
    module: str
    pip: str
    server: str


PACKAGES = {
    LLAMA_CPP: Package("llama_cpp_engine.py", "llama_cpp", "llama-cpp-python", "llama-server"),
    OPENVINO: Package("openvino_engine.py", "openvino", "openvino-genai", "model server"),
}


@dataclass(frozen=True, slots=True)
class Outside:
    """The Python of engines that have processes of their own, and what ends those processes."""

    python: str
    processes: ExitStack


Start = Callable[[LLM, Outside], tuple[Configuration, str | None]]


def against(
    llm: LLM, names: Sequence[str], processes: ExitStack, python: str | None = None
) -> tuple[list[Configuration], list[str]]:
    """The engines that run here, and a remark on each of the others. ``processes`` ends what is started for them."""
    outside = Outside(python or os.environ.get(PYTHON) or sys.executable, processes)
    found: list[Configuration] = []
    remarks = []
    for name in names:
        try:
            configuration, remark = _STARTS[name](llm, outside)
        except (UnavailableError, HeadstartError) as reason:
            remarks.append(f"{name} was not measured: {reason}")
            continue
        found.append(configuration)
        remarks += [remark] if remark else []
    return found, remarks


def check_against(names: Sequence[str], python: str | None, sampling: Sampling) -> None:
    """RequestError for a Python that cannot be run, and for sampling that does not mean the same elsewhere."""
    if python is not None and shutil.which(python) is None:
        raise RequestError(f"against_python is {python!r}; it must be a Python that can be run")
    for name in PACKAGES:
        if name in names:
            check_comparable(name, sampling)


class Transformers:
    """transformers' ``generate``. With temperature its noise is its own, so only speed compares."""

    name = TRANSFORMERS
    num_nodes = 0
    rule = None

    def __init__(self, target: Target) -> None:
        self._target = target

    def is_comparable(self, sampling: Sampling) -> bool:
        """Greedily; two engines still round differently, which the comparison measures."""
        return sampling.temperature == 0

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """One call of ``generate``."""
        from headstart.target.hf_reference import ReferenceDecoder

        decoder = ReferenceDecoder(self._target, sampling)
        started = time.perf_counter()
        answers = decoder.generate(prompts)
        seconds = time.perf_counter() - started
        return BatchRun(tuple(Output(tuple(tokens), plain_stats(len(tokens))) for tokens in answers), seconds)

    def explain(self) -> dict[str, Any] | None:
        """It does not draft."""
        return None


class _OtherTransformers(Transformers):
    """The same on a target of its own, whose rounding the comparison cannot measure."""

    def is_comparable(self, sampling: Sampling) -> bool:
        """Never: another engine's logits differ in their last bits, and nothing here says by how much."""
        return False


def _transformers(llm: LLM, _: Outside) -> tuple[Configuration, str | None]:
    if llm.target.engine == "hf":
        return Transformers(llm.target), None
    if llm.location is None:
        raise UnavailableError("it needs the model's files, and this model was not loaded from any")
    from headstart.target.loading import load_model

    dtype = llm.target.dtype if llm.target.dtype in ("float32", "bfloat16") else _LOSSY_IN_TRANSFORMERS
    target = load_model(llm.location, dtype=dtype, engine="hf").target
    remark = None if dtype == llm.target.dtype else f"transformers runs the {llm.target.dtype} weights as {dtype}"
    return _OtherTransformers(target), remark


def _outside(name: str) -> Start:
    """An engine in a process of its own."""

    def start(llm: LLM, outside: Outside) -> tuple[Configuration, str | None]:
        package = PACKAGES[name]
        elsewhere = f"or start its {package.server} and measure that with --url"
        file = gguf_file(llm, elsewhere)
        threads = int(runtime(llm.target.engine).get("threads") or num_cores() or 1)
        try:
            worker = Worker(name, outside.python, _PEERS / package.file, (str(file), str(threads)), threads)
        except ModelError as error:
            reason = str(error)
            if f"No module named '{package.module}" in reason:
                reason = f"its Python has no {package.module}; pip install {package.pip}, name one with --against-python"
            raise UnavailableError(f"{reason}, {elsewhere}") from None
        outside.processes.callback(worker.close)
        stored, own = llm.source.get("format", "").removeprefix("gguf MOSTLY_"), llm.target.dtype
        as_here = "as here" if _STORED_AS.get(own, own) == stored.lower() else f"which are {own} here"
        how = f"{worker.description['version']}, {threads} threads, on the file's own {stored} weights, {as_here}"
        return Peer(worker, llm.target), f"{name} is {how}"

    return start


def gguf_file(llm: LLM, elsewhere: str) -> Path:
    """The GGUF file that a model was loaded from; UnavailableError if it was none, with another way (``elsewhere``)."""
    kind = llm.source.get("kind")
    if llm.location is None or kind not in ("bundled", "file"):
        reason = "was loaded from no file" if kind is None else "is a folder"
        raise UnavailableError(f"it reads GGUF files, and this model {reason}; load a GGUF file, {elsewhere}")
    if kind == "file":
        return Path(llm.location).expanduser()
    package, _, file = BUNDLED[llm.location]
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations  # it was loaded from there
    return Path(spec.submodule_search_locations[0]) / file


def _elsewhere(command: str) -> Start:
    """An engine that is not run from here."""

    def start(llm: LLM, outside: Outside) -> tuple[Configuration, str | None]:
        raise UnavailableError(f"it does not run inside this program; start {command} and measure that with --url")

    return start


_STARTS: dict[str, Start] = {
    TRANSFORMERS: _transformers,
    **{name: _outside(name) for name in PACKAGES},
    "vllm": _elsewhere("`vllm serve`"),
}
