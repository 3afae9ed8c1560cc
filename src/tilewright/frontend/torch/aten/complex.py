"""Complex numbers: parts, conjugates, angles. Arithmetic on them comes through the elementwise ops."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core.dtypes import complex_of
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.complex import rules as C
from .registry import Context, aten


def _placed(c: Context, fn: Any, *args: Any) -> Any:
    before, c.graph.place = c.graph.place, c.place
    try:
        return fn(*args)
    finally:
        c.graph.place = before


@aten("real.default")
def real(c: Context, z: Value) -> Value:
    return c.emit(O.Real(), z) if z.dtype.kind == "c" else z


@aten("imag.default")
def imag(c: Context, z: Value) -> Value:
    return c.emit(O.Imag(), z)


@aten("complex.default")
def complex_(c: Context, re: Value, im: Value) -> Value:
    return c.emit(O.Complex(), c.expand(re, c.shape), c.expand(im, c.shape))


@aten("polar.default")
def polar(c: Context, size: Value, turn: Value) -> Any:
    return _placed(c, C.polar, c.expand(size, c.shape), c.expand(turn, c.shape))


@aten("view_as_real.default", "view_as_real_copy.default")
def view_as_real(c: Context, z: Value) -> Value:
    return c.emit(O.ViewAsReal(), z)


@aten("view_as_complex.default", "view_as_complex_copy.default")
def view_as_complex(c: Context, x: Value) -> Value:
    return c.emit(O.ViewAsComplex(), x)


@aten("conj.default", "_conj.default", "conj_physical.default", "_conj_copy.default", "_conj_physical.default",
      "prims.conj_physical.default", "prims.conj.default")
def conj(c: Context, z: Value) -> Any:
    if isinstance(z, (bool, int, float, complex)):  # a scalar of the graph
        return z.conjugate()
    return _placed(c, C.conj, z) if z.dtype.kind == "c" else z


@aten("_neg_view.default", "_neg_view_copy.default")
def neg_view(c: Context, z: Value) -> Any:
    return c.emit(O.Neg(), z)


@aten("angle.default")
def angle(c: Context, z: Value) -> Any:
    return _placed(c, C.angle, z if z.dtype.kind in "fc" else F.cast(z, c.dtype))


def as_complex(c: Context, x: Value) -> Value:
    """x as it is where it is complex, else with an imaginary part of 0."""
    return x if x.dtype.kind == "c" else c.cast(x, complex_of(x.dtype))
