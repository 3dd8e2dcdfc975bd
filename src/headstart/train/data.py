"""Training data of the user's own: JSONL of chats or of plain texts.

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
    {"turns": ["user's", "assistant's", "user's", "assistant's"]}
    {"text": "..."}

A line may name its ``kind``, by which statistics and acceptance are told apart.
Heads learn from the assistant's turns only, or from a whole text. Heads that are to guess what *this* model says learn best
from its own answers (self-distillation, Cai et al. 2024, section 2.3.2); other people's answers work, less well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headstart.errors import DataError, RequestError
from headstart.train.corpus import Document
from headstart.train.template import Codec, encode_chat

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant"}
_UNKNOWN_TEMPERATURE = -1.0


def read_jsonl(path: Path, codec: Codec, end_tokens: frozenset[int], max_tokens: int) -> list[Document]:
    """The file's documents, each cut at ``max_tokens``. DataError names the line that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON strings may hold other line ends as they are
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    documents = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            documents.append(_document(json.loads(line), codec, end_tokens, max_tokens))
        except (DataError, RequestError, json.JSONDecodeError) as error:
            raise DataError(f"{path}, line {number}: {error}") from None
    if not documents:
        raise DataError(f"{path} holds no documents; give JSONL with messages or text on each line")
    return documents


def supervised_share(documents: Sequence[Document]) -> float:
    """Fraction of all tokens that heads learn from."""
    total = sum(len(document.tokens) for document in documents)
    return sum(document.num_supervised for document in documents) / total if total else 0.0


def require_supervised(documents: Sequence[Document], codec: Codec) -> float:
    """The supervised fraction; zero is an error that shows how the data looks to the model."""
    share = supervised_share(documents)
    if share == 0:
        sample = codec.decode(documents[0].tokens[:200]) if documents else ""
        raise DataError(
            f"no token of the data is supervised (is there an assistant's turn?); the first sample reads {sample!r}"
        )
    return share


def _document(record: Any, codec: Codec, end_tokens: frozenset[int], max_tokens: int) -> Document:
    if not isinstance(record, dict):
        raise DataError("expected an object with messages, conversations, turns or text")
    kind = record.get("kind", "")
    if not isinstance(kind, str):
        raise DataError("kind must be a string")
    if "text" in record:
        if not isinstance(record["text"], str):
            raise DataError("text must be a string")
        tokens = codec.encode_whole(record["text"])[:max_tokens]
        return Document(kind or "text", _UNKNOWN_TEMPERATURE, tuple(tokens), ((0, len(tokens)),) if tokens else ())
    messages = _messages(record)
    if not codec.has_template:
        raise DataError("the model has no chat template; give plain text instead of chats")
    tokens, spans = encode_chat(codec, messages, end_tokens)
    cut = tuple((start, min(stop, max_tokens)) for start, stop in spans if start < max_tokens)
    return Document(kind or "chat", _UNKNOWN_TEMPERATURE, tuple(tokens[:max_tokens]), cut)


def _messages(record: Mapping[str, Any]) -> list[dict[str, str]]:
    found = next((record[key] for key in ("messages", "conversations", "turns") if key in record), None)
    if not isinstance(found, list) or not found:
        raise DataError(f"expected messages, conversations, turns or text; found {', '.join(map(repr, record)) or 'nothing'}")
    messages = list(_as_messages(found))
    for message in messages:
        if message["role"] not in ("system", "user", "assistant"):
            raise DataError(f"unknown role {message['role']!r}; use system, user or assistant")
    return messages


def _as_messages(turns: Iterable[Any]) -> Iterable[dict[str, str]]:
    for i, turn in enumerate(turns):
        if isinstance(turn, str):
            yield {"role": ("user", "assistant")[i % 2], "content": turn}
            continue
        if not isinstance(turn, dict):
            raise DataError(f"turn {i + 1} is neither a string nor an object with role and content")
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if not isinstance(role, str) or not isinstance(content, str):
            raise DataError(f"turn {i + 1} has no role and content (or from and value)")
        yield {"role": _ROLES.get(role, role), "content": content}
