"""Induction: whether predicting two tokens makes a small model learn sooner to copy a name that it has read.

    python experiments/induction/run.py FOLDER [--steps 400]

Stories are written by a seeded grammar about characters whose names are two tokens: a first syllable and a second one, drawn
independently, so that only the story itself says which second syllable follows. Names of the test stories never occur in
training, their syllables do. The measure is accuracy on the second token of a name that the story has named before, by
teacher forcing with the next-token path, over the whole of training. Compared are n = 2, the plain model of as many
parameters, and the plain model that is as deep as the n = 2 model's next-token path. The record is result.json beside this
file; cut and called again, it goes on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

RESULT = Path(__file__).with_name("result.json")
SIZES: dict[str, dict[str, Any]] = {
    "small": {"width": 32, "layers": 3, "heads": 1},
    "larger": {"width": 64, "layers": 3, "heads": 2},
}
SEEDS = (0, 1, 2)
TRAINING: dict[str, Any] = {"context": 64, "batch": 12, "learning_rate": 4e-3}
STORIES, TEST_STORIES, MEASUREMENTS = 12_000, 100, 10
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
FIRSTS, SECONDS = [s.capitalize() for s in SYLLABLES[:24]], [f"{s}h" for s in SYLLABLES[20:44]]
PLACES = ["garden", "forest", "river", "kitchen", "castle", "market", "beach", "school", "mountain", "bridge"]
THINGS = ["ball", "lamp", "cake", "kite", "drum", "apple", "stone", "letter", "boat", "flower"]
FEELINGS = ["happy", "sad", "tired", "hungry", "proud", "afraid", "calm", "excited"]
TEMPLATES = (
    "{a} went to the {place} with {b} .",
    "there {a} found a {thing} and showed it to {b} .",
    "{b} was very {feeling} about the {thing} .",
    "then {a} asked {b} to come to the {place} .",
    "{b} gave the {thing} back to {a} .",
    "in the {place} {b} felt {feeling} and called {a} .",
    "{a} and {b} played with the {thing} all day .",
)

Name = tuple[int, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    wanted = parser.parse_args()
    from headstart.measure.environment import commit, machine, versions
    from headstart.measure.report import save_json

    setting = {"steps": wanted.steps, "sizes": SIZES, "training": TRAINING}
    record = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
    if {key: record.get(key) for key in setting} != setting:
        record = setting | {"runs": {}}
    wanted.folder.mkdir(parents=True, exist_ok=True)
    for seed in SEEDS:
        for size, options in SIZES.items():
            for kind in ("n2", "plain", "plain-shallow"):
                name = f"{size}-{kind}-seed{seed}"
                if name not in record["runs"]:
                    record["runs"][name] = {"size": size, "kind": kind, "seed": seed} | run(
                        wanted.folder / name, kind, options, wanted.steps, seed
                    )
                    record |= {"commit": commit(), "machine": machine(), "versions": versions()}
                    save_json(RESULT, record)
                    print(name, record["runs"][name]["accuracy"])


def vocabulary() -> list[str]:
    """Every word, the end of a story first."""
    words = sorted({word for template in TEMPLATES for word in template.split() if "{" not in word})
    return ["<|endoftext|>", *words, *PLACES, *THINGS, *FEELINGS, *FIRSTS, *SECONDS]


def is_tested(name: Name) -> bool:
    """Whether a name is kept for the test: one in ten."""
    return (name[0] * 7 + name[1] * 3) % 10 == 0


def story(rng: np.random.Generator, *, tested: bool) -> tuple[list[int], list[int]]:
    """Tokens of a story, and where in it second tokens of names stand that were named before."""
    ids = {word: i for i, word in enumerate(vocabulary())}
    names: list[Name] = []
    while len(names) < 2:
        name = (int(rng.integers(len(FIRSTS))), int(rng.integers(len(SECONDS))))
        if is_tested(name) == tested and name[0] not in [first for first, _ in names]:
            names.append(name)
    tokens, repeated, seen = [0], list[int](), set[Name]()
    place, thing = PLACES[rng.integers(len(PLACES))], THINGS[rng.integers(len(THINGS))]
    for template in rng.choice(len(TEMPLATES), 5, replace=False):
        for word in TEMPLATES[template].split():
            if word in ("{a}", "{b}"):
                name = names["ab".index(word[1])]
                tokens += [ids[FIRSTS[name[0]]], ids[SECONDS[name[1]]]]
                repeated += [len(tokens) - 1] if name in seen else []
                seen.add(name)
            else:
                filled = {"{place}": place, "{thing}": thing, "{feeling}": FEELINGS[rng.integers(len(FEELINGS))]}.get(
                    word, word
                )
                tokens.append(ids[filled])
    return tokens, repeated


def run(work: Path, kind: str, options: dict[str, Any], steps: int, seed: int) -> dict[str, Any]:
    """Train one model and measure it on the way."""
    from headstart.pretrain.model import FutureModel
    from headstart.pretrain.settings import PretrainSettings
    from headstart.pretrain.sizes import ModelSizes
    from headstart.pretrain.tokens import Sequences
    from headstart.pretrain.trainer import Pretrainer, Progress
    from headstart.pretrain.workers import Workers

    num_future = 2 if kind == "n2" else 1
    chosen = options | ({"layers": options["layers"] - 1} if kind == "plain-shallow" else {})
    settings = PretrainSettings(future_tokens=num_future, steps=steps, seed=seed, held_out=0.0, **chosen, **TRAINING)
    rng = np.random.default_rng(5)
    text = np.array([token for _ in range(STORIES) for token in story(rng, tested=False)[0]], dtype=np.int32)
    rng = np.random.default_rng(6)
    tests = [story(rng, tested=True) for _ in range(TEST_STORIES)]
    sizes = ModelSizes.of(settings, len(vocabulary()))
    model, curve = FutureModel(sizes, seed), list[dict[str, float]]()
    every = max(1, steps // MEASUREMENTS)

    def report(progress: Progress, loss: float) -> None:
        if progress.step % every == 0:
            curve.append({"step": progress.step, "loss": loss, "accuracy": accuracy(model, tests)})

    sequences = Sequences(text, settings.context, num_future, seed)
    checkpoint = work.with_suffix(".safetensors")
    checkpoint.unlink(missing_ok=True)  # a run is short: one that was cut begins anew, with its curve
    trainer = Pretrainer(model, sequences, None, settings, Workers("cpu"), checkpoint=checkpoint, about={}, report=report)
    trainer.run()
    checkpoint.unlink()
    return {"body_parameters": sizes.body_parameters, "curve": curve, "accuracy": curve[-1]["accuracy"]}


def accuracy(model: Any, tests: list[tuple[list[int], list[int]]]) -> float:
    """Share of repeated names whose second token the next-token path finds."""
    import torch

    length = max(len(tokens) for tokens, _ in tests)
    padded = torch.tensor([tokens + [0] * (length + model.sizes.num_future - len(tokens)) for tokens, _ in tests])
    with torch.no_grad():
        logits = next(model.logits(states) for ahead, states in model.states(model.rows(padded)) if ahead == 1)
    best = logits.argmax(dim=1).view(len(tests), length)
    right = [int(best[i, place - 1]) == tokens[place] for i, (tokens, repeated) in enumerate(tests) for place in repeated]
    return sum(right) / len(right)


def table(record: Any) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and a line about how it was measured."""
    runs, rows = list(record["runs"].values()), []
    steps = [point["step"] for point in runs[0]["curve"]]
    shown = [steps[len(steps) // 3], steps[2 * len(steps) // 3], steps[-1]]
    for size in record["sizes"]:
        for kind in ("n2", "plain", "plain-shallow"):
            own = [found for found in runs if (found["size"], found["kind"]) == (size, kind)]
            if own:
                row = [size, kind, f"{own[0]['body_parameters'] / 1e3:.0f}", str(len(own))]
                for step in shown:
                    found = [point["accuracy"] for each in own for point in each["curve"] if point["step"] == step]
                    row.append(f"{np.mean(found):.1%} ({min(found):.1%} to {max(found):.1%})")
                rows.append(row)
    header = ["size", "model", "thousand parameters", "seeds", *(f"step {step}" for step in shown)]
    how = (
        f"*accuracy on the second token of names that were read before, mean over seeds (least to most); {TEST_STORIES} "
        f"stories with names that training does not hold; {record['machine']['cpu']}.*"
    )
    return header, rows, how


if __name__ == "__main__":
    main()
