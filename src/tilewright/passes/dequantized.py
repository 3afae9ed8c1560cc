"""Which values of a graph stand for 8-bit values: `(quantized - zero point) * scale` with constant scales and zero points.

A `dequantize` says so itself. Importers and users also spell it out: a product of a scale and values that were cast, perhaps less their
zero point; a product may have taken the scale. Scales are one number, or one per index of an axis.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dtypes import i8, u8
from ..ir.graph import Value

Array = np.ndarray[Any, Any]
BYTES = (i8, u8)
FEW = 1 << 14  # numbers that are computed to look at them


@dataclass(frozen=True)
class Quantized:
    """Quantized values, and what they stand for. `scale` (f64) and `zero` (i64) have shape [] or, with an axis, [d]."""

    quantized: Value
    scale: Array
    zero: Array
    axis: int | None = None
    bare: bool = False  # a cast without a scale: integers, perhaps no quantized values at all

    @property
    def one_scale(self) -> bool:
        return self.axis is None


def constant(v: Value) -> Array | None:
    """The numbers behind a constant, seen through views and casts; few of them also through arithmetic (the bias of a quantized layer is
    dequantized, too)."""
    if isinstance(v.op, o.Constant):
        array: Array = v.op.data.array
        return array
    if not v.type.is_static:
        return None
    few = v.op.traits.elementwise and isinstance(v.type.numel, int) and v.type.numel <= FEW
    if not (few or v.op.traits.view or isinstance(v.op, o.Cast)):
        return None
    found = [constant(u) for u in v.node.operands]
    if any(a is None for a in found):
        return None
    out = v.op.ref(*found)
    return np.asarray(out[v.index] if isinstance(out, tuple) else out)


def of(v: Value) -> Quantized | None:
    """What a value stands for, if it is dequantized by constants."""
    if isinstance(v.op, o.Dequantize):
        quantized, scale, zero = v.node.operands
        s, z = constant(scale), constant(zero)
        return None if s is None or z is None or quantized.dtype not in BYTES else _as_quantized(quantized, s, z, v.op.axis)
    return _spelled(v)


def _as_quantized(quantized: Value, scale: Array, zero: Array, axis: int | None) -> Quantized | None:
    s, z = scale.astype(np.float64), zero.astype(np.int64)
    if not (np.isfinite(s).all() and (s > 0).all()):
        return None
    if s.size == z.size == 1:
        return Quantized(quantized, s.reshape(()), z.reshape(()))
    if axis is None:
        return None
    n = max(s.size, z.size)
    return Quantized(quantized, np.broadcast_to(s.reshape(-1), (n,)), np.broadcast_to(z.reshape(-1), (n,)), axis)


def _spelled(v: Value) -> Quantized | None:
    if not isinstance(v.op, o.Mul):  # its scale may have gone into a product
        plain = _less_zero(v) if v.dtype.is_float else None
        if plain is None or plain[1].size != 1 or plain[0].shape != v.shape:
            return None
        return Quantized(plain[0], np.ones(()), plain[1].reshape(()), bare=True)
    for quantized, scale in (v.node.operands, v.node.operands[::-1]):
        s = constant(scale)
        if s is None:
            continue
        found = _less_zero(quantized)
        if found is None or found[0].shape != v.shape:
            continue
        raw, z = found
        lined = [_along(x, len(v.shape)) for x in (s, z)]
        if any(x is None for x in lined):
            continue
        axes = {a for x in lined if x is not None and (a := x[1]) is not None}
        if len(axes) <= 1:
            parts = [x[0] for x in lined if x is not None]
            return _as_quantized(raw, parts[0], parts[1], next(iter(axes), None))
    return None


def _less_zero(v: Value) -> tuple[Value, Array] | None:
    """Quantized values behind casts and the subtraction of a constant."""
    zero: Array = np.zeros((), np.int64)
    while True:
        if isinstance(v.op, o.Cast):
            v = v.node.operands[0]
            if v.dtype in BYTES:
                return v, zero
        elif isinstance(v.op, o.Sub) and zero.size == 1 and not zero.any() and (z := constant(v.node.operands[1])) is not None:
            if not np.array_equal(z, np.rint(z)):
                return None
            v, zero = v.node.operands[0], z.astype(np.int64)
        elif isinstance(v.op, o.Add) and zero.size == 1 and not zero.any() and (found := _added(v)) is not None:
            v, zero = found
        else:
            return None


def _added(v: Value) -> tuple[Value, Array] | None:
    """The other operand of an addition of whole constants, and these negated."""
    for x, c in (v.node.operands, v.node.operands[::-1]):
        z = constant(c)
        if z is not None and np.array_equal(z, np.rint(z)):
            return x, -z.astype(np.int64)
    return None


def _along(x: Array, rank: int) -> tuple[Array, int | None] | None:
    """Numbers that broadcast to a rank, as one number or one per index of an axis."""
    if x.size == 1:
        return x.reshape(()), None
    shape = (1,) * (rank - x.ndim) + x.shape
    axes = [i for i, d in enumerate(shape) if d != 1]
    return (x.reshape(-1), axes[0]) if len(axes) == 1 else None
