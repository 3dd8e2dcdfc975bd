"""Headstart's own engines in a worker: ``Engine(MODEL, TARGET, DTYPE, THREADS)``, all as text.

TARGET is ``native`` or ``hf`` (PyTorch). Both are asked through the same seam, ``Target``, as the decoding loop does.
"""

from __future__ import annotations

import math
import time
from functools import cache
from typing import Any

import numpy as np

import headstart as hs
from headstart.target.base import Feed, Slot, Target
from headstart.tree import Tree

PRODUCT = 2048  # rows, inputs and outputs of the large product that shows the peak


class Engine:
    """One model on one engine."""

    def __init__(self, model: str, target: str, dtype: str, num_threads: str) -> None:
        threads = int(num_threads)
        set_threads(target, threads)
        self._llm = hs.load(model, target=target, dtype=dtype, proposer="none")
        self._target: Target = self._llm.target
        self._threads = threads

    def describe(self) -> dict[str, Any]:
        own: dict[str, Any] = {"threads": self._threads, "dtype": self._target.dtype, "version": f"headstart {hs.__version__}"}
        return own | (native_description(self._target) if self._target.engine == "native" else torch_description(self._target))

    def encode(self, prompts: list[Any]) -> list[list[int]]:
        """Token ids of chat prompts."""
        return [self._llm.encode(prompt) for prompt in prompts]

    def forward(self, rows: int, context: int, times: int) -> list[float]:
        """Seconds of forwards over ``rows`` rows behind ``context`` tokens, with the logits of all rows."""
        slot = self._filled(context)
        tree = Tree.chain([5 + i * 41 % 40000 for i in range(rows)])
        seconds = []
        for _ in range(times):
            started = time.perf_counter()
            self._target.forward([Feed(slot, tree)])
            seconds.append(time.perf_counter() - started)
            self._target.keep(slot, ())
        self._target.close(slot)
        return seconds

    def split(self, rows: int, context: int, times: int) -> list[dict[str, float]]:
        """Seconds of such forwards in parts: linear layers, attention, everything else (native engine)."""
        model: Any = self._target._model  # type: ignore[attr-defined]
        slot = self._filled(context)
        tree = Tree.chain([5 + i * 41 % 40000 for i in range(rows)])
        parts = []
        for _ in range(times):
            model.enable_profile(True)
            started = time.perf_counter()
            self._target.forward([Feed(slot, tree)])
            total = time.perf_counter() - started
            spent = model.profile()
            linear, attention = spent["linear"], spent["attention"]
            parts.append({"linear": linear, "attention": attention, "other": total - linear - attention})
            self._target.keep(slot, ())
        model.enable_profile(False)
        self._target.close(slot)
        return parts

    def prompt(self, tokens: list[int]) -> float:
        """Seconds of a prompt, with the logits of its last row."""
        slot = self._target.open()
        started = time.perf_counter()
        self._feed_prompt(slot, tokens)
        seconds = time.perf_counter() - started
        self._target.close(slot)
        return seconds

    def generate(
        self, prompt: list[int], max_tokens: int, ignore_end: bool, proposer: str = "none", nodes: int | None = None
    ) -> dict[str, Any]:
        """A greedy answer; seconds count from the prompt on."""
        llm = self._with_proposer(proposer, nodes)
        sampling = hs.Sampling(max_tokens=max_tokens, ignore_eos=ignore_end)
        started = time.perf_counter()
        (answer,) = llm.generate_encoded([prompt], sampling)
        seconds = time.perf_counter() - started
        stats = answer.stats
        counts = {"steps": stats.num_steps, "emitted": stats.num_emitted, "drafted": stats.num_drafted}
        return {"tokens": list(answer.tokens), "seconds": seconds, **counts}

    def product(self) -> float:
        """GFLOP/s of one large product in bfloat16."""
        work = native_product() if self._target.engine == "native" else torch_product()
        started = time.perf_counter()
        work()
        return 2 * PRODUCT**3 / (time.perf_counter() - started) / 1e9

    @cache  # noqa: B019 - one engine a process
    def _with_proposer(self, name: str, nodes: int | None) -> hs.LLM:
        return self._llm if name == "none" else self._llm.with_proposer(name, num_nodes=nodes)

    def _filled(self, context: int) -> Slot:
        slot = self._target.open()
        self._feed_prompt(slot, [5 + i * 37 % 40000 for i in range(context)])
        return slot

    def _feed_prompt(self, slot: Slot, tokens: list[int]) -> None:
        self._target.forward([Feed(slot, Tree.chain(tokens), len(tokens) - 1)])
        self._target.keep(slot, tuple(range(len(tokens))))


def set_threads(target: str, threads: int) -> None:
    if target == "native":
        from headstart import _native

        _native.set_num_threads(threads)
    else:
        import torch

        torch.set_num_threads(threads)


def native_description(target: Any) -> dict[str, Any]:
    from headstart import _native

    tensors = target._weights.tensors.values()
    weight_bytes = sum(tensor.nbytes if isinstance(tensor, np.ndarray) else tensor.num_bytes for tensor in tensors)
    return {"weight_bytes": weight_bytes, "num_weights": sum(math.prod(t.shape) for t in tensors), "isa": _native.isa()}


def torch_description(target: Any) -> dict[str, Any]:
    import torch

    weights = {p.data_ptr(): p for p in target.model.parameters()}.values()  # tied ones once
    number = sum(weight.numel() for weight in weights)
    return {"weight_bytes": sum(w.nbytes for w in weights), "num_weights": number, "version": f"torch {torch.__version__}"}


@cache
def native_product() -> Any:
    from headstart import _native

    x = np.random.default_rng(0).standard_normal((PRODUCT, PRODUCT), dtype=np.float32)
    source = np.ascontiguousarray(x).view(np.uint8).reshape(-1)
    matrix = _native.Matrix(source, "float32", "bfloat16", PRODUCT, PRODUCT, None)
    return lambda: matrix.linear(x, None)


@cache
def torch_product() -> Any:
    import torch

    x = torch.randn(PRODUCT, PRODUCT, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = torch.empty_like(x)
    return lambda: torch.mm(x, x, out=out)
