"""Walk an exported FX graph and append one or more of our ops for each of its nodes.

Nodes that torch keeps but we have no op for are expanded with torch's own decomposition, on the spot. Problems are collected
and raised together: one error lists every unsupported op with its count and first place.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from ...core.dims import Expr
from ...core.errors import UnsupportedError
from ...core.places import split, within
from ...ir.graph import Graph, Value
from .aten import families  # noqa: F401
from .aten.registry import Context, key_of, lookup
from .constants import Constants
from .decompose import RECURRENT, chunked_cross_entropy, decomposition, expand
from .mutation import Aliases
from .place import module_of, place_of
from .reals import real
from .symbols import Symbols
from .tensors import dtype_of

IGNORED = (  # checks that torch inserts; they compute nothing
    "_assert",
    "_assert_async",
    "_assert_scalar",
    "_assert_tensor_metadata",
    "_functional_sym_constrain_range",
    "_functional_sym_constrain_range_for_size",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
)


class Poison:
    """Stands for a result that could not be made; what reads it is skipped, and reported only where nothing could import it either."""


class Problems:
    """Unsupported things, grouped by text: count and first place."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, what: str, place: str) -> None:
        count, first = self._found.get(what, (0, place))
        self._found[what] = (count + 1, first or place)

    def first(self) -> str:
        return next(iter(self._found), "")

    def check(self) -> None:
        if self._found:
            lines = [f"  {what} x{n}" + (f" (first at {where})" if where else "") for what, (n, where) in sorted(self._found.items())]
            total = sum(n for n, _ in self._found.values())
            raise UnsupportedError(
                f"torch: {total} node{'s' * (total > 1)} of {len(self._found)} kind{'s' * (len(self._found) > 1)} "
                "cannot be imported; rewrite these parts of the model with supported ops:\n" + "\n".join(lines)
            )


