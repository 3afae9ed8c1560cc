"""Mixed precision: the scale moves as PyTorch's, bad steps change nothing, and training in 16 bits follows training in 32."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ConfigError
from tilewright.core.pytree import flatten

rng = fresh_rng()


def by_torch(finite: list[bool], initial: float, growth: float, backoff: float, interval: int) -> list[float]:
    scale, tracker = torch.tensor(initial), torch.tensor(0, dtype=torch.int32)
    out = []
    for ok in finite:
        torch._amp_update_scale_(scale, tracker, torch.tensor(0.0 if ok else 1.0), growth, backoff, interval)
        out.append(scale.item())
    return out


def test_the_scale_moves_as_pytorchs() -> None:
    finite = [bool(x) for x in rng.permutation(40) >= 8]  # eight bad steps: the scale stays within our limits, 1 and 2^24
    made = tw.training.LossScale(4096.0, growth=2.0, backoff=0.5, interval=4)
    update, state, got = tw.jit(made.updated), made.init(), []
    for ok in finite:
        state = update(state, np.bool_(ok))
        got.append(float(state["scale"]))
    assert got == by_torch(finite, 4096.0, 2.0, 0.5, 4)


def test_what_is_not_finite_is_found() -> None:
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = {"a": rng.normal(size=(5, 33)).astype(dtype), "b": np.zeros(3, np.float32)}
        assert tw.training.all_finite(x)
        for bad in (np.inf, -np.inf, np.nan):
            x["a"][rng.integers(5), rng.integers(33)] = bad
            assert not tw.training.all_finite(x)
            x["a"][~np.isfinite(x["a"].astype(np.float32))] = 1


def net(d: int = 16) -> Any:
    return {"w": (rng.normal(size=(8, d)) / 3).astype(np.float32), "b": np.zeros(d, np.float32),
            "v": (rng.normal(size=(d, 4)) / 4).astype(np.float32)}


def loss_of(p: Any, x: Any, y: Any) -> Any:
    """Smooth: with relu, a sum near 0 that 16 bits round to the other side sends the training another way."""
    logits = tw.tanh(x @ p["w"] + p["b"]) @ p["v"]
    return tw.softmax_cross_entropy(tw.astype(logits, "f32"), y).mean()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_training_in_16_bits_follows_training_in_32(dtype: str) -> None:
    x = rng.normal(size=(32, 8)).astype(np.float32)
    y = (x[:, :4].argmax(1)).astype(np.int64)
    params, opt = net(), tw.optim.sgd(0.3, momentum=0.9)
    mixed = tw.training.mixed_precision(loss_of, opt, dtype=dtype)
    state, step = mixed.init(params), tw.jit(mixed.step, donate=0)
    plain, kept = {k: v.copy() for k, v in params.items()}, opt.init(params)

    @tw.jit
    def reference(p: Any, s: Any) -> Any:
        loss, grads = tw.value_and_grad(loss_of)(p, x, y)
        return *opt.update(p, grads, s), loss

    losses = []
    for _ in range(40):
        state, loss = step(state, (x, y))
        plain, kept, want = reference(plain, kept)
        losses.append((float(loss), float(want)))
    got, wanted = np.array(losses).T
    assert got[-1] < 0.6 * got[0]
    np.testing.assert_allclose(got, wanted, atol=0.015 if dtype == "bf16" else 0.002)  # ten times the largest gap of 700 trainings
    assert all(v.dtype == np.float32 for v in flatten((state["params"], state["optimizer"].get("m", [])))[0])


def test_activations_and_weights_are_stored_in_16_bits() -> None:
    seen: list[Any] = []

    def spy(p: Any, x: Any) -> Any:
        hidden = x @ p["w"]
        seen.extend([p["w"].dtype, x.dtype, hidden.dtype])
        return tw.sum(hidden)

    mixed = tw.training.mixed_precision(spy, tw.optim.sgd(0.1), dtype="bf16")
    state, _ = tw.jit(mixed.step)(mixed.init({"w": net()["w"]}), rng.normal(size=(3, 8)).astype(np.float32))
    assert {str(d) for d in seen} == {"bfloat16"} and state["params"]["w"].dtype == np.float32


def test_a_step_that_overflows_changes_nothing_but_the_scale() -> None:
    x, y = rng.normal(size=(16, 8)).astype(np.float32), rng.integers(0, 4, 16)
    mixed = tw.training.mixed_precision(lambda p, x, y: 8 * loss_of(p, x, y), tw.optim.adamw(0.01), dtype="f16",
                                        scale=tw.training.LossScale(2.0**24, interval=3))
    state, step = mixed.init(net()), tw.jit(mixed.step)
    scales, skipped = [], 0
    for _ in range(24):
        new, loss = step(state, (x, y))
        assert np.isfinite(loss)
        if new["scale"]["scale"] < state["scale"]["scale"]:
            skipped += 1
            for a, b in zip(flatten([new[k] for k in ("params", "optimizer")])[0], flatten([state[k] for k in ("params", "optimizer")])[0],
                            strict=True):
                assert a.tobytes() == b.tobytes()
        else:
            assert new["optimizer"]["step"] == state["optimizer"]["step"] + 1
            assert new["params"]["v"].tobytes() != state["params"]["v"].tobytes()
        state = new
        scales.append(float(state["scale"]["scale"]))
    assert 1 <= skipped < 24 and min(scales) < 2.0**24
    assert any(b == 2 * a for a, b in zip(scales, scales[1:], strict=False)), "after good steps it grows again"


def test_bad_calls() -> None:
    with pytest.raises(ConfigError, match="dtype must be one of f16 bf16, got 'f64'"):
        tw.training.mixed_precision(loss_of, tw.optim.sgd(0.1), dtype="f64")
    with pytest.raises(ConfigError, match="backoff in"):
        tw.training.LossScale(backoff=2.0)
