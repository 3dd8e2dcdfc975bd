"""Hidden states of the frozen base: what heads learn from, computed once.

A *segment* is one supervised span [start, stop). Its row i is the base's last hidden state (what the output matrix reads) after
token start + i - 1, which predicts token start + i, the row's *root*. A head reads the row and the root; head k predicts token
start + i + k, known while i + k lies within the segment. So a span of m tokens needs m rows, whatever prompt stands before it.

They come from the engine that the heads will decode with, since engines round differently: from the writer as it writes, and
from :func:`hidden_states` for text that stood there before.

``Captured`` keeps rows in memory-mapped files, 2 bytes a number: width * 2 bytes a supervised token, announced beforehand.
``Online`` recomputes them for each batch instead and needs no disk.

Letters: n rows of all segments, D the model's width.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from headstart.accept import Row
from headstart.errors import TrainingError
from headstart.folders import append_whole
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed, Target
from headstart.train.corpus import Document, fingerprint_of, write_json
from headstart.tree import Tree

_ROWS_AT_ONCE = 1024  # rows of documents in one forward, which bounds its logits
_BLOCK = 64  # documents between two entries in the record
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_STORED = {"float32": np.float32, "bfloat16": np.int16, "float16": np.float16}  # numpy has no bfloat16


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of some segments, one after the other."""

    hidden: Tensor  # [n, D]
    roots: Tensor  # [n]: the text's token that the row predicts
    picks: Tensor  # [n]: what the base says greedily there: the text's token if it was written so, else the argmax
    remaining: Tensor  # [n]: rows of the segment from this one on, itself included
    original: Tensor | None = None  # [n, D]: states before the base was changed, if it is (``joint``)

    @property
    def judging(self) -> Tensor:
        """States [n, D] from which the distribution follows that heads shall come near to."""
        return self.hidden if self.original is None else self.original

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.roots)

    def pieces(self, num_rows: int, *, whole_segments: bool) -> Iterator[slice]:
        """The rows in pieces of ``num_rows``; of whole segments, of about as many, where those must stay together."""
        ends = ((self.remaining == 1).nonzero()[:, 0] + 1).tolist() if whole_segments else []
        start = 0
        while start < self.num_rows:
            stop = min(start + num_rows, self.num_rows)
            if whole_segments:
                stop = max((end for end in ends if end <= stop), default=start)
                stop = stop if stop > start else next(end for end in ends if end > start)
            yield slice(start, stop)
            start = stop

    def to(self, device: torch.device) -> Batch:
        """The batch where the heads are."""
        original = None if self.original is None else self.original.to(device)
        hidden, roots = self.hidden.to(device), self.roots.to(device)
        return Batch(hidden, roots, self.picks.to(device), self.remaining.to(device), original)


class States(Protocol):
    """Where a batch's hidden states come from."""

    num_rows: int

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of the segments of these documents, by their numbers."""

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""


def spans_of(document: Document) -> list[tuple[int, int]]:
    """Its segments; a text's very first token is predicted by nothing."""
    spans = ((max(start, 1), stop) for start, stop in document.supervised)
    return [(start, stop) for start, stop in spans if start < stop]


def num_rows(document: Document) -> int:
    """Rows of a document's segments."""
    return sum(stop - start for start, stop in spans_of(document))


def estimated_bytes(documents: Sequence[Document], width: int, dtype: str) -> int:
    """Disk that capturing these documents takes."""
    return sum(map(num_rows, documents)) * (width * np.dtype(_STORED[dtype]).itemsize + 8)


def hidden_states(target: Target, documents: Sequence[Document]) -> list[tuple[Tensor, Tensor]]:
    """Per document, rows of its segments [n, D] and the base's argmax after each [n], on the CPU."""
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for group in by_length(documents, _ROWS_AT_ONCE):
        found |= zip(group, _forward(target, [documents[i] for i in group]), strict=True)
    return [found[i] for i in range(len(documents))]


