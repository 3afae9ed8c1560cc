"""An elementwise function of the rows of matrices, as one op with one kernel: many columns go in, many come out, nothing lies between."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.dims import Dim, Expr, ceildiv
from ..core.errors import require
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from . import functions as F
from .base import E, MaybeValues, NotSupported, S, Values, register, single
from .control.bodies import transforms
from .families import General, N, f32, show_shape, values_of
from .structure import Constant, Input
from .views import Expand

ROWS = 1024  # rows whose sum is one row of a summed output


def _body(g: Graph, v: Values) -> Values:
    x, y, c = v
    return F.add(F.mul(x, c), y), F.exp(x), F.mul(F.mul(x, y), c)


BODY = single(_body, f32(16), f32(16), f32(16))


@register
class RowMap(General):
    """Columns of operands [C,N,k] (C and N may be 1 and stretch) are the inputs of `body`, in order; its outputs, in groups of `groups`,
    are the columns of the results [C,N,k]. A group that `summed` names comes as sums over `ROWS` rows at a time."""

    body: Graph
    groups: tuple[int, ...]
    summed: tuple[bool, ...]
    whole = True
    unsupported = {"jvp": NotSupported("rows are mapped where reverse-mode derivatives are taken")}
    samples = [S(f32(1, 5, 2), f32(3, 1, 1), body=BODY, groups=(2, 1), summed=(False, True)),
               S(f32(2, 37, 1), f32(1, 37, 1), f32(1, 1, 1), body=BODY, groups=(1, 2), summed=(False, False)),
               S(f32(2, N, 2), f32(2, 1, 1), body=BODY, groups=(1, 1, 1), summed=(False, False, False)),
               S(f32(1, 0, 2), f32(1, 1, 1), body=BODY, groups=(3,), summed=(False,))]
    errors = [E(f32(1, 5, 2), body=BODY, groups=(3,), summed=(False,), match="the body takes 3 columns, got columns=2"),
              E(f32(5, 2), f32(5, 1), body=BODY, groups=(3,), summed=(False,), match=r"operands must be \[C,N,k\]"),
              E(f32(2, 5, 2), f32(3, 1, 1), body=BODY, groups=(3,), summed=(False,), match="as many rows as another, or 1"),
              E(f32(1, 5, 2), f32(3, 1, 1), body=BODY, groups=(2,), summed=(False,), match="groups must hold the 3 outputs of the body")]

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        lead = self.lead(types)
        columns = sum(int(t.shape[2]) for t in types if isinstance(t.shape[2], int))
        require(columns == len(self.body.inputs), "the body takes {inputs} columns", inputs=len(self.body.inputs), columns=columns)
        ok = sum(self.groups) == len(self.body.outputs) and len(self.groups) == len(self.summed)
        require(ok, "groups must hold the {outputs} outputs of the body", outputs=len(self.body.outputs), groups=self.groups)
        for n in self.body.nodes:
            plain = n.op.traits.elementwise or isinstance(n.op, (Constant, Expand, Input))
            require(plain, "a body holds elementwise ops and stretched constants only", op=n.op.name)
        out, at = [], 0
        for count, summed in zip(self.groups, self.summed, strict=True):
            dtype = self.body.outputs[at].dtype
            out.append(TensorType(dtype, (lead[0], ceildiv(lead[1], ROWS) if summed else lead[1], count)))
            at += count
        return tuple(out)

    @staticmethod
    def lead(types: Sequence[TensorType]) -> tuple[Dim, Dim]:
        """C and N of all operands together."""
        found: list[Dim] = [1, 1]
        for t in types:
            require(t.ndim == 3 and not isinstance(t.shape[2], Expr), "operands must be [C,N,k] with a known k", operand=t)
            for axis in range(2):
                fits = t.shape[axis] in (1, found[axis]) or found[axis] == 1
                require(fits, "operands must have as many rows as another, or 1", operand=t, rows=show_shape(tuple(found)))
                found[axis] = t.shape[axis] if found[axis] == 1 else found[axis]
        return found[0], found[1]

    def ref(self, *arrays: Any) -> Any:
        import numpy as np

        lead = np.broadcast_shapes(*(a.shape[:2] for a in arrays))
        env: dict[Value, Any] = dict(zip(self.body.inputs, (a[..., i] for a in arrays for i in range(a.shape[2])), strict=True))
        for n in self.body.nodes:
            if isinstance(n.op, Constant):
                env[n.values[0]] = n.op.data.array
            elif isinstance(n.op, Expand):
                env[n.values[0]] = env[n.operands[0]]
            elif n.values[0] not in env:
                env[n.values[0]] = n.op.ref(*(env[v] for v in n.operands))
        out, at = [], 0
        for count, summed in zip(self.groups, self.summed, strict=True):
            columns = [np.broadcast_to(env[v], lead) for v in self.body.outputs[at : at + count]]
            x = np.stack(columns, -1)
            if summed:
                x = np.stack([x[:, i : i + ROWS].sum(1) for i in range(0, lead[1], ROWS)], 1) if lead[1] else x[:, :0]
            out.append(x)
            at += count
        return tuple(out) if len(out) > 1 else out[0]

    def flops(self, *types: TensorType) -> Dim:
        lead = self.lead(types)
        return lead[0] * lead[1] * sum(n.op.traits.elementwise for n in self.body.nodes)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        """One map of all columns and cotangents; those of operands with one row are summed over rows."""
        graph, given, at = Graph("backward"), [], 0
        columns = [graph.input(v.type, f"x{i}") for i, v in enumerate(self.body.inputs)]
        pulled: list[Value | None] = []
        _, rows = self.lead([v.type for v in inputs])
        for count, summed, g in zip(self.groups, self.summed, cotangents, strict=True):
            given += [] if g is None else [_spread(g, rows) if summed else g]
            pulled += [None if g is None else graph.input(v.type, f"g{i}") for i, v in enumerate(self.body.outputs[at : at + count], at)]
            at += count
        flags = [w for v, w in zip(inputs, wanted, strict=True) for _ in range(int(v.shape[2]))]
        found = transforms().pull_back(self.body, graph, columns, tuple(pulled), flags)
        groups, sums, at = list[int](), list[bool](), 0
        for v, w in zip(inputs, wanted, strict=True):
            width = int(v.shape[2])
            if w:
                pairs = zip(columns[at : at + width], found[at : at + width], strict=True)
                graph.outputs += [F.zeros(c) if g is None else g for c, g in pairs]
                groups.append(width)
                sums.append(v.shape[1] == 1 and rows != 1)
            at += width
        made = values_of(RowMap(body=graph, groups=tuple(groups), summed=tuple(sums))(*inputs, *given))
        whole = iter([F.sum_(v, (1,), keepdims=True) if s else v for v, s in zip(made, sums, strict=True)])
        return tuple(next(whole) if w else None for w in wanted)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        """A batch of C stacks is a longer stack; operands that stretch along it stay as they are."""
        types = [v.type.with_shape(v.shape[1:]) if b else v.type for v, b in zip(inputs, batched, strict=True)]
        stacks, _ = self.lead(types)
        rows = []
        for v, b in zip(inputs, batched, strict=True):
            if not b and v.shape[0] == 1:
                rows.append(v)
                continue
            v = F.broadcast_batch(v, b, size)
            v = F.expand(v, (size, stacks, *v.shape[2:]))
            rows.append(F.reshape(v, (size * stacks, *v.shape[2:])))
        return tuple(F.reshape(v, (size, stacks, *v.shape[1:])) for v in values_of(self(*rows)))


def _spread(g: Value, rows: Dim) -> Value:
    """The cotangent of sums over `ROWS` rows as that of the rows."""
    stacks, blocks, width = g.shape
    wide = F.expand(F.reshape(g, (stacks, blocks, 1, width)), (stacks, blocks, ROWS, width))
    return F.slice_(F.reshape(wide, (stacks, blocks * ROWS, width)), 1, 0, rows)
