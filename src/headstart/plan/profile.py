"""T(rows): what a forward over so many rows costs on this machine, measured at load.

A draft pays where a forward over 8 rows costs little more than one over a single row. Whether it does depends on the weights'
size, the kernels, the number of cores and the memory, so it is measured rather than modelled, as in SmartSpec (Liu et al. 2024,
"Optimizing speculative decoding for serving large language models using goodput") and DSpark (2026).

The row counts take turns, so that a slow moment of the machine hits all of them; each keeps its fastest time, since whatever
disturbs a forward makes it slower. Small counts come several times in a row, as they do in decoding: the first forward behind
one of another size can be half as slow again. Between the measured counts T is interpolated, behind them it goes on as its last
piece does, and it never falls (fewer rows are never slower, so a time above that of more rows was disturbed). Attention grows
with the context, the rest does not: the difference between an empty and a filled cache gives the seconds that one row takes for
one cached position.

All of it stays below half a second for models that decode at reading speed: measuring stops when its time is used up, and what
is missing then is learnt while decoding (``stepcost.py``). A model whose single forward takes longer is measured once at a few
row counts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from headstart.target.base import Feed, Slot, Target
from headstart.tree import Tree

Clock = Callable[[], float]

ROW_COUNTS = (1, 8, 4, 16, 2, 32, 3, 6, 12, 9, 24, 64)
"""In the order of their importance: a slow model is measured at the first ones alone."""
NUM_NEEDED = 4  # row counts that are measured however long it takes
SECONDS = 0.36  # that measuring may take
MAX_ROUNDS = 6
_LARGE_ROUNDS = 2
_SMALL = 8  # row counts up to here are timed several times in a turn, larger ones once
_TURN_SECONDS, _MOST_IN_A_ROW = 0.02, 6
CONTEXT = 256  # cached positions behind which rows are timed
_FILL_CHUNK = 64
_FILL_SHARE = 0.3  # of the time, for filling the cache
_ATTENTION_ROWS, _ATTENTION_TURNS = 8, 3
_POSITIONS_A_ROW = 400  # cached positions that cost less than a row's products in any model: more was a disturbance
_CHECK_ROUNDS = 2
_TRUSTED = 1.3  # a cached profile may be off by so much


@dataclass(frozen=True, slots=True)
class Profile:
    """Seconds of a forward by its rows, behind ``context`` cached positions, and of one row for one more position."""

    rows: tuple[int, ...]  # rising, from 1
    seconds: tuple[float, ...]
    context: int = 0
    row_position_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.rows or len(self.rows) != len(self.seconds) or self.rows[0] != 1:
            raise ValueError("a profile has one time for each row count, from one row on")
        if any(a >= b for a, b in zip(self.rows, self.rows[1:], strict=False)):
            raise ValueError("a profile's row counts rise")
        numbers = (*self.seconds, self.row_position_seconds)
        if not (all(np.isfinite(numbers)) and min(self.seconds) > 0 and self.row_position_seconds >= 0 and self.context >= 0):
            raise ValueError("a profile's times are positive numbers")


def interpolated(rows: Sequence[float], seconds: Sequence[float], wanted: Sequence[int]) -> list[float]:
    """T at the ``wanted`` row counts: linear between the measured ones and behind the last two, never falling."""
    times = np.array(rising(seconds))
    counts = np.asarray(rows, dtype=np.float64)
    asked = np.asarray(wanted, dtype=np.float64)
    found = np.interp(asked, counts, times)
    slope = (times[-1] - times[-2]) / (counts[-1] - counts[-2]) if len(counts) > 1 else times[-1] / counts[-1]
    beyond = np.maximum(asked - counts[-1], 0.0)
    return (found + slope * beyond).tolist()  # type: ignore[no-any-return]


def rising(seconds: Sequence[float]) -> list[float]:
    """Times by rising row counts, none above a later one: fewer rows do not take longer, and disturbance only adds."""
    return np.minimum.accumulate(np.asarray(seconds, dtype=np.float64)[::-1])[::-1].tolist()  # type: ignore[no-any-return]


def measured(target: Target, *, clock: Clock = time.perf_counter, seconds: float = SECONDS) -> Profile:
    """Measure a target in about so many seconds; its caches are as they were afterwards."""
    return _Measuring(target, clock, seconds).profile()


def spot_check(target: Target, profile: Profile, *, clock: Clock = time.perf_counter) -> bool:
    """Whether a profile still tells how a few rows compare with one, by some forwards of now; a slower machine is no matter."""
    counts = [n for n in (1, 8) if n in profile.rows and n < target.context_limit]
    now = _Measuring(target, clock, 0.0).fastest(counts)
    saved = [profile.seconds[profile.rows.index(n)] - n * profile.context * profile.row_position_seconds for n in counts]
    if len(counts) < 2 or min(saved) <= 0:
        return False
    return 1 / _TRUSTED < (now[1] / now[0]) / (saved[1] / saved[0]) < _TRUSTED


class _Measuring:
    """Two slots, one of them filled, and the fastest time of each row count so far."""

    def __init__(self, target: Target, clock: Clock, seconds: float) -> None:
        self._target, self._clock = target, clock
        self._end = clock() + seconds
        self._seconds = seconds
        self._counts = [n for n in ROW_COUNTS if n < target.context_limit]
        self._fastest: dict[int, float] = {}

    def profile(self) -> Profile:
        slots = [self._target.open(), self._target.open()]
        try:
            return self._profile(*slots)
        finally:
            for slot in slots:
                self._target.close(slot)

    def fastest(self, counts: Sequence[int]) -> list[float]:
        """Fastest of some forwards over each of these row counts, behind an empty cache."""
        slot = self._target.open()
        try:
            rounds = [[self._forward(slot, count) for count in counts] for _ in range(_CHECK_ROUNDS + 1)]
        finally:
            self._target.close(slot)
        return [min(times) for times in zip(*rounds[1:], strict=True)]

    def _profile(self, empty: Slot, filled: Slot) -> Profile:
        self._forward(empty, self._counts[0])  # warms up
        context = self._fill(filled)
        for number in range(MAX_ROUNDS):
            for place, count in enumerate(self._counts):
                if self._is_late() and (number or place >= NUM_NEEDED):
                    break
                if count <= _SMALL or number < _LARGE_ROUNDS:
                    self._fastest[count] = min(self._turn(filled, count), self._fastest.get(count, math.inf))
        slope = self._attention(empty, filled, context)
        rows = tuple(sorted(self._fastest))
        return Profile(rows, tuple(rising([self._fastest[count] for count in rows])), context, slope)

    def _turn(self, slot: Slot, count: int) -> float:
        """The fastest of some forwards in a row."""
        times = [self._forward(slot, count)]
        if count <= _SMALL:
            while len(times) < _MOST_IN_A_ROW and sum(times) < _TURN_SECONDS and not self._is_late():
                times.append(self._forward(slot, count))
        return min(times)

    def _is_late(self) -> bool:
        return self._clock() > self._end

    def _fill(self, slot: Slot) -> int:
        """Cache a few hundred positions, fewer if the model is slow."""
        until = self._clock() + _FILL_SHARE * self._seconds
        room = min(CONTEXT, self._target.context_limit - max(self._counts))
        filled = 0
        while filled < room and self._clock() < until:
            chunk = min(_FILL_CHUNK, room - filled)
            tokens = self._tokens(chunk)
            self._target.forward([Feed(slot, Tree.chain(tokens), chunk)])
            self._target.keep(slot, tuple(range(chunk)))
            filled += chunk
        return filled

    def _attention(self, empty: Slot, filled: Slot, context: int) -> float:
        """Seconds of one row for one cached position."""
        count = min(_ATTENTION_ROWS, max(self._fastest))
        if not context or count not in self._fastest:
            return 0.0
        turns = [(self._forward(filled, count), self._forward(empty, count)) for _ in range(_ATTENTION_TURNS)]
        behind_context, behind_nothing = (min(times) for times in zip(*turns, strict=True))
        slope = max(behind_context - behind_nothing, 0.0) / (count * context)
        a_row = max(behind_context - self._fastest[self._counts[0]], 0.0) / max(count - 1, 1)
        return float(min(slope, a_row / _POSITIONS_A_ROW))

    def _forward(self, slot: Slot, num_rows: int) -> float:
        """Seconds of a forward over a chain; nothing of it is kept."""
        tree = Tree.chain(self._tokens(num_rows))
        started = self._clock()
        self._target.forward([Feed(slot, tree)])
        spent = self._clock() - started
        self._target.keep(slot, ())
        return max(spent, 1e-9)

    def _tokens(self, count: int) -> list[int]:
        return [(7 + 41 * i) % self._target.vocab_size for i in range(count)]
