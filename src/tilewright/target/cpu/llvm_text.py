"""LLVM IR as text: one function under construction, and the module around finished functions.

Types are LLVM type strings (`"float"`, `"<16 x float>"`, `"ptr"`); values are operand strings (`"%v3"`, `"splat (float 0x…)"`). Helpers
append an instruction and return the name of its result; constants cost no instruction. Intrinsics declare themselves.

>>> f = FunctionText("twice", [("ptr", "%p")], BASELINE)
>>> v = f.load("<4 x float>", "%p")
>>> f.store("<4 x float>", f.op("fadd", "<4 x float>", v, v), "%p")
>>> f.ret()
>>> print(module_text(f).splitlines()[0])
define void @twice(ptr %p) {
"""
from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import ml_dtypes
import numpy as np


class VectorFeatures(Protocol):
    """What code generation asks of a CPU. `has_avx512` means F, BW, DQ and VL."""

    @property
    def has_fma(self) -> bool: ...
    @property
    def has_avx512(self) -> bool: ...
    @property
    def has_sse41(self) -> bool: ...
    @property
    def divides_fast(self) -> bool: ...


@dataclass(frozen=True)
class FeatureLevel:
    """A named feature level: the smallest thing that satisfies VectorFeatures."""

    name: str
    has_fma: bool = False
    has_avx512: bool = False
    has_sse41: bool = False
    divides_fast: bool = False


BASELINE = FeatureLevel("baseline")
AVX2 = FeatureLevel("avx2", has_fma=True, has_sse41=True)
AVX512 = FeatureLevel("avx512", has_fma=True, has_sse41=True, has_avx512=True)

_VECTOR = re.compile(r"<(\d+) x (.+)>$")
_MANGLED = {"float": "f32", "double": "f64", "half": "f16", "bfloat": "bf16", "ptr": "p0"}
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}


def element(ty: str) -> str:
    """The element type of a vector type; a scalar type itself."""
    m = _VECTOR.match(ty)
    return m[2] if m else ty


def lanes(ty: str) -> int:
    """The lane count of a vector type; 0 for a scalar type."""
    m = _VECTOR.match(ty)
    return int(m[1]) if m else 0


def vector(n: int, elem: str) -> str:
    """The vector type of `n` lanes; the scalar type itself for n = 0."""
    return f"<{n} x {elem}>" if n else elem


def like(ty: str, elem: str) -> str:
    """`ty` with another element type: like("<4 x float>", "i1") is "<4 x i1>"."""
    return vector(lanes(ty), elem)


def bits(ty: str) -> int:
    """The width of the element type in bits."""
    e = element(ty)
    return _BITS[e] if e in _BITS else int(e[1:])


def mangle(ty: str) -> str:
    """The suffix that overloaded intrinsics take for a type: v16f32, f64, v8i32, p0."""
    e = element(ty)
    return (f"v{lanes(ty)}" if lanes(ty) else "") + _MANGLED.get(e, e)


def number(elem: str, value: float) -> str:
    """A scalar constant as exact LLVM text. Floats are rounded to the type first; `float` prints as the double it equals."""
    if elem == "half":
        return f"0xH{np.float16(value).view(np.uint16):04X}"
    if elem == "bfloat":
        return f"0xR{ml_dtypes.bfloat16(value).view(np.uint16):04X}"
    if elem in ("float", "double"):
        wide = float(np.float32(value)) if elem == "float" else float(value)
        return f"0x{struct.unpack('<Q', struct.pack('<d', wide))[0]:016X}"
    if elem == "i1":
        return "true" if value else "false"
    return str(int(value))


