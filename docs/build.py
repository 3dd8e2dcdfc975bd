"""Fills the generated blocks of README.md, docs/*.md and experiments/*/README.md from records and from the program itself.

    python docs/build.py           write them
    python docs/build.py --check   fail if one is out of date (part of `make check`)

A block stands between ``<!-- begin: NAME -->`` and ``<!-- end: NAME -->``; NAME is a function below, with its argument behind
a colon. No figure is typed by hand: tables come from the records under benchmarks/ and experiments/, help texts and defaults
from the command line, the list of files and of names from the code. A record that is not there is an error in either mode; the
block stays as it was.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import json
import os
import re
import runpy
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from captions import when

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "headstart"
BLOCK = re.compile(r"<!-- begin: (?P<name>[^ ]+) -->\n(?P<body>.*?)<!-- end: (?P=name) -->", re.DOTALL)
CHAT = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")


class MissingRecordError(Exception):
    """A block needs a record that does not exist."""


def main() -> int:
    """Write the documents, or check them; the exit status."""
    problems: list[str] = []
    for path in documents():
        old = path.read_text(encoding="utf-8")
        new, missing = renewed(old)
        problems += [f"{path.relative_to(ROOT)}: {reason}" for reason in missing]
        if "--check" in sys.argv[1:] and new != old:
            problems += difflib.unified_diff(old.splitlines(), new.splitlines(), path.name, "generated", lineterm="")
            problems.append(f"{path.relative_to(ROOT)} is out of date; run `python docs/build.py`")
        elif new != old:
            path.write_text(new, encoding="utf-8")
    if problems:
        print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


def documents() -> list[Path]:
    """Every document that may hold blocks."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "experiments").glob("*/README.md"))]


def renewed(text: str) -> tuple[str, list[str]]:
    """A document with its blocks made anew, and one line for each record that is missing."""
    missing: list[str] = []

    def fill(block: re.Match[str]) -> str:
        try:
            return filled(block)
        except MissingRecordError as error:
            missing.append(f"block {block['name']}: {error}")
            return block[0]

    return BLOCK.sub(fill, text), missing


def filled(block: re.Match[str]) -> str:
    """One block with its content made anew."""
    name, _, argument = block["name"].partition(":")
    return f"<!-- begin: {block['name']} -->\n{MAKERS[name](argument)}\n<!-- end: {block['name']} -->"


def speed(file: str) -> str:
    """Speed of every configuration of a record, over the first of the other engines in it."""
    record = read(file)
    entries = record["configurations"]
    base = next(entry for entry in entries if entry["proposer"] in ENGINES)
    rows = [
        [
            NAMES[entry["proposer"]],
            f"{entry['acceptance_length']:.2f}",
            f"{entry['ms_per_token']:.1f}",
            f"{entry['tokens_per_second']:.1f}",
            f"{entry['tokens_per_second'] / base['tokens_per_second']:.2f}",
            same(entry),
        ]
        for entry in sorted(entries, key=lambda entry: entry["tokens_per_second"])
    ]
    header = ["decoded with", "L", "ms per token", "tokens/s", f"over {base['proposer']}", "same tokens as plain"]
    return table(header, rows) + "\n\n" + measured(record)


def acceptance(file: str) -> str:
    """L by kind of prompt."""
    record = read(file)
    found = record["proposers"]
    categories = record["prompts"]["categories"]
    kinds: dict[str, list[str]] = {"chat": [name for name in CHAT if name in categories]}
    kinds |= {name: [name] for name in categories if name not in CHAT}
    rows = []
    for kind, names in kinds.items():
        parts = {name: [own["by_category"][category] for category in names] for name, own in found.items()}
        lengths = [sum(part["emitted"] for part in own) / sum(part["steps"] for part in own) for own in parts.values()]
        rows.append([kind, str(sum(categories[name] for name in names)), *(f"{length:.2f}" for length in lengths)])
    for kind, key in (("all", "all"), ("all but outputs that loop", "not_looping")):
        own = [counts[key] for counts in found.values()]
        rows.append([kind, str(own[0]["prompts"]), *(f"{counts['acceptance_length']:.2f}" for counts in own)])
    what = (
        f"*L at {record['rows']} rows a step; {record['model']}, {record['dtype']}; {record['prompts']['name']}, greedy, "
        f"{record['max_tokens']} tokens; {record['machine']['cpu']}; {when(record)}.*"
    )
    return table(["kind", "prompts", *(NAMES[name] for name in found)], rows) + "\n\n" + what


