"""Complex numbers: parts, conjugates, angles. Arithmetic on them comes through the elementwise ops."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core.dtypes import complex_of
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.complex import rules as C
from .registry import Context, aten, rows


def _placed(c: Context, fn: Any, *args: Any) -> Any:
    before, c.graph.place = c.graph.place, c.place
    try:
        return fn(*args)
    finally:
        c.graph.place = before


@aten("conj.default", "_conj.default", "conj_physical.default", "_conj_copy.default", "_conj_physical.default",
      "prims.conj_physical.default", "prims.conj.default")
def conj(c: Context, z: Value) -> Any:
    if isinstance(z, (bool, int, float, complex)):  # a scalar of the graph
        return z.conjugate()
    return _placed(c, C.conj, z) if z.dtype.kind == "c" else z


def as_complex(c: Context, x: Value) -> Value:
    """x as it is where it is complex, else with an imaginary part of 0."""
    return x if x.dtype.kind == "c" else c.cast(x, complex_of(x.dtype))


rows({
    "real.default": lambda c, z: c.emit(O.Real(), z) if z.dtype.kind == "c" else z,
    "imag.default": lambda c, z: c.emit(O.Imag(), z),
    "complex.default": lambda c, re, im: c.emit(O.Complex(), c.expand(re, c.shape), c.expand(im, c.shape)),
    "polar.default": lambda c, size, turn: _placed(c, C.polar, c.expand(size, c.shape), c.expand(turn, c.shape)),
    "view_as_real.default view_as_real_copy.default": lambda c, z: c.emit(O.ViewAsReal(), z),
    "view_as_complex.default view_as_complex_copy.default": lambda c, x: c.emit(O.ViewAsComplex(), x),
    "angle.default": lambda c, z: _placed(c, C.angle, z if z.dtype.kind in "fc" else F.cast(z, c.dtype)),
})
