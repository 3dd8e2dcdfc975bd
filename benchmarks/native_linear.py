"""The linear layers of a model of SmolLM2-135M's sizes alone, against what the machine can do at most.

R(n) = max(bytes / bandwidth, 2 * weights * n / peak): weights pass through memory once, and every row costs its arithmetic.
Bandwidth moves with the machine's neighbours, so reads and products take turns and the least time of each counts.

    python benchmarks/native_linear.py [--rounds 10] [--rows 1 8 16 32] [--kinds bfloat16 q8_0 q4_1]
"""

import argparse
import json

import numpy as np

from headstart import _native as native

NUM_LAYERS, HIDDEN, KEYS, INNER, VOCABULARY = 30, 576, 192, 1536, 49152
LAYER = [(HIDDEN, HIDDEN), (KEYS, HIDDEN), (KEYS, HIDDEN), (HIDDEN, HIDDEN), (INNER, HIDDEN), (INNER, HIDDEN), (HIDDEN, INNER)]
BYTES_IN_BLOCK = {"q8_0": 34, "q4_0": 18, "q4_1": 20}


def matrix(outputs: int, inputs: int, kind: str) -> "native.Matrix":
    """Of small random weights (whatever the kind, the same work is done for any values)."""
    random = np.random.default_rng(outputs)
    if kind in BYTES_IN_BLOCK:
        blocks = random.integers(0, 256, (outputs * inputs // 32, BYTES_IN_BLOCK[kind]), np.uint8)
        blocks[:, : 4 if kind == "q4_1" else 2].view(np.float16)[:] = 0.01
        return native.Matrix(blocks.reshape(-1), kind, kind, outputs, inputs)
    weights = random.standard_normal((outputs, inputs), np.float32)
    return native.Matrix(weights.view(np.uint8).reshape(-1), "float32", kind, outputs, inputs)


def model(kind: str) -> list["native.Matrix"]:
    # Like the GGUF file of that model, 4-bit kinds have an output matrix of 8 bits.
    output_kind = kind if kind in ("float32", "bfloat16") else "q8_0"
    return [matrix(*shape, kind) for _ in range(NUM_LAYERS) for shape in LAYER] + [matrix(VOCABULARY, HIDDEN, output_kind)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--kinds", nargs="+", default=["bfloat16", "q8_0", "q4_0", "q4_1"])
    options = parser.parse_args()

    models = {kind: model(kind) for kind in options.kinds}
    large = [matrix(4096, 4096, "bfloat16")]
    weights = NUM_LAYERS * sum(a * b for a, b in LAYER) + VOCABULARY * HIDDEN
    reads, peaks = [], []
    times: dict[tuple[str, int], list[float]] = {(kind, n): [] for kind in models for n in options.rows}
    for _ in range(options.rounds):
        reads += native.read_times(256 << 20, 3)
        peaks += native.product_times(large, 256, 1)
        for (kind, n), found in times.items():
            found += native.product_times(models[kind], n, 3)

    bandwidth, peak = (256 << 20) / min(reads) / 1e6, 2 * 4096 * 4096 * 256 / min(peaks) / 1e6
    print(f"{native.isa()}, {native.num_threads()} threads: {bandwidth:.1f} GB/s, {peak:.0f} GFLOP/s in bfloat16")
    for kind, matrices in models.items():
        num_bytes = sum(m.num_bytes for m in matrices)
        cells = []
        for n in options.rows:
            limit = max(num_bytes / bandwidth / 1e6, 2 * weights * n / peak / 1e6)
            least = min(times[kind, n])
            cells.append(f"{n}: {least:.2f} ms, {least / limit:.2f} R")
        print(f"{kind} ({num_bytes / 1e6:.0f} MB)  " + "   ".join(cells))
    least_times = {f"{kind} {n}": min(found) for (kind, n), found in times.items()}
    print(json.dumps({"bandwidth_gb_s": bandwidth, "peak_gflop_s": peak, "ms": least_times}))


if __name__ == "__main__":
    main()
