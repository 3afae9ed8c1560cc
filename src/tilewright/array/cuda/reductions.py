"""Reductions of Arrays on a GPU with run-time sizes: one kernel for a function, a dtype, the number of axes and how the operand lies.

A row is what is reduced to one element. Rows of neighbours are reduced by a group of threads each; where another axis has the neighbours,
threads take its columns side by side. Long rows are cut into chunks whose results are reduced again; how depends on the row's length alone,
so that a row has the same bits whatever lies beside it. Short rows are part of a kernel.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, sym
from ...core.dtypes import DType
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...kernels.cuda.groups import Shared
from ...kernels.launch import Buffer
from ...kernels.region import Operand, Region, collapse
from ...kernels.rows.cuda.rows import CudaRows
from ...kernels.rows.reduce import Reduce
from ...kernels.sites import name_sites
from ...runtime.cuda.memory import ALIGNMENT
from ...transform.lib import function
from ...transform.trace import Leaf
from ..api.base import axes_of
from . import elementwise as E
from . import placed as P
from .placed import Placed

NAMES = {"sum": "sum", "prod": "prod", "mean": "sum", "max": "max", "min": "min", "any": "any", "all": "all"}  # -> what joins parts
LONG, CHUNK, CHUNKS = 1 << 14, 1 << 12, 1 << 10  # a row of neighbours: elements from which it is cut, of a chunk, chunks at most
TALL, STEP, STEPS = 256, 32, 256  # the same of columns
LONGEST, TALLEST = 1 << 34, 1 << 13  # elements that a kernel reduces to one
Axis = tuple[int, int]  # size, stride in elements


@dataclass(frozen=True)
class Form:
    """Of a kernel: the number of kept axes before the reduced one, whether columns lie behind it, the row's length where that is known,
    whether the neighbours' stride is 1, and whether rows begin and end at multiples of 16 bytes."""

    outer: int
    columns: bool
    length: int
    near: bool
    wide: bool

    def shape(self) -> tuple[Dim, ...]:
        row = self.length or (E.WIDE if self.wide else 1) * sym("n", 1, TALLEST if self.columns else LONGEST)
        return *(sym(f"n{i}", 1, E.STEP) for i in range(self.outer)), row, *([sym("m", 1, E.STEP)] if self.columns else [])

    def layouts(self) -> tuple[Layout, Layout]:
        """Of the operand and of the result."""
        shape, unit = self.shape(), E.WIDE if self.wide else 1
        steps: list[Dim] = [unit * sym(f"s{i}", 0, E.STEP) for i in range(len(shape))]
        if self.near:
            steps[-1] = 1
        kept = (*shape[: self.outer], *shape[self.outer + 1 :])
        return Layout(shape, tuple(steps)), Layout(kept, tuple(sym(f"t{i}", 0, E.STEP) for i in range(len(kept))))

    @property
    def symbols(self) -> list[str]:
        rank = self.outer + 1 + self.columns
        names = [f"n{i}" for i in range(self.outer)] + ["n"] + ["m"] * self.columns
        return names + [f"s{i}" for i in range(rank)] + [f"t{i}" for i in range(rank - 1)]


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
        template = Shared(Reduce()) if form.columns else CudaRows()
        if template.matches(region, target) is not None:
            return None
        launches = name_sites(template.build(region, target), region)
        return (E.DeviceKernel.of(name, launches[0], form.symbols, target), out.dtype) if len(launches) == 1 else None

    return E.stored(("rows", name, dtype, wide, form), target, make)


