"""tw.scan, tw.cond, tw.while_loop and tw.fori_loop against PyTorch loops, with gradients, and composed with the other transforms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ExecutionError
from tilewright.ops import REGISTRY, Scan
from tilewright.ops.control.branches import TAME


def arrays(*shapes: tuple[int, ...], dtype: Any = np.float64) -> list[Any]:
    rng = fresh_rng()
    return [rng.uniform(-1, 1, s).astype(dtype) for s in shapes]


def rnn(w: Any, h: Any, x: Any, **options: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        new = tw.tanh(h @ w + x["a"] * x["b"])
        return new, {"square": new * new, "old": h}

    last, ys = tw.scan(step, h, {"a": x, "b": x + 1}, **options)
    return (last * last).sum() + ys["square"].sum() + (ys["old"] * x).sum()


def torch_rnn(w: Any, h: Any, x: Any, *, reverse: bool = False) -> Any:
    total, order = torch.zeros((), dtype=w.dtype), range(len(x))
    for i in reversed(order) if reverse else order:
        new = torch.tanh(h @ w + x[i] * (x[i] + 1))
        total = total + (new * new).sum() + (h * x[i]).sum()
        h = new
    return (h * h).sum() + total


def torch_grads(fn: Any, given: list[Any]) -> tuple[Any, list[Any]]:
    leaves = [torch.tensor(a, requires_grad=True) for a in given]
    value = fn(*leaves)
    return value.detach().numpy(), [g.numpy() for g in torch.autograd.grad(value, leaves)]


@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"checkpoints": 1}, {"checkpoints": 3}, {"checkpoints": "sqrt"},
                                     {"checkpoints": 50}, {"checkpoints": 2, "reverse": True}], ids=str)
@pytest.mark.parametrize("steps", [1, 7])
def test_gradients_of_a_scan(steps: int, options: dict[str, Any]) -> None:
    given = arrays((3, 3), (2, 3), (steps, 2, 3))
    want, grads = torch_grads(lambda w, h, x: torch_rnn(w, h, x, reverse=options.get("reverse", False)), given)
    value, got = tw.value_and_grad(lambda w, h, x: rnn(w, h, x, **options), argnums=(0, 1, 2))(*given)
    np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-9)
    for a, b in zip(got, grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_a_scan_of_no_steps() -> None:
    w, h = arrays((3, 3), (2, 3))
    x = np.zeros((0, 2, 3))
    last, ys = tw.scan(lambda h, x: (tw.tanh(h @ w + x), h), h, x)
    np.testing.assert_array_equal(last, h)
    assert ys.shape == (0, 2, 3)
    value, (dw, dh, dx) = tw.value_and_grad(rnn, argnums=(0, 1, 2))(w, h, x)
    np.testing.assert_allclose(value, (h * h).sum())
    np.testing.assert_allclose(dh, 2 * h)
    np.testing.assert_array_equal(dw, np.zeros_like(w))
    assert dx.shape == x.shape


def test_what_a_step_captures_is_summed_not_stacked() -> None:
    """The backward scan carries the cotangent of the captured matrix; nothing of shape [steps, 5, 5] exists."""
    from tilewright.core.pytree import flatten
    from tilewright.ir.text import all_nodes
    from tilewright.transform.trace import leaf_of, trace

    given = arrays((5, 5), (2, 5), (6, 2, 5))
    leaves, spec = flatten((tuple(given), {}))
    graph = trace(tw.grad(rnn), spec, [leaf_of(a) for a in leaves]).graph
    scans = [n.op for n in graph.nodes if isinstance(n.op, Scan)]
    assert len(scans) == 2
    assert scans[1].reverse
    assert not [t for n in all_nodes(graph) for t in n.types if t.shape == (6, 5, 5)]


def test_nested_scans_and_a_cond_in_a_scan() -> None:
    def ours(w: Any, x: Any) -> Any:
        def outer(c: Any, rows: Any) -> Any:
            def inner(d: Any, row: Any) -> Any:
                new = tw.cond(row.sum() > 0, lambda d, r: tw.tanh(d * w + r), lambda d, r: d * r, d, row)
                return new, (new * c).sum()

            d, sums = tw.scan(inner, c, rows)
            return d, sums * 2
        last, sums = tw.scan(outer, x[0, 0], x)
        return last.sum() + (sums * sums).sum()

    def theirs(w: Any, x: Any) -> Any:
        c, total = x[0, 0], torch.zeros((), dtype=x.dtype)
        for rows in x:
            d = c
            for row in rows:
                d = torch.tanh(d * w + row) if row.sum() > 0 else d * row
                total = total + (2 * (d * c).sum()) ** 2
            c = d
        return c.sum() + total

    given = arrays((4,), (3, 5, 4))
    want, grads = torch_grads(theirs, given)
    value, got = tw.value_and_grad(ours, argnums=(0, 1))(*given)
    np.testing.assert_allclose(value, want, rtol=1e-9, atol=1e-9)
    for a, b in zip(got, grads, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_grad_inside_vmap_and_vmap_inside_grad() -> None:
    w, hs, xs = arrays((3, 3), (4, 2, 3), (4, 5, 2, 3))
    each = [torch_grads(torch_rnn, [w, h, x])[1] for h, x in zip(hs, xs, strict=True)]
    dw, dh = tw.vmap(tw.grad(rnn, argnums=(0, 1)), in_axes=(None, 0, 0))(w, hs, xs)
    np.testing.assert_allclose(dw, np.stack([g[0] for g in each]), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(dh, np.stack([g[1] for g in each]), rtol=1e-8, atol=1e-10)
    total = tw.grad(lambda w: tw.vmap(lambda h, x: rnn(w, h, x))(hs, xs).sum())(w)
    np.testing.assert_allclose(total, sum(g[0] for g in each), rtol=1e-8, atol=1e-10)


def test_second_order() -> None:
    w, h, x = arrays((2, 2), (1, 2), (4, 1, 2))
    hessian: Any = torch.autograd.functional.hessian
    want = hessian(lambda w: torch_rnn(w, torch.tensor(h), torch.tensor(x)), torch.tensor(w)).numpy()
    np.testing.assert_allclose(tw.hessian(lambda w: rnn(w, h, x))(w), want, rtol=1e-7, atol=1e-9)
    twice = tw.grad(lambda w: (tw.grad(lambda w: rnn(w, h, x, checkpoints=2))(w) ** 2).sum())(w)
    first = torch.tensor(torch_grads(torch_rnn, [w, h, x])[1][0])
    np.testing.assert_allclose(twice, 2 * np.einsum("abcd,ab->cd", want, first.numpy()), rtol=1e-7, atol=1e-9)


def test_both_ways_of_a_cond() -> None:
    def fn(x: Any, y: Any) -> Any:
        return tw.cond((x > y).all(), lambda a, b: {"r": a * b, "k": 1}, lambda a, b: {"r": tw.exp(a), "k": 2}, x, y)

    def loss(x: Any, y: Any) -> Any:
        out = fn(x, y)
        return (out["r"] * out["k"]).sum()

    x, y = arrays((3,), (3,))
    for up, factor in ((x + 5, 1), (x - 5, 2)):
        got = tw.jit(fn)(up, y)
        np.testing.assert_allclose(got["r"], up * y if factor == 1 else np.exp(up), rtol=1e-12)
        assert got["k"] == factor
        dx, dy = tw.grad(loss, argnums=(0, 1))(up, y)
        np.testing.assert_allclose(dx, y if factor == 1 else 2 * np.exp(up), rtol=1e-12)
        np.testing.assert_allclose(dy, up if factor == 1 else 0 * y, rtol=1e-12)
    batch = np.stack([x + 5, x - 5])
    np.testing.assert_allclose(tw.vmap(lambda a: fn(a, y)["r"])(batch), np.stack([(x + 5) * y, np.exp(x - 5)]), rtol=1e-12)


def test_numbers_in_branches_take_the_dtype_of_the_other() -> None:
    got = tw.jit(lambda x: tw.cond(x > 0, lambda x: 0.0, lambda x: x, x))(np.float64(-3))
    assert got.dtype == np.float64
    assert got == -3


def newton(x: Any, limit: int | None) -> Any:
    """The square root of x, and how many steps it took."""
    def go(c: Any) -> Any:
        return tw.abs(c[0] * c[0] - x) > 1e-12

    return tw.while_loop(go, lambda c: (0.5 * (c[0] + x / c[0]), c[1] + 1), (x, 0), max_iterations=limit)


def test_a_while_loop_and_its_derivatives() -> None:
    x = np.float64(fresh_rng().uniform(1.5, 30))
    root, steps = tw.jit(lambda x: newton(x, None))(x)
    np.testing.assert_allclose(root, np.sqrt(x), rtol=1e-12)
    assert 2 < steps < 12
    value, slope = tw.jvp(lambda x: newton(x, None)[0], (x,), (np.float64(1.0),))
    np.testing.assert_allclose([value, slope], [np.sqrt(x), 0.5 / np.sqrt(x)], rtol=1e-9)
    np.testing.assert_allclose(tw.grad(lambda x: newton(x, 40)[0])(x), 0.5 / np.sqrt(x), rtol=1e-9)
    several = np.array([2.0, 9.0, 100.0, 1.0])
    np.testing.assert_allclose(tw.vmap(lambda x: newton(x, None)[0])(several), np.sqrt(several), rtol=1e-12)
    np.testing.assert_array_equal(tw.jit(lambda x: newton(x, 2)[1])(x), 2)


def test_fori_loops() -> None:
    def power(x: Any, n: Any) -> Any:
        return tw.fori_loop(0, n, lambda i, c: c * x + i, x * 0 + 1.0)

    x = np.float64(1.3)
    want = 1.0
    for i in range(5):
        want = want * x + i
    np.testing.assert_allclose(tw.jit(lambda x: power(x, 5))(x), want, rtol=1e-12)
    np.testing.assert_allclose(tw.jit(power)(x, 5), want, rtol=1e-12)
    np.testing.assert_array_equal(tw.jit(power)(x, 0), 1.0)
    h = 1e-6
    run = tw.jit(power)
    np.testing.assert_allclose(tw.grad(lambda x: power(x, 5))(x), (run(x + h, 5) - run(x - h, 5)) / (2 * h), rtol=1e-7)


def test_plain_arrays_and_small_floats() -> None:
    import ml_dtypes

    last, sums = tw.scan(lambda c, x: (c + x, c), 0.0, np.arange(5, dtype=np.float32))
    assert last == 10
    np.testing.assert_array_equal(sums, [0, 0, 1, 3, 6])
    x = fresh_rng().uniform(-1, 1, (6, 3)).astype(ml_dtypes.bfloat16)
    last, _ = tw.scan(lambda c, x: (c * x, None), x[0], x)
    want = torch.tensor(x[0].astype(np.float32)).bfloat16()
    for row in x:
        want = want * torch.tensor(row.astype(np.float32)).bfloat16()
    np.testing.assert_array_equal(last.astype(np.float32), want.float().numpy())


def test_carries_that_exchange_places_and_integers() -> None:
    def step(c: Any, _: Any) -> Any:
        a, b, k = c
        return (b, a + b, k + 1), (a, k)

    (a, b, k), (history, counts) = tw.scan(step, (np.float32(0), np.float32(1), 0), length=20)
    want = [0, 1]
    for _ in range(25):
        want.append(want[-1] + want[-2])
    np.testing.assert_array_equal(history, want[:20])
    np.testing.assert_array_equal(counts, np.arange(20))
    assert (a, b, k) == (want[20], want[21], 20)


def test_a_long_loop_is_not_unrolled() -> None:
    c, xs = arrays((16,), (1000, 16), dtype=np.float32)
    loss = tw.jit(tw.grad(lambda c, xs: tw.scan(lambda c, x: (tw.tanh(c * 0.9 + x), None), c, xs)[0].sum()))
    session = loss.lower(c, xs)
    assert session.executable is not None
    assert len(session.executable.launches) < 20
    t = torch.tensor(c, requires_grad=True)
    h = t
    for x in torch.tensor(xs):
        h = torch.tanh(h * 0.9 + x)
    (want,) = torch.autograd.grad(h.sum(), t)
    np.testing.assert_allclose(loss(c, xs), want.numpy(), rtol=1e-3, atol=1e-6)


SQRT = (lambda x: tw.cond(x > 0, lambda x: tw.sqrt(x), lambda x: x * 3, x))
LOG = (lambda x: tw.cond(x > 0, lambda x: tw.cond(x > 5, lambda x: tw.log(x - 5), lambda x: 1 / x, x), lambda x: x, x))


def fractions(x: Any) -> Any:
    """x / 3 / 2 / ... as often as x says; one step more would divide by 0."""
    step = (lambda c: (c[0] / (3.0 - c[1]), c[1] + 1, c[2]))
    return tw.while_loop(lambda c: c[1] < c[2], step, (x, 0.0 * x, x), max_iterations=5)[0]


@pytest.mark.parametrize("fn", [SQRT, LOG, fractions])
@pytest.mark.parametrize("given", [[0.0, 3, -1, 2, 7][:4], [-1.0, -2, 0], [3.0, 1, 2], []])
def test_cases_that_go_another_way_bring_no_nan_into_a_gradient(fn: Any, given: list[float]) -> None:
    """Each case alone is the oracle: of what it does not run nothing reaches it, in either order of grad and vmap."""
    x = np.array(given, np.float64)
    x = x + 4 * (x > 2) if fn is LOG else x
    want = [tw.value_and_grad(fn)(v) for v in x]
    np.testing.assert_allclose(tw.vmap(fn)(x), [v for v, _ in want], rtol=1e-12)
    np.testing.assert_allclose(tw.grad(lambda x: tw.vmap(fn)(x).sum())(x), [g for _, g in want], rtol=1e-12)
    np.testing.assert_allclose(tw.vmap(tw.grad(fn))(x), [g for _, g in want], rtol=1e-12)


@pytest.mark.parametrize("given", [[0, 1, 3, 2], [0, 0], [2, 2], []])
def test_cases_that_have_finished_divide_by_nothing(given: list[int]) -> None:
    """What a case does not run raises no error there; an error of a case that does is still one."""
    n = np.array(given, np.int64)
    choose = tw.vmap(lambda n, d: tw.cond(n > 0, lambda n, d: 6 // (n - d), lambda n, d: n, n, d), in_axes=(0, None))
    down = tw.vmap(lambda n: tw.while_loop(lambda c: c[0] > 0, lambda c: (c[0] - 1, c[1] + 12 // c[0] + 12 // n), (n, 0 * n))[1])
    np.testing.assert_array_equal(choose(n, 0), [6 // k if k > 0 else k for k in given])
    np.testing.assert_array_equal(down(n), [sum(12 // i + 12 // k for i in range(1, k + 1)) for k in given])
    if 2 in given:
        with pytest.raises(ExecutionError, match="floor_divide: integers are not divided by 0, got 6 and 0"):
            choose(n, 2)


def test_ops_that_are_called_tame_exist() -> None:
    assert TAME <= REGISTRY.keys()
