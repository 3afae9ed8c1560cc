"""Bad data that only the running program can find: the error names what the user wrote, the rule, the values and the line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.compile import target_spec
from tilewright.core.errors import ExecutionError
from tilewright.runtime.session import Session

rng = fresh_rng()
HERE = Path(__file__).name
X = np.ones((3, 4), np.float32)


def line() -> int:
    return sys._getframe(1).f_lineno


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint64], ids=lambda d: np.dtype(d).name)
def test_an_integer_divisor_of_zero_is_an_error(dtype: Any) -> None:
    """Vector bodies, tails, broadcast and transposed operands; everything else is as in NumPy."""
    n = int(rng.integers(70, 200))
    x, y = (rng.integers(1, 100, (3, n)).astype(dtype) for _ in range(2))
    both = tw.jit(lambda x, y: (x // y, x % y))
    for got, want in zip(both(x, y), (x // y, x % y), strict=True):
        np.testing.assert_array_equal(got, want)
    bad = y.copy()
    row, column = int(rng.integers(3)), int(rng.integers(n))
    bad[row, column] = 0
    where = f"integers are not divided by 0, got {x[row, column]} and 0 at position"
    with pytest.raises(ExecutionError, match=rf"floor_divide: {where} {row * n + column};"):
        both(x, bad)
    np.testing.assert_array_equal(both(x, y)[0], x // y)  # the error is gone with its call
    assert both(x[:0], bad[:0])[0].shape == (0, n)


def test_positions_are_those_of_the_result() -> None:
    x, y = np.arange(1, 22).reshape(3, 7), np.ones((3, 7), np.int64)
    y[1, 4] = 0
    with pytest.raises(ExecutionError, match="remainder: integers are not divided by 0, got 12 and 0 at position 13;"):
        tw.jit(lambda x, y: (x.T % y.T).sum())(x, y)
    with pytest.raises(ExecutionError, match=r"floor_divide: .* got 1 and 0 at position 0;"):
        tw.jit(lambda x, y: x // y)(x, np.int64(0))


def test_the_smallest_integer_over_minus_one_wraps() -> None:
    for dtype in (np.int8, np.int64):
        least = np.array([np.iinfo(dtype).min] * 3, dtype)
        quotient, rest = tw.jit(lambda x, y: divmod(x, y))(least, np.array([-1, 1, 3], dtype))
        np.testing.assert_array_equal(quotient, np.array([least[0], least[0], least[0] // 3], dtype))
        np.testing.assert_array_equal(rest, [0, 0, least[0] % 3])


def test_a_division_that_where_leaves_out_still_runs() -> None:
    x, d = np.array([6, 7, 8]), np.array([2, 0, 4])
    with pytest.raises(ExecutionError, match=r"use where\(d == 0, 1, d\) for the divisor d"):
        tw.jit(lambda x, d: tw.where(d == 0, 0, x // d))(x, d)
    np.testing.assert_array_equal(tw.jit(lambda x, d: tw.where(d == 0, 0, x // tw.where(d == 0, 1, d)))(x, d), [3, 0, 2])
    guarded = tw.jit(lambda x, d: tw.cond(d == 0, lambda: x, lambda: x // d))  # a branch that is not taken does not run
    assert [int(guarded(np.int64(9), np.int64(k))) for k in (0, 2)] == [9, 4]
    assert tw.jit(lambda x: x // 3)(x).tolist() == [2, 2, 2]
    with pytest.raises(ExecutionError, match="remainder: integers are not divided by 0, got 6 and 0"):
        tw.jit(lambda x: x % 0)(x)
    with pytest.raises(ExecutionError, match=r"floor_divide: .* got 3 and 0 at position 0"):  # constants: when it runs, not before
        tw.jit(lambda x: x + tw.full((1,), 3, "i64") // tw.zeros((1,), "i64")).lower(x)(x)


def test_errors_name_the_line_through_transforms() -> None:
    labels = np.array([0, 9, 1])

    def loss(x: Any, y: Any) -> Any:
        return tw.softmax_cross_entropy(x, y).mean()

    at = loss.__code__.co_firstlineno + 1
    text = rf"^softmax_cross_entropy: label 9 is out of range for 4 classes, at position 1 \({HERE}:{at}, in .*\)$"
    for fn in (tw.jit(loss), tw.grad(loss), tw.value_and_grad(loss), tw.jit(lambda x, y: tw.jvp(lambda x: loss(x, y), (x,), (x,)))):
        with pytest.raises(ExecutionError, match=text):
            fn(X, labels)
    with pytest.raises(ExecutionError, match=text):
        tw.vmap(loss, in_axes=(0, None))(np.stack([X, X]), labels)
    with pytest.raises(ExecutionError, match=rf"^softmax_cross_entropy: label -1 is .* \({HERE}:{line() + 1}\)$"):
        tw.softmax_cross_entropy(X, np.array([0, -1, 1]))


def test_an_eager_call_names_its_own_line() -> None:
    for _ in range(2):
        with pytest.raises(ExecutionError, match=rf"^floor_divide: .* \({HERE}:{line() + 1}\)$"):
            tw.floor_divide(np.array([1]), np.array([0]))
    with pytest.raises(ExecutionError, match=rf"^floor_divide: .* \({HERE}:{line() + 1}\)$"):
        tw.floor_divide(np.array([1]), np.array([0]))
    with pytest.raises(ExecutionError, match=rf"^solve: the matrix is singular, got a pivot of 0 in column 0 .* \({HERE}:{line() + 1}\)$"):
        tw.linalg.solve(np.zeros((3, 3)), np.ones((3, 1)))


@pytest.mark.parametrize(("fn", "name"), [
    (lambda x, i: tw.take(x, i, 1), "take"), (lambda x, i: tw.take_along_axis(x, i[None], 1), "take_along_axis"),
    (lambda x, i: x[:, i], "index"), (lambda x, i: tw.scatter_add(x, i, x, 1), "scatter_add"),
    (lambda x, i: tw.scatter(x, i, x, 1), "scatter"),
], ids=lambda v: v if isinstance(v, str) else "")
def test_an_index_out_of_range_is_reported_as_what_was_called(fn: Any, name: str) -> None:
    for bad in (4, -5, 2**40):
        text = rf"^{name}: index out of range, got {bad} at position 2; must be in 0..3 \({HERE}:\d+, in "
        with pytest.raises(ExecutionError, match=text):
            tw.jit(fn)(X, np.array([0, 3, bad, 1]))


def test_indices_of_a_call_count_from_the_end() -> None:
    """As NumPy's do, in every function that takes them, with derivatives, and in dtypes that do not hold the size of the axis."""
    x, i = rng.normal(size=(300, 5)).astype(np.float32), np.array([-1, 0, -120, 7, 99])
    for ids in (i, i.astype(np.int32), i.astype(np.int8)):
        np.testing.assert_array_equal(tw.jit(lambda x, i: x[i])(x, ids), x[i])
        np.testing.assert_array_equal(tw.jit(lambda x, i: x[i, i % 5])(x, ids), x[i, i % 5])
        np.testing.assert_array_equal(tw.jit(lambda x, i: tw.take(x, i, 0))(x, ids), x[i])
        np.testing.assert_array_equal(tw.jit(lambda x, i: tw.take_along_axis(x, i[None], 0))(x, ids), np.take_along_axis(x, i[None], 0))
        want = x.copy()
        np.add.at(want, i, 1)
        np.testing.assert_array_equal(tw.jit(lambda x, i: tw.scatter_add(x, i, tw.ones((5, 5)), 0))(x, ids), want)
        grad = np.zeros_like(x)
        np.add.at(grad, i, 1)
        np.testing.assert_array_equal(tw.grad(lambda x, i: x[i].sum())(x, ids), grad)


