"""``headstart measure --record``, ``--compare`` and ``--url``: saved records, and servers, without a model of one's own."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from headstart.errors import ModelError, RequestError

if TYPE_CHECKING:
    from headstart.measure.report import Report
    from headstart.measure.settings import MeasureSettings


def refuse_others(option: str, others: dict[str, Any]) -> None:
    """RequestError for the first of other options that was given."""
    given = next((name for name, value in others.items() if value is not None and value is not False), None)
    if given is not None:
        raise RequestError(f"{given} has no effect with --{option}; leave one of the two out")


def compare(paths: tuple[str, str], json: str | None) -> None:
    """Show two records side by side; ModelError if the second is worse."""
    from headstart.cli.terminal import STDOUT, heading, remark, table, write_json
    from headstart.measure.compare import compare as compare_records
    from headstart.measure.record import read_record, reading

    with reading(*paths):
        found = compare_records(*map(read_record, paths))
        side, described, problem = found.table(), found.describe(), found.problem
    if json != STDOUT:
        heading(f"{side.title} (A: {paths[0]}, B: {paths[1]})")
        table(side.header, side.rows)
        for note in found.notes:
            remark(note)
    if json is not None:
        write_json(json, described)
    if problem is not None:
        raise ModelError(problem)


def servers(urls: str, model: str | None, prompts: str | None, settings: MeasureSettings, json: str | None) -> None:
    """Measure servers; RequestError for settings that a server cannot be asked for."""
    from headstart.cli.terminal import STDOUT, heading, progress, table, write_json
    from headstart.measure.prompts import prompt_set
    from headstart.measure.server import Request, measure_servers, server_table

    read_by_servers = ("batch", "temperature", "max_tokens", "limit", "categories")
    idle = {entry.name for entry in fields(settings) if getattr(settings, entry.name) != entry.default} - set(read_by_servers)
    if idle:
        raise RequestError(f"--{min(idle).replace('_', '-')} has no effect with --url; leave one of the two out")
    several = next((name for name in read_by_servers[:3] if len(getattr(settings, name)) > 1), None)
    if several is not None:
        raise RequestError(f"servers are measured at one {several}; give one value")
    addresses = [url.strip() for url in urls.split(",")]
    if not all(addresses):
        raise RequestError(f"--url {urls} names an empty address; give addresses with one comma between two")
    read = prompt_set(prompts, settings.limit, settings.categories)
    defaults = Request()
    request = Request(
        max_tokens=settings.max_tokens[0] if settings.max_tokens else defaults.max_tokens,
        temperature=settings.temperature[0] if settings.temperature else defaults.temperature,
        batch=settings.batch[0],
    )
    with progress("measuring") as update:
        record = measure_servers(addresses, read, request, model=model, progress=update)
    if json != STDOUT:
        found = server_table(record)
        heading(f"{found.title}, {read.name}, {request.batch} requests in flight")
        table(found.header, found.rows)
    if json is not None:
        write_json(json, record)


def saved(path: str) -> Report:
    """A record that was written before."""
    from headstart.measure.record import read_record
    from headstart.measure.report import Report

    return Report(read_record(path))
