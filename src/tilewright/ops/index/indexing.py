"""Ops that move elements by index: gathers, concatenation, padding, top-k. Indices must be in range: a bad one is an ExecutionError."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.dtypes import DType
from ...core.errors import ExecutionError, require
from ...core.needs import require_room
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Pulled, S, Traits, Values, register
from ..families import (
    General,
    M,
    N,
    behind,
    bf16,
    boolean,
    broadcast_shapes,
    f32,
    f64,
    i32,
    i64,
    require_axes,
    require_axis,
    require_kind,
    require_one_dtype,
)
from .sorting import order_of, require_index_dtype
from .transposed import known, summed_readers


def check_indices(op: str, ids: Any, size: int, axis: int) -> None:
    bad = (ids < 0) | (ids >= size)
    if np.any(bad):
        raise ExecutionError(f"{op}: index {int(ids[bad].flat[0])} is out of range for axis {axis} with {size} elements")


def merge_cases(x: Value, ids: Value, axis: int) -> tuple[Value, Value]:
    """x[batch, ..., n, ...] as rows [batch * n, ...] of all cases, and batched indices into those."""
    size, n = x.shape[0], x.shape[axis + 1]
    order = (0, axis + 1, *(a for a in range(1, len(x.shape)) if a != axis + 1))
    rows = F.transpose(x, order)
    first = F.iota(x.node.graph, (size, *(1,) * (len(ids.shape) - 1)), 0, ids.dtype)
    return F.reshape(rows, (size * n, *rows.shape[2:])), F.add(ids, F.mul(first, F.extent(ids, (n,))))


def move_axes(x: Value, source: int, count: int, target: int) -> Value:
    """x whose `count` axes at `source` come from indices, the batch first: it goes to the front, the others to `target` behind it."""
    picked = list(range(source, source + count))
    rest = [a for a in range(len(x.shape)) if a not in picked]
    return F.transpose(x, (picked[0], *rest[:target], *picked[1:], *rest[target:]))


def require_ids(ids: TensorType) -> None:
    require(ids.dtype.is_int, "indices must be integers", ids=ids)


@register
class Gather(General):
    """Rows of x by index: np.take(x, ids, axis)."""

    work = 0
    complex, fusion = "parts", "gather"
    faults = True
    axis: int = 0
    traits = Traits(linear=True)
    samples = [S(f32(3, 4), i64(5), low=(-2, 0), high=(2, 2)), S(f32(4, 3), i32(2, 2), axis=1, low=(-2, 0), high=(2, 2)),
               S(f32(3), i64(), low=(-2, 0), high=(2, 2)), S(f32(3, 2), i64(1, N), low=(-2, 0), high=(2, 2)),
               S(f32(3, 2), i64(0), low=(-2, 0), high=(2, 2)), S(bf16(3, 2), i64(4), low=(-2, 0), high=(2, 2)),
               S(f32(2, 3, N), i64(2), axis=1, low=(-2, 0), high=(2, 2))]
    errors = [E(f32(3, 4), f32(2), match="indices must be integers, got ids=f32"),
              E(f32(3), i64(2), axis=1, match="axis must be in 0..0, got axis=1")]

    def infer(self, x: TensorType, ids: TensorType) -> TensorType:
        require_axis(self.axis, x.ndim)
        require_ids(ids)
        return x.with_shape((*x.shape[: self.axis], *ids.shape, *x.shape[self.axis + 1 :]))

    def ref(self, x: Any, ids: Any) -> Any:
        check_indices(self.name, ids, x.shape[self.axis], self.axis)
        return np.take(x, ids, axis=self.axis)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x, ids = inputs
        size, at = x.shape[self.axis], known(ids)
        inside = at is not None and at.ndim == 1 and isinstance(size, int) and at.size and 0 <= at.min() and at.max() < size
        dx = summed_readers(g, at[None], None, size, self.axis) if inside else None
        return F.scatter_add(F.zeros(x), ids, g, self.axis) if dx is None else dx, None

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        x, ids = inputs
        if not batched[1]:
            return (Gather(axis=self.axis + 1)(x, ids),)
        if batched[0]:
            x, ids = merge_cases(x, ids, self.axis)
        axis = 0 if batched[0] else self.axis  # where the indices' axes come out, the batch first among them
        return (move_axes(Gather(axis=axis)(x, ids), axis, len(ids.shape), self.axis),)


@register
class GatherAlongAxis(General):
    """out[i,j,...] = x[i, ids[i,j,...], ...] with the index on `axis`; other dims of ids are not longer than x's."""

    work = 0
    complex, fusion = "parts", "gather"
    faults = True
    axis: int
    traits = Traits(linear=True)
    cases = True
    samples = [S(f32(3, 4), i64(3, 2), axis=1, low=(-2, 0), high=(2, 3)), S(f32(3, 4), i64(5, 4), axis=0, low=(-2, 0), high=(2, 2)),
               S(f32(3, 4), i32(2, 1), axis=1, low=(-2, 0), high=(2, 3)), S(f32(N, 3), i64(N, 1), axis=1, low=(-2, 0), high=(2, 2))]
    errors = [E(f32(3, 4), i64(3), axis=1, match="x and ids must have one rank"),
              E(f32(3, 4), i64(4, 1), axis=1, match="ids must not be longer than x on axis 0, got x=3, ids=4"),
              E(f32(3), f32(3), axis=0, match="indices must be integers")]

    def infer(self, x: TensorType, ids: TensorType) -> TensorType:
        require_axis(self.axis, x.ndim)
        require_ids(ids)
        require(x.ndim == ids.ndim, "x and ids must have one rank", x=x, ids=ids)
        for a, (d, n) in enumerate(zip(x.shape, ids.shape, strict=True)):
            require_room(0 if a == self.axis else d - n, "ids must not be longer than x on axis {a}", a=a, x=d, ids=n)
        return x.with_shape(ids.shape)

    def ref(self, x: Any, ids: Any) -> Any:
        check_indices(self.name, ids, x.shape[self.axis], self.axis)
        part = x[tuple(slice(None) if a == self.axis else slice(0, n) for a, n in enumerate(ids.shape))]
        return np.take_along_axis(part, ids.astype(np.int64), axis=self.axis)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x, ids = inputs
        return F.one("scatter_along", F.zeros(x), ids, g, axis=self.axis), None


