"""Where heads come from, and the record beside them."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headstart.train.base import Base
from headstart.train.checkpoint import Progress
from headstart.train.corpus import Document


def provenance(
    base: Base, documents: Sequence[Document], progress: Progress, data: str | Path | None, seed: int, started: float
) -> dict[str, Any]:
    """What a card says of a run that began at ``started`` (``time.monotonic``)."""
    versions = {name: version(name) for name in ("headstart", "torch", "transformers")}
    return {
        "command": command(),
        "versions": versions | {"python": platform.python_version()},
        "machine": {"processor": platform.machine(), "system": platform.system(), "threads": torch.get_num_threads()},
        "base_dtype": base.dtype,
        "engine": base.target.engine,  # that wrote the corpus and gave the hidden states
        "dtype": base.target.dtype,
        "seed": seed,
        "data": "written by the model" if data is None else Path(data).name,
        "corpus_tokens": sum(document.num_supervised for document in documents),
        "tokens_seen": progress.num_tokens,
        "step": progress.step,
        "minutes": round((time.monotonic() - started) / 60, 2),
    }


def command() -> str:
    """How this run was started."""
    program, *arguments = sys.argv
    path = Path(program)
    started = f"python -m {path.parent.name}" if path.name == "__main__.py" else path.name
    return " ".join([started, *map(_without_folder, arguments)])


def _without_folder(argument: str) -> str:
    """An argument as a record may hold it: of an absolute path only its last part."""
    return Path(argument).name if Path(argument).is_absolute() else argument
