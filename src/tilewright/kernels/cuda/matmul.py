"""Matrix products on Hopper's matrix units: f16 and bf16 operands through TMA, f32 sums, the region's elementwise consumers as epilogue.

Serves products whose operands lie in rows (or columns) of a multiple of 16 bytes, with at most one batch axis once neighbours are merged.
Tiles past an edge read zeros and store nothing; M, N and K need not fit the tile. K = 0 and other layouts go to the shared template.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...core.dims import Dim, at_least, ceildiv, divisible, minimum
from ...core.dtypes import bf16, f16, f32
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.contractions import Matmul as MatmulOp
from ...tile.builder import Ix, Tile, View
from ...tile.ir import INDEX, TileType, Var
from ..call import Call
from ..launch import Launch, Word
from ..matmul import Matmul
from ..product import Problem
from ..region import Evaluator, Operand, Region, collapse, narrow
from ..template import Reason, Template, region_bytes, region_flops
from ..tiling import leaves_of_epilogue
from .groups import Shared
from .kernel import GemmKernel, TensorMap

BK = 64
STAGES_BYTES = 160 << 10  # of a ring beside the sums of a split product
SLICE = 64  # columns of the epilogue at a time: a swizzled row of shared memory
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
    rows: int = 0  # of A that are read


# (configuration, time of one tile relative to 128×256: measured on an H200)
CONFIGS: tuple[tuple[Config, float], ...] = (
    (Config(128, 256, 4), 1.0),
    (Config(128, 192, 4), 0.78),
    (Config(128, 128, 6), 0.54),
    (Config(64, 128, 8), 0.42),
    (Config(64, 64, 8), 0.28),
)


def choose(m: Dim, n: Dim, k: Dim, batch: Dim, sms: int) -> Config:
    """The configuration with the shortest estimated time: whole waves of tiles over the multiprocessors."""
    if not (isinstance(m, int) and isinstance(n, int) and isinstance(batch, int)):
        return Config(128, 256 if at_least(n, 256) else 128, 4, 1)
    rows = -(-m // 8) * 8 if m < 64 else 0  # rows that the copy engine fills with zeros cost as much as any (measured)
    if isinstance(k, int) and (parts := splits(m, n, k, batch, sms)) > 1:
        return Config(64, 64, min(12, STAGES_BYTES // ((rows or 64) + 64) // 128), splits=parts, rows=rows)

    def cost(item: tuple[Config, float]) -> float:
        c, t = item
        tiles = -(-m // (c.bm * c.cluster)) * c.cluster * -(-n // c.bn) * batch
        return -(-tiles // (sms // c.cluster * c.cluster)) * t

    best = min(CONFIGS, key=cost)[0]
    return replace(best, rows=rows) if best.bm == 64 else best


def splits(m: int, n: int, k: int, batch: int, sms: int) -> int:
    """Parts of K for a product of few tiles: as many as give every block a multiprocessor, each of several steps (measured)."""
    tiles, steps = -(-m // 64) * -(-n // 64) * batch, -(-k // BK)
    fits = (s for s in (4, 2) if tiles * s <= sms and steps >= 8 * s and (s - 1) * -(-steps // s) < steps)
    return next(fits, 1) if m <= 256 else 1


@dataclass(frozen=True)
class Places:
    """Everything seen as [batch, rows, columns]."""

    m: Dim
    batch: Dim
    a: tuple[Dim, Dim, Dim]  # strides of batch, M, K
    b: tuple[Dim, Dim, Dim]  # strides of batch, K, N
    outs: list[tuple[Dim, Dim, Dim]]
    leaves: list[tuple[Dim, Dim, Dim]]

    def matrices(self, call: Call, region: Region, n: Dim) -> tuple[list[View], dict[Value, View]]:
        """Views of results and of what the epilogue reads, as matrices, where there is no batch."""
        assert region.anchor is not None

        def view(name: str, o: Operand, s: tuple[Dim, Dim, Dim], write: bool) -> View:
            return call.view(name, o.type.dtype, o.buffer, Layout((self.m, n), (s[1], s[2]), o.layout.offset), write=write)

        outs = [view(f"c{i}", r, s, True) for i, (r, s) in enumerate(zip(region.results, self.outs, strict=True))]
        ins: dict[Value, View] = {}
        for i, (v, s) in enumerate(zip(leaves_of_epilogue(region, region.anchor.values[0]), self.leaves, strict=True)):
            o = region.operand(v)
            assert o is not None
            ins[v] = view(f"e{i}", o, s, False)
        return outs, ins


class HopperMatmul(Template):
    key = "hopper_matmul"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, MatmulOp):
            return Reason("no matmul")
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        if any(v.dtype not in (bf16, f16) for v in node.operands) or node.operands[0].dtype is not node.operands[1].dtype:
            return Reason("needs bf16 or f16 operands")
        if Matmul().matches(region, target) is not None:
            return Matmul().matches(region, target)
        return None if suitable(region) is not None else Reason("rows of a multiple of 16 bytes and one batch axis at most")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        places = suitable(region)
        if places is None:  # the operand's place was not known when the template was chosen
            return Shared(Matmul()).build(region, target)
        p = Problem.of(region)
        return [gemm_launch(region, p, places, choose(places.m, p.n, p.k, places.batch, target.cores), target)]


def suitable(region: Region) -> Places | None:
    p = Problem.of(region)
    assert region.anchor is not None
    out_shape = region.results[0].type.shape
    leaves = [region.operand(v) for v in leaves_of_epilogue(region, region.anchor.values[0])]
    lays = [r.layout for r in region.results] + [o.layout.expand(out_shape) for o in leaves if o is not None]
    a = p.a_view.expand((*out_shape[:-2], p.m, p.k))
    n_out = len(region.results)
    if p.batched:
        b = p.b_view.expand((*out_shape[:-2], p.k, p.n))
        sizes, strides = collapse(out_shape[:-2], [Layout(out_shape[:-2], x.strides[:-2]) for x in (a, b, *lays)])
        if len(sizes) > 1:
            return None
        lead = [s[0] if s else 0 for s in strides]
        m, batch = p.m, sizes[0] if sizes else 1
        a_strides, b_strides = (lead[0], a.strides[-2], a.strides[-1]), (lead[1], b.strides[-2], b.strides[-1])
        rest = [(s, x.strides[-2], x.strides[-1]) for s, x in zip(lead[2:], lays, strict=True)]
    else:
        sizes, strides = collapse(out_shape[:-1], [Layout(out_shape[:-1], x.strides[:-1]) for x in (a, *lays)])
        if len(sizes) > 1:
            return None
        rows = [s[0] if s else 0 for s in strides]
        m, batch = sizes[0] if sizes else 1, 1
        a_strides, b_strides = (0, rows[0] or p.k, a.strides[-1]), (0, p.b_view.strides[-2], p.b_view.strides[-1])
        rest = [(0, s, x.strides[-1]) for s, x in zip(rows[1:], lays, strict=True)]
    good = _rows(a_strides, p.a_view.offset, p.k, m) and _rows(b_strides, p.b_view.offset, p.n, p.k) and at_least(p.k, 1)
    even = all(s[2] in (0, 1) and (s[2] == 0 or all(divisible(x, 2) for x in s[:2])) for s in rest) and divisible(p.n, 2)
    even = even and all(divisible(x.offset, 2) for x in lays)
    return Places(m, batch, a_strides, b_strides, rest[:n_out], rest[n_out:]) if good and even else None


def _rows(strides: tuple[Dim, Dim, Dim], offset: Dim, last: Dim, first: Dim) -> bool:
    """One of the two axes is contiguous and the other steps by whole 16-byte pieces."""
    batch, row, column = strides
    if not (divisible(batch, 8) and divisible(offset, 8)):
        return False
    return (column == 1 and divisible(row, 8) and row != 0) or (row == 1 and divisible(column, 8) and column != 0)


def _stores(r: Operand, strides: tuple[Dim, Dim, Dim]) -> bool:
    """Whether the copy engine can write a result: rows of 16-bit floats at multiples of 16 bytes."""
    return (
        r.type.dtype in (bf16, f16)
        and strides[2] == 1
        and strides[1] != 0
        and all(divisible(x, 8) for x in (strides[0], strides[1], r.layout.offset))
    )


def gemm_launch(region: Region, p: Problem, at: Places, config: Config, target: TargetSpec) -> Launch:
    assert region.anchor is not None
    call = Call("gemm", region.name)
    b = call.b
    out_value = region.anchor.values[0]
    shape = (at.batch, at.m, p.n)
    through_shared = config.splits == 1 and all(_stores(r, s) for r, s in zip(region.results, at.outs, strict=True))
    width = config.bn // config.splits if config.splits > 1 else SLICE if through_shared else NARROW
    outs: list[View] = []
    store_maps = []
    for i, (out, s) in enumerate(zip(region.results, at.outs, strict=True)):
        steps = (s[1] * 2, (s[0] or s[1] * at.m) * 2)
        store_maps.append(TensorMap(len(call._arguments), out.type.dtype, (p.n, at.m, at.batch), steps, (SLICE, 64, 1), 128))
        outs.append(call.view(f"c{i}", out.type.dtype, out.buffer, Layout(shape, s, out.layout.offset), write=True))
    ins: dict[Value, View] = {}
    for i, (v, s) in enumerate(zip(leaves_of_epilogue(region, out_value), at.leaves, strict=True)):
        o = region.operand(v)
        assert o is not None
        ins[v] = call.view(f"e{i}", o.type.dtype, o.buffer, Layout(shape, s, o.layout.offset))
    maps = []
    transposed = (at.a[2] != 1, at.b[1] == 1)
    rows_read = 0 if transposed[0] else config.rows
    boxes = (64 if transposed[0] else rows_read or config.bm, config.bn // config.cluster if transposed[1] else 64)
    for i, (name, o, lay, strides, (rows, columns)) in enumerate(
        (("a", p.a, p.a_view, at.a, (at.m, p.k)), ("b", p.b, p.b_view, (at.b[0], at.b[2], at.b[1]), (p.n, p.k)))
    ):
        # rows × K, K contiguous unless the other axis is
        word = len(call._arguments)
        call.view(name, o.type.dtype, o.buffer, Layout((at.batch, rows, columns), strides, lay.offset))
        k_inner = strides[2] == 1
        size, step = ((columns, rows), strides[1]) if k_inner else ((rows, columns), strides[2])
        maps.append(
            TensorMap(word, o.type.dtype, (*size, at.batch), (step * 2, (strides[0] or step * size[1]) * 2), (64, boxes[i], 1), 128)
        )
    m, n = call.word("m", at.m), call.word("n", p.n)
    acc, row, column, batch = Var(TileType((64, width), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "column"), Var(INDEX, "batch")
    r, c, z = Ix(b, row), Ix(b, column), Ix(b, batch)
    total = Tile(b, acc)
    if p.alpha != 1.0:
        total = total * p.alpha

    def write(limit: tuple[Ix | int, Ix | int] | None) -> None:
        def leaf(v: Value, o: Operand) -> Tile:
            _, sm, sn = ins[v].type.strides
            size = (1 if sm == 0 else 64, 1 if sn == 0 else width)
            bound = None if limit is None else tuple(x if s != 1 else None for x, s in zip(limit, size, strict=True))
            return b.load(ins[v], (z, r, c), size, limit=bound)

        evaluate = Evaluator(b, region, leaf, {out_value: total})
        for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
            b.store(view, (z, r, c), narrow(b, b.broadcast(evaluate(v), (64, width)), result.type.dtype), limit=limit)

    if through_shared and not ins:  # the copy engine stops at the edges by itself
        write(None)
    else:
        inside = b.binary("and", b.compare("le", r + 64, m), b.compare("le", c + width, n))
        with b.if_(inside):
            write(None)
        with b.if_(b.unary("not", inside)):
            write((m - r, n - c))
    rows_of_clusters = ceildiv(at.m, config.bm * config.cluster)
    columns = ceildiv(p.n, config.bn)
    tiles = rows_of_clusters * columns * at.batch
    call._arguments += [Word(rows_of_clusters * config.cluster), Word(columns), Word(ceildiv(p.k, BK)), Word(tiles)]
    grid = minimum(tiles, target.cores // config.cluster) * config.cluster if config.splits == 1 else tiles * config.splits
    launch = call.finish(
        grid,
        flops=region_flops(region),
        bytes_=region_bytes(region),
        note=f"wgmma {config.bm}x{config.bn}, {config.stages} stages, cluster {config.cluster}, K in {config.splits}",
    )
    k = launch.kernel
    flags = f"{int(transposed[0])}{int(transposed[1])}"
    launch.kernel = GemmKernel(
        f"{k.name}_{config.bm}x{config.bn}_{config.stages}_{config.cluster}_{config.splits}_{rows_read}_{flags}_{p.a.type.dtype}",
        k.params,
        k.pid,
        k.body,
        acc=acc,
        row=row,
        column=column,
        batch=batch,
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
        group=config.group,
        maps=(*maps, *(store_maps if through_shared else ())),
        stored=tuple(x.var for x in outs) if through_shared else (),
    )
    return launch
