"""llama.cpp through llama-cpp-python, as a worker: ``python benchmarks/engine_llama_cpp.py GGUF THREADS``.

Runs in an environment of its own, with llama-cpp-python and gguf alone. Everything that Python would add to a step is avoided:
batches are filled in place, tokens are picked by llama.cpp's own greedy sampler. The file is read rather than mapped, since
mapped files lie in small pages.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from typing import Any

import gguf
import llama_cpp
from worker import serve

CONTEXT = 4096
PROMPT_ROWS = 512  # llama.cpp's own default for a batch


class Engine:
    """One GGUF file."""

    def __init__(self, path: str, threads: int) -> None:
        self._llm = llama_cpp.Llama(
            path,
            n_ctx=CONTEXT,
            n_batch=PROMPT_ROWS,
            n_threads=threads,
            n_threads_batch=threads,
            use_mmap=False,
            verbose=False,
        )
        self._context = self._llm._ctx.ctx
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_model_get_vocab(self._llm._model.model)
        self._batch = llama_cpp.llama_batch_init(PROMPT_ROWS, 0, 1)
        self._greedy = llama_cpp.llama_sampler_init_greedy()
        self._path, self._threads = path, threads

    def describe(self) -> dict[str, Any]:
        tensors = gguf.GGUFReader(self._path).tensors
        return {
            "weight_bytes": int(sum(tensor.n_bytes for tensor in tensors)),
            "num_weights": int(sum(tensor.n_elements for tensor in tensors)),
            "threads": self._threads,
            "version": f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}",
            "system": llama_cpp.llama_print_system_info().decode().strip(),
        }

    def forward(self, rows: int, context: int, times: int) -> list[float]:
        """Seconds of forwards over ``rows`` rows behind ``context`` tokens, with the logits of all rows."""
        self._prefill([5 + i * 37 % 40000 for i in range(context)])
        tokens = [5 + i * 41 % 40000 for i in range(rows)]
        seconds = []
        for _ in range(times):
            started = time.perf_counter()
            self._decode(tokens, context, first_scored=0)
            seconds.append(time.perf_counter() - started)
            llama_cpp.llama_memory_seq_rm(self._memory, 0, context, -1)
        return seconds

    def prompt(self, tokens: list[int]) -> float:
        """Seconds of a prompt, with the logits of its last row."""
        started = time.perf_counter()
        self._prefill(tokens)
        return time.perf_counter() - started

    def generate(self, prompt: list[int], max_tokens: int, ignore_end: bool) -> dict[str, Any]:
        """A greedy answer; seconds count from the prompt on."""
        answer: list[int] = []
        started = time.perf_counter()
        self._prefill(prompt)
        while True:
            token = llama_cpp.llama_sampler_sample(self._greedy, self._context, -1)
            answer.append(token)
            if len(answer) == max_tokens or (not ignore_end and llama_cpp.llama_vocab_is_eog(self._vocab, token)):
                break
            self._decode([token], len(prompt) + len(answer) - 1, first_scored=0)
        return {"tokens": answer, "seconds": time.perf_counter() - started}

    def _prefill(self, tokens: list[int]) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, 0, 0, -1)
        for begin in range(0, len(tokens), PROMPT_ROWS):
            chunk = tokens[begin : begin + PROMPT_ROWS]
            last = len(tokens) - begin - 1
            self._decode(chunk, begin, first_scored=last)

    def _decode(self, tokens: list[int], position: int, first_scored: int) -> None:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i >= first_scored
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_synchronize(self._context)


if __name__ == "__main__":
    serve(lambda: Engine(sys.argv[1], int(sys.argv[2])))
