"""Makes loops and branches small: what nobody reads is not computed or stacked, what does not change is computed before the loop, and a
branch that is known is no branch. The bodies themselves go through the whole pipeline (`pipeline.run_pipeline`)."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..ir.graph import Graph, Node, Value, subgraph
from ..ir.rewrite import sort_nodes
from ..ops.control.flow import CONTROL
from .base import Log, Pass


def bodies_of(op: Any) -> dict[str, Graph]:
    """The graphs of a control-flow op by attribute."""
    return {k: v for k, v in op.attrs().items() if isinstance(v, Graph)}


def map_bodies(graph: Graph, change: Callable[[Graph], Graph]) -> bool:
    """Replace every body of the graph's control-flow ops, in place; whether there were any."""
    found = [n for n in graph.nodes if isinstance(n.op, CONTROL)]
    for n in found:
        n.op = dataclasses.replace(n.op, **{k: change(v) for k, v in bodies_of(n.op).items()})
    return bool(found)


@dataclass(frozen=True)
class SimplifyControl(Pass):
    """Before: any valid graph. After: a loop carries, stacks and reads only what its used results need; carries that never change and
    captured constants are no operands; plain arithmetic on captured values stands before the loop; a cond on a constant is one branch."""

    name: ClassVar[str] = "simplify-control"

    def run(self, graph: Graph, log: Log) -> Graph:
        map_bodies(graph, lambda body: self.run(body.clone()[0], log))  # inner loops first: what they no longer read goes here
        while any(isinstance(n.op, CONTROL) for n in graph.nodes):
            sort_nodes(graph)
            changed = _Round(graph, log).run()
            if changed is None:
                break
            graph = changed
        return graph


class _Round:
    """One pass over the nodes, from operands to results."""

    def __init__(self, graph: Graph, log: Log) -> None:
        self.graph, self.log = graph, log
        self.new, self.env = Graph(graph.name), dict[Value, Value]()
        self.used = {v for n in graph.nodes for v in n.operands} | set(graph.outputs)
        self.changed = False

    def run(self) -> Graph | None:
        for n in self.graph.nodes:
            if isinstance(n.op, o.Cond):
                self._cond(n, n.op)
            elif isinstance(n.op, (o.Scan, o.While)):
                self._loop(n, n.op)
            else:
                self.graph.copy_into(self.new, self.env, [n])
        if not self.changed:
            return None
        self.new.take_ends(self.graph, self.env)
        return self.new

    def hit(self, rule: str) -> None:
        self.changed = True
        self.log.hit(rule)

    def _add(self, n: Node, op: Any, operands: Sequence[Value], values: Sequence[Value]) -> None:
        made = self.new.add(op, *operands, name=n.name, place=n.place)
        self.env.update(zip(values, made.values, strict=True))

    # --- cond -------------------------------------------------------------------------------------------------------------------------
    def _cond(self, n: Node, op: o.Cond) -> None:
        operands = [self.env[v] for v in n.operands]
        if isinstance(operands[0].op, o.Constant):
            self.hit("known_branch")
            body = op.then if bool(operands[0].op.data.array) else op.other
            inner = dict(zip(body.inputs, operands[1:], strict=True))
            body.copy_into(self.new, inner, subgraph(body.outputs))
            self.env.update((v, inner[out]) for v, out in zip(n.values, body.outputs, strict=True))
            return
        keep = [v in self.used for v in n.values]
        sides = [_Body(g) for g in (op.then, op.other)]
        for s in sides:
            s.constants(operands[1:])
            s.graph.outputs = _chosen(s.graph.outputs, keep)
        read = [any(s.reads(i) for s in sides) for i in range(len(operands) - 1)]
        if all(keep) and all(read):
            self._add(n, op, operands, n.values)
            return
        self.hit("unused_results" if not all(keep) else "unused_operands")
        for s in sides:
            s.take([i for i, r in enumerate(read) if r])
        made = dataclasses.replace(op, then=sides[0].graph, other=sides[1].graph)
        self._add(n, made, [operands[0], *_chosen(operands[1:], read)], _chosen(n.values, keep))

    # --- loops ------------------------------------------------------------------------------------------------------------------------
    def _loop(self, n: Node, op: o.Scan | o.While) -> None:
        operands = [self.env[v] for v in n.operands]
        count, first = op.carries, op.carries + (op.xs if isinstance(op, o.Scan) else 0)
        body = _Body(op.body)
        test = _Body(op.test) if isinstance(op, o.While) else None
        both = [b for b in (body, test) if b is not None]
        for b in both:
            b.constants(operands, first)
        still = [k for k in range(count) if body.graph.outputs[k] is body.graph.inputs[k]]
        for k in still:
            self.env[n.values[k]] = operands[k]
        live = self._live(n, op, body, test, still)
        outputs = [k for k in range(len(body.graph.outputs)) if k in live]
        keep = [k for k in range(count) if k in live]
        body.graph.outputs = [body.graph.outputs[k] for k in outputs]
        order = [*keep, *(i for i in range(count, first) if body.reads(i))]
        captured = [i for i in (*still, *range(first, len(operands))) if any(b.reads(i) for b in both)]
        same = _twins(operands, captured)
        hoisted = body.invariant([*still, *range(first, len(operands))])
        changed = len(outputs) != len(n.values) or len(order) + len(captured) != len(operands) or bool(still or same or hoisted)
        if not outputs:
            self.hit("unused_loop")
            return
        if not changed:
            self._add(n, op, operands, n.values)
            return
        self.hit("invariant_work" if hoisted else "unused_results")
        extra = []
        for v in hoisted:
            inner = {body.graph.inputs[i]: operands[i] for i in (*still, *range(first, len(operands)))}
            body.graph.copy_into(self.new, inner, subgraph([v]))
            extra.append(inner[v])
        for b in both:
            b.merge(same)
            b.hoist(hoisted if b is body else [], [v.type for v in extra])
            b.take([*order, *(i for i in captured if i not in same), *range(len(operands), len(operands) + len(extra))])
        given = [*(operands[i] for i in order), *(operands[i] for i in captured if i not in same), *extra]
        new: dict[str, Any] = {"body": body.graph, "carries": len(keep)}
        if isinstance(op, o.Scan):
            new["xs"] = len(order) - len(keep)
        else:
            assert test is not None
            new["test"] = test.graph
        self._add(n, dataclasses.replace(op, **new), given, [n.values[k] for k in outputs])

    def _live(self, n: Node, op: Any, body: _Body, test: _Body | None, still: Sequence[int]) -> set[int]:
        """The body's outputs that somebody needs, through any number of iterations."""
        live = {k for k, v in enumerate(n.values) if v in self.used and k not in still}
        if test is not None:
            live |= {k for k in range(op.carries) if test.reads(k) and k not in still}
        while True:
            needed = set(subgraph([body.graph.outputs[k] for k in sorted(live)]))
            more = {k for k in range(op.carries) if body.graph.inputs[k].node in needed and k not in still} - live
            if not more:
                return live
            live |= more


