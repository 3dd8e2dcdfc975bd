"""Trainings that are killed with SIGKILL at some point and gone on with, against those that were not.

    python tests/killed_runs.py FOLDER KIND...       one JSON line a killed run

A process that has imported everything, on one thread, forks children that train. A child counts what it does to the disk (each
renaming, writing, flushing and deleting, before and after) and the reports of single steps, and kills itself at one of those
points. Where the points lie is found by a run that is not killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from chat_model import save_chat_model
from headstart.target.loading import load_model
from headstart.train import Event, TrainSettings, train
from headstart.train.base import Base

SETTINGS = TrainSettings(
    base_dtype="float32", states_dtype="float32", batch_rows=40, epochs=1.5, evaluations=3, num_ranks=2, draft_vocab=24,
    evaluation_rows=60, minutes=0, decoded_prompts=0, max_copied=1.0,
    held_out=0.2, num_heads=2, learning_rate=1e-2, vocab_sample=6,
    checkpoint_minutes=0,
)  # fmt: skip
JOINT: dict[str, Any] = {
    "joint_epochs": 1.5, "joint_rows": 40, "joint_rate": 1e-2, "lora_rank": 2, "lora_alpha": 2.0, "max_harm": 9.0,
    "max_divergence": 9.0,
}  # fmt: skip
_ON_DISK = ((Path, "rename"), (Path, "replace"), (Path, "unlink"), (Path, "write_bytes"), (os, "fsync"))
NUM_POINTS = 3


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    write_inputs(folder)
    Base.of(load_model(str(folder / "model"), dtype="float32", engine="hf"), "float32")  # imports what is imported late
    for kind in sys.argv[2:]:
        numbers = folder / f"{kind}.points"
        in_child(lambda kind, numbers: numbers.write_text(str(counted(folder, kind, f"{kind}-straight"))), kind, numbers)
        total = int(numbers.read_text())
        expected = content(folder, kind, f"{kind}-straight")
        for number in range(NUM_POINTS):
            point = 1 + (2 * number + 1) * total // (2 * NUM_POINTS)
            name = f"{kind}-{point}"
            killed = in_child(counted, folder, kind, name, point)
            in_child(counted, folder, kind, name)
            same = {file: value == expected[file] for file, value in content(folder, kind, name).items()}
            litter = sorted(path.name for path in folder.glob(f".{name}*"))
            found = {"kind": kind, "point": point, "of": total, "killed": killed, "same": same, "litter": litter}
            sys.stdout.write(json.dumps(found) + "\n")


def write_inputs(folder: Path) -> None:
    save_chat_model(folder / "model", head_dim=16)
    answers = ["".join(chr(97 + (3 * i + 5 * step) % 26) for step in range(9)) for i in range(16)]
    lines = [json.dumps({"turns": ["go on", answer]}) for answer in answers]
    (folder / "data.jsonl").write_text("\n".join(lines), encoding="utf-8")


def in_child(work: Callable[..., Any], *arguments: Any) -> bool:
    """Do something in a process of its own; whether it was killed. Any other failure ends this one."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            work(*arguments)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    if status:
        sys.exit(f"a child ended with {status}")
    return False


def counted(folder: Path, kind: str, name: str, kill_at: int = 0) -> int:
    """Train; the number of points that were passed. Gets killed at point ``kill_at``."""
    passed = 0

    def point() -> None:
        nonlocal passed
        passed += 1
        if passed == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            point()
            result = function(*arguments, **options)
            point()
            return result

        return call

    for owner, function in _ON_DISK:
        setattr(owner, function, around(getattr(owner, function)))

    def report(event: Event) -> None:
        if event.total:
            point()

    is_joint = kind == "joint"
    train(
        str(folder / "model"),
        "medusa" if is_joint else kind,
        folder / name,
        data=folder / "data.jsonl",
        model_out=folder / f"{name}-model" if is_joint else None,
        settings=dataclasses.replace(SETTINGS, **(JOINT if is_joint else {})),
        report=report,
    )
    return passed


def content(folder: Path, kind: str, name: str) -> dict[str, Any]:
    """What must be the same: the weights' bytes, and what the run says of its way there."""
    progress = json.loads((folder / name / "training.json").read_text())["progress"]
    del progress["seconds"]
    found: dict[str, Any] = {"heads": (folder / name / "model.safetensors").read_bytes(), "progress": progress}
    if kind == "joint":
        found["model"] = (folder / f"{name}-model" / "model.safetensors").read_bytes()
    return found


if __name__ == "__main__":
    main()
