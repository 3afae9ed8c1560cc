"""Packed weight formats (GGUF's block formats, and blocks of eight-bit floats): records of where the numbers of a block lie, from which
NumPy references, kernels and packed layouts follow.

    fmt = quant.by_name("Q4_K")          # or quant.BY_ID[12]
    fmt.elements, fmt.bytes, fmt.q, fmt.scale
    fmt.dequantize(raw)                  # u8[..., row bytes] -> f32[..., columns]
"""

from __future__ import annotations

from . import formats
from .base import BY_ID, FORMATS, BlockFormat, PackedTensor, by_name
from .bits import Bits, Book, Integers, Reals, Scale, Trits

__all__ = ["BY_ID", "FORMATS", "Bits", "BlockFormat", "Book", "Integers", "PackedTensor", "Reals", "Scale", "Trits", "by_name", "formats"]
