"""Entries of the code cache that hold a whole program: plain data, and groups of pieces of bytes. An entry is trusted as the object code
beside it is: the folder is the user's own."""
from __future__ import annotations

import contextlib
import functools
import marshal
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any

from ... import __version__
from ...core.hashing import blake2b
from ...core.records import fields
from ...core.target_spec import TargetSpec

Data = dict[str, Any]
APART = {"__pycache__", "cuda", "cli", "dynamo", "optim", "splat", "training"}  # folders whose code no stored program depends on


def entry_bytes(header: Data, groups: list[list[bytes]]) -> bytes:
    """An entry: plain data, and groups of pieces of bytes."""
    import json

    plain = json.loads(json.dumps({**header, "sizes": [[len(b) for b in g] for g in groups]}))  # or the error of what is no plain data
    text = marshal.dumps(plain, 4)
    return struct.pack("<Q", len(text)) + b"".join([text, *(b for g in groups for b in g)])


def read_entry(data: memoryview) -> tuple[Data, list[list[memoryview]]]:
    (n_text,) = struct.unpack_from("<Q", data)
    at = 8 + n_text
    try:
        header: Data = marshal.loads(data[8:at])
    except EOFError as e:
        raise ValueError("an entry that ends early") from e
    pieces: list[list[memoryview]] = []
    for sizes in header["sizes"]:
        pieces.append([])
        for n in sizes:
            pieces[-1].append(data[at : at + n])
            at += n
    if at != len(data):
        raise ValueError("an entry that is too short or too long")
    return header, pieces


def target_text(target: TargetSpec) -> str:
    """All that a target says, for keys."""
    told = [(f.name, getattr(target, f.name)) for f in fields(target)]
    return repr([(name, sorted(v) if isinstance(v, frozenset) else v) for name, v in told])


@functools.cache
def package_state() -> str:
    """The state of this package's own files that shape programs of CPUs: sizes and times, since reading them all would take longer than
    the rest. Of an installed release it is that of the list which the installer wrote."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    with contextlib.suppress(OSError):
        return repr(((s := os.stat(f"{root}-{__version__}.dist-info/RECORD")).st_size, s.st_mtime_ns))
    return blake2b(repr(sorted(_files(root, len(root)))).encode(), digest_size=10).hexdigest()


def _files(folder: str, root: int) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    with os.scandir(folder) as entries:
        for e in entries:
            if e.name.endswith(".py"):
                s = e.stat()
                found.append((e.path[root:], s.st_size, s.st_mtime_ns))
            elif e.name not in APART and e.is_dir():
                found += _files(e.path, root)
    return found


def packed_tiles(tiles: Mapping[str, str]) -> bytes:
    import json
    import zlib

    return zlib.compress(json.dumps(dict(tiles)).encode(), 1)


class Tiles(Mapping[str, str]):
    """Tile IR by symbol, unpacked when a report asks for it."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed

    @functools.cached_property
    def _texts(self) -> dict[str, str]:
        import json
        import zlib

        found: dict[str, str] = json.loads(zlib.decompress(self._packed))
        return found

    def __getitem__(self, symbol: str) -> str:
        return self._texts[symbol]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)
