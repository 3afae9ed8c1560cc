"""Sizes that a file takes for equal although its symbols do not say so.

An exporter declares any height and width, yet the network joins what was halved five times with what was doubled again: it runs for
multiples of 32. `assumption` finds what such a place asks of the symbols: a multiple, a range, a number, or that two symbols are one. A
model is then one compile for all sizes that keep to it; others have compiles of their own.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ...core.dims import UNBOUNDED, Dim, Expr, Symbol, evaluate, substitute, sym, symbols

Pair = tuple[Dim, Dim]
Assumed = dict[str, Dim]  # a symbol's name, and the dim that takes its place
MULTIPLES = range(2, 257)
SAMPLES = sorted({b << k for k in range(24) for b in (1, 3)})


def assumptions(pairs: Sequence[Pair]) -> Iterator[Assumed]:
    """What may be put for symbols so that sizes are equal, the likeliest first. Not all pairs need be sizes that must be equal."""
    together: Assumed = {}
    singles: list[Assumed] = []
    for a, b in pairs:
        found = _equal(substitute(a, together), substitute(b, together))
        if not found:
            continue
        if isinstance(a, Expr) and isinstance(b, Expr):
            together = {n: substitute(d, found) for n, d in together.items()} | {n: d for n, d in found.items() if n not in together}
        else:
            singles.append(found)
    if together:
        yield together
    yield from sorted(singles, key=lambda s: 1 in s.values())  # a size of 1 may only have been broadcast


def _equal(a: Dim, b: Dim) -> Assumed | None:
    """What makes two dims equal; None where nothing of the kind does."""
    found = sorted(symbols(a) | symbols(b), key=lambda s: s.name)
    if a == b or not found:
        return None
    return next((p for p in _candidates(a, b, found) if p and substitute(a, p) == substitute(b, p)), None)


def _candidates(a: Dim, b: Dim, found: list[Symbol]) -> Iterator[Assumed | None]:
    for s in found:
        yield _ranged(a, b, s, {o.name: max(o.lo, min(o.hi, 8)) for o in found})
    if len(found) == 1:
        yield _fixed(a, b, found[0])
    if len(found) == 2:
        lo, hi = max(s.lo for s in found), min(s.hi for s in found)
        if lo <= hi:
            one = sym(found[0].name, lo, hi)
            yield {s.name: one for s in found}
    for s in found:
        yield {s.name: 1} if s.lo <= 1 <= s.hi else None
    for k in MULTIPLES:
        if all(s.hi >= k for s in found):
            yield {s.name: k * sym(s.name, max(1, -(-s.lo // k)), s.hi // k if s.hi < UNBOUNDED else UNBOUNDED) for s in found}


def _ranged(a: Dim, b: Dim, s: Symbol, others: dict[str, int]) -> Assumed | None:
    """The range around the sizes at which both are equal, at some sizes of the other symbols."""
    def same(v: int) -> bool:
        env = {**others, s.name: v}
        return evaluate(a, env) == evaluate(b, env)

    samples = [v for v in SAMPLES if s.lo <= v <= s.hi]
    good = [v for v in samples if same(v)]
    if len(good) < 2:
        return None
    below, above = [v for v in samples if v < good[0]], [v for v in samples if v > good[-1]]
    lo = _edge(below[-1], good[0], same) if below else s.lo
    hi = _edge(above[0], good[-1], same) if above else s.hi
    return {s.name: sym(s.name, lo, hi)}


def _edge(bad: int, good: int, same: Callable[[int], bool]) -> int:
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if same(middle) else (good, middle)
    return good


def _fixed(a: Dim, b: Dim, s: Symbol) -> Assumed | None:
    """The one size a*S + b that equals a number."""
    dim, number = (a, b) if isinstance(b, int) else (b, a)
    if not isinstance(number, int) or not isinstance(dim, Expr):
        return None
    start = evaluate(dim, {s.name: 0})
    slope = evaluate(dim, {s.name: 1}) - start
    value, left = divmod(number - start, slope) if slope else (0, 1)
    return {s.name: value} if not left and s.lo <= value <= s.hi else None


def pairs_of(shapes: Sequence[Sequence[Dim]]) -> list[Pair]:
    """Sizes of a node's operands that stand at one place, counted from the end or from the front."""
    found: dict[Pair, None] = {}
    for i, x in enumerate(shapes):
        for y in shapes[i + 1 :]:
            for a, b in (*zip(reversed(x), reversed(y), strict=False), *zip(x, y, strict=False)):
                if a != b and (isinstance(a, Expr) or isinstance(b, Expr)):
                    found[a, b] = None
    return list(found)
