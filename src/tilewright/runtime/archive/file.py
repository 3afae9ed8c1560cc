"""The file of a saved session: a head, a header of plain data, and sections of bytes. This module knows no session.

    0   magic · 8 header bytes' length · 16 authentication code (32) · 48 checksum of the header (16) · 64 header (JSON)
    then, from the next multiple of 4096 on, the sections at multiples of 64: object code, then constants as the kernels read them

The header holds a checksum of every section. So the authentication code (HMAC-SHA256 of the header) and the digest (its SHA-256) cover
every byte that is used. A file is read once, into memory of our own: nobody can change what has been checked.
"""
from __future__ import annotations

import hmac
import json
import os
import struct
from collections.abc import Sequence
from hashlib import sha256
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from ...core.checksums import DIGITS, Reading, checksums, count_pieces
from ...core.errors import STRANGE, CompileError, FormatError, ParseError, ShapeError, TilewrightError, VerifyError
from ...core.files import open_file, reader_of, reading, write_file
from ...core.hashing import blake2b
from ..memory import Allocation, available

Data = dict[str, Any]
# What a reader of damaged or invented data may raise; the others are somebody else's fault (a setting, memory, an interrupt).
DAMAGE = (FormatError, ParseError, ShapeError, VerifyError, CompileError, *STRANGE)
Array = np.ndarray[Any, Any]
Section = tuple[str, int, int]  # what it holds, offset behind the header, bytes

MAGIC = b"TILEWRT\x01"
HEAD = 64
PAGE, ALIGNMENT = 4096, 64
VERSION = 6
MAX_HEADER = 32 << 20  # a model with a hundred layers has 2 MB. As Python objects it may take twenty times that
KINDS: dict[type, str] = {int: "an integer", str: "a text", list: "a list", dict: "a mapping", bool: "true or false"}


