"""``auto`` beside plain decoding and every fixed choice, in one interleaved run.

    python benchmarks/auto.py PROMPTS RECORD [--dtypes bfloat16,auto] [--temperatures 0,0.7,1.0] [--batches 1,4,16,32]
                              [--ways auto,medusa:3,...] [--limit N] [--repeat N] [--tokens N]

A *cell* is one dtype, temperature, number of sequences in flight and group of prompts. All ways decode a cell in turns, who
goes first rotates, and a cell is written to the record as soon as it is done; a second call with the same settings goes on
where the first one was cut. Three kinds of text:

* the prompts, by category; batches of more than one are mixed from all categories;
* ``random``: prompts of random tokens at a temperature of 20, where nothing can be guessed;
* every way named ``useless`` is ``auto`` with heads of random weights, whose folder promises what the real ones hold.

Seconds are medians over the repetitions; ratios are medians over cells of paired times. A ratio to the best fixed choice
compares with the fixed way that was fastest in that category, chosen afterwards. Every way must give plain's tokens, or there
is no record.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cut_record import begun, settings_of

import headstart as hs
from headstart.heads.base import find_heads, load_heads, save_heads
from headstart.measure.prompts import prompt_set
from headstart.measure.report import check_writable, save_json
from headstart.target.machine import runtime

FORMAT, VERSION = "headstart-auto", 1
WAYS = "plain,auto,useless,ngram:7,suffix:15,medusa:3,medusa:7,combined:7,combined:15"
RANDOM, RANDOM_TEMPERATURE, RANDOM_TOKENS = "random", 20.0, 60
SEED = 5


@dataclass(frozen=True, slots=True)
class Cell:
    """What is decoded at once."""

    dtype: str
    temperature: float
    batch: int
    category: str
    name: str
    prompts: tuple[tuple[int, ...], ...]

    @property
    def key(self) -> str:
        """Its name in the record."""
        return f"{self.dtype} T{self.temperature:g} x{self.batch} {self.category} {self.name}"


def main() -> None:
    given = arguments()
    check_writable(given.record)
    parts: dict[str, Any] = {name: {} for name in ("dtypes", "prompts", "results", "explain", "cells")}
    record = begun(given.record, FORMAT, VERSION, settings_of(given), **parts)
    for dtype in given.dtypes.split(","):
        llm = hs.load("smollm2", proposer="none", target="native", dtype=dtype)
        with tempfile.TemporaryDirectory() as folder:
            ways = {name: way(llm, name, Path(folder) / "heads") for name in ["plain", *others(given.ways)]}
            record["machine"] |= runtime("native")
            record["dtypes"][dtype] = llm.target.dtype
            record["prompts"] = prompt_set(given.prompts, given.limit).describe()
            work = [cell for cell in cells(llm, dtype, given) if cell.key not in record["cells"]]
            warm_up(ways, work)
            for number, cell in enumerate(work, start=1):
                record["cells"][cell.key] = measured(ways, cell, given)
                record["results"] = results(record["cells"])
                record["explain"][dtype] = ways["auto"].explain() if "auto" in ways else None
                save_json(given.record, record)
                print(f"{dtype}: {number} of {len(work)}, {cell.key}", file=sys.stderr, flush=True)
    print(table(record["results"]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--dtypes", default="bfloat16,auto")
    parser.add_argument("--temperatures", default="0,0.7,1.0")
    parser.add_argument("--batches", default="1,4,16,32")
    parser.add_argument("--ways", default=WAYS, help="names, a fixed proposer with its nodes behind a colon")
    parser.add_argument("--limit", type=int, default=30, help="prompts, spread evenly over the categories")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    return parser.parse_args()


def others(ways: str) -> list[str]:
    return [name for name in ways.split(",") if name != "plain"]


def way(llm: hs.LLM, name: str, folder: Path) -> hs.LLM:
    """One way of decoding with the same weights."""
    if name == "plain":
        return llm
    if name == "auto":
        return llm.with_proposer("auto")
    if name == "useless":
        found = find_heads(llm.target.fingerprint)
        if found is None:
            sys.exit("there are no heads for this model, whose form useless ones could have")
        heads, rng = load_heads(found, llm.target), np.random.default_rng(0)
        noise = {key: rng.standard_normal(t.shape).astype(np.float32) for key, t in heads.tensors.items()}
        save_heads(folder, replace(heads, tensors=noise))
        return llm.with_proposer("auto", heads=str(folder))
    proposer, _, nodes = name.partition(":")
    return llm.with_proposer(proposer, num_nodes=int(nodes))


def cells(llm: hs.LLM, dtype: str, given: argparse.Namespace) -> Iterator[Cell]:
    """Batches of one by prompt, larger ones mixed; and random tokens for each size."""
    chosen = prompt_set(given.prompts, given.limit).prompts
    encoded = [tuple(llm.encode(prompt.content)) for prompt in chosen]
    rng = np.random.default_rng(1)
    for batch in map(int, given.batches.split(",")):
        for temperature in map(float, given.temperatures.split(",")):
            if batch == 1:
                for prompt, tokens in zip(chosen, encoded, strict=True):
                    yield Cell(dtype, temperature, 1, prompt.category, prompt.id, (tokens,))
            else:
                for first in range(0, max(len(encoded) // batch, 1) * batch, batch):
                    group = tuple(encoded[i % len(encoded)] for i in range(first, first + batch))
                    yield Cell(dtype, temperature, batch, "mixed", str(first), group)
        for number in range(3):
            shape = (batch, RANDOM_TOKENS)
            group = tuple(tuple(map(int, row)) for row in rng.integers(0, llm.target.vocab_size, shape))
            yield Cell(dtype, RANDOM_TEMPERATURE, batch, RANDOM, str(number), group)


def warm_up(ways: dict[str, hs.LLM], work: list[Cell]) -> None:
    for llm in ways.values():
        if work:
            llm.generate_encoded(work[0].prompts[:1], hs.Sampling(max_tokens=8))


def measured(ways: dict[str, hs.LLM], cell: Cell, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds, tokens and steps of every way."""
    sampling = hs.Sampling(max_tokens=given.tokens, temperature=cell.temperature, seed=SEED, ignore_eos=cell.category == RANDOM)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found: dict[str, dict[str, Any]] = {}
    texts = {}
    names = list(ways)
    for number in range(given.repeat):
        for name in (*names[number % len(names) :], *names[: number % len(names)]):
            started = time.perf_counter()
            answers = ways[name].generate_encoded(cell.prompts, sampling, batch=cell.batch)
            seconds[name].append(time.perf_counter() - started)
            texts[name] = [answer.tokens for answer in answers]
            counts = [answer.stats for answer in answers]
            found[name] = {
                "tokens": sum(map(len, texts[name])),
                "steps": sum(one.num_steps for one in counts),
                "emitted": sum(one.num_emitted for one in counts),
                "drafted": sum(one.num_drafted for one in counts),
            }
    for name, text in texts.items():
        if text != texts["plain"]:
            sys.exit(f"{cell.key}: {name} says something else than plain decoding; no record is written")
    return {name: entry | {"seconds": statistics.median(seconds[name])} for name, entry in found.items()}


