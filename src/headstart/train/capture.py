"""Hidden states of the frozen base: what heads learn from, computed once.

A *segment* is one supervised span [start, stop). Its row i is the base's last hidden state (what the output matrix reads) after
token start + i - 1, which predicts token start + i, the row's *root*. A head reads the row and the root; head k predicts token
start + i + k, known while i + k lies within the segment. So a span of m tokens needs m rows, whatever prompt stands before it.

They come from the engine that the heads will decode with, since engines round differently: from the writer as it writes, and
from :func:`hidden_states` for text that stood there before.

``Captured`` keeps rows in memory-mapped files, 2 bytes a number: width * 2 bytes a supervised token, announced beforehand.
``Online`` recomputes them for each batch instead and needs no disk. For a layer with a cache both have the states of whole
texts beside them (``inputs.py``): F * width * 2 bytes for each of their tokens.

Letters: n rows of all segments, m rows of whole texts, D the model's width, F states of it in a row of a text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.accept import Row
from headstart.errors import TrainingError
from headstart.folders import append_whole
from headstart.sampling import Sampler, Sampling
from headstart.target.base import Feed, Slot, Target
from headstart.train.corpus import Document, fingerprint_of, write_json
from headstart.train.inputs import Inputs, Reading, spans_of
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
    inputs: Inputs | None = None  # of the whole texts, where they were asked for

    @property
    def texts(self) -> Inputs:
        """What a layer with a cache reads; where nothing else was asked for, each segment is a text."""
        if self.inputs is not None:
            return self.inputs
        ends = (self.remaining == 1).nonzero()[:, 0] + 1
        return Inputs(self.hidden, self.roots, torch.arange(self.num_rows, device=self.roots.device), ends)

    @property
    def judging(self) -> Tensor:
        """States [n, D] from which the distribution follows that heads shall come near to."""
        return self.hidden if self.original is None else self.original

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.roots)

    def pieces(self, num_rows: int, *, whole_texts: bool) -> Iterator[slice]:
        """The rows in pieces of ``num_rows``; of whole texts, of about as many, where those must stay together."""
        ends = self.texts.row_ends.tolist() if whole_texts else []
        start = 0
        while start < self.num_rows:
            stop = min(start + num_rows, self.num_rows)
            if whole_texts:
                stop = max((end for end in ends if end <= stop), default=start)
                stop = stop if stop > start else next(end for end in ends if end > start)
            yield slice(start, stop)
            start = stop

    def to(self, device: torch.device) -> Batch:
        """The batch where the heads are."""
        original = None if self.original is None else self.original.to(device)
        hidden, roots = self.hidden.to(device), self.roots.to(device)
        inputs = None if self.inputs is None else self.inputs.to(device)
        return Batch(hidden, roots, self.picks.to(device), self.remaining.to(device), original, inputs)


class States(Protocol):
    """Where a batch's hidden states come from."""

    num_rows: int

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of the segments of these documents, by their numbers."""

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""


class DocumentStates(NamedTuple):
    """What the base says of a document."""

    hidden: Tensor  # [n, D]: of the rows of its segments
    greedy: Tensor  # [n]: the argmax after each
    inputs: Tensor | None = None  # [m, F * D]: of its texts


def num_rows(document: Document) -> int:
    """Rows of a document's segments."""
    return sum(stop - start for start, stop in spans_of(document))


def estimated_bytes(documents: Sequence[Document], width: int, dtype: str, reading: Reading | None = None) -> int:
    """Disk that capturing these documents takes."""
    size = np.dtype(_STORED[dtype]).itemsize
    texts = 0 if reading is None else sum(map(reading.num_rows, documents)) * len(reading.layers)
    return sum(map(num_rows, documents)) * (width * size + 8) + texts * width * size


def hidden_states(target: Target, documents: Sequence[Document], reading: Reading | None = None) -> list[DocumentStates]:
    """States of each document, on the CPU."""
    if reading is not None:
        target.watch(reading.layers)
    found: dict[int, DocumentStates] = {}
    for group in by_length(documents, _ROWS_AT_ONCE):
        found |= zip(group, _Forward(target, [documents[i] for i in group], reading).states(), strict=True)
    return [found[i] for i in range(len(documents))]


