"""The ``tokenizers`` library where a file can make it fail: every failure is one error that names the file.

The library checks little of a ``tokenizer.json`` when it reads one, so the rest fails in the middle of a text: as a plain
``Exception`` (a vocabulary without the unknown token that it names), or as a panic of Rust, which is no ``Exception`` at all.
A panic also prints lines of its own to stderr. What a file saved about cutting and padding is put aside, as transformers does
for whoever does not ask for it: both are left over from a training script and would change every prompt without a sign.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import tokenizers

from headstart.errors import HeadstartError, ModelError

_Result = TypeVar("_Result")
_NOT_THE_FILE = (MemoryError, TypeError, OverflowError)  # the machine's fault, or the caller's for what it passed
_PANIC = "PanicException"  # no module exports this type


def read_backend(path: Path, kind: type[HeadstartError] = ModelError) -> tokenizers.Tokenizer:
    """The tokenizer of a ``tokenizer.json``, without cutting and padding; an error of the ``kind`` names a damaged one."""
    where = f"{path.name} in {path.parent.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise kind(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise kind(f"{where} cannot be parsed: {error}") from error
    backend = guarded(lambda: tokenizers.Tokenizer.from_str(text), f"{where} cannot be parsed", kind)
    backend.no_truncation()
    backend.no_padding()
    return backend


def guarded(call: Callable[[], _Result], failure: str, kind: type[HeadstartError] = ModelError) -> _Result:
    """What a call of the library returns; where the file makes it fail, an error of the ``kind``: ``failure`` and why."""
    try:
        return call()
    except _NOT_THE_FILE:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == _PANIC:
            raise kind(f"{failure}: {' '.join(str(error).split())}") from error
        raise
