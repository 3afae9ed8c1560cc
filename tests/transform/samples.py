"""The registry's samples as functions of f64 operands with a derivative, for the property tests of derivatives and batching."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.ops.checks import Case, _numbered, draw
from tilewright.core import dtypes as dt
from tilewright.core.dims import evaluate
from tilewright.core.dtypes import DType
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops import REGISTRY, ConstantData, Op
from tilewright.ops.base import Op as Base

F32_ONLY = {"sample", "bitcast"}


def wide_type(t: Any) -> Any:
    return t.with_dtype(dt.f64) if isinstance(t, TensorType) and t.dtype.is_float else t


def wide_attr(value: Any) -> Any:
    if isinstance(value, DType):
        return dt.f64 if value.is_float else value
    return wide_graph(value) if isinstance(value, Graph) else wide_type(value)


def wide_op(op: Any) -> Any:
    """The op with every float dtype in its attributes as f64."""
    if op.name == "bitcast":
        return op
    if op.name == "constant":
        data = op.data
        return op if not data.type.dtype.is_float else type(op)(data=ConstantData(data.array.astype(np.float64), data.name))
    new = {k: wide_attr(v) for k, v in op.attrs().items()}
    changed = {k: v for k, v in new.items() if v is not op.attrs()[k]}
    return dataclasses.replace(op, **changed) if changed else op


def wide_graph(graph: Graph) -> Graph:
    new, env = Graph(graph.name), dict[Any, Any]()
    for n in graph.nodes:
        env.update(zip(n.values, new.add(wide_op(n.op), *(env[v] for v in n.operands), name=n.name).values, strict=True))
    new.take_ends(graph, env)
    return new


@dataclass(frozen=True)
class WideCase:
    """A sample at concrete sizes, with every float as f64."""

    case: Case

    def make(self) -> Any:
        return wide_op(self.case.make().bind(self.case.env))

    def types(self) -> list[TensorType]:
        found = [t.with_shape(tuple(evaluate(d, self.case.env) for d in t.shape)) for t in self.case.sample.types]
        return found if self.case.op.name in F32_ONLY else [wide_type(t) for t in found]

    def graph(self) -> Graph:
        g = Graph(self.case.op.name)
        ins = [g.input(t, f"x{i}") for i, t in enumerate(self.types())]
        g.outputs = list(g.add(self.make(), *ins).values)
        return g

    def arrays(self, rng: np.random.Generator) -> list[Any]:
        def limit(limits: Any, i: int) -> float:
            return float(limits[i]) if isinstance(limits, (tuple, list)) else float(limits)

        sample = self.case.sample
        return sample.fitted([draw(rng, t, {}, limit(sample.low, i), limit(sample.high, i)) for i, t in enumerate(self.types())])


def has_float_result(op: type[Op]) -> bool:
    for sample in op.samples:
        g = Case(op, sample, {}).graph()
        if any(v.dtype.kind in "fc" for v in g.outputs) and any(t.dtype.kind in "fc" for t in sample.types):
            return True
    return False


def differentiable(case: WideCase) -> bool:
    g = case.graph()
    return any(v.dtype.is_float for v in g.outputs) and any(v.dtype.is_float for v in g.inputs)


def has_rule(op: type[Op], rule: str) -> bool:
    return op.has_rule(rule) or op.decompose is not Base.decompose


def wide_cases(rule: str, *, float_only: bool) -> list[Any]:
    """A pytest parameter for every sample of every op that has `rule`."""
    out = []
    for op in REGISTRY.values():
        if op.traits.source or rule in op.unsupported or not has_rule(op, rule):
            continue
        for i, case in _numbered(op):
            if 16 in case.env.values():  # two sizes of a symbol are enough here
                continue
            wide = WideCase(case)
            if float_only and not differentiable(wide):
                continue
            out.append(pytest.param(wide, id=f"{op.name}-{i}-{'-'.join(f'{k}{v}' for k, v in case.env.items())}".rstrip("-")))
    return out
