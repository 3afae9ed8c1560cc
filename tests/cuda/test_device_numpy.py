"""Index arrays, masks, statistics, sets and searching of Arrays on a GPU, against NumPy; and calls that host code makes by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.fake_driver import FakeDriver
from tests.cuda.launching import numbers, put
from tests.fresh import fresh_rng
from tilewright.core.errors import ArgumentError, ExecutionError, UnsupportedError

KEYS: list[Callable[[np.random.Generator, Any], Any]] = [
    lambda r, a: r.integers(-4, 4, 7),
    lambda r, a: (slice(1, 3), r.integers(-5, 5, 7)),
    lambda r, a: (r.integers(0, 4, (3, 1)), slice(None), r.integers(0, 6, 2)),
    lambda r, a: (slice(None, None, -1), r.integers(0, 5, 4), slice(0, 4, 2)),
    lambda r, a: a > 0.3,
    lambda r, a: (a[:, 0, 0] > 0, ..., 2),
    lambda r, a: np.zeros(0, np.int64),
    lambda r, a: True,
    lambda r, a: False,
    lambda r, a: (np.array(True), r.integers(0, 4, 3)),
    lambda r, a: (slice(None), False, r.integers(0, 5, 1)),
]


def there(key: Any) -> Any:
    return tuple(map(there, key)) if isinstance(key, tuple) else put(key) if isinstance(key, np.ndarray) else key


@pytest.mark.parametrize("number", range(len(KEYS)))
def test_index_arrays_and_masks(gpu: Any, number: int) -> None:
    a, rng = numbers(4, 5, 6), fresh_rng()
    host = KEYS[number](rng, a)
    for key in (there(host), host):
        x = put(a)
        want = a[host]
        np.testing.assert_array_equal(x[key].numpy(), want)
        b = a.copy()
        b[host] = 2.5
        x[key] = 2.5
        np.testing.assert_array_equal(x.numpy(), b)
        values = rng.standard_normal(want.shape).astype(np.float32)
        added = a.copy()
        np.add.at(added, host, values)
        np.testing.assert_allclose(put(a).at[key].add(put(values)).numpy(), added, rtol=1e-5, atol=1e-5)


def test_index_arrays_out_of_range(gpu: Any) -> None:
    x = put(numbers(4, 5))
    x[put(np.array([0, 1])), put(np.array([1, 5]))]
    with pytest.raises(ExecutionError, match="index: index out of range"):
        tw.synchronize()
    for bad, message in ((lambda: x[np.array([4])], "index: 4 is out of range for axis 0"), (lambda: x[np.array([0.5])], "are integers"),
                         (lambda: x[put(np.zeros((2, 5), np.bool_))], "a mask has the shape"),
                         (lambda: x[np.array([0]), np.array([0]), np.array([0])], "3 indices for f32")):
        with pytest.raises(IndexError, match=message):
            bad()
    with pytest.raises(ArgumentError, match=r"setitem: f32\[3\] does not broadcast to elements of shape \(2, 5\)"):
        x[np.array([0, 1])] = put(numbers(3))


CALLS: dict[str, Callable[[Any, dict[str, Any]], Any]] = {
    "median": lambda f, d: f.median(d["f"], axis=1),
    "percentile": lambda f, d: f.percentile(d["f"], [20, 70], axis=0),
    "histogram": lambda f, d: f.histogram(d["v"], 4),
    "unique": lambda f, d: f.unique(d["i"], return_inverse=True, return_counts=True),
    "searchsorted": lambda f, d: f.searchsorted(f.sort(d["v"]), d["w"], side="right"),
    "interp": lambda f, d: f.interp(d["w"], d["s"], d["v"]),
    "isin": lambda f, d: f.isin(d["i"], d["j"]),
    "setdiff1d": lambda f, d: f.setdiff1d(d["i"], d["j"]),
    "cov": lambda f, d: f.cov(d["f"]),
    "nonzero": lambda f, d: f.nonzero(d["f"] > 0),
    "where": lambda f, d: f.where(d["f"] > 0)[1],
    "kron": lambda f, d: f.kron(d["f"], d["f"][:2]),
    "bincount": lambda f, d: f.bincount(d["i"]),
    "digitize": lambda f, d: f.digitize(d["v"], d["s"]),
    "nanmean": lambda f, d: f.nanmean(d["n"], axis=1),
    "nanmedian": lambda f, d: f.nanmedian(d["n"]),
    "convolve": lambda f, d: f.convolve(d["v"], d["w"], "same"),
    "gradient": lambda f, d: f.gradient(d["f"], axis=1),
    "tensordot": lambda f, d: f.tensordot(d["f"], d["f"], axes=([1], [1])),
    "insert": lambda f, d: f.insert(d["v"], 2, 7.0),
    "delete": lambda f, d: f.delete(d["f"], 1, axis=0),
    "cumsum": lambda f, d: f.cumsum(d["f"]),
    "select": lambda f, d: f.select([d["f"] > 1, d["f"] < 0], [d["f"], d["f"] * 2]),
    "cbrt": lambda f, d: f.cbrt(d["f"]),
    "max": lambda f, d: f.max(d["f"] > 0, axis=0),
    "floor": lambda f, d: f.floor(d["i"]),
    "pad": lambda f, d: f.pad(d["f"], 1),
    "sum": lambda f, d: f.sum(d["f"], dtype=f.float64, axis=1),
    "argmax": lambda f, d: f.argmax(d["f"] > 0, axis=1),
    "round": lambda f, d: f.round(d["f"], 1),
}


def slices(kind: str) -> np.ndarray[Any, Any]:
    """Few distinct slices along every axis; of floats some with NaN, and zeros of both signs."""
    a = fresh_rng().integers(0, 2, (9, 3, 2)) * (np.arange(3)[:, None] == 1)
    if kind == "f":
        a = np.where(a == 1, -0.0, a).astype(np.float32)
        a[4:6, 2, 1], a[7, 0, 0] = np.nan, np.nan
    return a


@pytest.mark.parametrize(("kind", "axis"), [("f", 0), ("i", -1), pytest.param("f", 1, marks=pytest.mark.slow)])
def test_unique_slices(gpu: Any, kind: str, axis: int) -> None:
    a = slices(kind)
    for part in (a, a[:, :, :0], a[:0], a[0, 0]):
        options: dict[str, Any] = dict.fromkeys(("return_index", "return_inverse", "return_counts"), True)
        options["axis"] = axis if part.ndim > 1 else 0
        for x, w in zip(tw.unique(put(part), **options), np.unique(part, **options), strict=True):
            np.testing.assert_array_equal(x.numpy(), w)
    with pytest.raises(ArgumentError, match=r"unique: axis must be in \[-3, 3\), got 3"):
        tw.unique(put(slices(kind)), axis=3)


METHODS = ["inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull", "linear",
           "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest"]


def test_quantiles_of_every_method(gpu: Any) -> None:
    a, q = numbers(2, 5), np.linspace(0, 1, 21)
    x = put(a)
    for method in METHODS:
        want = np.quantile(a, q, axis=1, method=method)  # type: ignore[call-overload]
        np.testing.assert_allclose(tw.quantile(x, q.tolist(), axis=1, method=method).numpy(), want, rtol=1e-5, atol=1e-6)


def test_arguments_are_numpys(gpu: Any) -> None:
    a = numbers(3, 5)
    x = put(a)
    functions: Any = tw
    calls: tuple[Callable[[Any, Any], Any], ...] = (
        lambda m, v: m.sum(v, 1, None, None, True), lambda m, v: m.mean(v, 0, np.float64), lambda m, v: m.max(v, 0, None, True),
        lambda m, v: m.var(v, 0, np.float64, None, 1, True), lambda m, v: m.average(v, 1, v[0] + 3.0, True)[1],
        lambda m, v: m.diff(v, axis=0, prepend=0), lambda m, v: m.gradient(v, axis=1, edge_order=2), lambda m, v: m.tile(v, reps=2))
    for fn in calls:
        made, want = fn(functions, x), fn(np, a)
        assert made.shape == want.shape
        np.testing.assert_allclose(made.numpy(), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsupportedError, match=r"ravel: these arguments are NumPy.s alone and need the elements on the host"):
        functions.ravel(x, order="F")


def test_quantiles_over_axes(gpu: Any) -> None:
    a = numbers(2, 5, 3)
    a[1, 2, 0] = np.nan
    x, q = put(a), np.linspace(0, 1, 6).reshape(2, 3)
    for axis, keepdims in ((1, False), ((0, 2), True)):
        want = np.quantile(a, q, axis=axis, keepdims=keepdims, method="hazen")
        np.testing.assert_allclose(tw.quantile(x, put(q), axis=axis, keepdims=keepdims, method="hazen").numpy(), want, rtol=1e-5, atol=1e-6)
    want = np.percentile(a[0], 37.0, method="weibull")
    assert tw.percentile(x[0], 37.0, method="weibull").item() == pytest.approx(float(want), rel=1e-5)


def test_quantiles_that_are_refused(gpu: Any) -> None:
    x = put(numbers(5))
    with pytest.raises(ArgumentError, match=r"quantile: the method is one of linear, .*, got 'cubic'"):
        tw.quantile(x, 0.5, method="cubic")
    for bad in (1.5, -0.1, float("nan")):
        with pytest.raises(ArgumentError, match="quantile: quantiles are 0 to 1, got "):
            tw.quantile(x, bad)


def test_gradients_of_uneven_steps(gpu: Any) -> None:
    a, at = numbers(4, 5), [np.sort(numbers(n)) * 3 for n in (4, 5)]
    x, there = put(a), [put(v) for v in at]
    for got, want in zip(tw.gradient(x, *there), np.gradient(a, *at), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tw.gradient(x, there[1], axis=1).numpy(), np.gradient(a, at[1], axis=1), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(tw.gradient(x, 2.0, there[1])[1].numpy(), np.gradient(a, 2.0, at[1])[1], rtol=1e-4, atol=1e-4)
    for row in ([1.0, 1e20, 3.0, np.nan, 2.0], [np.inf, 2.0], [1.0, 2.0, np.inf, 4.0, 5.0]):  # even steps leave out the middle
        v = np.array(row, np.float32)
        for h in (0.5, np.arange(len(v), dtype=np.float32) * 0.5, np.arange(1, len(v) + 1, dtype=np.float32) ** 2):
            got = tw.gradient(put(v), h if isinstance(h, float) else put(h))
            np.testing.assert_allclose(got.numpy(), np.gradient(v, h), rtol=1e-5)
    for spacing, message in (((1.0, 2.0, 3.0), "needs one spacing, or one for each axis, got 3 for 2"),
                             ((1.0, there[0]), r"coordinates have the length of their axis, got f32\[4\] for 5")):
        with pytest.raises(ArgumentError, match=f"gradient: {message}"):
            tw.gradient(x, *spacing)


OFTEN = {"median", "histogram", "unique", "searchsorted", "nonzero", "bincount", "nanmean", "tensordot", "delete", "cumsum", "max",
         "floor", "pad", "sum", "argmax", "round"}


@pytest.mark.parametrize("name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in CALLS])
def test_functions_of_numpy(gpu: Any, name: str) -> None:
    rng = fresh_rng()
    given: dict[str, Any] = {"f": numbers(4, 5), "v": numbers(9), "w": numbers(6), "i": rng.integers(0, 6, 12), "j": rng.integers(0, 6, 4)}
    given["s"], given["n"] = np.sort(given["v"]), np.where(given["f"] > 0, given["f"], np.nan).astype(np.float32)
    given["n"][:, 0] = 1
    placed, want = {k: put(v) for k, v in given.items()}, CALLS[name](np, given)
    first, second = CALLS[name](tw, placed), CALLS[name](tw, placed)  # the second time by what the first has left
    first, second, want = (x if isinstance(x, (list, tuple)) else (x,) for x in (first, second, want))
    for x, w in zip((*first, *second), (*want, *want), strict=True):
        assert x.device == "cuda" and x.dtype.kind == np.asarray(w).dtype.kind
        np.testing.assert_allclose(x.numpy(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [3, 16, 17, 100, 128, 129, 513, 2049])
def test_rows_of_every_class_of_lengths(gpu: Any, length: int) -> None:
    """A thread's, a warp's or a block's; columns of as many rows."""
    a = numbers(5, length)
    for x, b in ((put(a), a), (put(a).T, a.T)):
        for axis in (0, 1):
            np.testing.assert_allclose(tw.sum(x, axis=axis).numpy(), b.sum(axis), rtol=1e-4, atol=1e-4)
            np.testing.assert_array_equal(tw.max(x, axis=axis).numpy(), b.max(axis))
    alone = tw.sum(put(a[2:3]), axis=1).numpy()
    np.testing.assert_array_equal(tw.sum(put(a), axis=1).numpy()[2:3], alone)


