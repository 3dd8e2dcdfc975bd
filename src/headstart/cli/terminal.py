"""What the verbs write: results to stdout, progress and remarks to stderr, colour only on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headstart.errors import RequestError
from headstart.llm import Answer, Step
from headstart.measure.report import as_json, check_writable, save_json
from headstart.measure.tables import aligned, shown
from headstart.plan.explain import tables
from headstart.sampling import Sampling

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
        drawn.add_row(*(Text(shown(cell)) for cell in row))
    console.print(drawn)


def explanation(described: Mapping[str, Any], tally: Tally, seconds: float, request: Sampling | None = None) -> None:
    """Write the reasons of the proposer ``auto`` to stderr, and what came of them."""
    for header, rows in tables(described):
        remark("")
        remark(aligned(header, rows))
    remark("")
    remark(tally.line(seconds, request))


def check_json(target: str | None) -> None:
    """DataError now rather than after minutes of work, if there is no writing to ``target``."""
    if target not in (None, STDOUT):
        check_writable(target)


def check_outputs(**targets: str | None) -> None:
    """The same for several outputs by the names of their options, which must not be one file."""
    seen: dict[Path, str] = {}
    for name, target in targets.items():
        check_json(target)
        path = None if target in (None, STDOUT) else Path(str(target)).resolve()
        if path is not None and (path.is_file() or not path.exists()):
            other = seen.setdefault(path, name)
            if other != name:
                raise RequestError(f"--{other} and --{name} name the same file, {target}; each would overwrite the other")


def write_json(target: str, value: Any) -> None:
    """Write JSON to a file or, for ``-``, to stdout."""
    if target == STDOUT:
        say(as_json(value))
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
    """Counts of answers as ``stats.py`` has them: a prompt's pass is no step."""

    num_tokens: int = 0
    num_steps: int = 0
    num_emitted: int = 0  # in steps
    is_begun: bool = False

    @classmethod
    def of(cls, answers: Sequence[Answer]) -> Tally:
        """Of finished answers."""
        stats = [answer.stats for answer in answers]
        num_tokens = sum(len(answer.tokens) for answer in answers)
        return cls(num_tokens, sum(s.num_steps for s in stats), sum(s.num_emitted for s in stats))

    def add(self, step: Step) -> None:
        """Count a step of one streamed answer."""
        if step.tokens and self.is_begun:
            self.num_steps += 1
            self.num_emitted += len(step.tokens)
        self.is_begun = self.is_begun or bool(step.tokens)
        self.num_tokens += len(step.tokens)

    def join(self, other: Tally) -> None:
        """Add another answer's counts to these."""
        self.num_tokens += other.num_tokens
        self.num_steps += other.num_steps
        self.num_emitted += other.num_emitted

    @property
    def acceptance_length(self) -> float:
        """L."""
        return self.num_emitted / self.num_steps if self.num_steps else 1.0

    def line(self, seconds: float, request: Sampling | None = None) -> str:
        """The counts as one line, and the seed of a request that needed one."""
        rate = self.num_tokens / seconds if seconds else 0.0
        seed = f", seed {request.seed}" if request is not None and request.temperature > 0 else ""
        return f"{self.num_tokens} tokens, {self.num_steps} steps, L {self.acceptance_length:.2f}, {rate:.1f} tokens/s{seed}"


def can_draw() -> bool:
    """Whether stderr is a terminal."""
    return Console(stderr=True).is_terminal


@contextmanager
def working(what: str, *, is_long: bool = False) -> Iterator[None]:
    """Say on a terminal that something takes a while; before work that is long, in a pipe as well."""
    console = Console(stderr=True)
    if not console.is_terminal:
        if is_long:
            remark(what)
        yield
        return
    with console.status(what):
        yield


@contextmanager
def progress(what: str) -> Iterator[Callable[[float, float, str], None]]:
    """A progress bar on stderr, in a pipe a line now and then; call it with what is done, what there is, and what goes on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TimeRemainingColumn())
    last = time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)

        def update(done: float, total: float, now: str) -> None:
            nonlocal last
            bar.update(task, completed=done, total=total, description=f"{what}: {now}")
            if not console.is_terminal and time.monotonic() - last >= _SILENCE:
                last = time.monotonic()
                remark(f"{what}: {now}, {done / max(total, 1):.0%}")

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
    """Show what is told as progress, and write what is a mere message."""

    def report(event: Told) -> None:
        if event.total:
            update(event.done, event.total, f"{event.stage}, {event.message}")
        else:
            remark(f"{event.stage}: {event.message}")

    return report
