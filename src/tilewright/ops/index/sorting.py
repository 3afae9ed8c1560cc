"""Sorting along an axis. Order is stable (equal elements keep their order, also when descending); NaN counts as largest; -0 equals 0."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.dtypes import DType
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import REGISTRY, E, MaybeValues, S, Sample, Values, register
from ..families import Composite, General, M, N, bf16, boolean, f16, f32, f64, i8, i32, i64, require_axis, u8

MOST_COUNTED = 4096  # elements of a row whose ranks are found without a sort
ERRORS = [E(f32(3), axis=1, match="axis must be in 0..0, got axis=1"), E(f32(), axis=0, match="axis must be in"),
          E(f32(3), axis=0, dtype=dt.f32, match="indices must be of an integer dtype, got dtype=f32")]


def sort_samples() -> list[Sample]:
    types = (f32(3, 5), f64(2, 7), i32(70), i64(3, 9), bf16(2, 9), f16(5), u8(3, 4), i8(2, 66), boolean(7), f32(N, 3), f32(2, M),
             f32(0, 3), f32(2, 0))
    return [*(S(x, axis=x.ndim - 1) for x in types), S(f32(5, 3), axis=0, descending=True), S(i32(2, 80, 3), axis=1, descending=True),
            S(f32(2, 5), axis=1, dtype=dt.i32)]


def require_index_dtype(dtype: DType) -> None:
    require(dtype.is_int, "indices must be of an integer dtype", dtype=dtype)


def order_of(x: Any, axis: int, descending: bool) -> Any:
    """Stable order along an axis; NaN is the largest."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # a stable ascending sort of the reversed axis, read backwards, keeps the smaller index first
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


@register
class Sort(General):
    """Elements along an axis in order, and the indices they had."""

    axis: int
    descending: bool = False
    dtype: DType = dt.i64  # the dtype of the indices
    work = 0
    cases = True
    samples = sort_samples()
    errors = ERRORS

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        require_axis(self.axis, x.ndim)
        require_index_dtype(self.dtype)
        return x, x.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        order = order_of(x, self.axis, self.descending)
        return np.take_along_axis(x, order, axis=self.axis), order.astype(self.dtype.np)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        if cotangents[0] is None:
            return (None,)
        picked: Any = REGISTRY["gather_along_axis"]
        given: MaybeValues = picked(axis=self.axis).vjp((inputs[0], outputs[1]), outputs[:1], cotangents[:1], (True, False))
        return given[:1]

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        assert tangents[0] is not None
        return F.apply("gather_along_axis", tangents[0], outputs[1], axis=self.axis), None


@register
class ArgSort(General):
    """The indices that put an axis in order."""

    axis: int
    descending: bool = False
    dtype: DType = dt.i64
    work = 0
    cases = True
    samples = sort_samples()
    errors = ERRORS

    def infer(self, x: TensorType) -> TensorType:
        require_axis(self.axis, x.ndim)
        require_index_dtype(self.dtype)
        return x.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        return order_of(x, self.axis, self.descending).astype(self.dtype.np)


@register
class ArgRank(Composite):
    """The index of the element at a rank of the stable order along an axis: the entry of `ArgSort` there. A rank outside of the axis counts
    as the nearest one in it."""

    whole = True
    axis: int
    dtype: DType = dt.i64
    samples = [S(f32(3, 70), i64(3, 1), axis=1, low=(-2, 0), high=(2, 69)), S(bf16(5, 200), i64(5, 1), axis=1, low=(-1, 0), high=(1, 199)),
               S(i64(300, 2), i32(1, 2), axis=0, low=(-5, -3), high=(5, 310)), S(u8(N, 9), i64(N, 1), axis=1, low=(0, 0), high=(3, 8)),
               S(f64(7), i64(1), axis=0, dtype=dt.i32, low=(-2, 0), high=(2, 6)), S(f32(2, M), i64(2, 1), axis=1, low=(-2, 0), high=(2, 1))]
    errors = [E(f32(3), i64(1), axis=1, match="axis must be in 0..0, got axis=1"),
              E(f32(3), f32(1), axis=0, match="a rank must be an integer"),
              E(f32(2, 3), i64(2), axis=1, match="ranks must have the shape of the operand with one element along the axis"),
              E(f32(3), i64(1), axis=0, dtype=dt.f32, match="indices must be of an integer dtype, got dtype=f32")]

    def infer(self, x: TensorType, rank: TensorType) -> TensorType:
        require_axis(self.axis, x.ndim)
        require_index_dtype(self.dtype)
        require(rank.dtype.is_int, "a rank must be an integer", rank=rank)
        require(rank.shape == (*x.shape[: self.axis], 1, *x.shape[self.axis + 1 :]),
                "ranks must have the shape of the operand with one element along the axis", x=x, rank=rank)
        return rank.with_dtype(self.dtype)

    def ref(self, x: Any, rank: Any) -> Any:
        order = order_of(x, self.axis, False)
        return np.take_along_axis(order, np.clip(rank.astype(np.int64), 0, x.shape[self.axis] - 1), axis=self.axis).astype(self.dtype.np)

    def decompose(self, x: Value, rank: Value) -> Value:
        order, graph = ArgSort(axis=self.axis, dtype=self.dtype)(x), x.node.graph
        at = F.maximum(F.cast(rank, dt.i64), F.scalar(graph, 0, dt.i64))
        at = F.minimum(at, F.dim_value(graph, x.shape[self.axis] - 1, dt.i64))
        return F.one("gather_along_axis", order, at, axis=self.axis)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        length = operands[0].shape[self.axis]
        return target is None or target.kind != "cpu" or not isinstance(length, int) or not 0 < length <= MOST_COUNTED

    def flops(self, *types: TensorType) -> Dim:
        return types[0].numel * 32
