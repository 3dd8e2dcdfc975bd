"""Medusa-2 from one command: heads first, then the base and its heads together, then an ordinary model folder.

    heads.work/first/     stage 1: heads for the frozen base, by the ordinary run (or those that ``init`` names)
    heads.work/           joint.safetensors, the checkpoint of stage 2, and best.safetensors, its best tensors so far
    model/                the base with its adapters merged in
    heads/                the heads, for that model: its fingerprint is not the original's

Heads that know nothing would pull the base about, so they learn first (Cai et al. 2024, section 2.2.2). In the joint stage the
heads' learning rate is four times the base's. Before tensors are measured or saved, the base is made as sure as it was
(``calibration.py``). Of the measured tensors those are kept whose predicted L is best among those that leave the base within
its bounds: held-out perplexity risen by ``max_harm`` at most, and ``max_divergence`` from what it was (text of other people may
become likelier while the model forgets what it said itself). If there are none but the untouched ones, the last are saved, and
both the result and the folder say that they are out of bounds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from headstart.errors import RequestError
from headstart.folders import recover
from headstart.heads.base import CONFIG_FILE, Acceptance, Heads, HeadsCard, load_heads, save_heads
from headstart.train.base import Base
from headstart.train.checkpoint import Progress, load_checkpoint, read_about, save_checkpoint
from headstart.train.corpus import Document, fingerprint_of, held_apart, statistics, write_json
from headstart.train.data import require_supervised, supervised_share
from headstart.train.forms import FORMS, form_of
from headstart.train.frozen import FrozenRun, on_device, require_same, same_documents
from headstart.train.joint.adapters import PREFIX, Adapters, split
from headstart.train.joint.calibration import Calibration
from headstart.train.joint.held_out import HeldOut, Judged
from headstart.train.joint.objective import JointObjective, TextBatch, Texts
from headstart.train.losses import Objective
from headstart.train.model_folder import check_model_place, save_model
from headstart.train.record import provenance
from headstart.train.result import Event, Report, TrainResult, Tuned
from headstart.train.settings import TrainSettings
from headstart.train.trainer import Measured, Trainer


@dataclass(frozen=True, slots=True)
class _Judge:
    """How tensors are measured."""

    held_out: HeldOut
    objective: JointObjective
    calibration: Calibration | None

    def measured(self, tensors: Mapping[str, Tensor]) -> Measured:
        """Heads and base as they would be saved now."""
        calibrated, factor = self.calibrated(tensors)
        found = self.held_out.measured(self.objective, calibrated)
        return replace(found, notes={**found.notes, "logit_factor": factor})

    def calibrated(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], float]:
        """Tensors as they are saved, and the factor on the base's logits."""
        if self.calibration is None:
            return dict(tensors), 1.0
        of_heads, of_base = split(tensors)
        of_base, factor = self.calibration.applied(of_base)
        return of_heads | of_base, factor


