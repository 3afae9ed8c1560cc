"""The graph: nodes in topological order, each an op applied to values, with one or more typed outputs."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.dims import Symbol, symbols
from ..core.errors import ShapeError, VerifyError
from .types import TensorType

if TYPE_CHECKING:
    from ..ops.base import Op


LARGEST = 1 << 60  # bytes of one value: sums of sizes and offsets stay within 64 bits


class Value:
    """Output `index` of `node`: what other nodes take as operand."""

    __slots__ = ("index", "node")

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index

    @property
    def type(self) -> TensorType:
        return self.node.types[self.index]

    @property
    def dtype(self) -> Any:
        return self.type.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.type.shape

    @property
    def op(self) -> Op:
        return self.node.op

    @property
    def name(self) -> str:
        return self.node.name if len(self.node.types) == 1 else f"{self.node.name}.{self.index}"

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


class Node:
    """One application of an op. Identity is object identity; `values` are its outputs."""

    __slots__ = ("graph", "name", "op", "operands", "place", "types", "values")

    def __init__(self, graph: Graph, op: Op, operands: tuple[Value, ...], types: tuple[TensorType, ...], name: str, place: str) -> None:
        self.graph, self.op, self.operands, self.types, self.name, self.place = graph, op, operands, types, name, place
        self.values = tuple(Value(self, i) for i in range(len(types)))

    @property
    def value(self) -> Value:
        """The only output of a single-output node."""
        if len(self.values) != 1:
            raise VerifyError(f"{self.op.name}: %{self.name} has {len(self.values)} outputs; name one")
        return self.values[0]

    def __repr__(self) -> str:
        return f"%{self.name} = {self.op}({', '.join('%' + v.name for v in self.operands)})"


MOST_SHOWN = 500  # nodes of a graph in a notebook


class Graph:
    """A function from inputs to outputs. Nodes are kept in an order in which operands come first."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.donated: dict[int, int] = {}  # input -> output that is its next value and lives in the same memory
        self.call_symbols: tuple[Symbol, ...] = ()  # symbols that no shape shows: the call gives their values
        self.place = ""  # the place of nodes that are added without one: whoever adds many for one line of the user's code sets it
        self._names: dict[str, int] = {}

    def add(self, op: Op, *operands: Value, name: str | None = None, place: str = "") -> Node:
        """Append `op(*operands)`; its type rule runs here and its errors name the op, the operands and the place."""
        place = place or self.place
        for v in operands:
            if v.node.graph is not self:
                raise VerifyError(f"{op.name}: operand %{v.name} belongs to another graph")
        if wrong := op.wrong_arity(len(operands)):
            raise ShapeError(f"{op.name}: {wrong}" + (f" ({place})" if place else ""))
        try:
            inferred = op.infer(*(v.type for v in operands))
        except ShapeError as e:
            raise ShapeError(complaint(op, operands, str(e)) + (f" ({place})" if place else "")) from None
        types = (inferred,) if isinstance(inferred, TensorType) else tuple(inferred)
        for t in types:
            if any(isinstance(d, int) and d < 0 for d in t.shape):
                raise ShapeError(f"{op.name}: a size is at least 0, got {t}" + (f" ({place})" if place else ""))
            if isinstance(t.nbytes, int) and t.nbytes > LARGEST:
                raise ShapeError(f"{op.name}: a result has at most {LARGEST} bytes, got {t}" + (f" ({place})" if place else ""))
        unique = self._unique(name or op.name)
        if len(types) > 1:  # its values are named after it
            while any(f"{unique}.{k}" in self._names for k in range(len(types))):
                unique = self._unique(name or op.name)
            self._names.update((f"{unique}.{k}", 0) for k in range(len(types)))
        node = Node(self, op, operands, types, unique, place)
        self.nodes.append(node)
        return node

    def input(self, type_: TensorType, name: str = "x") -> Value:
        from ..ops.structure import Input

        value = self.add(Input(type=type_), name=name).value
        self.inputs.append(value)
        return value

    def constant(self, array: Any, name: str = "const") -> Value:
        """A constant from a NumPy array (or a ConstantData shared with other graphs)."""
        from ..ops.structure import Constant, ConstantData

        data = array if isinstance(array, ConstantData) else ConstantData(array, name)
        return self.add(Constant(data=data), name=name).value

    def _unique(self, name: str) -> str:
        count = self._names.get(name)
        if count is None:
            self._names[name] = 0
            return name
        while True:
            count += 1
            candidate = f"{name}_{count}"
            if candidate not in self._names:
                self._names[name], self._names[candidate] = count, 0
                return candidate

    def _repr_html_(self) -> str:
        """For notebooks: the nodes in order, of many the first."""
        from ..core import html

        rows = [[", ".join(f"%{v.name}" for v in n.values), n.op.name, " ".join(f"%{v.name}" for v in n.operands),
                 ", ".join(map(str, n.types)), n.place] for n in self.nodes[:MOST_SHOWN]]
        ends = f"{', '.join(f'%{v.name}: {v.type}' for v in self.inputs)} -> {', '.join(f'%{v.name}: {v.type}' for v in self.outputs)}"
        more = [f"... and {len(self.nodes) - MOST_SHOWN} more nodes"] if len(self.nodes) > MOST_SHOWN else []
        return html.lines([f"{self.name}({ends})"]) + html.table(("value", "op", "operands", "type", "line"), rows, range(5)) + (
            html.lines(more) if more else "")

    def users(self) -> dict[Value, list[Node]]:
        """Value -> nodes that read it, in order, once per operand slot. Graph outputs are not nodes: see `outputs`."""
        found: dict[Value, list[Node]] = {v: [] for n in self.nodes for v in n.values}
        for n in self.nodes:
            for v in n.operands:
                found[v].append(n)
        return found

    def symbols(self) -> list[Symbol]:
        """Every symbol that the inputs' types mention or the call gives, by name."""
        found = {s for v in self.inputs for d in v.type.shape for s in symbols(d)} | set(self.call_symbols)
        return sorted(found, key=lambda s: s.name)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def copy_into(self, target: Graph, env: dict[Value, Value], nodes: Iterable[Node] | None = None) -> None:
        """Append copies of `nodes` (default: all) to `target`, with operands looked up in env; env learns the results.
        Nodes whose values env already has are skipped, so inputs can be bound before."""
        for n in self.nodes if nodes is None else nodes:
            if n.values[0] in env:
                continue
            copy = target.add(n.op, *(env[v] for v in n.operands), name=n.name, place=n.place)
            env.update(zip(n.values, copy.values, strict=True))

    def clone(self) -> tuple[Graph, dict[Value, Value]]:
        """A deep copy (ops and constant data are shared), and the map from old to new values."""
        new, env = Graph(self.name), dict[Value, Value]()
        self.copy_into(new, env)
        new.take_ends(self, env)
        return new, env

    def take_ends(self, source: Graph, env: Mapping[Value, Value]) -> None:
        """Become a function like `source`: its inputs, outputs, donations and symbols, with values looked up in env."""
        self.inputs, self.outputs = [env[v] for v in source.inputs], [env[v] for v in source.outputs]
        self.donated, self.call_symbols = dict(source.donated), source.call_symbols


