"""A graph of which some nodes are not ours: parts that are, and between them parts that PyTorch runs."""
from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Part:
    """Some nodes of a graph as a graph module of its own: the numbers of its arguments and of its results among the values of the call."""

    module: Any
    ours: bool
    nodes: list[Any]
    inputs: list[int]
    outputs: list[int]
    given: list[bool]  # inputs that are arguments of the whole call


@dataclass(eq=False)
class Parts:
    """The parts in the order in which they run, over numbered values; the first values are the arguments."""

    parts: list[Part]
    count: int
    arity: int
    results: list[Any]  # numbers of values, or what else the graph returns


@dataclass(frozen=True)
class Number:
    index: int


def split(module: Any, foreign: Collection[Any]) -> Parts:
    """`foreign` nodes run in PyTorch, all others are ours as far as they compute something."""
    import torch

    out = next(n for n in reversed(module.graph.nodes) if n.op == "output")
    # an attribute goes with each of its readers
    nodes = [n for n in module.graph.nodes if n.op not in ("placeholder", "output") and (n.op != "get_attr" or out in n.users)]
    stage = _stages(nodes, set(foreign))
    groups: dict[int, list[Any]] = {}
    for n in nodes:
        groups.setdefault(stage[n], []).append(n)
    holes = [n for n in module.graph.nodes if n.op == "placeholder"]
    numbers: dict[Any, int] = {n: i for i, n in enumerate(holes)}
    wanted = set(out.all_input_nodes)
    parts = []
    for s in sorted(groups):
        group = groups[s]
        inside = set(group)
        read = list(dict.fromkeys(a for n in group for a in n.all_input_nodes if a not in inside))
        inputs = [a for a in read if a.op != "get_attr" or a in stage]
        inputs += _hidden_sizes(group, inputs, numbers)
        outputs = [n for n in group if n in wanted or any(u not in inside for u in n.users if u is not out)]
        graph = torch.fx.Graph()
        env = {}
        for a in inputs:
            env[a] = graph.placeholder(a.name)
            env[a].meta = dict(a.meta)
        for n in [*(a for a in read if a not in env), *group]:
            env[n] = graph.node_copy(n, env.__getitem__)
        graph.output([env[n] for n in outputs])
        part = torch.fx.GraphModule(module, graph)
        for n in outputs:
            numbers[n] = len(numbers)
        parts.append(Part(part, s % 2 == 0, group, [numbers[a] for a in inputs], [numbers[n] for n in outputs],
                          [a.op == "placeholder" for a in inputs]))
    results = [Number(numbers[n]) if isinstance(n, torch.fx.Node) else n for n in out.args[0]]
    return Parts(parts, len(numbers), len(holes), results)


def _hidden_sizes(group: list[Any], inputs: list[Any], numbers: dict[Any, int]) -> list[Any]:
    """Sizes that no input of the group shows, but that its values' shapes are made of: nodes of the graph that are such a symbol."""
    import torch

    def sizes(meta: Any) -> list[Any]:
        metas = meta if isinstance(meta, (tuple, list)) else [meta]
        known = [(*m.shape, *m.stride()) if isinstance(m, torch.Tensor) and m.layout == torch.strided else (m,) for m in metas]
        return [s for found in known for s in found if isinstance(s, torch.SymInt)]

    shown = {s.node.expr for a in inputs for s in sizes(a.meta.get("val"))}  # a sum of sizes shows neither
    needed = {free for n in (*inputs, *group) for s in sizes(n.meta.get("val")) for free in s.node.expr.free_symbols} - shown
    found = []
    for n in numbers:
        meta = n.meta.get("val")
        if isinstance(meta, torch.SymInt) and meta.node.expr in needed and n not in inputs:
            needed.discard(meta.node.expr)
            found.append(n)
    return found


def _stages(nodes: list[Any], foreign: set[Any]) -> dict[Any, int]:
    """Even stages are ours, odd ones torch's; every node is as early as its operands allow. A stage of ours that computes nothing joins the
    torch stage before it."""
    while True:
        stage: dict[Any, int] = {}
        for n in nodes:
            before = max((stage[a] for a in n.all_input_nodes if a in stage), default=0)
            if n.target is operator.getitem and n.args[0] in stage:
                stage[n] = stage[n.args[0]]
            elif n in foreign:
                stage[n] = before if before % 2 else before + 1
            else:
                stage[n] = before + before % 2
        idle = {s for s in stage.values() if s % 2 == 0} - {stage[n] for n in nodes if stage[n] % 2 == 0 and _computes(n)}
        more = {n for n in nodes if stage[n] in idle and n not in foreign}
        if not more:
            return stage
        foreign = foreign | more


def _computes(node: Any) -> bool:
    """Neither a view nor a size nor a constant."""
    import torch

    if node.op != "call_function" or node.target is operator.getitem or not isinstance(node.target, torch._ops.OpOverload):
        return False
    meta = node.meta.get("val")
    if not isinstance(meta, (torch.Tensor, tuple, list)):
        return False
    schema = node.target._schema
    return schema.is_mutable or not any(r.alias_info is not None for r in schema.returns)


