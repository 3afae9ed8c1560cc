"""Training steps against PyTorch: optimizers, modules as functions, donated parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as tf

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import InputError
from tilewright.core.pytree import flatten

rng = fresh_rng()


def tree() -> dict[str, Any]:
    return {"w": rng.normal(size=(5, 7)).astype(np.float32), "b": rng.normal(size=7).astype(np.float32)}


def by_torch(make: Callable[[Any], Any], params: dict[str, Any], grads: list[dict[str, Any]]) -> dict[str, Any]:
    tensors = {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in params.items()}
    opt = make(tensors.values())
    for g in grads:
        for k, t in tensors.items():
            t.grad = torch.from_numpy(g[k].copy())
        opt.step()
    return {k: t.detach().numpy() for k, t in tensors.items()}


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "sgd": (lambda: tw.optim.sgd(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": (lambda: tw.optim.sgd(0.1, momentum=0.9, weight_decay=0.01),
                 lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "nesterov": (lambda: tw.optim.sgd(0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    "adam": (lambda: tw.optim.adam(0.01, weight_decay=0.1), lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
    "adamw": (lambda: tw.optim.adamw(0.01), lambda p: torch.optim.AdamW(p, lr=0.01)),
}


@pytest.mark.parametrize("name", CASES)
def test_optimizers_are_pytorchs(name: str) -> None:
    ours, theirs = CASES[name]
    params, grads = tree(), [tree() for _ in range(4)]
    want = by_torch(theirs, params, grads)
    opt = ours()
    step = tw.jit(opt.update, donate=(0, 2))
    got, state = {k: v.copy() for k, v in params.items()}, opt.init(params)
    for g in grads:
        got, state = step(got, g, state)
    for k in params:
        np.testing.assert_allclose(got[k], want[k], rtol=2e-5, atol=2e-6)
    assert state["step"] == 4


def test_update_runs_on_plain_arrays_and_gives_the_same() -> None:
    opt = tw.optim.adamw(0.01)
    params, g = tree(), tree()
    state = opt.init(params)
    eager, _ = opt.update(params, g, state)
    jitted, _ = tw.jit(opt.update)(params, g, state)
    for k in params:
        np.testing.assert_array_equal(eager[k], jitted[k])


def quadratic(p: Any) -> Any:
    return sum((v * v).sum() for v in p.values())


@pytest.mark.parametrize("make", [lambda: tw.optim.lion(0.03), lambda: tw.optim.lamb(0.05), lambda: tw.optim.adafactor(0.1)])
def test_the_others_go_downhill(make: Callable[[], Any]) -> None:
    opt = make()
    params = tree()
    state, first = opt.init(params), sum(float((v * v).sum()) for v in params.values())

    @tw.jit
    def step(params: Any, state: Any) -> Any:
        loss, grads = tw.value_and_grad(quadratic)(params)
        return *opt.update(params, grads, state), loss

    for _ in range(40):
        params, state, loss = step(params, state)
    assert float(loss) < 0.5 * first


def lion_by_numpy(p: Any, grads: list[Any], lr: float) -> Any:
    m = np.zeros_like(p)
    for g in grads:
        p = p - lr * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g
    return p


def test_lion_by_hand() -> None:
    p, grads = rng.normal(size=9), [rng.normal(size=9) for _ in range(3)]
    opt = tw.optim.lion(0.01)
    got, state = {"p": p}, opt.init({"p": p})
    for g in grads:
        got, state = opt.update(got, {"p": g}, state)
    np.testing.assert_allclose(got["p"], lion_by_numpy(p, grads, 0.01), rtol=1e-6)


def test_clipping_is_pytorchs() -> None:
    grads = tree()
    leaves = [torch.zeros(v.shape, requires_grad=True) for v in grads.values()]
    for t, v in zip(leaves, grads.values(), strict=True):
        t.grad = torch.from_numpy(v.copy())
    norm = torch.nn.utils.clip_grad_norm_(leaves, 1.5)
    np.testing.assert_allclose(tw.optim.global_norm(grads), norm.numpy(), rtol=1e-5)
    for t, v in zip(leaves, tw.optim.clip_by_global_norm(grads, 1.5).values(), strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(v, t.grad.numpy(), rtol=1e-5)
    assert np.abs(tw.optim.clip_by_value(grads, 0.25)["w"]).max() <= 0.25


def test_schedules_are_pytorchs() -> None:
    def rates(make: Callable[[Any], Any], steps: int = 12) -> list[float]:
        opt = torch.optim.SGD([torch.zeros(1)], lr=0.1)
        schedule, out = make(opt), []
        for _ in range(steps):
            out.append(opt.param_groups[0]["lr"])
            opt.step()
            schedule.step()
        return out

    s = torch.optim.lr_scheduler
    pairs = [(tw.optim.cosine(0.1, 10), lambda o: s.CosineAnnealingLR(o, 10), 10),
             (tw.optim.exponential(0.1, 0.8, 1), lambda o: s.ExponentialLR(o, 0.8), 12),
             (tw.optim.linear(0.1, 0.01, 8), lambda o: s.LinearLR(o, 1.0, 0.1, 8), 12),
             (tw.optim.piecewise(0.1, {3: 0.5, 7: 0.1}),
              lambda o: s.LambdaLR(o, lambda k: (0.5 if k >= 3 else 1) * (0.1 if k >= 7 else 1)), 12)]
    for ours, theirs, steps in pairs:
        run = tw.jit(lambda step, ours=ours: tw.astype(ours(step), "f32"))
        got = [float(run(np.int32(k))) for k in range(steps)]
        np.testing.assert_allclose(got, rates(theirs, steps), rtol=1e-4, atol=1e-7)
    warm = tw.jit(lambda step: tw.optim.warmup(0.1, 4)(step))
    assert [round(float(warm(np.int32(k))), 5) for k in range(6)] == [0.02, 0.04, 0.06, 0.08, 0.1, 0.1]


class Block(nn.Module):
    def __init__(self, d: int = 12, h: int = 3) -> None:
        super().__init__()
        self.h, self.norm, self.qkv, self.o = h, nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.embed = nn.Embedding(11, d)
        self.out = nn.Linear(d, 11, bias=False)
        self.out.weight = self.embed.weight  # tied
        self.register_buffer("scale", torch.full((d,), 0.5))

    def forward(self, ids: Any) -> Any:
        x = self.embed(ids) * self.scale
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        x = x + self.o(tf.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return self.out(tf.gelu(x))


def test_a_module_trains_as_in_pytorch() -> None:
    module = Block()
    theirs = copy.deepcopy(module)
    ids, labels = torch.randint(0, 11, (2, 7)), torch.randint(0, 11, (2, 7))
    apply, params = tw.from_torch(module, (ids,))
    assert sorted(params) == sorted(k for k, _ in module.named_parameters())
    np.testing.assert_allclose(apply(params, ids.numpy()), module(ids).detach().numpy(), rtol=1e-4, atol=1e-5)
    opt = tw.optim.sgd(0.1, momentum=0.9)  # Adam would blow up the rounding of gradients that are zero (the bias of keys)

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        return tw.softmax_cross_entropy(apply(p, x), y).mean()

    @tw.jit(donate=(0, 1))
    def step(p: Any, s: Any, x: Any, y: Any) -> Any:
        loss, grads = tw.value_and_grad(loss_of)(p, x, y)
        return *opt.update(p, grads, s), loss

    state = opt.init(params)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    for _ in range(4):
        reference.zero_grad()
        want = tf.cross_entropy(theirs(ids).reshape(-1, 11), labels.reshape(-1))
        want.backward()
        reference.step()
        params, state, loss = step(params, state, ids.numpy(), labels.numpy())
        np.testing.assert_allclose(loss, want.item(), rtol=1e-4)
    for k, p in theirs.named_parameters():
        np.testing.assert_allclose(params[k], p.detach().numpy(), rtol=2e-3, atol=2e-4)


def test_another_batch_size_is_exported_again() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    apply, params = tw.from_torch(module, (torch.zeros(2, 3),))
    for n in (1, 2, 5):
        x = torch.randn(n, 3)
        np.testing.assert_allclose(apply(params, x.numpy()), module(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_bad_calls() -> None:
    with pytest.raises(InputError, match=r"from_torch: needs a torch.nn.Module, got a int"):
        tw.from_torch(3, ())
    apply, params = tw.from_torch(nn.Linear(3, 2), (torch.zeros(1, 3),))
    with pytest.raises(InputError, match="from_torch: the parameters lack 'bias'"):
        apply({"weight": params["weight"]}, np.zeros((1, 3), np.float32))
    with pytest.raises(InputError, match=r"from_torch: weight must be f32\[2,3\], got f32\[3,3\]"):
        apply({**params, "weight": np.zeros((3, 3), np.float32)}, np.zeros((1, 3), np.float32))
    with pytest.raises(InputError, match="nesterov needs a momentum"):
        tw.optim.sgd(0.1, nesterov=True)
    with pytest.raises(InputError, match="trees must have one structure"):
        tw.optim.sgd(0.1).update({"a": np.zeros(2, np.float32)}, {"b": np.zeros(2, np.float32)}, {"step": np.int32(0)})


@pytest.mark.parametrize("make", [lambda rate: tw.optim.sgd(rate, momentum=0.9), tw.optim.adamw, tw.optim.lion, tw.optim.lamb,
                                  tw.optim.adafactor])
def test_an_update_keeps_every_dtype(make: Callable[[Any], Any]) -> None:
    """Gradients in f64, or a schedule that gives f64: parameters and state stay what they are, so the next step is the same program."""
    params = {"w": tree()["w"], "h": rng.normal(size=4).astype(np.float16)}
    grads = {k: rng.normal(size=v.shape) for k, v in params.items()}
    opt = make(lambda step: np.float64(1e-3))
    state = opt.init(params)
    new, after = opt.update(params, grads, state)
    for a, b in zip(flatten((new, after))[0], flatten((params, state))[0], strict=True):
        assert a.dtype == np.asarray(b).dtype
