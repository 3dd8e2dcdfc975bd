"""The machine that an engine runs on, without its name."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def cpu_name() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def num_cores() -> int | None:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def runtime(engine: str) -> dict[str, Any]:
    """Threads of an engine, and its instruction set or GPU."""
    if engine == "native":
        from headstart.target.native import runtime as native_runtime

        return native_runtime()
    if engine == "hf":
        from headstart.target.hf_reference import runtime as hf_runtime

        return hf_runtime()
    return {}


def build(engine: str) -> str:
    """What changes when an engine's code does; empty for engines that are not ours."""
    if engine != "native":
        return ""
    from headstart import _native

    file = os.stat(_native.__file__)
    return f"{file.st_size}-{file.st_mtime_ns}"
