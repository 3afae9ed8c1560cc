"""Machine code in front of a session: what it takes, what it hands on, and what a call leaves behind."""
from __future__ import annotations

import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.core.errors import ExecutionError, InputError
from tilewright.runtime import torch_calls

pytestmark = pytest.mark.skipif(torch_calls.exchange() is None, reason="this PyTorch does not describe tensors to machine code")


class Function(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *xs: Any) -> Any:
        return self.fn(*xs)


def session_of(fn: Callable[..., Any], *xs: torch.Tensor) -> Any:
    session: Any = tw.compile(Function(fn), xs)
    for _ in range(2):
        session(*xs)
    assert isinstance(session._call, BuiltinFunctionType)
    return session


def test_results_are_put_together() -> None:
    x = torch.randn(5, 4)
    found = session_of(torch.aminmax, x)(x)
    assert type(found) is torch.return_types.aminmax and found.min == x.min() and found.max == x.max()
    one, (two, three) = session_of(lambda x: [x + 1, {"a": (x * 2,), "b": x.shape[0]}, x][:1] + [(x * 2, 7)], x)(x)
    assert torch.equal(one, x + 1) and torch.equal(two, x * 2) and three == 7


def test_what_it_does_not_know_goes_the_other_way() -> None:
    x = torch.randn(6, 4)
    session = session_of(lambda x: x * 2 + 1, x)
    for given in (x.t().contiguous().t(), torch._neg_view(x), x[2:4].expand(3, 2, 4).reshape(6, 4)):
        assert torch.equal(session(given), given * 2 + 1)
    out = torch.empty(6, 4)
    assert session(x, out=out) is out and torch.equal(out, x * 2 + 1)
    for wrong in (x[:5], x.double(), x[None], 3.0):
        with pytest.raises(InputError):
            session(wrong)
    assert torch.equal(session(x), x * 2 + 1)


@pytest.mark.parametrize("dynamic", [None, {"xs": ({0: "N"},)}], ids=["fixed", "dynamic"])
def test_an_input_that_requires_grad_is_warned_of_where_autograd_records(dynamic: Any) -> None:
    x = torch.randn(6, 4)
    session: Any = tw.compile(Function(lambda x: x * 2 + 1), (x,), dynamic=dynamic)
    with torch.no_grad():
        for given in (x, torch.nn.Parameter(x), x.clone().requires_grad_()):
            for _ in range(3):
                assert torch.equal(session(given), x * 2 + 1)
    for given in (torch.nn.Parameter(x), x.clone().requires_grad_()):
        for _ in range(2):
            with pytest.warns(UserWarning, match=r"session: input '\w+' requires grad, and the results of a session have none"):
                assert not session(given).requires_grad
        assert torch.equal(session(given.detach()), x * 2 + 1)
        with torch.inference_mode():
            session(given)


def test_calls_with_arrays_make_none() -> None:
    """Nor do they enter PyTorch, whose threads do not survive the end of a process."""
    x = torch.randn(6, 4)
    session: Any = tw.compile(Function(lambda x: x * 2 + 1), (x,))
    session(x)
    for _ in range(3):
        assert (session(x.numpy()) == x.numpy() * 2 + 1).all()
        assert not isinstance(session._call, BuiltinFunctionType)
    for _ in range(2):
        assert torch.equal(session(x), x * 2 + 1)
    assert isinstance(session._call, BuiltinFunctionType)


def test_an_error_of_a_kernel_leaves_nothing_behind() -> None:
    x, ids = torch.randn(8, 3), torch.tensor([1, 7])
    session = session_of(lambda x, i: x[i], x, ids)
    for _ in range(3):
        with pytest.raises(ExecutionError, match="index out of range"):
            session(x, torch.tensor([1, 8]))
        assert torch.equal(session(x, ids), x[ids])


def test_threads_do_not_share_a_workspace() -> None:
    x = torch.randn(64, 64)
    session = session_of(lambda x: (x @ x).softmax(1), x)
    want, wrong = session(x), list[int]()

    def calls() -> None:
        wrong.extend(k for k in range(50) if not torch.equal(session(x), want))

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_closed_session_refuses() -> None:
    x = torch.randn(3)
    session = session_of(torch.exp, x)
    session.close()
    with pytest.raises(InputError, match="closed"):
        session(x)
