"""Speedups by sequences in flight and temperature: the table that shows where speculation pays on this machine.

    python benchmarks/table.py PROMPTS RECORD [--dtypes bfloat16,auto] [--batches 1,2,4,8,16,32]
                               [--temperatures 0,0.7,1.0] [--proposers plain,ngram,medusa,hydra,auto]
                               [--limit N] [--repeat N] [--tokens N]

Each operating point is one measurement as ``headstart measure`` makes it, all proposers interleaved over the same prompts;
it is written as soon as it is done, and a second call with the same settings and commit goes on where the first one was cut.
A point has ``--limit`` prompts, or as many as it has sequences in flight if those are more.

Half an hour for each dtype; ``--dtypes bfloat16 --limit 16 --tokens 64`` fills all eighteen points of one in about ten minutes.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

from cut_record import begun, settings_of

import headstart as hs
from headstart.measure.prompts import prompt_set
from headstart.measure.report import check_writable, save_json
from headstart.target.machine import runtime

FORMAT, VERSION = "headstart-table", 1
KEPT = (
    "proposer", "accept", "in_flight", "tokens", "seconds", "tokens_per_second", "ms_per_token", "steps", "drafted",
    "accepted", "acceptance_length", "speedup", "speedup_interval", "latency", "identical", "ties", "faults", "timings", "cost",
    "utilisation", "predicted",
)  # fmt: skip


def main() -> None:
    given = arguments()
    check_writable(given.record)
    batches, temperatures = [int(b) for b in given.batches.split(",")], map(float, given.temperatures.split(","))
    prompts = prompt_set(given.prompts, max(given.limit, *batches))
    record = begun(given.record, FORMAT, VERSION, settings_of(given), prompts=prompts.describe(), points={})
    record["machine"] |= runtime("native")
    work = list(product(given.dtypes.split(","), batches, temperatures))
    for dtype in given.dtypes.split(","):
        own = [point for point in work if point[0] == dtype and key(*point) not in record["points"]]
        if not own:
            continue
        llm = hs.load("smollm2", target="native", dtype=dtype)
        for _, batch, temperature in own:
            print(f"{len(record['points']) + 1} of {len(work)}: {key(dtype, batch, temperature)}", file=sys.stderr, flush=True)
            record["points"][key(dtype, batch, temperature)] = measured(llm, batch, temperature, given)
            save_json(given.record, record)
    print(f"wrote {given.record}", file=sys.stderr)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--dtypes", default="bfloat16,auto")
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--temperatures", default="0,0.7,1.0")
    parser.add_argument("--proposers", default="plain,ngram,medusa,hydra,auto")
    parser.add_argument("--limit", type=int, default=32, help="prompts of a point, spread evenly over the categories")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    return parser.parse_args()


def key(dtype: str, batch: int, temperature: float) -> str:
    return f"{dtype} x{batch} T{temperature:g}"


def measured(llm: hs.LLM, batch: int, temperature: float, given: argparse.Namespace) -> dict[str, Any]:
    """One operating point: every proposer's figures, by name."""
    report = hs.measure(
        llm,
        prompt_set(given.prompts, max(given.limit, batch)),
        proposers=given.proposers.split(","),
        batch=batch,
        temperature=temperature,
        max_tokens=given.tokens,
        repeat=given.repeat,
    )
    record = report.record
    if report.num_faults:
        sys.exit(
            f"batch {batch}, T {temperature:g}: {report.num_faults} answers are not plain decoding's; no record is written"
        )
    entries = {entry["proposer"]: {name: entry[name] for name in KEPT} for entry in record["configurations"]}
    return {
        "dtype": llm.target.dtype,
        "batch": batch,
        "temperature": temperature,
        "prompts": record["prompts"]["number"],
        "targets": record["targets"],
        "ways": entries,
    }


if __name__ == "__main__":
    main()
