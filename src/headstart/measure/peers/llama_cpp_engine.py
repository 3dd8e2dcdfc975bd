"""llama.cpp through llama-cpp-python, on the CPU, in the process of ``host.py``; nothing of Headstart is imported here.

Everything that Python would add to a step is avoided: batches are filled in place, and llama.cpp's own samplers pick the
tokens, in the order in which Headstart cuts a distribution (temperature, top-k, top-p, min-p). All prompts of a question are in
flight at once, each with a cache of its own, as its server has them. The file is read rather than mapped, since mapped files
lie in small pages.
"""

from __future__ import annotations

import importlib.metadata
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import llama_cpp

PROMPT_ROWS = 512  # llama.cpp's own default for a batch
_CACHE_UNIT = 256  # cached positions of a sequence are rounded up to this


class Row(NamedTuple):
    """One token at one position of a sequence; ``scored``: whether its logits are wanted."""

    sequence: int
    position: int
    token: int
    scored: bool


class Engine:
    """One GGUF file."""

    def __init__(self, path: str, threads: str) -> None:
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
        settings = llama_cpp.llama_model_default_params()
        settings.n_gpu_layers, settings.use_mmap = 0, False
        self._threads, self._context, self._num_sequences, self._size = int(threads), None, 0, 0
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), settings)
        if not self._model:
            raise RuntimeError("llama.cpp cannot read the file")
        self._batch = llama_cpp.llama_batch_init(PROMPT_ROWS, 0, 1)

    def describe(self) -> dict[str, Any]:
        """Its version, and what it was built for."""
        return {
            "threads": self._threads,
            "version": f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}",
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def answer(
        self, prompts: list[list[int]], limits: list[int], ends: list[int], sampling: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Answers to prompts that are in flight together, each up to its limit or one of the ``ends``.

        Seconds count from the first prompt on: of each answer to its first and its last token, and of all together.
        """
        self.make_room(len(prompts), max(len(p) + limit for p, limit in zip(prompts, limits, strict=True)))
        samplers = [sampler(sampling, place) for place in range(len(prompts))]
        tokens: list[list[int]] = [[] for _ in prompts]
        first, last = [0.0] * len(prompts), [0.0] * len(prompts)
        live = list(range(len(prompts)))
        started = time.perf_counter()
        rows = [
            Row(place, position, token, position == len(prompt) - 1)
            for place, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        while rows:
            for begin in range(0, len(rows), PROMPT_ROWS):
                chunk = rows[begin : begin + PROMPT_ROWS]
                self.decode(chunk)
                for index, row in enumerate(chunk):
                    if row.scored:
                        token = llama_cpp.llama_sampler_sample(samplers[row.sequence], self._context, index)
                        tokens[row.sequence].append(token)
                        last[row.sequence] = time.perf_counter() - started
                        first[row.sequence] = first[row.sequence] or last[row.sequence]
            live = [place for place in live if len(tokens[place]) < limits[place] and tokens[place][-1] not in ends]
            rows = [Row(place, len(prompts[place]) + len(tokens[place]) - 1, tokens[place][-1], True) for place in live]
        seconds = time.perf_counter() - started
        for each in samplers:
            llama_cpp.llama_sampler_free(each)
        found = [{"tokens": own, "first": a, "last": b} for own, a, b in zip(tokens, first, last, strict=True)]
        return {"answers": found, "seconds": seconds}

    def make_room(self, num_sequences: int, length: int) -> None:
        """Empty caches for so many sequences of so many positions; the context is kept if it is large enough."""
        if self._context is not None and num_sequences == self._num_sequences and length <= self._size:
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)
            return
        if self._context is not None:
            llama_cpp.llama_free(self._context)
        self._num_sequences, self._size = num_sequences, -(-length // _CACHE_UNIT) * _CACHE_UNIT
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = self._size * num_sequences, num_sequences
        settings.n_batch = settings.n_ubatch = PROMPT_ROWS
        settings.n_threads = settings.n_threads_batch = self._threads
        settings.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context for {num_sequences} sequences of {self._size} positions")

    def decode(self, rows: Sequence[Row]) -> None:
        """One forward, waited for."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, row in enumerate(rows):
            batch.token[i], batch.pos[i] = row.token, row.position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, row.sequence
            batch.logits[i] = row.scored
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self._context)


def sampler(sampling: Mapping[str, Any], place: int) -> Any:
    """The sampler of one sequence; its noise is llama.cpp's own."""
    if sampling["temperature"] == 0:
        return llama_cpp.llama_sampler_init_greedy()
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    parts = [llama_cpp.llama_sampler_init_temp(sampling["temperature"])]
    parts += [llama_cpp.llama_sampler_init_top_k(sampling["top_k"])] if sampling["top_k"] else []
    parts += [llama_cpp.llama_sampler_init_top_p(sampling["top_p"], 1)] if sampling["top_p"] < 1 else []
    parts += [llama_cpp.llama_sampler_init_min_p(sampling["min_p"], 1)] if sampling["min_p"] else []
    parts.append(llama_cpp.llama_sampler_init_dist((sampling["seed"] + place) & 0xFFFFFFFF))
    for part in parts:
        llama_cpp.llama_sampler_chain_add(chain, part)
    return chain