def test_a_narrow_index_dtype_and_a_long_axis() -> None:
    """The size of the axis does not fit the dtype of the indices: all that do fit are in range."""
    x = rng.normal(size=(2, 300)).astype(np.float32)
    for dtype, top in ((np.int8, 127), (np.uint8, 255)):
        ids = np.array([[0, top, 5], [1, 2, top]], dtype)
        np.testing.assert_array_equal(tw.jit(lambda x, i: tw.take_along_axis(x, i, 1))(x, ids), np.take_along_axis(x, ids.astype(int), 1))
        np.testing.assert_array_equal(tw.jit(lambda x, i: x[:, i])(x, ids[0]), x[:, ids[0].astype(int)])
        labels = np.array([44, top - 1], dtype)
        got = tw.grad(lambda x, y: tw.softmax_cross_entropy(x, y).sum() + (tw.one_hot(y, 300) * x).sum())(x, labels)

        np.testing.assert_allclose(got, torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-4, atol=1e-6)
    with pytest.raises(ExecutionError, match="got -128 at position 1"):
        tw.jit(lambda x, i: tw.take_along_axis(x, i, 1))(x[:, :100], np.array([[0, -128]] * 2, np.int8))


class Divides(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x // y, torch.remainder(x, y), torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc")


def test_torch_modules_raise_where_torch_does(tmp_path: Path) -> None:
    x, y = torch.tensor([-(2**31), -7, 7, -9, 9]).int(), torch.tensor([3, 2, -2, 4, 4]).int()
    session = tw.compile(Divides(), (x, y))
    for got, want in zip(session(x, y), Divides()(x, y), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    y[3] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        Divides()(x, y)
    session.save(tmp_path / "divides.tw")
    for each in (session, tw.load(tmp_path / "divides.tw")):
        with pytest.raises(ExecutionError, match=rf"^floor_divide: integers .* got -9 and 0 at position 3; .*\({HERE}:\d+, in Divides\)$"):
            each(x, y)


class Loss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Embedding(5, 4)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.inner(ids), labels)


def test_torch_losses_and_lookups_name_the_module_and_the_line() -> None:
    ids, labels = torch.tensor([0, 1, 4]), torch.tensor([0, 3, -100])
    session = tw.compile(Loss(), (ids, labels))
    session(ids, labels)
    with pytest.raises(ExecutionError, match=rf"^embedding: index out of range, got 5 at position 1; .* \({HERE}:\d+ in inner, in "):
        session(torch.tensor([0, 5, 4]), labels)
    text = rf"^(cross_entropy_loss|nll_loss\w*): label 4 is out of range for 4 classes, at .* \({HERE}:\d+, in Loss\)$"
    with pytest.raises(ExecutionError, match=text):
        session(ids, torch.tensor([0, 4, 1]))


def test_the_reference_target_says_the_same() -> None:
    traced = tw.jit(lambda x, y: tw.softmax_cross_entropy(x, y)).lower(X, np.array([0, 1, 2]))
    model = traced.model
    model.target = target_spec("reference")
    with pytest.raises(ExecutionError, match=rf"softmax_cross_entropy: .*9 is out of range for .* \({HERE}:\d+\)"):
        Session(model, None)(X, np.array([0, 1, 9]))


class Hot(torch.nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(ids, 4)


def test_torch_one_hot_knows_its_classes() -> None:
    session = tw.compile(Hot(), (torch.tensor([0, 1]),))
    torch.testing.assert_close(session(torch.tensor([3, 0])), Hot()(torch.tensor([3, 0])))
    for bad in (4, -1):
        with pytest.raises(RuntimeError, match="Class values must be"):
            Hot()(torch.tensor([0, bad]))
        with pytest.raises(ExecutionError, match=rf"^one_hot: index out of range, got {bad} at position 1; must be in 0..3 \({HERE}:"):
            session(torch.tensor([0, bad]))


def test_a_negative_index_of_a_module_is_shown_as_it_was_given() -> None:
    """PyTorch counts negative indices from the end; one that is out of range even so is not shown with the size added to it."""
    def module(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor, e: torch.Tensor) -> Any:
        return x[a], x[b, b], torch.take_along_dim(x, c[:, None], 0), torch.index_put(x, (d,), x[:3]), torch.take(x, e)

    x, good = torch.randn(10, 4), torch.tensor([3, -4, 2])
    session = tw.compile(module, (x, *[good] * 5))  # one tensor as several examples is no promise that they stay one
    for got, want in zip(session(x, *[good] * 5), module(x, *[good] * 5), strict=True):
        torch.testing.assert_close(got, want)
    for k, (name, size) in enumerate([("index", 10), ("index", 4), ("take_along_dim", 10), ("index_put", 10), ("take", 40)]):
        for bad in (-size - 1, -1000, size):
            ids = [good.clone() for _ in range(5)]
            ids[k][1] = bad
            with pytest.raises(ExecutionError, match=rf"^{name}: index out of range, got {bad} at position \d+"):
                session(x, *ids)