def lossless(files: str) -> str:
    """How many outputs equal plain decoding, over several records."""
    rows, records = [], [read(file) for file in files.split(",")]
    for record in records:
        for entry in record["configurations"]:
            if entry["proposer"] != "plain" and entry["identical"]:
                counts = [entry["identical"], str(entry["ties"]), str(entry["faults"])]
                rows.append([sampling(record), NAMES[entry["proposer"]], f"{entry['acceptance_length']:.2f}", *counts])
    header = ["sampling", "decoded with", "L", "identical", "ties by rounding", "faults"]
    return "\n\n".join([table(header, rows), *map(measured, records)])


def accepting(file: str) -> str:
    """L and tokens/s of every rule of acceptance, by proposer and temperature."""
    record = read(file)
    temperatures = sorted({case["temperature"] for case in record["cases"]})
    by_way: dict[tuple[str, str, str], dict[float, Any]] = {}
    for case in record["cases"]:
        way = case["proposer"], case["accept"], case["children"]
        by_way.setdefault(way, {})[case["temperature"]] = case
    rows = []
    for (proposer, rule, children), cases in by_way.items():
        plain = proposer == "plain"
        row = ["plain" if plain else f"`{proposer}`", "–" if plain else f"`{rule}`", "–" if plain else CHILDREN[rule, children]]
        for temperature in temperatures:
            case = cases.get(temperature)
            row += [f"{case['acceptance_length']:.2f}", f"{case['tokens_per_second']:.0f}"] if case else ["", ""]
        rows.append(row)
    header = ["proposer", "rule", "children at T > 0"]
    header += [f"{what}, T = {temperature:g}" for temperature in temperatures for what in ("L", "tokens/s")]
    how = (
        f"*{record['model']}, {record['dtype']}, engine {record['engine']}; {record['prompts']['number']} prompts of"
        f" {record['prompts']['name']}, {record['max_tokens']} tokens, batch 1; `draft_model` is the target with int8 weights;"
        f" {record['machine']['cpu']}, {record['machine']['cores']} cores; {when(record)}.*"
    )
    return table(header, rows) + "\n\n" + how


def batches(file: str) -> str:
    """Tokens a second of plain decoding and speedups over it, by dtype, sequences in flight and temperature."""
    record = read(file)
    points = list(record["points"].values())
    ways = [name for name in points[0]["ways"] if name != "plain"]
    several = len({point["dtype"] for point in points}) > 1
    rows = []
    for point in points:
        found = point["ways"]
        row = [point["dtype"]] if several else []
        row += [str(point["batch"]), f"{point['temperature']:g}", f"{found['plain']['tokens_per_second']:.0f}"]
        for name in ways:
            low, high = found[name]["speedup_interval"]
            row.append(f"{found[name]['speedup']:.2f} ({low:.2f}–{high:.2f})")
        rows.append(row)
    header = [*(["dtype"] if several else []), "in flight", "T", "plain, tokens/s", *(NAMES[name] for name in ways)]
    machine, prompts, settings = record["machine"], record["prompts"], record["settings"]
    how = (
        f"*Speedup over plain decoding of the same batch, prompts included, with 95% intervals over the prompts; SmolLM2-135M,"
        f" {settings['limit']} prompts of {prompts['name']}, or as many as are in flight, {settings['tokens']} tokens;"
        f" {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; {when(record)}.*"
    )
    return table(header, rows) + "\n\n" + how


