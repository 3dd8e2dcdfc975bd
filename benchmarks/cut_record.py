"""A record that is written piece by piece: its head, and whether a file that stands there is its beginning."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headstart.measure.environment import commit, machine, versions


def settings_of(given: Namespace) -> dict[str, Any]:
    """What a record depends on beside the prompts: a benchmark's options."""
    return {name: value for name, value in vars(given).items() if name not in ("record", "prompts")}


def begun(path: Path, form: str, version: int, settings: dict[str, Any], **parts: Any) -> dict[str, Any]:
    """The record that an earlier call left in ``path``, to go on with, or a new one with these further parts.

    A record of other settings or another commit is in the way: the program ends with a line that says so.
    """
    if not path.exists():
        return _head(form, version, settings) | parts
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found = tuple(record.get(name) for name in ("format", "version", "settings", "commit"))
    if found != (form, version, settings, commit()):
        sys.exit(f"{path} is of other settings or another commit; name another file")
    return record


def _head(form: str, version: int, settings: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": form,
        "version": version,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "settings": settings,
    }
