"""Sequential heads against parallel ones, trained on the same text for the same minutes: L and tokens a second.

    python experiments/equal-minutes/run.py FOLDER PROMPTS [--limit N] [--minutes-of-cpu MEDUSA HYDRA]

FOLDER holds what the two commands of the README wrote: ``medusa/heads`` and ``hydra/heads``.
Both kinds decode each prompt beside plain decoding, in turns, at each draft size: greedy, native engine, one sequence. Every
answer must be plain's. Tokens a second are over all prompts; a ratio is the median of the prompts' ratios.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).with_name("result.json")
KINDS, NODES, DTYPES, TOKENS = ("medusa", "hydra"), (3, 7, 15), ("bfloat16", "auto"), 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("prompts")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--minutes-of-cpu", nargs=2, type=float, metavar=("MEDUSA", "HYDRA"), required=True)
    given = parser.parse_args()
    from headstart.measure.environment import commit, machine, versions
    from headstart.measure.prompts import prompt_set
    from headstart.measure.report import save_json

    chosen = prompt_set(given.prompts, given.limit)
    trained = {}
    for kind, minutes in zip(KINDS, given.minutes_of_cpu, strict=True):
        shutil.copyfile(given.folder / kind / "heads" / "training.json", RESULT.with_name(f"{kind}.json"))
        training = json.loads(RESULT.with_name(f"{kind}.json").read_text(encoding="utf-8"))
        trained[kind] = about(training) | {"cpu_minutes": minutes}
    decoded = {dtype: compared(given.folder, dtype, [prompt.content for prompt in chosen.prompts]) for dtype in DTYPES}
    save_json(
        RESULT,
        {
            "trained": trained,
            "decoded": decoded,
            "prompts": chosen.describe(),
            "tokens": TOKENS,
            "commit": commit(),
            "machine": machine(),
            "versions": versions(),
        },
    )


def about(training: dict[str, Any]) -> dict[str, Any]:
    """What a run learned from, and its curve."""
    progress = training["progress"]
    return {"steps": progress["step"], "places": progress["num_tokens"], "curve": progress["curve"]}


def compared(folder: Path, dtype: str, texts: list[Any]) -> dict[str, Any]:
    """L, tokens/s and the ratio to plain of every kind and draft size."""
    import headstart as hs

    plain = hs.load("smollm2", proposer="none", target="native", dtype=dtype)
    ways = {"plain": plain} | {
        f"{kind}:{nodes}": plain.with_proposer(kind, heads=str(folder / kind / "heads"), num_nodes=nodes)
        for kind in KINDS
        for nodes in NODES
    }
    sampling = hs.Sampling(max_tokens=TOKENS, temperature=0)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    counts = {way: [0, 0, 0] for way in ways}  # tokens, emitted in steps, steps
    for number, text in enumerate(texts):
        prompt = plain.encode(text)
        answers = {}
        for turn in range(len(ways)):
            way = list(ways)[(number + turn) % len(ways)]
            began = time.perf_counter()
            (answer,) = ways[way].generate_encoded([prompt], sampling)
            seconds[way].append(time.perf_counter() - began)
            answers[way] = answer.tokens
            for place, count in enumerate((len(answer.tokens), answer.stats.num_emitted, answer.stats.num_steps)):
                counts[way][place] += count
        if any(tokens != answers["plain"] for tokens in answers.values()):
            sys.exit(f"prompt {number} was answered differently; no record is written")
        print(f"{dtype}: {number + 1} of {len(texts)}", file=sys.stderr)
    return {
        "dtype": plain.target.dtype,
        "ways": {
            way: {
                "acceptance_length": emitted / max(steps, 1),
                "tokens_per_second": tokens / sum(seconds[way]),
                "over_plain": statistics.median(p / s for p, s in zip(seconds["plain"], seconds[way], strict=True)),
            }
            for way, (tokens, emitted, steps) in counts.items()
        },
    }


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and how it was measured, for the README."""
    header = ["heads", "minutes of one core", "steps", "places learned from", "drafted nodes"]
    for decoded in result["decoded"].values():
        header += [f"L, {decoded['dtype']}", "tokens/s", "over plain"]
    rows = []
    for way in next(iter(result["decoded"].values()))["ways"]:
        kind, _, nodes = way.partition(":")
        own = result["trained"].get(kind)
        row = [kind, "", "", "", nodes]
        if own is not None:
            row[1:4] = f"{own['cpu_minutes']:.1f}", str(own["steps"]), str(own["places"])
        for decoded in result["decoded"].values():
            found = decoded["ways"][way]
            row += [f"{found['acceptance_length']:.2f}", f"{found['tokens_per_second']:.0f}", f"{found['over_plain']:.2f}"]
        rows.append(row)
    prompts, machine = result["prompts"], result["machine"]
    how = (
        f"*{prompts['number']} prompts of {prompts['name']}, greedy, {result['tokens']} tokens, one sequence, native engine, "
        f"{machine['cores']} cores; {machine['cpu']}. Every answer is plain's.*"
    )
    return header, rows, how


if __name__ == "__main__":
    main()
