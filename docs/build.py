"""Fills the generated blocks of README.md and docs/*.md from committed records and from the program itself.

    python docs/build.py           write them
    python docs/build.py --check   fail if one is out of date (part of `make check`)

A block stands between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``; NAME is a function below, with its argument behind
a colon. No figure is typed by hand: tables come from the records under benchmarks/ and experiments/, help texts from `--help`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"<!-- begin: (?P<name>[^ ]+) -->\n(?P<body>.*?)<!-- end: (?P=name) -->", re.DOTALL)
CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


def main() -> int:
    """Write the documents, or check them."""
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        old = path.read_text(encoding="utf-8")
        new = BLOCK.sub(filled, old)
        if new == old:
            continue
        if "--check" in sys.argv[1:]:
            stale += difflib.unified_diff(old.splitlines(), new.splitlines(), path.name, "generated", lineterm="")
        else:
            path.write_text(new, encoding="utf-8")
    if stale:
        print("\n".join(stale), "\nrun `python docs/build.py`", file=sys.stderr)
    return 1 if stale else 0


def filled(block: re.Match[str]) -> str:
    """One block with its content made anew."""
    name, _, argument = block["name"].partition(":")
    return f"<!-- begin: {block['name']} -->\n{MAKERS[name](argument)}\n<!-- end: {block['name']} -->"


def speed(file: str) -> str:
    """Speed of every configuration of a record, over transformers' own ``generate``."""
    record = read(file)
    entries = record["configurations"]
    base = next(entry for entry in entries if entry["proposer"] == "transformers")
    rows = [
        [
            NAMES[entry["proposer"]],
            f"{entry['acceptance_length']:.2f}",
            f"{entry['ms_per_token']:.1f}",
            f"{entry['tokens_per_second']:.1f}",
            f"{entry['tokens_per_second'] / base['tokens_per_second']:.2f}",
            same(entry),
        ]
        for entry in sorted(entries, key=lambda entry: entry["tokens_per_second"])
    ]
    header = ["decoded with", "L", "ms per token", "tokens/s", "over transformers", "same tokens as plain"]
    return table(header, rows) + "\n\n" + measured(record)


def acceptance(file: str) -> str:
    """L by kind of prompt."""
    record = read(file)
    guessers = [entry for entry in record["configurations"] if entry["proposer"] != "plain"]
    kinds: dict[str, list[str]] = {"chat": [name for name in CHAT if name in record["prompts"]["categories"]]}
    kinds |= {name: [name] for name in record["prompts"]["categories"] if name not in CHAT}
    rows = []
    for kind, categories in kinds.items():
        number = sum(record["prompts"]["categories"][name] for name in categories)
        rows.append([kind, str(number), *(f"{pooled(entry, categories):.2f}" for entry in guessers)])
    rows.append(["all", str(record["prompts"]["number"]), *(f"{entry['acceptance_length']:.2f}" for entry in guessers)])
    rows.append(["all but looping outputs", "", *(without_loops(entry) for entry in guessers)])
    header = ["kind", "prompts", *(f"L, {NAMES[entry['proposer']]} ({entry['nodes'] + 1} rows)" for entry in guessers)]
    return table(header, rows) + "\n\n" + measured(record)


def lossless(files: str) -> str:
    """How many outputs equal plain decoding, over several records."""
    rows = []
    for file in files.split(","):
        record = read(file)
        for entry in record["configurations"]:
            if entry["proposer"] != "plain" and entry["identical"]:
                counts = [entry["identical"], str(entry["ties"]), str(entry["faults"])]
                rows.append([sampling(record), NAMES[entry["proposer"]], f"{entry['acceptance_length']:.2f}", *counts])
    header = ["sampling", "decoded with", "L", "identical", "ties by rounding", "faults"]
    return table(header, rows) + "\n\n" + measured(read(files.split(",")[0]))


def curve(file: str) -> str:
    """Acceptance over training, from the record beside the heads."""
    record = read(file)
    rows = [
        [f"{point['tokens'] / 1e6:.2f}", *(f"{point['predicted_length'][n]:.2f}" for n in ("8", "16"))]
        for point in record["curve"]
    ]
    return table(["million rows trained on", "L predicted, 8 rows", "16 rows"], rows)


def usage(verb: str) -> str:
    """The help text of a verb, or of the whole program."""
    verb = "" if verb == "all" else verb
    environment = os.environ | {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "headstart", *verb.split(), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    text = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return f"```text\n$ headstart {verb + ' ' if verb else ''}--help\n{text}\n```"


MAKERS: dict[str, Callable[[str], str]] = {
    "speed": speed,
    "acceptance": acceptance,
    "lossless": lossless,
    "curve": curve,
    "usage": usage,
}
NAMES = {
    "plain": "Headstart, plain",
    "transformers": "transformers `generate`",
    "ngram": "`ngram`",
    "medusa": "`medusa`",
    "draft_model": "`draft_model`",
}


def read(file: str) -> Any:
    """A committed record."""
    return json.loads((ROOT / file).read_text(encoding="utf-8"))


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, numbers to the right."""
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured(record: Any) -> str:
    """What, on what, with what."""
    machine, prompts = record["machine"], record["prompts"]
    threads = f", {machine['threads']} threads" if "threads" in machine else ""
    batch = record["configurations"][0]["batch"]
    return (
        f"*{record['model']} ({record['source']['format']}), {record['dtype']}, engine {record['engine']}; {prompts['number']} prompts"
        f" of {prompts['name']}, {sampling(record)}, {record['sampling']['max_tokens']} tokens, batch {batch}; {machine['cpu']},"
        f" {machine['cores']} cores{threads}; {record['date'][:10]}, median of {record['repeat']}.*"
    )


def sampling(record: Any) -> str:
    """The sampling in a few words."""
    settings = record["sampling"]
    if settings["temperature"] == 0:
        words = ["greedy"]
    else:
        words = [f"temperature {settings['temperature']}", f"top-p {settings['top_p']}", f"seed {settings['seed']}"]
    if settings["presence_penalty"] or settings["frequency_penalty"] or settings["repetition_penalty"] != 1:
        words.append("every penalty on")
    return ", ".join(words)


def same(entry: Any) -> str:
    """Identical outputs, and how the others are explained."""
    if entry["identical"] is None:
        return "–"
    ties = f" ({entry['ties']} ties by rounding)" if entry["ties"] else ""
    faults = f" ({entry['faults']} FAULTS)" if entry["faults"] else ""
    return entry["identical"] + ties + faults


def pooled(entry: Any, categories: list[str]) -> float:
    """L over several categories. Every answer but for its first token comes from steps."""
    parts = [entry["by_category"][name] for name in categories]
    emitted = sum(part["acceptance_length"] * part["steps"] for part in parts)
    return float(emitted / sum(part["steps"] for part in parts))


def without_loops(entry: Any) -> str:
    """L of the outputs that do not loop."""
    return f"{entry['looping']['acceptance_length_without']:.2f}"


if __name__ == "__main__":
    sys.exit(main())
