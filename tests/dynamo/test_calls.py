"""Calls of compiled functions: dynamic sizes, graph breaks, modes of torch, data-dependent sizes."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn as nn

from tilewright.dynamo.backend import Compiler, SplitWarning, watching

from .check import assert_same, check


def compiled(fn: Any, **how: Any) -> Any:
    return torch.compile(fn, backend="tilewright", **how)


def check_over(fn: Any, calls: list[tuple[Any, ...]], graphs: int, **how: Any) -> None:
    """The function over several arguments, with as many compiles as expected and no split."""
    call = compiled(fn, **how)
    with torch.no_grad(), watching() as found:
        for args in calls:
            assert_same(call(*args), fn(*args))
    assert len(found) == graphs
    assert sum(c.splits for c in found) == 0, [c.refusals for c in found]


def test_automatic_dynamic_shapes() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))
    check_over(module, [(torch.randn(n, 8),) for n in (2, 3, 5, 17, 64)], graphs=2)


def test_dynamic_from_the_start() -> None:
    check_over(lambda x: (x @ x.t()).softmax(-1).sum(0), [(torch.randn(n, n + 2),) for n in (4, 5, 9)], graphs=1, dynamic=True)


def test_marked_dims() -> None:
    calls = [(torch.randn(n, 6),) for n in (4, 5, 8)]
    torch._dynamo.mark_dynamic(calls[0][0], 0)
    check_over(lambda x: x.cumsum(0) * x.shape[0], calls, graphs=1)


def test_sizes_of_zero_and_one() -> None:
    check_over(lambda x: (x * 2).sum(1), [(torch.randn(n, 3),) for n in (4, 5, 1, 0)], graphs=4)


def test_dynamic_pictures() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)).eval()
    check_over(module, [(torch.randn(b, 3, n, n),) for b, n in ((2, 8), (3, 10), (4, 12))], graphs=1, dynamic=True)


def test_dynamic_strides() -> None:
    check_over(lambda x: x * 2 + 1, [(torch.randn(n, n + 3).t(),) for n in (4, 5, 6)], graphs=1, dynamic=True)


def test_numbers_as_arguments() -> None:
    check_over(lambda x, n: x[:n] * n, [(torch.randn(9, 5), n) for n in (3, 4, 5)], graphs=2)
    torch._dynamo.reset()
    check_over(lambda x, a: x * a + a, [(torch.randn(9, 5), a) for a in (0.5, 1.5, 2.5)], graphs=2)


def test_sizes_as_results() -> None:
    check_over(lambda x: (x * 2, x.shape[0] * 3, x.shape[0] + x.shape[1]), [(torch.randn(n, 5),) for n in (3, 4)], graphs=1, dynamic=True)


@pytest.mark.slow
def test_training_with_dynamic_shapes() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    call = compiled(layer, dynamic=True)
    with watching() as found:
        for shape in ((2, 5), (3, 7), (4, 9)):
            x = torch.randn(*shape, 16)
            grads = []
            for fn in (call, layer):
                layer.zero_grad()
                fn(x).square().sum().backward()
                grads.append([p.grad for p in layer.parameters()])
            assert_same(*grads)  # type: ignore[arg-type]
    assert [c.kind for c in found] == ["forward", "backward"]
    assert sum(c.splits for c in found) == 0


def test_graph_breaks() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.sum() > 0:
            return y + 1
        return y - 1

    check_over(fn, [(torch.ones(4),), (-torch.ones(4),)], graphs=3)


def test_data_dependent_sizes_break_the_graph() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x.nonzero(), x[x > 0] * 2, torch.unique((x * 2).long()), torch.masked_select(x, x > 0).sum()

    x = torch.randn(9)
    assert_same(compiled(fn)(x), fn(x))


@pytest.fixture
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


@pytest.mark.usefixtures("captured")
def test_data_dependent_sizes_in_one_graph() -> None:
    def fn(x: torch.Tensor) -> Any:
        y = x[x > 0]
        return x.nonzero() * 2, (y * 3).relu(), y.sum() * 2, x * x.sum().item()

    call = compiled(fn, fullgraph=True)
    with watching() as found:
        for _ in range(3):
            x = torch.randn(9)
            assert_same(call(x), fn(x))
    assert len(found) == 1 and found[0].splits == 0


def test_inference_mode_and_no_grad() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    call = compiled(layer)
    with torch.inference_mode():
        assert call(x).is_inference()
        torch.testing.assert_close(call(x), layer(x))
    with torch.no_grad():
        assert not call(x).requires_grad
    call(x).sum().backward()
    assert layer.weight.grad is not None


def test_default_device() -> None:
    with torch.device("cpu"):
        assert_same(compiled(lambda x: x * torch.arange(3.0))(torch.ones(3)), torch.arange(3.0))


def test_subclasses() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    x = TwoTensor(torch.randn(3), torch.randn(3))
    got = compiled(lambda x: x * 2 + 1)(x)
    torch.testing.assert_close(got.a, x.a * 2 + 1)
    torch.testing.assert_close(got.b, x.b * 2 + 1)


def test_conjugate_views() -> None:
    z = torch.randn(4, dtype=torch.complex64)
    for x in (z.conj(), z.conj().imag):
        with watching() as found:
            assert_same(compiled(lambda z: z * 2)(x), x * 2)
        assert found[0].splits == 0
    check(lambda z: (z.conj() * 2, z * 1), z)


def test_branches_run_in_pytorch() -> None:
    def fn(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x + 1,)) + 1

    call = compiled(fn)
    with pytest.warns(SplitWarning, match="cond x1"):
        call(torch.ones(3))
    for x in (torch.ones(3), -2 * torch.ones(3)):
        assert_same(call(x), fn(x))


def test_the_bodies_of_branches_and_loops_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[list[str]] = []
    real = Compiler._compiled

    def counted(self: Compiler, module: Any, kind: str, *rest: Any) -> Any:
        found = real(self, module, kind, *rest)
        if kind == "body":
            made.append([str(n.target) for s in found.steps if s.ours for n in s.nodes])
        return found

    monkeypatch.setattr(Compiler, "_compiled", counted)
    w = torch.randn(4, 4)

    def fn(x: torch.Tensor) -> Any:
        _, y = torch._higher_order_ops.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, torch.tanh(x @ w)), (torch.tensor(0), x))
        return torch.cond(y.sum() > 0, lambda y: y.exp(), lambda y: y.sin(), (y,))

    with pytest.warns(SplitWarning, match="while_loop x1"):
        check(fn, torch.randn(3, 4), splits=2)
    assert [ops[-1] for ops in made] == ["aten.lt.Scalar", "aten.tanh.default", "aten.exp.default", "aten.sin.default"]


def test_regions_of_their_own_are_part_of_the_graph() -> None:
    @torch.compiler.nested_compile_region
    def inner(x: torch.Tensor, w: torch.Tensor) -> Any:
        return (x @ w).sin(), x.sum() * 2

    @torch.compiler.nested_compile_region
    def outer(x: torch.Tensor, w: torch.Tensor) -> Any:
        a, s = inner(x, w)
        b, t = inner(a, w)
        return b + s, t

    def fn(x: torch.Tensor, w: torch.Tensor) -> Any:
        y, s = outer(x, w)
        z, t = outer(y * 0.1, w)
        return z, s + t

    check(fn, torch.rand(3, 4, requires_grad=True), torch.rand(4, 4, requires_grad=True), grad=True, fullgraph=True)


def test_tensors_without_memory_are_pytorchs() -> None:
    for fn in (lambda x, y: x.sin() + 1, lambda x, y: torch.ones(3, device="meta") * x.shape[0] + 1):
        with pytest.warns(SplitWarning, match="device meta is not supported"):
            found = compiled(fn)(torch.empty(3, device="meta"), torch.ones(3))
        assert found.is_meta and found.shape == (3,)
    unused = torch.nn.Linear(3, 3, device="meta")
    (made,) = check(lambda x: torch.func.functional_call(unused, {"weight": x, "bias": x[0]}, x), torch.randn(3, 3))
    assert made.splits == 0


def test_watchers_inside_watchers() -> None:
    with watching() as outside:
        with watching() as inside:
            compiled(lambda x: x + 1)(torch.zeros(2))
        compiled(lambda x: x + 2)(torch.zeros(2))
    assert (len(inside), len(outside)) == (1, 2)


def test_transforms_and_own_gradients() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> Any:
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return g * ctx.saved_tensors[0].exp() * 2

    x = torch.randn(3, 4)
    assert_same(compiled(lambda x: torch.vmap(lambda y: y.softmax(0) * y)(x))(x), x.softmax(1) * x)
    assert_same(compiled(lambda x: torch.func.grad(lambda y: (y**3).sum())(x))(x), 3 * x**2)
    x.requires_grad_()
    compiled(lambda x: Own.apply(x) * 3)(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().exp() * 6)


@pytest.mark.parametrize("how", [{}, {"dynamic": True}])
def test_sessions_without_a_cpu_program(how: dict[str, Any]) -> None:
    """Those of other targets go through their own calls: here the reference's."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        x.add_(1)
        z = (x @ y).relu()
        return z, z.t(), z.shape[0] * 2, y * 2

    check(fn, torch.randn(5, 4), torch.randn(3, 4).t(), options={"target": "reference"}, **how)
    check(lambda x: nn.functional.dropout(x, 0.0) * 2, torch.randn(3, 1).expand(3, 4), options={"target": "reference"}, **how)
