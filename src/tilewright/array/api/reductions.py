"""Sums, extremes, statistics and running sums of Arrays."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ...runtime.eager_host import ROW
from ...transform.trace import Functions
from ..arrays import Array, ready, shown
from .base import Header, as_float, axes_of, give, header, known, written

public = FUNCTIONS = Functions()
# Functions with a native form, and their signatures. Sums of integers and bools go through the Python form, which widens them.
NATIVE = {**dict.fromkeys(("sum", "prod"), "x, /, axis=None, dtype=None, out=None, keepdims=False, initial=None, where=None"),
          **dict.fromkeys(("max", "min"), "x, /, axis=None, out=None, keepdims=False, initial=None, where=None"),
          **dict.fromkeys(("any", "all"), "x, /, axis=None, out=None, keepdims=False, *, where=None"),
          "mean": "x, /, axis=None, dtype=None, out=None, keepdims=False, *, where=None",
          **dict.fromkeys(("argmax", "argmin"), "x, /, axis=None, out=None, *, keepdims=False")}
START = {"sum": 0, "prod": 1, "any": False, "all": True}  # the results of nothing
JOINED = {"sum": "add", "prod": "multiply", "max": "maximum", "min": "minimum"}
WIDE = {"b": np.dtype(np.int64), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}


def summed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What is summed or multiplied up: bools and integers in 64 bits, floats in their own dtype."""
    return WIDE.get(dt.dtype(dtype).kind, dtype)


def computable(a: Header) -> Header:
    """Floats of 16 bits and fewer in f32: sums and counts leave their range, and NumPy's loops would compute in them."""
    return a.astype(np.float32) if dt.dtype(a.dtype) in dt.SMALL else a


def reduced(name: str, a: Header, axes: tuple[int, ...], keepdims: bool) -> Header:
    """One of sum prod max min any all mean over axes, in the dtype of `a`."""
    from ..machine import reduction

    divide, small = name == "mean", dt.dtype(a.dtype) in dt.SMALL
    if divide and small:  # a sum, or the number of elements, may be beyond the dtype's range where the mean is not
        return reduced(name, a.astype(np.float32), axes, keepdims).astype(a.dtype)
    found = reduction("sum" if divide else name, a, axes, keepdims)
    if found is not None:
        if divide:
            count = a.size // max(found.size, 1)
            found = np.asarray(found / a.dtype.type(count), a.dtype)
        return found
    source = a.astype(np.float32) if small else a
    with np.errstate(all="ignore"):
        more = {"dtype": source.dtype} if name in ("sum", "prod") else {}
        made = np.asarray(getattr(np, name)(source, axis=axes, keepdims=keepdims, **more))
    return made.astype(a.dtype) if small and made.dtype.kind != "b" else made


