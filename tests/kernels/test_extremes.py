"""The ends of the range through every dtype's kernels, as native code: overflow, infinities, NaN, subnormal numbers, zeros of both signs.

The oracle is PyTorch or NumPy in f64, rounded to the dtype. Where f32 holds every partial sum exactly (integers times a power of two, of
one sign) or an op rounds once, the bits must agree: then a result one step beyond the largest number is infinite and one below is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.ops.oracle import ORACLES, to_torch
from tests.passes.kit import near, same_bits, specials, wide
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dtypes import DType
from tilewright.core.errors import ShapeError
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.conv import direct as conv_kernels
from tilewright.kernels.matmul import tiling
from tilewright.kernels.pointwise import pointwise
from tilewright.kernels.rows import reduce
from tilewright.ops import quant
from tilewright.ops.linalg import functions as norms
from tilewright.passes.pipeline import run_pipeline

from .harness import run_graph

FLOATS = (dt.f64, dt.f32, dt.f16, dt.bf16)
Array = np.ndarray[Any, Any]
# once rounded: the bits are known. (torch computes them in f64 here, which is wide enough not to round twice.)
ONCE = {"neg", "abs", "add", "sub", "mul", "div", "sqrt", "reciprocal", "square", "floor", "ceil", "trunc", "round", "sign", "where",
        "relu", "is_nan", "is_inf", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_not", "copysign"}
# Relative and absolute errors beyond rounding: far from their centre series have no digits left in f64 either, and tanh is 1 where the
# approximate gelu still has a tail.
LOOSE = {"airy_ai": (2e-3, 0.0), "bessel_j1": (1e-11, 0.0), "bessel_y0": (1e-10, 0.0), "ndtri": (1e-6, 0.0), "gelu": (0.0, 1e-30),
         "lgamma": (0.0, 1e-14), "igamma": (1e-8, 1e-14), "igammac": (1e-8, 1e-14), "zeta": (1e-10, 0.0)}
INSIDE = ("igamma", "igammac", "remainder", "zeta", "hardswish")  # functions that are NaN or infinite in torch at the ends of the range
OWN = ("nextafter",)  # depends on the dtype: torch's own
HEAVY = ("igamma", "igammac", "zeta")  # compile for ten seconds in each dtype


def native(graph: Graph, inputs: list[Array]) -> list[Array]:
    got, error = run_graph(run_pipeline(graph), inputs)
    assert not error.any()
    return got


def rounded(a: Any, dtype: DType) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(a).astype(dtype.np)


def assert_bits(got: Array, want: Array, what: str = "") -> None:
    bad = np.argwhere(~same_bits(got, want))
    assert not bad.size, f"{what} {len(bad)} of {got.size} differ, first at {bad[0]}: {got[tuple(bad[0])]}, want {want[tuple(bad[0])]}"


# --- elementwise ---------------------------------------------------------------------------------------------------------------------


def grid(dtype: DType, count: int) -> list[Array]:
    """Every special number (with every other), and some plain ones."""
    some = np.concatenate([specials(dtype), rounded([-2, 3, 0.25, -0.75, 10, -10, 100, -100, 1e-3], dtype)])
    if count == 1:
        return [some]
    if count == 2:
        return [a.ravel() for a in np.meshgrid(some, some)]
    rng = np.random.default_rng(0)
    return [rng.choice(some, 600) for _ in range(count)]


ELEMENTWISE = sorted(n for n, c in o.REGISTRY.items() if c.traits.elementwise and n in ORACLES and n not in ("bitcast", "cast")
                     and c.samples and any(t.dtype.is_float for t in c.samples[0].types))


def in_doubles(name: str, attrs: dict[str, Any], inputs: list[Array]) -> Any:
    return ORACLES[name](attrs, *(to_torch(a if a.dtype.kind in "biu" or name in OWN else wide(a)) for a in inputs))


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in HEAVY else n for n in ELEMENTWISE])
def test_elementwise(name: str) -> None:
    cls, seen = o.REGISTRY[name], []
    for sample in cls.samples:
        if sample.attrs in seen:
            continue
        seen.append(sample.attrs)
        for dtype in FLOATS:
            floats = iter(grid(dtype, sum(t.dtype.is_float for t in sample.types)))
            inputs = [next(floats) if t.dtype.is_float else np.zeros(0) for t in sample.types]
            size = max(a.size for a in inputs)
            inputs = [a if a.size else np.resize([True, False, False], size).astype(t.dtype.np)
                      for a, t in zip(inputs, sample.types, strict=True)]
            g = Graph(name)
            ins = [g.input(TensorType(dt.dtype(a.dtype), a.shape), f"x{i}") for i, a in enumerate(inputs)]
            try:
                g.outputs = list(g.add(cls(**sample.attrs), *ins).values)
            except ShapeError:
                continue
            got = native(g, inputs)
            made = in_doubles(name, sample.attrs, inputs)
            for a, b in zip(got, made if isinstance(made, (tuple, list)) else [made], strict=True):
                check_element(name, inputs, a, (b.double() if b.is_floating_point() else b).numpy(), dtype)


def check_element(name: str, inputs: list[Array], got: Array, want: Array, dtype: DType) -> None:
    if name in ("copysign", "signbit"):  # the sign of NaN is nobody's
        known = ~np.isnan(wide(inputs[-1]))
        got, want = got[known], want[known]
    if got.dtype.kind in "biu" or name in ONCE:
        assert_bits(got, rounded(want, dt.dtype(got.dtype)), f"{name} of {dtype}:")
        return
    relative, absolute = LOOSE.get(name, (0.0, 0.0))
    with np.errstate(all="ignore"):
        slack = np.where(np.isfinite(want), np.abs(want) * relative + absolute, 0.0)
        ok = near(got, rounded(want, dtype), slack, got.dtype)
    if name in INSIDE:
        ok |= ~np.isfinite(want) | (np.abs(wide(inputs[0])) > 1e9) | (np.abs(wide(inputs[-1])) < 1e-9)
    bad = np.flatnonzero(~ok)
    assert not bad.size, f"{name} of {dtype}: {[float(a[bad[0]]) for a in inputs]} gives {got[bad[0]]}, not {want[bad[0]]}"


SIZES = {d: ml_dtypes.finfo(d.np) for d in dt.ALL if d.is_float}


@pytest.mark.parametrize("to", [d.name for d in (*SIZES, dt.i8, dt.u8, dt.i16, dt.i32, dt.i64, dt.bool_)])
def test_casts(to: str) -> None:
    """Round to nearest even, to infinity past the half step beyond the largest number (to NaN where there is none), to subnormals."""
    target = dt.dtype(to)
    for source in SIZES:
        x = grid(source, 1)[0]
        if target.is_float:
            most, least = float(SIZES[target].max), float(SIZES[target].smallest_subnormal)
            half = 2.0 ** -(SIZES[target].nmant + 2)  # half a unit of the last place
            steps = [most, most * (1 + half), most * 1.001, most * 2, least, least / 2, least * 0.51, least * 1.5]
            x = np.concatenate([x, rounded([*steps, *(-v for v in steps)], source)])
        elif not target.is_bool:
            info = np.iinfo(target.np)
            inside = np.isfinite(wide(x)) & (wide(x) >= info.min) & (wide(x) <= info.max / 2)
            x = x[inside]
        g = Graph()
        g.outputs = [o.Cast(dtype=target)(g.input(TensorType(source, x.shape), "x"))]
        with np.errstate(all="ignore"):
            want = x.astype(target.np) if target.is_float else wide(x).astype(target.np)
        assert_bits(native(g, [x])[0], want, f"{source} to {target}:")


# --- sums of products ----------------------------------------------------------------------------------------------------------------


def whole(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...], scale: float, *, signed: bool = False, axis: int = 0) -> Array:
    """Integers up to 15 times a power of two: products and sums of them are exact in f32 (f64 for f64). Of one sign, the power varies along
    `axis`."""
    a = rng.integers(1, 16, shape) * (rng.choice([-1, 1], shape) if signed else 1) * scale
    if not signed:
        a = np.moveaxis(np.moveaxis(a, axis, -1) * np.resize([1.0, 1 / 4, 1 / 16], shape[axis]), -1, axis)
    out = rounded(a, dtype)
    assert (wide(out) == a).all()
    return out


def scales(dtype: DType, terms: int) -> list[tuple[str, float, float]]:
    """Powers of two for both operands: results four times the largest number (a term is 64 in the mean), and subnormal ones."""
    info = SIZES[dtype]
    end = round(math.log2(float(info.max)) + 2 - math.log2(64 * terms))
    low = int(math.log2(float(info.smallest_subnormal)))
    return [("overflow", 2.0 ** (end // 2), 2.0 ** (end - end // 2)), ("subnormal", 2.0 ** (low // 2), 2.0 ** (low - low // 2)),
            ("plain", 1.0, 1.0)]


PRODUCTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "matrix": ((13, 37), (37, 21), {}), "row": ((1, 64), (64, 33), {}), "column": ((29, 45), (45, 1), {}),
    "batch": ((3, 5, 17), (3, 17, 9), {}), "turned": ((6, 24), (19, 24), {"transpose_b": True}), "tall": ((70, 10), (10, 70), {}),
    "scaled": ((6, 23), (23, 8), {"alpha": 0.5})}


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_matmul(dtype: DType, kind: str) -> None:
    rng = np.random.default_rng(3)
    left, right, attrs = PRODUCTS[kind]
    for name, s, t in scales(dtype, left[-1]):
        signed = name != "overflow"
        if not signed and "alpha" in attrs and dtype is not dt.f16:
            continue  # the sum passes the end before it is scaled
        columns = -2 if attrs.get("transpose_b") else -1
        x, y = whole(rng, dtype, left, s, signed=signed, axis=-2), whole(rng, dtype, right, t, signed=signed, axis=columns)
        check_matmul(dtype, x, y, attrs, name)
    x, y = whole(rng, dtype, left, 1.0, signed=True), whole(rng, dtype, right, 1.0, signed=True)
    x.flat[::11] = rounded([0.0, -0.0, np.inf, -np.inf, np.nan], dtype)[np.arange(x[..., 0].size * x.shape[-1])[::11] % 5]
    check_matmul(dtype, x, y, attrs, "infinities")


def check_matmul(dtype: DType, x: Array, y: Array, attrs: dict[str, Any], what: str, *, constant: bool = False) -> None:
    g = Graph()
    a = g.input(TensorType(dtype, x.shape), "a")
    b = g.constant(y) if constant else g.input(TensorType(dtype, y.shape), "b")
    g.outputs = [o.Matmul(**attrs)(a, b)]
    with np.errstate(all="ignore"):
        want = np.matmul(wide(x), wide(np.swapaxes(y, -1, -2) if attrs.get("transpose_b") else y)) * attrs.get("alpha", 1.0)
    got = native(g, [x] if constant else [x, y])[0]
    if what == "overflow":
        finite = np.isfinite(wide(rounded(want, dtype)))
        assert finite.any() and not finite.all(), "the sample must reach both sides of the end"
    assert_bits(np.where(got == 0, np.abs(got), got), np.where((z := rounded(want, dtype)) == 0, np.abs(z), z), f"{what}:")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_matmul_by_a_constant(dtype: DType) -> None:
    """Packed weights are read by other code."""
    rng = np.random.default_rng(4)
    for rows in (1, 5, 40):
        for name, s, t in scales(dtype, 45):
            signed = name != "overflow"
            x, w = whole(rng, dtype, (rows, 45), s, signed=signed), whole(rng, dtype, (45, 34), t, signed=signed, axis=-1)
            check_matmul(dtype, x, w, {}, name, constant=True)


CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1d": ((2, 3, 17), (5, 3, 3), {}), "2d": ((2, 4, 9, 8), (6, 4, 3, 3), {}), "point": ((2, 8, 5, 5), (16, 8, 1, 1), {}),
    "depthwise": ((1, 6, 9, 9), (6, 1, 3, 3), {"groups": 6}), "strided": ((1, 4, 11, 11), (4, 4, 3, 3), {"stride": (2, 2)})}


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_conv(dtype: DType, kind: str) -> None:
    rng = np.random.default_rng(5)
    image, filters, more = CONVS[kind]
    n = len(image) - 2
    attrs: dict[str, Any] = {"stride": (1,) * n, "padding": ((1, 1),) * n, "dilation": (1,) * n} | more
    for name, s, t in scales(dtype, math.prod(filters[1:])):
        signed = name != "overflow"
        x, w = whole(rng, dtype, image, s, signed=signed), whole(rng, dtype, filters, t, signed=signed)
        if name == "plain":
            x.flat[::13] = rounded([np.inf, -np.inf, np.nan, -0.0], dtype)[np.arange(x.size)[::13] % 4]
        g = Graph()
        g.outputs = [o.Conv(**attrs)(g.input(TensorType(dtype, image), "x"), g.constant(w))]
        want = ORACLES["conv"](attrs, torch.from_numpy(wide(x)), torch.from_numpy(wide(w))).numpy()
        got = native(g, [x])[0]
        if name == "plain":  # padding is skipped or multiplied: 0 * inf at the rim is either's
            inner = (slice(None), slice(None), *(slice(1, -1),) * n)
            got, want = got[inner], want[inner]
        assert_bits(got + 0.0, rounded(want, dtype) + 0.0, f"{name}:")


# --- reductions ----------------------------------------------------------------------------------------------------------------------

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": o.Sum, "mean": o.Mean, "max": o.Max, "min": o.Min, "prod": o.Prod, "var": o.Var, "std": o.Std, "log_sum_exp": o.LogSumExp,
    "cum_sum": o.CumSum, "softmax": o.Softmax, "log_softmax": o.LogSoftmax, "arg_max": o.ArgMax, "arg_min": o.ArgMin}
ONE_AXIS = ("cum_sum", "softmax", "log_softmax", "arg_max", "arg_min")


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_reductions(dtype: DType, name: str) -> None:
    rng = np.random.default_rng(6)
    info = SIZES[dtype]
    top, low = float(info.max), float(info.smallest_subnormal)
    step = 2.0 ** int(math.log2(top) - 7)  # the step of sums that pass the end
    small = rounded([2.0, 0.5, 1.0, -1.0, 4.0, 0.25], dtype)
    rows = {"overflow": rounded(rng.integers(1, 16, (9, 21)) * step, dtype),
            "subnormal": rounded(rng.integers(-9, 10, (9, 21)) * low, dtype),
            "specials": np.where(rng.random((40, 21)) < 0.1, rng.choice(rounded([np.inf, -np.inf, np.nan, 0.0, -0.0], dtype), (40, 21)),
                                 rng.choice(small, (40, 21))).astype(dtype.np),
            "nothing": np.full((3, 21), -np.inf, dtype.np), "powers": rng.choice(small, (9, 300))}
    for what, x in rows.items():
        for axis in (1, 0):
            attrs: dict[str, Any] = {"axis": axis} if name in ONE_AXIS else {"axes": (axis,)}
            g = Graph()
            g.outputs = [REDUCTIONS[name](**attrs)(g.input(TensorType(dtype, x.shape), "x"))]
            got = native(g, [x])[0]
            want = ORACLES[name](attrs, torch.from_numpy(wide(x))).numpy()
            check_reduction(name, what, got, want, dtype, x.shape[axis])


def check_reduction(name: str, what: str, got: Array, want: Array, dtype: DType, length: int) -> None:
    exact = name in ("max", "min") or (name in ("sum", "cum_sum") and what != "powers") or (name == "prod" and what != "specials")
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, want)
    elif exact and not (name == "prod" and dtype is dt.f64 and what == "powers"):
        assert_bits(got + 0.0, rounded(want, dtype) + 0.0, f"{name} {what}:")
    else:
        kept = np.abs(want) < float(SIZES[dtype].max) * 0.9  # a sum of squares near the end is one side of it or the other
        with np.errstate(invalid="ignore"):
            ok = near(got, rounded(want, dtype), np.abs(want) * 2.0**-20 * (dtype is not dt.f64), got.dtype) | (np.isfinite(want) & ~kept)
        bad = np.argwhere(~ok)
        assert not bad.size, f"{name} {what} of {dtype}: {got[tuple(bad[0])]}, want {want[tuple(bad[0])]}"


@pytest.mark.parametrize("size", [2e-41, 1e-30, 1e-21, 1.0, 2e19, 3e37])
@pytest.mark.parametrize("dtype", [dt.f32, dt.bf16, dt.f16], ids=str)
def test_deviations_and_norms_stay_in_range(dtype: DType, size: float) -> None:
    """Squares pass the ends of the range long before the root of their sum does. PyTorch computes these in f64 or f32 inside."""
    size = size if dtype is not dt.f16 else float(np.interp(math.log10(size), (-41, 0, 38), (1e-7, 1, 9000)))
    x = rounded(np.random.default_rng(3).standard_normal((7, 33)) * size, dtype)
    exact = torch.from_numpy(wide(x).astype(np.float64))
    for axes in ((1,), (0,), (0, 1)):
        g = Graph()
        v = g.input(TensorType(dtype, x.shape), "x")
        g.outputs = [o.Std(axes=axes)(v), o.Var(axes=axes)(v), norms.vector_norm(v, 2.0, axes)]
        std, var, norm = native(g, [x])
        want = [torch.std(exact, axes), torch.var(exact, axes)]
        if dtype is dt.f16:  # as PyTorch's: the squares of f32 are summed in f32
            want.append(torch.linalg.vector_norm(exact, 2, axes))
        for got, true in zip((std, var, norm), want, strict=False):
            least = float(SIZES[dtype].smallest_subnormal)
            there = rounded(true.numpy(), dtype)
            ok = near(got, there, np.abs(true.numpy()) * 2.0**-20 + least, got.dtype)
            assert ok.all(), f"{dtype} {size}: {got[~ok][0]}, want {there[~ok][0]}"


# --- norms, attention, packed matrices -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_large_and_small_rows(dtype: DType) -> None:
    """Squares of f16 pass its end, those of f32 do not: small floats compute in f32."""
    rng = np.random.default_rng(7)
    limit = {"bf16": 3e-2, "f16": 4e-3}.get(dtype.name, 2e-5)
    for size in (1.0, 2.0**12, 2.0**-10):
        x = rounded(rng.standard_normal((5, 33)) * size, dtype)
        y, apart = wide(x), wide(x) - wide(x).mean(-1, keepdims=True)
        for op, want in ((o.RmsNorm(eps=0.0, affine="none"), y / np.sqrt((y**2).mean(-1, keepdims=True))),
                         (o.LayerNorm(eps=0.0, affine="none"), apart / y.std(-1, keepdims=True))):
            g = Graph()
            g.outputs = [op(g.input(TensorType(dtype, x.shape), "x"))]
            np.testing.assert_allclose(wide(native(g, [x])[0]), want, rtol=limit, atol=limit)


def softmax(s: Array) -> Array:
    with np.errstate(all="ignore"):
        e = np.exp(s - s.max(-1, keepdims=True))
        return np.asarray(e / e.sum(-1, keepdims=True))


@pytest.mark.parametrize("keys", [5, pytest.param(70, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_attention(dtype: DType, keys: int) -> None:
    """Scores past the end of f16, values at the end, rows of -inf, infinities and NaN in a row of q."""
    rng = np.random.default_rng(8)
    top = float(SIZES[dtype].max) / (1 if dtype is dt.f16 else 4 * keys)  # weights are divided by their sum at last: in f32 it must hold
    q = rounded(rng.integers(-8, 9, (1, 2, 9, 16)) * 2.0, dtype)
    k, v = rounded(rng.integers(-8, 9, (1, 2, keys, 16)), dtype), rounded(rng.integers(1, 9, (1, 2, keys, 16)) * (top / 16), dtype)
    q[0, 0, 1], q[0, 0, 2], q[0, 1, 3] = 1000.0, np.nan, np.inf
    k[0, :, 1] = np.abs(k[0, :, 1]) + 1
    mask = np.ones((9, keys), bool)
    mask[4] = False
    for hidden in (-np.inf, -1e4, 0.0):
        for empty in ("nan", "zeros"):
            op = o.Attention(scale=0.25, has_mask=True, hidden=hidden, empty=empty)
            g = Graph()
            ins = [g.input(TensorType(dtype, a.shape), n) for a, n in ((q, "q"), (k, "k"), (v, "v"))]
            g.outputs = [op(*ins, g.input(TensorType(dt.bool_, mask.shape), "m"))]
            got = native(g, [q, k, v, mask])[0]
            with np.errstate(all="ignore"):
                s = np.where(mask, wide(q) @ np.swapaxes(wide(k), -1, -2) * 0.25, hidden)
                p = np.where((s == -np.inf).all(-1, keepdims=True), 0.0, softmax(s)) if empty == "zeros" else softmax(s)
                want = p @ wide(v)
            finite = np.isfinite(want)
            assert (np.isnan(wide(got)) == np.isnan(want)).all()
            np.testing.assert_allclose(wide(got)[finite], want[finite], rtol=1e-2 if dtype.itemsize == 2 else 2e-5)
    plain = o.Attention(scale=0.25)
    g = Graph()
    g.outputs = [plain(*(g.input(TensorType(dtype, a.shape), n) for a, n in ((q, "q"), (k, "k"), (v, "v"))))]
    full = native(g, [np.zeros_like(q), k, np.full_like(v, top)])[0]  # a mean of the largest number is not infinite
    np.testing.assert_allclose(wide(full), top, rtol=1e-2 if dtype.itemsize == 2 else 1e-6)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16", "F32"])
def test_packed_matrices(name: str) -> None:
    """Activations at both ends, through formats that round them to values and formats that do not. What is not finite stays so."""
    rng = np.random.default_rng(9)
    n, k, fmt = 32, 64, quant.by_name(name)
    w = np.asarray(fmt.quantize(rng.standard_normal((n, k)).astype(np.float32)))
    plain = fmt.dequantize(w).reshape(n, k).astype(np.float64)
    for rows in (1, 6):
        for size in (1.0, 1e30, 1e-30, *([] if name.endswith("_1") else [3e37])):  # those of minima multiply the sum of a block
            x = (rng.uniform(0.5, 1.0, (rows, k)) * size).astype(np.float32)
            got = product(name, w, x, n, k)
            want = wide(x) @ plain.T
            inside, outside = np.abs(want) < 3e38, np.abs(want) > 3.8e38
            np.testing.assert_allclose(got[inside], want[inside], rtol=0.03, atol=size * 0.6)
            assert np.isinf(got[outside]).all()
        for bad in (np.inf, -np.inf, np.nan):
            x = rng.standard_normal((rows, k)).astype(np.float32)
            x[0, 3] = bad
            got = product(name, w, x, n, k)
            assert not np.isfinite(got[0]).any()
            assert np.isfinite(got[1:]).all()


def product(name: str, w: Array, x: Array, n: int, k: int) -> Array:
    g = Graph()
    g.outputs = [o.QMatmul(format=name, n=n, k=k)(g.input(TensorType(dt.f32, x.shape), "x"), g.constant(w))]
    return native(g, [x])[0]


# --- the suite can fail --------------------------------------------------------------------------------------------------------------


def saturating(b: Any, x: Any, dtype: DType) -> Any:
    """Deliberately wrong: the largest number instead of infinity."""
    if dtype is dt.f16:
        x = b.binary("min", b.binary("max", x, -65504.0), 65504.0)
    return b.cast(x, dtype)


def flushing(b: Any, x: Any, dtype: DType) -> Any:
    """Deliberately wrong: zero instead of a subnormal number."""
    if x.dtype.is_float and dtype.is_float:
        least = float(SIZES[dtype].tiny)
        x = b.select(b.cmp("lt", b.unary("abs", x), least), 0.0, x)
    return b.cast(x, dtype)


@pytest.mark.parametrize("wrong", [saturating, flushing])
@pytest.mark.parametrize(("module", "check"), [
    (tiling, lambda: test_matmul(dt.f16, "matrix")), (tiling, lambda: test_matmul_by_a_constant(dt.f16)),
    (conv_kernels, lambda: test_conv(dt.f16, "2d")), (reduce, lambda: test_reductions(dt.f16, "sum")),
    (pointwise, lambda: test_elementwise("mul"))], ids=["matmul", "constant", "conv", "reduce", "pointwise"])
def test_a_wrong_end_is_noticed(module: Any, check: Callable[[], None], wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from . import harness

    monkeypatch.setattr(module, "narrow_sum" if hasattr(module, "narrow_sum") else "narrow", wrong)
    monkeypatch.setattr(harness, "_LIBRARIES", {})
    with pytest.raises(AssertionError):
        check()
