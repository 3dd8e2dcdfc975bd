"""Forwards of 1 to 32 rows, prompts and plain decoding of every engine, against the machine's limits."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from headstart import _native
from headstart.measure.peers.worker import Worker

ROWS = (1, 2, 4, 8, 12, 16, 24, 32)
CONTEXT = 300
TIMES = 5  # forwards a repetition, of which the median counts
TOKENS = 128
PROMPT_TOKENS = 512
QUESTION = "Why is the sky blue?"
READ_BYTES = 512 << 20  # far more than any cache holds
READS = 5

Samples = dict[str, dict[Any, list[float]]]  # [engine][what][repetition], seconds


def measured(workers: Mapping[str, Worker], threads: int, repeat: int, show: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """The part of the record that holds ``bandwidth_gb_s``, ``peak_gflop_s`` and ``engines``, after each repetition."""
    samples: Samples = {name: defaultdict(list) for name in workers}
    bandwidths: list[float] = []
    products: dict[str, list[float]] = defaultdict(list)
    question = _question(workers)
    names = list(workers)
    for number in range(repeat):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            show(name)
            bandwidths.append(bandwidth(threads))
            _once(workers[name], samples[name], question)
            if name in ("native-bf16", "pytorch-bf16"):
                products[name].append(workers[name].ask("product"))
        yield _part(workers, samples, bandwidths, products, number + 1)


def bandwidth(threads: int) -> float:
    """GB/s of all threads together, reading huge pages in ascending order: the best of a few reads."""
    _native.set_num_threads(threads)
    return READ_BYTES / min(_native.read_times(READ_BYTES, READS)) / 1e6


def _part(
    workers: Mapping[str, Worker], samples: Samples, bandwidths: list[float], products: dict[str, list[float]], repeat: int
) -> dict[str, Any]:
    bandwidth = statistics.median(bandwidths)
    peak = max((max(seen) for seen in products.values()), default=None)
    return {
        "bandwidth_gb_s": bandwidth,
        "bandwidth_gb_s_seen": {"least": min(bandwidths), "most": max(bandwidths)},
        "peak_gflop_s": peak,
        "peak_gflop_s_by_engine": {name: max(seen) for name, seen in products.items()},
        "repeat": repeat,
        "context": CONTEXT,
        "prompt_tokens": PROMPT_TOKENS,
        "plain_tokens": TOKENS,
        "engines": {name: _entry(worker.description, samples[name], bandwidth, peak) for name, worker in workers.items()},
    }


def _question(workers: Mapping[str, Worker]) -> list[int]:
    own = next((worker for worker in workers.values() if not worker.name.startswith("llama.cpp")), None)
    if own is None:
        return list(range(5, 35))
    tokens: list[int] = own.ask("encode", prompts=[QUESTION])[0]
    return tokens


def _once(worker: Worker, samples: dict[Any, list[float]], question: list[int]) -> None:
    worker.ask("forward", rows=1, context=CONTEXT, times=2)  # the caches forget the engine before
    for rows in ROWS:
        samples["forward", rows].append(statistics.median(worker.ask("forward", rows=rows, context=CONTEXT, times=TIMES)))
    if worker.name.startswith("native"):
        for rows in ROWS:
            parts = worker.ask("split", rows=rows, context=CONTEXT, times=TIMES)
            for part in ("linear", "attention", "other"):
                samples[part, rows].append(statistics.median(each[part] for each in parts))
    samples["prompt"].append(worker.ask("prompt", tokens=list(range(5, 5 + PROMPT_TOKENS))))
    samples["plain"].append(worker.ask("generate", prompt=question, max_tokens=TOKENS, ignore_end=True)["seconds"])


def _entry(
    description: dict[str, Any], samples: dict[Any, list[float]], bandwidth: float, peak: float | None
) -> dict[str, Any]:
    weight_bytes, weights = description["weight_bytes"], description["num_weights"]
    reading = weight_bytes / bandwidth / 1e6
    roofline = {n: max(reading, 2 * weights * n / peak / 1e6 if peak else 0.0) for n in ROWS}
    entry = {
        **description,
        "ms_by_rows": {n: 1e3 * statistics.median(samples["forward", n]) for n in ROWS},
        "least_ms_by_rows": {n: 1e3 * min(samples["forward", n]) for n in ROWS},
        "roofline_ms_by_rows": roofline,
        "plain_tokens_per_second": TOKENS / statistics.median(samples["plain"]),
        "most_plain_tokens_per_second": TOKENS / min(samples["plain"]),
        "prompt_tokens_per_second": PROMPT_TOKENS / statistics.median(samples["prompt"]),
        "most_prompt_tokens_per_second": PROMPT_TOKENS / min(samples["prompt"]),
    }
    if ("linear", 1) in samples:
        parts = ("linear", "attention", "other")
        entry["linear_ms_by_rows"] = {n: 1e3 * statistics.median(samples["linear", n]) for n in ROWS}
        entry["least_linear_ms_by_rows"] = {n: 1e3 * min(samples["linear", n]) for n in ROWS}
        entry["split_ms"] = {part: 1e3 * statistics.median(samples[part, 1]) for part in parts}
        entry["split_share"] = _shares(entry["split_ms"])
    return entry


def _shares(parts: dict[str, float]) -> dict[str, float]:
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()}
