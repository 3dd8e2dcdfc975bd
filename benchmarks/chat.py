"""Decoding chat prompts: ``auto``, the shipped heads and prompt lookup on the native engine, beside plain llama.cpp."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.measure.peers.worker import Worker
from headstart.measure.prompts import PromptSet, prompt_set

CATEGORIES = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
TOKENS = 128
FILES = ("bf16", "q4_1", "q4_0")


@dataclass(frozen=True, slots=True)
class Way:
    """One engine with one proposer."""

    engine: str
    proposer: str
    nodes: int | None = None  # drafted nodes a step; None: plain decoding, or the proposer's own choice


def measured(workers: Mapping[str, Worker], prompts: Path, limit: int, repeat: int) -> dict[str, Any]:
    """Tokens a second of every way, prompts included, and each native one's ratio to llama.cpp's plain decoding."""
    chosen = chat_prompts(prompts, limit)
    ways = [way for way in all_ways() if way.engine in workers]
    encoder = next(worker for worker in workers.values() if not worker.name.startswith("llama.cpp"))
    encoded = encoder.ask("encode", prompts=[prompt.content for prompt in chosen.prompts])
    seconds: dict[Way, list[list[float]]] = {way: [[] for _ in encoded] for way in ways}
    answers: dict[Way, list[dict[str, Any]]] = {way: [{} for _ in encoded] for way in ways}
    for way in ways:
        ask(workers, way, encoded[0], 16)  # warms up, builds the proposer
    for number in range(repeat):
        for index, tokens in enumerate(encoded):
            print(f"chat, {number + 1} of {repeat}: prompt {index + 1} of {len(encoded)}", file=sys.stderr)
            first = (number + index) % len(ways)
            for way in (*ways[first:], *ways[:first]):
                answer = ask(workers, way, tokens, TOKENS)
                seconds[way][index].append(answer.pop("seconds"))
                answers[way][index] = answer
    entries = [entry(way, answers[way], seconds[way]) for way in ways]
    return {"prompts": chosen.describe(), "max_tokens": TOKENS, "repeat": repeat, "ways": with_ratios(entries)}


def chat_prompts(path: Path, limit: int) -> PromptSet:
    whole = prompt_set(path)
    own = tuple(prompt for prompt in whole.prompts if prompt.category in CATEGORIES)
    if not own:
        sys.exit(f"{path} has no prompt of the categories {', '.join(CATEGORIES)}")
    return prompt_set(PromptSet(whole.name, whole.sha256, own), limit)


def all_ways() -> list[Way]:
    ways = []
    for file in FILES:
        native = f"native-{file}"
        ways += [Way(native, "none"), Way(native, "auto")]
        ways += [Way(native, name, nodes) for name in ("hydra", "ngram") for nodes in (3, 7)]
        ways.append(Way(f"llama.cpp-{file}", "none"))
    return ways


def ask(workers: Mapping[str, Worker], way: Way, prompt: list[int], max_tokens: int) -> dict[str, Any]:
    own = {} if way.engine.startswith("llama.cpp") else {"proposer": way.proposer, "nodes": way.nodes}
    answer: dict[str, Any] = workers[way.engine].ask("generate", prompt=prompt, max_tokens=max_tokens, ignore_end=False, **own)
    return answer


def entry(way: Way, answers: list[dict[str, Any]], seconds: list[list[float]]) -> dict[str, Any]:
    tokens = sum(len(answer["tokens"]) for answer in answers)
    found: dict[str, Any] = {"engine": way.engine, "proposer": way.proposer, "nodes": way.nodes, "tokens": tokens}
    found["tokens_per_second"] = tokens / sum(statistics.median(each) for each in seconds)
    found["most_tokens_per_second"] = tokens / sum(min(each) for each in seconds)
    if "steps" in answers[0]:
        found["acceptance_length"] = sum(a["emitted"] for a in answers) / max(sum(a["steps"] for a in answers), 1)
    return found


def with_ratios(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each native way over llama.cpp's plain decoding of the same file."""
    plain = {one["engine"]: one["tokens_per_second"] for one in entries if one["proposer"] == "none"}
    for one in entries:
        kind, _, file = one["engine"].partition("-")
        peer = plain.get(f"llama.cpp-{file}")
        one["over_llama_cpp"] = one["tokens_per_second"] / peer if kind == "native" and peer else None
    return entries
