"""T(rows) as decoding meets it: forwards of a configuration's own sizes, at its own pace, without the configuration.

A forward's time depends on more than its rows. Behind a prompt or a larger forward the first ones take up to half as long
again, until the caches hold the weights once more; behind the pause in which a proposer thinks, the cores have to wake up. The
fastest forwards of a few in a row, which is what ``plan/profile.py`` looks for, meet none of that.

So a *replay* feeds made-up tokens: prompts as long as the run's text is on average, then forwards whose numbers of rows are
drawn evenly from those of the configuration's steps so far, each behind a pause as long as its steps have beside their forward.
It is shorter than a batch, so its first forwards stand for as many steps, and the others for all the rest.
Replays stand between the batches of the run and meet the machine in the same moods; each is held against plain decoding's of
the same round. The rows of the first batches are not yet those of the whole run, so what a replay tells is its *pace*, its
seconds over T of the rows that it fed; T is then taken of the run's rows. No draft is made and no token of the run is seen, so
a forecast from replays can be wrong: about what asking costs, or about what a forward depends on.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping
from collections.abc import Sequence as ListOf
from dataclasses import dataclass

from headstart.plan.forecast import Forward
from headstart.target.base import Feed, Slot, Target
from headstart.tree import Tree

NUM_REPLAYS = 8  # of a run, at most
_SHARE = 0.15  # of a run's forwards that are replayed, at most
_LEAST = 24  # forwards of a replay
_FIRST = 4  # forwards of a replay that stand for themselves alone


@dataclass(frozen=True, slots=True)
class Pattern:
    """How a configuration steps: what its batches so far have in common."""

    steps_by_rows: Mapping[int, int]
    num_steps: int  # of a batch
    pause: float  # seconds of a step beside its forward
    batch: int
    in_flight: float  # sequences, on average
    positions: float  # cached ones of a sequence, on average

    @property
    def rows_of_sequence(self) -> float:
        """In a step, on average."""
        total = sum(self.steps_by_rows.values())
        return sum(rows * count for rows, count in self.steps_by_rows.items()) / total / self.in_flight

    def num_sequences(self, num_rows: int) -> int:
        """That so many rows of a step belong to."""
        return min(max(round(num_rows / self.rows_of_sequence), 1), num_rows, self.batch)

    def most_rows(self, num_rows: int) -> int:
        """Of one sequence in a step of so many."""
        return -(-num_rows // self.num_sequences(num_rows))


@dataclass(frozen=True, slots=True)
class Round:
    """One replay: mean seconds of a forward, and how many steps each number of rows stood for."""

    seconds: float
    steps_by_rows: Mapping[int, float]

    def pace(self, forward: Forward) -> float:
        """How much slower than T(rows) its forwards were."""
        return self.seconds / forward.mean(self.steps_by_rows)


class Replay:
    """The replays of one configuration at one point. ``rounds``: None where none was possible."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.rounds: list[Round | None] = []

    def play(self, pattern: Pattern | None, share: float) -> None:
        """As many forwards as this share of a batch's; None: nothing is known of them yet."""
        self.rounds.append(self._round(pattern, share) if pattern else None)

    def _round(self, pattern: Pattern, share: float) -> Round | None:
        number = min(max(round(share * pattern.num_steps), _LEAST), pattern.num_steps)
        limit = self._target.context_limit
        sizes = [size for size in drawn(pattern.steps_by_rows, number) if pattern.most_rows(size) < limit]
        if not sizes:
            return None
        num_first = min(_FIRST, len(sizes) // 2)
        chosen = {int((place + 0.5) * len(sizes) / num_first) for place in range(num_first)}
        first = shuffled([sizes[place] for place in sorted(chosen)])
        later = shuffled([size for place, size in enumerate(sizes) if place not in chosen])
        each = (pattern.num_steps - len(first)) / len(later)
        steps, total = dict[int, float](), 0.0
        for place, (size, seconds) in enumerate(zip([*first, *later], self._forwards(pattern, [*first, *later]), strict=True)):
            weight = 1.0 if place < len(first) else each
            steps[size] = steps.get(size, 0.0) + weight
            total += weight * seconds
        return Round(total / pattern.num_steps, steps)

    def _forwards(self, pattern: Pattern, sizes: ListOf[int]) -> list[float]:
        """Seconds of forwards with so many rows behind fresh prompts."""
        limit = self._target.context_limit
        length = min(max(round(pattern.positions), 1), limit - max(map(pattern.most_rows, sizes)))
        slots = [self._target.open() for _ in range(pattern.batch)]
        try:
            for slot in slots:
                self._target.forward([Feed(slot, self._chain(length), length - 1)])
                self._target.keep(slot, tuple(range(length)))
            return [self._forward(slots[: pattern.num_sequences(size)], size, pattern.pause) for size in sizes]
        finally:
            for slot in slots:
                self._target.close(slot)

    def _forward(self, slots: ListOf[Slot], num_rows: int, pause: float) -> float:
        feeds = [Feed(slot, self._chain(share)) for slot, share in zip(slots, shared(num_rows, len(slots)), strict=True)]
        until = time.perf_counter() + pause
        while time.perf_counter() < until:
            pass
        started = time.perf_counter()
        self._target.forward(feeds)
        spent = time.perf_counter() - started
        for slot in slots:
            self._target.keep(slot, ())
        return spent

    def _chain(self, length: int) -> Tree:
        return Tree.chain([(7 + 41 * place) % self._target.vocab_size for place in range(length)])


def slower(own: Replay, plain: Replay, forward: Forward) -> tuple[float, float] | None:
    """Plain decoding's pace in its median round, and how much slower than that one configuration's is; None: unknown.

    The machine's moods last longer than a round, so the quotient of one round says more than its two parts, and a stall that
    spoils one round is outvoted by the others.
    """
    rounds = zip(own.rounds, plain.rounds, strict=True)
    paces = [(ours.pace(forward), usual.pace(forward)) for ours, usual in rounds if ours and usual]
    if not paces:
        return None
    return statistics.median(usual for _, usual in paces), statistics.median(ours / usual for ours, usual in paces)


def share_of(num_batches: int, num_replays: int) -> float:
    """The share of a batch's forwards that each of the replays may have."""
    return min(_SHARE * num_batches / num_replays, 1.0)


def drawn(counts: Mapping[int, int], number: int) -> list[int]:
    """So many of these sizes, as often as they occurred, ascending."""
    ordered = [rows for rows, count in sorted(counts.items()) for _ in range(count)]
    return [ordered[int((place + 0.5) * len(ordered) / number)] for place in range(number)]


def shuffled(sizes: ListOf[int]) -> list[int]:
    """In an order that means nothing and is always the same."""
    return random.Random(len(sizes)).sample(sizes, len(sizes))


def shared(num_rows: int, number: int) -> list[int]:
    """Rows of each of so many sequences, as even as can be."""
    return [num_rows // number + (place < num_rows % number) for place in range(number)]
