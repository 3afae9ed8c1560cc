"""jit, derivatives and batching of Python functions: against NumPy and PyTorch, composed in several orders, and their errors."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ExecutionError, InputError, ShapeError, TraceError

rng = fresh_rng()


Pair = namedtuple("Pair", "a b")


def randn(*shape: int, dtype: Any = np.float32) -> Any:
    return rng.normal(size=shape).astype(dtype)


def loss(w: Any, x: Any) -> Any:
    return (tw.tanh(x @ w["a"]) @ w["b"]).sum()


def torch_loss(w: Any, x: Any) -> Any:
    return (torch.tanh(x @ w["a"]) @ w["b"]).sum()


def weights(dtype: Any = np.float64) -> dict[str, Any]:
    return {"a": randn(4, 5, dtype=dtype), "b": randn(5, 3, dtype=dtype)}


def torch_of(w: dict[str, Any]) -> dict[str, Any]:
    return {k: torch.from_numpy(v.copy()).requires_grad_() for k, v in w.items()}


def test_jit_of_trees() -> None:
    @tw.jit
    def f(tree: Any, scale: Any, *, shift: Any) -> Any:
        return {"out": tree["x"] * scale + shift, "same": tree["y"][0], "none": None}, [tree["y"][1].sum()]

    x, y, z = randn(3, 4), randn(2), randn(5)
    for scale in (2.0, 3):
        first, (total,) = f({"x": x, "y": (y, z)}, scale, shift=np.float32(0.5))
        np.testing.assert_allclose(first["out"], x * scale + 0.5, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(first["same"], y)
        assert first["none"] is None
        np.testing.assert_allclose(total, z.sum(), rtol=1e-5, atol=1e-5)


SCALARS = [1.5, 3, True, 2 + 1j, np.float32(1.5), np.float64(1.5), np.int64(3), np.bool_(True), np.complex64(1j), np.array(1.5, np.float32)]


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: type(s).__name__)
def test_scalar_arguments_take_the_generated_call(scalar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    f = tw.jit(lambda x, s: x * s)
    x = randn(3)
    first = f(x, scalar)
    np.testing.assert_allclose(first, x * scalar, rtol=1e-6)
    monkeypatch.setattr(f, "_find", lambda *_: pytest.fail("the arguments were looked up again"))
    np.testing.assert_array_equal(f(x, scalar), first)


def test_strided_arguments_take_the_generated_call(monkeypatch: pytest.MonkeyPatch) -> None:
    f, g = tw.jit(lambda x: x * 2), tw.jit(lambda x: x * 2, donate=0)
    x = randn(4, 6)
    odd = np.frombuffer(bytes(1) + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(4, 6)  # not aligned
    for h in (f, g):
        h(x.copy())
    monkeypatch.setattr(f, "_find", lambda *_: pytest.fail("the arguments were looked up again"))
    for view in (x.copy(), odd, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1, ::-1].copy()[::-1, ::-1]):
        before = view.copy()
        for h in (f, g):
            np.testing.assert_array_equal(h(view), x * 2)
            if h is f or not view.flags.c_contiguous:
                np.testing.assert_array_equal(view, before)


def test_jit_compiles_once_per_signature() -> None:
    runs = []

    @tw.jit
    def f(x: Any) -> Any:
        runs.append(x.shape)
        return x + 1

    for n in (3, 3, 4, 3, 4):
        np.testing.assert_array_equal(f(np.zeros(n, np.float32)), np.ones(n))
    assert runs == [(3,), (4,)]
    assert f(np.zeros(3)).dtype == np.float64
    assert len(runs) == 3


def test_jit_takes_strided_arrays_numbers_and_tensors() -> None:
    f = tw.jit(lambda x, y: x * y)
    x = randn(4, 6)
    np.testing.assert_allclose(f(x[:, ::2], 2), x[:, ::2] * 2)
    np.testing.assert_allclose(f(x.T, np.float32(3)), x.T * 3, rtol=1e-6)
    np.testing.assert_allclose(f(torch.from_numpy(x), 1.5), x * np.float32(1.5), rtol=1e-6)
    np.testing.assert_allclose(f(x.astype(">f4"), 2.0), x * 2)


def test_named_tuples_and_static_arguments() -> None:
    f = tw.jit(lambda p, mode: Pair(p.b, p.a) if mode == "swap" else p, static="mode")
    a, b = randn(2), randn(3)
    out = f(Pair(a, b), "swap")
    assert isinstance(out, Pair)
    np.testing.assert_array_equal(out.a, b)
    np.testing.assert_array_equal(f(Pair(a, b), "keep").a, a)


def test_donated_arrays_are_overwritten() -> None:
    step = tw.jit(lambda p, g: {k: p[k] - 0.1 * g[k] for k in p}, donate=0)
    p, g = {"a": randn(40, 50), "b": randn(7)}, {"a": randn(40, 50), "b": randn(7)}
    want = {k: p[k] - np.float32(0.1) * g[k] for k in p}
    new = step(p, g)
    for k in p:
        assert new[k] is p[k]
        np.testing.assert_allclose(p[k], want[k], rtol=1e-6, atol=1e-6)
    frozen = {k: v.copy() for k, v in p.items()}
    for v in frozen.values():
        v.setflags(write=False)
    before = {k: v.copy() for k, v in frozen.items()}
    out = step(frozen, g)
    for k in p:
        np.testing.assert_array_equal(frozen[k], before[k])
        assert out[k] is not frozen[k]


def test_donated_arrays_that_are_read_later_are_copied() -> None:
    f = tw.jit(lambda a, b: (b + 1, a * 2, a.sum()), donate=(0, 1))
    a, b = randn(33), randn(33)
    x, y = a.copy(), b.copy()
    first, second, total = f(a, b)
    np.testing.assert_allclose(first, y + 1, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(second, x * 2, rtol=1e-6)
    np.testing.assert_allclose(total, x.sum(), rtol=1e-4, atol=1e-5)


def test_grad_of_a_tree_is_pytorchs() -> None:
    w, x = weights(), randn(6, 4, dtype=np.float64)
    value, grads = tw.value_and_grad(loss)(w, x)
    t = torch_of(w)
    out = torch_loss(t, torch.from_numpy(x))
    out.backward()
    np.testing.assert_allclose(value, out.item(), rtol=1e-12, atol=1e-12)
    for k in w:
        np.testing.assert_allclose(grads[k], t[k].grad.numpy(), rtol=1e-10, atol=1e-10)
    by_x = tw.grad(loss, argnums=1)(w, x)
    both = tw.grad(loss, argnums=(0, 1))(w, x)
    np.testing.assert_array_equal(both[1], by_x)


def test_has_aux_and_unused_arguments() -> None:
    f = lambda x, y: ((x * x).sum(), {"twice": x * 2})
    (value, aux), grads = tw.value_and_grad(f, argnums=(0, 1), has_aux=True)(randn(3), randn(2))
    assert value.shape == ()
    assert aux["twice"].shape == (3,)
    np.testing.assert_array_equal(grads[1], np.zeros(2))


def test_closures_are_captured() -> None:
    x, y = randn(5, dtype=np.float64), randn(5, dtype=np.float64)

    def outer(x: Any, y: Any) -> Any:
        inner = tw.grad(lambda v: (v * v * y).sum())(x)  # y is traced outside
        return (inner * x).sum()

    np.testing.assert_allclose(tw.jit(outer)(x, y), (2 * x * y * x).sum(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(tw.grad(outer, argnums=1)(x, y), 2 * x * x, rtol=1e-12)


@pytest.mark.parametrize("order", ["jacobian of grad", "grad of jvp", "vmap of grad", "grad of vmap", "jit inside", "hessian"])
def test_composition(order: str) -> None:
    f = lambda v: tw.sin(v).sum() + (v[0] * v[1] * v[2])
    x = randn(3, dtype=np.float64)
    t = torch.from_numpy(x)
    g = lambda v: torch.sin(v).sum() + v[0] * v[1] * v[2]
    if order == "jacobian of grad":
        for mode in ("forward", "reverse"):
            got = tw.jacobian(tw.grad(f), mode=mode)(x)
            np.testing.assert_allclose(got, torch.func.hessian(g)(t).numpy(), rtol=1e-10, atol=1e-12)
    elif order == "hessian":
        np.testing.assert_allclose(tw.hessian(f)(x), torch.func.hessian(g)(t).numpy(), rtol=1e-10, atol=1e-12)
    elif order == "grad of jvp":
        d = randn(3, dtype=np.float64)
        got = tw.grad(lambda v: tw.jvp(f, (v,), (d,))[1])(x)
        np.testing.assert_allclose(got, torch.func.hessian(g)(t).numpy() @ d, rtol=1e-10, atol=1e-12)
    elif order == "vmap of grad":
        rows = randn(4, 3, dtype=np.float64)
        want = torch.func.vmap(torch.func.grad(g))(torch.from_numpy(rows)).numpy()
        np.testing.assert_allclose(tw.vmap(tw.grad(f))(rows), want, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(tw.vmap(tw.grad(f), in_axes=1, out_axes=1)(rows.T), want.T, rtol=1e-10, atol=1e-10)
    elif order == "grad of vmap":
        rows = randn(4, 3, dtype=np.float64)
        got = tw.grad(lambda r: tw.vmap(f)(r).sum())(rows)
        np.testing.assert_allclose(got, torch.func.vmap(torch.func.grad(g))(torch.from_numpy(rows)).numpy(), rtol=1e-10, atol=1e-10)
    else:
        got = tw.grad(tw.jit(lambda v: tw.jit(f)(v) * 2))(x)
        np.testing.assert_allclose(got, 2 * torch.func.grad(g)(t).numpy(), rtol=1e-10, atol=1e-10)


def test_vjp_and_jvp_of_several_results() -> None:
    f = lambda a, b: {"p": a @ b, "q": tw.exp(a)}
    a, b = randn(2, 3, dtype=np.float64), randn(3, 4, dtype=np.float64)
    out, pull = tw.vjp(f, a, b)
    gp, gq = randn(2, 4, dtype=np.float64), randn(2, 3, dtype=np.float64)
    da, db = pull({"p": gp, "q": gq})
    np.testing.assert_allclose(da, gp @ b.T + gq * np.exp(a), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(db, a.T @ gp, rtol=1e-12, atol=1e-12)
    result, moved = tw.jvp(f, (a, b), (gq, b))
    np.testing.assert_allclose(result["p"], out["p"], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(moved["p"], gq @ b + a @ b, rtol=1e-12, atol=1e-12)


def test_vmap_axes_and_shared_arguments() -> None:
    x, w = randn(5, 3), randn(3, 2)
    np.testing.assert_allclose(tw.vmap(lambda a, b: a @ b, in_axes=(0, None))(x, w), x @ w, rtol=1e-5, atol=1e-5)
    tree = tw.vmap(lambda d: d["a"] + d["b"], in_axes=({"a": 1, "b": None},))({"a": x.T.copy(), "b": randn(3) * 0})
    np.testing.assert_allclose(tree, x, rtol=1e-6)
    nested = tw.vmap(tw.vmap(lambda a, b: a * b, in_axes=(None, 0)), in_axes=(0, None))(x[:, 0], w[:, 0])
    np.testing.assert_allclose(nested, np.outer(x[:, 0], w[:, 0]), rtol=1e-6)


def test_checkpoint_has_the_same_gradient_and_computes_again() -> None:
    from tilewright.ir.text import to_text

    def block(v: Any, w: Any) -> Any:
        return tw.tanh(tw.exp(tw.tanh(v @ w)) @ w)

    x, w = randn(6, 6, dtype=np.float64), randn(6, 6, dtype=np.float64)
    plain = lambda w: block(block(x, w), w).sum()
    saved = lambda w: tw.checkpoint(block)(tw.checkpoint(block)(x, w), w).sum()
    np.testing.assert_allclose(tw.grad(saved)(w), tw.grad(plain)(w), rtol=1e-10, atol=1e-10)
    text = to_text(tw.jit(tw.grad(saved)).lower(w).model.graph)
    assert text.count("matmul") > to_text(tw.jit(tw.grad(plain)).lower(w).model.graph).count("matmul")


def test_stop_gradient() -> None:
    x = randn(4, dtype=np.float64)
    np.testing.assert_allclose(tw.grad(lambda v: (v * tw.stop_gradient(v)).sum())(x), x, rtol=1e-12)


def test_indexing_is_numpys() -> None:
    x = randn(4, 5, 6)
    ids = np.array([3, 0, -1])
    keys: list[Any] = [0, -1, (1, 2), (slice(1, 3), -2), (..., 2), (None, 1), (slice(None, None, -2),), (slice(3, 0, -1), ..., None), ids,
                       (slice(None), ids), (ids, np.array([[1], [2]])), (..., slice(0, 0))]
    for key in keys:
        np.testing.assert_array_equal(tw.jit(lambda v, key=key: v[key])(x), x[key])
    np.testing.assert_allclose(tw.grad(lambda v: (v[ids] * v[1:4]).sum())(x), _index_grad(x, ids), rtol=1e-5, atol=1e-5)


def _index_grad(x: Any, ids: Any) -> Any:
    t = torch.from_numpy(x).requires_grad_()
    (t[torch.from_numpy(ids)] * t[1:4]).sum().backward()
    assert t.grad is not None
    return t.grad.numpy()


def test_functions_run_on_plain_arrays() -> None:
    x = randn(3, 4)
    np.testing.assert_allclose(tw.softmax(x), torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-5)
    np.testing.assert_array_equal(tw.reshape(x, (2, -1)), x.reshape(2, -1))
    np.testing.assert_array_equal(tw.concat([x, x], axis=1), np.concatenate([x, x], 1))
    np.testing.assert_allclose(tw.einsum("ij,kj->ik", x, x), x @ x.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(tw.arange(2, 9, 3), np.arange(2, 9, 3))
    np.testing.assert_array_equal(tw.tril(x), np.tril(x))
    np.testing.assert_array_equal(tw.eye(3), np.eye(3))
    np.testing.assert_array_equal(tw.where(x > 0, x, 0), np.where(x > 0, x, 0))
    assert tw.sum(np.array([True, True])) == 2


def test_numpys_functions_take_tracers() -> None:
    x, y = randn(3, 4), randn(4)
    got = tw.jit(lambda v: np.exp(v) + np.sum(v, axis=0) + y)(x)
    np.testing.assert_allclose(got, np.exp(x) + x.sum(axis=0) + y, rtol=1e-5, atol=1e-5)


def test_promotion() -> None:
    i, f, d, h = np.ones(2, np.int32), np.ones(2, np.float32), np.ones(2), np.ones(2, np.float16)
    add = tw.jit(lambda a, b: a + b)
    assert add(i, f).dtype == np.float32
    assert add(f, d).dtype == np.float64
    assert add(f, 1.5).dtype == np.float32
    assert add(h, 2).dtype == np.float16
    assert add(i, 1).dtype == np.int32
    assert add(i, 0.5).dtype == np.float32
    assert tw.jit(lambda a: a / 2)(i).dtype == np.float32
    assert tw.jit(lambda a: 1 - a)(np.ones(2, np.uint8)).dtype == np.uint8


def here() -> int:
    import inspect

    frame = inspect.currentframe()
    assert frame is not None and frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_condition_on_a_traced_value_names_the_line() -> None:
    def f(x: Any) -> Any:
        if x.sum() > 0:
            return x
        return -x

    line = here() - 4
    with pytest.raises(TraceError, match=rf"a Python condition .* traced bool\[\].* tw.cond.*\(test_functions.py:{line}\)"):
        tw.jit(f)(randn(3))


NEEDY: list[tuple[Any, str]] = [(float, r"float\(\)"), (int, r"int\(\)"), (np.asarray, "a NumPy function"),
                                (tw.trim_zeros, "the size of the result depends on the elements"),
                                (np.unique, "tw.unique does not work on traced arrays"),
                                (lambda x: [0, 1][x], "an index or a size"), (lambda x: x.item(), r"item\(\)")]


@pytest.mark.parametrize(("what", "match"), NEEDY)
def test_what_needs_elements_says_so(what: Any, match: str) -> None:
    with pytest.raises(TraceError, match=match):
        tw.jit(lambda x: what(x))(np.float32(1))


def test_errors_name_the_users_line() -> None:
    def f(x: Any) -> Any:
        return x @ x

    with pytest.raises(ShapeError, match=rf"matmul: inner sizes differ.*\(test_functions.py:{here() - 2}\)"):
        tw.jit(f)(randn(3, 4))


def test_bad_calls_of_transforms() -> None:
    x = randn(3)
    with pytest.raises(ShapeError, match=r"grad: the loss must be a float scalar, got f32\[3\]; reduce it"):
        tw.grad(lambda v: v * 2)(x)
    with pytest.raises(ShapeError, match=r"grad: cannot differentiate with respect to i64\[3\]; integers and bools"):
        tw.grad(lambda v: (v * 1.5).sum())(np.arange(3))
    with pytest.raises(ShapeError, match="grad: the function must return one scalar"):
        tw.grad(lambda v: (v.sum(), v))(x)
    with pytest.raises(ShapeError, match="argnums must name one of 1 positional"):
        tw.grad(lambda v: v.sum(), argnums=1)(x)
    with pytest.raises(ShapeError, match="vmap: the batched axes must have one size"):
        tw.vmap(lambda a, b: a + b)(x, randn(4))
    with pytest.raises(ShapeError, match="vmap: in_axes names axis 1"):
        tw.vmap(lambda a: a, in_axes=1)(x)
    with pytest.raises(ShapeError, match="cotangents must have the structure"):
        tw.vjp(lambda v: (v, v), x)[1](x)
    with pytest.raises(ShapeError, match=r"axis must be in -1..0, got axis=3"):
        tw.jit(lambda v: v.sum(axis=3))(x)
    with pytest.raises(ShapeError, match="an axis is given twice"):
        tw.jit(lambda v: v.sum(axis=(0, 0)))(x)
    with pytest.raises(ShapeError, match="a mask would give a shape"):
        tw.jit(lambda v: v[v > 0])(x)
    with pytest.raises(InputError, match="must be hashable"):
        tw.jit(lambda v, s: v)(x, {1, 2})


def test_a_kept_tracer_is_an_error() -> None:
    kept: list[Any] = []

    def keeps(x: Any) -> Any:
        kept.append(x)
        return x * 2

    tw.jit(keeps)(randn(2))
    with pytest.raises(TraceError, match="was kept and used after its function had returned"):
        tw.jit(lambda y: y + kept[0])(randn(2))


def test_labels_and_indices_out_of_range_are_errors() -> None:
    with pytest.raises(ExecutionError, match="softmax_cross_entropy: label 4 is out of range for 4 classes, at position 1"):
        tw.jit(tw.softmax_cross_entropy)(randn(3, 4), np.array([0, 4, 1]))
    with pytest.raises(ExecutionError, match="index out of range"):
        tw.jit(lambda x, i: x[i])(randn(3, 4), np.array([5]))
    with pytest.raises(ExecutionError, match="index out of range"):
        tw.jit(lambda x, i: tw.scatter_add(x, i, x))(randn(3, 4), np.array([0, 1, 7]))
