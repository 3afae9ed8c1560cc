"""Compiled ONNX models in the code cache: a start from it packs weights from the file, but neither parses nor imports it, and loads no
compiler.

The key covers the file's bytes, what the caller asked for, the machine and the source of this package. Weights that lie in the file (or in
its external data) as kernels' constants have them stay there: an entry says where, and holds what passes made of others. Models whose
entries would be large are imported anew at each start; those that are several segments have an entry for each call (`calls.py`).
"""
from __future__ import annotations

import contextlib
import os
import struct
import time
from _thread import allocate_lock
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...build.code import link
from ...build.packing import pack_constants
from ...core.config import load as load_config
from ...core.dims import DimRows
from ...core.dtypes import dtype
from ...core.errors import STRANGE, FormatError, TilewrightError
from ...core.hashing import blake2b
from ...core.target_spec import TargetSpec
from ...core.validation import Level
from ...core.words import words_of
from ...ir.types import TensorType
from ...kernels.launch import Packed
from ...runtime.archive.entry import Data, Tiles, entry_bytes, package_state, packed_tiles, read_entry, target_text
from ...runtime.archive.program_data import (
    Stored,
    interface_data,
    packed_data,
    program_data,
    read_interface,
    read_packed,
    read_program,
    read_signature,
    signature_data,
)
from ...runtime.executable import CpuExecutable
from ...runtime.session import Model, Session
from ...target.cpu.cache import SETTLED_NS, CodeCache
from .load import Source

if TYPE_CHECKING:
    from ...ir.graph import Graph
    from .session import Imported

VERSION = 7
SHARE = 8  # an entry takes at most this part of the cache
FORMS = ("plain", "panels", "words", "taps", "folded", "filters")  # that are packed without kernels of their own


def key_of(source: Source, target: TargetSpec, *options: object) -> str | None:
    """The name of a model's entry; None for a model that has none."""
    if target.kind != "cpu" or (content := content_digest(source)) is None:
        return None
    parts = ["onnx program", str(VERSION), content, package_state(), target_text(target), source._name, load_config().winograd]
    return blake2b("\0".join([*parts, *map(repr, options)]).encode(errors="surrogatepass"), digest_size=20).hexdigest()


def content_digest(source: Source) -> str | None:
    """A number that stands for a model's bytes. That of a large file is remembered with the file's identity, size and times, which nobody
    can change without changing the last of them. A file that changed just now is not remembered: clocks tick too slowly to tell."""
    if source.file is None:
        return None if source.data is None else blake2b(source.data, digest_size=20).hexdigest()
    cache, stamp = CodeCache(), source.file.stamp
    key = blake2b(repr(("onnx file", stamp)).encode(), digest_size=20).hexdigest()
    if (known := cache.get(key)) is not None:
        return known.decode("ascii", "replace")
    found = blake2b(source.content(), digest_size=20).hexdigest()
    if time.time_ns() - max(stamp[-2:]) > SETTLED_NS:
        cache.put(key, found.encode())
    return found


def save(key: str, session: Session, imported: Imported) -> None:
    """Store the program of a session just compiled."""
    executable, source, model = session.executable, imported.source, session.model
    cache = CodeCache()
    if executable is None or any(c.packed.form not in FORMS for c in executable.program.constants):
        return
    places, blobs = _Places(imported), list[bytes]()
    constants = [{"packed": packed_data(c.packed), "name": c.data.name, **_described(c.data, places, blobs)}
                 for c in executable.program.constants]
    if sum(map(len, blobs)) > cache.limit // SHARE:
        return
    files = [[name, (s := os.stat(path)).st_size, s.st_mtime_ns] for name, path in zip(source.locations, source._maps, strict=True)]
    rows = DimRows()
    header: Data = {
        "interface": interface_data(session.interface), "signature": signature_data(model.signature), "name": model.name,
        "program": program_data(executable.program, executable.code.symbols, rows), "dims": rows.rows, "constants": constants,
        "passes": model.passes,
        "objects": list(executable.code.objects), "files": files, "arguments": imported.arguments, "notes": model.notes,
        "assumed": bool(imported.assumed),
    }
    with contextlib.suppress(TypeError, ValueError):  # a name in the file that is no text
        cache.put(key, entry_bytes(header, [[packed_tiles(executable.code.tiles)], blobs, list(executable.code.objects.values())]))


class Later:
    """A function that is made when it is first called."""

    def __init__(self, make: Callable[[], Callable[..., Any]]) -> None:
        self._make, self._lock = make, allocate_lock()
        self._made: Callable[..., Any] | None = None

    @property
    def found(self) -> Any:
        """The function, None before its first call."""
        return self._made

    @property
    def made(self) -> Any:
        with self._lock:
            self._made = self._made or self._make()
        return self._made

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.made(*args, **kwargs)


