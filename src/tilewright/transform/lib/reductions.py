"""Reductions, softmax, norms and losses. Axes may be negative, one or several; None means all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ShapeError
from ...ops import REGISTRY, ArgMax, ArgMin, GroupNorm, LayerNorm, LogSoftmax, RmsNorm, Softmax, SoftmaxCrossEntropy, TopK
from ...ops.formulas import compensated_sum
from ...ops.rows.norms import batch_norm_training, batch_normed
from ..promote import as_float, as_tracer, dtype_of
from ..trace import Functions, Tracer, apply, as_array, built, dtype_given, install, user_place
from .complex import imag as complex_imag
from .complex import real as complex_real

public = FUNCTIONS = Functions()
Axes = int | Sequence[int] | None


def one_axis(name: str, axis: int, ndim: int) -> int:
    """An axis counted from the front."""
    if not isinstance(axis, (int, np.integer)) or isinstance(axis, bool):
        raise ShapeError(f"{name}: takes one axis, an int, got axis={axis!r} ({user_place()})")
    if not -ndim <= axis < ndim:
        raise ShapeError(f"{name}: axis must be in {-ndim}..{ndim - 1}, got axis={axis} ({user_place()})")
    return axis % ndim


def axes_of(name: str, axis: Axes, ndim: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(ndim))
    axes = [one_axis(name, a, ndim) for a in (axis if isinstance(axis, (tuple, list)) else (axis,))]
    if len(set(axes)) != len(axes):
        raise ShapeError(f"{name}: an axis is given twice, got axis={axis} ({user_place()})")
    return tuple(sorted(axes))


def reduction(name: str, *, prepare: Callable[[Any], Tracer] = as_tracer) -> Callable[..., Any]:
    op = REGISTRY[name]

    def plain(x: Any, axis: Axes = None, keepdims: bool = False) -> Any:
        x = prepare(x)
        if x.value.dtype is dt.bool_ and name in ("max", "min"):
            return FUNCTIONS["any" if name == "max" else "all"](x, axis, keepdims)
        return apply(op(axes=axes_of(name, axis, x.ndim), keepdims=keepdims), x)  # type: ignore[call-arg]

    def adding(x: Any, axis: Axes = None, keepdims: bool = False, *, dtype: Any = None) -> Any:
        return plain(in_dtype(x, dtype), axis, keepdims)

    call = adding if name in ADDING else plain
    call.__doc__, call.__name__, call.__qualname__ = op.__doc__, name, name
    return call


ADDING = ("sum", "prod", "mean")  # which take a `dtype` to add or multiply in


def in_dtype(x: Any, dtype: Any) -> Any:
    return x if dtype is None else as_tracer(x, dtype_given(dtype))


def numbers(x: Any) -> Tracer:
    """What is summed or multiplied up: bools and small integers as i64 or u64, as the array API standard says, or 200 + 100 would be 44."""
    x = as_tracer(x)
    kind = x.value.dtype.kind
    return as_tracer(x, dt.u64 if kind == "u" else dt.i64) if kind in "biu" and x.value.dtype.itemsize < 8 else x


def truths(x: Any) -> Tracer:
    return as_tracer(x, dt.bool_)


for _name, _prepare in {"sum": numbers, "prod": numbers, "mean": as_float, "max": as_tracer, "min": as_tracer, "any": truths,
                        "all": truths}.items():
    FUNCTIONS[_name] = reduction(_name, prepare=_prepare)
FUNCTIONS["logsumexp"] = reduction("log_sum_exp", prepare=as_float)


_plain_sum = FUNCTIONS["sum"]


@public
def sum_(x: Any, axis: Axes = None, keepdims: bool = False, compensated: bool = False, *, dtype: Any = None) -> Any:
    """Sum along axes; 0 over nothing. `compensated`: rounded only once or twice, as if the sum had been taken with twice the digits."""
    if not compensated:
        return _plain_sum(x, axis, keepdims, dtype=dtype)
    x = numbers(in_dtype(x, dtype))
    axes = axes_of("sum", axis, x.ndim)
    return built(compensated_sum, x, axes=axes, keepdims=keepdims)


@public
def var(x: Any, axis: Axes = None, correction: float = 0.0, keepdims: bool = False, *, ddof: float | None = None) -> Any:
    """Variance: squared deviations summed, divided by count - correction, which NumPy calls `ddof`."""
    return _spread("var", x, axis, correction if ddof is None else ddof, keepdims)


@public
def std(x: Any, axis: Axes = None, correction: float = 0.0, keepdims: bool = False, *, ddof: float | None = None) -> Any:
    """Standard deviation: the square root of the variance. Where all elements are equal its derivative is 0, as PyTorch has it, not NaN."""
    return _spread("std", x, axis, correction if ddof is None else ddof, keepdims)


def _spread(name: str, x: Any, axis: Axes, correction: float, keepdims: bool) -> Any:
    x = as_float(x)
    if x.value.dtype.kind == "c":
        spread: Any = sum(_spread("var", part, axis, correction, keepdims) for part in (complex_real(x), complex_imag(x)))
        return apply(REGISTRY["sqrt"](), spread) if name == "std" else spread
    return apply(REGISTRY[name](axes=axes_of(name, axis, x.ndim), keepdims=keepdims, correction=float(correction)), x)  # type: ignore[call-arg]


def _arg(name: str, op: Any) -> Callable[..., Any]:
    def call(x: Any, axis: int | None = None, keepdims: bool = False, dtype: Any = "i64") -> Any:
        x, kind = as_tracer(x), dtype_given(dtype)
        x = as_tracer(x, dt.u8) if x.value.dtype is dt.bool_ else x
        if axis is None:
            made = apply(op(axis=0, dtype=kind), apply(REGISTRY["reshape"](shape=(x.size,)), x))  # type: ignore[call-arg]
            return apply(REGISTRY["reshape"](shape=(1,) * x.ndim), made) if keepdims else made  # type: ignore[call-arg]
        return apply(op(axis=one_axis(name, axis, x.ndim), keepdims=keepdims, dtype=kind), x)

    call.__doc__, call.__name__, call.__qualname__ = op.__doc__, name, name
    return call


FUNCTIONS["argmax"], FUNCTIONS["argmin"] = _arg("argmax", ArgMax), _arg("argmin", ArgMin)


@public
def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x - max) / sum along one axis."""
    x = as_float(x)
    return apply(Softmax(axis=one_axis("softmax", axis, x.ndim)), x)


