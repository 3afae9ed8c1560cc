"""The tile interpreter against NumPy in float64, and its own promises: bounds, masks, poison, order, rounding."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.tile.kernels import layer_norm, masked_copy, matmul, random_arguments, random_kernel, softmax
from tilewright.core.dtypes import ALL, bf16, bool_, dtype, f16, f32, f64, i8, i32, i64, u8
from tilewright.core.errors import ExecutionError, InputError
from tilewright.tile import numerics
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.interp import Buffer, run
from tilewright.tile.ir import Kernel

rng = fresh_rng()


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("m, n, k", [(4, 16, 8), (5, 17, 9), (1, 1, 1), (9, 33, 23), (3, 5, 0), (0, 4, 4), (4, 0, 4)])
def test_matmul(m: int, n: int, k: int) -> None:
    a, b, c = normal(m, k), normal(k, n), np.full((m, n), np.nan, np.float32)
    run(matmul(), [a, b, c, m, n, k], -(-m // 4))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 2.0**-24 * (k + 1) * (np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64))
    assert np.all(np.abs(c - exact) <= bound)


def test_matmul_is_one_chain_in_k_order() -> None:
    a, b, c = normal(2, 11), normal(11, 3), np.zeros((2, 3), np.float32)
    run(matmul(), [a, b, c, 2, 3, 11], 1)
    for i in range(2):
        for j in range(3):
            chain = Fraction(0)
            for k in range(11):
                chain = Fraction(float(nearest32(Fraction(float(a[i, k])) * Fraction(float(b[k, j])) + chain)))
            assert c[i, j] == np.float32(float(chain))


def nearest32(x: Fraction) -> np.float32:
    """x rounded once to f32, by exact comparison of the neighbours."""
    guess = np.float32(float(x))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(around, key=lambda v: (abs(Fraction(float(v)) - x), int(np.asarray(v).view(np.int32)) & 1))


@pytest.mark.parametrize("small", [f16, bf16])
def test_small_floats_round_where_declared(small: Any) -> None:
    a, b, c = normal(3, 7).astype(small.np), normal(7, 5).astype(small.np), np.zeros((3, 5), small.np)
    run(matmul(dtype=small), [a, b, c, 3, 5, 7], 1)
    wide = np.zeros((3, 5), np.float32)
    run(matmul(), [a.astype(np.float32), b.astype(np.float32), wide, 3, 5, 7], 1)
    assert c.tobytes() == wide.astype(small.np).tobytes()
    x, y = normal(64).astype(small.np), normal(64).astype(small.np)
    assert numerics.binary("add", x, y, small).tobytes() == (x.astype(np.float32) + y.astype(np.float32)).astype(small.np).tobytes()


@pytest.mark.parametrize("rows, n", [(1, 1), (3, 16), (2, 17), (4, 63), (2, 300), (2, 0)])
def test_softmax(rows: int, n: int) -> None:
    x, y = 4 * normal(rows, n), np.full((rows, n), np.nan, np.float32)
    run(softmax(), [x, y, n], rows)
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True, initial=-np.inf))
    # x - max is rounded: half a unit below 32 is 1e-6 of the result; exp, sum and quotient add as much again at most
    np.testing.assert_allclose(y, e / e.sum(axis=1, keepdims=True), rtol=4e-6, atol=1e-12)


@pytest.mark.parametrize("rows, n", [(1, 1), (3, 8), (2, 13), (5, 100)])
def test_layer_norm(rows: int, n: int) -> None:
    x, g, y = 3 + normal(rows, n), normal(n), np.full((rows, n), np.nan, np.float32)
    run(layer_norm(), [x, g, y, n], rows)
    wide = x.astype(np.float64)
    deviation = np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    expected = (wide - wide.mean(1, keepdims=True)) / deviation * g
    # the mean of n numbers in lanes of 16 is rounded a dozen times at most, 6e-8 of the largest number each: what is left of x - mean
    limit = 1e-6 * np.abs(wide).max(1, keepdims=True) / deviation * np.abs(g)
    assert (np.abs(y - expected) <= 2e-5 * np.abs(expected) + limit).all()


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 47])
def test_masked_copy_touches_only_what_is_inside(n: int) -> None:
    x, y = normal(n), np.full(64, np.nan, np.float32)
    run(masked_copy(), [Buffer(x, 0, (1,)), y, n], -(-n // 16))
    assert np.array_equal(y[:n], x)
    assert np.isnan(y[n:]).all()


def test_strided_and_reversed_views() -> None:
    x, y = normal(60), np.zeros(16, np.float32)
    run(masked_copy(), [x[40:8:-2], y, 16], 1)
    assert np.array_equal(y, x[40:8:-2])


def test_a_wrong_kernel_is_noticed() -> None:
    """The suite's own check: a limit that is one too large reads outside, one that is too small leaves an element unwritten."""
    for wrong, outcome in ((1, "raises"), (-1, "differs")):
        b = KernelBuilder("wrong")
        x, y, n = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("n")
        b.store(y, [0], b.load(x, [0], (16,), limit=[n + wrong]), limit=[n + wrong])
        data, out = normal(9), np.full(16, np.nan, np.float32)
        if outcome == "raises":
            with pytest.raises(ExecutionError, match=r"load: touches elements 0..9 of a buffer with 9 \(in `%1 = load %x, 0, %0 "):
                run(b.build(), [data, out, 9], 1)
        else:
            run(b.build(), [data, out, 9], 1)
            assert np.isnan(out[8])


