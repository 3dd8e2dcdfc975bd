"""What the verbs write: results to stdout, progress and remarks to stderr, colour only on a terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headstart.llm import Step
from headstart.measure.report import check_writable, save_json
from headstart.measure.tables import aligned
from headstart.plan.explain import tables

_BLOCKS = ("bold cyan", "bold yellow")  # of two steps that follow each other
STDOUT = "-"
_SILENCE = 60.0  # seconds between two lines where no bar can be drawn


def say(text: str = "", *, end: str = "\n") -> None:
    """Write a result."""
    sys.stdout.write(text + end)
    sys.stdout.flush()


def remark(text: str) -> None:
    """Write a remark, dim on a terminal."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(text, style="dim"))


def heading(text: str) -> None:
    """Write a result's heading."""
    Console(highlight=False, soft_wrap=True).print(Text(text, style="bold"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table: drawn on a terminal, aligned text in a pipe."""
    console = Console()
    if not console.is_terminal:
        say(aligned(header, rows))
        return
    drawn = Table()
    for index, name in enumerate(header):
        drawn.add_column(name, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*map(Text, row))
    console.print(drawn)


def explanation(described: Mapping[str, Any]) -> None:
    """Write the reasons of the proposer ``auto`` to stderr."""
    for header, rows in tables(described):
        remark("")
        remark(aligned(header, rows))


def check_json(target: str | None) -> None:
    """DataError now rather than after minutes of work, if there is no writing to ``target``."""
    if target not in (None, STDOUT):
        check_writable(target)


def write_json(target: str, value: Any) -> None:
    """Write JSON to a file or, for ``-``, to stdout."""
    if target == STDOUT:
        say(json.dumps(value, indent=1, ensure_ascii=False))
    else:
        save_json(target, value)


class StepWriter:
    """Writes streamed text; each step's block in a colour of its own on a terminal, in brackets in a pipe."""

    def __init__(self, *, show_steps: bool) -> None:
        self._show, self._console, self._number = show_steps, Console(highlight=False, soft_wrap=True), 0

    def write(self, step: Step) -> None:
        """Write what a step added."""
        if not step.text:
            return
        if not self._show:
            say(step.text, end="")
        elif self._console.is_terminal:
            self._console.print(Text(step.text, style=_BLOCKS[self._number % len(_BLOCKS)]), end="")
        else:
            say(f"[{step.text}]", end="")
        self._number += 1


@dataclass(slots=True)
class Tally:
    """Counts of one streamed answer; the prompt's pass is no step, as in ``stats.py``."""

    num_tokens: int = 0
    num_passes: int = 0
    num_first: int = 0  # tokens of the prompt's pass

    def add(self, step: Step) -> None:
        """Count a step."""
        if not step.tokens:
            return
        if not self.num_passes:
            self.num_first = len(step.tokens)
        self.num_passes += 1
        self.num_tokens += len(step.tokens)

    @property
    def num_steps(self) -> int:
        """Target steps."""
        return max(self.num_passes - 1, 0)

    @property
    def acceptance_length(self) -> float:
        """L of this answer."""
        return (self.num_tokens - self.num_first) / self.num_steps if self.num_steps else 1.0

    def line(self, seconds: float) -> str:
        """The counts as one line."""
        rate = self.num_tokens / seconds if seconds else 0.0
        return f"{self.num_tokens} tokens, {self.num_steps} steps, L {self.acceptance_length:.2f}, {rate:.1f} tokens/s"


def can_draw() -> bool:
    """Whether stderr is a terminal."""
    return Console(stderr=True).is_terminal


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on a terminal that something takes a while."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


@contextmanager
def progress(what: str) -> Iterator[Callable[[float, float, str], None]]:
    """A progress bar on stderr, on a terminal alone; call it with what is done, what there is, and what is going on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def update(done: float, total: float, now: str) -> None:
            bar.update(task, completed=done, total=total, description=f"{what}: {now}")

        yield update


class Told(Protocol):
    """What long work tells while it goes on; ``total`` is what the stage comes to, or 0 for a mere message."""

    @property
    def stage(self) -> str:
        """What is being done."""

    @property
    def message(self) -> str:
        """How it stands."""

    @property
    def done(self) -> int:
        """Of ``total``."""

    @property
    def total(self) -> int:
        """What the stage comes to."""


def reporter(update: Callable[[float, float, str], None]) -> Callable[[Told], None]:
    """Draw what is told as a bar; where that cannot be, write messages and now and then the state."""
    last = 0.0

    def report(event: Told) -> None:
        nonlocal last
        if event.total:
            update(event.done, event.total, f"{event.stage}, {event.message}")
        if not event.total:
            remark(f"{event.stage}: {event.message}")
        elif not can_draw() and time.monotonic() - last >= _SILENCE:
            last = time.monotonic()
            remark(f"{event.stage}: {event.done} of {event.total}, {event.message}")

    return report
