"""Opens a GGUF file: header, metadata, and every tensor as a view of the mapped bytes.

The file is untrusted: magic, version, counts, names, types, shapes, alignment, offsets and overlap are checked before anything is
believed, so that a damaged file gives a FormatError and never a read outside of it. (A file that shrinks while it is mapped
ends the process, as with every program that maps files: do not overwrite a model in place.)
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from ...core.errors import FormatError
from ...core.files import open_file, reading
from ...ops.quant import BY_ID, BlockFormat, PackedTensor
from .metadata import Cursor, Metadata, read_metadata

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
REMOVED = {4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8"}


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """An open file. The mapping lives as long as any tensor's data does."""

    path: Path
    version: int
    alignment: int
    metadata: Metadata
    tensors: dict[str, PackedTensor]

    def __repr__(self) -> str:
        return f"GGUFFile({str(self.path)!r}, {len(self.tensors)} tensors, {self.nbytes / 1e6:.1f} MB of weights)"

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors.values())

    @property
    def architecture(self) -> str:
        return self.metadata.text("general.architecture")

    def tensor(self, name: str) -> PackedTensor:
        """The tensor `name`; FormatError when the file has none."""
        found = self.tensors.get(name)
        if found is None:
            raise FormatError(f"gguf: tensor {name!r} is missing; the file has {len(self.tensors)} tensors ({self.path})")
        return found


@dataclass(frozen=True)
class _Entry:
    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    offset: int

    @property
    def row_bytes(self) -> int:
        return self.format.row_bytes(self.shape[-1] if self.shape else 1)

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open and check a GGUF file (version 2 or 3, little endian); weights are mapped, not read.

    A model in several files (`name-00001-of-00003.gguf`) opens through the first; the others must lie beside it.
    """
    first = _open_one(Path(path))
    parts = first.metadata.integer("split.count", 0)
    if parts <= 1:
        return first
    number = first.metadata.integer("split.no", 0)
    mark = f"-{number + 1:05d}-of-{parts:05d}.gguf"
    if number != 0 or not first.path.name.endswith(mark):
        raise FormatError(f"gguf: the file is part {number + 1} of {parts}; open the one named …-00001-of-{parts:05d}.gguf ({first.path})")
    tensors = dict(first.tensors)
    for i in range(2, parts + 1):
        sibling = first.path.with_name(first.path.name.removesuffix(mark) + f"-{i:05d}-of-{parts:05d}.gguf")
        if not sibling.is_file():
            raise FormatError(f"gguf: part {i} of {parts} is missing: {sibling}")
        for name, tensor in _open_one(sibling).tensors.items():
            if name in tensors:
                raise FormatError(f"gguf: tensor {name!r:.200} stands in two parts ({sibling})")
            tensors[name] = tensor
    return GGUFFile(first.path, first.version, first.alignment, first.metadata, tensors)


def _open_one(path: Path) -> GGUFFile:
    with os.fdopen(open_file(path, subject="gguf"), "rb") as handle, reading(path, subject="gguf"):
        size = os.fstat(handle.fileno()).st_size
        if size < 24:
            raise FormatError(f"gguf: a file has at least 24 bytes, got {size}; it is truncated or no GGUF file ({path})")
        data = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    return parse(data, path)


def parse(data: memoryview, path: Path) -> GGUFFile:
    """Read the header in `data` (the whole file)."""
    cursor = Cursor(data, str(path))
    start = cursor.need(4, "the magic")
    magic = bytes(data[start : start + 4])
    if magic != MAGIC:
        raise cursor.fail(f"the magic must be b'GGUF', got {magic!r}; this is no GGUF file")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            raise cursor.fail("the file is big-endian; only little-endian files are supported")
        raise cursor.fail(f"version must be 2 or 3, got {version}; convert the model again")
    tensor_count = cursor.count("tensors", 24, 16)
    key_count = cursor.count("metadata keys", 13, 16)
    metadata = Metadata(read_metadata(cursor, key_count), str(path))
    alignment = metadata.integer("general.alignment", DEFAULT_ALIGNMENT)
    if alignment < 8 or alignment & (alignment - 1) or alignment > 1 << 30:
        raise cursor.fail(f"general.alignment must be a power of two and a multiple of 8, got {alignment}")
    entries = _entries(cursor, tensor_count)
    base = -(-cursor.at // alignment) * alignment
    _check_places(cursor, entries, base, alignment)
    return GGUFFile(path, version, alignment, metadata, {e.name: _view(data, e, base) for e in entries})


def _entries(cursor: Cursor, count: int) -> list[_Entry]:
    entries: list[_Entry] = []
    seen: set[str] = set()
    for _ in range(count):
        name = cursor.name("a tensor's name")
        if name in seen:
            raise cursor.fail(f"tensor {name!r} is there twice")
        seen.add(name)
        dims = cursor.u32(f"the rank of {name!r}")
        if dims > MAX_DIMS:
            raise cursor.fail(f"tensor {name!r} has {dims} axes, at most {MAX_DIMS} are allowed")
        shape = tuple(reversed([cursor.u64(f"the shape of {name!r}") for _ in range(dims)]))
        kind = cursor.u32(f"the type of {name!r}")
        offset = cursor.u64(f"the offset of {name!r}")
        fmt = BY_ID.get(kind)
        if fmt is None:
            known = ", which was removed from GGUF" if kind in REMOVED else ""
            raise cursor.fail(f"tensor {name!r} has unknown type {kind}{' ' + REMOVED[kind] if kind in REMOVED else ''}{known}")
        if prod(max(d, 1) for d in shape) * fmt.bytes >= 1 << 62:
            raise cursor.fail(f"tensor {name!r} has an impossible shape {list(shape)}")
        if shape and shape[-1] % fmt.elements:
            raise cursor.fail(f"tensor {name!r} is {fmt}{list(shape)}: rows must be a multiple of {fmt.elements} elements")
        if not shape and fmt.elements != 1:
            raise cursor.fail(f"tensor {name!r} is a scalar in the block format {fmt}")
        entries.append(_Entry(name, fmt, shape, offset))
    return entries


def _check_places(cursor: Cursor, entries: list[_Entry], base: int, alignment: int) -> None:
    """Every tensor is aligned, inside the file, and shares no byte with another."""
    for e in entries:
        if e.offset % alignment:
            raise cursor.fail(f"tensor {e.name!r} is at offset {e.offset}, which is no multiple of the alignment {alignment}")
        if e.nbytes and base + e.offset + e.nbytes > cursor.end:
            have = max(0, cursor.end - base - e.offset)
            raise cursor.fail(
                f"tensor {e.name!r} ({e.format}{list(e.shape)}) needs {e.nbytes} bytes, the file has {have} of them; "
                "it is truncated or damaged"
            )
    placed = sorted((e for e in entries if e.nbytes), key=lambda e: e.offset)
    for a, b in zip(placed, placed[1:], strict=False):
        if a.offset + a.nbytes > b.offset:
            raise cursor.fail(f"tensors {a.name!r} and {b.name!r} overlap: {a.offset} + {a.nbytes} > {b.offset}")


def _view(data: memoryview, e: _Entry, base: int) -> PackedTensor:
    if e.nbytes:
        view = np.frombuffer(data, np.uint8, e.nbytes, base + e.offset).reshape(e.rows, e.row_bytes)
    else:
        view = np.zeros((e.rows, e.row_bytes), np.uint8)
        view.setflags(write=False)
    return PackedTensor(e.name, e.format, e.shape, view)
