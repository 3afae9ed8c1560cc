"""Memory between pages that nobody may touch: a kernel that reads or writes beside its arrays ends the process."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np

from tilewright.ir.types import TensorType
from tilewright.runtime import outputs
from tilewright.runtime.memory import Allocation

PAGE = mmap.PAGESIZE
_protect: Any = ctypes.CDLL(None, use_errno=True).mprotect
_protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Where:
    """Arrays lie at the end of their pages, or at the start."""

    start = False


def guarded_bytes(nbytes: int, align: int = 64) -> np.ndarray[Any, Any]:
    """Zeros between two pages that nobody may touch: they end where the second one begins, but for the alignment of their start."""
    size = -(-nbytes // align) * align
    pages = -(-size // PAGE) * PAGE
    block = mmap.mmap(-1, pages + 2 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(block, np.uint8)
    for page in (raw.ctypes.data, raw.ctypes.data + PAGE + pages):
        if _protect(page, PAGE, 0) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    at = PAGE if Where.start else PAGE + pages - size
    return raw[at : at + nbytes]


def guarded_array(dtype: Any, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    made: np.ndarray[Any, Any] = guarded_bytes(count * kind.itemsize, kind.itemsize).view(kind).reshape(shape)
    return made


class GuardedAllocation(Allocation):
    """In the place of arenas, scratch and constants."""

    __slots__ = ()

    def __init__(self, nbytes: int, *, huge: bool = True) -> None:
        if not 0 < nbytes <= 1 << 28:
            super().__init__(nbytes, huge=huge)
            return
        self.nbytes = nbytes
        self._bytes = guarded_bytes(nbytes)
        self.address = self._bytes.ctypes.data


def guarded_result(type_: TensorType, shape: tuple[int, ...], torch: bool) -> Any:
    """In the place of a session's new outputs."""
    return outputs.fresh(type_, shape, torch) if torch else guarded_array(type_.dtype.np, shape)


def install() -> None:
    from tilewright.build import packing
    from tilewright.runtime import session, workspace
    from tilewright.runtime.archive import file as archive_file

    session.fresh = guarded_result  # type: ignore[attr-defined]
    for module in (archive_file, packing, workspace):
        module.Allocation = GuardedAllocation  # type: ignore[attr-defined]
