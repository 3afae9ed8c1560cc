"""Nodes become graph ops: one pass over a list of nodes, as far as what is known reaches.

A name is bound to a `Value`, a list of them (a sequence), `Nothing` (an optional that is empty), or `Pending`: something that a later
segment will know. A node whose inputs are pending waits; one that needs data or the host is left for the host; all others are built.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from keyword import iskeyword
from typing import Any

import numpy as np

from ...core.errors import STRANGE, FormatError, TilewrightError, UnsupportedError
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from ...ops.structure import Constant, ConstantData
from .assume import Pair, pairs_of
from .elements import Elem, elem_of
from .load import Source, onnx_library
from .model import Frame, Item, Sub, expanded, function_body, inlined, items_of, schema_of
from .registry import Context, NeedsData, NeedsHost, Unequal
from .tables import HOST, TABLE, HostStep, lookup

MOVES = frozenset(("Cast", "Concat", "Flatten", "Gather", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Tile", "Unsqueeze"))


FEW = 16  # elements of a tensor that is folded when it is met


class Pending:
    """A value that this segment does not know."""


@dataclass(frozen=True)
class Strings:
    """A tensor of strings, or a sequence of them: it stays on the host. `array` where it is known."""

    array: Any = None


@dataclass(frozen=True)
class Labels:
    """Strings at places that a graph computes: the host looks them up."""

    names: Any
    at: Value


class Nothing:
    """An optional without an element."""


@dataclass(eq=False)
class Blocked:
    """A node that the host must look at before it can go on, and why. `needs` names values whose elements must be known."""

    item: Item
    why: str
    needs: tuple[str, ...] = ()
    go: HostStep | None = None  # once it has run


Binding = Any  # Value | list | Nothing | Pending | Strings


@dataclass
class Scope:
    """Names and what they are bound to; constants are made when they are first read."""

    builder: Builder
    bindings: dict[str, Binding] = field(default_factory=dict)
    constants: dict[str, Any] = field(default_factory=dict)
    outer: Callable[[str], Binding] | None = None

    def get(self, name: str) -> Binding:
        found = self.bindings.get(name)
        if found is not None:
            return found
        if name in self.constants:
            found = self.builder.lift(self.constants[name], name)
        elif self.outer is not None:
            found = self.outer(name)
        if found is None:
            raise FormatError(f"onnx: the value {name!r} is read and nothing gives it")
        self.bindings[name] = found
        return found


class Builder:
    """One graph under construction."""

    def __init__(self, source: Source, name: str) -> None:
        self.source = source
        self.graph = Graph(name)
        self.context = Context(self.graph)
        self.scope = Scope(self)
        self.left: list[Item | Blocked] = []  # nodes that wait, and nodes that the host must look at, in their order
        self.weights: Callable[[str], Binding] | None = None  # what stands for a constant of this name, where something does
        self._number = 0
        self.stuck: tuple[int, list[Pair]] = (0, [])  # the node that could not be built, and sizes that it may want to be equal
        self.context.builder = self  # type: ignore[attr-defined]

    def lift(self, array: Any, name: str) -> Binding:
        """A constant of the model."""
        if self.weights is not None:
            found = self.weights(name)
            if found is not None:
                return found
        if isinstance(array, np.ndarray) and array.dtype.kind in "OUS":
            return Strings(array)
        e = elem_of(array)
        value = self.graph.constant(ConstantData(e.inward(array), name), name or "const")
        if e.kind != "plain":
            self.context.coded[value] = e
        return value

    def input(self, type_: TensorType, name: str, e: Elem | None = None) -> Value:
        value = self.graph.input(type_, name)
        if e is not None and e.kind != "plain":
            self.context.coded[value] = e
        return value

    def run(self, items: Sequence[Item]) -> None:
        """Build what can be built; `left` holds the rest."""
        todo = list(reversed(items))
        while todo:
            item = todo.pop()
            more = self._one(item)
            if more:
                todo.extend(reversed(more))

    def _one(self, item: Item) -> list[Item] | None:
        """Build one node, or give the nodes that stand for it."""
        c, get = self.context, self.scope.get
        self._number += 1
        c.node, c.version, c.outputs, c.scope = item, item.version, item.outputs, self.scope
        if any(isinstance(get(n), Pending) for n in item.reads):
            self._wait(item)
            return None
        bound = [get(n) if n else None for n in item.inputs]
        fn = lookup(TABLE, item.domain, item.op_type, item.version)
        on_host = lookup(HOST, item.domain, item.op_type, item.version)
        before = self.graph.place
        self.graph.place = f"node {item.title}"
        try:
            if item.op_type == "If" and item.domain == "":
                return self._branch(item, bound[0])
            if fn is None and on_host is None:
                return self._function(item, bound)
            if fn is None or any(_has_strings(b) for b in bound):
                if on_host is None:
                    raise UnsupportedError(f"onnx: node {item.title} does not take strings")
                self._block(item, "runs on the host", ())
                return None
            try:
                made = fn(c, *bound, **_attributes(item))
            except NotImplementedError:  # the entry leaves this case to the standard's own definition
                return self._function(item, bound)
            self._bind(item, made, bound)
            return None
        except NeedsData as need:
            self._block(item, need.why, self._needed(item, need.value))
            return None
        except NeedsHost as reason:
            if on_host is None:
                raise UnsupportedError(f"onnx: node {item.title}: {reason}") from None
            self._block(item, str(reason), ())
            return None
        except TilewrightError as e:
            shapes = [b.shape for b in bound if isinstance(b, Value)]
            self.stuck = self._number, list(e.pairs) if isinstance(e, Unequal) else pairs_of(shapes)
            text = str(e)
            place = f"node {item.title}"
            raise type(e)(text if place in text or text.startswith("onnx:") else f"onnx: {place}: {text}") from None
        except (*STRANGE, StopIteration) as e:  # the second: a required input is left out
            raise FormatError(f"onnx: node {item.title} is not as the standard has it: {e or type(e).__name__}") from e
        finally:
            self.graph.place = before

    def _needed(self, item: Item, value: Any) -> tuple[str, ...]:
        """The inputs whose elements must be known: that which is `value`, or all integers where it was made of several."""
        bound = {n: self.scope.get(n) for n in item.inputs if n}
        exact = tuple(n for n, b in bound.items() if b is value or (isinstance(b, list) and value in b))
        whole = tuple(n for n, b in bound.items() if isinstance(b, Value) and not b.dtype.is_float)
        return exact or whole or tuple(bound)

    def _wait(self, item: Item) -> None:
        self.left.append(item)
        self.scope.bindings.update((o, Pending()) for o in item.outputs if o)

    def _block(self, item: Item, why: str, needs: tuple[str, ...]) -> None:
        self.left.append(Blocked(item, why, needs))
        self.scope.bindings.update((o, Pending()) for o in item.outputs if o)

    def _bind(self, item: Item, made: Any, bound: Sequence[Binding]) -> None:
        results = made if isinstance(made, tuple) else (made,)
        coded = {}
        if any(isinstance(b, Value) and b in self.context.coded for b in bound):
            coded = self._coded(item, bound)
        moved = item.op_type in MOVES and item.domain == "" and bool(bound) and all(
            b is None or (isinstance(b, Value) and isinstance(b.op, Constant)) for b in bound)
        for k, (name, value) in enumerate(zip(item.outputs, results, strict=False)):
            if not name:
                continue
            if moved and isinstance(value, Value) and not isinstance(value.op, Constant) and value not in self.context.coded:
                array = self.context.contents.weights(value)  # weights that a file takes apart and joins are weights again
                value = value if array is None else self.graph.constant(np.asarray(array, order="C"), name)
            value = self._known(value)
            if value is None:
                raise UnsupportedError(f"onnx: node {item.title}: its result {name!r} is not supported")
            if isinstance(value, Labels):
                self._look_up(item, name, value)
                continue
            if k in coded and isinstance(value, Value) and value not in self.context.coded:
                self.context.coded[value] = coded[k]
            self.scope.bindings[name] = value

    def _known(self, value: Any) -> Any:
        """A few numbers that do not depend on data (a scale made from a size) are a constant at once: passes look for factors before they
        fold anything large."""
        if not isinstance(value, Value) or isinstance(value.op, Constant) or value in self.context.coded:
            return value
        numel = value.type.numel
        found = self.context.known(value) if isinstance(numel, int) and numel <= FEW else None
        return value if found is None or found.dtype == object else self.graph.constant(np.asarray(found, order="C"), value.name or "known")

    def _look_up(self, item: Item, name: str, labels: Labels) -> None:
        """A step of the host that takes strings by index."""
        names, at = f"{name}#names", f"{name}#at"
        self.scope.constants[names] = labels.names
        self.scope.bindings[at] = labels.at
        node = onnx_library().helper.make_node("Gather", [names, at], [name], name=item.name)
        self._block(Item(node, "", "Gather", item.name, (names, at), (name,), {}, 13, item.frame), "its labels are strings", ())

    def _coded(self, item: Item, bound: Sequence[Binding]) -> dict[int, Elem]:
        """Results that have the element type of an input whose type is no dtype of ours."""
        schema = schema_of(item.op_type, item.version, item.domain)
        if schema is None:
            return {}
        by_name = {}
        for i, b in enumerate(bound):
            formal = schema.inputs[min(i, len(schema.inputs) - 1)]
            if isinstance(b, Value) and b in self.context.coded:
                by_name[formal.type_str] = self.context.coded[b]
        found = {}
        for k in range(len(item.outputs)):
            formal = schema.outputs[min(k, len(schema.outputs) - 1)]
            if formal.type_str in by_name:
                found[k] = by_name[formal.type_str]
        return found

    # --- what stands for other nodes

    def _function(self, item: Item, bound: Sequence[Binding]) -> list[Item] | None:
        body = function_body(self.source, item, [self.proto_of(b) for b in bound])
        if body is None:
            raise UnsupportedError(f"onnx: node {item.title} of opset {item.version} is not supported")
        return expanded(self.source, item, body[0], body[1], self._number)

    def _branch(self, item: Item, predicate: Any) -> list[Item] | None:
        """A branch whose condition is known takes the place of its `If`; others become a `Cond` where both sides have one type."""
        from .flow import compiled_if

        found = self.context.known(predicate)
        if found is None or found.dtype == object:
            made = compiled_if(self, item, predicate)
            if made is None:
                raise NeedsData(predicate, "the branches of If differ in their types")
            self._bind(item, made, ())
            return None
        side: Sub = item.attrs["then_branch" if bool(found.reshape(-1)[0]) else "else_branch"]
        return self.inline(side, {}, item.outputs, f"{item.frame.prefix}{item.op_type}.{self._number}/")

    def inline(self, sub: Sub, inputs: Mapping[str, str], outputs: Sequence[str], prefix: str) -> list[Item]:
        """The nodes of a subgraph, whose results get the names `outputs`."""
        graph = sub.graph
        frame = inlined(self.source, graph, sub.frame, prefix, inputs, {})
        self.constants(graph, frame)
        items = items_of(self.source, graph.node, frame)
        onnx = onnx_library()
        for o, name in zip(graph.output, outputs, strict=True):
            if name:
                node = onnx.helper.make_node("Identity", [o.name], [name])
                items.append(Item(node, "", "Identity", "", (frame.names.get(o.name, o.name),), (name,), {},
                                  self.source.opsets.get("", 13), frame))
        return items

    def constants(self, graph: Any, frame: Frame) -> None:
        """A graph's initializers, under the names that the frame gives them."""
        self.scope.constants.update(constants_of(self.source, graph, frame))

    def proto_of(self, b: Binding) -> Any:
        """The TypeProto of a binding, for functions whose body depends on it."""
        onnx = onnx_library()
        if isinstance(b, Value):
            dims = [d if isinstance(d, int) else str(d) for d in b.shape]
            return onnx.helper.make_tensor_type_proto(self.context.elem(b).number, dims)
        if isinstance(b, list) and b:
            return onnx.helper.make_sequence_type_proto(self.proto_of(b[0]))
        if isinstance(b, Strings):
            return onnx.helper.make_tensor_type_proto(8, None)
        return onnx.TypeProto()


def constants_of(source: Source, graph: Any, frame: Frame) -> dict[str, Any]:
    found = {frame.names.get(t.name, t.name): source.array(t) for t in graph.initializer}
    return found | {frame.names.get(s.values.name, s.values.name): dense(source, s) for s in graph.sparse_initializer}


def dense(source: Source, s: Any) -> Any:
    """A sparse tensor written out."""
    shape = tuple(int(d) for d in s.dims)
    if int(np.prod(shape, dtype=np.float64)) > 1 << 28:
        raise FormatError(f"onnx: the sparse tensor {s.values.name!r} of shape {list(shape)} is too large to write out")
    values, at = source.array(s.values), source.array(s.indices)
    out = np.zeros(shape, values.dtype)
    if at.ndim == 1:
        out.reshape(-1)[at] = values
    else:
        out[tuple(at.T)] = values
    return out


def _has_strings(b: Binding) -> bool:
    return isinstance(b, Strings) or (isinstance(b, list) and any(_has_strings(x) for x in b))


def _attributes(item: Item) -> dict[str, Any]:
    """Attributes as keyword arguments; a name that is a word of Python gets an underscore."""
    return {f"{k}_" if iskeyword(k) else k: v for k, v in item.attrs.items() if k != "consumed_inputs"}
