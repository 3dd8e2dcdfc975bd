"""``headstart check``: a proof of one's own that speculation changes nothing, with a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.check.settings import CheckSettings
from headstart.cli.options import (
    Engine,
    JsonFile,
    ModelName,
    ProposerFlags,
    Proposers,
    flags_of,
    given,
    open_model,
)
from headstart.errors import ModelError

if TYPE_CHECKING:
    from headstart.check.report import CheckReport

    CheckFlags = CheckSettings
else:
    _TEXTS = {"seed": "of the sampled answers and of the draws"}
    CheckFlags = flags_of(CheckSettings, _TEXTS, without=("proposers",))

CheckOptions = Annotated[CheckFlags | None, Parameter(name="*")]


def check(
    model: ModelName = "smollm2",
    /,
    *,
    prompts: Annotated[
        str | None, Parameter(help="JSON Lines with prompt, turns or messages; without it a built-in set of several kinds")
    ] = None,
    proposer: Annotated[str | None, Parameter(help="names with commas; without it every one that the model can have")] = None,
    json: JsonFile = None,
    settings: CheckOptions = None,
    engine: Engine = None,
    proposers: Proposers = None,
) -> None:
    """Prove that speculation changes nothing: the same tokens, or the same distribution."""
    from headstart.check import run
    from headstart.cli.terminal import STDOUT, check_json, progress, write_json
    from headstart.measure.prompts import prompt_set

    check_json(json)
    chosen = dict(given(settings)) if settings else {}
    names = tuple(name.strip() for name in proposer.split(",")) if proposer is not None else ()
    flags = proposers or ProposerFlags()
    wanted = CheckSettings(proposers=names, **chosen)
    read = None if prompts is None else prompt_set(prompts, wanted.limit)  # before the model, which takes longer to load
    run.check_asked(wanted, flags.nodes, flags.options())
    llm = open_model(model, engine, "none", None, is_long=True)
    with progress("checking") as update:
        report = run.check(llm, read, wanted, num_nodes=flags.nodes, options=flags.options(), progress=update)
    if json != STDOUT:
        _show(report)
    if json is not None:
        write_json(json, report.record)
    if report.problem is not None:
        raise ModelError(report.problem)


def _show(report: CheckReport) -> None:
    from headstart.check.report import COLUMNS
    from headstart.cli.terminal import heading, remark, say, table

    record = report.record
    prompts = record["prompts"]
    heading(
        f"{record['model']} ({record['engine']}, {record['dtype']}), {prompts['number']} prompts of {prompts['name']}, "
        f"accept {record['settings']['accept']}"
    )
    table(COLUMNS, report.rows())
    for entry in record["skipped"]:
        remark(f"{entry['proposer']} was not checked: {entry['reason']}")
    if report.passed:
        say(report.verdict)
