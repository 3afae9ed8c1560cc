"""Prints graphs as text that `parse` reads back; goldens, dumps and saved sessions use it.

    graph block[S=1..1024](%x) {
      %x: f32[2,S] = input
      %w: f32[4,3] = constant{data=@w}
      %y: f32[2,S] = gelu{approximate="tanh"}(%x) at "model.py:41"
      return %y
    }

The header lists symbols with their ranges (`call P=0..9`: the call gives its value) and the inputs in order (`%cache to 1`: donated,
output 1 is its next value). Constants of up to eight elements stand in the text; bigger
ones are named (`@w`) and their data travels beside it: see `constants_of`. Attributes that have their default are left out.
"""
from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

from ..core.dims import UNBOUNDED, Expr, Symbol
from ..core.dtypes import DType, bf16, f16, f32, f64
from ..core.errors import VerifyError
from ..core.exact import same
from .graph import Graph, Node
from .types import TensorType

INLINE = 8  # largest constant that is written out
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.]+")


def to_text(graph: Graph) -> str:
    """The graph as text, ending in a newline. The same graph always gives the same text."""
    return _Printer(graph).graph(graph, "", top=True) + "\n"


def constants_of(graph: Graph) -> dict[str, Any]:
    """Name in the text -> ConstantData, for every constant that the text only names (those of sub-graphs too)."""
    return {name: data for data, name in _Printer(graph).names.items()}


def constant_data(graph: Graph) -> set[Any]:
    """The data of all constants of a graph and of the graphs in it."""
    return {n.op.attrs()["data"] for n in all_nodes(graph) if n.op.name == "constant"}


def all_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of a graph and of the graphs in their attributes, outer first."""
    for n in graph.nodes:
        yield n
        for value in n.op.attrs().values():
            if isinstance(value, Graph):
                yield from all_nodes(value)


def all_symbols(graph: Graph) -> list[Symbol]:
    """Every symbol in any type or attribute, by name (then range, if two disagree)."""
    found: set[Symbol] = set()

    def visit(value: Any) -> None:
        if isinstance(value, Expr):
            found.update(value.symbols)
        elif isinstance(value, tuple):
            for v in value:
                visit(v)
        elif isinstance(value, TensorType):
            visit(value.shape)

    for n in all_nodes(graph):
        visit(n.types)
        for attribute in n.op.attrs().values():
            visit(attribute)
    return sorted(found, key=lambda s: (s.name, s.lo, s.hi))


def quoted(mark: str, name: str) -> str:
    """`%name`, with quotes when the name has other characters than letters, digits, `_` and `.`."""
    return mark + (name if PLAIN_NAME.fullmatch(name) else json.dumps(name))


class _Printer:
    def __init__(self, graph: Graph) -> None:
        self.names: dict[Any, str] = {}
        taken: set[str] = set()
        for n in all_nodes(graph):
            data = n.op.attrs().get("data") if n.op.name == "constant" else None
            if data is None or data in self.names or data.array.size <= INLINE:
                continue
            name, count = data.name, 0
            while name in taken:
                count += 1
                name = f"{data.name}_{count}"
            taken.add(name)
            self.names[data] = name

    def graph(self, graph: Graph, indent: str, *, top: bool = False) -> str:
        called = {s.name for s in graph.call_symbols}
        dims = [f"{'call ' if s.name in called else ''}{s.name}={s.lo}..{'' if s.hi == UNBOUNDED else s.hi}"
                for s in (all_symbols(graph) if top else [])]
        given = {i: f" to {k}" for i, k in graph.donated.items()}
        inputs = ", ".join(quoted("%", v.name) + given.get(i, "") for i, v in enumerate(graph.inputs))
        head = f"graph {quoted('', graph.name)}{'[' + ', '.join(dims) + ']' if dims else ''}({inputs}) {{"
        lines = [head, *(f"{indent}  {self.node(n, indent + '  ')}" for n in graph.nodes)]
        lines.append(f"{indent}  return{' ' if graph.outputs else ''}{', '.join(quoted('%', v.name) for v in graph.outputs)}")
        return "\n".join([*lines, indent + "}"])

    def node(self, n: Node, indent: str) -> str:
        types = str(n.types[0]) if len(n.types) == 1 else f"({', '.join(map(str, n.types))})"
        attrs = []
        for f in dataclasses.fields(n.op):
            value = getattr(n.op, f.name)
            if not (n.op.name == "input" and f.name == "type") and not same(value, f.default):
                attrs.append(f"{f.name}={self.value(value, indent)}")
        shown = "{" + ", ".join(attrs) + "}" if attrs else ""
        operands = f"({', '.join(quoted('%', v.name) for v in n.operands)})" if n.operands else ""
        place = f" at {json.dumps(n.place)}" if n.place else ""
        return f"{quoted('%', n.name)}: {types} = {n.op.name}{shown}{operands}{place}"

    def value(self, value: Any, indent: str) -> str:
        if value is None or isinstance(value, (bool, int, float, Expr, DType, TensorType)):
            return repr(value)
        if isinstance(value, str):
            return json.dumps(value)
        if isinstance(value, tuple):
            return f"({', '.join(self.value(v, indent) for v in value)}{',' if len(value) == 1 else ''})"
        if isinstance(value, Graph):
            return self.graph(value, indent)
        if hasattr(type(value), "digest"):  # the class is asked: an instance would compute it
            if value in self.names:
                return quoted("@", self.names[value])
            small = value.type.dtype in (f16, bf16) and value.array.size == 1
            elements = [value.number] if small else value.array.reshape(-1)
            return f"{value.type}({', '.join(_element(v, value.type.dtype) for v in elements)})"
        raise VerifyError(f"graph text: cannot print an attribute of type {type(value).__name__}: {value!r}")


def _element(x: Any, dtype: DType) -> str:
    if dtype.is_float:
        return str(x) if dtype in (f32, f64) else repr(float(x))  # NumPy's own floats print the shortest text that reads back
    return repr(x.item())
