"""``headstart plan``: does speculation pay here, with what, and up to which batch; or a calculator without a model."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headstart.cli.options import Engine, EngineFlags, JsonFile, flags_of, given, open_model
from headstart.errors import RequestError
from headstart.measure.plan_settings import PlanSettings
from headstart.plan.whatif import WhatIf

if TYPE_CHECKING:
    PlanFlags = PlanSettings
    WhatIfFlags = WhatIf
else:
    PlanFlags = flags_of(PlanSettings, {}, with_commas=("proposers", "nodes"))
    WhatIfFlags = flags_of(WhatIf, {})

PlanOptions = Annotated[PlanFlags | None, Parameter(name="*")]
WhatIfOptions = Annotated[WhatIfFlags | None, Parameter(name="*")]
_FOR_BOTH = ("price", "gpu_hours")


def plan(
    model: Annotated[str | None, Parameter(help="a Hugging Face folder, a GGUF file, a hub id, or smollm2")] = None,
    /,
    *,
    prompts: Annotated[str | None, Parameter(help="JSON Lines of prompts; without it a built-in set")] = None,
    json: JsonFile = None,
    settings: PlanOptions = None,
    supposed: WhatIfOptions = None,
    engine: Engine = None,
) -> None:
    """Say whether speculation pays: measured with a model, or calculated from what is supposed."""
    from headstart.cli.terminal import check_json

    check_json(json)
    chosen: dict[str, Any] = given(settings) if settings else {}
    numbers = {name: value for name, value in (given(supposed) if supposed else {}).items() if value is not None}
    if model is None:
        _calculate(numbers, chosen, {"prompts": prompts} | given(engine or EngineFlags()), json)
        return
    if numbers:
        raise RequestError(
            f"option {next(iter(numbers))} has no effect with a model, where all is measured; leave one of the two out"
        )
    _measure(model, prompts, PlanSettings(**chosen), engine, json)


def _calculate(numbers: dict[str, Any], chosen: dict[str, Any], others: dict[str, Any], json: str | None) -> None:
    from headstart.cli.terminal import STDOUT, say, write_json
    from headstart.plan.whatif import answer

    defaults = {entry.name: entry.default for entry in fields(PlanSettings)}
    idle = [name for name, value in chosen.items() if name not in _FOR_BOTH and value != defaults[name]]
    idle += [name for name, value in others.items() if value is not None]
    if idle:
        raise RequestError(f"option {idle[0]} has no effect without a model; name one, or leave it out")
    found = answer(WhatIf(**numbers), price=chosen.get("price"), device_hours=chosen.get("gpu_hours"))
    if json != STDOUT:
        for line in found.lines:
            say(line)
    if json is not None:
        write_json(json, dict(found.figures))


def _measure(model: str, prompts: str | None, settings: PlanSettings, engine: EngineFlags | None, json: str | None) -> None:
    from headstart.cli.terminal import STDOUT, heading, progress, remark, say, table, write_json
    from headstart.measure import planning
    from headstart.measure.prompts import prompt_set

    read = prompt_set(prompts, settings.limit)  # before the model, which takes longer to load
    planning.check_asked(settings, read)
    llm = open_model(model, engine, "none", None, is_long=True)
    with progress("planning") as update:
        found = planning.plan(llm, read, settings, progress=update)
    if json != STDOUT:
        record = found.record
        heading(
            f"{record['model']} ({record['engine']}, {record['dtype']}), {record['prompts']['number']} prompts of {read.name}"
        )
        for each in found.tables():
            say()
            heading(each.title)
            table(each.header, each.rows)
        say()
        for line in found.lines:
            say(line)
        for note in record["notes"]:
            remark(note)
    if json is not None:
        write_json(json, found.record)
