"""Training heads from one command: corpus, captured states, the loop, the saved folder.

    heads/              the best heads so far (config.json, model.safetensors) and training.json, the record of the run
    heads.work/         what can be thrown away afterwards: corpus/, states/, checkpoint.safetensors

``minutes`` bounds all of it: at most ``corpus_share`` of them go into writing, capturing ends at ``capture_share``, and
training gets the rest. A run that was stopped goes on from its checkpoint, over the documents that it had begun with.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from headstart.errors import DataError, RequestError, TrainingError, require
from headstart.heads.base import CONFIG_FILE, Acceptance, Heads, HeadsCard, check_place, load_heads, save_heads
from headstart.heads.base import Tensors as HostTensors
from headstart.llm import LLM
from headstart.target.loading import Loaded
from headstart.train.acceptance import (
    KindAcceptance,
    Ranks,
    acceptance,
    acceptance_by_kind,
    measure_ranks,
    measuring_documents,
)
from headstart.train.base import Base
from headstart.train.capture import Online, StateFiles, States, capture, estimated_bytes
from headstart.train.checkpoint import Progress, read_about
from headstart.train.corpus import Corpus, Document, fingerprint_of, statistics, write_json
from headstart.train.data import read_jsonl, require_supervised
from headstart.train.filling import fill
from headstart.train.forms import FORMS, Form, check_kind, form_of, refuse_other_form
from headstart.train.losses import FrozenBase, Objective
from headstart.train.settings import TrainSettings
from headstart.train.trainer import Tensors, Trainer
from headstart.train.vocabulary import choose_draft_vocab
from headstart.train.writer import Writer

Stage = Literal["write", "capture", "train"]
_MAY_DIFFER = (
    "minutes",
    "checkpoint_minutes",
    "corpus_tokens",
    "corpus_share",
    "capture_share",
    "writer_batch",
    "answer_tokens",
)


@dataclass(frozen=True, slots=True)
class Event:
    """What a run tells while it goes on. ``total`` is what the stage comes to at most, or 0 for a mere message."""

    stage: Stage
    message: str
    done: int = 0
    total: int = 0


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


Report = Callable[[Event], None]


def _silent(event: Event) -> None:
    """Nobody listens."""


def train(
    model: str | Loaded | LLM,
    heads: str = "medusa",
    out: str | Path = "heads",
    *,
    data: str | Path | None = None,
    corpus: str | Path | None = None,
    init: str | Path | None = None,
    resume: bool = True,
    report: Report = _silent,
    settings: TrainSettings | None = None,
    **options: Any,
) -> TrainResult:
    """Train heads for a frozen model and save the best of them in ``out``.

    ``data``: JSONL of chats or texts; without it the model writes its own corpus, kept in the folder ``corpus`` and continued
    there. ``init``: heads to start from. ``options`` are the fields of :class:`TrainSettings`.
    """
    _check_arguments(model, out, data, corpus, init, resume, settings)
    if data is not None and corpus is not None:
        raise RequestError("give data or corpus, not both: a corpus is what the model writes itself")
    chosen = TrainSettings.of(**options) if settings is None else settings.changed(**options)
    check_kind(heads, chosen)
    check_place(out)
    run = _Run(heads, chosen, Path(out), report, time.monotonic())
    try:
        return run.go(Base.of(model, chosen.base_dtype, chosen.writer_dtype), data, corpus, init, resume)
    except BrokenPipeError:
        raise  # of whoever reads the reports
    except OSError as error:
        where = error.filename or run.work
        raise TrainingError(f"{where} cannot be read or written: {error.strerror or error}") from error


def _check_arguments(
    model: object, out: object, data: object, corpus: object, init: object, resume: object, settings: object
) -> None:
    """RequestError for an argument of a type that cannot be meant."""
    require(isinstance(model, str | Loaded | LLM), "model", model, "a model's name, or a loaded one")
    require(isinstance(out, str | Path), "out", out, "a folder")
    for name, place in (("data", data), ("corpus", corpus), ("init", init)):
        require(place is None or isinstance(place, str | Path), name, place, "a path, or None")
    require(isinstance(resume, bool), "resume", resume, "True or False")
    require(settings is None or isinstance(settings, TrainSettings), "settings", settings, "a TrainSettings")


class _Run:
    def __init__(self, kind: str, settings: TrainSettings, out: Path, report: Report, started: float) -> None:
        self.kind, self.settings, self.out, self.report, self.started = kind, settings, out, report, started
        self.work = out.with_name(out.name + ".work")
        self.checkpoint = self.work / "checkpoint.safetensors"

    def go(
        self, base: Base, data: str | Path | None, corpus: str | Path | None, init: str | Path | None, resume: bool
    ) -> TrainResult:
        _refuse_no_width(self.settings, base.model.width)
        initial = None if init is None else self._initial(base, init)  # what is wrong with them is said before the work
        about = read_about(self.checkpoint) if resume else None
        self._require_same(about, init)
        if resume and about is None and (self.out / CONFIG_FILE).exists():
            raise RequestError(
                f"{self.out} holds the heads of a finished run; give another folder, or replace them with resume=False "
                "(--no-resume)"
            )
        documents = self._documents(base, data, corpus, about)
        share = require_supervised(documents, base.codec)
        self.report(Event("capture", f"{len(documents)} documents, {share:.0%} of their tokens are supervised"))
        states, documents = self._states(base, documents, about)
        held_out, learned = _split(documents, self.settings.held_out)
        form, start = initial or self._start(base, [documents[i] for i in learned])
        objective = self._objective(base, form)
        measured_on = measuring_documents(documents, held_out, states, self.settings.evaluation_rows)
        num_ranks = min(self.settings.num_ranks, form.config.num_outputs)

        def measured(tensors: Tensors, chosen: Sequence[int]) -> Ranks:
            return measure_ranks(form, tensors, objective.base, states, chosen, num_ranks)

        def keep(tensors: Tensors, found: Acceptance, progress: Progress) -> None:
            card = HeadsCard(base.identity, found, self._provenance(base, documents, progress, data))
            values = {name: tensor.detach().float().cpu().numpy() for name, tensor in tensors.items()}
            save_heads(self.out, form.heads(values, card))
            self._record(documents, progress, share, {})

        trainer = Trainer(
            objective,
            _tensors(start, base),
            states,
            learned,
            self.settings,
            evaluate=lambda tensors: acceptance(measured(_halves(tensors), measured_on), num_ranks),
            keep=keep,
            checkpoint=self.checkpoint,
            about=self._about(documents, init),
            report=self._told,
        )
        deadline = self._deadline(1.0)
        if about is not None:
            trainer.resume(self.checkpoint)
        else:
            trainer.plan(None if deadline is None else deadline - time.monotonic())
        trainer.run(deadline)

        best: Heads = load_heads(self.out, base.identity)
        assert best.card is not None and best.card.acceptance is not None
        after = best.card.acceptance
        tensors = _tensors(form.trained(best), base)
        kinds = acceptance_by_kind(lambda chosen: measured(tensors, chosen), after, documents, held_out, states)
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

    def _documents(
        self, base: Base, data: str | Path | None, corpus: str | Path | None, about: Mapping[str, Any] | None
    ) -> list[Document]:
        settings = self.settings
        if data is not None:
            documents = read_jsonl(Path(data), base.codec, base.end_tokens, base.target.context_limit)
        else:
            folder = Corpus(
                Path(corpus) if corpus else self.work / "corpus",
                base.identity.fingerprint,
                {"seed": settings.seed, "batch": settings.writer_batch, "answer_tokens": settings.answer_tokens},
            )
            documents = folder.read() if about is not None else self._written(base, folder)
        if about is None:
            return documents
        documents = documents[: about["documents"]]
        if fingerprint_of(documents) != about["covers"]:
            raise TrainingError(
                f"{self.checkpoint} was made with other text; give the same data, or resume=False (--no-resume)"
            )
        return documents

    def _written(self, base: Base, folder: Corpus) -> list[Document]:
        settings = self.settings
        writer = Writer(
            base.target,
            base.codec,
            batch=settings.writer_batch,
            answer_tokens=settings.answer_tokens,
            question_tokens=settings.question_tokens,
            seed=settings.seed,
        )
        deadline = self._deadline(settings.corpus_share)
        self.report(Event("write", f"the {base.target.engine} engine writes, in {base.target.dtype}"))

        def told(have: int, speed: float) -> None:
            seconds = (settings.corpus_tokens - have) / max(speed, 1e-9)
            if deadline is not None:
                seconds = min(seconds, deadline - time.monotonic())
            left = f"about {max(seconds, 0) / 60:.1f} minutes left"
            self.report(Event("write", f"{speed:.0f} tokens/s, {left}", have, have + round(max(seconds, 0) * speed)))

        states = None
        if not settings.online:
            states = StateFiles(self.work / "states", folder.read(), base.target, settings.states_dtype)
        return fill(folder, writer, num_tokens=settings.corpus_tokens, deadline=deadline, report=told, states=states)

    def _states(self, base: Base, documents: list[Document], about: Mapping[str, Any] | None) -> tuple[States, list[Document]]:
        settings = self.settings
        if settings.online:
            return Online(base.target, documents), documents
        size = estimated_bytes(documents, base.model.width, settings.states_dtype)
        self.report(Event("capture", f"hidden states will take {size / 1e6:.0f} MB of disk"))
        return capture(
            base.target,
            documents,
            self.work / "states",
            dtype=settings.states_dtype,
            deadline=None if about is not None else self._deadline(settings.capture_share),
            report=lambda done, total: self.report(Event("capture", "rows of hidden states", done, total)),
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

    def _objective(self, base: Base, form: Form) -> Objective:
        settings, model, vocab = self.settings, base.model, form.config.draft_vocab
        ids = torch.arange(model.vocab_size) if vocab is None else torch.tensor(vocab)
        places = torch.full((model.vocab_size,), -1, dtype=torch.long)
        places[ids] = torch.arange(len(ids))
        output = model.output[ids.to(model.device)].float()
        dtype = torch.bfloat16 if base.dtype == "bfloat16" else torch.float32
        return Objective(
            form,
            FrozenBase(model.embedding, output, places.to(model.device)),
            settings.head_decay,
            settings.soft_weight,
            settings.vocab_sample,
            settings.chunk_rows,
            dtype,
        )

    def _told(self, progress: Progress, loss: float) -> None:
        best = f"L at 16 rows {progress.best_length:.3f}"
        message = f"loss {loss:.3f}, {best} (step {progress.best_step}), {progress.num_skipped} skipped"
        self.report(Event("train", message, progress.step, progress.total_steps))

    def _about(self, documents: Sequence[Document], init: str | Path | None) -> dict[str, Any]:
        settings = {name: value for name, value in asdict(self.settings).items() if name not in _MAY_DIFFER}
        settings["init"] = None if init is None else str(init)
        settings["betas"] = list(self.settings.betas)
        settings["heads"] = self.kind
        return {"settings": settings, "documents": len(documents), "covers": fingerprint_of(documents)}

    def _require_same(self, about: Mapping[str, Any] | None, init: str | Path | None) -> None:
        if about is None:
            return
        now = self._about([], init)["settings"]
        changed = sorted(name for name in now if about["settings"].get(name) != now[name])
        if changed:
            raise TrainingError(
                f"{self.checkpoint} belongs to a run with other settings ({', '.join(changed)}); give the same, "
                "or resume=False (--no-resume)"
            )

    def _record(
        self, documents: Sequence[Document], progress: Progress, share: float, kinds: dict[str, KindAcceptance]
    ) -> None:
        record = {"format": "headstart-training", "version": 1, "heads": self.kind, "settings": asdict(self.settings)}
        corpus = statistics(documents) | {"supervised_share": share}
        measured = {kind: asdict(found) for kind, found in kinds.items()}
        write_json(
            self.out / "training.json",
            record | {"corpus": corpus, "progress": asdict(progress), "acceptance_by_kind": measured},
        )

    def _provenance(
        self, base: Base, documents: Sequence[Document], progress: Progress, data: str | Path | None
    ) -> dict[str, Any]:
        versions = {name: version(name) for name in ("headstart", "torch", "transformers")}
        return {
            "command": _command(),
            "versions": versions | {"python": platform.python_version()},
            "machine": {"processor": platform.machine(), "system": platform.system(), "threads": torch.get_num_threads()},
            "base_dtype": base.dtype,
            "engine": base.target.engine,  # that wrote the corpus and gave the hidden states
            "dtype": base.target.dtype,
            "seed": self.settings.seed,
            "data": "written by the model" if data is None else Path(data).name,
            "corpus_tokens": sum(document.num_supervised for document in documents),
            "tokens_seen": progress.num_tokens,
            "step": progress.step,
            "minutes": round((time.monotonic() - self.started) / 60, 2),
        }


def _command() -> str:
    """How this run was started."""
    program, *arguments = sys.argv
    path = Path(program)
    started = f"python -m {path.parent.name}" if path.name == "__main__.py" else path.name
    return " ".join([started, *map(_without_folder, arguments)])


def _without_folder(argument: str) -> str:
    """An argument as a record may hold it: of an absolute path only its last part."""
    return Path(argument).name if Path(argument).is_absolute() else argument


def _refuse_no_width(settings: TrainSettings, width: int) -> None:
    """A factor that leaves no inner width must not turn into the square block, which is asked for by 0."""
    if settings.inner_factor and round(settings.inner_factor * width) < 1:
        raise RequestError(
            f"inner_factor is {settings.inner_factor}: blocks of a model of width {width} would have no inner width; "
            f"give 1/{width} or more, or 0 for the published square block"
        )


def _split(documents: Sequence[Document], share: float) -> tuple[list[int], list[int]]:
    """Numbers of held-out documents and of those to learn from; at least one each."""
    if len(documents) < 2:
        raise DataError("one document is not enough: some are learned from and some are held out to measure; give more data")
    held_out = [i for i, document in enumerate(documents) if document.is_held_out(share)]
    if not held_out or len(held_out) == len(documents):
        held_out = [min(range(len(documents)), key=lambda i: documents[i].digest)]
    chosen = set(held_out)
    return held_out, [i for i in range(len(documents)) if i not in chosen]


def _tensors(values: HostTensors, base: Base) -> Tensors:
    return {name: torch.tensor(array, device=base.model.device) for name, array in values.items()}


def _halves(tensors: Tensors) -> Tensors:
    """As they are saved: what is measured is what is stored."""
    return {name: tensor.detach().half().float() for name, tensor in tensors.items()}
