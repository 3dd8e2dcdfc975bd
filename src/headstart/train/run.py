"""Training from one command: heads for a model as it is (``frozen.py``), or a model and its heads together (``joint``)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from headstart.errors import DataError, RequestError, TrainingError, require
from headstart.folders import obstacle
from headstart.heads.base import check_place, kind_of_heads
from headstart.llm import LLM
from headstart.target.loading import Loaded
from headstart.train.base import Base
from headstart.train.forms import check_kind
from headstart.train.frozen import FrozenRun
from headstart.train.joint.run import JointRun
from headstart.train.mixture import kinds_of
from headstart.train.result import Event, Report, TrainResult, silent
from headstart.train.settings import TrainSettings
from headstart.train.several import SeveralRun

__all__ = ["Event", "TrainResult", "train"]


def train(
    model: str | Loaded | LLM,
    heads: str = "medusa",
    out: str | Path = "heads",
    *,
    data: str | Path | None = None,
    corpus: str | Path | None = None,
    init: str | Path | None = None,
    model_out: str | Path | None = None,
    resume: bool = True,
    report: Report = silent,
    settings: TrainSettings | None = None,
    **options: Any,
) -> TrainResult:
    """Train heads for a model and save the best of them in ``out``.

    ``heads``: a kind, or several with commas between them: those are trained on the same states, in folders of their own within
    ``out``, and the result is that of the kind which is best on this machine, with ``kinds`` and ``offers`` of all.

    The model stays as it is, unless ``model_out`` names a folder: then it learns together with the heads (Medusa-2), and what
    comes of it is saved there, as a model of its own that the heads belong to. ``data``: JSONL of chats or texts; without it
    the model writes its own corpus, kept in the folder ``corpus`` and continued there. ``init``: heads to start from.
    ``options`` are the fields of :class:`TrainSettings`.
    """
    _check_arguments(model, heads, out, data, corpus, init, model_out, resume, settings)
    if data is not None and corpus is not None:
        raise RequestError("give data or corpus, not both: a corpus is what the model writes itself")
    chosen = TrainSettings.of(**options) if settings is None else settings.changed(**options)
    kinds = heads.split(",")
    for kind in kinds:
        check_kind(kind, chosen)
        check_place(out if len(kinds) == 1 else Path(out) / kind)
    run = _run(kinds, chosen, Path(out), model_out, report)
    of_one = init if len(kinds) == 1 else None  # several refuse it, whatever it names
    _check_places(chosen, out, data, corpus, of_one, model_out)
    try:
        return run.go(Base.of(model, chosen.base_dtype, chosen.writer_dtype), data, corpus, init, resume)
    except BrokenPipeError:
        raise  # of whoever reads the reports
    except OSError as error:
        where = error.filename or run.work
        raise TrainingError(f"{where} cannot be read or written: {error.strerror or error}") from error


def _run(
    kinds: list[str], settings: TrainSettings, out: Path, model_out: str | Path | None, report: Report
) -> FrozenRun | JointRun | SeveralRun:
    if len(set(kinds)) < len(kinds):
        raise RequestError(f"heads names a kind twice: {','.join(kinds)}")
    if model_out is not None:
        settings.refuse_with_joint()
        if len(kinds) > 1:
            raise RequestError("a model learns together with heads of one kind; name one with heads, or leave model_out away")
        return JointRun(kinds[0], settings, out, Path(model_out), report, time.monotonic())
    settings.refuse_joint()
    if len(kinds) > 1:
        return SeveralRun(kinds, settings, out, report, time.monotonic())
    return FrozenRun(kinds[0], settings, out, report, time.monotonic())


def _check_places(
    settings: TrainSettings,
    out: str | Path,
    data: str | Path | None,
    corpus: str | Path | None,
    init: str | Path | None,
    model_out: str | Path | None,
) -> None:
    """DataError or HeadsError, before minutes of work, for what cannot be written at the end or read at the beginning."""
    folders = {"out": Path(out).absolute().parent, "corpus": corpus, "model_out": model_out}
    for name, folder in folders.items():
        reason = None if folder is None else obstacle(Path(folder))
        if reason is not None:
            raise DataError(f"{name} cannot be written: {reason}; name another place")
    if model_out is not None and Path(model_out).resolve() == Path(out).resolve():
        raise RequestError(f"out and model_out both name {out}; the heads and the model need a folder each")
    if data is None:
        kinds_of(settings.kinds, settings.mixture)
    elif not Path(data).exists() or Path(data).is_dir():
        raise DataError(f"{data} cannot be read: there is no such file")
    if init is not None:
        kind_of_heads(init)


def _check_arguments(
    model: object,
    heads: object,
    out: object,
    data: object,
    corpus: object,
    init: object,
    model_out: object,
    resume: object,
    settings: object,
) -> None:
    """RequestError for an argument of a type that cannot be meant."""
    require(isinstance(model, str | Loaded | LLM), "model", model, "a model's name, or a loaded one")
    require(isinstance(heads, str), "heads", heads, "a kind of heads, or several with commas between them")
    require(isinstance(out, str | Path), "out", out, "a folder")
    for name, place in (("data", data), ("corpus", corpus), ("init", init), ("model_out", model_out)):
        require(place is None or isinstance(place, str | Path), name, place, "a path, or None")
    require(isinstance(resume, bool), "resume", resume, "True or False")
    require(settings is None or isinstance(settings, TrainSettings), "settings", settings, "a TrainSettings")
