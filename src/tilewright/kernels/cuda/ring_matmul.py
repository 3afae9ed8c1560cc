"""Matrix products on every chip (see the target's `ring`): the matrix units by `mma.sync` for 16-bit floats, eight-bit integers, f32 where
the target's precision is tf32, eight-bit floats (on sm_80 as f16, which a copy makes first), and f64 on sm_80 and sm_90a; multiply-adds for
f32, and for f64 on other chips.

Any M, N and K and any layout: operands that do not lie in rows (or columns) of a multiple of 16 bytes are copied first, by a launch that
the report shows; more than two batch axes that cannot be merged go to the shared template.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.dims import Dim, ceildiv
from ...core.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from ...core.target_spec import TargetSpec
from ...ir.graph import Node
from ...ir.layout import Layout
from ...ops.contractions import Matmul as MatmulOp
from ...tile.ir import TileType
from ..call import Call
from ..launch import Launch, Word
from ..matmul import Matmul
from ..product import Problem
from ..region import Region
from ..template import Reason, Template, region_bytes, region_flops
from .epilogue import Sums, write_results
from .groups import Shared
from .kernel import RingKernel
from .places import Places, places_of
from .turn import straightened

LINE = 128  # bytes of K in a stage


@dataclass(frozen=True)
class RingConfig:
    """Tile of a block, of a warp (mma) or thread (fma), and stages of the ring."""

    core: str
    bm: int
    bn: int
    tm: int
    tn: int
    stages: int
    per_sm: int = 1  # blocks that share a multiprocessor


CONFIGS = {
    "mma": (
        RingConfig("mma", 128, 128, 64, 64, 3, 2),
        RingConfig("mma", 128, 256, 64, 64, 3),
        RingConfig("mma", 128, 128, 64, 32, 3),
        RingConfig("mma", 64, 64, 32, 16, 4),
    ),
    "fma": (
        RingConfig("fma", 128, 256, 8, 16, 3),
        RingConfig("fma", 128, 128, 8, 8, 3),
        RingConfig("fma", 64, 64, 4, 4, 4),
    ),
    "mma8": (RingConfig("mma8", 128, 128, 64, 32, 4), RingConfig("mma8", 64, 64, 32, 16, 4)),
    "mma16": (RingConfig("mma16", 128, 128, 64, 32, 4), RingConfig("mma16", 64, 64, 32, 16, 4)),
}


DOUBLES = {"sm_80": "mma8", "sm_90a": "mma16"}  # chips with matrix units of f64, and the shape of their products


def core_for(node: Node, target: TargetSpec) -> str | None:
    """Which units multiply such operands here: "mma", "fma", those of f64 ("mma8", "mma16") or none."""
    a, b = (v.dtype for v in node.operands)
    out = node.types[0].dtype
    if a in (f8e4m3, f8e5m2) and b in (f8e4m3, f8e5m2):
        return "mma" if out in (f32, f16, bf16) else None
    if a in (i8, u8) and b is i8:
        return "mma" if out is i32 else None
    if a is not b or out is not a:
        return None
    return DOUBLES.get(target.cpu) if a is f64 else None  # block programs multiply the others (`tiled_matmul`)


def choose_ring(core: str, at: Places, n: Dim, target: TargetSpec, item: int) -> RingConfig:
    """The largest tile of which there are enough for the chip (measured on an H200), and as many stages as shared memory holds."""
    for config in CONFIGS[core]:
        bytes_ = config.stages * config.per_sm * (config.bm + config.bn) * LINE
        wide = config.core == "fma" and config.bn == 256
        if bytes_ > target.l1d - 1024 * config.per_sm or (wide and (item == 8 or at.a[2] != 1 or at.b[1] != 1)):
            continue
        if not (isinstance(at.m, int) and isinstance(n, int) and isinstance(at.batch, int)):
            if config.bn == 128:
                return config
        elif -(-at.m // config.bm) * -(-n // config.bn) * at.batch >= target.cores * config.per_sm:
            return config
    return config


class RingMatmul(Template):
    key = "ring_matmul"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, MatmulOp):
            return Reason("no matmul")
        if core_for(node, target) is None:
            return Reason(f"no units multiply {node.operands[0].dtype} by {node.operands[1].dtype} on {target.cpu}")
        if Matmul().matches(region, target) is not None:
            return Matmul().matches(region, target)
        return None if places_of(region) is not None else Reason("two batch axes at most")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        at = places_of(region)
        if at is None:  # the operand's place was not known when the template was chosen
            return Shared(Matmul()).build(region, target)
        assert region.anchor is not None
        core = core_for(region.anchor, target)
        assert core is not None
        p = Problem.of(region)
        widen = p.a.type.dtype in (f8e4m3, f8e5m2) and target.cpu == "sm_80"
        copies, p, at = straightened(region, p, at, either=core != "mma" or p.a.type.dtype.itemsize == 2, widen=widen)
        config = choose_ring(core, at, p.n, target, p.a.type.dtype.itemsize)
        return [*copies, ring_launch(region, p, at, config)]


def ring_launch(region: Region, p: Problem, at: Places, config: RingConfig) -> Launch:
    call = Call("ring", region.name)
    outs, ins = at.views(call, region, p.n)
    a = call.view("a", p.a.type.dtype, p.a.buffer, Layout((at.batch, at.m, p.k), at.a, p.a_view.offset))
    b = call.view("b", p.b.type.dtype, p.b.buffer, Layout((at.batch, p.n, p.k), (at.b[0], at.b[2], at.b[1]), p.b_view.offset))
    m, n = call.word("m", at.m), call.word("n", p.n)
    item = p.a.type.dtype.itemsize
    sums: DType = i32 if p.dtype is i32 else f64 if p.dtype is f64 else f32
    rows = config.bm - 4 * config.tm + 64 // item if config.core == "fma" else config.bm - config.tm + 16
    made = Sums.of(TileType((rows, config.bn), sums))
    write_results(call, region, p.alpha, made, outs, ins, (m, n), at.lead, edges=True)
    tiles_m, tiles_n = ceildiv(at.m, config.bm), ceildiv(p.n, config.bn)
    call._arguments += [Word(at.m), Word(p.n), Word(p.k), Word(tiles_m), Word(tiles_n)]
    run = next(r for r in ((16 // item, 2, 1) if config.core == "fma" else (2, 1)) if at.runs(region, p.n, r))
    names = {f32: "mma.sync tf32", f64: "mma.sync f64"}
    unit = "multiply-adds" if config.core == "fma" else names.get(p.a.type.dtype, "mma.sync")
    launch = call.finish(
        tiles_m * tiles_n * at.batch,
        flops=region_flops(region),
        bytes_=region_bytes(region),
        note=f"{unit} {config.bm}x{config.bn}, {config.stages} stages of cp.async",
    )
    k, outer = launch.kernel, (at.a[2] != 1, at.b[1] != 1)
    shape = f"{config.core}_{config.bm}x{config.bn}_{config.tm}x{config.tn}_{config.stages}_{config.per_sm}"
    launch.kernel = RingKernel(
        f"{k.name}_{shape}_{run}_{int(outer[0])}{int(outer[1])}_{p.a.type.dtype}_{p.b.type.dtype}",
        k.params, k.pid, k.body, acc=made.acc, row=made.row, column=made.column, batch=made.batch, a=a.var, b=b.var, core=config.core,
        bm=config.bm, bn=config.bn, tm=config.tm, tn=config.tn, stages=config.stages, per_sm=config.per_sm, outer_a=outer[0],
        outer_b=outer[1], run=run, dtype=p.a.type.dtype.name, dtype_b=p.b.type.dtype.name)  # fmt: skip
    return launch
