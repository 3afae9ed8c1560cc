"""Padding with elements of the operand itself."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.errors import require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Composite, N, bf16, boolean, f32, f64, i64

MODES = ("reflect", "edge", "wrap")


@register
class PadEdges(Composite):
    """`lo[i]` and `hi[i]` elements of the operand itself before and after axis i, in NumPy's modes: `reflect` mirrors about the first and
    the last element, `edge` repeats them, `wrap` goes on at the other end."""

    whole = True
    complex = "parts"
    lo: tuple[Dim, ...]
    hi: tuple[Dim, ...]
    mode: str
    samples = [*(S(x, lo=(0, 2, 1), hi=(1, 3, 2), mode=m) for m in MODES for x in (f32(2, 4, 5), f64(3, 5, 20), bf16(2, 4, 3))),
               S(i64(7), lo=(6,), hi=(3,), mode="reflect"), S(f32(3, 2), lo=(0, 0), hi=(5, 0), mode="edge"),
               S(f32(), lo=(), hi=(), mode="edge"),
               S(boolean(5), lo=(1,), hi=(4,), mode="wrap"), S(f32(0, 3), lo=(0, 1), hi=(0, 1), mode="wrap"),
               S(f32(N, 4), lo=(0, 1), hi=(0, 2), mode="reflect"), S(f32(3, N + 2), lo=(1, 2), hi=(1, 1), mode="wrap")]
    errors = [E(f32(2), lo=(1, 1), hi=(0, 0), mode="edge", match="needs one lo and hi an axis"),
              E(f32(2), lo=(-1,), hi=(0,), mode="edge", match="lo and hi must not be negative; use slice"),
              E(f32(3), lo=(1,), hi=(1,), mode="constant", match="mode must be reflect, edge or wrap, got mode=constant"),
              E(f32(3), lo=(3,), hi=(1,), mode="reflect", match="an axis of 3 elements has 2 to add at an end"),
              E(f32(0), lo=(1,), hi=(0,), mode="edge", match="an axis of no elements has none to add")]

    def infer(self, x: TensorType) -> TensorType:
        require(len(self.lo) == len(self.hi) == x.ndim, "needs one lo and hi an axis", lo=self.lo, hi=self.hi)
        require(self.mode in MODES, "mode must be reflect, edge or wrap", mode=self.mode)
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
        return np.pad(x, widths, mode=mode) if any((*self.lo, *self.hi)) else x

    def decompose(self, x: Value) -> Value:
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

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return target is not None and target.kind == "cuda"

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (replace(self, lo=(0, *self.lo), hi=(0, *self.hi))(inputs[0]),)

    def flops(self, *types: TensorType) -> Dim:
        return 0
