"""What a self-written corpus consists of: the kinds that are built in, or kinds of a file, and their shares.

A file of kinds is JSON: a list of objects with the fields of :class:`~headstart.train.kinds.Kind`. That is how a corpus comes
to be in another language, about one's own subject, or over long contexts: the model goes on from openings, so it writes in
their language (as well as it can), and requests over several long documents make long prompts.

    [{"name": "fragen", "share": 2, "openings": ["Was ist", "Warum"], "continuations": ["Und"], "gives_passages": true},
     {"name": "lang", "share": 1, "requests": ["{documents}\\n\\nWas steht dort?"], "num_documents": [8, 12]}]

A mixture names kinds and their shares, ``code=2,chat=1``; what it does not name is not written.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from headstart.errors import DataError, RequestError
from headstart.train.kinds import KINDS, Kind, can_open, fields_of

_TEXTS = ("openings", "requests", "continuations")
_PAIRS = ("num_documents", "document_words")


def kinds_of(file: str, mixture: str) -> tuple[Kind, ...]:
    """The kinds of a file (empty: those that are built in), with the shares of a mixture (empty: their own)."""
    kinds = read_kinds(Path(file)) if file else KINDS
    chosen = _mixed(kinds, mixture) if mixture else kinds
    _require_written(chosen, file or "the mixture")
    return chosen


def read_kinds(path: Path) -> tuple[Kind, ...]:
    """The kinds of a JSON file; DataError names the entry that cannot be used."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as kinds: {error}") from None
    if not isinstance(entries, list) or not entries:
        raise DataError(f"{path} holds no list of kinds")
    kinds = []
    for number, entry in enumerate(entries, start=1):
        try:
            kinds.append(_kind(entry))
        except DataError as error:
            raise DataError(f"{path}, kind {number}: {error}") from None
    names = [kind.name for kind in kinds]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"{path} names the kind {twice!r} twice")
    return tuple(kinds)


def _kind(entry: Any) -> Kind:
    if not isinstance(entry, dict):
        raise DataError("expected an object with name, share, and openings or requests")
    known = {field.name: field for field in fields(Kind)}
    for name in entry:
        if name not in known:
            raise DataError(f"it has no field {name!r}{_hint(name, known)}")
    for name in ("name", "share"):
        if name not in entry:
            raise DataError(f"it has no {name}")
    values = {name: _value(name, value, known[name].default) for name, value in entry.items()}
    kind = Kind(**values)
    if not kind.openings and not kind.requests:
        raise DataError("it has neither openings nor requests")
    return kind


def _value(name: str, value: Any, default: Any) -> Any:
    """A field's value, of the type that the field has."""
    if name in _TEXTS:
        return _texts(name, value)
    if name in _PAIRS:
        return _pair(name, value)
    wanted = str if name == "name" else type(default)
    if wanted in (str, bool):
        if not isinstance(value, wanted) or value == "":
            raise DataError(f"{name} must be {'a text' if wanted is str else 'true or false'}")
        return value
    is_share = name in ("requests_share", "follow_ups")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (0 <= value <= 1 if is_share else 0 < value < math.inf):
        raise DataError(f"{name} must be a number {'from 0 to 1' if is_share else 'above 0'}")
    return float(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise DataError(f"{name} must be a list of texts")
    for text in value:
        fields_of(text)
    return tuple(value)


def _pair(name: str, value: Any) -> tuple[int, int]:
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(count) is int for count in value)
    if not is_pair or not 1 <= value[0] <= value[1]:
        raise DataError(f"{name} must be two whole numbers, the smaller one first")
    return value[0], value[1]


def _mixed(kinds: Sequence[Kind], mixture: str) -> tuple[Kind, ...]:
    by_name = {kind.name: kind for kind in kinds}
    chosen: dict[str, Kind] = {}
    for part in mixture.split(","):
        name, _, share = part.partition("=")
        if name not in by_name:
            raise RequestError(f"mixture names the kind {name!r}, which there is not{_hint(name, by_name)}")
        try:
            number = float(share) if share else by_name[name].share
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise RequestError(f"mixture gives {name} the share {share!r}; it must be a number above 0")
        if name in chosen:
            raise RequestError(f"mixture names the kind {name!r} twice")
        chosen[name] = dataclasses.replace(by_name[name], share=number)
    return tuple(chosen.values())


def _require_written(kinds: Sequence[Kind], where: str) -> None:
    """RequestError if nothing can be begun with, or if some kinds wait for passages that no other kind gives."""
    begun = [kind for kind in kinds if can_open(kind, ())]
    if not begun:
        raise RequestError(f"{where}: every kind reads passages, and none gives them; add one that does, such as chat")
    waiting = [kind.name for kind in kinds if not can_open(kind, ())]
    if waiting and not any(kind.gives_passages for kind in begun):
        raise RequestError(f"{where}: {waiting[0]} reads passages, and no kind gives them; add one that does, such as chat")


def _hint(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
