"""Values with operators over FunctionText, so that the vector math reads like mathematics; and the few exact building blocks it shares.

A `V` is a value of float, double, integer or i1 type, scalar or vector, in one or more parts of the same type: every operation is
emitted for all parts in turn, which interleaves their dependency chains (one chain of 20 instructions of 4 cycles each leaves most of
the CPU idle). Python numbers on the other side of an operator become constants.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..llvm_text import FunctionText, bits, element, lanes, like, mangle


def _operator(fname: str, iname: str, *, swap: bool = False) -> Callable[[V, V | float], V]:
    """A method of `V`: an instruction of floats, and one of integers."""
    return lambda x, o: x._op(fname, iname, o, swap=swap)


def _comparison(fpred: str, ipred: str) -> Callable[[V, V | float], V]:
    return lambda x, o: x._cmp(fpred, ipred, o)


@dataclass(frozen=True, eq=False)
class V:
    f: FunctionText
    ty: str  # the type of one part
    parts: tuple[str, ...]

    # -- making -------------------------------------------------------------------------------------------------------
    def const(self, value: float) -> V:
        return V(self.f, self.ty, (self.f.splat(self.ty, value),) * len(self.parts))

    def _other(self, o: V | float) -> V:
        return o if isinstance(o, V) else self.const(o)

    def _op(self, fname: str, iname: str, o: V | float, *, swap: bool = False) -> V:
        a, b = self, self._other(o)
        if swap:
            a, b = b, a
        name = fname if self.is_float else iname
        return V(self.f, self.ty, tuple(self.f.op(name, self.ty, x, y) for x, y in zip(a.parts, b.parts, strict=True)))

    def call(self, intrinsic: str, *args: V | tuple[str, str]) -> V:
        """Call an intrinsic by its full name with self first; other arguments are values, or (type, text) the same for all parts."""
        out = []
        for k, part in enumerate(self.parts):
            rest = [(a.ty, a.parts[k]) if isinstance(a, V) else a for a in args]
            out.append(self.f.intrinsic(intrinsic, self.ty, [(self.ty, part), *rest]))
        return V(self.f, self.ty, tuple(out))

    def overloaded(self, stem: str, *args: V) -> V:
        return self.call(f"{stem}.{mangle(self.ty)}", *args)

    @property
    def is_float(self) -> bool:
        return element(self.ty) in ("float", "double")

    @property
    def is_double(self) -> bool:
        return element(self.ty) == "double"

    # -- arithmetic ---------------------------------------------------------------------------------------------------
    __add__ = __radd__ = _operator("fadd", "add")
    __sub__, __rsub__ = _operator("fsub", "sub"), _operator("fsub", "sub", swap=True)
    __mul__ = __rmul__ = _operator("fmul", "mul")
    __truediv__, __rtruediv__ = _operator("fdiv", "sdiv"), _operator("fdiv", "sdiv", swap=True)

    def __neg__(self) -> V:
        return V(self.f, self.ty, tuple(self.f.fneg(self.ty, p) for p in self.parts)) if self.is_float else 0 - self

    def fma(self, b: V | float, c: V | float) -> V:
        """self * b + c"""
        operands = zip(self.parts, self._other(b).parts, self._other(c).parts, strict=True)
        return V(self.f, self.ty, tuple(self.f.fma(self.ty, *o) for o in operands))

    def poly(self, coefficients: Sequence[float | V]) -> V:
        """Horner: c[0] + c[1] x + ..., lowest first."""
        acc = self._other(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            acc = acc.fma(self, c)
        return acc

    # -- bits ---------------------------------------------------------------------------------------------------------
    __and__, __or__, __xor__ = _operator("", "and"), _operator("", "or"), _operator("", "xor")
    __lshift__, __rshift__ = _operator("", "shl"), _operator("", "ashr")  # an arithmetic shift

    def cast(self, op: str, elem: str) -> V:
        ty = like(self.ty, elem)
        return V(self.f, ty, tuple(self.f.cast(op, self.ty, p, ty) for p in self.parts))

    def ints(self) -> V:
        """The bits of a float as integers."""
        return self.cast("bitcast", f"i{bits(self.ty)}")

    def floats(self) -> V:
        """Integers as the floats with these bits."""
        return self.cast("bitcast", {32: "float", 64: "double"}[bits(self.ty)])

    def abs(self) -> V:
        return self.overloaded("llvm.fabs")

    def sqrt(self) -> V:
        return self.overloaded("llvm.sqrt")

    def sign_of(self, source: V) -> V:
        """self with the sign of source."""
        return self.overloaded("llvm.copysign", source)

    # -- comparisons (ordered for floats: false with NaN), choices ------------------------------------------------------
    def _cmp(self, fpred: str, ipred: str, o: V | float) -> V:
        compare = self.f.fcmp if self.is_float else self.f.icmp
        predicate = fpred if self.is_float else ipred
        pairs = zip(self.parts, self._other(o).parts, strict=True)
        return V(self.f, like(self.ty, "i1"), tuple(compare(predicate, self.ty, a, b) for a, b in pairs))

    __lt__, __gt__ = _comparison("olt", "slt"), _comparison("ogt", "sgt")
    __le__, __ge__ = _comparison("ole", "sle"), _comparison("oge", "sge")
    eq = _comparison("oeq", "eq")

    def is_nan(self) -> V:
        return self._cmp("uno", "", self)

    def choose(self, a: V, b: V | float) -> V:
        """a where this mask is true, else b."""
        choices = zip(self.parts, a.parts, a._other(b).parts, strict=True)
        return V(self.f, a.ty, tuple(self.f.select(a.ty, *c) for c in choices))

    def at_most(self, limit: float) -> V:
        """min(x, limit); NaN stays NaN (the operand order of one minps)."""
        c = self.const(limit)
        return (c < self).choose(c, self)

    def at_least(self, limit: float) -> V:
        c = self.const(limit)
        return (c > self).choose(c, self)


def any_lane(mask: V) -> str:
    """An i1: whether a lane of any part is true."""
    f, found = mask.f, mask.parts[0]
    for part in mask.parts[1:]:
        found = f.op("or", mask.ty, found, part)
    return f.intrinsic(f"llvm.vector.reduce.or.{mangle(mask.ty)}", "i1", [(mask.ty, found)]) if lanes(mask.ty) else found


def is_beyond(x: V, limit: float) -> V:
    """Whether x is of this magnitude or larger, or not finite."""
    f = x.f
    return V(f, (x < 0.0).ty, tuple(f.fcmp("uge", x.ty, p, f.splat(x.ty, limit)) for p in x.abs().parts))


def repaired(bad: V, y: V, slow: Callable[[], V]) -> V:
    """y with the bad lanes replaced by those of slow(), which is computed only where there are any."""
    f = y.f
    before, cold, after = f.block, f.fresh_label("bad"), f.fresh_label("repaired")
    f.branch(any_lane(bad), cold, after)
    f.label(cold)
    mixed = bad.choose(slow(), y)
    f.jump(after)
    f.label(after)
    return V(f, y.ty, tuple(f.phi(y.ty, [(a, before), (b, cold)]) for a, b in zip(y.parts, mixed.parts, strict=True)))


def by_cold_function(name: str, x: V, body: Callable[[V], V]) -> V:
    """body(x) by a function that is declared once a module and stays out of the way of what is computed in general."""
    f = x.f
    if name not in f.declarations:
        g = FunctionText(name, [(x.ty, "%x")], f.features, returns=x.ty, attributes="cold noinline").internal()
        g.ret(x.ty, body(V(g, x.ty, ("%x",))).parts[0])
        f.declarations.update(g.declarations)
        f.declarations[name] = g.text()
    return V(f, x.ty, tuple(f.value(f"call {x.ty} @{name}({x.ty} {p})") for p in x.parts))


def round_magic(t: V) -> float:
    """The constant that, added, leaves round-half-even(t) in the low bits (|t| < 2^22 or 2^51)."""
    return 1.5 * 2.0**52 if t.is_double else 1.5 * 2.0**23


def halves_scale(x: V, t: V) -> V:
    """x * 2^n, n down to -2 * bias: t is n + 2 * bias + round_magic, so its low bits shift straight into the exponents of two halves of n.

    Two factors, so that overflow and subnormal results come from one correctly rounded last product.
    """
    shift = 52 if t.is_double else 23
    i = t.ints()
    half = i >> 1
    return x * (half << shift).floats() * ((i - half) << shift).floats()


def mantissa_exponent(x: V, *, subnormals: bool = True) -> tuple[V, V]:
    """x = m * 2^e with m in [2/3, 4/3) (f64: [sqrt 1/2, sqrt 2)) for positive finite x; anything for the rest."""
    shift, low, bias = (52, 0x3FE6A09E667F3BCD, 1022) if x.is_double else (23, 0x3F2AAAAB, 126)
    up = float(shift + 1)
    if subnormals:
        tiny = x < 2.0**-bias
        x = tiny.choose(x * 2.0**up, x)
    i = x.ints()
    e = (i - low) >> shift
    m = (i - (e << shift)).floats()
    if x.is_double:  # SSE2 and AVX2 convert no i64: the magic sum is exact for small integers
        n = (e + 0x4338000000000000).floats() - 1.5 * 2.0**52
    else:
        n = e.cast("sitofp", "float")
    return m, tiny.choose(n - up, n) if subnormals else n


def finish_log(x: V, y: V) -> V:
    """y = log(x) with the special cases: inf and NaN stay, 0 gives -inf, negatives NaN."""
    y = (x < math.inf).choose(y, x)
    return (x > 0.0).choose(y, x.eq(0.0).choose(y.const(-math.inf), (x < 0.0).choose(y.const(math.nan), x)))


def tanh_quotient(e: V) -> V:
    """tanh(a) = -e / (2 + e) for e = expm1(-2a): with what 2 + e lost given back, since 1 / (2 + e) = (1 + q) / 2."""
    d = e + 2.0
    lost = e - (d - 2.0)
    q = -e / d
    return (q * lost).fma(q.fma(-0.5, -0.5), q)


def two_sum(a: V, b: V) -> tuple[V, V]:
    """a + b = s + e exactly."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def fast_two_sum(a: V, b: V) -> tuple[V, V]:
    """a + b = s + e exactly where |a| >= |b| or a == 0."""
    s = a + b
    return s, b - (s - a)


def split(a: V) -> tuple[V, V]:
    """a = h + l with half the bits each (Veltkamp); |a| must stay 2^27 below overflow."""
    t = a * (2.0**27 + 1)
    h = t - (t - a)
    return h, a - h


def two_prod(a: V, b: V) -> tuple[V, V]:
    """a * b = p + e exactly."""
    p = a * b
    if a.f.features.has_fma:
        return p, a.fma(b, -p)
    ah, al = split(a)
    bh, bl = split(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


LN2 = math.log(2.0)
LOG2E = 1.0 / LN2
