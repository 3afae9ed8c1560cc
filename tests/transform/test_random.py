"""`tw.random`: keys, distributions, and what jit, grad, jvp, vmap and scan make of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.bands import assert_distribution, assert_frequencies, assert_uncorrelated
from tilewright.core import dtypes as dt
from tilewright.core.errors import ShapeError
from tilewright.ops.base import REGISTRY

KEY = tw.random.key(20)
MANY = 200_000


def normal_below(x: Any) -> Any:
    return torch.special.ndtr(torch.from_numpy(np.array(x))).numpy()


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_uniform_numbers(dtype: str) -> None:
    x = tw.random.uniform(KEY, (MANY,), dtype)
    assert x.dtype == dt.dtype(dtype).np and x.min() >= 0 and x.max() < 1
    assert_distribution(x, lambda v: np.clip(v, 0, 1))
    assert_uncorrelated(x[1:], x[:-1])


@pytest.mark.parametrize("dtype, digits", [("bf16", 8), ("f16", 11)])
def test_uniform_numbers_of_16_bits_stay_below_1(dtype: str, digits: int) -> None:
    """Each multiple of the precision is as likely as the others."""
    x = tw.random.uniform(KEY, (MANY,), dtype).astype(np.float64) * 2**digits
    assert (x == np.floor(x)).all()
    assert_frequencies(x, np.full(2**digits, 2.0**-digits))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_normal_numbers(dtype: str) -> None:
    x = tw.random.normal(KEY, (MANY,), dtype)
    assert_distribution(x, normal_below)
    assert_uncorrelated(x[1:], x[:-1])
    assert_uncorrelated(np.abs(x[1:]), np.abs(x[:-1]))


def test_the_tails_of_the_normal_distribution() -> None:
    """Beyond 4: 6.3e-5 of all; the band is that of a Poisson variable."""
    x = np.abs(tw.random.normal(KEY, (1 << 21,)))
    assert 60 < (x > 4).sum() < 215 and x.max() < 6.8


def test_other_distributions() -> None:
    assert_distribution(tw.random.exponential(KEY, (MANY,)), lambda v: -np.expm1(-v))
    assert_distribution(tw.random.gumbel(KEY, (MANY,)), lambda v: np.exp(-np.exp(-v)))
    assert (tw.random.exponential(KEY, (MANY,)) > 0).all()
    bounds = np.array([[2], [-5]], np.float32)
    x = tw.random.uniform(KEY, (2, MANY), minval=bounds, maxval=bounds + 3)
    assert_distribution((x - bounds) / 3, lambda v: np.clip(v, 0, 1))


@pytest.mark.parametrize("low, high, dtype", [(0, 10, "i64"), (-3, 4, "i8"), (5, 6, "i32"), (250, 256, "u8")])
def test_integers(low: int, high: int, dtype: str) -> None:
    x = tw.random.randint(KEY, (MANY,), low, high, dtype)
    assert x.dtype == dt.dtype(dtype).np
    assert_frequencies(x.astype(np.int64) - low, np.full(high - low, 1 / (high - low)))


def test_integers_of_wide_ranges() -> None:
    for high in (2**32, 2**32 + 1, 3 << 40, 2**62):
        for call in (tw.random.randint, tw.jit(lambda k, *a: tw.random.randint(k, (MANY,), *a[1:]), static=(2, 3))):
            x = call(KEY, (MANY,), 0, high)
            assert x.min() >= 0 and x.max() < high
            assert_distribution(x, lambda v: v / high)  # noqa: B023


def test_integers_of_ranges_that_are_arrays() -> None:
    low = np.array([[0], [100], [7]])
    x = tw.random.randint(KEY, (3, 5000), low, low + np.array([[5], [9], [1]]))
    for row, first, count in zip(x, low[:, 0], (5, 9, 1), strict=True):
        assert_frequencies(row - first, np.full(count, 1 / count))


def test_coins_and_masks() -> None:
    for p in (0.0, 0.25, 1.0):
        assert_frequencies(tw.random.bernoulli(KEY, p, (MANY,)), [1 - p, p])
        assert_frequencies(tw.random.dropout_mask(KEY, p, (MANY,)), [p, 1 - p])
    odds = np.array([0.1, 0.5, 0.9], np.float32)
    for column, p in zip(tw.random.bernoulli(KEY, odds, (50_000, 3)).T, odds, strict=True):
        assert_frequencies(column, [1 - p, p])


def test_dropout() -> None:
    x = np.full((300, 500), 2.0, np.float32)
    y = tw.random.dropout(KEY, x, 0.2)
    assert set(np.unique(y)) == {0.0, 2.5}
    assert_frequencies(y == 0, [0.8, 0.2])
    np.testing.assert_array_equal(tw.random.dropout(KEY, x, 0.0), x)
    np.testing.assert_array_equal(tw.random.dropout(KEY, x, 1.0), 0 * x)


def test_permutations() -> None:
    """Every order of four is as likely as the others; slices stay whole."""
    orders = tw.vmap(lambda k: tw.random.permutation(k, 4))(tw.random.split(KEY, 48_000))
    assert (np.sort(orders, 1) == np.arange(4)).all()
    codes = orders @ np.array([64, 16, 4, 1])
    _, numbers = np.unique(codes, return_inverse=True)
    assert_frequencies(numbers, np.full(24, 1 / 24))
    x = np.arange(40).reshape(4, 10)
    moved = tw.random.permutation(KEY, x, axis=1)
    np.testing.assert_array_equal(moved, x[:, moved[0]])
    assert sorted(moved[0]) == list(range(10)) and list(moved[0]) != list(range(10))


def test_categories() -> None:
    p = np.array([[0.1, 0.2, 0.7, 0.0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        logits = np.log(p).astype(np.float32)
    for row, odds in zip(tw.random.categorical(KEY, logits, shape=(MANY, 2)).T, p, strict=True):
        assert_frequencies(row, odds)
    for row, odds in zip(tw.random.categorical(KEY, logits.T, axis=0, shape=(MANY, 2)).T, p, strict=True):
        assert_frequencies(row, odds)


def test_keys() -> None:
    assert KEY == np.uint64(20) and tw.random.key(-1) == np.uint64(2**64 - 1)
    keys = np.concatenate([tw.random.split(KEY, 1000), [tw.random.fold_in(KEY, i) for i in range(50)], [KEY]])
    assert len(set(keys.tolist())) == keys.size
    first, second = tw.random.split(KEY)
    assert_uncorrelated(tw.random.normal(first, (MANY,)), tw.random.normal(second, (MANY,)))
    assert tw.random.split(KEY, (2, 3)).shape == (2, 3)
    np.testing.assert_array_equal(tw.random.split(KEY, 5)[:2], tw.random.split(KEY, 2))


def test_the_same_numbers_wherever_they_are_computed() -> None:
    """Alone, in a larger kernel, transposed, under jit, vmap and scan, with one thread or two."""
    want = tw.random.normal(KEY, (33, 65))
    assert (tw.jit(lambda k, x: tw.random.normal(k, (33, 65)) * 2 + x.T)(KEY, np.zeros((65, 33), np.float32)) == 2 * want).all()
    assert (tw.jit(lambda k: tw.sum(tw.random.normal(k, (33, 65)).T, 1))(KEY) != 0).all()
    keys = tw.random.split(KEY, 3)
    rows = [tw.random.normal(k, (5, 7)) for k in keys]
    np.testing.assert_array_equal(tw.vmap(lambda k: tw.random.normal(k, (5, 7)))(keys), rows)
    _, stacked = tw.scan(lambda c, k: (c, tw.random.normal(k, (5, 7))), np.float32(0), keys)
    np.testing.assert_array_equal(stacked, rows)


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("passes", [{}, {"fuse": False}], ids=["fused", "apart"])
def test_fusion_and_threads_change_nothing(target: str, passes: dict[str, bool]) -> None:
    from tilewright.ir.graph import Graph
    from tilewright.ir.types import TensorType
    from tilewright.ops import functions as F
    from tilewright.ops.random import draws

    g = Graph("draw")
    key, x = g.input(TensorType(dt.u64, ()), "key"), g.input(TensorType(dt.f32, (70, 130)), "x")
    g.outputs = [F.add(draws.dropout(key, x, 0.3), draws.uniform(draws.fold_in(key, F.scalar(g, 1, dt.i64)), (70, 130)))]
    x_ = np.ones((70, 130), np.float32)
    want = tw.compile(g, threads=1)(KEY, x_)
    for threads in (1, 2):
        session = tw.compile(g, threads=threads, target=target, passes=passes)
        np.testing.assert_array_equal(session(KEY, x_), want)
    if target == "cpu" and not passes:  # positions are computed in registers: no array of counters, nothing stored between
        program = tw.compile(g).executable
        assert program is not None and len(program.launches) == 2  # the second key is one of them


def test_derivatives_pass_what_is_kept() -> None:
    x = np.ones((40, 50), np.float32)
    y = tw.random.dropout(KEY, x, 0.5)
    np.testing.assert_array_equal(tw.grad(lambda v: tw.sum(tw.random.dropout(KEY, v, 0.5)))(x), y)
    np.testing.assert_array_equal(tw.jvp(lambda v: tw.random.dropout(KEY, v, 0.5), (x,), (3 * x,))[1], 3 * y)
    u = tw.random.uniform(KEY, (50,))
    slope = tw.grad(lambda low: tw.sum(tw.random.uniform(KEY, (50,), minval=low, maxval=2.0)))(np.float32(0))
    np.testing.assert_allclose(slope, (1 - u.astype(np.float64)).sum(), rtol=1e-5)


def test_a_suite_of_distributions_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong scale, numbers that are left out, a generator with nine rounds too few."""
    import tilewright.ops.random.philox as generator

    with pytest.raises(AssertionError, match="away from the right one"):
        assert_distribution(1.05 * tw.random.normal(KEY, (MANY,)), normal_below)
    with pytest.raises(AssertionError, match="chi-square"):
        assert_frequencies(tw.random.randint(KEY, (MANY,), 0, 10) // 2 * 2, np.full(10, 0.1))
    monkeypatch.setattr(generator, "ROUNDS", 1)
    weak: Any = REGISTRY["random_uniform"](dtype=dt.f64)  # type: ignore[call-arg]
    drawn = weak.ref(np.uint64(1), np.arange(MANY, dtype=np.uint64))
    with pytest.raises(AssertionError):
        assert_distribution(drawn, lambda v: np.clip(v, 0, 1))


@pytest.mark.parametrize("call, message", [
    (lambda: tw.random.uniform(3, (2,)), r"uniform: needs one key, a u64 of rank 0 as tw.random.key makes it, got i64\[\]"),
    (lambda: tw.random.normal(tw.random.split(KEY), (2,)), r"normal: needs one key, a u64 of rank 0 .*, got u64\[2\]"),
    (lambda: tw.random.uniform(KEY, (2,), "i32"), "uniform: dtype must be f16, bf16, f32 or f64, got i32"),
    (lambda: tw.random.bits(KEY, (2,), "i32"), "bits: dtype must be u32 or u64, got i32"),
    (lambda: tw.random.randint(KEY, (2,), 0, 3, "f32"), "randint: dtype must be an integer dtype, got f32"),
    (lambda: tw.random.normal(KEY, (-2,)), r"normal: sizes must not be negative, got shape=\(-2,\)"),
    (lambda: tw.random.dropout(KEY, np.ones(3, np.float32), 1.5), "dropout: rate must be a number of 0 … 1, got 1.5"),
    (lambda: tw.random.permutation(KEY, -1), "permutation: needs a count of 0 or more, got -1"),
    (lambda: tw.random.categorical(KEY, np.zeros((2, 3), np.float32), shape=(5,)), r"categorical: shape must end in \(2,\)"),
    (lambda: tw.random.key(1.5), r"key: a seed is an integer, got f32\[\]"),
    (lambda: tw.random.fold_in(KEY, 1.5), r"fold_in: data is an integer, got f32\[\]"),
])
def test_errors(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        call()


def test_small_floats_round_once() -> None:
    wide = tw.random.normal(KEY, (1000,))
    np.testing.assert_array_equal(tw.random.normal(KEY, (1000,), "bf16"), wide.astype(ml_dtypes.bfloat16))