def test_known_calls_do_not_enter_the_interpreter(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(3, 5), numbers(3, 5)
    x, y = put(a), put(b)
    calls: list[tuple[Callable[[], Any], Any]] = [
        (lambda: x + y, a + b), (lambda: x * 2.5, a * np.float32(2.5)), (lambda: 3 - x, 3 - a), (lambda: x < y, a < b), (lambda: -x, -a),
        (lambda: tw.exp(x), np.exp(a)), (lambda: tw.where(x > y, x, y), np.maximum(a, b)), (lambda: tw.sum(x, axis=1), a.sum(1)),
        (lambda: x.max(), a.max()), (lambda: x.astype(tw.float64), a.astype(np.float64)),
        (lambda: x[:, ::2] + y[:, 1:4], a[:, ::2] + b[:, 1:4]), (lambda: x @ y.T, a @ b.T), (lambda: tw.argmax(x, axis=1), a.argmax(1)),
        (lambda: tw.softmax(x), np.exp(a) / np.exp(a).sum(-1, keepdims=True)), (lambda: x.T.copy(), a.T)]
    for call, _ in calls:
        call()
    entered: list[str] = []
    from tilewright.array.cuda import calls as python

    for name in ("run", "quick"):
        monkeypatch.setattr(python, name, lambda *args, **kwargs: entered.append(args[0]))
    for call, want in calls:
        np.testing.assert_allclose(call().numpy(), want, rtol=1e-5, atol=1e-6)
    assert not entered and fake.native
    monkeypatch.undo()
    z, held = x + 0.5, x + 0.5
    z += y
    z += y  # takes the result of the operator
    np.testing.assert_allclose(z.numpy(), a + 0.5 + b + b, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(held.numpy(), a + 0.5, rtol=1e-6)


def test_views_writes_and_new_arrays_do_not_enter_the_interpreter(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.array import arrays
    from tilewright.array.cuda import calls as python

    a = numbers(4, 6)
    x, one = put(a), put(numbers(6))
    b, y = one.numpy(), x + 0.5  # y has no header yet

    def writes(x: Any, y: Any, b: Any) -> Any:
        x[0] = 2.0
        x[-1] = b
        x[1:3] = 7
        x[...] = y
        x[::2] = 1.5
        return x

    views: list[Callable[[Any], Any]] = [
        lambda x: x.T, lambda x: x[1], lambda x: x[1:3], lambda x: x[::-1, None, 2], lambda x: x[..., 0], lambda x: x.reshape(6, 4),
        lambda x: x.reshape((2, -1)), lambda x: x.transpose(1, 0), lambda x: x.swapaxes(0, 1), lambda x: x[None].squeeze(0), lambda x: x.mT,
        lambda x: x.diagonal(1), lambda x: x.expand(2, 4, 6) if isinstance(x, tw.Array) else np.broadcast_to(x, (2, 4, 6)),
        lambda x: (tw if isinstance(x, tw.Array) else np).flip(x, axis=1), lambda x: x.view(), lambda x: x[1].reshape(3, 2)[2]]  # fmt: skip
    makers: list[tuple[Callable[[], Any], Any]] = [
        (lambda: tw.zeros((2, 3), device="cuda"), np.zeros((2, 3))), (lambda: tw.zeros(4, device="cuda"), np.zeros(4)),
        (lambda: tw.ones((1 + 1, 2), dtype=tw.float16, device="cuda"), np.ones((2, 2))),
        (lambda: tw.full((3,), 2.5, device="cuda"), np.full(3, 2.5)), (lambda: tw.zeros((2, 2), tw.int32, device="cuda"), np.zeros((2, 2)))]
    z = put(a)
    for _ in range(2):
        writes(z, x, one)
        for make, _want in makers:
            make()
    entered: list[str] = []
    for name in ("run", "quick", "taken", "put", "reshape", "create"):
        monkeypatch.setattr(python, name, lambda *args, _name=name, **kwargs: entered.append(_name))
    monkeypatch.setattr(arrays, "attribute", lambda x, name: entered.append(name))
    for source in (x, y):
        for view in views:
            made = view(source)
            assert type(made) is tw.Array and made.shape == view(source.numpy()).shape and made.dtype == np.float32
            np.testing.assert_array_equal(made.numpy(), view(source.numpy()))
    made_here = [(make().numpy(), want) for make, want in makers]
    after = writes(z, x, one)
    assert not entered and fake.native
    monkeypatch.undo()
    for got, want in made_here:
        np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(after.numpy(), writes(a.copy(), a, b))
    held, row = z.view(), z[0]
    z[0] = 2.0  # others hold the memory: a copy, and nobody sees the write
    z[1] = 3.0
    assert z[0, 0].item() == 2 and held[0, 0].item() == 1.5 == row[0].item() and z[1, 0].item() == 3
    w = x + 1.0
    w[0] = 2.0
    w[0] = w[1]
    np.testing.assert_allclose(w.numpy(), np.concatenate([a[1:2], a[1:]]) + 1, rtol=1e-6)
    with pytest.raises(IndexError):
        x[9]
    with pytest.raises(IndexError):
        x[9] = 1.0
    assert (x.device, x.T.device, x[0, 0].device) == ("cuda", "cuda", "cuda") and x[0, 0].shape == ()


def test_known_calls_on_other_streams(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.array.cuda import calls as python

    a = numbers(3, 5)
    x = put(a)
    call = lambda v: tw.exp(v) * 2.5 - v
    zeros = lambda: tw.zeros((2, 3), device="cuda")
    with tw.stream(7):
        y = x + 0.0
        call(y), zeros()
        entered: list[str] = []
        for name in ("run", "quick", "create"):
            monkeypatch.setattr(python, name, lambda *args, _name=name, **kwargs: entered.append(_name))
        fake.streams.clear()
        fake.waits.clear()
        made, nothing = call(y), zeros()
        assert not entered and set(fake.streams) == {7} and not fake.waits
        monkeypatch.undo()
        y[0] = 1.0
        y[0] = 1.0
    b = np.concatenate([np.ones_like(a[:1]), a[1:]])
    np.testing.assert_allclose(made.numpy(), np.exp(a) * 2.5 - a, rtol=1e-5)
    np.testing.assert_allclose(y.numpy(), b, rtol=1e-6)
    assert nothing.tolist() == [[0] * 3] * 2
    np.testing.assert_allclose((made + x).numpy(), np.exp(a) * 2.5, rtol=1e-5)  # x is of the default stream, made of 7: one waits
    assert (0, 7) in fake.waits
    before = len(fake.memory.kept)
    for _ in range(5):
        with tw.stream(7):
            call(y)
    tw.synchronize()
    assert len(fake.memory.kept) <= before + 1


def test_known_calls_with_numbers_that_are_alike(gpu: Any) -> None:
    x = put(np.array([1.0, -2.0], np.float32))
    for _ in range(3):
        assert (x * 0.0).tolist() == [0.0, -0.0] and str((x * -0.0).numpy()[0]) == "-0.0" and (x + 1).tolist() == [2.0, -1.0]
        assert (x + 1.5).tolist() == [2.5, -0.5] and (x + True).tolist() == [2.0, -1.0]
    i = put(np.array([1, 2]))
    for _ in range(3):
        assert (i + 1).dtype == tw.int64 and (i + 1.0).dtype == tw.float32 and (i / 2).tolist() == [0.5, 1.0]
        wrong = i // 0
        with pytest.raises(ExecutionError, match="floor_divide: integers are not divided by 0"):
            wrong.numpy()
    with tw.lazy():
        y = x + 1
    assert y.tolist() == [2.0, -1.0]


def test_plans_that_are_forgotten_are_made_again(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.array.cuda import direct

    monkeypatch.setattr(direct, "PLANS", 3)
    a = numbers(4)
    x = put(a)
    for _ in range(2):
        for k in range(8):
            np.testing.assert_allclose((x + (k + 0.5)).numpy(), a + np.float32(k + 0.5), rtol=1e-6)
    assert len(direct._plans) <= 3
