"""The end of a matrix kernel in tile IR: what the region does with the sums, and the stores, whole or stopped at the edges."""

from __future__ import annotations

from dataclasses import dataclass

from ....core.dims import Dim
from ....ir.graph import Value
from ....tile.builder import Ix, Tile, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow


@dataclass
class Sums:
    """What a matrix kernel hands over: `acc`, with its first row, column and batch."""

    acc: Var
    row: Var
    column: Var
    batch: Var

    @staticmethod
    def of(type_: TileType) -> Sums:
        return Sums(Var(type_, "acc"), Var(INDEX, "row"), Var(INDEX, "column"), Var(INDEX, "batch"))


def write_results(
    call: Call, region: Region, alpha: float, sums: Sums, outs: list[View], ins: dict[Value, View], limits: tuple[Ix, Ix],
    lead: tuple[Dim, ...], *, edges: bool,
) -> None:  # fmt: skip
    """Evaluate the region over the sums and store its results. `limits` are M and N, `lead` the axes of the batch; without `edges` nothing
    is masked."""
    b = call.b
    assert isinstance(sums.acc.type, TileType)
    out_value, (rows, width) = region.node.values[0], sums.acc.type.shape
    r, c = Ix(b, sums.row), Ix(b, sums.column)
    batch = Ix(b, sums.batch)
    z: tuple[Ix | int, ...] = (batch,)
    if len(lead) == 2:
        inner = call.word("inner", lead[1])
        z = (batch // inner, batch % inner)
    total = Tile(b, sums.acc)
    if alpha != 1.0:
        total = total * alpha

    def write(limit: tuple[Ix | int, Ix | int] | None) -> None:
        def leaf(v: Value, o: Operand) -> Tile:
            *_, sm, sn = ins[v].type.strides
            size = (1 if sm == 0 else rows, 1 if sn == 0 else width)
            bound = None if limit is None else tuple(x if s != 1 else None for x, s in zip(limit, size, strict=True))
            return b.load(ins[v], (*z, r, c), size, limit=bound)

        evaluate = evaluator(region)(b, region, leaf, {out_value: total})
        for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
            b.store(view, (*z, r, c), narrow(b, b.broadcast(evaluate(v), (rows, width)), result.type.dtype), limit=limit)

    if not edges:
        write(None)
        return
    m, n = limits
    inside = b.binary("and", b.compare("le", r + rows, m), b.compare("le", c + width, n))
    with b.if_(inside):
        write(None)
    with b.if_(b.unary("not", inside)):
        write((m - r, n - c))
