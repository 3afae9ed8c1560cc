"""Calls around AOTAutograd's wrappers: what autograd sees is what it sees in eager PyTorch."""
from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from tilewright.dynamo.backend import watching

from .check import assert_same


def warmed(f: Callable[..., Any], *args: Any) -> Any:
    """`f`, compiled, after its backward pass was compiled: from here on calls are direct."""
    compiled = torch.compile(f, backend="tilewright", options={"threads": 1})
    out = compiled(*args)
    first = out[0] if isinstance(out, tuple) else out
    first.sum().backward()
    for a in args:
        a.grad = None
    return compiled


def is_direct(y: torch.Tensor) -> bool:
    """(AOTAutograd's own function has the attributes of what it compiled.)"""
    assert y.grad_fn is not None and "CompiledFunctionBackward" in type(y.grad_fn).__name__
    return not hasattr(y.grad_fn._forward_cls, "compiled_fw")  # type: ignore[attr-defined]


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True)


def test_the_second_step_is_direct() -> None:
    x, w = leaf(4, 8), leaf(8, 3)
    f = torch.compile(lambda x, w: (x @ w).relu(), backend="tilewright")
    ways = []
    for _ in range(3):
        y = f(x, w)
        ways.append(is_direct(y))
        y.sum().backward()
    assert ways[1:] == [True, True]
    want = torch.autograd.grad((x @ w).relu().sum(), (x, w))
    assert_same([x.grad, w.grad], [3 * g for g in want])


def test_hooks_views_in_place_and_retained_graphs() -> None:
    def f(x: Any, w: Any) -> Any:
        return F.linear(x, w), x.sin()

    x, w = leaf(2, 3, 8), leaf(5, 8)
    compiled = warmed(f, x, w)
    results = []
    for call in (compiled, f):
        x.grad = w.grad = None
        seen: list[Any] = []
        a, b = call(x, w)
        assert call is f or is_direct(a)
        a.register_hook(lambda g, seen=seen: (seen.append(g.clone()), g * 2)[1])
        a = a.mul_(3) + 1  # a result is changed in place: it is no view for autograd
        (a.sum() + b.sum()).backward(retain_graph=True)
        (a.sum() * 2).backward()
        results.append([x.grad, w.grad, *seen])
    assert_same(results[0], results[1])


def test_gradients_that_nobody_needs() -> None:
    def f(x: Any, y: Any, n: Any) -> Any:
        return x * y.detach(), (x > 0), n + 1, x.detach() * 2

    x, y, n = leaf(6), leaf(6), torch.arange(6)
    compiled = warmed(f, x, y, n)
    z = y * 2  # not a leaf: it is detached
    a, mask, m, d = compiled(x, z, n)
    assert is_direct(a) and a.requires_grad and not (mask.requires_grad or m.requires_grad or d.requires_grad)
    a.sum().backward()
    assert y.grad is None
    assert_same([x.grad, mask, m, d], [z.detach(), x > 0, n + 1, x.detach() * 2])


