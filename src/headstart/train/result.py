"""What a training run tells while it goes on, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from headstart.heads.base import Acceptance
from headstart.train.acceptance import KindAcceptance
from headstart.train.checkpoint import Progress
from headstart.train.joint.quality import Quality
from headstart.train.offers import Offer

Stage = Literal["write", "capture", "train", "joint", "pretrain"]


@dataclass(frozen=True, slots=True)
class Event:
    """What a run tells while it goes on. ``total`` is what the stage comes to at most, or 0 for a mere message."""

    stage: Stage
    message: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """The base that learned together with its heads."""

    path: Path
    quality: Quality  # of the saved model, beside its origin
    is_within_bound: bool  # whether it came no farther from its origin than was allowed


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run gave."""

    path: Path
    before: Acceptance
    after: Acceptance  # of the heads that were kept
    by_kind: dict[str, KindAcceptance]  # the same heads, on each kind of held-out text that there is enough of
    num_documents: int
    num_corpus_tokens: int  # supervised
    supervised_share: float
    progress: Progress  # steps, tokens seen, skipped batches, the curve
    seconds: float
    tuned: Tuned | None = None  # of a run that trained the base as well
    kinds: Mapping[str, TrainResult] = field(default_factory=dict)  # of a run over several kinds of heads: each of them,
    offers: tuple[Offer, ...] = ()  # and what they give on this machine, best first; the rest of this is of the best kind


Report = Callable[[Event], None]


def silent(event: Event) -> None:
    """Nobody listens."""
