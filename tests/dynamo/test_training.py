"""Training through the backend: losses of many steps, optimizers, precision, checkpoints, hooks."""
from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import tilewright as tw
from tilewright.dynamo.backend import watching

from .check import check


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.n, self.o = nn.Embedding(17, 16), nn.LayerNorm(16), nn.Linear(16, 17)
        self.qkv, self.up, self.down = nn.Linear(16, 48), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.e(ids)
        q, k, v = self.qkv(self.n(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        out: torch.Tensor = self.o(x + self.down(F.gelu(self.up(x))))
        return out


def picture() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=4),
                         nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def losses(call: Any, module: nn.Module, batches: list[Any], classes: int, rate: float) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), rate, momentum=0.9)
    found = []
    for x, y in batches:
        loss = F.cross_entropy(call(x).reshape(-1, classes), y.reshape(-1))
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("name", ["words", pytest.param("pictures", marks=pytest.mark.slow)])
def test_losses_over_a_hundred_steps(name: str) -> None:
    """The same numbers as eager PyTorch's within the rounding of f32, which grows from step to step."""
    if name == "words":
        module, classes = Words(), 17
        ids = torch.randint(17, (100, 2, 9))
        batches = [(i[:, :-1], i[:, 1:]) for i in ids]
    else:
        module, classes = picture(), 5  # type: ignore[assignment]
        batches = [(torch.randn(6, 3, 8, 8), torch.randint(5, (6,))) for _ in range(100)]
    other = copy.deepcopy(module)
    with watching() as found:
        ours = losses(torch.compile(module, backend="tilewright", options={"threads": 1}), module, batches, classes, 0.02)
    assert len(found) == 2 and sum(c.splits for c in found) == 0
    theirs = losses(other, other, batches, classes, 0.02)
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(theirs), rtol=2e-4, atol=2e-4)
    assert theirs[0] != theirs[-1]
    for a, b in zip(module.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


OPTIMIZERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}), (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True, "foreach": False}), (torch.optim.RMSprop, {"lr": 0.01}),
]
OTHERS: list[tuple[Any, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "maximize": True}), (torch.optim.Adadelta, {}),
    (torch.optim.Adagrad, {"lr_decay": 0.1}), (torch.optim.Adamax, {}), (torch.optim.ASGD, {}), (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {"lr": 0.01}), (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}), (torch.optim.Rprop, {}),
    (torch.optim.AdamW, {"lr": torch.tensor(0.01)}),
]


@pytest.mark.parametrize(("kind", "how"), [*OPTIMIZERS, *(pytest.param(*o, marks=pytest.mark.slow) for o in OTHERS)])
def test_the_step_of_an_optimizer(kind: Any, how: dict[str, Any]) -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    other = copy.deepcopy(module)
    mine, theirs = kind(module.parameters(), **how), kind(other.parameters(), **how)
    step = torch.compile(mine.step, backend="tilewright")
    places = [p.data_ptr() for p in module.parameters()]
    with watching() as found:
        for _ in range(6):
            x = torch.randn(3, 4)
            for m, o, go in ((module, mine, step), (other, theirs, theirs.step)):
                m(x).square().sum().backward()
                go()
                o.zero_grad()
    assert found and sum(c.splits for c in found) == 0
    assert places == [p.data_ptr() for p in module.parameters()]
    for a, b in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("rate", "graphs"), [(0.1, 2), (torch.tensor(0.1), 1)])