def one(build: Any, out_type: Any, *arrays: np.ndarray) -> np.ndarray:
    """Run a straight kernel: build(b, tiles) gives the tile to store."""
    b = KernelBuilder("one")
    views = [b.view(f"x{n}", dtype(a.dtype), (1,)) for n, a in enumerate(arrays)]
    y = b.view("y", out_type, (1,))
    tile = build(b, *[b.load(v, [0], (a.size,)) for v, a in zip(views, arrays, strict=True)])
    b.store(y, [0], tile)
    out = np.zeros(tile.shape, out_type.np)
    run(b.build(), [*arrays, out], 1)
    return out


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13, 16])
def test_sum_is_the_halving_tree(n: int) -> None:
    x = normal(n)
    padded = np.concatenate([x, np.zeros((1 << (n - 1).bit_length()) - n, np.float32)])
    while padded.size > 1:
        half = padded.size // 2
        padded = padded[:half] + padded[half:]
    assert one(lambda b, t: b.reduce("sum", t), f32, x)[0] == padded[0]


def test_sum_of_negative_zeros_is_negative_zero() -> None:
    assert np.signbit(one(lambda b, t: b.reduce("sum", t), f32, np.full(3, -0.0, np.float32))).all()


@pytest.mark.parametrize("fn, numpy_fn", [("max", np.max), ("min", np.min), ("prod", np.prod)])
def test_other_reductions(fn: str, numpy_fn: Any) -> None:
    x = np.array([3, 1, 4, 1, 5], np.float32)
    assert one(lambda b, t: b.reduce(fn, t), f32, x)[0] == numpy_fn(x)
    if fn != "prod":
        assert np.isnan(one(lambda b, t: b.reduce(fn, t), f32, np.array([1, np.nan, 2], np.float32))).all()


def test_fma_rounds_once() -> None:
    a, b = normal(500), normal(500)
    c = (-a * b + np.spacing(a * b) * rng.integers(-2, 3, 500)).astype(np.float32)  # cancellation shows a second rounding
    got = numerics.fma(a, b, c, f32)
    expected = [nearest32(Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))) for x, y, z in zip(a, b, c, strict=True)]
    assert got.tolist() == [float(e) for e in expected]
    hard = np.float32(1 + 2**-12)  # (1 + 2^-12)^2 + 2^-60: f64 alone rounds to a tie, then down
    assert numerics.fma(np.array(hard), np.array(hard), np.array(np.float32(2.0**-60)), f32) == np.float32(1 + 2**-11 + 2**-23)