def forecasts(file: str) -> str:
    """A plan's speedups in decoding beside the clock of the same run."""
    record = read(file)
    batches = list(dict.fromkeys(one["batch"] for one in record["proof"]))
    found: dict[tuple[str, int], list[str]] = {}
    for one in record["proof"]:
        cells = [f"{one['predicted']:.2f}", f"{one['measured']:.2f}", f"{one['over_measured'] - 1:+.1%}"]
        found.setdefault((one["proposer"], one["nodes"]), []).extend(cells)
    rows = [[f"`{proposer}`", str(nodes), *cells] for (proposer, nodes), cells in found.items()]
    header = ["", "nodes", *(f"{what}, batch {batch}" for batch in batches for what in ("forecast", "clock", "off by"))]
    machine = record["machine"]
    how = (
        f"*{record['model']}, {record['dtype']}, engine {record['engine']}; {record['prompts']['number']} prompts of"
        f" {record['prompts']['name']}; {machine['cpu']}, {machine['cores']} cores; {when(record)}.*"
    )
    return table(header, rows) + "\n\n" + how


def native(argument: str) -> str:
    """A table about the native engine, by a function of native_tables.py: TABLE:RECORD."""
    name, _, file = argument.partition(":")
    header, rows, how = runpy.run_path(str(Path(__file__).with_name("native_tables.py")))[name](read(file))
    return table(header, rows) + "\n\n" + how


def curve(file: str) -> str:
    """Held-out acceptance over the rows that a training run learned from, from the record beside its heads."""
    record = read(file)
    rows = [
        [
            f"{point['tokens'] / 1e6:.2f}",
            f"{point['length']:.3f}",
            f"{point['top1']:.3f}",
            f"{point['loss']:.3f}" if "loss" in point else "–",
        ]
        for point in record["progress"]["curve"]
    ]
    header = [
        "million rows trained on",
        "L predicted, 16 rows",
        "first guess of head 1 right",
        "training loss since the last row",
    ]
    corpus, settings = record["corpus"], record["settings"]
    kinds = ", ".join(f"{kind} {number / 1e6:.2f}" for kind, number in corpus["tokens_by_kind"].items())
    trained_on = (
        f"*{corpus['documents']} documents with {sum(corpus['tokens_by_kind'].values()) / 1e6:.2f} million supervised tokens"
        f" ({kinds}); {settings['num_heads']} heads, draft vocabulary {settings['draft_vocab'] or 'whole'}; the heads that were"
        f" kept are those of step {record['progress']['best_step']}.*"
    )
    return table(header, rows) + "\n\n" + trained_on


def writing(file: str) -> str:
    """How fast a model writes its own training text, run by run: weights, conversations at once, what stood before."""
    record = read(file)
    rows = [
        [
            run["dtype"],
            str(run["batch"]),
            str(run["documents_before"]),
            f"{run['written_per_second']:.0f}",
            f"{run['supervised_per_second']:.0f}",
            " to ".join(f"{gigabytes:.0f}" for gigabytes in sorted(run["bandwidth_gb_s"])),
        ]
        for run in record["runs"]
    ]
    header = ["weights", "conversations at once", "behind documents", "tokens/s written", "supervised tokens/s", "memory, GB/s"]
    machine, settings, runtime = record["machine"], record["settings"], record["runtime"]
    how = (
        f"*{settings['model']}, native engine, {runtime['threads']} threads, {settings['seconds']:.0f} seconds each, in their "
        f"order; {machine['cpu']}, {runtime['isa']}; {when(record)}.*"
    )
    return table(header, rows) + "\n\n" + how


