"""Blocks of four- and eight-bit floats as fragments (see `fragments.py`): what differs from the formats of integers.

Four-bit floats (times two: integers up to 12) are multiplied as signed bytes. A lane's word has the values of the first half in its
lower two bytes, those of the second in its upper two, in order: four nibbles are what `prmt` looks up at once. Scales of MXFP4 are bf16,
those of NVFP4 the file's bytes. Eight-bit floats become f16 in registers, e4m3 as
2**-8 of its value; a block of e4m3 that holds a NaN has a scale
of NaN instead, which gives the same sums. Their scales are f32, one per 128 columns, or per unit where units are shorter.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ....ops import quant
from ....ops.quant.formats import E2M1
from ..panels import panel_format

Array = np.ndarray[Any, Any]
SMALL = {name: panel_format(quant.by_name(name)) for name in ("MXFP4", "NVFP4", "F8_E4M3", "F8_E5M2")}
NVFP4_SCALE = 2.0**119  # an unsigned e4m3 seven bits into the exponent of an f32 is 2**-120 of its value; quantized values are twice theirs
PER_SCALE = 4  # blocks of 32 columns with one scale, of eight-bit floats
TABLE = E2M1


def scale_bytes(name: str, blocks: int) -> int:
    """Bytes of a row's scales in a unit of so many blocks of 32."""
    return 4 * max(1, blocks // PER_SCALE) if name.startswith("F8") else max(4, 2 * blocks)


def split_small(name: str, b: Array, blocks: int) -> tuple[Array, Array]:
    """Values u8[rows, blocks of the file, elements] and scales u8[rows, bytes] of raw blocks u8[rows, blocks of the file, bytes]; a unit
    has `blocks` blocks of 32."""
    rows, fmt = len(b), quant.by_name(name)
    flat = np.ascontiguousarray(b).reshape(-1, fmt.bytes)
    quantized = fmt.q.unpack(flat).reshape(*b.shape[:2], fmt.elements)
    assert fmt.scale is not None
    if name == "MXFP4":
        scales = fmt.scale.numbers(flat).astype(ml_dtypes.bfloat16).view(np.uint8).reshape(rows, -1)
        if blocks == 1:  # a row's scales are words
            scales = np.pad(scales.reshape(rows, -1, 2), ((0, 0), (0, 0), (0, 2))).reshape(rows, -1)
        return quantized, scales
    if name == "NVFP4":
        raw = fmt.scale.real.bits.unpack(flat)
        return quantized, np.where(raw == 127, np.uint8(0), raw & np.uint8(127)).reshape(rows, -1)  # as the dequantizer reads them
    d = fmt.scale.numbers(flat).reshape(*b.shape[:2], 1)
    if name == "F8_E4M3":
        d = np.where(((quantized & np.uint8(127)) == 127).any(axis=-1, keepdims=True), np.float32(np.nan), d)
    repeated = np.repeat(d, max(1, PER_SCALE // blocks), axis=1)
    return quantized, np.ascontiguousarray(repeated.reshape(rows, -1)).view(np.uint8)


def small_words(q: Array) -> Array:
    """Words of four-bit quantized values q[panels, upper, line, units, pairs, side, half, quad, column]."""
    both: Array = q[..., 0::2] | (q[..., 1::2] << np.uint8(4))
    return both.transpose(0, 3, 4, 2, 7, 5, 1, 6, 8)


def blocks_at_once(name: str) -> int:
    """Blocks of one row's product on an SM: widening eight-bit floats takes more registers (two have 70 KB on their way), and
    quantized values of eight bits are more of them (four blocks would spill)."""
    return 2 if name.startswith("F8") else 3 if name == "Q8_0" else 4


def is_small(name: str) -> bool:
    return name in SMALL
