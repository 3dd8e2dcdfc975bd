"""llama.cpp as ``measure --against llama.cpp`` runs it, with what the tables of single forwards and prompts ask beside.

The Python of its process needs llama-cpp-python and gguf.
"""

from __future__ import annotations

import time
from typing import Any

import gguf
import llama_cpp
import llama_cpp_engine  # stands beside the script that this engine runs in
from llama_cpp_engine import PROMPT_ROWS, Row

CONTEXT = 4096


class Engine(llama_cpp_engine.Engine):
    """One GGUF file."""

    def __init__(self, path: str, threads: str) -> None:
        super().__init__(path, threads)
        self._path = path
        vocab = llama_cpp.llama_model_get_vocab(self._model)
        self._ends = [t for t in range(llama_cpp.llama_vocab_n_tokens(vocab)) if llama_cpp.llama_vocab_is_eog(vocab, t)]

    def describe(self) -> dict[str, Any]:
        tensors = gguf.GGUFReader(self._path).tensors
        return super().describe() | {
            "weight_bytes": int(sum(tensor.n_bytes for tensor in tensors)),
            "num_weights": int(sum(tensor.n_elements for tensor in tensors)),
        }

    def forward(self, rows: int, context: int, times: int) -> list[float]:
        """Seconds of forwards over ``rows`` rows behind ``context`` tokens, with the logits of all rows."""
        self.prompt([5 + i * 37 % 40000 for i in range(context)])
        drafted = [Row(0, context + i, 5 + i * 41 % 40000, True) for i in range(rows)]
        seconds = []
        for _ in range(times):
            started = time.perf_counter()
            self.decode(drafted)
            seconds.append(time.perf_counter() - started)
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._context), 0, context, -1)
        return seconds

    def prompt(self, tokens: list[int]) -> float:
        """Seconds of a prompt, with the logits of its last row."""
        self.make_room(1, CONTEXT)
        rows = [Row(0, position, token, position == len(tokens) - 1) for position, token in enumerate(tokens)]
        started = time.perf_counter()
        for begin in range(0, len(rows), PROMPT_ROWS):
            self.decode(rows[begin : begin + PROMPT_ROWS])
        return time.perf_counter() - started

    def generate(self, prompt: list[int], max_tokens: int, ignore_end: bool) -> dict[str, Any]:
        """A greedy answer; seconds count from the prompt on."""
        found = self.answer([prompt], [max_tokens], [] if ignore_end else self._ends, {"temperature": 0})
        return {"tokens": found["answers"][0]["tokens"], "seconds": found["seconds"]}