def joint(file: str) -> str:
    """What a joint run (Medusa-2) gained and what it cost the base, on held-out text, while it went on."""
    record = read(file)
    rows = [
        [
            str(point["step"]),
            str(point["tokens"]),
            f"{point['length']:.3f}",
            f"{point['top1']:.3f}",
            f"{point['perplexity_rise']:+.2%}",
            f"{point['divergence']:.4f}",
            f"{point['agreement']:.1%}",
            f"{point.get('logit_factor', 1.0):.3f}",
        ]
        for point in record["progress"]["curve"]
    ]
    header = ["step", "places learned from", "L predicted, 16 rows", "first guess of head 1 right"]
    header += ["perplexity of the base", "divergence, nats", "greedy agreement", "factor on its logits"]
    progress = record["progress"]
    how = (
        f"*{progress['step']} of {progress['total_steps']} planned steps, {progress['seconds'] / 60:.0f} minutes of the clock;"
        f" the best within the bounds is step {progress['best_step']}.*"
    )
    return table(header, rows) + "\n\n" + how


def heads_alone(file: str) -> str:
    """How predicted L went while heads alone were trained on, as control of a joint run."""
    record = read(file)
    first, *rest = record["progress"]["curve"]
    lengths = ", ".join(f"{point['length']:.3f} at step {point['step']}" for point in rest)
    return (
        f"Heads alone, {record['corpus']['documents']} documents, learning rate {record['settings']['learning_rate']}: L"
        f" predicted {first['length']:.3f} before, {lengths}; kept is step {record['progress']['best_step']}."
    )


def joint_lengths(folder: str) -> str:
    """L by the real decoder before and after a joint run, from the records of ``benchmarks/acceptance_length.py``."""
    arms = {
        "dev-medusa1": "Medusa-1: the shipped heads, the original",
        "dev-medusa2": "Medusa-2: the tuned model and its heads",
        "dev-uncalibrated": "Medusa-2: the earlier run, cut short, without the factor",
    }
    records = [read(f"{folder}/{name}.json") for name in arms]
    rows = []
    for name, record in zip(arms.values(), records, strict=True):
        found = record["proposers"]["medusa"]
        lengths = [f"{found[key]['acceptance_length']:.3f}" for key in ("all", "not_looping")]
        rows.append([name, *lengths, str(found["looping"]["prompts"]), str(found["all"]["steps"])])
    prompts = records[0]["prompts"]
    how = (
        f"*{prompts['number']} prompts of {prompts['name']}, greedy, {records[0]['dtype']}, engine {records[0]['engine']}, "
        f"{records[0]['rows']} rows a step, {records[0]['max_tokens']} tokens; {when(records[0])}.*"
    )
    first, second = (record["proposers"]["medusa"]["by_category"] for record in records[:2])
    better = sum(second[kind]["acceptance_length"] > first[kind]["acceptance_length"] for kind in first)
    how += f" *The second has the higher L in {better} of {len(first)} categories.*"
    return table(["", "L", "L, outputs that do not loop", "outputs that loop", "steps"], rows) + "\n\n" + how


def joint_quality(file: str) -> str:
    """What a joint run cost the base, of the saved model."""
    quality, bounds = (read(file)["tuned"][key] for key in ("quality", "bounds"))
    return (
        f"The saved model, read again, on {quality['num_rows']} held-out places: perplexity {quality['perplexity_before']:.3f}"
        f" before and {quality['perplexity_after']:.3f} after ({quality['perplexity_rise']:+.2%}; bound"
        f" {bounds['max_harm']:.0%}), divergence {quality['divergence']:.4f} nats a place (bound"
        f" {bounds['max_divergence']}), the same greedy token at"
        f" {quality['agreement']:.1%} of the places."
    )


def joint_unseen(file: str) -> str:
    """What a joint run cost the base, on documents that nothing had seen, from the record of its ``quality.py``."""
    record = read(file)
    quality, bare, factor = record["quality"], record["without_factor"], record["logit_factor"]
    without = (
        f" Without the factor of {factor:.3f} on its logits: {bare['perplexity_rise']:+.2%} and {bare['divergence']:.4f} nats."
    )
    return (
        f"On {record['corpus']['documents']} documents that neither the run nor its heads have seen, {quality['num_rows']}"
        f" places: perplexity {quality['perplexity_before']:.3f} before and {quality['perplexity_after']:.3f} after"
        f" ({quality['perplexity_rise']:+.2%}; standard error {quality['standard_error']:.2%}, over documents), divergence"
        f" {quality['divergence']:.4f} nats a place, the same greedy token at {quality['agreement']:.1%} of the places."
        f"{without if factor != 1 else ''} *{when(record)}*"
    )


