"""Ops whose kernels come with them: what users write in the kernel language, and functions of the host."""
from __future__ import annotations

from typing import Any

from ..core.dims import Dim
from ..ir.graph import Graph, Value
from .base import NotSupported, Values
from .families import General, values_of


class OwnKernel(General):
    """An op that makes its own launches. `launches(region, target)` gives them, `unserved(target)` says why it has none for a target."""

    unsupported = {"vjp": NotSupported("a kernel has no derivative of its own; wrap it in a function with tw.custom_vjp"),
                   "jvp": NotSupported("a kernel has no derivative of its own; wrap it in a function with tw.custom_jvp")}

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return False

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        """One case after the other: a kernel has the axes that it was written for."""
        from .control.flow import Scan

        body = Graph(self.name)
        given: dict[int, Value] = {}
        order = sorted(range(len(inputs)), key=lambda i: not batched[i])
        for i in order:
            t = inputs[i].type
            given[i] = body.input(t.with_shape(t.shape[1:]) if batched[i] else t, f"x{i}")
        body.outputs = list(body.add(self, *(given[i] for i in range(len(inputs)))).values)
        return values_of(Scan(body=body, carries=0, xs=sum(batched), length=size)(*(inputs[i] for i in order)))

    def unserved(self, target: Any) -> str | None:
        """Why this op does not run on a target, or None."""
        return None

    def launches(self, region: Any, target: Any) -> list[Any]:
        """The launches of a region that is this op alone."""
        raise NotImplementedError

