"""torch's symbolic sizes (sympy expressions over s0, s1, …) as our dims, with the user's names and ranges."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ...core.dims import UNBOUNDED, Dim, Expr, floordiv, integer, maximum, minimum, sym, symbols
from ...core.errors import CompileError, UnsupportedError


class Symbols:
    """Which of our symbols each torch symbol is; converts SymInts and sympy expressions."""

    def __init__(self, ranges: dict[Any, Any] | None = None) -> None:
        self._known: dict[Any, Dim] = {}  # sympy expression -> dim; starts with symbols, then caches
        self._ranges = ranges or {}
        self._names: dict[str, tuple[Any, str]] = {}  # our name -> torch's symbol, and where it was declared

    def bind(self, expr: Any, ours: Expr, where: str) -> None:
        """Record that torch's `expr`, at `where`, is our `ours` (a symbol, or `a*symbol + b`)."""
        free = list(getattr(expr, "free_symbols", ()))
        if not free:
            raise CompileError(
                f"torch.export: {where} was declared dynamic ({ours}) but the model fixes it to {expr}; declare it static, "
                "or give an example of another size"
            )
        if len(free) != 1 or len(symbols(ours)) != 1:
            raise CompileError(f"torch.export: {where} is {expr}; a dynamic dim must depend on one symbol, got {ours}")
        (ours_root,) = symbols(ours)
        root = Expr((((ours_root,), 1),))
        theirs = free[0]
        if theirs in self._known and self._known[theirs] != root:
            raise CompileError(
                f"torch.export: {where} must equal {self._known[theirs]}, got another symbol {ours_root}; use one Dim for both"
            )
        other, first = self._names.setdefault(ours_root.name, (theirs, where))
        if other != theirs:
            raise CompileError(f"torch.export: {ours_root} stands for two sizes that differ, {first} and {where}; use two Dims")
        self._known[theirs] = root
        if self.dim(expr) != ours:
            raise CompileError(f"torch.export: {where} is {self.dim(expr)} but was declared as {ours}")

    def name(self, symbol: Any, wanted: str, where: str) -> None:
        """Call torch's `symbol` by a name that its user knows, unless it has one already."""
        if symbol in self._known:
            return
        while wanted in self._names:
            wanted += "_"
        self._names[wanted] = (symbol, where)
        self._known[symbol] = self._fresh(symbol, wanted)

    def fix(self, symbol: Any, dim: Dim) -> None:
        """From now on `symbol` is `dim`."""
        self._known = {k: v for k, v in self._known.items() if symbol not in getattr(k, "free_symbols", ())} | {symbol: dim}

    def __call__(self, size: Any) -> Dim:
        """A dim from an int, a SymInt or a sympy expression."""
        if isinstance(size, int):
            return size
        node = getattr(size, "node", None)
        return self.dim(node.expr if node is not None else size)

    def shape(self, sizes: Any) -> tuple[Dim, ...]:
        return tuple(s if type(s) is int else self(s) for s in sizes)

    def dim(self, expr: Any) -> Dim:
        found = self._known.get(expr)
        if found is None:
            found = self._known[expr] = self._convert(expr)
        return found

    def _convert(self, e: Any) -> Dim:
        if e.is_Integer:
            return int(e)
        if e.is_Symbol:
            return self._fresh(e)
        kind = type(e).__name__
        if kind in ("Max", "Min") and any(self._negative(s) for s in e.free_symbols):
            raise UnsupportedError(f"torch: {e} of a number that may be negative is not supported")
        if kind in ("Add", "Mul", "Max", "Min"):
            parts = [self.dim(a) for a in e.args]
            out = parts[0]
            for p in parts[1:]:
                out = {"Add": lambda a, b: a + b, "Mul": lambda a, b: a * b, "Max": maximum, "Min": minimum}[kind](out, p)
            return out
        if kind == "Pow" and e.args[1].is_Integer and int(e.args[1]) >= 0:
            base, out = self.dim(e.args[0]), 1
            for _ in range(int(e.args[1])):
                out = out * base
            return out
        if kind in ("FloorDiv", "CleanDiv"):
            return floordiv(self.dim(e.args[0]), self.dim(e.args[1]))
        if kind in ("Mod", "PythonMod"):
            a, b = self.dim(e.args[0]), self.dim(e.args[1])
            return a - floordiv(a, b) * b
        if kind in ("TruncToInt", "FloorToInt") and (scaled := self._scaled(e.args[0])) is not None:
            return scaled
        raise UnsupportedError(f"torch: size {e} uses {kind}; supported: + - * // % max min")

    def _scaled(self, e: Any) -> Dim | None:
        """The integer part of a size times a float of few bits (a resize by 1.5), which floats compute exactly."""
        factors = e.args if type(e).__name__ in ("Mul", "FloatMul") or e.is_Mul else (e,)
        sizes = [a for a in factors if type(a).__name__ == "ToFloat"]
        numbers = [a for a in factors if a.is_Number]
        if len(sizes) != 1 or len(sizes) + len(numbers) != len(factors) or any(self._negative(s) for s in e.free_symbols):
            return None
        factor = Fraction(1)
        for a in numbers:
            factor *= Fraction(float(a))
        if factor <= 0 or factor.denominator > 64:
            return None
        return floordiv(self.dim(sizes[0].args[0]) * factor.numerator, factor.denominator)

    def _fresh(self, symbol: Any, ours: str | None = None) -> Dim:
        name = str(symbol)
        if name.startswith(("u", "zuf", "f")) and symbol not in self._ranges:
            raise UnsupportedError(f"torch: size {name} depends on the data; only sizes that follow from input shapes are supported")
        limits = self._ranges.get(symbol)
        if limits is None:
            return sym(ours or name)
        lo = max(int(limits.lower), -UNBOUNDED) if limits.lower.is_Integer else -UNBOUNDED
        hi = min(int(limits.upper), UNBOUNDED) if limits.upper.is_Integer else UNBOUNDED
        return integer(ours or name, lo, hi)

    def _negative(self, symbol: Any) -> bool:
        """Whether a symbol may be below 0: a number that a caller gave, never a size."""
        limits = self._ranges.get(symbol)
        return limits is not None and not (limits.lower.is_Integer and int(limits.lower) >= 0)
