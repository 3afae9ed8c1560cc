"""Derivatives of Python functions, inside a trace: the function is traced, its graph transformed, the result inlined where it was called.

Arguments and results are pytrees. `array/` makes the same functions work on plain arrays.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.errors import ShapeError
from ..core.pytree import Spec, flatten, unflatten
from ..ir.graph import Graph, Value, inline
from ..ops import Checkpoint
from ..ops import functions as F
from .jvp import jvp_graph
from .promote import as_tracer
from .trace import Leaf, Traced, Tracer, apply, current, is_array, leaf_of, trace, user_place
from .vjp import differentiable, vjp_graph

Fn = Callable[..., Any]
Argnums = int | Sequence[int]


class Called:
    """A function traced on the types of a call's arguments, and those arguments in the trace around it."""

    def __init__(self, fn: Fn, args: Sequence[Any], kwargs: dict[str, Any], types: Sequence[Any] | None = None) -> None:
        """`types`: what the function sees of each leaf, where that is not the leaf's own type."""
        outer = current()
        self.leaves, self.spec = flatten((tuple(args), dict(kwargs)))
        self.arrays = [i for i, x in enumerate(self.leaves) if is_array(x)]
        if types is None:
            types = [leaf_of(x) if is_array(x) else x for x in self.leaves]
        self.traced: Traced = trace(fn, self.spec, types)
        self.operands: list[Value] = [outer.lift(as_tracer(self.leaves[i])) for i in self.arrays]
        self.operands += [outer.lift(t) for t in self.traced.captured]

    @property
    def graph(self) -> Graph:
        return self.traced.graph

    def leaves_of(self, argnum: int) -> list[int]:
        """Positions of an argument's leaves among all leaves."""
        args = self.spec.children[0].children
        start = sum(s.size for s in args[:argnum])
        return list(range(start, start + args[argnum].size))

    def wanted(self, leaves: Sequence[int]) -> list[bool]:
        """One flag an input of the graph; captured values are never wanted."""
        chosen = {self.arrays.index(i) for i in leaves if i in self.arrays}
        return [i in chosen for i in range(len(self.graph.inputs))]

    def wrap(self, values: Sequence[Value]) -> list[Tracer]:
        outer = current()
        return [outer.wrap(v) for v in values]


def checked_argnums(what: str, argnums: Argnums, count: int) -> tuple[int, ...]:
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums) if isinstance(argnums, (tuple, list)) else ()
    if not chosen or not all(isinstance(a, int) and not isinstance(a, bool) for a in chosen):
        raise ShapeError(f"{what}: argnums must be an int or several, got {argnums!r} ({user_place()})")
    for a in chosen:
        if not -count <= a < count:
            raise ShapeError(f"{what}: argnums must name one of {count} positional arguments, got {a} ({user_place()})")
    return tuple(a % count for a in chosen)


def value_and_grad(fn: Fn, argnums: Argnums = 0, *, has_aux: bool = False) -> Fn:
    """`(value, gradients)`; the gradients have the structure of the arguments that argnums names."""

    def run(*args: Any, **kwargs: Any) -> Any:
        chosen = checked_argnums("grad", argnums, len(args))
        called = Called(fn, args, kwargs)
        leaves = [i for a in chosen for i in called.leaves_of(a)]
        _check_grad(called, leaves, has_aux)
        count = len(called.graph.outputs)
        graph, found = vjp_graph(called.graph, called.wanted(leaves), with_outputs=True, seeds=[i == 0 for i in range(count)])
        outer = current()
        loss = called.graph.outputs[0]
        made = called.wrap(inline(graph, outer.graph, [*called.operands, F.scalar(outer.graph, 1, loss.dtype)]))
        value = called.traced.result(made[:count])
        grads = _gathered(called, chosen, made[count:], found)
        return value, grads[0] if isinstance(argnums, int) else grads

    return named(run, fn, "value_and_grad")


def named(run: Fn, fn: Fn, what: str) -> Fn:
    run.__name__ = run.__qualname__ = f"{what}_{getattr(fn, '__name__', 'function')}"
    return run


def _check_grad(called: Called, leaves: Sequence[int], has_aux: bool) -> None:
    spec = called.traced.out_spec
    if has_aux:
        if spec.type != "tuple" or len(spec.children) != 2 or spec.children[0].type != "leaf":
            raise ShapeError(f"grad: with has_aux the function must return (loss, aux), got {spec} ({user_place()})")
    elif spec.type != "leaf":
        raise ShapeError(f"grad: the function must return one scalar, got {spec} ({user_place()})")
    if 0 in called.traced.statics:
        raise ShapeError(f"grad: the loss must be traced, got {called.traced.statics[0]!r}, which does not depend on the arguments "
                         f"({user_place()})")
    loss = called.graph.outputs[0]
    if loss.shape != () or not loss.dtype.is_float:
        what = "reduce it with .sum() or .mean()" if loss.shape else "compute it from floats"
        raise ShapeError(f"grad: the loss must be a float scalar, got {loss.type}; {what} ({user_place()})")
    for i in leaves:
        if i not in called.arrays:
            raise ShapeError(f"grad: cannot differentiate with respect to {called.leaves[i]!r}; pass arrays ({user_place()})")
        v = called.graph.inputs[called.arrays.index(i)]
        if not differentiable(v):
            raise ShapeError(f"grad: cannot differentiate with respect to {v.type}; integers and bools have no derivative, cast to a float "
                             f"({user_place()})")


