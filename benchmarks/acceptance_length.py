"""Acceptance length of the shipped heads over a whole prompt set.

    python benchmarks/acceptance_length.py PROMPTS RECORD

L does not depend on the batch, and plain decoding need not run beside it, so this is the cheap way over hundreds of prompts.
Whether the tokens are plain's is what `bits.py` looks at. Native engine, greedy, bfloat16, 128 tokens, 16 rows a step.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

import headstart as hs
from headstart.measure.prompts import prompt_set
from headstart.measure.record import Sample, commit, machine, versions
from headstart.measure.report import save_json

NODES, TOKENS, BATCH = 15, 128, 8


def main(prompts: str, record: str) -> None:
    chosen = prompt_set(prompts)
    llm = hs.load("smollm2", proposer="medusa", target="native", dtype="bfloat16", num_nodes=NODES)
    encoded = [llm.encode(prompt.content) for prompt in chosen.prompts]
    order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))  # neighbours of like length waste nothing
    sampling = hs.Sampling(max_tokens=TOKENS)
    samples: list[Sample] = []
    for first in range(0, len(order), BATCH):
        part = order[first : first + BATCH]
        for i, answer in zip(part, llm.generate_encoded([encoded[i] for i in part], sampling, batch=BATCH), strict=True):
            samples.append(Sample(chosen.prompts[i].category, answer.tokens, answer.stats, answer.seconds))
        print(f"{len(samples)} of {len(order)} prompts, L {pooled(samples).acceptance_length:.3f}", file=sys.stderr)
    groups = {name: [s for s in samples if s.category == name] for name in chosen.categories}
    save_json(
        record,
        {
            "format": "headstart-acceptance-length",
            "version": 1,
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
            "by_category": {name: counts(group) for name, group in groups.items()},
            "all": counts(samples),
            "looping": counts([s for s in samples if s.is_looping]),
            "not_looping": counts([s for s in samples if not s.is_looping]),
        },
    )


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
    main(*sys.argv[1:])
