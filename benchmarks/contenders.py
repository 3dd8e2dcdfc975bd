"""The engines of the comparison, each on the same weights in the form it reads, and how to start them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import make_gguf

from headstart.errors import ModelError
from headstart.measure.peers.worker import Worker

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Contender:
    """One engine on one file."""

    name: str
    engine: str  # "native", "hf" (PyTorch), "llama.cpp"
    file: str  # the storage type of its weights
    dtype: str = "auto"


CONTENDERS = (
    Contender("native-bf16", "native", "BF16"),
    Contender("native-int8", "native", "BF16", "int8"),
    Contender("native-q8_0", "native", "Q8_0"),
    Contender("native-q4_0", "native", "Q4_0"),
    Contender("native-q4_1", "native", "Q4_1"),
    Contender("llama.cpp-bf16", "llama.cpp", "BF16"),
    Contender("llama.cpp-q8_0", "llama.cpp", "Q8_0"),
    Contender("llama.cpp-q4_0", "llama.cpp", "Q4_0"),
    Contender("llama.cpp-q4_1", "llama.cpp", "Q4_1"),
    Contender("pytorch-bf16", "hf", "BF16", "bfloat16"),
)


def start(chosen: Sequence[Contender], files: Path, peer_python: str, threads: int) -> tuple[dict[str, Worker], dict[str, str]]:
    """The engines that run here by name, and why the others do not."""
    make_gguf.main(str(files))
    workers: dict[str, Worker] = {}
    missing: dict[str, str] = {}
    for contender in chosen:
        print(f"starting {contender.name}", file=sys.stderr)
        try:
            workers[contender.name] = started(contender, files, peer_python, threads)
        except ModelError as error:
            missing[contender.name] = str(error)
            print(f"NOT MEASURED: {error}", file=sys.stderr)
    return workers, missing


def started(contender: Contender, files: Path, peer_python: str, threads: int) -> Worker:
    is_bundled = contender.file == "Q4_1"
    path = make_gguf.bundled_file() if is_bundled else files / make_gguf.NAME.format(contender.file)
    if contender.engine == "llama.cpp":
        return Worker(contender.name, peer_python, HERE / "engine_llama_cpp.py", (str(path), str(threads)), threads)
    arguments = (str(path), contender.engine, contender.dtype, str(threads))
    return Worker(contender.name, sys.executable, HERE / "engine_headstart.py", arguments, threads)
