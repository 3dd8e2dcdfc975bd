"""Small results that are worth keeping between runs, one JSON file each, in the user's cache folder.

Losing one costs a little time and never anything else, so what cannot be read counts as not there, and a folder that cannot be
written is no error. ``HEADSTART_CACHE`` names another folder, or is ``off``: then nothing is read or written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

VARIABLE, OFF = "HEADSTART_CACHE", "off"


def cache_folder() -> Path | None:
    """The user's cache folder for this package; None if nothing is to be kept."""
    wanted = os.environ.get(VARIABLE)
    if wanted == OFF:
        return None
    if wanted:
        return Path(wanted).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # a user without a home
        return (Path(base) if base else Path.home() / ".cache") / "headstart"
    return None


def recall(kind: str, key: Mapping[str, Any]) -> Any:
    """What was remembered of this ``kind`` under this very key; None if there is nothing that can be read."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        content = json.loads(_file(folder / kind, key).read_text(encoding="utf-8"))
        return content["value"] if content["key"] == json.loads(json.dumps(dict(key))) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def remember(kind: str, key: Mapping[str, Any], value: Any) -> None:
    """Keep a value: a reader sees the old file or the new one."""
    folder = cache_folder()
    if folder is None:
        return
    path = _file(folder / kind, key)
    temporary: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"key": dict(key), "value": value}, file, indent=1)
        temporary.replace(path)
    except OSError:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _file(folder: Path, key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    return folder / f"{digest[:24]}.json"
