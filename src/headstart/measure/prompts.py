"""Prompt sets: a built-in one, JSON Lines files, and an even choice out of them.

A line is an object with one of ``prompt`` (a user's turn), ``turns`` (the first one is asked; the layout of MT-Bench and
Spec-Bench), ``messages`` (a chat, the last message being the user's) or ``conversations`` (the layout of ShareGPT; what the
person says first is asked, behind a system's words if there are any); ``category`` and ``id`` or ``question_id`` may
follow. A file may also be one JSON list of such objects, as ShareGPT's are.

The built-in set was written for this project: six categories of ten prompts, from free talk, where little can be copied, to
edits of a given text, where nearly everything can.

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

from headstart.errors import DataError, RequestError
from headstart.tokenizer.chat_template import check_messages

Content = str | list[dict[str, Any]]
NO_CATEGORY = "all"
BUILT_IN = Path(__file__).with_name("builtin.jsonl")
_LAYOUTS = ("prompt", "turns", "messages", "conversations")
_SHAREGPT_ROLES = {"human": "user", "user": "user", "system": "system"}


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
            "ids": [prompt.id for prompt in self.prompts],
        }


def prompt_set(
    source: str | Path | PromptSet | Iterable[Content | Prompt] | None,
    limit: int | None = None,
    categories: Sequence[str] = (),
) -> PromptSet:
    """A prompt set from a JSONL file's path or from prompts in memory; DataError names the file and the line.

    None: the built-in set. ``categories``: of these alone, if any are named.
    """
    if limit is not None and limit < 1:
        raise DataError(f"limit is {limit}; it must be 1 or more")
    if isinstance(source, PromptSet):
        return PromptSet(source.name, source.sha256, _chosen(source.prompts, limit, categories, source.name), limit)
    if source is None:
        name, data = "the built-in set", _read(BUILT_IN)
        prompts = parse(data, name)
    elif isinstance(source, str | Path):
        name, data = Path(source).name, _read(Path(source))
        prompts = parse(data, str(source))
    else:
        if not isinstance(source, Iterable) or isinstance(source, Mapping | bytes):
            raise DataError(f"the prompts are of type {type(source).__name__}; give a JSONL file's path or a list of prompts")
        prompts = [p if isinstance(p, Prompt) else Prompt(str(i), p) for i, p in enumerate(source, start=1)]
        for prompt in prompts:
            _check_content(prompt.content, f"prompt {prompt.id}")
        name, data = "given", json.dumps([[p.id, p.category, p.content] for p in prompts]).encode()
    if not prompts:
        raise DataError(f"{source if isinstance(source, str | Path) else 'the list of prompts'} holds no prompt")
    return PromptSet(name, hashlib.sha256(data).hexdigest(), _chosen(prompts, limit, categories, name), limit)


def _chosen(prompts: Sequence[Prompt], limit: int | None, categories: Sequence[str], name: str) -> tuple[Prompt, ...]:
    known = list(dict.fromkeys(prompt.category for prompt in prompts))
    empty = next((category for category in categories if category not in known), None)
    if empty is not None:
        raise DataError(f"category {empty} has no prompts in {name}; there are {', '.join(known)}")
    return spread([prompt for prompt in prompts if not categories or prompt.category in categories], limit)


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
    """The prompts of a JSON Lines file, or of one JSON list; empty lines are skipped."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text (byte {error.start}); prompts are JSON Lines in UTF-8") from None
    if text.lstrip().startswith("["):
        listed = _listed(text)
        if listed is not None:
            return [_parse_entry(entry, number, f"{name}, entry {number}") for number, entry in enumerate(listed, start=1)]
    lines = text.split("\n")
    prompts = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            prompts.append(_parse_line(line, number, f"{name}, line {number}"))
    return prompts


def _listed(text: str) -> list[Any] | None:
    """A file that is one JSON list of objects; None if it is something else."""
    try:
        found = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(entry, dict) for entry in found) and found else None


def _parse_line(line: str, number: int, where: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise DataError(f"{where}: JSON that is nested beyond reason") from None
    return _parse_entry(entry, number, where)


def _parse_entry(entry: Any, number: int, where: str) -> Prompt:
    if not isinstance(entry, dict):
        raise DataError(f"{where}: a prompt is an object with `prompt`, `turns`, `messages` or `conversations`")
    given = [key for key in _LAYOUTS if key in entry]
    if len(given) != 1:
        found = " and ".join(given) if given else f"only {', '.join(map(repr, entry)) or 'nothing'}"
        raise DataError(f"{where}: give exactly one of `prompt`, `turns`, `messages` or `conversations`; found {found}")
    identity = entry.get("id", entry.get("question_id", number))
    return Prompt(str(identity), _content(entry, given[0], where), str(entry.get("category", NO_CATEGORY)))


def _content(entry: Mapping[str, Any], key: str, where: str) -> Content:
    value = entry[key]
    if key == "messages":
        if not isinstance(value, list):
            raise DataError(f"{where}: `messages` is {_kind_of(value)}; it must be a list of objects with `role` and `content`")
        _check_content(value, where)
        return list(value)
    if key == "conversations":
        return _sharegpt(value, where)
    if key == "turns":
        if not isinstance(value, list) or not value:
            raise DataError(f"{where}: `turns` is a list of the user's turns")
        value = value[0]
    if not isinstance(value, str):
        raise DataError(f"{where}: `{key}` holds {_kind_of(value)}; write text, or a conversation as `messages`")
    if not value.strip():
        raise DataError(f"{where}: `{key}` holds no text")
    return value


def _check_content(content: object, where: str) -> None:
    """DataError unless this is text, or a list of messages that a chat template can render."""
    if isinstance(content, str):
        return
    if not isinstance(content, list | tuple):
        raise DataError(f"{where} is {_kind_of(content)}; give text, or a list of messages with role and content")
    try:
        check_messages(content)
    except RequestError as error:
        raise DataError(f"{where}: {error}") from None


def _kind_of(value: object) -> str:
    """What a value is, in words."""
    return "nothing" if value is None else "bytes" if isinstance(value, bytes) else f"a value of type {type(value).__name__}"


def _sharegpt(turns: Any, where: str) -> Content:
    """What a person says first, behind a system's words."""
    valid = isinstance(turns, list) and all(isinstance(t, dict) and isinstance(t.get("value"), str) for t in turns)
    if not valid:
        raise DataError(f"{where}: `conversations` is a list of objects with `from` and `value`")
    messages = []
    for turn in turns:
        role = _SHAREGPT_ROLES.get(str(turn.get("from")))
        if role is None:
            continue
        if not turn["value"].strip():
            raise DataError(f"{where}: `conversations` holds no text")
        messages.append({"role": role, "content": turn["value"]})
        if role == "user":
            return list(messages) if len(messages) > 1 else str(turn["value"])
    raise DataError(f"{where}: nobody asks anything in `conversations`; a turn from `human` is needed")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read the prompts {path}: {error.strerror}") from None
