"""Sorting along an axis. Order is stable (equal elements keep their order, also when descending); NaN counts as largest; -0 equals 0."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.types import TensorType
from .. import functions as F
from ..base import REGISTRY, E, MaybeValues, S, Sample, Values, register
from ..families import General, M, N, bf16, boolean, f16, f32, f64, i8, i32, i64, require_axis, u8

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
    dtype: DType = dt.i64  # of the indices
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
