"""A measurement's results: the record, its tables, and saving them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import DataError
from headstart.folders import obstacle
from headstart.measure import tables
from headstart.measure.tables import Table, aligned


@dataclass(frozen=True, slots=True)
class Report:
    """What ``measure`` returns. ``record`` is the JSON object."""

    record: dict[str, Any]

    @property
    def num_faults(self) -> int:
        """Outputs that differ from plain decoding and that rounding does not explain."""
        return sum(entry["faults"] or 0 for entry in self.record["configurations"])

    def tables(self) -> list[Table]:
        """Every table that says something about this record."""
        return tables.tables(self.record)

    def table(self) -> str:
        """The results as plain text, aligned."""
        return "\n\n".join(f"{table.title}\n{aligned(table.header, table.rows)}" for table in self.tables())

    def save(self, path: str | Path) -> None:
        """Write the record as JSON, under a temporary name first."""
        save_json(path, self.record)

    def save_html(self, path: str | Path) -> None:
        """Write the record as one self-contained page."""
        from headstart.measure.page.page import page

        save_text(path, page(self.record))

    def save_csv(self, path: str | Path) -> None:
        """Write the figures of each configuration as a line of a CSV file; lists and answers are left to the JSON."""
        save_text(path, as_csv(self.record))


def as_csv(record: Mapping[str, Any]) -> str:
    """One line a configuration; a figure within a group is called ``group.figure``."""
    lines = [dict(_figures(entry)) for entry in record["configurations"]]
    names = list(dict.fromkeys(name for line in lines for name in line))
    written = io.StringIO()
    writer = csv.DictWriter(written, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return written.getvalue()


def _figures(entry: Mapping[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in entry.items():
        if isinstance(value, Mapping):
            if name != "by_category":
                yield from _figures(value, f"{group}{name}.")
        elif not isinstance(value, list):
            yield f"{group}{name}", value


def check_writable(path: str | Path) -> None:
    """DataError if :func:`save_json` could not write here: no such folder, no right to, or a folder itself."""
    folder = _behind_links(Path(path)).parent
    reason = None
    if not str(path) or Path(path).is_dir():
        reason = "it must name a file"
    elif _is_stream(Path(path)):
        reason = None if os.access(path, os.W_OK) else "it takes no writing"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    else:
        reason = obstacle(folder)
    if reason is not None:
        raise DataError(f"cannot write {str(path)!r}: {reason}")


def _is_stream(path: Path) -> bool:
    """Whether there is something that takes text but is no file: a device, a pipe."""
    return path.exists() and not path.is_file() and not path.is_dir()


def _behind_links(path: Path) -> Path:
    """The file that a link leads to."""
    return path.resolve() if path.is_symlink() else path


def save_json(path: str | Path, value: Any) -> None:
    """Write one JSON object: a reader sees the old file or the new one."""
    save_text(path, as_json(value) + "\n")


def as_json(value: Any) -> str:
    """JSON that any reader takes: a number that is none, or without bound, is null there, and so is an interval's open end."""
    return json.dumps(_finite(value), indent=1, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(entry) for name, entry in value.items()}
    return [_finite(entry) for entry in value] if isinstance(value, list | tuple) else value


def save_text(path: str | Path, text: str) -> None:
    """Write a file: a reader sees the old one or the new one. A link stays one, and a device or a pipe is written to."""
    path = Path(path)
    try:
        if _is_stream(path):
            path.write_text(text, encoding="utf-8")
        else:
            _replace(_behind_links(path), text)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