class FunctionText:
    """One LLVM function under construction. Parameters are (type, name) with attributes allowed in the type: ("ptr noalias", "%x")."""

    branches = True  # an expression may hold blocks of its own

    def __init__(self, name: str, params: Sequence[tuple[str, str]], features: VectorFeatures, *,
                 returns: str = "void", attributes: str = "") -> None:
        self.name, self.features = name, features
        self.declarations: dict[str, str] = {}
        self._head = f"define {returns} @{name}({', '.join(f'{t} {n}' for t, n in params)}) {attributes}".rstrip() + " {"
        self._lines: list[str] = ["entry:"]
        self.block = "entry"  # the label instructions now go to, for phi nodes
        self._names = 0
        self._logic: dict[str, int] = {}  # vectors that bitwise ops give -> how many of those stand behind one another

    # -- text ---------------------------------------------------------------------------------------------------------
    def fresh(self, stem: str = "v") -> str:
        self._names += 1
        return f"%{stem}{self._names}"

    @property
    def lines(self) -> Sequence[str]:
        return self._lines

    def internal(self) -> FunctionText:
        """Give the function internal linkage: it can then stand, by its name, among another function's declarations."""
        self._head = self._head.replace("define ", "define internal ", 1)
        return self

    def emit(self, line: str) -> None:
        self._lines.append("  " + line)

    def value(self, rhs: str) -> str:
        """Append `%new = rhs` and return the new name."""
        name = self.fresh()
        self.emit(f"{name} = {rhs}")
        return name

    def fresh_label(self, stem: str = "b") -> str:
        return self.fresh(stem)[1:]

    def label(self, name: str) -> None:
        self._lines.append(f"{name}:")
        self.block = name

    def text(self) -> str:
        return "\n".join([self._head, *self._lines, "}"])

    # -- constants ----------------------------------------------------------------------------------------------------
    def splat(self, ty: str, constant: float) -> str:
        text = number(element(ty), constant)
        return f"splat ({element(ty)} {text})" if lanes(ty) else text

    def constant(self, ty: str, values: Sequence[float]) -> str:
        """A vector constant lane by lane."""
        return "<" + ", ".join(f"{element(ty)} {number(element(ty), v)}" for v in values) + ">"

    # -- arithmetic ---------------------------------------------------------------------------------------------------
    def op(self, name: str, ty: str, a: str, b: str) -> str:
        out = self.value(f"{name} {ty} {a}, {b}")
        if name in ("and", "or", "xor"):
            self._logic[out] = 1 + max(self._logic.get(a, 0), self._logic.get(b, 0))
        return out

    def mulhi(self, ty: str, a: str, b: str, *, signed: bool) -> str:
        """The upper half of the product of integers, which has twice their bits."""
        n = bits(ty)
        wide, extend = like(ty, f"i{2 * n}"), "sext" if signed else "zext"
        product = self.op("mul", wide, self.cast(extend, ty, a, wide), self.cast(extend, ty, b, wide))
        return self.cast("trunc", wide, self.op("lshr", wide, product, self.splat(wide, n)), ty)

    def fneg(self, ty: str, a: str) -> str:
        return self.value(f"fneg {ty} {a}")

    def fma(self, ty: str, a: str, b: str, c: str) -> str:
        """a * b + c, in one rounding where the CPU can; llvm.fma would call libm where it cannot."""
        if self.features.has_fma:
            return self.intrinsic(f"llvm.fma.{mangle(ty)}", ty, [(ty, a), (ty, b), (ty, c)])
        return self.op("fadd", ty, self.op("fmul", ty, a, b), c)

    def intrinsic(self, name: str, returns: str, args: Sequence[tuple[str, str]]) -> str:
        """Call a declared function by its full (mangled) name; for void the result is empty."""
        self.declarations[name] = f"declare {returns} @{name}({', '.join(t for t, _ in args)})"
        call = f"call {returns} @{name}({', '.join(f'{t} {a}' for t, a in args)})"
        if returns == "void":
            self.emit(call)
            return ""
        return self.value(call)

    def cast(self, name: str, source: str, x: str, target: str) -> str:
        if source == target:
            return x
        out = self.value(f"{name} {source} {x} to {target}")
        if name == "bitcast" and x in self._logic:
            self._logic[out] = self._logic[x]
        return out

    def select(self, ty: str, condition: str, a: str, b: str) -> str:
        a, b = self._not_ternary(ty, a), self._not_ternary(ty, b)
        return self.value(f"select {like(ty, 'i1')} {condition}, {ty} {a}, {ty} {b}")

    def _not_ternary(self, ty: str, x: str) -> str:
        """A selected value such that LLVM does not join the selection with a ternary bitwise op: for AVX-512, LLVM 22 swaps operands of the
        masked `vpternlog` and keeps its table, where the other selected value is one of them."""
        if self._logic.get(x, 0) < 2 or not self.features.has_avx512 or lanes(ty) < 2:
            return x
        if element(ty) not in ("i32", "i64", "float", "double"):
            return x
        real = like(ty, {"i32": "float", "i64": "double"}.get(element(ty), element(ty)))
        fenced = self.intrinsic(f"llvm.arithmetic.fence.{mangle(real)}", real, [(real, self.cast("bitcast", ty, x, real))])
        return self.cast("bitcast", real, fenced, ty)

    def icmp(self, predicate: str, ty: str, a: str, b: str) -> str:
        return self.value(f"icmp {predicate} {ty} {a}, {b}")

    def fcmp(self, predicate: str, ty: str, a: str, b: str) -> str:
        return self.value(f"fcmp {predicate} {ty} {a}, {b}")

    def broadcast(self, ty: str, scalar: str) -> str:
        """A scalar value in every lane of `ty`."""
        if not lanes(ty):
            return scalar
        one = self.value(f"insertelement {ty} poison, {element(ty)} {scalar}, i64 0")
        return self.shuffle(ty, one, "poison", [0] * lanes(ty))

    def shuffle(self, ty: str, a: str, b: str, mask: Sequence[int]) -> str:
        """Lanes of a followed by b, by constant index; -1 leaves a lane undefined."""
        indices = ", ".join("i32 poison" if i < 0 else f"i32 {i}" for i in mask)
        return self.value(f"shufflevector {ty} {a}, {ty} {b}, <{len(mask)} x i32> <{indices}>")

    # -- memory -------------------------------------------------------------------------------------------------------
    def load(self, ty: str, pointer: str, align: int = 0) -> str:
        return self.value(f"load {ty}, ptr {pointer}, align {align or bits(ty) // 8}")

    def store(self, ty: str, x: str, pointer: str, align: int = 0) -> None:
        self.emit(f"store {ty} {x}, ptr {pointer}, align {align or bits(ty) // 8}")

    def masked_load(self, ty: str, pointer: str, mask: str, otherwise: str = "zeroinitializer") -> str:
        args = [(f"ptr align {bits(ty) // 8}", pointer), (like(ty, "i1"), mask), (ty, otherwise)]
        return self.intrinsic(f"llvm.masked.load.{mangle(ty)}.p0", ty, args)

    def masked_store(self, ty: str, x: str, pointer: str, mask: str) -> None:
        ty, x = self._not_truncated(ty, x)
        args = [(ty, x), (f"ptr align {bits(ty) // 8}", pointer), (like(ty, "i1"), mask)]
        self.intrinsic(f"llvm.masked.store.{mangle(ty)}.p0", "void", args)

    def _not_truncated(self, ty: str, x: str) -> tuple[str, str]:
        """The operand of a masked store such that LLVM does not join it with a truncation: for AVX-512, LLVM 22 stores the wide element
        where the mask is a constant with one lane, which overwrites what stands behind it."""
        n = lanes(ty)
        if not self.features.has_avx512 or n < 2 or n & (n - 1) or element(ty) not in ("i8", "i16", "i32"):
            return ty, x
        if element(ty) != "i8":  # it looks through no bitcast
            real = vector(n, "half" if element(ty) == "i16" else "float")
            return real, self.cast("bitcast", ty, x, real)
        real = vector(n // 4, "float") if n > 4 else "float" if n == 4 else "half"
        fenced = self.intrinsic(f"llvm.arithmetic.fence.{mangle(real)}", real, [(real, self.cast("bitcast", ty, x, real))])
        return ty, self.cast("bitcast", real, fenced, ty)

    def gep(self, ty: str, pointer: str, index: str) -> str:
        return self.value(f"getelementptr {ty}, ptr {pointer}, i64 {index}")

    # -- control ------------------------------------------------------------------------------------------------------
    def branch(self, condition: str, yes: str, no: str) -> None:
        self.emit(f"br i1 {condition}, label %{yes}, label %{no}")

    def jump(self, target: str) -> None:
        self.emit(f"br label %{target}")

    def phi(self, ty: str, incoming: Sequence[tuple[str, str]]) -> str:
        """A phi of (value, label)."""
        return self.value(f"phi {ty} " + ", ".join(f"[ {v}, %{b} ]" for v, b in incoming))

    def ret(self, ty: str = "void", x: str = "") -> None:
        self.emit(f"ret {ty} {x}".rstrip())


def module_text(*functions: FunctionText, header: str = "") -> str:
    """A module of the functions and every declaration they asked for; functions of the module itself are not declared again."""
    defined = {f.name for f in functions}
    declared = {name: line for f in functions for name, line in f.declarations.items() if name not in defined}
    return "\n\n".join(([header] if header else []) + [f.text() for f in functions] + sorted(declared.values())) + "\n"
