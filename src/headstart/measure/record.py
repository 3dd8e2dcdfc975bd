"""The record of a measurement: one JSON object that says what was measured, where, and what came out.

Counts and rates are those of ``stats.py``. ``tokens`` are all tokens of the answers, the one of each prompt's pass included;
``acceptance_length`` counts steps alone. ``calibration_error`` is the expected calibration error of the nodes' estimates and
``reliability`` its ten bins (`stats.py`). ``seconds`` are wall time, prompts included. ``timings`` are milliseconds a step for
propose, verify, accept and commit, and milliseconds a prompt for ``prompt``. Nothing in a record names a host or a path.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headstart.accept import EXACT, Rule
from headstart.decode import Timings
from headstart.llm import LLM
from headstart.lossless import Difference
from headstart.measure.prompts import PromptSet
from headstart.measure.settings import TRANSFORMERS, MeasureSettings
from headstart.sampling import Sampling
from headstart.stats import Stats
from headstart.target.machine import cpu_name, num_cores, runtime

FORMAT, VERSION = "headstart-measure", 1

_LIBRARIES = ("headstart", "numpy", "torch", "transformers", "tokenizers", "safetensors", "gguf")
_GRAM = 4
_ENOUGH_STEPS = 200  # to call a draft dead
_DEAD = 0.01  # accepted tokens a step, below which it is
_LOOPING = 0.3  # share of repeated 4-grams above which an output loops


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt's answer in one configuration; ``seconds`` is its share of its batch's time."""

    category: str
    tokens: tuple[int, ...]
    stats: Stats
    seconds: float

    @property
    def is_looping(self) -> bool:
        """Whether more than 30% of its 4-grams were there before."""
        grams = [self.tokens[i : i + _GRAM] for i in range(len(self.tokens) - _GRAM + 1)]
        return bool(grams) and 1 - len(set(grams)) / len(grams) > _LOOPING


@dataclass(frozen=True, slots=True)
class Measured:
    """One configuration's results; ``differences`` is None where tokens cannot be compared."""

    name: str
    num_nodes: int
    samples: Sequence[Sample]
    timings: Timings
    differences: Sequence[Difference] | None
    rule: Rule | None = EXACT
    reasons: Mapping[str, Any] | None = None  # of ``auto``

    @property
    def is_lossless(self) -> bool | None:
        """Whether it lost nothing; None where that cannot be seen from its tokens."""
        if self.rule is not None and not self.rule.is_lossless:
            return False
        return None if self.differences is None else not any(d.kind == "fault" for d in self.differences)


def record_of(
    llm: LLM,
    prompts: PromptSet,
    settings: MeasureSettings,
    sampling: Sampling,
    measured: Sequence[Measured],
    notes: Sequence[str],
) -> dict[str, Any]:
    """The whole record; plain decoding stands first in ``measured``."""
    target = llm.target
    return {
        "format": FORMAT,
        "version": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": without_path(target.name),
        "engine": target.engine,
        "dtype": target.dtype,
        "machine": machine() | runtime(target.engine),
        "source": _without_paths(llm.source),
        "versions": versions(),
        "commit": commit(),
        "prompts": prompts.describe(),
        "sampling": asdict(sampling),
        "repeat": settings.repeat,
        "notes": [*notes, *dead_drafts(measured)],
        "configurations": [_configuration(m, measured[0], settings.batch) for m in measured],
    }


def dead_drafts(measured: Sequence[Measured]) -> list[str]:
    """A remark on each configuration whose drafts are next to never accepted: a text stays right, so nobody would notice."""
    remarks = []
    for one in measured:
        stats = _pooled(one.samples)
        if stats.num_drafted and stats.num_steps >= _ENOUGH_STEPS and stats.num_accepted < _DEAD * stats.num_steps:
            remarks.append(
                f"{one.name}: {stats.num_accepted} of {stats.num_drafted} drafted tokens were accepted in {stats.num_steps} "
                "steps; check that its heads or draft model belong to this model"
            )
    return remarks


