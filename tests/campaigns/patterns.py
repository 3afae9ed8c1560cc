"""Graphs next to what each rewrite rule recognises: a probe of `tests/passes` with a constant, an op, an axis or an operand changed.

The rule may apply or not. Where it applies, the interpreter must give the same before and after, up to what the rule declares.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.passes.kit import DTYPES, Probe, built, differences, draws, variants
from tests.passes.probes_recognize import PROBES
from tilewright import ops as o
from tilewright.core.errors import TilewrightError
from tilewright.ir.graph import Graph, Value
from tilewright.ir.rewrite import Rule, rewrite
from tilewright.ops.structure import Constant
from tilewright.passes.base import Pass
from tilewright.passes.pipeline import pipeline

from .engine.campaign import Campaign, Invalid

BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
UNARY = ("neg", "exp", "tanh", "sigmoid", "rsqrt", "sqrt", "reciprocal", "square", "abs", "erf", "log")
REDUCTIONS = ("sum", "mean", "max", "min", "prod")
COMPARISONS = ("less", "less_equal", "greater", "greater_equal", "equal", "not_equal")
FAMILIES = (BINARY, UNARY, REDUCTIONS, COMPARISONS)
KINDS = ("constant", "constant", "constant", "op", "swap", "attribute", "shown", "between", "operand")


@dataclass(frozen=True)
class Edit:
    kind: str
    at: int
    how: int


@dataclass(frozen=True)
class Case:
    rule: int
    probe: int
    variant: int
    edits: tuple[Edit, ...]
    seed: int


@functools.cache
def subjects() -> tuple[tuple[Pass, Rule, Probe], ...]:
    """Every rule with each of its probes."""
    return tuple((p, r, probe) for p in pipeline() for r in p.rules for probe in PROBES.get(p.name, {}).get(r.name, ()))


@functools.cache
def options() -> tuple[dict[str, Any], ...]:
    return tuple(v for d in DTYPES for v in variants(d))


def draw(rng: np.random.Generator) -> Case:
    edits = tuple(
        Edit(str(rng.choice(KINDS)), int(rng.integers(1 << 16)), int(rng.integers(1 << 16))) for _ in range(int(rng.integers(1, 4)))
    )
    plain = [i for i, v in enumerate(options()) if len(v) == 1]
    variant = int(rng.choice(plain)) if rng.random() < 0.7 else int(rng.integers(len(options())))
    return Case(int(rng.integers(len(subjects()))), 0, variant, edits, int(rng.integers(1 << 32)))


def changed_constant(a: np.ndarray[Any, Any], how: int) -> np.ndarray[Any, Any]:
    if a.dtype.kind == "b":
        return ~a
    if a.dtype.kind in "iu":
        return np.asarray(a + np.asarray([1, -1, 0, 3][how % 4]).astype(a.dtype)).astype(a.dtype)
    ways = (1 + 2.0**-20, 1 + 2.0**-6, -1.0, 0.5, 2.0, 0.0, np.inf, np.nan, 1 + 2.0**-12, 1e9)
    with np.errstate(all="ignore"):
        new = (a.astype(np.float64) * ways[how % 10]).astype(a.dtype)
    if how % 3 == 0 and new.size > 1:  # one element alone
        flat = a.copy().reshape(-1)
        flat[how % flat.size] = new.reshape(-1)[how % flat.size]
        return flat.reshape(a.shape)
    return np.asarray(new)


def mutated(graph: Graph, edits: tuple[Edit, ...]) -> Graph:
    """A copy of the graph with some nodes other than they were. Raises what an op's rule says when the change makes no sense."""
    inner = [n for n in graph.nodes if n.op.name != "input"]
    if not inner:
        raise Invalid
    new, env, extra = Graph(graph.name), dict[Value, Value](), list[Value]()
    by_node: dict[Any, list[Edit]] = {}
    for e in edits:
        fitting = [n for n in inner if isinstance(n.op, Constant)] if e.kind == "constant" else [n for n in inner if n.operands]
        if fitting:
            by_node.setdefault(fitting[e.at % len(fitting)], []).append(e)
    for n in graph.nodes:
        op, operands = n.op, [env[v] for v in n.operands]
        for e in by_node.get(n, []):
            if e.kind == "constant":
                op = Constant(data=type(op.data)(changed_constant(np.asarray(op.data.array), e.how), "near"))  # type: ignore[attr-defined]
            elif e.kind == "op":
                family = next((f for f in FAMILIES if op.name in f), None)
                if family is not None:
                    fields = {f.name: getattr(op, f.name) for f in dataclasses.fields(op)}
                    op = o.REGISTRY[family[e.how % len(family)]](**fields)
            elif e.kind == "swap":
                operands.reverse()
            elif e.kind == "operand":
                earlier = [v for v in env.values() if v.type == operands[e.how % len(operands)].type]
                operands[e.how % len(operands)] = earlier[e.at % len(earlier)]
            elif e.kind == "attribute":
                op = other_attribute(op, e.how)
            elif e.kind == "between":
                operands[0] = o.REGISTRY[("neg", "abs", "square")[e.how % 3]]()(operands[0])
        made = new.add(op, *operands)
        if n.op.name == "input":
            new.inputs.append(made.value)
        for old, value in zip(n.values, made.values, strict=True):
            env[old] = value
        if any(e.kind == "shown" for e in by_node.get(n, [])):
            extra.extend(made.values)
    new.take_ends(graph, env)
    new.outputs += extra
    return new


def other_attribute(op: Any, how: int) -> Any:
    """The op with one attribute of a plain kind changed."""
    names = [f.name for f in dataclasses.fields(op) if isinstance(getattr(op, f.name), (bool, int, float, tuple))]
    if not names:
        return op
    name = names[how % len(names)]
    value: Any = getattr(op, name)
    if isinstance(value, bool):
        value = not value
    elif isinstance(value, int):
        value += 1 if how & 64 else -1
    elif isinstance(value, float):
        value = value * (1.0 + 2.0**-10) if how & 64 else -value
    elif value and all(isinstance(x, int) for x in value):
        value = tuple(reversed(value)) if how & 64 else (value[0] + 1, *value[1:])
    return dataclasses.replace(op, **{name: value})


def check(case: Case) -> None:
    owner, rule, probe = subjects()[case.rule % len(subjects())]
    kit = built(probe, options()[case.variant % len(options())])
    if kit is None or (kit.plain or kit.ones or -1) >= len(kit.tame):
        raise Invalid
    try:
        graph = mutated(kit.graph, case.edits)
    except (TilewrightError, ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError):
        raise Invalid from None
    after = graph.clone()[0]
    from collections import Counter

    if not rewrite(after, [rule], Counter[str](), known=owner.known(after)):
        return
    near = dataclasses.replace(kit, graph=graph)
    rng = np.random.default_rng(case.seed)
    for inputs in draws(near, rng, 4, rule.changes):
        try:
            wrong = differences(graph, after, inputs, rule.changes, rng)
        except TilewrightError:
            continue  # an index or a division that the changed graph reports itself
        assert not wrong, f"{owner.name}: {rule.name}: {wrong[0]}"


CAMPAIGN = Campaign(draw=draw, check=check, quick=250, keep=("kind", "rule"))
