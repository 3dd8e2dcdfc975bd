"""Prompt sets: JSON Lines files, and an even choice out of them.

A line is an object with one of ``prompt`` (a user's turn), ``turns`` (the first one is asked; the layout of MT-Bench and
Spec-Bench) or ``messages`` (a chat, the last message being the user's); ``category`` and ``id`` or ``question_id`` may follow.

A limit is spread over the categories: each in turn gives one more prompt, and within a category they lie evenly between its
first and last one. So the choice depends on the file and the limit alone, and grows with the limit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headstart.errors import DataError

Content = str | list[dict[str, Any]]
NO_CATEGORY = "all"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: a user's turn, or the messages of a chat."""

    id: str
    content: Content
    category: str = NO_CATEGORY


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts that are measured, and where they come from."""

    name: str
    sha256: str  # of the file, before the limit
    prompts: tuple[Prompt, ...]
    limit: int | None = None

    @property
    def categories(self) -> dict[str, int]:
        """Number of prompts of each category, in their order."""
        counts: dict[str, int] = {}
        for prompt in self.prompts:
            counts[prompt.category] = counts.get(prompt.category, 0) + 1
        return counts

    def describe(self) -> dict[str, Any]:
        """What a record says about the prompts."""
        return {
            "name": self.name,
            "number": len(self.prompts),
            "categories": self.categories,
            "sha256": self.sha256,
            "limit": self.limit,
        }


def prompt_set(source: str | Path | PromptSet | Iterable[Content | Prompt], limit: int | None = None) -> PromptSet:
    """A prompt set from a JSONL file's path or from prompts in memory; DataError names the file and the line."""
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; it must be 1 or more")
    if isinstance(source, PromptSet):
        return PromptSet(source.name, source.sha256, spread(source.prompts, limit), limit)
    if isinstance(source, str | Path):
        name, data = Path(source).name, _read(Path(source))
        prompts = parse(data, str(source))
    else:
        if not isinstance(source, Iterable) or isinstance(source, Mapping | bytes):
            raise DataError(f"the prompts are of type {type(source).__name__}; give a JSONL file's path or a list of prompts")
        prompts = [p if isinstance(p, Prompt) else Prompt(str(i), p) for i, p in enumerate(source, start=1)]
        name, data = "given", json.dumps([[p.id, p.category, p.content] for p in prompts]).encode()
    if not prompts:
        raise DataError(f"{source if isinstance(source, str | Path) else 'the list of prompts'} holds no prompt")
    return PromptSet(name, hashlib.sha256(data).hexdigest(), spread(prompts, limit), limit)


def spread(prompts: Sequence[Prompt], limit: int | None) -> tuple[Prompt, ...]:
    """At most ``limit`` prompts, spread evenly over the categories, in their order; all if there is no limit."""
    if limit is None or limit >= len(prompts):
        return tuple(prompts)
    members: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        members.setdefault(prompt.category, []).append(index)
    shares = dict.fromkeys(members, 0)
    while (left := limit - sum(shares.values())) > 0:
        for category in [c for c in members if shares[c] < len(members[c])][:left]:
            shares[category] += 1
    chosen = [m[i * len(m) // shares[c]] for c, m in members.items() for i in range(shares[c])]
    return tuple(prompts[index] for index in sorted(chosen))


def parse(data: bytes, name: str) -> list[Prompt]:
    """The prompts of a JSON Lines file; empty lines are skipped."""
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text (byte {error.start}); prompts are JSON Lines in UTF-8") from None
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            prompts.append(_parse_line(line, number, f"{name}, line {number}"))
    return prompts


def _parse_line(line: str, number: int, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    if not isinstance(entry, dict):
        raise DataError(f"{where}: a prompt is an object with `prompt`, `turns` or `messages`")
    given = [key for key in ("prompt", "turns", "messages") if key in entry]
    if len(given) != 1:
        found = " and ".join(given) if given else f"only {', '.join(map(repr, entry)) or 'nothing'}"
        raise DataError(f"{where}: give exactly one of `prompt`, `turns` or `messages`; found {found}")
    identity = entry.get("id", entry.get("question_id", number))
    return Prompt(str(identity), _content(entry, given[0], where), str(entry.get("category", NO_CATEGORY)))


def _content(entry: Mapping[str, Any], key: str, where: str) -> Content:
    value = entry[key]
    if key == "messages":
        valid = isinstance(value, list) and value and all(isinstance(m, dict) and "role" in m and "content" in m for m in value)
        if not valid:
            raise DataError(f"{where}: `messages` is a list of objects with `role` and `content`")
        return list(value)
    if key == "turns":
        if not isinstance(value, list) or not value:
            raise DataError(f"{where}: `turns` is a list of the user's turns")
        value = value[0]
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"{where}: `{key}` holds no text")
    return value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the prompts {path}: {error.strerror}") from None