class Sections:
    """Lays sections out and gives each its offset; `write` writes them behind a header."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._placed: list[tuple[int, memoryview]] = []

    def place(self, content: bytes | Array) -> int:
        raw = memoryview(content) if isinstance(content, bytes) else _raw(content)
        offset = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        self._placed.append((offset, raw))
        self.nbytes = offset + len(raw)
        return offset

    def write(self, path: str, header: Data, key: bytes | None) -> None:
        """`header` with the sections' size and checksums, authenticated by `key` where there is one, and the sections."""
        full = {"version": VERSION, **header, "data_bytes": self.nbytes, "sums": checksums([raw for _, raw in self._placed])}
        try:
            text = json.dumps(full, separators=(",", ":")).encode()
        except TypeError as e:
            raise FormatError(f"archive: the signature holds a value that cannot be saved ({e})") from None
        if len(text) > MAX_HEADER:
            raise FormatError(f"archive: the header of {path} must have at most {MAX_HEADER} bytes, got {len(text)}; save parts of it")
        mac = hmac.digest(key, text, "sha256") if key is not None else bytes(32)
        start = -(-(HEAD + len(text)) // PAGE) * PAGE

        def write(file: BinaryIO) -> None:
            file.write(MAGIC + struct.pack("<Q", len(text)) + mac + checksum(text) + text)
            for offset, raw in self._placed:
                file.seek(start + offset)
                file.write(raw)
            file.truncate(start + self.nbytes)

        write_file(path, write, subject="archive")


def _raw(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else memoryview(b"")


def checksum(text: bytes) -> bytes:
    return blake2b(text, digest_size=16).digest()


class SavedFile:
    """An open file whose header has been read and checked. Errors inside a `with` name the file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._pending: list[tuple[Reading, Sequence[Section]]] = []
        self._descriptor = open_file(path, subject="archive")
        try:
            with reading(path, subject="archive"):
                self._read()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _read(self) -> None:
        size = os.fstat(self._descriptor).st_size
        head = os.pread(self._descriptor, HEAD, 0)
        if len(head) < HEAD or head[:8] != MAGIC:
            raise FormatError(f"archive: {self.path} is not a saved session{reader_of(self.path, '.tw')}")
        (length,) = struct.unpack("<Q", head[8:16])
        if length > min(size - HEAD, MAX_HEADER):
            raise self.broken(f"the header of {length} bytes is cut off, or longer than {MAX_HEADER}")
        text = bytearray(length)
        whole = Reading(self._descriptor, [(HEAD, memoryview(text), None)]).finish() is None
        self.text, self.mac = bytes(text), head[16:48]
        if not whole or checksum(self.text) != head[48:64]:
            raise self.broken("the header does not match its checksum")
        self.start = -(-(HEAD + length) // PAGE) * PAGE
        self.size = max(0, size - self.start)
        try:
            self.header: Data = json.loads(self.text)
        except (ValueError, RecursionError) as e:
            raise self.broken(f"the header is not JSON: {e!r:.80}") from None
        if not isinstance(self.header, dict) or self.header.get("version") != VERSION:
            found = self.header.get("version") if isinstance(self.header, dict) else None
            raise FormatError(f"archive: {self.path} has version {found!r:.20} of the format, and this release reads version {VERSION}; "
                              "save it again with this release")
        if self.header.get("data_bytes") != self.size:
            raise self.broken(f"it holds {self.size} bytes of data, {self.header.get('data_bytes')!r:.20} were written")

    def __enter__(self) -> SavedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for pending, _sections in self._pending:
            pending.stop()
        os.close(self._descriptor)
        if isinstance(error, OSError) and not isinstance(error, TilewrightError):
            with reading(self.path, subject="archive"):
                raise error
        if isinstance(error, DAMAGE) and self.path not in str(error):
            said = str(error).removeprefix("archive: ") if isinstance(error, TilewrightError) else f"{type(error).__name__}: {error}"
            raise self.broken(said[:200]) from error

    def broken(self, what: str) -> FormatError:
        return FormatError(f"archive: {self.path} is damaged: {what}; use another copy, or save it again")

    def field(self, name: str, kind: type, within: Data | None = None, path: str = "") -> Any:
        """A field of the header (or of a mapping in it), which must have this type."""
        data = self.header if within is None else within
        if name not in data or type(data[name]) is not kind:
            found = f"got {data[name]!r:.40}" if name in data else "there is none"
            raise self.broken(f"the field '{path}{name}' must be {KINDS[kind]}, {found}")
        return data[name]

    @property
    def digest(self) -> str:
        """A number that stands for all that the file holds."""
        return sha256(self.text).hexdigest()

    def begin(self, sections: Sequence[Section], first: int) -> list[Array]:
        """Memory of sections, of which the first one is number `first` of the file, being read from now on: `finish` waits for it."""
        sums = self.field("sums", list)[first : first + len(sections)]
        if len(sums) != len(sections):
            raise self.broken(f"the field 'sums' has no checksum for each of {len(sections)} sections")
        total = 0
        for (what, offset, nbytes), s in zip(sections, sums, strict=True):
            if offset < 0 or nbytes < 0 or offset % ALIGNMENT or offset + nbytes > self.size:
                raise self.broken(f"{what} lies at {offset!r:.20} with {nbytes!r:.20} bytes, outside {self.size} bytes of data")
            if type(s) is not str or len(s) != DIGITS * count_pieces(nbytes):
                raise self.broken(f"the checksum of {what} does not fit its {nbytes} bytes, got {s!r:.40}")
            total += -(-nbytes // ALIGNMENT) * ALIGNMENT
        if total > -(-self.size // ALIGNMENT) * ALIGNMENT:
            raise self.broken(f"its sections overlap: they have {total} bytes, the file has {self.size}")
        if total > (room := available()):
            raise FormatError(f"archive: {self.path} needs {total:,} bytes of memory, and {room:,} are available")
        block = Allocation(total).array(np.uint8, (total,))
        found: list[Array] = []
        at = 0
        for _, _, nbytes in sections:
            found.append(block[at : at + nbytes])
            at += -(-nbytes // ALIGNMENT) * ALIGNMENT
        places = [(self.start + s[1], f.data, c) for s, f, c in zip(sections, found, sums, strict=True)]
        self._pending.append((Reading(self._descriptor, places), sections))
        for f in found:
            f.flags.writeable = False
        return found

    def finish(self) -> None:
        """Wait for what is being read. A byte that is not as it was written is an error that names the section."""
        while self._pending:
            pending, sections = self._pending[-1]
            wrong = pending.finish()
            self._pending.pop()
            if wrong is not None:
                raise self.broken(f"{sections[wrong[0]][0]} does not match its checksum, at or after its byte {wrong[1]}")

    def read(self, sections: Sequence[Section], first: int) -> list[Array]:
        """The bytes of sections."""
        found = self.begin(sections, first)
        self.finish()
        return found
