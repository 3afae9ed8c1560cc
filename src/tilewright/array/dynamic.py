"""`tw.jit(f, dynamic={"x": {0: "N"}})`: axes whose sizes are symbols in the traced function, so that one program serves all of them."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.dims import Dim, Expr, Symbol
from ..core.dynamic import Tensor, declared, linear, named
from ..core.errors import ConfigError, InputError
from ..core.pytree import Spec, unflatten
from ..ir.types import TensorType
from ..transform.trace import Leaf


def positional(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's positional parameters, where they are known."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


class Dynamic:
    """The declaration of one function: parameter names or positions -> {axis: dim}, nested as the arguments are."""

    def __init__(self, fn: Callable[..., Any], tree: Any) -> None:
        if not isinstance(tree, Mapping):
            raise ConfigError(f"dynamic: must be a mapping from names to {{axis: tw.Dim(...)}}, got {tree!r}")
        self.tree: dict[str | int, Any] = named(tree)
        self.name, self.params = getattr(fn, "__name__", "function"), positional(fn)
        try:
            every = inspect.signature(fn).parameters
        except (ValueError, TypeError):
            return
        open_ = {p.kind for p in every.values()} & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
        for key in self.tree:
            if not open_ and key not in every and not (type(key) is int and 0 <= key < len(self.params)):
                raise ConfigError(f"dynamic: there is no argument {key!r}; the arguments are {', '.join(every) or 'none'}")

    def applied(self, spec: Spec, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, int]]:
        """The types of a call's leaves with symbols for their dynamic sizes, and the values of these in the call."""
        numbered = [Tensor(i, x.type.shape) if isinstance(x, Leaf) and not x.weak else x for i, x in enumerate(leaves)]
        args, kwargs = unflatten(spec, numbered)
        values: dict[str | int, Any] = {**dict(enumerate(args)), **dict(zip(self.params, args, strict=False)), **kwargs}
        made, sizes, seen = list(leaves), dict[str, int](), dict[str, tuple[Symbol, str]]()
        for key, tree in self.tree.items():
            if key not in values:
                continue  # an argument that has a default
            for axis in declared(tree, values[key], key if isinstance(key, str) else f"args[{key}]"):
                given = axis.tensor.shape[axis.axis]
                symbol, size = self._solved(axis.dim, given, axis.where)
                known, where = seen.setdefault(symbol.name, (symbol, axis.where))
                if known != symbol:
                    raise ConfigError(f"dynamic: two dims are called {symbol.name} but have different ranges; use one Dim")
                if sizes.setdefault(symbol.name, size) != size:
                    raise InputError(f"jit: {self.name}: {axis.where} must be {axis.dim} with {symbol.name} = {sizes[symbol.name]} (from "
                                     f"{where}), got {given}")
                old = made[axis.tensor.index]
                shape: list[Dim] = list(old.type.shape)
                shape[axis.axis] = axis.dim
                made[axis.tensor.index] = Leaf(TensorType(old.type.dtype, tuple(shape)))
        return made, sizes

    def _solved(self, dim: Any, given: int, where: str) -> tuple[Symbol, int]:
        """The symbol of a dim and its value where the axis has `given` elements."""
        if not isinstance(dim, Expr) or len(dim.symbols) != 1:
            raise ConfigError(f"dynamic: {where} needs a name or a tw.Dim (or a*dim + b of one), got {dim!r}")
        (symbol,), (factor, offset) = dim.symbols, linear(dim)
        size, rest = divmod(given - offset, factor)
        if rest or not symbol.lo <= size <= symbol.hi:
            upper = f" <= {symbol.hi}" if symbol.hi < 1 << 62 else ""
            raise InputError(f"jit: {self.name}: {where} must be {dim} with {symbol.lo} <= {symbol.name}{upper}, got {given}")
        return symbol, size
