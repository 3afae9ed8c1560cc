"""Dtypes, their ranges, and what the array API asks of a namespace."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError, ParseError
from ...transform.promote import result_dtype
from ..arrays import Array, wrap
from .base import COMPLEX, FLOAT, INT, common, header, known, weak_dtype

FUNCTIONS: dict[str, Callable[..., Any]] = {}
DTYPES: dict[str, np.dtype[Any]] = {d.np.name: d.np for d in dt.ALL}
CONSTANTS: dict[str, Any] = {"e": np.e, "pi": np.pi, "inf": np.inf, "nan": np.nan, "newaxis": None, "euler_gamma": np.euler_gamma}
VALUES = {**DTYPES, "bool_": DTYPES["bool"], **CONSTANTS}  # names of `tw.` that are no functions
STANDARD = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "complex64",
            "complex128")
KINDS = {
    "bool": "b", "signed integer": "i", "unsigned integer": "u", "integral": "iu", "real floating": "f", "complex floating": "c",
    "numeric": "iufc",
}


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__.rstrip("_") if not fn.__name__.startswith("__") else fn.__name__] = fn
    return fn


def _dtype(x: Any, what: str) -> np.dtype[Any]:
    return x.dtype if type(x) is Array else x.dtype if isinstance(x, (np.ndarray, np.generic)) else known(x, what)


@public
def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Array:
    """x in another dtype; of complex numbers only complex ones."""
    a, wanted = header(x, "astype"), known(dtype, "astype")
    if device not in (None, "cpu"):
        return astype(wrap(a), wanted, copy=copy).to(device)  # type: ignore[no-any-return]
    if a.dtype == wanted:
        return wrap(a.copy() if copy else a)
    if a.dtype.kind == "c" and wanted.kind not in "cb":
        raise ArgumentError(f"astype: complex numbers do not fit {wanted}; use tw.real or tw.abs")
    from ..machine import converted

    with np.errstate(all="ignore"):
        return wrap(converted(a, wanted))


def check_device(device: Any, what: str) -> None:
    if device not in (None, "cpu"):
        from ..cuda.placed import check_name

        check_name(device, what)


@public
def can_cast(from_: Any, to: Any, /, casting: str = "safe") -> bool:
    """Whether a dtype promotes to another; `casting` is NumPy's."""
    a, b = _dtype(from_, "can_cast"), known(to, "can_cast")
    if "V" in (a.kind, b.kind) and casting == "safe":
        return a == b or (b.kind in "fc" and a.itemsize < b.itemsize)
    rule: Any = casting
    return bool(np.can_cast(a, b, rule))


@dataclass(frozen=True)
class finfo_object:
    """The range of a float dtype."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: Any

    @property
    def tiny(self) -> float:
        return self.smallest_normal


@dataclass(frozen=True)
class iinfo_object:
    """The range of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: Any


@public
def finfo(type: Any, /) -> finfo_object:  # noqa: A002
    """The range of a float dtype, or of the parts of a complex one."""
    d = dt.dtype(_dtype(type, "finfo"))
    if d.kind not in "fc":
        raise ArgumentError(f"finfo: needs a float dtype, got {d.np}")
    real = dt.real_of(d).np
    limits: Any = ml_dtypes.finfo
    info = limits(real)
    return finfo_object(8 * real.itemsize, float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), real)


@public
def iinfo(type: Any, /) -> iinfo_object:  # noqa: A002
    """The range of an integer dtype."""
    d = _dtype(type, "iinfo")
    if d.kind not in "iu":
        raise ArgumentError(f"iinfo: needs an integer dtype, got {d}")
    info = np.iinfo(d)
    return iinfo_object(info.bits, int(info.max), int(info.min), d)


@public
def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is of a kind ("integral", "real floating" ...), is another dtype, or any of a tuple of these."""
    d = known(dtype, "isdtype")
    if isinstance(kind, tuple):
        return any(isdtype(d, k) for k in kind)
    if isinstance(kind, str) and kind in KINDS:
        return dt.dtype(d).kind in KINDS[kind]
    try:
        return bool(d == dt.dtype(kind).np)
    except ParseError:
        raise ArgumentError(f"isdtype: a kind is a dtype or one of {', '.join(KINDS)}, got {kind!r}") from None


@public
def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """The dtype in which arrays, dtypes and numbers meet."""
    numbers = [x for x in arrays_and_dtypes if type(x) in (bool, int, float, complex)]
    strong = [_dtype(x, "result_type") for x in arrays_and_dtypes if type(x) not in (bool, int, float, complex)]
    if not strong:
        return result_dtype(*(dt.dtype(header(x).dtype) for x in numbers)).np
    found = common(*strong)
    for x in numbers:
        found = weak_dtype(x, found, "result_type")
    return found


@public
def promote_types(a: Any, b: Any, /) -> np.dtype[Any]:
    """The dtype in which two dtypes meet."""
    return common(known(a, "promote_types"), known(b, "promote_types"))


class Info:
    """What `__array_namespace_info__` gives."""

    def capabilities(self) -> dict[str, Any]:
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> str:
        return "cpu"

    def devices(self) -> tuple[str, ...]:
        from ...runtime.cuda.driver import available

        return ("cpu",) if available() else ("cpu", "cuda")

    def default_dtypes(self, *, device: Any = None) -> dict[str, Any]:
        check_device(device, "default_dtypes")
        return {"real floating": FLOAT, "complex floating": COMPLEX, "integral": INT, "indexing": INT}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, Any]:
        check_device(device, "dtypes")
        kinds = tuple(KINDS) if kind is None else kind if isinstance(kind, tuple) else (kind,)
        return {n: DTYPES[n] for n in STANDARD if isdtype(DTYPES[n], kinds)}


@public
def __array_namespace_info__() -> Info:  # noqa: N807
    """What this namespace can do: devices, dtypes, capabilities."""
    return Info()