@public
def log_softmax(x: Any, axis: int = -1) -> Any:
    """The logarithm of softmax, without overflow."""
    x = as_float(x)
    return apply(LogSoftmax(axis=one_axis("log_softmax", axis, x.ndim)), x)


@public
def top_k(x: Any, k: int, axis: int = -1, largest: bool = True, dtype: Any = "i64") -> tuple[Any, Any]:
    """(values, indices) of the k largest (or smallest) elements along an axis, in order; ties take the smaller index first."""
    x = as_tracer(x)
    values, indices = apply(TopK(k=k, axis=one_axis("top_k", axis, x.ndim), largest=largest, dtype=dtype_given(dtype)), x)
    return values, indices


def _affine(x: Tracer, weight: Any, bias: Any) -> tuple[str, list[Tracer]]:
    if weight is None and bias is not None:
        raise ShapeError(f"layer_norm: a bias needs a weight, got weight=None ({user_place()})")
    operands = [as_tracer(v, x.value.dtype) for v in (weight, bias) if v is not None]
    return ("none", "weight", "both")[len(operands)], operands


@public
def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5, naxes: int = 1) -> Any:
    """(x - mean) / sqrt(var + eps) over the last naxes axes, then * weight, + bias."""
    x = as_float(x)
    affine, operands = _affine(x, weight, bias)
    return apply(LayerNorm(eps=eps, naxes=naxes, affine=affine), x, *operands)


