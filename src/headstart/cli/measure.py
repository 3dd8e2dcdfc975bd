"""``headstart measure``: proposers against plain decoding, interleaved in one run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from headstart.cli.options import (
    Engine,
    Explain,
    JsonFile,
    ModelName,
    ProposerFlags,
    Proposers,
    SamplingOptions,
    flags_of,
    given,
    open_model,
    sampling_of,
)
from headstart.errors import RequestError
from headstart.measure.settings import MeasureSettings

if TYPE_CHECKING:
    from headstart.measure.report import Report

    MeasureFlags = MeasureSettings
else:
    MeasureFlags = flags_of(MeasureSettings, {}, without=("proposers",))

MeasureOptions = Annotated[MeasureFlags | None, Parameter(name="*")]


def measure(
    model: ModelName,
    /,
    *,
    prompts: Annotated[str, Parameter(help="JSON Lines with prompt, turns or messages, and category")],
    proposer: Annotated[
        str | None,
        Parameter(
            help="names with commas: plain, auto, ngram, suffix, medusa, hydra, mtp, draft_model, combined, transformers"
        ),
    ] = None,
    explain: Explain = False,
    json: JsonFile = None,
    settings: MeasureOptions = None,
    engine: Engine = None,
    proposers: Proposers = None,
    sampling: SamplingOptions = None,
) -> None:
    """Measure speed, acceptance and losslessness of proposers against plain decoding."""
    from headstart.cli.terminal import STDOUT, check_json, progress, write_json
    from headstart.measure import bench
    from headstart.measure.prompts import prompt_set
    from headstart.proposers.choose import AUTO

    check_json(json)
    chosen = dict(given(settings)) if settings else {}
    names = tuple(name.strip() for name in proposer.split(",")) if proposer is not None else ()
    if explain and names and AUTO not in names:
        raise RequestError("--explain has no effect without proposer auto; add it to the proposers")
    request, flags = sampling_of(sampling), proposers or ProposerFlags()
    read = prompt_set(prompts, chosen.get("limit"))  # before the model, which takes longer to load
    llm = open_model(model, engine, "none" if names else None, None)
    with progress("measuring") as update:
        report = bench.measure(
            llm,
            read,
            MeasureSettings(proposers=names, **chosen),
            sampling=request,
            num_nodes=flags.nodes,
            options=flags.options(),
            progress=update,
        )
    if explain:
        _explain(report)
    if json != STDOUT:
        _show(report)
    if json is not None:
        write_json(json, report.record)


def _explain(report: Report) -> None:
    from headstart.cli.terminal import explanation

    for entry in report.record["configurations"]:
        if "explain" in entry:
            explanation(entry["explain"])


def _show(report: Report) -> None:
    from headstart.cli.terminal import heading, remark, say, table
    from headstart.measure.report import COLUMNS

    record = report.record
    prompts, sampling = record["prompts"], record["sampling"]
    heading(
        f"{record['model']} ({record['engine']}, {record['dtype']}), {prompts['number']} prompts of {prompts['name']}, "
        f"temperature {sampling['temperature']:g}, at most {sampling['max_tokens']} tokens"
    )
    table(COLUMNS, report.rows())
    if report.has_categories:
        say()
        table(*report.category_rows())
    for note in record["notes"]:
        remark(note)
    for entry in record["configurations"]:
        for difference in entry["differences"]:
            remark(f"{entry['proposer']}: {describe(difference)}")


def describe(difference: dict[str, object]) -> str:
    """One line about a difference from plain decoding."""
    text = f"{difference['kind']} in prompt {difference['prompt']}, token {difference['index']}"
    if difference["gap"] is None:
        return f"{text}: the answers do not end alike, or a banned token was chosen"
    return f"{text}: gap {difference['gap']:.2e}, measured difference {difference['measured_difference']:.2e}"
