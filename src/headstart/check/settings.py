"""Every default of a check, once: the keyword of ``check``, the flag of the command line and the help text."""

from __future__ import annotations

from dataclasses import dataclass, fields

from headstart.accept import EXACT, Rule, choose_rule
from headstart.errors import RequestError, require


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """What a check may be told."""

    proposers: tuple[str, ...] = ()  # none given: every one that this model can have
    accept: str | None = None  # rule of acceptance: exact, rejection or block; None: the model's own
    limit: int | None = None  # prompts, spread evenly over the categories; None: all
    max_tokens: int = 48  # tokens of each answer, at most
    batch: int = 4  # sequences in flight with speculation; plain decoding has one
    draws: int = 400  # samples behind each prompt of the test of the distribution
    level: float = 0.001  # share of sound runs whose distribution is called biased
    seed: int = 0

    def __post_init__(self) -> None:
        is_list = isinstance(self.proposers, list | tuple) and all(isinstance(name, str) for name in self.proposers)
        require(is_list, "proposers", self.proposers, "a list of names, such as ['ngram', 'medusa']")
        object.__setattr__(self, "proposers", tuple(self.proposers))
        twice = next((name for name in self.proposers if self.proposers.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"proposer {twice} is given twice; once is enough")
        for name in ("limit", "max_tokens", "batch", "draws"):
            value = getattr(self, name)
            valid = (value is None and name == "limit") or (type(value) is int and value >= 1)
            require(valid, name, value, "a whole number, 1 or more")
        require(type(self.level) in (int, float) and 0 < self.level < 1, "level", self.level, "a number above 0 and below 1")
        require(type(self.seed) is int, "seed", self.seed, "a whole number")
        require(self.accept is None or isinstance(self.accept, str), "accept", self.accept, "a rule's name, or None")
        rule = self.rule(EXACT)
        if self.accept is not None:
            self.refuse_idle(rule)

    def refuse_idle(self, rule: Rule) -> None:
        """RequestError for what a check of this rule does not read."""
        if not rule.repeats_plain:
            return
        for entry in fields(self):
            if entry.name in ("draws", "level") and getattr(self, entry.name) != entry.default:
                raise RequestError(
                    f"{entry.name} has no effect with accept {rule.name}, whose tokens are compared one by one; leave it out"
                )

    def rule(self, own: Rule) -> Rule:
        """The rule of acceptance; ``own`` is the model's. RequestError if it does not keep the model's distribution."""
        rule = own if self.accept is None else choose_rule(self.accept)
        if not rule.is_lossless:
            raise RequestError(f"accept {rule.name} changes the distribution on purpose: there is nothing to check")
        return rule