class OtherSizes(Later):
    """Takes calls at sizes that a session's program does not serve: empty ones, those that the program takes for equal, and those that
    the file gives one name. `assumed`: the program takes sizes for equal that the file does not."""

    def __init__(self, make: Callable[[], Callable[..., Any]], session: Session, assumed: bool) -> None:
        super().__init__(make)
        names, types = session.interface.input_names, session.interface.inputs
        declared = {name: sizes for name, _, sizes in session.arguments[0]}
        self._inputs = {n: (str(t.dtype.np), declared[n]) for n, t in zip(names, types, strict=True)}
        self._assumed = assumed

    def instead(self, problem: TilewrightError, args: Any, kwargs: Any) -> Any:
        """The results of a call that the program refused. What is no matter of sizes stays refused."""
        given = {**dict(zip(self._inputs, args, strict=False)), **kwargs}
        if given.keys() != self._inputs.keys() or not all(_declared(given[n], *d) for n, d in self._inputs.items()):
            raise problem
        try:
            return self(**given)
        except TilewrightError as more:
            raise (more if self._assumed else problem) from None


def _declared(array: Any, kind: str, sizes: list[Any]) -> bool:
    """Whether an argument is what the file declares; `sizes` are numbers where it knows them."""
    shape = getattr(array, "shape", ())
    return str(getattr(array, "dtype", "")).removeprefix("torch.") == kind and len(shape) == len(sizes) and all(
        not isinstance(d, int) or d in (n, -1) for d, n in zip(sizes, shape, strict=True))


def load(key: str, source: Source, target: TargetSpec, graph: Callable[[], Graph], otherwise: Callable[[], Callable[..., Any]] | None, *,
         level: Level, threads: int | None) -> Session | None:
    """The session of a stored program; None when there is none. `graph` makes the graph after the passes, should somebody ask for it, and
    `otherwise` what serves sizes that the program does not."""
    data = CodeCache().get(key)
    if data is None:
        return None
    try:
        session, assumed = _session(memoryview(data), source, target, graph, level, threads)
    except (TilewrightError, *STRANGE, OSError, struct.error):
        return None  # written by something else, or files have changed: compiled again and overwritten
    if otherwise is not None and (session.interface.symbols or assumed):
        session.otherwise = OtherSizes(otherwise, session, assumed)
    return session


def _session(data: memoryview, source: Source, target: TargetSpec, graph: Callable[[], Graph], level: Level,
             threads: int | None) -> tuple[Session, bool]:
    header, ((tiles,), blobs, objects) = read_entry(data)
    for name, size, changed in header["files"]:
        found = os.stat(source.path_of(name, name))
        if [found.st_size, found.st_mtime_ns] != [size, changed]:
            raise FormatError(f"onnx: the file {name} has changed")
    interface, reader = read_interface(header["interface"])
    reader.table(header["dims"])
    pieces = _Pieces(source, blobs)
    constants = [_Weight(str(e["name"]), read_packed(e["packed"]), e, pieces) for e in header["constants"]]
    program, symbols = read_program(header["program"], constants, reader)
    code = link(symbols, {name: bytes(o) for name, o in zip(header["objects"], objects, strict=True)})
    code.tiles, code.checked = Tiles(bytes(tiles)), target.checks
    storages = pack_constants(program.constants, copies=True)
    if source.file is not None:
        source.file.check()
    for c, storage in zip(program.constants, storages, strict=True):  # the file is not needed any more
        c.data = Stored(c.data.name, c.data.type, c.packed, storage)  # type: ignore[assignment]

    def made() -> Graph:
        """The program learns which constant of the graph is its own."""
        from ...ir.text import constants_of

        found = graph()
        own = {d.name: d for d in constants_of(found).values()}
        for c in program.constants:
            same = own.get(c.data.name)
            c.data = same if same is not None and same.type == c.data.type else c.data
        return found

    model = Model(str(header["name"]), made, read_signature(header["signature"], reader, interface), target, level, framework="numpy")
    model.stored_interface, model.passes, model.notes = interface, header["passes"], header["notes"]
    session = Session(model, CpuExecutable(program, interface, code, storages), threads=threads)
    session.arguments = header["arguments"]
    return session, bool(header["assumed"])


class _Weight:
    """What `read_program` and `pack_constants` want to know of a constant. `of` and `tile` of one that Winograd's transform makes."""

    def __init__(self, name: str, packed: Packed, entry: Data, pieces: _Pieces) -> None:
        self.name, self.packed, self._entry, self._pieces = name, packed, entry, pieces
        self.type = TensorType(dtype(entry["dtype"]), tuple(map(int, entry["shape"])))
        self.tile = entry.get("tile")
        self.of = _Weight(name, Packed(), entry["transformed"], pieces) if "transformed" in entry else None

    @property
    def array(self) -> np.ndarray[Any, Any]:
        return self._pieces.array(self._entry)


