"""Activations."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....ir.graph import Value
from .registry import Context, aten, axis_of, rows


@aten("elu.default")
def elu(c: Context, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if input_scale != 1:
        return NotImplemented
    out = c.emit(O.Elu(alpha=float(alpha)), x)
    return out if scale == 1 else c.emit(O.Mul(), out, c.scalar(float(scale), x.dtype))


@aten("selu.default")
def selu(c: Context, x: Value) -> Value:
    scale = 1.0507009873554804934193349852946
    return c.emit(O.Mul(), c.emit(O.Elu(alpha=1.6732632423543772848170429916717), x), c.scalar(scale, x.dtype))


@aten("glu.default")
def glu(c: Context, x: Value, dim: int = -1) -> Value:
    axis = axis_of(dim, len(x.shape))
    half = x.shape[axis] // 2
    a, b = c.slice(x, axis, 0, half), c.slice(x, axis, half, half)
    return c.emit(O.Mul(), a, c.emit(O.Sigmoid(), b))


@aten("prelu.default", "_prelu_kernel.default")
def prelu(c: Context, x: Value, weight: Value) -> Value:
    if len(weight.shape) == 1 and len(x.shape) > 1 and weight.shape[0] != 1:
        weight = c.reshape(weight, (weight.shape[0], *[1] * (len(x.shape) - 2)))
    if not x.shape:
        weight = c.reshape(weight, ())
    return c.emit(O.Where(), c.emit(O.Greater(), x, c.scalar(0.0, x.dtype)), x, c.emit(O.Mul(), x, weight))


@aten("_safe_softmax.default")
def safe_softmax(c: Context, x: Value, dim: int, dtype: Any = None) -> Value:
    """softmax with zeros for rows that are -inf throughout; they are replaced before, so that no NaN comes into derivatives."""
    x = c.cast(x, c.dtype)
    if not x.shape:
        return c.reshape(safe_softmax(c, c.reshape(x, (1,)), 0), ())
    axis = axis_of(dim, len(x.shape))
    none = c.emit(O.Equal(), c.emit(O.Max(axes=(axis,), keepdims=True), x), c.scalar(-float("inf"), x.dtype))
    out = c.emit(O.Softmax(axis=axis), c.emit(O.Where(), none, c.scalar(0.0, x.dtype), x))
    return c.emit(O.Where(), none, c.scalar(0.0, x.dtype), out)


def _on_axis(c: Context, op: Any, x: Value, dim: int) -> Value:
    x = c.cast(x, c.dtype)
    if not x.shape:
        return c.reshape(c.emit(op(axis=0), c.reshape(x, (1,))), ())
    return c.emit(op(axis=axis_of(dim, len(x.shape))), x)


rows({
    "relu.default":
        lambda c, x: c.emit(O.Relu() if x.dtype.is_float else O.Maximum(), x, *([] if x.dtype.is_float else [c.scalar(0, x.dtype)])),
    "relu6.default": lambda c, x: c.emit(O.Minimum(), c.emit(O.Maximum(), x, c.scalar(0.0, x.dtype)), c.scalar(6.0, x.dtype)),
    "gelu.default": lambda c, x, *, approximate='none': c.emit(O.Gelu(approximate=approximate), x),
    "leaky_relu.default": lambda c, x, negative_slope=0.01: c.emit(O.LeakyRelu(slope=float(negative_slope)), x),
    "softplus.default":
        lambda c, x, beta=1.0, threshold=20.0: c.emit(O.Softplus(), x) if beta == 1 and threshold == 20 else NotImplemented,
    "log_sigmoid.default": lambda c, x: c.emit(O.Neg(), c.emit(O.Softplus(), c.emit(O.Neg(), x))),
    "softmax.int _softmax.default special_softmax.int": lambda c, x, dim, *_, **__: _on_axis(c, O.Softmax, x, dim),
    "log_softmax.int _log_softmax.default special_log_softmax.int": lambda c, x, dim, *_, **__: _on_axis(c, O.LogSoftmax, x, dim),
})