def test_schedules_are_seen(rate: Any, graphs: int) -> None:
    """Two groups of parameters; the state of the step is the optimizer's own."""
    layers = [nn.Linear(4, 4) for _ in range(2)]
    steps, rates = [], []
    with watching() as found:
        for mine in (True, False):
            module = copy.deepcopy(nn.Sequential(*layers))
            groups = [{"params": module[0].parameters()}, {"params": module[1].parameters(), "weight_decay": 0.3}]
            optimizer = torch.optim.AdamW(groups, lr=copy.deepcopy(rate))  # type: ignore[arg-type]
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            step = torch.compile(optimizer.step, backend="tilewright") if mine else optimizer.step
            for k in range(6):
                optimizer.zero_grad()
                module(torch.full((3, 4), 0.1 * k)).square().sum().backward()
                step()
                schedule.step()
            steps.append([*module.parameters(), *(optimizer.state[p]["exp_avg_sq"] for p in module.parameters())])
            rates.append(float(optimizer.param_groups[1]["lr"]))
    assert len(found) == graphs and rates[0] == pytest.approx(rates[1])
    for a, b in zip(*steps, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_from_torch() -> None:
    module, x = nn.Linear(4, 3), torch.randn(5, 4)
    other = copy.deepcopy(module)
    mine = tw.optim.from_torch(torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9))
    theirs = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    with watching() as found:
        for _ in range(3):
            for m, o in ((module, mine), (other, theirs)):
                o.zero_grad()
                loss = o.step(lambda m=m: (lambda y: (y.backward(), y)[1])(m(x).square().mean()))
                assert loss.requires_grad
    assert found and sum(c.splits for c in found) == 0
    assert mine.param_groups is mine.optimizer.param_groups
    torch.testing.assert_close(module.weight, other.weight)


def test_from_torch_errors() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2, 2))]
    with pytest.raises(tw.InputError, match=r"from_torch: needs a torch\.optim\.Optimizer, got a Linear"):
        tw.optim.from_torch(nn.Linear(2, 2))
    with pytest.raises(tw.InputError, match="from_torch: LBFGS calls its closure several times a step; use it as it is"):
        tw.optim.from_torch(torch.optim.LBFGS(weights))
    with pytest.raises(tw.InputError, match="from_torch: a fused optimizer is one kernel of PyTorch's already"):
        tw.optim.from_torch(torch.optim.Adam(weights, fused=True))


def test_weights_that_change_are_seen_without_a_compile() -> None:
    layer = nn.Linear(4, 4)
    compiled, x = torch.compile(layer, backend="tilewright"), torch.randn(2, 4)
    with torch.no_grad(), watching() as found:
        for change in (lambda: None, lambda: layer.weight.mul_(2), lambda: setattr(layer.weight, "data", torch.randn(4, 4)),
                       lambda: layer.load_state_dict({k: torch.randn_like(v) for k, v in layer.state_dict().items()})):
            change()
            torch.testing.assert_close(compiled(x), layer(x))
    assert len(found) == 1


def test_frozen_weights() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).eval()
    module[4].weight = nn.Parameter(module[4].weight.detach())  # type: ignore[operator]
    compiled, x = torch.compile(module, backend="tilewright", options={"freeze": True}), torch.randn(2, 3, 8, 8)
    with torch.no_grad(), watching() as found:
        want = module(x)
        torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
        module[4].weight.add_(1)
        torch.testing.assert_close(compiled(x), want, rtol=1e-4, atol=1e-5)
    assert [len(c.steps[0].session.interface.inputs) for c in found] == [1]


def test_frozen_weights_that_are_watched() -> None:
    module, x = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8)), torch.randn(4, 16)
    other = copy.deepcopy(module)
    compiled = torch.compile(module, backend="tilewright", options={"freeze": "watch"})
    optimizer = torch.optim.SGD(module.parameters(), 0.1)

    def same() -> None:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), module(x), rtol=1e-5, atol=1e-5)

    with watching() as found:
        for _ in range(3):
            same()
        assert len(found) == 1
        module(x).square().sum().backward()
        optimizer.step()
        same()
        module.load_state_dict(other.state_dict())
        same()
        module[0].weight.data = torch.randn(32, 16)  # other memory
        for _ in range(3):
            same()
    assert len(found) == 4
    assert [len(c.steps[0].session.interface.inputs) for c in found] == [1] * 4


