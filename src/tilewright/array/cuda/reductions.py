"""Reductions of Arrays on a GPU with run-time sizes: kernels for a function, a dtype, the number of axes and how the operand lies.

A row is what is reduced to one element. Where memory runs along a row, or everything is reduced, a group of threads takes it; a long one is
cut into chunks whose results are reduced again. Where memory runs along a kept axis, the rows are columns of tiles: blocks walk down strips
of them, several share long ones, and a second kernel joins what they leave. Narrow matrices are folded first, so that a tile is full. All
cuts follow from the shape alone. Short rows are part of a kernel.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, sym
from ...core.dtypes import DType
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph
from ...ir.layout import Layout, row_major
from ...ir.types import TensorType
from ...kernels.launch import Buffer
from ...kernels.region import Operand, Region, collapse
from ...kernels.rows.cuda.reduce import KINDS, CudaReduce
from ...kernels.rows.cuda.rows import CudaRows
from ...kernels.sites import name_sites
from ...runtime.cuda.array import SMALL
from ...runtime.cuda.memory import ALIGNMENT
from ...transform.lib import function
from ...transform.trace import Leaf
from ..api.base import axes_of
from . import direct
from . import elementwise as E
from . import placed as P
from .placed import Placed

NAMES = {"sum": "sum", "prod": "prod", "mean": "sum", "max": "max", "min": "min", "any": "any", "all": "all"}  # -> what joins parts
LONG, CHUNK, CHUNKS = 1 << 14, 1 << 12, 1 << 10  # a row: elements from which it is cut, of a chunk, chunks at most
LONGEST = 1 << 34  # elements that a kernel reduces to one
# Steps of the blocks that reduce columns, by the rows up to which a kernel serves.
TALL = {**{1 << k: 4 for k in range(2, 11)}, 1 << 16: 4, LONGEST: 32}
NARROW, FOLDED, FEW = 32, 256, 512  # columns of a matrix that is folded, those that it has then, and rows that it has at least
BOUNDED = (128, 512, 2048)  # rows up to which kernels are made for rows that are not longer
Axis = tuple[int, int]  # size, stride in elements


@dataclass(frozen=True)
class Form:
    """What a kernel serves: the number of kept axes, the row's length where that is known (of columns: what it is at most),
    whether the stride along which memory runs is 1, whether what lies along it begins and ends at multiples of 16 elements; whether rows
    are columns."""

    outer: int
    length: int
    near: bool
    wide: bool
    columns: bool = False
    most: int = 0  # what the length of a row is at most, where it is not known

    def shape(self) -> tuple[Dim, ...]:
        kept: list[Dim] = [sym(f"n{i}", 1, E.STEP) for i in range(self.outer)]
        if self.columns:
            kept[-1] *= E.WIDE if self.wide else 1
            return *kept, sym("n", 1, self.length)
        unit = E.WIDE if self.wide else 1
        return *kept, self.length or unit * sym("n", 1, (self.most or LONGEST) // unit)

    def layouts(self) -> tuple[Layout, Layout]:
        """Layouts of the operand and of the result."""
        shape, unit = self.shape(), E.WIDE if self.wide else 1
        steps: list[Dim] = [unit * sym(f"s{i}", 0, E.STEP) for i in range(len(shape))]
        if self.near:
            steps[-2 if self.columns else -1] = 1
        kept = shape[:-1]
        return Layout(shape, tuple(steps)), Layout(kept, tuple(sym(f"t{i}", 0, E.STEP) for i in range(len(kept))))

    @property
    def symbols(self) -> list[str]:
        names = [f"n{i}" for i in range(self.outer)] + ["n"]
        return names + [f"s{i}" for i in range(self.outer + 1)] + [f"t{i}" for i in range(self.outer)]


def _traced(name: str, wide: DType | None, axis: int) -> Callable[[Any], Any]:
    found, cast = function(name), function("astype")
    assert found is not None and cast is not None
    return lambda x: found(x if wide is None else cast(x, wide), axis=axis)


@cache
def _kernel(name: str, dtype: DType, wide: DType | None, form: Form, target: TargetSpec) -> E.Made | None:
    """The kernels that reduce in `wide`, or in the dtype of the operand, and the dtype of their result; None where there are none."""

    def make() -> E.Made | None:
        found = E.single(_traced(name, wide, form.outer), [Leaf(TensorType(dtype, form.shape()))], name, target)
        if found is None:
            return None
        body: Graph = found[0]
        lay, kept = form.layouts()
        out = body.outputs[0].type
        if len(body.inputs) != 1 or out.shape != kept.shape:
            return None
        x = Operand(body.inputs[0].type, Buffer("x0", "input", body.inputs[0].type.nbytes, 0), lay)
        region = Region(name, body, [x], [Operand(out, Buffer("y", "output", out.nbytes, 1), kept)])
        template = CudaReduce(TALL[form.length], form.outer - 1) if form.columns else CudaRows()
        if not form.columns and template.matches(region, target) is not None:
            return None
        if form.columns and type(region.node.op) not in KINDS:
            return None
        launches = name_sites(template.build(region, target), region)
        return [E.DeviceKernel.of(name, launch, form.symbols, target) for launch in launches], out.dtype

    return E.stored(("rows", name, dtype, wide, form), target, make)


@dataclass(frozen=True, eq=False)
class Step:
    """One launch of a reduction: which of the buffers it reads and writes (0 is the operand), from which byte on, and the one between it
    and the next."""

    kernel: E.Bound
    source: int
    read: int
    target: int
    written: int
    between: int | None = None

    @property
    def places(self) -> list[tuple[int, int]]:
        found = [(self.source, self.read), (self.target, self.written)]
        return found if self.between is None else [*found, (self.between, 0)]


class Plan:
    """The launches of a reduction, for all operands that lie alike."""

    def __init__(self, aligned: bool) -> None:
        self.order: tuple[int, ...] | None = None  # the order of the axes of a copy of the operand that is reduced instead
        self.aligned = aligned  # the operand begins at a multiple of what buffers do
        self.buffers: list[tuple[Sequence[int], DType]] = []
        self.steps: list[Step] = []
        self.divisor = 0
        self.dtype: DType | None = None  # the dtype of the result, where the last step has another one
        self.shape: tuple[int, ...] = ()

    def buffer(self, shape: Sequence[int], dtype: DType) -> tuple[int, list[int]]:
        """A new one: its number and its strides."""
        self.buffers.append((tuple(shape), dtype))
        return len(self.buffers), [int(n) for n in row_major(tuple(shape))]

    def run(self, p: Placed) -> Placed:
        stream = P.current()
        if self.order is not None:
            p = E.contiguous(Placed(p.header.transpose(self.order), p.stream), copy=True)
        made = [p, *(P.empty(shape, dtype, stream) for shape, dtype in self.buffers)]
        P.before_use((p,), stream)
        for s in self.steps:
            s.kernel.start([made[i].address + offset for i, offset in s.places], stream)
        P.after_use((p,), stream)
        out: Placed | None = made[-1]
        if self.divisor:
            out = E.run("divide", [made[-1], P.number(self.divisor, made[-1].dtype)])
        if self.dtype is not None and out is not None:
            out = E.run("astype", [out], static=(self.dtype,))
        assert out is not None
        return out if out.header.shape == self.shape else Placed(out.header.reshape(self.shape), out.stream, out.address)

    def direct(self, arguments: int) -> direct.Plan | None:
        """What host code does instead of `run`, of a call with so many arguments; None where there is more to do than launches."""
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in self.buffers]
        if self.order is not None or self.divisor or self.dtype is not None or not all(sizes) or max(sizes) > SMALL:
            return None
        for s in self.steps:
            s.kernel.load(len(s.places))
        at = [0, *range(arguments, arguments + len(sizes))]  # the operand, the buffers
        launches = [direct.Start.of(s.kernel, [(at[i], offset) for i, offset in s.places]) for s in self.steps]
        dtype = self.buffers[-1][1]
        result = P.key_of(dtype.np, self.shape, tuple(int(n) * dtype.itemsize for n in row_major(self.shape)))
        return direct.Plan(self.steps[0].kernel.kernel.name, [None] * arguments, sizes, result, launches)


@dataclass(frozen=True)
class Rows:
    """What is reduced: memory of a buffer from a byte on, its kept axes and the reduced one."""

    source: int
    read: int
    dtype: DType
    outer: list[Axis]
    row: Axis

    @property
    def sizes(self) -> list[int]:
        return [n for n, _ in self.outer]


def _vector(outer: Sequence[Axis], row: Axis) -> int | None:
    """The kept axis along which memory runs; None where it runs along the row."""
    found = [i for i, (n, s) in enumerate(outer) if s and n > 1]
    nearest = min(found, key=lambda i: abs(outer[i][1]), default=None)
    return nearest if nearest is not None and row[0] > 1 and abs(outer[nearest][1]) < abs(row[1]) else None


def _fold(x: Rows) -> int:
    """How many rows of a narrow matrix are seen as one; 1: it is as wide as it is."""
    if not x.outer or not (c := x.outer[-1])[1] == 1 < c[0] < NARROW or x.row[1] != c[0] or x.row[0] < FEW:
        return 1
    return 1 << (-(-FOLDED // c[0]) - 1).bit_length()


def _launch(plan: Plan, name: str, x: Rows, wide: DType | None, target: Callable[[DType], tuple[int, int, list[int]]]) -> DType | None:
    """Reduce rows into the buffer, byte and strides that `target` gives for the dtype of the result."""
    order, (size, step), vector = list(range(len(x.outer))), x.row, _vector(x.outer, x.row)
    if vector is not None:
        order.sort(key=lambda i: i == vector)
    outer = [x.outer[i] for i in order]
    short, far = vector is None and size <= E.SHORT, [s for _, s in outer]
    length, near = (size, step == 1) if vector is None else (outer[-1][0], far[-1] == 1)
    aligned = near and not short and length % E.WIDE == 0 and x.read % ALIGNMENT == 0 and (plan.aligned or x.source > 0)
    aligned = aligned and not any(s % E.WIDE for s in (far if vector is None else [*far[:-1], step]))
    most = (size if short else 0) if vector is None else next(n for n in TALL if size <= n)
    bound = 0 if most else next((n for n in BOUNDED if size <= n), 0)
    found = _kernel(name, x.dtype, wide, Form(len(outer), most, near, aligned, vector is not None, bound), P.state().target)
    if found is None:
        return None
    kernels, dtype = found
    unit = E.WIDE if aligned else 1
    sizes = [*(n for n, _ in outer), size]
    sizes[-1 if vector is None else -2] //= unit
    values = [*sizes, *(s // unit for s in (*far, step))]
    scratch = kernels[0].scratch([*values, *[0] * len(outer)])
    between = plan.buffer([scratch], dt.u8)[0] if scratch else None
    number, written, places = target(dtype)
    values += [places[i] for i in order]
    plan.steps += [Step(E.Bound(k, values), x.source, x.read, number, written, between) for k in kernels]
    return dtype


def _rows(plan: Plan, name: str, x: Rows, wide: DType | None) -> DType | None:
    """All rows into a buffer that has the kept axes one after the other; the dtype of that."""
    k, (n, step), fold = len(x.outer), x.row, _fold(x)
    if fold == 1 and (n <= LONG or _vector(x.outer, x.row) is not None):
        def last(dtype: DType) -> tuple[int, int, list[int]]:
            number, strides = plan.buffer(x.sizes, dtype)
            return number, 0, strides

        return _launch(plan, name, x, wide, last)
    # Parts of every row, one behind the other: of chunks and what is left of them, or of every `fold`th element and what is left of those.
    per = n // fold if fold > 1 else max(CHUNK, -(-n // CHUNKS // CHUNK) * CHUNK)
    whole, rest = (fold, n % fold) if fold > 1 else divmod(n, per)
    count = whole + (rest > 0)
    shape = [*x.sizes, count] if fold == 1 else [*x.sizes[:-1], count, x.sizes[-1]]
    each = [int(i) for i in row_major(tuple(shape))]
    along, apart = (each[k], each[:k]) if fold == 1 else (each[k - 1], [*each[: k - 1], each[k]])

    def parts(dtype: DType) -> tuple[int, int, list[int]]:
        return plan.buffer(shape, dtype)[0], 0, [*apart, along] if fold == 1 else [*apart[:-1], 1]

    if fold == 1:
        first = replace(x, outer=[*x.outer, (whole, step * per)], row=(per, step))
    else:
        first = replace(x, outer=[*x.outer[:-1], (fold * step, 1)], row=(per, step * fold))
    dtype = _launch(plan, name, first, wide, parts)
    if dtype is None:
        return None
    number = len(plan.buffers)
    if rest:
        tail = replace(x, read=x.read + (n - rest) * step * x.dtype.itemsize, row=(rest, step))
        if _launch(plan, name, tail, wide, lambda d: (number, whole * along * d.itemsize, apart)) is None:
            return None
    return _rows(plan, NAMES[name], Rows(number, 0, dtype, list(zip(x.sizes, apart, strict=True)), (count, along)), None)


def _planned(name: str, p: Placed, axes: tuple[int, ...], keepdims: bool) -> Plan | None:
    header, own = p.header, dt.dtype(p.dtype)
    plan = Plan(p.address % ALIGNMENT == 0)
    kept = [i for i in range(header.ndim) if i not in axes]
    strides = [s // header.itemsize for s in header.strides]
    shape = tuple(header.shape[i] for i in kept)

    def merged(order: Sequence[int]) -> list[Axis]:
        sizes, steps = tuple(header.shape[i] for i in order), tuple(strides[i] for i in order)
        found: Any = collapse(sizes, [Layout(sizes, steps)])
        return list(zip(found[0], found[1][0], strict=True))

    outer, inner = merged(kept), merged(sorted(axes, key=lambda i: -abs(strides[i])))
    if len(inner) > 1:  # they do not lie side by side: copied so that they do
        plan.order, plan.aligned = (*kept, *axes), True
        length = header.size // max(1, int(np.prod(shape)))
        outer, inner = [(header.size // length, length)] if shape else [], [(length, 1)]
    rows = Rows(0, 0, own, outer, inner[0] if inner else (1, 1))
    cut = _fold(rows) > 1 or (rows.row[0] > LONG and _vector(rows.outer, rows.row) is None)
    wide = dt.f32 if own in dt.SMALL and (name == "mean" or cut) else None
    made = _rows(plan, "sum" if name == "mean" and cut else name, rows, wide)
    if made is None:
        return None
    plan.divisor = rows.row[0] if name == "mean" and cut else 0
    plan.dtype = own if wide is not None and name not in ("any", "all") else None
    plan.shape = tuple(1 if i in axes else n for i, n in enumerate(header.shape)) if keepdims else shape
    return plan


def run(name: str, p: Placed, axis: Any, keepdims: bool, note: Callable[[Any], None] | None = None) -> Placed | None:
    """A reduction over axes; None where no kernel of run-time sizes serves it. `note` is told what writes its launches down."""
    P.enter()
    plans = P.state().plans
    key = (name, p.key, axis, keepdims)
    if key not in plans:
        axes = axes_of(axis, p.header.ndim, name)
        served = p.header.size and axes and dt.dtype(p.dtype).kind != "c"
        if len(plans) >= E.PLANS:
            plans.clear()
        plans[key] = _planned(name, p, axes, keepdims) if served else None
    plan = plans[key]
    if plan is not None and note is not None:
        note(plan.direct)
    return None if plan is None else plan.run(p)