class JointRun:
    """One run, from the documents to the saved model and heads."""

    def __init__(self, kind: str, settings: TrainSettings, out: Path, model_out: Path, report: Report, started: float) -> None:
        self.kind, self.settings, self.out, self.model_out = kind, settings, out, model_out
        self.report, self.started = report, started
        self.work = out.with_name(out.name + ".work")
        self.checkpoint, self.best = self.work / "joint.safetensors", self.work / "best.safetensors"
        minutes = settings.minutes * (1 - settings.joint_share)
        first = settings.changed(minutes=minutes)
        if "context_tokens" in FORMS[kind].READS:
            first = first.changed(context_tokens=0)
        self.first = FrozenRun(kind, first, self.work / "first", report, started)

    def go(
        self, base: Base, data: str | Path | None, corpus: str | Path | None, init: str | Path | None, resume: bool
    ) -> TrainResult:
        """Train, or go on; see ``train``."""
        recover(self.out)
        recover(self.model_out)
        check_model_place(self.model_out)
        about = read_about(self.checkpoint) if resume else None
        if resume and about is None and (self.out / CONFIG_FILE).exists():
            raise RequestError(
                f"{self.out} holds the heads of a finished run; give another folder, or replace them with resume=False "
                "(--no-resume)"
            )
        asked = self.first.asked(init)
        require_same(self.checkpoint, about, asked)
        documents = self._first_stage(base, data, corpus, init, resume and about is None, about)
        heads: Heads = load_heads(init or self.first.out, base.identity)
        if form_of(heads.config, base.model).reading(self.settings) is not None:
            raise RequestError(
                f"the heads in {init} read prompts or features, which a model that changes cannot give; train others"
            )
        trainer, judge = self._trainer(base, heads, documents, asked)
        deadline = self.started + 60 * self.settings.minutes if self.settings.minutes else None
        if about is not None:
            trainer.resume(self.checkpoint)
        else:
            trainer.plan(None if deadline is None else deadline - time.monotonic())
        trainer.run(deadline)
        return self._finish(base, trainer, judge, documents, data)

    def _first_stage(
        self,
        base: Base,
        data: str | Path | None,
        corpus: str | Path | None,
        init: str | Path | None,
        resume: bool,
        about: Mapping[str, Any] | None,
    ) -> list[Document]:
        """The documents, after heads were trained on them if none are given."""
        first = self.first
        if init is not None:
            documents = first.documents(base, data, corpus, may_write=about is None)
            require_supervised(documents, base.codec)
        else:
            if about is None and not (resume and first.is_finished()):
                first.go(base, data, corpus, None, resume)
            documents = first.written(base, data, corpus)
        return documents if about is None else same_documents(self.checkpoint, about, documents)

    def _trainer(
        self, base: Base, heads: Heads, documents: list[Document], asked: Mapping[str, Any]
    ) -> tuple[Trainer[TextBatch], _Judge]:
        settings = self.settings
        form = form_of(heads.config, base.model)
        adapters = Adapters(base.model.module, settings.lora_rank, settings.lora_alpha)
        objective = JointObjective(Objective.of(base, form, settings, settings.heads_weight), base.model, adapters)
        held_out_numbers, learned = held_apart(documents, settings.held_out)
        held_out = HeldOut(base, [documents[i] for i in held_out_numbers], settings)
        calibration = None
        if settings.calibrate:
            read = [documents[i] for i in learned]
            calibration = Calibration(base.model, adapters, read, settings.evaluation_rows, settings.chunk_rows)
        judge = _Judge(held_out, objective, calibration)
        trainer = Trainer(
            objective,
            on_device(form.trained(heads), base) | adapters.fresh(settings.seed),
            Texts(documents),
            learned,
            settings.changed(epochs=settings.joint_epochs, batch_rows=settings.joint_rows, learning_rate=settings.joint_rate),
            evaluate=judge.measured,
            rate_of=lambda name: settings.base_rate if name.startswith(PREFIX) else 1.0,
            keep=lambda tensors, found, progress: save_checkpoint(self.best, tensors, progress, {"acceptance": asdict(found)}),
            checkpoint=self.checkpoint,
            about={"settings": asked, "documents": len(documents), "covers": fingerprint_of(documents)},
            report=self._told,
        )
        return trainer, judge

    def _finish(
        self,
        base: Base,
        trainer: Trainer[TextBatch],
        judge: _Judge,
        documents: list[Document],
        data: str | Path | None,
    ) -> TrainResult:
        """Save the model with what was learned merged in, and its heads; both say what it cost the base."""
        held_out, objective, progress = judge.held_out, judge.objective, trainer.progress
        calibrated, factor = judge.calibrated(self._chosen(trainer, base))
        of_heads, of_base = split(calibrated)
        origin: dict[str, Any] = provenance(base, documents, progress, data, self.settings.seed, self.started)
        origin["logit_factor"] = factor
        origin["origin"] = {"fingerprint": base.identity.fingerprint, "name": base.identity.name}
        with objective.adapters.on(of_base):
            trained = held_out.states(base.model)
        judged: list[Judged] = []

        def describe(folder: Path) -> dict[str, Any]:
            judged.append(held_out.judged(folder, objective, of_heads, trained, bool(progress.best_step)))
            return origin | judged[0].marks()

        with objective.adapters.merged(of_base):
            save_model(self.model_out, base.model.module, base.codec.tokenizer, base.end_tokens, describe)
        found = judged[0]
        card = HeadsCard(replace(found.identity, name=self.model_out.name), found.acceptance, origin | found.marks())
        values = {name: tensor.detach().float().cpu().numpy() for name, tensor in of_heads.items()}
        save_heads(self.out, objective.heads.form.heads(values, card))
        self._record(documents, progress, found.marks() | {"logit_factor": factor})
        if progress.step >= progress.total_steps:
            self.checkpoint.unlink(missing_ok=True)
            self.best.unlink(missing_ok=True)
        return TrainResult(
            self.out,
            Acceptance.from_record(progress.before),
            found.acceptance,
            {},
            len(documents),
            sum(document.num_supervised for document in documents),
            supervised_share(documents),
            progress,
            time.monotonic() - self.started,
            Tuned(self.model_out, found.quality, found.is_within_bound),
        )

    def _chosen(self, trainer: Trainer[TextBatch], base: Base) -> Mapping[str, Tensor]:
        """The best tensors that leave the base within its bound; the last ones if only the untouched base did."""
        if not trainer.progress.best_step:
            return trainer.tensors
        stored, _ = load_checkpoint(self.best)
        return {name: tensor.to(base.model.device) for name, tensor in stored.items()}

    def _record(self, documents: Sequence[Document], progress: Progress, marks: Mapping[str, Any]) -> None:
        record = {"format": "headstart-training", "version": 1, "heads": self.kind, "settings": asdict(self.settings)}
        corpus = statistics(documents) | {"supervised_share": supervised_share(documents)}
        measured = {"progress": asdict(progress), "acceptance_by_kind": {}, "tuned": dict(marks)}
        write_json(self.out / "training.json", record | {"corpus": corpus} | measured)

    def _told(self, progress: Progress, loss: float) -> None:
        message = f"loss {loss:.3f}, L at 16 rows {progress.best_length:.3f} (step {progress.best_step})"
        self.report(Event("joint", message, progress.step, progress.total_steps))
