"""Whole programs such as people compile: control flow, transforms, modules, their copies, optimizers, dtypes.

A program is a function that gets `compiled` (a function that compiles its argument, or leaves it as it is) and returns what is compared:
tensors, numbers and trees of them. The rows run it twice, once in PyTorch alone.
"""
from __future__ import annotations

import copy
import functools
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

Compile = Callable[..., Any]
PROGRAMS: dict[str, Callable[[Compile, str], Any]] = {}
SPLITS: dict[str, int] = {}  # parts that PyTorch runs, where there are some
Pair = namedtuple("Pair", "low high")
r = torch.randn


def program(name: str, splits: int = 0) -> Callable[[Any], Any]:
    def enter(f: Callable[[Compile, str], Any]) -> Any:
        assert name not in PROGRAMS, name
        PROGRAMS[name] = f
        if splits:
            SPLITS[name] = splits
        return f

    return enter


def simple(name: str, fn: Callable[..., Any], *shapes: Any, grad: bool = True, splits: int = 0, **options: Any) -> None:
    """A function of random tensors: results and gradients. A shape may be a function that makes an argument of a device."""

    @program(name, splits)
    def run(compiled: Compile, device: str) -> Any:
        args = [s(device) if callable(s) else r(s, device=device) for s in shapes]
        args = [a.requires_grad_() if grad and isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
        return differentiated(compiled(fn, **options), args, grad)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def differentiated(fn: Callable[..., Any], args: Any, grad: bool = True) -> Any:
    out = fn(*args)
    ends = [t for t in tensors(out) if t.requires_grad] if grad else []
    if not ends:
        return out
    torch.stack([(t.to(torch.complex64 if t.is_complex() else torch.float32).abs() ** 2).sum() for t in ends]).sum().backward()
    return out, [a.grad for a in args if isinstance(a, torch.Tensor)]


class Small(nn.Module):
    def __init__(self, n: int = 8) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(n, 16), nn.LayerNorm(16), nn.Linear(16, n)
        self.register_buffer("count", torch.zeros(()))
        self.unused: nn.Parameter | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(F.gelu(self.first(x)))) + x


def seeded(make: Callable[[], Any], device: str) -> Any:
    torch.manual_seed(1)
    return make().to(device)


def gradients(module: nn.Module) -> list[torch.Tensor | None]:
    return [p.grad for p in module.parameters()]


# ---- control flow, data-dependent branches, numbers as arguments
def branching(x: torch.Tensor) -> torch.Tensor:
    return x.exp() if x.sum().item() > 0 else x.sin()


def conditional(x: torch.Tensor) -> torch.Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.exp() * 2, lambda x: x.sin() - 1, (x * 2,)) + 1


def counting(x: torch.Tensor) -> Any:
    def more(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return i < 5

    def body(i: torch.Tensor, x: torch.Tensor) -> Any:
        return i + 1, x * 1.5

    return torch._higher_order_ops.while_loop(more, body, (torch.zeros((), dtype=torch.int64, device=x.device), x.sin()))


simple("branch on .item()", branching, (4, 4))
simple("branch on shape", lambda x: x * 2 if x.shape[0] > 3 else x - 1, (4, 4))
simple("loop over rows", lambda x: torch.stack([row * i for i, row in enumerate(x)]), (4, 4))
simple("cond", conditional, (4, 4), splits=2)
simple("while_loop", counting, (4,), grad=False, splits=1)
simple("scan with weights", lambda x, i, w: torch._higher_order_ops.scan(lambda c, a: (torch.tanh(c @ w + a), c.sum(-1)), i, x),
       (5, 2, 4), (2, 4), (4, 4), splits=2)
simple("map", lambda x, y: torch._higher_order_ops.map(lambda a, b: (a * b).sin(), x, y), (5, 3), (3,), splits=2)
simple("associative_scan", lambda x: torch._higher_order_ops.associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), (9, 4),
       grad=False)
