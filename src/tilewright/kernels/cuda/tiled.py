"""Block programs: tile kernels whose every tile is spread over the warps of a block, with products on the tensor cores.

The kernel is plain tile IR: it verifies, prints, parses and runs in the interpreter like any other. What is added here only says how it is
scheduled, never what it computes: the number of warps, how many iterations of a loop copy ahead, and what its author knows about alignment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.dims import Dim, divisible
from ...core.hashing import blake2b
from ...ir.layout import Layout
from ...tile.ir import Kernel
from ...tile.passes import FuseMultiplyAdd, HoistInvariants, RemoveDead, ReuseValues, optimise
from ...tile.text import to_text
from ..launch import Launch
from .kernel import WARP, SimtKernel


@dataclass(eq=False)
class TiledKernel(SimtKernel):
    """`vectors`: for a view, a power of two that its offset, all its strides but 1 and limits along its unit axis are multiples of. Views
    that are not named are read element by element."""

    warps: int = 4
    stages: int = 3  # iterations of a loop whose operands of products lie in shared memory
    per_sm: int = 1  # blocks that should fit on an SM: bounds the registers
    vectors: tuple[tuple[str, int], ...] = ()

    @property
    def block(self) -> int:
        return WARP * self.warps

    def vector(self, view: str) -> int:
        return dict(self.vectors).get(view, 1)


def aligned(layout: Layout, inner: Dim | None = None, most: int = 16) -> int:
    """The largest power of two of elements that every row of a layout starts at a multiple of (and that `inner`, the row's length, is)."""
    v = most
    parts = [layout.offset, *(s for s in layout.strides if s != 1), *([] if inner is None else [inner])]
    while v > 1 and not all(divisible(x, v) for x in parts):
        v //= 2
    return v


def tiled(launch: Launch, *, warps: int, stages: int = 3, per_sm: int = 1, vectors: dict[str, int] | None = None) -> Launch:
    """The launch with its kernel as a block program; the kernel is named by all that it is."""
    k = optimise(launch.kernel, (ReuseValues(), HoistInvariants(), FuseMultiplyAdd(), RemoveDead()))
    kernel = tiled_kernel(k, warps=warps, stages=stages, per_sm=per_sm, vectors=vectors)
    return replace(launch, kernel=kernel)


def tiled_kernel(k: Kernel, *, warps: int, stages: int = 3, per_sm: int = 1, vectors: dict[str, int] | None = None) -> TiledKernel:
    said = tuple(sorted((vectors or {}).items()))
    stem = k.name.rpartition("_")[0] or k.name
    plain = to_text(Kernel("kernel", k.params, k.pid, k.body))
    name = f"{stem}_{blake2b(repr((plain, warps, stages, per_sm, said)).encode(), digest_size=8).hexdigest()}"
    return TiledKernel(name, k.params, k.pid, k.body, warps=warps, stages=stages, per_sm=per_sm, vectors=said)
