"""The reasons of ``auto`` as tables: what a step costs by its rows, what each member costs and earned, how much was drafted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Table = tuple[list[str], list[list[str]]]

_MOST_COLUMNS = 12


def tables(described: Mapping[str, Any]) -> list[Table]:
    """Header and rows of each table, from ``AutoProposer.describe``."""
    return [_costs(described["profile"]), _members(described), _drafts(described)]


def _costs(profile: Mapping[str, Any]) -> Table:
    header = ["rows of a step", *map(str, profile["rows"])]
    return header, [
        [name, *(f"{t:.1f}" for t in profile[key])] for name, key in (("ms at load", "ms_at_load"), ("ms now", "ms_now"))
    ]


def _members(described: Mapping[str, Any]) -> Table:
    """Costs and earnings are means of the sequences and steps in which a member was asked.

    ``always``: the rule of acceptance leaves no choice, and nothing is weighed.
    """
    header = ["proposer", "now", "ms to ask", "ms it saves", "asked", "probes", "verified", "accepted"]
    rows = []
    for member in described["members"]:
        asked, chosen = max(member["asked"], 1), member["asked"] - member["without_choice"]
        state = ("on" if member["is_on"] else "off") if chosen or not member["asked"] else "always"
        rows.append(
            [
                member["proposer"],
                state,
                f"{member['propose_ms'] / asked:.2f}",
                f"{member['saved_ms'] / chosen:.2f}" if chosen else "-",
                str(member["asked"]),
                str(member["probes"]),
                str(member["verified"]),
                str(member["accepted"]),
            ]
        )
    return header, rows


def _drafts(described: Mapping[str, Any]) -> Table:
    """Shares of the steps by the nodes that were verified, over all sequences in flight."""
    counts = {int(rows): number for rows, number in described["steps_by_drafted_rows"].items()}
    total = max(sum(counts.values()), 1)
    shown = sorted(sorted(counts, key=lambda rows: (-counts[rows], rows))[:_MOST_COLUMNS])
    others = total - sum(counts[rows] for rows in shown)
    header = ["drafted nodes of a step", *map(str, shown), *(["others"] if others else [])]
    shares = [f"{counts[rows] / total:.0%}" for rows in shown]
    return header, [["share of the steps", *shares, *([f"{others / total:.0%}"] if others else [])]]
