"""Acceptance: which drafted tokens become text.

``exact`` is the only rule here. It evaluates the plain sampler (``sampling.py``) at the root, and while its pick is a drafted
child it goes there; then the last pick is committed as well, the *bonus token*. Every emitted token is thereby, by
construction, the token of plain decoding: same request, same seed, same text, with any draft. An empty draft makes it plain
decoding itself.

The chance that a drafted child is hit at temperature > 0 is the chance that the target's own sample falls on it. A draft whose
children are the top k of ``log q + g`` with the request's noise g meets it far more often than the likeliest children do
(Daliri et al. 2024, "Coupling without communication and drafter-invariant speculative decoding").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from headstart.sampling import Sampler
from headstart.tree import ROOT, Path, Tree

Row = tuple[int, int]
"""Entry of the batch, row of that entry's tree."""


class Picks(Protocol):
    """The one question that ``exact`` asks of a scored batch."""

    def pick(self, rows: Sequence[Row], samplers: Sequence[Sampler], paths: Sequence[Sequence[int]]) -> list[int]:
        """The plain sampler's token of each row, behind the drafted tokens of each path."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A tree under verification: where its rows stand in the batch, and where its root is (the last row of a prompt)."""

    entry: int
    tree: Tree
    sampler: Sampler
    start: int = ROOT


@dataclass(frozen=True, slots=True)
class Verdict:
    """What verification found: the accepted rows behind the start, and the tokens to commit (bonus included)."""

    path: Path
    tokens: tuple[int, ...]


def exact(scored: Picks, drafts: Sequence[Draft]) -> list[Verdict]:
    """Walk all drafts side by side, one question to the engine a level."""
    rows = [draft.start for draft in drafts]
    paths: list[list[int]] = [[] for _ in drafts]
    tokens: list[list[int]] = [[] for _ in drafts]
    walking = list(range(len(drafts)))
    while walking:
        asked = [(drafts[i].entry, rows[i]) for i in walking]
        picks = scored.pick(asked, [drafts[i].sampler for i in walking], [tokens[i] for i in walking])
        onward = []
        for i, token in zip(walking, picks, strict=True):
            child = drafts[i].tree.child(rows[i], token)
            tokens[i] = [*tokens[i], token]
            if child is not None:
                rows[i] = child
                paths[i].append(child)
                onward.append(i)
        walking = onward
    return [Verdict(tuple(path), tuple(taken)) for path, taken in zip(paths, tokens, strict=True)]
