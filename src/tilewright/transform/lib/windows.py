"""Functions of the spatial axes x[N, C, *sizes]: transposed convolution, pooling, resizing. Attributes are PyTorch's."""
from __future__ import annotations

from typing import Any

from ...core.errors import ShapeError
from ...ops import AdaptivePool, AvgPool, MaxPool, MaxPoolIndices, Resize
from ...ops import Conv as ConvOp
from ...ops import Pool as PoolOp
from ...ops.rows.pooling import fitted
from ..promote import as_float, as_tracer, promote
from ..trace import Functions, Tracer, apply, user_place

public = FUNCTIONS = Functions()


def each(value: Any, n: int) -> tuple[Any, ...]:
    """One value an axis."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


def pairs(padding: Any, n: int) -> tuple[tuple[int, int], ...]:
    """(before, after) of each axis."""
    return tuple(tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in each(padding, n))


def _spatial(name: str, x: Tracer) -> int:
    if x.ndim < 3:
        raise ShapeError(f"{name}: needs x[N,C,*sizes], got {x.type} ({user_place()})")
    return x.ndim - 2


@public
def conv_transpose(x: Any, w: Any, *, stride: Any = 1, padding: Any = 0, output_padding: Any = 0, dilation: Any = 1,
                   groups: int = 1) -> Any:
    """The transpose of a convolution: x[N,C,*s] with w[C,O/groups,*k]; `output_padding` adds to the end of each axis of the result."""
    x, w = promote(x, w)
    n = _spatial("conv_transpose", x)
    return apply(ConvOp(stride=each(stride, n), padding=pairs(padding, n), dilation=each(dilation, n), groups=groups, transposed=True,
                        output_padding=each(output_padding, n)), x, w)


def _steps(x: Tracer, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> dict[str, Any]:
    """Attributes of a pool; in ceil mode windows are no larger than they need be."""
    kernel, padding = each(kernel, n), pairs(padding, n)
    stride = kernel if stride is None else each(stride, n)
    if ceil_mode and len(kernel) == len(stride) == len(padding) == n:
        kernel, stride = fitted(x.shape, kernel, stride, padding, each(dilation, n))
    return {"kernel": kernel, "stride": stride, "padding": padding, "ceil_mode": ceil_mode}


@public
def max_pool(x: Any, kernel: Any, *, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False,
             indices: bool = False) -> Any:
    """The largest element of each window (stride: the kernel's size unless given). With `indices` also its flat place in the spatial
    axes."""
    x = as_tracer(x)
    n = _spatial("max_pool", x)
    op = MaxPoolIndices if indices else MaxPool
    steps = _steps(x, n, kernel, stride, padding, dilation, ceil_mode)
    return apply(op(**steps, dilation=each(dilation, n)), x)


@public
def mean_pool(x: Any, kernel: Any, *, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_padding: bool = True) -> Any:
    """The mean of each window; with `count_padding` the zeros of the padding count."""
    x = as_float(x)
    n = _spatial("mean_pool", x)
    return apply(AvgPool(**_steps(x, n, kernel, stride, padding, 1, ceil_mode), count_include_pad=count_padding), x)


@public
def pool(x: Any, kernel: Any, *, kind: str, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    """Each window of x[N,C,*sizes] as one number: kind is "sum", "prod", "min", "max" or "mean". Padding takes no part in it, and counts as
    zeros for the mean.

    >>> import numpy as np, tilewright as tw
    >>> print(tw.pool(np.arange(1.0, 7.0).reshape(1, 1, 6), 2, kind="prod"))
    [[[ 2. 12. 30.]]]
    """
    if kind == "max":
        return max_pool(x, kernel, stride=stride, padding=padding, dilation=dilation, ceil_mode=ceil_mode)
    if kind == "mean" and all(d == 1 for d in each(dilation, 1)):
        return mean_pool(x, kernel, stride=stride, padding=padding, ceil_mode=ceil_mode)
    if kind not in ("sum", "min", "prod"):
        allowed = "sum, prod, min, max or mean (without dilation)"
        raise ShapeError(f"pool: kind must be {allowed}, got kind={kind!r}, dilation={dilation} ({user_place()})")
    x = as_tracer(x)
    n = _spatial("pool", x)
    return apply(PoolOp(**_steps(x, n, kernel, stride, padding, dilation, ceil_mode), dilation=each(dilation, n), kind=kind), x)


@public
def adaptive_pool(x: Any, sizes: Any, *, kind: str = "mean") -> Any:
    """Means (or, with kind="max", maxima) of windows that give the last axes these sizes."""
    x = as_float(x)
    return apply(AdaptivePool(sizes=each(sizes, _spatial("adaptive_pool", x)), kind=kind), x)


@public
def resize(x: Any, sizes: Any, *, mode: str = "nearest", align_corners: bool = False) -> Any:
    """The last axes at other sizes: the nearest element, or linear between neighbours (bilinear for two axes), in PyTorch's coordinates."""
    x = as_float(x)
    return apply(Resize(sizes=each(sizes, _spatial("resize", x)), mode=mode, align_corners=align_corners), x)
