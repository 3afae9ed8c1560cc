"""What every function of Arrays needs: arguments as headers, dtypes as NumPy's, results in `out=`."""
from __future__ import annotations

import operator
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError, AxisError, ParseError, RangeError
from ...core.tensors import is_masked, is_tensor, tensor_to_numpy
from ...transform.promote import result_dtype
from ...transform.trace import python_type
from ..arrays import Array, own, plain, ready, shown, wrap

Header = np.ndarray[Any, Any]
FLOAT, COMPLEX, INT = np.dtype(np.float32), np.dtype(np.complex64), np.dtype(np.int64)
DEFAULT = {"b": np.dtype(np.bool_), "i": INT, "f": FLOAT, "c": COMPLEX}


def header(x: Any, what: str = "array") -> Header:
    """The header of an Array, a NumPy array, a tensor, a number or nested lists; Python's numbers take the default dtypes."""
    if type(x) is Array:
        return ready(x)
    if isinstance(x, np.ndarray):
        return _native(x, what)
    if is_tensor(x):
        return tensor_to_numpy(x, what)
    if isinstance(x, np.generic):
        return np.asarray(x)
    own_type = python_type(x)
    if own_type is not None:
        return _number(x, DEFAULT[own_type.kind], what)
    if hasattr(x, "__array__") or hasattr(x, "__array_interface__"):
        try:
            return _native(np.asanyarray(x), what)
        except (ValueError, TypeError) as e:
            if isinstance(e, ArgumentError):
                raise
            raise ArgumentError(f"{what}: the {type(x).__name__} describes no memory that can be read ({e})") from None
    if hasattr(x, "__dlpack__"):
        from .protocols import from_dlpack

        return ready(from_dlpack(x))
    if not isinstance(x, (list, tuple, str, bytes)):
        try:
            return _native(np.asarray(memoryview(x)), what)
        except TypeError:  # it has no buffer
            pass
    return _listed(x, None, what)


def _native(a: Header, what: str) -> Header:
    if is_masked(a):
        raise ArgumentError(f"{what}: a masked array would lose its mask; pass its data and use tw.where")
    if type(a) is not np.ndarray:
        a = a.view(np.ndarray)
    if not a.dtype.isnative:
        a = a.astype(a.dtype.newbyteorder("="))
    return _usable(a, what)


def _usable(a: Header, what: str) -> Header:
    try:
        dt.dtype(a.dtype)
    except ParseError as e:
        raise ArgumentError(f"{what}: elements of {a.dtype} cannot be used ({e})") from None
    return a


def known(dtype: Any, what: str) -> np.dtype[Any]:
    """A dtype that Arrays have, in NumPy's form."""
    try:
        return dt.dtype(dtype).np
    except ParseError as e:
        raise ParseError(f"{what}: {e}") from None


def _number(x: Any, dtype: np.dtype[Any], what: str) -> Header:
    try:
        return np.array(x, dtype)
    except OverflowError:
        if isinstance(x, int) and 0 <= x < 1 << 64 and dtype == INT:
            return np.array(x, np.uint64)
        raise RangeError(f"{what}: {x} does not fit {dtype}") from None


def _listed(x: Any, dtype: np.dtype[Any] | None, what: str) -> Header:
    """Nested lists of numbers and arrays. Python's own numbers alone give the default dtype of their kind."""
    try:
        raw = plain(x)
        strong = _strong(raw)
        made = np.asarray(raw, dtype)
    except RecursionError:
        raise ArgumentError(f"{what}: a list holds lists of numbers, got a {type(x).__name__} that holds itself, or too many in one another"
                            ) from None
    except (ValueError, TypeError, RuntimeError) as e:  # the last of torch, for views of other signs
        given = repr(x) if len(repr(x)) < 60 else f"a {type(x).__name__}"
        raise ArgumentError(f"{what}: an operand must be an array or a number, or lists of numbers that make one, got {given} ({e})"
                            ) from None
    if dtype is None:
        kind = made.dtype.kind
        if kind in DEFAULT and not strong and made.size:
            made = made.astype(DEFAULT[kind])
        elif not made.size and not strong:
            made = made.astype(FLOAT)
    return _usable(made, what)


