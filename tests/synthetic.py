"""A world with a clock of its own: targets and proposers whose calls take what a cost model says.

Nothing here reads the machine's clock, so that what the controller makes of costs can be asserted exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as ListOf
from dataclasses import dataclass, field

from headstart.decode import Decoder, Generation
from headstart.plan.automatic import automatic
from headstart.plan.controller import AutoProposer
from headstart.proposers.base import Observation, Proposer, Sequence
from headstart.sampling import Sampling
from headstart.target.base import Feed
from headstart.tree import Tree
from scripted import NextLogits, ScriptedScored, ScriptedTarget

Seconds = Callable[[int, int], float]
"""Seconds of a forward by its rows, and by cached positions summed over the rows."""


@dataclass
class Clock:
    """Time passes only where something is said to take time."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def table_cost(table: dict[int, float], per_position: float = 0.0) -> Seconds:
    """Milliseconds by rows, linear between and behind; microseconds of a row for each cached position."""
    rows = sorted(table)

    def seconds(num_rows: int, positions: int) -> float:
        low = max([n for n in rows if n <= num_rows], default=rows[0])
        high = min([n for n in rows if n >= num_rows], default=rows[-1])
        if low == high and num_rows != low:
            low, high = rows[-2], rows[-1]
        share = (num_rows - low) / (high - low) if high != low else 0.0
        return (table[low] + share * (table[high] - table[low])) / 1000 + positions * per_position / 1e6

    return seconds


BFLOAT16 = table_cost({1: 8.6, 8: 9.7, 16: 14.1, 32: 26.0}, per_position=0.25)
SMALL = table_cost({1: 3.4, 4: 4.1, 8: 5.9, 16: 10.3, 32: 21.2}, per_position=0.25)


class SyntheticTarget(ScriptedTarget):
    """A scripted target whose forwards take time."""

    def __init__(self, next_logits: NextLogits, vocab_size: int, clock: Clock, cost: Seconds, **options: object) -> None:
        super().__init__(next_logits, vocab_size, **options)  # type: ignore[arg-type]
        self.clock, self.cost = clock, cost
        self.speed = 1.0  # more is slower

    def forward(self, batch: ListOf[Feed]) -> ScriptedScored:
        rows = sum(len(feed.tree) for feed in batch)
        positions = sum(len(feed.tree) * self.length(feed.slot) for feed in batch)
        self.clock.now += self.speed * self.cost(rows, positions)
        return super().forward(batch)


@dataclass
class Costly:
    """A proposer whose calls take time: fixed, and for each sequence."""

    proposer: Proposer
    clock: Clock
    fixed: float = 0.0
    each: float = 0.0
    asked: list[int] = field(default_factory=list)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.proposer.name

    def propose(self, sequences: ListOf[Sequence]) -> list[Tree]:
        self.asked.append(len(sequences))
        self.clock.now += self.fixed + self.each * len(sequences)
        return self.proposer.propose(sequences)

    def observe(self, observations: ListOf[Observation]) -> None:
        self.proposer.observe(observations)

    def forget(self, key: int) -> None:
        self.proposer.forget(key)


def auto(target: SyntheticTarget, **proposers: Proposer) -> AutoProposer:
    """``auto`` over these proposers by the synthetic clock."""
    return automatic(target, proposers, clock=target.clock)


def decode(
    target: SyntheticTarget,
    proposer: Proposer | None,
    prompts: ListOf[ListOf[int]],
    sampling: Sampling,
    *,
    batch: int = 1,
    num_nodes: int = 31,
) -> tuple[float, list[Generation]]:
    """Seconds that decoding the prompts takes, at most ``batch`` of them in flight, and the finished generations."""
    decoder = Decoder(target, proposer, num_nodes=num_nodes)
    started = target.clock.now
    waiting, generations = list(prompts), list[Generation]()
    while waiting or decoder.num_running:
        while waiting and decoder.num_running < batch:
            generations += decoder.add(waiting.pop(0), sampling, seed=len(generations))
        decoder.step()
    return target.clock.now - started, generations