# --- where weights lie


class _Places:
    """Memory of a model's initializers, and which bytes of which file it holds."""

    def __init__(self, imported: Imported) -> None:
        source, found = imported.source, list[tuple[int, int, str, int]]()
        inside = dict(initializers(source.content()))
        for name, data in zip(source.locations, source._maps.values(), strict=True):
            found.append((data.__array_interface__["data"][0], data.nbytes, name, 0))
        for i, tensor in enumerate(source.proto.graph.initializer):
            array = imported.program.constants.get(tensor.name)
            offset, nbytes = inside.get(i, (0, -1))
            if isinstance(array, np.ndarray) and array.nbytes == nbytes and array.flags.c_contiguous and nbytes:
                found.append((array.__array_interface__["data"][0], nbytes, "", offset))
        self.found = sorted(found)
        self.keys = [start for start, *_ in self.found]

    def of(self, array: np.ndarray[Any, Any]) -> list[Any] | None:
        """[file, offset, strides] of an array over one of them."""
        at = array.__array_interface__["data"][0]
        from bisect import bisect_right

        i = bisect_right(self.keys, at) - 1
        if i < 0 or not array.size or any(s < 0 for s in array.strides):
            return None
        start, nbytes, name, offset = self.found[i]
        last = at + sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
        return [name, offset + at - start, list(array.strides)] if last <= start + nbytes else None


def _described(data: Any, places: _Places, blobs: list[bytes]) -> Data:
    """How to make a constant again."""
    from ...ops.matmul.int_products import Words
    from ...ops.matmul.winograd import Transformed
    from ...ops.structure import Joined, Seen

    kind: Data = {"dtype": data.type.dtype.name, "shape": list(data.type.shape)}
    if isinstance(data, Seen):
        return {**kind, "seen": _described(data.of, places, blobs)}
    if isinstance(data, Joined):
        return {**kind, "joined": [_described(p, places, blobs) for p in data.parts], "axis": data.axis}
    if isinstance(data, Words):
        return {**kind, "words": _described(data.of, places, blobs)}
    if isinstance(data, Transformed):
        return {**kind, "transformed": _described(data.of, places, blobs), "tile": data.tile}
    array = data.array
    place = places.of(array)
    if place is not None:
        return {**kind, "place": place}
    blobs.append(np.ascontiguousarray(array).tobytes())
    return {**kind, "blob": len(blobs) - 1}


class _Pieces:
    """What constants are made of: the model's file, its external data, and pieces of the entry. Arrays are views where they can be."""

    def __init__(self, source: Source, blobs: list[memoryview]) -> None:
        self._source, self._blobs, self._content = source, blobs, source.content()

    def array(self, entry: Data) -> np.ndarray[Any, Any]:
        kind, shape = dtype(entry["dtype"]).np, tuple(entry["shape"])
        if "joined" in entry:
            return np.concatenate([self.array(e) for e in entry["joined"]], entry["axis"])
        if "seen" in entry:
            return self.array(entry["seen"]).view(kind).reshape(shape)
        if "words" in entry:
            return words_of(self.array(entry["words"]))
        if "transformed" in entry:
            from ...core.winograd import transformed

            of = self.array(entry["transformed"])
            return transformed(of, entry["tile"], small=of.dtype == kind)
        if "blob" in entry:
            return np.frombuffer(self._blobs[entry["blob"]], np.uint8).view(kind).reshape(shape)
        name, offset, strides = entry["place"]
        data: Any = self._source.mapped(self._source.path_of(name, name)) if name else self._content
        return np.ndarray(shape, kind, data, offset, strides)


def initializers(data: memoryview) -> Iterator[tuple[int, tuple[int, int]]]:
    """(number, (offset, size)) of initializers whose elements lie in the file as raw data."""
    for field, start, end in _fields(data, 0, len(data)):
        if field == 7:  # ModelProto.graph
            number = 0
            for inner, a, b in _fields(data, start, end):
                if inner == 5:  # GraphProto.initializer
                    raw = [(p, q) for f, p, q in _fields(data, a, b) if f == 9]  # TensorProto.raw_data
                    if raw:
                        yield number, (raw[-1][0], raw[-1][1] - raw[-1][0])
                    number += 1


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field, first byte, last byte + 1) of the fields of a protocol buffer that have a length; others are passed over."""
    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < end:
        tag = varint()
        kind = tag & 7
        if kind == 0:
            varint()
        elif kind == 2:
            size = varint()
            yield tag >> 3, at, at + size
            at += size
        else:
            at += {1: 8, 5: 4}[kind]
