"""Whether the native engine's tokens and logits are the same to the last bit, whatever way they are computed.

    python benchmarks/bits.py PROMPTS RECORD [--limit N]

Plain decoding, one sequence at a time with whole prompts, is held against every proposer (prompt lookup, suffix matching, the
shipped heads of both kinds, Medusa's with grown and with static trees, suffix matching and heads combined, a draft model of the
target's own first layers), with 1 and 8 sequences in flight, whole and
chunked prompts, 1 and 2 threads; greedy and at temperature 0.8. Two things are compared:

* tokens: all of every answer;
* logits: a digest of all bits of the logits behind every committed token, as they were computed in each of these ways and once
  more in a prefill of the whole finished text.

Each ``proposer`` meets each setting in turn, group of prompts by group of prompts. The bundled file's own 4-bit weights go
through all prompts, bfloat16 and int8 through a part. Finished groups are kept in RECORD's folder, in a file named like it that
ends in ``.groups.jsonl``; a run that was cut short goes on behind them. Three quarters of an hour on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from watched import Trace, WatchedTarget, digest

import headstart as hs
from headstart import _native, decode
from headstart.lossless import first_difference
from headstart.measure.environment import commit, machine, versions
from headstart.measure.prompts import Prompt, PromptSet, prompt_set, spread
from headstart.measure.report import check_writable, save_json
from headstart.proposers.choose import choose_proposer
from headstart.target.base import Feed
from headstart.tree import Tree

MODEL = "smollm2"
TOKENS = 64
GROUP = 8
SEED = 5
TEMPERATURES = (0.0, 0.8)
SMALL_CHUNK = 37  # rows; the loop's own chunk is larger than most prompts
PARTS = {"auto": None, "bfloat16": 32, "int8": 32}  # dtype -> prompts, spread over the categories; None: all
PROPOSERS: dict[str, dict[str, Any]] = {
    "none": {},
    "ngram": {},
    "suffix": {},
    "medusa, grown": {"growth": "dynamic"},
    "medusa, static": {"growth": "static"},
    "hydra": {},
    "combined": {},
    "draft_model": {"draft": "layers:6", "num_nodes": 3},
}


@dataclass(frozen=True, slots=True)
class Setting:
    """How the loop runs."""

    batch: int
    chunk: int
    threads: int


PLAIN = Setting(1, decode.PROMPT_CHUNK, 2)
SETTINGS = [Setting(*each) for each in itertools.product((1, 8), (decode.PROMPT_CHUNK, SMALL_CHUNK), (1, 2))]


@dataclass(frozen=True, slots=True)
class Found:
    """Some prompts' answers computed in one way."""

    answers: list[tuple[int, ...]]
    traces: list[Trace]
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--limit", type=int, help="prompts, spread evenly over the categories; default: all")
    wanted = parser.parse_args()
    check_writable(wanted.record)
    chosen = prompt_set(wanted.prompts, wanted.limit)
    kept = wanted.record.with_suffix(".groups.jsonl")
    conditions = {"commit": commit(), "prompts": chosen.describe(), "max_tokens": TOKENS, "isa": _native.isa()}
    done = read_groups(kept, conditions)
    for dtype, limit in PARTS.items():
        compare_part(dtype, spread(chosen.prompts, limit), kept, done)
    save_json(wanted.record, record(chosen, conditions, list(done.values())))
    kept.unlink()
    print(f"wrote {wanted.record}", file=sys.stderr)


