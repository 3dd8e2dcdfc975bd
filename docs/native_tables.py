"""Tables about the native engine.

Each function turns a record of benchmarks/ into a header, rows and a line that says how they were measured.
"""

from __future__ import annotations

from typing import Any

from captions import when

Table = tuple[list[str], list[list[str]], str]
ROWS = ("1", "2", "4", "8", "12", "16", "24", "32")
JUDGED = ("1", "8", "16", "32")
DTYPES = ("native-bf16", "native-int8", "native-q8_0", "native-q4_0", "native-q4_1")
PROPOSERS = {
    "none": "plain",
    "auto": "`auto`",
    "medusa": "shipped heads",
    "hydra": "shipped heads",
    "ngram": "prompt lookup",
}


def forwards(record: Any) -> Table:
    """Milliseconds of a forward by rows, with the limit of each of our own engines below it."""
    rows = []
    for name, engine in record["engines"].items():
        size = f"{engine['weight_bytes'] / 1e6:.0f}"
        rows.append([f"`{name}`", size, *(f"{engine['ms_by_rows'][n]:.1f}" for n in ROWS)])
        if name in DTYPES:
            rows.append(["... its limit", "", *(f"{engine['roofline_ms_by_rows'][n]:.1f}" for n in ROWS)])
    return ["one forward, ms", "MB", *(f"{n} rows" if n != "1" else "1 row" for n in ROWS)], rows, circumstances(record)


def limits(record: Any) -> Table:
    """Whole forwards and linear layers alone over the limit."""
    rows = []
    for name, engine in native(record):
        for what, key in (("whole", "ms_by_rows"), ("linear layers", "linear_ms_by_rows")):
            ratios = [f"{engine[key][n] / engine['roofline_ms_by_rows'][n]:.2f}" for n in JUDGED]
            rows.append([f"`{name}`, {what}", *ratios])
    return ["time over the limit", *(f"{n} rows" if n != "1" else "1 row" for n in JUDGED)], rows, circumstances(record)


def split(record: Any) -> Table:
    """Where the time of one row goes."""
    rows = []
    for name, engine in native(record):
        parts = [
            f"{engine['split_ms'][part]:.2f} ({engine['split_share'][part]:.0%})" for part in ("linear", "attention", "other")
        ]
        rows.append([f"`{name}`", *parts])
    return ["one row, ms", "linear layers", "attention", "everything else"], rows, circumstances(record)


def decoding(record: Any) -> Table:
    """Plain decoding and prompts, tokens a second, beside llama.cpp on the same file."""
    engines = record["engines"]
    rows = []
    for name, engine in engines.items():
        kind, _, file = name.partition("-")
        peer = engines.get(f"llama.cpp-{file}") if kind == "native" else None
        cells = [f"{engine['plain_tokens_per_second']:.0f}"]
        cells.append(f"{engine['plain_tokens_per_second'] / peer['plain_tokens_per_second']:.2f}" if peer else "–")
        rows.append([f"`{name}`", *cells, f"{engine['prompt_tokens_per_second']:.0f}"])
    header = ["engine", "plain, tokens/s", "over llama.cpp", f"prompt of {record['prompt_tokens']}, tokens/s"]
    return header, rows, circumstances(record)


def chat(record: Any) -> Table:
    """Chat prompts with heads and prompt lookup, beside llama.cpp's plain decoding of the same file."""
    measured = record["chat"]
    rows = []
    for way in measured["ways"]:
        drafted = PROPOSERS[way["proposer"]] + (f", {way['nodes']} nodes" if way["nodes"] else "")
        length = f"{way['acceptance_length']:.2f}" if "acceptance_length" in way else "1.00"
        ratio = f"{way['over_llama_cpp']:.2f}" if way["over_llama_cpp"] else "–"
        rows.append([f"`{way['engine']}`, {drafted}", length, f"{way['tokens_per_second']:.0f}", ratio])
    prompts = measured["prompts"]
    what = f"{prompts['number']} chat prompts of {prompts['name']}, greedy, {measured['max_tokens']} tokens, batch 1"
    return ["decoded with", "L", "tokens/s", "over llama.cpp, same file"], rows, circumstances(record, what, measured["repeat"])


