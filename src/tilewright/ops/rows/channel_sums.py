"""Several sums over all axes but one, computed together: what a batch norm needs of its input, forward and backward. A GPU reads the
operands once for all of them; elsewhere they are reductions of their own."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.dims import Dim, bounds, product
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Composite, M, N, bf16, f32, f64, i32, require_kind, require_one_dtype
from .reductions import wide


@dataclass(frozen=True, eq=False)
class OverOthers(Composite):
    """Results have one element for each of axis `axis` of the operands, which are of one type."""

    fusion = "reduction"
    axis: int = 1
    errors = [E(f32(2, 3), axis=2, match="axis must be in 0..1, got axis=2"), E(i32(2, 3), match="needs float operands"),
              E(f32(3), axis=0, match="needs two axes or more")]

    def vectors(self, count: int, *types: TensorType) -> tuple[TensorType, ...]:
        """The types of `count` results."""
        require_kind(types, "f")
        require_one_dtype(types)
        x = types[0]
        require(x.ndim >= 2, "needs two axes or more", x=x)
        require(0 <= self.axis < x.ndim, "axis must be in 0..{last}", last=x.ndim - 1, axis=self.axis)
        require(all(t.shape == x.shape for t in types), "operands must have one shape", types=types)
        return (x.with_shape((x.shape[self.axis],)),) * count

    def axes(self, rank: int) -> tuple[int, ...]:
        return tuple(a for a in range(rank) if a != self.axis)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        x = operands[0].type
        gpu = target is not None and target.kind == "cuda"
        return not gpu or x.dtype.itemsize != 4 or len(x.shape) > 5 or bounds(product(x.shape))[0] == 0


@register
class ChannelSums(OverOthers):
    """The sum of each operand over all axes but one."""

    samples = [S(f32(2, 3, 4, 5), f32(2, 3, 4, 5)), S(f32(70, 9), f32(70, 9), f32(70, 9)), S(f64(3, 2, 5), axis=2), S(bf16(4, 3), axis=0),
               S(f32(N, 3, 2), f32(N, 3, 2)), S(f32(2, 0, 3)), S(f32(0, 2))]
    errors = [*OverOthers.errors, E(f32(2, 3), f32(3, 2), match="operands must have one shape")]

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        return self.vectors(len(types), *types)

    def flops(self, *types: TensorType) -> Dim:
        return len(types) * types[0].numel

    def ref(self, *arrays: Any) -> Any:
        return tuple(np.sum(wide(x), axis=self.axes(x.ndim)).astype(x.dtype) for x in arrays)

    def decompose(self, *values: Value) -> tuple[Value, ...]:
        return tuple(F.sum_(v, self.axes(len(v.shape))) for v in values)


@register
class Moments(OverOthers):
    """The mean over all axes but one, and the variance (over n)."""

    samples = [S(f32(2, 3, 4, 5)), S(f32(70, 9)), S(f64(3, 2, 5), axis=2), S(bf16(4, 3), axis=0), S(f32(M, 3, 2)),
               S(f32(9, 2, M), low=100, high=101)]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return self.vectors(2, x)

    def ref(self, x: Any) -> Any:
        axes = self.axes(x.ndim)
        return np.mean(wide(x), axis=axes).astype(x.dtype), np.var(wide(x), axis=axes).astype(x.dtype)

    def decompose(self, x: Value) -> tuple[Value, ...]:
        axes = self.axes(len(x.shape))
        return F.mean(x, axes), F.one("var", x, axes=axes, correction=0.0)

    def flops(self, x: TensorType) -> Dim:
        return 4 * x.numel
