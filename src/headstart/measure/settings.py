"""Every default of a measurement, once: the keyword of ``measure``, the flag of the command line and the help text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headstart.accept import Rule, choose_rule
from headstart.errors import RequestError, require
from headstart.sampling import Sampling

PLAIN = "plain"
TRANSFORMERS = "transformers"  # the library's own `generate`, beside the proposers

_MAX_TOKENS = 128
_SEED = 0


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """What a measurement may be told, beside the sampling."""

    proposers: tuple[str, ...] = ()  # none given: plain, ngram, the model's heads and auto
    limit: int | None = None  # prompts, spread evenly over the categories; None: all
    batch: int = 1  # sequences in flight
    repeat: int = 1  # passes over all prompts; times are medians
    accept: str | None = None  # rule of acceptance: exact, rejection, block or typical; None: the model's own
    epsilon: float | None = None  # typical: a token likelier than this is accepted
    delta: float | None = None  # typical: or likelier than this share of exp(-entropy)

    def __post_init__(self) -> None:
        is_list = isinstance(self.proposers, list | tuple) and all(isinstance(name, str) for name in self.proposers)
        require(is_list, "proposers", self.proposers, "a list of names, such as ['plain', 'ngram']")
        object.__setattr__(self, "proposers", tuple(self.proposers))
        for name in ("limit", "batch", "repeat"):
            value = getattr(self, name)
            valid = (value is None and name == "limit") or (type(value) is int and value >= 1)
            require(valid, name, value, "a whole number, 1 or more")
        twice = next((p for p in self.proposers if self.proposers.count(p) > 1), None)
        if twice is not None:
            raise RequestError(f"proposer {twice} is given twice")

    def rule(self, own: Rule) -> Rule:
        """The rule of acceptance; ``own`` is the model's."""
        if self.accept is None and self.epsilon is None and self.delta is None:
            return own
        return choose_rule(self.accept or own.name, epsilon=self.epsilon, delta=self.delta)


def measured_sampling(sampling: Sampling) -> Sampling:
    """The sampling with a limit and a seed, so that every configuration is asked for the same."""
    for name, off in (("n", 1), ("logprobs", None)):
        if getattr(sampling, name) != off:
            raise RequestError(f"option {name} has no effect in a measurement; leave it out")
    limit = _MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
    if limit < 1:
        raise RequestError(f"max_tokens is {limit}; a measurement needs 1 or more")
    return replace(sampling, max_tokens=limit, seed=_SEED if sampling.seed is None else sampling.seed)
