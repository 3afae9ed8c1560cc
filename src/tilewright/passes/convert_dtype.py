"""Rewrite a graph to store its floats in another dtype: weights and intermediates, not the inputs and outputs a caller sees.

Constants are cast once, inputs and outputs get a cast beside them. Arithmetic on small floats is done in f32 inside kernels as
always; an op that has no small floats is computed in its own dtype, between casts, and integers that pass through floats keep them. Not
part of the pipeline: `tw.compile(dtype=...)` asks for it, before the other passes.
"""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dtypes import ALL, DType
from ..core.dtypes import dtype as dtype_named
from ..core.errors import ConfigError, ParseError, ShapeError
from ..ir.graph import Graph, Node, Value
from ..ir.types import TensorType
from ..ops.base import Op
from ..ops.structure import ConstantData


def float_dtype(name: Any) -> DType:
    """The dtype that `tw.compile(dtype=...)` names, or the error that lists the choices."""
    known = [d for d in ALL if d.is_float and d.itemsize > 1]  # eight bits need scales: see quantization
    try:
        found = dtype_named(name)
    except ParseError:
        found = None
    if found not in known:
        choices = ", ".join(repr(d.name) for d in known)
        raise ConfigError(f"dtype: must be a float dtype, one of {choices}, got {str(name) if isinstance(name, DType) else name!r}")
    assert found is not None
    return found


def convert_dtype(graph: Graph, dtype: DType) -> Graph:
    """A copy of `graph` whose floats are `dtype`; its inputs and outputs keep their types."""
    new, env, casts, users = Graph(graph.name), dict[Value, Value](), dict[ConstantData, ConstantData](), graph.users()
    for node in graph.nodes:
        if isinstance(node.op, o.Input):
            value = new.input(node.types[0], node.name)
            env[node.value] = _cast(value, dtype) if value.dtype.is_float else value
        elif isinstance(node.op, o.Constant):
            env[node.value] = new.constant(_constant(node.op.data, dtype, casts), node.name)
        else:
            operands = [env[v] for v in node.operands]
            if _counts(node, users, graph):
                env[node.value] = new.add(node.op, *operands, name=node.name, place=node.place).value
                continue
            try:
                made = new.add(_op(node.op, dtype), *operands, name=node.name, place=node.place)
            except ShapeError:  # Fourier transforms and factors of matrices, which have no small floats: in their own dtype
                operands = [_cast(u, v.dtype) for u, v in zip(operands, node.operands, strict=True)]
                made = new.add(node.op, *operands, name=node.name, place=node.place)
            env.update((v, _cast(u, dtype) if u.dtype.is_float else u) for v, u in zip(node.values, made.values, strict=True))
    inputs = {v: new.inputs[i] for i, v in enumerate(v for n in graph.nodes if isinstance(n.op, o.Input) for v in n.values)}
    new.inputs = [inputs[v] for v in graph.inputs]
    new.outputs = [_cast(env[v], v.dtype) if env[v].dtype != v.dtype else env[v] for v in graph.outputs]
    new.donated, new.call_symbols = dict(graph.donated), graph.call_symbols
    return new


def _counts(node: Node, users: dict[Value, list[Node]], graph: Graph) -> bool:
    """Whether a cast makes floats of integers that become integers again at once: counts, which small floats do not hold."""
    if not isinstance(node.op, o.Cast) or node.operands[0].dtype.is_float or node.value in graph.outputs:
        return False
    return all(isinstance(n.op, o.Cast) and n.types[0].dtype.is_int for n in users[node.value])


def _cast(value: Value, dtype: DType) -> Value:
    made: Value = value if value.dtype == dtype else o.Cast(dtype=dtype)(value)
    return made


def _constant(data: ConstantData, dtype: DType, casts: dict[ConstantData, ConstantData]) -> ConstantData:
    """Tied constants stay one."""
    if not data.type.dtype.is_float or data.type.dtype == dtype:
        return data
    if data not in casts:
        with np.errstate(over="ignore"):
            casts[data] = ConstantData(data.array.astype(dtype.np), data.name)
    return casts[data]


def _op(op: Op, dtype: DType) -> Op:
    """The op with every float dtype among its attributes changed."""
    changed = {f.name: _attribute(getattr(op, f.name), dtype) for f in dataclasses.fields(op)}
    if all(changed[f.name] is getattr(op, f.name) for f in dataclasses.fields(op)):
        return op
    return dataclasses.replace(op, **changed)


def _attribute(value: Any, dtype: DType) -> Any:
    if isinstance(value, DType):
        return dtype if value.is_float else value
    if isinstance(value, TensorType):
        return value.with_dtype(dtype) if value.dtype.is_float else value
    if isinstance(value, Graph):
        raise ConfigError("dtype: the model has control flow, which dtype= does not convert; convert the module itself")
    return value
