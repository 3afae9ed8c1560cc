"""The object-code cache on disk: one checksummed file per kernel, named by the hash of everything that shaped its code.

The folder must be the user's own and closed to others (0700): what lies in it is run as machine code. Whatever is wrong with the
folder or an entry, a compile goes on without it and says so in `notes`, of the folder also in the log. Entries are written to a temporary
name and renamed, so no lock is needed; reading refreshes an entry's time stamp, and the oldest go first when the folder is over its bound.
Only files with the name and the header of an entry are ever deleted: the folder may hold other things of the user's.
"""
from __future__ import annotations

import contextlib
import functools
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...core.config import Config, load, user_folder
from ...core.errors import FileError
from ...core.files import open_file, remove_leftovers, write_file
from ...core.hashing import blake2b
from ...core.records import dataclass
from ...core.target_spec import TargetSpec
from .jit import DEFAULT_OPT, OptLevel, compile_many, llvm_version, pass_options

if TYPE_CHECKING:
    from pathlib import Path

ABI_VERSION = 1  # layout of thunks, argument words and the kernel signature

_MAGIC = b"TWOBJ1\n\0"
_SUM = 16  # bytes of checksum behind the magic
_SUFFIX = ".o"
_NAME = re.compile(r"[0-9a-f]{40}\.o")
_TOUCH_SECONDS = 3600.0
SETTLED_NS = 2_000_000_000  # since the last change of a file: clocks tick too slowly to tell two changes apart


Source = tuple[str, Callable[[], str]]


@dataclass(frozen=True)
class Entry:
    """One file of the cache."""

    key: str
    nbytes: int
    used: float  # seconds since the epoch


def default_folder() -> str | None:
    """Ours in the user's cache folder; None for a user without one."""
    base = user_folder("XDG_CACHE_HOME", ".cache")
    return None if base is None else os.path.join(base, "tilewright")


@functools.cache
def _warn(note: str) -> None:
    """Once a process: every compile meets the same folder."""
    import logging

    logging.getLogger("tilewright").warning(note)


@functools.cache
def codegen_version() -> str:
    """A hash of the code generator's own source: whoever changes it cannot forget to change the keys. It is remembered with the sizes and
    times of the files."""
    paths, stats = list[str](), list[tuple[Any, ...]]()
    for name in ("target/cpu", "tile"):
        with os.scandir(os.path.join(os.path.dirname(__file__), "..", "..", name)) as found:
            for item in sorted((i for i in found if i.name.endswith(".py")), key=lambda i: i.name):
                paths.append(item.path)
                stats.append((item.path, (s := item.stat()).st_size, s.st_mtime_ns, s.st_ctime_ns))
    cache, key = CodeCache(), blake2b(repr(("codegen", stats)).encode(), digest_size=20).hexdigest()
    if (known := cache.get(key)) is not None:
        return known.decode()
    digest = blake2b(digest_size=10)
    for path in paths:
        with open(path, "rb") as file:
            digest.update(file.read())
    if time.time_ns() - max(s[-1] for s in stats) > SETTLED_NS:
        cache.put(key, digest.hexdigest().encode())
    return digest.hexdigest()


def object_key(text: str, target: TargetSpec, opt: OptLevel = DEFAULT_OPT) -> str:
    """The name of the code for `text` (LLVM IR, or a kernel that our emitter turns into it) on `target`."""
    return blake2b(_salt(target, opt) + text.encode(), digest_size=20).hexdigest()


@functools.lru_cache(maxsize=64)
def _salt(target: TargetSpec, opt: OptLevel) -> bytes:
    versions = f"{llvm_version()} abi {ABI_VERSION} codegen {codegen_version()}"
    checks = ("checks",) if target.checks else ()
    return "\0".join((target.triple, target.cpu, target.feature_string, versions, pass_options(opt), *checks, "")).encode()