def _launch(name: str, p: Placed, outer: Sequence[Axis], row: Axis, column: Axis | None, wide: DType | None,
            target: Callable[[DType], tuple[Placed, Sequence[int]]]) -> Placed | None:
    """Reduce rows of p into what `target` gives for the dtype of the result, with its strides."""
    size = row[0]
    last = column or row
    near, steps = last[1] == 1, [s for _, s in (*outer, row, *([column] if column else []))]
    short = not column and size <= E.SHORT
    aligned = near and not short and not column and size % E.WIDE == 0 and p.address % ALIGNMENT == 0
    aligned = aligned and not any(s % E.WIDE for s in steps[:-1])
    form = Form(len(outer), column is not None, size if short else 0, near, aligned)
    found = _kernel(name, dt.dtype(p.dtype), wide, form, P.state().target)
    if found is None:
        return None
    kernel, dtype = found
    out, places = target(dtype)
    unit = E.WIDE if aligned else 1
    values = [*(n for n, _ in outer), size // unit, *([column[0]] if column else []), *(s // unit for s in steps), *places]
    stream = P.current()
    P.before_use((p, out), stream)
    kernel.start([p.address, out.address], values, stream)
    P.after_use((p, out), stream)
    out.stream = stream
    return out


def _rows(name: str, p: Placed, outer: list[Axis], row: Axis, column: Axis | None, wide: DType | None) -> Placed | None:
    """All rows of p; the result has the kept axes one after the other."""
    sizes = [n for n, _ in outer] + ([column[0]] if column else [])

    def fresh(shape: list[int]) -> Callable[[DType], tuple[Placed, Sequence[int]]]:
        def make(dtype: DType) -> tuple[Placed, Sequence[int]]:
            made = P.empty(shape, dtype)
            return made, [s // dtype.itemsize for s in made.header.strides]
        return make

    n, step = row
    long, least, most = (TALL, STEP, STEPS) if column else (LONG, CHUNK, CHUNKS)
    if n <= long:
        return _launch(name, p, outer, row, column, wide, fresh(sizes))
    per = min(max(least, -(-n // most // least) * least), TALLEST if column else LONGEST)
    whole, rest = divmod(n, per)
    count, k = whole + (rest > 0), len(outer)
    parts: list[Placed] = []

    def of_parts(dtype: DType) -> tuple[Placed, Sequence[int]]:
        if not parts:
            parts.append(P.empty([*sizes[:k], count, *sizes[k:]], dtype))
        return parts[0], [s // dtype.itemsize for s in parts[0].header.strides]

    if _launch(name, p, [*outer, (whole, step * per)], (per, step), column, wide, of_parts) is None:
        return None
    (made,) = parts
    if rest:
        tail = Placed(_from(p.header, whole * per * step), p.stream)
        strides = [s // made.header.itemsize for i, s in enumerate(made.header.strides) if i != k]
        end = Placed(_from(made.header, whole * made.header.strides[k] // made.header.itemsize), made.stream)
        _launch(name, tail, outer, (rest, step), column, wide, lambda dtype: (end, strides))
    each = [s // made.header.itemsize for s in made.header.strides]
    joined = list(zip(sizes[:k], each, strict=False))
    return _rows(NAMES[name], made, joined, (count, each[k]), (sizes[k], each[k + 1]) if column else None, None)


def _from(header: P.Header, elements: int) -> P.Header:
    """The memory from an element on, as an array of one: its address is what counts."""
    one = np.lib.stride_tricks.as_strided(header, (1,), (0,))
    step = np.sign(elements) * header.itemsize
    return np.lib.stride_tricks.as_strided(one, (abs(elements) + 1,), (step,))[-1:]


def run(name: str, p: Placed, axis: Any, keepdims: bool) -> Placed | None:
    """A reduction over axes; None where no kernel of run-time sizes serves it."""
    header, own = p.header, dt.dtype(p.dtype)
    axes = axes_of(axis, header.ndim, name)
    if not header.size or not axes or own.kind == "c" or own.itemsize < 1:
        return None
    kept = [i for i in range(header.ndim) if i not in axes]
    strides = [s // header.itemsize for s in header.strides]
    shape, moved = tuple(header.shape[i] for i in kept), Placed(header, p.stream)

    def merged(order: Sequence[int]) -> list[Axis]:
        sizes, steps = tuple(header.shape[i] for i in order), tuple(strides[i] for i in order)
        found: Any = collapse(sizes, [Layout(sizes, steps)])
        return list(zip(found[0], found[1][0], strict=True))

    outer, inner = merged(kept), merged(sorted(axes, key=lambda i: -abs(strides[i])))
    if len(inner) > 1:  # they do not lie side by side: copied so that they do
        moved = E.contiguous(Placed(header.transpose(*kept, *axes), p.stream), copy=True)
        length = header.size // max(1, int(np.prod(shape)))
        outer, inner = [(header.size // length, length)] if len(shape) else [], [(length, 1)]
    row = inner[0] if inner else (1, 1)
    length = row[0]
    column = outer.pop() if outer and outer[-1][1] == 1 and row[1] != 1 and length > 1 else None
    small = own in dt.SMALL
    wide = dt.f32 if small and (name == "mean" or length > (TALL if column else LONG)) else None
    whole = name == "mean" and length > (TALL if column else LONG)
    made = _rows("sum" if whole else name, moved, outer, row, column, wide)
    if made is None:
        return None
    if whole:
        made = E.run("divide", [made, P.number(length, made.dtype)])
        assert made is not None
    if wide is not None and made.dtype != own.np and name not in ("any", "all"):
        made = E.run("astype", [made], static=(own,))
        assert made is not None
    final = tuple(1 if i in axes else n for i, n in enumerate(header.shape)) if keepdims else shape
    return Placed(made.header.reshape(final), made.stream)
