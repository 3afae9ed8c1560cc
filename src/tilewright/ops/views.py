"""View ops: operand 0 through another layout. Nothing is computed; `views` says where each output's elements lie."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dims import Dim, Shape, at_least, product
from ..core.dtypes import compute_dtype
from ..core.errors import UnsupportedError, require
from ..core.needs import require_room
from ..ir.graph import Value
from ..ir.layout import Layout
from ..ir.types import TensorType
from . import functions as F
from .base import E, MaybeValues, S, Values, register
from .families import (
    M,
    N,
    View,
    behind,
    bf16,
    f32,
    f64,
    i64,
    provably_negative,
    require_axes,
    require_axis,
    require_broadcasts_to,
    show_shape,
)


@register
class Reshape(View):
    """The same elements in row-major order under another shape."""

    complex = "parts"
    shape: Shape
    samples = [S(f32(2, 6), shape=(3, 4)), S(f32(2, 3), shape=(6,)), S(f32(), shape=(1, 1)), S(f32(0, 3), shape=(3, 0)),
               S(f32(N, 4), shape=(N, 2, 2)), S(f32(N, 2, 3), shape=(3 * N * 2,)), S(i64(4, 1), shape=(2, 2)),
               S(f32(M, N, 4), shape=(M * N, 2, 2)), S(bf16(6), shape=(2, 3))]
    errors = [E(f32(2, 3), shape=(4, 2), match=r"cannot change the number of elements, got x=\[2,3\], shape=\[4,2\]"),
              E(f32(N), shape=(4,), match="cannot change the number of elements"),
              E(f32(2, 3), shape=(-1, 3), match="dims must not be negative")]

    def infer(self, x: TensorType) -> TensorType:
        require(not any(provably_negative(d) for d in self.shape), "dims must not be negative", shape=show_shape(self.shape))
        require(product(self.shape) == x.numel, "cannot change the number of elements", x=show_shape(x.shape), shape=show_shape(self.shape))
        return x.with_shape(self.shape)

    def ref(self, x: Any) -> Any:
        return np.reshape(x, self.shape)

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        return (layout.reshape(self.shape),)

    def transposed(self, x: Value, g: Value) -> Value:
        return F.reshape(g, x.shape)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (F.reshape(inputs[0], (size, *self.shape)),)


@register
class Transpose(View):
    """Permute axes: out.shape[i] = x.shape[perm[i]]."""

    complex = "parts"
    perm: tuple[int, ...]
    samples = [S(f32(2, 3), perm=(1, 0)), S(f32(2, 1, 4), perm=(2, 0, 1)), S(f32(), perm=()), S(f32(0, 3), perm=(1, 0)),
               S(f32(N, 3, 2), perm=(1, 2, 0))]
    errors = [E(f32(2, 3), perm=(0, 0), match=r"perm must be a permutation of \(0, 1\), got perm=\(0, 0\)"),
              E(f32(2, 3), perm=(0,), match="perm must be a permutation")]

    def infer(self, x: TensorType) -> TensorType:
        require(sorted(self.perm) == list(range(x.ndim)), "perm must be a permutation of {axes}", axes=tuple(range(x.ndim)), perm=self.perm)
        return x.with_shape(tuple(x.shape[p] for p in self.perm))

    def ref(self, x: Any) -> Any:
        return np.transpose(x, self.perm)

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        return (layout.permute(self.perm),)

    def transposed(self, x: Value, g: Value) -> Value:
        return F.transpose(g, tuple(self.perm.index(i) for i in range(len(self.perm))))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (Transpose(perm=(0, *behind(self.perm)))(inputs[0]),)


def spread_apart(x: Value, steps: tuple[int, ...]) -> Value:
    """The elements of x `steps` apart along each axis, with zeros between them."""
    for axis, step in enumerate(steps):
        n = x.shape[axis]
        if step != 1 and n != 0:
            before, after = x.shape[:axis], x.shape[axis + 1 :]
            gaps = (*(0,) * (axis + 1), step - 1, *(0,) * len(after))
            apart = F.pad(F.reshape(x, (*before, n, 1, *after)), (0,) * len(gaps), gaps)
            x = F.slice_(F.reshape(apart, (*before, n * step, *after)), axis, 0, (n - 1) * step + 1)
    return x


@register
class Slice(View):
    """Per axis i: `sizes[i]` elements from `starts[i]`, `steps[i]` apart. Steps are positive; Flip reverses."""

    complex = "parts"
    starts: tuple[Dim, ...]
    sizes: tuple[Dim, ...]
    steps: tuple[int, ...]
    samples = [S(f32(5, 7), starts=(1, 0), sizes=(3, 4), steps=(1, 2)), S(f32(4), starts=(4,), sizes=(0,), steps=(1,)),
               S(f32(3, 5), starts=(0, 4), sizes=(3, 1), steps=(1, 3)), S(f32(M, 4), starts=(M - 1, 1), sizes=(1, 2), steps=(1, 2)),
               S(f32(16, 2), starts=(0, 0), sizes=(N, 2), steps=(1, 1)), S(f32(), starts=(), sizes=(), steps=())]
    errors = [E(f32(4), starts=(2,), sizes=(3,), steps=(1,), match="slice of axis 0 leaves its 4 elements, got start=2, size=3, step=1"),
              E(f32(4), starts=(0,), sizes=(2,), steps=(-1,), match="steps must be positive; use flip"),
              E(f32(4), starts=(-1,), sizes=(1,), steps=(1,), match="starts and sizes must not be negative"),
              E(f32(4, 4), starts=(0,), sizes=(1,), steps=(1,), match="needs one start, size and step an axis"),
              E(f32(M), starts=(0,), sizes=(M + 1,), steps=(1,), match="slice of axis 0 leaves its M elements")]

    def infer(self, x: TensorType) -> TensorType:
        require(len(self.starts) == len(self.sizes) == len(self.steps) == x.ndim, "needs one start, size and step an axis",
                starts=self.starts, sizes=self.sizes, steps=self.steps)
        require(all(s > 0 for s in self.steps), "steps must be positive; use flip", steps=self.steps)
        require(not any(provably_negative(d) for d in (*self.starts, *self.sizes)), "starts and sizes must not be negative",
                starts=self.starts, sizes=self.sizes)
        for axis, (d, start, size, step) in enumerate(zip(x.shape, self.starts, self.sizes, self.steps, strict=True)):
            # A symbolic size may be 0, where the last element does not exist: only then is its place not checked.
            room = d - start - (size - 1) * step - 1 if at_least(size, 1) else d - start - size
            require(not provably_negative(room), "slice of axis {axis} leaves its {d} elements", axis=axis, d=d, start=start, size=size,
                    step=step)
        return x.with_shape(self.sizes)

    def ref(self, x: Any) -> Any:
        return x[tuple(slice(a, a + n * s, s) if n else slice(0, 0) for a, n, s in zip(self.starts, self.sizes, self.steps, strict=True))]

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        for axis, (start, size, step) in enumerate(zip(self.starts, self.sizes, self.steps, strict=True)):
            layout = layout.slice(axis, start, size, step)
        return (layout,)

    def transposed(self, x: Value, g: Value) -> Value:
        """Zeros around g and, where steps leave elements out, between its elements."""
        g = spread_apart(g, self.steps)
        hi = [d - start - n for d, start, n in zip(x.shape, self.starts, g.shape, strict=True)]
        return F.pad(g, self.starts, hi)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (Slice(starts=(0, *self.starts), sizes=(size, *self.sizes), steps=(1, *self.steps))(inputs[0]),)


@register
class Expand(View):
    """Broadcast to a shape: new axes in front, size-1 axes stretched."""

    complex = "parts"
    shape: Shape
    samples = [S(f32(3, 1), shape=(2, 3, 4)), S(f32(), shape=(2, 2)), S(f32(3), shape=(3,)), S(f32(1), shape=(0,)),
               S(f32(1, 2), shape=(N, 2)), S(f32(N, 1), shape=(3, N, M))]
    errors = [E(f32(3), shape=(4,), match=r"x must broadcast to \[4\], got shape=\[3\]"),
              E(f32(2, 3), shape=(3,), match="x must broadcast to"), E(f32(3), shape=(3, 1), match="x must broadcast to")]

    def infer(self, x: TensorType) -> TensorType:
        require_broadcasts_to("x", x.shape, self.shape)
        return x.with_shape(self.shape)

    def ref(self, x: Any) -> Any:
        shape: Any = self.shape
        return np.broadcast_to(x, shape)

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        return (layout.expand(self.shape),)

    def transposed(self, x: Value, g: Value) -> Value:
        return F.sum_to(g, x.shape)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        x, = inputs
        new = len(self.shape) - (len(x.shape) - 1)
        return (F.expand(F.reshape(x, (size, *(1,) * new, *x.shape[1:])), (size, *self.shape)),)


@register
class Flip(View):
    """Reverse the order along axes."""

    complex = "parts"
    axes: tuple[int, ...]
    cases = True
    samples = [S(f32(3, 4), axes=(0,)), S(f32(3, 4), axes=(0, 1)), S(f32(M), axes=(0,)), S(f32(2), axes=()), S(f32(0, 2), axes=(1,))]
    errors = [E(f32(3), axes=(1,), match=r"axes must be distinct, ascending and in 0..0, got axes=\(1,\)"),
              E(f32(3, 3), axes=(1, 1), match="axes must be distinct")]

    def infer(self, x: TensorType) -> TensorType:
        require_axes(self.axes, x.ndim)
        return x

    def ref(self, x: Any) -> Any:
        return np.flip(x, self.axes)

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        for axis in self.axes:
            layout = layout.flip(axis)
        return (layout,)

    def transposed(self, x: Value, g: Value) -> Value:
        return self(g)  # type: ignore[no-any-return]


@register
class Split(View):
    """Consecutive parts along an axis, one output each."""

    complex = "parts"
    axis: int
    sizes: tuple[Dim, ...]
    cases = True
    samples = [S(f32(2, 6), axis=1, sizes=(1, 2, 3)), S(f32(4), axis=0, sizes=(4, 0)), S(f32(N, 4), axis=1, sizes=(2, 2)),
               S(f32(3 * N, 2), axis=0, sizes=(N, 2 * N)), S(f32(3), axis=0, sizes=(3,))]
    errors = [E(f32(6), axis=0, sizes=(2, 3), match=r"sizes must add up to 6, got sizes=\(2, 3\)"),
              E(f32(6), axis=1, sizes=(6,), match="axis must be in 0..0, got axis=1"),
              E(f32(6), axis=0, sizes=(), match="needs at least one size")]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        require_axis(self.axis, x.ndim)
        require(len(self.sizes) > 0, "needs at least one size")
        for d in self.sizes:
            require_room(d, "sizes must not be negative", sizes=self.sizes)
        require(sum(self.sizes, 0) == x.shape[self.axis], "sizes must add up to {dim}", dim=x.shape[self.axis], sizes=self.sizes)
        return tuple(x.with_shape((*x.shape[: self.axis], n, *x.shape[self.axis + 1 :])) for n in self.sizes)

    def ref(self, x: Any) -> Any:
        sizes: Any = self.sizes
        return tuple(np.split(x, np.cumsum(sizes)[:-1], self.axis))

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        out: list[Layout | None] = []
        start: Dim = 0
        for n in self.sizes:
            out.append(layout.slice(self.axis, start, n))
            start = start + n
        return tuple(out)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        parts = [F.zeros(v) if g is None else g for v, g in zip(outputs, cotangents, strict=True)]
        return (F.concat(parts, self.axis),)


@register
class Strided(View):
    """The last axis through strides: out[…, i, j, …] = x[…, offset + i * strides[0] + j * strides[1] + …]. Places may repeat."""

    complex = "parts"
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    cases = True
    samples = [S(f32(2, 30), shape=(7, 5), strides=(4, 1)), S(f32(10), shape=(2, 2, 3), strides=(1, 3, 2), offset=1),
               S(f64(3, 8), shape=(8,), strides=(1,)), S(bf16(12), shape=(0, 5), strides=(4, 3)), S(i64(5), shape=(), strides=(), offset=3),
               S(f32(N, 6), shape=(3, 2), strides=(2, 1))]
    errors = [E(f32(9), shape=(2, 2), strides=(8, 1), match="reaches element 9 of its axis, got x=f32"),
              E(f32(9), shape=(2,), strides=(1, 2), match="needs one stride an axis"),
              E(f32(), shape=(), strides=(), match="needs an axis"),
              E(f32(9), shape=(2,), strides=(-1,), match="sizes, strides and the offset must not be negative")]

    def infer(self, x: TensorType) -> TensorType:
        require(x.ndim > 0, "needs an axis", x=x)
        require(len(self.shape) == len(self.strides), "needs one stride an axis", shape=self.shape, strides=self.strides)
        require(min((*self.shape, *self.strides, self.offset)) >= 0, "sizes, strides and the offset must not be negative",
                shape=self.shape, strides=self.strides, offset=self.offset)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        if 0 not in self.shape:
            require_room(x.shape[-1] - 1 - last, "reaches element {last} of its axis", last=last, x=x)
        return x.with_shape((*x.shape[:-1], *self.shape))

    def places(self) -> Any:
        """The elements of the axis that are read, in the result's shape."""
        at = np.full(self.shape, self.offset, np.int64)
        for axis, (n, step) in enumerate(zip(self.shape, self.strides, strict=True)):
            at += (np.arange(n) * step).reshape([-1 if a == axis else 1 for a in range(len(self.shape))])
        return at

    def ref(self, x: Any) -> Any:
        return np.take(x, self.places(), axis=-1)

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        step = layout.strides[-1]
        strides = (*layout.strides[:-1], *(step * s for s in self.strides))
        return (Layout((*layout.shape[:-1], *self.shape), strides, layout.offset + step * self.offset),)

    def transposed(self, x: Value, g: Value) -> Value:
        size = x.shape[-1]
        if not isinstance(size, int):
            raise UnsupportedError(f"strided: its transpose needs a static size of the axis, got {size}")
        wide = F.cast(g, compute_dtype(g.dtype))  # places that repeat are summed
        return F.cast(F.one("strided_add", wide, size=size, strides=self.strides, offset=self.offset), g.dtype)
