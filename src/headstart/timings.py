"""Where the time of the decoding loop goes: one definition of its parts.

A *step* here is one pass through the loop over everything in flight, from the end of the last one to its own end. Its parts:

* ``propose``: asking the proposer, and telling it afterwards what was committed;
* ``tree``: checking and cutting the drafts, and laying out the rows of the forward;
* ``verify``: the target's forward; ``attention`` is the share of it that attention took, where the engine can tell;
* ``sample``: the rule of acceptance, which asks for the plain sampler's picks;
* ``commit``: text, counters, and the cache's rows that are kept or forgotten;
* ``other``: whatever else passes between two steps.

Nothing is left out, so the parts sum to the step. Steps in which only prompts were computed stand apart, whole, in ``prompt``.
A reading of the clock takes some 50 ns and a step has seven.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Part = Literal["propose", "tree", "verify", "sample", "commit", "other"]
PARTS: tuple[Part, ...] = ("propose", "tree", "verify", "sample", "commit", "other")


@dataclass(slots=True)
class Timings:
    """Seconds spent in each part of the loop."""

    propose: float = 0.0
    tree: float = 0.0
    verify: float = 0.0
    sample: float = 0.0
    commit: float = 0.0
    other: float = 0.0
    prompt: float = 0.0  # whole steps in which only prompts were computed
    attention: float = 0.0  # within verify; 0 where the engine does not tell
    steps_by_rows: Counter[int] = field(default_factory=Counter)  # how often a forward had so many rows; prompts apart

    @property
    def total(self) -> float:
        """All parts together, prompts included."""
        return self.stepping + self.prompt

    @property
    def stepping(self) -> float:
        """All parts of the steps."""
        return self.propose + self.tree + self.verify + self.sample + self.commit + self.other

    @property
    def num_steps(self) -> int:
        """Passes through the loop that were more than prompts."""
        return self.steps_by_rows.total()


class PartClock:
    """Splits the time of steps into their parts."""

    def __init__(self) -> None:
        self.timings = Timings()
        self._now: dict[str, float] = dict.fromkeys(PARTS, 0.0)  # of the step under way
        self._last = time.perf_counter()

    def restart(self) -> None:
        """Nothing was in flight until now: the time since the last step belongs to nobody."""
        self._last = time.perf_counter()

    def mark(self, part: Part) -> None:
        """The time since the last mark went into this part."""
        now = time.perf_counter()
        self._now[part] += now - self._last
        self._last = now

    def finish(self, num_rows: int, attention: float) -> None:
        """The step ends here; its forward had so many rows, and its attention took so long."""
        timings = self.timings
        for part, seconds in self._now.items():
            setattr(timings, part, getattr(timings, part) + seconds)
            self._now[part] = 0.0
        timings.attention += attention
        timings.steps_by_rows[num_rows] += 1

    def finish_prompt(self) -> None:
        """The step ends here, and held nothing but prompts."""
        self.timings.prompt += sum(self._now.values())
        self._now = dict.fromkeys(PARTS, 0.0)
