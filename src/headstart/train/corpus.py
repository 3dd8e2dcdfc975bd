"""A corpus: documents of tokens with the spans that are supervised, one JSON object a line, in a folder of its own.

    corpus/
      meta.json          format, version, fingerprint of the model whose tokens these are, how they were written
      documents.jsonl    {"kind": "chat", "temperature": 0.5, "tokens": [...], "supervised": [[start, end], ...]}

``temperature`` is the one at which the supervised spans were written (0: greedily, -1: unknown or mixed). Lines are only ever
appended, whole; a last line that an interrupted run left torn is dropped on reading and cut off before the next is appended.
Tokens are exact: what the model wrote is never decoded and tokenised again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headstart.errors import DataError
from headstart.folders import append_whole, write_whole

FORMAT = "headstart-corpus"
VERSION = 1
DOCUMENTS = "documents.jsonl"
META = "meta.json"
SECOND = "-second"  # behind the kind of a conversation with further turns

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Document:
    """Tokens of one conversation or text, and the half-open spans that a head learns from."""

    kind: str
    temperature: float
    tokens: tuple[int, ...]
    supervised: tuple[Span, ...]

    def __post_init__(self) -> None:
        end = 0
        for start, stop in self.supervised:
            if not end <= start < stop <= len(self.tokens):
                raise DataError(f"supervised span [{start}, {stop}] does not fit a document of {len(self.tokens)} tokens")
            end = stop

    @property
    def num_supervised(self) -> int:
        """Tokens within the spans."""
        return sum(stop - start for start, stop in self.supervised)

    @property
    def digest(self) -> int:
        """A number that depends on the tokens alone."""
        return _digest(self.tokens)

    def is_held_out(self, share: float) -> bool:
        """Whether it is kept for measuring. Answers to one prompt always fall on the same side of the split."""
        prompt = self.tokens[: self.supervised[0][0]] if self.supervised else ()
        return _digest(prompt if len(prompt) > 1 else self.tokens) / 2**64 < share


def _digest(tokens: Sequence[int]) -> int:
    data = b"".join(token.to_bytes(4, "little") for token in tokens)
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


class Corpus:
    """A folder of documents, made for one model."""

    def __init__(self, folder: Path, fingerprint: str, written_by: dict[str, Any] | None = None) -> None:
        """Open the folder, or make it. A corpus of another model is refused: its tokens mean something else."""
        self.folder = folder
        self._documents = folder / DOCUMENTS
        folder.mkdir(parents=True, exist_ok=True)
        meta = folder / META
        if meta.exists():
            _check(meta, fingerprint)
        else:
            record = {"format": FORMAT, "version": VERSION, "fingerprint": fingerprint, "written_by": written_by or {}}
            write_json(meta, record)

    @property
    def is_torn(self) -> bool:
        """Whether the last line was cut in the middle; it is left out."""
        try:
            with self._documents.open("rb") as file:
                return file.seek(0, os.SEEK_END) > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
        except FileNotFoundError:
            return False

    def read(self) -> list[Document]:
        """All whole documents."""
        if not self._documents.exists():
            return []
        with self._documents.open("rb") as lines:
            return [_parse(line, self._documents, i) for i, line in enumerate(lines, start=1) if line.endswith(b"\n")]

    def append(self, documents: Iterable[Document]) -> None:
        """Add documents, whole lines only."""
        lines = "".join(json.dumps(asdict(document), separators=(",", ":")) + "\n" for document in documents)
        self._cut_torn_line()
        append_whole(self._documents, lines.encode())

    def _cut_torn_line(self) -> None:
        if not self._documents.exists():
            return
        with self._documents.open("rb+") as file:
            end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - 65536)
                file.seek(start)
                newline = file.read(end - start).rfind(b"\n")
                end = start + newline + 1 if newline >= 0 else start
                if newline >= 0:
                    break
            file.truncate(end)


def fingerprint_of(documents: Sequence[Document], before: str = "") -> str:
    """A digest of documents in order, behind others with the digest ``before``: what captured states belong to."""
    for document in documents:
        data = before.encode() + document.digest.to_bytes(8, "little") + repr(document.supervised).encode()
        before = hashlib.blake2b(data, digest_size=12).hexdigest()
    return before


def statistics(documents: Sequence[Document]) -> dict[str, Any]:
    """Documents, and by kind documents, supervised tokens and their share; further turns count to the kind of the first."""
    numbers: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for document in documents:
        kind = document.kind.removesuffix(SECOND)
        numbers[kind] += 1
        tokens[kind] += document.num_supervised
    total = max(tokens.total(), 1)
    return {
        "documents": len(documents),
        "longest_document": max((len(document.tokens) for document in documents), default=0),
        "documents_by_kind": dict(numbers.most_common()),
        "tokens_by_kind": dict(tokens.most_common()),
        "share_by_kind": {kind: round(number / total, 4) for kind, number in tokens.most_common()},
    }


def held_apart(documents: Sequence[Document], share: float) -> tuple[list[int], list[int]]:
    """Numbers of held-out documents and of those to learn from; at least one each."""
    if len(documents) < 2:
        raise DataError("one document is not enough: some are learned from and some are held out to measure; give more data")
    held_out = [i for i, document in enumerate(documents) if document.is_held_out(share)]
    if not held_out or len(held_out) == len(documents):
        held_out = [min(range(len(documents)), key=lambda i: documents[i].digest)]
    chosen = set(held_out)
    return held_out, [i for i in range(len(documents)) if i not in chosen]


def write_json(path: Path, record: Any) -> None:
    """Write under a temporary name, then rename: a reader sees the old file or the new one."""
    write_whole(path, (json.dumps(record, indent=1) + "\n").encode())


def _check(meta: Path, fingerprint: str) -> None:
    try:
        record = json.loads(meta.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{meta} cannot be read ({error}); give another corpus folder or delete this one") from None
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise DataError(f"{meta} is not a {FORMAT} of version {VERSION}; give another corpus folder")
    if record.get("fingerprint") != fingerprint:
        raise DataError(
            f"{meta.parent} was written for another model (fingerprint {record.get('fingerprint')}, this one has"
            f" {fingerprint}); give another corpus folder"
        )


def _parse(line: bytes, path: Path, number: int) -> Document:
    try:
        record = json.loads(line)
        spans = tuple((int(start), int(stop)) for start, stop in record["supervised"])
        return Document(str(record["kind"]), float(record["temperature"]), tuple(map(int, record["tokens"])), spans)
    except (ValueError, KeyError, TypeError, DataError) as error:
        raise DataError(f"{path}, line {number}: {error}; delete the line or the file") from None
