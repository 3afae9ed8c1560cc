"""Scalar arithmetic on PTX registers under LLVM's names: the CPU target's elementwise code and vector math, written against
`FunctionText`, run unchanged on top of this class with one lane per value.

Rounding is always spelled (`add.rn`), so that the assembler contracts nothing; subnormals are kept (no `.ftz`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ....core.errors import CompileError
from ...cpu.llvm_text import FeatureLevel, FunctionText
from ..ptx.text import KernelText, literal

_FLOAT = {"fadd": "add.rn", "fsub": "sub.rn", "fmul": "mul.rn", "fdiv": "div.rn"}
_PTX = {"float": "f32", "double": "f64"}
_WIDTH = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
_ORDERED = {"oeq": "eq", "olt": "lt", "ole": "le", "ogt": "gt", "oge": "ge", "one": "ne", "une": "neu", "uno": "nan", "ord": "num"}


GPU = FeatureLevel("gpu", has_fma=True, has_sse41=True)  # what the shared mathematics asks of a CPU


class Scalars(FunctionText):
    """`FunctionText` for one lane, appending to a `KernelText`."""

    branches = False

    def __init__(self, k: KernelText) -> None:
        super().__init__(k.name, [], GPU)
        self.k = k

    # -- plumbing -----------------------------------------------------------------------------------------------------
    def value(self, rhs: str) -> str:
        if rhs.startswith(("frem float ", "frem double ")):
            _, ty, a, b = rhs.replace(",", "").split(" ")
            return self._remainder(ty, a, b)
        raise CompileError(f"cuda: no PTX for `{rhs}`")

    def splat(self, ty: str, constant: float) -> str:
        return literal(ty, constant)

    def _in(self, ty: str, x: str) -> str:
        """An operand that may stand in an instruction."""
        return self.k.truth(x == "true") if ty == "i1" and x in ("true", "false") else x

    def small(self, ty: str, x: str, *, signed: bool) -> str:
        """The canonical 32-bit form of a small integer."""
        if ty not in ("i8", "i16") or not x.startswith("%"):
            return str(int(x) & ((1 << _WIDTH[ty]) - 1)) if ty in ("i8", "i16") and not signed else x
        return self.k.value("i32", f"bfe.{'s' if signed else 'u'}32 {{}}, {x}, 0, {_WIDTH[ty]};")

    @staticmethod
    def bits(ty: str) -> int:
        return 64 if _WIDTH[ty] == 64 else 32

    # -- arithmetic ---------------------------------------------------------------------------------------------------
    def op(self, name: str, ty: str, a: str, b: str) -> str:
        name = name.removesuffix(" nsw")
        v = self.k.value
        if name in _FLOAT:
            return v(ty, f"{_FLOAT[name]}.{_PTX[ty]} {{}}, {a}, {b};")
        if ty == "i1":
            return v("i1", f"{name}.pred {{}}, {self._in(ty, a)}, {self._in(ty, b)};")
        n = self.bits(ty)
        match name:
            case "add" | "sub":
                return v(ty, f"{name}.s{n} {{}}, {a}, {b};")
            case "mul":
                return v(ty, f"mul.lo.s{n} {{}}, {a}, {b};")
            case "and" | "or" | "xor":
                return v(ty, f"{name}.b{n} {{}}, {a}, {b};")
            case "shl":
                return v(ty, f"shl.b{n} {{}}, {a}, {self._amount(ty, b)};")
            case "lshr" | "ashr":
                signed = name == "ashr"
                return v(ty, f"shr.{'s' if signed else 'u'}{n} {{}}, {self.small(ty, a, signed=signed)}, {self._amount(ty, b)};")
            case "udiv" | "sdiv" | "urem" | "srem":
                signed = name[0] == "s"
                x, y = self.small(ty, a, signed=signed), self.small(ty, b, signed=signed)
                return v(ty, f"{name[1:]}.{'s' if signed else 'u'}{n} {{}}, {x}, {y};")
        raise CompileError(f"cuda: no PTX for integer {name}")

    def mulhi(self, ty: str, a: str, b: str, *, signed: bool) -> str:
        return self.k.value(ty, f"mul.hi.{'s' if signed else 'u'}{self.bits(ty)} {{}}, {a}, {b};")

    def _amount(self, ty: str, x: str) -> str:
        """Shift amounts are 32-bit."""
        return self.k.value("i32", f"cvt.u32.u64 {{}}, {x};") if ty == "i64" and x.startswith("%") else x

    def fneg(self, ty: str, a: str) -> str:
        return self.k.value(ty, f"neg.{_PTX[ty]} {{}}, {a};")

    def fma(self, ty: str, a: str, b: str, c: str) -> str:
        return self.k.value(ty, f"fma.rn.{_PTX[ty]} {{}}, {a}, {b}, {c};")

    def intrinsic(self, name: str, returns: str, args: Sequence[tuple[str, str]]) -> str:
        stem, ty, xs, v = name.split(".")[1], args[0][0], [a for _, a in args], self.k.value
        match stem:
            case "arithmetic":  # a fence for LLVM's optimizer, which is not here
                return xs[0]
            case "fabs":
                return v(ty, f"abs.{_PTX[ty]} {{}}, {xs[0]};")
            case "sqrt":
                return v(ty, f"sqrt.rn.{_PTX[ty]} {{}}, {xs[0]};")
            case "copysign":  # PTX: the sign of the first operand, the rest of the second
                return v(ty, f"copysign.{_PTX[ty]} {{}}, {xs[1]}, {xs[0]};")
            case "floor" | "ceil" | "trunc" | "roundeven":
                mode = {"floor": "rmi", "ceil": "rpi", "trunc": "rzi", "roundeven": "rni"}[stem]
                return v(ty, f"cvt.{mode}.{_PTX[ty]}.{_PTX[ty]} {{}}, {xs[0]};")
            case "smin" | "smax" | "umin" | "umax":
                signed = stem[0] == "s"
                a, b = (self.small(ty, x, signed=signed) for x in xs)
                return v(ty, f"{stem[1:]}.{stem[0]}{self.bits(ty)} {{}}, {a}, {b};")
            case "fptosi" | "fptoui":
                return self._to_int(returns, ty, xs[0], signed=stem == "fptosi")
        raise CompileError(f"cuda: no PTX for {name}")

    def _to_int(self, ty: str, source: str, x: str, *, signed: bool) -> str:
        """Toward zero, clamped to the range, NaN gives 0 (what `cvt.rzi` does for 32 and 64 bits)."""
        kind, n = "s" if signed else "u", self.bits(ty)
        if source in ("float", "double"):
            zero = self.fcmp("uno", source, x, x)
            out = self.k.value(ty, f"cvt.rzi.{kind}{n}.{_PTX[source]} {{}}, {x};")
            out = self.select(ty, zero, "0", out)
        if ty in ("i8", "i16"):
            bits = _WIDTH[ty]
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)
            out = self.k.value(ty, f"max.s32 {{}}, {out}, {low};") if signed else out
            out = self.k.value(ty, f"min.{kind}32 {{}}, {out}, {high};")
        return out

    def cast(self, name: str, source: str, x: str, target: str) -> str:
        if source == target:
            return x
        v = self.k.value
        match name:
            case "bitcast":
                if source in ("half", "bf16") or target in ("half", "bf16"):
                    return v(target, f"cvt.u32.u16 {{}}, {x};") if target == "i16" else v(target, f"cvt.u16.u32 {{}}, {x};")
                return v(target, f"mov.b{64 if source in ('double', 'i64') else 32} {{}}, {x};")
            case "sitofp" | "uitofp":
                signed = name == "sitofp"
                if source == "i1":
                    return self.select(target, x, literal(target, 1), literal(target, 0))
                return v(
                    target,
                    f"cvt.rn.{_PTX[target]}.{'s' if signed else 'u'}{self.bits(source)} {{}}, {self.small(source, x, signed=signed)};",
                )
            case "fptosi" | "fptoui":
                return self._to_int(target, source, x, signed=name == "fptosi")
            case "fpext":
                return v("double", f"cvt.f64.f32 {{}}, {x};")
            case "fptrunc":
                return v("float", f"cvt.rn.f32.f64 {{}}, {x};")
            case "zext" | "sext":
                if source == "i1":
                    return self.select(target, x, "1" if name == "zext" else "-1", "0")
                kind = "s" if name == "sext" else "u"
                wide = self.small(source, x, signed=name == "sext")
                return v("i64", f"cvt.{kind}64.{kind}32 {{}}, {wide};") if target == "i64" else wide
            case "trunc":
                return v(target, f"cvt.u32.u64 {{}}, {x};") if source == "i64" else x
        raise CompileError(f"cuda: no PTX for {name} {source} to {target}")

    def select(self, ty: str, condition: str, a: str, b: str) -> str:
        c = self._in("i1", condition)
        if ty == "i1":
            x = self.op("and", "i1", c, a)
            y = self.op("and", "i1", self.k.value("i1", f"not.pred {{}}, {c};"), b)
            return self.op("or", "i1", x, y)
        kind = {"float": "f32", "double": "f64", "half": "b16", "bf16": "b16", "i64": "b64"}.get(ty, "b32")
        return self.k.value(ty, f"selp.{kind} {{}}, {a}, {b}, {c};")

    def icmp(self, predicate: str, ty: str, a: str, b: str) -> str:
        if ty == "i1":
            a, b = (self.select("i32", self._in("i1", x), "1", "0") for x in (a, b))
            ty = "i32"
        if predicate in ("eq", "ne"):
            fn, kind, signed = predicate, "s", False
        else:
            signed = predicate[0] == "s"
            fn, kind = predicate[1:], predicate[0]
        x, y = self.small(ty, a, signed=signed), self.small(ty, b, signed=signed)
        if not x.startswith("%"):
            x = self.k.value(ty, f"mov.b{self.bits(ty)} {{}}, {x};")
        return self.k.value("i1", f"setp.{fn}.{kind}{self.bits(ty)} {{}}, {x}, {y};")

    def fcmp(self, predicate: str, ty: str, a: str, b: str) -> str:
        if not a.startswith("%"):
            a = self.k.value(ty, f"mov.{_PTX[ty]} {{}}, {a};")
        return self.k.value("i1", f"setp.{_ORDERED[predicate]}.{_PTX[ty]} {{}}, {a}, {b};")

    def _remainder(self, ty: str, a: str, b: str) -> str:
        """fmod, exact: the truncated quotient (its first 53 bits) times the divisor is at most the rest, and what is left of it has
        no more bits than the divisor. So that the quotient is a number, a rest far larger is first taken by multiples of the divisor."""
        k, v = self.k, self.k.value
        x, y = (v("double", f"cvt.f64.f32 {{}}, {w};") if ty == "float" else w for w in (a, b))
        size, y = v("double", f"abs.f64 {{}}, {x};"), v("double", f"abs.f64 {{}}, {y};")
        rest = v("double", f"abs.f64 {{}}, {x};")
        larger = [] if ty == "float" else [v("double", f"mul.rn.f64 {{}}, {y}, {literal('double', 2.0**700)};")]
        larger += [v("double", f"mul.rn.f64 {{}}, {w}, {literal('double', 2.0**700)};") for w in larger]
        for divisor in (*reversed(larger), y):
            top, done = k.label("mod"), k.label("mod_done")
            k.place(top)
            k.emit(f"@{v('i1', f'setp.ltu.f64 {{}}, {rest}, {divisor};')} bra {done};")  # NaN leaves as well
            q = v("double", f"div.rz.f64 {{}}, {rest}, {divisor};")
            k.emit(f"@{v('i1', f'setp.geu.f64 {{}}, {q}, 0d7FF0000000000000;')} bra {done};")
            minus = v("double", f"neg.f64 {{}}, {v('double', f'cvt.rzi.f64.f64 {{}}, {q};')};")
            k.emit(f"fma.rn.f64 {rest}, {minus}, {divisor}, {rest};")
            k.emit(f"bra {top};")
            k.place(done)
        out = v("float", f"cvt.rn.f32.f64 {{}}, {rest};") if ty == "float" else rest
        out = v(ty, f"copysign.{_PTX[ty]} {{}}, {a}, {out};")
        # x / 0, inf / y and NaN have no remainder; x / inf is x
        bad = self.fcmp("oeq", "double", y, literal("double", 0))
        bad = self.op("or", "i1", bad, self.fcmp("oeq", "double", size, literal("double", float("inf"))))
        bad = self.op("or", "i1", bad, self.op("or", "i1", self.fcmp("uno", ty, a, a), self.fcmp("uno", ty, b, b)))
        return self.select(ty, bad, literal(ty, float("nan")), out)
