"""Symbolic dims: an int, or a polynomial over named symbols with ranges.

An `Expr` is a sum of products in normal form, so structural equality is mathematical equality for the polynomial part.
Atoms are symbols and the non-polynomial forms `a//b`, `a%b`, `max(a,b)`, `min(a,b)`. Ranges give proofs (`S >= 1`).
"""
from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import permutations
from math import gcd
from numbers import Integral
from typing import Any

from .errors import ParseError, SizeError
from .records import dataclass
from .syntax import parse_python

UNBOUNDED = 1 << 62
CHOICES = 4  # larger and smaller ones in a sum, at most, of which `bounds` tries every combination


@dataclass(frozen=True)
class Symbol:
    """A named dim with an inclusive range. `tw.Dim("S", 1, 1024)` makes one."""

    name: str
    lo: int = 0
    hi: int = UNBOUNDED

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Call:
    """A non-polynomial atom: `//`, `%`, `max` or `min` of two expressions."""

    fn: str
    a: Expr
    b: Expr

    @cached_property
    def _text(self) -> str:
        return f"{self.fn}({self.a},{self.b})" if self.fn in ("max", "min") else f"(({self.a}){self.fn}({self.b}))"

    def __str__(self) -> str:
        return self._text


Atom = Symbol | Call
Monomial = tuple[Atom, ...]  # sorted by text; () is the constant term


def _foreign(other: Any) -> bool:
    """Whether an operand is no dim: a float, an array or a traced value."""
    return type(other) is not int and type(other) is not Expr and not isinstance(other, Integral)


