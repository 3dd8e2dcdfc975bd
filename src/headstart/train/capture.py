"""Hidden states of the frozen base: what heads learn from, computed once.

A *segment* is one supervised span [start, stop). Its row i is the base's last hidden state (what the output matrix reads) after
token start + i - 1, which predicts token start + i, the row's *root*. A head reads the row and the root; head k predicts token
start + i + k, known while i + k lies within the segment. So a span of m tokens needs m rows, whatever prompt stands before it.

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

from headstart.errors import TrainingError
from headstart.train.base import FrozenModel
from headstart.train.corpus import Document, fingerprint_of, write_json

_ROWS_AT_ONCE = 8192  # padded rows of documents in one forward
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

    @property
    def num_rows(self) -> int:
        """Rows."""
        return len(self.roots)


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


@torch.inference_mode()
def hidden_states(model: FrozenModel, documents: Sequence[Document]) -> list[tuple[Tensor, Tensor]]:
    """Per document, rows of its segments [n, D] and the base's argmax after each [n]; no graph is kept.

    Texts are padded on the right, where a causal model cannot look.
    """
    width = max(len(document.tokens) for document in documents)
    ids = torch.zeros(len(documents), width, dtype=torch.long)
    for row, document in enumerate(documents):
        ids[row, : len(document.tokens)] = torch.tensor(document.tokens)
    states = model.states(input_ids=ids.to(model.device))
    results = []
    for row, document in enumerate(documents):
        chosen = [position for start, stop in spans_of(document) for position in range(start - 1, stop - 1)]
        hidden = states[row, torch.tensor(chosen, dtype=torch.long, device=states.device)]
        results.append((hidden, model.logits(hidden).argmax(-1)))
    return results


class Online:
    """Recomputes the states of a batch each time."""

    def __init__(self, model: FrozenModel, documents: Sequence[Document]) -> None:
        self._model, self._documents = model, documents
        self._rows = [num_rows(document) for document in documents]
        self.num_rows = sum(self._rows)

    def rows_of(self, document: int) -> int:
        """Rows that a document has."""
        return self._rows[document]

    def batch(self, documents: Sequence[int]) -> Batch:
        """Rows of the segments of these documents."""
        chosen = [self._documents[i] for i in documents]
        parts: dict[int, tuple[Tensor, Tensor]] = {}
        for group in by_length(chosen, _ROWS_AT_ONCE):
            for i, result in zip(group, hidden_states(self._model, [chosen[i] for i in group]), strict=True):
                parts[i] = result
        hidden = torch.cat([parts[i][0] for i in range(len(chosen))])
        greedy = torch.cat([parts[i][1] for i in range(len(chosen))])
        return _batch(hidden.clone(), greedy.clone(), chosen)


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
        return _batch(hidden, greedy, [self._documents[i] for i in documents])


class StateFiles:
    """The files of captured states, as they grow: the rows of some documents, in order."""

    def __init__(self, folder: Path, documents: Sequence[Document], width: int, dtype: str) -> None:
        """Go on behind what the folder holds of these very documents; anything else in it is replaced."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.width, self.dtype = folder, width, dtype
        self.num_documents, self._covers = self._held(documents)
        self.num_rows = sum(map(num_rows, documents[: self.num_documents]))
        for name, size in (("hidden.bin", width * np.dtype(_STORED[dtype]).itemsize), ("greedy.bin", 8)):
            with (folder / name).open("ab") as file:
                file.truncate(self.num_rows * size)

    def append(self, documents: Sequence[Document], states: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Add documents with the hidden states [n, D] and the argmax [n] of their rows."""
        for document, (hidden, greedy) in zip(documents, states, strict=True):
            if not len(hidden) == len(greedy) == num_rows(document):
                raise ValueError(f"{len(hidden)} states for a document of {num_rows(document)} rows")
        with (self.folder / "hidden.bin").open("ab") as file:
            file.writelines(_numpy(hidden, self.dtype).tobytes() for hidden, _ in states)
        with (self.folder / "greedy.bin").open("ab") as file:
            file.writelines(greedy.cpu().numpy().astype(np.int64).tobytes() for _, greedy in states)
        self.num_documents += len(documents)
        self.num_rows += sum(map(num_rows, documents))
        self._covers = fingerprint_of(documents, self._covers)
        record = {"dtype": self.dtype, "width": self.width, "documents": self.num_documents, "covers": self._covers}
        write_json(self.folder / "states.json", record)

    def _held(self, documents: Sequence[Document]) -> tuple[int, str]:
        try:
            record = json.loads((self.folder / "states.json").read_text(encoding="utf-8"))
            done, layout = int(record["documents"]), (record["dtype"], record["width"])
            covers = fingerprint_of(documents[:done])
            same = layout == (self.dtype, self.width) and record["covers"] == covers and done <= len(documents)
        except (OSError, ValueError, KeyError, TypeError):
            return 0, ""
        return (done, covers) if same else (0, "")


def capture(
    model: FrozenModel,
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
    files = StateFiles(folder, documents, model.width, dtype)
    total = sum(map(num_rows, documents))
    while files.num_documents < len(documents):
        if deadline is not None and time.monotonic() >= deadline and files.num_rows:
            break
        block = list(documents[files.num_documents : files.num_documents + _BLOCK])
        files.append(block, _in_order(model, block))
        report(files.num_rows, total)
    covered = list(documents[: files.num_documents])
    return Captured(folder, covered, model.width, dtype), covered


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


def _in_order(model: FrozenModel, block: Sequence[Document]) -> list[tuple[Tensor, Tensor]]:
    results: dict[int, tuple[Tensor, Tensor]] = {}
    for group in by_length(block, _ROWS_AT_ONCE):
        for i, result in zip(group, hidden_states(model, [block[i] for i in group]), strict=True):
            results[i] = result
    return [results[i] for i in range(len(block))]


def _numpy(hidden: Tensor, dtype: str) -> np.ndarray[Any, Any]:
    values = hidden.to("cpu", _DTYPES[dtype])
    if not bool(torch.isfinite(values).all()):
        raise TrainingError(f"hidden states of the base are not finite in {dtype}; choose another states_dtype")
    return values.view(torch.int16).numpy() if dtype == "bfloat16" else values.numpy()


def _batch(hidden: Tensor, greedy: Tensor, documents: Sequence[Document]) -> Batch:
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
