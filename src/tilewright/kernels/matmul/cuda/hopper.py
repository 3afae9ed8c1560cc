"""Matrix products on Hopper's tensor cores: operands through TMA, the region's elementwise consumers as epilogue. f16, bf16, eight-bit
floats and, where the target's precision is tf32, f32 operands have f32 sums; u8 and i8 by i8 have i32 sums.

Serves products with at most two batch axes once neighbours are merged; operands that do not lie in rows (of 16-bit floats: or columns) of
a multiple of 16 bytes are copied first. Tiles past an edge read zeros and store nothing; M, N and K need not fit the tile.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....core.dims import Dim, at_least, ceildiv, divisible, minimum
from ....core.dtypes import bf16, f8e4m3, f8e5m2, f16, f32, i8, i32, u8
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Matmul as MatmulOp
from ....tile.ir import TileType
from ...call import Call
from ...cuda.kernel import GemmKernel, TensorMap, forward, identified
from ...launch import Launch, Pointer, Word
from ...region import Operand, Region
from ...template import Reason, Template, region_bytes, region_flops
from ..matmul import MatmulTemplate
from ..product import Problem
from .copied_operands import contiguous_operands
from .epilogue import Sums, write_results
from .places import Places, places_of
from .tiled import rounds

BK = 128  # bytes of K in a step
STAGES_BYTES = 160 << 10  # bytes of a ring beside the sums of a split product
SLICE = 128  # bytes of the epilogue's columns at a time: a swizzled row of shared memory
FEW_ROWS = 16
PROMOTE = 2  # steps of 128 eight-bit floats whose sum the tensor core keeps by itself
TILE = 0.0115  # microseconds of a tile of 128x256 for each of K
CLUSTERS = {1: 1.0, 2: 0.97, 4: 0.92, 8: 0.8}  # the share of all SMs that clusters of so many blocks find (measured)
SHORT = 256  # elements of K: rows of results that begin anywhere leave side by side as block programs (32x200x399, K 64: 17 us here)
NARROW = 32  # ... where results go to memory from registers


@dataclass(frozen=True)
class Config:
    """Tile of a block, stages of the ring, blocks of a cluster, rows of tiles that share columns in L2, parts of K."""

    bm: int = 128
    bn: int = 256
    stages: int = 4
    cluster: int = 1
    group: int = 16
    splits: int = 1
    rows: int = 0  # rows of A that are read
    per_sm: int = 1  # blocks that share an SM
    promote: int = 0  # steps of K after which sums of eight-bit floats are added up in f32


# (configuration, time of one tile relative to 128×256: measured on an H200)
CONFIGS: tuple[tuple[Config, float], ...] = (
    (Config(128, 256, 4), 1.0),
    (Config(128, 224, 4), 0.94),
    (Config(128, 192, 4), 0.78),
    (Config(128, 128, 6), 0.54),
    (Config(64, 128, 8), 0.42),
    (Config(64, 64, 8), 0.28),
    (Config(64, 32, 10), 0.25),
)


def choose(m: Dim, n: Dim, k: Dim, batch: Dim, sms: int, item: int = 2, widest: int = 256, transposed_b: bool = True) -> Config:
    """The configuration with the shortest estimated time: whole waves of tiles over the SMs. `widest` columns leave registers
    for other sums; columns of a matrix [K, N] come in blocks of 64."""
    k = ceildiv(k * item, 2)  # steps of 128 bytes, whatever the elements are
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(batch, int)):
        return Config(128, min(widest, 256) if at_least(n, 256) else 128, 4, 1)
    rows = -(-m // 8) * 8 if m < 64 else 0  # rows that TMA fills with zeros cost as much as any (measured)
    if isinstance(k, int) and (parts := splits(m, n, k, batch, sms)) > 1:
        return in_parts(Config(64, 64, 12, rows=rows), parts)

    few = -(-m // 64) * -(-n // 64) * batch
    if m <= FEW_ROWS and transposed_b and sms < few <= 3 * sms:  # blocks that share an SM hide each other's start
        return Config(64, 64, 6, rows=rows, per_sm=3)
    fits = [(c, t, -(-m // (c.bm * c.cluster)) * c.cluster * -(-n // c.bn) * batch) for c, t in CONFIGS
            if c.bn <= widest and (transposed_b or c.bn % 64 == 0)]  # fmt: skip
    best = min(fits, key=lambda fit: -(-fit[2] // (sms // fit[0].cluster * fit[0].cluster)) * fit[1])
    if isinstance(k, int) and few < 2 * sms:  # weight gradients have a long K and few tiles
        depth, many = k, [s for s in CLUSTERS if s > 1 and _divides(k, s)]
        divided = [(in_parts(c, s), t, tiles) for c, t, tiles in fits for s in many if c.bn // s >= 16 and c.bn < 256]
        best = min([best, *divided], key=lambda fit: microseconds(fit[0], fit[1], fit[2], depth, sms))
    return replace(best[0], rows=rows) if best[0].bm == 64 else best[0]


def microseconds(c: Config, t: float, tiles: int, k: int, sms: int) -> float:
    """Those of a product whose K may be in parts: SMs draw more from L2 where others are idle."""
    room = int(sms * CLUSTERS[c.splits]) // c.splits
    taken = t * TILE * -(-k // c.splits) * (0.7 + 0.3 * min(tiles, room) * c.splits / sms)
    return -(-tiles // room) * (taken + (1.5 + c.bm * c.bn / 8192 if c.splits > 1 else 0.0))


def in_parts(c: Config, splits: int) -> Config:
    """The configuration with K in parts, each of a block of a cluster, with a ring that leaves room for the sums."""
    return replace(c, splits=splits, stages=min(c.stages, (STAGES_BYTES + 65536 - 4 * c.bm * c.bn) // ((c.rows or c.bm) + c.bn) // BK))


def _divides(k: int, parts: int) -> bool:
    """Whether every part of K has several steps, and the last one any."""
    steps = -(-k * 2 // BK)
    return steps >= 8 * parts and (parts - 1) * -(-steps // parts) < steps


def splits(m: int, n: int, k: int, batch: int, sms: int) -> int:
    """Parts of K for a product of few rows and tiles: as many as give every block an SM (measured; eight where K is long)."""
    tiles = -(-m // 64) * -(-n // 64) * batch
    return next((s for s in (8, 4, 2) if tiles * s <= sms and _divides(k if s < 8 else k // 4, s)), 1) if m <= 256 else 1


class HopperMatmul(Template):
    key = "hopper_matmul"
    serves = (MatmulOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        if not units_take(node, target):
            return Reason("needs bf16, f16 or eight-bit operands, or f32 and precision tf32")
        if MatmulTemplate().matches(region, target) is not None:
            return MatmulTemplate().matches(region, target)
        at, p = places_of(region), Problem.of(region)
        if at is None or not at_least(p.k, 1):
            return Reason("two batch axes at most, and K of 1 at least")
        if isinstance(p.k, int) and p.k <= SHORT and p.a.type.dtype.itemsize == 2 and not at.runs(region, p.n, 2):
            return Reason(f"results that leave one by one cost more than products of K up to {SHORT}")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        places = places_of(region)
        assert places is not None
        p = Problem.of(region)
        copies, p, places = contiguous_operands(region, p, places.in_turn(), either=p.a.type.dtype.itemsize == 2)
        small = p.a.type.dtype in (f8e4m3, f8e5m2)
        config = choose(places.m, p.n, p.k, places.batch, target.cores, p.a.type.dtype.itemsize, 192 if small else 256, places.b[1] == 1)
        if small:
            config = replace(config, promote=PROMOTE)
        return [*copies, gemm_launch(region, p, places, config, target)]


def units_take(node: Node, target: TargetSpec) -> bool:
    """Whether the tensor cores multiply such operands."""
    a, b = (v.dtype for v in node.operands)
    if a in (f8e4m3, f8e5m2) and b in (f8e4m3, f8e5m2):
        return node.types[0].dtype in (f32, f16, bf16)
    if a in (i8, u8) and b is i8:
        return node.types[0].dtype is i32
    return a is b and (a in (bf16, f16) or rounds(node, target))


def _stores(r: Operand, strides: tuple[Dim, ...] | None) -> bool:
    """Whether TMA can write a result: rows of numbers of up to 32 bits at multiples of 16 bytes."""
    return (
        r.type.dtype in (bf16, f16, f32, i32, i8, u8)
        and strides is not None
        and strides[2] == 1
        and strides[1] != 0
        and forward(*strides)
        and all(divisible(x, 16 // r.type.dtype.itemsize) for x in (strides[0], strides[1], r.layout.offset))
    )


def gemm_launch(region: Region, p: Problem, at: Places, config: Config, target: TargetSpec) -> Launch:
    call = Call("gemm", region.name)
    out_item = region.results[0].type.dtype.itemsize
    alike = all(r.type.dtype.itemsize == out_item for r in region.results)
    flat = [at.flat(s) for s in at.outs]
    stores = alike and all(_stores(r, s) for r, s in zip(region.results, flat, strict=True))
    widths = (SLICE, SLICE // 2, SLICE // 4) if out_item > 1 else (SLICE // 2, SLICE // 4)  # 128 columns would be too many registers
    slice_ = next(x for x in widths if config.bn % (x // out_item) == 0)
    through_shared = config.splits == 1 and stores and (slice_ == SLICE or out_item < 4)
    width = config.bn // config.splits if config.splits > 1 else slice_ // out_item if through_shared else NARROW
    outs, ins = at.views(call, region, p.n)
    pointers = [i for i, a in enumerate(call._arguments) if isinstance(a, Pointer)]
    store_maps = []
    for i, (out, s) in enumerate(zip(region.results, flat, strict=True)):
        if s is None:
            continue
        steps = (s[1] * out_item, (s[0] or s[1] * at.m) * out_item)
        box = (slice_ // out_item, 64, 1)
        store_maps.append(TensorMap(pointers[i], out.type.dtype, (p.n, at.m, at.batch), steps, box, slice_))
    maps = []
    transposed = (at.a[2] != 1, at.b[1] == 1)
    matrices = tuple(1 if s == 0 and at.batch != 1 else many for s, many in zip((at.a[0], at.b[0]), at.repeated, strict=True))
    rows_read = 0 if transposed[0] else config.rows
    item = p.a.type.dtype.itemsize
    boxes = (64 if transposed[0] else rows_read or config.bm, config.bn // config.cluster if transposed[1] else 64)
    for i, (name, o, lay, strides, (rows, columns)) in enumerate(
        (("a", p.a, p.a_view, at.a, (at.m, p.k)), ("b", p.b, p.b_view, (at.b[0], at.b[2], at.b[1]), (p.n, p.k)))
    ):
        # rows × K, K contiguous unless the other axis is
        word = len(call._arguments)
        call.view(name, o.type.dtype, o.buffer, Layout((matrices[i] or at.batch, rows, columns), strides, lay.offset))
        k_inner = strides[2] == 1
        size, step = ((columns, rows), strides[1]) if k_inner else ((rows, columns), strides[2])
        maps.append(
            TensorMap(
                word,
                o.type.dtype,
                (*size, matrices[i] or at.batch),
                (step * item, (strides[0] or step * size[1]) * item),
                (BK // item, boxes[i], 1),
                128,
                o.type.dtype is f32,
            )
        )
    m, n = call.word("m", at.m), call.word("n", p.n)
    sums = Sums.of(TileType((64, width), i32 if p.dtype is i32 else f32))
    # a matrix that is added comes through the ring; TMA stops at the edges by itself
    by_ring = through_shared and width == 64 and out_item == 2 and config.cluster == 1 and not rows_read
    leaves = [at.flat(s) for s in at.leaves]
    added = next(
        (i for i, (v, s) in enumerate(zip(ins, leaves, strict=True)) if by_ring and s is not None and _added(region, v, s, at)), None
    )
    if added is not None and (s := leaves[added]) is not None:
        leaf = list(ins)[added]
        steps = (s[1] * 2, (s[0] or s[1] * at.m) * 2)
        place = pointers[len(outs) + added]
        store_maps.append(TensorMap(place, leaf.dtype, (p.n, at.m, at.batch), steps, (64, config.bm, 1), 128))
    loose = [s for i, s in enumerate(at.leaves) if i != added]
    edges = not through_shared or not (all(x == 0 for s in loose for x in s[:-1]) and (not loose or divisible(p.n, width)))
    write_results(call, region, p.alpha, sums, outs, ins, (m, n), at.lead, edges=edges)
    rows_of_clusters = ceildiv(at.m, config.bm * config.cluster)
    columns = ceildiv(p.n, config.bn)
    tiles = rows_of_clusters * columns * at.batch
    call._arguments += [Word(rows_of_clusters * config.cluster), Word(columns), Word(ceildiv(p.k * item, BK)), Word(tiles)]
    grid = minimum(tiles, target.cores * config.per_sm // config.cluster) * config.cluster if config.splits == 1 else tiles * config.splits
    launch = call.finish(
        grid,
        flops=region_flops(region),
        bytes_=region_bytes(region),
        note=f"wgmma {config.bm}x{config.bn}{' tf32' if p.a.type.dtype is f32 else ''}, {config.stages} stages, cluster {config.cluster}, "
        f"K in {config.splits}{f', sums kept in f32 every {config.promote} steps' if config.promote else ''}",
    )
    k = launch.kernel
    launch.kernel = identified(GemmKernel(
        k.name,
        k.params,
        k.pid,
        k.body,
        acc=sums.acc,
        row=sums.row,
        column=sums.column,
        batch=sums.batch,
        bm=config.bm,
        bn=config.bn,
        slice=width,
        stages=config.stages,
        consumers=config.bm // 64,
        transposed_a=transposed[0],
        transposed_b=transposed[1],
        cluster=config.cluster,
        splits=config.splits,
        rows=rows_read,
        dtype=p.a.type.dtype.name,
        dtype_b=p.b.type.dtype.name,
        promote=config.promote,
        per_sm=config.per_sm,
        run=2 if at.runs(region, p.n, 2) else 1,
        matrices=matrices,
        group=config.group,
        maps=(*maps, *(store_maps if through_shared else ())),
        stored=tuple(x.var for x in outs) if through_shared else (),
        added=None if added is None else list(ins.values())[added].var,
    ))
    return launch


def _added(region: Region, value: Value, strides: tuple[Dim, ...], at: Places) -> bool:
    """Whether TMA can read what an epilogue adds: a whole matrix of 16-bit floats in rows at multiples of 16 bytes."""
    o = region.operand(value)
    if o is None or (strides[0] == 0 and at.batch != 1):
        return False
    return o.type.dtype in (bf16, f16) and _stores(o, strides)
