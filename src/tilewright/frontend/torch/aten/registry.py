"""The ATen → op table and what its functions are given.

One small function per ATen op, registered with `@aten("linear.default")`. It receives a `Context` and the op's arguments:
tensors as `Value`s, sizes as dims, everything else as Python values, and returns a `Value` (or a tuple of them).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, Expr
from ....core.dtypes import DType
from ....core.errors import UnsupportedError
from ....ir.graph import Graph, Value
from ....ir.types import TensorType
from ....ops.base import Op
from ....ops.random.draws import split
from ....ops.structure import Number
from ..symbols import Symbols
from ..tensors import dtype_of

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)
TABLE: dict[str, Handler] = {}
Scalar = bool | int | float
SEED = "seed"  # name of the hidden input
KEYS = 64  # made at a time


def aten(*names: str) -> Callable[[H], H]:
    """Register a function for `aten.<name>`; `name` is `op.overload`. In-place twins (`op_.overload`) and those of views
    that copy (`op_copy.overload`) follow from it."""

    def enter(fn: H) -> H:
        for name in names:
            if name in TABLE:
                raise UnsupportedError(f"aten {name!r} is registered twice")
            TABLE[name] = fn
        return fn

    return enter


def placed(fn: H) -> H:
    """For functions that build with `ops.functions`: what they add has the node's place."""

    @functools.wraps(fn)
    def call(c: Context, *args: Any, **kwargs: Any) -> Any:
        return c.built(fn, c, *args, **kwargs)

    return cast(H, call)


def exact(fn: H) -> H:
    """For functions of small floats and numbers, where torch computes in f32 and rounds the result, not the numbers. A second operand of
    rank 0 and another dtype is such a number too: then all operands are given in f32."""

    @functools.wraps(fn)
    def call(c: Context, *args: Any, **kwargs: Any) -> Any:
        dtype = c.dtype
        loose = dtype in (dt.f16, dt.bf16) and any(isinstance(a, Value) and not a.shape and a.dtype is not dtype for a in args[1:2])
        c.exact, c.computed = True, dt.f32 if loose else None
        try:
            out = fn(c, *(c.cast(a, dt.f32) if loose and isinstance(a, Value) else a for a in args), **kwargs)
        finally:
            c.exact, c.computed = False, None
        return c.cast(out, dtype) if loose else out

    return cast(H, call)


def rows(table: dict[str, Handler], *, place: bool = False) -> None:
    """Enter one-line functions: the names, separated by spaces, and what is built. `place`: with `ops.functions`."""
    for names, fn in table.items():
        aten(*names.split())(placed(fn) if place else fn)


def key_of(target: Any) -> str:
    """`add.Tensor` for torch.ops.aten.add.Tensor; the full name for anything else."""
    text = str(target)
    return text.removeprefix("aten.")


def handler_of(op: type[Op]) -> Handler:
    """For an op whose class names ATen ops (`Op.aten`): operands are cast to the result's dtype first (`sqrt` of integers is a float), or
    where that is bool, to the one they meet in."""
    made: Any = op
    to_bool = getattr(op, "to_bool", False)

    def unary(c: Context, x: Value) -> Value:
        return c.emit(made(), x if x.dtype.kind == "c" else c.cast(x, c.dtype))  # |z| is real

    def binary(c: Context, a: Any, b: Any) -> Value:
        dtype = c.result_dtype(0, 1) if to_bool else c.dtype
        return c.emit(made(), c.value(a, dtype), c.value(b, dtype))

    return unary if op.arity == (1, 1) else exact(binary) if op in (O.Mul, O.Div, O.FloorDivide) else binary


def enter_ops() -> None:
    """Rows for the ATen ops that classes of the registry name."""
    for op in O.REGISTRY.values():
        for word in op.aten.split():
            base, _, overloads = word.partition(".")
            for overload in (overloads or "default").split("|"):
                if f"{base}.{overload}" not in TABLE:
                    TABLE[f"{base}.{overload}"] = handler_of(op)


def lookup(key: str) -> Handler | None:
    if key not in TABLE:
        enter_ops()  # an op may have been registered since
    found = TABLE.get(key)
    if found is None:
        base, _, overload = key.partition(".")
        if base.endswith("_") and not base.endswith("__"):
            found = TABLE.get(f"{base[:-1]}.{overload}")
        elif base.endswith("_copy"):
            found = TABLE.get(f"{base.removesuffix('_copy')}.{overload}")
    return found