def auto(record: Any) -> Table:
    """``auto`` beside plain decoding and the best fixed choice, by dtype, temperature, sequences in flight and kind of text."""
    rows = []
    for key, found in record["results"].items():
        dtype, temperature, batch, category = key.split()
        own, plain = found["ways"]["auto"], found["ways"]["plain"]
        cells = [f"`{record['dtypes'][dtype]}`", temperature.removeprefix("T"), batch.removeprefix("x"), category]
        cells += [f"{plain['tokens_per_second']:.0f}", f"{own['tokens_per_second']:.0f}", f"{own['acceptance_length']:.2f}"]
        cells += [f"{own['over_plain']:.2f}", f"{found['auto_over_best']:.2f}", f"`{found['best_fixed']}`"]
        useless = found["ways"].get("useless")
        rows.append([*cells, f"{useless['over_plain']:.2f}" if useless else "–"])
    header = [
        "weights",
        "T",
        "in flight",
        "text",
        "plain, tokens/s",
        "`auto`, tokens/s",
        "L",
        "over plain",
        "over the best fixed",
    ]
    machine, settings, prompts = record["machine"], record["settings"], record["prompts"]
    how = (
        f"*SmolLM2-135M, {prompts['number']} prompts of {prompts['name']}, {settings['tokens']} tokens; {machine['cpu']},"
        f" {machine['cores']} cores, {machine['threads']} threads; {when(record)}, medians of {settings['repeat']}.*"
    )
    return [*header, "the best fixed", "with useless heads, over plain"], rows, how


def bits(record: Any) -> Table:
    """What was compared bit for bit."""
    names = {
        "proposer": {"none": "plain, other settings", "prefill": "prefill of the finished text"},
        "temperature": {"0.0": "greedy", "0.8": "temperature 0.8"},
    }
    rows = [row("all", record)]
    for what, group in record["by"].items():
        for value, counts in group.items():
            rows.append(
                row(names.get(what, {}).get(value, value if what in ("proposer", "dtype") else f"{what} {value}"), counts)
            )
    machine, prompts = record["machine"], record["prompts"]
    how = (
        f"*{record['model']}; {prompts['number']} prompts of {prompts['name']}, {record['max_tokens']} tokens; "
        f"{machine['cpu']}, {machine['isa']}; {when(record)}.*"
    )
    return ["plain decoding against", "tokens compared", "logits compared", "answers that differ"], rows, how


def row(name: str, counts: Any) -> list[str]:
    """One line of :func:`bits`."""
    compared = f"{counts['compared_tokens']:,}" if counts["compared_tokens"] else "–"
    return [name, compared, f"{counts['compared_logits']:,}", str(counts["answers_that_differ"])]


def quality(record: Any) -> Table:
    """How each dtype scores the reference's answers."""
    rows = []
    for name, scores in record["dtypes"].items():
        sampled = scores["sampled"]
        cells = [f"{scores['greedy']['perplexity']:.4f}", f"{sampled['perplexity']:.3f}"]
        name = "PyTorch, float32" if name == "reference" else f"`{name}`"
        rows.append([name, *cells, f"{sampled['divergence']:.5f}", f"{sampled['same_best_token']:.2%}"])
    header = ["weights", "perplexity, greedy answers", "sampled answers", "divergence, nats a token", "same best token"]
    prompts, tokens = record["prompts"], record["dtypes"]["reference"]["greedy"]["tokens"]
    how = (
        f"*{record['model']}; answers that PyTorch wrote in float32 to {prompts['number']} prompts of {prompts['name']}, "
        f"{tokens} greedy tokens; {when(record)}.*"
    )
    return header, rows, how


def memory(record: Any) -> Table:
    """Peak memory of loading."""
    rows = [
        [
            f"{load['file']} file as {load['dtype']}",
            f"{load['weight_bytes'] / 1e6:.0f}",
            f"{load['peak_bytes'] / 1e6:.0f}",
            f"{load['peak_over_weights']:.2f}",
        ]
        for load in record["loads"]
    ]
    return ["loaded", "weights, MB", "peak, MB", "peak over weights"], rows, f"*{when(record)}.*"


def native(record: Any) -> list[tuple[str, Any]]:
    """Our own engines in a record."""
    return [(name, engine) for name, engine in record["engines"].items() if name in DTYPES]


def circumstances(record: Any, what: str | None = None, repeat: int | None = None) -> str:
    """What, on what, and how often."""
    machine = record["machine"]
    what = (
        what or f"behind {record['context']} tokens; {record['bandwidth_gb_s']:.0f} GB/s, {record['peak_gflop_s']:.0f} GFLOP/s"
    )
    return (
        f"*SmolLM2-135M, {what}; {machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads; "
        f"{when(record)}, medians of {repeat or record['repeat']}.*"
    )
