"""The type of a tensor value: dtype and (possibly symbolic) shape. Layout is not in the type."""
from __future__ import annotations

from ..core.dims import Dim, Shape, product
from ..core.dtypes import DType
from ..core.records import dataclass


@dataclass(frozen=True)
class TensorType:
    """`f32[2,S]`: an element type and a shape whose dims are ints or expressions."""

    dtype: DType
    shape: Shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> Dim:
        return product(self.shape)

    @property
    def nbytes(self) -> Dim:
        return self.numel * self.dtype.itemsize

    @property
    def is_static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        return TensorType(self.dtype, tuple(shape))

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(dtype, self.shape)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(str(d) for d in self.shape)}]"

    __repr__ = __str__
