"""Polynomial arithmetic: whether predicting several tokens helps a small model to calculate in F_7[X]/(X^5).

    python experiments/polynomials/run.py FOLDER [--steps 800] [--samples 30000]

A sample is an expression of m operations, m uniform on 1..3, and its value: five coefficients modulo 7, lowest first.
Operations are negation, sum, product and composition a(b(X)), on representatives of degree below 5 (Horner, cut at each
step). The tree of an expression is drawn at random, coefficients uniformly. One token a character. Every model has as many
parameters and sees the same samples. Answers are decoded greedily on the native engine; counted are whole answers that are
right, by m, and single coefficients. m above 3 was never seen in training. FOLDER takes data and models, the record is
result.json beside this file; cut and called again, it goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).with_name("result.json")
NUM_FUTURE, SEEDS = (1, 2, 4), (0,)
PRIME, DEGREE, TRAINED, TESTED, TESTS = 7, 5, 3, 4, 200
MODEL: dict[str, Any] = {
    "width": 64,
    "layers": 5,
    "heads": 2,
    "context": 128,
    "batch": 6,
    "learning_rate": 3e-3,
    "evaluations": 4,
}
CHARACTERS = "0123456-+*@()="  # - is the negation, @ the composition

Polynomial = tuple[int, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--samples", type=int, default=30_000)
    wanted = parser.parse_args()
    from headstart.measure.environment import commit, machine, versions
    from headstart.measure.report import save_json

    setting = {"steps": wanted.steps, "samples": wanted.samples, "model": MODEL}
    record = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    if {key: record.get(key) for key in setting} != setting:
        record = setting | {"runs": {}}
    data = write_data(wanted.folder, wanted.samples)
    for seed in SEEDS:
        for num_future in NUM_FUTURE:
            name = f"n{num_future}-seed{seed}"
            if name in record["runs"]:
                continue
            record["runs"][name] = run(wanted.folder, name, data, num_future, wanted.steps, seed)
            record |= {"commit": commit(), "machine": machine(), "versions": versions()}
            save_json(RESULT, record)
            print(name, record["runs"][name])


def write_data(folder: Path, samples: int) -> Path:
    """Samples as JSON Lines, and the tokenizer beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, data = np.random.default_rng(1), folder / "samples.jsonl"
    tested = {text for m in range(1, TESTED + 1) for text, _ in tests(m)}
    with data.open("w", encoding="utf-8") as file:
        for _ in range(samples):
            text, value = expression(rng, int(rng.integers(1, TRAINED + 1)))
            if text not in tested:
                file.write(json.dumps({"text": f"{text}={written(value)}"}) + "\n")
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "WordLevel",
            "vocab": {token: i for i, token in enumerate([*CHARACTERS, "<|endoftext|>"])},
            "unk_token": "<|endoftext|>",
        },
    }
    special = {"id": len(CHARACTERS), "content": "<|endoftext|>", "special": True}
    tokenizer["added_tokens"] = [special | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    return data


def tests(m: int) -> list[tuple[str, Polynomial]]:
    """The fixed test set of m operations."""
    rng = np.random.default_rng([2, m])
    return [expression(rng, m) for _ in range(TESTS)]


def expression(rng: np.random.Generator, m: int) -> tuple[str, Polynomial]:
    """A random expression of m operations, as text and its value."""
    if m == 0:
        value = tuple(int(c) for c in rng.integers(0, PRIME, DEGREE))
        return written(value), value
    operation = "-+*@"[rng.integers(4)]
    if operation == "-":
        text, value = expression(rng, m - 1)
        return f"(-{text})", tuple(-c % PRIME for c in value)
    left = int(rng.integers(0, m))
    (one, a), (other, b) = expression(rng, left), expression(rng, m - 1 - left)
    return f"({one}{operation}{other})", {"+": added, "*": multiplied, "@": composed}[operation](a, b)


def added(a: Polynomial, b: Polynomial) -> Polynomial:
    return tuple((x + y) % PRIME for x, y in zip(a, b, strict=True))


def multiplied(a: Polynomial, b: Polynomial) -> Polynomial:
    return tuple(sum(a[i] * b[k - i] for i in range(k + 1)) % PRIME for k in range(DEGREE))


def composed(a: Polynomial, b: Polynomial) -> Polynomial:
    value: Polynomial = (0,) * DEGREE
    for coefficient in reversed(a):
        value = added(multiplied(value, b), (coefficient, *(0,) * (DEGREE - 1)))
    return value


def written(value: Polynomial) -> str:
    return "".join(map(str, value))


def run(folder: Path, name: str, data: Path, num_future: int, steps: int, seed: int) -> dict[str, Any]:
    """Train one model, or take the finished one, and let it calculate."""
    import headstart as hs
    from headstart.pretrain import pretrain

    out = folder / name
    if not (out / "pretraining.json").exists():
        tokenizer = str(folder / "tokenizer.json")
        pretrain(data, out, tokenizer=tokenizer, future_tokens=num_future, steps=steps, seed=seed, **MODEL)
    trained = json.loads((out / "pretraining.json").read_text("utf-8"))
    llm = hs.load(str(out), proposer="none")
    accuracy = {}
    for m in range(1, TESTED + 1):
        asked, values = zip(*tests(m), strict=True)
        answers = llm.generate_many([f"{text}=" for text in asked], batch=16, max_tokens=DEGREE)
        said = [(answer.text, written(value)) for answer, value in zip(answers, values, strict=True)]
        digits = sum(a == b for text, value in said for a, b in zip(text, value, strict=False))
        accuracy[str(m)] = {"right": sum(text == value for text, value in said), "of": len(said), "digits": digits}
    return {
        "n": num_future,
        "seed": seed,
        "body_parameters": trained["sizes"]["body_parameters"],
        "held_out_loss": trained["curve"][-1]["held_out_loss"][0],
        "tokens": trained["progress"]["tokens"],
        "accuracy": accuracy,
    }


def table(record: Any) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and a line about how it was measured."""
    runs = list(record["runs"].values())
    rows = []
    for num_future in sorted({found["n"] for found in runs}):
        own = [found for found in runs if found["n"] == num_future]
        row = [str(num_future), str(len(own)), f"{np.mean([found['held_out_loss'] for found in own]):.3f}"]
        for m in own[0]["accuracy"]:
            right, of, digits = (sum(found["accuracy"][m][key] for found in own) for key in ("right", "of", "digits"))
            row.append(f"{right / of:.1%} ({digits / of / DEGREE:.1%})")
        rows.append(row)
    header = ["n", "seeds", "loss of the next token", *(f"m = {m}" for m in runs[0]["accuracy"])]
    how = (
        f"*{runs[0]['body_parameters'] / 1e6:.2f} million parameters each, {runs[0]['tokens'] / 1e6:.2f} million tokens seen; "
        f"right answers of {TESTS} by number of operations m (above {TRAINED}: not in training), and in brackets right "
        f"coefficients; {record['machine']['cpu']}.*"
    )
    return header, rows, how


if __name__ == "__main__":
    main()
