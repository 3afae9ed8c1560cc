"""More whole programs: arguments that are written, that overlap or change; draws; backward passes of parts."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .programs import Compile, Small, differentiated, program, r, seeded, tensors


def mutating(name: str, fn: Callable[..., Any], *make: Callable[[str], Any], splits: int = 0) -> None:
    @program(name, splits)
    def run(compiled: Compile, device: str) -> Any:
        args, f, out = [m(device) for m in make], compiled(fn), []
        for _ in range(2):
            out.append(copy.deepcopy(f(*args)))
        return out, args


def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    return y + x


mutating("argument written and returned", lambda x: x.add_(1), lambda d: r(4, device=d))
mutating("argument's view written", lambda x: (x[1:].mul_(3), x.sum())[1], lambda d: r(4, device=d))
mutating("list of arguments written", lambda xs: torch.stack([x.mul_(i + 1) for i, x in enumerate(xs)]),
         lambda d: [r(3, device=d) for _ in range(3)])
mutating("copy_ of another dtype", lambda x, y: x.copy_(y).sum(), lambda d: torch.zeros(4, dtype=torch.int32, device=d),
         lambda d: r(4, device=d) * 9)
mutating("t_ and unsqueeze_", lambda x: x.t().clone().unsqueeze_(0).mul_(2), lambda d: r(3, 4, device=d))
mutating("set elements", lambda x: (x.__setitem__(0, 7), x.__setitem__((slice(None), 1), x[:, 0] * 2), x * 1)[2],
         lambda d: r(3, 4, device=d))
mutating("random draws into an argument", lambda x: (x.zero_(), x.bernoulli_(1.0), x * 2)[2], lambda d: r(3, 4, device=d))


@program("two views of one memory as arguments")
def _overlap(compiled: Compile, device: str) -> Any:
    base = r(8, device=device)
    return compiled(both)(base[:5], base[3:]), base


@program("the same argument twice")
def _twice(compiled: Compile, device: str) -> Any:
    x, f = r(5, device=device), compiled(both)
    return f(x, x), x, f(x, r(5, device=device)), x


@program("result is an argument, and its view")
def _identity(compiled: Compile, device: str) -> Any:
    x = r(3, 4, device=device)
    a, b, c = compiled(lambda x: (x, x.t(), x[0]))(x)
    return a is x, b._base is x or b._is_view(), c.data_ptr() == x.data_ptr(), a, b, c


@program("a result twice")
def _result_twice(compiled: Compile, device: str) -> Any:
    a, b, c = compiled(lambda x: (y := x.sin(), y, y.view(-1)))(r(3, 4, device=device))
    a.mul_(2)
    return a, b, c


@program("globals and attributes written")
def _globals(compiled: Compile, device: str) -> Any:
    class Holder:
        value = r(3, device=device)

    def f(x: torch.Tensor) -> torch.Tensor:
        Holder.value = x * 2
        return Holder.value + 1

    return compiled(f)(r(3, device=device)), Holder.value


@program("inference_mode")
def _inference(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    f, x = compiled(m), r(4, 8, device=device)
    with torch.inference_mode():
        a = f(x)
    with torch.no_grad():
        b = f(x)
    return [t.clone() for t in (a, b)], f(x)


@program("strides that change")
def _strides(compiled: Compile, device: str) -> Any:
    f = compiled(lambda x: (x * 2, x.sum(0), x.reshape(-1)))
    base = r(6, 6, device=device)
    return [f(x) for x in (base, base.t(), base[::2, ::2], base[:, 1:4], base[0].expand(4, 6), base.flip(0))]


@program("dtypes that change")
def _dtypes(compiled: Compile, device: str) -> Any:
    f = compiled(lambda x: (x * 2, x.sum(0), x > 1))
    return [f((r(4, 4, device=device) * 9).to(d)) for d in (torch.float32, torch.float64, torch.int32, torch.uint8, torch.float16,
                                                            torch.bfloat16, torch.int64, torch.int8, torch.int16)]


@program("default device and dtype")
def _defaults(compiled: Compile, device: str) -> Any:
    def f() -> torch.Tensor:
        return torch.ones(3) * torch.arange(3) + torch.full((3,), 2.0)

    torch.set_default_dtype(torch.float64)
    try:
        with torch.device(device):
            return compiled(f)()
    finally:
        torch.set_default_dtype(torch.float32)


@program("no arguments, constants")
def _constants(compiled: Compile, device: str) -> Any:
    return compiled(lambda: (torch.eye(3, device=device) * 2, torch.tensor([1, 2, 3], device=device).cumsum(0)))()


@program("numpy inside")
def _numpy(compiled: Compile, device: str) -> Any:
    import numpy as np

    return torch.as_tensor(compiled(lambda x: np.sin(x) + x.mean())(np.linspace(0, 1, 7)))


@program("experts of transformers")
def _experts(compiled: Compile, device: str) -> Any:
    import transformers.integrations.moe  # noqa: F401  enters its ops

    f, out = compiled(lambda x, w, ends: torch.ops.transformers.grouped_mm_fallback(x * 1, w.transpose(1, 2), ends).sin()), []
    for ends in ([3, 3, 8, 10], [0, 4, 9, 10], [10, 10, 10, 10]):
        x, w = r(10, 5, device=device, requires_grad=True), r(4, 7, 5, device=device, requires_grad=True)
        out.append(differentiated(f, [x, w, torch.tensor(ends, dtype=torch.int32, device=device)]))
    return out


@program("seeds repeat draws")
def _seeds(compiled: Compile, device: str) -> Any:
    f = compiled(lambda x: (torch.rand_like(x), torch.randn(4, device=device), F.dropout(x, 0.5), torch.randint(0, 9, (5,), device=device),
                            torch.randperm(8, device=device), torch.bernoulli(torch.full((9,), 0.5, device=device))))
    x, draws = torch.ones(64, device=device), []
    for _ in range(2):
        torch.manual_seed(7)
        draws.append((f(x), f(x)))
    same = all(torch.equal(a, b) for a, b in zip(tensors(draws[0]), tensors(draws[1]), strict=True))
    fresh = not torch.equal(draws[0][0][0], draws[0][1][0])
    return same, fresh, float(draws[0][0][2].max()), draws[0][0][4].sort().values


@program("dropout's mask is the same in both passes")
def _mask(compiled: Compile, device: str) -> Any:
    x = torch.ones(512, device=device, requires_grad=True)
    y = compiled(lambda x: F.dropout(x * 3, 0.25).sum())(x)
    (grad,) = torch.autograd.grad(y, x)
    kept = int((grad > 0).sum())
    return bool((y.detach() - kept * 4).abs() < 1e-2), 300 < kept < 460, grad.unique()


@program("saved tensors hooks")
def _saved(compiled: Compile, device: str) -> Any:
    x = r(4, 4, device=device, requires_grad=True)
    f = compiled(lambda x: (x.sin() * x.exp()).sum())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        y = f(x)
    y.backward()
    return y, x.grad


@program("backward twice with retain_graph")
def _retained(compiled: Compile, device: str) -> Any:
    x = r(4, 4, device=device, requires_grad=True)
    y = compiled(lambda x: (x.sin() @ x).sum())(x)
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@program("some results without gradients")
def _some(compiled: Compile, device: str) -> Any:
    x, w = r(4, 4, device=device, requires_grad=True), r(4, 4, device=device)
    a, b, c = compiled(lambda x, w: (x @ w, w * 2, (x > 0).sum()))(x, w)
    a[0].sum().backward()
    return a, b, c, x.grad, b.requires_grad


@program("only one of two results is differentiated")
def _one(compiled: Compile, device: str) -> Any:
    x = r(4, 4, device=device, requires_grad=True)
    a, b = compiled(lambda x: (x.exp(), x.softmax(0)))(x)
    b.sum(1).square().sum().backward()
    return a, x.grad