def results(done: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """By dtype, temperature, batch and category: tokens a second, L, and ratios to plain and to the best fixed way."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for key, entry in done.items():
        groups.setdefault(" ".join(key.split()[:4]), []).append(entry)
    return {key: summary(entries) for key, entries in groups.items()}


def summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    ways: dict[str, Any] = {}
    for name in entries[0]:
        own = [entry[name] for entry in entries]
        emitted, steps = sum(e["emitted"] for e in own), sum(e["steps"] for e in own)
        ways[name] = {
            "tokens_per_second": sum(e["tokens"] for e in own) / sum(e["seconds"] for e in own),
            "acceptance_length": emitted / steps if steps else 1.0,
            "over_plain": paired(entries, name, "plain"),
        }
    fixed = [name for name in ways if name not in ("auto", "useless")]
    best = max(fixed, key=lambda name: ways[name]["tokens_per_second"])
    ratios = {f"{name}_over_best": paired(entries, name, best) for name in ("auto", "useless") if name in ways}
    return {"cells": len(entries), "ways": ways, "best_fixed": best, **ratios}


def paired(entries: list[dict[str, Any]], name: str, other: str) -> float:
    """Median over cells of how much faster one way is than another."""
    return statistics.median(entry[other]["seconds"] / entry[name]["seconds"] for entry in entries)


def table(found: dict[str, Any]) -> str:
    lines = [
        f"{'cell':44s} {'plain':>7s} {'auto':>7s} {'/plain':>7s} {'/best':>6s} {'L':>5s} {'useless/plain':>14s}  best fixed"
    ]
    for key, entry in found.items():
        ways = entry["ways"]
        auto, useless = ways.get("auto"), ways.get("useless")
        cells_of = [f"{ways['plain']['tokens_per_second']:7.1f}"]
        if auto:
            cells_of += [f"{auto['tokens_per_second']:7.1f}", f"{auto['over_plain']:7.2f}", f"{entry['auto_over_best']:6.2f}"]
            cells_of += [f"{auto['acceptance_length']:5.2f}"]
        cells_of += [f"{useless['over_plain']:14.2f}" if useless else f"{'':14s}", f" {entry['best_fixed']}"]
        lines.append(f"{key:44s} " + " ".join(cells_of))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