@public
def sum_(x: Any, /, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The sum over axes; 0 over nothing. Integers and bools are summed in 64 bits."""
    a = header(x, "sum")
    wanted = summed(a.dtype) if dtype is None else known(dtype, "sum")
    return written(out, give(reduced("sum", a.astype(wanted, copy=False), axes_of(axis, a.ndim, "sum"), keepdims)))


@public
def prod(x: Any, /, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The product over axes; 1 over nothing."""
    a = header(x, "prod")
    wanted = summed(a.dtype) if dtype is None else known(dtype, "prod")
    return written(out, give(reduced("prod", a.astype(wanted, copy=False), axes_of(axis, a.ndim, "prod"), keepdims)))


def _extreme(name: str) -> Callable[..., Any]:
    def call(x: Any, /, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        a = header(x, name)
        axes = axes_of(axis, a.ndim, name)
        if any(a.shape[i] == 0 for i in axes):
            raise ArgumentError(f"{name}: nothing has no {name}, got {shown(a)} along axes {axes}")
        return written(out, give(reduced(name, a, axes, keepdims)))

    call.__name__, call.__doc__ = name, f"The {name} over axes; NaN where there is a NaN."
    return call


FUNCTIONS["max"] = FUNCTIONS["amax"] = _extreme("max")
FUNCTIONS["min"] = FUNCTIONS["amin"] = _extreme("min")


def _truth(name: str) -> Callable[..., Any]:
    def call(x: Any, /, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
        a = header(x, name)
        return written(out, give(reduced(name, a, axes_of(axis, a.ndim, name), keepdims)))

    call.__name__, call.__doc__ = name, f"Whether {'all elements are' if name == 'all' else 'any element is'} not zero, over axes."
    return call


FUNCTIONS["all"] = _truth("all")
FUNCTIONS["any"] = _truth("any")


@public
def mean(x: Any, /, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The mean over axes; integers as floats."""
    a = as_float(header(x, "mean"))
    if axis is None and dtype is None and out is None and not keepdims and type(x) is Array and a is ready(x) and a.size > ROW \
            and dt.dtype(a.dtype) not in dt.SMALL:
        return x.sum() / float(a.size)  # a native sum
    a = a if dtype is None else a.astype(known(dtype, "mean"), copy=False)
    return written(out, give(reduced("mean", a, axes_of(axis, a.ndim, "mean"), keepdims)))


@public
def var(x: Any, /, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float | None = None, keepdims: bool = False, *,
        correction: float = 0.0) -> Any:
    """The variance over axes: squared deviations from the mean, divided by count - correction."""
    return written(out, give(_variance(x, axis, correction if ddof is None else ddof, keepdims, "var")))


@public
def std(x: Any, /, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float | None = None, keepdims: bool = False, *,
        correction: float = 0.0) -> Any:
    """The standard deviation over axes."""
    return written(out, give(_variance(x, axis, correction if ddof is None else ddof, keepdims, "std")))


def _variance(x: Any, axis: Any, correction: float, keepdims: bool, what: str) -> Header:
    a = as_float(header(x, what))
    axes = axes_of(axis, a.ndim, what)
    with np.errstate(all="ignore"):
        spread, wide = getattr(np, what), computable(a)
        made = spread(wide, axis=axes, ddof=correction, keepdims=keepdims)
        if wide.dtype == np.float32 and not ((made > 1e-17) & (made < 1e18)).all():  # squares left the range of f32, or nearly
            made = spread(wide, axis=axes, ddof=correction, keepdims=keepdims, dtype=np.float64)
    return np.asarray(made, dt.real_of(dt.dtype(a.dtype)).np)


@public
def count_nonzero(x: Any, /, axis: Any = None, *, keepdims: bool = False) -> Array:
    """How many elements are not zero, over axes."""
    a = header(x, "count_nonzero")
    return give(reduced("sum", (a != 0).astype(np.int64), axes_of(axis, a.ndim, "count_nonzero"), keepdims))


def _arg(name: str) -> Callable[..., Any]:
    def call(x: Any, /, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Array:
        a = header(x, name)
        if not a.size and (axis is None or not a.shape[axis]):
            raise ArgumentError(f"{name}: nothing has no extreme element, got {shown(a)}")
        from ..machine import reduction

        axes = axes_of(axis, a.ndim, name)
        found = reduction(name, a, axes, keepdims)
        if found is not None:
            return give(found)
        return give(np.asarray(getattr(np, name)(a, axis=axis, keepdims=keepdims), np.int64))

    call.__name__ = name
    call.__doc__ = f"Index of the {'largest' if name == 'argmax' else 'smallest'} element along an axis, or of all; the first of equals."
    return call


FUNCTIONS["argmax"] = _arg("argmax")
FUNCTIONS["argmin"] = _arg("argmin")


def _cumulative(name: str, fn: Callable[..., Header], start: int) -> Callable[..., Any]:
    def call(x: Any, /, axis: int | None = None, dtype: Any = None, *, include_initial: bool = False) -> Array:
        a = header(x, name)
        if axis is None:
            if a.ndim > 1:
                raise ArgumentError(f"{name}: needs an axis for {shown(a)}")
            axis = 0
            a = a.reshape(-1) if not a.ndim else a
        (k,) = axes_of(axis, a.ndim, name)
        wanted = summed(a.dtype) if dtype is None else known(dtype, name)
        made = fn(a, axis=k, dtype=wanted)
        if include_initial:
            first = np.full((*a.shape[:k], 1, *a.shape[k + 1:]), start, wanted)
            made = np.concatenate([first, made], axis=k)
        return give(made)

    call.__name__, call.__doc__ = name, f"The running {'sum' if start == 0 else 'product'} along an axis."
    return call


FUNCTIONS["cumulative_sum"] = _cumulative("cumulative_sum", np.cumsum, 0)
FUNCTIONS["cumulative_prod"] = _cumulative("cumulative_prod", np.cumprod, 1)


def _running(name: str, start: int) -> Callable[..., Any]:
    inner = FUNCTIONS["cumulative_sum" if start == 0 else "cumulative_prod"]

    def call(x: Any, /, axis: int | None = None, dtype: Any = None, *, exclusive: bool = False, reverse: bool = False) -> Array:
        a = header(x, name)
        if axis is None:
            a, axis = a.reshape(-1), 0
        (axis,) = axes_of(axis, a.ndim, name)
        source = np.flip(a, axis) if reverse else a
        made: Array = inner(source, axis=axis, dtype=dtype, include_initial=exclusive)
        if exclusive:
            made = made[(slice(None),) * axis + (slice(0, a.shape[axis]),)]
        return give(np.flip(made.__array__(), axis)) if reverse else made

    call.__name__, call.__doc__ = name, f"The running {'sum' if start == 0 else 'product'} along an axis, or of all elements."
    return call


FUNCTIONS["cumsum"] = _running("cumsum", 0)
FUNCTIONS["cumprod"] = _running("cumprod", 1)


@public
def diff(x: Any, /, n: int = 1, axis: int = -1, *, prepend: Any = None, append: Any = None) -> Array:
    """Differences of neighbours along an axis, n times."""
    a = header(x, "diff")
    if n < 0:
        raise ArgumentError(f"diff: n must not be negative, got {n}")
    more = {k: header(v, "diff") for k, v in (("prepend", prepend), ("append", append)) if v is not None}
    n = min(n, sum(max(v.shape, default=1) for v in (a, *more.values())))  # nothing is left by then
    if a.dtype.kind == "b":
        return give(np.diff(a, n, axis, **more))
    return give(np.diff(a, n, axis, **more).astype(a.dtype, copy=False))


def _numpy_statistic(name: str, doc: str) -> Callable[..., Any]:
    def statistic(x: Any, rest: tuple[Any, ...], axis: Any, keepdims: bool, options: dict[str, Any]) -> Array:
        a = header(x, name)
        if name in PLAIN and a.dtype.kind in "biu":
            return FUNCTIONS[PLAIN[name]](a, axis=axis, keepdims=keepdims, **options)  # type: ignore[no-any-return]
        a = a if name == "ptp" and a.dtype.kind in "iu" else as_float(a)
        with np.errstate(all="ignore"):
            made = getattr(np, name)(computable(a), *map(_plain, rest), axis=axis, keepdims=keepdims,
                                     **{k: _plain(v) for k, v in options.items()})
        wanted = options.get("dtype") or (dt.real_of(dt.dtype(a.dtype)).np if name == "nanvar" else a.dtype)
        return give(np.asarray(made).astype(wanted, copy=False))

    def call(x: Any, /, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Array:
        return statistic(x, (), axis, keepdims, options)

    def of_points(x: Any, q: Any, /, axis: Any = None, *, keepdims: bool = False, **options: Any) -> Array:
        return statistic(x, (q,), axis, keepdims, options)

    made = of_points if name in ("percentile", "quantile") else call
    made.__name__, made.__doc__ = name, doc
    return made


# What has no NaN: integers stay integers.
PLAIN = {"nansum": "sum", "nanprod": "prod", "nanmax": "max", "nanmin": "min"}


def _plain(x: Any) -> Any:
    return header(x) if isinstance(x, Array) else x


for _name, _doc in {
    "median": "The middle element over axes.", "percentile": "The q-th percentiles over axes.", "quantile": "The q-th quantiles over axes.",
    "nansum": "The sum without NaN.", "nanmean": "The mean without NaN.", "nanmax": "The maximum without NaN.",
    "nanmin": "The minimum without NaN.", "nanvar": "The variance without NaN.", "nanstd": "The standard deviation without NaN.",
    "nanmedian": "The median without NaN.", "nanprod": "The product without NaN.", "ptp": "The maximum minus the minimum.",
}.items():
    FUNCTIONS[_name] = _numpy_statistic(_name, _doc)


@public
def average(x: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """The weighted mean; (it, the sums of the weights) where those are to be `returned`."""
    a = as_float(header(x, "average"))
    each = None if weights is None else header(weights)
    fn: Any = np.average
    made = fn(computable(a), axis, each, returned, keepdims=keepdims)
    return tuple(give(np.asarray(m, a.dtype)) for m in made) if returned else give(np.asarray(made, a.dtype))


@public
def logsumexp(x: Any, /, axis: Any = None, keepdims: bool = False) -> Array:
    """log(sum(exp(x))) without overflow."""
    a = as_float(header(x, "logsumexp"))
    axes = axes_of(axis, a.ndim, "logsumexp")
    dtype, a = a.dtype, computable(a)
    with np.errstate(all="ignore"):
        top = np.max(a, axis=axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0).astype(a.dtype)
        made = np.log(np.sum(np.exp(a - top), axis=axes, keepdims=True)) + top
    made = made if keepdims else made.reshape([n for i, n in enumerate(made.shape) if i not in axes])
    return give(made.astype(dtype, copy=False))


for _name, _more in {**dict.fromkeys(JOINED, "initial where"), **dict.fromkeys(("any", "all", "mean"), "where"),
                     **dict.fromkeys(("var", "std"), "where mean")}.items():  # `functions.limited` serves these
    _shown = inspect.signature(FUNCTIONS[_name])
    _each = [inspect.Parameter(p, inspect.Parameter.KEYWORD_ONLY, default=None, annotation="Any") for p in _more.split()]
    FUNCTIONS[_name].__signature__ = _shown.replace(parameters=[*_shown.parameters.values(), *_each])  # type: ignore[attr-defined]
