"""Element types: one frozen object per dtype, with its NumPy form, size and kind."""
from __future__ import annotations

import sys
from functools import cache, cached_property
from typing import Any

import numpy as np

from .errors import ParseError
from .records import dataclass


@dataclass(frozen=True, eq=False)
class DType:
    """An element type. Compare with `is` or `==`; print with its short name (`f32`)."""

    name: str
    long_name: str  # NumPy's
    kind: str  # "b" bool, "i" signed, "u" unsigned, "f" float, "c" complex
    itemsize: int

    @cached_property
    def np(self) -> np.dtype[Any]:
        if self not in FOREIGN:
            return np.dtype(self.long_name)
        import ml_dtypes  # when it is needed: it takes 5 ms, a tenth of a start from the cache

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.long_name))
        return found

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


bool_ = DType("bool", "bool", "b", 1)
i8, i16, i32, i64 = (DType(f"i{n}", f"int{n}", "i", n // 8) for n in (8, 16, 32, 64))
u8, u16, u32, u64 = (DType(f"u{n}", f"uint{n}", "u", n // 8) for n in (8, 16, 32, 64))
f16, f32, f64 = (DType(f"f{n}", f"float{n}", "f", n // 8) for n in (16, 32, 64))
bf16 = DType("bf16", "bfloat16", "f", 2)
f8e4m3 = DType("f8e4m3", "float8_e4m3fn", "f", 1)  # no infinities: what is too large becomes NaN
f8e5m2 = DType("f8e5m2", "float8_e5m2", "f", 1)
c64, c128 = (DType(f"c{n}", f"complex{n}", "c", n // 8) for n in (64, 128))

ALL: tuple[DType, ...] = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f8e4m3, f8e5m2, f16, bf16, f32, f64, c64, c128)
FOREIGN = (bf16, f8e4m3, f8e5m2)  # NumPy has them through ml_dtypes
SMALL = (f8e4m3, f8e5m2, f16, bf16)  # floats that are stored, and computed with in f32
_BY_NAME = {d.name: d for d in ALL}
_BY_NP = {d.np: d for d in ALL if d not in FOREIGN}
_BY_LONG_NAME = {d.long_name: d for d in ALL}


@cache
def _foreign() -> dict[np.dtype[Any], DType]:
    return {d.np: d for d in FOREIGN}


def of_numpy(d: np.dtype[Any]) -> DType | None:
    """The DType of a dtype of NumPy in this machine's byte order; None for one that has no DType."""
    found = _BY_NP.get(d)
    return _foreign().get(d) if found is None and "ml_dtypes" in sys.modules else found


def dtype(name: Any) -> DType:
    """The DType for a short name (`"f32"`), NumPy's name (`"float32"`), a dtype of NumPy or PyTorch, or a DType.

    >>> dtype("bf16").itemsize, dtype(np.float32).name
    (2, 'f32')
    """
    if isinstance(name, DType):
        return name
    if isinstance(name, np.dtype) and (known := of_numpy(name)) is not None:
        return known
    if type(name).__module__ == "torch":  # torch.bfloat16: told by its text, so that torch need not be imported
        found = _BY_LONG_NAME.get(str(name).removeprefix("torch."))
    elif isinstance(name, str):
        found = _BY_NAME.get(name) or _BY_LONG_NAME.get(name)
    else:
        try:
            found = of_numpy(np.dtype(name))
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