def test_errors_of_autograd() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    compiled = warmed(lambda x, w: x.exp() * w, x, w)
    y = compiled(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = compiled(x, w)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    (g,) = torch.autograd.grad(compiled(x, w).sum(), x, create_graph=True)
    assert g.requires_grad
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()
    y = compiled(x, w)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.vmap(lambda v: torch.autograd.grad(y, x, v)[0])(torch.randn(2, 4, 4))


def test_versions_of_buffers_and_momentum() -> None:
    module = nn.BatchNorm1d(5)
    x = leaf(7, 5)
    compiled = torch.compile(module, backend="tilewright")
    for _ in range(3):
        before = module.running_mean._version  # type: ignore[union-attr]
        y = compiled(x)
        assert module.running_mean._version > before  # type: ignore[union-attr]
        y.sum().backward()
    assert is_direct(y)
    other = nn.BatchNorm1d(5)
    for _ in range(3):
        other(x)
    assert_same(list(module.buffers()), list(other.buffers()))


def test_modes_around_a_call() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    f = lambda x, w: (x @ w).tanh()
    compiled = warmed(f, x, w)
    with torch.no_grad():
        assert not compiled(x, w).requires_grad
    with torch.inference_mode():
        assert compiled(x, w).is_inference()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        assert_same(torch.autograd.grad(compiled(x, w).sum(), (x, w)), torch.autograd.grad(f(x, w).sum(), (x, w)))
    got = torch.utils.checkpoint.checkpoint(lambda x: compiled(x, w).sin(), x, use_reentrant=False)
    assert_same(torch.autograd.grad(got.sum(), x), torch.autograd.grad(f(x, w).sin().sum(), x))


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_backward_pass_inside_a_compiled_function() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    inner = warmed(lambda x, w: (x * w).sigmoid(), x, w)

    def outer(x: Any) -> Any:
        y = inner(x, w) * 2
        torch._dynamo.graph_break()
        y.sum().backward()
        return x.grad + 1

    with watching() as found:
        for _ in range(3):
            x.grad = None
            got = torch.compile(outer, backend="eager")(x)
    (want,) = torch.autograd.grad(((x * w).sigmoid() * 2).sum(), x)
    assert_same(got, want + 1)
    assert len(found) <= 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_autograd() -> None:
    """A saved result is the result itself, which is no leaf, and PyTorch's fakes look at its .grad."""
    x, w = leaf(4, 4), leaf(4, 4)
    compiled = warmed(lambda x, w: (x * w).sigmoid(), x, w)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(2):
            x.grad = None
            compiled(x, w).sum().backward()
    (want,) = torch.autograd.grad((x * w).sigmoid().sum(), x)
    assert_same(x.grad, want)


def test_steps_in_threads() -> None:
    w = torch.randn(8, 8)
    f = lambda x: (x @ w).softmax(-1).log()
    compiled = warmed(f, leaf(5, 8))
    failures: list[Any] = []

    def work() -> None:
        try:
            for _ in range(20):
                x = leaf(5, 8)
                assert_same(torch.autograd.grad(compiled(x)[:, 1].sum(), x), torch.autograd.grad(f(x)[:, 1].sum(), x))
        except Exception as e:
            failures.append(e)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures[0]


def test_sizes_that_vary_are_direct() -> None:
    w = leaf(8, 3)
    f = lambda x, w: F.gelu(x @ w).sum(1)
    compiled = torch.compile(f, backend="tilewright", dynamic=True)
    for n in (4, 5, 9, 2):
        x = leaf(n, 8)
        y = compiled(x, w)
        assert_same(torch.autograd.grad(y.sum(), (x, w)), torch.autograd.grad(f(x, w).sum(), (x, w)))
    wrappers = torch._functorch._aot_autograd.runtime_wrappers
    assert is_direct(y) or not hasattr(wrappers, "mark_dynamo_propagated_dynamic_indices")  # which torch 2.11 has not


def test_a_graph_that_needs_the_wrappers_keeps_them() -> None:
    """An alias of an input."""
    x = leaf(4, 4)
    compiled = torch.compile(lambda x: (x.view(-1), x * 2), backend="tilewright")
    for _ in range(2):
        flat, y = compiled(x)
        assert not is_direct(y) and flat._base is x
        y.sum().backward()


@pytest.mark.parametrize("f", [lambda x: x.clone().t() + 1, lambda x: x.reshape(3, 8) + 1,
                               lambda x: x.reshape(2, 2, 6).permute(2, 0, 1) + 3])
def test_gradients_that_are_views_of_what_autograd_gives(f: Any) -> None:
    """...which lies as it likes: rows, columns, with gaps, or one element shown many times."""
    x = leaf(4, 6)
    compiled = warmed(f, x)
    shape = f(x).shape
    whole = torch.randn(*shape, 2)
    for given in (whole[..., 0], whole[..., 0].contiguous(), whole.mT.contiguous()[..., 1, :], whole[0, ..., 0].expand(shape),
                  torch.ones(()).expand(shape)):
        assert torch.equal(*(torch.autograd.grad(g(x), x, given)[0] for g in (compiled, f)))
