"""Reductions of Arrays on a GPU with run-time sizes: one kernel for a function, a dtype, the number of axes and how the operand lies.

A row is what is reduced to one element, by a group of threads, through whatever stride it has. Long rows are cut into chunks whose results
are reduced again; how depends on the row's length alone, so that a row has the same bits whatever lies beside it. Short rows are part of a
kernel.
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
Axis = tuple[int, int]  # size, stride in elements


@dataclass(frozen=True)
class Form:
    """Of a kernel: the number of kept axes, the row's length where that is known, whether its stride is 1, and whether rows begin and end
    at multiples of 16 elements."""

    outer: int
    length: int
    near: bool
    wide: bool

    def shape(self) -> tuple[Dim, ...]:
        row = self.length or (E.WIDE if self.wide else 1) * sym("n", 1, LONGEST)
        return *(sym(f"n{i}", 1, E.STEP) for i in range(self.outer)), row

    def layouts(self) -> tuple[Layout, Layout]:
        """Of the operand and of the result."""
        shape, unit = self.shape(), E.WIDE if self.wide else 1
        steps: list[Dim] = [unit * sym(f"s{i}", 0, E.STEP) for i in range(len(shape))]
        if self.near:
            steps[-1] = 1
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
def _kernel(name: str, dtype: DType, wide: DType | None, form: Form, target: TargetSpec) -> tuple[E.DeviceKernel, DType] | None:
    """The kernel that reduces in `wide`, or in the dtype of the operand, and the dtype of its result; None where there is none."""

    def make() -> tuple[E.DeviceKernel, DType] | None:
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
        if CudaRows().matches(region, target) is not None:
            return None
        launches = name_sites(CudaRows().build(region, target), region)
        return (E.DeviceKernel.of(name, launches[0], form.symbols, target), out.dtype) if len(launches) == 1 else None

    return E.stored(("rows", name, dtype, wide, form), target, make)


@dataclass(frozen=True, eq=False)
class Step:
    """One launch of a reduction: which of the buffers it reads and writes (0 is the operand), from which byte on."""

    kernel: E.Bound
    source: int
    read: int
    target: int
    written: int


class Plan:
    """The launches of a reduction, for all operands that lie alike."""

    def __init__(self, aligned: bool) -> None:
        self.order: tuple[int, ...] | None = None  # of the axes of a copy of the operand that is reduced instead
        self.aligned = aligned  # the operand begins at a multiple of what buffers do
        self.buffers: list[tuple[Sequence[int], DType]] = []
        self.steps: list[Step] = []
        self.divisor = 0
        self.dtype: DType | None = None  # of the result, where the last step has another one
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
            s.kernel.start([made[s.source].address + s.read, made[s.target].address + s.written], stream)
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
            s.kernel.load(2)
        at = [0, *range(arguments, arguments + len(sizes))]  # the operand, the buffers
        launches = [direct.Start.of(s.kernel, [(at[s.source], s.read), (at[s.target], s.written)]) for s in self.steps]
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


def _launch(plan: Plan, name: str, x: Rows, wide: DType | None, target: Callable[[DType], tuple[int, int, list[int]]]) -> DType | None:
    """Reduce rows into the buffer, byte and strides that `target` gives for the dtype of the result."""
    size, near, steps = x.row[0], x.row[1] == 1, [s for _, s in (*x.outer, x.row)]
    short = size <= E.SHORT
    aligned = near and not short and size % E.WIDE == 0 and x.read % ALIGNMENT == 0 and (plan.aligned or x.source > 0)
    aligned = aligned and not any(s % E.WIDE for s in steps[:-1])
    form = Form(len(x.outer), size if short else 0, near, aligned)
    found = _kernel(name, x.dtype, wide, form, P.state().target)
    if found is None:
        return None
    kernel, dtype = found
    number, written, places = target(dtype)
    unit = E.WIDE if aligned else 1
    values = [*(n for n, _ in x.outer), size // unit, *(s // unit for s in steps), *places]
    plan.steps.append(Step(E.Bound(kernel, values), x.source, x.read, number, written))
    return dtype


def _rows(plan: Plan, name: str, x: Rows, wide: DType | None) -> DType | None:
    """All rows into a buffer that has the kept axes one after the other; the dtype of that."""
    k, (n, step) = len(x.outer), x.row
    if n <= LONG:
        def last(dtype: DType) -> tuple[int, int, list[int]]:
            number, strides = plan.buffer(x.sizes, dtype)
            return number, 0, strides

        return _launch(plan, name, x, wide, last)
    per = max(CHUNK, -(-n // CHUNKS // CHUNK) * CHUNK)
    whole, rest = divmod(n, per)
    shape = [*x.sizes, whole + (rest > 0)]

    def parts(dtype: DType) -> tuple[int, int, list[int]]:
        number, strides = plan.buffer(shape, dtype)
        return number, 0, strides

    chunks = replace(x, outer=[*x.outer, (whole, step * per)], row=(per, step))
    dtype = _launch(plan, name, chunks, wide, parts)
    if dtype is None:
        return None
    number, each = len(plan.buffers), [int(i) for i in row_major(tuple(shape))]
    if rest:
        tail = replace(x, read=x.read + whole * per * step * x.dtype.itemsize, row=(rest, step))
        if _launch(plan, name, tail, wide, lambda d: (number, whole * each[k] * d.itemsize, each[:k])) is None:
            return None
    return _rows(plan, NAMES[name], Rows(number, 0, dtype, list(zip(shape[:k], each[:k], strict=True)), (shape[k], each[k])), None)


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
    row = inner[0] if inner else (1, 1)
    cut = row[0] > LONG
    wide = dt.f32 if own in dt.SMALL and (name == "mean" or cut) else None
    made = _rows(plan, "sum" if name == "mean" and cut else name, Rows(0, 0, own, outer, row), wide)
    if made is None:
        return None
    plan.divisor = row[0] if name == "mean" and cut else 0
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
