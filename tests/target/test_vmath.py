"""Generated vector math against NumPy's validation sets, extended precision and mpmath, on every feature level: accuracy in ULP,
special values, and bits that do not depend on the lane count or on the neighbours."""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.errors import CompileError, ConfigError
from tilewright.core.target_spec import TargetSpec
from tilewright.target.cpu import jit
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.llvm_text import BASELINE, FunctionText, element, lanes, module_text, number
from tilewright.target.cpu.vmath import f32 as vmath_f32
from tilewright.target.cpu.vmath import functions as vmath
from tilewright.target.cpu.vmath import tables as vmath_tables

LEVELS = ("baseline", "avx2", "avx512")
ELEMENTS: dict[str, Any] = {"float": np.float32, "double": np.float64}
Array = np.ndarray[Any, np.dtype[Any]]
VALIDATION = Path(np.__file__).parent / "_core" / "tests" / "data"
VALIDATED = ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh")
EXACT = ("sqrt", "reciprocal", "floor", "ceil", "round", "trunc")

# The largest error in ULP, fn -> (f32 baseline, avx2, avx512), (f64 …). Random values find what a smaller sweep missed, so each limit is
# what much denser ones met plus a margin. f32: all numbers of the exponents where the function bends, one in 64 of the others, plus 0.04.
# f64: some ten million values, most of them where the error is largest and around the worst, plus 0.09. By reasoning: rsqrt rounds twice,
# 0.5 + 1 at most; what f32 computes in f64 (pow; sin, cos and tan but for AVX-512) ends at 0.5 and little more.
LIMITS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "exp": ((1.25, 0.95, 1.05), (0.95, 0.95, 0.95)),
    "exp2": ((1.3, 1.0, 1.05), (1.0, 1.0, 1.0)),
    "expm1": ((1.3, 1.3, 1.3), (1.3, 1.2, 1.2)),
    "log": ((1.05, 0.95, 1.05), (0.95, 0.95, 0.95)),
    "log2": ((2.25, 1.7, 1.8), (0.97, 0.97, 0.97)),
    "log1p": ((1.8, 1.7, 1.7), (0.97, 0.97, 0.97)),
    "tanh": ((2.05, 2.05, 1.65), (2.1, 2.1, 2.1)),
    "erf": ((1.35, 1.15, 2.2), (1.1, 1.1, 1.1)),
    "sigmoid": ((2.45, 2.45, 2.25), (2.55, 2.55, 2.55)),
    "sin": ((0.51, 0.51, 0.55), (0.9, 0.9, 0.9)),
    "cos": ((0.51, 0.51, 0.55), (0.9, 0.9, 0.9)),
    "tan": ((0.51, 0.51, 1.15), (1.15, 1.1, 1.1)),
    "rsqrt": ((1.501, 1.501, 1.501), (1.501, 1.501, 1.501)),
    "pow": ((0.51, 0.51, 0.51), (1.05, 1.05, 1.05)),
    **dict.fromkeys(EXACT, ((0.5, 0.5, 0.5), (0.501, 0.501, 0.501))),  # the oracle itself rounds twice
}


def target(level: str) -> TargetSpec:
    try:
        return host_target(level=level)  # type: ignore[arg-type]
    except ConfigError as reason:
        pytest.skip(str(reason))


def loop(f: FunctionText, fn: str, ty: str, arity: int) -> None:
    """out[i] = fn(x[i], y[i]) for i below n, a multiple of the lane count."""
    step = f.fresh("next")
    f.jump("loop")
    f.label("loop")
    i = f.phi("i64", [("0", "entry"), (step, "latch")])
    operands = [f.load(ty, f.gep(element(ty), p, i)) for p in ("%x", "%y")[:arity]]
    f.store(ty, vmath.emit(fn, f, ty, *operands), f.gep(element(ty), "%out", i))
    f.jump("latch")
    f.label("latch")
    f.emit(f"{step} = add i64 {i}, {max(lanes(ty), 1)}")
    f.branch(f.icmp("ult", "i64", step, "%n"), "loop", "done")
    f.label("done")
    f.ret()


