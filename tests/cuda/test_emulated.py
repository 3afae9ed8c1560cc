"""The PTX of SIMT kernels, run by the emulator, against NumPy and PyTorch: odd sizes, empty ones, every dtype, dynamic shapes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tilewright.ops as o
from tests.cuda.emulator import Fault, Heap, run
from tests.cuda.launching import Emulated, graph, program
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8
from tilewright.ir.interp import run as run_graph
from tilewright.kernels.cuda import groups
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.ops.rows.norms import LayerNorm, LogSoftmax, RmsNorm, Softmax
from tilewright.ops.rows.reductions import uneven
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.threads.emit import emit_block_kernel
from tilewright.tile.builder import KernelBuilder


def floats(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.np)


def check_close(got: Any, want: Any, dtype: DType) -> None:
    rtol = {"f32": 3e-6, "f16": 2e-3, "bf16": 1.2e-2}[dtype.name]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [f32, bf16, f16], ids=str)
@pytest.mark.parametrize("shape", [(3, 7), (5, 64), (1, 1), (2, 300), (0, 4)], ids=str)
def test_pointwise(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    g = graph(lambda x, y: o.Gelu()(o.Add()(x, y)), (dtype, shape), (dtype, shape[1:]))
    x, y = floats(rng, dtype, *shape), floats(rng, dtype, *shape[1:])
    (out,) = Emulated(g)(x, y)
    total = (x.astype(np.float32) + y.astype(np.float32)).astype(dtype.np).astype(np.float64)
    check_close(out, torch.nn.functional.gelu(torch.from_numpy(total)).numpy(), dtype)


FUNCTIONS = {"Exp": torch.exp, "Tanh": torch.tanh, "Sigmoid": torch.sigmoid, "Erf": torch.erf, "Sin": torch.sin, "Cos": torch.cos,
             "Tan": torch.tan, "Log": torch.log, "Log1p": torch.log1p,
             "Expm1": torch.expm1, "Sqrt": torch.sqrt, "Floor": torch.floor}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, rng: np.random.Generator) -> None:
    """All within a few units of the last place; infinities, zeros and NaN as IEEE wants them."""
    edge = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 88.7, -103.0, 0.6, 0.92, 3e38, -7e9, 1234567.0, 5e6, -9e6], np.float32
    )
    x = np.concatenate([edge, rng.standard_normal(80).astype(np.float32), rng.standard_normal(40).astype(np.float32) * 30])
    (out,) = Emulated(graph(lambda v: getattr(o, name)()(v), (f32, x.shape)))(x)
    with np.errstate(all="ignore"):
        want = FUNCTIONS[name](torch.from_numpy(x.astype(np.float64))).numpy()
        rounded = want.astype(np.float32)
    special = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(out[special], rounded[special])
    fine = ~special & (np.abs(rounded) > 1.2e-38)
    ulps = np.abs(out[fine] - want[fine]) / np.spacing(np.abs(rounded[fine]))
    assert ulps.max() < 4.0, (name, x[fine][ulps.argmax()], ulps.max())


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("n", [1, 5, 32, 100, 257, 1024, 1500])
def test_rows(dtype: DType, n: int, rng: np.random.Generator) -> None:
    """Short rows share warps, longer ones have a block; odd lengths are masked."""
    (x,) = uneven([floats(rng, dtype, 3, n)])
    w, b = floats(rng, dtype, n), floats(rng, dtype, n)
    t = torch.from_numpy(x.astype(np.float64))
    tw, tb = torch.from_numpy(w.astype(np.float64)), torch.from_numpy(b.astype(np.float64))
    T, W = (dtype, (3, n)), (dtype, (n,))
    (y,) = Emulated(graph(lambda v: Softmax(axis=1)(v), T))(x)
    check_close(y, torch.softmax(t, -1).numpy(), dtype)
    (y,) = Emulated(graph(lambda v, a, c: LayerNorm(eps=1e-5, affine="both")(v, a, c), T, W, W))(x, w, b)
    if n > 1:
        check_close(y, torch.nn.functional.layer_norm(t, (n,), tw, tb, 1e-5).numpy(), dtype)
    (y,) = Emulated(graph(lambda v, a: RmsNorm(eps=1e-5, affine="weight")(v, a), T, W))(x, w)
    check_close(y, torch.nn.functional.rms_norm(t, (n,), tw, 1e-5).numpy(), dtype)


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("op", ["Gelu", "Silu"])
def test_activations_of_16_bits_are_rounded_once(op: str, dtype: DType, rng: np.random.Generator) -> None:
    """Their shorter arithmetic adds little to half a unit of the last place, as far down as the numbers reach; special values as usual."""
    edge = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e4, -1e4], np.float32)
    x = np.concatenate([edge, rng.uniform(-6, 6, 300), rng.standard_normal(100) * 1e-3]).astype(np.float32).astype(dtype.np)
    (out,) = Emulated(graph(lambda v: getattr(o, op)()(v), (dtype, x.shape)))(x)
    want = getattr(torch.nn.functional, op.lower())(torch.from_numpy(x.astype(np.float64))).numpy()
    got = out.astype(np.float64)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got[:7], want[:7].astype(dtype.np).astype(np.float64))
    bits, least = {"bf16": (8, 0.0), "f16": (11, 2.0**-25)}[dtype.name]
    np.testing.assert_allclose(got[7:], want[7:], rtol=2.0**-bits * 1.001 + 5e-5, atol=least * 1.001)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
@pytest.mark.parametrize("n", [1, 7, 100, 257, 1500])
def test_cross_entropy_reads_a_row_once(dtype: DType, n: int, rng: np.random.Generator) -> None:
    x, t = (3 * rng.standard_normal((2, 3, n))).astype(np.float32).astype(dtype.np), rng.integers(0, n, (2, 3))
    e = Emulated(graph(lambda v, i: o.SoftmaxCrossEntropy(save=True)(v, i), (dtype, x.shape), (i64, t.shape)))
    assert len(e.program.launches) == 1
    loss, total = e(x, t)
    wide = torch.from_numpy(x.astype(np.float64))
    want = torch.nn.functional.cross_entropy(wide.reshape(-1, n), torch.from_numpy(t).reshape(-1), reduction="none").reshape(2, 3)
    check_close(loss, want.numpy(), dtype)
    check_close(total, torch.logsumexp(wide, -1).numpy(), dtype)
    assert not e.errors.any()
    t[1, 2] = -1
    e(x, t)
    assert e.errors.tolist() == [1, 0, 5, -1]


def test_cross_entropy_of_infinite_logits(rng: np.random.Generator) -> None:
    x = floats(rng, f32, 4, 33)
    x[0, 3], x[1], x[2, 5], x[3, 7] = np.inf, -np.inf, np.nan, -np.inf
    t = np.array([4, 1, 2, 7])
    (loss,) = Emulated(graph(lambda v, i: o.SoftmaxCrossEntropy()(v, i), (f32, x.shape), (i64, t.shape)))(x, t)
    np.testing.assert_array_equal(loss, np.array([np.inf, np.nan, np.nan, np.inf], np.float32))


def test_rows_of_a_length_known_at_run_time(rng: np.random.Generator) -> None:
    n = sym("N", 1, 5000)
    e = Emulated(graph(lambda v: LogSoftmax(axis=1)(v), (f32, (2, n))))
    for size in (1, 255, 2500):
        x = floats(rng, f32, 2, size)
        (y,) = e(x)
        check_close(y, torch.log_softmax(torch.from_numpy(x.astype(np.float64)), -1).numpy(), f32)


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min", "Prod"])
def test_reductions(op: str, rng: np.random.Generator) -> None:
    x = floats(rng, f32, 4, 3, 70)
    for axes in ((2,), (1,), (0, 2)):
        (y,) = Emulated(graph(lambda v, a=axes: getattr(o, op)(axes=a)(v), (f32, x.shape)))(x)
        want = getattr(np, {"Sum": "sum", "Mean": "mean", "Max": "max", "Min": "min", "Prod": "prod"}[op])(x.astype(np.float64), axis=axes)
        check_close(y, want, f32)


def test_a_nan_wins_a_maximum(rng: np.random.Generator) -> None:
    x = floats(rng, f32, 3, 100)
    x[1, 77] = np.nan
    (y,) = Emulated(graph(lambda v: o.Max(axes=(1,))(v), (f32, x.shape)))(x)
    assert np.isnan(y[1]) and not np.isnan(y[[0, 2]]).any()


@pytest.mark.parametrize("dtype", [i8, i16, i32, i64, u8], ids=str)
def test_integers(dtype: DType, rng: np.random.Generator) -> None:
    low, high = np.iinfo(dtype.np).min, np.iinfo(dtype.np).max
    x = rng.integers(low, high, 50, dtype=dtype.np, endpoint=True)
    y = rng.integers(low, high, 50, dtype=dtype.np, endpoint=True)
    y[:3] = 0
    for name, fn in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Maximum", np.maximum), ("Minimum", np.minimum)):
        (out,) = Emulated(graph(lambda a, b, op=name: getattr(o, op)()(a, b), (dtype, (50,)), (dtype, (50,))))(x, y)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(out, fn(x, y))
    (out,) = Emulated(graph(lambda a: o.Cast(dtype=f32)(a), (dtype, (50,))))(x)
    np.testing.assert_array_equal(out, x.astype(np.float32))
    (less,) = Emulated(graph(lambda a, b: o.Less()(a, b), (dtype, (50,)), (dtype, (50,))))(x, y)
    np.testing.assert_array_equal(less, x < y)


def test_bools_and_selection(rng: np.random.Generator) -> None:
    c, x, y = rng.integers(0, 2, (7, 33)).astype(bool), floats(rng, f32, 7, 33), floats(rng, f32, 33)
    g = graph(lambda a, b, d: o.Where()(o.LogicalNot()(a), b, d), (bool_, (7, 33)), (f32, (7, 33)), (f32, (33,)))
    (out,) = Emulated(g)(c, x, y)
    np.testing.assert_array_equal(out, np.where(~c, x, y))


def test_transposing_copy(rng: np.random.Generator) -> None:
    x = floats(rng, f32, 5, 17)
    (y,) = Emulated(graph(lambda v: o.Neg()(o.Transpose(perm=(1, 0))(v)), (f32, (5, 17))))(x)
    np.testing.assert_array_equal(y, -x.T)


def test_gather_checks_its_indices(rng: np.random.Generator) -> None:
    table, ids = floats(rng, f32, 11, 40), np.array([3, 0, 10, 7])
    g = graph(lambda t, i: o.Gather(axis=0)(t, i), (f32, (11, 40)), (i64, (4,)))
    e = Emulated(g)
    (out,) = e(table, ids)
    np.testing.assert_array_equal(out, table[ids])
    assert not e.errors.any()
    e(table, np.array([3, 11, 0, 0]))
    assert e.errors[0] == 1 and e.errors[3] == 11


@pytest.mark.parametrize("n", [5, 300])
def test_division_checks_its_divisors(n: int, rng: np.random.Generator) -> None:
    x, y = rng.integers(-50, 50, (2, n)).astype(np.int32), rng.integers(1, 9, (2, n)).astype(np.int32)
    e = Emulated(graph(lambda a, b: o.FloorDivide()(a, b), (i32, (2, n)), (i32, (2, n))))
    np.testing.assert_array_equal(e(x, y)[0], x // y)
    assert not e.errors.any()
    y[1, n // 2] = 0
    e(x, y)
    assert e.errors.tolist() == [5, 0, n + n // 2, x[1, n // 2]]


@pytest.mark.parametrize("shape", [(3, 5, 4), (7, 33, 20)], ids=str)
def test_a_product_without_tensor_cores(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    m, k, n = shape
    a, b = floats(rng, f32, m, k), floats(rng, f32, k, n)
    (out,) = Emulated(graph(lambda x, y: o.Relu()(o.Matmul()(x, y)), (f32, (m, k)), (f32, (k, n))))(a, b)
    check_close(out, np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0), f32)


# --- the emulator itself can fail -------------------------------------------------------------------------------------
def small_kernel(limit: bool) -> str:
    b = KernelBuilder("k")
    x, y, n = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("n")
    b.store(y, (0,), b.load(x, (0,), (64,), limit=(n,) if limit else None), limit=(n,))
    k = b.build()
    return emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=32, programs=1, vector=2), cuda_target())


def test_an_access_outside_a_buffer_is_seen() -> None:
    for limit in (True, False):
        heap = Heap()
        x, y = np.ones(50, np.float32), np.zeros(50, np.float32)
        words = [heap.add(x), heap.add(y), 50]
        if limit:
            run(small_kernel(limit), heap, words, 1, 32)
            np.testing.assert_array_equal(y, x)
        else:
            with pytest.raises(Fault, match="outside every buffer"):
                run(small_kernel(limit), heap, words, 1, 32)


def test_a_wrong_instruction_is_seen(rng: np.random.Generator) -> None:
    """Swap an add for a subtraction: the result must change."""
    heap = Heap()
    b = KernelBuilder("k")
    x, y = b.view("x", f32, (1,)), b.view("y", f32, (1,))
    b.store(y, (0,), b.reduce("sum", b.load(x, (0,), (64,))))
    k = b.build()
    text = emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=64, programs=1), cuda_target())
    values, out = 1 + np.abs(floats(rng, f32, 64)), np.zeros(1, np.float32)  # whatever is subtracted is far from nothing
    words = [heap.add(values), heap.add(out)]
    run(text, heap, words, 1, 64)
    np.testing.assert_allclose(out[0], values.astype(np.float64).sum(), rtol=1e-5)
    run(text.replace("add.rn.f32", "sub.rn.f32", 1), heap, words, 1, 64)
    assert abs(out[0] - values.sum()) > 1e-3


@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
def test_remainders_are_exact(dtype: DType, rng: np.random.Generator) -> None:
    """Quotients of any size, subnormal divisors, zeros, infinities."""
    least, most = np.finfo(dtype.np).minexp - np.finfo(dtype.np).nmant, np.finfo(dtype.np).maxexp
    x, y = (np.ldexp(rng.uniform(-0.99, 0.99, 3000), rng.integers(least, most + 1, 3000)).astype(dtype.np) for _ in range(2))
    with np.errstate(all="ignore"):
        y[::3] = np.ldexp(x[::3], rng.integers(-60, 4, 1000)) * rng.uniform(0.5, 1, 1000).astype(dtype.np)  # quotients up to 2^60
    x[:7], y[:7] = (0.0, -0.0, 3.0, np.inf, np.nan, 5.5, -5.5), (2.0, 2.0, np.inf, 2.0, 2.0, 0.0, np.finfo(dtype.np).smallest_subnormal)
    x[7], y[7] = np.finfo(dtype.np).max, np.finfo(dtype.np).smallest_subnormal
    got, floor = Emulated(graph(lambda a, b: (o.Remainder()(a, b), o.FloorDivide()(a, b)), (dtype, (3000,)), (dtype, (3000,))))(x, y)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(got, np.remainder(x, y))
        np.testing.assert_array_equal(floor, np.floor_divide(x, y))


@pytest.mark.parametrize("name", ["Igamma", "Igammac", "Gcd", "Lcm", "Pow", "Zeta"])
def test_loops_inside_functions_of_one_number_and_many(name: str, rng: np.random.Generator) -> None:
    """What a loop carries has the shape of all operands, not of the first."""
    op, kind = getattr(o, name), i64 if name in ("Gcd", "Lcm") else f32
    x, y = rng.integers(2, 9, 1).astype(kind.np), rng.integers(1, 9, (5, 7)).astype(kind.np)
    for a, b in ((x, y), (y, x)):
        g = graph(lambda p, q: op()(p, q), (kind, a.shape), (kind, b.shape))
        np.testing.assert_allclose(Emulated(g)(a, b)[0], run_graph(g, [a, b])[0], rtol=1e-5)


def test_much_memory_of_a_thread_lies_in_a_buffer(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Local memory is set aside for all threads of the chip, and there are 512 KB of it at most."""
    large = program(graph(lambda x: o.Eigh()(x), (f32, (600, 600))))
    texts = [emit_block_kernel(x.kernel, cuda_target()) for x in large.launches if isinstance(x.kernel, BlockKernel)]
    assert texts and all(sum(map(int, re.findall(r"\.local .*\[(\d+)\]", t))) <= groups.OWN_BYTES for t in texts)
    monkeypatch.setattr(groups, "OWN_BYTES", 0)
    x = rng.uniform(-1, 1, (3, 5, 5))
    x += x.swapaxes(1, 2)
    run_small = Emulated(graph(lambda x: o.Eigh()(x), (f64, x.shape)))
    assert any(getattr(v.kernel, "workspace", None) for v in run_small.program.launches)
    values, vectors = run_small(x)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(x), atol=1e-12)
    np.testing.assert_allclose(x @ vectors, vectors * values[:, None], atol=1e-12)


