"""An engine in a process of its own, asked for measurements over its standard streams.

Engines that are compared need environments of their own (one has no PyTorch, another no Headstart), yet must run interleaved.
So each is a worker: it loads its model once, then answers one line of JSON with one line of JSON. It does its own timing, next
to the work; the parent only says whose turn it is, and nobody computes but the worker that was asked. The standard library
alone is needed here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


class EngineError(Exception):
    """An engine that cannot start, or a question that it cannot answer."""


def serve(make: Callable[[], Any]) -> None:
    """Build the engine and answer requests ``{"ask": METHOD, "with": {ARGUMENTS}}`` until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not stand between the answers
    engine: Any = None

    def answer(work: Callable[[], Any]) -> None:
        try:
            line = {"answer": work()}
        except Exception as error:  # it is reported to the parent, who decides
            line = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(line), file=answers, flush=True)

    def start() -> Any:
        nonlocal engine
        engine = make()
        return engine.describe()

    def respond(request: dict[str, Any]) -> Any:
        return getattr(engine, request["ask"])(**request["with"])

    answer(start)
    for line in sys.stdin:
        answer(partial(respond, json.loads(line)))


HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
"""Lets every engine's weights lie in huge pages, as Headstart's do by themselves: llama.cpp reads up to half as fast again."""


class Worker:
    """The parent's end of one engine."""

    def __init__(self, name: str, command: Sequence[str], threads: int) -> None:
        """Start it and wait until its model is loaded; ``EngineError`` if that fails."""
        self.name = name
        counts = {"OMP_NUM_THREADS": str(threads), "HEADSTART_THREADS": str(threads)}
        environment = os.environ | counts | HUGE_PAGES
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment
            )
        except OSError as error:
            raise EngineError(f"{name}: {command[0]} cannot be run: {error.strerror}") from error
        self.description: dict[str, Any] = self._answer("loading")

    def ask(self, method: str, **arguments: Any) -> Any:
        """The engine's answer to one question."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"ask": method, "with": arguments}) + "\n")
        self._process.stdin.flush()
        return self._answer(method)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self, method: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EngineError(f"{self.name}: the process ended while {method}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}, {method}: {answer['error']}")
        return answer["answer"]
