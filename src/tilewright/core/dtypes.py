"""Element types: one frozen object per dtype, with its NumPy form, size and kind."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .errors import ParseError


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. Compare with `is` or `==`; print with its short name (`f32`)."""

    name: str
    np: np.dtype[Any]
    kind: str  # "b" bool, "i" signed, "u" unsigned, "f" float, "c" complex

    @property
    def itemsize(self) -> int:
        return self.np.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


bool_ = DType("bool", np.dtype(np.bool_), "b")
i8, i16, i32, i64 = (DType(f"i{n}", np.dtype(f"int{n}"), "i") for n in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{n}", np.dtype(f"uint{n}"), "u") for n in (8, 16, 32, 64))
f16, f32, f64 = (DType(f"f{n}", np.dtype(f"float{n}"), "f") for n in (16, 32, 64))
bf16 = DType("bf16", np.dtype(ml_dtypes.bfloat16), "f")
f8e4m3 = DType("f8e4m3", np.dtype(ml_dtypes.float8_e4m3fn), "f")  # no infinities: what is too large becomes NaN
f8e5m2 = DType("f8e5m2", np.dtype(ml_dtypes.float8_e5m2), "f")
c64, c128 = (DType(f"c{n}", np.dtype(f"complex{n}"), "c") for n in (64, 128))

ALL: tuple[DType, ...] = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f8e4m3, f8e5m2, f16, bf16, f32, f64, c64, c128)
SMALL = (f8e4m3, f8e5m2, f16, bf16)  # floats that are stored, and computed with in f32
_BY_NAME = {d.name: d for d in ALL}
_BY_NP = {d.np: d for d in ALL}
_BY_LONG_NAME = {d.np.name: d for d in ALL}


def dtype(name: Any) -> DType:
    """The DType for a short name (`"f32"`), NumPy's name (`"float32"`), a dtype of NumPy or PyTorch, or a DType.

    >>> dtype("bf16").itemsize, dtype(np.float32).name
    (2, 'f32')
    """
    if isinstance(name, DType):
        return name
    if isinstance(name, np.dtype) and (known := _BY_NP.get(name)) is not None:
        return known
    if type(name).__module__ == "torch":  # torch.bfloat16: told by its text, so that torch need not be imported
        found = _BY_LONG_NAME.get(str(name).removeprefix("torch."))
    elif isinstance(name, str):
        found = _BY_NAME.get(name) or _BY_LONG_NAME.get(name)
    else:
        try:
            found = _BY_NP.get(np.dtype(name))
        except TypeError:
            found = None
    if found is None:
        bits = isinstance(name, str) and name[:1] in ("f", "i", "u", "c") and name[1:] in ("1", "2", "4", "8", "16")
        hint = "; the number counts bits, not bytes as NumPy's codes do" if bits else ""
        raise ParseError(f"dtype: {name!r} is not one of {' '.join(_BY_NAME)}{hint}")
    return found


def real_of(d: DType) -> DType:
    """The dtype of the parts of a complex number; any other dtype itself."""
    return f32 if d is c64 else f64 if d is c128 else d


def complex_of(d: DType) -> DType:
    """The complex dtype whose parts hold `d`: c128 for f64 and wide integers, else c64."""
    return d if d.kind == "c" else c128 if d is f64 else c64


def compute_dtype(d: DType) -> DType:
    """The dtype in which arithmetic on `d` is done: small floats compute in f32."""
    return f32 if d in SMALL else d
