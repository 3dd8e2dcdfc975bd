"""transformers' own ``generate`` on the model that a target holds: the reference for text and for speed.

It shares nothing with this project's loop: own cache, own masks, own stopping, own sampling, PyTorch's own linear layers.
Greedy tokens must therefore agree with plain decoding but for rounding. With temperature it draws its own noise: its texts are
other ones, and only times compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from headstart.errors import RequestError
from headstart.sampling import Sampling
from headstart.target.base import Target
from headstart.target.hf import HfTarget
from headstart.target.hf_packed import plain_linears
from headstart.target.quiet import quiet_transformers

_ELSEWHERE = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "logit_bias": {}, "stop": ()}


class ReferenceDecoder:
    """``generate`` with the meaning that ``sampling`` has here."""

    def __init__(self, target: Target, sampling: Sampling) -> None:
        """RequestError if the target is no transformers model, or for what ``generate`` does differently or not at all."""
        if not isinstance(target, HfTarget):
            raise RequestError(f"proposer transformers needs a transformers model; the engine here is {target.engine}")
        for name, off in _ELSEWHERE.items():
            if getattr(sampling, name) != off:
                raise RequestError(f"option {name} cannot be compared with transformers; leave one of the two out")
        self._target, self._sampling = target, sampling
        ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else target.end_tokens)
        self._ends = sorted(ends)
        self._pad = self._ends[0] if self._ends else 0  # masked out, so any token will do

    def generate(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Answers' token ids, the end token included; the prompts run as one batch, padded to the left."""
        longest = max(map(len, prompts))
        device = self._target.model.device
        ids = [[self._pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        config = self._config()
        model = self._target.model
        own = model.generation_config
        torch.manual_seed(self._sampling.seed or 0)
        try:
            model.generation_config = config  # or its defaults would fill what is off here
            with self._target.lock, quiet_transformers(), torch.no_grad(), plain_linears(model):
                found = model.generate(
                    input_ids=torch.tensor(ids, device=device), attention_mask=torch.tensor(mask, device=device)
                )
        finally:
            model.generation_config = own
        return [self._trim(row, len(prompt)) for row, prompt in zip(found[:, longest:].tolist(), prompts, strict=True)]

    def _config(self) -> Any:
        from transformers import GenerationConfig

        settings = self._sampling
        options: dict[str, Any] = {
            "do_sample": settings.temperature > 0,
            "max_new_tokens": settings.max_tokens or self._target.context_limit,
            "repetition_penalty": settings.repetition_penalty,
            "eos_token_id": self._ends or None,
            "pad_token_id": self._pad,
            "use_cache": True,
        }
        if settings.min_tokens:
            options["min_new_tokens"] = settings.min_tokens
        if settings.temperature > 0:
            options |= {"temperature": settings.temperature, "top_k": settings.top_k, "top_p": settings.top_p}
            options["min_p"] = settings.min_p or None
        return GenerationConfig(**options)

    def _trim(self, tokens: list[int], num_prompt: int) -> list[int]:
        """Up to the end token, or to the context limit."""
        end = next((i + 1 for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        return tokens[: min(end, self._target.context_limit - num_prompt)]


def runtime() -> dict[str, Any]:
    """Threads and, if there is one, the GPU's name."""
    facts: dict[str, Any] = {"threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts
