"""The record of a measurement: one JSON object that says what was measured, where, and what came out.

Its fields are listed in docs/measuring.md. Nothing in a record names a host or a path. A reader takes records of its own
version alone and says so: what a field means may change with it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headstart.errors import DataError
from headstart.llm import LLM
from headstart.measure.entries import Measured
from headstart.measure.environment import commit, machine, versions, without_path, without_paths
from headstart.measure.prompts import PromptSet
from headstart.measure.samples import pooled
from headstart.measure.settings import MeasureSettings
from headstart.sampling import Sampling
from headstart.target.machine import runtime

FORMAT, VERSION = "headstart-measure", 2

_ENOUGH_STEPS = 200  # to call a draft dead
_DEAD = 0.01  # accepted tokens a step, below which it is


def record_head(llms: Sequence[LLM], prompts: PromptSet, settings: MeasureSettings, sampling: Sampling) -> dict[str, Any]:
    """Everything but the results; ``sampling`` is that of the first point."""
    target = llms[0].target
    return {
        "format": FORMAT,
        "version": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": without_path(target.name),
        "engine": target.engine,
        "dtype": ", ".join(llm.target.dtype for llm in llms),
        "kv_dtype": getattr(target, "kv_dtype", None),
        "machine": machine() | runtime(target.engine),
        "source": without_paths(llms[0].source),
        "versions": versions(),
        "commit": commit(),
        "prompts": prompts.describe(),
        "sampling": _described(sampling),
        "repeat": settings.repeat,
        "price": settings.price,
    }


def _described(sampling: Sampling) -> dict[str, Any]:
    """Its fields; a ban is the word that ``--logit-bias`` takes, since JSON has no infinity."""
    biases = {token: bias if math.isfinite(bias) else str(bias) for token, bias in sampling.logit_bias.items()}
    return asdict(sampling) | {"logit_bias": biases}


def read_record(path: str | Path) -> dict[str, Any]:
    """A record that was written before; DataError for a file that is none, or one of another version."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise DataError(f"cannot read the record {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise DataError(f"{path} is no JSON; give a file that `headstart measure --json` wrote") from None
    name, version = (found.get("format"), found.get("version")) if isinstance(found, Mapping) else (None, None)
    if name != FORMAT:
        what = f"a record of the format {name}" if name else "no record"
        raise DataError(f"{path} is {what}; give a file that `headstart measure MODEL --json` wrote")
    if version != VERSION:
        raise DataError(f"{path} is a record of version {version} and this program reads version {VERSION}; measure anew")
    if not found.get("configurations"):
        raise DataError(f"{path} is a record of nothing: it has no configurations; measure anew")
    with reading(path):
        _check_whole(found)
    return dict(found)


def _check_whole(record: Mapping[str, Any]) -> None:
    """What every reader needs is there, so that none shows one half and fails at the other."""
    for name in ("model", "machine", "prompts", "targets", "date", "commit"):
        record[name]
    for entry in record["configurations"]:
        if len({len(entry["answers"][name]) for name in ("tokens", "seconds", "steps", "emitted")}) != 1:
            raise ValueError(f"some answers of {entry['proposer']} lack a figure")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


@contextmanager
def reading(*paths: str | Path) -> Iterator[None]:
    """DataError where something is missing from the records of these files, or is not what it must be, while they are shown."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{' or '.join(map(str, paths))} is damaged ({what}); measure anew") from error


def dead_drafts(measured: Sequence[Measured]) -> list[str]:
    """A remark on each configuration whose drafts are next to never accepted: a text stays right, so nobody would notice."""
    remarks = []
    for one in measured:
        stats = pooled(one.samples)
        if stats.num_drafted and stats.num_steps >= _ENOUGH_STEPS and stats.num_accepted < _DEAD * stats.num_steps:
            remarks.append(
                f"{one.name}: {stats.num_accepted} of {stats.num_drafted} drafted tokens were accepted in {stats.num_steps} "
                "steps; check that its heads or draft model belong to this model"
            )
    return remarks