def test_what_cannot_be_watched_is_refused() -> None:
    with torch.inference_mode():
        module = nn.Linear(3, 3)
        compiled = torch.compile(module, backend="tilewright", options={"freeze": "watch"})
        with pytest.raises(Exception, match="writes PyTorch counts"):
            compiled(torch.randn(2, 3))
    with pytest.raises(Exception, match="option 'freeze' must be True, False or 'watch', got 3"):
        torch.compile(module, backend="tilewright", options={"freeze": 3})(torch.randn(2, 3))


class Tally(nn.Module):
    """Writes a buffer, a parameter, and memory that two buffers share."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(4, 4), nn.Parameter(torch.ones(()))
        self.count: torch.Tensor
        self.rows: torch.Tensor
        self.last: torch.Tensor
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("rows", torch.zeros(2, 8, 4))
        self.register_buffer("last", self.rows[1])

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.factor.mul_(0.5)
        self.rows[1].index_copy_(0, at, self.layer(x))
        return self.layer(x) * self.count * self.factor + self.last.sum(0)


def test_what_a_frozen_graph_writes_is_no_constant() -> None:
    norms = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    for module in (Tally(), norms):
        own = copy.deepcopy(module)
        if isinstance(own, Tally):
            own.last = own.rows[1]
        compiled = torch.compile(module, backend="tilewright", options={"freeze": True})
        with torch.no_grad(), watching() as found:
            for n in (3, 3, 5, 7):  # the third call is compiled for a varying size
                args = (torch.randn(n, 4), torch.arange(n))[: 2 if isinstance(own, Tally) else 1]
                torch.testing.assert_close(compiled(*args), own(*args), rtol=1e-4, atol=1e-5)
        for (name, x), y in zip(module.state_dict().items(), own.state_dict().values(), strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5, msg=lambda s, name=name: f"{name}: {s}")
        taken = 5 if isinstance(own, Tally) else 4  # rows and last, count, factor, x, at; x and three buffers of the norm
        assert [len(c.steps[0].session.interface.inputs) for c in found] == [taken, taken]


def test_frozen_layers_that_share_their_code() -> None:
    """A function of a module, and layers behind a break of the graph: more of them than torch compiles for one piece of code."""

    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return torch.relu(y + self.bias)

    layers, x = nn.Sequential(*(Broken(8, 8) for _ in range(10))).eval(), torch.randn(2, 8)
    applied = torch.compile(lambda layer, x: layer(x) * 2, backend="tilewright", options={"freeze": True})
    compiled = torch.compile(layers, backend="tilewright", options={"freeze": True})
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    with torch.no_grad(), watching() as found:
        for layer in (first, second, first):
            torch.testing.assert_close(applied(layer, x), layer(x) * 2)
        assert len(found) == 2
        first.weight = nn.Parameter(torch.randn(8, 8))
        torch.testing.assert_close(applied(first, x), first(x) * 2)
        torch.testing.assert_close(compiled(x), layers(x))
        assert len(found) == 3 + 2 * len(layers)
        torch.testing.assert_close(compiled(x), layers(x))
    assert len(found) == 3 + 2 * len(layers)


@pytest.mark.parametrize("norm", [nn.LayerNorm(32), nn.GroupNorm(4, 32)])
def test_autocast(norm: nn.Module) -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), norm, nn.Linear(32, 4))
    compiled, x = torch.compile(module, backend="tilewright"), torch.randn(5, 16)
    grads = []
    for call in (compiled, module):
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = call(x)
            assert out.dtype is torch.bfloat16
        out.float().square().sum().backward()
        grads.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    for a, b in zip(*grads, strict=True):
        assert a.dtype is torch.float32
        torch.testing.assert_close(a, b, rtol=5e-2, atol=5e-2 * float(b.abs().max()))


def test_scaled_gradients() -> None:
    layer = nn.Linear(4, 4)
    compiled, scaler = torch.compile(layer, backend="tilewright"), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    before = layer.weight.detach().clone()
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = compiled(torch.randn(2, 4)).float().square().sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert torch.isfinite(layer.weight).all() and not torch.equal(layer.weight, before)


def test_checkpoints() -> None:
    from torch.utils.checkpoint import checkpoint

    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    check(lambda x: checkpoint(module, x, use_reentrant=False), torch.randn(4, 8, requires_grad=True), grad=True)


def test_dropout_in_a_checkpoint_is_the_same_twice() -> None:
    from torch.utils.checkpoint import checkpoint

    def f(x: torch.Tensor) -> Any:
        return checkpoint(lambda y: (F.dropout(y, 0.5) + torch.rand_like(y)).square(), x, use_reentrant=False)

    x = torch.ones(1000, requires_grad=True)
    with watching() as found:
        y = torch.compile(f, backend="tilewright", fullgraph=True)(x)
        y.sum().backward()
    assert [c.splits for c in found] == [0, 0]
    assert x.grad is not None
    root = y.detach().sqrt()  # the dropped ones below 1, the others in [2, 3)
    torch.testing.assert_close(x.grad, torch.where(root < 1.5, 0.0, 4 * root))
    assert 350 < int((root > 1.5).sum()) < 650


def test_dropout() -> None:
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="tilewright")
    x = torch.ones(1000, requires_grad=True)
    y = compiled(x)
    y.sum().backward()
    assert torch.equal(y, x.grad) and 350 < int((y > 0).sum()) < 650  # type: ignore[arg-type]
    torch.manual_seed(3)
    a = compiled(x)
    torch.manual_seed(3)
    assert torch.equal(a, compiled(x)) and not torch.equal(a, compiled(x))


def test_hooks_and_accumulation() -> None:
    layer = nn.Linear(4, 4)
    other = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="tilewright")
    for module, call in ((layer, compiled), (other, other)):
        module.weight.register_hook(lambda g: g * 2)
        for seed in range(3):
            x = torch.randn(2, 4, generator=torch.Generator().manual_seed(seed))
            y = call(x)
            y.register_hook(lambda g: g + 1)
            y.sum().backward()
    torch.testing.assert_close(layer.weight.grad, other.weight.grad)


def test_gradients_of_gradients_are_an_error() -> None:
    x = torch.randn(3, requires_grad=True)
    (g,) = torch.autograd.grad(torch.compile(lambda x: (x**3).sum(), backend="tilewright")(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        g.sum().backward()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n, self.b = nn.Conv2d(3, 20, 3, padding=1), nn.BatchNorm2d(20), nn.Conv2d(20, 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(F.max_pool2d(torch.relu(self.n(self.a(x))), 2)).mean((2, 3))


@pytest.mark.parametrize("split", [False, True])
def test_saved_tensors_lie_as_kernels_want_them(split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is copied to be kept; a backward graph that PyTorch runs in parts gets the strides that it was traced with."""
    from tilewright.dynamo import backend

    if split:
        ours = backend.Compiler._ours
        monkeypatch.setattr(backend.Compiler, "_ours", lambda self, f, nodes: (None, "refused here") if f.graph.name == "backward_graph"
                            and len(nodes) > 2 else ours(self, f, nodes))
    module, x = Blocks(), torch.randn(2, 3, 12, 12, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with backend.watching() as found:
            torch.compile(module, backend="tilewright")(x).square().sum().backward()
    mine = [x.grad, *(p.grad for p in module.parameters())]
    x.grad = None
    module.zero_grad()
    module(x).square().sum().backward()
    for a, b in zip(mine, [x.grad, *(p.grad for p in module.parameters())], strict=True):
        assert b is not None
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()) + 2e-4)
    forward = next(c for c in found if c.kind == "forward")
    assert "memory of its own" not in str(forward.steps[0].session.report())
    assert (next(c for c in found if c.kind == "backward").splits > 0) is split