class CodeCache:
    """The cache in one folder. `folder=None` means: no cache, `notes` says why."""

    def __init__(self, config: Config | None = None) -> None:
        config = load() if config is None else config
        self.notes: list[str] = []
        self.limit = config.cache_bytes
        self._folder = self._open(config.cache_dir) if self.limit > 0 else None
        self._writable = self._folder is not None
        self._written = 0
        if self.limit == 0:
            self.notes.append("cache: switched off (TILEWRIGHT_CACHE_BYTES=0)")

    @property
    def folder(self) -> Path | None:
        from pathlib import Path

        return None if self._folder is None else Path(self._folder)

    def _path(self, key: str) -> str:
        return f"{self._folder}/{key}{_SUFFIX}"

    def _open(self, given: str | None) -> str | None:
        folder = default_folder() if given is None else given
        problem = _problem(folder)
        if problem:
            self.notes.append(f"cache: {problem}")
            _warn(self.notes[-1])
        return None if problem else folder

    def get(self, key: str) -> bytes | None:
        """The object code stored under `key`; a damaged entry counts as absent, and is replaced by the next `put`."""
        if self._folder is None:
            return None
        path = self._path(key)
        try:
            with os.fdopen(open_file(path, subject="cache"), "rb", buffering=0) as file:
                data = file.read()
                used = os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        except OSError as problem:
            self.notes.append(f"cache: cannot read {path} ({problem.strerror or problem})")
            return None
        head = len(_MAGIC) + _SUM
        if data[:len(_MAGIC)] != _MAGIC or data[len(_MAGIC):head] != _checksum(key, data[head:]):
            self.notes.append(f"cache: entry {key} is damaged; compiled again")
            return None
        if time.time() - used > _TOUCH_SECONDS:
            with contextlib.suppress(OSError):  # a read-only folder keeps its old order
                os.utime(path)
        return data[head:]

    def put(self, key: str, code: bytes) -> None:
        """Store `code`; the first failure is noted and ends writing for this process."""
        if self._folder is None or not self._writable:
            return
        data = _MAGIC + _checksum(key, code) + code
        try:
            write_file(self._path(key), data, subject="cache", sync=False)
        except FileError as problem:
            self._writable = False
            self.notes.append(f"{problem}; compiling without storing")
            return
        self._written += len(data)

    def entries(self) -> list[Entry]:
        """All entries, the least recently used first."""
        return sorted((Entry(name.removesuffix(_SUFFIX), size, used) for name, size, used in self._files()),
                      key=lambda entry: (entry.used, entry.key))

    def clear(self) -> int:
        """Delete every entry; gives their number."""
        if self._folder is None:
            return 0
        remove_leftovers(self._folder, _NAME)
        return sum(self._remove(entry) for entry in self.entries())

    def trim(self) -> None:
        """Delete the least recently used entries until the folder is within its bound, and what a killed process left behind."""
        if self._folder is None:
            return
        remove_leftovers(self._folder, _NAME)
        found = self.entries()
        total = sum(entry.nbytes for entry in found)
        for entry in found:
            if total <= self.limit:
                break
            self._remove(entry)
            total -= entry.nbytes

    def compile(self, texts: Sequence[str], target: TargetSpec, opt: OptLevel = DEFAULT_OPT, *,
                threads: int | None = None) -> tuple[list[bytes], int]:
        """Object code of every module, from the cache or compiled now (and stored); and how many were compiled."""
        return self.build([(text, functools.partial(str, text)) for text in texts], target, opt, threads=threads)

    def build(self, sources: Sequence[Source], target: TargetSpec, opt: OptLevel = DEFAULT_OPT, *,
              threads: int | None = None) -> tuple[list[bytes], int]:
        """The same for modules that are written only when needed: a text that stands for the module, and a function that gives its IR.

        Writing goes on here while other threads compile what is written already.
        """
        keys = [object_key(name, target, opt) for name, _ in sources]
        compiled = {key: self.get(key) for key in dict.fromkeys(keys)}
        fresh = {key: source for key, source in zip(keys, sources, strict=True) if compiled[key] is None}
        order = sorted(fresh, key=lambda key: -len(fresh[key][0]))  # the longest first: it decides when all are done
        built = compile_many((fresh[key][1]() for key in order), target, opt, threads=threads) if order else []  # or LLVM stays unloaded
        for key, made in zip(order, built, strict=True):
            compiled[key] = made
            self.put(key, made)
        if self._written:
            self.trim()
            self._written = 0
        return [code for key in keys if (code := compiled[key]) is not None], len(fresh)

    def _files(self) -> Iterator[tuple[str, int, float]]:
        if self._folder is None:
            return
        try:
            with os.scandir(self._folder) as listing:
                for item in listing:
                    if _NAME.fullmatch(item.name) is None:
                        continue
                    with contextlib.suppress(OSError):  # another process may have deleted it meanwhile
                        info = item.stat(follow_symlinks=False)
                        if stat.S_ISREG(info.st_mode):
                            yield item.name, info.st_size, info.st_mtime
        except OSError as problem:
            self.notes.append(f"cache: cannot list {self._folder} ({problem.strerror})")

    def _remove(self, entry: Entry) -> bool:
        """Delete a file that begins as entries do."""
        path = self._path(entry.key)
        try:
            with os.fdopen(open_file(path, subject="cache"), "rb", buffering=0) as file:
                ours = file.read(len(_MAGIC)) == _MAGIC
            if ours:
                os.unlink(path)
        except OSError:
            return False
        return ours


def _problem(folder: str | None) -> str:
    """Why a folder cannot be used; "" where it can. It is made where it is missing."""
    if folder is None:
        return "there is no home folder (HOME is not set); compiling without a cache, set TILEWRIGHT_CACHE_DIR"
    try:
        if not os.path.exists(folder):
            os.makedirs(os.path.dirname(folder), exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another process makes it, too
                os.mkdir(folder, 0o700)
        info = os.stat(folder)
    except OSError as problem:
        return f"cannot use {folder} ({problem.strerror}); compiling without a cache"
    if not stat.S_ISDIR(info.st_mode):
        return f"{folder} is no folder; compiling without a cache"
    if info.st_uid != os.getuid():
        return f"{folder} belongs to another user (uid {info.st_uid}); compiling without a cache"
    if info.st_mode & 0o022:
        return f"others may write to {folder}; compiling without a cache, run: chmod 700 {folder}"
    return ""


def _checksum(key: str, code: bytes) -> bytes:
    return blake2b(code, digest_size=_SUM, key=key.encode()).digest()
