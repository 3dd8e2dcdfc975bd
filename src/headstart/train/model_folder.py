"""A model as an ordinary folder: what transformers and both engines of this project load.

    config.json generation_config.json model.safetensors    as transformers writes them
    tokenizer.json tokenizer_config.json chat_template.jinja the tokenizer and the template of the model that it came from
    headstart.json                                           how the model was made, and by what it differs from its origin

It is written beside its place and renamed, whole or not at all. Only what this project has written is ever replaced: a folder
with that last file in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headstart.errors import TrainingError
from headstart.folders import new_folder
from headstart.target.quiet import quiet_transformers
from headstart.tokenizer import Tokenizer

RECORD = "headstart.json"
FORMAT, VERSION = "headstart-model", 1


def check_model_place(folder: str | os.PathLike[str]) -> None:
    """TrainingError if something that must not be replaced stands where a model shall be saved."""
    path = Path(folder)
    if path.name in ("", ".."):
        raise TrainingError(f"{str(folder)!r} cannot hold a model; name a folder of its own")
    if path.exists() and not (_is_ours(path) or (path.is_dir() and not any(path.iterdir()))):
        raise TrainingError(f"{path} exists and is no model that Headstart trained; choose another name")


def save_model(
    folder: str | os.PathLike[str],
    module: Any,
    tokenizer: Tokenizer,
    end_tokens: frozenset[int],
    describe: Callable[[Path], Mapping[str, Any]],
) -> None:
    """Write a transformers model with its tokenizer; what stands there is replaced if it came from here.

    ``describe`` looks at the written folder before it gets its name, and says what the record holds.
    """
    path = Path(folder).absolute()
    check_model_place(path)
    ends = sorted(end_tokens)
    try:
        with new_folder(path) as new:
            with quiet_transformers():
                module.save_pretrained(new)
            _add(new / "generation_config.json", {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {})
            write_tokenizer(new, tokenizer)
            _add(new / RECORD, {"format": FORMAT, "version": VERSION, **describe(new)})
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{path}: the model cannot be written ({getattr(error, 'strerror', None) or error})") from error


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """The tokenizer's files, as both ``Tokenizer.from_folder`` and transformers read them."""
    (folder / "tokenizer.json").write_text(tokenizer.backend.to_str(), encoding="utf-8")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | tokenizer.special_tokens, indent=1), encoding="utf-8")
    if tokenizer.chat_template is not None:
        (folder / "chat_template.jinja").write_text(tokenizer.chat_template, encoding="utf-8")


def _add(file: Path, entries: Mapping[str, Any]) -> None:
    """Put entries into a JSON file that may exist."""
    content = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(json.dumps(content | dict(entries), indent=1) + "\n", encoding="utf-8")


def _is_ours(path: Path) -> bool:
    try:
        return bool(json.loads((path / RECORD).read_text(encoding="utf-8"))["format"] == FORMAT)
    except (OSError, ValueError, TypeError, KeyError):
        return False
