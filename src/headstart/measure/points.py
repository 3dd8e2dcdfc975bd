"""Operating points: everything that is the same for the proposers that are compared with each other.

A point is a dtype, a temperature, a number of sequences in flight, a length of prompts and a length of answers. Plain
decoding is measured at each of them, and every other configuration is judged by the plain decoding of its own point.

Where a length of prompts is asked for, each prompt is brought to exactly that many tokens: a longer one loses its beginning, a
shorter one gets text of the set's other prompts in front of it. So its end, which asks for something, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from headstart.errors import DataError
from headstart.llm import LLM
from headstart.measure.prompts import PromptSet
from headstart.measure.settings import MeasureSettings
from headstart.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Point:
    """One operating point."""

    dtype: str
    batch: int
    sampling: Sampling  # with the point's own temperature and length of answers
    prompt_tokens: int | None = None  # None: prompts as they are

    def describe(self) -> dict[str, Any]:
        """What a record says of it."""
        return {
            "dtype": self.dtype,
            "batch": self.batch,
            "temperature": self.sampling.temperature,
            "prompt_tokens": self.prompt_tokens,
            "max_tokens": self.sampling.max_tokens,
        }


def points(dtype: str, settings: MeasureSettings, sampling: Sampling) -> list[Point]:
    """All points of one dtype; ``sampling`` has a seed and a limit, and fills in what the settings do not name."""
    temperatures = settings.temperature or (sampling.temperature,)
    limits = settings.max_tokens or (sampling.max_tokens,)
    lengths: Sequence[int | None] = settings.prompt_tokens or (None,)
    return [
        Point(dtype, batch, replace(sampling, temperature=float(temperature), max_tokens=limit), length)
        for temperature, batch, length, limit in product(temperatures, settings.batch, lengths, limits)
    ]


def encoded(llm: LLM, prompts: PromptSet, length: int | None) -> list[list[int]]:
    """Token ids of all prompts, brought to a length; DataError for one that leaves no room for an answer."""
    limit = llm.target.context_limit
    if length is not None and length >= limit:
        raise DataError(
            f"prompt_tokens is {length} and the model's context {limit}: nothing is left for an answer; ask for fewer"
        )
    found = []
    for prompt in prompts.prompts:
        tokens = llm.encode(prompt.content)
        if length is None and len(tokens) >= limit:
            raise DataError(
                f"prompt {prompt.id} of {prompts.name} has {len(tokens)} tokens and the model's context {limit}: "
                "nothing is left for an answer; shorten or remove it"
            )
        found.append(tokens)
    return found if length is None else [_brought_to(length, found, index) for index in range(len(found))]


def _brought_to(length: int, prompts: Sequence[list[int]], index: int) -> list[int]:
    tokens, other = list(prompts[index]), index
    while len(tokens) < length:
        other = (other - 1) % len(prompts)
        tokens = [*prompts[other], *tokens]
    return tokens[len(tokens) - length :]
