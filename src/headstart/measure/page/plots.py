"""The plots of a record, each with a sentence that says what it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headstart.measure.page.svg import Bar, Series, bars, legend, lines
from headstart.measure.tables import AXES, name_of, value, varied
from headstart.timings import PARTS

Entry = Mapping[str, Any]
_MOST_BARS = 24
_MOST_POSITIONS = 12  # few drafts are deeper, and their shares are noise


@dataclass(frozen=True, slots=True)
class Plot:
    """A title, what it shows, and the drawing."""

    title: str
    text: str
    drawing: str


def plots(record: Mapping[str, Any]) -> list[Plot]:
    """Every plot that the record has figures for."""
    entries = record["configurations"]
    found: list[Plot | None] = [_speedup_bars(entries)] if not varied(entries) else []
    found += _speedup_along(entries, "batch", "sequences in flight")
    found += _speedup_along(entries, "temperature", "temperature")
    found += [_forwards(record["targets"]), _positions(entries), _parts(entries), _cost(entries)]
    return [plot for plot in found if plot is not None]


def _speedup_bars(entries: Sequence[Entry]) -> Plot:
    rows = [
        Bar(
            name_of(entry, entries)[0],
            [(entry["speedup"], place)],
            f"{entry['speedup']:.2f}",
            tuple(entry["speedup_interval"]) if entry["speedup_interval"] and entry["proposer"] != "plain" else None,
        )
        for place, entry in enumerate(entries)
    ]
    text = (
        "Tokens a second over plain decoding, prompts included. The whiskers are 95% intervals over the prompts; the line is "
        "plain decoding."
    )
    return Plot("Speedup", text, bars(rows, level=1.0))


def _speedup_along(entries: Sequence[Entry], axis: str, label: str) -> list[Plot]:
    """One plot for each combination of the other axes that were varied."""
    if axis not in varied(entries):
        return []
    others = [other for other in AXES if other != axis and other in varied(entries)]
    groups: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        groups.setdefault(tuple(entry[other] for other in others), []).append(entry)
    found = []
    for key, own in groups.items():
        ways = list(dict.fromkeys(name_of(entry, entries)[0] for entry in own))
        series = [
            Series(way, [(float(e[axis]), e["speedup"]) for e in own if name_of(e, entries)[0] == way], place)
            for place, way in enumerate(ways)
        ]
        where = ", ".join(f"{other.replace('_', ' ')} {value(v)}" for other, v in zip(others, key, strict=True))
        drawing = lines(series, label, "speedup over plain", level=1.0) + legend([(s.name, s.colour, False) for s in series])
        at = f" ({where})" if where else ""
        text = f"Tokens a second over plain decoding at the same point{at}. Below the line speculation loses."
        found.append(Plot(f"Speedup by {label}", text, drawing))
    return found


def _forwards(targets: Mapping[str, Mapping[str, Any]]) -> Plot:
    series = []
    for place, (dtype, target) in enumerate(targets.items()):
        series.append(Series(f"{dtype}, measured", list(zip(target["rows"], target["ms"], strict=True)), place))
        if target["limit_ms"]:
            limit = list(zip(target["rows"], target["limit_ms"], strict=True))
            series.append(Series(f"{dtype}, the machine's limit", limit, place, is_dashed=True))
    text = (
        "Milliseconds of one forward by its rows: drafts pay where more rows cost little more. The dashed line is the least "
        "that the machine allows: all weights through memory once, or the arithmetic, whichever takes longer. Few rows can be "
        "faster than that where a part of small weights stays in the processor's cache."
    )
    drawing = lines(series, "rows of a forward", "ms") + legend([(s.name, s.colour, s.is_dashed) for s in series])
    return Plot("T(rows)", text, drawing)


def _first_point(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if all(entry[axis] == entries[0][axis] for axis in AXES)]


def _positions(entries: Sequence[Entry]) -> Plot | None:
    own = _first_point(entries)
    series = [
        Series(
            name_of(entry, own)[0],
            [(float(d), share) for d, share in enumerate(entry["acceptance_by_position"][:_MOST_POSITIONS], 1)],
            place,
        )
        for place, entry in enumerate(own)
        if entry["acceptance_by_position"]
    ]
    if not series:
        return None
    text = "Of the steps that drafted so deep, the share that accepted a token there."
    drawing = lines(series, "position in the draft", "share accepted") + legend([(s.name, s.colour, False) for s in series])
    return Plot(f"Acceptance by position{_where(entries)}", text, drawing)


def _where(entries: Sequence[Entry]) -> str:
    axes = varied(entries)
    return ", " + ", ".join(f"{axis.replace('_', ' ')} {value(entries[0][axis])}" for axis in axes) if axes else ""


def _parts(entries: Sequence[Entry]) -> Plot | None:
    own = [entry for entry in _first_point(entries) if entry["timings"]]
    if not own:
        return None
    rows = [
        Bar(
            name_of(entry, own)[0],
            [(entry["timings"][part], place) for place, part in enumerate(PARTS)],
            f"{entry['timings']['step']:.2f} ms",
        )
        for entry in own
    ]
    text = "Milliseconds of one step. Verify is the model's own forward; everything else is what speculation and the loop add."
    drawing = bars(rows) + legend([(part, place, False) for place, part in enumerate(PARTS)], of_bars=True)
    return Plot(f"Where the time of a step goes{_where(entries)}", text, drawing)


def _cost(entries: Sequence[Entry]) -> Plot:
    shown = entries[:_MOST_BARS]
    has_price = all(entry["cost"]["per_million_tokens"] is not None for entry in shown)
    rows = []
    for place, entry in enumerate(shown):
        own = entry["cost"]
        amount = own["per_million_tokens"] if has_price else 1000 * (own["device_seconds_per_token"] or 0.0)
        label = " ".join(name_of(entry, entries))
        rows.append(Bar(label, [(amount, place if not varied(entries) else 0)], f"{amount:.3g}"))
    text = "What a million tokens cost at the price that was given." if has_price else "Device-milliseconds a token."
    more = f" The first {_MOST_BARS} of {len(entries)} are drawn." if len(entries) > _MOST_BARS else ""
    return Plot("Cost", text + more, bars(rows))
