"""What every rule of acceptance works on: a draft under verification, questions to the scored batch, a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from headstart.sampling import Sampler
from headstart.tree import ROOT, Path, Tree

Row = tuple[int, int]
"""Entry of the batch, row of that entry's tree."""

Choice = Literal["likeliest", "coupled", "drawn"]
"""How a draft's children are chosen at temperature > 0 (``proposers/children.py``); each rule has one it works best with."""


class Questions(Protocol):
    """What the rules ask of a scored batch."""

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
