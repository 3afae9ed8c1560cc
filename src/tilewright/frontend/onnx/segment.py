"""One compiled graph of a program: how a call's values go in and out."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.seeds import draw_seed
from ...ir.graph import Graph
from .elements import Elem
from .load import on_host


@dataclass
class Segment:
    """One compiled graph: names of its inputs, and where its results go."""

    session: Any
    graph: Graph
    inputs: list[tuple[str, tuple[int, ...], Elem]]  # a name, and the place in a sequence
    outputs: list[tuple[str, Any]]  # a name, and its structure: an index of the graph's outputs, a list, or None
    elems: list[Elem]
    seeded: bool
    plain: list[str] | None = field(init=False)  # inputs, where nothing needs another form on its way in or out

    def __post_init__(self) -> None:
        kinds = {e.kind for e in (*self.elems, *(e for _, _, e in self.inputs))}
        simple = kinds <= {"plain"} and not any(p for _, p, _ in self.inputs) and all(isinstance(s, int) for _, s in self.outputs)
        self.plain = [n for n, _, _ in self.inputs] if simple and not self.seeded and self.session is not None else None

    def __call__(self, env: dict[str, Any]) -> None:
        if self.plain is not None:
            results = self.session(*[env[n] for n in self.plain])
            results = results if type(results) is tuple else (results,)
            for name, at in self.outputs:
                env[name] = on_host(results[at])
            return
        given = []
        for name, place, e in self.inputs:
            a = env[name]
            for i in place:
                a = a[i]
            given.append(e.inward(a))
        if self.seeded:
            given.append(np.asarray(draw_seed([]), np.uint64))
        results = self.session(*given) if self.session is not None else ()
        if not isinstance(results, (tuple, list)):
            results = (results,)
        for name, structure in self.outputs:
            env[name] = self._filled(structure, results)

    def _filled(self, structure: Any, results: Sequence[Any]) -> Any:
        if isinstance(structure, list):
            return [self._filled(s, results) for s in structure]
        if structure is None:
            return None
        return self.elems[structure].outward(on_host(results[structure]))


def trimmed(graph: Graph, places: list[Any]) -> list[Any]:
    """The places of inputs that the results depend on; the graph loses the others, but for those whose sizes are symbols."""
    live = set(graph.outputs)
    for n in reversed(graph.nodes):
        if not live.isdisjoint(n.values):
            live.update(n.operands)
    gone = {v for v in graph.inputs[:len(places)] if v not in live and all(isinstance(d, int) for d in v.type.shape)}
    if gone:
        kept = [p for p, v in zip(places, graph.inputs, strict=False) if v not in gone]
        dead = {n for n in graph.nodes if live.isdisjoint(n.values) and (n.values[0] in gone or n.values[0] not in graph.inputs)}
        graph.nodes = [n for n in graph.nodes if n not in dead]
        graph.inputs = [v for v in graph.inputs if v not in gone]
        return kept
    return places
