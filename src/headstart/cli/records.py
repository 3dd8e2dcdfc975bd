"""``headstart measure --record`` and ``--compare``: what saved records say, without measuring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headstart.errors import ModelError, RequestError

if TYPE_CHECKING:
    from headstart.measure.report import Report


def refuse_others(option: str, others: dict[str, Any]) -> None:
    """RequestError for the first of other options that was given."""
    given = next((name for name, value in others.items() if value is not None and value is not False), None)
    if given is not None:
        raise RequestError(f"{given} has no effect with --{option}, which measures nothing; leave one of the two out")


def compare(paths: tuple[str, str], json: str | None) -> None:
    """Show two records side by side; ModelError if the second is worse."""
    from headstart.cli.terminal import STDOUT, heading, remark, table, write_json
    from headstart.measure.compare import compare as compare_records
    from headstart.measure.record import read_record

    found = compare_records(*map(read_record, paths))
    if json != STDOUT:
        side = found.table()
        heading(f"{side.title} (A: {paths[0]}, B: {paths[1]})")
        table(side.header, side.rows)
        for note in found.notes:
            remark(note)
    if json is not None:
        write_json(json, found.describe())
    if found.problem is not None:
        raise ModelError(found.problem)


def saved(path: str) -> Report:
    """A record that was written before."""
    from headstart.measure.record import read_record
    from headstart.measure.report import Report

    return Report(read_record(path))
