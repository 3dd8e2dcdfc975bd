"""Folders and files that are whole or not there.

What is written gets its name last, by renaming. For a folder that replaces another that takes two renames; whoever is killed
between them leaves both under hidden names, and :func:`recover` finishes for them. A disk that fills leaves what stood before.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which gets the name ``path`` at the end of the block and replaces what stood there.

    OSError if that fails; then ``path`` is as it was.
    """
    path = path.absolute()
    new, old = (path.with_name(f".{path.name}.{os.getpid()}.{suffix}") for suffix in ("new", "old"))
    try:
        new.mkdir(parents=True)
        yield new
        _put_in_place(new, path, old)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def obstacle(folder: Path) -> str | None:
    """Why nothing can be written into a folder, which may not be there yet, as the end of a sentence; None if it can be.

    It is tried: rights alone do not tell of file systems that take no files.
    """
    place = folder.absolute()
    try:
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            return f"{place} is no folder"
        Path(tempfile.mkdtemp(prefix=".headstart.", dir=place)).rmdir()
    except OSError as error:
        return f"the folder {place} takes no files ({error.strerror})"
    return None


def recover(path: Path) -> None:
    """Clear up behind processes that were killed while they wrote ``path``; nobody else may be writing it."""
    path = path.absolute()
    for new in path.parent.glob(f".{path.name}.*.new"):
        if not path.exists() and new.with_suffix(".old").exists():  # only a complete one makes the old one step aside
            new.rename(path)
        shutil.rmtree(new, ignore_errors=True)
    for old in path.parent.glob(f".{path.name}.*.old"):
        if not path.exists():
            old.rename(path)
        shutil.rmtree(old, ignore_errors=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under a temporary name, then rename it: a reader sees the old file or the new one.

    OSError, with the file's name, if that fails.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def append_whole(path: Path, content: bytes) -> None:
    """Append to a file and bring it to the disk, or leave the file as it was: OSError, with the file's name."""
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if path.exists():
            os.truncate(path, size)
        raise OSError(error.errno, error.strerror, str(path)) from error


def _put_in_place(new: Path, path: Path, old: Path) -> None:
    """Rename ``new`` to ``path``; what stood there comes back if that fails."""
    replaces = path.exists()
    if replaces:
        path.rename(old)
    try:
        new.rename(path)
    except OSError:
        if replaces:
            old.rename(path)
        raise
