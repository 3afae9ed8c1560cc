"""Reductions, scans and selections along an axis."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.index.sorting import MOST_COUNTED
from ....ops.linalg.functions import vector_norm as vector_norm_of
from .logic import truth
from .registry import Context, aten, axes_of, axis_of, rows

KINDS = {"sum": (O.Sum, 0.0), "mean": (O.Sum, 0.0), "prod": (O.Prod, 1.0), "max": (O.Max, float("-inf")), "min": (O.Min, float("inf"))}
JOIN = {"sum": O.Add, "mean": O.Add, "prod": O.Mul, "max": O.Maximum, "min": O.Minimum}


@aten("segment_reduce.default")
def segment_reduce(c: Context, x: Value, reduce: str, *, lengths: Value | None = None, indices: Value | None = None,
                   offsets: Value | None = None, axis: int = 0, unsafe: bool = False, initial: Any = None) -> Value:
    if indices is not None or reduce not in KINDS:
        raise UnsupportedError("segment_reduce needs lengths or offsets, and sum, mean, prod, max or min")
    if lengths is not None:
        size = c.cast(lengths, dt.i64)
        ends = c.emit(O.CumSum(axis=len(size.shape) - 1), size)
        starts = c.emit(O.Sub(), ends, size)
    else:
        assert offsets is not None
        bounds = c.cast(offsets, dt.i64)
        last, n = len(bounds.shape) - 1, bounds.shape[-1] - 1
        starts, ends = c.slice(bounds, last, 0, n), c.slice(bounds, last, 1, n)
        size = c.emit(O.Sub(), ends, starts)
    op, neutral = KINDS[reduce]
    lead, n, rest = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    place = c.emit(O.Iota(shape=(n,), axis=0, dtype=dt.i64))
    after = c.emit(O.GreaterEqual(), place, c.reshape(starts, (*starts.shape, 1)))
    own = c.emit(O.LogicalAnd(), after, c.emit(O.Less(), place, c.reshape(ends, (*ends.shape, 1))))
    own = c.reshape(own, (*own.shape, *(1,) * len(rest)))
    spread = c.reshape(x, (*lead, 1, n, *rest))
    out = c.emit(op(axes=(len(lead) + 1,), keepdims=False), c.emit(O.Where(), own, spread, c.scalar(neutral, x.dtype)))
    if initial is not None:
        out = c.emit(JOIN[reduce](), out, c.scalar(float(initial), x.dtype))
    if reduce == "mean":
        count = c.reshape(c.cast(size, x.dtype), (*size.shape, *(1,) * len(rest)))
        empty = c.emit(O.Equal(), count, c.scalar(0.0, x.dtype))
        share = c.emit(O.Div(), out, c.emit(O.Where(), empty, c.scalar(1.0, x.dtype), count))
        out = c.emit(O.Where(), empty, out if initial is not None else c.scalar(float("nan"), x.dtype), share)
    return c.reshape(out, c.shape)


def reduce(c: Context, op: Any, x: Value, dim: Any, keepdim: bool, **attrs: Any) -> Value:
    """`op` over torch's dim argument; a reduction over no axes is the operand itself."""
    axes = axes_of(dim, len(x.shape))
    if x.dtype.is_bool and op in (O.Max, O.Min):
        return truth(c, reduce(c, op, c.cast(x, dt.u8), dim, keepdim, **attrs))
    return c.emit(op(axes=axes, keepdims=bool(keepdim), **attrs), x) if axes else x


def _arg(c: Context, op: Any, x: Value, dim: int | None, keepdim: bool) -> Value:
    if dim is None:
        flat = c.reshape(x, (x.type.numel,))
        out = c.emit(op(axis=0, keepdims=False), flat)
        return c.reshape(out, (1,) * len(x.shape)) if keepdim else out
    if not x.shape:
        return c.scalar(0, dt.i64)
    return c.emit(op(axis=axis_of(dim, len(x.shape)), keepdims=bool(keepdim)), x)


