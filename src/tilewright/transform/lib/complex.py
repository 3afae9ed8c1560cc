"""Complex numbers: their parts, conjugates, angles. A gradient with respect to z is that of its parts as one complex number (PyTorch's
convention)."""
from __future__ import annotations

import math
from typing import Any

from ...core.dtypes import complex_of
from ...ops import functions as F
from ...ops.complex import rules as C
from ...ops.complex.parts import Complex, Imag, Real, ViewAsComplex, ViewAsReal, parts
from ..promote import as_float, as_tracer, promote
from ..trace import Functions, apply, built, install

public = FUNCTIONS = Functions()


@public
def real(z: Any) -> Any:
    """The real part; a real array itself."""
    z = as_tracer(z)
    return apply(Real(), z) if z.value.dtype.kind == "c" else z


@public
def imag(z: Any) -> Any:
    """The imaginary part; zeros for a real array."""
    z = as_tracer(z)
    return apply(Imag(), z) if z.value.dtype.kind == "c" else built(F.zeros, z)


@public
def complex_(re: Any, im: Any) -> Any:
    """re + i im."""
    a, b = promote(as_float(re), as_float(im))
    if a.shape != b.shape:
        from .elementwise import FUNCTIONS as ELEMENTWISE

        zero = ELEMENTWISE["mul"](0, ELEMENTWISE["add"](a, b))
        a, b = ELEMENTWISE["add"](a, zero), ELEMENTWISE["add"](b, zero)
    return apply(Complex(), a, b)


@public
def conj(z: Any) -> Any:
    """The imaginary part's sign changed; a real array itself."""
    z = as_tracer(z)
    return built(C.conj, z) if z.value.dtype.kind == "c" else z


@public
def angle(z: Any, deg: bool = False) -> Any:
    """The argument, in -pi..pi, or in degrees."""
    made: Any = built(C.angle, as_float(z))
    return made * (180 / math.pi) if deg else made


@public
def abs_squared(z: Any) -> Any:
    """|z| squared, without the root."""
    z = as_tracer(z)
    if z.value.dtype.kind != "c":
        return built(F.square, z)
    return built(lambda v: F.add(*(F.square(p) for p in parts(v))), z)


@public
def polar(size: Any, angle: Any) -> Any:
    """size * (cos(turn) + i sin(turn))."""
    a, b = promote(as_float(size), as_float(angle))
    return built(C.polar, a, b)


@public
def view_as_real(z: Any) -> Any:
    """The parts along a new last axis."""
    return apply(ViewAsReal(), as_tracer(z))


@public
def view_as_complex(x: Any) -> Any:
    """Pairs along the last axis as complex numbers."""
    return apply(ViewAsComplex(), as_tracer(x))


def as_complex(x: Any) -> Any:
    """x as it is where it is complex, else with an imaginary part of 0."""
    x = as_float(x)
    return as_tracer(x, complex_of(x.value.dtype))


install(real=property(real), imag=property(imag), conj=conj, conjugate=conj)
