"""Every default of a measurement, once: the keyword of ``measure``, the flag of the command line and the help text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from headstart.accept import Rule, choose_rule
from headstart.errors import RequestError, require
from headstart.sampling import Sampling

PLAIN = "plain"
TRANSFORMERS, LLAMA_CPP, OPENVINO = "transformers", "llama.cpp", "openvino"
AGAINST = (TRANSFORMERS, LLAMA_CPP, OPENVINO, "vllm")
"""Other projects' engines that one may ask for beside this one, on the same weights; ``against.py`` says which run here."""
OUTSIDE = (LLAMA_CPP, OPENVINO)
"""Those that run in a process of their own, under a Python that may be another one."""

_MAX_TOKENS = 128
_SEED = 0


@dataclass(frozen=True, slots=True)
class MeasureSettings:
    """What a measurement may be told, beside the sampling. All combinations of what may take several values are measured."""

    proposers: tuple[str, ...] = ()  # none given: plain, ngram, the model's heads and auto
    accept: tuple[str, ...] = ()  # rules of acceptance: exact, rejection, block, typical; none given: the model's own
    batch: tuple[int, ...] = (1,)  # sequences in flight
    temperature: tuple[float, ...] = ()  # 0: the likeliest token; none given: 0
    prompt_tokens: tuple[int, ...] = ()  # lengths that prompts are brought to; none given: as they are
    max_tokens: tuple[int, ...] = ()  # tokens of an answer, at most; none given: 128
    limit: int | None = None  # prompts, spread evenly over the categories; None: all
    categories: tuple[str, ...] = ()  # prompts of these alone; none given: all
    repeat: int = 1  # passes over all prompts; times are medians
    epsilon: float | None = None  # typical: a token likelier than this is accepted
    delta: float | None = None  # typical: or likelier than this share of exp(-entropy)
    price: float | None = None  # of an hour of this device, in any currency
    against: tuple[str, ...] = ()  # other engines on the same weights: transformers, llama.cpp, openvino, vllm
    against_python: str | None = None  # that has llama-cpp-python or openvino-genai; None: HEADSTART_AGAINST_PYTHON, or this

    def __post_init__(self) -> None:
        for name, (kind, expected) in _LISTS.items():
            value = getattr(self, name)
            values = (value,) if isinstance(value, kind) and not isinstance(value, bool) and name != "proposers" else value
            is_list = isinstance(values, Sequence) and not isinstance(values, str) and all(_is(v, kind) for v in values)
            require(is_list, name, value, expected)
            object.__setattr__(self, name, tuple(values))
            twice = next((v for v in values if list(values).count(v) > 1), None)
            if twice is not None:
                raise RequestError(f"{name.removesuffix('s')} {twice} is given twice")
        require(self.batch, "batch", self.batch, "a whole number, 1 or more")
        for name in ("batch", "prompt_tokens", "max_tokens"):
            for value in getattr(self, name):
                require(value >= 1, name, value, "a whole number, 1 or more")
        for name, value in (("limit", self.limit), ("repeat", self.repeat)):
            valid = (value is None and name == "limit") or (type(value) is int and value >= 1)
            require(valid, name, value, "a whole number, 1 or more")
        for name in self.accept:
            choose_rule(name)
        for temperature in self.temperature:
            Sampling(temperature=temperature)
        is_price = self.price is None or (_is(self.price, (int, float)) and math.isfinite(self.price) and self.price >= 0)
        require(is_price, "price", self.price, "a number, 0 or more: what an hour of the device costs")
        unknown = next((name for name in self.against if name not in AGAINST), None)
        if unknown is not None:
            raise RequestError(f"against {unknown} is not known; known are {', '.join(AGAINST)}")
        if self.against_python is not None and not set(self.against) & set(OUTSIDE):
            raise RequestError(f"against_python has no effect without against {' or '.join(OUTSIDE)}; leave it out")

    def rules(self, own: Rule) -> list[Rule]:
        """The rules of acceptance; ``own`` is the model's."""
        given = {"epsilon": self.epsilon, "delta": self.delta}
        if not self.accept:
            return [own if self.epsilon is None and self.delta is None else choose_rule(own.name, **given)]
        lossy = {name: given for name in self.accept if name == "typical" or self.accept == (name,)}
        if not lossy and given != dict.fromkeys(given):
            raise RequestError("epsilon and delta have no effect without accept typical; leave them out")
        return [choose_rule(name, **lossy.get(name, {})) for name in self.accept]


_WHOLE = "a whole number, or a list of them, such as [1, 4]"
_NAMES = "a list of names, such as ['plain', 'ngram']"
_LISTS: dict[str, tuple[Any, str]] = {
    "proposers": (str, _NAMES),
    "accept": (str, "a rule's name, or a list of them, such as ['exact', 'typical']"),
    "batch": (int, _WHOLE),
    "temperature": ((int, float), "a number, or a list of them, such as [0, 0.7]"),
    "prompt_tokens": (int, _WHOLE),
    "max_tokens": (int, _WHOLE),
    "categories": (str, "a category, or a list of them"),
    "against": (str, f"a list of engines out of {', '.join(AGAINST)}"),
}


def settings_from(settings: MeasureSettings | None, named: dict[str, Any]) -> tuple[MeasureSettings, dict[str, Any]]:
    """Settings with fields given by name, and what is left for the sampling."""
    own = {f.name for f in fields(MeasureSettings)}
    mine = {name: value for name, value in named.items() if name in own}
    return replace(settings or MeasureSettings(), **mine), {k: v for k, v in named.items() if k not in own}


def measured_sampling(sampling: Sampling) -> Sampling:
    """The sampling with a limit and a seed, so that every configuration is asked for the same."""
    for name, off in (("n", 1), ("logprobs", None)):
        if getattr(sampling, name) != off:
            raise RequestError(f"option {name} has no effect in a measurement; leave it out")
    limit = _MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens
    if limit < 1:
        raise RequestError(f"max_tokens is {limit}; a measurement needs 1 or more")
    return replace(sampling, max_tokens=limit, seed=_SEED if sampling.seed is None else sampling.seed)


def _is(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)
