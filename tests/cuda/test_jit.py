"""`tw.jit` and the transforms for a GPU: compiled anywhere, run where there is one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ExecutionError, InputError
from tilewright.kernels.cuda import whole
from tilewright.runtime.cuda import driver as cuda_driver

WHY = cuda_driver.available()
on_gpu = pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")
without = pytest.mark.skipif(not WHY, reason="there is a GPU")
X, W = fresh_rng().standard_normal((2, 33, 33)).astype(np.float32)


def loss(x: Any, w: Any) -> Any:
    return tw.tanh(x @ w).sum()


@without
def test_compiles_and_says_what_running_needs() -> None:
    f = tw.jit(tw.grad(loss, argnums=1), target="sm_90a")
    assert "sm_90a" in str(f.lower(X, W).report())
    with pytest.raises(ExecutionError, match="cuda: "):
        f(X, W)


def test_other_targets_are_errors() -> None:
    with pytest.raises(InputError, match="jit: target is 'cpu', 'cuda' or an architecture like 'sm_90a', got 'reference'"):
        tw.jit(loss, target="reference")


@on_gpu
@pytest.mark.parametrize("how", [lambda f: tw.jit(f), lambda f: tw.jit(f, target="cuda"), lambda f: f], ids=["found", "named", "eager"])
def test_derivatives(how: Any) -> None:
    x, w = (torch.tensor(a, device="cuda", requires_grad=True) for a in (X, W))
    value, (dx, dw) = how(tw.value_and_grad(loss, argnums=(0, 1)))(x, w)
    want = torch.tanh(x.double() @ w.double()).sum()
    want.backward()
    assert value.device.type == dx.device.type == "cuda"
    for got, wanted in ((value, want), (dx, x.grad), (dw, w.grad)):
        assert wanted is not None
        torch.testing.assert_close(got.double(), wanted.double(), rtol=2e-4, atol=2e-4)


@on_gpu
def test_arrays_and_numbers_are_copied_and_counted() -> None:
    f = tw.jit(lambda x, w, k: {"y": [x * k + w, "as it was"]})
    x = torch.tensor(X, device="cuda")
    for k in (2.0, 3.0):
        got = f(x, W, k)["y"]
        np.testing.assert_allclose(got[0].cpu().numpy(), X * np.float32(k) + W, rtol=1e-6, atol=1e-6)
        assert got[1] == "as it was"
    assert sorted(f.lower(x, W, 2.0).copies.values()) == [2, 2]
    with pytest.raises(InputError, match="must be on the GPU"):
        f(x, torch.tensor(W), 1.0)
    with pytest.raises(InputError, match="CPU's memory"):
        tw.jit(loss, target="cpu")(x, x)


@on_gpu
def test_a_step_writes_donated_tensors() -> None:
    opt = tw.optim.adamw(1e-2)

    def step(params: Any, state: Any, x: Any) -> Any:
        value, grads = tw.value_and_grad(lambda p: (loss(x, p["w"]) + p["b"].sum()) ** 2)(params)
        return *opt.update(params, grads, state), value

    host = {"w": W.copy(), "b": np.zeros(3, np.float32)}
    host_state = opt.init(host)
    params = {k: torch.tensor(v, device="cuda") for k, v in host.items()}
    state = opt.init(params)
    on_device, on_host = tw.jit(step, donate=(0, 1)), tw.jit(step)
    places = {k: v.data_ptr() for k, v in params.items()}
    for _ in range(3):
        params, state, value = on_device(params, state, torch.tensor(X, device="cuda"))
        host, host_state, wanted = on_host(host, host_state, X)
        np.testing.assert_allclose(value.cpu().numpy(), wanted, rtol=1e-3)
    assert {k: v.data_ptr() for k, v in params.items()} == places
    for k in params:
        np.testing.assert_allclose(params[k].cpu().numpy(), host[k], rtol=1e-3, atol=1e-4)
    both = {"w": params["w"], "b": params["b"]}
    with pytest.raises(InputError, match="is donated, and array"):
        tw.jit(lambda p, q: p["w"] * q, donate=0)(both, params["w"])


def recurrent(w: Any, h: Any, x: Any, **options: Any) -> Any:
    """A scan, a loop that the data ends, and a branch, whose way is the same for every x near this one."""
    last, ys = tw.scan(lambda h, x: ((new := tw.tanh(h @ w + x)), new * h), h, x, **options)
    far = tw.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, tw.tanh(c[1] @ w)), (0, last), max_iterations=5)[1]
    return tw.cond(x.sum() > 0, lambda a: (a * a).sum(), lambda a: tw.exp(a).sum(), far) + ys.sum()


@on_gpu
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"checkpoints": "sqrt"}], ids=str)
@pytest.mark.parametrize(("length", "small"), [(33, True), (1500, True), (1, False), (33, False), (1500, False)],
                         ids=["one kernel", "one long kernel", "one step", "recorded", "walked"])  # fmt: skip
def test_loops_and_branches(length: int, small: bool, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole, "BYTES", whole.BYTES if small else -1)
    rng = fresh_rng()
    host = [(rng.uniform(-1, 1, s) / n).astype(np.float32) for s, n in (((33, 33), 6), ((2, 33), 1), ((length, 2, 33), 1))]
    step = tw.value_and_grad(lambda w, h, x: recurrent(w, h, x, **options), argnums=(0, 1, 2))
    for sign in (1, -1):
        given = [host[0], host[1], sign * abs(host[2])]
        want, wanted = step(*(a.astype(np.float64) for a in given))
        got, grads = tw.jit(step)(*(torch.tensor(a, device="cuda") for a in given))
        assert got.device.type == "cuda"
        np.testing.assert_allclose(got.cpu().numpy(), want, rtol=1e-3, atol=1e-3)
        for a, b in zip(grads, wanted, strict=True):
            np.testing.assert_allclose(a.cpu().numpy(), b, rtol=1e-2, atol=1e-2 * max(1.0, abs(b).max()))


@on_gpu
def test_loops_whose_memory_moves() -> None:
    f = tw.jit(lambda h, x: tw.scan(lambda h, x: (h * 0.5 + x, h), h, x), target="cuda")
    kept = []  # so that every call's tensors are elsewhere
    for _ in range(3):
        x = torch.randn(9, 33, device="cuda")
        last, ys = f(x[0].clone(), x)
        kept.append((x, last, ys))
        h = x[0].double()
        for i in range(9):
            torch.testing.assert_close(ys[i].double(), h, rtol=1e-5, atol=1e-5)
            h = h * 0.5 + x[i].double()
        torch.testing.assert_close(last.double(), h, rtol=1e-5, atol=1e-5)
