"""State that lives across calls: a buffer with new elements written into a window of it.

The op is a function like any other: its result is a new value. Where the buffer is a donated input of the graph (`Graph.donated`) and
nothing reads the old value afterwards, the kernels write the window in place.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dims import Dim, at_least
from ..core.errors import require
from ..ir.graph import Value
from ..ir.types import TensorType
from . import functions as F
from .base import E, MaybeValues, Pulled, S, Values, register
from .families import General, M, N, bf16, f16, f32, f64, i64, provably_negative, require_axis


@register
class UpdateSlice(General):
    """`cache` with `new` in place of its elements start, start + step ... of `axis`. `new` is converted to the cache's dtype, which may be
    a smaller float. The window must lie inside the cache: start is a dim, checked when its symbols get their values."""

    axis: int
    start: Dim = 0
    step: int = 1
    work = 0
    complex = "parts"
    cases = True
    samples = [S(f32(5, 3), f32(2, 3), axis=0, start=1), S(f32(2, 7, 3), f32(2, 4, 3), axis=1, start=3), S(f16(3, 4), f32(3, 4), axis=1),
               S(f32(16, 2), f32(N, 2), axis=0), S(f32(28, 2), f32(N, 2), axis=0, start=M), S(bf16(4), bf16(1), axis=0, start=3),
               S(i64(4), i64(0), axis=0, start=4), S(f32(4, 0), f32(1, 0), axis=0), S(f32(2, 7), f32(2, 3), axis=1, start=2, step=2),
               S(bf16(7, 3), bf16(2, 3), axis=0, step=5)]
    errors = [E(f32(5, 3), f32(2, 2), axis=0, match="new must agree with the cache outside axis 0"),
              E(f32(5), f32(3), axis=0, start=3, match="leaves its 5 elements, got start=3, length=3"),
              E(f32(5), f32(3), axis=1, match="axis must be in 0..0"),
              E(f32(5), f32(3), axis=0, start=1, step=2, match="leaves its 5 elements"),
              E(f32(5), f32(3), axis=0, step=0, match="step must be at least 1"),
              E(f32(5), f32(2), axis=0, start=-1, match="start must not be negative"),
              E(f32(5), f64(2), axis=0, match="cannot hold"),
              E(i64(5), f32(2), axis=0, match="cannot hold")]

    def infer(self, cache: TensorType, new: TensorType) -> TensorType:
        require_axis(self.axis, cache.ndim)
        small = cache.dtype.is_float and cache.dtype.itemsize == 2 and new.dtype.name in ("f32", "f16", "bf16")
        require(cache.dtype is new.dtype or small, "the cache cannot hold new", cache=cache, new=new)
        ok = new.ndim == cache.ndim and all(a == b for i, (a, b) in enumerate(zip(cache.shape, new.shape, strict=True)) if i != self.axis)
        require(ok, "new must agree with the cache outside axis {axis}", axis=self.axis, cache=cache, new=new)
        require(not provably_negative(self.start), "start must not be negative", start=self.start)
        require(self.step >= 1, "step must be at least 1", step=self.step)
        size, length = cache.shape[self.axis], new.shape[self.axis]
        require(not provably_negative(self.room(size, length)), "the window on axis {axis} leaves its {size} elements", axis=self.axis,
                size=size, start=self.start, length=length)
        return cache

    def room(self, size: Dim, length: Dim) -> Dim:
        """How many of the axis's elements lie behind the window; where it may be empty, at least so many."""
        last = length - 1 if at_least(length, 1) else length
        return size - self.start - length - last * (self.step - 1)

    def ref(self, cache: Any, new: Any) -> Any:
        out = np.array(cache)
        start: Any = self.start
        out[(*(slice(None),) * self.axis, slice(start, start + new.shape[self.axis] * self.step, self.step))] = new
        return out

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        cache, new = inputs
        window = F.zeros(new) if wanted[0] else None
        taken = F.slice_(g, self.axis, self.start, new.shape[self.axis], self.step) if wanted[1] else None
        return (None if window is None else self(g, F.cast(window, cache.dtype)), None if taken is None else F.cast(taken, new.dtype))

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        tc, tn = (F.zeros(x) if t is None else t for x, t in zip(inputs, tangents, strict=True))
        return (self(tc, tn),)
