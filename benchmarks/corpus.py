"""How fast a model writes its own training text on the native engine, as `headstart train` lets it.

    python benchmarks/corpus.py RECORD [--dtypes auto,bfloat16] [--batches 64] [--seconds 40] [--corpus FOLDER]

For each dtype of the weights and each number of conversations at once the writer runs for `--warm` seconds, until answers end
as often as they begin, and is then counted for `--seconds`: tokens that it writes a second, and supervised ones among them,
which are those of answers in finished documents (the rest are users' turns, and what comes to nothing). Saving is in the time.

The bandwidth of the machine's memory is read before and behind each run: it moves with the neighbours, and the writer with it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import forwards

from headstart import _native
from headstart.heads.base import BaseIdentity
from headstart.measure.environment import commit, machine, versions
from headstart.measure.report import check_writable, save_json
from headstart.target.loading import load_model
from headstart.target.machine import runtime
from headstart.train import TrainSettings
from headstart.train.base import TokenizerCodec
from headstart.train.capture import StateFiles
from headstart.train.corpus import Corpus
from headstart.train.filling import fill
from headstart.train.writer import Writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtypes", default="auto,bfloat16")
    parser.add_argument("--batches", default=str(TrainSettings().writer_batch))
    parser.add_argument("--warm", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="folder that takes what is written; without it nothing is kept")
    wanted = parser.parse_args()
    check_writable(wanted.record)
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in wanted.dtypes.split(","):
            for batch in map(int, wanted.batches.split(",")):
                place = (wanted.corpus or Path(scratch)) / f"{dtype}-{batch}"
                runs.append(run(wanted, dtype, batch, place))
                print(runs[-1], file=sys.stderr)
    save_json(
        wanted.record,
        {
            "format": "headstart-corpus-speed",
            "version": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": versions(),
            "machine": machine() | runtime("native"),
            "model": wanted.model,
            "warm": wanted.warm,
            "seconds": wanted.seconds,
            "runs": runs,
        },
    )


def run(wanted: argparse.Namespace, dtype: str, batch: int, place: Path) -> dict[str, Any]:
    """Tokens a second of one setting."""
    loaded = load_model(wanted.model, dtype=dtype, engine="native")
    target, settings = loaded.target, TrainSettings(writer_batch=batch, seed=wanted.seed)
    corpus = Corpus(place / "corpus", BaseIdentity.of(target).fingerprint)
    states = StateFiles(place / "states", (), target, settings.states_dtype)
    writer = Writer(
        target,
        TokenizerCodec(loaded.tokenizer),
        batch=batch,
        answer_tokens=settings.answer_tokens,
        question_tokens=settings.question_tokens,
        seed=wanted.seed,
    )
    seen: list[tuple[float, int, int]] = []  # when, supervised tokens so far, all tokens so far

    def report(have: int, _: float) -> None:
        seen.append((time.monotonic(), have, writer.num_written))

    bandwidths = [forwards.bandwidth(_native.num_threads())]
    began = time.monotonic()
    deadline = began + wanted.warm + wanted.seconds
    documents = fill(corpus, writer, num_tokens=sys.maxsize, deadline=deadline, report=report, states=states)
    bandwidths.append(forwards.bandwidth(_native.num_threads()))
    # The last report also counts what was cut off at the deadline.
    first, last = next(point for point in seen if point[0] - began >= wanted.warm), seen[-2]
    seconds = last[0] - first[0]
    return {
        "dtype": target.dtype,
        "batch": batch,
        "documents": len(documents),
        "supervised_per_second": (last[1] - first[1]) / seconds,
        "written_per_second": (last[2] - first[2]) / seconds,
        "seconds": seconds,
        "bandwidth_gb_s": bandwidths,
    }


if __name__ == "__main__":
    main()
