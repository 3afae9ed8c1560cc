"""Ops about derivatives themselves: values without one, work done again instead of kept, and the fence that makes it so."""
from __future__ import annotations

from typing import Any

from ...core.dims import Dim
from ...ir.graph import Graph, Value
from ...ir.layout import Layout
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Values, register, single
from ..families import Applied, Composite, Unary, View, boolean, f32, i32, i64, unary_samples
from ..tiles import TileBuilder
from .bodies import transforms


@register
class StopGradient(Unary):
    """x, with a derivative of zero."""

    public, complex = "stop_gradient", "parts"
    kinds = "fiub"
    samples = unary_samples(-4, 4, i32(3), boolean(4))
    errors = [E(f32(3), f32(3), match="takes 1 operands, got 2")]

    def ref(self, x: Any) -> Any:
        return x

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return x

    def derivative(self, x: Value, y: Value) -> None:
        return None


@register
class Fence(View):
    """Operand 0; what reads it is computed after the others. Work on a fenced value is never shared with work on the value itself."""

    complex = "parts"
    samples = [S(f32(3, 5), f32(2)), S(i64(4), f32()), S(f32(0, 2), f32(1), f32(1))]
    errors = [E(match="takes at least 1 operands, got 0")]

    def infer(self, x: TensorType, *others: TensorType) -> TensorType:
        return x

    def ref(self, x: Any, *others: Any) -> Any:
        return x

    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        return (layout,)

    def transposed(self, x: Value, g: Value) -> Value:
        return g

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (self(F.broadcast_batch(inputs[0], batched[0], size), *inputs[1:]),)


@register
class Checkpoint(Applied, Composite):
    """Apply `body`; its backward pass computes the body again instead of keeping its intermediate values."""

    body: Graph
    samples = [S(f32(3, 5), body=single(lambda g, v: F.tanh(F.mul(v[0], F.exp(v[0]))), f32(3, 5))),
               S(f32(2), f32(2), body=single(lambda g, v: (F.mul(v[0], v[1]), F.tanh(v[1])), f32(2), f32(2)))]
    errors = [E(f32(4), body=single(lambda g, v: F.exp(v[0]), f32(3)), match="operand types must be those of the body's inputs")]

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        given = [g for g in cotangents if g is not None]
        fence = Fence()
        later = [fence(x, *given) for x in inputs]
        return transforms().pull_back(self.body, inputs[0].node.graph, later, cotangents, wanted)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule != "vjp"
