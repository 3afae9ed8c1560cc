"""Kernels of the shared templates on a GPU: each program on a group of threads where its tiles allow it, else on one thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.dims import Dim, divisible
from ...core.dtypes import i32, u8
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...tile.builder import KernelBuilder, Tile
from ...tile.ir import Kernel, TileType, Var, ViewType, alloc_bytes
from ...tile.passes import FuseMultiplyAdd, HoistInvariants, RemoveDead, ReuseValues, SplitLoops, optimise
from ..launch import Buffer, Launch, Packed, Pointer
from ..region import Region
from ..template import Reason, Template
from .kernel import BlockKernel, identified

PRIVATE = frozenset(("mma", "transpose", "extract", "shuffle", "alloc", "reshape", "scan"))  # need a program's whole tile in one thread
ONE_THREAD = 128  # programs of one thread in a block
OWN_BYTES = 16 << 10  # bytes of a thread's own memory: the driver sets it aside for every thread that the chip could run, 4 GB with so many
WORKSPACE = 8 << 30  # bytes of memory for all programs of a launch
SPLITTING = (ReuseValues(), HoistInvariants(), SplitLoops(), ReuseValues(), FuseMultiplyAdd())


def on_threads(kernel: Kernel, threads: int, programs: int, vector: int = 1, runs: frozenset[str] = frozenset()) -> BlockKernel:
    """The kernel, tidied, with its place on the GPU: the same tile IR may be placed in two ways."""
    k = optimise(kernel, (ReuseValues(), RemoveDead()))
    return identified(BlockKernel(k.name, k.params, k.pid, k.body, threads=threads, programs=programs, vector=vector, runs=runs))


def stacked(b: KernelBuilder, columns: Sequence[Tile]) -> Tile:
    """Tiles of one element a thread as one whose first axis they are: neighbours in a row (`BlockKernel.runs`)."""
    shape = (len(columns), *columns[0].shape)
    place, out = b.iota(shape, 0, i32), b.broadcast(columns[0], shape)
    for i, x in enumerate(columns[1:], 1):
        out = b.select(b.cmp("eq", place, i), b.broadcast(x, shape), out)
    return out


def group_size(kernel: Kernel) -> int:
    """Threads that can share a program: all its tiles have 1 or a multiple of that many columns, and nothing moves elements about."""
    widths = set()
    for i in kernel.walk():
        if i.op in PRIVATE:
            return 1
        widths |= {r.type.shape[-1] for r in i.results if isinstance(r.type, TileType) and r.type.shape and r.type.shape[-1] != 1}
    return next((n for n in (32, 16, 8, 4) if widths and all(w % n == 0 for w in widths)), 1)


class Shared(Template):
    """A template of all targets, as it is. Its tiles are sized for a small vector unit, so it is right everywhere and fast nowhere."""

    def __init__(self, inner: Template) -> None:
        self.inner = inner

    @property
    def key(self) -> str:  # type: ignore[override]
        return self.inner.key

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return self.inner.matches(region, target)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        return self.inner.packs(region, target)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [shared_launch(launch) for launch in self.inner.build(region, target)]


def shared_launch(launch: Launch) -> Launch:
    """Programs of a serial launch follow one another: one program of one thread at a time is what its author asks for."""
    if isinstance(launch.kernel, BlockKernel):
        return launch
    launch.kernel = place(launch.kernel)
    launch.variants = tuple(replace(v, kernel=place(v.kernel)) for v in launch.variants)
    return with_workspace(launch, launch.kernel)


def with_workspace(launch: Launch, kernel: BlockKernel) -> Launch:
    """What programs of one thread allocate, if it is much, lies in a buffer of the launch: a matrix, say, that is factored in place."""
    each = sum(alloc_bytes(i) for i in kernel.walk() if i.op == "alloc") if kernel.threads == 1 else 0
    total = launch.grid * each
    if each <= OWN_BYTES or launch.variants or (isinstance(total, int) and total > WORKSPACE):
        return launch
    buffer, space = Buffer(f"{launch.name}.workspace", "temp", total), Var(ViewType(u8, (1,)), "workspace")
    launch.kernel = identified(replace(kernel, params=[*kernel.params, space], workspace=space))
    launch.arguments, launch.writes = (*launch.arguments, Pointer(buffer, 0, total)), (*launch.writes, buffer)
    return launch


def place(kernel: Kernel) -> BlockKernel:
    threads = group_size(kernel)
    return on_threads(split(kernel), threads, ONE_THREAD // threads)


def split(kernel: Kernel) -> Kernel:
    """The kernel with its loops cut where masks begin to matter, where there is such a loop: 0.97 to 1.01 of the time on an H200. Where
    there is none it stays as it is: the assembler hoists and reuses by itself (hoisting here cost a product 6 %)."""
    done: dict[str, int] = {}
    out = optimise(kernel, SPLITTING, log=done.__setitem__)
    return out if done[SplitLoops.name] else kernel


def vector_width(itemsizes: Sequence[int], inner: Dim, layouts: Sequence[Layout]) -> int:
    """Elements per access so that the smallest of them moves 16 bytes (8 at most), where every row of every layout starts at a multiple."""
    v = min(8, 16 // min(itemsizes, default=4))
    while v > 1 and not (divisible(inner, v) and all(_aligned(lay, v) for lay in layouts)):
        v //= 2
    return v


def _aligned(lay: Layout, v: int) -> bool:
    if lay.strides and lay.strides[-1] != 1:
        return True  # element by element anyway
    return divisible(lay.offset, v) and all(divisible(s, v) for s in lay.strides[:-1])
