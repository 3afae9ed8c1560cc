"""Rules and ops that users define: they are used by every transform, and a wrong structure is an error that names the rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import InputError, ShapeError, UnsupportedError
from tilewright.ops import REGISTRY

rng = fresh_rng()


def randn(*shape: int) -> Any:
    return rng.normal(size=shape)


@pytest.fixture
def registry() -> Iterator[None]:
    """Ops that a test defines are forgotten after it."""
    before = set(REGISTRY)
    yield
    for name in set(REGISTRY) - before:
        del REGISTRY[name]


def new_op(name: str, **rules: Any) -> Any:
    REGISTRY.pop(name, None)  # an op of an earlier round (--rounds)
    return tw.custom_op(name, **rules)


def clipped_sine() -> Any:
    """A reverse rule that is visibly not the true derivative: the cotangent is clipped, as in gradient clipping."""

    @tw.custom_vjp
    def f(x: Any, n: Any) -> Any:
        return {"y": tw.sin(x) * n, "n": n}

    def backward(saved: Any, g: Any) -> Any:
        return tw.clip(g["y"], -0.1, 0.1) * tw.cos(saved[0]), None

    return f.defvjp(lambda x, n: ({"y": tw.sin(x) * n, "n": n}, (x, "tag")), backward)


def test_a_reverse_rule_replaces_the_derivative() -> None:
    f, x = clipped_sine(), randn(7)
    np.testing.assert_allclose(f(x, np.int64(3))["y"], np.sin(x) * 3, rtol=1e-12)
    got = tw.grad(lambda v: f(v, np.int64(2))["y"].sum())(x)
    np.testing.assert_allclose(got, 0.1 * np.cos(x), rtol=1e-12)
    rows = randn(4, 7)
    got = tw.vmap(tw.grad(lambda v: f(v, np.int64(2))["y"].sum()))(rows)
    np.testing.assert_allclose(got, 0.1 * np.cos(rows), rtol=1e-12)
    got = tw.grad(lambda r: tw.vmap(lambda v: f(v, np.int64(2))["y"])(r).sum())(rows)
    np.testing.assert_allclose(got, 0.1 * np.cos(rows), rtol=1e-12)


def test_second_order_goes_through_the_rule() -> None:
    @tw.custom_vjp
    def cube(x: Any) -> Any:
        return x * x * x

    cube.defvjp(lambda x: (x * x * x, x), lambda x, g: (g * 5 * x * x,))  # 5 instead of 3, to see which one is used
    x = randn(3)
    np.testing.assert_allclose(tw.hessian(lambda v: cube(v).sum())(x), np.diag(10 * x), rtol=1e-12)
    with pytest.raises(UnsupportedError, match="custom_vjp: has no forward-mode derivative: it has a reverse rule only"):
        tw.jvp(cube, (x,), (x,))


def test_a_forward_rule_serves_both_modes() -> None:
    @tw.custom_jvp
    def f(x: Any, y: Any) -> Any:
        return x * y

    f.defjvp(lambda p, t: (p[0] * p[1], 2 * t[0] * p[1] + t[1] * p[0]))  # twice the true slope in x
    x, y, tx, ty = (randn(4) for _ in range(4))
    value, moved = tw.jvp(f, (x, y), (tx, ty))
    np.testing.assert_allclose(value, x * y, rtol=1e-12)
    np.testing.assert_allclose(moved, 2 * tx * y + ty * x, rtol=1e-12, atol=1e-12)
    gx, gy = tw.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1))(x, y)
    np.testing.assert_allclose(gx, 2 * y, rtol=1e-12)
    np.testing.assert_allclose(gy, x, rtol=1e-12)
    np.testing.assert_allclose(tw.vmap(f, in_axes=(0, None))(x, y), np.outer(x, y), rtol=1e-12)


def test_an_elementwise_op(registry: None) -> None:
    cubed = new_op("cubed", ref=lambda x: x * x * x, kernel=lambda t, x: x * x * x, vjp=lambda i, y, g: (g * 3 * i[0] * i[0],),
                   jvp=lambda i, y, t: t[0] * 3 * i[0] * i[0])
    x = randn(5, 3).astype(np.float32)
    np.testing.assert_allclose(cubed(x), x**3, rtol=1e-5)
    np.testing.assert_allclose(tw.grad(lambda v: (cubed(v) * 2).sum())(x), 6 * x * x, rtol=1e-5)
    np.testing.assert_allclose(tw.jvp(cubed, (x,), (x,))[1], 3 * x**3, rtol=1e-5)
    np.testing.assert_allclose(tw.vmap(cubed)(x), x**3, rtol=1e-5)


def test_an_op_said_in_others(registry: None) -> None:
    norm = new_op("row_norm", ref=lambda x: np.sqrt((x * x).sum(-1)), infer=lambda x: x.with_shape(x.shape[:-1]),
                  decompose=lambda x: tw.sqrt((x * x).sum(axis=-1)))
    x = randn(4, 6)
    np.testing.assert_allclose(norm(x), np.linalg.norm(x, axis=-1), rtol=1e-12)
    np.testing.assert_allclose(tw.grad(lambda v: norm(v).sum())(x), x / np.linalg.norm(x, axis=-1, keepdims=True), rtol=1e-10)


def test_wrong_rules_are_named() -> None:
    x = randn(3)

    @tw.custom_vjp
    def f(v: Any) -> Any:
        return v * 2

    with pytest.raises(InputError, match=r"custom_vjp: f has no rules yet; call f.defvjp"):
        f(x)
    with pytest.raises(ShapeError, match=r"custom_vjp f: forward must return \(result, saved\)"):
        f.defvjp(lambda v: v * 2, lambda s, g: (g,))(x)
    with pytest.raises(ShapeError, match=r"custom_vjp f: forward's result must have the type f64\[3\], got f64\[\]"):
        f.defvjp(lambda v: (v.sum(), v), lambda s, g: (g,))(x)
    with pytest.raises(ShapeError, match="custom_vjp f: backward must return one cotangent an argument, 1, got"):
        f.defvjp(lambda v: (v * 2, v), lambda s, g: (g, g))(x)
    with pytest.raises(ShapeError, match=r"custom_vjp f: a cotangent must have the type of its argument f64\[3\], got f64\[\]"):
        f.defvjp(lambda v: (v * 2, v), lambda s, g: (g.sum(),))(x)
    with pytest.raises(InputError, match="uses a traced value from outside"):
        tw.jit(lambda v, w: tw.custom_vjp(lambda u: u * w).defvjp(lambda u: (u, u), lambda s, g: (g,))(v))(x, x)

    @tw.custom_jvp
    def h(v: Any) -> Any:
        return v * 2

    with pytest.raises(InputError, match="custom_jvp: h has no rule yet"):
        h(x)
    with pytest.raises(ShapeError, match=r"custom_jvp h: the rule must return \(result, tangent\)"):
        h.defjvp(lambda p, t: p[0] * 2)(x)


def test_wrong_ops_are_named(registry: None) -> None:
    with pytest.raises(InputError, match="the name must be a new identifier, got 'relu'"):
        tw.custom_op("relu", ref=np.abs, kernel=lambda t, x: x)
    with pytest.raises(InputError, match="lonely needs kernel="):
        tw.custom_op("lonely", ref=np.abs)
    with pytest.raises(InputError, match="shapeless needs infer="):
        tw.custom_op("shapeless", ref=np.abs, decompose=tw.abs)
    plain = new_op("plain", ref=np.abs, kernel=lambda t, x: t.unary("abs", x))
    with pytest.raises(UnsupportedError, match="plain: has no reverse-mode derivative: custom_op plain was defined without vjp="):
        tw.grad(lambda v: plain(v).sum())(randn(3))


@pytest.mark.parametrize("kind", ["vjp", "jvp"])
def test_rules_that_call_their_own_function_in_second_derivatives(kind: str) -> None:
    """What a forward rule saves depends on the operands; a rule inside a rule counts, too: the plain derivative of sign is 0."""
    def softplus(x: Any) -> Any:
        return tw.log(1 + tw.exp(x))

    x = np.linspace(-3, 3, 5)
    if kind == "vjp":
        f = tw.custom_vjp(softplus)
        f.defvjp(lambda x: (f(x), x), lambda x, g: (g * (1 - tw.exp(-f(x))),))
        through = tw.custom_vjp(tw.sign)
        through.defvjp(lambda x: (through(x), None), lambda _, g: (g * 2,))
    else:
        f = tw.custom_jvp(softplus)  # type: ignore[assignment]
        f.defjvp(lambda p, t: (f(p[0]), t[0] * (1 - tw.exp(-f(p[0])))))
        through = tw.custom_jvp(tw.sign)  # type: ignore[assignment]
        through.defjvp(lambda p, t: (through(p[0]), t[0] * 2))
    share = 1 / (1 + np.exp(-x))
    np.testing.assert_allclose(tw.grad(lambda x: f(x).sum())(x), share, rtol=1e-12)
    second = tw.grad(lambda x: tw.grad(lambda x: f(x).sum())(x).sum())
    np.testing.assert_allclose(second(x), share * (1 - share), rtol=1e-10)
    np.testing.assert_array_equal(tw.grad(lambda x: through(x).sum())(x), np.full(5, 2.0))
