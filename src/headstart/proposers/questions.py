"""Questions to the engine about what a step committed, one for all sequences of a scored batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as ListOf
from typing import Any

from headstart.accept import Row
from headstart.proposers.base import Observation
from headstart.target.base import Scored


def asked_together(
    observations: ListOf[Observation],
    rows_of: Callable[[Observation], list[Row]],
    ask: Callable[[Scored, list[Row]], Any],
) -> Iterator[tuple[Observation, Any, slice]]:
    """Ask each scored batch once, for all rows that are wanted of it: each observation, the answer, and its own rows of it."""
    while observations:
        scored = observations[0].scored
        together = [observation for observation in observations if observation.scored is scored]
        rows = [rows_of(observation) for observation in together]
        answer, start = ask(scored, [row for some in rows for row in some]), 0
        for observation, some in zip(together, rows, strict=True):
            yield observation, answer, slice(start, start + len(some))
            start += len(some)
        if len(together) == len(observations):
            return
        observations = [observation for observation in observations if observation.scored is not scored]
