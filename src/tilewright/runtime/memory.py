"""Memory that kernels read and write: aligned blocks that live as long as their owner, and a bounded store of blocks for reuse.

A block of 2 MiB or more is mapped on a 2 MiB boundary and the kernel is asked for huge pages; it is zero at first. Smaller ones come from
NumPy's allocator and are zeroed too, so that what a kernel finds never depends on history unless the block was used before.
"""
from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import ExecutionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64
HUGE = 2 << 20


class OutOfMemory(ExecutionError, MemoryError):
    """There is no memory for something. What was there before is as it was."""


ADVICE = "pass smaller inputs, drop results and sessions, or raise the limit on this process's memory"


class Allocation:
    """`nbytes` bytes at `address`, aligned to 64 bytes. Freed when the allocation and every array over it are gone."""

    __slots__ = ("_bytes", "address", "nbytes")

    def __init__(self, nbytes: int, *, huge: bool = True) -> None:
        """`huge=False` for memory that fills up slowly: only the small pages that were touched count."""
        if nbytes < 0:
            raise ExecutionError(f"memory: a block needs 0 bytes or more, got {nbytes}")
        self.nbytes = nbytes
        try:
            raw = _mapped(nbytes, huge) if nbytes >= HUGE else np.zeros(nbytes + ALIGNMENT, np.uint8)
        except (MemoryError, OSError, ValueError, OverflowError) as problem:
            raise OutOfMemory(f"memory: cannot allocate {nbytes:,} bytes ({problem}); {ADVICE}") from None
        align = HUGE if nbytes >= HUGE else ALIGNMENT
        start = -raw.ctypes.data % align
        self._bytes: NDArray[np.uint8] = raw[start:start + nbytes]
        self.address: int = raw.ctypes.data + start

    def array(self, dtype: DTypeLike, shape: tuple[int, ...], offset: int = 0) -> NDArray[Any]:
        """An array over the bytes from `offset`; it keeps the block alive."""
        return np.ndarray(shape, dtype, buffer=self._bytes, offset=offset)


def _mapped(nbytes: int, huge: bool) -> NDArray[np.uint8]:
    block = mmap.mmap(-1, nbytes + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(block, np.uint8)  # the array keeps the mapping; it is unmapped with its last view
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        start = -raw.ctypes.data % HUGE
        try:
            block.madvise(mmap.MADV_HUGEPAGE, start, nbytes)
        except OSError:
            pass  # a kernel without huge pages
    return raw


def available() -> int:
    """Bytes that this process may still ask for: what the system has, or its container's limit. Memory is promised freely and a process
    that uses more than there is gets killed, so that a file with a large size in it is asked about first."""
    room = 1 << 62
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        room = sum(int(lines[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree"))
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            room = min(room, int(file.read()))
    except (OSError, ValueError, KeyError):  # another system, or no limit ("max")
        pass
    return room


def trim() -> None:
    """Give memory that the C library keeps for later back to the system: worth it after a load, which frees much at once."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if give_back is not None:
        give_back(0)


class Arenas:
    """Blocks given back for reuse, rounded up to a size class (at most an eighth larger), bounded in number and bytes.

    Plain list operations only: no lock that a forked child could find taken.
    """

    def __init__(self, max_bytes: int = 256 << 20, max_blocks: int = 32) -> None:
        self._max_bytes = max_bytes
        self._max_blocks = max_blocks
        self._free: dict[int, list[Allocation]] = {}

    @staticmethod
    def size_class(nbytes: int) -> int:
        """The size that a request for `nbytes` gets: eight steps per power of two."""
        if nbytes <= 4096:
            return 4096
        step = 1 << max(12, (nbytes - 1).bit_length() - 4)
        return -(-nbytes // step) * step

    def take(self, nbytes: int) -> Allocation:
        """A block of at least `nbytes`, perhaps used before."""
        size = self.size_class(nbytes)
        try:
            return self._free[size].pop()
        except (KeyError, IndexError):
            return Allocation(size)

    def give(self, block: Allocation) -> None:
        """Keep `block` for the next `take` of its size, or let it go when enough are kept."""
        kept = [b for blocks in list(self._free.values()) for b in list(blocks)]
        if len(kept) < self._max_blocks and sum(b.nbytes for b in kept) + block.nbytes <= self._max_bytes:
            self._free.setdefault(block.nbytes, []).append(block)

    def clear(self) -> None:
        self._free.clear()

    @property
    def nbytes(self) -> int:
        """Bytes kept for reuse."""
        return sum(b.nbytes for blocks in list(self._free.values()) for b in list(blocks))
