"""What a layer with a cache reads: the base's states at every place of a text, also where nothing is supervised.

Heads read the row that they guess behind. A decoder layer also attends to the rows before it, so in training it needs those of
the prompt that it will have in its cache when it drafts, and instead of the hidden state perhaps streams from between the
base's layers. A *text* here is what one cache holds: the rows of a document from some ``context`` tokens before its first
supervised span to its end, or, without context, those of each span alone. Row by row it is a state and the token behind it.

Letters: n rows of a batch, which guess; m rows of its texts; F states of width D in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headstart.train.corpus import Document, Span

DEFAULT_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """What of a base and of its texts is read."""

    layers: tuple[int, ...]  # as ``target.watch`` takes them
    context: int  # most tokens in front of the first supervised one; 0: every span is a text of its own

    def texts(self, document: Document) -> list[Span]:
        """The places [start, stop) of the states of each text of a document."""
        spans = spans_of(document)
        if self.context and spans:
            return [(max(spans[0][0] - 1 - self.context, 0), spans[-1][1] - 1)]
        return [(start - 1, stop - 1) for start, stop in spans]

    def num_rows(self, document: Document) -> int:
        """m, of a document."""
        return sum(stop - start for start, stop in self.texts(document))


@dataclass(frozen=True, slots=True)
class Inputs:
    """Rows of some texts, one text after the other, and which of them guess."""

    states: Tensor  # [m, F * D]
    tokens: Tensor  # [m]: the token behind each state
    places: Tensor  # [n]: where each guessing row stands, ascending
    ends: Tensor  # behind the last row of each text, among the m

    @classmethod
    def of_documents(cls, states: Tensor, documents: Sequence[Document], reading: Reading) -> Inputs:
        """The texts of these documents, of which the states [m, F * D] are given."""
        tokens, places, ends = list[int](), list[int](), list[int]()
        for document in documents:
            spans = spans_of(document)
            for start, stop in reading.texts(document):
                own = [place - 1 for span in spans for place in range(*span) if start <= place - 1 < stop]
                places += [len(tokens) + place - start for place in own]
                tokens += document.tokens[start + 1 : stop + 1]
                ends.append(len(tokens))
        device = states.device
        return cls(states, *(torch.tensor(each, dtype=torch.long, device=device) for each in (tokens, places, ends)))

    @property
    def row_ends(self) -> Tensor:
        """Behind the last row of each text, among the n."""
        return torch.searchsorted(self.places, self.ends)

    @property
    def borders(self) -> list[tuple[slice, slice]]:
        """The rows of each text among the m, and those among the n."""
        ends, row_ends = [0, *self.ends.tolist()], [0, *self.row_ends.tolist()]
        return [(slice(*ends[i : i + 2]), slice(*row_ends[i : i + 2])) for i in range(len(self.ends))]

    def of(self, rows: slice) -> Inputs:
        """The texts of these guessing rows; ValueError unless all rows of each are among them."""
        found = [0, *self.row_ends.tolist()]
        if rows.start not in found or rows.stop not in found:
            raise ValueError("rows must be those of whole segments or texts")
        first, last = found.index(rows.start), found.index(rows.stop)
        ends = [0, *self.ends.tolist()]
        start, stop = ends[first], ends[last]
        return Inputs(
            self.states[start:stop], self.tokens[start:stop], self.places[rows] - start, self.ends[first:last] - start
        )

    def to(self, device: torch.device) -> Inputs:
        """The same where the heads are."""
        return Inputs(*(each.to(device) for each in (self.states, self.tokens, self.places, self.ends)))


def spans_of(document: Document) -> list[Span]:
    """Its segments; a text's very first token is predicted by nothing."""
    spans = ((max(start, 1), stop) for start, stop in document.supervised)
    return [(start, stop) for start, stop in spans if start < stop]
