"""Tile passes and the driver that runs them. `optimise` works on a copy; each pass works in place.

The default order: reuse values, hoist invariants, split loops (hoisting first makes bounds invariant), unroll, reuse again (copies share
much), fuse products and sums where `contract` allows it, remove what nobody needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir import Kernel
from ..verify import verify
from .base import TilePass, copy_kernel
from .cse import ReuseValues
from .dce import RemoveDead
from .fma import FuseMultiplyAdd
from .forward import KeepInRegisters
from .licm import HoistInvariants
from .split import SplitLoops
from .unroll import UnrollLoops

DEFAULT: tuple[TilePass, ...] = (
    ReuseValues(),
    HoistInvariants(),
    SplitLoops(),
    UnrollLoops(),
    ReuseValues(),
    FuseMultiplyAdd(),
    RemoveDead(),
)


def optimise(kernel: Kernel, passes: Sequence[TilePass] = DEFAULT, *, check: bool = False,
             log: Callable[[str, int], None] | None = None) -> Kernel:
    """A rewritten copy. `check` verifies after every pass; `log` is told each pass's name and number of rewrites."""
    out = copy_kernel(kernel)
    for p in passes:
        n = p.run(out)
        if log is not None:
            log(p.name, n)
        if check:
            verify(out)
    return out


__all__ = [
    "DEFAULT",
    "FuseMultiplyAdd",
    "HoistInvariants",
    "KeepInRegisters",
    "RemoveDead",
    "ReuseValues",
    "SplitLoops",
    "TilePass",
    "UnrollLoops",
    "copy_kernel",
    "optimise",
]
