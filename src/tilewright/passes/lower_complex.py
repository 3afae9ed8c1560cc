"""Complex numbers become real and imaginary parts, so that nothing behind this pass knows them."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph, Value
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
        new, env = Graph(graph.name), dict[Value, Value]()
        for n in graph.nodes:
            operands = tuple(env[v] for v in n.operands)
            new.place = n.place
            if isinstance(n.op, (Real, Imag)):
                env[n.value] = self.part(operands[0], n.op)
            elif has_complex(n):
                log.hit(n.op.name)
                env.update(zip(n.values, lowered(n.op, operands, new), strict=True))
            else:
                graph.copy_into(new, env, [n])
        new.place = ""
        new.take_ends(graph, env)
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