class Converter:
    """State of one import: the graph, the environment of the FX graph being walked, and the problems found."""

    def __init__(self, graph: Graph, symbols: Symbols, constants: Constants) -> None:
        self.graph, self.symbols, self.constants = graph, symbols, constants
        self.context = Context(graph, symbols)
        self.problems = Problems()

    def run(self, module: Any, env: dict[Any, Any], outer: str = "") -> list[Any]:
        """Convert the nodes of an FX graph module whose placeholders are bound in `env`; returns what its output node names."""
        aliases = Aliases(module.graph)
        for node in module.graph.nodes:
            if node.op == "output":
                return (
                    [self._resolve(a, env) for a in node.args[0]]
                    if isinstance(node.args[0], (tuple, list))
                    else [self._resolve(node.args[0], env)]
                )
            if node.op == "placeholder":
                if node not in env:
                    raise UnsupportedError(f"torch: graph input {node.name!r} has no value")
            elif node.op == "get_attr":
                env[node] = self._attribute(module, node)
            else:
                env[node] = self._call(module, node, env, place_of(node) or outer)
                for twin in aliases.rebound(node):
                    env[twin] = env[node]
        return []

    def _attribute(self, module: Any, node: Any) -> Any:
        import torch

        found = module
        for part in node.target.split("."):
            found = getattr(found, part)
        return self.constants.value(found, node.target) if isinstance(found, torch.Tensor) else found

    def _call(self, module: Any, node: Any, env: dict[Any, Any], place: str) -> Any:
        import torch

        target, meta = node.target, node.meta.get("val")
        if isinstance(meta, (torch.SymInt, int, float, bool)) and not isinstance(meta, torch.Tensor):
            return self._size(meta, node, place)
        if isinstance(meta, torch.SymBool):
            return Poison()
        if isinstance(meta, torch.SymFloat):
            return self._real(meta, place)
        key = key_of(target)
        if key.split(".")[0] in IGNORED:
            return None
        args = tuple(self._resolve(a, env) for a in node.args)
        kwargs = {k: self._resolve(a, env) for k, a in node.kwargs.items()}
        if _poisoned((args, kwargs)):
            hopeless = isinstance(target, torch._ops.OpOverload) and lookup(key) is None and decomposition(target) is None
            return self._poison(str(target), place) if hopeless else Poison()
        if target is operator.getitem:
            picked = args[0][args[1]]
            return self._poison(picked.what, place) if isinstance(picked, Missing) and node.users else picked
        try:
            if type(target).__name__ in ("WrapWithSetGradEnabled", "WrapWithAutocast"):
                return self._inline(target, args, place)
            before = len(self.context.graph.nodes)
            out = self._op(node, key, args, kwargs, place)
            module_name = module_of(node)
            for made in self.context.graph.nodes[before:]:
                if made.op.faults:  # the outermost of nested decompositions comes last and is what the model says
                    made.place = within(key.partition(".")[0], split(made.place)[1] + module_name)
                elif made.place and " in " not in made.place:
                    made.place += module_name
            return out
        except UnsupportedError as e:
            return self._poison(f"{key}: {e}" if not str(e).startswith("torch: ") else str(e), place)

    def _op(self, node: Any, key: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], place: str) -> Any:
        handler = lookup(key)
        c = self.context
        c.name, c.place, c.meta = node.name, place, node.meta.get("val")
        nothing = self._nothing(node, c)
        if nothing is not None:
            return nothing
        if handler is not None:
            c.args = tuple(_fake(a) for a in node.args)
            out = handler(c, *args, **kwargs)
            if out is not NotImplemented:
                return out
        if decomposition(node.target) is None:
            return self._poison(str(node.target), place)
        module, actual = expand(node)
        places = [n for n in module.graph.nodes if n.op == "placeholder"]
        inner = dict(zip(places, self._actual(actual, node, args, kwargs), strict=True))
        outer, c.recurrent = c.recurrent, c.recurrent or key in RECURRENT
        out = self.run(module, inner, place)
        c.recurrent = outer
        if decomposition(node.target) is chunked_cross_entropy:
            out = [out[0], *(Missing("the gradients that a chunked cross entropy keeps for its backward pass") for _ in out[1:])]
        many = isinstance(node.meta.get("val"), (tuple, list))
        return tuple(out) if many else out[0]

    def _nothing(self, node: Any, c: Context) -> Any:
        """The results of an op that all have no elements, whatever it computes."""
        import torch

        metas = c.meta if isinstance(c.meta, (tuple, list)) else (c.meta,)
        empty = [isinstance(m, torch.Tensor) and any(type(d) is int and d == 0 for d in m.shape) for m in metas]
        if not empty or not all(empty) or node.target._schema.is_mutable:
            return None
        made = tuple(c.expand(c.scalar(0, dtype_of(m.dtype)), self.symbols.shape(m.shape)) for m in metas)
        return made if isinstance(c.meta, (tuple, list)) else made[0]

    def _actual(self, wanted: list[Any], node: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """Our values for the FX nodes in `wanted`, found at the same positions of the resolved arguments."""
        table: dict[Any, Any] = {}

        def walk(a: Any, b: Any) -> None:
            if hasattr(a, "op") and hasattr(a, "meta"):
                table[a] = b
            elif isinstance(a, (tuple, list)):
                for x, y in zip(a, b, strict=True):
                    walk(x, y)

        for a, b in zip(node.args, args, strict=True):
            walk(a, b)
        for k, a in node.kwargs.items():
            walk(a, kwargs[k])
        return [table[w] for w in wanted]

    def _inline(self, target: Any, args: tuple[Any, ...], place: str) -> Any:
        """A region under no_grad or a disabled autocast: its body, as if it stood here."""
        if type(target).__name__ == "WrapWithAutocast":
            _device, _dtype, enabled, _cache, body, *operands = args
            if enabled:
                raise UnsupportedError("an enabled torch.autocast region is not supported; convert the module's dtype instead")
        else:
            _enabled, body, *operands = args
        holes = [n for n in body.graph.nodes if n.op == "placeholder"]
        return tuple(self.run(body, dict(zip(holes, operands, strict=True)), place))

    def _size(self, meta: Any, node: Any, place: str) -> Any:
        if isinstance(meta, (bool, int, float)):
            return meta
        try:
            return self.symbols(meta)
        except UnsupportedError as e:
            return self._poison(str(e), place)

    def _real(self, meta: Any, place: str) -> Any:
        try:
            return real(self.context, meta.node.expr)
        except UnsupportedError as e:
            return self._poison(str(e), place)

    def _poison(self, what: str, place: str) -> Poison:
        self.problems.add(what, place)
        return Poison()

    def _resolve(self, a: Any, env: Mapping[Any, Any]) -> Any:
        import torch

        if isinstance(a, torch.fx.Node):
            found = env[a]
            if isinstance(found, Lazy):
                found = env[a] = found.make()  # type: ignore[index]
            return found
        if isinstance(a, (tuple, list)):
            return type(a)(self._resolve(x, env) for x in a)
        if isinstance(a, torch.SymInt):
            return self.symbols(a)
        return a


class Missing:
    """An output that we do not compute (the statistics of a norm, say); an error only when something reads it."""

    def __init__(self, what: str) -> None:
        self.what = what


class Lazy:
    """A weight that becomes a constant when it is first read, so that unused ones do not enter the graph."""

    def __init__(self, constants: Constants, tensor: Any, name: str) -> None:
        self._args = (constants, tensor, name)

    def make(self) -> Value:
        constants, tensor, name = self._args
        return constants.value(tensor, name)


def _fake(a: Any) -> Any:
    """What torch saw: the fake tensor or size of an FX node, the value itself otherwise."""
    return a.meta.get("val") if hasattr(a, "meta") and hasattr(a, "op") else a


def _poisoned(x: Any) -> bool:
    if isinstance(x, Poison):
        return True
    if isinstance(x, Mapping):
        return any(_poisoned(v) for v in x.values())
    if isinstance(x, Expr):
        return False
    return isinstance(x, (tuple, list)) and any(_poisoned(v) for v in x)
