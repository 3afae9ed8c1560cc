"""Block programs: tile kernels whose every tile is spread over the warps of a block, with products on the tensor cores.

The kernel is plain tile IR: it verifies, prints, parses and runs in the interpreter like any other. What is added here only says how it is
scheduled, never what it computes: the number of warps, how many iterations of a loop copy ahead, and what its author knows about alignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ...core.dims import Dim, divisible
from ...core.dtypes import f32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...tile.ir import Instr, Kernel, Operand, TileType, Var, ViewType
from ...tile.passes import FuseMultiplyAdd, HoistInvariants, RemoveDead, ReuseValues, optimise
from ..launch import Launch
from .kernel import WARP, SimtKernel, TensorMap, forward, identified


@dataclass(eq=False)
class TiledKernel(SimtKernel):
    """`vectors`: for a view, a power of two that its offset, all its strides but 1 and limits along its unit axis are multiples of. Views
    that are not named are read element by element."""

    warps: int = 4
    stages: int = 3  # iterations of a loop whose operands of products lie in shared memory
    per_sm: int = 1  # blocks that should fit on an SM: bounds the registers
    vectors: tuple[tuple[str, int], ...] = ()
    early: tuple[str, ...] = ()  # views of constants: their first tiles are copied before the wait for the previous kernel
    producers: int = 0  # further warps that do nothing but copy operands of products to shared memory
    maps: tuple[TensorMap, ...] = ()
    mapped: tuple[tuple[str, tuple[int, ...]], ...] = ()  # every map: its view, and the view's axes that it has, innermost first

    @property
    def threads(self) -> int:
        """Threads that tiles are spread over."""
        return WARP * self.warps

    @property
    def block(self) -> int:
        return WARP * (self.warps + self.producers)

    def vector(self, view: str) -> int:
        return dict(self.vectors).get(view, 1)


def aligned(layout: Layout, inner: Dim | None = None, most: int = 16) -> int:
    """The largest power of two of elements that every row of a layout starts at a multiple of (and that `inner`, the row's length, and the
    length of the axis of stride 1 are). 1 where several axes have stride 1 (some of size 1): whoever walks along one of them starts at
    every place of another."""
    v = most if layout.strides.count(1) <= 1 else 1
    ends = [] if inner is None else [inner, *(d for d, s in zip(layout.shape, layout.strides, strict=True) if s == 1)]
    parts = [layout.offset, *(s for s in layout.strides if s != 1), *ends]
    while v > 1 and not all(divisible(x, v) for x in parts):
        v //= 2
    return v


def split_warps(rows: int, columns: int, warps: int, least: tuple[int, int], *, chained: bool = False) -> tuple[int, int] | None:
    """Warps along rows and columns of a product, each of `least` rows and columns: along rows only where rows are used again, else warp
    tiles as square as they get. None: it is too small."""
    down, across = 1, 1
    while down * across < warps:
        tall, wide = rows // down, columns // across
        if tall >= 2 * least[0] and (chained or tall >= wide or wide < 2 * least[1]):
            down *= 2
        elif wide >= 2 * least[1]:
            across *= 2
        else:
            return None
    return down, across


PLAIN = (4, 8)  # lanes of a warp along rows and columns of a product of multiply-adds


def multiply_adds(rows: int, columns: int, warps: int, resident: int, *, chained: bool = False) -> float:
    """TFLOP/s of multiply-adds in f32 on an H200 of a tile by so many warps, `resident` of them on an SM: loads from shared memory cost as
    much however many threads read the same, and few warps wait for them. Within a tenth of what was measured."""
    down, _ = split_warps(rows, columns, warps, PLAIN, chained=chained) or (1, 1)
    each = max(1, rows * columns // (32 * warps))
    tall = max(1, min(each, rows // down // PLAIN[0]))
    loads, waits = 18.0 * each / (tall + each / tall), resident * (10.0 if each >= 64 else 6.5)
    return float((loads**-2 + waits**-2 + 60.0**-2) ** -0.5)


def filled(made: Mapping[Var, Instr], x: Operand) -> tuple[int, ...]:
    """The rows and columns of a matrix, from the first on, that may be other than zeros: a load may end at a number inside its tile."""
    assert isinstance(x, Var) and isinstance(x.type, TileType)
    i = made.get(x)
    if i is not None and i.op in ("transpose", "cast"):
        inner = filled(made, i.operands[0])
        return inner[::-1] if i.op == "transpose" else inner
    shape = list(x.type.shape)
    if i is not None and i.op == "load" and not i.attrs.get("other"):
        view = i.operands[0]
        assert isinstance(view, Var) and isinstance(view.type, ViewType)
        for axis, limit in zip(i.attrs.get("limits") or (), i.operands[1 + len(view.type.strides) :], strict=False):
            shape[axis] = max(0, min(shape[axis], limit)) if isinstance(limit, int) else shape[axis]
    return tuple(shape)


def multiplied(made: Mapping[Var, Instr], product: Instr) -> tuple[int, int]:
    """How much of K, and how many columns of a product, are not known to be zeros."""
    left, right = (filled(made, x) for x in product.operands[:2])
    return min(left[1], right[0]), right[1]


def flat(layout: Layout) -> Layout:
    """The memory of a layout without negative strides as one axis, for kernels that compute offsets themselves."""
    extent: Dim = 1
    for d, s in zip(layout.shape, layout.strides, strict=True):
        extent = extent + (d - 1) * s
    return Layout((extent,), (1,), layout.offset)


def fitting(stages: int, nbytes: int, target: TargetSpec) -> int:
    """As many of these stages as the chip's shared memory has room for, and two at least."""
    return max(2, min(stages, (target.l1d - 2048) // nbytes))


def tiled(launch: Launch, *, warps: int, stages: int = 3, per_sm: int = 1, vectors: dict[str, int] | None = None,
          early: tuple[str, ...] = (), producers: int = 0, extents: dict[str, Layout] | None = None) -> Launch:
    """The launch with its kernel as a block program; the kernel is named by all that it is. `extents`: views all of whose accesses end at
    the ends of these layouts, which TMA then copies where they are aligned."""
    k = optimise(launch.kernel, (ReuseValues(), HoistInvariants(), FuseMultiplyAdd(), RemoveDead()))
    maps = tensor_maps(k, extents or {}) if producers else {}
    kernel = tiled_kernel(k, warps=warps, stages=stages, per_sm=per_sm, vectors=vectors, early=early, producers=producers, maps=maps)
    return replace(launch, kernel=kernel)


def tiled_kernel(k: Kernel, *, warps: int, stages: int = 3, per_sm: int = 1, vectors: dict[str, int] | None = None,
                 early: tuple[str, ...] = (), producers: int = 0,
                 maps: dict[str, tuple[TensorMap, tuple[int, ...]]] | None = None) -> TiledKernel:
    said = tuple(sorted((vectors or {}).items()))
    found = tuple(sorted((maps or {}).items()))
    mapped = tuple((name, axes) for name, (_, axes) in found)
    return identified(TiledKernel(
        k.name, k.params, k.pid, k.body, warps=warps, stages=stages, per_sm=per_sm, vectors=said, early=early, producers=producers,
        maps=tuple(m for _, (m, _) in found), mapped=mapped,
    ))  # fmt: skip


def tensor_maps(k: Kernel, extents: dict[str, Layout]) -> dict[str, tuple[TensorMap, tuple[int, ...]]]:
    """Tensor maps of the views that have one: rows at multiples of 16 bytes, one tile for all accesses, at most five axes."""
    out, word = {}, 0
    tf32 = all(i.attrs.get("precision") == "tf32" for i in k.walk() if i.op == "mma")  # f32 is rounded on the way
    for p in k.params:
        here, word = word, word + 1
        if not isinstance(p.type, ViewType):
            continue
        word += sum(s is None for s in p.type.strides)
        lay, item = extents.get(p.name), p.type.dtype.itemsize
        loads = [i for i in k.walk() if p in i.operands]
        if lay is None or len({_box(i) for i in loads}) != 1 or any(i.op != "load" or i.attrs.get("other") for i in loads):
            continue
        (sizes,) = {_box(i) for i in loads}
        axes = [a for a, s in enumerate(lay.strides) if s != 0]
        inner = [a for a in axes if lay.strides[a] == 1 and a in dict(sizes)]
        if len(inner) != 1:
            continue
        order = (*inner, *(a for a in reversed(axes) if a not in inner))
        steps = [lay.strides[a] * item for a in order[1:]]
        if len(order) < 2 or len(order) > 5 or not forward(*steps) or not all(divisible(s, 16) for s in (lay.offset * item, *steps)):
            continue
        box = [dict(sizes).get(a, 1) for a in order]
        box[0] = min(box[0], 128 // item)
        if box[0] * item < 32 or max(box) > 256:
            continue
        shape = tuple(lay.shape[a] for a in order)
        out[p.name] = TensorMap(here, p.type.dtype, shape, tuple(steps), tuple(box), box[0] * item, tf32 and p.type.dtype is f32), order
    return out


def _box(i: Instr) -> tuple[tuple[int, int], ...]:
    """Sizes of a load's tile by the view's axes."""
    if i.op != "load" or not i.results or not isinstance(i.results[0].type, TileType):
        return ()
    return tuple(zip(i.attrs["axes"], i.results[0].type.shape, strict=True))
