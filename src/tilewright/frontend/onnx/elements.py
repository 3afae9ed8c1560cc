"""Element types of ONNX and how graphs hold them.

Most are dtypes of ours. Integers of 2 and 4 bits are held one in an `i8` or `u8`. Floats of 4 and 8 bits that are no dtype of ours are held
as their codes in `u8`; a code is read through a table of its 16 or 256 values, and written by a search among the limits between codes.
"""
from __future__ import annotations

from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import UnsupportedError
from ...core.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Elem:
    """One element type: its number in ONNX, its name, the dtype that holds it and NumPy's dtype."""

    number: int
    name: str
    held: DType
    np: Any
    kind: str = "plain"  # plain, narrow (an integer of few bits) or coded (a float held as its code)

    @property
    def limits(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        make: Any = ml_dtypes.iinfo if self.kind == "narrow" else np.iinfo
        info = make(self.np)
        return int(info.min), int(info.max)

    def inward(self, array: Any) -> Array:
        """An array of this type as graphs hold it."""
        a = np.asarray(array)
        if self.kind == "plain":
            return a
        if a.dtype == self.held.np:
            return a
        return a.astype(self.held.np) if self.kind == "narrow" else a.view(np.uint8)

    def outward(self, array: Any) -> Any:
        """What a graph gives, as an array of this type."""
        if self.kind == "plain":
            return array
        a = np.asarray(array)
        return a.astype(self.np) if self.kind == "narrow" else a.view(self.np)


def _plain(number: int, d: DType) -> Elem:
    return Elem(number, d.name, d, d.np)


ELEMS: dict[int, Elem] = {e.number: e for e in (
    _plain(1, dt.f32), _plain(2, dt.u8), _plain(3, dt.i8), _plain(4, dt.u16), _plain(5, dt.i16), _plain(6, dt.i32), _plain(7, dt.i64),
    _plain(9, dt.bool_), _plain(10, dt.f16), _plain(11, dt.f64), _plain(12, dt.u32), _plain(13, dt.u64), _plain(14, dt.c64),
    _plain(15, dt.c128), _plain(16, dt.bf16), _plain(17, dt.f8e4m3), _plain(19, dt.f8e5m2),
    Elem(18, "f8e4m3fnuz", dt.u8, np.dtype(ml_dtypes.float8_e4m3fnuz), "coded"),
    Elem(20, "f8e5m2fnuz", dt.u8, np.dtype(ml_dtypes.float8_e5m2fnuz), "coded"),
    Elem(23, "f4e2m1", dt.u8, np.dtype(ml_dtypes.float4_e2m1fn), "coded"),
    Elem(24, "f8e8m0", dt.u8, np.dtype(ml_dtypes.float8_e8m0fnu), "coded"),
    Elem(21, "u4", dt.u8, np.dtype(ml_dtypes.uint4), "narrow"), Elem(22, "i4", dt.i8, np.dtype(ml_dtypes.int4), "narrow"),
    Elem(25, "u2", dt.u8, np.dtype(ml_dtypes.uint2), "narrow"), Elem(26, "i2", dt.i8, np.dtype(ml_dtypes.int2), "narrow"),
)}
STRING = 8
_BY_NP = {e.np: e for e in ELEMS.values()}
OF_DTYPE = {e.held: e for e in ELEMS.values() if e.kind == "plain"}


def elem(number: int) -> Elem:
    """The element type with this number in ONNX."""
    found = ELEMS.get(number)
    if found is None:
        what = "string" if number == STRING else f"number {number}"
        raise UnsupportedError(f"onnx: the element type {what} has no place in compiled code")
    return found


def elem_of(array: Any) -> Elem:
    """The element type of a NumPy array."""
    found = _BY_NP.get(np.asarray(array).dtype)
    if found is None:
        raise UnsupportedError(f"onnx: arrays of {np.asarray(array).dtype} are not supported")
    return found


@cache
def decoding(number: int) -> Array:
    """The value of every code, in f32."""
    e = ELEMS[number]
    bits = 16 if e.name == "f4e2m1" else 256
    found: Array = np.arange(bits, dtype=np.uint8).view(e.np).astype(np.float32)
    return found


@cache
def encoding(number: int) -> tuple[Array, Array]:
    """(limits, codes) for |x|: the code of x is codes[number of limits that are <= |x|]; nearest value, halves to the even code. Values
    beyond the last limit are too large for the type."""
    values = decoding(number).astype(np.float64)
    codes = np.flatnonzero(np.isfinite(values) & ~np.signbit(values))
    codes = codes[np.argsort(values[codes], kind="stable")]
    low = values[codes]
    ends = np.append(low[1:], 2 * low[-1] - low[-2])  # what would come after the largest
    half = (low + ends) / 2
    odd = codes % 2 == 1
    # A half goes up from an odd code, so its limit is the half itself; from an even one it is the next f32 after it.
    exact = half.astype(np.float32)
    limits = np.where(odd, exact, np.nextafter(exact, np.float32(np.inf)))
    return limits.astype(np.float32), codes.astype(np.uint8)


NAMES = {1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool", 10: "float16",
         11: "double", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16"}


def type_text(t: Any) -> tuple[str, list[Any]]:
    """A TypeProto as ONNX Runtime writes it, and its sizes."""
    kind = t.WhichOneof("value")
    if kind == "tensor_type":
        number = t.tensor_type.elem_type
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in t.tensor_type.shape.dim]
        return f"tensor({NAMES.get(number, ELEMS[number].name if number in ELEMS else number)})", shape
    if kind == "sequence_type":
        return f"seq({type_text(t.sequence_type.elem_type)[0]})", []
    if kind == "optional_type":
        return f"optional({type_text(t.optional_type.elem_type)[0]})", []
    return "map", []