def _forward(target: Target, documents: Sequence[Document]) -> list[tuple[Tensor, Tensor]]:
    """States of documents that go through the model side by side, as prompts, ``_ROWS_AT_ONCE`` positions at a time."""
    wanted = [[position for start, stop in spans_of(read) for position in range(start - 1, stop - 1)] for read in documents]
    slots = [target.open() for _ in documents]
    greedy = Sampler(Sampling(), vocab_size=target.vocab_size)
    states: list[list[Tensor]] = [[] for _ in documents]
    picks: list[list[int]] = [[] for _ in documents]
    try:
        for start in range(0, max(positions[-1] + 1 if positions else 0 for positions in wanted), _ROWS_AT_ONCE):
            feeds, rows, owners = list[Feed](), list[Row](), list[int]()
            for i, positions in enumerate(wanted):
                stop = min(start + _ROWS_AT_ONCE, positions[-1] + 1 if positions else 0)
                if start >= stop:
                    continue
                here = [position - start for position in positions if start <= position < stop]
                rows += [(len(feeds), row) for row in here]
                owners += [i] * len(here)
                chunk = documents[i].tokens[start:stop]
                feeds.append(Feed(slots[i], Tree.chain(chunk), here[0] if here else len(chunk)))
            scored = target.forward(feeds)
            if rows:
                argmaxes = scored.pick(rows, [greedy] * len(rows), [()] * len(rows))
                hidden = torch.from_numpy(target.operations.numpy(scored.hidden(rows)))
                for i, argmax, state in zip(owners, argmaxes, hidden, strict=True):
                    picks[i].append(argmax)
                    states[i].append(state)
            for feed in feeds:
                target.keep(feed.slot, tuple(range(len(feed.tree))))
    finally:
        for slot in slots:
            target.close(slot)
    empty = torch.empty(0, target.hidden_size)
    return [
        (torch.stack(found) if found else empty, torch.tensor(tokens, dtype=torch.long))
        for found, tokens in zip(states, picks, strict=True)
    ]


class Online:
    """Recomputes the states of a batch each time."""

    def __init__(self, target: Target, documents: Sequence[Document]) -> None:
        self._target, self._documents = target, documents
        self._rows = [num_rows(document) for document in documents]
        self.num_rows = sum(self._rows)

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""
        return self._rows[document]

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of the segments of these documents."""
        chosen = [self._documents[i] for i in documents]
        found = hidden_states(self._target, chosen)
        return batch_of(torch.cat([hidden for hidden, _ in found]), torch.cat([greedy for _, greedy in found]), chosen)


class Captured:
    """States in a folder; segments stand in the order of the documents."""

    def __init__(self, folder: Path, documents: Sequence[Document], width: int, dtype: str) -> None:
        """Open what was captured of these documents; see :func:`capture`."""
        rows = np.array([num_rows(document) for document in documents], dtype=np.int64)
        self._documents = documents
        self._starts = np.concatenate([[0], np.cumsum(rows)])
        self.num_rows = int(self._starts[-1])
        shape = (self.num_rows, width)
        self._hidden = np.memmap(folder / "hidden.bin", _STORED[dtype], "r", shape=shape)
        self._greedy = np.memmap(folder / "greedy.bin", np.int64, "r", shape=(self.num_rows,))
        self._dtype = _DTYPES[dtype]

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""
        return int(self._starts[document + 1] - self._starts[document])

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of the segments of these documents, read from disk."""
        ranges = [slice(self._starts[i], self._starts[i + 1]) for i in documents]
        hidden = torch.from_numpy(np.concatenate([self._hidden[rows] for rows in ranges])).view(self._dtype)
        greedy = torch.from_numpy(np.concatenate([self._greedy[rows] for rows in ranges]))
        return batch_of(hidden, greedy, [self._documents[i] for i in documents])


