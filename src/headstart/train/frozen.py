"""Training heads for a base that stays as it is: corpus, captured states, the loop, the saved folder.

    heads/              the best heads so far (config.json, model.safetensors) and training.json, the record of the run
    heads.work/         what can be thrown away afterwards: corpus/, states/, checkpoint.safetensors

``minutes`` bounds all of it: at most ``corpus_share`` of them go into writing, capturing ends at ``capture_share``, and
training gets the rest. A run that was stopped goes on from its checkpoint, over the documents that it had begun with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headstart.errors import RequestError, TrainingError
from headstart.folders import recover
from headstart.heads.base import CONFIG_FILE, Acceptance, Heads, HeadsCard, load_heads, save_heads
from headstart.heads.base import Tensors as HostTensors
from headstart.target.base import Target
from headstart.train.acceptance import (
    KindAcceptance,
    Ranks,
    ReliabilityCounter,
    acceptance,
    acceptance_by_kind,
    measure_ranks,
    measuring_documents,
)
from headstart.train.base import Base
from headstart.train.capture import Online, StateFiles, States, capture, estimated_bytes
from headstart.train.checkpoint import Progress, read_about
from headstart.train.corpus import Corpus, Document, fingerprint_of, held_apart, statistics, write_json
from headstart.train.data import read_jsonl, require_supervised
from headstart.train.decoded import IN_TRAINING_NODES, HeldOutPrompts
from headstart.train.duplicates import without_copies
from headstart.train.filling import fill
from headstart.train.forms import FORMS, Form, form_of, refuse_other_form
from headstart.train.generation import copying
from headstart.train.inputs import Reading
from headstart.train.losses import Objective
from headstart.train.mixture import kinds_of
from headstart.train.record import provenance
from headstart.train.result import Event, Report, TrainResult
from headstart.train.settings import TrainSettings
from headstart.train.trainer import Measured, Tensors, Trainer
from headstart.train.vocabulary import choose_draft_vocab
from headstart.train.writer import Writer

RECORD = "training.json"
_MAY_DIFFER = (
    "minutes",
    "checkpoint_minutes",
    "corpus_tokens",
    "corpus_share",
    "capture_share",
    "writer_batch",
    "answer_tokens",
    "joint_share",
    "kinds",
    "mixture",
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What heads learn from."""

    documents: list[Document]
    states: States
    supervised_share: float