def _gathered(called: Called, chosen: Sequence[int], made: Sequence[Any], found: Sequence[bool]) -> tuple[Any, ...]:
    """One tree a chosen argument; zeros where nothing depends on a leaf. `made` is in the order of the graph's inputs."""
    order = sorted({i for a in chosen for i in called.leaves_of(a)})
    got = iter(made)
    by_leaf: dict[int, Any] = {}
    for i, hit in zip(order, found, strict=True):
        by_leaf[i] = next(got) if hit else zero_like(leaf_of(called.leaves[i]))
    return tuple(unflatten(called.spec.children[0].children[a], [by_leaf[i] for i in called.leaves_of(a)]) for a in chosen)


def zero_like(leaf: Leaf) -> Tracer:
    outer = current()
    return outer.wrap(F.full(outer.graph, leaf.type.shape, 0, leaf.type.dtype))


def grad(fn: Fn, argnums: Argnums = 0, *, has_aux: bool = False) -> Fn:
    """The gradient of a scalar function; `(gradient, aux)` with has_aux."""
    both = value_and_grad(fn, argnums, has_aux=has_aux)

    def run(*args: Any, **kwargs: Any) -> Any:
        value, grads = both(*args, **kwargs)
        return (grads, value[1]) if has_aux else grads

    return named(run, fn, "grad")


def vjp(fn: Fn, *primals: Any) -> tuple[Any, Fn]:
    """`(result, pull)`: `pull(cotangents)` gives one cotangent tree a primal."""
    called = Called(fn, primals, {})
    floats = [i for i in called.arrays if differentiable(called.graph.inputs[called.arrays.index(i)])]
    graph, found = vjp_graph(called.graph, called.wanted(floats))
    outer = current()
    result = called.traced.result(called.wrap(inline(called.graph, outer.graph, called.operands)))
    operands = called.wrap(called.operands)

    def pull(cotangents: Any) -> Any:
        here = current()
        given = _matching("vjp", cotangents, called.traced)
        made = inline(graph, here.graph, [*(here.lift(v) for v in operands), *(here.lift(g) for g in given)])
        got = iter([here.wrap(v) for v in made])
        hits = dict(zip(floats, found, strict=True))
        leaves = [next(got) if hits.get(i) else zero_like(leaf_of(x)) if i in hits else None for i, x in enumerate(called.leaves)]
        return unflatten(called.spec, leaves)[0]

    return result, pull


def _matching(what: str, tree: Any, traced: Traced) -> list[Tracer]:
    """The leaves of a cotangent tree for the float outputs, checked and cast."""
    leaves, spec = flatten(tree)
    if spec != traced.out_spec:
        raise ShapeError(f"{what}: the cotangents must have the structure of the result {traced.out_spec}, got {spec} ({user_place()})")
    arrays = [x for i, x in enumerate(leaves) if i not in traced.statics]
    out = []
    for v, x in zip(traced.graph.outputs, arrays, strict=True):
        if differentiable(v):
            g = as_tracer(x, v.dtype)
            if g.shape != v.shape:
                raise ShapeError(f"{what}: a cotangent must have the type of its result {v.type}, got {g.type} ({user_place()})")
            out.append(g)
    return out


def jvp(fn: Fn, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """`(result, its tangent)` for a tangent of each primal (integers take any, which is not read)."""
    called = Called(fn, primals, {})
    leaves, spec = flatten((tuple(tangents), {}))
    if spec != called.spec:
        raise ShapeError(f"jvp: the tangents must have the structure of the primals, got {spec} for {called.spec} ({user_place()})")
    outer = current()
    active, given = [], []
    for i, v in zip(called.arrays, called.graph.inputs, strict=False):
        active.append(differentiable(v))
        if active[-1]:
            t = as_tracer(leaves[i], v.dtype)
            if t.shape != v.shape:
                raise ShapeError(f"jvp: a tangent must have the type of its primal {v.type}, got {t.type} ({user_place()})")
            given.append(outer.lift(t))
    active += [False] * len(called.traced.captured)
    graph, moved = jvp_graph(called.graph, active)
    made = called.wrap(inline(graph, outer.graph, [*called.operands, *given]))
    count = len(moved)
    pushed = iter(made[count:])
    tangent = [next(pushed) if m else zero_like(Leaf(v.type)) for m, v in zip(moved, called.graph.outputs, strict=True)]
    return called.traced.result(made[:count]), called.traced.result(tangent)


def checkpoint(fn: Fn) -> Fn:
    """fn, whose backward pass computes it again instead of keeping its intermediate values."""

    def run(*args: Any, **kwargs: Any) -> Any:
        called = Called(fn, args, kwargs)
        if not called.operands or not called.graph.outputs:
            return called.traced.result(called.wrap(inline(called.graph, current().graph, called.operands)))
        made = apply(Checkpoint(body=called.graph), *called.wrap(called.operands))
        return called.traced.result(made if isinstance(made, tuple) else [made])

    return named(run, fn, "checkpoint")


def unit_vectors(shape: tuple[int, ...], dtype: Any) -> Any:
    """[n, *shape]: one array for each of the n elements, with a 1 there."""
    n = int(np.prod(shape, dtype=np.int64))
    return np.eye(n, dtype=dtype).reshape(n, *shape)


__all__ = ["Called", "Spec", "checkpoint", "grad", "jvp", "value_and_grad", "vjp"]