class Context:
    """The graph under construction, seen from one ATen node."""

    def __init__(self, graph: Graph, symbols: Symbols) -> None:
        self.graph, self.symbols = graph, symbols
        self.name, self.place = "", ""
        self.meta: Any = None  # torch's fake result: shape and dtype
        self.args: tuple[Any, ...] = ()  # torch's fake arguments
        self.exact = False  # numbers that a small float dtype does not hold are kept as f32 holds them
        self.computed: DType | None = None  # what an `exact` function computes in, where it is not the result's dtype
        self.differentiable = False  # whether the graph is made to be differentiated: what only a derivative needs is worth a node
        self.recurrent = False  # whether the node is part of a recurrent layer
        self.seed: Value | None = None  # the hidden input that random ops draw from
        self._keys: list[Value] = []  # not yet taken
        self._scalars: dict[tuple[str, DType, bool], Value] = {}

    # what the node returns, according to torch

    @property
    def dtype(self) -> DType:
        return self.computed or dtype_of(self._first().dtype)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.symbols.shape(self._first().shape)

    def shapes(self) -> list[tuple[Dim, ...]]:
        return [self.symbols.shape(m.shape) for m in self.meta]

    def _first(self) -> Any:
        return self.meta[0] if isinstance(self.meta, (tuple, list)) else self.meta

    # building

    def built(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What a function of graph values gives; the nodes that it adds have the place of this one."""
        before, self.graph.place = self.graph.place, self.place
        try:
            return fn(*args, **kwargs)
        finally:
            self.graph.place = before

    def emit(self, op: Op, *operands: Value) -> Value:
        """Append an op with one output."""
        return self.graph.add(op, *operands, name=self.name, place=self.place).value

    def emit_all(self, op: Op, *operands: Value) -> tuple[Value, ...]:
        """Append an op with several outputs."""
        return self.graph.add(op, *operands, name=self.name, place=self.place).values

    def scalar(self, value: Scalar | Expr, dtype: DType) -> Value:
        """A rank-0 constant (one per value and dtype), or the run-time value of a symbolic dim."""
        key = (f"{type(value).__name__}:{value!r}", dtype, self.exact)
        found = self._scalars.get(key)
        if found is None:
            if isinstance(value, Expr):
                found = self.graph.add(O.DimValue(dim=value, dtype=dtype), name="dim", place=self.place).value
            elif self.exact and isinstance(value, (int, float)):
                found = self.graph.constant(Number.of(value, dtype), name="scalar")
            elif isinstance(value, (bool, int, float)) or (isinstance(value, complex) and dtype.kind == "c"):
                with np.errstate(over="ignore"):
                    array = np.asarray(value).astype(dtype.np)
                found = self.graph.constant(array, name="scalar")
            else:
                raise UnsupportedError(f"a scalar of type {type(value).__name__} is not supported")
            self._scalars[key] = found
        return found

    def key(self) -> Value:
        """A random key for one op: u64 of rank 0. Keys lie side by side in memory, so that ops of one kind share their kernel."""
        if len(self._keys) < 2:
            if self.seed is None:
                self.seed = self.graph.input(TensorType(dt.u64, ()), SEED)
            rows = split(self._keys.pop() if self._keys else self.seed, KEYS)
            self._keys = [self.reshape(self.slice(rows, 0, i, 1), ()) for i in reversed(range(KEYS))]
        return self._keys.pop()

    def value(self, x: Any, dtype: DType) -> Value:
        """`x` (a value or a Python scalar) with this dtype."""
        return self.cast(x, dtype) if isinstance(x, Value) else self.scalar(x, dtype)

    def cast(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype is dtype else self.emit(O.Cast(dtype=dtype), x)

    def reshape(self, x: Value, shape: Sequence[Dim]) -> Value:
        wanted = tuple(shape)
        return x if x.shape == wanted else self.emit(O.Reshape(shape=wanted), x)

    def expand(self, x: Value, shape: Sequence[Dim]) -> Value:
        wanted = tuple(shape)
        return x if x.shape == wanted else self.emit(O.Expand(shape=wanted), x)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        wanted = tuple(perm)
        return x if wanted == tuple(range(len(wanted))) else self.emit(O.Transpose(perm=wanted), x)

    def slice(self, x: Value, axis: int, start: Dim, size: Dim, step: int = 1) -> Value:
        if start == 0 and size == x.shape[axis] and step == 1:
            return x
        n = len(x.shape)
        starts: list[Dim] = [0] * n
        sizes, steps = list(x.shape), [1] * n
        starts[axis], sizes[axis], steps[axis] = start, size, step
        return self.emit(O.Slice(starts=tuple(starts), sizes=tuple(sizes), steps=tuple(steps)), x)

    def constant(self, array: Any, name: str = "const") -> Value:
        return self.graph.constant(array, name=name)

    def result_dtype(self, *indices: int) -> DType:
        """torch's promoted dtype of these arguments (comparisons and the like, whose own dtype is another)."""
        import torch

        found = [self.args[i] for i in indices]
        plain = [1 if isinstance(a, torch.SymInt) else a for a in found]
        return dtype_of(torch.result_type(plain[0], plain[1]))


def axis_of(axis: int, rank: int) -> int:
    """A non-negative axis; rank-0 tensors take axis 0 and -1."""
    return axis % max(rank, 1)


def axes_of(axes: Any, rank: int) -> tuple[int, ...]:
    """Axes from torch's dim argument: None or empty means all."""
    if axes is None or (isinstance(axes, (list, tuple)) and not axes):
        return tuple(range(rank))
    if isinstance(axes, int):
        axes = [axes]
    return tuple(sorted({axis_of(a, rank) for a in axes})) if rank else ()
