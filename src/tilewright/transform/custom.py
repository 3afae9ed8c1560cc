"""`custom_vjp`, `custom_jvp` and `custom_op`: derivatives and ops that the user defines."""
from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ..core.errors import InputError, ShapeError, require
from ..core.pytree import Spec, flatten
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from ..ops import functions as F
from ..ops.base import REGISTRY, MaybeValues, NotSupported, Op, Traits, Values, register
from ..ops.control.custom import CustomJvp, CustomVjp
from ..ops.families import Elementwise, General
from .derive import Called
from .promote import as_tracer
from .trace import Leaf, Trace, Traced, apply, entered, trace, user_place

Fn = Callable[..., Any]
DEPTH = 2  # rules inside rules: a rule may call its own function, whose rule counts once more there (in second derivatives), then no more


def _name(fn: Any) -> str:
    return str(getattr(fn, "__name__", "function"))


def _need(ok: bool, rule: str, text: str) -> None:
    if not ok:
        raise ShapeError(f"{rule}: {text} ({user_place()})")


def _same_types(rule: str, what: str, made: Sequence[Value], want: Sequence[Value]) -> None:
    _need(len(made) == len(want), rule, f"{what} must be {len(want)} arrays, got {len(made)}")
    for a, b in zip(made, want, strict=True):
        _need(a.type == b.type, rule, f"{what} must have the type {b.type}, got {a.type}")


