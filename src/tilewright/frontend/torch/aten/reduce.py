"""Reductions, scans and selections along an axis."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.linalg.functions import vector_norm as vector_norm_of
from .logic import truth
from .registry import Context, aten, axes_of, axis_of


def reduce(c: Context, op: Any, x: Value, dim: Any, keepdim: bool, **attrs: Any) -> Value:
    """`op` over torch's dim argument; a reduction over no axes is the operand itself."""
    axes = axes_of(dim, len(x.shape))
    return c.emit(op(axes=axes, keepdims=bool(keepdim), **attrs), x) if axes else x


@aten("sum.default", "sum.dim_IntList")
def sum_(c: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduce(c, O.Sum, c.cast(x, c.dtype), dim, keepdim)


@aten("mean.default")
def mean(c: Context, x: Value, *, dtype: Any = None) -> Value:
    return reduce(c, O.Mean, c.cast(x, c.dtype), None, False)


@aten("mean.dim")
def mean_dim(c: Context, x: Value, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduce(c, O.Mean, c.cast(x, c.dtype), dim, keepdim)


@aten("prod.default")
def prod(c: Context, x: Value, *, dtype: Any = None) -> Value:
    return reduce(c, O.Prod, c.cast(x, c.dtype), None, False)


@aten("prod.dim_int")
def prod_dim(c: Context, x: Value, dim: int, keepdim: bool = False, *, dtype: Any = None) -> Value:
    return reduce(c, O.Prod, c.cast(x, c.dtype), dim, keepdim)


@aten("amax.default")
def amax(c: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce(c, O.Max, x, dim, keepdim)


@aten("amin.default")
def amin(c: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce(c, O.Min, x, dim, keepdim)


@aten("max.default")
def max_all(c: Context, x: Value) -> Value:
    return reduce(c, O.Max, x, None, False)


@aten("min.default")
def min_all(c: Context, x: Value) -> Value:
    return reduce(c, O.Min, x, None, False)


def _arg(c: Context, op: Any, x: Value, dim: int | None, keepdim: bool) -> Value:
    if dim is None:
        flat = c.reshape(x, (x.type.numel,))
        out = c.emit(op(axis=0, keepdims=False), flat)
        return c.reshape(out, (1,) * len(x.shape)) if keepdim else out
    if not x.shape:
        return c.scalar(0, dt.i64)
    return c.emit(op(axis=axis_of(dim, len(x.shape)), keepdims=bool(keepdim)), x)


@aten("argmax.default")
def argmax(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(c, O.ArgMax, x, dim, keepdim)


@aten("argmin.default")
def argmin(c: Context, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    return _arg(c, O.ArgMin, x, dim, keepdim)


@aten("max.dim")
def max_dim(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(c, O.Max, O.ArgMax, x, dim, keepdim)


@aten("min.dim")
def min_dim(c: Context, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    return _extreme(c, O.Min, O.ArgMin, x, dim, keepdim)


def _extreme(c: Context, op: Any, where: Any, x: Value, dim: int, keepdim: bool) -> tuple[Value, Value]:
    """The largest or smallest, and where it stands; booleans are counted as 0 and 1."""
    numbers = c.cast(x, dt.i8) if x.dtype.is_bool else x
    return c.cast(reduce(c, op, numbers, dim, keepdim), x.dtype), _arg(c, where, numbers, dim, keepdim)


@aten("any.default", "any.dim", "any.dims")
def any_(c: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce(c, O.Any, truth(c, x), dim, keepdim)


@aten("all.default", "all.dim", "all.dims")
def all_(c: Context, x: Value, dim: Any = None, keepdim: bool = False) -> Value:
    return reduce(c, O.All, truth(c, x), dim, keepdim)


def _var(c: Context, x: Value, dim: Any, correction: float | None, keepdim: bool) -> Value:
    x = x if x.shape else c.reshape(x, (1,))
    axes = axes_of(dim, len(x.shape))
    found = c.emit(O.Var(axes=axes, keepdims=bool(keepdim), correction=float(1 if correction is None else correction)), x)
    return c.reshape(found, ()) if keepdim and c.shape == () else found


@aten("var.correction")
def var(c: Context, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Value:
    return _var(c, x, dim, correction, keepdim)


@aten("std.correction")
def std(c: Context, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> Value:
    return c.emit(O.Sqrt(), _var(c, x, dim, correction, keepdim))


@aten("var.default")
def var_all(c: Context, x: Value, unbiased: bool = True) -> Value:
    return _var(c, x, None, float(unbiased), False)


@aten("std.default")
def std_all(c: Context, x: Value, unbiased: bool = True) -> Value:
    return c.emit(O.Sqrt(), _var(c, x, None, float(unbiased), False))


@aten("var.dim")
def var_dim(c: Context, x: Value, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Value:
    return _var(c, x, dim, float(unbiased), keepdim)


@aten("std.dim")
def std_dim(c: Context, x: Value, dim: Any, unbiased: bool = True, keepdim: bool = False) -> Value:
    return c.emit(O.Sqrt(), _var(c, x, dim, float(unbiased), keepdim))


@aten("var_mean.correction")
def var_mean(c: Context, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    return _var(c, x, dim, correction, keepdim), reduce(c, O.Mean, x, dim, keepdim)


@aten("var_mean.default")
def var_mean_all(c: Context, x: Value, unbiased: bool = True) -> tuple[Value, Value]:
    return var_mean(c, x, correction=float(unbiased))


@aten("var_mean.dim")
def var_mean_dim(c: Context, x: Value, dim: Any, unbiased: bool = True, keepdim: bool = False) -> tuple[Value, Value]:
    return var_mean(c, x, dim, correction=float(unbiased), keepdim=keepdim)


@aten("std_mean.correction")
def std_mean(c: Context, x: Value, dim: Any = None, *, correction: float | None = None, keepdim: bool = False) -> tuple[Value, Value]:
    return c.emit(O.Sqrt(), _var(c, x, dim, correction, keepdim)), reduce(c, O.Mean, x, dim, keepdim)


@aten("std_mean.default")
def std_mean_all(c: Context, x: Value, unbiased: bool = True) -> tuple[Value, Value]:
    return std_mean(c, x, correction=float(unbiased))


@aten("std_mean.dim")
def std_mean_dim(c: Context, x: Value, dim: Any, unbiased: bool = True, keepdim: bool = False) -> tuple[Value, Value]:
    return std_mean(c, x, dim, correction=float(unbiased), keepdim=keepdim)


@aten("logsumexp.default", "special_logsumexp.default")
def logsumexp(c: Context, x: Value, dim: Any, keepdim: bool = False) -> Value:
    if any(x.shape[a] == 0 for a in axes_of(dim, len(x.shape))):
        return c.expand(c.scalar(float("-inf"), c.dtype), c.shape)
    return reduce(c, O.LogSumExp, c.cast(x, c.dtype), dim, keepdim)


@aten("linalg_vector_norm.default")
def vector_norm(c: Context, x: Value, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:  # noqa: A002
    x = c.cast(c.emit(O.Abs(), x) if x.dtype.kind == "c" else x, c.dtype)
    axes = axes_of(dim, len(x.shape))
    before, c.graph.place = c.graph.place, c.place
    out = vector_norm_of(x, float(ord), axes, keepdims=keepdim)
    c.graph.place = before
    return out


@aten("norm.ScalarOpt_dim")
def norm(c: Context, x: Value, p: float | None, dim: Any, keepdim: bool = False) -> Any:
    return vector_norm(c, x, 2 if p is None else p, dim, keepdim)


@aten("cumsum.default")
def cumsum(c: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = c.cast(x, c.dtype)
    return c.emit(O.CumSum(axis=axis_of(dim, len(x.shape))), x) if x.shape else x


@aten("cumprod.default")
def cumprod(c: Context, x: Value, dim: int, *, dtype: Any = None) -> Value:
    x = c.cast(x, c.dtype)
    return c.emit(O.CumProd(axis=axis_of(dim, len(x.shape))), x) if x.shape else x


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


@aten("sort.stable")
def sort_stable(c: Context, x: Value, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return sort(c, x, dim, descending)


@aten("argsort.default")
def argsort(c: Context, x: Value, dim: int = -1, descending: bool = False) -> Value:
    return c.emit(O.ArgSort(axis=axis_of(dim, len(x.shape)), descending=bool(descending)), x) if x.shape else c.scalar(0, dt.i64)


@aten("argsort.stable")
def argsort_stable(c: Context, x: Value, *, stable: bool, dim: int = -1, descending: bool = False) -> Value:
    return argsort(c, x, dim, descending)


@aten("msort.default")
def msort(c: Context, x: Value) -> Any:
    return sort(c, x, 0)[0]


@aten("kthvalue.default")
def kthvalue(c: Context, x: Value, k: Any, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest: the last of the k smallest."""
    if not isinstance(k, int):
        raise UnsupportedError(f"kthvalue needs a static k, got {k}")
    if not x.shape:
        return x, c.scalar(0, dt.i64)
    axis = axis_of(dim, len(x.shape))
    found = [c.slice(v, axis, k - 1, 1) for v in c.emit_all(O.TopK(k=k, axis=axis, largest=False), x)]
    return tuple(v if keepdim else c.reshape(v, (*x.shape[:axis], *x.shape[axis + 1 :])) for v in found)
