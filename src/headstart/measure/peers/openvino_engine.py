"""OpenVINO through openvino-genai, on the CPU, in the process of ``host.py``; nothing of Headstart is imported here.

Its continuous batching reads a GGUF file and has all prompts of a question in flight at once. It quantises activations and
picks tokens as it likes to.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino
import openvino_genai


class Engine:
    """One GGUF file."""

    def __init__(self, path: str, threads: str) -> None:
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.enable_prefix_caching = False  # each prompt is computed whole, as everywhere else in a measurement
        settings = {"INFERENCE_NUM_THREADS": int(threads)}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduling, "CPU", settings)

    def describe(self) -> dict[str, Any]:
        """Its version."""
        return {"version": f"openvino-genai {openvino_genai.__version__}"}

    def answer(
        self, prompts: list[list[int]], limits: list[int], ends: list[int], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Answers to prompts that are in flight together, each up to its limit or one of the ``ends``.

        Seconds count from the first prompt on. What single answers take is known of one prompt alone: the engine's own times
        are those of all together.
        """
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        settings = [configured(limit, ends, sampling, place) for place, limit in enumerate(limits)]
        started = time.perf_counter()
        found = self._pipeline.generate(inputs, settings)
        seconds = time.perf_counter() - started
        answers: list[dict[str, Any]] = [
            {"tokens": list(one.m_generation_ids[0]), "first": None, "last": None} for one in found
        ]
        if len(found) == 1:
            answers[0] |= {"first": found[0].perf_metrics.get_ttft().mean / 1000, "last": seconds}
        return {"answers": answers, "seconds": seconds}


def configured(limit: int, ends: list[int], sampling: Mapping[str, Any], place: int) -> Any:
    """What is asked for one prompt; the noise is OpenVINO's own."""
    asked = openvino_genai.GenerationConfig()
    asked.max_new_tokens, asked.stop_token_ids, asked.ignore_eos = limit, set(ends), not ends
    if sampling["temperature"] > 0:
        asked.do_sample, asked.temperature, asked.top_p = True, sampling["temperature"], sampling["top_p"]
        asked.rng_seed = sampling["seed"] + place
        asked.min_p = sampling["min_p"]
        if sampling["top_k"]:
            asked.top_k = sampling["top_k"]
    return asked