class _Forward:
    """Documents that go through the model side by side, as prompts, ``_ROWS_AT_ONCE`` positions at a time."""

    def __init__(self, target: Target, documents: Sequence[Document], reading: Reading | None) -> None:
        self._target, self._documents = target, documents
        self._wanted = [[place for span in spans_of(read) for place in range(span[0] - 1, span[1] - 1)] for read in documents]
        self._texts = [
            [place for text in reading.texts(read) for place in range(*text)] if reading else [] for read in documents
        ]
        self._layers = reading.layers if reading else ()
        self._width = target.hidden_size * len(self._layers)
        self._hidden: list[list[Tensor]] = [[] for _ in documents]
        self._greedy: list[list[int]] = [[] for _ in documents]
        self._inputs: list[list[Tensor]] = [[] for _ in documents]

    def states(self) -> list[DocumentStates]:
        """Compute them."""
        slots = [self._target.open() for _ in self._documents]
        try:
            for start in range(0, max(places[-1] + 1 if places else 0 for places in self._wanted), _ROWS_AT_ONCE):
                self._chunk(slots, start)
        finally:
            for slot in slots:
                self._target.close(slot)
        empty = torch.empty(0, self._target.hidden_size)
        found = []
        for hidden, greedy, inputs in zip(self._hidden, self._greedy, self._inputs, strict=True):
            read = torch.stack(inputs) if inputs else torch.empty(0, self._width)
            states = torch.stack(hidden) if hidden else empty
            found.append(DocumentStates(states, torch.tensor(greedy, dtype=torch.long), read if self._width else None))
        return found

    def _chunk(self, slots: Sequence[Slot], start: int) -> None:
        """The positions of all documents from ``start`` on."""
        target, feeds = self._target, list[Feed]()
        rows, owners, read, readers = list[Row](), list[int](), list[Row](), list[int]()
        for i, places in enumerate(self._wanted):
            stop = min(start + _ROWS_AT_ONCE, places[-1] + 1 if places else 0)
            if start >= stop:
                continue
            here = [place - start for place in places if start <= place < stop]
            seen = [place - start for place in self._texts[i] if start <= place < stop]
            rows += [(len(feeds), row) for row in here]
            read += [(len(feeds), row) for row in seen]
            owners += [i] * len(here)
            readers += [i] * len(seen)
            chunk = self._documents[i].tokens[start:stop]
            feeds.append(Feed(slots[i], Tree.chain(chunk), here[0] if here else len(chunk)))
        scored = target.forward(feeds)
        if rows:
            greedy = Sampler(Sampling(), vocab_size=target.vocab_size)
            argmaxes = scored.pick(rows, [greedy] * len(rows), [()] * len(rows))
            hidden = torch.from_numpy(target.operations.numpy(scored.hidden(rows)))
            for i, argmax, state in zip(owners, argmaxes, hidden, strict=True):
                self._greedy[i].append(argmax)
                self._hidden[i].append(state)
        if read:
            inputs = target.operations.numpy(scored.states(read, self._layers))
            for i, state in zip(readers, torch.from_numpy(inputs), strict=True):
                self._inputs[i].append(state)
        for feed in feeds:
            target.keep(feed.slot, tuple(range(len(feed.tree))))


class Online:
    """Recomputes the states of a batch each time."""

    def __init__(self, target: Target, documents: Sequence[Document], reading: Reading | None = None) -> None:
        self._target, self._documents, self._reading = target, documents, reading
        self._rows = [num_rows(document) for document in documents]
        self.num_rows = sum(self._rows)

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""
        return self._rows[document]

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of the segments of these documents."""
        chosen = [self._documents[i] for i in documents]
        found = hidden_states(self._target, chosen, self._reading)
        batch = batch_of(torch.cat([each.hidden for each in found]), torch.cat([each.greedy for each in found]), chosen)
        if self._reading is None:
            return batch
        inputs = torch.cat([each.inputs for each in found if each.inputs is not None])
        return replace(batch, inputs=Inputs.of_documents(inputs, chosen, self._reading))


class Captured:
    """States in a folder; segments stand in the order of the documents."""

    def __init__(
        self, folder: Path, documents: Sequence[Document], width: int, dtype: str, reading: Reading | None = None
    ) -> None:
        """Open what was captured of these documents; see :func:`capture`."""
        self._documents, self._reading = documents, reading
        self._starts = _starts([num_rows(document) for document in documents])
        self.num_rows = int(self._starts[-1])
        shape = (self.num_rows, width)
        self._hidden = np.memmap(folder / "hidden.bin", _STORED[dtype], "r", shape=shape)
        self._greedy = np.memmap(folder / "greedy.bin", np.int64, "r", shape=(self.num_rows,))
        self._dtype = _DTYPES[dtype]
        if reading is not None:
            self._text_starts = _starts([reading.num_rows(document) for document in documents])
            shape = (int(self._text_starts[-1]), len(reading.layers) * width)
            self._inputs = np.memmap(folder / "inputs.bin", _STORED[dtype], "r", shape=shape)

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""
        return int(self._starts[document + 1] - self._starts[document])

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of the segments of these documents, read from disk."""
        chosen = [self._documents[i] for i in documents]
        hidden = _rows(self._hidden, self._starts, documents).view(self._dtype)
        batch = batch_of(hidden, _rows(self._greedy, self._starts, documents), chosen)
        if self._reading is None:
            return batch
        inputs = _rows(self._inputs, self._text_starts, documents).view(self._dtype)
        return replace(batch, inputs=Inputs.of_documents(inputs, chosen, self._reading))


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64))])


