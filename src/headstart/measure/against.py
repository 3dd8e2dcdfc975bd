"""Other projects' engines on the same weights, in the same run. What cannot be measured here is said.

``transformers`` runs in this process: its own ``generate`` on the model that is decoded here where that is a transformers
model, else on the same files, loaded once more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from headstart.errors import HeadstartError
from headstart.llm import LLM
from headstart.measure.configurations import BatchRun, Configuration, Output, Prompts, plain_stats
from headstart.measure.settings import TRANSFORMERS
from headstart.sampling import Sampling
from headstart.target.base import Target

_LOSSY_IN_TRANSFORMERS = "bfloat16"  # for weights that transformers cannot hold as they are


class UnavailableError(Exception):
    """An engine cannot run here; the message ends a sentence."""


def against(llm: LLM, names: Sequence[str]) -> tuple[list[Configuration], list[str]]:
    """The engines that run here, and a remark on each of the others."""
    found: list[Configuration] = []
    remarks = []
    for name in names:
        try:
            configuration, remark = _STARTS[name](llm)
        except (UnavailableError, HeadstartError) as reason:
            remarks.append(f"{name} was not measured: {reason}")
            continue
        found.append(configuration)
        remarks += [remark] if remark else []
    return found, remarks


class Transformers:
    """transformers' ``generate``. With temperature its noise is its own, so only speed compares."""

    name = TRANSFORMERS
    num_nodes = 0
    rule = None

    def __init__(self, target: Target) -> None:
        self._target = target

    def is_comparable(self, sampling: Sampling) -> bool:
        """Greedily; two engines still round differently, which the comparison measures."""
        return sampling.temperature == 0

    def run(self, prompts: Prompts, sampling: Sampling) -> BatchRun:
        """One call of ``generate``."""
        from headstart.target.hf_reference import ReferenceDecoder

        decoder = ReferenceDecoder(self._target, sampling)
        started = time.perf_counter()
        answers = decoder.generate(prompts)
        seconds = time.perf_counter() - started
        return BatchRun(tuple(Output(tuple(tokens), plain_stats(len(tokens))) for tokens in answers), seconds)

    def explain(self) -> dict[str, Any] | None:
        """It does not draft."""
        return None


class _OtherTransformers(Transformers):
    """The same on a target of its own, whose rounding the comparison cannot measure."""

    def is_comparable(self, sampling: Sampling) -> bool:
        """Never: another engine's logits differ in their last bits, and nothing here says by how much."""
        return False


def _transformers(llm: LLM) -> tuple[Configuration, str | None]:
    if llm.target.engine == "hf":
        return Transformers(llm.target), None
    if llm.location is None:
        raise UnavailableError("it needs the model's files, and this model was not loaded from any")
    from headstart.target.loading import load_model

    dtype = llm.target.dtype if llm.target.dtype in ("float32", "bfloat16") else _LOSSY_IN_TRANSFORMERS
    target = load_model(llm.location, dtype=dtype, engine="hf").target
    remark = None if dtype == llm.target.dtype else f"transformers runs the {llm.target.dtype} weights as {dtype}"
    return _OtherTransformers(target), remark


def _elsewhere(command: str) -> Callable[[LLM], tuple[Configuration, str | None]]:
    """An engine that is not run in this process."""

    def start(llm: LLM) -> tuple[Configuration, str | None]:
        raise UnavailableError(f"it does not run inside this program; start {command} and measure that with --url")

    return start


_STARTS: dict[str, Callable[[LLM], tuple[Configuration, str | None]]] = {
    TRANSFORMERS: _transformers,
    "llama.cpp": _elsewhere("its llama-server"),
    "openvino": _elsewhere("its model server"),
    "vllm": _elsewhere("`vllm serve`"),
}