class custom_vjp:
    """A function with its own reverse rule. `f.defvjp(forward, backward)`: `forward(*args) -> (result, saved)` and
    `backward(saved, cotangent) -> one cotangent an argument` (None where an argument has none).

        @tw.custom_vjp
        def f(x): return tw.exp(x)
        f.defvjp(lambda x: (tw.exp(x), x), lambda x, g: (g * tw.exp(x),))
    """

    def __init__(self, fn: Fn) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.rules: tuple[Fn, Fn] | None = None
        self.depth = 0

    def defvjp(self, forward: Fn, backward: Fn) -> custom_vjp:
        self.rules = (forward, backward)
        return self

    def __call__(self, *args: Any) -> Any:
        if self.rules is None:
            raise InputError(f"custom_vjp: {_name(self.fn)} has no rules yet; call {_name(self.fn)}.defvjp(forward, backward) "
                             f"({user_place()})")
        if self.depth >= DEPTH:
            return self.fn(*args)
        called = Called(self.fn, args, {})
        _no_captures("custom_vjp", self.fn, called.traced)
        self.depth += 1
        try:
            forward, saved_spec = self._forward(called)
            backward = self._backward(called, forward, saved_spec)
        finally:
            self.depth -= 1
        made = apply(CustomVjp(body=called.graph, forward=forward, backward=backward), *called.wrap(called.operands))
        return called.traced.result(made if isinstance(made, tuple) else [made])

    def _types(self, called: Called) -> list[Any]:
        by_leaf = dict(zip(called.arrays, called.graph.inputs, strict=True))
        return [Leaf(by_leaf[i].type) if i in by_leaf else x for i, x in enumerate(called.leaves)]

    def _forward(self, called: Called) -> tuple[Graph, tuple[Spec, dict[int, Any], int]]:
        assert self.rules is not None
        rule = f"custom_vjp {_name(self.fn)}"
        traced = trace(self.rules[0], called.spec, self._types(called), "forward")
        _no_captures("custom_vjp", self.rules[0], traced)
        spec = traced.out_spec
        _need(spec.type == "tuple" and len(spec.children) == 2, rule, f"forward must return (result, saved), got {spec}")
        _need(spec.children[0] == called.traced.out_spec, rule,
              f"forward's result must have the structure {called.traced.out_spec}, got {spec.children[0]}")
        count = len(called.graph.outputs)
        _same_types(rule, "forward's result", traced.graph.outputs[:count], called.graph.outputs)
        first = spec.children[0].size
        statics = {i - first: x for i, x in traced.statics.items() if i >= first}
        return traced.graph, (spec.children[1], statics, spec.children[1].size)

    def _backward(self, called: Called, forward: Graph, saved: tuple[Spec, dict[int, Any], int]) -> Graph:
        assert self.rules is not None
        rule = f"custom_vjp {_name(self.fn)}"
        saved_spec, statics, size = saved
        arrays = iter(forward.outputs[len(called.graph.outputs) :])
        leaves: list[Any] = [statics[i] if i in statics else Leaf(next(arrays).type) for i in range(size)]
        outs = iter(called.graph.outputs)
        for i in range(called.traced.n_leaves):
            leaves.append(called.traced.statics[i] if i in called.traced.statics else Leaf(next(outs).type))
        spec = Spec("tuple", (), (Spec("tuple", (), (saved_spec, called.traced.out_spec)), Spec("dict")))
        traced = trace(self.rules[1], spec, leaves, "backward")
        _no_captures("custom_vjp", self.rules[1], traced)
        args = called.spec.children[0]
        got = traced.out_spec
        _need(got.type in ("tuple", "list") and len(got.children) == len(args.children), rule,
              f"backward must return one cotangent an argument, {len(args.children)}, got {got}")
        return self._tidy(called, traced, rule)

    def _tidy(self, called: Called, traced: Traced, rule: str) -> Graph:
        """The backward graph without cotangent inputs of integer results, whose outputs are those of the float operands; None: zeros."""
        graph, args = traced.graph, called.spec.children[0]
        outs = iter(graph.outputs)
        place = 0
        wanted: list[Value | None] = []
        for child, got in zip(args.children, traced.out_spec.children, strict=True):
            here = list(range(place, place + got.size))
            values = [None if i in traced.statics else next(outs) for i in here]
            place += got.size
            fits = got == child or (got.type == "leaf" and values == [None])
            _need(fits, rule, f"a cotangent must have the structure {child}, got {got}")
            wanted += values if got == child else [None] * child.size
        final: list[Value] = []
        by_leaf = dict(zip(called.arrays, called.graph.inputs, strict=True))
        for i, g in enumerate(wanted):
            v = by_leaf.get(i)
            if v is None or not v.dtype.is_float:
                continue
            if g is not None:
                _need(g.type == v.type, rule, f"a cotangent must have the type of its argument {v.type}, got {g.type}")
            final.append(F.full(graph, v.shape, 0, v.dtype) if g is None else g)
        graph.outputs = final
        first = len(graph.inputs) - len(called.graph.outputs)
        keep = [v.dtype.is_float for v in called.graph.outputs]
        unread = {v for v, k in zip(graph.inputs[first:], keep, strict=True) if not k}
        read = any(v in unread for n in graph.nodes for v in n.operands)
        _need(not read, rule, "backward must not read the cotangent of an integer result")
        graph.inputs = [v for v in graph.inputs if v not in unread]
        graph.nodes = [n for n in graph.nodes if n.values[0] not in unread]
        return graph


def _no_captures(what: str, fn: Any, traced: Traced) -> None:
    if traced.captured:
        raise InputError(f"{what}: {_name(fn)} uses a traced value from outside ({traced.captured[0].place}); pass it as an argument "
                         f"({user_place()})")


