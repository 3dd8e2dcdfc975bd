"""Every default of a measurement, once: the keyword of ``measure``, the flag of the command line and the help text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstart.errors import RequestError
from headstart.sampling import Sampling

PLAIN = "plain"
TRANSFORMERS = "transformers"  # the library's own `generate`, beside the proposers

_MAX_TOKENS = 128
_SEED = 0


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """What a measurement may be told, beside the sampling."""

    proposers: tuple[str, ...] = ()  # none given: plain, ngram and the model's own
    limit: int | None = None  # prompts, spread evenly over the categories; None: all
    batch: int = 1  # sequences in flight
    repeat: int = 1  # passes over all prompts; times are medians

    def __post_init__(self) -> None:
        for name in ("limit", "batch", "repeat"):
            value = getattr(self, name)
            if not (value is None and name == "limit") and value < 1:
                raise RequestError(f"{name} is {value}; it must be 1 or more")
        twice = next((p for p in self.proposers if self.proposers.count(p) > 1), None)
        if twice is not None:
            raise RequestError(f"proposer {twice} is given twice")


def measured_sampling(sampling: Sampling) -> Sampling:
    """The sampling with a limit and a seed, so that every configuration is asked for the same."""
    for name, off in (("n", 1), ("logprobs", None)):
        if getattr(sampling, name) != off:
            raise RequestError(f"option {name} has no effect in a measurement; leave it out")
    limit = _MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
    if limit < 1:
        raise RequestError(f"max_tokens is {limit}; a measurement needs 1 or more")
    return replace(sampling, max_tokens=limit, seed=_SEED if sampling.seed is None else sampling.seed)
