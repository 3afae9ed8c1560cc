"""Loops and branches of Python functions, inside a trace: each function is traced once and becomes the body of one op.

What a function closes over is captured: an operand of the op that every iteration reads. Numbers among results take the dtype that the
other side has (of the carry, of the other branch).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import Expr
from ..core.dtypes import DType
from ..core.errors import ShapeError
from ..core.pytree import Spec, flatten, unflatten
from ..ir.graph import Graph, Value
from ..ops import Cond, Scan, While
from .derive import checkpoint
from .promote import as_tracer, dtype_of
from .trace import Leaf, Traced, Tracer, apply, current, is_array, python_type, trace, user_place

Fn = Callable[..., Any]


def _array_leaves(what: str, tree: Any) -> tuple[list[Tracer], Spec]:
    leaves, spec = flatten(tree)
    for x in leaves:
        if not is_array(x):
            raise ShapeError(f"{what}: a carry must consist of arrays and numbers, got {x!r} ({user_place()})")
    return [as_tracer(x) for x in leaves], spec


def _carried(what: str, returned: Any, spec: Spec, types: Sequence[DType]) -> list[Any]:
    """The leaves of a returned carry; numbers take the dtype of what came in."""
    leaves, got = flatten(returned)
    if got != spec:
        raise ShapeError(f"{what} must return a carry of the structure {spec} that it was given, got {got} ({user_place()})")
    return [as_tracer(x, d if python_type(x) is not None else None) for x, d in zip(leaves, types, strict=True)]


def _settled(init: list[Tracer], make: Callable[[list[Tracer]], Traced]) -> tuple[list[Tracer], Traced]:
    """Trace; where a carry began as a Python number and its step makes another dtype of it, begin with that dtype."""
    traced = make(init)
    wanted = [v.dtype for v in traced.graph.outputs[: len(init)]]
    cast = [as_tracer(x, d) if x.weak else x for x, d in zip(init, wanted, strict=True)]
    if all(a.value.dtype is b.value.dtype for a, b in zip(cast, init, strict=True)):
        return init, traced
    return cast, make(cast)


def scan(step: Fn, init: Any, xs: Any = None, length: int | None = None, checkpoints: int | str | None = None, *,
         reverse: bool = False) -> tuple[Any, Any]:
    """`carry, y = step(carry, x)` for each slice x of xs along its first axis; gives the last carry and the stacked ys.

    Without xs, `length` says how often. Reverse mode keeps what each step needs; with `checkpoints=k` (or "sqrt") only k carries, and the
    steps between them are computed again. `reverse` goes from the last slice to the first.
    """
    slices, count = _slices(xs, length)
    if checkpoints is not None:
        return _checkpointed(step, init, xs, count, checkpoints, reverse)
    carry, spec = _array_leaves("scan", init)
    leaves, x_spec = flatten(xs)
    arrays = [i for i, x in enumerate(leaves) if is_array(x)]
    types = [Leaf(v.type.with_shape(v.shape[1:])) for v in slices]
    seen = [next(t for k, t in zip(arrays, types, strict=True) if k == i) if i in arrays else x for i, x in enumerate(leaves)]

    def make(first: list[Tracer]) -> Traced:
        def one(carried: Any, x: Any) -> Any:
            out = step(carried, x)
            if not isinstance(out, tuple) or len(out) != 2:
                kind = "an array" if is_array(out) else f"a tuple of {len(out)}" if isinstance(out, tuple) else repr(out)
                raise ShapeError(f"scan: the step must return (carry, y), got {kind}; y may be None ({user_place()})")
            kept = _carried("scan: the step", out[0], spec, [c.value.dtype for c in first])
            ys, y_spec = flatten(out[1])
            return tuple(kept), unflatten(y_spec, [as_tracer(y) if is_array(y) else y for y in ys])

        given = [*(Leaf(c.type) for c in first), *seen]
        return trace(one, Spec("tuple", (), (Spec("tuple", (), (spec, x_spec)), Spec("dict"))), given, getattr(step, "__name__", "step"))

    carry, traced = _settled(carry, make)
    if not traced.graph.outputs:
        return unflatten(spec, []), traced.result([])[1]
    op = Scan(body=traced.graph, carries=len(carry), xs=len(slices), length=count, reverse=reverse)
    made = _applied(op, [*carry, *slices, *traced.captured])
    return unflatten(spec, made[: len(carry)]), traced.result(made)[1]


def _applied(op: Any, operands: Sequence[Any]) -> list[Tracer]:
    made = apply(op, *operands)
    return list(made) if isinstance(made, tuple) else [made]


def _slices(xs: Any, length: int | None) -> tuple[list[Tracer], Any]:
    """The stacked arrays and the number of steps."""
    found = [as_tracer(x) for x in flatten(xs)[0] if is_array(x)]
    for x in found:
        if not x.shape:
            raise ShapeError(f"scan: xs must have an axis of steps in front, got {x.type} ({user_place()})")
    if length is not None and (isinstance(length, bool) or not isinstance(length, (int, np.integer, Expr))):
        raise ShapeError(f"scan: length must be an int, got {length!r} ({user_place()})")
    sizes = {x.shape[0] for x in found} | ({int(length) if isinstance(length, np.integer) else length} if length is not None else set())
    if len(sizes) != 1:
        got = ", ".join(sorted(map(str, sizes))) or "neither xs nor length"
        raise ShapeError(f"scan: xs and length must give one number of steps, got {got} ({user_place()})")
    (count,) = sizes
    if isinstance(count, int) and count < 0:
        raise ShapeError(f"scan: length must not be negative, got {count} ({user_place()})")
    return found, count


def _checkpointed(step: Fn, init: Any, xs: Any, count: Any, checkpoints: int | str, reverse: bool) -> tuple[Any, Any]:
    """A scan over segments whose backward pass computes each segment again; what does not fill a segment is scanned by itself."""
    if not isinstance(count, int):
        raise ShapeError(f"scan: checkpoints need a fixed number of steps, got {count} ({user_place()})")
    wanted = max(1, isqrt(count)) if checkpoints == "sqrt" else checkpoints
    if not isinstance(wanted, int) or wanted < 1:
        raise ShapeError(f"scan: checkpoints must be a positive number or 'sqrt', got {checkpoints!r} ({user_place()})")
    segments = min(wanted, count)
    if segments == 0:
        return scan(step, init, xs, count, reverse=reverse)
    size = count // segments
    main = segments * size
    leaves, spec = flatten(xs)

    def part(change: Callable[[Any], Any]) -> Any:
        return unflatten(spec, [change(as_tracer(x)) if is_array(x) else x for x in leaves])

    def main_scan(carry: Any) -> tuple[Any, Any]:
        piles = part(lambda x: x[:main].reshape(segments, size, *x.shape[1:]))
        segment = checkpoint(lambda c, x: scan(step, c, x, size, reverse=reverse))
        carry, ys = scan(segment, carry, piles, segments, reverse=reverse)
        return carry, _map(ys, lambda y: y.reshape(main, *y.shape[2:]))

    def tail_scan(carry: Any) -> tuple[Any, Any]:
        return scan(step, carry, part(lambda x: x[main:]), count - main, reverse=reverse)

    if main == count:
        return main_scan(init)
    first, second = (tail_scan, main_scan) if reverse else (main_scan, tail_scan)
    carry, ys1 = first(init)
    carry, ys2 = second(carry)
    from .lib.shapes import FUNCTIONS

    concat = FUNCTIONS["concat"]
    head, tail = (ys2, ys1) if reverse else (ys1, ys2)
    a, y_spec = flatten(head)
    b, _ = flatten(tail)
    return carry, unflatten(y_spec, [concat([x, y]) if is_array(x) else x for x, y in zip(a, b, strict=True)])


def _map(tree: Any, change: Callable[[Any], Any]) -> Any:
    leaves, spec = flatten(tree)
    return unflatten(spec, [change(x) if is_array(x) else x for x in leaves])


def _shared(several: Sequence[Traced]) -> list[Tracer]:
    """What any of the functions captured; each of their graphs gets an input for all of it, in one order."""
    captured = list(dict.fromkeys(t.value for one in several for t in one.captured))
    tracer = {t.value: t for one in several for t in one.captured}
    for one in several:
        graph: Graph = one.graph
        own = len(graph.inputs) - len(one.captured)
        has: dict[Value, Value] = dict(zip((t.value for t in one.captured), graph.inputs[own:], strict=True))
        graph.inputs = graph.inputs[:own]
        for v in captured:
            if v in has:
                graph.inputs.append(has[v])
            else:
                graph.input(v.type, "captured")
    return [tracer[v] for v in captured]


def cond(predicate: Any, then: Fn, other: Fn, *operands: Any) -> Any:
    """`then(*operands)` if the predicate is true, else `other(*operands)`; only that one runs. Both give the same structure and types."""
    if isinstance(predicate, (bool, np.bool_)):
        return (then if predicate else other)(*operands)
    leaves, spec = flatten((tuple(operands), {}))
    arrays = [as_tracer(x) for x in leaves if is_array(x)]
    types = iter(arrays)
    given = [Leaf((t := next(types)).type, t.weak) if is_array(x) else x for x in leaves]

    def make(fn: Fn, dtypes: Sequence[DType | None] | None) -> Traced:
        def run(*args: Any) -> Any:
            out, out_spec = flatten(fn(*args))
            wanted = [None] * len(out) if dtypes is None else list(dtypes)
            return unflatten(out_spec, [as_tracer(x, d) if is_array(x) else x for x, d in zip(out, wanted, strict=True)])

        return trace(run, spec, given, getattr(fn, "__name__", "branch"))

    sides = [make(then, None), make(other, None)]
    a, b = sides
    if a.out_spec != b.out_spec or a.statics.keys() != b.statics.keys():
        raise ShapeError(f"cond: both branches must give one structure, got {a.out_spec} and {b.out_spec} ({user_place()})")
    if a.statics != b.statics:
        raise ShapeError(f"cond: results that are no arrays must be equal, got {a.statics} and {b.statics} ({user_place()})")
    if not a.graph.outputs:
        return a.result([])
    casts = [_meeting(a, b, k) for k in range(len(a.graph.outputs))]
    if any(d is not None for side in casts for d in side):
        per_leaf = [iter(side) for side in zip(*casts, strict=True)]
        order = [i not in a.statics for i in range(a.n_leaves)]
        a, b = sides = [make(fn, [next(its) if o else None for o in order]) for fn, its in zip((then, other), per_leaf, strict=True)]
    captured = _shared(sides)
    made = _applied(Cond(then=a.graph, other=b.graph), [as_tracer(predicate), *arrays, *captured])
    return a.result(made)


def _meeting(a: Traced, b: Traced, k: int) -> tuple[DType | None, DType | None]:
    """What to cast result k of each branch to: a number takes the other's dtype."""
    x, y = a.graph.outputs[k].dtype, b.graph.outputs[k].dtype
    if x is y or a.weak[k] == b.weak[k]:
        return None, None
    return (y, None) if a.weak[k] else (None, x)


