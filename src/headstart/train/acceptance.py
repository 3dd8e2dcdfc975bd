"""How well heads guess, on text that they did not learn from.

For each held-out place and depth the *rank* of the right token among the guesses is noted: right is what the base says greedily
there, and the guesses are those behind the right tokens so far. So a draft that was right up to a depth goes on with exactly
these guesses, also for sequential heads: nothing is estimated from guesses behind other tokens. A token outside the draft
vocabulary is a miss.

``accuracies[k][r]`` is the share of places where exactly the r-th guess of depth k was right (Cai et al. 2024, section 2.3.3):
the number by which static trees are built. The acceptance length L of a step over n rows (n - 1 nodes and the root) is then
counted on the ranks: how far each place gets in that tree, so that depths that are right together count together. Trees that
are grown by each step's own confidence do a little better.

Text that the base wrote greedily shows what it says at every depth. Elsewhere its argmax stands in, taken behind the text's own
tokens, which flatters or wrongs the deeper heads a little; so greedily written documents are preferred where there are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import DataError
from headstart.heads.base import Acceptance
from headstart.heads.reliability import EDGES, Reliability
from headstart.train.capture import States
from headstart.train.corpus import SECOND, Document
from headstart.train.forms import Form
from headstart.train.losses import FrozenBase
from headstart.tree import Path, optimal_paths

PREDICTED_ROWS = (8, 16)
_ENOUGH = 2000  # rows of greedily written text that make the rest unnecessary
_CHUNK = 1024
_ROWS_A_KIND, _LEAST_ROWS_A_KIND = 1500, 100
_BATCH_DOCUMENTS = 32

Ranks = NDArray[np.int64]
"""[n, K]: rank of the right token among the guesses of a depth; R: none of the R guesses; -1: the text had ended."""


def measuring_documents(documents: Sequence[Document], held_out: Sequence[int], states: States, num_rows: int) -> list[int]:
    """Held-out documents to measure on, about ``num_rows`` rows; the same ones whenever the held-out text is the same."""
    greedy = [i for i in held_out if documents[i].temperature == 0]
    enough = sum(map(states.rows_of, greedy)) >= min(_ENOUGH, num_rows)
    chosen: list[int] = []
    rows = 0
    for i in sorted(greedy if enough else held_out, key=lambda i: documents[i].digest):
        if rows >= num_rows:
            break
        chosen.append(i)
        rows += states.rows_of(i)
    return chosen


@dataclass(frozen=True, slots=True)
class KindAcceptance:
    """How well heads guess on one kind of held-out text."""

    num_rows: int
    by_position: tuple[float, ...]
    predicted_length: dict[int, float]  # rows of a step -> L, with the static trees of all kinds together

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> KindAcceptance:
        """What ``asdict`` and JSON made of it."""
        lengths = {int(rows): float(length) for rows, length in record["predicted_length"].items()}
        return cls(int(record["num_rows"]), tuple(map(float, record["by_position"])), lengths)


def acceptance_by_kind(
    measure: Callable[[Sequence[int]], Ranks],
    whole: Acceptance,
    documents: Sequence[Document],
    held_out: Sequence[int],
    states: States,
) -> dict[str, KindAcceptance]:
    """``measure`` some held-out documents of each kind that has enough of them; ``whole`` is the acceptance over all kinds."""
    kinds: dict[str, list[int]] = {}
    for i in held_out:
        kinds.setdefault(documents[i].kind.removesuffix(SECOND), []).append(i)
    found = {}
    for kind, numbers in sorted(kinds.items()):
        chosen = measuring_documents(documents, numbers, states, _ROWS_A_KIND)
        rows = sum(map(states.rows_of, chosen))
        if rows < _LEAST_ROWS_A_KIND:
            continue
        try:
            ranks = measure(chosen)
        except DataError:
            continue  # texts that end before the last head has anything to guess
        lengths = {size: counted_length(whole.paths(size - 1), ranks) for size in whole.predicted_length}
        found[kind] = KindAcceptance(rows, tuple(float(share) for share in accuracies(ranks, 1)[:, 0]), lengths)
    return found


def measure_ranks(
    form: Form,
    tensors: Mapping[str, Tensor],
    base: FrozenBase,
    states: States,
    documents: Sequence[int],
    num_ranks: int,
    counter: ReliabilityCounter | None = None,
) -> Ranks:
    """Ranks at every place of these documents; DataError if none of their texts is long enough for the last head.

    ``counter`` hears of every guess behind right ones.
    """
    num_ranks = min(num_ranks, form.config.num_outputs)
    outputs = form.outputs(tensors, base.output)
    found = [np.full((0, form.config.num_heads), -1, dtype=np.int64)]
    with torch.no_grad():
        for first in range(0, len(documents), _BATCH_DOCUMENTS):
            batch = states.batch(documents[first : first + _BATCH_DOCUMENTS]).to(base.embedding.device)
            for rows in batch.pieces(_CHUNK, whole_texts=form.reads_texts):
                ranks = torch.full((rows.stop - rows.start, form.config.num_heads), -1)
                for depth, scores in enumerate(form.guessed(tensors, batch, rows, outputs), start=1):
                    known = (batch.remaining[rows] > depth).nonzero()[:, 0]
                    wanted = base.places[batch.picks[known + rows.start + depth]]
                    values, guesses = scores[known].float().topk(num_ranks, dim=-1)
                    right = guesses == wanted[:, None]
                    ranks[known, depth - 1] = torch.where(right.any(-1), right.int().argmax(-1), num_ranks).cpu()
                    if counter is not None:
                        chances = (values - scores[known].float().logsumexp(-1, keepdim=True)).exp()
                        behind = (ranks[known.cpu(), : depth - 1] < num_ranks).all(-1)
                        counter.add(depth, chances.cpu()[behind].numpy(), right.cpu()[behind].numpy())
                found.append(ranks.numpy())
    ranks_of_all = np.concatenate(found)
    if not (ranks_of_all[:, -1] >= 0).any():
        raise DataError("no held-out text is long enough to measure the heads on; give more data")
    return ranks_of_all


def accuracies(ranks: Ranks, num_ranks: int) -> NDArray[np.float64]:
    """[K, R]: how often exactly the guess of each rank was right, where the text had not ended."""
    counts = (ranks[:, :, None] == np.arange(num_ranks)).sum(axis=0)
    shares: NDArray[np.float64] = counts / (ranks >= 0).sum(axis=0)[:, None]
    return shares


def counted_length(paths: Sequence[Path], ranks: Ranks) -> float:
    """L of the static tree of these paths, the bonus token included, over the places where the text goes on for all depths."""
    whole = ranks[(ranks >= 0).all(axis=1)]
    tree = set(paths)
    kinds, counts = np.unique(whole, axis=0, return_counts=True)
    depths = [sum(tuple(row[: depth + 1]) in tree for depth in range(len(row))) for row in kinds.tolist()]
    return 1.0 + float(np.dot(depths, counts)) / len(whole)


class ReliabilityCounter:
    """Counts guesses by depth and by the size of their estimates."""

    def __init__(self, num_heads: int) -> None:
        self._counts = np.zeros((3, num_heads, len(EDGES) + 1))

    def add(self, depth: int, estimates: NDArray[np.float32], right: NDArray[np.bool_]) -> None:
        """Guesses of one depth, any shape, and which of them were right."""
        places = np.digitize(estimates.ravel(), EDGES)
        for counts, weights in zip(self._counts[:, depth - 1], (None, right.ravel(), estimates.ravel()), strict=True):
            counts += np.bincount(places, weights=weights, minlength=len(counts))

    def reliability(self) -> Reliability:
        """What was counted."""
        guesses, right, expected = (tuple(tuple(row) for row in table) for table in self._counts.tolist())
        return Reliability(guesses, right, expected)


def acceptance(ranks: Ranks, num_ranks: int, reliability: Reliability | None = None) -> Acceptance:
    """The record of measured ranks."""
    table = accuracies(ranks, num_ranks)
    predicted = {rows: counted_length(optimal_paths(table, rows - 1), ranks) for rows in PREDICTED_ROWS}
    shares = tuple(tuple(float(a) for a in row) for row in table)
    return Acceptance(shares, tuple(float(a) for a in table[:, 0]), predicted, reliability)