def test_fma_f64_rounds_once() -> None:
    a, b = rng.standard_normal(300), rng.standard_normal(300)
    c = -a * b + np.spacing(a * b) * rng.integers(-2, 3, 300)
    got = numerics.fma(a, b, c, f64)
    assert got.tolist() == [
        float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]


@pytest.mark.parametrize("fn, expected", [("div", [-3, 3, 0, 2]), ("floordiv", [-4, 3, 0, 2]), ("rem", [1, 1, 0, -1])])
def test_integer_division(fn: str, expected: list[int]) -> None:
    a, b = np.array([-7, 7, 5, -5], np.int64), np.array([2, 2, 0, -2], np.int64)
    assert one(lambda k, x, y: k.binary(fn, x, y), i64, a, b).tolist() == expected


def test_casts() -> None:
    x = np.array([1.9, -1.9, 300.0, -300.0, np.nan, np.inf], np.float32)
    assert one(lambda b, t: b.cast(t, i8), i8, x).tolist() == [1, -1, 127, -128, 0, 127]
    assert one(lambda b, t: b.cast(t, u8), u8, x).tolist() == [1, 0, 255, 0, 0, 255]
    assert one(lambda b, t: b.cast(t, bool_), bool_, np.array([0.0, -0.0, 2.0], np.float32)).tolist() == [False, False, True]
    assert one(lambda b, t: b.cast(t, i32), i32, np.array([1e30, -1e30], np.float32)).tolist() == [2**31 - 1, -(2**31)]
    assert one(lambda b, t: b.cast(t, i64), i64, np.array([2.0**63, -(2.0**70)])).tolist() == [2**63 - 1, -(2**63)]


@pytest.mark.parametrize(
    "fn, reference",
    [
        ("exp", np.exp),
        ("tanh", np.tanh),
        ("log1p", np.log1p),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("rsqrt", lambda x: 1 / np.sqrt(x)),
        ("erf", None),
        ("round", np.rint),
        ("abs", np.abs),
    ],
)
def test_unary(fn: str, reference: Any) -> None:
    import torch

    x = np.abs(normal(50)) + 0.5
    expected = reference(x.astype(np.float64)) if reference else torch.erf(torch.from_numpy(x).double()).numpy()
    assert np.array_equal(one(lambda b, t: b.unary(fn, t), f32, x), expected.astype(np.float32))


def test_maximum_lets_nan_win() -> None:
    x, y = np.array([1, np.nan], np.float32), np.array([np.nan, 1], np.float32)
    assert np.isnan(one(lambda b, s, t: b.binary("max", s, t), f32, x, y)).all()


@pytest.mark.parametrize("dt", ALL, ids=str)
def test_memory_round_trip(dt: Any) -> None:
    x = rng.integers(0, 2 if dt is bool_ else 100, 7).astype(dt.np)
    assert one(lambda b, t: t, dt, x).tobytes() == x.tobytes()


def test_scratch_starts_as_poison() -> None:
    b = KernelBuilder("poison")
    y = b.view("y", f32, (1,))
    s = b.scratch(f32, (8,))
    b.store(y, [0], b.load(s, [0], (8,)))
    out = np.zeros(8, np.float32)
    run(b.build(), [out], 1)
    assert np.isnan(out).all()


def test_gather_atomic_subview() -> None:
    b = KernelBuilder("mixed")
    x, i, y = b.view("x", f32, (None, 1)), b.view("i", i64, (1,)), b.view("y", f32, (1,))
    row = b.subview(x, [b.pid, 1], [1])
    old = b.atomic("add", y, [0], b.gather(row, [0], 0, b.load(i, [0], (4,))))
    b.store(y, [4], old)
    x_, i_, y_ = normal(3, 9), np.array([3, 0, 7, 1]), np.zeros(8, np.float32)
    run(b.build(), [x_, i_, y_], 2)
    assert np.array_equal(y_[:4], x_[0, 1 + i_] + x_[1, 1 + i_])
    assert np.array_equal(y_[4:], x_[0, 1 + i_])
    i_[0] = 30
    with pytest.raises(ExecutionError, match="gather: touches elements"):
        run(b.build(), [x_, i_, y_], 3)