@dataclass(frozen=True)
class Expr:
    """A polynomial with at least one symbol. Arithmetic with ints and Exprs gives a normal-form Dim (an int when constant); with other
    numbers and arrays, inside a traced function, a traced number (`beyond`, which `transform` gives)."""

    terms: tuple[tuple[Monomial, int], ...]
    __array_ufunc__ = None  # NumPy leaves operators to this class

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def beyond(self, operator: str, other: Any) -> Any:
        """The result of an operator whose other operand is no dim."""
        return NotImplemented

    def __add__(self, other: Dim) -> Dim:
        return self.beyond("__add__", other) if _foreign(other) else _make([*self.terms, *_terms(other)])

    def __mul__(self, other: Dim) -> Dim:
        if _foreign(other):
            return self.beyond("__mul__", other)  # type: ignore[no-any-return]
        return _make([(_merge(m, n), a * b) for m, a in self.terms for n, b in _terms(other)])

    def __sub__(self, other: Dim) -> Dim:
        return self.beyond("__sub__", other) if _foreign(other) else self + -1 * other

    def __rsub__(self, other: int) -> Dim:
        return self.beyond("__rsub__", other) if _foreign(other) else -1 * self + other

    def __truediv__(self, other: Any) -> Any:
        return self.beyond("__truediv__", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.beyond("__rtruediv__", other)

    def __pow__(self, other: Any) -> Any:
        if type(other) is int and 1 <= other <= 8:
            return product([self] * other)
        return self.beyond("__pow__", other)

    def __lt__(self, other: Dim) -> bool:
        return self._decided("<", other, -1 * (self - other) - 1)

    def __le__(self, other: Dim) -> bool:
        return self._decided("<=", other, -1 * (self - other))

    def __gt__(self, other: Dim) -> bool:
        return self._decided(">", other, self - other - 1)

    def __ge__(self, other: Dim) -> bool:
        return self._decided(">=", other, self - other)

    def _decided(self, sign: str, other: Dim, room: Dim) -> bool:
        """Whether room >= 0, where the ranges of the symbols say so."""
        lo, hi = bounds(room)
        if lo >= 0 or hi < 0:
            return lo >= 0
        raise SizeError(f"trace: {self} {sign} {other} depends on a size that is not known while the function is traced; {self._advice()}")

    def __index__(self) -> int:
        raise SizeError(f"trace: the value of the size {self} is needed here, and not known while it is traced; {self._advice()}")

    __int__ = __index__

    def __float__(self) -> float:
        raise SizeError(f"trace: float() needs the value of the size {self}, which is not known while the function is traced; multiply it "
                        "with 1.0")

    def _advice(self) -> str:
        return ("declare tighter limits, tw.Dim(name, lo, hi), leave the axis out of dynamic, or use tw.scan for loops and tw.where for "
                "conditions")

    def __neg__(self) -> Dim:
        return -1 * self

    __radd__ = __add__
    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return self.beyond("__floordiv__", other) if _foreign(other) else floordiv(self, other)

    def __rfloordiv__(self, other: int) -> Dim:
        return self.beyond("__rfloordiv__", other) if _foreign(other) else floordiv(other, self)

    def __mod__(self, other: Dim) -> Dim:
        return self.beyond("__mod__", other) if _foreign(other) else self - floordiv(self, other) * other

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        found: set[Symbol] = set()
        for mono, _ in self.terms:
            for atom in mono:
                found |= {atom} if isinstance(atom, Symbol) else symbols(atom.a) | symbols(atom.b)
        return frozenset(found)

    @cached_property
    def _text(self) -> str:  # what terms are sorted by
        out = ""
        for mono, c in self.terms:
            body = "*".join(str(a) for a in mono)
            text = str(abs(c)) if not mono else body if abs(c) == 1 else f"{abs(c)}*{body}"
            out += ("-" if c < 0 else "+" if out else "") + text
        return out

    def __str__(self) -> str:
        return self._text

    __repr__ = __str__


Dim = int | Expr
Shape = tuple[Dim, ...]


def _key(m: Monomial) -> tuple[int, str]:
    return (-len(m), "*".join(str(a) for a in m))


def _merge(m: Monomial, n: Monomial) -> Monomial:
    return tuple(sorted(m + n, key=str))


def _terms(d: Dim) -> tuple[tuple[Monomial, int], ...]:
    return d.terms if isinstance(d, Expr) else (((), d),)


def _make(terms: list[tuple[Monomial, int]]) -> Dim:
    total: dict[Monomial, int] = {}
    for mono, c in terms:
        total[mono] = total.get(mono, 0) + c
    kept = {m: c for m, c in total.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return Expr(tuple(sorted(kept.items(), key=lambda t: _key(t[0]))))


def _atom(a: Atom) -> Expr:
    return Expr((((a,), 1),))


def sym(name: str, lo: int = 0, hi: int = UNBOUNDED) -> Expr:
    """A fresh symbolic dim. `sym("S", 1, 1024)` is what `tw.Dim` returns."""
    made = integer(name, lo, hi)
    if lo < 0:
        raise ParseError(f"dim: {name} needs 0 <= lo <= hi, got lo={lo}, hi={hi}")
    return made


def integer(name: str, lo: int, hi: int) -> Expr:
    """The same for a number of a call that is no size, and may be negative."""
    if not (isinstance(name, str) and name.isidentifier()):
        raise ParseError(f"dim: a symbol's name must be an identifier, got {name!r}")
    if type(lo) is not int or type(hi) is not int:
        raise ParseError(f"dim: {name} needs integers as its limits, got lo={lo!r}, hi={hi!r}")
    if lo > hi:
        raise ParseError(f"dim: {name} needs 0 <= lo <= hi, got lo={lo}, hi={hi}")
    return _atom(Symbol(name, lo, hi))


def symbols(d: Dim) -> frozenset[Symbol]:
    return d.symbols if isinstance(d, Expr) else frozenset()


def floordiv(a: Dim, b: Dim) -> Dim:
    """a // b, exact where a polynomial division is possible."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if a == 0:
        return 0
    if isinstance(b, int) and b > 0:
        terms = _terms(a)
        whole = _make([(m, c // b) for m, c in terms if c % b == 0 or not m])
        rest = _make([(m, c if m else c % b) for m, c in terms if c % b])
        lo, hi = bounds(rest)
        if 0 <= lo and hi < b:
            return whole
        return whole + _quotient(_as_expr(rest), b)
    exact = _divide(a, b)
    return exact if exact is not None else _atom(Call("//", _as_expr(a), _as_expr(b)))


def _quotient(a: Expr, b: int) -> Dim:
    """a // b in one form: a common factor is taken out, a quotient of a quotient is one quotient, and that of a larger one is the larger
    quotient."""
    constant = dict(a.terms).get((), 0)
    moving = [(m, c) for m, c in a.terms if m]
    common = gcd(b, *(c for _, c in moving))
    if common > 1:
        return floordiv(_make([*((m, c // common) for m, c in moving), ((), constant // common)]), b // common)
    if len(moving) == 1 and moving[0][1] == 1 and len(moving[0][0]) == 1:
        atom = moving[0][0][0]
        if isinstance(atom, Call) and atom.fn == "//" and isinstance(inner := _plain(atom.b), int) and inner > 0:
            return floordiv(_plain(atom.a) + inner * constant, inner * b)
        if isinstance(atom, Call) and atom.fn in ("max", "min"):
            x, y = (floordiv(_plain(side) + constant, b) for side in (atom.a, atom.b))
            return maximum(x, y) if atom.fn == "max" else minimum(x, y)
    return _atom(Call("//", a, _as_expr(b)))


def _divide(a: Dim, b: Dim) -> Dim | None:
    """a / b when b is one monomial that divides every term of a, or a multiple of b as a whole."""
    divisor = _terms(b)
    if len(divisor) == 1:
        mono, c = divisor[0]
        out: list[tuple[Monomial, int]] = []
        for m, k in _terms(a):
            left = list(m)
            for atom in mono:
                if atom not in left:
                    return None
                left.remove(atom)
            if k % c:
                return None
            out.append((tuple(left), k // c))
        return _make(out)
    lead_a, lead_b = _terms(a)[0], divisor[0]
    step = _divide(_make([lead_a]), _make([lead_b]))
    if step is None:
        return None
    rest = a - step * b
    if rest == 0:
        return step
    if isinstance(rest, int) or _key(rest.terms[0][0]) <= _key(lead_a[0]):
        return None
    more = _divide(rest, b)
    return None if more is None else step + more


def _as_expr(d: Dim) -> Expr:
    return d if isinstance(d, Expr) else Expr((((), d),))


def _plain(e: Expr) -> Dim:
    """Undo `_as_expr`: a constant polynomial is its int."""
    return _make(list(e.terms))


def ceildiv(a: Dim, b: Dim) -> Dim:
    return -floordiv(-a, b) if isinstance(a, int) and isinstance(b, int) else floordiv(a + b - 1, b)


def maximum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    if a == b or at_least(a - b, 0):
        return a
    return b if at_least(b - a, 0) else _chosen("max", a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if a == b or at_least(b - a, 0):
        return a
    return b if at_least(a - b, 0) else _chosen("min", a, b)


def _chosen(fn: str, a: Dim, b: Dim) -> Dim:
    """One form for max(0, n-S) and max(S, n)-S: what both have, or one has less of, stands outside; a number is the second."""
    ours, theirs = dict(_terms(a)), dict(_terms(b))
    common = _make([(m, min(ours.get(m, 0), theirs.get(m, 0))) for m in ours | theirs if m])
    first, second = sorted((a - common, b - common), key=lambda d: (isinstance(d, int), str(d)))
    return common + _atom(Call(fn, _as_expr(first), _as_expr(second)))


def bounds(d: Dim) -> tuple[int, int]:
    """Inclusive range that contains every value of d."""
    if isinstance(d, int):
        return d, d
    choices = [(m[0], c) for m, c in d.terms if len(m) == 1 and isinstance(m[0], Call) and m[0].fn in ("max", "min")]
    if len(d.terms) > 1 and 0 < len(choices) <= CHOICES:  # either may be the one, with all that stands beside it
        one, c = choices[0]
        rest = d - c * _atom(one)
        (alo, ahi), (blo, bhi) = bounds(c * _plain(one.a) + rest), bounds(c * _plain(one.b) + rest)
        return (max(alo, blo), max(ahi, bhi)) if (one.fn == "max") == (c > 0) else (min(alo, blo), min(ahi, bhi))
    if (pair := _close_quotients(d)) is not None:
        near, times, (least, most) = pair
        lo, hi = bounds(d - times * near)
        ends = times * least, times * most
        return max(lo + min(ends), -UNBOUNDED), min(hi + max(ends), UNBOUNDED)
    if (found := _remainder(d)) is not None:
        rest, low, high = found
        lo, hi = bounds(rest)
        return max(lo + low, -UNBOUNDED), min(hi + high, UNBOUNDED)
    lo = hi = 0
    for mono, c in d.terms:
        mlo, mhi = 1, 1
        for atom in mono:
            alo, ahi = _atom_bounds(atom)
            corners = (mlo * alo, mlo * ahi, mhi * alo, mhi * ahi)
            mlo, mhi = min(corners), max(corners)
        lo, hi = lo + min(c * mlo, c * mhi), hi + max(c * mlo, c * mhi)
    return max(lo, -UNBOUNDED), min(hi, UNBOUNDED)


def _close_quotients(d: Expr) -> tuple[Dim, int, tuple[int, int]] | None:
    """Two quotients of which d has the difference k * (x // n) - (k*x + r) // n: it, how often, and its ends."""
    found = [(m[0], c) for m, c in d.terms if len(m) == 1 and isinstance(m[0], Call) and m[0].fn == "//"]
    for (one, c), (other, e) in permutations(found, 2):
        if c * e < 0 and one.b == other.b and isinstance(n := _plain(one.b), int) and n > 0:
            k = other.a.terms[0][1] // one.a.terms[0][1]
            if k > 0 and abs(c) >= k and isinstance(r := _plain(other.a) - k * _plain(one.a), int):
                times = min(abs(c) // k, abs(e)) * (1 if c > 0 else -1)
                return k * _atom(one) - _atom(other), times, (-((k * (n - 1) + r) // n), -(r // n))
    return None


def _remainder(d: Expr) -> tuple[Dim, int, int] | None:
    """A multiple of a remainder a - n * (a // n) that d has: d without it, and the ends of the multiple."""
    for mono, c in d.terms:
        if len(mono) == 1 and isinstance(one := mono[0], Call) and one.fn == "//" and isinstance(n := _plain(one.b), int) and n > 0:
            rest = d + c // n * (_plain(one.a) - n * _atom(one))
            if c % n == 0 and _moving(rest) + _moving(one.a) < _moving(d):
                return rest, min(0, most := -(c // n) * (n - 1)), max(0, most)
    return None


def _moving(d: Dim) -> int:
    return sum(mono != () for mono, _ in _terms(d))


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.lo, atom.hi
    (alo, ahi), (blo, bhi) = bounds(_plain(atom.a)), bounds(_plain(atom.b))
    if atom.fn == "max":
        return max(alo, blo), max(ahi, bhi)
    if atom.fn == "min":
        return min(alo, blo), min(ahi, bhi)
    if blo <= 0:
        return -UNBOUNDED, UNBOUNDED
    corners = [x // y for x in (alo, ahi) for y in (blo, bhi)]
    return min(corners), max(corners)


def at_least(d: Dim, n: int) -> bool:
    """Provably d >= n for every value of its symbols."""
    return bounds(d)[0] >= n


def at_most(d: Dim, n: int) -> bool:
    return bounds(d)[1] <= n


def divisible(d: Dim, n: int) -> bool:
    """Provably a multiple of n."""
    return all(c % n == 0 for _, c in _terms(d))


def evaluate(d: Dim, env: Mapping[str, int]) -> int:
    """The value of d with each symbol's name looked up in env."""
    if isinstance(d, int):
        return d
    total = 0
    for mono, c in d.terms:
        for atom in mono:
            c *= env[atom.name] if isinstance(atom, Symbol) else _evaluate_call(atom, env)
        total += c
    return total


_CALLS: dict[str, Callable[[int, int], int]] = {"//": lambda a, b: a // b, "%": lambda a, b: a % b, "max": max, "min": min}


def _evaluate_call(call: Call, env: Mapping[str, int]) -> int:
    return _CALLS[call.fn](evaluate(call.a, env), evaluate(call.b, env))


def substitute(d: Dim, env: Mapping[str, Dim]) -> Dim:
    """d with symbols replaced; symbols not in env stay."""
    if isinstance(d, int):
        return d
    total: Dim = 0
    for mono, c in d.terms:
        part: Dim = c
        for atom in mono:
            if isinstance(atom, Symbol):
                part = part * env.get(atom.name, _atom(atom))
            else:
                a, b = substitute(_plain(atom.a), env), substitute(_plain(atom.b), env)
                part = part * {"//": floordiv, "max": maximum, "min": minimum}[atom.fn](a, b)
        total = total + part
    return total


def product(dims: tuple[Dim, ...] | list[Dim]) -> Dim:
    out: Dim = 1
    for d in dims:
        out = out * d
    return out


MOST_TERMS, MOST_FACTORS, LARGEST = 64, 16, 1 << 62


def readable(d: Dim) -> Dim:
    """`d`, which stood in a text: ParseError where it is larger than any model's. Products of long sums would take for ever."""
    terms = _terms(d)
    if len(terms) > MOST_TERMS or any(len(m) > MOST_FACTORS or abs(c) > LARGEST for m, c in terms):
        raise ParseError(f"dim: must have at most {MOST_TERMS} terms of {MOST_FACTORS} factors and numbers of 62 bits, got {d!s:.60}")
    return d


class DimRows:
    """Dims as rows of plain data, each with the rows it is made of before it: read in a fraction of the time that their text takes."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._found: dict[Expr, int] = {}

    def number(self, e: Expr) -> int:
        if e not in self._found:
            row = [[c, [a.name if isinstance(a, Symbol) else [a.fn, self.number(a.a), self.number(a.b)] for a in m]] for m, c in e.terms]
            self._found[e] = len(self.rows)
            self.rows.append(row)
        return self._found[e]


def read_rows(rows: Iterable[Any], known: Mapping[str, Expr]) -> list[Expr]:
    """What a table wrote; symbols come from `known`."""
    found: list[Expr] = []
    calls: dict[tuple[str, int, int], Call] = {}
    atoms: dict[str, Atom] = {n: e.terms[0][0][0] for n, e in known.items()}

    def atom(a: Any) -> Atom:
        if isinstance(a, str):
            return atoms[a]
        key = (str(a[0]), int(a[1]), int(a[2]))
        if key not in calls:
            if key[0] not in _CALLS:
                raise ParseError(f"dim: there is no operation {a[0]!r:.20}")
            calls[key] = Call(key[0], found[key[1]], found[key[2]])
        return calls[key]

    for row in rows:
        found.append(Expr(tuple((tuple(map(atom, m)), int(c)) for c, m in row)))
    return found


def parse_dim(text: str, known: Mapping[str, Expr]) -> Dim:
    """Read what `str(dim)` wrote; symbols come from `known`.

    >>> S = sym("S", 1, 8); parse_dim("2*S+1", {"S": S}) == 2 * S + 1
    True
    """
    try:
        tree = parse_python(text, mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as e:  # the last two: brackets in brackets
        raise ParseError(f"dim: cannot read {text!r:.60}") from e

    def walk(n: ast.expr) -> Dim:
        if isinstance(n, ast.Constant) and type(n.value) is int:
            return readable(n.value)
        if isinstance(n, ast.Name) and n.id in known:
            return known[n.id]
        if isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub):
            return -walk(n.operand)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in ("max", "min") and len(n.args) == 2:
            return (maximum if n.func.id == "max" else minimum)(walk(n.args[0]), walk(n.args[1]))
        if isinstance(n, ast.BinOp):
            a, b = walk(n.left), walk(n.right)
            match n.op:
                case ast.Add():
                    return readable(a + b)
                case ast.Sub():
                    return readable(a - b)
                case ast.Mult():
                    return readable(a * b)
                case ast.FloorDiv() if b != 0:
                    return floordiv(a, b)
        raise ParseError(f"dim: cannot read {text!r:.60}; known symbols: {' '.join(known) or 'none'}")

    return walk(tree)
