"""Formula against measurement: what acceptance by position and measured costs predict for L and for the speedup.

    python experiments/formula/run.py FOLDER

FOLDER holds the models of experiments/self-speculation (n2, n4, n8). Each drafts a chain of K = n - 1 first guesses. Measured
are p_k, the share of drafts whose k-th token is accepted once those before it were; L; the milliseconds T of a plain step,
and those of a step with its draft, of which T_overhead is what exceeds T. Predicted are L = 1 + p_1 + p_1 p_2 + .. from the
positions, L = 1 + p + p^2 + .. from one p for all of them (Leviathan et al. 2023, equation 1), and the speedup L T / (T +
T_overhead).
"""

from __future__ import annotations

import argparse
import math
import runpy
import statistics
from pathlib import Path
from typing import Any

RESULT = Path(__file__).with_name("result.json")
CODE = Path(__file__).parent.parent / "self-speculation" / "run.py"
NUM_FUTURE, REPEATS = (2, 4, 8), 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    wanted = parser.parse_args()
    from headstart.measure.environment import commit, machine, versions
    from headstart.measure.report import save_json

    code = runpy.run_path(str(CODE))
    prompts = code["write_text"](wanted.folder)[1]
    runs = {}
    for num_future in NUM_FUTURE:
        folder = wanted.folder / f"n{num_future}"
        if not folder.exists():
            print(f"{folder} is not there and left out; experiments/self-speculation/run.py trains it")
            continue
        runs[str(num_future)] = run(folder, prompts, code["ANSWER_BYTES"])
        print(num_future, runs[str(num_future)])
    save_json(RESULT, {"runs": runs, "commit": commit(), "machine": machine(), "versions": versions()})


def run(folder: Path, prompts: list[str], num_tokens: int) -> dict[str, Any]:
    """Plain decoding and chains of the first guesses, in turn over each prompt."""
    from headstart.decode import Decoder
    from headstart.heads.base import load_heads
    from headstart.proposers.future import FutureProposer
    from headstart.sampling import Sampling
    from headstart.target.loading import load_model

    loaded = load_model(str(folder), dtype="bfloat16")
    target = loaded.target
    heads = load_heads(folder / "heads", target)
    bound = heads.bind(target.operations, target.base_weights())
    target.watch(bound.config.watched)
    depth = bound.config.num_heads
    proposers = {"plain": None, "mtp": FutureProposer(bound, num_ranks=1)}
    sampling = Sampling(max_tokens=num_tokens, ignore_eos=True)
    reached, accepted = [0] * depth, [0] * depth
    seconds: dict[str, list[float]] = {name: [] for name in proposers}
    speeds: list[float] = []
    counts = {name: [0, 0] for name in proposers}  # tokens behind the first one, steps
    for text in prompts * REPEATS:
        took = {}
        for name, proposer in proposers.items():
            decoder = Decoder(target, proposer, num_nodes=depth)
            (generation,) = decoder.add(loaded.tokenizer.encode(text), sampling, seed=0)
            while decoder.num_running:
                for result in decoder.step():
                    for position in range(min(result.num_drafted, result.num_accepted + 1)):
                        reached[position] += 1
                        accepted[position] += position < result.num_accepted
            steps, took[name] = generation.stats.num_steps, decoder.timings.stepping
            seconds[name].append(took[name] / steps)
            counts[name][0] += len(generation.tokens) - 1
            counts[name][1] += steps
        speeds.append(took["plain"] / took["mtp"])
    shares = [a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)]
    plain, fast = (statistics.median(seconds[name]) for name in proposers)
    tokens, steps = counts["mtp"]
    return {
        "p": shares,
        "K": depth,
        "T_ms": 1e3 * plain,
        "T_overhead_ms": 1e3 * (fast - plain),
        "L": tokens / steps,
        "speedup": statistics.median(speeds),
        "pooled_p": sum(accepted) / sum(reached),
    }


def predicted(found: Any) -> tuple[float, float, float]:
    """L from the positions, L from one p for all, and the speedup from the measured L and costs."""
    by_position = 1 + sum(math.prod(found["p"][:k]) for k in range(1, found["K"] + 1))
    pooled = sum(found["pooled_p"] ** k for k in range(found["K"] + 1))
    return by_position, pooled, found["L"] * found["T_ms"] / (found["T_ms"] + found["T_overhead_ms"])


def table(record: Any) -> tuple[list[str], list[list[str]], str]:
    """Header, rows and a line about how it was measured."""
    rows = []
    for name, found in record["runs"].items():
        by_position, pooled, speedup = predicted(found)
        shares = " ".join(f"{share:.2f}" for share in found["p"])
        numbers = (found["L"], by_position, pooled, found["T_ms"], found["T_overhead_ms"], found["speedup"], speedup)
        rows.append([name, shares, *(f"{number:.2f}" for number in numbers)])
    header = [
        "n",
        "p by position",
        "L",
        "L from positions",
        "L from one p",
        "T, ms",
        "T_overhead, ms",
        "speedup",
        "L T / (T + T_overhead)",
    ]
    how = (
        f"*chains of n - 1 first guesses, greedy, native engine in bfloat16, medians over prompts; {record['machine']['cpu']}.*"
    )
    return header, rows, how


if __name__ == "__main__":
    main()
