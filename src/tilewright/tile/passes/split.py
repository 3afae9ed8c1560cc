"""Loop splitting: how edge masks leave the main loop."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import INDEX, Block, Instr, Kernel, Operand, TileType, Var
from .base import Cloner, Emitter, TilePass, exchange, limit_start, size


@dataclass(frozen=True)
class Affine:
    """Sum of coefficient * value, and a constant. No coefficient is zero."""

    terms: tuple[tuple[Var, int], ...]
    constant: int = 0

    def plus(self, other: Affine | int, factor: int = 1) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + factor * other)
        terms = dict(self.terms)
        for v, c in other.terms:
            terms[v] = terms.get(v, 0) + factor * c
        return Affine(tuple((v, c) for v, c in terms.items() if c), self.constant + factor * other.constant)

    def times(self, factor: int) -> Affine:
        return Affine(tuple((v, c * factor) for v, c in self.terms) if factor else (), self.constant * factor)

    def coefficient(self, v: Var) -> int:
        return next((c for w, c in self.terms if w is v), 0)

    def without(self, v: Var) -> Affine:
        return Affine(tuple((w, c) for w, c in self.terms if w is not v), self.constant)

    def emit(self, e: Emitter) -> Operand:
        """Instructions that compute the value."""
        out: Operand = self.constant
        for v, c in self.terms:
            if c == -1:
                out = e.index("sub", out, v)
            else:
                out = e.index("add", out, e.index("mul", v, c))
        return out


class Forms:
    """Affine forms of the index values inside one loop, on demand."""

    def __init__(self, block: Block) -> None:
        self.counter = block.params[0]
        self.makers: dict[Var, Instr | None] = dict.fromkeys(block.params)
        self._collect(block)
        self.known: dict[Var, Affine | None] = {}

    def _collect(self, block: Block) -> None:
        for i in block.body:
            for r in i.results:
                self.makers[r] = i
            for b in i.blocks:
                self.makers.update(dict.fromkeys(b.params))
                self._collect(b)

    def of(self, x: Operand) -> Affine | None:
        """The form of x, or None when it is not affine in the counter."""
        if not isinstance(x, Var):
            return Affine((), x)
        if x is self.counter or x not in self.makers:
            return Affine(((x, 1),))
        if x not in self.known:
            self.known[x] = self._derive(self.makers[x])
        return self.known[x]

    def _derive(self, i: Instr | None) -> Affine | None:
        if i is None or i.op not in ("index.add", "index.sub", "index.mul") or i.results[0].type != INDEX:
            return None
        a, b = self.of(i.operands[0]), self.of(i.operands[1])
        if a is None or b is None:
            return None
        if i.op == "index.mul":
            return a.times(b.constant) if not b.terms else b.times(a.constant) if not a.terms else None
        return a.plus(b, 1 if i.op == "index.add" else -1)

    def bounds(self, x: Operand, at_least: int) -> list[Operand]:
        """Values that must all be >= at_least for x to be: x itself, or what an `index.min` with a large enough literal leaves."""
        maker = self.makers.get(x) if isinstance(x, Var) else None
        if maker is None or maker.op != "index.min":
            return [x]
        out: list[Operand] = []
        for o in maker.operands:
            if not (isinstance(o, int) and o >= at_least):
                out += self.bounds(o, at_least)
        return out


_HEAVY = frozenset(("load", "store", "mma", "reduce", "gather", "atomic"))


@dataclass(frozen=True)
class _Condition:
    """Holds for the first `max(count, 0) // divisor` values of counter - start (of step 1), the opposite afterwards."""

    count: Affine  # start is already subtracted
    divisor: int
    conditions: tuple[tuple[Var, bool], ...] = ()  # `if` conditions and their value in the first part
    full: tuple[tuple[Instr, int], ...] = ()  # limits that take in the whole tile in the first part


@dataclass(frozen=True)
class SplitLoops(TilePass):
    """Before: any kernel.  After: a loop whose counter decides a condition (an `if` on an index comparison, or a limit of a load or
    store) in an affine way is two loops, in each of which the condition is known: main loops have no masks.

    The split point is `start + ceil((split - start)/step) * step`, clamped to the loop's range (so an early split point cannot underflow);
    a half that is empty for literal bounds vanishes. Only loops whose body touches memory, contracts or reduces, or has at least `min_size`
    instructions, and at most `max_size`, are split, into at most `max_parts`. Split loops carry the attribute `split`
    ("main", "tail") and are not split again. Iterations keep their order and bits.
    """

    name = "split"
    min_size: int = 16
    max_size: int = 1024
    max_parts: int = 4

    def run(self, kernel: Kernel) -> int:
        return exchange(kernel.body, lambda i: self._split(i) if i.op == "for" and "split" not in i.attrs else None)

    def _split(self, i: Instr) -> tuple[list[Instr], dict[Var, Operand]] | None:
        """The loops that replace loop i, and what its results became."""
        n = size(i.blocks[0])
        if n > self.max_size or not (n >= self.min_size or _heavy(i.blocks[0])) or not _conditions(i):
            return None
        out: list[Instr] = []
        pending: list[tuple[Instr, bool]] = [(i, True)]  # loops in order of execution, last first; may limits still split it?
        values: dict[Var, Operand] = {}
        parts = 1
        while pending:
            loop, limits = pending.pop()
            loop.operands = [_chase(values, o) for o in loop.operands]
            loop.tokens = tuple(_token(values, t) for t in loop.tokens)
            found = [c for c in _conditions(loop) if limits or not c.full]
            if not found or parts >= self.max_parts:
                loop.attrs = {**loop.attrs, "split": "main" if not _conditions(loop) else "tail"}
                if loop.attrs["split"] == "tail":
                    loop.attrs.pop("unroll", None)
                out.append(loop)
                continue
            halves, before = self._halve(loop, found[0], values)
            out += before
            parts += len(halves) - 1
            split_by_limits = bool(found[0].full)
            pending += [(half, limits and not (split_by_limits and second)) for half, second in reversed(halves)]
        return out, values

    def _halve(self, i: Instr, c: _Condition, values: dict[Var, Operand]) -> tuple[list[tuple[Instr, bool]], list[Instr]]:
        """Two loops, each with whether it is the second (fewer when a half is empty for literal bounds), and the instructions that compute
        where they meet."""
        e = Emitter()
        start, stop, *carried = i.operands
        count = e.index("floordiv", e.index("max", c.count.emit(e), 0), c.divisor)
        step = i.attrs["step"]
        whole = e.index("mul", e.ceildiv(count, step), step)
        middle = e.index("min", e.index("add", start, whole), stop)
        first_empty = isinstance(start, int) and isinstance(middle, int) and start >= middle
        second_empty = middle is stop or (isinstance(middle, int) and isinstance(stop, int) and middle >= stop)
        halves: list[tuple[Instr, bool]] = []
        tokens = i.tokens
        last = second_empty or first_empty
        if not first_empty:
            truth, full = dict(c.conditions), set(c.full)
            first = _part(i, start, middle, carried, tokens, truth, full, keep_results=last)
            halves.append((first, False))
            carried, tokens = list[Operand](first.results), first.tokens_out
        if not second_empty:
            truth = {v: not held for v, held in c.conditions}
            halves.append((_part(i, middle, stop, carried, tokens, truth, set(), keep_results=True), True))
        if not halves:
            values.update(zip(i.results, carried, strict=True))
            values.update(zip(i.tokens_out, tokens, strict=True))
        return halves, e.out


def _part(i: Instr, start: Operand, stop: Operand, carried: list[Operand], tokens: tuple[Var, ...], truth: dict[Var, bool],
          full: set[tuple[Instr, int]], *, keep_results: bool) -> Instr:
    clone = Cloner({}, truth, full)
    block = clone.block(i.blocks[0])
    results = list(i.results) if keep_results else [Var(r.type, r.name) for r in i.results]
    passed = i.tokens_out if keep_results else tuple(Var(t.type, t.name) for t in i.tokens_out)
    return Instr("for", [start, stop, *carried], {k: v for k, v in i.attrs.items() if k != "nonempty"}, results, [block], tokens, passed)


def _conditions(i: Instr) -> list[_Condition]:
    """What the counter of loop i decides: each `if` condition, then all limits as one."""
    forms = Forms(i.blocks[0])
    start = forms.of(i.operands[0])
    assert start is not None
    ifs: dict[tuple[Affine, int], list[tuple[Var, bool]]] = {}
    limits: dict[Affine, list[tuple[Instr, int]]] = {}

    def visit(block: Block) -> None:
        for inner in block.body:
            if inner.op == "if":
                found = _compare(forms, inner.operands[0], start)
                if found is not None:
                    count, divisor, held = found
                    ifs.setdefault((count, divisor), []).append((inner.operands[0], held))  # type: ignore[arg-type]
            elif inner.op in ("load", "store") and "limits" in inner.attrs:
                _limit(forms, inner, start, limits)
            for b in inner.blocks:
                visit(b)

    visit(i.blocks[0])
    out = [_Condition(count, divisor, tuple(dict.fromkeys(held))) for (count, divisor), held in ifs.items()]
    if limits:
        # One split serves one bound; the bound that most accesses share comes first.
        count, places = max(limits.items(), key=lambda item: len(item[1]))
        out.append(_Condition(count, 1, full=tuple(places)))
    return out


def _compare(forms: Forms, condition: Operand, start: Affine) -> tuple[Affine, int, bool] | None:
    """(count, divisor, value in the first part) of a condition that the counter decides."""
    maker = forms.makers.get(condition) if isinstance(condition, Var) else None
    if maker is None or maker.op != "index.cmp" or maker.attrs["fn"] in ("eq", "ne"):
        return None
    a, b = forms.of(maker.operands[0]), forms.of(maker.operands[1])
    if a is None or b is None:
        return None
    fn = maker.attrs["fn"]
    form = a.plus(b, -1) if fn in ("lt", "le") else b.plus(a, -1)
    if fn in ("le", "ge"):
        form = form.plus(-1)  # now: holds where form < 0
    c, rest = form.coefficient(forms.counter), form.without(forms.counter)
    if c == 0:
        return None
    if c > 0:  # holds where counter - start < ceil((-rest - c*start) / c)
        return rest.times(-1).plus(start, -c).plus(c - 1), c, True
    return rest.plus(start, c).plus(-c), -c, False  # fails where counter - start < floor((rest - |c|*start) / |c|) + 1


def _limit(forms: Forms, i: Instr, start: Affine, out: dict[Affine, list[tuple[Instr, int]]]) -> None:
    tile = i.results[0].type if i.op == "load" else i.operands[-1].type  # type: ignore[union-attr]
    assert isinstance(tile, TileType)
    first = limit_start(i)
    for n, axis in enumerate(i.attrs["limits"]):
        extent = tile.shape[axis]
        bounds = forms.bounds(i.operands[first + n], extent)
        form = forms.of(bounds[0]) if len(bounds) == 1 else None
        if form is None or form.coefficient(forms.counter) != -1:
            continue
        # full while rest - counter >= extent: counter - start < rest - extent - start + 1
        count = form.without(forms.counter).plus(-extent).plus(start, -1).plus(1)
        out.setdefault(count, []).append((i, axis))


def _heavy(block: Block) -> bool:
    return any(i.op in _HEAVY or any(_heavy(b) for b in i.blocks) for i in block.body)


def _chase(values: dict[Var, Operand], x: Operand) -> Operand:
    while isinstance(x, Var) and x in values:
        x = values[x]
    return x


def _token(values: dict[Var, Operand], t: Var) -> Var:
    found = _chase(values, t)
    assert isinstance(found, Var) and found.type != INDEX
    return found
