"""The process that an engine runs in: ``python host.py FILE ARGUMENT ...``, FILE having a class ``Engine``.

It answers each line of JSON on its standard input, ``{"ask": METHOD, "with": {ARGUMENTS}}``, with one line of JSON. The Python
that runs it may know nothing of Headstart: the standard library alone is needed here.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any


def serve(make: Callable[[], Any]) -> None:
    """Build the engine and answer with its ``describe()``, then answer requests until the input ends."""
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


if __name__ == "__main__":
    serve(lambda: runpy.run_path(sys.argv[1])["Engine"](*sys.argv[2:]))
