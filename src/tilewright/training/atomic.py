"""Files that are there whole or not at all: written beside their place, synced, then renamed over it.

The file beside it, `.NAME.tmp`, is locked while it is written. What a killed process left behind is therefore free: the next save of that
name takes it over, and `remove_leftovers` deletes the rest.
"""
from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..core.errors import CheckpointError

LEFTOVER = ".*.tmp"


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Make or replace `path` with what `write` puts into a file. When anything fails, the old file is as it was."""
    path = path.resolve()  # a link stays a link: what it points to is replaced
    temporary = path.with_name(f".{path.name}.tmp")
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise CheckpointError(f"checkpoint: could not write {path}: it is {kind}; what was there before is untouched")
    try:
        handle = _locked(temporary)
        try:
            with handle:
                handle.truncate(0)
                write(handle)
                handle.flush()
                os.fsync(handle.fileno())
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)
    except OSError as e:
        kept = "what was there before is untouched" if path.exists() else "there is no file of that name"
        raise CheckpointError(f"checkpoint: could not write {path}: {e.strerror or e}; {kept}") from e


def remove_leftovers(folder: Path, pattern: str = LEFTOVER) -> None:
    """Delete the unfinished files of processes that are gone."""
    for temporary in folder.glob(pattern):
        try:
            with _locked(temporary):
                temporary.unlink(missing_ok=True)
        except CheckpointError:  # somebody is writing it now
            continue


def _locked(temporary: Path) -> BinaryIO:
    """The temporary file, open and locked. Between opening and locking another process may have renamed it: then it is opened again."""
    while True:
        handle = os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.close()
            raise CheckpointError(f"checkpoint: another process or thread is writing {temporary.name} in {temporary.parent}") from None
        try:
            same = os.path.samestat(os.fstat(handle.fileno()), temporary.stat())
        except FileNotFoundError:
            same = False
        if same:
            return handle
        handle.close()


def _sync_folder(folder: Path) -> None:
    """The new name itself must survive a power cut, too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