@pytest.mark.parametrize("c", [6.0, 3.0, -7.3, 1e-5, 0.1, 4.0, 1.9999999, 1e18, 1e-30])
def test_quotients_by_constants_are_rounded_as_divisions(c: float, rng: np.random.Generator) -> None:
    """Bit by bit, without a branch for every element, also of zeros, infinities, and numbers whose quotients are subnormal."""
    b = KernelBuilder("k")
    x, y = b.view("x", f32, (1,)), b.view("y", f32, (1,))
    b.store(y, (0,), b.load(x, (0,), (64,)) / c)
    k = b.build()
    text = emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=32, programs=1, vector=2), cuda_target())
    assert ("mul.rn.f32" in text) == (c not in (1.9999999, 1e-30))
    special = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, -1e-40], np.float32)
    for given in (
        rng.standard_normal(64) * np.exp2(rng.integers(-140, 120, 64)), rng.standard_normal(64) * (rng.random(64) < 0.7),
        np.r_[special, rng.standard_normal(56)],
    ):  # fmt: skip
        heap, values, out = Heap(), given.astype(np.float32), np.zeros(64, np.float32)
        run(text, heap, [heap.add(values), heap.add(out)], 1, 32)
        with np.errstate(all="ignore"):
            want = values / np.float32(c)
        known = ~np.isnan(want)
        np.testing.assert_array_equal(np.isnan(out), ~known)
        np.testing.assert_array_equal(out.view(np.int32)[known], want.view(np.int32)[known])
