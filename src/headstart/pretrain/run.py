"""Pretraining from one command: text files in, a model folder out.

    DIR/             the model and its heads, once the run is finished (``folder.py``)
    DIR.work/        what can be thrown away afterwards: checkpoint.safetensors, and the tokenizer if it was trained

The same command goes on where a run was stopped, also by a power cut: the checkpoint is replaced as a whole, and the rest of
the run repeats bit for bit what an uninterrupted one does.
"""

from __future__ import annotations

import platform
import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from headstart.errors import DataError, RequestError, TrainingError, require
from headstart.folders import obstacle, recover, write_whole
from headstart.heads.base import Acceptance
from headstart.pretrain.folder import check_folder, is_finished, save_model
from headstart.pretrain.model import FutureModel
from headstart.pretrain.settings import PretrainSettings, changes
from headstart.pretrain.sizes import ModelSizes
from headstart.pretrain.tokens import Sequences, TextTokenizer, TokenStream, choose_tokenizer, read_documents, token_stream
from headstart.pretrain.trainer import FORM, Pretrainer, Progress
from headstart.pretrain.workers import Workers
from headstart.target.machine import cpu_name, num_cores
from headstart.train.checkpoint import read_record
from headstart.train.result import Event, Report, silent

CHECKPOINT, TRAINED_TOKENIZER = "checkpoint.safetensors", "tokenizer.json"


@dataclass(frozen=True, slots=True)
class PretrainResult:
    """What a run gave."""

    path: Path
    sizes: ModelSizes
    progress: Progress
    num_train_tokens: int
    acceptance: Acceptance | None  # of the further heads on held-out text
    is_first: bool = True  # of several processes, the one that reports


def pretrain(
    data: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    resume: bool = True,
    report: Report = silent,
    settings: PretrainSettings | None = None,
    **options: Any,
) -> PretrainResult:
    """Train a small Llama-style model with n future tokens on text files, and save it in the folder ``out``.

    ``data``: text files, or ``.jsonl`` with a ``text`` a line. ``options`` are the fields of :class:`PretrainSettings`. A run
    that was stopped goes on; ``resume=False`` begins anew. Under ``accelerate launch`` every process calls this with the same
    arguments.
    """
    files = [data] if isinstance(data, str | Path) else list(data)
    require(all(isinstance(file, str | Path) for file in files), "data", data, "files, or a list of them")
    require(isinstance(out, str | Path), "out", out, "a folder")
    require(settings is None or isinstance(settings, PretrainSettings), "settings", settings, "a PretrainSettings")
    chosen = PretrainSettings.of(**options) if settings is None else settings.changed(**options)
    folder = Path(out).absolute()
    recover(folder)
    check_folder(folder)
    if resume and is_finished(folder):
        raise RequestError(
            f"{out} holds the model of a finished run; give another folder, or replace it with resume=False (--no-resume)"
        )
    reason = obstacle(folder.parent)
    if reason is not None:
        raise DataError(f"out cannot be written: {reason}; name another place")
    try:
        return _Run(files, folder, chosen, report).go(resume)
    except BrokenPipeError:
        raise  # of whoever reads the reports
    except OSError as error:
        raise TrainingError(f"{error.filename or folder} cannot be read or written: {error.strerror or error}") from error