def _configuration(measured: Measured, plain: Measured, batch: int) -> dict[str, Any]:
    categories = dict.fromkeys(sample.category for sample in measured.samples)
    return {
        "proposer": measured.name,
        "accept": measured.rule.name if measured.rule else None,
        "lossless": measured.is_lossless,
        "batch": batch,
        "nodes": measured.num_nodes,
        **_core(measured.samples, plain.samples),
        **_comparison(measured),
        "timings": _timings(measured),
        "reliability": asdict(_pooled(measured.samples).reliability),
        "looping": _looping(measured.samples),
        **({"explain": dict(measured.reasons)} if measured.reasons else {}),
        "by_category": {name: _core(_of(measured, name), _of(plain, name)) for name in categories},
    }


def _of(measured: Measured, category: str) -> list[Sample]:
    return [sample for sample in measured.samples if sample.category == category]


def _core(samples: Sequence[Sample], plain: Sequence[Sample]) -> dict[str, Any]:
    stats = _pooled(samples)
    tokens, seconds = _tokens(samples), _seconds(samples)
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "ms_per_token": 1000 * seconds / tokens if tokens else 0.0,
        "steps": stats.num_steps,
        "drafted": stats.num_drafted,
        "accepted": stats.num_accepted,
        "acceptance_length": stats.acceptance_length,
        "acceptance_rate": stats.acceptance_rate,
        "acceptance_by_position": stats.acceptance_by_position,
        "accepted_histogram": stats.accepted_histogram,
        "calibration_error": stats.reliability.calibration_error,
        "speedup": _ratio(tokens * _seconds(plain), seconds * _tokens(plain)),
    }


def _comparison(measured: Measured) -> dict[str, Any]:
    if measured.differences is None:
        return {"identical": None, "ties": None, "faults": None, "differences": []}
    kinds = [difference.kind for difference in measured.differences]
    return {
        "identical": f"{len(measured.samples) - len(kinds)}/{len(measured.samples)}",
        "ties": kinds.count("tie"),
        "faults": kinds.count("fault"),
        "differences": [difference.describe() for difference in measured.differences],
    }


def _timings(measured: Measured) -> dict[str, float] | None:
    if measured.name == TRANSFORMERS:
        return None
    steps = max(_pooled(measured.samples).num_steps, 1)
    per_step = {name: 1000 * getattr(measured.timings, name) / steps for name in ("propose", "verify", "accept", "commit")}
    return per_step | {"prompt": 1000 * measured.timings.prompt / max(len(measured.samples), 1)}


def _looping(samples: Sequence[Sample]) -> dict[str, Any]:
    looping = [sample for sample in samples if sample.is_looping]
    others = [sample for sample in samples if not sample.is_looping]
    return {
        "share": len(looping) / max(len(samples), 1),
        "acceptance_length_with": _pooled(looping).acceptance_length if looping else None,
        "acceptance_length_without": _pooled(others).acceptance_length if others else None,
    }


def _pooled(samples: Sequence[Sample]) -> Stats:
    total = Stats()
    for sample in samples:
        total.add(sample.stats)
    return total


def _tokens(samples: Sequence[Sample]) -> int:
    return sum(len(sample.tokens) for sample in samples)


def _seconds(samples: Sequence[Sample]) -> float:
    return sum(sample.seconds for sample in samples)


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0


def machine() -> dict[str, Any]:
    """The machine, without its name."""
    return {
        "cpu": cpu_name(),
        "cores": num_cores(),
        "memory_gb": _memory_gb(),
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions() -> dict[str, str]:
    """Versions of the libraries that are installed."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def commit() -> str | None:
    """The commit of this package's own checkout, ``+changes`` behind it if files differ; None when it is installed."""
    here = Path(__file__)

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(here.parent), *arguments], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", here.name) is None:  # inside somebody else's checkout, or in none
        return None
    head = git("rev-parse", "HEAD")
    return f"{head}+changes" if head and git("status", "--porcelain", "--untracked-files=no") else head


def without_path(name: str) -> str:
    """A model's name; of a path only its last part."""
    path = Path(name).expanduser()
    return path.name if path.is_absolute() or name.startswith(".") or path.exists() else name


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_without_paths(entry) for entry in value]
    if isinstance(value, Path):
        return value.name
    return without_path(value) if isinstance(value, str) and value else value


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
