"""A session in one file: `save` and `load`. No pickle, nothing in the file is run or imported unless its code is authenticated.

    0   magic · 8 header bytes' length · 16 authentication code (32) · 48 checksum of the header (16) · 64 header (JSON)
    then, from the next multiple of 4096 on, the data: object code, then constants at multiples of 64, as the kernels read them

Constants are stored once, packed, and mapped into memory. The header holds the program for the CPU that wrote it and the graph for any
other. The authentication code covers header and object code, under a key that only this user can read (`user_key.py`); with another key,
or another CPU, the graph is compiled again and weights are unpacked from their stored form: the session's notes and the log
`tilewright` say so and why. Of a session on a GPU the file holds the graph; its kernels are in the cache on disk.
Every size is checked against the file before use.
"""
from __future__ import annotations

import hashlib
import hmac
import json
import logging
import mmap
import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..core.dtypes import dtype
from ..core.errors import FormatError, ParseError
from ..core.target_spec import TargetSpec
from ..core.validation import Level
from ..ir.types import TensorType
from ..kernels.launch import Packed, Program
from ..target.cpu.cache import ABI_VERSION
from ..target.cpu.host import host_target
from .code import link
from .executable import Executable
from .packing import Array, packed_shape, unpack
from .program_data import (
    Data,
    interface_data,
    packed_data,
    program_data,
    read_interface,
    read_packed,
    read_program,
    read_signature,
    signature_data,
)
from .session import Model, Session
from .user_key import user_key

if TYPE_CHECKING:
    from ..ir.graph import Graph
    from ..ops.structure import ConstantData
    from .cuda_session import CudaSession

MAGIC = b"TILEWRT\x01"
HEAD = 64
PAGE, ALIGNMENT = 4096, 64
VERSION = 6
MAX_HEADER = 256 << 20
Rebuild = Callable[..., Session]
LOG = logging.getLogger("tilewright")


