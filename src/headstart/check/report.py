"""A check's results: the record, its table, the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from headstart.check.distribution import Distribution
from headstart.check.goodness import holm
from headstart.check.identity import Identity
from headstart.check.settings import CheckSettings
from headstart.llm import LLM
from headstart.measure.environment import commit, machine, versions, without_path
from headstart.measure.prompts import PromptSet

FORMAT, VERSION = "headstart-check", 1
COLUMNS = ("proposer", "tokens", "L", "identical", "ties", "faults", "p-value", "finds a bias of", "verdict")


@dataclass(frozen=True, slots=True)
class Checked:
    """What was found of one proposer; ``distribution`` is None where the rule gives plain decoding's own tokens."""

    proposer: str
    num_nodes: int
    identity: Identity
    distribution: Distribution | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What ``check`` returns. ``record`` is the JSON object; ``problem`` the first thing that is wrong, as one line."""

    record: dict[str, Any]
    problem: str | None

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem is None

    @property
    def verdict(self) -> str:
        """What was shown, as one line."""
        if self.problem is not None:
            return self.problem
        proposers = self.record["proposers"]
        answers = sum(entry["identity"]["answers"] for entry in proposers)
        ties = sum(entry["identity"]["ties"] for entry in proposers)
        if ties:
            text = f"no fault in {answers} answers; {ties} differ from plain decoding by a tie within the engine's rounding"
        else:
            text = f"identical: {answers} answers with speculation, each token the one of plain decoding"
        if any(entry["distribution"] for entry in proposers):
            text += f"; {self.record['settings']['accept']} keeps the model's distribution, as far as the draws can tell"
        idle = [entry["proposer"] for entry in proposers if not entry["drafted"]]
        return text + (f"; {' and '.join(idle)} drafted nothing and was not tested" if idle else "")

    def rows(self) -> list[list[str]]:
        """The table's cells, one row a proposer, in the order of ``COLUMNS``."""
        return [_row(entry) for entry in self.record["proposers"]]


def report_of(
    llm: LLM, prompts: PromptSet, settings: CheckSettings, checked: Sequence[Checked], skipped: Sequence[tuple[str, str]]
) -> CheckReport:
    """The whole record, p-values adjusted for the number of proposers, and what is wrong first."""
    tested = [one.distribution.result.p_value if one.distribution else 1.0 for one in checked]
    adjusted = holm(tested)
    problems = [_problem(one, p, settings) for one, p in zip(checked, adjusted, strict=True)]
    target = llm.target
    record = {
        "format": FORMAT,
        "version": VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": without_path(target.name),
        "engine": target.engine,
        "dtype": target.dtype,
        "machine": machine(),
        "versions": versions(),
        "commit": commit(),
        "prompts": prompts.describe(),
        "settings": asdict(settings),
        "proposers": [_entry(one, p, problem) for one, p, problem in zip(checked, adjusted, problems, strict=True)],
        "skipped": [{"proposer": name, "reason": reason} for name, reason in skipped],
    }
    first = next((problem for problem in problems if problem), None)
    if not any(one.identity.stats.num_drafted for one in checked):
        first = first or "nothing was drafted, and so nothing is shown; allow longer answers or name other proposers"
    return CheckReport(record | {"passed": first is None}, first)


def _problem(one: Checked, adjusted: float, settings: CheckSettings) -> str | None:
    if one.identity.faults:
        return f"{one.proposer} changes the text: {one.identity.faults[0]}"
    if one.distribution is not None and adjusted < settings.level:
        suspect = one.distribution.suspect
        return (
            f"{one.proposer} with {settings.accept} changes the distribution: p-value {adjusted:.2g} of all draws, adjusted; "
            f"worst behind prompt {suspect.prompt}, {suspect.sampling} ({suspect.p_value:.2g})"
        )
    return None


def _entry(one: Checked, adjusted: float, problem: str | None) -> dict[str, Any]:
    distribution = None
    if one.distribution is not None:
        distribution = one.distribution.result.describe() | {
            "adjusted_p_value": adjusted,
            "worst_prompt": asdict(one.distribution.suspect),
        }
    return {
        "proposer": one.proposer,
        "nodes": one.num_nodes,
        "drafted": one.identity.stats.num_drafted,
        "accepted": one.identity.stats.num_accepted,
        "acceptance_length": one.identity.stats.acceptance_length,
        "identity": one.identity.describe(),
        "distribution": distribution,
        "problem": problem,
    }


def _row(entry: dict[str, Any]) -> list[str]:
    identity, distribution = entry["identity"], entry["distribution"]
    return [
        entry["proposer"],
        str(identity["tokens"]),
        f"{entry['acceptance_length']:.2f}",
        f"{identity['identical']}/{identity['answers']}",
        str(identity["ties"]),
        str(identity["faults"]),
        f"{distribution['adjusted_p_value']:.3g}" if distribution else "-",
        f"{distribution['smallest_bias']:.3f}" if distribution else "-",
        "WRONG" if entry["problem"] else "right" if entry["drafted"] else "untested",
    ]
