"""The command ``headstart``: its verbs, and what becomes of errors.

Verbs are imported when they are used, and PyTorch only when a model is loaded, so that help answers at once. A mistake of the
user ends in one line on stderr: exit status 1, or 2 if the command line itself is wrong. Ctrl-C ends with 130, also while the
libraries are still being imported, and a reader that went away (``| head``) with 141, as the shell expects it. A disk that is
full under the output is one line, too, and so is memory that does not suffice; output that was closed before the start goes
nowhere.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headstart import __version__
from headstart.errors import HeadstartError

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

VERBS = {
    "demo": "Decode a few prompts plain and accelerated, side by side.",
    "generate": "Answer one prompt.",
    "chat": "Talk with a model.",
    "train": "Train heads that guess for a model.",
    "pretrain": "Pretrain a small model that predicts several tokens at once.",
    "measure": "Measure proposers against plain decoding.",
    "plan": "Say whether speculation pays, measured or calculated.",
    "check": "Prove that speculation changes nothing.",
}

_USAGE, _INTERRUPTED, _BROKEN_PIPE = 2, 130, 141
_NO_MEMORY = "there is not enough memory; --dtype int8 keeps weights in fewer bytes, and fewer sequences at once need less"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def make_app() -> App:
    """The command with all its verbs."""
    from cyclopts import App

    text = "Several tokens out of each pass of a language model, and the same text."
    app = App(name="headstart", help=text, version=__version__, suppress_keyboard_interrupt=False)
    for verb, text in VERBS.items():
        app.command(f"headstart.cli.{verb}:{verb}", name=verb, help=text)
    return app


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (that of the process if none is given); the exit status."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return _INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return _BROKEN_PIPE
    except MemoryError:
        return _fail(_NO_MEMORY, 1)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            return _fail(_NO_MEMORY, 1)
        if error.errno not in _NO_ROOM:
            raise
        _drop_output()
        sys.stderr.write(f"error: cannot write the output: {error.strerror}\n")
        return 1


def _drop_output() -> None:
    """Or the interpreter complains when it flushes what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    from cyclopts import CycloptsError

    try:
        make_app()(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(_usage(error), _USAGE)
    except HeadstartError as error:
        return _fail(str(error), 1)
    return 0


def _usage(error: CycloptsError) -> str:
    """What is wrong with the command line, as sentences, and where its help is."""
    from cyclopts.exceptions import UnusedCliTokensError

    text = str(error).strip()
    if isinstance(error, UnusedCliTokensError):
        text = f"Nothing takes {' '.join(map(repr, error.unused_tokens or []))}; write what belongs together in quotes"
    end = "" if text.endswith((".", "?")) else "."
    return f"{text}{end} See `{' '.join(('headstart', *(error.command_chain or ())))} --help`."


def main() -> None:
    """The entry point of the ``headstart`` script. A character that the terminal cannot show is no reason to stop."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the process began with this stream closed
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run())


def _fail(message: str, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    return status
