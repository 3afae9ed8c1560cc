"""How a kernel of the user's is scheduled on a GPU: warps and stages by its tiles, short loops written out, TMA where it reaches, and how
many elements at a time its accesses may move."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import gcd

from ..core.target_spec import TargetSpec
from ..ir.layout import Layout
from ..kernels.cuda.kernel import WARP
from ..kernels.cuda.tiled import aligned, fitting, tensor_maps, tiled
from ..kernels.launch import Launch
from ..tile.ir import Block, Instr, Kernel, Operand, TileType, Var, ViewType
from ..tile.passes import KeepInRegisters, ReuseValues, UnrollLoops, copy_kernel, optimise

SUMS = 64  # sums of a product that a thread holds
RUN = 8  # elements of a tile that a thread should have: 16 bytes of 16-bit floats
KEPT = 32  # elements of a short loop's tiles that a thread may hold
CROWDED = 128  # elements that a thread loads and carries: more warps share more of them
PRODUCERS = 4  # warps that only copy


def block_program(launch: Launch, layouts: Mapping[str, Layout], target: TargetSpec, *, warps: int | None, stages: int | None) -> Launch:
    """The launch as a block program."""
    most = warps or chosen_warps(launch.kernel)
    kernel = kept_in_registers(launch.kernel, most)
    warps = warps or (8 if most >= 4 and held(kernel) > CROWDED * WARP * most else most)
    staged = [i for i in kernel.walk() if i.op == "load" and _feeds_product(i, kernel)]
    extents = {n: lay for n, lay in layouts.items() if all(_ends(i, kernel, lay) for i in staged if _named(i) == n)}
    maps = tensor_maps(kernel, extents) if target.cpu == "sm_90a" and staged and warps % 4 == 0 else {}
    producers = PRODUCERS if maps and all(_named(i) in maps for i in staged) else 0
    nbytes = sum(t.numel * t.dtype.itemsize for i in staged if isinstance(t := i.results[0].type, TileType))
    stages = stages or (fitting(4, nbytes, target) if nbytes else 3)
    return tiled(replace(launch, kernel=kernel), warps=warps, stages=stages, vectors=vectors_of(kernel, layouts), producers=producers,
                 extents=extents)


def chosen_warps(kernel: Kernel) -> int:
    """As many warps as the sums of its products, or else its largest tile, keep busy."""
    tiles = [t for i in kernel.walk() for r in i.results if isinstance(t := r.type, TileType)]
    sums = [t.numel for i in kernel.walk() if i.op == "mma" and isinstance(t := i.results[0].type, TileType)]
    if sums:
        return 8 if max(sums) > 4 * WARP * SUMS else 4
    most = max((t.numel for t in tiles), default=1)
    return max(1, min(8, 1 << (most // (WARP * RUN)).bit_length() - 1 if most >= WARP * RUN else 1))


def held(kernel: Kernel) -> int:
    """Elements of the tiles that a kernel without products loads, and that its loops carry."""
    made = [i for i in kernel.walk() if i.op in ("load", "for", "mma")]
    return 0 if any(i.op == "mma" for i in made) else sum(r.type.numel for i in made for r in i.results if isinstance(r.type, TileType))


def kept_in_registers(kernel: Kernel, warps: int) -> Kernel:
    """Short loops without products are written out; then memory that is read again, or written again, stays in registers."""
    made = copy_kernel(kernel)
    for i in made.walk():
        if i.op == "for" and isinstance(i.operands[0], int) and isinstance(i.operands[1], int):
            inner = list(Kernel("", body=i.blocks[0]).walk())
            most = max((t.numel for x in inner for r in x.results if isinstance(t := r.type, TileType)), default=1)
            trips = len(range(i.operands[0], i.operands[1], i.attrs["step"]))
            if not any(x.op in ("mma", "for") for x in inner) and (trips <= 1 or trips * most <= KEPT * WARP * warps):
                i.attrs["unroll"] = max(trips, 1)
    return optimise(made, (ReuseValues(), UnrollLoops(), ReuseValues(), KeepInRegisters()))


def _named(i: Instr) -> str:
    view = i.operands[0]
    assert isinstance(view, Var)
    return view.name


def _feeds_product(i: Instr, kernel: Kernel) -> bool:
    return any(x.op == "mma" and i.results[0] in x.operands[:2] for x in kernel.walk())


def _ends(i: Instr, kernel: Kernel, layout: Layout) -> bool:
    """Whether the limits of a load are the ends of its view."""
    made = {r: x for x in kernel.walk() for r in x.results}
    axes, limits = i.attrs["axes"], i.attrs.get("limits", ())
    ends = i.operands[len(i.operands) - len(limits):]
    for axis, end in zip(limits, ends, strict=True):
        x = made.get(end) if isinstance(end, Var) else None
        if x is None or x.op != "index.sub" or x.operands != [layout.shape[axes[axis]], i.operands[1 + axes[axis]]]:
            return False
    return True


# A view's rows start at multiples of some number of elements, and its accesses at multiples of another along them; the smaller one counts.
# Positions are multiples of what their index arithmetic shows: products, sums, and counters of loops.
MOST = 16


def vectors_of(kernel: Kernel, layouts: Mapping[str, Layout]) -> dict[str, int]:
    """By name of a view, parameters and those made of them, a power of two that all its accesses keep to."""
    factors: dict[Var, int] = {}
    roots: dict[Var, str] = {p: p.name for p in kernel.params if isinstance(p.type, ViewType)}
    found = {n: aligned(lay, lay.shape[-1] if lay.shape else None, MOST) for n, lay in layouts.items()}

    def factor(x: Operand) -> int:
        """A number that x is a multiple of; 0: x is 0."""
        return abs(x) if isinstance(x, int) else factors.get(x, 1)

    def visit(block: Block) -> None:
        for i in block.body:
            if i.op.startswith("index.") and i.op != "index.cmp":
                factors[i.results[0]] = _factor(i.op[6:], *(factor(x) for x in i.operands))
            elif i.op == "subview" and i.operands[0] in roots:
                roots[i.results[0]] = roots[i.operands[0]]
            elif i.op in ("load", "store") and i.operands[0] in roots:
                _account(i, factor, found, roots)
            elif i.op == "for":
                factors[i.blocks[0].params[0]] = gcd(factor(i.operands[0]), i.attrs["step"])
            for b in i.blocks:
                visit(b)

    visit(kernel.body)
    return {v.name: found[n] for v, n in roots.items() if n in found}


def _account(i: Instr, factor: Callable[[Operand], int], found: dict[str, int], roots: Mapping[Var, str]) -> None:
    view = i.operands[0]
    assert isinstance(view, Var) and isinstance(view.type, ViewType)
    unit = next((a for a, s in enumerate(view.type.strides) if s == 1), None)
    if unit is None:
        return
    start = factor(i.operands[1 + unit])
    while start % found[roots[view]]:
        found[roots[view]] //= 2


def _factor(fn: str, a: int, b: int) -> int:
    if fn == "mul":
        return a * b
    return gcd(a, b) if fn in ("add", "sub", "min", "max", "mod") else 1
