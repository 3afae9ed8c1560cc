"""Memory for machine code, cut from a few large mappings: a process may have some 65,000 mappings, and a program of its own each for code
and constants would use them up.

A slab is one mapping in three zones with rights of their own: code is run and read, constants are read, data is written. An image takes
whole pages of each zone. Its pages can be written until it is sealed and never again; other images' pages stay as they are, so the system
merges neighbours and a slab is three mappings. No page can be written and run.
"""
from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque

from ...core.errors import CompileError

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
_lock = threading.Lock()
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
