"""What a record says about where it was made: the machine without its name, versions, the commit, and no path."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headstart.target.machine import cpu_name, num_cores

_RECORDS = (":(top,exclude)benchmarks/*.json", ":(top,exclude)experiments/*.json")  # pathspecs
_LIBRARIES = ("headstart", "numpy", "torch", "transformers", "tokenizers", "safetensors", "gguf")


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
    """The commit of this package's own checkout; None when it is installed.

    ``+changes`` stands behind it if files differ that matter: records that are being renewed do not.
    """
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
    return f"{head}+changes" if head and git("status", "--porcelain", "--untracked-files=no", "--", ":/", *_RECORDS) else head


def without_path(name: str) -> str:
    """A model's name; of a path only its last part."""
    path = Path(name).expanduser()
    return path.name if path.is_absolute() or name.startswith(".") or path.exists() else name


def without_paths(value: Any) -> Any:
    """A value with its paths cut to their last parts."""
    if isinstance(value, Mapping):
        return {str(key): without_paths(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_paths(entry) for entry in value]
    if isinstance(value, Path):
        return value.name
    return without_path(value) if isinstance(value, str) and value else value


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
