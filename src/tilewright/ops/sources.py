"""Sources that compute: index ramps, positions and the values of symbolic dims."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import Dim, Shape
from ..core.dtypes import DType
from ..core.errors import UnsupportedError, require
from ..core.needs import require_room
from ..ir.types import TensorType
from .base import E, Op, S, Traits, register
from .families import M, N, require_axis, show_shape


def require_known(op: str, *dims: Dim) -> None:
    if not all(isinstance(d, int) for d in dims):
        unknown = ", ".join(str(d) for d in dims if not isinstance(d, int))
        raise UnsupportedError(f"{op}: its value depends on {unknown}; bind the symbols first")


@register
class Iota(Op):
    """start + step * index along axis, in every position of the other axes."""

    shape: Shape
    axis: int
    dtype: DType
    start: Dim = 0
    step: int = 1
    traits = Traits(source=True)
    samples = [S(shape=(5,), axis=0, dtype=dt.i64), S(shape=(2, 3), axis=1, dtype=dt.f32, start=2, step=3),
               S(shape=(0,), axis=0, dtype=dt.i32), S(shape=(N, 2), axis=0, dtype=dt.i64, start=M),
               S(shape=(2, 3), axis=0, dtype=dt.bf16, step=-1)]
    errors = [E(shape=(3,), axis=1, dtype=dt.i64, match="axis must be in 0..0, got axis=1"),
              E(shape=(3,), axis=0, dtype=dt.bool_, match="needs a number dtype, got dtype=bool"),
              E(shape=(-3,), axis=0, dtype=dt.i64, match="dims must not be negative")]

    def infer(self) -> TensorType:
        for d in self.shape:
            require_room(d, "dims must not be negative", shape=show_shape(self.shape))
        require_axis(self.axis, len(self.shape))
        require(not self.dtype.is_bool, "needs a number dtype", dtype=self.dtype)
        return TensorType(self.dtype, tuple(self.shape))

    def ref(self) -> Any:
        require_known(self.name, self.start, *self.shape)
        shape: Any = self.shape
        ramp = (np.arange(shape[self.axis], dtype=np.int64) * self.step + self.start).astype(self.dtype.np)
        return np.broadcast_to(ramp.reshape([-1 if a == self.axis else 1 for a in range(len(shape))]), shape)

    def flops(self) -> Dim:
        return 0


@register
class Positions(Op):
    """The number of each element in row-major order: counters of random numbers. Kernels compute them where they are read."""

    shape: Shape
    dtype: DType = dt.u64
    traits = Traits(source=True)
    samples = [S(shape=(5,)), S(shape=(2, 3), dtype=dt.u32), S(shape=()), S(shape=(N, 2)), S(shape=(0, 4), dtype=dt.i64)]
    errors = [E(shape=(3,), dtype=dt.f32, match="needs an integer dtype of 32 or 64 bits, got dtype=f32"),
              E(shape=(-3,), match="dims must not be negative")]

    def infer(self) -> TensorType:
        for d in self.shape:
            require_room(d, "dims must not be negative", shape=show_shape(self.shape))
        require(self.dtype.is_int and self.dtype.itemsize >= 4, "needs an integer dtype of 32 or 64 bits", dtype=self.dtype)
        return TensorType(self.dtype, tuple(self.shape))

    def ref(self) -> Any:
        require_known(self.name, *self.shape)
        shape: Any = self.shape
        return np.arange(int(np.prod(shape, dtype=np.int64)), dtype=self.dtype.np).reshape(shape)

    def flops(self) -> Dim:
        return 0


@register
class DimValue(Op):
    """The value of a dim as a rank-0 tensor."""

    dim: Dim
    dtype: DType
    traits = Traits(source=True)
    samples = [S(dim=N, dtype=dt.i64), S(dim=2 * N + M, dtype=dt.f32), S(dim=3, dtype=dt.i32)]
    errors = [E(dim=N, dtype=dt.bool_, match="needs a number dtype, got dtype=bool")]

    def infer(self) -> TensorType:
        require(not self.dtype.is_bool, "needs a number dtype", dtype=self.dtype)
        return TensorType(self.dtype, ())

    def ref(self) -> Any:
        require_known(self.name, self.dim)
        return np.asarray(self.dim).astype(self.dtype.np)

    def flops(self) -> Dim:
        return 0
