"""Heads of several kinds on the same text and the same captured states, and which of them are best on this machine.

    heads/medusa/, heads/hydra/, ...    the heads of each kind; HEADSTART_HEADS may name heads/ itself
    heads/offers.json                   tokens per second of each, predicted from what was measured here (``offers.py``)
    heads.work/                         corpus and states, once; a checkpoint a kind

Writing and capturing are paid once. What is left of the minutes is shared out evenly: a kind that needs less leaves the rest to
those behind it. A run that was stopped goes on with the kind that it was at.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from headstart.errors import RequestError
from headstart.heads.base import Heads, load_heads
from headstart.plan.profile_cache import profile_of
from headstart.train.base import Base
from headstart.train.checkpoint import read_about
from headstart.train.corpus import fingerprint_of, held_apart, write_json
from headstart.train.decoded import HeldOutPrompts
from headstart.train.frozen import FrozenRun, Prepared, prompts_of, require_same
from headstart.train.offers import Offer, offers_of
from headstart.train.result import Event, Report, TrainResult
from headstart.train.settings import TrainSettings

OFFERS = "offers.json"


class SeveralRun:
    """One run, from the documents to the best kind."""

    def __init__(self, kinds: Sequence[str], settings: TrainSettings, out: Path, report: Report, started: float) -> None:
        self.settings, self.out, self.report, self.started = settings, out, report, started
        self.work = out.with_name(out.name + ".work")
        self._runs = {
            kind: FrozenRun(kind, settings, out / kind, report, started, work=self.work, checkpoint=kind) for kind in kinds
        }

    def go(
        self, base: Base, data: str | Path | None, corpus: str | Path | None, init: str | Path | None, resume: bool
    ) -> TrainResult:
        """Train, or go on; the result of the best kind, with all offers."""
        if init is not None:
            raise RequestError("init names heads of one kind, so it has no effect with several; train that kind alone")
        runs = list(self._runs.values())
        for run in runs:
            run.check(base)
        runs[0].reading = next((run.reading for run in runs if run.reading), None)  # it prepares for all
        if resume and (self.out / OFFERS).exists():
            raise RequestError(
                f"{self.out} holds the heads of a finished run; give another folder, or replace them with resume=False "
                "(--no-resume)"
            )
        begun = self._begun() if resume else None
        require_same(self._prepared_file, begun, self._asked())
        prepared = runs[0].prepare(base, data, corpus, begun)
        about = {"settings": self._asked(), "documents": len(prepared.documents), "covers": fingerprint_of(prepared.documents)}
        write_json(self._prepared_file, about)
        end = self.started + 60 * self.settings.minutes if self.settings.minutes else None
        results = {}
        for place, (kind, run) in enumerate(self._runs.items()):
            now = time.monotonic()
            deadline = None if end is None else now + max(end - now, 0.0) / (len(runs) - place)
            results[kind] = self._learned(run, base, prepared, deadline, data, resume)
        return self._compared(base, prepared, results)

    def _learned(
        self,
        run: FrozenRun,
        base: Base,
        prepared: Prepared,
        deadline: float | None,
        data: str | Path | None,
        resume: bool,
    ) -> TrainResult:
        """One kind; nothing is left to do if it was finished before."""
        if resume and run.is_finished():
            return run.finished(prepared)
        self.report(Event("train", f"heads of kind {run.kind}"))
        about = read_about(run.checkpoint) if resume else None
        require_same(run.checkpoint, about, run.asked(None))
        return run.learn(base, prepared, about, deadline, data=data)

    def _compared(self, base: Base, prepared: Prepared, results: Mapping[str, TrainResult]) -> TrainResult:
        """Ask what each kind gives on this machine, and put the best one first."""
        self.report(Event("train", "which heads are best here"))
        heads: dict[str, Heads] = {kind: load_heads(run.out, base.identity) for kind, run in self._runs.items()}
        held_out, _ = held_apart(prepared.documents, self.settings.held_out)
        texts = [prepared.documents[i] for i in held_out]
        settings = self.settings if self.settings.decoded_prompts else TrainSettings()  # here they are needed
        target = base.as_loaded()
        prompts: HeldOutPrompts = prompts_of(target, texts, settings)
        offers = offers_of(heads, prompts, profile_of(target))
        write_json(self.out / OFFERS, [asdict(offer) for offer in offers])
        return _best(results, offers, time.monotonic() - self.started)

    @property
    def _prepared_file(self) -> Path:
        return self.work / "prepared.json"

    def _begun(self) -> dict[str, Any] | None:
        """What a run that was stopped has prepared."""
        try:
            return dict(json.loads(self._prepared_file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def _asked(self) -> dict[str, Any]:
        return next(iter(self._runs.values())).asked(None) | {"heads": list(self._runs)}


def _best(results: Mapping[str, TrainResult], offers: list[Offer], seconds: float) -> TrainResult:
    return replace(results[offers[0].heads], offers=tuple(offers), kinds=dict(results), seconds=seconds)
