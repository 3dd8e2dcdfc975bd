"""Acceptance length of the proposers over a whole prompt set.

    python benchmarks/acceptance_length.py PROMPTS RECORD [--proposers combined,hydra,medusa,suffix,ngram] [--limit N]
        [--model MODEL] [--heads FOLDER]

L does not depend on the batch, and plain decoding need not run beside it, so this is the cheap way over hundreds of prompts.
Whether the tokens are plain's is what `bits.py` looks at; here all proposers must say the same, or there is no record. Native
engine, greedy, bfloat16, 128 tokens, 16 rows a step.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

import headstart as hs
from headstart.measure.environment import commit, machine, versions
from headstart.measure.prompts import PromptSet, prompt_set
from headstart.measure.report import save_json
from headstart.measure.samples import Sample

NODES, TOKENS, BATCH = 15, 128, 8
PROPOSERS = "combined,hydra,medusa,suffix,ngram"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("prompts")
    parser.add_argument("record")
    parser.add_argument("--proposers", default=PROPOSERS)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--heads", help="for every proposer that is named; without it those that are found")
    given = parser.parse_args()
    chosen = prompt_set(given.prompts, given.limit)
    llm = hs.load(given.model, proposer="none", target="native", dtype="bfloat16")
    heads = {"heads": given.heads} if given.heads else {}
    samples = {
        name: decoded(llm.with_proposer(name, num_nodes=NODES, **heads), name, chosen) for name in given.proposers.split(",")
    }
    texts = {name: [sample.tokens for sample in own] for name, own in samples.items()}
    first = next(iter(texts))
    for name, own in texts.items():
        if own != texts[first]:
            sys.exit(f"{name} and {first} say different things; no record is written")
    save_json(
        given.record,
        {
            "format": "headstart-acceptance-length",
            "version": 2,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": versions(),
            "machine": machine(),
            "model": llm.target.name,
            "engine": llm.target.engine,
            "dtype": llm.target.dtype,
            "prompts": chosen.describe(),
            "rows": NODES + 1,
            "max_tokens": TOKENS,
            "proposers": {name: by_kind(own, chosen) for name, own in samples.items()},
        },
    )


def decoded(llm: hs.LLM, name: str, chosen: PromptSet) -> list[Sample]:
    """Answers with one proposer, in the order of the prompts' lengths: neighbours of like length waste nothing."""
    encoded = [llm.encode(prompt.content) for prompt in chosen.prompts]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
    sampling = hs.Sampling(max_tokens=TOKENS)
    samples: list[Sample] = []
    for first in range(0, len(order), BATCH):
        part = order[first : first + BATCH]
        for i, answer in zip(part, llm.generate_encoded([encoded[i] for i in part], sampling, batch=BATCH), strict=True):
            samples.append(Sample(chosen.prompts[i].category, answer.tokens, answer.stats, answer.seconds))
        length = pooled(samples).acceptance_length
        print(f"{name}: {len(samples)} of {len(order)} prompts, L {length:.3f}", file=sys.stderr, flush=True)
    return samples


def by_kind(samples: list[Sample], chosen: PromptSet) -> dict[str, object]:
    groups = {name: [s for s in samples if s.category == name] for name in chosen.categories}
    return {
        "by_category": {name: counts(group) for name, group in groups.items()},
        "all": counts(samples),
        "looping": counts([s for s in samples if s.is_looping]),
        "not_looping": counts([s for s in samples if not s.is_looping]),
    }


def pooled(samples: list[Sample]) -> hs.Stats:
    total = hs.Stats()
    for sample in samples:
        total.add(sample.stats)
    return total


def counts(samples: list[Sample]) -> dict[str, object]:
    stats = pooled(samples)
    return {
        "prompts": len(samples),
        "steps": stats.num_steps,
        "emitted": stats.num_emitted,
        "acceptance_length": stats.acceptance_length,
        "acceptance_by_position": stats.acceptance_by_position,
    }


if __name__ == "__main__":
    main()