@pytest.mark.parametrize("seed", range(3))
def test_order_of_programs_does_not_show(seed: int) -> None:
    kernel = random_kernel(seed, 12)
    first, second = random_arguments(seed), random_arguments(seed)
    run(kernel, first, 5)
    run(kernel, second, 5, order=[3, 1, 4, 0, 2])
    assert first[1].tobytes() == second[1].tobytes()


def index_kernel(fn: str) -> Kernel:
    b = KernelBuilder("index")
    y, p, q = b.view("y", i64, (1,)), b.index("p"), b.index("q")
    b.store(y, [0], b.reshape(b.from_index(b.index_op(fn, p, q)), (1,)))
    return b.build()


def test_index_divisions_are_unsigned() -> None:
    y = np.zeros(1, np.int64)
    run(index_kernel("floordiv"), [y, 17, 5], 1)
    assert y[0] == 3
    for p, q in ((-1, 5), (1, 0), (5, -1)):
        with pytest.raises(ExecutionError, match="operands must not be negative and the divisor not zero"):
            run(index_kernel("mod"), [y, p, q], 1)
    with pytest.raises(ExecutionError, match="overflows 64 bits"):
        run(index_kernel("mul"), [y, 1 << 40, 1 << 40], 1)


@pytest.mark.parametrize(
    "args, message",
    [
        ([np.zeros(4, np.float32)], "takes 3 arguments, got 1"),
        ([np.zeros(4, np.float32), np.zeros(4, np.float32), 1.5], "%n: index needs an int"),
        ([np.zeros(4, np.float64), np.zeros(4, np.float32), 4], "needs a flat array of f32"),
        ([np.zeros(4, np.float32), np.zeros(8, np.float32)[::2], 4], "has other strides"),
        ([3, np.zeros(8, np.float32), 4], "needs an array or a Buffer"),
    ],
)
def test_arguments_are_checked(args: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(masked_copy(), args, 1)


def test_a_store_writes_each_element_once() -> None:
    b = KernelBuilder("twice")
    y = b.view("y", f32, (0,))
    b.store(y, [0], b.full((4,), 1.0))
    with pytest.raises(ExecutionError, match="writes one element twice"):
        run(b.build(), [Buffer(np.zeros(4, np.float32), 0, (0,))], 1)


PARTITIONS: dict[str, tuple[Kernel, list[Any], int, int]] = {  # kernel, arguments, which of them is written, programs
    "copy": (masked_copy(), [np.ones(37, np.float32), None, 37], 1, 3),
    "product": (matmul(), [np.ones((9, 21), np.float32), np.ones((21, 35), np.float32), None, 9, 35, 21], 2, 3),
    "softmax": (softmax(), [np.ones((3, 45), np.float32), None, 45], 1, 3),
}
SHAPES = {"copy": (37,), "product": (9, 35), "softmax": (3, 45)}


def written(name: str) -> list[int]:
    """How many programs write each element of the result, found by running each of them alone."""
    kernel, arguments, at, grid = PARTITIONS[name]
    counts = np.zeros(SHAPES[name], np.int64)
    for pid in range(grid):
        result = np.full(SHAPES[name], np.nan, np.float32)
        run(kernel, [result if i == at else a for i, a in enumerate(arguments)], grid, order=[pid])
        counts += ~np.isnan(result)
    return [int(c) for c in counts.reshape(-1)]


@pytest.mark.parametrize("name", PARTITIONS)
def test_tiles_of_a_partition_do_not_overlap(name: str) -> None:
    assert set(written(name)) == {1}, "every element has one program, tails of odd sizes included"


def test_an_overlap_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs whose tiles begin one element early."""
    b = KernelBuilder("early")
    x, y, n = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("n")
    first = b.maximum(b.pid * 16 - 1, 0)
    b.store(y, [first], b.load(x, [first], (16,), limit=[n - first]), limit=[n - first])
    monkeypatch.setitem(PARTITIONS, "copy", (b.build(), *PARTITIONS["copy"][1:]))
    assert 2 in written("copy")
