"""Runs any graph in NumPy: the meaning of every other way to run it.

Small floats (of 8 and 16 bits) compute in f32 and are rounded after each op, as PyTorch does on CPUs.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import Dim, Expr, Symbol, evaluate, substitute
from ..core.errors import ExecutionError, InputError, VerifyError
from ..core.places import split
from .graph import Graph, Node, Value
from .types import TensorType

if TYPE_CHECKING:
    from ..ops.base import Op

Array = np.ndarray[Any, Any]


def run(graph: Graph, inputs: Sequence[Any], env: Mapping[str, int] | None = None) -> list[Array]:
    """The graph's outputs for `inputs`. Symbols are read off the inputs' shapes; `env` gives those that no shape shows."""
    arrays = [np.asarray(a) for a in inputs]
    symbols = bind_symbols(graph, arrays, env)
    values: dict[Value, Array] = dict(zip(graph.inputs, arrays, strict=True))
    last = _last_reads(graph)
    for position, n in enumerate(graph.nodes):
        if n.values[0] in values:
            continue
        if n.op.name == "input":
            raise VerifyError(f"interp: %{n.name} is an input op but not among the inputs of graph {graph.name!r}")
        types = tuple(_bound(t, symbols) for t in n.types)
        try:
            made = apply(n.op.bind(symbols), [values[v] for v in n.operands], types)
        except ExecutionError as e:
            raise _placed(e, n) from None
        for v, a in zip(n.values, made, strict=True):
            values[v] = a
        for v in last.get(position, ()):
            del values[v]
    return [values[v] for v in graph.outputs]


def _placed(e: ExecutionError, node: Node) -> ExecutionError:
    """The error of a reference, in the name of what the user wrote and with the line."""
    written, line = split(node.place)
    text = str(e)
    if written and text.startswith(f"{node.op.name}: "):
        text = written + text[len(node.op.name):]
    return ExecutionError(f"{text} ({line})" if line and not text.endswith(")") else text)


def apply(op: Op, arrays: Sequence[Array], types: Sequence[TensorType] | None = None) -> tuple[Array, ...]:
    """One op (its symbols already bound) on arrays; results have exactly the inferred types."""
    if types is None:
        inferred = op.infer(*(TensorType(dt.dtype(a.dtype), a.shape) for a in arrays))
        types = (inferred,) if isinstance(inferred, TensorType) else inferred
    # a body is interpreted op by op, and rounds there
    small = any(_is_small(a.dtype) for a in arrays) and not any(isinstance(v, Graph) for v in op.attrs().values())
    wide = [a.astype(np.float32) if _is_small(a.dtype) else a for a in arrays] if small else arrays
    with np.errstate(all="ignore"):
        out = op.ref(*wide)
        results = tuple(np.asarray(a) for a in (out if isinstance(out, tuple) else (out,)))
        if small:
            results = tuple(a.astype(t.dtype.np) if t.dtype.is_float else a for a, t in zip(results, types, strict=True))
    for a, t in zip(results, types, strict=True):
        if a.shape != t.shape or a.dtype != t.dtype.np:
            raise VerifyError(f"{op.name}: the reference gave {a.dtype}{list(a.shape)} where {t} was inferred")
    return results


def bind_symbols(graph: Graph, arrays: Sequence[Array], env: Mapping[str, int] | None = None) -> dict[str, int]:
    """Values of all symbols from the shapes of the inputs, checked against every dim, dtype and range."""
    if len(arrays) != len(graph.inputs):
        raise InputError(f"interp: graph {graph.name!r} takes {len(graph.inputs)} inputs, got {len(arrays)}")
    found: dict[str, int] = dict(env or {})
    pairs = [(v, d, int(n)) for v, a in zip(graph.inputs, arrays, strict=True) for d, n in zip(v.shape, a.shape, strict=False)]
    for v, a in zip(graph.inputs, arrays, strict=True):
        if a.ndim != v.type.ndim or a.dtype != v.dtype.np:
            raise _mismatch(v, a.dtype, a.shape, found)
    # A dim such as 2*S+1 says what S is too; dims with several unknown symbols wait for the others.
    waiting = [(d, n) for _, d, n in pairs if isinstance(d, Expr)]
    while waiting:
        rest = [(d, n) for d, n in waiting if not _solve(d, n, found)]
        if len(rest) == len(waiting):
            break
        waiting = rest
    for v, a in zip(graph.inputs, arrays, strict=True):
        for d, n in zip(v.shape, a.shape, strict=True):
            if not _names(d) <= found.keys() or evaluate(d, found) != n:
                raise _mismatch(v, a.dtype, a.shape, found)
    for s in graph.symbols():
        if not s.lo <= found[s.name] <= s.hi:
            raise InputError(f"interp: dim {s.name} must be in {s.lo}..{s.hi}, got {found[s.name]}")
    return found


def _solve(d: Expr, n: int, found: dict[str, int]) -> bool:
    """Learn the one unknown symbol of d == n when d is linear in it. True when nothing more can be learned from d."""
    left: Dim = substitute(d, found)
    if isinstance(left, int):
        return True
    linear = [(m, c) for m, c in left.terms if m]
    if len(linear) != 1 or len(linear[0][0]) != 1 or not isinstance(linear[0][0][0], Symbol):
        return False
    symbol, factor = linear[0][0][0], linear[0][1]
    rest = n - sum(c for m, c in left.terms if not m)
    found[symbol.name] = rest // factor  # a remainder shows as a mismatch afterwards
    return True


def _mismatch(v: Value, dtype: Any, shape: Sequence[int], found: Mapping[str, int]) -> InputError:
    known = ", ".join(f"{k}={n}" for k, n in sorted(found.items()) if k in {s for d in v.shape for s in _names(d)})
    return InputError(f"interp: input {v.name!r} must be {v.type}{' with ' + known if known else ''}, got {dtype}{list(shape)}")


def _names(d: Dim) -> set[str]:
    return {s.name for s in d.symbols} if isinstance(d, Expr) else set()


def _bound(t: TensorType, env: Mapping[str, int]) -> TensorType:
    return t if t.is_static else TensorType(t.dtype, tuple(evaluate(d, env) for d in t.shape))


def _is_small(dtype: Any) -> bool:
    return any(dtype == d.np for d in dt.SMALL)


def _last_reads(graph: Graph) -> dict[int, list[Value]]:
    """Node position -> values that nobody reads after it, so that big graphs do not hold every intermediate."""
    kept = set(graph.outputs) | set(graph.inputs)
    last: dict[Value, int] = {}
    for position, n in enumerate(graph.nodes):
        last.update(dict.fromkeys(n.operands, position))
    out: dict[int, list[Value]] = {}
    for v, position in last.items():
        if v not in kept:
            out.setdefault(position, []).append(v)
    return out
