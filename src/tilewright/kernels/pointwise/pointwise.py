"""Pointwise regions: any number of elementwise ops over broadcast, strided operands; one loop nest, values in registers.

Axes that every operand walks without a gap are merged. One program computes one block of the innermost axis at one position of
the outer axes, or a few rows where that axis is short; the innermost axis, which is one that fills registers where there is one, runs along
registers, its tail is masked. A zero-sized result is a grid of 0 programs.
A region of no ops at all is a copy. A large operand that runs along another axis than the results is transposed by a launch of its own
first, since every element that a register gathers from it would be another cache line.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...core.dims import Dim, ceildiv, product
from ...core.dtypes import bf16, f16, u16
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.families import Elementwise
from ...ops.pointwise.casts import Cast
from ...ops.structure import Constant, Input
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import NEAR, Call
from ..launch import Buffer, Launch
from ..region import Evaluator, Operand, Region, collapse, narrow
from ..sites import Checks, checked
from ..template import Foreign, Reason, Template, region_bytes, region_flops

BLOCK = 4096  # elements of the innermost axis per program
UNROLL = 4  # registers of work per iteration
SHORT = 256  # elements of an innermost axis below which a program takes several rows
TOGETHER = 1024  # elements of several rows


def leaves_of(region: Region) -> list[Value]:
    """Body values that are read from memory, and those that are affine in their indices."""
    found: dict[Value, None] = {}

    def visit(v: Value) -> None:
        if isinstance(v.node.op, Constant):
            return
        if region.operand(v) is not None or region.affine(v) is not None:
            found[v] = None
            return
        for o in v.node.operands:
            visit(o)

    for out in region.body.outputs:
        visit(out)
    return list(found)


class Pointwise(Template):
    key = "pointwise"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        if region.anchor is not None:
            return Foreign(f"{region.anchor.op.name} is not elementwise")
        shapes = {r.type.shape for r in region.results}
        return None if len(shapes) == 1 else Reason(f"outputs differ in shape: {shapes}")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        shape = region.results[0].type.shape
        leaves = leaves_of(region)
        operands = [region.operand(v) for v in leaves]
        layouts = [_layout(region, v).expand(shape) for v in leaves] + [r.layout for r in region.results]
        before = _transposed(region, target, operands, layouts)
        sizes, strides = collapse(shape, [*layouts, Layout.contiguous(shape)] if checked(region) else layouts)
        if not sizes:
            sizes, strides = [1], [[1] for _ in strides]
        lanes = _lanes(region, target)
        sizes, strides = _innermost(sizes, strides, len(leaves), lanes)
        call = Call("pointwise", region.name)
        b = call.b
        ins = {
            v: call.view(f"x{i}", o.type.dtype, o.buffer, Layout(tuple(sizes), tuple(strides[i]), o.layout.offset))
            for i, (v, o) in enumerate(zip(leaves, operands, strict=True))
            if o is not None
        }
        outs = [Layout(tuple(sizes), tuple(strides[len(leaves) + i]), r.layout.offset) for i, r in enumerate(region.results)]
        short = None if checked(region) or target.kind != "cpu" else _short_axis(sizes, strides[len(leaves) :])
        if short is None:
            stores = _stores(call, region.results, outs, together=target.kind == "cpu")
        else:
            stores = [_filled(call, i, r, outs[i], short, len(outs)) for i, r in enumerate(region.results)]
        turns = 1 if short is None else outs[0].shape[short]
        sizes = [d for i, d in enumerate(sizes) if i != short]
        dims = [call.word(f"d{i}", d) for i, d in enumerate(sizes)]
        ramps = {
            v: [call.word(f"r{i}_{k}", s) if not isinstance(s, int) else s for k, s in enumerate([layouts[i].offset, *strides[i]])]
            for i, (v, o) in enumerate(zip(leaves, operands, strict=True))
            if o is None
        }
        checks = Checks(call, region, strides[-1])
        inner = sizes[-1]
        assert isinstance(turns, int)
        unroll = max(1, UNROLL // turns)
        tile = lanes * unroll if not isinstance(inner, int) or inner >= lanes * unroll else max(lanes, 1)
        if isinstance(inner, int) and 0 < inner < SHORT and len(sizes) > 1:
            per = TOGETHER // inner
            groups = b.ceildiv(dims[-2], per)
            outside, first = unravel(b, b.pid // groups, dims[:-2]), b.pid % groups * per
            # The masked tails of all rows last: in place, the row behind a tail would wait until that is written.
            parts = [part for part, there in (("whole", inner >= tile), ("tail", inner % tile)) if there]
            for part in parts:
                with b.loop(first, b.minimum(dims[-2], first + per)) as row:
                    emit_row(b, region, ins, ramps, stores, [*outside, row.index], 0, dims[-1], tile, checks, part, short, turns)
            grid = product(sizes[:-2]) * ceildiv(sizes[-2], per)
        else:
            blocks = b.ceildiv(dims[-1], BLOCK)
            start = b.pid % blocks * BLOCK
            position, stop = unravel(b, b.pid // blocks, dims[:-1]), b.minimum(dims[-1], start + BLOCK)
            emit_row(b, region, ins, ramps, stores, position, start, stop, tile, checks, short=short, turns=turns)
            grid = product(sizes[:-1]) * ceildiv(inner, BLOCK)
        pairs = [
            (o.buffer, r.buffer)
            for o, lay in zip(operands, layouts, strict=False)
            for r in region.results
            if o is not None
            and lay.strides == r.layout.strides
            and o.layout.offset == r.layout.offset
            and o.type.dtype.itemsize == r.type.dtype.itemsize
        ]
        return [*before, call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), inplace=pairs, streams=not checks)]


def _transposed(region: Region, target: TargetSpec, operands: list[Operand | None], layouts: list[Layout]) -> list[Launch]:
    """Launches that transpose operands which run along another axis than the first result; operands and layouts are those behind them."""
    from .copies import transposing_copy

    launches: list[Launch] = []
    result = region.results[0]
    if all(isinstance(n.op, (Cast, Input)) for n in region.body.nodes):  # a copy is one launch
        return launches
    for i, o in enumerate(operands):
        if o is None or o.type.shape != result.type.shape or o.layout.strides == result.layout.strides:
            continue
        there = Operand(o.type, Buffer(f"{region.name}.transposed{i}", "temp", o.type.nbytes), result.layout.dense())
        launch = transposing_copy(f"{region.name}.transpose{i}", o, there, target, "an operand that runs along another axis")
        if launch is not None:
            launches.append(launch)
            operands[i], layouts[i] = there, there.layout
    return launches


def _lanes(region: Region, target: TargetSpec) -> int:
    """Elements of a register: of bytes, bools and integers of 16 bits alone as many as it holds, of anything else as of f32."""
    dtypes = {v.dtype for n in region.body.nodes for v in (*n.operands, *n.values)}
    narrow = dtypes and all((d.is_int or d.is_bool) and d.itemsize < 4 for d in dtypes)
    return target.vector_bits // (8 * max(d.itemsize for d in dtypes) if narrow else 32)


Store = tuple[View, tuple[int, ...]]  # a view and the results that go into it: one, or some by turns


def _stores(call: Call, results: list[Operand], layouts: list[Layout], *, together: bool) -> list[Store]:
    """Results that fill one array by turns (parts of complex numbers, coordinates of points) are stored together."""
    out: list[Store] = []
    taken: set[int] = set()
    for i, (r, lay) in enumerate(zip(results, layouts, strict=True)):
        if i in taken:
            continue
        turns = _turns(i, results, layouts) if together else ()
        if turns:
            taken.update(turns)
            n = len(turns)
            flat = Layout((*lay.shape[:-1], n * lay.shape[-1]), (*lay.strides[:-1], 1), layouts[turns[0]].offset)
            out.append((call.view(f"y{i}", r.type.dtype, r.buffer, flat, write=True), turns))
        else:
            out.append((call.view(f"y{i}", r.type.dtype, r.buffer, lay, write=True), (i,)))
    return out


def _short_axis(sizes: list[Dim], results: list[list[Dim]]) -> int | None:
    """An axis of a few elements that all results have along memory, inside of the innermost one: computed in turns, stored together."""
    for axis, n in enumerate(sizes[:-1]):
        if n in NEAR and n != -1 and all(s[axis] == 1 and s[-1] == n for s in results):
            return axis
    return None


def _filled(call: Call, i: int, r: Operand, layout: Layout, short: int, results: int) -> Store:
    """Result i, whose elements along a short axis are stored together."""
    flat = [(d, s) for axis, (d, s) in enumerate(zip(layout.shape, layout.strides, strict=True)) if axis != short][:-1]
    n = layout.shape[short]
    assert isinstance(n, int)
    whole = Layout((*(d for d, _ in flat), n * layout.shape[-1]), (*(s for _, s in flat), 1), layout.offset)
    return call.view(f"y{i}", r.type.dtype, r.buffer, whole, write=True), tuple(range(i, n * results, results))


def _turns(i: int, results: list[Operand], layouts: list[Layout]) -> tuple[int, ...]:
    """The results that fill one array together with result i, in their order there; none where the array has other elements too."""
    r, lay = results[i], layouts[i]
    n = lay.strides[-1] if lay.strides else 0
    if not isinstance(n, int) or n not in NEAR or n < 2:
        return ()
    beside = {k: other.offset - lay.offset for k, (s, other) in enumerate(zip(results, layouts, strict=True))
              if s.buffer is r.buffer and s.type.dtype is r.type.dtype and other.strides == lay.strides}
    near = {at: k for k, at in beside.items() if isinstance(at, int) and abs(at) < n}
    first = min(near)
    return tuple(near[first + k] for k in range(n)) if all(first + k in near for k in range(n)) and len(near) == n else ()


def _layout(region: Region, v: Value) -> Layout:
    operand = region.operand(v)
    found = operand.layout if operand is not None else region.affine(v)
    assert found is not None
    return found


def _innermost(sizes: list[Dim], strides: list[list[Dim]], n_in: int, lanes: int = 1) -> tuple[list[Dim], list[list[Dim]]]:
    """Put the axis along which most of the outputs (then inputs) are contiguous last; one that fills half a register where there is one."""

    def score(axis: int) -> tuple[int, ...]:
        size = sizes[axis]
        ease = [sum(_ease(s[axis]) for s in part) for part in (strides[n_in:], strides[:n_in])]
        return not isinstance(size, int) or 2 * size >= lanes, *ease, axis

    best = max(range(len(sizes)), key=score)
    order = [i for i in range(len(sizes)) if i != best] + [best]
    return [sizes[i] for i in order], [[s[i] for i in order] for s in strides]


def _ease(stride: Dim) -> int:
    """How well registers walk with a stride."""
    return 2 if stride == 0 or stride == 1 else 1 if isinstance(stride, int) and stride in NEAR else 0


def unravel(b: KernelBuilder, index: Ix | int, dims: Sequence[Ix | int]) -> list[Ix | int]:
    """Row-major coordinates of a linear index; the first dim needs no modulo."""
    out: list[Ix | int] = []
    for i in range(len(dims) - 1, -1, -1):
        out.append(index % dims[i] if i else index)
        if i:
            index = index // dims[i]
    return out[::-1]


def emit_row(b: KernelBuilder, region: Region, ins: dict[Value, View], ramps: dict[Value, list[Ix | int]], stores: list[Store],
             position: list[Ix | int], start: Ix | int, stop: Ix | int, tile: int, checks: Checks, part: str = "whole and tail",
             short: int | None = None, turns: int = 1) -> None:
    """The innermost loop: whole tiles, then one masked tail, or one of both. All `turns` elements of a short axis are computed together."""

    def results(i: Ix | int, left: Ix | int | None, turn: int) -> list[Tile]:
        limit = None if left is None else (left,)
        at = (*position, i) if short is None else (*position[:short], turn, *position[short:], i)

        def leaf(v: Value, o: Operand) -> Tile:
            return b.load(ins[v], at, (tile,), limit=limit)

        def ramp(v: Value) -> Tile:
            value, *steps = ramps[v]
            for p, s in zip(at, steps, strict=True):
                value = value + p * s
            return b.iota((tile,), 0) * b.from_index(steps[-1]) + b.from_index(value)

        def moved(v: Value) -> Tile | None:
            """An operand that is a result as it stands, or but for bits of its words: its elements are not widened on the way."""
            o = region.operand(v)
            if o is not None:
                return leaf(v, o)
            if v.dtype not in (bf16, f16) or not isinstance(v.op, Elementwise) or any(u.dtype is not v.dtype for u in v.node.operands):
                return None
            words = [moved(u) for u in v.node.operands]
            out = None if None in words else v.op.on_bits(b, *(b.bitcast(w, u16) for w in words if w is not None))
            return None if out is None else b.bitcast(out, v.dtype)

        evaluate = Evaluator(b, region, leaf, ramp=ramp, checks=bool(checks))
        if checks:
            checks.emit(evaluate, at, tile, left)
        return [b.broadcast(moved(v) or narrow(b, evaluate(v), r.type.dtype), (tile,))
                for v, r in zip(region.body.outputs, region.results, strict=True)]

    def body(i: Ix | int, left: Ix | int | None) -> None:
        limit = None if left is None else (left,)
        stored = [x for turn in range(turns) for x in results(i, left, turn)]
        for view, which in stores:
            if len(which) == 1:
                b.store(view, (*position, i), stored[which[0]], limit=limit)
            else:
                n = len(which)
                mixed = b.interleave(*(stored[k] for k in which))
                b.store(view, (*position, i * n), mixed, limit=None if left is None else (left * n,))

    whole = start + (stop - start) // tile * tile
    if "whole" in part:
        with b.loop(start, whole, tile) as loop:
            body(loop.index, None)
    if "tail" in part:
        with b.if_(b.compare("lt", whole, stop)):
            body(whole, stop - whole)
