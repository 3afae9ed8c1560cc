"""How large a constant is in the form the kernels read it."""
from __future__ import annotations

from ..core.dims import Dim, ceildiv, product
from ..ir.types import TensorType
from .launch import Packed, filter_sizes
from .quant.cuda.fragments import fragment_shape
from .quant.strips import strip_shape


def stored_bytes(type_: TensorType, packed: Packed) -> Dim:
    if packed.form == "plain":
        return type_.nbytes
    if packed.form == "taps":
        out, channels, *kernel = type_.shape
        return product((out, *kernel)) * ceildiv(channels, packed.width) * packed.width * type_.dtype.itemsize
    if packed.form == "folded":
        rows = type_.shape[2] if type_.ndim == 4 else 1
        return type_.shape[0] * ceildiv(rows, packed.width) * 64 * type_.dtype.itemsize
    if packed.form == "filters":
        c, per, _ = filter_sizes(type_.shape, packed)
        c = ceildiv(c, packed.words) * packed.words
        return product((packed.groups, ceildiv(per, packed.width) * packed.width, c, *type_.shape[2:])) * type_.dtype.itemsize
    *stack, n, k = type_.shape
    if packed.form in ("strips", "fragments"):
        assert isinstance(n, int) and isinstance(k, int)
        strips, blocks, size = (strip_shape if packed.form == "strips" else fragment_shape)(packed.format, n, k)
        return strips * blocks * size
    n, k = (k, n) if packed.transposed else (n, k)
    k = ceildiv(k, packed.words) * packed.words
    return product(stack) * ((n + packed.width - 1) // packed.width) * packed.width * k * type_.dtype.itemsize