class custom_jvp:
    """A function with its own forward rule. `f.defjvp(rule)`: `rule(primals, tangents) -> (result, its tangent)`, linear in the tangents;
    the backward pass is its transpose."""

    def __init__(self, fn: Fn) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.rule: Fn | None = None
        self.depth = 0

    def defjvp(self, rule: Fn) -> custom_jvp:
        self.rule = rule
        return self

    def __call__(self, *args: Any) -> Any:
        if self.rule is None:
            raise InputError(f"custom_jvp: {_name(self.fn)} has no rule yet; call {_name(self.fn)}.defjvp(rule) ({user_place()})")
        if self.depth >= DEPTH:
            return self.fn(*args)
        called = Called(self.fn, args, {})
        _no_captures("custom_jvp", self.fn, called.traced)
        self.depth += 1
        try:
            tangent = self._tangent(called)
        finally:
            self.depth -= 1
        made = apply(CustomJvp(body=called.graph, tangent=tangent), *called.wrap(called.operands))
        return called.traced.result(made if isinstance(made, tuple) else [made])

    def _tangent(self, called: Called) -> Graph:
        assert self.rule is not None
        rule = f"custom_jvp {_name(self.fn)}"
        by_leaf = dict(zip(called.arrays, called.graph.inputs, strict=True))
        primals = [Leaf(by_leaf[i].type) if i in by_leaf else x for i, x in enumerate(called.leaves)]
        tangents = [Leaf(by_leaf[i].type) if i in by_leaf else None for i, _ in enumerate(called.leaves)]
        args = called.spec.children[0]
        spec = Spec("tuple", (), (Spec("tuple", (), (args, args)), Spec("dict")))
        traced = trace(self.rule, spec, [*primals, *tangents], "tangent")
        _no_captures("custom_jvp", self.rule, traced)
        got = traced.out_spec
        ok = got.type == "tuple" and len(got.children) == 2 and all(c == called.traced.out_spec for c in got.children)
        _need(ok, rule, f"the rule must return (result, tangent), each with the structure {called.traced.out_spec}, got {got}")
        graph, count = traced.graph, len(called.graph.outputs)
        _same_types(rule, "the rule's result", graph.outputs[:count], called.graph.outputs)
        _same_types(rule, "the rule's tangent", graph.outputs[count:], called.graph.outputs)
        graph.outputs = [*graph.outputs[:count], *(v for v in graph.outputs[count:] if v.dtype.is_float)]
        n = len(called.graph.inputs)
        unread = {v for v in graph.inputs[n:] if not v.dtype.is_float}
        _need(not any(v in unread for node in graph.nodes for v in node.operands), rule, "integers have no tangents")
        graph.inputs = [v for v in graph.inputs if v not in unread]
        graph.nodes = [node for node in graph.nodes if node.values[0] not in unread]
        return graph


