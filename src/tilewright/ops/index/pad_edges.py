"""Padding with elements of the operand itself.

Sums at strided places of an axis: what `strided` reads, written back. Columns of windows become images and frames become signals.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...core.dims import Dim, Shape, product
from ...core.dtypes import compute_dtype
from ...core.errors import require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, Pulled, S, Traits, Values, register
from ..families import Composite, N, bf16, boolean, f32, f64, i64, require_kind
from ..views import Strided

MODES = ("reflect", "edge", "wrap")
WRITTEN = 32  # loads of a thread of a GPU, which are written out


@register
class PadEdges(Composite):
    """`lo[i]` and `hi[i]` elements of the operand itself before and after axis i, in NumPy's modes: `reflect` mirrors about the first and
    the last element, `edge` repeats them, `wrap` goes on at the other end. With `back` the elements of a padded operand are added to
    those that they are copies of."""

    whole = True
    complex = "parts"
    lo: tuple[Dim, ...]
    hi: tuple[Dim, ...]
    mode: str
    back: bool = False
    traits = Traits(composite=True, linear=True)
    samples = [*(S(x, lo=(0, 2, 1), hi=(1, 3, 2), mode=m) for m in MODES for x in (f32(2, 4, 5), f64(3, 5, 20), bf16(2, 4, 3))),
               S(i64(7), lo=(6,), hi=(3,), mode="reflect"), S(f32(3, 2), lo=(0, 0), hi=(5, 0), mode="edge"),
               S(f32(), lo=(), hi=(), mode="edge"),
               S(boolean(5), lo=(1,), hi=(4,), mode="wrap"), S(f32(0, 3), lo=(0, 1), hi=(0, 1), mode="wrap"),
               S(f32(N, 4), lo=(0, 1), hi=(0, 2), mode="reflect"), S(f32(3, N + 2), lo=(1, 2), hi=(1, 1), mode="wrap"),
               *(S(x, lo=(0, 2, 1), hi=(1, 3, 2), mode=m, back=True) for m in MODES for x in (f32(3, 9, 8), f64(4, 10, 23))),
               S(bf16(9, 3), lo=(1, 0), hi=(5, 0), mode="edge", back=True),
               S(f32(N + 3, 4), lo=(1, 1), hi=(0, 1), mode="reflect", back=True)]
    errors = [E(f32(2), lo=(1, 1), hi=(0, 0), mode="edge", match="needs one lo and hi an axis"),
              E(f32(2), lo=(-1,), hi=(0,), mode="edge", match="lo and hi must not be negative; use slice"),
              E(f32(3), lo=(1,), hi=(1,), mode="constant", match="mode must be reflect, edge or wrap, got mode=constant"),
              E(f32(3), lo=(3,), hi=(1,), mode="reflect", match="an axis of 3 elements has 2 to add at an end"),
              E(f32(0), lo=(1,), hi=(0,), mode="edge", match="an axis of no elements has none to add"),
              E(f32(4), lo=(3,), hi=(2,), mode="wrap", back=True, match="a padded axis has no fewer elements than its ends")]

    def infer(self, x: TensorType) -> TensorType:
        require(len(self.lo) == len(self.hi) == x.ndim, "needs one lo and hi an axis", lo=self.lo, hi=self.hi)
        require(self.mode in MODES, "mode must be reflect, edge or wrap", mode=self.mode)
        if self.back:
            require_kind((x,), "fiuc")
            inner = x.with_shape(tuple(d - a - b for a, d, b in zip(self.lo, x.shape, self.hi, strict=True)))
            for d in inner.shape:
                require_room(d, "a padded axis has no fewer elements than its ends", x=x, lo=self.lo, hi=self.hi)
            replace(self, back=False).infer(inner)
            return inner
        for n, *ends in zip(x.shape, self.lo, self.hi, strict=True):
            for d in ends:
                require_room(d, "lo and hi must not be negative; use slice", lo=self.lo, hi=self.hi)
                if d != 0 and self.mode == "edge":
                    require_room(n - 1, "an axis of no elements has none to add", x=x, lo=self.lo, hi=self.hi)
                elif d != 0:
                    most = n - 1 if self.mode == "reflect" else n
                    require_room(most - d, "an axis of {n} elements has {most} to add at an end", n=n, most=most, lo=self.lo, hi=self.hi)
        return x.with_shape(tuple(a + d + b for a, d, b in zip(self.lo, x.shape, self.hi, strict=True)))

    def ref(self, x: Any) -> Any:
        widths: Any = tuple(zip(self.lo, self.hi, strict=True))
        mode: Any = self.mode
        if not any((*self.lo, *self.hi)):
            return x
        if not self.back:
            return np.pad(x, widths, mode=mode)
        inner = [d - a - b for a, d, b in zip(self.lo, x.shape, self.hi, strict=True)]
        out = np.zeros(inner, np.float64 if x.dtype.kind not in "iuc" else x.dtype)
        np.add.at(out.reshape(-1), np.pad(np.arange(out.size).reshape(inner), widths, mode=mode).reshape(-1), x.reshape(-1))
        return out.astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        if self.back:
            return self._added(x)
        for axis, (before, after) in enumerate(zip(self.lo, self.hi, strict=True)):
            parts = [*self._part(x, axis, before, front=True), x, *self._part(x, axis, after, front=False)]
            x = F.concat(parts, axis) if len(parts) > 1 else x
        return x

    def _part(self, x: Value, axis: int, size: Dim, *, front: bool) -> list[Value]:
        n = x.shape[axis]
        if size == 0:
            return []
        if self.mode == "edge":
            shape = tuple(size if a == axis else d for a, d in enumerate(x.shape))
            return [F.expand(F.slice_(x, axis, 0 if front else n - 1, 1), shape)]
        if self.mode == "wrap":
            return [F.slice_(x, axis, n - size if front else 0, size)]
        return [F.flip(F.slice_(x, axis, 1 if front else n - 1 - size, size), (axis,))]

    def _added(self, x: Value) -> Value:
        for axis, (before, after) in enumerate(zip(self.lo, self.hi, strict=True)):
            n, whole = x.shape[axis] - before - after, x
            x = F.slice_(x, axis, before, n)
            for size, start, front in ((before, 0, True), (after, before + n, False)):
                if size == 0:
                    continue
                part = F.slice_(whole, axis, start, size)
                if self.mode == "edge":
                    part, place, size = F.sum_(part, (axis,), keepdims=True), 0 if front else n - 1, 1
                elif self.mode == "wrap":
                    place = n - size if front else 0
                else:
                    part, place = F.flip(part, (axis,)), 1 if front else n - 1 - size
                lo, hi = (tuple(d if a == axis else 0 for a in range(len(x.shape))) for d in (place, n - place - size))
                x = F.add(x, F.pad(part, lo, hi, 0))
        return x

    def spans(self) -> list[int]:
        """How many elements of a padded axis come back to one of its own, at most."""
        ends = [(a, b) for a, b in zip(self.lo, self.hi, strict=True) if isinstance(a, int) and isinstance(b, int)]
        return [1 + (max(a, b) if self.mode == "edge" else (a > 0) + (b > 0)) for a, b in ends]

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """A GPU has one kernel for all axes: threads find what they read, of which there must be little."""
        spans = self.spans()
        known = len(spans) == len(self.lo) and prod(spans) <= WRITTEN
        return not any((*self.lo, *self.hi)) or (self.back and (target is None or target.kind != "cuda" or not known))

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return (replace(self, back=not self.back)(g),)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (replace(self, lo=(0, *self.lo), hi=(0, *self.hi))(inputs[0]),)

    def flops(self, *types: TensorType) -> Dim:
        return 0


@register
class StridedAdd(Composite):
    """Zeros of `size` elements, to which the last axes of x are added: out[…, offset + i * strides[0] + j * strides[1] + …] takes
    x[…, i, j, …]. Places may repeat."""

    whole = True
    size: int
    strides: tuple[int, ...]
    offset: int = 0
    traits = Traits(composite=True, linear=True)
    cases = True
    samples = [S(f32(2, 7, 5), size=30, strides=(4, 1)), S(f32(2, 2, 3), size=10, strides=(1, 3, 2), offset=1),
               S(f64(3, 8), size=8, strides=(1,)), S(f32(3, 20), size=9, strides=(4, 0)),
               S(i64(5, 2), size=12, strides=(2, 3)), S(f32(0, 5), size=4, strides=(4, 0)), S(f32(2, 3, 0), size=4, strides=(1, 1)),
               S(f32(N, 3, 40), size=44, strides=(2, 1)), S(f32(5), size=9, strides=(), offset=3),
               S(bf16(2, 3, 20), size=24, strides=(2, 1))]
    errors = [E(f32(2, 2), size=9, strides=(8, 1), match="reaches element 9 of 9"),
              E(f32(2), size=9, strides=(1, 2), match="needs one stride for each of the last axes"),
              E(f32(N, 2), size=9, strides=(1, 2), match="needs axes of known sizes"),
              E(f32(2), size=9, strides=(-1,), match="strides and the offset must not be negative")]

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "fiu")
        lead = x.ndim - len(self.strides)
        require(lead >= 0, "needs one stride for each of the last axes", x=x, strides=self.strides)
        require(min((*self.strides, self.offset)) >= 0, "strides and the offset must not be negative", strides=self.strides,
                offset=self.offset)
        sizes = [d for d in x.shape[lead:] if isinstance(d, int)]
        require(len(sizes) == len(self.strides), "needs axes of known sizes", x=x)
        last = self.offset + sum((n - 1) * s for n, s in zip(sizes, self.strides, strict=True))
        require(0 in sizes or last < self.size, "reaches element {last} of {size}", last=last, size=self.size)
        return x.with_shape((*x.shape[:lead], self.size))

    def reading(self, x: TensorType) -> Strided:
        """What reads the places that x is added to."""
        sizes = tuple(int(d) for d in x.shape[x.ndim - len(self.strides) :] if isinstance(d, int))
        return Strided(shape=sizes, strides=self.strides, offset=self.offset)

    def ref(self, x: Any) -> Any:
        lead = x.shape[: x.ndim - len(self.strides)]
        places = Strided(shape=x.shape[len(lead) :], strides=self.strides, offset=self.offset).places().reshape(-1)
        out = np.zeros((self.size, int(np.prod(lead))), np.float64 if x.dtype.kind == "f" else x.dtype)
        np.add.at(out, places, x.reshape(int(np.prod(lead)), places.size).T)
        return out.T.reshape(*lead, self.size).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        lead = x.shape[: len(x.shape) - len(self.strides)]
        places = self.reading(x.type).places().reshape(-1)
        rows = F.transpose(F.reshape(x, (product(lead), places.size)), (1, 0))
        start = F.full(x.node.graph, (self.size, product(lead)), 0, x.dtype)
        out = F.one("scatter_add", start, x.node.graph.constant(places, "places"), rows)
        return F.reshape(F.transpose(out, (1, 0)), (*lead, self.size))

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return target is not None and target.kind == "cuda"

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return (self.reading(inputs[0].type)(g),)

    def flops(self, *types: TensorType) -> Dim:
        return types[0].numel


def strided_add(x: Value, size: int, strides: tuple[int, ...], offset: int = 0) -> Value:
    """`StridedAdd` with sums of small floats in f32."""
    out: Value = StridedAdd(size=size, strides=strides, offset=offset)(F.cast(x, compute_dtype(x.dtype)))
    return F.cast(out, x.dtype)


def fold(x: Value, sizes: tuple[int, ...], kernel: tuple[int, ...], *, stride: tuple[int, ...], dilation: tuple[int, ...],
         padding: tuple[tuple[int, int], ...]) -> Value:
    """x[n, c * product(kernel), windows] as images [n, c, *sizes]: every element is added where its window had it."""
    canvas = [lo + d + hi for d, (lo, hi) in zip(sizes, padding, strict=True)]
    counts = tuple((d - dil * (k - 1) - 1) // s + 1 for d, k, s, dil in zip(canvas, kernel, stride, dilation, strict=True))
    lines = [int(np.prod(canvas[i + 1 :])) for i in range(len(canvas))]
    lead: Shape = (x.shape[0], x.shape[1] // int(np.prod(kernel)))
    steps = (*(n * d for n, d in zip(lines, dilation, strict=True)), *(n * s for n, s in zip(lines, stride, strict=True)))
    out = F.reshape(strided_add(F.reshape(x, (*lead, *kernel, *counts)), int(np.prod(canvas)), steps), (*lead, *canvas))
    for axis, (d, (lo, _)) in enumerate(zip(sizes, padding, strict=True), 2):
        out = out if out.shape[axis] == d else F.slice_(out, axis, lo, d)
    return out
