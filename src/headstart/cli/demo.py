"""``headstart demo``: prompts of different kinds, plain and accelerated, with each step's accepted block visible."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from headstart.cli.options import (
    Engine,
    Explain,
    JsonFile,
    ModelName,
    ProposerName,
    Proposers,
    check_explain,
    open_model,
    whole,
)
from headstart.errors import require
from headstart.sampling import Sampling

if TYPE_CHECKING:
    from headstart.cli.terminal import Tally
    from headstart.llm import LLM
    from headstart.lossless import Difference

PROMPTS = {
    "chat": "Why do leaves change their colour in autumn? Explain it to a curious child.",
    "code": "Write a Python function that returns the n-th Fibonacci number, with a docstring, and show how to call it.",
    "summary": (
        "Summarise this text in two sentences.\n\n"
        "The first lighthouses were fires on hilltops. Later the fires were moved onto towers, so that ships saw them from "
        "farther away. The lighthouse of Alexandria, built in the third century before our era, stood for more than a "
        "thousand years and was one of the tallest buildings of its time. In the nineteenth century a new kind of lens "
        "gathered the light of a lamp into a beam that could be seen thirty kilometres out at sea. Today ships find their "
        "way by satellite, and most lighthouses work without keepers, but many are still lit every night."
    ),
}
COLUMNS = ("kind", "tokens", "target steps", "L", "plain tokens/s", "tokens/s", "speedup", "identical")
_WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Outcome:
    """One prompt, decoded both ways. Times are seconds, the prompt's pass included."""

    kind: str
    tally: Tally
    plain_seconds: float
    plain_tokens: int
    seconds: float
    difference: Difference | None

    @property
    def speedup(self) -> float:
        """Tokens a second over plain's."""
        return (self.tally.num_tokens / self.seconds) / (self.plain_tokens / self.plain_seconds)

    def row(self) -> list[str]:
        """Cells of the table."""
        return [
            self.kind,
            str(self.tally.num_tokens),
            str(self.tally.num_steps),
            f"{self.tally.acceptance_length:.2f}",
            f"{self.plain_tokens / self.plain_seconds:.1f}",
            f"{self.tally.num_tokens / self.seconds:.1f}",
            f"{self.speedup:.2f}",
            "yes" if self.difference is None else f"{self.difference.kind} at token {self.difference.index}",
        ]

    def describe(self) -> dict[str, Any]:
        """The row as JSON."""
        return {
            "kind": self.kind,
            "tokens": self.tally.num_tokens,
            "steps": self.tally.num_steps,
            "acceptance_length": self.tally.acceptance_length,
            "plain_tokens_per_second": self.plain_tokens / self.plain_seconds,
            "tokens_per_second": self.tally.num_tokens / self.seconds,
            "speedup": self.speedup,
            "identical": self.difference is None,
            "difference": self.difference.describe() if self.difference else None,
        }


def demo(
    model: ModelName = "smollm2",
    /,
    *,
    proposer: ProposerName = None,
    max_tokens: Annotated[int, Parameter(help="tokens of each answer, at most", converter=whole)] = 100,
    explain: Explain = False,
    json: JsonFile = None,
    engine: Engine = None,
    proposers: Proposers = None,
) -> None:
    """Decode a few prompts plain and accelerated, greedily, and compare."""
    from headstart.cli.terminal import STDOUT, Tally, check_json, explanation, write_json

    check_json(json)
    check_explain(explain, proposer)
    require(max_tokens >= 1, "max_tokens", max_tokens, "a whole number, 1 or more")
    sampling = Sampling(max_tokens=max_tokens)
    llm = open_model(model, engine, proposer, proposers)
    plain = llm.with_proposer("none")
    for either in (plain, llm):
        either.generate(PROMPTS["chat"], Sampling(max_tokens=min(_WARM_UP_TOKENS, max_tokens)))
    quiet = json == STDOUT
    outcomes = [_decode(kind, prompt, plain, llm, sampling, quiet=quiet) for kind, prompt in PROMPTS.items()]
    if not quiet:
        _show(llm, outcomes)
    if json is not None:
        record: dict[str, Any] = {
            "model": model,
            "proposer": llm.proposer_name,
            "prompts": [o.describe() for o in outcomes],
        }
        write_json(json, record | ({"explain": llm.explain()} if explain else {}))
    if explain:
        total = Tally()
        for outcome in outcomes:
            total.join(outcome.tally)
        explanation(llm.explain(), total, sum(outcome.seconds for outcome in outcomes))


def _decode(kind: str, prompt: str, plain: LLM, llm: LLM, sampling: Sampling, *, quiet: bool) -> Outcome:
    from headstart.cli.terminal import StepWriter, Tally, heading, remark, say, working
    from headstart.lossless import compare

    if not quiet:
        heading(f"== {kind}")
        remark(prompt)
    with working("plain decoding"):
        expected = plain.generate(prompt, sampling)
    writer, tally, tokens, started = StepWriter(show_steps=True), Tally(), list[int](), time.perf_counter()
    for step in llm.stream(prompt, sampling):
        tokens.extend(step.tokens)
        tally.add(step)
        if not quiet:
            writer.write(step)
    seconds = time.perf_counter() - started
    if not quiet:
        say("\n")
    return Outcome(
        kind,
        tally,
        expected.seconds,
        len(expected.tokens),
        seconds,
        compare(llm.target, kind, llm.encode(prompt), expected.tokens, tokens, sampling, seed=0),
    )


def _show(llm: LLM, outcomes: list[Outcome]) -> None:
    from headstart.cli.terminal import say, table

    table(COLUMNS, [outcome.row() for outcome in outcomes])
    say()
    tokens = sum(outcome.tally.num_tokens for outcome in outcomes)
    passes = sum(outcome.tally.num_steps for outcome in outcomes) + len(outcomes)
    say(f"100 tokens took {100 * passes / tokens:.0f} evaluations of the model, proposer {llm.proposer_name}; plain takes 100.")
    kinds = [outcome.difference.kind for outcome in outcomes if outcome.difference]
    if not kinds:
        say("identical: yes, every token is the one of plain decoding")
    else:
        explained = f"{kinds.count('tie')} explained by a tie within rounding, {kinds.count('fault')} not explained"
        say(f"identical: {len(outcomes) - len(kinds)} of {len(outcomes)}; {explained}")