def _strong(x: Any) -> bool:
    if isinstance(x, (list, tuple)):
        return any(list(map(_strong, x)))
    if is_masked(x):
        raise TypeError("a masked array would lose its mask")
    return isinstance(x, (np.ndarray, np.generic)) or hasattr(x, "__array__")


def common(*dtypes: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype in which arrays of these dtypes meet."""
    first = dtypes[0]
    if all(d == first for d in dtypes):
        return first
    return result_dtype(*(dt.dtype(d) for d in dtypes)).np


def weak_dtype(x: Any, dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    """The dtype in which a Python number meets an array of `dtype`: the array's, or a higher kind's default one."""
    kind = {bool: "b", int: "i", float: "f", complex: "c"}[type(x)]
    mine = dt.dtype(dtype).kind
    rank = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}
    if rank[kind] <= rank[mine]:
        return dtype
    if kind == "c":
        return dt.complex_of(dt.dtype(dtype)).np
    return DEFAULT[kind]


def numbers(*operands: Any, what: str) -> tuple[list[Header], np.dtype[Any]]:
    """All operands as headers of one dtype. Python numbers give way to arrays."""
    arrays = [header(x, what) for x in operands if type(x) not in (bool, int, float, complex)]
    if not arrays:
        arrays = [header(x, what) for x in operands]
        dtype = common(*(a.dtype for a in arrays))
        return [a.astype(dtype, copy=False) for a in arrays], dtype
    dtype = common(*(a.dtype for a in arrays))
    for x in operands:
        if type(x) in (bool, int, float, complex):
            dtype = weak_dtype(x, dtype, what)
    found, rest = [], iter(arrays)
    for x in operands:
        if type(x) in (bool, int, float, complex):
            found.append(_number(x, dtype, what))
        else:
            a = next(rest)
            found.append(a if a.dtype == dtype else a.astype(dtype))
    return found, dtype


def as_float(a: Header) -> Header:
    """Integers and bools as default floats."""
    return a.astype(FLOAT) if a.dtype.kind in "biu" else a


def give(made: Any) -> Array:
    """The Array of a header or scalar of NumPy."""
    return wrap(made if type(made) is np.ndarray else np.asarray(made))


def written(out: Any, made: Any) -> Any:
    """`made` in the memory of `out`, which is an Array, or a NumPy array to write to."""
    if out is None:
        return made
    if isinstance(out, tuple) and len(out) == 1:  # as NumPy's ufuncs have it
        return written(out[0], made)
    if isinstance(made, tuple) and type(out) is tuple and len(out) == len(made):
        return tuple(written(o, m) for o, m in zip(out, made, strict=True))
    if isinstance(made, (tuple, list, dict)):
        raise ArgumentError(f"out: the function has {len(made)} results; assign them")
    if type(made) is Array and made.device != "cpu":
        from ..arrays import device_calls

        return device_calls().into(out, made)
    source = header(made)
    target = own(out) if type(out) is Array else out
    if not isinstance(target, np.ndarray):
        raise ArgumentError(f"out: needs an Array or a NumPy array, got a {type(out).__name__}")
    if target.shape != source.shape:
        raise ArgumentError(f"out: must have the result's shape, got {shown(target)} for {shown(source)}")
    if not target.flags.writeable:
        raise ArgumentError(f"out: {shown(target)} is read-only")
    if not np.can_cast(source.dtype, target.dtype, "same_kind"):
        raise ArgumentError(f"out: cannot put {shown(source)} into {shown(target)}")
    np.copyto(target, source, casting="same_kind")
    return out


def axes_of(axis: Any, ndim: int, what: str) -> tuple[int, ...]:
    """An axis, several or None as sorted non-negative numbers."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    found = []
    for a in given:
        try:
            a = operator.index(a)
        except TypeError:
            raise ArgumentError(f"{what}: an axis is an integer, got {a!r:.40}") from None
        if not -ndim <= a < ndim:
            raise AxisError(f"{what}: axis must be in [{-ndim}, {ndim}), got {a}")
        found.append(a % ndim)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{what}: an axis is given twice, got {tuple(given)}")
    return tuple(sorted(found))
