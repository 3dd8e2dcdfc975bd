"""What every table says of its record."""

from __future__ import annotations

from typing import Any


def when(record: Any) -> str:
    """Date and commit of a record; a commit with changes of its own says so."""
    commit, _, changes = record["commit"].partition("+")
    return f"{record['date'][:10]}, commit {commit[:9]}" + (f" with {changes}" if changes else "")
