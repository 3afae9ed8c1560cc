"""One way to write a file and one to open it. A written file is there whole or not at all; no link, pipe or device is written through.

A file is written under a random name beside its place (`.NAME.<16 hex digits>.tmp`, made with O_EXCL), synced, and renamed over it; a
link in that place is replaced, never followed. The temporary file is locked while it is written. One that is not locked was left behind
by a process that is gone: the next write of that name deletes it.
"""
from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from .errors import FileError, MissingFileError, TilewrightError

if TYPE_CHECKING:
    from pathlib import Path

Content = bytes | Callable[[BinaryIO], None]
LEFTOVER = re.compile(r"\.(.+)\.[0-9a-f]{16}\.tmp")
LONGEST = 200  # bytes of a file's name that its temporary name repeats: names have at most 255
ROOM, RIGHTS = "make room there or choose another folder", "choose a file and a folder that this user may use"
HINTS = {errno.ENOSPC: ROOM, errno.EDQUOT: ROOM, errno.EFBIG: ROOM, errno.EACCES: RIGHTS, errno.EPERM: RIGHTS, errno.EROFS: RIGHTS,
         errno.ENOENT: "check the path", errno.ENOTDIR: "check the path"}

READERS = {".tw": "saved sessions are loaded: tw.load(path)", ".gguf": "language models are loaded: tw.load_llm(path)",
           ".onnx": "ONNX files are compiled: tw.compile(path)", ".pt2": "programs of torch.export are compiled: tw.compile(path)",
           **dict.fromkeys((".npy", ".npz", ".safetensors"), "arrays are loaded: tw.load_arrays(path)")}


def reader_of(path: str | os.PathLike[str], *own: str, otherwise: str = "") -> str:
    """The end of an error about a file of another kind: which function reads it. `own` are the endings of the caller's files.

    >>> reader_of("model.GGUF", ".tw"), reader_of("model.tw", ".tw")
    ('; language models are loaded: tw.load_llm(path)', '')
    """
    ending = os.path.splitext(os.fspath(path))[1].lower()
    found = otherwise if ending in own else READERS.get(ending, otherwise)
    return found and f"; {found}"


def write_file(path: str | os.PathLike[str], content: Content, *, subject: str, error: type[TilewrightError] = FileError,
               sync: bool = True) -> None:
    """Make or replace `path`. When anything fails the old file is as it was, and `error` begins with `subject` and names the path.
    `sync=False` is for files with checksums that may be lost in a power cut."""
    from pathlib import Path

    path = Path(path)
    try:
        mode = _replaceable(path, subject, error)
        handle, temporary = _temporary(path, 0o666 if mode is None else mode)
        try:
            with handle:
                if mode is not None:
                    os.fchmod(handle.fileno(), mode)
                if isinstance(content, bytes):
                    handle.write(content)
                else:
                    content(handle)
                handle.flush()
                if sync:
                    os.fsync(handle.fileno())
                os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if sync:
            _sync_folder(path.parent)
            remove_leftovers(path.parent, path.name)
    except OSError as e:
        if isinstance(e, TilewrightError):
            raise
        kept = (f"there is no folder {path.parent}" if isinstance(e, FileNotFoundError) and not os.path.isdir(path.parent) else
                "what was there before is untouched" if os.path.lexists(path) else "there is no file of that name")
        raise error(f"{subject}: could not write {path}: {e.strerror or e}; {kept}{_hint(e)}") from e


def write_folder(folder: Path, files: Mapping[str, str], *, subject: str) -> int:
    """Fill a folder, made where it is missing, with texts by their names in it; gives their number."""
    for name, text in files.items():
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise FileError(f"{subject}: could not make the folder {path.parent}: {e.strerror or e}{_hint(e)}") from e
        write_file(path, text.encode(), subject=subject, sync=False)
    return len(files)


