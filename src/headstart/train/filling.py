"""Filling a corpus with what a writer writes, until there is enough of it or the time is up."""

from __future__ import annotations

import time
from collections.abc import Callable

from headstart.train.capture import StateFiles
from headstart.train.corpus import Corpus, Document
from headstart.train.writer import Writer, Written

_FLUSH_SECONDS = 3.0


def fill(
    corpus: Corpus,
    writer: Writer,
    *,
    num_tokens: int,
    deadline: float | None,
    report: Callable[[int, float], None],
    states: StateFiles | None = None,
) -> list[Document]:
    """Write until the corpus has ``num_tokens`` supervised tokens or the clock (``time.monotonic``) reaches ``deadline``.

    ``states`` that cover the corpus so far get what is written now for free, as the writer has just computed it. ``report``
    hears the supervised tokens of the corpus and the tokens written per second. Returns all documents of the corpus, two at
    least, since with fewer nothing can be learned. Documents are appended every few seconds.
    """
    documents = corpus.read()
    have = before = sum(document.num_supervised for document in documents)
    writer.start(documents)
    started = flushed = time.monotonic()
    waiting: list[Written] = []
    steps = writer.steps()
    try:
        while have < num_tokens:
            waiting += next(steps)
            now = time.monotonic()
            late = deadline is not None and now >= deadline and len(documents) + len(waiting) >= 2
            waiting += writer.cut_off() if late else []
            total = have + sum(written.document.num_supervised for written in waiting)
            if not (late or total >= num_tokens or now - flushed >= _FLUSH_SECONDS):
                continue
            new = [written.document for written in waiting]
            corpus.append(new)
            if states is not None and states.num_documents == len(documents):
                states.append(new, [written.states for written in waiting])
            documents += new
            waiting, have, flushed = [], total, now
            report(have, (have - before) / max(now - started, 1e-9))
            if late:
                break
    finally:
        steps.close()
    return documents
