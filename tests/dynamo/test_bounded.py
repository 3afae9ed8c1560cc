"""Sizes that depend on data inside one graph: capacity and count in the program, exact sizes where results leave it."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tilewright.core.errors import ExecutionError
from tilewright.dynamo.backend import SplitWarning, watching

from .check import assert_same

r = torch.randn


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


def small(*shape: int, most: int = 4) -> torch.Tensor:
    return torch.randint(0, most, shape)


def bounded(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    rows = torch.repeat_interleave(k)
    torch._check(rows.shape[0] <= 12)
    return x[rows] * 2


CASES: dict[str, tuple[Any, Any]] = {
    "nonzero": (lambda x: (x > 0).nonzero() * 2, lambda: (r(3, 4),)),
    "mask": (lambda x: (x[x > 0] * 3).exp(), lambda: (r(9),)),
    "mask over rows": (lambda x: x[x[:, 0] > 0] @ x.t(), lambda: (r(4, 5),)),
    "mask over two axes": (lambda x, m: x[m].relu(), lambda: (r(3, 4, 2), r(3, 4) > 0)),
    "masked_select": (lambda x: torch.masked_select(x, x > 0) + 1, lambda: (r(3, 5),)),
    "unique": (lambda x: torch.unique(x, return_inverse=True, return_counts=True), lambda: (small(3, 5),)),
    "unique floats": (lambda x: torch.unique(x), lambda: (torch.tensor([1.0, float("nan"), -0.0, 0.0, float("nan"), 1.0]),)),
    "unique_consecutive": (lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), lambda: (small(15, most=2),)),
    "repeat_interleave": (bounded, lambda: (r(5, 3), small(5, most=3))),
    "nothing": (lambda x: x[x > 9] * 2, lambda: (r(9),)),
    "sums": (lambda x: (x[x > 0].sum(), x[x[:, 0] > 0].sum(0), (x[x > 0] > 1).any(), x[x[:, 0] > 0].sum(1)), lambda: (r(6, 3),)),
    "mean": (lambda x: (x[x > 0].mean(), x[x > 9].mean()), lambda: (r(9),)),
    "mean of large rows": (lambda x: (x[x[:, 0] > 0].mean(0), x[x[:, 0] > 0].mean(), x[x[:, 0] > 0].mean((0, 1), keepdim=True)),
                           lambda: (torch.tensor([[3e37, 1.0], *[[-1.0, 0.0]] * 60, [9e37, -3.0]]),)),
    "length": (lambda x: (x[x > 0].sum() / x[x > 0].shape[0], x[x > 0].shape[0]), lambda: (r(9),)),
    "put back": (lambda x: x.clone().index_put((x > 0,), x[x > 0] * 3), lambda: (r(9),)),
    "indices in range": (lambda x, k: (x[k[k >= 0]] * 2, torch.nn.functional.embedding(k[k >= 0], x), x.index_select(0, k[k >= 0]),
                                       x[k[k >= 0], 1]), lambda: (r(4, 3), torch.tensor([-99, 1, 2, -99, 3, 0]) - 99 * small(6, most=2))),
    "softmax of rows": (lambda x: x[x[:, 0] > 0].softmax(-1).unsqueeze(1), lambda: (r(6, 3),)),
}


@pytest.mark.parametrize("name", CASES)
def test_one_program(name: str) -> None:
    fn, make = CASES[name]
    call = torch.compile(fn, backend="tilewright", fullgraph=True)
    with watching() as found:
        for _ in range(3):
            args = make()
            assert_same(call(*args), fn(*args))
    assert len(found) == 1 and found[0].splits == 0, found[0].refusals


@pytest.mark.parametrize(("fn", "op"), [(lambda x: x[x > 0].sort().values, "sort"), (lambda x: torch.cat([x[x > 0], x[x < 0]]), "cat"),
                                        (lambda x: x[None, x > 0] + 1, "index"), (lambda x: x[x > 0].amax(), "amax")])
def test_what_mixes_rows_runs_in_pytorch(fn: Any, op: str) -> None:
    call = torch.compile(fn, backend="tilewright", fullgraph=True)
    with pytest.warns(SplitWarning, match=f"aten.{op}"):
        call(r(9))
    for _ in range(3):
        x = r(9)
        x[0] = 1.5
        assert_same(call(x), fn(x))


def test_any_number_of_elements() -> None:
    call = torch.compile(lambda x: x[x > 0] * 2, backend="tilewright", fullgraph=True, dynamic=True)
    with watching() as found:
        for n in (5, 9, 2):
            x = r(n)
            assert_same(call(x), x[x > 0] * 2)
    assert len(found) == 1 and found[0].splits == 0


def test_gradients() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x[x[:, 0] > 0] @ x.t()).relu()

    call = torch.compile(fn, backend="tilewright", fullgraph=True)
    with watching() as found:
        for sign in (1, 1, 0, -1):  # the last two choose no row, or all
            x = r(4, 5)
            x[:, 0] = x[:, 0] if sign == 1 else -sign
            x.requires_grad_()
            want = torch.autograd.grad(fn(x).sum(), x)
            torch.testing.assert_close(torch.autograd.grad(call(x).sum(), x), want, rtol=1e-4, atol=1e-5)
    assert [(c.kind, c.splits) for c in found] == [("forward", 0), ("backward", 0)]


@pytest.mark.parametrize("options", [{}, {"target": "reference"}])
def test_a_bound_that_is_exceeded_is_an_error(options: dict[str, Any]) -> None:
    call = torch.compile(bounded, backend="tilewright", fullgraph=True, options=options)
    assert call(r(5, 3), torch.tensor([4, 8, 0, 0, 0])).shape == (12, 3)
    with pytest.raises(ExecutionError, match="13 rows were found where the graph has room for 12"):
        call(r(5, 3), torch.tensor([4, 9, 0, 0, 0]))


def test_what_torch_checks_holds_behind_a_split() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x[x > 0].sort().values
        torch._check(y.shape[0] != 3)
        return y * 2

    call = torch.compile(fn, backend="tilewright", fullgraph=True)
    with pytest.warns(SplitWarning, match="sort"):
        call(torch.tensor([1.0, 2, -1, -1]))
    with pytest.raises(RuntimeError, match="Runtime assertion failed"):
        call(torch.tensor([1.0, 2, 3, -1]))


def test_numbers_that_depend_on_data_are_arguments_of_the_part_behind_them() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        n: Any = x.max().item()
        torch._check(n >= 0)
        torch._check(n <= y.shape[0])
        return y[:n].sum(), y * n, torch.arange(n).sin(), torch.ones(n, 3).sum(0)

    call = torch.compile(fn, backend="tilewright", fullgraph=True)
    y = r(7)
    with watching() as found, pytest.warns(SplitWarning, match="_local_scalar_dense.default x1"):
        call(torch.tensor([-2, 3]), y)
    for n in (3, 1, 7, 0):
        x = torch.tensor([-2, n])
        assert_same(call(x, y), fn(x, y))
    assert [len(s.nodes) > 1 for s in found[0].steps if s.ours] == [False, True] and found[0].splits == 1
    for n in (8, -1, 1 << 40):
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            call(torch.tensor([-2, n]), y)
