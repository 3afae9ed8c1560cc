"""From trained weights to what the integer kernels read: quantized values of few bits, and rows of packed blocks."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array import functions
from ..core.errors import InputError
from ..ops.packed.fake_quant import BITS, largest_value
from ..ops.quant import by_name

tw: Any = functions
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class IntLinear:
    """A linear layer in integers: packed values of w[out, in], one scale an output, and what is needed to run it.

    `layer(quantized)` gives i32 sums, bias included; they are worth `layer.worth` each (one number an output). Inside `tw.jit` the packed
    values are constants: they are unpacked and laid out for the kernel when it is compiled.
    """

    packed: Array  # u8[out, bytes]
    bits: int
    inputs: int
    bias: Array  # i32[out]
    worth: Array  # f32[out]

    def __call__(self, quantized: Any) -> Any:
        weights = tw.unpack_quantized(self.packed, self.bits)[:, : self.inputs]
        return tw.int_matmul(quantized, weights, transpose_b=True) + self.bias

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.bias.nbytes + self.worth.nbytes


def weight_scale(w: Any, bits: int) -> Array:
    """max|w| / q of each row: the scale that `fake_quantize` takes by itself. A row of zeros has scale 1."""
    peak = np.abs(np.asarray(w, np.float32)).max(axis=tuple(range(1, np.ndim(w)))) / np.float32(largest_value(bits))
    return np.asarray(np.where(peak == 0, np.float32(1), peak))


def quantize_weights(w: Any, scale: Any, bits: int) -> Array:
    """Values i8 of w with one scale a row: round(w / scale), clamped to -q … q, as `fake_quantize` and `fake_quantize_lsq` round."""
    w, scale = np.asarray(w, np.float32), np.asarray(scale, np.float32)
    if bits not in BITS:
        raise InputError(f"quantize_weights: bits must be one of 2 3 4 8, got {bits}")
    if scale.shape != w.shape[:1] or not (scale > 0).all():
        raise InputError(f"quantize_weights: needs one positive scale a row, got {scale.shape} for {w.shape}")
    q = largest_value(bits)
    quantized: Array = np.clip(np.rint(w / scale.reshape(-1, *(1,) * (w.ndim - 1))), -q, q).astype(np.int8)
    return quantized


def export_linear(w: Any, bias: Any, scale: Any, input_scale: Any, *, bits: int) -> IntLinear:
    """A trained layer w[out, in], b[out] as values of 8, 4 or 2 bits; `input_scale` is the scale of the values that it will read."""
    quantized = quantize_weights(w, scale, bits)
    if quantized.ndim != 2:
        raise InputError(f"export_linear: needs w[out, in], got {quantized.shape}")
    worth = np.asarray(scale, np.float32) * np.float32(input_scale)
    per = 8 // bits if bits in (2, 4, 8) else 0
    if not per:
        raise InputError(f"export_linear: quantized values of 2, 4 or 8 bits can be packed, got {bits}")
    filled = np.pad(quantized, ((0, 0), (0, -quantized.shape[1] % per)))
    whole = np.rint(np.asarray(bias, np.float64) / worth)
    return IntLinear(np.asarray(tw.pack_quantized(filled, bits)), bits, quantized.shape[1], whole.astype(np.int32), worth)


def pack_blocks(x: Any, format: str) -> Array:  # noqa: A002
    """Rows of numbers [..., k] in a block format (`Q8_0`, `Q4_0`, `NVFP4` ...), as u8[..., row bytes]."""
    return by_name(format).quantize(np.asarray(x, np.float32))


def unpack_blocks(packed: Any, format: str) -> Array:  # noqa: A002
    """The numbers f32[..., k] that packed rows stand for."""
    return by_name(format).dequantize(np.ascontiguousarray(packed))
