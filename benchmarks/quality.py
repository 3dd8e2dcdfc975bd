"""What storing weights in fewer bits costs: how each dtype of the native engine scores given answers.

    python benchmarks/quality.py PROMPTS RECORD [--limit N]

The prompt set has no answers of its own, so PyTorch writes them in float32: greedily, and sampled at temperature 1. Then every
dtype scores every token of these answers behind the text before it:

* perplexity of the greedy and of the sampled answers;
* the divergence KL(reference || dtype) of the next token's distribution, in nats a token, over the sampled answers;
* how often the likeliest token is the reference's, over the sampled answers.

All start from the same file, whose weights are Q4_1 blocks (the embedding 8 bits), and the reference is these very weights in
float32. So ``q4_1`` shows what 8-bit activations cost, int8 and bfloat16 what one more rounding of the weights does; what the
blocks lost against the model as it was trained cannot be seen here. Some ten minutes for 80 prompts on two cores.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import headstart as hs
from headstart.measure.environment import commit, machine, versions
from headstart.measure.prompts import prompt_set
from headstart.measure.report import check_writable, save_json
from headstart.sampling import log_softmax
from headstart.target.base import Feed, Target
from headstart.tree import Tree

MODEL = "smollm2"
TOKENS = 128
BATCH = 8
DTYPES = ("float32", "bfloat16", "int8", "auto")
ANSWERS = {"greedy": hs.Sampling(max_tokens=TOKENS), "sampled": hs.Sampling(max_tokens=TOKENS, temperature=1.0, seed=1)}

Logits = NDArray[np.float64]


@dataclass(slots=True)
class Score:
    """Sums over tokens."""

    tokens: int = 0
    loss: float = 0.0  # nats
    divergence: float = 0.0  # nats
    agreeing: int = 0

    def add(self, own: Logits, reference: Logits, answer: Sequence[int]) -> None:
        """Log-probabilities [tokens, V] behind each token's prefix."""
        self.tokens += len(answer)
        self.loss -= float(own[np.arange(len(answer)), list(answer)].sum())
        self.divergence += float((np.exp(reference) * (reference - own)).sum())
        self.agreeing += int((own.argmax(axis=1) == reference.argmax(axis=1)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("record", type=Path)
    parser.add_argument("--limit", type=int, default=80, help="prompts, spread evenly over the categories")
    wanted = parser.parse_args()
    check_writable(wanted.record)
    chosen = prompt_set(wanted.prompts, wanted.limit)
    reference = hs.load(MODEL, target="hf", dtype="float32", proposer="none")
    encoded = [reference.encode(prompt.content) for prompt in chosen.prompts]
    targets = {dtype: hs.load(MODEL, target="native", dtype=dtype, proposer="none").target for dtype in DTYPES}
    scores = {kind: {name: Score() for name in ("reference", *DTYPES)} for kind in ANSWERS}
    for kind, sampling in ANSWERS.items():
        for first in range(0, len(encoded), BATCH):
            part = encoded[first : first + BATCH]
            answers = reference.generate_encoded(part, sampling, batch=BATCH)
            for prompt, answer in zip(part, answers, strict=True):
                score(scores[kind], reference.target, targets, prompt, answer.tokens)
            print(f"{kind}: {min(first + BATCH, len(encoded))} of {len(encoded)} prompts", file=sys.stderr)
    names = {dtype: target.dtype for dtype, target in targets.items()}
    save_json(
        wanted.record,
        {
            "format": "headstart-quality",
            "version": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": versions(),
            "machine": machine(),
            "model": MODEL,
            "prompts": chosen.describe(),
            "max_tokens": TOKENS,
            "answers_of": "float32, engine hf",
            "dtypes": {
                names.get(name, "reference"): {kind: described(scores[kind][name]) for kind in ANSWERS}
                for name in ("reference", *DTYPES)
            },
        },
    )
    print(f"wrote {wanted.record}", file=sys.stderr)


def score(
    scores: dict[str, Score], reference: Target, targets: dict[str, Target], prompt: list[int], answer: tuple[int, ...]
) -> None:
    given = log_probabilities(reference, prompt, answer)
    scores["reference"].add(given, given, answer)
    for name, target in targets.items():
        scores[name].add(log_probabilities(target, prompt, answer), given, answer)


def log_probabilities(target: Target, prompt: list[int], answer: tuple[int, ...]) -> Logits:
    """[tokens, V]: of every token of the answer, behind the text before it."""
    text = [*prompt, *answer[:-1]]
    first = len(prompt) - 1
    slot = target.open()
    logits = target.forward([Feed(slot, Tree.chain(text), first)]).logits([(0, row) for row in range(first, len(text))])
    target.close(slot)
    return log_softmax(logits)


def described(score: Score) -> dict[str, float]:
    return {
        "tokens": score.tokens,
        "perplexity": math.exp(score.loss / score.tokens),
        "divergence": score.divergence / score.tokens,
        "same_best_token": score.agreeing / score.tokens,
    }


if __name__ == "__main__":
    main()
