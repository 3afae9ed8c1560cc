"""Functions whose derivative the user has written: the function and its rules are graphs, traced when it is called."""
from __future__ import annotations

from ...core.dims import Dim
from ...ir.graph import Graph, Value, inline
from .. import functions as F
from ..base import E, MaybeValues, NotSupported, Op, S, Values, register, single
from ..families import Applied, Composite, boolean, f32
from .bodies import transforms


def _halves(g: Graph, v: tuple[Value, ...]) -> Value:
    return F.mul(v[0], 0.5)


def _forward(g: Graph, v: tuple[Value, ...]) -> Values:
    return F.mul(v[0], 0.5), F.greater(v[0], 0)


def _backward(g: Graph, v: tuple[Value, ...]) -> Value:
    return F.mul(v[1], 0.5)


def _tangent(g: Graph, v: tuple[Value, ...]) -> Values:
    return F.mul(v[0], 0.5), F.mul(v[1], 0.5)


def _all_batched(graph: Graph, size: Dim) -> Graph:
    made, _ = transforms().batch_graph(graph, [True] * len(graph.inputs), size, [True] * len(graph.outputs))
    return made


@register
class CustomVjp(Applied, Composite):
    """A function with its own backward pass. `forward` gives the results and then what `backward` wants saved; `backward` takes that and a
    cotangent of each float result, and gives a cotangent of each float operand."""

    body: Graph
    forward: Graph
    backward: Graph
    unsupported = {"jvp": NotSupported("it has a reverse rule only; use reverse mode (grad, vjp), or define it with custom_jvp")}
    samples = [S(f32(3, 5), body=single(_halves, f32(3, 5)), forward=single(_forward, f32(3, 5)),
                 backward=single(_backward, boolean(3, 5), f32(3, 5)))]
    errors = [E(f32(4), body=single(_halves, f32(3)), forward=single(_forward, f32(3)), backward=single(_backward, boolean(3), f32(3)),
                match="operand types must be those of the body's inputs")]

    def for_vjp(self) -> Op:
        return CustomForward(body=self.forward, backward=self.backward, results=len(self.body.outputs))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        bodies = (_all_batched(g, size) for g in (self.body, self.forward, self.backward))
        out = CustomVjp(*bodies)(*(F.broadcast_batch(v, b, size) for v, b in zip(inputs, batched, strict=True)))
        return out if isinstance(out, tuple) else (out,)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "jvp"


@register
class CustomForward(Applied, Composite):
    """The forward pass of a function with its own backward pass: `results` results, then what `backward` wants saved."""

    body: Graph
    backward: Graph
    results: int
    samples = [S(f32(3, 5), body=single(_forward, f32(3, 5)), backward=single(_backward, boolean(3, 5), f32(3, 5)), results=1)]
    errors = [E(f32(4), body=single(_forward, f32(3)), backward=single(_backward, boolean(3), f32(3)), results=1,
                match="operand types must be those of the body's inputs")]

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        count = self.results
        given = [F.zeros(v) if g is None else g for v, g in zip(outputs[:count], cotangents[:count], strict=True) if v.dtype.is_float]
        graph = inputs[0].node.graph
        found = iter(inline(self.backward, graph, [*outputs[count:], *given]))
        out = tuple(next(found) if v.dtype.is_float else None for v in inputs)
        if all(g is None for g in cotangents[count:]):
            return out
        # What is saved depends on the operands as `forward` says: a derivative of the backward pass asks for it.
        more = transforms().pull_back(self.body, graph, inputs, (None,) * count + cotangents[count:], [v.dtype.is_float for v in inputs])
        return tuple(a if b is None else b if a is None else F.add(a, b) for a, b in zip(out, more, strict=True))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        many = CustomForward(_all_batched(self.body, size), _all_batched(self.backward, size), self.results)
        out = many(*(F.broadcast_batch(v, b, size) for v, b in zip(inputs, batched, strict=True)))
        return out if isinstance(out, tuple) else (out,)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "jvp"


@register
class CustomJvp(Applied, Composite):
    """A function with its own forward derivative. `tangent` takes the operands and a tangent of each float one, and gives the results and a
    tangent of each float result; it is linear in the tangents, so the backward pass is its transpose."""

    body: Graph
    tangent: Graph
    samples = [S(f32(3, 5), body=single(_halves, f32(3, 5)), tangent=single(_tangent, f32(3, 5), f32(3, 5)))]
    errors = [E(f32(4), body=single(_halves, f32(3)), tangent=single(_tangent, f32(3), f32(3)),
                match="operand types must be those of the body's inputs")]

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        given = [F.zeros(v) if t is None else t for v, t in zip(inputs, tangents, strict=True) if v.dtype.is_float]
        found = inline(self.tangent, inputs[0].node.graph, [*inputs, *given])
        moved = iter(found[len(outputs) :])
        return tuple(next(moved) if v.dtype.is_float else None for v in outputs)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        floats = [v for v in inputs if v.dtype.is_float]
        zeros = [F.zeros(v) for v in floats]
        given = (None,) * len(outputs) + tuple(g for v, g in zip(outputs, cotangents, strict=True) if v.dtype.is_float)
        picked = [False] * len(inputs) + [True] * len(floats)
        found = transforms().pull_back(self.tangent, inputs[0].node.graph, [*inputs, *zeros], given, picked)
        grads = iter(found[len(inputs) :])
        return tuple(next(grads) if v.dtype.is_float else None for v in inputs)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        many = CustomJvp(body=_all_batched(self.body, size), tangent=_all_batched(self.tangent, size))
        out = many(*(F.broadcast_batch(v, b, size) for v, b in zip(inputs, batched, strict=True)))
        return out if isinstance(out, tuple) else (out,)
