"""`tw.jit` with dynamic sizes, and jitted functions in files: one program for all sizes, with NumPy's results at each."""
from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core.errors import ConfigError, InputError, SizeError, UnsupportedError

N0 = tw.Dim("N", 0)
SIZES = (0, 1, 2, 5, 70)
Pair = namedtuple("Pair", "left right")


def rows(n: int, width: int = 8) -> Any:
    return np.random.default_rng(n).standard_normal((n, width)).astype(np.float32)


# (traced function, NumPy's of float64, the least size)
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any], int]] = {
    "softmax": (lambda x: tw.softmax(x, axis=0), lambda x: np.exp(x) / np.exp(x).sum(0), 1),
    "products": (lambda x: x @ x.T, lambda x: x @ x.T, 0),
    "mean over the size": (lambda x: tw.sum(x, axis=0) / x.shape[0], lambda x: x.mean(0), 1),
    "size times array": (lambda x: x.shape[0] * x + x.shape[0] ** 2, lambda x: len(x) * x + len(x) ** 2, 0),
    "size and float": (lambda x: x * (x.shape[0] * 0.5 + 1.5 / x.shape[0]), lambda x: x * (len(x) * 0.5 + 1.5 / len(x)), 1),
    "root of the size": (lambda x: x / x.shape[0] ** 0.5, lambda x: x / len(x) ** 0.5, 1),
    "reshape": (lambda x: x.reshape(-1, 4), lambda x: x.reshape(-1, 4), 0),
    "from 1": (lambda x: x[1:], lambda x: x[1:], 0),
    "to -1": (lambda x: x[:-1], lambda x: x[:-1], 0),
    "from -3": (lambda x: x[-3:], lambda x: x[-3:], 0),
    "every second": (lambda x: x[::2], lambda x: x[::2], 0),
    "3 to 50 by 7": (lambda x: x[3:50:7], lambda x: x[3:50:7], 0),
    "reversed": (lambda x: x[::-1], lambda x: x[::-1], 0),
    "back by 2": (lambda x: x[-2:0:-2], lambda x: x[-2:0:-2], 0),
    "differences": (lambda x: x[1:] - x[:-1], lambda x: np.diff(x, axis=0), 0),
    "last": (lambda x: x[-1], lambda x: x[-1], 1),
    "middle": (lambda x: x[x.shape[0] // 2], lambda x: x[len(x) // 2], 1),
    "halves": (lambda x: x[: x.shape[0] // 2], lambda x: x[: len(x) // 2], 0),
    "ramp": (lambda x: x + tw.arange(x.shape[0])[:, None], lambda x: x + np.arange(len(x))[:, None], 0),
    "odd ramp": (lambda x: tw.arange(1, x.shape[0], 2, dtype="f32"), lambda x: np.arange(1, len(x), 2.0), 0),
    "compared": (lambda x: x if x.shape[0] >= 0 else -x, lambda x: x, 0),
    "gradient": (lambda x: tw.grad(lambda z: tw.mean(z**2))(x), lambda x: 2 * x / x.size, 1),
    "scan": (lambda x: tw.scan(lambda c, z: (c + z, c), tw.zeros(8), x)[1], lambda x: np.cumsum(x, 0) - x, 0),
    "vmap": (lambda x: tw.vmap(lambda z: tw.sum(z) * z)(x), lambda x: x.sum(1, keepdims=True) * x, 0),
    "joined": (lambda x: tw.concat([x, tw.zeros(x.shape), x]), lambda x: np.concatenate([x, 0 * x, x]), 0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_program_for_all_sizes(name: str) -> None:
    fn, expected, least = FUNCTIONS[name]
    compiled = tw.jit(fn, dynamic={"x": {0: tw.Dim("N", least)}})
    for n in SIZES:
        if n >= least:
            x = rows(n)
            want = expected(x.astype(np.float64))
            np.testing.assert_allclose(compiled(x), want, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(want).max(initial=0))))
    assert "1 signatures" in repr(compiled)


def test_kinds_of_arrays_and_sizes_as_results() -> None:
    f = tw.jit(lambda x, w: (x @ w, x.shape[0] * 2 + 1), dynamic={"x": {0: "N"}})
    w = rows(8, 3)
    for n in (3, 4, 11):
        x = rows(n)
        want = x @ w
        for make, kind in ((lambda a: a, np.ndarray), (tw.asarray, tw.Array), (torch.from_numpy, torch.Tensor)):
            y, size = f(make(x), make(w))
            assert type(y) is kind and size == 2 * n + 1 and type(size) is int
            np.testing.assert_allclose(np.asarray(y), want, rtol=1e-5, atol=1e-5)
    assert "1 signatures" in repr(f)


def test_trees_and_linear_dims() -> None:
    n = tw.Dim("N", 0)
    f = tw.jit(lambda t, scale: {"s": tw.sum(t["a"].left * t["a"].right[1:]) * scale},
               dynamic={"t": {"a": (({0: n}), ({0: n + 1}))}})
    for k in (0, 1, 6):
        tree = {"a": Pair(np.ones(k, np.float32), np.arange(k + 1, dtype=np.float32))}
        assert f(tree, 2.0)["s"] == k * (k + 1)
    with pytest.raises(InputError, match=r"t\['a'\]\[1\]\.shape\[0\] must be N\+1 with N = 3 \(from t\['a'\]\[0\]\.shape\[0\]\), got 3"):
        f({"a": Pair(np.ones(3, np.float32), np.ones(3, np.float32))}, 2.0)
    pairs = tw.jit(lambda x: x.reshape(-1, 2).sum(1), dynamic={0: {0: 2 * tw.Dim("N", 1, 10)}})  # no axis has the size N itself
    np.testing.assert_array_equal(pairs(np.arange(6, dtype=np.float32)), [1, 5, 9])
    with pytest.raises(InputError, match=r"args\[0\]\.shape\[0\] must be 2\*N with 1 <= N <= 10, got 7"):
        pairs(np.arange(7, dtype=np.float32))


def test_donated_and_gradients_of_torch() -> None:
    f = tw.jit(lambda x: x + 1, donate=0, dynamic={"x": {0: "N"}})
    for n in (4, 9):
        x = np.zeros(n, np.float32)
        assert f(x) is x and x[0] == 1
    g = tw.jit(lambda x: tw.sum(x * x.shape[0]), dynamic={"x": {0: "N"}})
    for n in (2, 5):
        t = torch.ones(n, requires_grad=True)
        g(t).backward()
        assert t.grad is not None and t.grad.tolist() == [n] * n


def test_bad_declarations_and_calls() -> None:
    x = np.ones(3, np.float32)
    for tree, rule in (({"y": {0: "N"}}, "there is no argument 'y'; the arguments are x"), ({"x": {0: 3}}, r"x\.shape\[0\] needs a name"),
                       ({"x": {5: "N"}}, "x has 1 axes, got axis 5"), ({"x": "N"}, r"x needs \{axis: Dim\}"), (3, "must be a mapping"),
                       ({"x": {0: tw.Dim("N") * tw.Dim("M")}}, r"x\.shape\[0\] needs a name")):
        with pytest.raises(ConfigError, match=rule):
            tw.jit(lambda x: x, dynamic=tree)(x)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="two dims are called N but have different ranges"):
        tw.jit(lambda x, y: x, dynamic={"x": {0: "N"}, "y": {0: tw.Dim("N", 2)}})(x, x)
    with pytest.raises(ConfigError, match="x is a float, not a tensor"):
        tw.jit(lambda x: x, dynamic={"x": {0: "N"}}, static="x")(1.0)
    with pytest.raises(InputError, match=r"x\.shape\[0\] must be N with 1 <= N, got 0"):
        tw.jit(lambda x: x, dynamic={"x": {0: "N"}})(x[:0])
    with pytest.raises(InputError, match="N-3 must not be negative, got N = 2"):
        tw.jit(lambda x: x[2], dynamic={"x": {0: "N"}})(x[:2])


@pytest.mark.parametrize(("fn", "rule"), [
    (lambda x: x if x.shape[0] > 3 else -x, "N > 3 depends on a size"), (lambda x: [x[i] for i in range(x.shape[0])], "of the size N"),
    (lambda x: list(x), "value of the size N"), (lambda x: x * float(x.shape[0]), "multiply it with 1.0"),
    (lambda x: x + np.ones(x.shape), "value of the size N")])
def test_what_needs_the_size_says_so(fn: Callable[..., Any], rule: str) -> None:
    with pytest.raises(SizeError, match=rf"{rule}.*\(test_dynamic\.py:\d+\)"):
        tw.jit(fn, dynamic={"x": {0: "N"}})(np.ones(5, np.float32))


def test_saved_functions(tmp_path: Path) -> None:
    def step(state: Any, x: Any, rate: float, *, mode: str) -> Any:
        return {"w": state["w"] - rate * x.T @ (x @ state["w"]), "rows": x.shape[0], "mode": mode}

    f = tw.jit(step, dynamic={"x": {0: "N"}}, static="mode")
    file = tmp_path / "step.tw"
    state = {"w": rows(1)[0]}
    f.save(file, state, rows(3), 0.1, mode="plain")
    loaded = tw.load(file)
    for n in (1, 5, 40):
        x = rows(n)
        got, want = loaded(state, x, 0.1, mode="plain"), f(state, x, 0.1, mode="plain")
        np.testing.assert_array_equal(got["w"], want["w"])
        assert got["rows"] == n and got["mode"] == "plain"
        ours = loaded({"w": tw.asarray(state["w"])}, x, 0.1, mode="plain")["w"]
        assert isinstance(ours, tw.Array) and ours.tolist() == got["w"].tolist()
    with pytest.raises(InputError, match="was fixed to 'plain'"):
        loaded(state, x, 0.1, mode="other")
    with pytest.raises(InputError, match="input 'rate' must be f32"):
        loaded(state, x, 1j, mode="plain")
    with pytest.raises(InputError, match=r"input 'x' must be f32\[N,8\]"):
        loaded(state, x[:, :7], 0.1, mode="plain")


def test_which_signature_is_saved(tmp_path: Path) -> None:
    f = tw.jit(lambda x: x * 2)
    with pytest.raises(InputError, match="compiled for no arguments yet; say which one to save with example arguments"):
        f.save(tmp_path / "f.tw")
    f(np.ones(3, np.float32))
    f.save(tmp_path / "f.tw")
    assert tw.load(tmp_path / "f.tw")(np.ones(3, np.float32)).tolist() == [2, 2, 2]
    f(np.ones(4, np.float32))
    with pytest.raises(InputError, match="for 2 signatures; say which one"):
        f.save(tmp_path / "f.tw")
    f.save(tmp_path / "f.tw", tw.ones(4))
    assert tw.load(tmp_path / "f.tw")(tw.ones(4)).tolist() == [2] * 4
    with pytest.raises(UnsupportedError, match="static argument of type builtin_function_or_method"):
        tw.jit(lambda x, how: x, static="how").save(tmp_path / "g.tw", np.ones(2), len)
