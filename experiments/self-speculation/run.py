"""Self-speculation on code: byte-level models with n = 1, 2, 4 and 8 future tokens, on Python's standard library.

    python experiments/self-speculation/run.py FOLDER [--steps 700]

Every model has as many parameters and sees the same text in the same order. FOLDER takes the text and the models; the record
is result.json beside this file. Cut and called again, it goes on. Questions: what n does to the loss of the next byte, the
bytes a step (L), and the speed over the model's own plain decoding on the native engine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

RESULT = Path(__file__).with_name("result.json")
NUM_FUTURE = (1, 2, 4, 8)
HELD_OUT = 20  # of so many files one gives a prompt and is never trained on
PROMPTS, PROMPT_BYTES, ANSWER_BYTES = 12, 64, 64
MOST_BYTES = 4_000_000
LEFT_OUT = ("site-packages", "test", "idlelib", "lib2to3", "encodings", "pydoc_data")
MODEL: dict[str, Any] = {
    "width": 64,
    "layers": 9,
    "heads": 2,
    "context": 128,
    "batch": 8,
    "learning_rate": 3e-3,
    "evaluations": 4,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=700)
    wanted = parser.parse_args()
    from headstart.measure.environment import commit, machine, versions
    from headstart.measure.report import save_json

    record = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    if record.get("steps") != wanted.steps or record.get("model") != MODEL:
        record = {"steps": wanted.steps, "model": MODEL, "runs": {}}
    data, prompts = write_text(wanted.folder)
    for num_future in NUM_FUTURE:
        if str(num_future) in record["runs"]:
            continue
        found = run(wanted.folder / f"n{num_future}", data, prompts, num_future, wanted.steps)
        record["runs"][str(num_future)] = found
        record |= {"commit": commit(), "machine": machine(), "versions": versions()}
        save_json(RESULT, record)
        print(num_future, found)


def write_text(folder: Path) -> tuple[Path, list[str]]:
    """The training text as JSON Lines, and beginnings of files that are not in it."""
    folder.mkdir(parents=True, exist_ok=True)
    data, prompts, size = folder / "text.jsonl", list[str](), 0
    with data.open("w", encoding="utf-8") as file:
        for name, text in sources():
            if int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT == 0:
                prompts += [text[:PROMPT_BYTES]] if text.isascii() and len(text) > 10 * PROMPT_BYTES else []
            elif size < MOST_BYTES:
                file.write(json.dumps({"text": text}) + "\n")
                size += len(text)
    return data, prompts[:PROMPTS]


def sources() -> Iterator[tuple[str, str]]:
    """Name and text of every module of the standard library; tests, and files that are mostly tables or prose, left out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        name = str(path.relative_to(root))
        if not any(part in name for part in LEFT_OUT):
            yield name, path.read_text(encoding="utf-8", errors="replace")


def run(out: Path, data: Path, prompts: list[str], num_future: int, steps: int) -> dict[str, Any]:
    """Train one model, or take the finished one, and measure it."""
    import headstart as hs
    from headstart.measure.bench import measure
    from headstart.pretrain import pretrain

    if not (out / "pretraining.json").exists():
        pretrain(data, out, future_tokens=num_future, steps=steps, **MODEL)
    trained = json.loads((out / "pretraining.json").read_text("utf-8"))
    llm = hs.load(str(out), proposer="none", dtype="bfloat16")
    names = ("plain",) if num_future == 1 else ("plain", "mtp")
    report = measure(llm, prompts, proposers=names, num_nodes=None, repeat=3, max_tokens=ANSWER_BYTES, ignore_eos=True)
    plain, *others = report.record["configurations"]
    keys = ("acceptance_length", "tokens_per_second", "identical", "faults")
    return {
        "body_parameters": trained["sizes"]["body_parameters"],
        "layers": trained["sizes"]["layers_of_the_next_token_path"],
        "held_out_loss": trained["curve"][-1]["held_out_loss"],
        "tokens": trained["progress"]["tokens"],
        "plain": {key: plain[key] for key in keys},
        "mtp": {key: others[0][key] for key in keys} if others else None,
    }


def table(record: Any) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and a line about how it was measured."""
    rows = []
    for name, found in record["runs"].items():
        mtp = found["mtp"]
        speedup = mtp["tokens_per_second"] / found["plain"]["tokens_per_second"] if mtp else 1.0
        rows.append(
            [
                name,
                str(found["layers"]),
                f"{found['held_out_loss'][0]:.3f}",
                f"{mtp['acceptance_length'] if mtp else 1.0:.2f}",
                f"{found['plain']['tokens_per_second']:.0f}",
                f"{speedup:.2f}",
                mtp["identical"] if mtp else "–",
            ]
        )
    header = [
        "n",
        "layers to the next byte",
        "loss of the next byte",
        "L",
        "plain bytes/s",
        "speedup of `mtp`",
        "same as plain",
    ]
    first = next(iter(record["runs"].values()))
    how = (
        f"*{first['body_parameters'] / 1e6:.2f} million parameters each, {first['tokens'] / 1e6:.2f} million bytes seen, loss "
        f"in nats on held-out text; {PROMPTS} prompts, greedy, {ANSWER_BYTES} bytes, native engine in bfloat16; "
        f"{record['machine']['cpu']}.*"
    )
    return header, rows, how


if __name__ == "__main__":
    main()