def _extreme(c: Context, op: Any, where: Any, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    """The largest or smallest, and where it stands; booleans are counted as 0 and 1."""
    numbers = c.cast(x, dt.i8) if x.dtype.is_bool else x
    return c.cast(reduce(c, op, numbers, dim, keepdim), x.dtype), _arg(c, where, numbers, dim, keepdim)


def _var(c: Context, x: Value, dim: Any, correction: float | None, keepdim: bool, op: Any = O.Var) -> Value:
    x = x if x.shape else c.reshape(x, (1,))
    axes = axes_of(dim, len(x.shape))
    found = c.emit(op(axes=axes, keepdims=bool(keepdim), correction=float(1 if correction is None else correction)), x)
    return c.reshape(found, ()) if keepdim and c.shape == () else found


@aten("var_mean.correction")
def var_mean(c: Context, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    return _var(c, x, dim, correction, keepdim), reduce(c, O.Mean, x, dim, keepdim)


@aten("std_mean.correction")
def std_mean(c: Context, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    return _var(c, x, dim, correction, keepdim, O.Std), reduce(c, O.Mean, x, dim, keepdim)


@aten("logsumexp.default", "special_logsumexp.default")
def logsumexp(c: Context, x: Value, dim: Any, keepdim: bool = False) -> Value:
    if any(x.shape[a] == 0 for a in axes_of(dim, len(x.shape))):
        return c.expand(c.scalar(float("-inf"), c.dtype), c.shape)
    return reduce(c, O.LogSumExp, c.cast(x, c.dtype), dim, keepdim)


@aten("linalg_vector_norm.default")
def vector_norm(c: Context, x: Value, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:  # noqa: A002
    x = c.cast(c.emit(O.Abs(), x) if x.dtype.kind == "c" else x, c.dtype)
    return c.built(vector_norm_of, x, float(ord), axes_of(dim, len(x.shape)), keepdims=keepdim)


@aten("cumsum.default")
def cumsum(c: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = c.cast(x, c.dtype)
    return c.emit(O.CumSum(axis=axis_of(dim, len(x.shape))), x) if x.shape else x


@aten("cumprod.default")
def cumprod(c: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = c.cast(x, c.dtype)
    if x.dtype.kind == "c":
        return _running_product(c, x, axis_of(dim, len(x.shape)))
    return c.emit(O.CumProd(axis=axis_of(dim, len(x.shape))), x) if x.shape else x


def _running_product(c: Context, x: Value, axis: int) -> Value:
    """The product of complex numbers, in log2(n) steps, each of which doubles the number of factors."""
    n = x.shape[axis] if x.shape else 1
    if not isinstance(n, int):
        raise UnsupportedError(f"cumprod of complex numbers needs a static size, got {x.type}")
    step = 1
    while step < n:
        ones = c.expand(c.scalar(1, x.dtype), tuple(step if a == axis else d for a, d in enumerate(x.shape)))
        x = c.emit(O.Mul(), x, c.emit(O.Concat(axis=axis), ones, c.slice(x, axis, 0, n - step)))
        step *= 2
    return x


@aten("topk.default")
def topk(c: Context, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:  # noqa: A002
    if not isinstance(k, int):
        raise UnsupportedError(f"topk needs a static k, got {k}")
    if not x.shape:  # one element: k is 0 or 1
        found = c.emit_all(O.TopK(k=k, axis=0, largest=bool(largest)), c.reshape(x, (1,)))
        return tuple(c.reshape(v, c.shape) for v in found)
    return c.emit_all(O.TopK(k=k, axis=axis_of(dim, len(x.shape)), largest=bool(largest)), x)


@aten("sort.default")
def sort(c: Context, x: Value, dim: int = -1, descending: bool = False) -> Any:
    if not x.shape:
        return x, c.scalar(0, dt.i64)
    return c.emit_all(O.Sort(axis=axis_of(dim, len(x.shape)), descending=bool(descending)), x)


@aten("argsort.default")
def argsort(c: Context, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return c.emit(O.ArgSort(axis=axis_of(dim, len(x.shape)), descending=bool(descending)), x) if x.shape else c.scalar(0, dt.i64)


@aten("kthvalue.default")
def kthvalue(c: Context, x: Value, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest, of long rows the last of the k smallest."""
    if not isinstance(k, int):
        raise UnsupportedError(f"kthvalue needs a static k, got {k}")
    if not x.shape:
        return x, c.scalar(0, dt.i64)
    axis = axis_of(dim, len(x.shape))
    if isinstance(n := x.shape[axis], int) and k <= n <= MOST_COUNTED:
        index = c.emit(O.ArgRank(axis=axis), x, c.expand(c.scalar(k - 1, dt.i64), (*x.shape[:axis], 1, *x.shape[axis + 1 :])))
        found = [c.emit(O.GatherAlongAxis(axis=axis), x, index), index]
    else:
        found = [c.slice(v, axis, k - 1, 1) for v in c.emit_all(O.TopK(k=k, axis=axis, largest=False), x)]
    return tuple(v if keepdim else c.reshape(v, (*x.shape[:axis], *x.shape[axis + 1 :])) for v in found)


rows({
    "sum.default sum.dim_IntList": lambda c, x, dim=None, keepdim=False, *, dtype=None: reduce(c, O.Sum, c.cast(x, c.dtype), dim, keepdim),
    "mean.default": lambda c, x, *, dtype=None: reduce(c, O.Mean, c.cast(x, c.dtype), None, False),
    "mean.dim": lambda c, x, dim=None, keepdim=False, *, dtype=None: reduce(c, O.Mean, c.cast(x, c.dtype), dim, keepdim),
    "prod.default": lambda c, x, *, dtype=None: reduce(c, O.Prod, c.cast(x, c.dtype), None, False),
    "prod.dim_int": lambda c, x, dim, keepdim=False, *, dtype=None: reduce(c, O.Prod, c.cast(x, c.dtype), dim, keepdim),
    "amax.default": lambda c, x, dim=None, keepdim=False: reduce(c, O.Max, x, dim, keepdim),
    "amin.default": lambda c, x, dim=None, keepdim=False: reduce(c, O.Min, x, dim, keepdim),
    "max.default": lambda c, x: reduce(c, O.Max, x, None, False),
    "min.default": lambda c, x: reduce(c, O.Min, x, None, False),
    "argmax.default": lambda c, x, dim=None, keepdim=False: _arg(c, O.ArgMax, x, dim, keepdim),
    "argmin.default": lambda c, x, dim=None, keepdim=False: _arg(c, O.ArgMin, x, dim, keepdim),
    "max.dim": lambda c, x, dim, keepdim=False: _extreme(c, O.Max, O.ArgMax, x, dim, keepdim),
    "min.dim": lambda c, x, dim, keepdim=False: _extreme(c, O.Min, O.ArgMin, x, dim, keepdim),
    "any.default any.dim any.dims": lambda c, x, dim=None, keepdim=False: c.cast(reduce(c, O.Any, truth(c, x), dim, keepdim), c.dtype),
    "all.default all.dim all.dims": lambda c, x, dim=None, keepdim=False: c.cast(reduce(c, O.All, truth(c, x), dim, keepdim), c.dtype),
    "var.correction": lambda c, x, dim=None, *, correction=None, keepdim=False: _var(c, x, dim, correction, keepdim),
    "std.correction": lambda c, x, dim=None, *, correction=None, keepdim=False: _var(c, x, dim, correction, keepdim, O.Std),
    "var.default": lambda c, x, unbiased=True: _var(c, x, None, float(unbiased), False),
    "std.default": lambda c, x, unbiased=True: _var(c, x, None, float(unbiased), False, O.Std),
    "var.dim": lambda c, x, dim, unbiased=True, keepdim=False: _var(c, x, dim, float(unbiased), keepdim),
    "std.dim": lambda c, x, dim, unbiased=True, keepdim=False: _var(c, x, dim, float(unbiased), keepdim, O.Std),
    "var_mean.default": lambda c, x, unbiased=True: var_mean(c, x, correction=float(unbiased)),
    "var_mean.dim": lambda c, x, dim, unbiased=True, keepdim=False: var_mean(c, x, dim, correction=float(unbiased), keepdim=keepdim),
    "std_mean.default": lambda c, x, unbiased=True: std_mean(c, x, correction=float(unbiased)),
    "std_mean.dim": lambda c, x, dim, unbiased=True, keepdim=False: std_mean(c, x, dim, correction=float(unbiased), keepdim=keepdim),
    "norm.ScalarOpt_dim": lambda c, x, p, dim, keepdim=False: vector_norm(c, x, 2 if p is None else p, dim, keepdim),
    "sort.stable": lambda c, x, *, stable=None, dim=-1, descending=False: sort(c, x, dim, descending),
    "argsort.stable": lambda c, x, *, stable, dim=-1, descending=False: argsort(c, x, dim, descending),
    "msort.default": lambda c, x: sort(c, x, 0)[0],
})