def save(session: Session | CudaSession, path: str | PathLike[str]) -> None:
    """Write `session` to `path`, through a temporary file that is renamed when it is complete."""
    from ..ir.text import constants_of, to_text

    model = session.model
    executable = session.executable if isinstance(session.executable, Executable) else None  # a GPU's code is in its cache on disk
    stored: list[tuple[ConstantData, Packed, Array]] = []
    if executable is not None:
        stored = [(c.data, c.packed, a) for c, a in zip(executable.program.constants, executable.constants, strict=True)]
    where: dict[ConstantData, int] = {}
    for i, (data, _, _) in enumerate(stored):
        where.setdefault(data, i)
    in_program = len(stored)
    named: dict[str, int] = {}
    for name, data in constants_of(model.graph).items():
        if data not in where:
            where[data] = len(stored)
            stored.append((data, Packed(), np.ascontiguousarray(data.array)))
        named[name] = where[data]
    objects = {} if executable is None else executable.code.objects
    blobs: list[tuple[int, Any]] = []
    position = 0

    def place(nbytes: int, content: Any) -> int:
        nonlocal position
        offset = -(-position // ALIGNMENT) * ALIGNMENT
        blobs.append((offset, content))
        position = offset + nbytes
        return offset

    code = {symbol: [place(len(data), data), len(data)] for symbol, data in objects.items()}
    code_end = position
    constants = [{"name": d.name, "dtype": d.type.dtype.name, "shape": list(d.type.shape), "packed": packed_data(p),
                  "nbytes": int(a.nbytes), "offset": place(int(a.nbytes), a)} for d, p, a in stored]
    header: Data = {
        "version": VERSION, "tilewright": __version__, "abi": ABI_VERSION, "name": model.name, "target": _target_data(model.target),
        "interface": interface_data(session.interface), "signature": signature_data(model.signature), "graph": to_text(model.graph),
        "graph_constants": named, "constants": constants, "in_program": in_program, "code": code, "code_end": code_end,
        "program": None if executable is None else program_data(executable.program, executable.code.symbols),
        "tiles": {} if executable is None else dict(executable.code.tiles), "framework": model.framework,
        "passes": model.passes, "data_bytes": position,
    }
    key, problem = user_key(create=True)
    if key is None and objects:
        LOG.warning("%s is saved without authentication, loading it will compile again: %s", os.fspath(path), problem)
    _write(os.fspath(path), header, blobs, b"".join(objects.values()), key)


def _write(path: str, header: Data, blobs: list[tuple[int, Any]], code: bytes, key: bytes | None) -> None:
    try:
        text = json.dumps(header, separators=(",", ":")).encode()
    except TypeError as e:
        raise FormatError(f"archive: the signature holds a value that cannot be saved ({e})") from None
    mac = hmac.digest(key, text + code, "sha256") if key is not None else bytes(32)
    start = -(-(HEAD + len(text)) // PAGE) * PAGE
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise FormatError(f"archive: {path} is no regular file; it would be replaced by one")
    temporary = f"{path}.{os.getpid()}.{secrets.token_hex(4)}.new"
    try:
        with open(temporary, "xb") as file:
            file.write(MAGIC + struct.pack("<Q", len(text)) + mac + _checksum(text) + text)
            for offset, content in blobs:
                file.seek(start + offset)
                file.write(content if isinstance(content, bytes) else _raw(content))
            file.truncate(start + header["data_bytes"])
        os.replace(temporary, path)
    except BaseException as e:
        if os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(e, OSError):  # say the name that the user gave, not our temporary one
            raise type(e)(e.errno, e.strerror, path) from None
        raise


def _raw(array: Array) -> Any:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b""


def _checksum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _target_data(t: TargetSpec) -> Data:
    """What machine code depends on."""
    return {"kind": t.kind, "triple": t.triple, "cpu": t.cpu, "features": t.feature_string}


class _File:
    """A mapped archive whose header has been checked."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(HEAD)
            if len(head) < HEAD or head[:8] != MAGIC:
                raise FormatError(f"archive: {path} is not a saved session")
            (length,) = struct.unpack("<Q", head[8:16])
            if length > min(size - HEAD, MAX_HEADER):
                raise self.broken("the header is cut off")
            self.text = file.read(length)
            if len(self.text) != length or _checksum(self.text) != head[48:64]:
                raise self.broken("the header does not match its checksum")
            self.mac = head[16:48]
            self.start = -(-(HEAD + length) // PAGE) * PAGE
            self.size = max(0, size - self.start)
            self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.header: Data = json.loads(self.text)
        except (ValueError, RecursionError):
            raise self.broken("the header is not JSON") from None
        if not isinstance(self.header, dict) or self.header.get("version") != VERSION:
            raise FormatError(f"archive: {path} has another version of the format; save it again with this release")
        if self.header.get("data_bytes") != self.size:
            raise self.broken(f"it holds {self.size} bytes of data, {self.header.get('data_bytes')} were written")

    def broken(self, what: str) -> FormatError:
        return FormatError(f"archive: {self.path} is damaged: {what}")

    def section(self, offset: Any, nbytes: Any) -> memoryview:
        if type(offset) is not int or type(nbytes) is not int or offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise self.broken(f"a section lies outside the file ({offset!r:.20}, {nbytes!r:.20})")
        return memoryview(self.map)[self.start + offset : self.start + offset + nbytes]

    def code(self) -> dict[str, bytes]:
        return {str(symbol): bytes(self.section(*at)) for symbol, at in self.header["code"].items()}

    def constants(self) -> list[tuple[Data, Packed, Array]]:
        """(entry, form, mapped storage) of every constant."""
        found = []
        for entry in self.header["constants"]:
            packed, shape, kind = read_packed(entry["packed"]), entry["shape"], dtype(entry["dtype"])
            if not all(type(n) is int and n >= 0 for n in shape):
                raise self.broken(f"a constant has the shape {shape!r:.60}")
            want = packed_shape(shape, packed)
            count = 1
            for n in want:
                count *= n
            if count * kind.itemsize != entry["nbytes"] or entry["offset"] % ALIGNMENT:
                raise self.broken(f"constant {entry['name']!r:.60} has {entry['nbytes']!r:.20} bytes, needs {count * kind.itemsize}")
            raw = np.frombuffer(self.section(entry["offset"], entry["nbytes"]), np.uint8)
            found.append((entry, packed, raw.view(kind.np).reshape(want)))
        return found


def load(path: str | PathLike[str], *, rebuild: Rebuild, threads: int | None = None, trust: bool = False,
         level: Level = "normal") -> Session:
    """The session in the file. `rebuild(model, threads=)` compiles from the graph where the stored code cannot be used."""
    file = _File(os.fspath(path))
    try:
        interface, reader = read_interface(file.header["interface"])
        signature = read_signature(file.header["signature"], reader)
        stored = file.constants()
        target = host_target()
        data = [Stored(str(e["name"]), TensorType(dtype(e["dtype"]), tuple(e["shape"])), packed, storage) for e, packed, storage in stored]
        program: Program | None = None
        model = Model(str(file.header["name"]), lambda: _graph(file, data, program), signature, target, level, framework="numpy")
        model.stored_interface = interface
        model.passes = file.header["passes"]
        reason = _why_not(file, target, trust)
        if reason is None:
            count = file.header["in_program"]
            program, symbols = read_program(file.header["program"], data[:count], reader)
            code = link(symbols, file.code())
            code.tiles = dict(file.header["tiles"])
            return Session(model, Executable(program, interface, code, [d.storage for d in data[:count]]), threads=threads)
        if file.header["target"]["kind"] == "reference":
            from ..core.target_spec import REFERENCE

            model.target = REFERENCE
        elif file.header["target"]["kind"] == "cuda":
            from .cuda_build import cuda_target_of
            from .cuda_driver import available

            arch = str(file.header["target"]["cpu"])
            here = cuda_target_of("cuda")
            model.target = here if available() == "" else cuda_target_of(arch)
        else:
            model.notes.append(f"{file.path}: compiled again from the stored graph: {reason}")
            LOG.warning(model.notes[-1])
    except (KeyError, TypeError, ValueError, AttributeError, ParseError) as e:
        raise file.broken(f"{type(e).__name__}: {str(e)[:100]}") from e
    return rebuild(model, threads=threads)


def _why_not(file: _File, target: TargetSpec, trust: bool) -> str | None:
    """Why the stored machine code must not run here; None when it may."""
    header = file.header
    if header["program"] is None:
        return "it holds no machine code"
    if header["target"] != _target_data(target):
        there = header["target"]["cpu"]
        return f"its machine code is for another kind of CPU ({there!r:.40}; this is {target.cpu!r}, perhaps with other features)"
    if (header["abi"], header["tilewright"]) != (ABI_VERSION, __version__):
        return f"its machine code is of another release ({header['tilewright']!r:.20}, this is {__version__!r})"
    if trust:
        return None
    key, problem = user_key()
    if key is None:
        return f"its machine code was not written by this user, as far as can be told: {problem}"
    code = b"".join(file.code().values())
    if not hmac.compare_digest(hmac.digest(key, file.text + code, "sha256"), file.mac):
        return "its machine code was not written by this user, or the file was changed since"
    return None


@dataclass(eq=False)
class Stored:
    """A constant of a file, in the form it is stored. It stands in for the graph's ConstantData until the graph is wanted."""

    name: str
    type: TensorType
    packed: Packed
    storage: Array


def _graph(file: _File, data: list[Stored], program: Program | None) -> Graph:
    """The stored graph. Plain forms of the constants are made here; the program learns which constant of the graph is its own."""
    from ..ir.parse import parse
    from ..ops.structure import ConstantData

    plain = [ConstantData(unpack(d.storage, d.type, d.packed), d.name) for d in data]
    for constant, known in zip(() if program is None else program.constants, plain, strict=False):
        constant.data = known
    try:
        return parse(file.header["graph"], {name: plain[i] for name, i in file.header["graph_constants"].items()})
    except (ParseError, IndexError, TypeError, AttributeError, KeyError) as e:
        raise file.broken(f"the graph cannot be read: {e}") from e
