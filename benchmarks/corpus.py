"""How fast a model writes its own training text on the native engine, as `headstart train` lets it.

    python benchmarks/corpus.py RECORD --corpus FOLDER [--dtype auto|stored|bfloat16|..] [--batch 64] [--seconds 55]

A call is one sitting of a corpus in FOLDER, which later calls go on with; the record takes a run more each time. The writer
runs for `--warm` seconds, until answers end as often as they begin, and is then counted for `--seconds`: all tokens that it
writes a second, and the supervised ones among them, which are those of answers in finished documents. The rest are users' turns
and what came to nothing. Saving documents and their hidden states is in the time. Calls with different dtypes by turns have the
machine's moods alike.

The bandwidth of the machine's memory is read before and behind each run: it moves with the neighbours, and the writer with it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import forwards
from cut_record import begun

from headstart import _native
from headstart.heads.base import BaseIdentity
from headstart.measure.report import check_writable, save_json
from headstart.target.loading import load_model
from headstart.target.machine import runtime
from headstart.train import TrainSettings
from headstart.train.base import TokenizerCodec, writing_target
from headstart.train.capture import StateFiles
from headstart.train.corpus import Corpus
from headstart.train.filling import fill
from headstart.train.generation import copying
from headstart.train.writer import Writer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument(
        "--corpus", type=Path, required=True, help="folder that takes what is written, a corpus for each setting"
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default=TrainSettings().writer_dtype)
    parser.add_argument("--batch", type=int, default=TrainSettings().writer_batch)
    parser.add_argument("--warm", type=float, default=25.0)
    parser.add_argument("--seconds", type=float, default=55.0)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    check_writable(wanted.record)
    settings = {name: getattr(wanted, name) for name in ("model", "warm", "seconds", "seed")}
    record = begun(wanted.record, "headstart-corpus-speed", 2, settings, runtime=runtime("native"), runs=[])
    record["runs"].append(run(wanted))
    print(record["runs"][-1], file=sys.stderr)
    save_json(wanted.record, record)


def run(wanted: argparse.Namespace) -> dict[str, Any]:
    """Tokens a second of one sitting."""
    target, _ = writing_target(wanted.model, wanted.dtype)
    if target is None:
        sys.exit(f"{wanted.model} cannot run on the native engine")
    settings = TrainSettings(writer_batch=wanted.batch, seed=wanted.seed)
    place = wanted.corpus / f"{target.dtype}-{wanted.batch}"
    corpus = Corpus(place / "corpus", BaseIdentity.of(target).fingerprint)
    before = corpus.read()
    states = StateFiles(place / "states", before, target, settings.states_dtype)
    writer = Writer(
        target,
        TokenizerCodec(load_model(wanted.model, engine="native").tokenizer),
        batch=wanted.batch,
        answer_tokens=settings.answer_tokens,
        question_tokens=settings.question_tokens,
        seed=wanted.seed,
        proposer=copying(target),
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
        "batch": wanted.batch,
        "documents_before": len(before),
        "documents": len(documents) - len(before),
        "supervised_per_second": (last[1] - first[1]) / seconds,
        "written_per_second": (last[2] - first[2]) / seconds,
        "seconds": seconds,
        "bandwidth_gb_s": bandwidths,
    }


if __name__ == "__main__":
    main()