def _rule_method(rule: str, fn: Fn, name: str) -> Any:
    """A rule over tracers as a method over graph values."""

    def run(inputs: Values, call: Callable[[list[Any]], Any]) -> list[Value | None]:
        made = Trace(name)
        made.graph = inputs[0].node.graph
        with entered(made):
            out = call([made.wrap(v) for v in inputs])
            leaves, _ = flatten(out if isinstance(out, tuple) else (out,))
            return [None if x is None else made.lift(as_tracer(x)) for x in leaves]

    if rule == "vjp":
        def vjp(self: Op, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
            given = [F.zeros(v) if g is None else g for v, g in zip(outputs, cotangents, strict=True)]
            n, m = len(inputs), len(inputs) + len(outputs)
            every = (*inputs, *outputs, *given)
            found = run(every, lambda t: fn(tuple(t[:n]), _bare(t[n:m]), _bare(t[m:])))
            _need(len(found) == n, name, f"vjp must return one cotangent an operand, {n}, got {len(found)}")
            return tuple(found)

        return vjp

    def jvp(self: Op, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        given = [F.zeros(v) if t is None else t for v, t in zip(inputs, tangents, strict=True)]
        n, m = len(inputs), len(inputs) + len(outputs)
        every = (*inputs, *outputs, *given)
        found = run(every, lambda t: fn(tuple(t[:n]), _bare(t[n:m]), tuple(t[m:])))
        _need(len(found) == len(outputs), name, f"jvp must return one tangent a result, {len(outputs)}, got {len(found)}")
        return tuple(found)

    return jvp


def _bare(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


def custom_op(name: str, *, ref: Fn, infer: Callable[..., Any] | None = None, kernel: Fn | None = None, decompose: Fn | None = None,
              vjp: Fn | None = None, jvp: Fn | None = None) -> Fn:
    """A new op as a function of arrays.

    `ref(*arrays)` is its meaning in NumPy. With `kernel(t, *tiles)`, its meaning on tiles (`t.unary("exp", x)`, `x * y`), it is
    elementwise and fuses like any other; without one, `decompose(*arrays)` says it in Tilewright's functions. `infer(*types)` gives the
    result's type (by default that of broadcasting). `vjp(inputs, result, cotangent)` gives one cotangent an operand, `jvp(inputs, result,
    tangents)` the result's tangent.
    """
    if not name.isidentifier() or name in REGISTRY:
        raise InputError(f"custom_op: the name must be a new identifier, got {name!r}")
    if (kernel is None) == (decompose is None):
        raise InputError(f"custom_op: {name} needs kernel= (elementwise, on tiles) or decompose= (in Tilewright's functions), one of them")
    body: dict[str, Any] = {"name": name, "__doc__": ref.__doc__ or f"User-defined op {name}.", "arity": (1, None),
                            "ref": lambda self, *arrays: ref(*arrays)}
    missing = {r: NotSupported(f"custom_op {name} was defined without {r}=") for r, fn in (("vjp", vjp), ("jvp", jvp)) if fn is None}
    if kernel is not None:
        body |= {"kinds": "fiub", "lower": _lowering(kernel, name)}
    else:
        body |= {"decompose": _decomposition(decompose, name), "batch": Op.batch, "expands": _expands(vjp, jvp)}
        missing = {}
    body["pull"] = Op.pull  # not the rule of the family
    for r, fn in (("vjp", vjp), ("jvp", jvp)):
        if fn is not None:
            body[r] = _rule_method(r, fn, name)
        elif r in missing:
            body[r] = getattr(Op, r)
    body["unsupported"] = missing
    if infer is not None:
        body["infer"] = _inference(infer, name)
    elif kernel is None:
        raise InputError(f"custom_op: {name} needs infer= (the type of its result)")
    family = Elementwise if kernel is not None else _CustomComposite
    cls: Any = register(type(name.title().replace("_", ""), (family,), body))

    def call(*operands: Any) -> Any:
        return apply(cls(), *(as_tracer(x) for x in operands))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = body["__doc__"]
    return call


class _CustomComposite(General):
    """A user-defined op that is said in other ops."""

    traits = Traits(composite=True)


def _listed(types: Sequence[Any]) -> str:
    return ", ".join(map(str, types))


def _inference(fn: Fn, name: str) -> Any:
    def infer(self: Op, *types: TensorType) -> Any:
        out = fn(*types)
        every = out if isinstance(out, tuple) else (out,)
        require(all(isinstance(t, TensorType) for t in every), "infer must give types like its arguments", infer=out)
        return out

    return infer


def _lowering(fn: Fn, name: str) -> Any:
    def lower(self: Op, t: Any, *tiles: Any) -> Any:
        out = fn(t, *tiles)
        _need(type(out) is type(tiles[0]), name, f"kernel must give a tile, got {out!r}")
        return out

    return lower


def _decomposition(fn: Any, name: str) -> Any:
    def decompose(self: Op, *values: Value) -> Any:
        made = Trace(name)
        made.graph = values[0].node.graph
        with entered(made):
            out = fn(*(made.wrap(v) for v in values))
            found = tuple(made.lift(as_tracer(x)) for x in (out if isinstance(out, tuple) else (out,)))
        told = self.infer(*(v.type for v in values))
        inferred = told if isinstance(told, tuple) else (told,)
        got = tuple(v.type for v in found)
        _need(got == inferred, name, f"decompose must give the types that infer gives, {_listed(inferred)}, got {_listed(got)}")
        return found[0] if len(found) == 1 else found

    return decompose


def _expands(vjp: Fn | None, jvp: Fn | None) -> Any:
    own = {"vjp": vjp is not None, "jvp": jvp is not None}
    return lambda self, rule, active: not own.get(rule, False)
