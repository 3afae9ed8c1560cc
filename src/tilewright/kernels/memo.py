"""Layers repeat: a region of the same structure over the same layouts gets the launches of the first one, with its own buffers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ..core.target_spec import TargetSpec
from ..ir.graph import Graph
from ..ops.structure import Constant
from .launch import Argument, Buffer, Launch, Pointer, Variant
from .region import Operand, Region
from .template import Template


class Memo:
    """Launches by structure. One per selection."""

    def __init__(self, target: TargetSpec) -> None:
        self.target = target
        self._known: dict[Hashable, tuple[Region, list[Launch]]] = {}

    def build(self, template: Template, region: Region) -> list[Launch]:
        key = (template.key, _body_key(region.body), _places_key(region))
        if key not in self._known:
            self._known[key] = (region, template.build(region, self.target))
            return self._known[key][1]
        model, launches = self._known[key]
        return _with_buffers(launches, model, region)


def _body_key(body: Graph) -> Hashable:
    number = {v: (i, v.index) for i, n in enumerate(body.nodes) for v in n.values}
    nodes = []
    for n in body.nodes:
        op: Hashable = n.op
        if isinstance(n.op, Constant):
            data = n.op.data
            op = (data.type, data.array.tobytes()) if data.array.size == 1 else data
        nodes.append((op, tuple(number[v] for v in n.operands)))
    return tuple(nodes), tuple(number[v] for v in body.outputs)


def _places_key(region: Region) -> Hashable:
    """Types, layouts and packing, and which operands share a buffer."""
    order: dict[Buffer, int] = {}

    def one(o: Operand) -> Hashable:
        kept = o.buffer.kind in ("const", "input")  # nothing in the program writes it
        return (o.type, o.layout, o.packed, o.data is not None, kept, order.setdefault(o.buffer, len(order)))

    return tuple(one(o) for o in region.operands), tuple(one(o) for o in region.results)


def _with_buffers(launches: list[Launch], model: Region, region: Region) -> list[Launch]:
    mapping = {
        old.buffer: new.buffer for old, new in zip([*model.operands, *model.results], [*region.operands, *region.results], strict=True)
    }

    def buffer(b: Buffer) -> Buffer:
        if b not in mapping:  # a temporary of the template's own
            mapping[b] = replace(b, name=b.name.replace(model.name, region.name))
        return mapping[b]

    def arguments(way: Launch | Variant) -> tuple[Argument, ...]:
        return tuple(replace(a, buffer=buffer(a.buffer)) if isinstance(a, Pointer) else a for a in way.arguments)

    return [
        replace(
            launch,
            name=launch.name.replace(model.name, region.name),
            arguments=arguments(launch),
            variants=tuple(replace(v, arguments=arguments(v)) for v in launch.variants),
            reads=tuple(map(buffer, launch.reads)),
            writes=tuple(map(buffer, launch.writes)),
            inplace=tuple((buffer(a), buffer(b)) for a, b in launch.inplace),
        )
        for launch in launches
    ]