def append_text(path: str | os.PathLike[str], text: str, *, subject: str) -> None:
    """Add text at the end of a file, perhaps a new one."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as e:
        raise FileError(f"{subject}: could not write {path}: {e.strerror or e}{_hint(e)}") from e


def open_file(path: str | os.PathLike[str], *, subject: str, error: type[TilewrightError] = FileError) -> int:
    """A descriptor of a regular file, for reading: a pipe would wait for ever, a device may have no end."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except ValueError as e:
        raise error(f"{subject}: could not read {os.fspath(path)!r}: {e}; no file has such a name") from e
    except OSError as e:
        kind_of_error = MissingFileError if error is FileError and isinstance(e, FileNotFoundError) else error
        raise kind_of_error(f"{subject}: could not read {os.fspath(path)!s:.1000}: {e.strerror or e}{_hint(e)}") from e
    kind = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(kind):
        os.close(descriptor)
        raise error(f"{subject}: could not read {os.fspath(path)}: it is {_named(kind)}; check the path")
    return descriptor


@contextmanager
def reading(path: str | os.PathLike[str], *, subject: str) -> Iterator[None]:
    """A disk or a network that fails behind an open file is a FileError, too."""
    try:
        yield
    except OSError as e:
        if isinstance(e, TilewrightError):
            raise
        raise FileError(f"{subject}: could not read {os.fspath(path)!s:.1000}: {e.strerror or e}{_hint(e)}") from e


def read_file(path: str | os.PathLike[str], *, subject: str) -> bytes:
    """The contents of a regular file."""
    try:
        with os.fdopen(open_file(path, subject=subject), "rb") as handle, reading(path, subject=subject):
            return handle.read()
    except MemoryError as e:
        raise FileError(f"{subject}: could not read {os.fspath(path)}: it is larger than the memory") from e


def remove_leftovers(folder: str | Path, name: str | re.Pattern[str]) -> None:
    """Delete the unfinished files of this name (or of names that match) whose processes are gone. Only files of this user's are touched."""
    import fcntl

    wanted = re.compile(re.escape(_short(name))) if isinstance(name, str) else name
    try:
        names = os.listdir(folder)
    except OSError:  # a folder that may be written and not read
        return
    for item in names:
        found = LEFTOVER.fullmatch(item)
        if found is None or wanted.fullmatch(found[1]) is None:
            continue
        path = os.path.join(folder, item)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:  # a link, somebody else's, or gone by now
            continue
        try:
            info = os.fstat(descriptor)
            if stat.S_ISREG(info.st_mode) and info.st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        except OSError:  # it is being written, or locks are not known here: then it stays
            continue
        finally:
            os.close(descriptor)


def _replaceable(path: Path, subject: str, error: type[TilewrightError]) -> int | None:
    """The permissions of the file that will be replaced; None where there is none, or a link."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    except ValueError as e:
        raise error(f"{subject}: could not write {str(path)!r}: {e}; no file has such a name") from e
    if stat.S_ISLNK(info.st_mode):
        return None
    if not stat.S_ISREG(info.st_mode):
        raise error(f"{subject}: could not write {path}: it is {_named(info.st_mode)}; what was there before is untouched; choose a file")
    return stat.S_IMODE(info.st_mode) & 0o777


def _temporary(path: Path, mode: int) -> tuple[BinaryIO, Path]:
    """A new file beside `path`, open and locked. Between opening and locking it another process may take it for a leftover and delete it:
    then there is another one."""
    import fcntl

    while True:
        temporary = path.with_name(f".{_short(path.name)}.{os.urandom(8).hex()}.tmp")
        handle = os.fdopen(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode), "r+b")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # a file system without locks: nobody else takes it away, either
            return handle, temporary
        if os.fstat(handle.fileno()).st_nlink:
            return handle, temporary
        handle.close()


def _short(name: str) -> str:
    return os.fsencode(name)[:LONGEST].decode(errors="replace") if len(os.fsencode(name)) > LONGEST else name


def _sync_folder(folder: Path) -> None:
    """The new name itself must survive a power cut, too."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as e:
        if e.errno not in (errno.EACCES, errno.EINVAL):  # may be written and not read, or a file system that syncs no folders
            raise


def _named(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "no regular file"


def _hint(e: OSError) -> str:
    found = HINTS.get(e.errno or 0)
    return "" if found is None else f"; {found}"
