"""A measurement's results: the record, its table, and saving it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import DataError

COLUMNS = ("proposer", "tokens", "steps", "L", "accepted", "ms/token", "tokens/s", "speedup", "identical", "ties", "faults")


@dataclass(frozen=True, slots=True)
class Report:
    """What ``measure`` returns. ``record`` is the JSON object."""

    record: dict[str, Any]

    @property
    def num_faults(self) -> int:
        """Outputs that differ from plain decoding and that rounding does not explain."""
        return sum(entry["faults"] or 0 for entry in self.record["configurations"])

    @property
    def has_categories(self) -> bool:
        """Whether a table by category says more than the whole one."""
        return len(self.record["prompts"]["categories"]) > 1 and len(self.record["configurations"]) > 1

    def rows(self) -> list[list[str]]:
        """The table's cells, one row a configuration, in the order of ``COLUMNS``."""
        return [_row(entry) for entry in self.record["configurations"]]

    def category_rows(self) -> tuple[list[str], list[list[str]]]:
        """Header and cells of the table by category: L and speedup of every configuration but plain."""
        others = self.record["configurations"][1:]
        header = ["category", "prompts", *(f"{entry['proposer']} {what}" for entry in others for what in ("L", "speedup"))]
        rows = []
        for category, number in self.record["prompts"]["categories"].items():
            cells = [entry["by_category"][category] for entry in others]
            rows.append(
                [category, str(number), *(text for cell in cells for text in (_length(cell), f"{cell['speedup']:.2f}"))]
            )
        return header, rows

    def table(self) -> str:
        """The results as plain text, aligned."""
        tables = [aligned(COLUMNS, self.rows())]
        if self.has_categories:
            tables.append(aligned(*self.category_rows()))
        return "\n\n".join(tables)

    def save(self, path: str | Path) -> None:
        """Write the record as JSON, under a temporary name first."""
        save_json(path, self.record)


def check_writable(path: str | Path) -> None:
    """DataError if :func:`save_json` could not write here: no such folder, no right to, or a folder itself."""
    folder = Path(path).parent
    reason = None
    if not str(path) or Path(path).is_dir():
        reason = "it must name a file"
    elif not folder.is_dir():
        reason = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK | os.X_OK):
        reason = f"the folder {folder} is read-only"
    if reason is not None:
        raise DataError(f"cannot write {str(path)!r}: {reason}")


def save_json(path: str | Path, value: Any) -> None:
    """Write one JSON object: a reader sees the old file or the new one."""
    path = Path(path)
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    temporary: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise DataError(f"cannot write {path}: {error.strerror}") from None


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table: the first column to the left, numbers to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _row(entry: dict[str, Any]) -> list[str]:
    return [
        entry["proposer"],
        str(entry["tokens"]),
        str(entry["steps"]),
        _length(entry),
        f"{100 * entry['acceptance_rate']:.0f}%" if entry["drafted"] else "-",
        f"{entry['ms_per_token']:.1f}",
        f"{entry['tokens_per_second']:.1f}",
        f"{entry['speedup']:.2f}",
        entry["identical"] or "-",
        "-" if entry["ties"] is None else str(entry["ties"]),
        "-" if entry["faults"] is None else str(entry["faults"]),
    ]


def _length(entry: dict[str, Any]) -> str:
    return f"{entry['acceptance_length']:.2f}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