def while_loop(test: Fn, body: Fn, init: Any, max_iterations: int | None = None) -> Any:
    """`carry = body(carry)` as long as `test(carry)` is true, at most max_iterations times; gives the last carry.

    With max_iterations it has a reverse-mode derivative, which keeps what that many steps need.
    """
    carry, spec = _array_leaves("while_loop", init)
    if not carry:
        raise ShapeError(f"while_loop: needs a carry, got {init!r} ({user_place()})")
    whole = Spec("tuple", (), (Spec("tuple", (), (spec,)), Spec("dict")))

    def make(first: list[Tracer]) -> Traced:
        def one(carried: Any) -> Any:
            return tuple(_carried("while_loop: the body", body(carried), spec, [c.value.dtype for c in first]))

        return trace(one, whole, [Leaf(c.type) for c in first], getattr(body, "__name__", "body"))

    carry, step = _settled(carry, make)

    def ask(carried: Any) -> Any:
        out = test(carried)
        if not is_array(out):
            raise ShapeError(f"while_loop: the condition must give one bool scalar, got {flatten(out)[1]} ({user_place()})")
        return as_tracer(out)

    question = trace(ask, whole, [Leaf(c.type) for c in carry], getattr(test, "__name__", "test"))
    captured = _shared([question, step])
    op = While(test=question.graph, body=step.graph, carries=len(carry), max_iterations=max_iterations)
    return unflatten(spec, _applied(op, [*carry, *captured]))


MOST_STEPS = 1 << 28  # a loop whose indices are a constant of the program has at most so many


def fori_loop(lower: Any, upper: Any, body: Fn, init: Any) -> Any:
    """`carry = body(i, carry)` for i from lower to upper - 1. With bounds that are Python ints it has a reverse-mode derivative."""
    if isinstance(lower, (int, np.integer)) and isinstance(upper, (int, np.integer)):
        if int(upper) - int(lower) > MOST_STEPS:
            raise ShapeError(f"fori_loop: bounds that are Python ints are at most {MOST_STEPS} apart, got {lower} and {upper}; give one of "
                             f"them as an array ({user_place()})")
        indices = np.arange(int(lower), int(upper), dtype=np.int64)
        return scan(lambda carry, i: (body(i, carry), None), init, indices)[0]
    for bound in (lower, upper):
        if not dtype_of(bound)[0].is_int:
            raise ShapeError(f"fori_loop: the bounds must be integers, got {lower!r} and {upper!r} ({user_place()})")
    stop = as_tracer(upper, dt.i64)
    start = current().wrap(current().lift(as_tracer(lower, dt.i64)))
    return while_loop(lambda c: c[0] < stop, lambda c: (c[0] + 1, body(c[0], c[1])), (start, init))[1]
