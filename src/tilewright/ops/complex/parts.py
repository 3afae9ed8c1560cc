"""Complex numbers: between a complex array and its two real parts. A complex element is two floats in memory, the real part first, so a
part is a strided view and costs nothing. All other ops on complex numbers are written in their parts (`complex_rules.py`)."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dtypes import complex_of, real_of
from ...core.errors import require
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Pulled, S, Values, register
from ..families import General, N, View, c64, c128, f16, f32, f64, require_one_dtype

REAL_ONLY = [E(f32(3), match="needs complex operands, got dtype=f32")]


def require_complex(x: TensorType) -> None:
    require(x.dtype.kind == "c", "needs complex operands", dtype=x.dtype)


class Part(View):
    """One of the two floats of every element."""

    place = 0
    cases = True
    samples = [S(c64(3, 5)), S(c128(4)), S(c64()), S(c64(0, 3)), S(c64(N, 2))]
    errors = REAL_ONLY

    def infer(self, x: TensorType) -> TensorType:
        require_complex(x)
        return x.with_dtype(real_of(x.dtype))

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        return (Layout(layout.shape, tuple(2 * s for s in layout.strides), 2 * layout.offset + self.place),)


@register
class Real(Part):
    """The real part."""

    def ref(self, x: Any) -> Any:
        return np.ascontiguousarray(np.real(x)).reshape(x.shape)

    def transposed(self, x: Value, g: Value) -> Value:
        return F.one("complex", g, F.zeros(g))


@register
class Imag(Part):
    """The imaginary part."""

    place = 1

    def ref(self, x: Any) -> Any:
        return np.ascontiguousarray(np.imag(x)).reshape(x.shape)

    def transposed(self, x: Value, g: Value) -> Value:
        return F.one("complex", F.zeros(g), g)


@register
class Complex(General):
    """re + i im."""

    work = 0
    cases = True
    samples = [S(f32(3, 5), f32(3, 5)), S(f64(4), f64(4)), S(f32(), f32()), S(f32(0, 2), f32(0, 2)), S(f32(N, 3), f32(N, 3))]
    errors = [E(f32(3), f32(4), match="both parts must have one shape"), E(f32(3), f64(3), match="operands must have one dtype"),
              E(f16(3), f16(3), match="needs f32 or f64 parts")]

    def infer(self, re: TensorType, im: TensorType) -> TensorType:
        dtype = require_one_dtype((re, im))
        require(re.shape == im.shape, "both parts must have one shape", re=re, im=im)
        require(dtype.name in ("f32", "f64"), "needs f32 or f64 parts", dtype=dtype)
        return re.with_dtype(complex_of(dtype))

    def ref(self, re: Any, im: Any) -> Any:
        out = np.empty(re.shape, complex_of_array(re))
        out.real, out.imag = re, im
        return out

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return tuple(part if w else None for part, w in zip(parts(g), wanted, strict=True))

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        re, im = (F.zeros(v) if t is None else t for v, t in zip(inputs, tangents, strict=True))
        return (F.one("complex", re, im),)


@register
class ViewAsReal(View):
    """The two floats of every element along a new last axis."""

    cases = True
    samples = [S(c64(3, 5)), S(c128(4)), S(c64()), S(c64(0, 3)), S(c64(N, 2))]
    errors = REAL_ONLY

    def infer(self, x: TensorType) -> TensorType:
        require_complex(x)
        return TensorType(real_of(x.dtype), (*x.shape, 2))

    def ref(self, x: Any) -> Any:
        return np.stack([np.real(x), np.imag(x)], -1)

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        return (Layout((*layout.shape, 2), (*(2 * s for s in layout.strides), 1), 2 * layout.offset),)

    def transposed(self, x: Value, g: Value) -> Value:
        return F.one("view_as_complex", g)


@register
class ViewAsComplex(View):
    """Pairs along the last axis as complex elements."""

    cases = True
    samples = [S(f32(3, 5, 2)), S(f64(4, 2)), S(f32(2)), S(f32(0, 3, 2)), S(f32(N, 2, 2))]
    errors = [E(f32(3), match="needs pairs of f32 or f64 along the last axis"), E(f16(3, 2), match="needs pairs of f32 or f64"),
              E(f32(), match="needs pairs")]

    def infer(self, x: TensorType) -> TensorType:
        ok = x.ndim > 0 and x.shape[-1] == 2 and x.dtype.name in ("f32", "f64")
        require(ok, "needs pairs of f32 or f64 along the last axis", x=x)
        return TensorType(complex_of(x.dtype), x.shape[:-1])

    def ref(self, x: Any) -> Any:
        out = np.empty(x.shape[:-1], complex_of_array(x))
        out.real, out.imag = x[..., 0], x[..., 1]
        return out

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        halves = [s // 2 if isinstance(s, int) and s % 2 == 0 else None for s in layout.strides[:-1]]
        if layout.is_contiguous and layout.offset == 0:
            return (Layout.contiguous(layout.shape[:-1]),)
        if layout.strides[-1] != 1 or not isinstance(layout.offset, int) or layout.offset % 2 or None in halves:
            return (None,)
        return (Layout(layout.shape[:-1], tuple(s for s in halves if s is not None), layout.offset // 2),)

    def transposed(self, x: Value, g: Value) -> Value:
        return F.one("view_as_real", g)


def complex_of_array(x: Any) -> Any:
    return np.complex128 if x.dtype == np.float64 else np.complex64


def parts(z: Value) -> tuple[Value, Value]:
    """Real and imaginary part; of a value just made of two parts those parts themselves."""
    if isinstance(z.op, Complex):
        re, im = z.node.operands
        return re, im
    if isinstance(z.op, ViewAsComplex):
        x = z.node.operands[0]
        pair = [F.reshape(F.slice_(x, len(x.shape) - 1, k, 1), x.shape[:-1]) for k in range(2)]
        return pair[0], pair[1]
    return F.one("real", z), F.one("imag", z)


def join(re: Value, im: Value) -> Value:
    return F.one("complex", re, im)
