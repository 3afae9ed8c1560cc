"""How large a constant is in the form the kernels read it."""
from __future__ import annotations

from ..core.dims import Dim
from ..ir.types import TensorType
from .cuda.fragments import fragment_shape
from .launch import Packed
from .strips import strip_shape


def stored_bytes(type_: TensorType, packed: Packed) -> Dim:
    if packed.form == "plain":
        return type_.nbytes
    n, k = type_.shape
    if packed.form in ("strips", "fragments"):
        assert isinstance(n, int) and isinstance(k, int)
        strips, blocks, size = (strip_shape if packed.form == "strips" else fragment_shape)(packed.format, n, k)
        return strips * blocks * size
    n, k = (k, n) if packed.transposed else (n, k)
    return (n + packed.width - 1) // packed.width * packed.width * k * type_.dtype.itemsize
