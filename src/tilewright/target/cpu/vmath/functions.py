"""Generated vector math: `emit` writes a function of float or double, scalar or vector of any lane count, inline into a FunctionText.

>>> from ..llvm_text import AVX512, FunctionText
>>> f = FunctionText("softplus", [("<16 x float>", "%x")], AVX512, returns="<16 x float>")
>>> f.ret("<16 x float>", emit("log1p", f, "<16 x float>", emit("exp", f, "<16 x float>", "%x")))

The bits of a result depend on the value and on the CPU's features, never on the lane count or on the neighbours in the vector. No
fast-math, no library calls. More lanes than a register holds are good: independent chains are interleaved. sin, cos, tan
and the roots end in another basic block than they began in (`FunctionText.block`).
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import cache

from ....core.errors import CompileError
from ....core.target_spec import TargetSpec
from ..llvm_text import FunctionText, element, lanes, vector
from . import avx512 as vmath_avx512
from . import circle as vmath_circle
from . import f32 as vmath_f32
from . import f64 as vmath_f64
from . import power as vmath_pow
from . import roots as vmath_roots
from . import rounding as vmath_round
from . import trig as vmath_trig
from . import trig_f32 as vmath_trig_f32
from .base import V

Function = Callable[[V], V]

_ANY: dict[str, Function] = {
    "sqrt": lambda x: x.sqrt(),
    "rsqrt": lambda x: 1.0 / x.sqrt(),
    "reciprocal": lambda x: 1.0 / x,
    **vmath_round.FUNCTIONS,
}
_F32: dict[str, Function] = {**_ANY, **vmath_f32.FUNCTIONS, **vmath_trig_f32.FUNCTIONS}
_F64: dict[str, Function] = {**_ANY, **vmath_f64.FUNCTIONS, **vmath_trig.FUNCTIONS}
_AVX512 = {**vmath_avx512.FUNCTIONS, **vmath_circle.FUNCTIONS, **vmath_roots.FUNCTIONS}
_EXACT = ("reciprocal", "sqrt")  # the same bits in either form: few lanes and CPUs with a fast divider take the plain instruction
UNARY = tuple(sorted(_F32))
BINARY = ("pow",)
DIVISION = 12  # the cost of dividing a register, in multiply-adds
_GROUP = 4  # parts interleaved at a time: more would spill registers


def emit(fn: str, f: FunctionText, ty: str, x: str, y: str | None = None) -> str:
    """The name of fn(x) or fn(x, y), computed by instructions appended to `f`."""
    return emit_many(fn, f, ty, [x], None if y is None else [y])[0]


def emit_many(fn: str, f: FunctionText, ty: str, xs: Sequence[str], ys: Sequence[str] | None = None) -> list[str]:
    """The same function of several values of one type, with their instructions interleaved: better than one `emit` after the other."""
    if element(ty) not in ("float", "double"):
        raise CompileError(f"{fn}: vector math works on float and double, got {ty}; convert first")
    if fn not in (UNARY if ys is None else BINARY):
        raise CompileError(f"{fn}: no such function of {1 if ys is None else 2} operands; known: {', '.join(UNARY + BINARY)}")
    done: list[str] = []
    group = 1 if fn in vmath_trig.FUNCTIONS and element(ty) == "double" else _GROUP
    for g in range(0, len(xs), group):
        x = V(f, ty, tuple(xs[g:g + group]))
        if ys is not None:
            done += vmath_pow.power(x, V(f, ty, tuple(ys[g:g + group]))).parts
        elif element(ty) == "float" and f.features.has_avx512 and _by_16_lanes(fn, f, ty):
            function = _AVX512[fn]
            width = vmath_avx512.LANES
            done += function(x).parts if lanes(ty) == width else [_in_parts(function, f, ty, p, width) for p in x.parts]
        else:
            done += (_F64 if element(ty) == "double" else _F32)[fn](x).parts
    return done


@cache
def instructions(fn: str, elem: str, target: TargetSpec) -> int:
    """How many instructions one register of `fn` takes, rare branches aside; a division or a root counts as the time it takes."""
    f, ty = FunctionText("f", [], target), vector(target.vector_bits // (32 if elem == "float" else 64), elem)
    if fn == "div":
        f.op("fdiv", ty, "%x", "%y")
    else:
        emit(fn, f, ty, "%x", "%y" if fn in BINARY else None)
    common = itertools.takewhile(lambda line: not line.endswith(":"), f.lines[1:])
    return sum(DIVISION if "fdiv" in line or ".sqrt." in line else "bitcast" not in line for line in common)


def _by_16_lanes(fn: str, f: FunctionText, ty: str) -> bool:
    return fn in _AVX512 and (fn not in _EXACT or (lanes(ty) == vmath_avx512.LANES and not f.features.divides_fast))


def _in_parts(fn: Function, f: FunctionText, ty: str, x: str, width: int) -> str:
    """Apply fn to x in parts of exactly `width` lanes; the last part is filled up with lanes nobody reads."""
    n, elem = lanes(ty), element(ty)
    part = vector(width, elem)
    if n == 0:
        x = f.broadcast(part, x)  # no lane asks for a branch that x does not ask for
        return f.value(f"extractelement {part} {fn(V(f, part, (x,))).parts[0]}, i64 0")
    pieces = [f.shuffle(ty, x, "poison", [i if i < n else 0 for i in range(b, b + width)]) for b in range(0, n, width)]
    done: list[str] = []
    for g in range(0, len(pieces), _GROUP):
        done += fn(V(f, part, tuple(pieces[g:g + _GROUP]))).parts
    have = width
    whole = done[0]
    for piece in done[1:]:
        wide = f.shuffle(part, piece, "poison", [i if i < width else -1 for i in range(have)])
        whole = f.shuffle(vector(have, elem), whole, wide, list(range(have + width)))
        have += width
    return whole if have == n else f.shuffle(vector(have, elem), whole, "poison", list(range(n)))
