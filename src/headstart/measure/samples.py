"""What one prompt's answer gave in one configuration, and sums over many of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headstart.stats import Stats

_GRAM = 4
_LOOPING = 0.3  # share of repeated 4-grams above which an output loops


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds as the one who waits sees them; None where an engine tells the whole time alone."""

    first: float | None  # from the request to the first token
    token: float | None  # mean between tokens behind the first one


UNKNOWN = Latency(None, None)


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt's answer in one configuration; ``seconds`` is its share of its batch's time."""

    category: str
    tokens: tuple[int, ...]
    stats: Stats
    seconds: float
    latency: Latency = UNKNOWN

    @property
    def is_looping(self) -> bool:
        """Whether more than 30% of its 4-grams were there before."""
        grams = [self.tokens[i : i + _GRAM] for i in range(len(self.tokens) - _GRAM + 1)]
        return bool(grams) and 1 - len(set(grams)) / len(grams) > _LOOPING


def pooled(samples: Sequence[Sample]) -> Stats:
    """The counters of all samples together."""
    total = Stats()
    for sample in samples:
        total.add(sample.stats)
    return total


def num_tokens(samples: Sequence[Sample]) -> int:
    """Tokens of all answers."""
    return sum(len(sample.tokens) for sample in samples)


def seconds(samples: Sequence[Sample]) -> float:
    """Time of all answers."""
    return sum(sample.seconds for sample in samples)