@register
class Index(General):
    """NumPy advanced indexing on adjacent axes: the indices broadcast together and replace those axes."""

    work = 0
    complex, fusion = "parts", "gather"
    faults = True
    axes: tuple[int, ...]
    traits = Traits(linear=True)
    samples = [S(f32(3, 4), i64(5), i64(5), axes=(0, 1), low=(-2, 0, 0), high=(2, 2, 3)),
               S(f32(2, 3, 4), i64(2, 1), i64(3), axes=(1, 2), low=(-2, 0, 0), high=(2, 2, 3)),
               S(f32(3, 4), i64(N), axes=(1,), low=(-2, 0), high=(2, 3)),
               S(f32(5, 3, 4), i32(), i32(), axes=(1, 2), low=(-2, 0, 0), high=(2, 2, 3)),
               S(f32(2, 5, 3, 4), i32(), i32(), axes=(1, 2), low=(-2, 0, 0), high=(2, 4, 2)),
               S(f32(3, 3, 2), i32(2), i32(2), axes=(0, 1), low=(-2, 0, 0), high=(2, 2, 2)),
               S(boolean(3, 3), i64(4, 1), i64(1, 4), axes=(0, 1), low=(0, 0, 0), high=(1, 2, 2))]
    errors = [E(f32(3, 4, 5), i64(2), i64(2), axes=(0, 2), match=r"axes must be adjacent, got axes=\(0, 2\)"),
              E(f32(3, 4), i64(2), axes=(0, 1), match="needs one index an axis, got axes=2, indices=1"),
              E(f32(3, 4), i64(2), i64(3), axes=(0, 1), match="shapes do not broadcast"),
              E(f32(3), f32(3), axes=(0,), match="indices must be integers"), E(f32(3), axes=(), match="needs at least one axis")]

    def infer(self, x: TensorType, *ids: TensorType) -> TensorType:
        require(len(self.axes) > 0, "needs at least one axis")
        require_axes(self.axes, x.ndim)
        first, last = self.axes[0], self.axes[-1]
        require(last - first + 1 == len(self.axes), "axes must be adjacent", axes=self.axes)
        require(len(ids) == len(self.axes), "needs one index an axis", axes=len(self.axes), indices=len(ids))
        for i in ids:
            require_ids(i)
        return x.with_shape((*x.shape[:first], *broadcast_shapes(*(i.shape for i in ids)), *x.shape[last + 1 :]))

    def ref(self, x: Any, *ids: Any) -> Any:
        for a, i in zip(self.axes, ids, strict=True):
            check_indices(self.name, i, x.shape[a], a)
        return x[(*(slice(None),) * self.axes[0], *ids)]

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x = inputs[0]
        rows, flat = self._merged(x, inputs[1:])
        back = F.scatter_add(F.zeros(rows), flat, g, self.axes[0])
        return (F.reshape(back, x.shape), *(None for _ in self.axes))

    def _merged(self, x: Value, ids: Values) -> tuple[Value, Value]:
        """x with the indexed axes as one, and the indices into that."""
        first, last = self.axes[0], self.axes[-1]
        total: Value | None = None
        for axis, i in zip(self.axes, ids, strict=True):
            part = F.mul(F.cast(i, dt.i64), F.extent(F.cast(i, dt.i64), x.shape[axis + 1 : last + 1]))
            total = part if total is None else F.add(total, part)
        assert total is not None
        return F.reshape(x, (*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :])), total

    def decompose(self, x: Value, *ids: Value) -> Value:
        """Indices that leave their own axis but not the merged one are not noticed."""
        rows, flat = self._merged(x, ids)
        return F.gather(rows, flat, self.axes[0])

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "batch" and any(active[1:])

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (Index(axes=behind(self.axes))(*inputs),)


