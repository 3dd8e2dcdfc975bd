"""Peak memory of loading a model on the native engine, over the bytes of its packed weights.

    python benchmarks/memory.py RECORD [--files FOLDER]

Each load runs in a process of its own. What counts is the peak of its resident memory (the file's mapped pages included), less
the peak that the same process had when everything was imported and nothing loaded. Seconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import make_gguf

from headstart.measure.environment import commit, machine, versions
from headstart.measure.report import check_writable, save_json

LOADS = (("BF16", "auto"), ("Q4_1", "bfloat16"), ("BF16", "int8"), ("Q8_0", "auto"), ("Q4_1", "auto"))  # file, dtype
PROGRAM = """
import json, re, sys
import gguf, headstart, headstart.target.native
from headstart.target.loading import load_model
def kilobytes(what):
    return int(re.search(rf"^{what}:\\s+(\\d+) kB$", open("/proc/self/status").read(), re.M)[1])
before = kilobytes("VmHWM")
target = load_model(sys.argv[1], engine="native", dtype=sys.argv[2]).target
tensors = target._weights.tensors.values()
weights = sum(t.num_bytes if hasattr(t, "num_bytes") else t.nbytes for t in tensors)
print(json.dumps({"weight_bytes": weights, "peak_bytes": 1024 * (kilobytes("VmHWM") - before),
                  "bytes_afterwards": 1024 * (kilobytes("VmRSS") - before)}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--files", type=Path, default=Path("build/gguf"), help="folder of the model's files, made if missing")
    wanted = parser.parse_args()
    check_writable(wanted.record)
    make_gguf.main(str(wanted.files))
    loads = [measured(file, dtype, wanted.files) for file, dtype in LOADS]
    save_json(
        wanted.record,
        {
            "format": "headstart-memory",
            "version": 1,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "versions": versions(),
            "machine": machine(),
            "loads": loads,
        },
    )
    print(f"wrote {wanted.record}", file=sys.stderr)


def measured(file: str, dtype: str, files: Path) -> dict[str, Any]:
    path = make_gguf.bundled_file() if file == "Q4_1" else files / make_gguf.NAME.format(file)
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(path), dtype], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"loading {path.name} as {dtype} failed: {done.stderr.strip().splitlines()[-1]}")
    found: dict[str, Any] = json.loads(done.stdout)
    ratio = found["peak_bytes"] / found["weight_bytes"]
    print(f"{file} as {dtype}: peak {ratio:.2f} times the weights", file=sys.stderr)
    return {"file": file, "dtype": dtype, **found, "peak_over_weights": ratio}


if __name__ == "__main__":
    main()
