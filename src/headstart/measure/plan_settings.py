"""Every default of a plan, once: the keyword of ``plan``, the flag of the command line and the help text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headstart.errors import RequestError, require
from headstart.sampling import Sampling

MEASURED_BATCHES = (1, 4)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What a plan may be told."""

    proposers: tuple[str, ...] = ()  # none given: ngram, suffix, the model's heads and both in one
    nodes: tuple[int, ...] = (3, 7, 15)  # drafted nodes a step that are tried
    limit: int = 12  # prompts, spread evenly over the categories
    max_tokens: int = 48  # tokens of an answer, at most
    temperature: float = 0.0  # 0: the likeliest token; above 0: sample
    price: float | None = None  # of an hour of this device, in any currency
    gpu_hours: float | None = None  # device-hours of plain decoding a month, from which savings follow

    def __post_init__(self) -> None:
        is_list = isinstance(self.proposers, list | tuple) and all(isinstance(name, str) for name in self.proposers)
        require(is_list, "proposers", self.proposers, "a list of names, such as ['ngram', 'medusa']")
        twice = next((name for name in self.proposers if self.proposers.count(name) > 1), None)
        if twice is not None:
            raise RequestError(f"proposer {twice} is given twice")
        is_nodes = self.nodes and all(type(n) is int and n >= 1 for n in self.nodes)
        require(is_nodes, "nodes", self.nodes, "a list of whole numbers, 1 or more")
        for name in ("limit", "max_tokens"):
            value = getattr(self, name)
            require(
                type(value) is int and value >= MEASURED_BATCHES[-1],
                name,
                value,
                f"a whole number, {MEASURED_BATCHES[-1]} or more",
            )
        Sampling(temperature=self.temperature)
        for name in ("price", "gpu_hours"):
            value = getattr(self, name)
            fits = value is None or (isinstance(value, int | float) and math.isfinite(value) and value >= 0)
            require(fits, name, value, "a number, 0 or more")
        if self.gpu_hours is not None and self.price is None:
            raise RequestError("gpu_hours has no effect without price; add it")