Change = Callable[[Node, Graph, dict[Value, Value]], Value | Sequence[Value] | None]


def exchanged(graph: Graph, change: Change) -> Graph:
    """A copy of a graph with other nodes. `change(node, new, env)` appends to the new graph and gives what stands for the node's results
    there; None copies the node, an empty sequence leaves it out. `env` has what stands for the values before, and new nodes have the
    node's place."""
    new, env = Graph(graph.name), dict[Value, Value]()
    for n in graph.nodes:
        new.place = n.place
        made = change(n, new, env)
        new.place = ""
        if made is None:
            graph.copy_into(new, env, [n])
        else:
            results = (made,) if isinstance(made, Value) else made
            env.update(zip(n.values, results, strict=len(results) > 0))
    new.take_ends(graph, env)
    return new


def complaint(op: Op, operands: Sequence[Value], rule: str) -> str:
    """The text of a broken type rule; the place comes after it."""
    given = ", ".join(f"{v.name}: {v.type}" for v in operands)
    return f"{op.name}: {rule} for {given or 'no operands'}"


def replace_values(graph: Graph, mapping: Mapping[Value, Value]) -> None:
    """Redirect every read of mapping's keys to its values (chains are followed). The caller keeps the order valid."""

    def final(v: Value) -> Value:
        while v in mapping:
            v = mapping[v]
        return v

    for n in graph.nodes:
        if any(v in mapping for v in n.operands):
            n.operands = tuple(final(v) for v in n.operands)
    graph.outputs = [final(v) for v in graph.outputs]


def subgraph(values: Sequence[Value]) -> list[Node]:
    """All nodes that `values` depend on, in graph order."""
    if not values:
        return []
    needed: set[Node] = set()
    stack = [v.node for v in values]
    while stack:
        n = stack.pop()
        if n not in needed:
            needed.add(n)
            stack.extend(v.node for v in n.operands)
    return [n for n in values[0].node.graph.nodes if n in needed]


def inline(body: Graph, target: Graph, inputs: Sequence[Value]) -> tuple[Value, ...]:
    """Append what the body's outputs need to `target`; the values of its outputs there."""
    env = dict(zip(body.inputs, inputs, strict=True))
    body.copy_into(target, env, subgraph(body.outputs))
    return tuple(env[v] for v in body.outputs)
