"""The page: heading, answers in a sentence each, plots, the walk through one generation, and every table."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from headstart.measure.page.plots import plots
from headstart.measure.page.steps import steps
from headstart.measure.tables import Table, described, tables

_HERE = Path(__file__).parent


def page(record: Mapping[str, Any]) -> str:
    """The whole document of a record of this version."""
    title = f"{record['model']}: what speculation gives"
    drawn = "".join(
        f"<section><h2>{escape(plot.title)}</h2><p>{escape(plot.text)}</p>{plot.drawing}</section>" for plot in plots(record)
    )
    walk = steps(record)
    if walk:
        proposer = record["walkthrough"]["proposer"]
        walk = (
            f"<section><h2>One generation, step by step</h2><p>Drafts of {escape(proposer)}. Each tree hangs under the last "
            "token of the text; one pass of the model verifies all of it. What is ticked became text.</p>" + walk + "</section>"
        )
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>\n{style}</style></head><body><main>"
        f"<h1>{escape(title)}</h1>{_about(record)}{_findings(record)}{drawn}{walk}"
        f"<section><h2>Tables</h2>{''.join(map(_table, tables(record)))}</section></main>"
        f"<script>\n{script}</script></body></html>\n"
    )


def _about(record: Mapping[str, Any]) -> str:
    machine, prompts = record["machine"], record["prompts"]
    threads = f", {machine['threads']} threads" if "threads" in machine else ""
    facts = [
        f"{record['engine']}, {record['dtype']}",
        f"{prompts['number']} prompts of {prompts['name']}",
        f"{machine['cpu']}, {machine['cores']} cores{threads}",
        record["date"][:10],
        f"commit {record['commit'][:12]}" if record["commit"] else "",
    ]
    return f'<p class="about">{escape("; ".join(fact for fact in facts if fact))}</p>'


def _findings(record: Mapping[str, Any]) -> str:
    """The fastest configuration, whether text was lost, how far forecasts are off, and the record's own notes."""
    entries = record["configurations"]
    others = [entry for entry in entries if entry["proposer"] != "plain"]
    found = []
    if others:
        best = max(others, key=lambda entry: entry["speedup"])
        interval = best["speedup_interval"]
        span = f" (95%: {interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
        lossy = "" if best["lossless"] is not False else ", which does not keep the model's distribution"
        found.append(f"Fastest over plain decoding: {described(best, entries)}{lossy}: {best['speedup']:.2f} times{span}.")
        if interval and interval[0] <= 1.0 <= interval[1]:
            found.append("Its interval holds 1: chance alone may have made it so.")
    compared = [entry for entry in others if entry["identical"] is not None]
    faults, ties = sum(entry["faults"] for entry in compared), sum(entry["ties"] for entry in compared)
    if compared:
        told = "Every compared answer is plain decoding's, token by token." if not faults + ties else ""
        found.append(told or f"Compared with plain decoding: {faults} faults, {ties} ties by rounding.")
    if compared and len(compared) < len(others):
        found.append(
            f"{len(others) - len(compared)} of {len(others)} configurations give other tokens by their rule, or no tokens."
        )
    off = [abs(entry["predicted"]["over_measured"] - 1) for entry in others if entry["predicted"]]
    if off:
        found.append(
            f"Forecasts are {100 * sorted(off)[len(off) // 2]:.1f}% off the clock at the median, {100 * max(off):.1f}% at most."
        )
    found += record["notes"]
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in found)}</ul>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.header)
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    return (
        f'<details><summary>{escape(table.title)}</summary><div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div></details>"
    )