@public
def layer_norm_2d(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-6) -> Any:
    """Layer norm over the channels of x[N, C, H, W] at every place, then * weight[C], + bias[C]."""
    x = as_float(x)
    if x.ndim != 4:
        raise ShapeError(f"layer_norm_2d: needs x[N,C,H,W], got {x.type} ({user_place()})")
    transposed = apply(REGISTRY["transpose"](perm=(0, 2, 3, 1)), x)  # type: ignore[call-arg]
    return apply(REGISTRY["transpose"](perm=(0, 3, 1, 2)), layer_norm(transposed, weight, bias, eps=eps))  # type: ignore[call-arg]


@public
def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6, naxes: int = 1) -> Any:
    """x / sqrt(mean(x * x) + eps) over the last naxes axes, then * weight."""
    x = as_float(x)
    affine, operands = _affine(x, weight, None)
    return apply(RmsNorm(eps=eps, naxes=naxes, affine=affine), x, *operands)


@public
def group_norm(x: Any, groups: int, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    """Layer norm over each of `groups` groups of channels of x[N,C,*s], then * weight[C], + bias[C]."""
    x = as_float(x)
    affine, operands = _affine(x, weight, bias)
    return apply(GroupNorm(groups=groups, eps=eps, affine=affine), x, *operands)


@public
def batch_norm(x: Any, mean: Any, var: Any, weight: Any = None, bias: Any = None, *, training: bool = False, momentum: float = 0.1,
               eps: float = 1e-5) -> Any:
    """(x - mean) / sqrt(var + eps) a channel (axis 1), then * weight + bias, with these statistics.

    With training, the batch's own mean and variance serve instead, and (y, new mean, new variance) come back: the given ones moved by
    momentum towards the batch's (its variance over n - 1), as PyTorch's module does.
    """
    x = as_float(x)
    if (weight is None) != (bias is None):
        raise ShapeError(f"batch_norm: weight and bias go together, got one of them ({user_place()})")
    wide = dt.f32 if x.value.dtype.itemsize < 4 else x.value.dtype
    stats = [as_tracer(v, wide) for v in (mean, var)]
    affine = [as_tracer(v, wide) for v in (weight, bias) if v is not None]
    if training:
        return built(batch_norm_training, x, *stats, *affine, momentum=momentum, eps=eps)
    return built(lambda x, m, v, *rest: batch_normed(x, m, v, rest, eps), x, *stats, *affine)


install(**{n: FUNCTIONS[n] for n in ("sum", "mean", "max", "min", "prod", "any", "all", "var", "std", "argmax", "argmin")})


@public
def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """-log(softmax(logits)[label]) along the last axis, one loss a row. Labels are integers, or probabilities of the logits' shape."""
    x = as_float(logits)
    if x.ndim == 0:
        raise ShapeError(f"softmax_cross_entropy: needs logits of rank 1 or more, got {x.type} ({user_place()})")
    if dtype_of(labels)[0].is_float:
        shares = as_tracer(labels)
        if shares.shape != x.shape:
            raise ShapeError(f"softmax_cross_entropy: float labels are probabilities and have the logits' shape, got {shares.type} for "
                             f"{x.type}; cast class numbers to integers ({user_place()})")
        return -(log_softmax(x, -1) * shares).sum(axis=-1)
    if not isinstance(labels, Tracer):
        known = as_array(labels)
        bad = np.flatnonzero((known < 0) | (known >= x.shape[-1])).tolist() if isinstance(x.shape[-1], int) else []
        if bad:
            raise ShapeError(f"softmax_cross_entropy: label {int(known.flat[bad[0]])} is out of range for {x.shape[-1]} classes, at "
                             f"position {bad[0]} ({user_place()})")
    return apply(SoftmaxCrossEntropy(), x, as_tracer(labels))


@public
def mse(x: Any, y: Any) -> Any:
    """Mean of squared differences of two arrays of one shape, or of an array and a number."""
    x, y = as_float(x), as_tracer(y)
    if x.ndim and y.ndim and x.shape != y.shape:
        raise ShapeError(f"mse: both arrays must have one shape, got {x.type} and {y.type}; reshape or broadcast one of them "
                         f"({user_place()})")
    d = x - y
    return (d * d).mean()
