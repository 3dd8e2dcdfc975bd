"""How well heads guess, on text that they did not learn from.

``accuracies[k][r]`` is the share of held-out places where exactly the r-th guess of head k was the token that the base says
greedily (Cai et al. 2024, section 2.3.3): the number by which static trees are built, and from which the acceptance length L of
a step over n rows (n - 1 nodes and the root) is predicted. A token outside the draft vocabulary is a miss.

Text that the base wrote greedily shows what it says at every depth. Elsewhere its argmax stands in, taken behind the text's own
tokens, which flatters or wrongs the deeper heads a little; so greedily written documents are preferred where there are enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headstart.errors import DataError
from headstart.heads.base import Acceptance
from headstart.heads.medusa import MedusaConfig
from headstart.train.capture import States
from headstart.train.corpus import SECOND, Document
from headstart.train.losses import FrozenBase, guessed
from headstart.tree import expected_length, optimal_paths

PREDICTED_ROWS = (8, 16)
_ENOUGH = 2000  # rows of greedily written text that make the rest unnecessary
_CHUNK = 1024
_ROWS_A_KIND, _LEAST_ROWS_A_KIND = 1500, 100
_BATCH_DOCUMENTS = 32


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


def acceptance_by_kind(
    measure: Callable[[Sequence[int]], Acceptance],
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
            table = measure(chosen)
        except DataError:
            continue  # texts that end before the last head has anything to guess
        lengths = {size: expected_length(whole.paths(size - 1), table.array()) for size in whole.predicted_length}
        found[kind] = KindAcceptance(rows, table.by_position, lengths)
    return found


def measure_acceptance(
    config: MedusaConfig,
    tensors: Mapping[str, Tensor],
    base: FrozenBase,
    states: States,
    documents: Sequence[int],
    num_ranks: int,
) -> Acceptance:
    """Accuracies by depth and rank over these documents, and L predicted for 8 and 16 rows."""
    num_ranks = min(num_ranks, config.num_outputs)
    hits = np.zeros((config.num_heads, num_ranks))
    tries = np.zeros(config.num_heads)
    names = config.output_names()
    outputs = [tensors[name] for name in names] if names else [base.output]
    with torch.no_grad():
        for first in range(0, len(documents), _BATCH_DOCUMENTS):
            batch = states.batch(documents[first : first + _BATCH_DOCUMENTS]).to(base.embedding.device)
            for start in range(0, batch.num_rows, _CHUNK):
                rows = slice(start, min(start + _CHUNK, batch.num_rows))
                logits = guessed(config, base.embedding, tensors, batch, rows, outputs)
                for depth, scores in enumerate(logits, start=1):
                    known = (batch.remaining[rows] > depth).nonzero()[:, 0]
                    wanted = base.places[batch.picks[known + start + depth]]
                    found = scores[known].topk(num_ranks, dim=-1).indices == wanted[:, None]
                    hits[depth - 1] += found.sum(0).cpu().numpy()
                    tries[depth - 1] += len(known)
    if not tries.all():
        raise DataError("no held-out text is long enough to measure the heads on; give more data")
    return acceptance(hits / tries[:, None])


def acceptance(accuracies: NDArray[np.float64]) -> Acceptance:
    """The record of measured accuracies [K, R]."""
    predicted = {rows: expected_length(optimal_paths(accuracies, rows - 1), accuracies) for rows in PREDICTED_ROWS}
    table = tuple(tuple(float(a) for a in ranks) for ranks in accuracies)
    return Acceptance(table, tuple(float(a) for a in accuracies[:, 0]), predicted)