@register
class Concat(General):
    """Operands one after the other along an axis."""

    work = 0
    complex = "parts"
    axis: int
    traits = Traits(linear=True)
    cases = True
    samples = [S(f32(2, 3), f32(2, 1), f32(2, 4), axis=1), S(f32(3), axis=0), S(f32(N, 2), f32(M, 2), axis=0), S(i64(2), i64(0), axis=0),
               S(bf16(2, 1), bf16(2, 1), axis=1), S(boolean(1), boolean(3), axis=0)]
    errors = [E(f32(2, 3), f32(3, 3), axis=1, match="operands must agree outside axis 1"),
              E(f32(2), f64(2), axis=0, match="operands must have one dtype"), E(f32(2), axis=1, match="axis must be in 0..0"),
              E(axis=0, match="takes at least 1 operands, got 0")]

    def infer(self, first: TensorType, *rest: TensorType) -> TensorType:
        types = (first, *rest)
        require_one_dtype(types)
        require_axis(self.axis, first.ndim)

        def others(x: TensorType) -> tuple[Dim, ...]:
            return (*x.shape[: self.axis], *x.shape[self.axis + 1 :])

        require(all(x.ndim == first.ndim and others(x) == others(first) for x in rest), "operands must agree outside axis {axis}",
                axis=self.axis, types=", ".join(map(str, types)))
        return first.with_shape((*first.shape[: self.axis], sum((x.shape[self.axis] for x in types), 0), *first.shape[self.axis + 1 :]))

    def ref(self, *arrays: Any) -> Any:
        return np.concatenate(arrays, axis=self.axis)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return F.split(g, self.axis, [v.shape[self.axis] for v in inputs])

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        return (F.concat([F.zeros(v) if t is None else t for v, t in zip(inputs, tangents, strict=True)], self.axis),)


