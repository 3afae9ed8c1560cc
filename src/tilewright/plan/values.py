"""All dim expressions of a program, evaluated at once: one generated Python function per program.

A new shape needs every size, offset, stride and grid again. Evaluating each expression by walking it costs milliseconds; the
generated function shares equal sub-expressions and costs microseconds.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..core.dims import Call, Dim, Expr, Symbol


def dim_source(dim: Dim, names: Mapping[str, str]) -> str:
    """A Python expression for `dim`, with the symbols' names replaced (symbol -> variable)."""
    if isinstance(dim, int):
        return str(dim)

    def atom(a: Symbol | Call) -> str:
        if isinstance(a, Symbol):
            return names[a.name]
        x, y = dim_source(a.a, names), dim_source(a.b, names)
        return f"{a.fn}({x}, {y})" if a.fn in ("max", "min") else f"({x} {a.fn} {y})"

    terms = ["*".join([*([str(c)] if c != 1 or not mono else []), *map(atom, mono)]) for mono, c in dim.terms]
    return terms[0] if len(dim.terms) == 1 and "*" not in terms[0] else f"({' + '.join(terms)})"


class DimTable:
    """Distinct dims, each with a number. `compile` gives `f(env) -> list of all values`."""

    def __init__(self, symbols: Sequence[Symbol]) -> None:
        self.symbols = tuple(symbols)
        self.dims: list[Dim] = []
        self._index: dict[Dim, int] = {}

    def add(self, dim: Dim) -> int:
        """The number under which the value of `dim` will be found."""
        found = self._index.get(dim)
        if found is None:
            found = self._index[dim] = len(self.dims)
            self.dims.append(dim)
        return found

    def source(self) -> str:
        """The text of the generated function. Symbols are renamed, so no name of a user reaches the source."""
        names = {s.name: f"s{i}" for i, s in enumerate(self.symbols)}
        lines = [f"def values({', '.join(names.values())}):"]
        known: dict[Expr | Call, str] = {}

        def expr(e: Expr) -> str:
            if e not in known:
                parts = ["*".join([str(c), *map(atom, mono)]) for mono, c in e.terms]
                known[e] = f"v{len(known)}"
                lines.append(f"    {known[e]} = {' + '.join(parts)}")
            return known[e]

        def atom(a: Symbol | Call) -> str:
            if isinstance(a, Symbol):
                return names[a.name]
            if a not in known:
                x, y = expr(a.a), expr(a.b)
                known[a] = f"v{len(known)}"
                lines.append(f"    {known[a]} = " + (f"{a.fn}({x}, {y})" if a.fn in ("max", "min") else f"{x} {a.fn} {y}"))
            return known[a]

        shown = [str(d) if isinstance(d, int) else expr(d) for d in self.dims]
        lines.append(f"    return [{', '.join(shown)}]")
        return "\n".join(lines)

    def compile(self) -> Callable[[Mapping[str, int]], list[int]]:
        if not any(isinstance(d, Expr) for d in self.dims):
            fixed = [d for d in self.dims if isinstance(d, int)]
            return lambda _: fixed
        scope: dict[str, Any] = {}
        exec(self.source(), {"__builtins__": {}, "max": max, "min": min}, scope)
        function, order = scope["values"], [s.name for s in self.symbols]
        return lambda env: function(*[env[n] for n in order])
