"""Eager functions: one kernel serves every shape and layout. The oracle is NumPy, in f64 where rounding matters."""

from __future__ import annotations

import ctypes
import math
import mmap
import subprocess
import sys
import textwrap
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.array import machine
from tilewright.array.api import elementwise, info, loops
from tilewright.core import dtypes as dt
from tilewright.runtime import eager_host as H

LAYOUTS: dict[str, Any] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: a.T,
    "every second": lambda a: a[..., ::2],
    "every third": lambda a: np.repeat(a, 3, axis=-1)[..., ::3],
    "backwards": lambda a: a[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "window": lambda a: a[1:, 1:-1],
    "empty": lambda a: a[:0],
}
SHAPES = ((5, 7), (40, 70), (3, 5000))
PAIRS = [d.np for d in dt.ALL if d not in dt.SMALL and d.kind != "c"]


def numbers(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int) -> np.ndarray[Any, Any]:
    a = np.random.default_rng(seed).standard_normal(shape) * 20
    return (a > 0) if dtype.kind == "b" else np.abs(a).astype(dtype) if dtype.kind == "u" else a.astype(dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", PAIRS, ids=str)
def test_operators_read_any_layout(layout: str, dtype: np.dtype[Any]) -> None:
    view = LAYOUTS[layout]
    for shape in SHAPES:
        a, b = view(numbers(shape, dtype, 1)), view(numbers(shape, dtype, 2))
        x, y = tw.asarray(a), tw.asarray(b)
        with np.errstate(all="ignore"):
            cases = [(x + y, a + b), (x * y, a * b), (x < y, a < b), (x == x, a == a), (x + y[:1], a + b[:1]),
                     (tw.where(x < y, x, y), np.where(a < b, a, b))]
            if dtype.kind != "b":
                cases += [(x - y, a - b), (x + 3, a + dtype.type(3)), (2 * x, dtype.type(2) * a), (tw.maximum(x, y), np.maximum(a, b))]
            if dtype.kind in "if":
                cases += [(-x, -a), (abs(x), abs(a))]
            if dtype.kind in "bui":
                cases += [(x & y, a & b), (x ^ y, a ^ b), (~x, ~a)]
            if dtype.kind == "f":
                cases += [(x / y, a / b)]
        for ours, theirs in cases:
            np.testing.assert_array_equal(np.asarray(ours), theirs, strict=True)


SPECIAL = np.array([0.0, -0.0, 1, -1, 2, -2, 3, -3, 0.5, -0.5, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 1e30, -1e30, 5.5, -7.25, 2.0**24])


@pytest.mark.skipif(not machine.is_supported(), reason="without native code NumPy's loops serve all")
@pytest.mark.parametrize("name", ["pow", "remainder", "floor_divide", "fmod", "sinc", "deg2rad", "rad2deg"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=str)
def test_functions_of_floats_have_special_cases_of_their_own(name: str, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle is NumPy with the standard's special cases, signs of zeros included; no loop of NumPy's runs here."""
    rng = np.random.default_rng(3)
    random = rng.standard_normal((2, 4000)) * 10.0 ** rng.integers(-3, 5, (2, 4000))
    a, b = (np.concatenate([x.ravel(), y]).astype(dtype) for x, y in zip(np.meshgrid(SPECIAL, SPECIAL), random, strict=True))
    a = np.where(np.arange(a.size) < SPECIAL.size**2, a, np.abs(a)) if name == "pow" else a
    operands = [a] if name in elementwise.UNARY else [a, b]
    want = (loops.unary if len(operands) == 1 else loops.binary)(name, *operands, np.dtype(dtype))  # type: ignore[arg-type, call-arg]
    for kind in ("unary", "binary"):
        monkeypatch.setattr(loops, kind, lambda *_: pytest.fail("a loop of NumPy's"))
    for step in (1, 2):
        got = np.asarray(getattr(tw, name)(*(tw.asarray(x[::step]) for x in operands)))
        theirs = want[::step]
        np.testing.assert_array_equal(np.isnan(got), np.isnan(theirs))
        fine = np.isfinite(theirs)
        np.testing.assert_array_equal(np.signbit(got[~np.isnan(theirs)]), np.signbit(theirs[~np.isnan(theirs)]))
        np.testing.assert_array_equal(got[np.isinf(theirs)], theirs[np.isinf(theirs)])
        loose = name in ("pow", "sinc", "rad2deg")
        limit = 4 * np.finfo(dtype).eps
        np.testing.assert_allclose(got[fine], theirs[fine], rtol=limit if loose else 0, atol=1e-3 * limit if name == "sinc" else 0)


@pytest.mark.parametrize("dtype", [d.np for d in dt.ALL if d.is_int], ids=str)
def test_shifts_by_any_count(dtype: np.dtype[Any]) -> None:
    a, b = np.meshgrid(np.array([0, 1, 3, 100, -1, -100]).astype(dtype), np.array([0, 1, 7, 8, 31, 32, 63, 64, 100, -1, -5]).astype(dtype))
    np.testing.assert_array_equal(np.asarray(tw.asarray(a) << tw.asarray(b)), a << b)
    np.testing.assert_array_equal(np.asarray(tw.asarray(a) >> tw.asarray(b)), a >> b)


def test_large_operands_are_shared_by_threads() -> None:
    a = numbers((700, 900), np.dtype(np.float32), 1)
    x = tw.asarray(a)
    pairs = [(x + x, a + a), (x + x.T[:1, :700].T, a + a.T[:1, :700].T), (x.T * 2, a.T * 2), (tw.where(x > 0, x, -x), abs(a)),
             (x[:, ::2] - x[:, 1::2], a[:, ::2] - a[:, 1::2]), (x[::-1] < 1, a[::-1] < 1), (tw.square(x.T), a.T * a.T)]
    for ours, theirs in pairs:
        np.testing.assert_array_equal(np.asarray(ours), theirs, strict=True)


@pytest.mark.parametrize("name", sorted(elementwise.UNARY))
def test_functions_of_one_operand(name: str) -> None:
    kinds, _, _ = elementwise.UNARY[name]
    for dtype in (np.float32, np.float64, np.complex64, np.int32, np.bool_):
        d = np.dtype(dtype)
        if d.kind not in kinds or (d.kind == "c" and name in ("cbrt", "deg2rad", "rad2deg", "i0", "exp2", "rsqrt", "sinc")):
            continue
        a = numbers((3, 40), d, 3) * d.type(1 if d.kind in "biu" else 0.03)
        if name in ("log", "log2", "log10", "sqrt", "rsqrt", "acosh") and d.kind == "f":
            a = np.abs(a) + 1
        ours = np.asarray(getattr(tw, name)(tw.asarray(a)[:, ::-1]))
        source = a.astype(np.complex128 if d.kind == "c" else np.float64) if d.kind in "fc" else a
        source = source.astype(np.float32) if d.kind in "biu" and elementwise.UNARY[name][1] else source
        theirs = loops.unary(name, source[:, ::-1], np.dtype(np.bool_) if ours.dtype == bool else ours.dtype if d.kind in "biu" else
                             np.dtype(np.complex128 if ours.dtype.kind == "c" else np.float64))
        tolerance = {"float32": 3e-6, "complex64": 2e-5, "float64": 1e-13}.get(ours.dtype.name, 0)
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(1024, 256), (1031, 1001), (2000, 3, 90), (700, 600)])
def test_sums_of_many_rows_have_the_order_of_one_column(shape: tuple[int, ...]) -> None:
    """Large matrices go through parts in memory, middle ones through threads: the bits are those of a column alone, from either end."""
    for dtype, tolerance in ((np.float32, 1e-4), (np.float64, 1e-12), (np.int32, 0)):
        a = numbers(shape, np.dtype(dtype), 5)
        for view in (a, a[::-1], a[:, 1:]):
            x, many = tw.asarray(view), view.astype(np.float64).sum(0)
            for _ in range(2):  # the second call is native
                ours = np.asarray(tw.sum(x, axis=0))
                np.testing.assert_allclose(ours, many, rtol=tolerance, atol=tolerance * 20)
                np.testing.assert_array_equal(np.asarray(tw.sum(tw.asarray(view[:, :1].copy()), axis=0)), ours[:1])
                np.testing.assert_array_equal(np.asarray(tw.max(x, axis=0)), view.max(0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32, np.bool_])
def test_reductions_of_any_axes_and_layout(dtype: Any) -> None:
    for shape in ((7,), (3, 5), (50000,), (3, 20000), (20000, 3), (6, 7, 8)):
        base = numbers(shape, np.dtype(dtype), 4)
        views: list[Any] = [lambda a: a, lambda a: a.T, lambda a: a[::-1], lambda a: a[..., ::2]]
        for view in views:
            a = view(base)
            for axis in [None, 0, -1, *([(0, 1)] if a.ndim > 1 else [])]:
                for name in ("sum", "max", "min", "any", "all", "mean", "argmax", "argmin"):
                    if name.startswith("arg") and isinstance(axis, tuple):
                        continue
                    ours = np.asarray(getattr(tw, name)(tw.asarray(a), axis=axis))
                    theirs = getattr(np, name)(a.astype(np.float64) if name in ("sum", "mean") and dtype != np.bool_ else a, axis=axis)
                    size = a.size // max(np.size(theirs), 1)
                    rough = name in ("sum", "mean") and dtype not in (np.int64, np.int32)
                    scale = 30 * size * (1 / size if name == "mean" else 1)
                    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * scale if rough or name == "mean" else 0)


@pytest.mark.parametrize("dtype", [d for d in dt.SMALL if d.itemsize == 2] + [dt.f8e4m3, dt.f8e5m2], ids=str)
def test_small_floats(dtype: dt.DType) -> None:
    a = (np.arange(-6, 6) * 0.25).astype(dtype.np)
    x = tw.asarray(a)
    assert x.dtype == dtype.np
    want = a.astype(np.float32)
    np.testing.assert_array_equal((x + x).astype(tw.float32).tolist(), (want + want).astype(dtype.np).astype(np.float32))
    np.testing.assert_array_equal((x * 0.5).astype(tw.float32).tolist(), (want * 0.5).astype(dtype.np).astype(np.float32))
    np.testing.assert_array_equal(np.asarray(x < 0), want < 0)
    assert tw.sum(x).astype(tw.float32).item() == pytest.approx(want.sum(), rel=0.1)
    assert x.astype(tw.int32).tolist() == want.astype(np.int32).tolist()
    for name in ("any", "all"):
        for rows in (x, tw.reshape(x[:0], (3, 0)), tw.reshape(x[:0], (0, 3))):
            found = getattr(tw, name)(rows, axis=0)
            assert found.dtype == np.bool_ and found.tolist() == getattr(np, name)(rows.astype(tw.float32).numpy(), axis=0).tolist()


def test_integers_wrap_and_numbers_keep_the_dtype() -> None:
    x = tw.asarray([100, 127], dtype=tw.int8)
    assert (x + x).tolist() == [-56, -2]
    assert (x + 100).dtype == tw.int8
    with pytest.raises(OverflowError, match="300 does not fit int8"):
        x + 300
    assert (x + 1.5).dtype == tw.float32
    assert (tw.ones(2, dtype=tw.float64) * 2.5).dtype == tw.float64
    assert tw.sum(x).item() == 227
    assert (tw.asarray([True, False]) + 1).dtype == tw.int64


@pytest.mark.skipif(not machine.is_supported(), reason="no native code here")
def test_a_new_shape_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x = tw.ones((3, 4))
    assert (tw.exp(x) + x + tw.sum(x, axis=0)).shape == (3, 4)
    monkeypatch.setattr(machine, "_compiled", lambda *a: pytest.fail(f"compiled {a}"))
    for shape in ((), (1,), (17,), (2, 3, 5), (0, 4), (1000, 3)):
        y = tw.ones(shape)
        assert (tw.exp(y) + y).shape == shape
        assert tw.sum(y).shape == ()
        if shape:
            assert (tw.exp(y.T) + y[:1].T).shape == shape[::-1]
            assert tw.sum(y, axis=0).shape == shape[1:]


@pytest.mark.skipif(not machine.is_supported(), reason="no native code here")
def test_kernels_come_from_the_disk_in_another_process() -> None:
    text = """
        import sys
        import tilewright as tw
        assert (tw.exp(tw.ones(5)) * 2).shape == (5,)
        if sys.argv[1] == "again":
            assert "llvmlite.binding" not in sys.modules, "something was compiled"
    """
    for turn in ("first", "again"):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(text), turn], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_without_native_code_the_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "machine", lambda: None)
    a = numbers((4, 5), np.dtype(np.float32), 5)
    x = tw.asarray(a)
    np.testing.assert_allclose(np.asarray(elementwise.FUNCTIONS["exp"](x)), np.exp(a), rtol=1e-6)
    np.testing.assert_allclose(np.asarray(elementwise.FUNCTIONS["add"](x, 1)), a + 1)
    assert machine.reduction("sum", a, (0,), False) is None


def test_dtypes_and_namespace() -> None:
    found: Any = tw.__array_namespace_info__()
    assert found.default_dtypes()["real floating"] == tw.float32
    assert set(found.dtypes()) == set(info.STANDARD)
    assert tw.result_type(tw.ones(2), 1.5) == tw.float32
    assert tw.finfo(tw.float32).bits == 32
    assert tw.iinfo(tw.int8).max == 127
    assert tw.isdtype(tw.bfloat16, "real floating")
    assert tw.ones(2).__array_namespace__(api_version="2025.12") is tw
    assert (tw.pi, tw.inf, tw.newaxis) == (np.pi, np.inf, None)


@pytest.mark.skipif(not machine.is_supported(), reason="no native code here")
def test_kernels_are_made_ahead(capsys: pytest.CaptureFixture[str]) -> None:
    from tilewright.cli.main import main

    assert main(["warm", "exp", "add", "sum", "pow", "--dtypes", "f32,i32"]) == 0
    assert "8 kernels are in the cache" in capsys.readouterr().out
    assert main(["warm", "frobnicate"]) == 1
    assert "no eager function 'frobnicate' has kernels of its own" in capsys.readouterr().err


def test_threads_share_nothing_they_should_not() -> None:
    a = [numbers((300, 301), np.dtype(np.float32), seed) for seed in range(4)]
    wrong: list[int] = []

    def work(k: int) -> None:
        x = tw.asarray(a[k])
        for _ in range(60):
            made = np.asarray(tw.exp(x * 0.01) + x[::-1] + x.T[:301, :300].T)
            if np.abs(made - (np.exp(a[k] * np.float32(0.01)) + a[k][::-1] + a[k])).max() > 1e-3:
                wrong.append(k)
            if tw.sum(x > 0).item() != (a[k] > 0).sum():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_results_are_freed() -> None:
    x, y = tw.ones((30, 40)), tw.ones((30, 40))
    before = sys.getrefcount(x.dtype), sys.getrefcount(x._a), sys.getrefcount(tw.Array)
    for _ in range(200):
        x + y, x * 2, tw.exp(x), x[1:, ::2], x.T, x < y, tw.sum(x), tw.sum(x, axis=0), tw.where(x < y, x, y), x.astype(tw.float64), x @ y.T
        x[0, 0], x.shape, memoryview(x), np.asarray(x)
    after = sys.getrefcount(x.dtype), sys.getrefcount(x._a), sys.getrefcount(tw.Array)
    assert all(b - a < 20 for a, b in zip(before, after, strict=True)), (before, after)


def test_means_of_columns_of_small_floats_after_sums_of_them() -> None:
    """The kernel of columns is known before that of rows."""
    a = np.arange(600, dtype=np.float16).reshape(3, 5, 40) / 64
    for _ in range(3):
        for name in ("sum", "mean"):
            got = getattr(tw, name)(tw.asarray(a), axis=1)
            np.testing.assert_allclose(np.asarray(got, np.float64), getattr(np, name)(a.astype(np.float64), axis=1), rtol=1e-3)


REST: dict[str, Any] = {
    "append": lambda n, x: [n.append(x, x[0]), n.append(x, x, axis=1)],
    "insert": lambda n, x: [n.insert(x, 1, x[0], axis=0), n.insert(x, [1, 2], 5, axis=1), n.insert(x, 2, 7)],
    "delete": lambda n, x: [n.delete(x, 1, axis=0), n.delete(x, [0, 2], axis=1), n.delete(x, slice(0, 3))],
    "partition": lambda n, x: [n.partition(x, 1)[:, 1], n.partition(x, 3, axis=None)[3]],
    "argpartition": lambda n, x: [n.take_along_axis(x, n.argpartition(x, 1), axis=1)[:, 1]],
    "lexsort": lambda n, x: [n.lexsort([x[0], x[1]]), n.lexsort(x)],
    "vdot": lambda n, x: [n.vdot(x, x)],
    "diag_indices": lambda n, x: list(n.diag_indices(3)) + list(n.diag_indices(2, 3)),
    "splits": lambda n, x: [*n.vsplit(x, 3), *n.hsplit(x, [1, 2]), *n.hsplit(x[0], 2), *n.dsplit(x[None], 2)],
}


@pytest.mark.parametrize("name", REST)
def test_more_of_numpy(name: str) -> None:
    a = fresh_rng().standard_normal((3, 4)).astype(np.float32)
    for got, want in zip(REST[name](tw, tw.asarray(a)), REST[name](np, a), strict=True):
        assert type(got) is tw.Array and got.shape == np.shape(want)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


def test_more_of_numpy_refuses() -> None:
    with pytest.raises(TypeError, match="cannot put"):
        tw.insert(tw.arange(3), 1, 0.5)
    for bad in (lambda: tw.delete(tw.arange(3), 9), lambda: tw.partition(tw.arange(3), 9), lambda: tw.vsplit(tw.ones((3, 2)), 2)):
        with pytest.raises((ValueError, IndexError)):
            bad()


@pytest.mark.parametrize("dtype", ["f32", "f64", "i16"])
@pytest.mark.parametrize("step", [2, 3, -2])
def test_matrices_with_steps(dtype: str, step: int) -> None:
    """Copied and reduced in blocks that fill whole vectors, and in those that do not."""
    for rows, columns in ((16, 300), (257, 65), (90, 1000), (300, 400), (3, 40000)):
        a: Any = fresh_rng().integers(-50, 50, (rows, columns * abs(step))).astype(dt.dtype(dtype).np)[:, ::step]
        x = tw.asarray(a)
        for got, want in ((x.T.copy(), a.T), (x.T + x.T, (a + a).T), (tw.max(x, axis=1), a.max(1)), (tw.sum(x, axis=0), a.sum(0)),
                          (tw.sum(x, axis=1), a.sum(1)), (tw.argmax(x, axis=1), a.argmax(1)), (x + x, a + a), (x * x[:1], a * a[:1])):
            np.testing.assert_array_equal(got.numpy(), want)


def test_a_transposed_copy_reads_nothing_behind_its_end() -> None:
    for dtype, rows, columns in ((np.float32, 64, 64), (np.float64, 17, 250), (np.float32, 130, 40)):
        size = 2 * rows * columns * np.dtype(dtype).itemsize
        pages = -(-size // mmap.PAGESIZE)
        room = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(room))
        protect = ctypes.CDLL(None).mprotect
        protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        assert protect(start + pages * mmap.PAGESIZE, mmap.PAGESIZE, 0) == 0
        whole = np.frombuffer(room, dtype, pages * mmap.PAGESIZE // np.dtype(dtype).itemsize)
        whole[:] = np.arange(whole.size)
        a = whole[-2 * rows * columns :].reshape(rows, 2 * columns)[:, 1::2]  # its last element is the last before the page
        x = tw.asarray(a)
        for got, want in ((x.T.copy(), a.T), (tw.max(x, axis=1), a.max(1)), (x + x, np.add(a, a))):
            np.testing.assert_array_equal(got.numpy(), want)


def test_freed_arrays_are_used_again() -> None:
    x = tw.ones((4, 6))
    held = [x.T for _ in range(300)]  # more than are kept
    died: list[Any] = []
    refs = [weakref.ref(v, lambda _: died.append(x.T)) for v in held]  # makes Arrays while others are freed
    del held
    assert len(died) == 300 and all(r() is None for r in refs) and all(v.shape == (6, 4) and v[5, 3].item() == 1 for v in died)
    del died[:]
    for made in (lambda: x.T, lambda: x[1:], lambda: x + 1, lambda: tw.asarray([1.0])):
        before = sys.getrefcount(tw.Array)
        for _ in range(1000):
            made()
        assert abs(sys.getrefcount(tw.Array) - before) < 200
    again = [x.T for _ in range(100)]  # such Arrays wait and are written as others
    with tw.lazy():
        again = [v + k for k, v in enumerate(again)]
    again[3] += 1
    assert [int(v[0, 0]) for v in again] == [1, 2, 3, 5, *range(5, 101)] and x.tolist() == [[1.0] * 6] * 4


AT_THE_END = """
import atexit, builtins, sys
import tilewright as tw
x = tw.ones((3, 4))
class Holder:
    def __init__(self):
        self.me, self.x = self, x.T
    def __del__(self):
        self.x.T
cycle = [x.T, x[1:], Holder()]
cycle.append(cycle)
builtins.kept = [Holder(), [x.T for _ in range(200)]]
sys.modules["another"] = type(sys)("another")
sys.modules["another"].x = x[:, 1]
atexit.register(lambda: print((x.T + 1).shape))
"""


def test_arrays_live_until_the_process_ends() -> None:
    done = subprocess.run([sys.executable, "-c", AT_THE_END], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "(4, 3)\n", "")


@pytest.mark.parametrize("dtype", ["bool", "int8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (10, 10), (17, 300), (70, 90), (16, 400), (2, 3, 4)])
def test_copies_of_any_layout_are_contiguous_and_their_own(dtype: str, shape: tuple[int, ...]) -> None:
    a = (np.arange(math.prod(shape)) % 101).reshape(shape).astype(dtype)
    views = [a, a.T, np.broadcast_to(a, (3, *shape))]
    if shape:
        views += [a[::-1], a[..., ::2], np.moveaxis(a, 0, -1)[..., ::3], a[..., ::-1].T, np.broadcast_to(a[:1], shape)]
    for v in views:
        x = tw.asarray(v)
        for made in (x.copy(), tw.copy(x)):
            np.testing.assert_array_equal(made.numpy(), v)
            assert (made.dtype, made.strides) == (v.dtype, v.copy().strides)
        made[...] = 0
        np.testing.assert_array_equal(x.numpy(), v)


@pytest.mark.parametrize("shape", [(1025, 4099), (1100, 257), (1024, 256)])
def test_columns_of_large_matrices_have_the_bits_of_rows(shape: tuple[int, int]) -> None:
    """Programs add whole rows of at most so many columns, the last piece of them masked."""
    a = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x, t = tw.asarray(a), tw.asarray(np.ascontiguousarray(a.T))
    np.testing.assert_array_equal(tw.sum(x, axis=0).numpy(), tw.sum(t, axis=1).numpy())
    np.testing.assert_allclose(tw.sum(x, axis=0).numpy(), a.astype(np.float64).sum(0), rtol=1e-3, atol=1e-3)
    assert (tw.max(x, axis=0) == tw.asarray(a.max(0))).numpy().all()


@pytest.mark.parametrize("size", [1, 63, 64, 65, 255, 256, 257, 4095, 9001])
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16"])
def test_registers_of_narrow_elements(dtype: str, size: int) -> None:
    rng = np.random.default_rng(size)
    a, b = (rng.integers(0, 2 if dtype == "bool" else 100, size).astype(dtype) for _ in range(2))
    x, y = tw.asarray(a), tw.asarray(b)
    pairs = [(x & y, a & b), (x ^ y, a ^ b), (x | y, a | b), (x < y, a < b), (x == y, a == b), (x != y, a != b)]
    pairs += [(tw.where(x > 0, x, y), np.where(a > 0, a, b))]
    pairs += [] if dtype == "bool" else [(x + y, a + b), (x * y, a * b), (-x, -a), (tw.maximum(x, y), np.maximum(a, b))]
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours.numpy(), theirs)


def test_host_code_is_kept_for_what_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constants are part of what it is kept by: those of other modules are in none of the files that are read for it."""
    texts: list[str] = []

    class Seen:
        def build(self, sources: Any, target: Any) -> Any:
            texts.append(sources[0][0])
            raise InterruptedError

    monkeypatch.setattr(machine, "_cache", Seen)
    for light in (H.CONSTANTS["JOB_LIGHT"], H.CONSTANTS["JOB_LIGHT"], 99):
        monkeypatch.setitem(H.CONSTANTS, "JOB_LIGHT", light)
        with pytest.raises(InterruptedError):
            machine.Machine()
    assert texts[0] == texts[1] != texts[2]
