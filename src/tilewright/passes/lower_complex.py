"""Complex numbers become real and imaginary parts, so that nothing behind this pass knows them."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph, Node, Value, exchanged
from ..ops.complex.parts import Complex, Imag, Real, ViewAsComplex, join, parts
from ..ops.complex.rules import has_complex, lowered
from .base import Log, Pass


@dataclass(frozen=True)
class LowerComplex(Pass):
    """Before: any graph. After: complex values are inputs, results of `complex`, or views of them; everything is computed in parts."""

    name: ClassVar[str] = "lower-complex"
    optional: ClassVar[bool] = False  # no kernel knows complex numbers

    def run(self, graph: Graph, log: Log) -> Graph:
        if not any(v.dtype.kind == "c" for n in graph.nodes for v in n.values):
            return graph

        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | Sequence[Value] | None:
            if isinstance(n.op, (Real, Imag)):
                return self.part(env[n.operands[0]], n.op)
            if not has_complex(n):
                return None
            log.hit(n.op.name)
            return lowered(n.op, tuple(env[v] for v in n.operands), new)

        new = exchanged(graph, change)
        new.outputs = [self.whole(v) for v in new.outputs]
        return new

    @staticmethod
    def part(z: Value, op: Real | Imag) -> Value:
        made = parts(z)[0 if isinstance(op, Real) else 1]
        return made

    @staticmethod
    def whole(v: Value) -> Value:
        """A complex result is computed by an op of its own (an input is copied by it)."""
        return v if v.dtype.kind != "c" or isinstance(v.op, (Complex, ViewAsComplex)) else join(*parts(v))
