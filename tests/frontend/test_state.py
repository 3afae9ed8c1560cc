"""Modules and functions that write to buffers or to their arguments, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import InputError, ShapeError, UnsupportedError

rng = fresh_rng()
torch_batch_norm: Any = torch.nn.functional.batch_norm


class Net(torch.nn.Module):
    """Batch norm, instance norm with running statistics, and a counter that is returned too."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Any
        self.conv, self.norm = torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4, momentum=0.3)
        self.own = torch.nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("offset", torch.randn(4, 1, 1))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.own(torch.tanh(self.norm(self.conv(x)))) + self.offset, self.calls  # smooth: f32 sums may lie on either side of a kink


def test_a_module_in_training_gives_its_new_buffers() -> None:
    module = Net().train()
    x = rng.normal(size=(5, 3, 7, 6)).astype(np.float32)
    apply: Any
    apply, params = tw.from_torch(module, (torch.from_numpy(x),))
    assert set(apply.buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "own.running_mean",
                                  "own.running_var", "calls"}
    weight = rng.normal(size=(5, 4, 5, 4)).astype(np.float32)

    def loss(params: Any, buffers: Any, x: Any) -> Any:
        (out, count), new = apply(params, x, buffers=buffers)
        return (out * weight).sum(), (new, count)

    buffers: Any = apply.buffers
    step = tw.jit(lambda p, b, x: (tw.grad(lambda p: loss(p, b, x)[0])(p), loss(p, b, x)))
    for k in range(2):
        grads, (value, (buffers, count)) = step(params, buffers, x)
        module.zero_grad()
        theirs, _ = module(torch.from_numpy(x))
        theirs = (theirs * torch.from_numpy(weight)).sum()
        theirs.backward()
        np.testing.assert_allclose(value, theirs.item(), rtol=1e-3, atol=1e-2)
        assert count == k + 1
        for name, ours in buffers.items():
            np.testing.assert_allclose(ours, dict(module.named_buffers())[name].numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
        for name, p in module.named_parameters():
            assert p.grad is not None
            np.testing.assert_allclose(grads[name], p.grad.numpy(), rtol=2e-3, atol=2e-3, err_msg=name)


def test_state_is_asked_for_and_refused() -> None:
    apply: Any
    module, x = torch.nn.BatchNorm1d(3), torch.randn(4, 3)
    apply, params = tw.from_torch(module.train(), (x,))
    with pytest.raises(InputError, match="the module updates its buffers running_mean running_var num_batches_tracked"):
        apply(params, x.numpy())
    with pytest.raises(InputError, match="the buffers lack 'running_var'"):
        apply(params, x.numpy(), buffers={"running_mean": np.zeros(3, np.float32)})
    with pytest.raises(UnsupportedError, match=r"writes to running_mean, .* in place, which is not supported here; call module.eval\(\)"):
        tw.compile(module, (x,))
    apply, params = tw.from_torch(module.eval(), (x,))
    assert not apply.buffers
    with pytest.raises(InputError, match="the module updates no buffers in its mode"):
        apply(params, x.numpy(), buffers={})


@pytest.mark.parametrize("arrays", ["torch", "numpy"])
def test_a_compiled_function_writes_to_its_arguments(arrays: str, tmp_path: Any) -> None:
    def step(x: Any, mean: Any, var: Any) -> Any:
        return torch_batch_norm(x, mean, var, training=True, momentum=0.2) + mean[:, None]

    x, mean, var = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3) + 0.5
    session = tw.compile(step, (x, mean, var))
    session.save(tmp_path / "step.tw")
    for run in (session, tw.load(tmp_path / "step.tw")):
        given = [t.clone() if arrays == "torch" else t.numpy().copy() for t in (x, mean, var)]
        theirs = [t.clone() for t in (x, mean, var)]
        for _ in range(2):
            torch.testing.assert_close(torch.as_tensor(run(*given)), step(*theirs), rtol=1e-4, atol=1e-5)
            for a, b in zip(given, theirs, strict=True):
                torch.testing.assert_close(torch.as_tensor(a), b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape,dtype", [((6, 3), "float32"), ((2, 3, 5, 4), "float64"), ((4, 3, 7), "float16")])
def test_batch_norm_in_training(shape: tuple[int, ...], dtype: str) -> None:
    near = 2e-2 if dtype == "float16" else 1e-4
    x = rng.normal(size=shape).astype(dtype)
    wide = np.float32 if dtype == "float16" else x.dtype
    mean, var, weight, bias = (rng.random(3).astype(wide) + 0.5 for _ in range(4))
    cotangent = rng.normal(size=shape).astype(dtype)
    tensors = [torch.from_numpy(v.astype(np.float64)).requires_grad_() for v in (x, weight, bias)]
    running = [torch.from_numpy(v.astype(np.float64)) for v in (mean, var)]
    want = torch_batch_norm(tensors[0], *running, *tensors[1:], training=True, momentum=0.25, eps=1e-3)
    want.backward(torch.from_numpy(cotangent.astype(np.float64)))

    def f(x: Any, weight: Any, bias: Any) -> Any:
        return tw.batch_norm(x, mean, var, weight, bias, training=True, momentum=0.25, eps=1e-3)

    y, new_mean, new_var = tw.jit(f)(x, weight, bias)
    assert y.dtype == x.dtype and new_mean.dtype == wide
    for ours, theirs in zip((y, new_mean, new_var), (want, *running), strict=True):
        np.testing.assert_allclose(ours.astype(np.float64), theirs.detach().numpy(), rtol=near, atol=near)
    grads = tw.grad(lambda *v: (tw.astype(f(*v)[0], "f64") * cotangent.astype(np.float64)).sum(), argnums=(0, 1, 2))(x, weight, bias)
    for ours, t in zip(grads, tensors, strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(ours.astype(np.float64), t.grad.numpy(), rtol=4 * near, atol=4 * near)
    still = tw.batch_norm(x, mean, var, weight, bias)
    theirs = torch_batch_norm(*(torch.from_numpy(v.astype(np.float64)) for v in (x, mean, var, weight, bias)))
    np.testing.assert_allclose(still.astype(np.float64), theirs.numpy(), rtol=near, atol=near)


def test_batch_norm_says_what_is_wrong() -> None:
    with pytest.raises(ShapeError, match=r"training needs more than one value a channel, got x=f32\[1,3\] \(test_state.py"):
        tw.batch_norm(np.zeros((1, 3), np.float32), np.zeros(3), np.ones(3), training=True)
    with pytest.raises(ShapeError, match=r"mean must have shape \[3\]"):
        tw.batch_norm(np.zeros((2, 3), np.float32), np.zeros(4), np.ones(3))
    with pytest.raises(ShapeError, match="weight and bias go together"):
        tw.batch_norm(np.zeros((2, 3), np.float32), np.zeros(3), np.ones(3), np.ones(3))
