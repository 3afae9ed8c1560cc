"""Arrays from nothing and from other things."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.errors import ArgumentError
from ...core.tensors import is_tensor
from ...runtime.dlpack import MOST_AXES, device_kind
from ...runtime.outputs import new_array
from ...transform.trace import Functions, Tracer, python_type
from ..arrays import Array, ready, shown, wrap
from . import rows
from .base import COMPLEX, FLOAT, INT, Header, _listed, _number, common, give, header, known

public = FUNCTIONS = Functions()


def on_devices(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A public function of a `device`: it makes an Array of the host, and `array/cuda` one on a GPU."""

    @functools.wraps(fn)
    def call(*args: Any, device: Any = None, **kwargs: Any) -> Any:
        if device is None or device == "cpu":
            return fn(*args, **kwargs)
        from ..cuda.calls import create

        return create(fn.__name__, fn, args, kwargs, device)

    return public(call)


def _like(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A public function of an Array's shape and dtype, whose result lies where that one does."""

    @functools.wraps(fn)
    def call(x: Any, /, *args: Any, **kwargs: Any) -> Any:
        if type(x) is Array and x.device != "cpu":
            from ..cuda.calls import like

            return like(fn.__name__, x, args, kwargs)
        return fn(x, *args, **kwargs)

    return public(call)


def is_on_device(x: Any) -> bool:
    """Whether an Array, or an array of another library, lies on a GPU."""
    if type(x) is Array:
        return x.device != "cpu"
    if isinstance(x, (np.ndarray, np.generic, list, tuple, int, float, complex)):
        return False
    if is_tensor(x):
        return bool(x.is_cuda)
    if hasattr(x, "__dlpack_device__"):
        return device_kind(x) == 2
    return hasattr(x, "__cuda_array_interface__")


def _shape(shape: Any, what: str) -> tuple[int, ...]:
    try:
        found = (int(shape.__index__()),) if hasattr(shape, "__index__") else tuple(int(n.__index__()) for n in shape)
    except (AttributeError, TypeError):
        raise ArgumentError(f"{what}: a shape is an int or a sequence of ints, got {shape!r}") from None
    if any(n < 0 for n in found):
        raise ArgumentError(f"{what}: sizes must not be negative, got shape={found}")
    if len(found) > MOST_AXES:
        raise ArgumentError(f"{what}: an Array has at most {MOST_AXES} axes, got {len(found)}")
    return found


def _dtype(dtype: Any, otherwise: np.dtype[Any], what: str) -> np.dtype[Any]:
    return otherwise if dtype is None else known(dtype, what)


@public
def asarray(obj: Any, /, dtype: Any = None, *, device: Any = None, copy: bool | None = None, order: Any = None) -> Array:
    """An Array of what is given: arrays share their memory unless a copy is asked for or another dtype is. The order in memory is the
    Array's own affair, whatever `order` says."""
    if dtype is None and device is None and not copy:  # the common way
        if type(obj) is Array:
            return obj
        if type(obj) is np.ndarray:
            return wrap(header(obj, "asarray"))
    if isinstance(obj, Tracer):
        traced: Any = obj
        return traced if dtype is None else traced.astype(dtype)  # type: ignore[no-any-return]
    wanted = None if dtype is None else known(dtype, "asarray")
    if device not in (None, "cpu") or is_on_device(obj):
        from ..cuda.calls import as_array

        return as_array(obj, wanted, device, copy)
    if type(obj) is Array and not copy and (wanted is None or wanted == ready(obj).dtype):
        return obj
    kind = python_type(obj)
    fresh = kind is not None or isinstance(obj, (list, tuple, range))
    if copy is False and fresh:
        raise ValueError("asarray: Python's numbers and lists have no memory to share, and copy=False")
    if kind is not None and wanted is not None:
        a = _number(obj, wanted, "asarray")
    elif isinstance(obj, (list, tuple)) and wanted is not None:
        a = _listed(obj, wanted, "asarray")
    elif isinstance(obj, range):
        a = np.asarray(obj, wanted or INT)
    else:
        a = header(obj, "asarray")
    if wanted is not None and a.dtype != wanted:
        if copy is False:
            raise ValueError(f"asarray: {shown(a)} as {wanted} needs a copy, and copy=False")
        return wrap(a.astype(wanted))
    return wrap(a.copy() if copy and not fresh else a)


@public
def array(obj: Any, dtype: Any = None, *, device: Any = None, copy: bool = True, order: Any = None, ndmin: int = 0) -> Array:
    """`asarray` with memory of its own, and with new axes in front up to `ndmin`."""
    made: Array = asarray(obj, dtype, device=device, copy=copy or None)
    return made[(None,) * (ndmin - made.ndim)] if made.ndim < ndmin else made


@on_devices
def empty(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """An Array whose elements are not set."""
    return wrap(_new(_shape(shape, "empty"), _dtype(dtype, FLOAT, "empty"), "empty"))


def _new(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> Header:
    try:
        return new_array(shape, dtype)
    except (ValueError, MemoryError) as e:
        raise MemoryError(f"{what}: no memory for {dtype}{list(shape)} ({e})") from None


@on_devices
def full(shape: Any, fill_value: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """One value everywhere; the dtype is that of the value unless one is given."""
    value = header(fill_value, "full") if dtype is None else None
    made = _new(_shape(shape, "full"), value.dtype if value is not None else known(dtype, "full"), "full")
    made[...] = value if value is not None else fill_value if not isinstance(fill_value, Array) else ready(fill_value)
    return wrap(made)


@on_devices
def zeros(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Zeros."""
    return wrap(np.zeros(_shape(shape, "zeros"), _dtype(dtype, FLOAT, "zeros")))


@on_devices
def ones(shape: Any, dtype: Any = None, *, device: Any = None) -> Array:
    """Ones."""
    return full(_shape(shape, "ones"), 1, _dtype(dtype, FLOAT, "ones"))  # type: ignore[no-any-return]


def _as(x: Any, shape: Any, dtype: Any, what: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    a = header(x, what)
    return a.shape if shape is None else _shape(shape, what), _dtype(dtype, a.dtype, what)


@_like
def empty_like(x: Any, /, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """An Array of x's shape and dtype whose elements are not set."""
    return empty(*_as(x, shape, dtype, "empty_like"), device=device)  # type: ignore[no-any-return]


@_like
def zeros_like(x: Any, /, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Zeros of x's shape and dtype."""
    return zeros(*_as(x, shape, dtype, "zeros_like"), device=device)  # type: ignore[no-any-return]


@_like
def ones_like(x: Any, /, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """Ones of x's shape and dtype."""
    size, kind = _as(x, shape, dtype, "ones_like")
    return full(size, 1, kind, device=device)  # type: ignore[no-any-return]


@_like
def full_like(x: Any, /, fill_value: Any, dtype: Any = None, *, shape: Any = None, device: Any = None) -> Array:
    """One value everywhere, of x's shape and dtype."""
    size, kind = _as(x, shape, dtype, "full_like")
    return full(size, fill_value, kind, device=device)  # type: ignore[no-any-return]


@on_devices
def arange(start: Any = None, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None) -> Array:
    """start, start + step, ... below stop; integers where all of them are."""
    first, last = (0, start) if stop is None else (0 if start is None else start, stop)
    if any(isinstance(n, bool) or not isinstance(n, (int, float, np.number)) for n in (first, last, step)) or step == 0:
        raise ArgumentError(f"arange: needs numbers and a step that is not 0, got start={first}, stop={last}, step={step}")
    whole = all(isinstance(n, (int, np.integer)) for n in (first, last, step))
    wanted = _dtype(dtype, INT if whole else FLOAT, "arange")
    if whole and wanted.kind in "iu":
        return wrap(np.arange(int(first), int(last), int(step), dtype=wanted))
    return wrap(np.arange(first, last, step).astype(wanted))


@on_devices
def linspace(start: Any, stop: Any, /, num: int = 50, *, dtype: Any = None, device: Any = None, endpoint: bool = True) -> Array:
    """`num` evenly spaced numbers from start to stop."""
    first, last = (ready(v).item() if isinstance(v, Array) and not ready(v).ndim else v for v in (start, stop))
    kind = COMPLEX if isinstance(first, complex) or isinstance(last, complex) else FLOAT
    wanted = _dtype(dtype, kind, "linspace")
    made = np.linspace(header(first) if isinstance(first, Array) else first, header(last) if isinstance(last, Array) else last, num,
                       endpoint=endpoint).astype(wanted)
    return wrap(made)


@public
def logspace(start: Any, stop: Any, num: int = 50, *, base: float = 10.0, dtype: Any = None, endpoint: bool = True) -> Array:
    """Numbers spaced evenly on a log scale."""
    return wrap(np.logspace(start, stop, num, endpoint=endpoint, base=base).astype(_dtype(dtype, FLOAT, "logspace")))


@public
def geomspace(start: Any, stop: Any, num: int = 50, *, dtype: Any = None, endpoint: bool = True) -> Array:
    """A geometric progression."""
    return wrap(np.geomspace(start, stop, num, endpoint=endpoint).astype(_dtype(dtype, FLOAT, "geomspace")))


@on_devices
def eye(n_rows: int, n_cols: int | None = None, /, k: Any = 0, dtype: Any = None, *, device: Any = None) -> Array:
    """Ones on the k-th diagonal. A dtype may stand in the place of k."""
    k, dtype = (k, dtype) if hasattr(k, "__index__") else (0, k)
    rows, cols = _shape(n_rows, "eye")[0], _shape(n_rows if n_cols is None else n_cols, "eye")[0]
    return wrap(np.eye(rows, cols, k, _dtype(dtype, FLOAT, "eye")))


@public
def identity(n: int, dtype: Any = None) -> Array:
    """Ones on the diagonal of a square matrix."""
    return eye(n, n, dtype=dtype)  # type: ignore[no-any-return]


@public
def meshgrid(*arrays: Any, indexing: str = "xy", sparse: bool = False) -> tuple[Array, ...]:
    """Coordinate matrices of coordinate vectors: views. Sparse ones have size 1 along the axes of the others."""
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing is 'xy' or 'ij', got {indexing!r}")
    headers = [header(a, "meshgrid") for a in arrays]
    if headers:
        wanted = common(*(h.dtype for h in headers))
        headers = [h.astype(wanted, copy=False) for h in headers]
    numpy: Any = np
    return tuple(give(a) for a in numpy.meshgrid(*headers, indexing=indexing, sparse=sparse, copy=False))


def _triangle(name: str, fn: Callable[..., Header]) -> Callable[..., Any]:
    def call(x: Any, /, k: int = 0) -> Array:
        a = header(x, name)
        if a.ndim < 2:
            raise ArgumentError(f"{name}: needs two axes or more, got {shown(a)}")
        return wrap(fn(a, k))

    call.__name__, call.__doc__ = name, f"The last two axes with zeros {'above' if name == 'tril' else 'below'} the k-th diagonal."
    return call


FUNCTIONS["tril"] = _triangle("tril", np.tril)
FUNCTIONS["triu"] = _triangle("triu", np.triu)
rows.enter(FUNCTIONS, {"diag(x, k: int = 0)": "A matrix with x on its k-th diagonal, or the k-th diagonal of a matrix."})


@public
def fromfunction(fn: Callable[..., Any], shape: Any, dtype: Any = None, **options: Any) -> Array:
    """fn of the index arrays of a shape, in the default float dtype unless another is given."""
    grids = np.indices(_shape(shape, "fromfunction"), _dtype(dtype, FLOAT, "fromfunction"))
    return asarray(fn(*(wrap(g) for g in grids), **options))  # type: ignore[no-any-return]


@public
def indices(shape: Any, dtype: Any = None) -> Array:
    """The indices of every element of a shape, one axis after the other."""
    return wrap(np.indices(_shape(shape, "indices"), _dtype(dtype, INT, "indices")))