def _rows(values: NDArray[Any], starts: NDArray[np.int64], documents: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.concatenate([values[starts[i] : starts[i + 1]] for i in documents]))


class StateFiles:
    """The files of captured states, as they grow: the rows of some documents, in order."""

    def __init__(
        self, folder: Path, documents: Sequence[Document], target: Target, dtype: str, reading: Reading | None = None
    ) -> None:
        """Go on behind what the folder holds of these documents, computed by this target; anything else in it is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.dtype, self.reading, self._width = folder, dtype, reading, target.hidden_size
        self._layout = {"dtype": dtype, "width": target.hidden_size, "engine": target.engine, "engine_dtype": target.dtype}
        if reading is not None:
            self._layout |= {"layers": list(reading.layers), "context": reading.context}
        self.num_documents, self._covers = self._held(documents)
        self.num_rows = sum(map(num_rows, documents[: self.num_documents]))
        for name, size in self._sizes(documents[: self.num_documents]).items():
            with (folder / name).open("ab") as file:
                file.truncate(size)

    def append(self, documents: Sequence[Document], states: Sequence[DocumentStates]) -> None:
        """Add documents with their states."""
        for document, found in zip(documents, states, strict=True):
            wanted = self.reading and self.reading.num_rows(document)
            have = None if found.inputs is None else len(found.inputs)
            if not len(found.hidden) == len(found.greedy) == num_rows(document) or wanted not in (None, have):
                raise ValueError(f"{len(found.hidden)} states for a document of {num_rows(document)} rows")
        append_whole(self.folder / "hidden.bin", b"".join(_numpy(found.hidden, self.dtype).tobytes() for found in states))
        append_whole(
            self.folder / "greedy.bin", b"".join(found.greedy.cpu().numpy().astype(np.int64).tobytes() for found in states)
        )
        if self.reading is not None:
            inputs = [found.inputs for found in states if found.inputs is not None]
            append_whole(self.folder / "inputs.bin", b"".join(_numpy(each, self.dtype).tobytes() for each in inputs))
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
            sizes = self._sizes(documents[:done])
            same = same and all((self.folder / name).stat().st_size >= size for name, size in sizes.items())
        except (OSError, ValueError, KeyError, TypeError):
            return 0, ""
        return (done, covers) if same else (0, "")

    def _sizes(self, documents: Sequence[Document]) -> dict[str, int]:
        """Bytes of each file that holds these documents."""
        rows, number = sum(map(num_rows, documents)), np.dtype(_STORED[self.dtype]).itemsize * self._width
        sizes = {"hidden.bin": rows * number, "greedy.bin": rows * 8}
        if self.reading is not None:
            sizes["inputs.bin"] = sum(map(self.reading.num_rows, documents)) * len(self.reading.layers) * number
        return sizes


def capture(
    target: Target,
    documents: Sequence[Document],
    folder: Path,
    *,
    dtype: str,
    deadline: float | None,
    report: Callable[[int, int], None],
    reading: Reading | None = None,
) -> tuple[Captured, list[Document]]:
    """Capture documents into ``folder``, going on where an earlier run over the same documents stopped.

    Stops at ``deadline`` (``time.monotonic``); returned are the states and the documents that they cover, a prefix.
    ``report`` hears the rows done and the rows in all.
    """
    files = StateFiles(folder, documents, target, dtype, reading)
    total = sum(map(num_rows, documents))
    while files.num_documents < len(documents):
        if deadline is not None and time.monotonic() >= deadline and files.num_rows:
            break
        block = list(documents[files.num_documents : files.num_documents + _BLOCK])
        files.append(block, hidden_states(target, block, reading))
        report(files.num_rows, total)
    covered = list(documents[: files.num_documents])
    return Captured(folder, covered, target.hidden_size, dtype, reading), covered


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