def read_groups(path: Path, conditions: dict[str, Any]) -> dict[str, Any]:
    """Groups that an earlier run of the same program finished, by key; else the file begins anew."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.is_file() else []
    if lines and lines[0] == json.loads(json.dumps(conditions)):
        print(f"going on behind {len(lines) - 1} finished groups", file=sys.stderr)
        return {line["key"]: line for line in lines[1:]}
    path.write_text(json.dumps(conditions) + "\n", encoding="utf-8")
    return {}


def compare_part(dtype: str, prompts: Sequence[Prompt], kept: Path, done: dict[str, Any]) -> None:
    """Every group of prompts of one dtype at every temperature."""
    step = -(-len(prompts) // GROUP)
    groups = [prompts[i::step] for i in range(step)]  # of all kinds and lengths
    keys = [f"{dtype} {temperature} {number}" for number in range(step) for temperature in TEMPERATURES]
    if all(key in done for key in keys):
        return
    llm = hs.load(MODEL, target="native", dtype=dtype, proposer="none")
    for number, temperature in itertools.product(range(step), TEMPERATURES):
        key = f"{dtype} {temperature} {number}"
        if key in done:
            continue
        started = time.perf_counter()
        shift = number * len(TEMPERATURES) + TEMPERATURES.index(temperature)
        lines = compare_group(llm, groups[number], temperature, shift)
        seconds = time.perf_counter() - started
        done[key] = {"key": key, "dtype": llm.target.dtype, "temperature": temperature, "seconds": seconds, "ways": lines}
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[key]) + "\n")
        faults = sum(len(line["faults"]) for line in lines)
        tokens = sum(line["tokens"] for line in lines)
        print(f"{key} of {step}: {tokens} tokens, {faults} faults, {seconds:.1f} s", file=sys.stderr)


def compare_group(llm: hs.LLM, prompts: Sequence[Prompt], temperature: float, shift: int) -> list[dict[str, Any]]:
    """Plain decoding of some prompts against all other ways."""
    encoded = [llm.encode(prompt.content) for prompt in prompts]
    sampling = hs.Sampling(temperature=temperature, seed=SEED, max_tokens=TOKENS)
    plain = found(llm, "none", PLAIN, encoded, sampling)
    lines = [compared("prefill", PLAIN, prompts, plain, prefilled(llm, encoded, plain))]
    for number, name in enumerate(PROPOSERS):
        setting = SETTINGS[(shift + 3 * number) % len(SETTINGS)]
        lines.append(compared(name, setting, prompts, plain, found(llm, name, setting, encoded, sampling)))
    return lines


def found(llm: hs.LLM, name: str, setting: Setting, encoded: list[list[int]], sampling: hs.Sampling) -> Found:
    """The answers of one proposer under one setting."""
    watched = WatchedTarget(llm.target)
    options = dict(PROPOSERS[name])
    num_nodes = options.pop("num_nodes", None)
    guesser = choose_proposer(name.partition(",")[0], llm.target, llm.tokenizer, **options)
    decoding = hs.LLM(watched, llm.tokenizer, guesser, num_nodes=num_nodes)
    started = time.perf_counter()
    with under(setting):
        answers = decoding.generate_encoded(encoded, sampling, batch=setting.batch)
    return Found([answer.tokens for answer in answers], watched.traces, time.perf_counter() - started)


@contextmanager
def under(setting: Setting) -> Iterator[None]:
    """Run the loop under a setting."""
    before = decode.PROMPT_CHUNK, _native.num_threads()
    decode.PROMPT_CHUNK = setting.chunk
    _native.set_num_threads(setting.threads)
    try:
        yield
    finally:
        decode.PROMPT_CHUNK = before[0]
        _native.set_num_threads(before[1])


def prefilled(llm: hs.LLM, encoded: list[list[int]], plain: Found) -> Found:
    """The finished texts in one forward each."""
    traces = []
    started = time.perf_counter()
    for prompt, answer in zip(encoded, plain.answers, strict=True):
        text = [*prompt, *answer]
        first = len(prompt) - 1
        slot = llm.target.open()
        scored = llm.target.forward([Feed(slot, Tree.chain(text), first)])
        rows = range(first, len(text))
        logits = scored.logits([(0, row) for row in rows])
        traces.append(Trace(text, {row: digest(values) for row, values in zip(rows, logits, strict=True)}))
        llm.target.close(slot)
    return Found(plain.answers, traces, time.perf_counter() - started)


def compared(name: str, setting: Setting, prompts: Sequence[Prompt], plain: Found, other: Found) -> dict[str, Any]:
    """What was compared with plain decoding, and where it differed."""
    faults = []
    num_tokens = num_logits = 0
    for index, prompt in enumerate(prompts):
        ours, theirs = plain.answers[index], other.answers[index]
        mine, its = plain.traces[index].digests, other.traces[index].digests
        both = sorted(mine.keys() & its.keys())
        num_tokens += len(theirs) if name != "prefill" else 0
        num_logits += len(both)
        token = first_difference(ours, theirs)
        position = next((p for p in both if mine[p] != its[p]), None)
        if token is not None or position is not None:
            faults.append({"prompt": prompt.id, "token": token, "logits_at": position})
    counts = {"tokens": num_tokens, "logits": num_logits, "faults": faults, "seconds": other.seconds}
    return {"proposer": name, **asdict(setting), **counts}


def record(chosen: PromptSet, conditions: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals, and the same by what was varied."""
    ways = [way | {"dtype": group["dtype"], "temperature": group["temperature"]} for group in groups for way in group["ways"]]
    return {
        "format": "headstart-bits",
        "version": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine() | {"isa": conditions["isa"]},
        "versions": versions(),
        "commit": conditions["commit"],
        "model": MODEL,
        "prompts": chosen.describe(),
        "max_tokens": TOKENS,
        "seconds": sum(group["seconds"] for group in groups),
        **totals(ways),
        "by": {what: by(ways, what) for what in ("proposer", "dtype", "temperature", "batch", "chunk", "threads")},
        "differences": [way for way in ways if way["faults"]],
    }


def by(ways: list[dict[str, Any]], what: str) -> dict[str, dict[str, int]]:
    values = dict.fromkeys(way[what] for way in ways)
    return {str(value): totals([way for way in ways if way[what] == value]) for value in values}


def totals(ways: list[dict[str, Any]]) -> dict[str, int]:
    return {
        "compared_tokens": sum(way["tokens"] for way in ways),
        "compared_logits": sum(way["logits"] for way in ways),
        "answers_that_differ": sum(len(way["faults"]) for way in ways),
    }


if __name__ == "__main__":
    main()
