"""The tables of a record: speed, fidelity, acceptance, where the time goes, cost.

Only what was varied gets a column of its own: a measurement at one operating point has none for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.timings import PARTS

AXES = ("dtype", "batch", "temperature", "prompt_tokens", "max_tokens")
_MAX_POSITIONS = 8

Entry = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A title, column names, and cells as text."""

    title: str
    header: list[str]
    rows: list[list[str]]


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Every table that has something to say."""
    entries = record["configurations"]
    found = [_speed(entries), _acceptance(entries), _by_category(record), _parts(entries), _cost(entries), _quality(entries)]
    return [table for table in found if table is not None]


def varied(entries: Sequence[Entry]) -> list[str]:
    """The axes along which the configurations differ."""
    return [axis for axis in AXES if len({entry[axis] for entry in entries}) > 1]


def name_of(entry: Entry, entries: Sequence[Entry]) -> list[str]:
    """Cells that tell a configuration from the others: proposer, rule where there are several, and what was varied."""
    several = len({entry["accept"] for entry in entries if entry["proposer"] != "plain"}) > 1
    rule = f" ({entry['accept']})" if several and entry["accept"] and entry["proposer"] != "plain" else ""
    return [entry["proposer"] + rule, *(value(entry[axis]) for axis in varied(entries))]


def described(entry: Entry, entries: Sequence[Entry]) -> str:
    """The same in a sentence."""
    name, *values = name_of(entry, entries)
    points = [f"{axis.replace('_', ' ')} {value}" for axis, value in zip(varied(entries), values, strict=True)]
    return " at ".join([name, *([", ".join(points)] if points else [])])


def _names(entries: Sequence[Entry]) -> list[str]:
    return ["proposer", *varied(entries)]


def _speed(entries: Sequence[Entry]) -> Table:
    header = [
        *_names(entries),
        "L",
        "ms/token",
        "p10",
        "p90",
        "first ms",
        "tokens/s",
        "speedup",
        "95%",
        "predicted",
        "identical",
    ]
    rows = []
    for entry in entries:
        each, first, predicted = entry["latency"]["ms_per_token"], entry["latency"]["ms_to_first_token"], entry["predicted"]
        spread = (
            [f"{each[key]:.1f}" for key in ("median", "p10", "p90")] if each else [f"{entry['ms_per_token']:.1f}", "-", "-"]
        )
        interval = entry["speedup_interval"]
        rows.append(
            [
                *name_of(entry, entries),
                f"{entry['acceptance_length']:.2f}",
                *spread,
                f"{first['median']:.0f}" if first else "-",
                f"{entry['tokens_per_second']:.1f}",
                f"{entry['speedup']:.2f}",
                f"{interval[0]:.2f}-{interval[1]:.2f}" if interval and entry["proposer"] != "plain" else "-",
                f"{predicted['speedup']:.2f}" if predicted and entry["proposer"] != "plain" else "-",
                _identical(entry),
            ]
        )
    return Table("speed, and losslessness", header, rows)


def _identical(entry: Entry) -> str:
    if entry["identical"] is None:
        return "-"
    ties = f" {entry['ties']} ties" if entry["ties"] else ""
    faults = f" {entry['faults']} FAULTS" if entry["faults"] else ""
    return f"{entry['identical']}{ties}{faults}"


def _acceptance(entries: Sequence[Entry]) -> Table | None:
    """Share of the drafts of that depth that were accepted there."""
    drafting = [entry for entry in entries if entry["drafted"]]
    if not drafting:
        return None
    deepest = max(len(entry["acceptance_by_position"]) for entry in drafting)
    most = min(deepest, _MAX_POSITIONS)
    header = [*_names(entries), "drafted", "accepted", *(f"at {depth}" for depth in range(1, most + 1))]
    rows = []
    for entry in drafting:
        shares = [f"{share:.2f}" for share in entry["acceptance_by_position"][:most]]
        counts = [str(entry["drafted"]), f"{entry['acceptance_rate']:.0%}"]
        rows.append([*name_of(entry, entries), *counts, *shares, *[""] * (most - len(shares))])
    title = "acceptance by position" + (f", the first {most} of {deepest}" if deepest > most else "")
    return Table(title, header, rows)


def _by_category(record: Mapping[str, Any]) -> Table | None:
    """L and speedup of every configuration, at one operating point."""
    entries, categories = record["configurations"], record["prompts"]["categories"]
    others = [entry for entry in entries if entry["proposer"] != "plain"]
    if len(categories) < 2 or not others or varied(entries):
        return None
    names = [name_of(entry, entries)[0] for entry in others]
    header = ["category", "prompts", *(f"{name} {what}" for name in names for what in ("L", "speedup"))]
    rows = []
    for category, number in categories.items():
        own = [entry["by_category"][category] for entry in others]
        cells = [text for cell in own for text in (f"{cell['acceptance_length']:.2f}", f"{cell['speedup']:.2f}")]
        rows.append([category, str(number), *cells])
    return Table("by category", header, rows)


def _parts(entries: Sequence[Entry]) -> Table | None:
    timed = [entry for entry in entries if entry["timings"]]
    if not timed:
        return None
    header = [*_names(entries), "step", *PARTS, "(attention)", "prompt"]
    rows = [
        [*name_of(entry, entries), *(f"{entry['timings'][part]:.2f}" for part in ("step", *PARTS, "attention", "prompt"))]
        for entry in timed
    ]
    return Table("where the time of a step goes, ms (attention is a part of verify)", header, rows)


def _cost(entries: Sequence[Entry]) -> Table:
    header = [
        *_names(entries),
        "device-ms/token",
        "per million",
        "in flight",
        "rows/step",
        "of limit",
        "of bandwidth",
        "of peak",
    ]
    rows = []
    for entry in entries:
        own, used = entry["cost"], entry["utilisation"]
        each, million = own["device_seconds_per_token"], own["per_million_tokens"]
        cells = [f"{1000 * each:.2f}" if each is not None else "-", f"{million:.4g}" if million is not None else "-"]
        cells.append(f"{entry['in_flight']:.1f}")
        cells.append(f"{used['rows']:.1f}" if used else "-")
        cells += [f"{used[key]:.0%}" if used else "-" for key in ("of_limit", "of_bandwidth", "of_peak")]
        rows.append([*name_of(entry, entries), *cells])
    return Table("cost, and use of the machine's limits", header, rows)


def _quality(entries: Sequence[Entry]) -> Table | None:
    """Lossy rules beside plain decoding."""
    compared = [entry for entry in entries if entry["quality"]]
    if not compared:
        return None
    header = [*_names(entries), "perplexity", "KL", "TV", "differing"]
    rows = []
    for entry in compared:
        own = entry["quality"]
        cells = ["-" if own[key] is None else f"{own[key]:.4f}" for key in ("kl", "total_variation")]
        share = "-" if own["differing"] is None else f"{own['differing']:.1%}"
        rows.append([*name_of(entry, entries), f"{own['perplexity']:.2f}", *cells, share])
    return Table("text under the base model", header, rows)


def value(number: Any) -> str:
    """A cell of an axis."""
    return "as is" if number is None else f"{number:g}" if isinstance(number, float) else str(number)


def shown(cell: str) -> str:
    """A cell as a terminal may have it: names come from files, and may hold what a terminal obeys."""
    return "".join([c if c.isprintable() else repr(c)[1:-1] for c in cell])


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A plain-text table: the first column to the left, numbers to the right."""
    lines = [list(map(shown, line)) for line in (header, *rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