@register
class Pad(General):
    """`lo[i]` and `hi[i]` elements of `value` before and after axis i."""

    work = 0
    complex = "rule"
    lo: tuple[Dim, ...]
    hi: tuple[Dim, ...]
    value: float = 0.0
    samples = [S(f32(2, 3), lo=(1, 0), hi=(0, 2)), S(f32(3), lo=(2,), hi=(1,), value=-1.5), S(i64(2), lo=(1,), hi=(1,), value=7),
               S(f32(N), lo=(0,), hi=(16 - N,)), S(f32(0), lo=(1,), hi=(0,)), S(f32(), lo=(), hi=()),
               S(f32(2), lo=(1,), hi=(0,), value=float("-inf")), S(bf16(2), lo=(0,), hi=(1,), value=0.5),
               S(boolean(2), lo=(1,), hi=(1,), value=1)]
    errors = [E(f32(2), lo=(1, 1), hi=(0, 0), match="needs one lo and hi an axis"),
              E(f32(2), lo=(-1,), hi=(0,), match="lo and hi must not be negative; use slice")]

    def infer(self, x: TensorType) -> TensorType:
        require(len(self.lo) == len(self.hi) == x.ndim, "needs one lo and hi an axis", lo=self.lo, hi=self.hi)
        for d in (*self.lo, *self.hi):
            require_room(d, "lo and hi must not be negative; use slice", lo=self.lo, hi=self.hi)
        return x.with_shape(tuple(a + d + b for a, d, b in zip(self.lo, x.shape, self.hi, strict=True)))

    def ref(self, x: Any) -> Any:
        widths: Any = tuple(zip(self.lo, self.hi, strict=True))
        return np.pad(x, widths, constant_values=self.value) if x.ndim else x

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x = inputs[0]
        for axis, start in enumerate(self.lo):
            g = g if g.shape[axis] == x.shape[axis] else F.slice_(g, axis, start, x.shape[axis])
        return (g,)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        assert tangents[0] is not None
        return (F.pad(tangents[0], self.lo, self.hi),)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (F.pad(inputs[0], (0, *self.lo), (0, *self.hi), self.value),)


@register
class TopK(General):
    """The k largest (or smallest) elements along an axis in order, and their indices.

    Ties take the smaller index first; NaN counts as largest.
    """

    k: int
    axis: int
    largest: bool = True
    dtype: DType = dt.i64  # the dtype of the indices
    cases = True
    samples = [S(f32(3, 90), k=2, axis=1, dtype=dt.i32), S(f64(200), k=70, axis=0), S(f32(3, 5), k=2, axis=1),
               S(f32(4, 3), k=4, axis=0, largest=False), S(i32(7), k=3, axis=0), S(f32(N, 4), k=1, axis=1),
               S(f32(3), k=0, axis=0), S(bf16(2, 6), k=3, axis=1)]
    errors = [E(f32(3), k=4, axis=0, match="k must be in 0..3, got k=4"), E(f32(3), k=1, axis=1, match="axis must be in 0..0"),
              E(f32(3), k=1, axis=0, dtype=dt.f32, match="indices must be of an integer dtype"),
              E(boolean(3), k=1, axis=0, match="needs float or integer operands")]

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        require_kind((x,), "fiu")
        require_axis(self.axis, x.ndim)
        require_index_dtype(self.dtype)
        size = x.shape[self.axis]
        require(self.k >= 0, "k must be in 0..{size}", size=size, k=self.k)
        require_room(size - self.k, "k must be in 0..{size}", size=size, k=self.k)
        out = x.with_shape((*x.shape[: self.axis], self.k, *x.shape[self.axis + 1 :]))
        return out, out.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        order = np.take(order_of(x, self.axis, self.largest), np.arange(self.k), axis=self.axis)
        return np.take_along_axis(x, order, axis=self.axis), order.astype(self.dtype.np)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        x, g = inputs[0], cotangents[0]
        picked = GatherAlongAxis(axis=self.axis)
        return (None,) if g is None else picked.vjp((x, outputs[1]), (outputs[0],), (g,), (True, False))[:1]

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        assert tangents[0] is not None
        return GatherAlongAxis(axis=self.axis)(tangents[0], outputs[1]), None
