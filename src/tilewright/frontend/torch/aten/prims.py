"""torch's primitive ops (`prims.*`), which its decompositions end in: by the ATen function of the same meaning, or here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....ir.graph import Value
from .elementwise import div_mode
from .reduce import reduce
from .registry import TABLE, Context, aten, rows

# prims.<name> is aten.<name> once operands have one dtype
SAME = """abs acos acosh asin asinh atan atanh cos cosh bessel_i0 ceil digamma erf erfc exp exp2 expm1 floor isfinite lgamma log log1p
log2 log10 neg reciprocal round rsqrt sign signbit sin sinh sqrt tan tanh trunc atan2 fmax fmin gcd hypot igamma igammac maximum minimum
nextafter bitwise_not"""
TENSOR = "add sub mul eq ne lt le gt ge fmod remainder bitwise_and bitwise_or bitwise_xor"


def alias_prims() -> None:
    """Enter the primitives whose ATen functions are known by now."""
    for name in SAME.split():
        if f"{name}.default" in TABLE:
            TABLE.setdefault(f"prims.{name}.default", TABLE[f"{name}.default"])
    for name in TENSOR.split():
        TABLE.setdefault(f"prims.{name}.default", TABLE[f"{name}.Tensor"])
    for name, other in {"pow": "pow.Tensor_Tensor", "where": "where.self", "shift_left": "bitwise_left_shift.Tensor",
                        "shift_right_arithmetic": "bitwise_right_shift.Tensor", "bessel_i0": "i0.default",
                        "erf_inv": "erfinv.default", "frexp": "frexp.Tensor"}.items():
        TABLE.setdefault(f"prims.{name}.default", TABLE[other])


@aten("prims.div.default")
def div(c: Context, a: Any, b: Any) -> Value:
    """Integers are divided towards zero."""
    return div_mode(c, a, b, rounding_mode=None if c.dtype.kind in "fc" else "trunc")


@aten("prims.broadcast_in_dim.default")
def broadcast_in_dim(c: Context, x: Value, shape: Sequence[Any], axes: Sequence[int]) -> Value:
    spread: list[Any] = [1] * len(shape)
    for d, axis in zip(x.shape, axes, strict=True):
        spread[axis] = d
    return c.expand(c.reshape(x, spread), c.shape)


def _reduction(op: Any) -> Any:
    def handler(c: Context, x: Value, axes: Sequence[int] | None, **_: Any) -> Value:
        return reduce(c, op, c.cast(x, c.dtype), axes, False) if axes is None or len(axes) else x

    return handler


for _name, _op in {"sum": O.Sum, "prod": O.Prod, "amax": O.Max, "amin": O.Min}.items():
    aten(f"prims.{_name}.default")(_reduction(_op))


@aten("prims.fma.default")
def fma(c: Context, a: Any, b: Any, x: Any) -> Value:
    """The product is rounded like any other: contraction is for reductions."""
    return c.emit(O.Add(), c.emit(O.Mul(), c.value(a, c.dtype), c.value(b, c.dtype)), c.value(x, c.dtype))


rows({
    "prims.view_of.default prims.clone.default prims.device_put.default prims.copy_strided.default": lambda c, x, *_, **__: x,
    "prims.collapse_view.default prims.collapse.default prims.split_dim.default prims.squeeze.default prims.reshape.default":
        lambda c, x, *_: c.reshape(x, c.shape),
    "prims.transpose.default": lambda c, x, perm: c.transpose(x, perm),
    "prims.rev.default": lambda c, x, axes: c.emit(O.Flip(axes=tuple(sorted(axes))), x) if axes else x,
    "prims.cat.default": lambda c, tensors, axis: tensors[0] if len(tensors) == 1 else c.emit(O.Concat(axis=axis), *tensors),
    "prims.iota.default": lambda c, length, *, start, step, **_:
        c.cast(c.emit(O.Iota(shape=(length,), axis=0, dtype=c.dtype if c.dtype.is_int else dt.i64, start=start, step=step)), c.dtype),
})
