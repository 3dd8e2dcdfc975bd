"""``headstart generate``: one prompt, one answer (or n)."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headstart.cli.options import (
    Accepting,
    Engine,
    Explain,
    JsonFile,
    ModelName,
    ProposerName,
    Proposers,
    SamplingOptions,
    check_explain,
    open_model,
    read_input,
    sampling_of,
    seeded,
    switch,
)
from headstart.errors import RequestError

if TYPE_CHECKING:
    from headstart.cli.terminal import Tally


def generate(
    model: ModelName,
    prompt: Annotated[
        str | None, Parameter(help="the user's turn; - or nothing reads it from a pipe", allow_leading_hyphen=True)
    ] = None,
    /,
    *,
    proposer: ProposerName = None,
    system: Annotated[str | None, Parameter(help="the system's message")] = None,
    raw: Annotated[bool, switch("continue the prompt as it is, without the chat template")] = False,
    show_steps: Annotated[bool, switch("make each step's accepted block visible")] = False,
    explain: Explain = False,
    json: JsonFile = None,
    engine: Engine = None,
    proposers: Proposers = None,
    accepting: Accepting = None,
    sampling: SamplingOptions = None,
) -> None:
    """Answer one prompt."""
    from headstart.cli.terminal import Tally, check_json, explanation, remark

    asked = sampling_of(sampling)
    request = seeded(asked)
    check_json(json)
    check_explain(explain, proposer)
    _refuse_idle(json, show_steps, request.n, request.logprobs)
    if raw and system is not None:
        raise RequestError("--system has no effect with --raw: it belongs to the chat template")
    text = _read(prompt)
    content: str | list[dict[str, Any]] = text
    if system is not None:
        content = [{"role": "system", "content": system}, {"role": "user", "content": text}]
    llm = open_model(model, engine, proposer, proposers, accepting)
    chat = False if raw else None
    started = time.perf_counter()
    is_drawn = request.seed != asked.seed  # and whoever wants the text again must know it
    if json is None and request.n == 1:
        tally = _stream(llm.stream(content, request, chat=chat), show_steps)
        seconds = time.perf_counter() - started
    else:
        answer = llm.generate(content, request, chat=chat)
        tally, seconds = Tally.of(answer.choices), time.perf_counter() - started
        _write(answer, json, {"explain": llm.explain()} if explain else {})
    if explain:
        explanation(llm.explain(), tally, seconds, request)
    elif json is None and (is_drawn or (request.n == 1 and (show_steps or sys.stderr.isatty()))):
        remark(tally.line(seconds, request))


def _refuse_idle(json: str | None, show_steps: bool, n: int, logprobs: int | None) -> None:
    if logprobs is not None and json is None:
        raise RequestError("--logprobs has no effect without --json FILE")
    if show_steps and (json is not None or n > 1):
        raise RequestError(f"--show-steps has no effect with {'--json' if json is not None else '--n above 1'}")


def _read(prompt: str | None) -> str:
    if prompt is not None and prompt != "-":
        if not prompt:
            raise RequestError("the prompt is empty; write it behind the model")
        return prompt
    if prompt is None and sys.stdin.isatty():
        raise RequestError("there is no prompt; write it behind the model, or pipe it in")
    text = read_input(sys.stdin.read).rstrip("\n")
    if not text:
        raise RequestError("the prompt from stdin is empty")
    return text


def _stream(steps: Any, show_steps: bool) -> Tally:
    from headstart.cli.terminal import StepWriter, Tally, say

    writer, tally = StepWriter(show_steps=show_steps), Tally()
    for step in steps:
        writer.write(step)
        tally.add(step)
    say()
    return tally


def _write(answer: Any, json: str | None, reasons: dict[str, Any]) -> None:
    from headstart.cli.terminal import STDOUT, heading, say, write_json

    choices = answer.choices
    if json != STDOUT:
        for number, choice in enumerate(choices, start=1):
            if len(choices) > 1:
                heading(f"--- answer {number} of {len(choices)}")
            say(choice.text)
    if json is not None:
        first = _describe(answer)
        write_json(json, first | ({"choices": [_describe(c) for c in choices]} if len(choices) > 1 else {}) | reasons)


def _describe(answer: Any) -> dict[str, Any]:
    stats = answer.stats
    return {
        "text": answer.text,
        "tokens": list(answer.tokens),
        "finish_reason": answer.finish_reason,
        "stop_reason": answer.stop_reason,
        "seed": answer.seed,
        "num_prompt": answer.num_prompt,
        "seconds": answer.seconds,
        "accept": answer.accept,
        "lossless": answer.is_lossless,
        "logprobs": [asdict(entry) for entry in answer.logprobs] or None,
        "stats": asdict(stats) | {"acceptance_length": stats.acceptance_length, "acceptance_rate": stats.acceptance_rate},
    }