def _chosen(values: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
    return [v for v, f in zip(values, flags, strict=True) if f]


def _twins(operands: Sequence[Value], captured: Sequence[int]) -> dict[int, int]:
    """Captured operands that are there before: operand -> the first of its kind."""
    first: dict[Value, int] = {}
    return {i: first[operands[i]] for i in captured if first.setdefault(operands[i], i) != i}


class _Body:
    """A copy of a body being changed."""

    def __init__(self, graph: Graph) -> None:
        self.graph, _ = graph.clone()

    def reads(self, i: int) -> bool:
        return self.graph.inputs[i].node in set(subgraph(self.graph.outputs))

    def constants(self, operands: Sequence[Value], first: int = 0) -> None:
        """Captured constants become the body's own."""
        found = [i for i in range(first, len(operands)) if isinstance(operands[i].op, o.Constant)]
        if found:
            made = {self.graph.inputs[i]: self.graph.constant(operands[i].op.data) for i in found}  # type: ignore[attr-defined]
            self._replace(made)

    def _replace(self, made: dict[Value, Value]) -> None:
        for n in self.graph.nodes:
            n.operands = tuple(made.get(v, v) for v in n.operands)
        self.graph.outputs = [made.get(v, v) for v in self.graph.outputs]
        self.graph.nodes.sort(key=lambda n: bool(n.operands))  # sources first; the sort is stable

    def merge(self, same: dict[int, int]) -> None:
        self._replace({self.graph.inputs[i]: self.graph.inputs[k] for i, k in same.items()})

    def invariant(self, captured: Sequence[int]) -> list[Value]:
        """What is computed from captured inputs alone and read by what is not: plain arithmetic only, which cannot fail."""
        known = {self.graph.inputs[i] for i in captured}
        steady: set[Value] = set(known)
        constant: set[Value] = set()
        for n in self.graph.nodes:
            if n.op.traits.source:
                constant.update(v for v in n.values if not isinstance(n.op, o.Input))
            elif all(v in constant for v in n.operands):
                constant.update(n.values)
            elif all(v in steady or v in constant for v in n.operands) and _plain(n):
                steady.update(n.values)
        readers: dict[Value, list[Node]] = {}
        for n in self.graph.nodes:
            for v in n.operands:
                readers.setdefault(v, []).append(n)
        found: dict[Value, None] = {}
        todo = [v for n in subgraph(self.graph.outputs) if n.values[0] not in steady for v in n.operands if v in steady]
        todo += [v for v in self.graph.outputs if v in steady]
        for v in todo:
            while v.node.op.traits.view and v not in known:  # views cost nothing where they are
                v = v.node.operands[0]
            if v not in known and v in steady:
                found[v] = None
        return list(found)

    def hoist(self, values: Sequence[Value], types: Sequence[Any]) -> None:
        inputs = [self.graph.input(t, f"before{k}") for k, t in enumerate(types)]
        self._replace(dict(zip(values, inputs, strict=False)))

    def take(self, chosen: Sequence[int]) -> None:
        """Only these inputs, in this order."""
        self.graph.inputs = [self.graph.inputs[i] for i in chosen]
        needed = set(subgraph(self.graph.outputs)) | {v.node for v in self.graph.inputs}
        self.graph.nodes = [n for n in self.graph.nodes if n in needed]


def _plain(n: Node) -> bool:
    """Worth computing once before the loop, and harmless where the loop never runs."""
    t = n.op.traits
    return (t.elementwise or t.view or t.contraction or t.reduction) and not n.op.faults