def pretraining_memory(file: str) -> str:
    """Peak memory of a training step by number of future tokens and size of the vocabulary, in both orders."""
    record = read(file)
    by_size: dict[int, dict[int, Any]] = {}
    for case in record["cases"]:
        by_size.setdefault(case["vocab_size"], {})[case["future_tokens"]] = case
    counts = sorted(next(iter(by_size.values())))
    rows = []
    for size, cases in by_size.items():
        for key, words in (("head_by_head", "head by head"), ("in_one_graph", "in one graph")):
            rows.append([str(size), words, *(f"{cases[count][key] / 1e6:.1f}" for count in counts)])
    how = (
        f"*MB beyond weights and gradients: a trunk of {record['trunk_layers']} layers of width {record['width']}, "
        f"{record['positions']} positions, float32; counted tensor by tensor; {when(record)}.*"
    )
    return table(["vocabulary", "order", *(f"n = {count}" for count in counts)], rows) + "\n\n" + how


def experiment(name: str) -> str:
    """The result of an experiment, by the function ``table`` of its script."""
    home = f"experiments/{name}"
    header, rows, how = runpy.run_path(str(ROOT / home / "run.py"))["table"](read(f"{home}/result.json"))
    return table(header, rows) + "\n\n" + how


def usage(verb: str) -> str:
    """The help text of a verb, or of the whole program."""
    from headstart.cli.app import run

    verb = "" if verb == "all" else verb
    printed = io.StringIO()
    environment = {"COLUMNS": "110", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, environment), contextlib.redirect_stdout(printed):
        run([*verb.split(), "--help"])
    text = "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())
    return f"```text\n$ headstart {verb + ' ' if verb else ''}--help\n{text}\n```"


def defaults(argument: str) -> str:
    """Some settings of a verb with their defaults and help texts: VERB:FIELD,FIELD,..."""
    verb, _, names = argument.partition(":")
    flags = {flag.name: flag for flag in fields(getattr(import_module(f"headstart.cli.{verb}"), f"{verb.title()}Flags"))}
    rows = []
    for name in names.split(","):
        flag: Any = flags[name]
        rows.append([f"`{name}`", f"`{flag.default}`", flag.type.__metadata__[0].help])
    return table(["setting", "default", "what it is"], rows, numbers=False)


def source(file: str) -> str:
    """A file of the repository, whole."""
    return f"```python\n{(ROOT / file).read_text(encoding='utf-8').rstrip()}\n```"


def house(_: str) -> str:
    """Layers, highest first, with the files of each and the first line of their docstrings."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    lines = []
    for layer in contracts[0]["layers"]:
        names = [name.strip().removeprefix("headstart.") for name in layer.split("|")]
        lines.append(f"* **{' | '.join(names)}**")
        for name in names:
            home = PACKAGE / name
            files = sorted(home.glob("*.py")) if home.is_dir() else [home.with_suffix(".py")]
            lines += [f"  * `{file.relative_to(PACKAGE)}`: {first_line(parsed(file))}" for file in files]
    return "\n".join(lines)


def names(_: str) -> str:
    """Every public name with the first line of its docstring."""
    import headstart

    rows = []
    for name in headstart.__all__:
        text = first_line(definition(PACKAGE / "__init__.py", name))
        rows.append([f"`{name}`", text])
    return table(["name", "what it is"], rows, numbers=False)


def definition(file: Path, name: str) -> ast.AST:
    """The class or function that a module calls ``name``, followed through its imports; nothing is executed."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            home = ROOT / "src" / (node.module or "").replace(".", "/")
            return definition(home / "__init__.py" if home.is_dir() else home.with_suffix(".py"), name)
    raise LookupError(f"{file} does not know {name}")


