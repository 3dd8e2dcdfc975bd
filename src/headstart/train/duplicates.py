"""Leaving out documents that say what others said before.

Data that was put together from several sources holds many texts twice, whole or with a changed word, and heads then learn them
by heart and are measured on what they learned. A document's supervised tokens are looked at in runs of eight; one of which more
than a given share stood in earlier documents is left out (compare Lee et al. 2022, "Deduplicating training data makes language
models better", which looks for runs of fifty tokens in far larger sets). Answers of fewer tokens than a run are copies if they
are the same to the last.

What the model writes itself goes another way: a question that was asked before is not asked again (``writer.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.train.corpus import Document

_RUN = 8


def without_copies(documents: Sequence[Document], most_copied: float) -> list[Document]:
    """Documents of whose runs at most the share ``most_copied`` stood in earlier ones that were kept."""
    seen: set[int] = set()
    kept = []
    for document in documents:
        runs = _runs(document)
        if runs and sum(run in seen for run in runs) > most_copied * len(runs):
            continue
        seen.update(runs)
        kept.append(document)
    return kept


def _runs(document: Document) -> list[int]:
    """Hashes of the runs of its supervised spans, in the whole text from a span's first token on."""
    found = []
    for start, stop in document.supervised:
        tokens = document.tokens[start:stop]
        found += [hash(tokens[i : i + _RUN]) for i in range(max(len(tokens) - _RUN, 0) + 1)]
    return found