class _Run:
    def __init__(self, files: Sequence[str | Path], folder: Path, settings: PretrainSettings, report: Report) -> None:
        self.files, self.folder, self.settings = files, folder, settings
        self.work = folder.with_name(folder.name + ".work")
        self.checkpoint = self.work / CHECKPOINT
        self.workers = Workers(settings.device)
        self.report = report if self.workers.is_first else silent

    def go(self, resume: bool) -> PretrainResult:
        settings, workers = self.settings, self.workers
        if not resume and workers.is_first:
            shutil.rmtree(self.work, ignore_errors=True)
        workers.wait()
        tokenizer, stream = self._text()
        about = {"settings": _plain(asdict(settings)), "text": stream.fingerprint, "processes": workers.count}
        self._require_same(about)
        sizes = ModelSizes.of(settings, tokenizer.vocab_size)
        self.report(Event("pretrain", _describe(sizes, stream)))
        further = settings.future_tokens
        text = Sequences(stream.train, settings.context, further, settings.seed)
        held_out = Sequences(stream.held_out, settings.context, further, 0, "held out") if settings.held_out else None
        started = time.monotonic()

        def told(progress: Progress, loss: float) -> None:
            rate = (progress.step - first) / max(time.monotonic() - started, 1e-9)
            left = (settings.steps - progress.step) / max(rate, 1e-9) / 60
            message = f"loss {loss:.3f}, {rate * settings.batch * settings.context:.0f} tokens/s, about {left:.1f} minutes left"
            self.report(Event("pretrain", message, progress.step, settings.steps))

        trainer = Pretrainer(
            FutureModel(sizes, settings.seed), text, held_out, settings, workers,
            checkpoint=self.checkpoint, about=about, report=told,
        )  # fmt: skip
        trainer.resume()
        first = trainer.progress.step
        trainer.run()
        acceptance = self._acceptance(trainer, sizes)
        if workers.is_first:
            save_model(self.folder, trainer.model, tokenizer, acceptance, self._record(sizes, stream, trainer.progress))
            self.checkpoint.unlink(missing_ok=True)  # nothing is left to resume
        workers.wait()
        return PretrainResult(self.folder, sizes, trainer.progress, len(stream.train), acceptance, workers.is_first)

    def _text(self) -> tuple[TextTokenizer, TokenStream]:
        """The tokenizer and all text through it; a tokenizer that is trained is kept for a run that goes on."""
        settings, documents = self.settings, read_documents(self.files)
        trained = self.work / TRAINED_TOKENIZER
        is_trained = settings.tokenizer.startswith("bpe:")
        if is_trained and self.workers.is_first and not trained.is_file():
            self.report(Event("pretrain", f"training the tokenizer {settings.tokenizer}"))
            _keep(choose_tokenizer(settings.tokenizer, documents), trained)
        self.workers.wait()
        tokenizer = choose_tokenizer(str(trained) if is_trained else settings.tokenizer, documents)
        return tokenizer, token_stream(tokenizer, documents, held_out=settings.held_out, seed=settings.seed)

    def _require_same(self, about: dict[str, Any]) -> None:
        if not self.checkpoint.exists():
            return
        old = read_record(self.checkpoint, FORM)["about"]
        changed = changes(about["settings"], old["settings"])
        changed += [name for name in ("text", "processes") if about[name] != old[name]]
        if changed:
            raise TrainingError(
                f"{self.checkpoint} belongs to a run with other settings ({', '.join(changed)}); give the same, "
                "or resume=False (--no-resume)"
            )

    def _acceptance(self, trainer: Pretrainer, sizes: ModelSizes) -> Acceptance | None:
        """Held-out accuracy of the further heads, by rank."""
        if trainer.held_out is None or not sizes.num_further:
            return None
        shares = trainer.accuracies()[1:].clamp(0, 1).tolist()
        return Acceptance(tuple(tuple(ranks) for ranks in shares), tuple(ranks[0] for ranks in shares))

    def _record(self, sizes: ModelSizes, stream: TokenStream, progress: Progress) -> dict[str, Any]:
        return {
            "command": _command(),
            "headstart": version("headstart"),
            "versions": {"torch": version("torch"), "python": platform.python_version()},
            "machine": {
                "cpu": cpu_name(),
                "cores": num_cores(),
                "threads": torch.get_num_threads(),
                "processes": self.workers.count,
            },
            "data": {
                "files": len(self.files),
                "documents": stream.num_documents,
                "train_tokens": len(stream.train),
                "held_out_tokens": len(stream.held_out),
                "fingerprint": stream.fingerprint,
            },
            "settings": _plain(asdict(self.settings)),
            "sizes": {
                "layers_of_the_next_token_path": sizes.num_base_layers,
                "trunk_layers": sizes.num_trunk_layers,
                "body_parameters": sizes.body_parameters,
                "vocab_size": sizes.vocab_size,
            },
            "progress": {"steps": progress.step, "tokens": progress.num_tokens, "seconds": progress.seconds},
            "curve": progress.curve,
        }


def _keep(tokenizer: TextTokenizer, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, tokenizer.backend.to_str().encode())


def _describe(sizes: ModelSizes, stream: TokenStream) -> str:
    body = f"{sizes.body_parameters / 1e6:.2f} million parameters beside the vocabulary's {sizes.vocab_size} rows"
    heads = f", {sizes.num_further} further heads ({sizes.variant})" if sizes.num_further else ""
    return f"{len(stream.train)} tokens; {sizes.num_base_layers} layers to the next token{heads}, {body}"


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives it back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()}


def _command() -> str:
    """How this run was started, without folders outside."""
    program, *arguments = sys.argv
    shown = [Path(argument).name if Path(argument).is_absolute() else argument for argument in arguments]
    return shlex.join([Path(program).name, *shown])
