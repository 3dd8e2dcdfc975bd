"""Which tokens heads may propose.

Reading the whole output matrix would be most of a small head's cost, and a few thousand tokens make up nearly all text (FR-
Spec, Zhao et al. 2025). The choice is made once, from the text that the heads first learn from, and is then part of the heads:
whoever trains them further keeps it, since its order is the order of their output rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from headstart.train.corpus import Document


def choose_draft_vocab(
    documents: Sequence[Document], size: int, vocab_size: int, always: Iterable[int]
) -> tuple[int, ...] | None:
    """The ``size`` most frequent tokens of the supervised text, ``always`` among them, in ascending order; None: all tokens.

    If the text has fewer different tokens, the lowest ids (a tokenizer's most frequent ones, as a rule) fill up.
    """
    if not 0 < size < vocab_size:
        return None
    counts = np.zeros(vocab_size, dtype=np.int64)
    for document in documents:
        for start, stop in document.supervised:
            np.add.at(counts, np.array(document.tokens[start:stop], dtype=np.int64), 1)
    counts[[token for token in always if token < vocab_size]] = np.iinfo(np.int64).max
    chosen = np.argsort(-counts, kind="stable")[:size]
    return tuple(sorted(int(token) for token in chosen))
