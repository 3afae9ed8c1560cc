"""The language: loops, branches, functions, dtypes, views and partitions, each compiled and in the interpreter, against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright import lang as tl
from tilewright.core.dtypes import f32
from tilewright.core.pytree import flatten
from tilewright.ir.types import TensorType
from tilewright.kernels.select import select
from tilewright.passes.pipeline import run_pipeline
from tilewright.target.cpu.host import host_target
from tilewright.transform.trace import Leaf, trace

SCALE = 3


def both(kernel: Any, *args: Any, **constants: Any) -> Any:
    """The result, compiled and interpreted: the same."""
    got, debugged = kernel(*args, **constants), kernel.debug(*args, **constants)
    for a, b in zip(got if isinstance(got, tuple) else (got,), debugged if isinstance(debugged, tuple) else (debugged,), strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-6, atol=1e-6)
    return got


@tw.kernel("f32[N] -> f32[N]", grid=1)
def loops(x, y, *, TIMES=3):
    """Numbers, index values and tiles are carried; a name may change its value in a branch inside a loop."""
    total, count, last = 0.0, 0, 0
    for i in range(x.shape[0]):
        v = x.load(i, 1)
        if i % 2 == 0:
            total += v
            count = count + 1
        else:
            total -= v
        for _ in tl.static_range(TIMES):
            total = total + 1
        last = i
    for i in range(y.shape[0]):
        y.store(i, total + count * 100 + last)


def test_loops_and_branches() -> None:
    x = fresh_rng().integers(-5, 5, 9).astype(np.float32)
    want = (x * np.where(np.arange(9) % 2 == 0, 1, -1)).sum() + 27 + 500 + 8
    np.testing.assert_allclose(both(loops, x), np.full(9, want))
    np.testing.assert_allclose(both(loops, x, TIMES=0), np.full(9, want - 27))


def affine(v, *, by):
    if by == 0:
        return v
    return v * SCALE + by


@tw.kernel("f32[N], i64, f32 -> f32[N]", grid=lambda N, B: tl.cdiv(N, B))
def functions(x, shift, factor, y, *, B=8, BY=1):
    """Numbers as arguments, functions that are read in place, globals, run-time choices."""
    i = tl.program_id()
    start = i * B
    here = x.load(start, B)
    here = affine(here, by=BY) * factor + shift
    biggest = max(start, tl.num_programs(0))
    y.store(start, here + (biggest if i > 0 else -1))


def test_functions_and_numbers() -> None:
    x = fresh_rng().standard_normal(19).astype(np.float32)
    for by in (0, 1):
        start = np.arange(19) // 8 * 8
        want = (x * 3 + by if by else x) * 0.5 + 7 + np.where(start > 0, np.maximum(start, 3), -1)
        np.testing.assert_allclose(both(functions, x, 7, 0.5, BY=by), want, rtol=1e-6)


@tw.kernel("T[M, N] -> T[N, M]", grid=lambda M, N, B: (tl.cdiv(M, B), tl.cdiv(N, B)))
def transposed(x, y, *, B=8):
    i, j = tl.program_id(0), tl.program_id(1)
    t = x.partition(B, B).get_tile(i, j)
    y.partition(B, B)[j, i] = t.load().T


@tw.kernel("T[M, N] -> T[N, M]", grid=lambda N, M, B: (N, tl.cdiv(M, B)))
def transposed_view(x, y, *, B=8):
    row = tl.program_id(0)
    tiles = x.T[row].partition(B)
    y[row].partition(B).store(tl.program_id(1), tiles.load(tl.program_id(1)))


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint16, np.float64, ml_dtypes.bfloat16, np.bool_])
def test_transposes(dtype: Any) -> None:
    x = fresh_rng().integers(0, 2, (13, 21)).astype(dtype)
    for kernel in (transposed, transposed_view):
        assert np.array_equal(both(kernel, x), x.T)
        assert np.array_equal(both(kernel, x[:0]), x[:0].T)


@tw.kernel("T[M, N] -> T[N, M]", grid=lambda M, A: tl.cdiv(M, A))
def turned_tiles(x, y, *, A, B):
    i = tl.program_id(0)
    for j in range(tl.cdiv(x.shape[1], B)):
        y.partition(B, A)[j, i] = x.partition(A, B)[i, j].T


@pytest.mark.parametrize("sides", [(1, 3), (3, 1), (5, 17), (2, 2), (4, 16)])
def test_tiles_of_any_sides_are_transposed(sides: tuple[int, int]) -> None:
    x = fresh_rng().standard_normal((11, 21)).astype(np.float32)
    np.testing.assert_array_equal(both(turned_tiles, x[::-1], A=sides[0], B=sides[1]), x[::-1].T)


@tw.kernel("i32[N] -> i64[B], i64[B]", grid=lambda B: 1)
def tiles_of(x, starts, edges, *, B=4, SIDE=8):
    """get_tile, start, size, is_edge, mask and count."""
    parts = x.partition(SIDE)
    for i in range(parts.count[0]):
        t = parts.get_tile(i)
        inside = tl.where(t.mask, tl.arange(SIDE) * 0 + 1, 0).sum()
        starts.store(i, t.start[0] * 100 + t.size[0] * 10 + tl.index(inside))
        if t.is_edge:
            edges.store(i, 1)
        else:
            edges.store(i, 0)


def test_bounds_and_edges_of_tiles() -> None:
    x = np.zeros(29, np.int32)
    starts, edges = both(tiles_of, x)
    np.testing.assert_array_equal(starts, [88, 888, 1688, 2455])
    np.testing.assert_array_equal(edges, [0, 0, 0, 1])


@tw.kernel("T[N], U[N] -> T[N], U[N], bool[N]", grid=1)
def mixed(a, b, x, y, z, *, B=32):
    s, t = a.load(0, B), b.load(0, B)
    x.store(0, tl.where((s > 2) & (t < 5.0) | (s == t), s, -s).to(x.dtype))
    y.store(0, tl.maximum(s, t) * 2.5 - t / 2)
    z.store(0, not_both(s, t))


def not_both(s, t):
    return ~((s > 0) & (t > 0))


@pytest.mark.parametrize("a", [np.int32, np.int16, np.float32, np.int64])
@pytest.mark.parametrize("b", [np.float32, np.float64, np.float16])
def test_dtypes_meet(a: Any, b: Any) -> None:
    s, t = fresh_rng().integers(-8, 8, (2, 21))
    s, t = s.astype(a), t.astype(b)
    x, y, z = both(mixed, s, t)
    np.testing.assert_array_equal(x, np.where(((s > 2) & (t < 5)) | (s == t), s, -s).astype(a))
    np.testing.assert_allclose(y.astype(np.float64), np.maximum(s, t).astype(np.float64) * 2.5 - t.astype(np.float64) / 2)
    np.testing.assert_array_equal(z, ~((s > 0) & (t > 0)))
    assert (x.dtype, y.dtype, z.dtype) == (s.dtype, t.dtype, np.dtype(bool))


@tw.kernel("i32[N] -> i32[N], i32[N], i32[N], i32[N]", grid=lambda N, B: tl.cdiv(N, B))
def integers(x, a, b, c, d, *, B=16):
    i = tl.program_id()
    v = x.partition(B)[i]
    a.partition(B)[i] = v // 3 + v % 3 * 100
    b.partition(B)[i] = (v << 2) ^ (v & 7) | 1
    c.partition(B)[i] = tl.abs(v) - tl.sign(v) + v**2
    d.partition(B)[i] = tl.cumsum(v)


def test_integers_wrap_and_divide_like_python() -> None:
    x = fresh_rng().integers(-(2**31), 2**31, 32).astype(np.int32)
    a, b, c, d = both(integers, x)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(a, x // 3 + x % 3 * 100)
        np.testing.assert_array_equal(b, (x << 2) ^ (x & 7) | 1)
        np.testing.assert_array_equal(c, np.abs(x) - np.sign(x) + x * x)
        np.testing.assert_array_equal(d, np.concatenate([np.cumsum(x[:16], dtype=np.int32), np.cumsum(x[16:], dtype=np.int32)]))


UNARY = ["exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "sin", "cos", "tan", "tanh", "floor", "ceil", "trunc", "reciprocal"]


@tw.kernel("T[N] -> T[N]", grid=1)
def unary(x, y, *, FN, B=16):
    fn = getattr(tl, FN)
    y.store(0, fn(x.load(0, B)))


@pytest.mark.parametrize("fn", UNARY)
def test_functions_of_tiles(fn: str) -> None:
    for dtype in (np.float32, np.float64):
        x = fresh_rng().uniform(0.1, 3, 11).astype(dtype)
        np.testing.assert_allclose(both(unary, x, FN=fn), getattr(np, fn)(x), rtol=3e-6 if dtype is np.float32 else 1e-14)


@tw.kernel("f32[N], i64[K] -> f32[K], i32[4]", grid=1)
def scattered(x, ids, y, bins, *, B=8):
    """Gathers, integer atomics and tokens."""
    at = ids.load(0, B)
    bins.store(0, tl.zeros(4, "i32"))
    first = tl.token()
    y.store(0, x.gather(at), after=first)
    for k in range(ids.shape[0]):
        bins.atomic("add", tl.index(ids.load(k, 1)) % 4, 1)


def test_gathers_and_atomics() -> None:
    x, ids = fresh_rng().standard_normal(50).astype(np.float32), fresh_rng().integers(0, 50, 8)
    y, bins = both(scattered, x, ids)
    np.testing.assert_array_equal(y, x[ids])
    np.testing.assert_array_equal(bins, np.bincount(ids % 4, minlength=4))


def test_sizes_as_constants_are_taken_from_the_arrays() -> None:
    @tw.kernel("f32[N, D] -> f32[N]", grid=lambda N: N)
    def totals(x, y, *, D):
        i = tl.program_id()
        y.store(i, x[i].load(0, D).sum())

    x = fresh_rng().standard_normal((5, 24)).astype(np.float32)
    np.testing.assert_allclose(both(totals, x), x.sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(totals(x[:, :3]), x[:, :3].sum(1), rtol=1e-5, atol=1e-5)
    with pytest.raises(tw.InputError, match=r"kernel totals: D is a size of the arrays, 24, got D=8"):
        totals(x, D=8)


def test_a_result_of_the_last_loop_is_used_after_it() -> None:
    @tw.kernel("f32[N] -> f32[1]", grid=1)
    def largest(x, y, *, B=8):
        top = -float("inf")
        for t in x.partition(B):
            top = tl.maximum(top, t.load(other=-float("inf")))
        y.store(0, top.max())  # type: ignore[attr-defined]

    x = fresh_rng().standard_normal(37).astype(np.float32)
    np.testing.assert_array_equal(both(largest, x), [x.max()])


def test_all_tiles_of_a_matrix() -> None:
    @tw.kernel("f32[M, N] -> f32[M, N], f32[2]", grid=1)
    def doubled(x, y, z, *, A=4, B=8):
        total, edges = 0.0, 0
        for t in x.partition(A, B):
            y.partition(A, B).tile_at(t).store(t.load() * 2)
            total += t.load()
            if t.is_edge:
                edges += 1
        z.store(0, total.sum(0).sum(1).reshape((1,)))  # type: ignore[attr-defined]
        z.store(1, edges)

    for shape in ((9, 20), (8, 16), (3, 3), (0, 5)):
        x = fresh_rng().standard_normal(shape).astype(np.float32)
        y, (total, edges) = both(doubled, x)
        np.testing.assert_array_equal(y, 2 * x)
        np.testing.assert_allclose(total, x.sum(), rtol=1e-4, atol=1e-4)
        rows, columns = -(-shape[0] // 4), -(-shape[1] // 8)
        assert edges == rows * columns - (shape[0] // 4) * (shape[1] // 8)


def test_print_and_assert_show_in_the_debugger() -> None:
    @tw.kernel("f32[N] -> f32[N]", grid=lambda N, B: tl.cdiv(N, B))
    def shown(x, y, *, B=4):
        i = tl.program_id()
        t = x.partition(B)[i]
        print("program", i, t)
        assert t.max() < 10, "too large"
        y.partition(B)[i] = t

    lines: list[str] = []
    shown.debug(np.arange(6, dtype=np.float32), show=lines.append)
    assert lines == ["program 0 [0. 1. 2. 3.]", "program 1 [4. 5. 0. 0.]"]
    with pytest.raises(tw.ExecutionError, match=r"kernel shown, program 2: debug.assert: too large \(test_language.py:\d+: `assert t"):
        shown.debug(np.arange(12, dtype=np.float32), show=lines.append)
    np.testing.assert_array_equal(shown(np.arange(12, dtype=np.float32)), np.arange(12))  # compiled kernels neither print nor assert


def test_the_text_of_a_kernel_is_tile_ir() -> None:
    from tilewright.tile.parse import parse
    from tilewright.tile.verify import verify

    text = transposed.tile_ir(np.zeros((5, 5), np.float32))
    verify(parse(text))
    assert "tile<8x8xf32>" in text and repr(transposed) == "<kernel transposed: T[M, N] -> T[N, M]>"


def test_kernels_inside_control_flow_of_graphs() -> None:
    @tw.kernel("f32[N] -> f32[N]", grid=1)
    def half(x, y, *, B=8):
        y.store(0, x.load(0, B) * 0.5)

    x = fresh_rng().standard_normal(5).astype(np.float32)
    np.testing.assert_allclose(tw.jit(lambda a: tw.fori_loop(0, 3, lambda i, v: half(v), a))(x), x / 8)


def test_a_wrong_kernel_is_noticed() -> None:
    """The comparisons of this file can fail."""

    @tw.kernel("f32[N] -> f32[N]", grid=lambda N, B: N // B)  # one program too few
    def short(x, y, *, B=4):
        i = tl.program_id()
        y.partition(B)[i] = x.partition(B)[i]

    x = np.arange(6, dtype=np.float32)
    assert np.isnan(short.debug(x)[4:]).all()
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(short(x, out=np.zeros(6, np.float32)), x)


def ramp(k):
    return lambda v: v * k


def test_branches_in_branches() -> None:
    @tw.kernel("f32[N] -> f32[N]", grid=1)
    def branches(x, y):
        (n,) = x.shape
        for i in range(n):
            v = x.load(i, 1)
            if v > 2:
                v = v * 10
            elif v < -2:
                v = v - 100
            else:
                if i % 2 == 0:
                    v = v + 0.5
            y.store(i, v)
        for i in range(2):
            y.store(i, y.load(i, 1) + i)

    x = np.arange(10, dtype=np.float32) - 4
    want = np.where(x > 2, x * 10, np.where(x < -2, x - 100, np.where(np.arange(10) % 2 == 0, x + 0.5, x)))
    want[1] += 1
    np.testing.assert_array_equal(both(branches, x), want)


def test_conditions_of_index_values() -> None:
    @tw.kernel("f32[N] -> f32[N]", grid=lambda N: N)
    def conditions(x, y):
        i = tl.program_id()
        if 2 <= i < 5 and i != 3:
            y.store(i, 1.0)
        elif i == 3 or i > 8:
            y.store(i, 2.0)
        else:
            y.store(i, min(i, 100, x.shape[0]))

    np.testing.assert_array_equal(both(conditions, np.zeros(10, np.float32)), [0, 1, 1, 2, 1, 5, 6, 7, 8, 2])


@pytest.mark.parametrize("act", [tl.tanh, lambda v: v * 2, affine])
def test_functions_as_constants_and_flags_in_loops(act: Any) -> None:
    @tw.kernel("f32[N] -> f32[N]", grid=1)
    def acted(x, y, *, ACT, B=16):
        seen = False
        for i in range(x.shape[0]):
            if x.load(i, 1) > 3:
                seen = True
        t = ACT(x.load(0, B), by=2) if ACT is affine else ACT(x.load(0, B))
        y.store(0, tl.where(seen, t, -t))

    x = np.arange(10, dtype=np.float32) - 4
    want = np.tanh(x) if act is tl.tanh else x * 3 + 2 if act is affine else x * 2
    np.testing.assert_allclose(both(acted, x, ACT=act), want, rtol=1e-6)
    np.testing.assert_allclose(both(acted, x[:3], ACT=act), -want[:3], rtol=1e-6)


def test_lists_of_tiles_closures_and_ranks() -> None:
    triple = ramp(3)

    @tw.kernel("f32[N] -> f32[N], f32[]", grid=1)
    def several(x, y, z, *, B=16):
        parts = [x.load(0, B) * k for k in (1, 2, 3)]
        y.store(0, sum(parts) + triple(parts[0]) if len(parts) == 3 else 0)
        z.store((), parts[1].sum().reshape(()))

    x = fresh_rng().standard_normal(10).astype(np.float32)
    y, z = both(several, x)
    np.testing.assert_allclose(y, 9 * x, rtol=1e-5)
    np.testing.assert_allclose(z, 2 * x.sum(), rtol=1e-4, atol=1e-5)


def test_sides_of_one_come_and_go() -> None:
    @tw.kernel("f32[N], f32[M] -> f32[N, M]", grid=1)
    def outer(x, y, z, *, A=8, B=16):
        column = x.load(0, A)[:, None]
        row = y.load(0, B)[None, :]
        z.store((0, 0), column * row + column.reshape((A,)).reshape((1, A, 1)).reshape((A, 1)))

    x, y = fresh_rng().standard_normal(5).astype(np.float32), fresh_rng().standard_normal(11).astype(np.float32)
    np.testing.assert_allclose(both(outer, x, y), np.outer(x, y) + x[:, None], rtol=1e-5, atol=1e-6)


def test_constants_that_only_look_equal() -> None:
    @tw.kernel("i32[N] -> i32[N]", grid=1)
    def kinds(x, y, *, C, B=8):
        y.store(0, x.load(0, B) * (10 if isinstance(C, bool) else 20 if isinstance(C, float) else 30))

    x = np.ones(3, np.int32)
    for _ in range(2):
        assert [int(kinds(x, C=c)[0]) for c in (1, 1.0, True)] == [30, 20, 10]


def test_the_fastest_constants_are_found() -> None:
    @tw.kernel("f32[N] -> f32[N]", grid=lambda N, B: tl.cdiv(N, B))
    def worked(x, y, *, B, TIMES=1):
        i = tl.program_id()
        t = x.partition(B)[i]
        for _ in range(TIMES):
            t = tl.tanh(t)
        y.partition(B)[i] = t

    x = fresh_rng().standard_normal(5000).astype(np.float32)
    assert worked.tune(x, B=(16, 1 << 20), TIMES=(200, 1)) == {"B": 16, "TIMES": 1}  # a tile of a million elements does not compile
    with pytest.raises(tw.CompileError, match="at most 16384 elements"):
        worked.tune(x, B=(1 << 20,))
    with pytest.raises(tw.InputError, match=r"tune takes a tuple of values for each constant, got B=16"):
        worked.tune(x, B=16)  # type: ignore[arg-type]


def test_axes_in_any_order() -> None:
    @tw.kernel("T[A, B, C] -> T[C, A, B]", grid=lambda C, A: (C, A))
    def turned(x, y, *, W=8):
        c, a = tl.program_id(0), tl.program_id(1)
        for t in y[c, a].partition(W):
            t.store(x.permute(2, 0, 1)[c, a].load(t.start[0], W))

    x = fresh_rng().standard_normal((3, 5, 4))
    np.testing.assert_array_equal(both(turned, x), x.transpose(2, 0, 1))


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.bfloat16, np.float16, np.uint64, bool])
def test_every_dtype_goes_in_and_out(dtype: Any) -> None:
    @tw.kernel("T[N] -> T[N], f32[N]", grid=lambda N, B: tl.cdiv(N, B))
    def through(x, y, z, *, B=16):
        i = tl.program_id()
        t = x.partition(B)[i]
        y.partition(B)[i] = t
        z.partition(B)[i] = t.to("f32") * 2

    x = fresh_rng().integers(0, 2 if dtype is bool else 30, 37).astype(dtype)
    y, z = through(x)
    assert y.dtype == x.dtype and np.array_equal(y, x)
    np.testing.assert_array_equal(z, x.astype(np.float32) * 2)


def test_nan_and_signed_zero() -> None:
    @tw.kernel("f32[N], f32[N] -> f32[N], f32[N], f32[N]", grid=1)
    def extremes(x, y, a, b, c, *, B=8):
        s, t = x.load(0, B), y.load(0, B)
        a.store(0, tl.maximum(s, t))
        b.store(0, tl.minimum(s, t))
        c.store(0, tl.where(tl.isnan(s) | tl.isinf(t), -s, s * t))

    x = np.array([1, np.nan, -0.0, np.inf, 5, -0.0], np.float32)
    y = np.array([np.nan, 2, -1.0, -np.inf, np.inf, 0.0], np.float32)
    a, b, c = both(extremes, x, y)
    np.testing.assert_array_equal(a, np.maximum(x, y))
    np.testing.assert_array_equal(b, np.minimum(x, y))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(c, np.where(np.isnan(x) | np.isinf(y), -x, x * y))


@tw.kernel("f32[N] -> f32[N], f32[N]", grid=1)
def doubled_and_more(x, y, z, *, B=8):
    y.store(0, x.load(0, B) * 2.0)
    z.store(0, y.load(0, B) + 1.0)


@tw.kernel("f32[N] -> f32[N], f32[N]", grid=1)
def doubled_and_tripled(x, y, z, *, B=8):
    y.store(0, x.load(0, B) * 2.0)
    z.store(0, x.load(0, B) * 3.0)


def test_results_that_nobody_reads_are_not_written() -> None:
    """Unless the program reads them itself."""
    x = np.arange(8, dtype=np.float32)
    for kernel, second, stores in ((doubled_and_more, 2 * x + 1, 2), (doubled_and_tripled, 3 * x, 1)):
        np.testing.assert_array_equal(tw.jit(lambda x, k=kernel: k(x)[1])(x), second)
        np.testing.assert_array_equal(tw.jit(kernel)(x)[0], 2 * x)
        leaves = [Leaf(TensorType(f32, (8,)))]
        graph = trace(lambda x, k=kernel: k(x)[1], flatten(((x,), {}))[1], leaves).graph
        (launch,) = select(run_pipeline(graph, host_target()), host_target()).launches
        assert sum(i.op == "store" for i in launch.kernel.walk()) == stores


@tw.kernel("i8[M, K], i8[N, K], f32[M] -> f32[M, N]", grid=lambda M, N: (tl.cdiv(M, 8), tl.cdiv(N, 16)))
def byte_products(a, b, scale, c):
    i, j = tl.program_id(0), tl.program_id(1)
    rows, columns = a.partition(8, 16), b.partition(16, 16)
    acc = tl.zeros((8, 16), tl.i32)
    for k in range(rows.count[1]):
        acc = tl.mma(rows[i, k], columns[j, k].T, acc)
    c.partition(8, 16)[i, j] = tl.cast(acc, "f32") * scale.partition(8)[i][:, None]


def test_products_of_bytes_have_sums_of_32_bits() -> None:
    rng = fresh_rng()
    a, b = (rng.integers(-128, 128, (n, 100)).astype(np.int8) for n in (13, 21))
    scale = rng.random(13, np.float32)
    wanted = (a.astype(np.int64) @ b.T.astype(np.int64)).astype(np.float32) * scale[:, None]
    for made in (byte_products(a, b, scale), byte_products.debug(a, b, scale), tw.jit(byte_products)(a, b, scale)):
        np.testing.assert_allclose(made, wanted, rtol=1e-6)
