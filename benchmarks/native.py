"""What the native engine gives beside llama.cpp and PyTorch, and beside what the machine allows.

    make bench-native OUT=RECORD [PROMPTS=FILE] [PEER_PYTHON=PYTHON]
    python benchmarks/native.py RECORD [--prompts FILE] [--peer-python PYTHON] [--files FOLDER] [--repeat N] ...

All engines run on the same weights (``make_gguf.py`` writes the files) and take turns: in every repetition each of them is
measured once, after a look at the bandwidth of that moment, and who goes first rotates. Times are medians over the
repetitions, with the minima beside them.

* T(n): one whole forward over n rows behind 300 tokens of context, with the logits of all n rows.
* R(n), the roofline: max(weight bytes / bandwidth, 2 x weights x n / peak). Bandwidth is that of the same run; peak is the best
  large bfloat16 product that any engine showed in it.
* Plain decoding: greedy, 128 tokens behind a short prompt. Prompts: 512 tokens.
* With ``--prompts`` (JSONL of Spec-Bench's form; its chat categories are taken): tokens a second with the shipped heads and
  with prompt lookup, beside llama.cpp's plain decoding of the same prompts.

llama.cpp runs under ``--peer-python``, the Python of an environment with ``llama-cpp-python`` and ``gguf`` (default: this one).
What is not installed is named and left out. Some four minutes without prompts, and ten more with 16 of them; the record is
written after each repetition. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import chat
import contenders
import forwards

from headstart.measure.environment import commit, machine, versions
from headstart.measure.peers.worker import Worker
from headstart.measure.report import check_writable, save_json


def main() -> None:
    wanted = arguments()
    check_writable(wanted.record)
    known = {contender.name: contender for contender in contenders.CONTENDERS}
    names = wanted.only.split(",") if wanted.only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{unknown[0]} is no engine of this comparison; they are {', '.join(known)}")
    workers, missing = contenders.start([known[name] for name in names], wanted.files, wanted.peer_python, wanted.threads)
    if not workers:
        sys.exit("no engine could be started")
    record = head(wanted, workers, missing)
    for part in forwards.measured(workers, wanted.threads, wanted.repeat, progress(wanted.repeat * len(workers))):
        record |= part
        save_json(wanted.record, record)
    if wanted.prompts is None:
        print("no --prompts: decoding with heads and prompt lookup is left out", file=sys.stderr)
    else:
        record["chat"] = chat.measured(workers, wanted.prompts, wanted.limit, wanted.repeat_chat)
        save_json(wanted.record, record)
    for worker in workers.values():
        worker.close()
    print(f"wrote {wanted.record}", file=sys.stderr)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path, help="the JSON file that is written")
    prompts = os.environ.get("PROMPTS")
    parser.add_argument("--prompts", type=Path, default=prompts, help="prompts for decoding with heads and prompt lookup")
    python = os.environ.get("PEER_PYTHON", sys.executable)
    parser.add_argument("--peer-python", default=python, help="Python that has llama-cpp-python")
    parser.add_argument("--files", type=Path, default=Path("build/gguf"), help="folder of the model's files, made if missing")
    parser.add_argument("--repeat", type=int, default=7, help="repetitions")
    parser.add_argument("--repeat-chat", type=int, default=3, help="repetitions of the chat prompts")
    parser.add_argument("--limit", type=int, default=16, help="chat prompts, spread evenly over the categories")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", help="engines to measure, separated by commas")
    return parser.parse_args()


def head(wanted: argparse.Namespace, workers: dict[str, Worker], missing: dict[str, str]) -> dict[str, Any]:
    return {
        "format": "headstart-native",
        "version": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine() | {"threads": wanted.threads},
        "versions": versions() | {name: worker.description["version"] for name, worker in workers.items()},
        "missing": missing,
    }


def progress(total: int) -> Callable[[str], None]:
    done = 0

    def show(what: str) -> None:
        nonlocal done
        done += 1
        print(f"{done}/{total} {what}", file=sys.stderr)

    return show


if __name__ == "__main__":
    main()
