"""A model's nodes as plain data: attributes decoded, names made unique, functions and known branches written out in place."""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...core.errors import FormatError, UnsupportedError
from .load import Source, onnx_library
from .tables import HOST, ML, TABLE, lookup

MOST_NODES, REPEATED = 10_000, 100  # nodes that functions may expand to: so many, and so many for each node that a file has
DEEPEST = 32  # functions in functions


@dataclass(frozen=True)
class Frame:
    """Where nodes stand: what their names mean outside, their opsets, and the attributes that a function was called with."""

    names: Mapping[str, str]
    opsets: Mapping[str, int]
    attrs: Mapping[str, Any] | None = None
    prefix: str = ""
    depth: int = 0


@dataclass(frozen=True)
class Sub:
    """A graph attribute and the frame it stands in."""

    graph: Any
    frame: Frame

    def captured(self) -> set[str]:
        """Names of the surrounding graphs that the body reads."""
        return {self.frame.names.get(n, n) for n in free_names(self.graph)}


@dataclass(eq=False)
class Item:
    """One node: names are unique in the whole program."""

    proto: Any
    domain: str
    op_type: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any]
    version: int
    frame: Frame

    @property
    def reads(self) -> set[str]:
        found = {n for n in self.inputs if n}
        for a in self.attrs.values():
            if isinstance(a, Sub):
                found |= a.captured()
        return found

    @property
    def title(self) -> str:
        return f"{self.op_type} {self.name!r}" if self.name else f"{self.op_type} that makes {', '.join(o for o in self.outputs if o)!r}"