class FrozenRun:
    """One run, from the documents to the saved heads."""

    def __init__(
        self,
        kind: str,
        settings: TrainSettings,
        out: Path,
        report: Report,
        started: float,
        *,
        work: Path | None = None,
        checkpoint: str = "checkpoint",
    ) -> None:
        """``work``: where corpus, states and the ``checkpoint`` of that name lie (None: beside ``out``)."""
        self.kind, self.settings, self.out, self.report, self.started = kind, settings, out, report, started
        self.work = work or out.with_name(out.name + ".work")
        self.checkpoint = self.work / f"{checkpoint}.safetensors"
        self.reading: Reading | None = None  # of the form that is trained, or of another that shares the states

    def go(
        self, base: Base, data: str | Path | None, corpus: str | Path | None, init: str | Path | None, resume: bool
    ) -> TrainResult:
        """Train, or go on; see ``train``."""
        initial = None if init is None else self._initial(base, init)  # what is wrong with them is said before the work
        self.check(base, initial)
        about = read_about(self.checkpoint) if resume else None
        require_same(self.checkpoint, about, self.asked(init))
        if resume and about is None and (self.out / CONFIG_FILE).exists():
            raise RequestError(
                f"{self.out} holds the heads of a finished run; give another folder, or replace them with resume=False "
                "(--no-resume)"
            )
        prepared = self.prepare(base, data, corpus, about)
        return self.learn(base, prepared, about, self._deadline(1.0), data=data, init=init, initial=initial)

    def check(self, base: Base, initial: tuple[Form, HostTensors] | None = None) -> None:
        """Clear up behind a killed run, and say what cannot be trained before there is any work."""
        recover(self.out)
        _refuse_no_width(self.settings, base.model.width)
        form = initial[0] if initial else FORMS[self.kind].of(self.settings, base.model, None)
        self.reading = form.reading(self.settings)

    def prepare(
        self, base: Base, data: str | Path | None, corpus: str | Path | None, about: Mapping[str, Any] | None
    ) -> Prepared:
        """The documents and their states; those that a run began with if ``about`` tells of one."""
        documents = self.documents(base, data, corpus, may_write=about is None)
        if about is not None:
            documents = same_documents(self.checkpoint, about, documents)
        share = require_supervised(documents, base.codec)
        self.report(Event("capture", f"{len(documents)} documents, {share:.0%} of their tokens are supervised"))
        states, documents = self._states(base, documents, about)
        return Prepared(documents, states, share)

    def learn(
        self,
        base: Base,
        prepared: Prepared,
        about: Mapping[str, Any] | None,
        deadline: float | None,
        *,
        data: str | Path | None,
        init: str | Path | None = None,
        initial: tuple[Form, HostTensors] | None = None,
    ) -> TrainResult:
        """Train on what is prepared, from the checkpoint if ``about`` tells of one, and save the best."""
        documents, states, share = prepared.documents, prepared.states, prepared.supervised_share
        held_out, learned = held_apart(documents, self.settings.held_out)
        form, start = initial or self._start(base, [documents[i] for i in learned])
        objective = Objective.of(base, form, self.settings)
        measured_on = measuring_documents(documents, held_out, states, self.settings.evaluation_rows)
        num_ranks = min(self.settings.num_ranks, form.config.num_outputs)
        prompts = prompts_of(base.target, [documents[i] for i in held_out], self.settings)

        def ranks(tensors: Tensors, chosen: Sequence[int], counter: ReliabilityCounter | None = None) -> Ranks:
            return measure_ranks(form, tensors, objective.base, states, chosen, num_ranks, counter)

        def measured(tensors: Tensors) -> Measured:
            stored = halves(tensors)
            notes = decoded_notes(prompts, form.heads(on_host(stored), None))
            counter = ReliabilityCounter(form.config.num_heads)
            found = ranks(stored, measured_on, counter)
            return Measured(acceptance(found, num_ranks, counter.reliability()), notes)

        def keep(tensors: Tensors, found: Acceptance, progress: Progress) -> None:
            origin = provenance(base, documents, progress, data, self.settings.seed, self.started)
            save_heads(self.out, form.heads(on_host(tensors), HeadsCard(base.identity, found, origin)))
            self._record(documents, progress, share, {})

        trainer = Trainer(
            objective,
            on_device(start, base),
            states,
            learned,
            self.settings,
            evaluate=measured,
            keep=keep,
            checkpoint=self.checkpoint,
            about=self._about(documents, init),
            report=self._told,
        )
        if about is not None:
            trainer.resume(self.checkpoint)
        else:
            trainer.plan(None if deadline is None else deadline - time.monotonic())
        trainer.run(deadline)

        best: Heads = load_heads(self.out, base.identity)
        assert best.card is not None and best.card.acceptance is not None
        after = best.card.acceptance
        tensors = on_device(form.trained(best), base)
        kinds = acceptance_by_kind(lambda chosen: ranks(tensors, chosen), after, documents, held_out, states)
        self._record(documents, trainer.progress, share, kinds)
        return self._result(trainer.progress, documents, share, after, kinds)

    def _result(
        self,
        progress: Progress,
        documents: Sequence[Document],
        share: float,
        after: Acceptance,
        kinds: dict[str, KindAcceptance],
    ) -> TrainResult:
        if progress.step >= progress.total_steps:
            self.checkpoint.unlink(missing_ok=True)  # nothing is left to resume
        return TrainResult(
            self.out,
            Acceptance.from_record(progress.before),
            after,
            kinds,
            len(documents),
            sum(document.num_supervised for document in documents),
            share,
            progress,
            time.monotonic() - self.started,
        )

    def _deadline(self, share: float) -> float | None:
        return self.started + 60 * self.settings.minutes * share if self.settings.minutes else None

    def documents(self, base: Base, data: str | Path | None, corpus: str | Path | None, *, may_write: bool) -> list[Document]:
        """What is learned from: the user's data, or a corpus of the model's own, which grows first if it may."""
        settings = self.settings
        if data is not None:
            return self._read(base, Path(data))
        folder = Corpus(
            Path(corpus) if corpus else self.work / "corpus",
            base.identity.fingerprint,
            {
                "engine": base.target.engine,
                "dtype": base.target.dtype,
                "seed": settings.seed,
                "batch": settings.writer_batch,
                "answer_tokens": settings.answer_tokens,
            },
        )
        if folder.is_torn:
            self.report(Event("write", f"the last line of {folder.folder} was cut in the middle; it is left out"))
        return self._written(base, folder) if may_write else folder.read()

    def _read(self, base: Base, data: Path) -> list[Document]:
        for name in ("kinds", "mixture"):
            if getattr(self.settings, name):
                raise RequestError(f"{name} has no effect with data: it is about what the model writes itself")
        documents = read_jsonl(data, base.codec, base.end_tokens, base.target.context_limit)
        kept = without_copies(documents, self.settings.max_copied)
        if len(kept) < len(documents):
            self.report(
                Event("capture", f"{len(documents) - len(kept)} of {len(documents)} documents are copies, and left out")
            )
        return kept

    def _written(self, base: Base, folder: Corpus) -> list[Document]:
        settings = self.settings
        writer = Writer(
            base.target,
            base.codec,
            batch=settings.writer_batch,
            answer_tokens=settings.answer_tokens,
            question_tokens=settings.question_tokens,
            seed=settings.seed,
            kinds=kinds_of(settings.kinds, settings.mixture),
            reading=None if settings.online else self.reading,
            proposer=copying(base.target),
        )
        if (settings.kinds or settings.mixture) and not base.codec.has_template:
            raise RequestError(
                "kinds and mixture have no effect with this model: without a chat template it goes on from nothing"
            )
        deadline, began = self._deadline(settings.corpus_share), time.monotonic()
        self.report(Event("write", f"the {base.target.engine} engine writes, in {base.target.dtype}"))

        def told(have: int, speed: float) -> None:
            now, seconds = time.monotonic(), (settings.corpus_tokens - have) / max(speed, 1e-9)
            seconds = max(seconds if deadline is None else min(seconds, deadline - now), 0.0)
            what = f"{speed:.0f} tokens/s, about {seconds / 60:.1f} minutes left"
            self.report(Event("write", what, round(now - began), round(now - began + seconds)))

        states = None
        if not settings.online:
            states = StateFiles(self.work / "states", folder.read(), base.target, settings.states_dtype, self.reading)
        return fill(folder, writer, num_tokens=settings.corpus_tokens, deadline=deadline, report=told, states=states)

    def _states(self, base: Base, documents: list[Document], about: Mapping[str, Any] | None) -> tuple[States, list[Document]]:
        settings = self.settings
        if settings.online:
            return Online(base.target, documents, self.reading), documents
        size = estimated_bytes(documents, base.model.width, settings.states_dtype, self.reading)
        self.report(Event("capture", f"hidden states will take {size / 1e6:.0f} MB of disk"))
        return capture(
            base.target,
            documents,
            self.work / "states",
            dtype=settings.states_dtype,
            deadline=None if about is not None else self._deadline(settings.capture_share),
            report=lambda done, total: self.report(Event("capture", "rows of hidden states", done, total)),
            reading=self.reading,
        )

    def _initial(self, base: Base, folder: str | Path) -> tuple[Form, HostTensors]:
        """The form of heads to start from, with their draft vocabulary, and their tensors."""
        heads: Heads = load_heads(folder, base.identity)
        if heads.config.kind != self.kind:
            raise RequestError(f"the heads in {folder} are of kind {heads.config.kind}, not {self.kind}; start from others")
        form = form_of(heads.config, base.model)
        refuse_other_form(self.settings, form, folder)
        return form, form.trained(heads)

    def _start(self, base: Base, learned: Sequence[Document]) -> tuple[Form, HostTensors]:
        """The form that the settings ask for, and fresh tensors."""
        settings = self.settings
        vocab = choose_draft_vocab(learned, settings.draft_vocab, base.model.vocab_size, base.end_tokens)
        form = FORMS[self.kind].of(settings, base.model, vocab)
        return form, form.fresh(settings.seed)

    def _told(self, progress: Progress, loss: float) -> None:
        best = f"L at 16 rows {progress.best_length:.3f}"
        message = f"loss {loss:.3f}, {best} (step {progress.best_step}), {progress.num_skipped} skipped"
        self.report(Event("train", message, progress.step, progress.total_steps))

    def is_finished(self) -> bool:
        """Whether the heads stand there and nothing is left to go on with."""
        return (self.out / CONFIG_FILE).exists() and not self.checkpoint.exists()

    def finished(self, prepared: Prepared) -> TrainResult:
        """The result of a run that has nothing left to do."""
        heads: Heads = load_heads(self.out)
        record = json.loads((self.out / RECORD).read_text(encoding="utf-8"))
        assert heads.card is not None and heads.card.acceptance is not None
        kinds = {kind: KindAcceptance.from_record(found) for kind, found in record["acceptance_by_kind"].items()}
        progress = Progress(**record["progress"])
        return self._result(progress, prepared.documents, prepared.supervised_share, heads.card.acceptance, kinds)

    def written(self, base: Base, data: str | Path | None, corpus: str | Path | None) -> list[Document]:
        """The documents that the finished heads learned from."""
        try:
            number = json.loads((self.out / RECORD).read_text(encoding="utf-8"))["corpus"]["documents"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise TrainingError(f"{self.out / RECORD} cannot be read ({error}); begin anew with --no-resume") from None
        return self.documents(base, data, corpus, may_write=False)[:number]

    def asked(self, init: str | Path | None) -> dict[str, Any]:
        """What a run that is gone on with must have in common with the one that began."""
        settings = {name: value for name, value in asdict(self.settings).items() if name not in _MAY_DIFFER}
        settings["init"] = None if init is None else str(init)
        settings["betas"] = list(self.settings.betas)
        settings["heads"] = self.kind
        return settings

    def _about(self, documents: Sequence[Document], init: str | Path | None) -> dict[str, Any]:
        return {"settings": self.asked(init), "documents": len(documents), "covers": fingerprint_of(documents)}

    def _record(
        self, documents: Sequence[Document], progress: Progress, share: float, kinds: dict[str, KindAcceptance]
    ) -> None:
        record = {"format": "headstart-training", "version": 1, "heads": self.kind, "settings": asdict(self.settings)}
        corpus = statistics(documents) | {"supervised_share": share}
        measured = {kind: asdict(found) for kind, found in kinds.items()}
        write_json(
            self.out / RECORD,
            record | {"corpus": corpus, "progress": asdict(progress), "acceptance_by_kind": measured, "tuned": None},
        )


def _refuse_no_width(settings: TrainSettings, width: int) -> None:
    """A factor that leaves no inner width must not turn into the square block, which is asked for by 0."""
    if settings.inner_factor and round(settings.inner_factor * width) < 1:
        raise RequestError(
            f"inner_factor is {settings.inner_factor}: blocks of a model of width {width} would have no inner width; "
            f"give 1/{width} or more, or 0 for the published square block"
        )


def require_same(checkpoint: Path, about: Mapping[str, Any] | None, asked: Mapping[str, Any]) -> None:
    """TrainingError if a checkpoint belongs to a run with other settings."""
    if about is None:
        return
    changed = sorted(name for name in asked if about["settings"].get(name) != asked[name])
    if changed:
        raise TrainingError(
            f"{checkpoint} belongs to a run with other settings ({', '.join(changed)}); give the same, "
            "or resume=False (--no-resume)"
        )


def same_documents(checkpoint: Path, about: Mapping[str, Any], documents: list[Document]) -> list[Document]:
    """Those that a checkpoint's run began with; TrainingError if they are others now."""
    if len(documents) < about["documents"]:
        raise TrainingError(
            f"{checkpoint} was made with {about['documents']} documents, of which {len(documents)} are left; restore them, "
            "or begin anew with resume=False (--no-resume)"
        )
    documents = documents[: about["documents"]]
    if fingerprint_of(documents) != about["covers"]:
        raise TrainingError(f"{checkpoint} was made with other text; give the same data, or resume=False (--no-resume)")
    return documents


def on_device(values: HostTensors, base: Base) -> Tensors:
    """Tensors to train, where the base is."""
    return {name: torch.tensor(array, device=base.model.device) for name, array in values.items()}


def halves(tensors: Tensors) -> Tensors:
    """As they are saved: what is measured is what is stored."""
    return {name: tensor.detach().half().float() for name, tensor in tensors.items()}


def on_host(tensors: Tensors) -> HostTensors:
    """Tensors as heads are saved from."""
    return {name: tensor.detach().float().cpu().numpy() for name, tensor in tensors.items()}


def prompts_of(target: Target, documents: Sequence[Document], settings: TrainSettings) -> HeldOutPrompts:
    """The held-out prompts that the settings ask for."""
    return HeldOutPrompts(target, documents, settings.decoded_prompts, settings.decoded_tokens)


def decoded_notes(prompts: HeldOutPrompts, heads: Heads) -> dict[str, float]:
    """L of the real decoder with these heads, for the curve; nothing if no prompt is there."""
    return {"decoded_length": prompts.decode(heads, IN_TRAINING_NODES).acceptance_length} if prompts.prompts else {}
