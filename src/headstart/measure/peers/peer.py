"""Another project's engine in a worker, as one of the configurations that are measured."""

from __future__ import annotations

from typing import Any

from headstart.errors import RequestError
from headstart.measure.configurations import BatchRun, Output, Prompts, plain_stats
from headstart.measure.peers.worker import Worker
from headstart.measure.samples import Latency
from headstart.sampling import Sampling
from headstart.target.base import Target

_ELSEWHERE = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "min_tokens": 0,
    "stop": (),
}
"""What other engines do differently, or not at all, and its value here that is off."""


def check_comparable(name: str, sampling: Sampling) -> None:
    """RequestError for what would not mean the same in the engine ``name``."""
    for option, off in _ELSEWHERE.items():
        if getattr(sampling, option) != off:
            raise RequestError(f"option {option} cannot be compared with {name}; leave one of the two out")


class Peer:
    """One engine on the file that ``target`` was loaded from. Its noise and its rounding are its own: only speed compares."""

    num_nodes = 0
    rule = None

    def __init__(self, worker: Worker, target: Target) -> None:
        self.name, self._worker, self._target = worker.name, worker, target

    def is_comparable(self, sampling: Sampling) -> bool:
        """Never: another engine's logits differ in their last bits, and nothing here says by how much."""
        return False

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """One question to the worker, which times itself."""
        room = [self._target.context_limit - len(prompt) for prompt in prompts]
        told = self._worker.ask(
            "answer",
            prompts=[list(prompt) for prompt in prompts],
            limits=[left if sampling.max_tokens is None else min(left, sampling.max_tokens) for left in room],
            ends=sorted(set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else self._target.end_tokens)),
            sampling={name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}
            | {"seed": sampling.seed or 0},
        )
        return BatchRun(tuple(map(_output, told["answers"])), told["seconds"])

    def explain(self) -> dict[str, Any] | None:
        """It does not draft here."""
        return None


def _output(answer: dict[str, Any]) -> Output:
    tokens, first = tuple(answer["tokens"]), answer["first"]
    behind = len(tokens) - 1
    each = (answer["last"] - first) / behind if first is not None and behind > 0 else None
    return Output(tokens, plain_stats(len(tokens)), Latency(first, each))