def module(fns: tuple[str, ...], ty: str, spec: TargetSpec) -> str:
    params = [("ptr", "%x"), ("ptr", "%y"), ("ptr", "%out"), ("i64", "%n")]
    functions = [FunctionText(fn, params, spec, attributes=spec.attributes) for fn in fns]
    for f in functions:
        loop(f, f.name, ty, 2 if f.name in vmath.BINARY else 1)
    return module_text(*functions)


class Compiled:
    """The functions `fns` over `ty` for a target, called on arrays."""

    def __init__(self, fns: tuple[str, ...], ty: str, spec: TargetSpec) -> None:
        self.ty, self.dtype = ty, np.dtype(ELEMENTS[element(ty)])
        self.library = jit.Library([jit.compile_ir(module(fns, ty, spec), spec, "O1")], fns)

    def __call__(self, fn: str, x: Array, y: Array | None = None) -> Array:
        step = max(lanes(self.ty), 1)
        padded = [np.zeros(-(-x.size // step) * step, self.dtype) for _ in range(3)]
        padded[0][: x.size] = x
        if y is not None:
            padded[1][: x.size] = y
        native = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(self.library.address(fn))
        native(*[p.ctypes.data for p in padded], padded[0].size)
        return padded[2][: x.size]


@functools.cache
def compiled(elem: str, level: str, width: int | None = None) -> Compiled:
    spec = target(level)
    width = spec.lanes(ELEMENTS[elem]().itemsize) if width is None else width
    return Compiled(vmath.UNARY + vmath.BINARY, f"<{width} x {elem}>" if width else elem, spec)


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


def _erf(x: Array) -> Array:
    def one(v: float) -> Any:
        return np.longdouble(v if v == 0 or np.isnan(v) else mpmath.nstr(mpmath.erf(v), 25))

    return np.array([one(float(v)) for v in x], np.longdouble)


ORACLE: dict[str, Callable[..., Array]] = {
    **{fn: getattr(np, fn) for fn in (*VALIDATED, "sqrt", "floor", "ceil", "trunc")},
    "round": np.rint, "reciprocal": np.reciprocal, "rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": _sigmoid, "erf": _erf, "pow": np.power,
}


def oracle(fn: str, *args: Array) -> Array:
    """In f64 for f32 arguments, in the 80-bit format for f64."""
    wide: Any = np.float64 if args[0].dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        return ORACLE[fn](*[a.astype(wide) for a in args])


def ulp_error(got: Array, want: Array) -> Array:
    """|got - want| in units of got's last place at `want`; equal specials count 0, unequal ones infinity."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        size = np.where(np.isinf(rounded), np.finfo(got.dtype).max, np.abs(rounded))
        error = np.abs(got.astype(np.longdouble) - want.astype(np.longdouble)) / np.spacing(size).astype(np.longdouble)
        same = (got == rounded) & ~np.isfinite(rounded) | np.isnan(got) & np.isnan(rounded)
        return np.where(same, 0, np.where(np.isnan(error), np.inf, error))


def sweep(fn: str, elem: str, count: int) -> list[Array]:
    """Random arguments of every magnitude, dense where the function does something; the seed is fresh."""
    rng = fresh_rng()
    info = np.finfo(ELEMENTS[elem])
    single = elem == "float"
    edge = {"exp": (-105, 90) if single else (-750, 712), "exp2": (-152, 130) if single else (-1078, 1028),
            "expm1": (-30, 90) if single else (-50, 712), "sigmoid": (-105, 40) if single else (-748, 60)}
    everywhere = np.exp(rng.uniform(np.log(float(info.smallest_subnormal)), np.log(float(info.max)), count)) * rng.choice([-1, 1], count)
    parts = [everywhere, rng.uniform(*edge.get(fn, (-1000, 1000)), count), rng.uniform(-3, 3, count), rng.uniform(0.5, 2, count),
             rng.uniform(-12, 12, count)]
    x = np.concatenate(parts).astype(info.dtype)
    if fn != "pow":
        return [x]
    x = np.abs(x)
    x[x == 0] = 1
    size = np.abs(np.log(x.astype(np.float64)))
    y = rng.uniform(-1.02, 1.02, x.size) * np.log(float(info.max)) / np.where(size == 0, 1, size)
    return [x, y.clip(-1e30, 1e30).astype(info.dtype)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("elem", ELEMENTS)
@pytest.mark.parametrize("fn", LIMITS)
def test_error_stays_below_the_limit(fn: str, elem: str, level: str) -> None:
    args = sweep(fn, elem, 300 if fn == "erf" else 6000)
    got = compiled(elem, level)(fn, *args)
    error = ulp_error(got, oracle(fn, *args))
    worst = int(np.argmax(error))
    limit = LIMITS[fn][list(ELEMENTS).index(elem)][LEVELS.index(level)]
    assert error[worst] <= limit, f"{fn}{tuple(a[worst] for a in args)} = {got[worst]!r}: {error[worst]:.3f} ULP"


@pytest.mark.slow
@pytest.mark.parametrize("fn", ["sin", "cos", "tan"])
def test_every_number_below_1024_stays_below_the_limit(fn: str) -> None:
    """All that AVX-512 computes in f32. Below 2^-14 sin and tan are x, and cos is 1, to a tenth of a unit; signs are symmetric."""
    run, step = compiled("float", "avx512"), 1 << 22
    for start in range(0x38800000, 0x44800000, step):
        x = np.arange(start, start + step, dtype=np.int32).view(np.float32)
        got, want = run(fn, x), ORACLE[fn](x.astype(np.float64))
        error = np.abs(got - want) / np.spacing(np.abs(want).astype(np.float32))
        assert error.max() <= LIMITS[fn][0][2], f"{fn}({x[error.argmax()]!r}): {error.max():.3f} ULP"
        assert np.array_equal(run(fn, -x), got if fn == "cos" else -got), hex(start)


@pytest.mark.parametrize("fn", ["reciprocal", "sqrt"])
def test_newton_steps_round_every_mantissa_as_the_instruction_does(fn: str) -> None:
    """From 1 to 4: both parities of the exponent, which is all that sqrt sees."""
    run = compiled("float", "avx512")
    for start in range(0x3F800000, 0x40800000, 1 << 22):
        x = np.arange(start, start + (1 << 22), dtype=np.int32).view(np.float32)
        assert np.array_equal(run(fn, x), ORACLE[fn](x)), hex(start)


def _ordered(x: Array) -> list[int]:
    """Floats as integers in their order: neighbours differ by one."""
    width = 8 * x.dtype.itemsize
    bits = [int(b) for b in x.view(f"u{x.dtype.itemsize}")]
    return [b if b < 1 << (width - 1) else (1 << (width - 1)) - b for b in bits]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("elem", ELEMENTS)
@pytest.mark.parametrize("fn", VALIDATED)
def test_numpys_validation_set(fn: str, elem: str, level: str) -> None:
    dtype = np.dtype(ELEMENTS[elem])
    lines = (VALIDATION / f"umath-validation-set-{fn}.csv").read_text().splitlines()
    rows = [line.split(",") for line in lines if line.startswith(f"np.{dtype.name}")]
    assert rows
    x, want = (np.array([int(row[k], 16) for row in rows], f"u{dtype.itemsize}").view(dtype) for k in (1, 2))
    got = compiled(elem, level)(fn, x)
    for a, g, w, gi, wi, row in zip(x, got, want, _ordered(got), _ordered(want), rows, strict=True):
        assert (np.isnan(g) and np.isnan(w)) or abs(gi - wi) <= int(row[3]), f"{fn}({a!r}) = {g!r}, not {w!r}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("elem", ELEMENTS)
@pytest.mark.parametrize("fn", vmath.UNARY)
def test_special_values(fn: str, elem: str, level: str) -> None:
    info = np.finfo(ELEMENTS[elem])
    top, small, tiny = float(info.max), float(info.smallest_subnormal), float(info.tiny)
    values = [0.0, 1.0, 0.5, 1.5, 2.5, 1e4, 2.0**20, 1e22, np.inf, top, small, tiny, 3 * small, 88.8, 104.5, 129.0, 151.0, 745.5, 1075.5]
    x = np.array([*values, *[-v for v in values], np.nan], info.dtype)
    got, want = compiled(elem, level)(fn, x), oracle(fn, x)
    error = ulp_error(got, want)
    assert np.max(error) <= LIMITS[fn][list(ELEMENTS).index(elem)][LEVELS.index(level)], list(zip(x, got, want, strict=True))
    with np.errstate(all="ignore"):
        zero = want.astype(info.dtype) == 0
    assert np.array_equal(np.signbit(got[zero]), np.signbit(want[zero])), list(zip(x[zero], got[zero], want[zero], strict=True))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("elem", ELEMENTS)
def test_special_powers(elem: str, level: str) -> None:
    info = np.finfo(ELEMENTS[elem])
    odd = 2.0 ** (info.nmant + 1) - 1
    ends = [float(info.max), float(info.smallest_subnormal), np.inf]
    values = [0.0, 1.0, 2.0, 0.5, 3.0, 0.9999999, 1.0000001, 1e30, 1e-30, odd, 2 * odd, *ends]
    every = np.array([*values, *[-v for v in values], np.nan], info.dtype)
    x, y = (a.ravel() for a in np.meshgrid(every, every))
    got, want = compiled(elem, level)("pow", x, y), oracle("pow", x, y)
    limit = LIMITS["pow"][list(ELEMENTS).index(elem)][0]
    with np.errstate(all="ignore"):
        good = (ulp_error(got, want) <= limit) & (np.isnan(want) | (np.signbit(got) == np.signbit(want)))
    assert good.all(), list(zip(x[~good], y[~good], got[~good], want[~good], strict=True))


@pytest.mark.parametrize("width", [0, 1, 3, 16, 24, 80])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("elem", ELEMENTS)
def test_bits_do_not_depend_on_the_lane_count(elem: str, level: str, width: int) -> None:
    rng = fresh_rng()
    x = np.concatenate([rng.standard_normal(200) * 4, np.exp(rng.uniform(-60, 60, 41))]).astype(ELEMENTS[elem])
    y = rng.permutation(x)
    fns = vmath.UNARY + vmath.BINARY if width in (0, 3) else ("exp", "tanh", "erf", "sigmoid", "sin", "log")
    narrow = Compiled(fns, f"<{width} x {elem}>" if width else elem, target(level))
    for fn in fns:
        operands = (np.abs(x), y) if fn == "pow" else (x,)
        a, b = narrow(fn, *operands), compiled(elem, level)(fn, *operands)
        assert np.array_equal(a, b, equal_nan=True), fn


@pytest.mark.parametrize("fn", ["sin", "cos", "tan"])
def test_a_huge_neighbour_changes_no_bits(fn: str) -> None:
    x = fresh_rng().uniform(-100, 100, 64).astype(np.float32)
    mixed = x.copy()
    mixed[::5] = [3e38, np.inf, np.nan, -1e30, 1e7, 2e6, 1e20, -np.inf, 1e15, 4e9, -5e12, 8e33, 1e38]
    keep = np.arange(64) % 5 != 0
    run = compiled("float", "baseline")
    assert np.array_equal(run(fn, x)[keep], run(fn, mixed)[keep])


@pytest.mark.parametrize("elem", ELEMENTS)
@pytest.mark.parametrize("level", LEVELS)
def test_no_library_calls(level: str, elem: str) -> None:
    spec = target(level)
    text = jit.assembly(module(vmath.UNARY + vmath.BINARY, f"<{spec.lanes(8)} x {elem}>", spec), spec, "O1")
    calls = [line.split()[-1] for line in text.splitlines() if line.strip().startswith(("callq", "call\t"))]
    assert calls and all("tw.reduce_huge" in name for name in calls)


def test_a_wrong_coefficient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vmath_f32, "_EXP", (0.50001, *vmath_f32._EXP[1:]))
    spec = target("baseline")
    (x,) = sweep("exp", "float", 2000)
    error = ulp_error(Compiled(("exp",), "<4 x float>", spec)("exp", x), oracle("exp", x))
    assert np.max(error) > LIMITS["exp"][0][0]


def test_tables_have_32_entries() -> None:
    assert {len(row) for row in (*vmath_tables.ERF, *vmath_tables.TANH)} == {32}


def test_errors_name_the_function() -> None:
    f = FunctionText("k", [], BASELINE)
    with pytest.raises(CompileError, match=r"exp: vector math works on float and double, got <4 x half>; convert first"):
        vmath.emit("exp", f, "<4 x half>", "%x")
    with pytest.raises(CompileError, match=r"gamma: no such function of 1 operands; known: ceil, cos"):
        vmath.emit("gamma", f, "float", "%x")
    with pytest.raises(CompileError, match=r"exp: no such function of 2 operands"):
        vmath.emit("exp", f, "float", "%x", "%y")


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("elem", ELEMENTS)
def test_several_values_at_once_have_the_same_bits(elem: str, level: str) -> None:
    spec = target(level)
    ty = f"<{spec.lanes(ELEMENTS[elem]().itemsize)} x {elem}>"
    count, width = 5, lanes(ty)
    x = fresh_rng().standard_normal(count * width).astype(ELEMENTS[elem])
    for fn in ("exp", "erf", "tan", "pow"):
        f = FunctionText("many", [("ptr", "%x"), ("ptr", "%out")], spec, attributes=spec.attributes)
        xs = [f.load(ty, f.gep(ty, "%x", str(k))) for k in range(count)]
        for k, y in enumerate(vmath.emit_many(fn, f, ty, xs, xs if fn == "pow" else None)):
            f.store(ty, y, f.gep(ty, "%out", str(k)))
        f.ret()
        library = jit.Library([jit.compile_ir(module_text(f), spec, "O1")], ["many"])
        out = np.empty_like(x)
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("many"))(x.ctypes.data, out.ctypes.data)
        operands = (x, x) if fn == "pow" else (x,)
        assert np.array_equal(out, compiled(elem, level)(fn, *operands), equal_nan=True), fn


def test_constants_are_exact() -> None:
    assert number("float", 0.1) == "0x3FB99999A0000000"  # f32(0.1), printed as the double it equals
    assert number("double", 0.1) == "0x3FB999999999999A"
    assert number("half", 0.1) == "0xH2E66"
    assert number("bfloat", 0.1) == "0xR3DCD"
    assert (number("i32", -3), number("i1", 1)) == ("-3", "true")


@pytest.mark.parametrize("level", LEVELS)
def test_masked_lanes_are_neither_read_nor_written(level: str) -> None:
    spec = target(level)
    f = FunctionText("k", [("ptr", "%x"), ("ptr", "%out")], spec, attributes=spec.attributes)
    ty, mask = "<8 x float>", f.constant("<8 x i1>", [1, 1, 1, 0, 0, 0, 0, 0])
    x = f.masked_load(ty, "%x", mask, f.splat(ty, 7.0))
    f.store(ty, x, "%out")
    f.masked_store(ty, f.op("fadd", ty, x, f.splat(ty, 1.0)), f.gep("float", "%out", "8"), mask)
    f.ret()
    library = jit.Library([jit.compile_ir(module_text(f), spec, "O1")], ["k"])
    source, out = np.arange(3, dtype=np.float32), np.full(16, -1, np.float32)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(library.address("k"))(source.ctypes.data, out.ctypes.data)
    assert out.tolist() == [0, 1, 2, 7, 7, 7, 7, 7, 1, 2, 3, -1, -1, -1, -1, -1]
