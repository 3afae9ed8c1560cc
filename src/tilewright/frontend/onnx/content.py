"""What is known of a value's elements while its graph is made.

Shapes of ONNX models are computed by ordinary nodes: `Shape`, `Gather`, `Concat`, then a `Reshape` that needs the result. Elements that do
not depend on the inputs are found by the ops' own references; elements that depend on sizes are carried as dims through the few ops that
shape arithmetic uses.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops as O
from ...core.dims import Expr, at_least, bounds, floordiv, maximum, minimum, product
from ...core.errors import TilewrightError
from ...ir.graph import Value
from ...ir.interp import apply

Array = np.ndarray[Any, Any]
MOST = 1 << 16  # elements that are worth knowing


class Unknown(Exception):
    """The elements cannot be told from sizes alone."""


class Contents:
    """Elements of values, found when somebody asks and kept."""

    def __init__(self) -> None:
        self._found: dict[Value, Array | None] = {}

    def tell(self, value: Value, content: Array) -> None:
        self._found[value] = content

    def weights(self, value: Value) -> Array | None:
        """The elements of a value of any size that is made from constants alone."""
        todo, seen = [value], {value}
        while todo:
            v = todo.pop()
            if isinstance(v.op, O.Constant):
                continue
            if not v.node.operands or isinstance(v.op, (O.Cond, O.Scan, O.While)):
                return None
            todo += [u for u in v.node.operands if u not in seen]
            seen.update(v.node.operands)
        try:
            return self._made(value)
        except (TilewrightError, TypeError, ValueError, IndexError, ArithmeticError):
            return None

    def _made(self, value: Value) -> Array:
        if isinstance(value.op, O.Constant):
            return value.op.data.array
        return apply(value.op, [self._made(v) for v in value.node.operands])[value.index]

    def of(self, value: Value) -> Array | None:
        if value in self._found:
            return self._found[value]
        numel = value.type.numel
        found: Array | None = None
        if isinstance(value.op, O.Constant):
            found = value.op.data.array
        elif isinstance(numel, int) and numel <= MOST:
            self._found[value] = None
            found = self._computed(value)
        self._found[value] = found
        return found

    def _computed(self, value: Value) -> Array | None:
        op, node = value.op, value.node
        if isinstance(op, O.DimValue):
            return _object(op.dim, ())
        if isinstance(op, O.Iota) and not all(isinstance(d, int) for d in (*op.shape, op.start)):
            return None
        if isinstance(op, (O.Input, O.Cond, O.Scan, O.While)) or (op.traits.source and not isinstance(op, O.Iota)):
            return None
        operands = []
        for v in node.operands:
            content = self.of(v)
            if content is None or content.size > MOST:
                return None
            operands.append(content)
        try:
            if any(a.dtype == object for a in operands):
                made = np.asarray(_symbolic(op, operands, value), object) if not value.dtype.is_bool else _symbolic(op, operands, value)
            else:
                results = apply(op, operands)
                for v, a in zip(node.values, results, strict=True):
                    self._found[v] = a
                made = results[value.index]
        except (TilewrightError, Unknown, TypeError, ValueError, IndexError, ArithmeticError):
            return None
        return made


def _object(value: Any, shape: tuple[int, ...]) -> Array:
    out = np.empty(shape, object)
    out[...] = value
    return out


def _each(fn: Callable[..., Any], *arrays: Array) -> Array:
    """fn of the elements, broadcast."""
    wide = np.broadcast_arrays(*arrays)
    out = np.empty(wide[0].shape, object)
    for i in np.ndindex(out.shape):
        out[i] = fn(*(_plain(a[i]) for a in wide))
    return out


def _plain(x: Any) -> Any:
    return x.item() if isinstance(x, np.generic) else x


def _order(decide: Callable[[Any], bool | None]) -> Callable[[Any, Any], bool]:
    """A comparison of dims that their ranges decide."""

    def compare(a: Any, b: Any) -> bool:
        found = decide(a - b)
        if found is None:
            raise Unknown
        return found

    return compare


def _equal(d: Any) -> bool | None:
    low, high = bounds(d)
    return True if low == high == 0 else None if low <= 0 <= high else False


def _less(d: Any) -> bool | None:
    low, high = bounds(d)
    return True if high < 0 else False if low >= 0 else None


def _less_equal(d: Any) -> bool | None:
    low, high = bounds(d)
    return True if high <= 0 else False if low > 0 else None


def _flip(decide: Callable[[Any], bool | None]) -> Callable[[Any], bool | None]:
    return lambda d: decide(-d)


def _not(decide: Callable[[Any], bool | None]) -> Callable[[Any], bool | None]:
    def other(d: Any) -> bool | None:
        found = decide(d)
        return None if found is None else not found

    return other


def _divided(a: Any, b: Any) -> Any:
    if not (at_least(a, 0) and at_least(b, 1)):
        raise Unknown
    return floordiv(a, b)


def _ratio(a: Any, b: Any) -> Any:
    """A quotient of floats that is an integer for every size."""
    if isinstance(a, Expr) and isinstance(b, (int, float)) and b == int(b) and b > 0 and floordiv(a, int(b)) * int(b) == a:
        return floordiv(a, int(b))
    if a == b:
        return 1
    raise Unknown


ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: _product(a, b), "neg": lambda a: -a, "maximum": maximum,
    "minimum": minimum, "floor_divide": _divided, "div": _ratio, "equal": _order(_equal), "not_equal": _order(_not(_equal)),
    "less": _order(_less), "less_equal": _order(_less_equal), "greater": _order(_flip(_less)), "greater_equal": _order(_flip(_less_equal)),
    "where": lambda c, a, b: a if c else b, "floor": lambda a: a, "ceil": lambda a: a, "round": lambda a: a, "trunc": lambda a: a,
    "abs": lambda a: maximum(a, -a), "sign": lambda a: _positive(a), "relu": lambda a: maximum(a, 0), "square": lambda a: a * a,
}


def _product(a: Any, b: Any) -> Any:
    if isinstance(a, float) or isinstance(b, float):
        whole = [int(x) if isinstance(x, float) and x == int(x) else x for x in (a, b)]
        if any(isinstance(x, float) for x in whole):
            raise Unknown
        a, b = whole
    return a * b


def _positive(a: Any) -> int:
    if not at_least(a, 1):
        raise Unknown
    return 1


def _symbolic(op: Any, operands: list[Array], value: Value) -> Array:
    """One op on arrays of dims."""
    first = operands[0]
    if op.name in ELEMENTWISE:
        out = _each(ELEMENTWISE[op.name], *operands)
        return out.astype(bool) if value.dtype.is_bool else out
    if op.name == "cast":
        if value.dtype.is_bool:
            raise Unknown
        return first
    if op.name == "reshape":
        return first.reshape(value.shape)
    if op.name == "transpose":
        return first.transpose(op.perm)
    if op.name == "expand":
        return np.broadcast_to(first, value.shape)
    if op.name == "slice":
        ends = zip(op.starts, op.sizes, op.steps, strict=True)
        return first[tuple(slice(a, a + (n - 1) * k + 1 if n else a, k) for a, n, k in ends)]
    if op.name == "flip":
        return np.flip(first, op.axes)
    if op.name == "split":
        return np.split(first, np.cumsum(op.sizes)[:-1], op.axis)[value.index]
    if op.name == "concat":
        return np.concatenate([np.asarray(a, object) for a in operands], op.axis)
    if op.name == "gather":
        return np.take(first, operands[1].astype(np.int64), op.axis)
    if op.name in ("prod", "sum") and len(op.axes) == first.ndim:
        flat = [_plain(x) for x in first.reshape(-1)]
        return _object(product(flat) if op.name == "prod" else sum(flat, 0), value.shape)
    raise Unknown
