"""Links the objects of our own code generator into this process without LLVM: loading LLVM takes 45 MB and a tenth of a second, and a
program whose code is in the cache needs nothing else of it.

It knows what LLVM writes for our modules on x86-64: code, read-only data, zeroed data, 32-bit distances. `link_elf` gives None for
anything else, and LLVM's own linker is used. Sections of all objects are gathered by what may be done with them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
import weakref
from _thread import allocate_lock
from collections import deque
from collections.abc import Iterable, Mapping

from ...core.errors import CompileError
from ...core.records import dataclass, field

# Memory for machine code, cut from a few large mappings: a process may have some 65,000 mappings, and a program of its own each for code
# and constants would use them up.
# A slab is one mapping in three zones with rights of their own: code is run and read, constants are read, data is written. An image takes
# whole pages of each zone. Its pages can be written until it is sealed and never again; other images' pages stay as they are, so the system
# merges neighbours and a slab is three mappings. No page can be written and run.
ZONE = 4 << 20  # bytes of one zone, at least
RIGHTS = (mmap.PROT_READ | mmap.PROT_EXEC, mmap.PROT_READ, mmap.PROT_READ | mmap.PROT_WRITE)
CODE, CONSTANTS, DATA = range(3)
Sizes = tuple[int, int, int]


class Slab:
    """One mapping. Free pages of a zone are runs (first byte, end), in order."""

    def __init__(self, zone: int) -> None:
        self.map = mmap.mmap(-1, 3 * zone, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        handle = ctypes.c_char.from_buffer(self.map)
        self.base = ctypes.addressof(handle)
        del handle  # it would keep the mapping from being closed
        self.free = [[(z * zone, (z + 1) * zone)] for z in range(3)]
        self.images = 0
        for z, rights in enumerate(RIGHTS):
            self.protect(z * zone, (z + 1) * zone, rights)

    def take(self, sizes: Sizes) -> list[tuple[int, int]] | None:
        """A run of pages in every zone, or None where one does not fit."""
        places = []
        for runs, size in zip(self.free, sizes, strict=True):
            at = next((i for i, (first, end) in enumerate(runs) if end - first >= size), None)
            if at is None:
                return None
            places.append(at)
        taken = []
        for runs, at, size in zip(self.free, places, sizes, strict=True):
            first, end = runs[at]
            taken.append((first, first + size))
            runs[at : at + 1] = [(first + size, end)] if first + size < end else []
        self.images += 1
        return taken

    def give(self, taken: list[tuple[int, int]]) -> None:
        """Pages that nobody uses any more: their memory goes back to the system."""
        for runs, (first, end) in zip(self.free, taken, strict=True):
            if first == end:
                continue
            self.map.madvise(mmap.MADV_DONTNEED, first, end - first)
            merged: list[tuple[int, int]] = []
            for run in sorted([*runs, (first, end)]):
                if merged and merged[-1][1] == run[0]:
                    merged[-1] = (merged[-1][0], run[1])
                else:
                    merged.append(run)
            runs[:] = merged
        self.images -= 1

    def protect(self, first: int, end: int, rights: int) -> None:
        if end > first and _mprotect(self.base + first, end - first, rights):
            problem = os.strerror(ctypes.get_errno())
            raise CompileError(f"jit: the system does not give pages the rights of machine code ({problem}); allow this process to run "
                               "code that it writes, and enough mappings (vm.max_map_count)")


_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


_slabs: list[Slab] = []
_returned: deque[tuple[Slab, list[tuple[int, int]]]] = deque()  # by images that were collected, wherever that happened: no lock is needed
_lock = allocate_lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]


class Pages:
    """The pages of one image: `starts` are where its zones begin, from `base` on. They go back when this object is collected or closed."""

    def __init__(self, sizes: Sizes) -> None:
        page = mmap.PAGESIZE
        rounded = tuple(-(-size // page) * page for size in sizes)
        self._slab, self._taken = _take(rounded)  # type: ignore[arg-type]
        self.base, self.map = self._slab.base, self._slab.map
        self.starts = tuple(first for first, _ in self._taken)
        self.close = weakref.finalize(self, _returned.append, (self._slab, self._taken))
        self.close.atexit = False  # code may run until the very end
        for first, end in self._taken:
            self._slab.protect(first, end, mmap.PROT_READ | mmap.PROT_WRITE)

    def seal(self) -> None:
        """From now on the pages have the rights of their zones."""
        for (first, end), rights in zip(self._taken, RIGHTS, strict=True):
            self._slab.protect(first, end, rights)


def _take(sizes: Sizes) -> tuple[Slab, list[tuple[int, int]]]:
    with _lock:
        while _returned:
            slab, taken = _returned.popleft()
            slab.give(taken)
            if not slab.images and len(_slabs) > 1:
                _slabs.remove(slab)
        for slab in _slabs:
            if (found := slab.take(sizes)) is not None:
                return slab, found
        try:
            slab = Slab(max(ZONE, *sizes))
        except (OSError, ValueError) as problem:
            raise CompileError(f"jit: the system gives no memory for {sum(sizes):,} bytes of machine code ({problem}); "
                               "close sessions or raise the limit on this process's memory") from None
        _slabs.append(slab)
        found = slab.take(sizes)
        assert found is not None
        return slab, found


_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_PROGBITS, _SYMTAB, _RELA, _NOBITS, _UNWIND = 1, 2, 4, 8, 0x70000001
_WRITE, _ALLOC, _EXECUTE, _THREAD = 1, 2, 4, 0x400
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_R_64, _R_PC32, _R_PLT32, _R_PC64 = 1, 2, 4, 24
_R_GOT = (9, 41, 42)  # the distance of a word that holds a symbol's address
_STUB = 16  # jmp [rip + 2]; two bytes to fill; address


class _Unknown(Exception):
    """Something that this linker does not do."""


@dataclass
class _Section:
    data: bytes
    size: int
    region: int
    align: int
    relocations: list[tuple[int, int, int]] = field(default_factory=list)
    at: int = 0  # from the start of the slab


@dataclass(eq=False)
class _Object:
    sections: dict[int, _Section]
    symbols: list[tuple[str, int, int, int]]  # name, binding, section, value


class Image:
    """Linked code in memory. `symbols` gives addresses, which are valid until `close()`."""

    def __init__(self, pages: Pages, symbols: dict[str, int]) -> None:
        self._pages, self.symbols = pages, symbols

    def close(self) -> None:
        self.symbols = {}
        self._pages.close()


def link_elf(objects: Iterable[bytes], imports: Mapping[str, int]) -> Image | None:
    """The image of all objects together, or None when one of them asks for more than this linker does."""
    if sys.platform != "linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        return _link([_read(data) for data in objects], imports)
    except (_Unknown, struct.error):
        return None


def _read(data: bytes) -> _Object:
    ident, kind, machine, *_, shoff = _HEADER.unpack_from(data)[:7]
    _, _, _, _, _, shentsize, shnum, _ = _HEADER.unpack_from(data)[6:]
    if ident[:6] != b"\x7fELF\x02\x01" or (kind, machine, shentsize) != (1, 62, _SECTION.size):
        raise _Unknown
    headers = [_SECTION.unpack_from(data, shoff + i * _SECTION.size) for i in range(shnum)]
    sections: dict[int, _Section] = {}
    found: list[tuple[str, int, int, int]] = []
    for i, (_, what, flags, _, offset, size, link, _, align, _) in enumerate(headers):
        if what == _SYMTAB:
            names, end = headers[link][4], headers[link][4] + headers[link][5]
            for name, info, _, index, value, _ in _SYMBOL.iter_unpack(data[offset : offset + size]):
                if index == _COMMON or info & 15 == 6:  # common and thread-local symbols
                    raise _Unknown
                found.append((data[names + name : data.index(b"\0", names + name, end)].decode(), info >> 4, index, value))
        elif flags & _ALLOC and what != _UNWIND:  # nothing is ever thrown through our code
            if what not in (_PROGBITS, _NOBITS) or flags & _THREAD:
                raise _Unknown
            region = CODE if flags & _EXECUTE else DATA if flags & _WRITE else CONSTANTS
            sections[i] = _Section(data[offset : offset + size] if what == _PROGBITS else b"", size, region, max(1, align))
    for _, what, _, _, offset, size, _, target, _, _ in headers:
        if what == _RELA and target in sections:
            sections[target].relocations = [(r, info, add) for r, info, add in _RELOCATION.iter_unpack(data[offset : offset + size])]
    return _Object(sections, found)


def _link(objects: list[_Object], imports: Mapping[str, int]) -> Image:
    outside = sorted({name for o in objects for name, _, index, _ in o.symbols if index == _UNDEFINED and name} & imports.keys())
    stubs: dict[str, int] = {}
    ends = [0, 0, 0]
    for region in (CODE, CONSTANTS, DATA):
        for s in (s for o in objects for s in o.sections.values() if s.region == region):
            s.at = -(-ends[region] // s.align) * s.align
            ends[region] = s.at + s.size
    for name in outside:
        stubs[name] = -(-ends[CODE] // _STUB) * _STUB
        ends[CODE] = stubs[name] + _STUB
    table: dict[tuple[_Object, int], int] = {}  # words that hold the address of an object's symbol
    for o in objects:
        for n in sorted({info >> 32 for s in o.sections.values() for _, info, _ in s.relocations if info & 0xFFFFFFFF in _R_GOT}):
            table[o, n] = -(-ends[CONSTANTS] // 8) * 8
            ends[CONSTANTS] = table[o, n] + 8
    pages = Pages((ends[CODE], ends[CONSTANTS], ends[DATA]))
    block, base = pages.map, pages.base
    for s in (s for o in objects for s in o.sections.values()):
        s.at += pages.starts[s.region]
    symbols: dict[str, int] = {}
    for o in objects:
        for name, binding, index, value in o.symbols:
            if binding and index in o.sections:
                if name in symbols:
                    raise CompileError(f"jit: the objects do not link: {name} is defined twice")
                symbols[name] = base + o.sections[index].at + value
    for name in stubs:
        stubs[name] += pages.starts[CODE]
        block[stubs[name] : stubs[name] + _STUB] = b"\xff\x25\x02\x00\x00\x00\x0f\x0b" + struct.pack("<Q", imports[name])
    for o in objects:
        for s in o.sections.values():
            block[s.at : s.at + s.size] = s.data + bytes(s.size - len(s.data))
        places = [_place(o, x, symbols, stubs, base) for x in o.symbols]
        words = {n: pages.starts[CONSTANTS] + at for (owner, n), at in table.items() if owner is o}
        for n, at in words.items():
            struct.pack_into("<Q", block, at, places[n] or 0)
        for s in o.sections.values():
            _relocate(block, base, s, places, words)
    pages.seal()
    return Image(pages, symbols)


def _place(o: _Object, symbol: tuple[str, int, int, int], symbols: Mapping[str, int], stubs: Mapping[str, int], base: int) -> int | None:
    name, _, index, value = symbol
    if index in o.sections:
        return base + o.sections[index].at + value
    if index == _UNDEFINED and name:
        if name in symbols:
            return symbols[name]
        return base + stubs[name] if name in stubs else None
    return value if index == _ABSOLUTE else None


def _relocate(block: mmap.mmap, base: int, s: _Section, places: list[int | None], words: Mapping[int, int]) -> None:
    for offset, info, add in s.relocations:
        kind, place = info & 0xFFFFFFFF, places[info >> 32]
        if place is None:
            raise _Unknown  # LLVM's linker looks in the whole process, and complains
        at = s.at + offset
        if kind in (_R_PC32, _R_PLT32):
            struct.pack_into("<i", block, at, place + add - base - at)
        elif kind in _R_GOT:
            struct.pack_into("<i", block, at, words[info >> 32] + add - at)
        elif kind == _R_PC64:
            struct.pack_into("<q", block, at, place + add - base - at)
        elif kind == _R_64:
            struct.pack_into("<Q", block, at, (place + add) & 0xFFFFFFFFFFFFFFFF)
        else:
            raise _Unknown
