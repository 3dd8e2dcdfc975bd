"""Where training stands, on disk: tensors, the optimiser's moments and the place in the run.

    checkpoint/state.safetensors    tensors and moments; the record below in its header

Everything is one file, written under a temporary name and renamed, so there is always one whole checkpoint. Together with the
seed it decides every later step: a run that was killed and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from headstart.errors import TrainingError
from headstart.folders import write_whole

FORMAT, VERSION = "headstart-checkpoint", 2


@dataclass(slots=True)
class Progress:
    """The place in a run."""

    total_steps: int
    step: int = 0
    epoch: int = 0
    batch: int = 0  # batches of the epoch that are done
    num_tokens: int = 0  # rows seen
    num_skipped: int = 0
    num_bad: int = 0  # bad batches in a row
    best_length: float = 0.0  # L at 16 rows of the heads that were kept
    best_step: int = 0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)  # since the last measurement
    before: dict[str, Any] = field(default_factory=dict)  # acceptance at the start
    curve: list[dict[str, float]] = field(default_factory=list)


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], progress: Progress, about: Mapping[str, Any]) -> None:
    """Write the checkpoint; ``about`` says what the run is, and must agree when it is resumed."""
    write_state(path, tensors, {"format": FORMAT, "version": VERSION, "progress": asdict(progress), "about": dict(about)})


def write_state(path: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
    """Write tensors and a record in one file, complete or not at all; OSError, with the file's name, if that fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_whole(path, save(stored, metadata={"record": json.dumps(record)}))


def read_about(path: Path) -> dict[str, Any] | None:
    """What run a checkpoint belongs to; None if there is none."""
    return read_record(path)["about"] if path.exists() else None


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], Progress]:
    """Tensors and progress of a checkpoint."""
    record = read_record(path)
    return read_tensors(path), Progress(**record["progress"])


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)


def read_record(path: Path, form: tuple[str, int] = (FORMAT, VERSION)) -> dict[str, Any]:
    """What a checkpoint says of itself; TrainingError if it cannot be read, or is of another format or version."""
    try:
        with safe_open(path, framework="pt") as file:
            record = json.loads((file.metadata() or {})["record"])
        if (record["format"], record["version"]) != form:
            raise KeyError("format")
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(
            f"{path} is not a readable checkpoint ({error}); delete it, or begin anew with resume=False (--no-resume)"
        ) from None
    return dict(record)