def free_names(graph: Any) -> set[str]:
    """What a graph reads and does not define."""
    defined = {i.name for i in graph.input} | {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    free: set[str] = set()
    for n in graph.node:
        reads = {i for i in n.input if i}
        for a in n.attribute:
            for g in (a.g, *a.graphs) if a.type in (5, 10) else ():
                reads |= free_names(g)
        free |= reads - defined
        defined |= set(n.output)
    return free | ({o.name for o in graph.output} - defined)


def items_of(source: Source, nodes: Sequence[Any], frame: Frame) -> list[Item]:
    return [x for i, n in enumerate(sorted_nodes(nodes, source.name)) for x in _without_constants(_item(source, n, frame, i))
            for x in by_places(x)]


def by_places(item: Item) -> list[Item]:
    """A one-hot code of strings as that of their places: the host finds these, the rest is compiled."""
    names = item.attrs.get("cats_strings")
    if (item.domain, item.op_type) != (ML, "OneHotEncoder") or not names or not item.attrs.get("zeros", 1):
        return [item]
    at, every = f"{item.outputs[0]}#at", list(range(len(names)))
    places = {"keys_strings": names, "values_int64s": every, "default_int64": len(names)}
    return [Item(item.proto, ML, "LabelEncoder", item.name, item.inputs, (at,), places, 2, item.frame),
            Item(item.proto, ML, "OneHotEncoder", item.name, (at,), item.outputs, {"cats_int64s": every}, item.version, item.frame)]


def _without_constants(item: Item) -> list[Item]:
    """A Loop without what it carries unchanged, which its body sees where it is: weights that exporters hand through are constants then.
    Its results for these are the values it was given."""
    body = item.attrs.get("body")
    if item.op_type != "Loop" or item.domain or not isinstance(body, Sub):
        return [item]
    graph, carried = body.graph, len(item.inputs) - 2
    source = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity"}
    inputs, outputs = [i.name for i in graph.input], [o.name for o in graph.output]
    same = []
    for k in range(min(carried, len(inputs) - 2, len(outputs) - 1)):
        last = outputs[k + 1]
        while last in source:
            last = source[last]
        if last == inputs[k + 2] and item.inputs[k + 2]:
            same.append(k)
    if not same:
        return [item]
    plain = type(graph)()
    plain.CopyFrom(graph)
    for k in reversed(same):
        del plain.input[k + 2], plain.output[k + 1]
    names = {**body.frame.names, **{inputs[k + 2]: item.inputs[k + 2] for k in same}}
    sub = Sub(plain, replace(body.frame, names=names))
    left = replace(item, inputs=tuple(x for k, x in enumerate(item.inputs) if k - 2 not in same),
                   outputs=tuple(x for k, x in enumerate(item.outputs) if k not in same), attrs={**item.attrs, "body": sub})
    node = onnx_library().helper.make_node("Identity", ["x"], ["y"])
    return [left, *(Item(node, "", "Identity", "", (item.inputs[k + 2],), (item.outputs[k],), {}, item.version, item.frame)
                    for k in same if k < len(item.outputs) and item.outputs[k])]


def _item(source: Source, n: Any, frame: Frame, i: int) -> Item:
    domain = "" if n.domain == "ai.onnx" else n.domain
    attrs = {}
    for a in n.attribute:
        if a.ref_attr_name:
            if frame.attrs is not None and a.ref_attr_name in frame.attrs:
                attrs[a.name] = frame.attrs[a.ref_attr_name]
            continue
        attrs[a.name] = _attribute(source, a, frame, n)
    version = frame.opsets.get(domain)
    if version is None:
        version = source.opsets.get(domain, 1)
    names = frame.names
    return Item(n, domain, n.op_type, n.name, tuple(names.get(x, x) for x in n.input), tuple(names.get(x, x) for x in n.output), attrs,
                version, frame)


def _attribute(source: Source, a: Any, frame: Frame, n: Any) -> Any:
    match a.type:
        case 1:
            return float(a.f)
        case 2:
            return int(a.i)
        case 3:
            return a.s.decode("utf-8", "surrogateescape")
        case 4:
            return source.array(a.t)
        case 5:
            return Sub(a.g, frame)
        case 6:
            return [float(x) for x in a.floats]
        case 7:
            return [int(x) for x in a.ints]
        case 8:
            return [s.decode("utf-8", "surrogateescape") for s in a.strings]
        case 9:
            return [source.array(t) for t in a.tensors]
        case 10:
            return [Sub(g, frame) for g in a.graphs]
        case 11:
            return a.sparse_tensor
        case 13:
            return a.tp
    raise FormatError(f"onnx: attribute {a.name!r} of node {n.name!r} ({n.op_type}) has the unknown type {a.type}")


def sorted_nodes(nodes: Iterable[Any], where: str) -> list[Any]:
    """Nodes in an order in which inputs come first; most files have it already."""
    nodes = list(nodes)
    made: dict[str, int] = {}
    for i, n in enumerate(nodes):
        for o in n.output:
            if o and o in made:
                raise FormatError(f"onnx: {where}: two nodes give the value {o!r}: {_show(nodes[made[o]])} and {_show(n)}")
            if o:
                made[o] = i
    reads = [sorted({made[x] for x in _reads(n) if x in made}) for n in nodes]
    if all(k < i for i, ks in enumerate(reads) for k in ks):
        return nodes
    order: list[int] = []
    state = [0] * len(nodes)
    for first in range(len(nodes)):
        stack = [(first, iter(reads[first]))] if not state[first] else []
        if stack:
            state[first] = 1
        while stack:
            i, rest = stack[-1]
            k = next(rest, None)
            if k is None:
                state[i] = 2
                order.append(i)
                stack.pop()
            elif state[k] == 1:
                raise FormatError(f"onnx: {where}: the nodes {_show(nodes[k])} and {_show(nodes[i])} wait for each other's results")
            elif state[k] == 0:
                state[k] = 1
                stack.append((k, iter(reads[k])))
    return [nodes[i] for i in order]


def _reads(n: Any) -> set[str]:
    found = {x for x in n.input if x}
    for a in n.attribute:
        for g in (a.g, *a.graphs) if a.type in (5, 10) else ():
            found |= free_names(g)
    return found


def _show(n: Any) -> str:
    return f"{n.name!r} ({n.op_type})"


def inlined(source: Source, graph: Any, frame: Frame, prefix: str, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> Frame:
    """The frame of a graph whose nodes are written out in place: its own names get a prefix."""
    names = dict(frame.names)
    own = {o for n in graph.node for o in n.output if o}
    own |= {t.name for t in getattr(graph, "initializer", ())}
    for n in own:
        names[n] = prefix + n
    names.update(inputs)
    names.update(outputs)
    return Frame(names, frame.opsets, frame.attrs, prefix, frame.depth + 1)


def schema_of(name: str, version: int, domain: str) -> Any:
    """What the standard says of an op; None where it does not know it."""
    onnx = onnx_library()
    try:
        return onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None


def function_body(source: Source, item: Item, types: Sequence[Any] | None) -> tuple[Any, dict[str, int]] | None:
    """The FunctionProto that a node stands for, and its opsets: the model's own functions first, then the standard's."""
    onnx = onnx_library()
    own = source.functions.get((item.proto.domain, item.op_type, getattr(item.proto, "overload", "")))
    if own is not None:
        return own, {("" if o.domain == "ai.onnx" else o.domain): o.version for o in own.opset_import}
    schema = schema_of(item.op_type, item.version, item.domain)
    if schema is None:
        return None
    found = None
    if schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= item.version] or schema.function_opset_versions
        text = schema.get_function_with_opset_version(max(versions))
        if text is not None:
            found = onnx.FunctionProto()
            found.ParseFromString(text)
    if found is None and schema.has_context_dependent_function and types is not None:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= item.version]
        versions = versions or schema.context_dependent_function_opset_versions
        text = schema.get_context_dependent_function_with_opset_version(max(versions), plain_node(item).SerializeToString(),
                                                                        [t.SerializeToString() for t in types])
        if text:
            found = onnx.FunctionProto()
            found.ParseFromString(text)
    if found is None:
        return None
    return found, {item.domain: item.version} | {("" if o.domain == "ai.onnx" else o.domain): o.version for o in found.opset_import}