simple("branch in a branch", lambda x: torch.cond(x.sum() > 0, lambda a: torch.cond(a.max() > 1, torch.exp, torch.sin, (a,)), torch.cos,
                                                  (x,)), (4,), splits=2)
simple("early return and print", lambda x: (torch._dynamo.graph_break(), x * 2)[1] + 1, (4, 4))
simple("assert on sizes", lambda x: x.reshape(2, -1) * x.numel(), (4, 4), fullgraph=True)
simple("try and except", lambda x: _tried(x), (3, 3))
simple("closures and partials", functools.partial(lambda k, x: x * k + x.mean(), 3), (5,))
simple("generators and zips", lambda x: sum(a * b for a, b in zip(x, reversed(list(x)), strict=True)), (4, 3))
simple("sets, dicts, strings", lambda x: {k: x * len(k) for k in sorted({"a", "bb", "ccc"})}, (3,))
simple("dict result", lambda x: {"a": x + 1, "b": {"c": (x * 2, None)}}, (3, 2))
simple("None and numbers as results", lambda x: (None, 3, x * 2, "word", 1.5), (3, 2))
simple("named tuple result", lambda x: Pair(x - 1, x + 1), (3, 2))
simple("list argument", lambda x, y: torch.cat([x, y], 0).cumsum(0), (3, 2), (4, 2))


def _tried(x: torch.Tensor) -> torch.Tensor:
    try:
        raise ValueError("no")
    except ValueError:
        return x * 3


@dataclass
class Found:
    value: torch.Tensor
    size: int


@program("dataclass result")
def _dataclass(compiled: Compile, device: str) -> Any:
    found = compiled(lambda x: Found(x.softmax(-1), x.shape[0]))(r(3, 4, device=device))
    return found.value, found.size


@program("numbers as arguments")
def _numbers(compiled: Compile, device: str) -> Any:
    f, x = compiled(lambda x, n, k: (x[:n] * k, x.sum() / n)), r(12, device=device)
    return [f(x, n, k) for n, k in ((3, 0.5), (4, 0.25), (9, -2.0), (1, 3.0))]


@program("keyword arguments and defaults")
def _keywords(compiled: Compile, device: str) -> Any:
    f = compiled(lambda x, *rest, scale=2.0, **more: x * scale + sum(rest) + sum(more.values()))
    x = r(4, device=device)
    return f(x), f(x, x, scale=3.0), f(x, x, x, other=x)


@program("several sizes, automatic")
def _sizes(compiled: Compile, device: str) -> Any:
    f, out = compiled(lambda x: (x @ x.T).softmax(-1).mean(0)), []
    for n in (3, 5, 8, 2, 17):
        x = r(n, 6, device=device, requires_grad=True)
        out += [differentiated(f, [x])]
    return out