class StateFiles:
    """The files of captured states, as they grow: the rows of some documents, in order."""

    def __init__(self, folder: Path, documents: Sequence[Document], target: Target, dtype: str) -> None:
        """Go on behind what the folder holds of these documents, computed by this target; anything else in it is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.dtype = folder, dtype
        self._layout = {"dtype": dtype, "width": target.hidden_size, "engine": target.engine, "engine_dtype": target.dtype}
        self._row_bytes = {"hidden.bin": target.hidden_size * np.dtype(_STORED[dtype]).itemsize, "greedy.bin": 8}
        self.num_documents, self._covers = self._held(documents)
        self.num_rows = sum(map(num_rows, documents[: self.num_documents]))
        for name, size in self._row_bytes.items():
            with (folder / name).open("ab") as file:
                file.truncate(self.num_rows * size)

    def append(self, documents: Sequence[Document], states: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add documents with the hidden states [n, D] and the argmax [n] of their rows."""
        for document, (hidden, greedy) in zip(documents, states, strict=True):
            if not len(hidden) == len(greedy) == num_rows(document):
                raise ValueError(f"{len(hidden)} states for a document of {num_rows(document)} rows")
        append_whole(self.folder / "hidden.bin", b"".join(_numpy(hidden, self.dtype).tobytes() for hidden, _ in states))
        append_whole(
            self.folder / "greedy.bin", b"".join(greedy.cpu().numpy().astype(np.int64).tobytes() for _, greedy in states)
        )
        self.num_documents += len(documents)
        self.num_rows += sum(map(num_rows, documents))
        self._covers = fingerprint_of(documents, self._covers)
        write_json(self.folder / "states.json", self._layout | {"documents": self.num_documents, "covers": self._covers})

    def _held(self, documents: Sequence[Document]) -> tuple[int, str]:
        try:
            record = json.loads((self.folder / "states.json").read_text(encoding="utf-8"))
            done, covers = int(record["documents"]), record["covers"]
            same = all(record[name] == value for name, value in self._layout.items())
            same = same and done <= len(documents) and covers == fingerprint_of(documents[:done])
            rows = sum(map(num_rows, documents[:done]))
            same = same and all((self.folder / name).stat().st_size >= rows * size for name, size in self._row_bytes.items())
        except (OSError, ValueError, KeyError, TypeError):
            return 0, ""
        return (done, covers) if same else (0, "")


def capture(
    target: Target,
    documents: Sequence[Document],
    folder: Path,
    *,
    dtype: str,
    deadline: float | None,
    report: Callable[[int, int], None],
) -> tuple[Captured, list[Document]]:
    """Capture documents into ``folder``, going on where an earlier run over the same documents stopped.

    Stops at ``deadline`` (``time.monotonic``); returned are the states and the documents that they cover, a prefix.
    ``report`` hears the rows done and the rows in all.
    """
    files = StateFiles(folder, documents, target, dtype)
    total = sum(map(num_rows, documents))
    while files.num_documents < len(documents):
        if deadline is not None and time.monotonic() >= deadline and files.num_rows:
            break
        block = list(documents[files.num_documents : files.num_documents + _BLOCK])
        files.append(block, hidden_states(target, block))
        report(files.num_rows, total)
    covered = list(documents[: files.num_documents])
    return Captured(folder, covered, target.hidden_size, dtype), covered


def by_length(documents: Sequence[Document], rows: int) -> Iterator[list[int]]:
    """Numbers of documents in groups of like length, each at most ``rows`` padded rows (or one document)."""
    group: list[int] = []
    for i in sorted(range(len(documents)), key=lambda i: len(documents[i].tokens)):
        if group and len(documents[i].tokens) * (len(group) + 1) > rows:
            yield group
            group = []
        group.append(i)
    if group:
        yield group


def _numpy(hidden: Tensor, dtype: str) -> np.ndarray[Any, Any]:
    values = hidden.to("cpu", _DTYPES[dtype])
    if not bool(torch.isfinite(values).all()):
        raise TrainingError(f"hidden states of the base are not finite in {dtype}; choose another states_dtype")
    return values.view(torch.int16).numpy() if dtype == "bfloat16" else values.numpy()


def batch_of(hidden: Tensor, greedy: Tensor, documents: Sequence[Document]) -> Batch:
    """Rows of the segments of these documents, with their states [n, D] and the base's argmax [n] behind each."""
    roots: list[int] = []
    remaining: list[int] = []
    written_greedily: list[bool] = []
    for document in documents:
        for start, stop in spans_of(document):
            roots += document.tokens[start:stop]
            remaining += range(stop - start, 0, -1)
            written_greedily += [document.temperature == 0] * (stop - start)
    device = hidden.device
    text = torch.tensor(roots, dtype=torch.long, device=device)
    picks = torch.where(torch.tensor(written_greedily, dtype=torch.bool, device=device), text, greedy)
    return Batch(hidden, text, picks, torch.tensor(remaining, dtype=torch.long, device=device))
