"""What must hold of the symbols: dims that must not be negative, so that no type rule is broken and no slice leaves its operand."""
from __future__ import annotations

from ..core.dims import Dim, at_least
from ..core.needs import Need, collected
from .graph import Graph, complaint
from .text import all_nodes


def needs(graph: Graph) -> tuple[Need, ...]:
    """What the type rules of a graph, as its user wrote it, ask of the symbols."""
    found: dict[Dim, Need] = {}
    for n in all_nodes(graph):
        if all(t.is_static for t in (*n.types, *(v.type for v in n.operands))):
            continue
        with collected() as asked:
            n.op.infer(*(v.type for v in n.operands))
        for room, rule in asked:
            found.setdefault(room, (room, complaint(n.op, n.operands, rule), n.place))
    return tuple(found.values())


def windows(graph: Graph) -> list[tuple[Dim, str]]:
    """(dim that must be >= 0, the node it protects), one entry a dim, only where the symbols' ranges do not prove it."""
    from ..ops.state import UpdateSlice
    from ..ops.views import Slice

    found: dict[Dim, str] = {}

    def need(room: Dim, what: str) -> None:
        if not at_least(room, 0):
            found.setdefault(room, what)

    for n in all_nodes(graph):
        op = n.op
        if isinstance(op, UpdateSlice):
            cache, new = (v.shape[op.axis] for v in n.operands)
            need(op.start, f"{op.name} %{n.name}")
            need(op.room(cache, new), f"{op.name} %{n.name}")
        elif isinstance(op, Slice):
            for d, start, size, step in zip(n.operands[0].shape, op.starts, op.sizes, op.steps, strict=True):
                room = d - start - (size - 1) * step - 1 if at_least(size, 1) else d - start - size
                need(start, f"{op.name} %{n.name}")
                need(room, f"{op.name} %{n.name}")
    return list(found.items())
