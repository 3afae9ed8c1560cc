"""Special functions and formulas over arrays: values and slopes against PyTorch, on fresh numbers and at special points."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as tf

import tilewright as tw
from tests.fresh import fresh_rng
from tests.ops.oracle_special import gamma_parts

INF, NAN = float("inf"), float("nan")
rng = fresh_rng()

UNARY: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "entr": (tw.entr, torch.special.entr),
    "sinc": (tw.sinc, torch.sinc),
    "ndtr": (tw.ndtr, torch.special.ndtr),
    "celu": (lambda x: tw.celu(x, 2.0), lambda x: tf.celu(x, 2.0)),
    "selu": (tw.selu, tf.selu),
    "hardtanh": (lambda x: tw.hardtanh(x, -0.5, 0.7), lambda x: tf.hardtanh(x, -0.5, 0.7)),
    "relu6": (tw.relu6, tf.relu6),
    "hardshrink": (tw.hardshrink, tf.hardshrink),
    "softshrink": (tw.softshrink, tf.softshrink),
    "tanhshrink": (tw.tanhshrink, tf.tanhshrink),
    "threshold": (lambda x: tw.threshold(x, 0.1, 5.0), lambda x: tf.threshold(x, 0.1, 5.0)),
    "log_sigmoid": (tw.log_sigmoid, tf.logsigmoid),
    "softsign": (tw.softsign, tf.softsign),
    "nan_to_num": (lambda x: tw.nan_to_num(x, nan=1.0, posinf=2.0), lambda x: torch.nan_to_num(x, 1.0, 2.0)),
    "glu": (lambda x: tw.glu(x, 0), lambda x: tf.glu(x, 0)),
}
BINARY = {
    "xlogy": (tw.xlogy, torch.xlogy),
    "xlog1py": (tw.xlog1py, torch.special.xlog1py),
    "logaddexp": (tw.logaddexp, torch.logaddexp),
    "logaddexp2": (tw.logaddexp2, torch.logaddexp2),
    "heaviside": (tw.heaviside, lambda x, y: torch.where(torch.isnan(x), x, torch.heaviside(x, y))),  # NaN of NaN is NumPy's
    "atan2": (tw.atan2, torch.atan2),
    "hypot": (tw.hypot, torch.hypot),
    "copysign": (tw.copysign, torch.copysign),
    "prelu": (tw.prelu, lambda x, w: torch.where(x > 0, x, x * w)),
}


def test_values_and_slopes() -> None:
    """All in one program: functions of two operands take the first half and the second half of x."""
    x, positive = rng.normal(size=16) * 3, rng.uniform(0.1, 3, 16)
    x += np.copysign(0.05, x)  # PyTorch's slope of sinc loses digits near 0

    def given(name: str, values: Any, logs: Any) -> tuple[Any, ...]:
        x = logs if name in ("entr", "xlogy", "xlog1py") else values
        return (x,) if name in UNARY else (x[:8], x[8:])

    cases = {**UNARY, **BINARY}
    got = tw.jit(lambda x, p: {n: f(*given(n, x, p)) for n, (f, _) in cases.items()})(x, positive)  # type: ignore[operator]
    for name, (_, theirs) in cases.items():
        want = theirs(*given(name, torch.from_numpy(x), torch.from_numpy(positive))).numpy()
        np.testing.assert_allclose(got[name], want, rtol=1e-12, atol=1e-14, err_msg=name)
    del cases["heaviside"]
    weights = {n: rng.normal(size=got[n].shape) for n in cases}

    def total(name: str, pick: int, values: Any, logs: Any, weight: Any) -> Any:
        return (cases[name][pick](*given(name, values, logs)) * weight).sum()  # type: ignore[operator]

    slope = {n: tw.grad(partial(total, n, 0), argnums=(0, 1)) for n in cases}
    slopes = tw.jit(lambda x, p: {n: slope[n](x, p, weights[n]) for n in cases})(x, positive)
    for name in cases:
        leaves = [torch.from_numpy(v.copy()).requires_grad_() for v in (x, positive)]
        total(name, 1, leaves[0], leaves[1], torch.from_numpy(weights[name])).backward()
        for mine, leaf in zip(slopes[name], leaves, strict=True):
            theirs = np.zeros(16) if leaf.grad is None else leaf.grad.numpy()
            np.testing.assert_allclose(mine, theirs, rtol=1e-11, atol=1e-13, err_msg=name)


def test_special_points() -> None:
    points = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -0.5, INF, -INF, NAN, 6.0, 30.0, -30.0], np.float32)
    pairs = [a.ravel() for a in np.meshgrid(points, points)]
    cases = {n: c for n, c in {**UNARY, **BINARY}.items() if n != "glu"}
    got = tw.jit(lambda p, a, b: {n: f(p) if n in UNARY else f(a, b) for n, (f, _) in cases.items()})(points, *pairs)  # type: ignore[operator]
    for name, (_, theirs) in cases.items():
        want = theirs(*map(torch.from_numpy, [points] if name in UNARY else pairs)).numpy()
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_slope_of_sinc_near_zero_keeps_its_digits(dtype: Any) -> None:
    x = (rng.normal(size=8) * 10.0 ** rng.uniform(-9, -4, 8)).astype(dtype)
    np.testing.assert_allclose(tw.grad(lambda x: tw.sinc(x).sum())(x), -(np.pi**2) / 3 * x, rtol=1e-6)
    np.testing.assert_allclose(tw.hessian(lambda x: tw.sinc(x).sum())(x[:2]), -(np.pi**2) / 3 * np.eye(2), rtol=1e-6)


def test_frexp_takes_numbers_apart() -> None:
    ends = [0.0, 1.0, 0.5, 2.0, 3.4e38, 1e-45, INF, NAN]
    x = np.concatenate([rng.uniform(-1, 1, 40) * 10.0 ** rng.uniform(-40, 38, 40), ends]).astype(np.float32)
    m, e = tw.frexp(x)
    want = np.frexp(x)
    np.testing.assert_array_equal(m, want[0])
    np.testing.assert_array_equal(e[np.isfinite(x)], want[1][np.isfinite(x)])


def test_integers_and_numbers() -> None:
    x, y = rng.integers(-99, 99, 20), rng.integers(-99, 99, 20)
    np.testing.assert_array_equal(tw.gcd(x, y), np.gcd(x, y))
    np.testing.assert_array_equal(tw.lcm(x, y), np.lcm(x, y))
    np.testing.assert_allclose(tw.asinh(x), np.arcsinh(x), rtol=1e-6)
    assert tw.float_power(np.array([2, 3]), 2).dtype == np.float64
    np.testing.assert_allclose(tw.polygamma(2, np.array([1.5])), torch.polygamma(2, torch.tensor([1.5], dtype=torch.float64)), rtol=1e-12)
    np.testing.assert_allclose(tw.arctan2(x, 1.5), np.arctan2(x, np.float32(1.5)), rtol=1e-6)


@pytest.mark.parametrize("fn", ["igamma", "igammac"])
def test_incomplete_gamma(fn: str) -> None:
    """In every part of the plane: series, fraction, expansion, and the lines where they meet. PyTorch itself is 1e-9 off in f64."""
    a = np.concatenate([rng.uniform(0.01, 2, 5), rng.uniform(2, 49, 5), rng.uniform(49, 51, 6), rng.uniform(51, 400, 5), [1e5, 3e7, 49.99]])
    x = a * rng.permutation(np.concatenate([rng.uniform(0.05, 3, 9), rng.uniform(0.69, 0.71, 4), rng.uniform(1.29, 1.31, 4),
                                            rng.uniform(0.9, 1.1, 7)]))
    x[-3:] = a[-3:] * [1.001, 0.9999, 1.0]
    part = ["igamma", "igammac"].index(fn)
    normal = [0.5 * math.erfc((2 * part - 1) * (v - s) / math.sqrt(2 * s)) for s, v in zip(a, x, strict=True)]
    want = np.array([gamma_parts(s, v)[part] if s < 1e4 else n for s, v, n in zip(a, x, normal, strict=True)])
    jitted = tw.jit(getattr(tw, fn))
    got = jitted(a, x)
    # relative to terms of some hundreds in an exponent, and absolute where 1 - P is all there is
    np.testing.assert_allclose(got[a < 1e4], want[a < 1e4], rtol=5e-12, atol=5e-14)
    np.testing.assert_allclose(got, want, atol=1e-3)  # the normal distribution, which is what is left of large ones
    low = jitted(a.astype(np.float32), x.astype(np.float32))
    np.testing.assert_allclose(low[a < 100], getattr(torch, fn)(*(torch.tensor(v.astype(np.float32)).double() for v in (a, x)))[a < 100],
                               rtol=1e-6, atol=1e-7)
    slope = torch.tensor(x, requires_grad=True)
    getattr(torch, fn)(torch.tensor(a), slope).sum().backward()
    assert slope.grad is not None
    mine = tw.grad(lambda x: getattr(tw, fn)(a, x).sum())(x)
    np.testing.assert_allclose(mine[a < 1e4], slope.grad[a < 1e4], rtol=1e-9, atol=1e-14)
    with pytest.raises(tw.UnsupportedError, match=f"{fn}: the derivative with respect to its first operand has no .*test_special"):
        tw.grad(lambda a: getattr(tw, fn)(a, x).sum())(a)


def test_errors_name_the_users_line() -> None:
    x = np.zeros(4)
    with pytest.raises(tw.ShapeError, match=r"glu: axis must be in -1..0, got axis=2 \(.*test_special.py"):
        tw.jit(lambda x: tw.glu(x, 2))(x)
    with pytest.raises(tw.ShapeError, match=r"shapes do not broadcast.*test_special.py"):
        tw.jit(lambda x: tw.xlogy(x, x[:3]))(x)
    with pytest.raises(tw.UnsupportedError, match="zeta: the derivative with respect to its first operand"):
        tw.grad(lambda x: tw.zeta(x, 2.0).sum())(x)
