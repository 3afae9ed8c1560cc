"""Functions that append one op: `add(x, y)` is `Add()(x, y)`, and Python numbers become rank-0 constants of the other operand's dtype.

Ops are looked up by name when called, so any op file may use these in its decompositions.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import Dim, product
from ..core.dtypes import DType
from ..ir.graph import Graph, Value
from .base import REGISTRY, Op

__all__ = [  # noqa: RUF022 - in the order below
    "scalar", "apply", "one", "emit", "add", "sub", "mul", "div", "pow_", "maximum", "minimum", "greater", "greater_equal", "less",
    "less_equal", "equal", "logical_and", "logical_or", "logical_not", "where", "neg", "abs_", "exp", "expm1", "log", "log1p", "sqrt",
    "rsqrt", "square", "tanh", "erf", "sigmoid", "relu", "silu", "gelu", "softplus", "cast", "reshape", "transpose", "expand", "slice_",
    "split", "concat", "matmul", "sum_", "mean", "max_", "softmax", "gather", "iota", "dim_value", "full", "zeros", "sum_to", "flip", "pad",
    "broadcast_batch", "count", "extent", "scatter_add",
]

Operand = Value | float | int | bool


def scalar(graph: Graph, value: float | int | bool, dtype: DType, name: str = "c") -> Value:
    """A rank-0 constant."""
    return graph.constant(np.asarray(value, dtype=dtype.np), name)


def apply(name: str, *operands: Operand, place: str = "", **attrs: Any) -> Any:
    """Append op `name`; numbers take the dtype of the first operand that is a value (for `where`: of the second or third)."""
    typed = operands[1:] if name == "where" else operands
    like = next(v for v in typed if isinstance(v, Value))
    values = [v if isinstance(v, Value) else scalar(like.node.graph, v, like.dtype) for v in operands]
    return REGISTRY[name](**attrs)(*values, place=place)


def one(name: str, *operands: Operand, **attrs: Any) -> Value:
    """Like `apply`, of an op with one output."""
    value = apply(name, *operands, **attrs)
    assert isinstance(value, Value)
    return value


def emit(op: Op, *operands: Value, name: str | None = None, place: str = "") -> Value:
    """Append an op with one output to the graph of its operands."""
    return operands[0].node.graph.add(op, *operands, name=name, place=place).value


def _named(names: str) -> Iterator[Callable[..., Value]]:
    return (partial(one, name) for name in names.split())


add, sub, mul, div, pow_, maximum, minimum, where = _named("add sub mul div pow maximum minimum where")
greater, greater_equal, less, less_equal, equal, logical_and, logical_or, logical_not = \
    _named("greater greater_equal less less_equal equal logical_and logical_or logical_not")
neg, abs_, exp, expm1, log, log1p, sqrt, rsqrt, square, tanh, erf, sigmoid, relu, silu, softplus = \
    _named("neg abs exp expm1 log log1p sqrt rsqrt square tanh erf sigmoid relu silu softplus")


def gelu(x: Value, *, approximate: str = "none") -> Value:
    return one("gelu", x, approximate=approximate)


def cast(x: Value, dtype: DType) -> Value:
    """x in dtype; x itself when it already has it."""
    return x if x.dtype is dtype else one("cast", x, dtype=dtype)


def widened(x: Value) -> Value:
    """x in f32 where its floats have fewer bits."""
    return cast(x, dt.f32) if x.dtype.kind == "f" and x.dtype.itemsize < 4 else x


def reshape(x: Value, shape: Sequence[Dim]) -> Value:
    return x if x.shape == tuple(shape) else one("reshape", x, shape=tuple(shape))


def transpose(x: Value, perm: Sequence[int]) -> Value:
    return x if list(perm) == list(range(len(perm))) else one("transpose", x, perm=tuple(perm))


def expand(x: Value, shape: Sequence[Dim]) -> Value:
    return x if x.shape == tuple(shape) else one("expand", x, shape=tuple(shape))


def slice_(x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
    """A slice along one axis."""
    ndim = len(x.shape)
    starts: list[Dim] = [0] * ndim
    sizes: list[Dim] = list(x.shape)
    steps = [1] * ndim
    starts[axis], sizes[axis], steps[axis] = start, size, step
    return one("slice", x, starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps))


def split(x: Value, axis: int, sizes: Sequence[Dim]) -> tuple[Value, ...]:
    out = apply("split", x, axis=axis, sizes=tuple(sizes))
    return (out,) if isinstance(out, Value) else tuple(out)


def concat(values: Sequence[Value], axis: int) -> Value:
    return one("concat", *values, axis=axis)


def matmul(a: Value, b: Value, *, transpose_a: bool = False, transpose_b: bool = False, alpha: float = 1.0,
           dtype: DType | None = None) -> Value:
    return one("matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, alpha=alpha, dtype=dtype)


def sum_(x: Value, axes: Sequence[int], *, keepdims: bool = False) -> Value:
    return one("sum", x, axes=tuple(axes), keepdims=keepdims)


def mean(x: Value, axes: Sequence[int], *, keepdims: bool = False) -> Value:
    return one("mean", x, axes=tuple(axes), keepdims=keepdims)


def max_(x: Value, axes: Sequence[int], *, keepdims: bool = False) -> Value:
    return one("max", x, axes=tuple(axes), keepdims=keepdims)


def softmax(x: Value, axis: int) -> Value:
    return one("softmax", x, axis=axis)


def gather(x: Value, ids: Value, axis: int = 0) -> Value:
    return one("gather", x, ids, axis=axis)


def scatter_add(x: Value, ids: Value, updates: Value, axis: int = 0) -> Value:
    return one("scatter_add", x, ids, updates, axis=axis)


def iota(graph: Graph, shape: Sequence[Dim], axis: int, dtype: DType, *, start: Dim = 0, step: int = 1) -> Value:
    """start + step * index along axis."""
    return graph.add(REGISTRY["iota"](shape=tuple(shape), axis=axis, dtype=dtype, start=start, step=step)).value  # type: ignore[call-arg]


def dim_value(graph: Graph, dim: Dim, dtype: DType) -> Value:
    """A dim's run-time value as a rank-0 tensor."""
    return graph.add(REGISTRY["dim_value"](dim=dim, dtype=dtype)).value  # type: ignore[call-arg]