def plain_node(item: Item) -> Any:
    """The node with its attributes filled in from the function around it."""
    onnx = onnx_library()
    node = onnx.NodeProto()
    node.CopyFrom(item.proto)
    for a in list(node.attribute):
        if a.ref_attr_name:
            node.attribute.remove(a)
            if a.name in item.attrs:
                node.attribute.append(onnx.helper.make_attribute(a.name, item.attrs[a.name]))
    return node


def expanded(source: Source, item: Item, body: Any, opsets: Mapping[str, int], number: int) -> list[Item]:
    """The nodes of a function in place of the node that calls it."""
    if item.frame.depth >= DEEPEST:
        raise FormatError(f"onnx: node {item.title:.300} calls functions more than {DEEPEST} deep; do they call each other?")
    source.expanded += len(body.node)
    written = len(source.proto.graph.node) + sum(len(f.node) for f in source.proto.functions)
    if source.expanded > MOST_NODES + REPEATED * written:  # functions that call each other twice double with each level
        raise FormatError(f"onnx: functions make more than {MOST_NODES + REPEATED * written:,} nodes of the {written:,} in the file, "
                          f"at {item.title:.300}")
    prefix = f"{item.frame.prefix}{item.op_type}.{number}/"
    names = {o: prefix + o for n in body.node for o in n.output if o}
    names |= dict(zip(body.input, (*item.inputs, *[""] * len(body.input)), strict=False))
    names |= {o: name for o, name in zip(body.output, item.outputs, strict=False) if name}
    attrs = dict(item.attrs)
    for a in body.attribute_proto:
        if a.name not in attrs:
            attrs[a.name] = _attribute(source, a, item.frame, item.proto)
    attrs = _defaults(item) | attrs
    frame = Frame(names, {**source.opsets, **opsets}, attrs, prefix, item.frame.depth + 1)
    outs = items_of(source, body.node, frame)
    # a function may hand an input out as it is
    made = {o for it in outs for o in it.outputs}
    onnx = onnx_library()
    for o, name in zip(body.output, item.outputs, strict=False):
        if name and name not in made and o in body.input:
            node = onnx.helper.make_node("Identity", [o], [name])
            at = dict(zip(body.input, item.inputs, strict=False)).get(o, "")
            outs.append(Item(node, "", "Identity", "", (at,), (name,), {}, source.opsets.get("", 13), frame))
    return outs


def _defaults(item: Item) -> dict[str, Any]:
    """What the standard says of attributes that a node leaves out."""
    onnx = onnx_library()
    schema = schema_of(item.op_type, item.version, item.domain)
    found = {}
    for name, a in schema.attributes.items() if schema is not None else ():
        if a.default_value.name:
            value = onnx.helper.get_attribute_value(a.default_value)
            found[name] = value.decode() if isinstance(value, bytes) else value
    return found


def missing(source: Source, graph: Any, opsets: Mapping[str, int], seen: set[str] | None = None) -> list[str]:
    """Nodes that nothing here knows, as they are shown to the user; subgraphs and functions included."""
    found: list[str] = []
    seen = set() if seen is None else seen
    for n in graph.node:
        domain = "" if n.domain == "ai.onnx" else n.domain
        version = opsets.get(domain, source.opsets.get(domain, 1))
        for a in n.attribute:
            for g in (a.g, *a.graphs) if a.type in (5, 10) else ():
                found += missing(source, g, opsets, seen)
        if (domain, n.op_type) == ("", "If") or lookup(TABLE, domain, n.op_type, version) or lookup(HOST, domain, n.op_type, version):
            continue
        own = source.functions.get((n.domain, n.op_type, getattr(n, "overload", "")))
        if own is not None:
            key = f"{n.domain}.{n.op_type}"
            if key not in seen:
                seen.add(key)
                found += missing(source, own, {("" if o.domain == "ai.onnx" else o.domain): o.version for o in own.opset_import}, seen)
            continue
        schema = schema_of(n.op_type, version, domain)
        if schema is not None and (schema.has_function or schema.has_context_dependent_function):
            continue
        found.append(f"{domain or 'ai.onnx'}.{n.op_type} (opset {version}, node {n.name or ', '.join(n.output)!r})")
    return found


def require_all(source: Source) -> None:
    """One error for everything that is missing."""
    found = missing(source, source.proto.graph, source.opsets)
    if found:
        shown = "; ".join(found[:20]) + (f"; and {len(found) - 20} more" if len(found) > 20 else "")
        raise UnsupportedError(f"onnx: {source.name} has {len(found)} nodes that are not supported: {shown}")
