"""``headstart measure``: proposers against plain decoding, interleaved in one run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headstart.cli.options import (
    SAMPLING_HELP,
    Engine,
    EngineFlags,
    Explain,
    JsonFile,
    ProposerFlags,
    Proposers,
    flags_of,
    given,
    named,
    open_model,
    sampling_of,
)
from headstart.errors import RequestError, require
from headstart.measure.settings import MeasureSettings
from headstart.sampling import Sampling

if TYPE_CHECKING:
    from headstart.llm import LLM
    from headstart.measure.report import Report

    MeasureFlags = MeasureSettings
    SamplingFlags = Sampling
else:
    _LISTS = ("accept", "batch", "temperature", "prompt_tokens", "max_tokens", "categories", "against")
    MeasureFlags = flags_of(MeasureSettings, {}, without=("proposers",), with_commas=_LISTS)
    _BIAS = {"logit_bias": tuple[str, ...]}
    SamplingFlags = flags_of(Sampling, SAMPLING_HELP, _BIAS, without=("temperature", "max_tokens", "n", "logprobs"))

MeasureOptions = Annotated[MeasureFlags | None, Parameter(name="*")]
SamplingOptions = Annotated[SamplingFlags | None, Parameter(name="*")]


def measure(
    model: Annotated[str | None, Parameter(help="a Hugging Face folder, a GGUF file, a hub id, or smollm2")] = None,
    /,
    *,
    prompts: Annotated[
        str | None, Parameter(help="JSON Lines with prompt, turns, messages or conversations; without it a built-in set")
    ] = None,
    proposer: Annotated[
        str | None,
        Parameter(help="names with commas: plain, auto, ngram, suffix, medusa, hydra, mtp, draft_model, combined"),
    ] = None,
    original: Annotated[str | None, Parameter(help="the model that this one was made of: says how far they are apart")] = None,
    explain: Explain = False,
    json: JsonFile = None,
    csv: Annotated[str | None, Parameter(help="write the figures of each configuration to a CSV file")] = None,
    html: Annotated[str | None, Parameter(help="write the results as one self-contained page")] = None,
    record: Annotated[str | None, Parameter(help="show a record that was written before, and measure nothing")] = None,
    compare: Annotated[
        tuple[str, str] | None, Parameter(negative=(), help="two records, B over A; ends with 1 if B is worse beyond noise")
    ] = None,
    url: Annotated[
        str | None,
        Parameter(help="servers with OpenAI's interface, with commas; the first is what the others are compared with"),
    ] = None,
    settings: MeasureOptions = None,
    engine: Engine = None,
    proposers: Proposers = None,
    sampling: SamplingOptions = None,
) -> None:
    """Measure speed, acceptance, overhead, cost and losslessness of proposers against plain decoding."""
    from headstart.cli import records
    from headstart.cli.terminal import check_outputs

    check_outputs(json=json, csv=csv, html=html)
    others: dict[str, Any] = {"a model": model, "--prompts": prompts, "--proposer": proposer, "--original": original}
    others |= {"--explain": explain} | named(engine) | named(proposers) | named(sampling)
    if compare is not None:
        records.refuse_others(
            "compare", others | named(settings) | {"--record": record, "--url": url, "--csv": csv, "--html": html}
        )
        records.compare(compare, json)
        return
    if url is not None:
        idle = {name: value for name, value in others.items() if name not in ("a model", "--prompts")}
        records.refuse_others("url", idle | {"--record": record, "--csv": csv, "--html": html})
        records.servers(url, model, prompts, MeasureSettings(**(given(settings) if settings else {})), json)
        return
    if record is not None:
        from headstart.measure.record import reading

        records.refuse_others("record", others | named(settings) | {"--url": url})
        with reading(record):
            _write(records.saved(record), explain, json, csv, html)
        return
    if model is None:
        raise RequestError("name a model to measure, such as smollm2; or saved records, with --record or --compare")
    report = _measure(model, prompts, proposer, original, explain, settings, engine, proposers, sampling)
    _write(report, explain, json, csv, html)


def _measure(
    model: str,
    prompts: str | None,
    proposer: str | None,
    original: str | None,
    explain: bool,
    settings: MeasureFlags | None,
    engine: EngineFlags | None,
    proposers: ProposerFlags | None,
    sampling: SamplingFlags | None,
) -> Report:
    from headstart.cli.terminal import progress
    from headstart.measure import bench
    from headstart.measure.prompts import prompt_set
    from headstart.proposers.choose import AUTO

    names = tuple(name.strip() for name in proposer.split(",")) if proposer is not None else ()
    if explain and names and AUTO not in names:
        raise RequestError("--explain has no effect without proposer auto; add it to the proposers")
    chosen = MeasureSettings(proposers=names, **(given(settings) if settings else {}))
    request, flags = sampling_of(sampling), proposers or ProposerFlags()
    read = prompt_set(prompts, chosen.limit, chosen.categories)  # before the model, which takes longer to load
    bench.check_asked(chosen, request, read, flags.nodes, flags.options())
    llms = _open(model, engine, "none" if names else None)
    beside = None if original is None else open_model(original, None, "none", None, is_long=True)
    with progress("measuring") as update:
        return bench.measure(
            llms,
            read,
            chosen,
            sampling=request,
            num_nodes=flags.nodes,
            options=flags.options(),
            original=beside,
            progress=update,
        )


def _write(report: Report, explain: bool, json: str | None, csv: str | None, html: str | None) -> None:
    from headstart.cli.terminal import STDOUT, write_json

    if explain:
        _explain(report)
    if json != STDOUT:
        _show(report)
    if json is not None:
        write_json(json, report.record)
    if csv is not None:
        report.save_csv(csv)
    if html is not None:
        report.save_html(html)


def _open(model: str, engine: EngineFlags | None, proposer: str | None) -> list[LLM]:
    """The model, once a dtype."""
    from headstart.target.loading import DTYPES

    flags = engine or EngineFlags()
    dtypes: list[str | None] = [None] if flags.dtype is None else [name.strip() for name in flags.dtype.split(",")]
    for dtype in dtypes:
        require(dtype is None or dtype in DTYPES, "dtype", dtype, f"one of {', '.join(DTYPES)}, or several with commas")
        if dtypes.count(dtype) > 1:
            raise RequestError(f"dtype {dtype} is given twice")
    return [open_model(model, replace(flags, dtype=dtype), proposer, None, is_long=True) for dtype in dtypes]


def _explain(report: Report) -> None:
    from headstart.cli.terminal import Tally, explanation, remark
    from headstart.proposers.choose import AUTO

    for reasons in report.record["explain"]:
        remark(f"\n{AUTO} in {reasons['dtype']} under {reasons['accept']}:")
        own = [
            entry
            for entry in report.record["configurations"]
            if (entry["proposer"], entry["dtype"], entry["accept"]) == (AUTO, reasons["dtype"], reasons["accept"])
        ]
        num_tokens, num_steps = (sum(entry[name] for entry in own) for name in ("tokens", "steps"))
        tally = Tally(num_tokens, num_steps, sum(sum(entry["answers"]["emitted"]) for entry in own))
        explanation(reasons, tally, sum(entry["seconds"] for entry in own))


def _show(report: Report) -> None:
    from headstart.cli.terminal import heading, remark, say, table

    record, shown = report.record, report.tables()
    prompts = record["prompts"]
    heading(f"{record['model']} ({record['engine']}, {record['dtype']}), {prompts['number']} prompts of {prompts['name']}")
    for each in shown:
        say()
        heading(each.title)
        table(each.header, each.rows)
    if record["original"]:
        say()
        say(original_line(record["original"]))
    for note in record["notes"]:
        remark(note)
    for entry in record["configurations"]:
        for difference in entry["differences"]:
            remark(f"{entry['proposer']}: {describe(difference)}")


def original_line(found: dict[str, Any]) -> str:
    """How far the base is from what it was made of."""
    return (
        f"beside {found['model']}: KL {found['kl']:.4f}, TV {found['total_variation']:.4f}, {found['differing']:.1%} of the "
        f"likeliest tokens differ; perplexity of this model's answers {found['own_perplexity']:.2f} under itself and "
        f"{found['perplexity']:.2f} under the other"
    )


def describe(difference: dict[str, object]) -> str:
    """One line about a difference from plain decoding."""
    text = f"{difference['kind']} in prompt {difference['prompt']}, token {difference['index']}"
    if difference["gap"] is None:
        return f"{text}: the answers do not end alike, or a banned token was chosen"
    return f"{text}: gap {difference['gap']:.2e}, measured difference {difference['measured_difference']:.2e}"
