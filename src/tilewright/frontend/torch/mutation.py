"""In-place ops in an exported graph: which names see the new value, and when that is not enough.

Export keeps `y.add_(1)`. When no other view of y's memory is read afterwards, the op is simply `y = y + 1` under all names of
that whole tensor. Otherwise the program is functionalised by torch first; so is one that writes to an input or a buffer (importer.py).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

DROPOUTS = {"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"}
# These return their operand itself, though their schemas do not say so; dropouts only in inference.
SAME = {
    *DROPOUTS,
    "lift_fresh",
    "alias",
    "detach",
    "detach_",
    "contiguous",
    "to",
    "type_as",
}


def base_name(node: Any) -> str:
    schema = getattr(node.target, "_schema", None)
    return str(schema.name).rpartition("::")[2] if schema is not None else ""


def is_same(node: Any) -> bool:
    """Whether it returns its first operand itself."""
    name = base_name(node)
    return name in SAME and not (name in DROPOUTS and len(node.args) > 2 and node.args[1] != 0 and node.args[2] is not False)


def writes(node: Any) -> list[Any]:
    """The FX nodes that this one writes to (in-place tensor ops)."""
    schema = getattr(node.target, "_schema", None)
    if base_name(node) in ("batch_norm", "instance_norm", "native_batch_norm") and len(node.args) > 5 and node.args[5]:
        return [v for v in node.args[3:5] if hasattr(v, "op")]  # in training mode, though its schema does not say so
    if schema is None or not schema.is_mutable or base_name(node) == "detach_":
        return []
    found = []
    for i, arg in enumerate(schema.arguments):
        if arg.alias_info is not None and arg.alias_info.is_write:
            value = node.args[i] if i < len(node.args) else node.kwargs.get(arg.name)
            found += [v for v in (value if isinstance(value, (tuple, list)) else [value]) if hasattr(v, "op")]
    return found


class Aliases:
    """Names of memory in one FX graph: `root` says which nodes share storage, `whole` which are the very same tensor."""

    def __init__(self, graph: Any) -> None:
        self.root: dict[Any, Any] = {}
        self.whole: dict[Any, Any] = {}
        self.members: dict[Any, list[Any]] = {}
        self.mutations = [n for n in graph.nodes if n.op == "call_function" and writes(n)]
        if not self.mutations:
            return
        self.order = {n: i for i, n in enumerate(graph.nodes)}
        for node in graph.nodes:
            source = self._source(node)
            self.root[node] = self.root[source] if source is not None else node
            same = source is not None and (is_same(node) or bool(writes(node)))
            self.whole[node] = self.whole[source] if same else node
            self.members.setdefault(self.root[node], []).append(node)

    def _source(self, node: Any) -> Any:
        """The node whose memory this one may share, or None."""
        if node.op != "call_function" or not node.args:
            return None
        if node.target is operator.getitem:
            return node.args[0]
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return None
        if is_same(node) or writes(node):
            return node.args[0] if hasattr(node.args[0], "op") else None
        shares = any(r.alias_info is not None for r in schema.returns) or base_name(node) in ("reshape", "flatten", "expand_as", "view_as")
        return node.args[0] if shares and hasattr(node.args[0], "op") else None

    def rebound(self, node: Any) -> Iterable[Any]:
        """Names that mean `node`'s value from here on, because it wrote to them."""
        if not self.mutations or not writes(node):
            return []
        return [m for m in self.members[self.root[node]] if self.whole[m] is self.whole[node] and self.order[m] < self.order[node]]

    def needs_functional(self) -> bool:
        """Some write is seen through another view of the same memory, or writes several tensors."""
        for node in self.mutations:
            targets = writes(node)
            if len(targets) != 1:
                return True
            for m in self.members[self.root[node]]:
                if self.whole[m] is not self.whole[node] and any(self.order[u] > self.order[node] for u in m.users):
                    return True
        return False

    def written_inputs(self) -> list[tuple[Any, Any]]:
        """(placeholder, writing node) for writes that reach the caller's or the module's own tensors."""
        return [(self.root[n], n) for n in self.mutations if self.root[n].op == "placeholder"]


def needs_functional(module: Any) -> bool:
    """Whether torch must functionalise this graph module first: see above; a nested region that writes to a captured tensor too."""
    if Aliases(module.graph).needs_functional():
        return True
    bodies = [
        getattr(module, n.target) for n in module.graph.nodes if n.op == "get_attr" and hasattr(getattr(module, n.target, None), "graph")
    ]
    return any(Aliases(b.graph).written_inputs() or needs_functional(b) for b in bodies)
