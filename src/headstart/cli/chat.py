"""``headstart chat``: a conversation, streamed; it reads a terminal or a pipe, a turn a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headstart.cli.options import (
    Accepting,
    Engine,
    Explain,
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
from headstart.errors import HeadstartError, RequestError
from headstart.sampling import Sampling

if TYPE_CHECKING:
    from headstart.cli.terminal import Tally
    from headstart.llm import LLM

_HELP = "/clear forgets the conversation, /exit ends it, /help shows this"


def chat(
    model: ModelName = "smollm2",
    /,
    *,
    proposer: ProposerName = None,
    system: Annotated[str | None, Parameter(help="the system's message")] = None,
    show_steps: Annotated[bool, switch("make each step's accepted block visible")] = False,
    explain: Explain = False,
    engine: Engine = None,
    proposers: Proposers = None,
    accepting: Accepting = None,
    sampling: SamplingOptions = None,
) -> None:
    """Talk with a model, a turn a line; /help lists the commands."""
    from headstart.cli.terminal import Tally, explanation

    request = sampling_of(sampling)
    for name, value, off in (("n", request.n, 1), ("logprobs", request.logprobs, None)):
        if value != off:
            raise RequestError(f"--{name} has no effect in a chat")
    check_explain(explain, proposer)
    llm = open_model(model, engine, proposer, proposers, accepting)
    if not llm.tokenizer.has_chat_template:
        raise RequestError(f"{model} has no chat template; use `headstart generate --raw`")
    conversation = Conversation(llm, request, system, show_steps, Tally())
    _converse(conversation, sys.stdin.isatty())
    if explain:
        explanation(llm.explain(), conversation.tally, conversation.seconds)


def _converse(conversation: Conversation, interactive: bool) -> None:
    from headstart.cli.terminal import remark

    if interactive:
        remark(_HELP)
    for line in _turns(interactive):
        if line == "/exit":
            return
        if line == "/clear":
            conversation.clear()
        elif line == "/help":
            remark(_HELP)
        elif line.startswith("/"):
            _unknown(line, interactive)
        elif line:
            _answer(conversation, line, interactive)


@dataclass(slots=True)
class Conversation:
    """The messages so far; a turn that failed leaves none."""

    llm: LLM
    sampling: Sampling
    system: str | None
    show_steps: bool
    tally: Tally  # of all turns
    seconds: float = 0.0  # that they took
    messages: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all turns."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def answer(self, turn: str) -> None:
        """Stream the answer to a turn and keep both; what was said before Ctrl-C is kept as well."""
        from headstart.cli.terminal import StepWriter, Tally, remark, say

        messages = [*self.messages, {"role": "user", "content": turn}]
        request = seeded(self.sampling)
        steps = self.llm.stream(messages, request)
        writer, tally, started = StepWriter(show_steps=self.show_steps), Tally(), time.perf_counter()
        text = ""
        try:
            for step in steps:
                writer.write(step)
                tally.add(step)
                text += step.text
        finally:
            say()
            self.messages = [*messages, {"role": "assistant", "content": text}]
            seconds = time.perf_counter() - started
            self.tally.join(tally)
            self.seconds += seconds
        remark(tally.line(seconds, request))


def _turns(interactive: bool) -> Iterator[str]:
    """Lines of the terminal or the pipe."""
    while True:
        if interactive:
            sys.stderr.write("> ")
            sys.stderr.flush()
        line = read_input(sys.stdin.readline)
        if not line:
            return
        yield line.strip()


def _unknown(line: str, interactive: bool) -> None:
    _report(RequestError(f"unknown command {line.split()[0]}; {_HELP}"), interactive)


def _answer(conversation: Conversation, turn: str, interactive: bool) -> None:
    try:
        conversation.answer(turn)
    except HeadstartError as error:
        _report(error, interactive)
    except KeyboardInterrupt:
        if not interactive:
            raise


def _report(error: HeadstartError, interactive: bool) -> None:
    """On a terminal the conversation goes on; in a pipe nobody would notice."""
    if not interactive:
        raise error
    sys.stderr.write(f"error: {error}\n")