def full(graph: Graph, shape: Sequence[Dim], value: float | int | bool, dtype: DType) -> Value:
    """`value` everywhere."""
    return expand(scalar(graph, value, dtype), shape)


def zeros(like: Value) -> Value:
    """Zeros of the type of `like`."""
    return full(like.node.graph, like.shape, 0, like.dtype)


def sum_to(x: Value, shape: Sequence[Dim]) -> Value:
    """x summed over the axes along which `shape` was broadcast to x's: the transpose of expand."""
    target = tuple(shape)
    if x.shape == target:
        return x
    lead = len(x.shape) - len(target)
    axes = [*range(lead), *(lead + i for i, d in enumerate(target) if d == 1 and x.shape[lead + i] != 1)]
    return reshape(sum_(x, axes) if axes else x, target)


def flip(x: Value, axes: Sequence[int]) -> Value:
    return one("flip", x, axes=tuple(axes))


def pad(x: Value, lo: Sequence[Dim], hi: Sequence[Dim], value: float = 0.0) -> Value:
    """x itself when nothing is added."""
    nothing = all(d == 0 for d in (*lo, *hi))
    return x if nothing else one("pad", x, lo=tuple(lo), hi=tuple(hi), value=value)


def broadcast_batch(x: Value, batched: bool, size: Dim) -> Value:
    """x with the batch axis in front, repeated when it has none."""
    return x if batched else expand(reshape(x, (1, *x.shape)), (size, *x.shape))


def count(x: Value, axes: Sequence[int]) -> Value | float:
    """How many elements of x share an element of its reduction over axes: a number, or a rank-0 value where a dim is symbolic."""
    n = product([x.shape[a] for a in axes])
    return float(n) if isinstance(n, int) else dim_value(x.node.graph, n, x.dtype)


def extent(like: Value, dims: Sequence[Dim]) -> Value:
    """The product of dims as a rank-0 i64, or of `like`'s dtype where that is an integer."""
    n, dtype = product(list(dims)), like.dtype if like.dtype.is_int else dt.i64
    return scalar(like.node.graph, n, dtype) if isinstance(n, int) else dim_value(like.node.graph, n, dtype)