def parsed(file: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(file.read_text(encoding="utf-8"))


def first_line(node: Any) -> str:
    """The first line of a docstring, as Markdown."""
    return (ast.get_docstring(node) or "").partition("\n")[0].replace("``", "`")


MAKERS: dict[str, Callable[[str], str]] = {
    "speed": speed,
    "acceptance": acceptance,
    "lossless": lossless,
    "accepting": accepting,
    "batches": batches,
    "forecasts": forecasts,
    "native": native,
    "curve": curve,
    "writing": writing,
    "joint": joint,
    "heads_alone": heads_alone,
    "joint_lengths": joint_lengths,
    "joint_quality": joint_quality,
    "joint_unseen": joint_unseen,
    "pretraining_memory": pretraining_memory,
    "experiment": experiment,
    "usage": usage,
    "defaults": defaults,
    "source": source,
    "house": house,
    "names": names,
}
CHILDREN = {
    ("exact", "coupled"): "coupled",
    ("exact", "likeliest"): "the likeliest",
    ("rejection", "drawn"): "drawn",
    ("block", "drawn"): "drawn",
    ("typical", "likeliest"): "the likeliest (lossy)",
}
ENGINES = {"transformers": "transformers `generate`", "llama.cpp": "llama.cpp, plain", "openvino": "OpenVINO GenAI, plain"}
NAMES = ENGINES | {
    "plain": "Headstart, plain",
    "ngram": "`ngram`",
    "suffix": "`suffix`",
    "combined": "`combined`",
    "medusa": "`medusa`",
    "hydra": "`hydra`",
    "mtp": "`mtp`",
    "auto": "`auto`",
    "draft_model": "`draft_model`",
}


def read(file: str) -> Any:
    """A committed record."""
    if not (ROOT / file).is_file():
        raise MissingRecordError(
            f"{file} does not exist; {'`benchmarks/run` writes it' if file.startswith('benchmarks/') else 'commit it'}"
        )
    return json.loads((ROOT / file).read_text(encoding="utf-8"))


def table(header: list[str], rows: list[list[str]], *, numbers: bool = True) -> str:
    """A Markdown table, numbers to the right."""
    lines = [header, ["---", *("---:" if numbers else "---" for _ in header[1:])], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def measured(record: Any) -> str:
    """What, on what, with what."""
    machine, prompts = record["machine"], record["prompts"]
    threads = f", {machine['threads']} threads" if "threads" in machine else ""
    batch = record["configurations"][0]["batch"]
    return (
        f"*{record['model']} ({record['source']['format']}), {record['dtype']}, engine {record['engine']};"
        f" {prompts['number']} prompts of {prompts['name']}, {sampling(record)}, {record['sampling']['max_tokens']} tokens,"
        f" batch {batch}; {machine['cpu']}, {machine['cores']} cores{threads};"
        f" {when(record)}, median of {record['repeat']}.*"
    )


def sampling(record: Any) -> str:
    """The sampling in a few words."""
    settings = record["sampling"]
    if settings["temperature"] == 0:
        words = ["greedy"]
    else:
        words = [f"temperature {settings['temperature']}", f"top-p {settings['top_p']}", f"seed {settings['seed']}"]
    if settings["presence_penalty"] or settings["frequency_penalty"] or settings["repetition_penalty"] != 1:
        words.append("every penalty on")
    return ", ".join(words)


def same(entry: Any) -> str:
    """Identical outputs, and how the others are explained."""
    if entry["identical"] is None:
        return "–"
    ties = f" ({entry['ties']} ties by rounding)" if entry["ties"] else ""
    faults = f" ({entry['faults']} FAULTS)" if entry["faults"] else ""
    return entry["identical"] + ties + faults


if __name__ == "__main__":
    sys.exit(main())
