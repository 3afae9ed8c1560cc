"""Packed weight formats (GGUF's block formats, and blocks of eight-bit floats): records with the layout of a block, dequantisers and
quantisers in NumPy.

    fmt = quant.by_name("Q4_K")          # or quant.BY_ID[12]
    fmt.elements, fmt.bytes, fmt.offset("scales")
    fmt.dequantise(raw)                  # u8[..., row bytes] -> f32[..., columns]
"""

from __future__ import annotations

from . import fp8, iq, kquants, legacy, plain, ternary
from .base import BY_ID, FORMATS, BlockFormat, Field, by_name
from .tensor import PackedTensor

__all__ = ["BY_ID", "FORMATS", "BlockFormat", "Field", "PackedTensor", "by_name", "fp8", "iq", "kquants", "legacy", "plain", "ternary"]
