"""An engine in a process of its own, asked for measurements over its standard streams.

Engines that are compared need environments of their own (one has no PyTorch, another no Headstart), yet must run interleaved.
So each is a worker: it loads its model once, then answers one line of JSON with one line of JSON (``host.py``). It does its own
timing, next to the work; the parent only says whose turn it is, and nobody computes but the worker that was asked.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headstart.errors import ModelError

HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "THP_MEM_ALLOC_ENABLE": "1"}
"""Lets every engine's weights lie in huge pages, as Headstart's do by themselves: llama.cpp reads up to half as fast again."""

_HOST = Path(__file__).with_name("host.py")


class Worker:
    """The parent's end of one engine."""

    def __init__(self, name: str, python: str, engine: Path, arguments: Sequence[str], threads: int) -> None:
        """Start it and wait until its model is loaded; ModelError if that fails.

        ``engine``: a file with a class ``Engine``, which is made from the ``arguments``. ``python`` runs it.
        """
        self.name = name
        counts = {"OMP_NUM_THREADS": str(threads), "HEADSTART_THREADS": str(threads)}
        environment = os.environ | counts | HUGE_PAGES
        command = [python, str(_HOST), str(engine), *arguments]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=environment,
                start_new_session=True,  # an interrupt at the terminal is the parent's, which then closes this
            )
        except OSError as error:
            raise ModelError(f"{python} cannot be run: {error.strerror}") from error
        try:
            self.description: dict[str, Any] = self._answer("loading")
        except ModelError:
            self.close()
            raise

    def ask(self, method: str, **arguments: Any) -> Any:
        """The engine's answer to one question; ModelError if it has none."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"ask": method, "with": arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise ModelError(f"{self.name}: the process ended before {method}") from None
        return self._answer(method)

    def close(self) -> None:
        """End the process."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.terminate()  # it may be amid an answer that nobody waits for any more
        process.wait()
        process.stdout.close()
        with suppress(OSError):  # a question that it did not live to read
            process.stdin.close()

    def _answer(self, method: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ModelError(f"{self.name}: the process ended while {method}")
        answer = json.loads(line)
        if "error" in answer:
            raise ModelError(f"{self.name}, {method}: {answer['error']}")
        return answer["answer"]