@program("several sizes, dynamic=True, a module")
def _sizes_module(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    f, out = compiled(m, dynamic=True), []
    for n in (3, 5, 1, 2, 17):
        out += [f(r(n, 8, device=device)), f(r(n, 2, 8, device=device))]
    sum(t.sum() for t in out).backward()
    return out, gradients(m)


@program("sizes that are results")
def _size_results(compiled: Compile, device: str) -> Any:
    f = compiled(lambda x: (x.shape[0] * 2, x.new_zeros(x.shape[0], 2) + x.shape[1], x.numel() // 3), dynamic=True)
    return [f(r(n, 3, device=device)) for n in (2, 5, 7)]


# ---- transforms, autograd
simple("grad inside", lambda x: torch.func.grad(lambda y: (y.sin() * y).sum())(x), (5,), grad=False)
simple("grad of grad inside", lambda x: torch.func.grad(lambda y: torch.func.grad(lambda t: t.sin().prod())(y).sum())(x), (4,), grad=False)
simple("vmap", lambda x, y: torch.vmap(lambda a, b: a @ b)(x, y), (4, 3, 5), (4, 5))
simple("vmap of vmap", lambda x, y: torch.vmap(lambda a: torch.vmap(lambda b: (a * b).sum())(y))(x), (4, 3), (5, 3))
simple("jvp", lambda x, t: torch.func.jvp(lambda y: y.tanh() * y, (x,), (t,)), (4,), (4,), grad=False)
simple("vjp", lambda x, t: torch.func.vjp(lambda y: y.tanh() * y, x)[1](t)[0], (4,), (4,), grad=False)
simple("jacrev", lambda x: torch.func.jacrev(lambda y: y.sin() * y.sum())(x), (4,), grad=False)
simple("jacfwd", lambda x: torch.func.jacfwd(lambda y: y.sin() * y.sum())(x), (4,), grad=False)
simple("hessian", lambda x: torch.func.hessian(lambda y: (y.sin() * y).sum() ** 2)(x), (3,), grad=False)
simple("gradients per sample", lambda w, x: torch.vmap(torch.func.grad(lambda w, x: (w @ x).tanh().sum()), (None, 0))(w, x), (3, 4), (6, 4),
       grad=False)
simple("autograd.grad inside", lambda x: torch.autograd.grad((x.sin() * x).sum(), x)[0], lambda d: r(5, device=d, requires_grad=True),
       grad=False)
simple("checkpoint", lambda x, w: checkpoint(lambda a: (a @ w).gelu() if hasattr(a, "gelu") else F.gelu(a @ w), x, use_reentrant=False),
       (4, 5), (5, 5))
simple("detach, no_grad, enable_grad", lambda x: _partly(x), (4,))
simple("in place on a view", lambda x: _view_written(x), (4, 4))
simple("in place on a chain of views", lambda x: _views_written(x), (4, 6))


def _partly(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
    return y, z, x.detach() + 1, (x * x).detach() * x


def _view_written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[1:3].mul_(2)
    y.t()[0].add_(y[0])
    return y.sin()


def _views_written(x: torch.Tensor) -> Any:
    y = x * 1
    a, b = y[:, :3], y[:, 3:]
    a[:, ::2].add_(1)
    b.copy_(a.flip(1))
    return y, a, b


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.k = k
        return x.exp() * k

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g * x.exp() * ctx.k * 0.5, None


class Both(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
        out = x.exp()
        ctx.save_for_backward(out, y)
        ctx.mark_non_differentiable(mask := x > 0)
        return out * y, mask

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, _: Any) -> Any:
        out, y = ctx.saved_tensors
        return g * out * y * 3, g * out


simple("autograd.Function", lambda x: Doubled.apply(x, 1.5) + x, (4, 3))
simple("autograd.Function of two", lambda x, y: Both.apply(x, y), (4, 3), (4, 3))


@torch.library.custom_op("tw_tests::halved", mutates_args=())
def halved(x: torch.Tensor, k: int) -> torch.Tensor:
    return x.div(2) * k


@halved.register_fake
def _(x: torch.Tensor, k: int) -> torch.Tensor:
    return torch.empty_like(x)


halved.register_autograd(lambda ctx, g: (g / 2 * ctx.k, None), setup_context=lambda ctx, inputs, output: setattr(ctx, "k", inputs[1]))


@torch.library.custom_op("tw_tests::bumped", mutates_args={"x"})
def bumped(x: torch.Tensor) -> None:
    x.add_(1)


@bumped.register_fake
def _(x: torch.Tensor) -> None:
    return None


simple("custom op", lambda x: halved(x.sin(), 3).cos(), (4, 3), splits=1)
simple("custom op that writes", lambda x: (y := x.sin(), bumped(y), y * 2)[2], (4, 3), grad=False, splits=1)


@program("hooks on tensors and modules")
def _hooks(compiled: Compile, device: str) -> Any:
    m, seen = seeded(Small, device), []
    m.first.register_forward_hook(lambda mod, args, out: out * 1.25)
    m.last.register_forward_pre_hook(lambda mod, args: (args[0] - 0.5,))
    m.norm.weight.register_hook(lambda g: g * 2)
    x = r(4, 8, device=device, requires_grad=True)
    x.register_hook(lambda g: seen.append(g.clone()))
    compiled(m)(x).sum().backward()
    return gradients(m), x.grad, seen


@program("full backward hook")
def _backward_hook(compiled: Compile, device: str) -> Any:
    m, seen = seeded(Small, device), []
    m.last.register_full_backward_hook(lambda mod, gi, go: seen.append(go[0].clone()))
    compiled(m)(r(4, 8, device=device)).sum().backward()
    return gradients(m), seen


@program("functional_call")
def _functional(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    p = {k: v.detach().clone() * 0.5 for k, v in m.state_dict().items()}
    f = compiled(lambda p, x: torch.func.functional_call(m, p, (x,)))
    return f(p, r(4, 8, device=device))


@program("grad of functional_call")
def _functional_grad(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    p = {k: v.detach().clone() for k, v in m.named_parameters()}
    f = compiled(torch.func.grad(lambda p, x: torch.func.functional_call(m, p, (x,)).square().mean()))
    return f(p, r(4, 8, device=device))


# ---- modules: copies, states, exports, compiles inside compiles
@program("deepcopy of a compiled module")
def _copied(compiled: Compile, device: str) -> Any:
    m = compiled(seeded(Small, device))
    x = r(4, 8, device=device)
    first, other = m(x), copy.deepcopy(m)
    with torch.no_grad():
        other.first.weight.mul_(2)
    return first, other(x), m(x)


@program("state_dict of a compiled module")
def _state(compiled: Compile, device: str) -> Any:
    m, other = compiled(seeded(Small, device)), Small().to(device)
    x = r(4, 8, device=device)
    other.load_state_dict({k.removeprefix("_orig_mod."): v for k, v in m.state_dict().items()})
    before = m(x)
    m.load_state_dict({k: v * 0.5 for k, v in m.state_dict().items()})
    return before, other(x), m(x)


@program("export of a compiled module")
def _exported(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    c: Any
    c, x = compiled(m), r(4, 8, device=device)
    return c(x), torch.export.export(getattr(c, "_orig_mod", c), (x,)).module()(x)


@program("module.compile()")
def _in_place(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    if compiled(len) is not len:
        m.compile(backend="tilewright")
    return m(r(4, 8, device=device))


@program("nested compile")
def _nested(compiled: Compile, device: str) -> Any:
    inner = compiled(lambda x: x.sin() * 2)
    return compiled(lambda x: inner(x + 1).cos())(r(4, device=device))


@program("parts of a model compiled")
def _parts(compiled: Compile, device: str) -> Any:
    m = seeded(lambda: nn.Sequential(*(Small() for _ in range(3))), device)
    for i in range(3):
        m[i] = compiled(m[i], fullgraph=True)
    m(r(4, 8, device=device)).square().mean().backward()
    return gradients(m)


@program("disable inside")
def _disabled(compiled: Compile, device: str) -> Any:
    @torch.compiler.disable
    def away(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    x = r(4, device=device, requires_grad=True)
    return differentiated(compiled(lambda x: away(x.sin()) * 2), [x])


@program("allow_in_graph")
def _allowed(compiled: Compile, device: str) -> Any:
    return compiled(lambda x: _plain(x * 2) + 1)(r(4, device=device))


@torch.compiler.allow_in_graph
def _plain(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 3


@program("train and eval")
def _modes(compiled: Compile, device: str) -> Any:
    m = seeded(lambda: nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.0)), device)
    c, x, out = compiled(m), r(6, 8, device=device), []
    for mode in (True, False, True, False):
        m.train(mode)
        out += [c(x), *(b.clone() for b in m.buffers())]
    return out


@program("frozen parameters and tied weights")
def _tied(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    m.last.weight = nn.Parameter(m.first.weight.detach().t().contiguous())
    m.first.weight.requires_grad_(False)
    m.first.bias = m.norm.bias
    compiled(m)(r(4, 8, device=device)).square().mean().backward()
    return gradients(m)


@program("parametrizations")
def _parametrized(compiled: Compile, device: str) -> Any:
    m = seeded(lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Tanh(),
                                     nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4))), device).eval()
    compiled(m)(r(4, 8, device=device)).square().mean().backward()
    return gradients(m)


@program("module lists and dicts")
def _lists(compiled: Compile, device: str) -> Any:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
            self.named = nn.ModuleDict({"a": nn.ReLU(), "b": nn.Tanh()})
            self.weights = nn.ParameterList(nn.Parameter(r(8)) for _ in range(3))

        def forward(self, x: torch.Tensor, key: str) -> torch.Tensor:
            for s, w in zip(self.steps, self.weights, strict=True):
                x = self.named[key](s(x)) * w
            return x

    m = seeded(Many, device)
    f, x = compiled(m), r(4, 8, device=device)
    out = [f(x, "a"), f(x, "b")]
    sum(t.sum() for t in out).backward()
    return out, gradients(m)


@program("a counter in a module")
def _counter(compiled: Compile, device: str) -> Any:
    class Counts(nn.Module):
        steps: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            self.calls += 1
            return x * self.steps + self.calls

    m = Counts().to(device)
    f, x = compiled(m), r(3, device=device)
    return [f(x), f(x), f(x), m.steps, m.calls]


# ---- optimizers, mixed precision
def trained(compiled: Compile, device: str, make: Callable[[Any], Any], steps: int = 4, schedule: Any = None) -> Any:
    m = seeded(Small, device)
    opt, f = make(m.parameters()), compiled(m)
    step, losses = compiled(opt.step), []
    scheduler = schedule(opt) if schedule else None
    torch.manual_seed(3)
    for _ in range(steps):
        loss = f(r(4, 8, device=device)).square().mean()
        loss.backward()
        step()
        opt.zero_grad()
        losses.append(loss)
        if scheduler:
            scheduler.step()
    return losses, list(m.parameters())


for _name, _make in {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "Adam amsgrad, capturable": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "foreach=False": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False),
}.items():
    PROGRAMS[f"optimizer {_name}"] = functools.partial(trained, make=_make)
PROGRAMS["optimizer with a scheduler"] = functools.partial(trained, make=lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)),
    schedule=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5))


@program("clipped and accumulated gradients")
def _clipped(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    f = compiled(m)
    for _ in range(3):
        f(r(4, 8, device=device)).square().mean().backward()
    norm = compiled(torch.nn.utils.clip_grad_norm_)(list(m.parameters()), 0.1)
    return norm, gradients(m)


@program("autocast outside")
def _autocast(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    f = compiled(m)
    with torch.autocast(device, torch.bfloat16):
        out = f(r(4, 8, device=device))
    out.float().square().mean().backward()
    return [None if t is None else t.to(torch.bfloat16) for t in (out, *gradients(m))]


@program("autocast inside, partly off")
def _autocast_inside(compiled: Compile, device: str) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with torch.autocast(device, torch.bfloat16):
            y = x @ w
            with torch.autocast(device, enabled=False):
                z = y.float() @ w
        return y, z

    return tuple(t.to(torch.bfloat16) for t in compiled(f)(r(4, 8, device=device), r(8, 8, device=device)))


@program("whole training step compiled")
def _whole_step(compiled: Compile, device: str) -> Any:
    m = seeded(Small, device)
    opt = torch.optim.SGD(m.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> torch.Tensor:
        opt.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        opt.step()
        return loss

    f = compiled(step)
    torch.manual_seed(5)
    return [f(r(4, 8, device=device)) for _ in range(3)], list(m.parameters())
