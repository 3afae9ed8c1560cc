"""`tw.Array` on a GPU, against NumPy and PyTorch: on the fake driver, whose memory the host cannot read, and on a real GPU where there is
one."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.lang as tl
import tilewright.ops as o
from tests.cuda.fake_driver import FakeDriver
from tests.cuda.launching import graph, numbers, put
from tests.fresh import fresh_rng
from tilewright.array.api import elementwise as E
from tilewright.array.cuda import elementwise as kernels
from tilewright.array.cuda import placed as P
from tilewright.core.dtypes import f32
from tilewright.core.errors import ArgumentError, ExecutionError, InputError, UnsupportedError
from tilewright.runtime.cuda import array as device_array
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda.array import Block, DeviceArray

WHY = cuda_driver.available()


# ---- to and from


def test_to_and_from_the_device(gpu: Any) -> None:
    a = numbers(3, 4)
    x = tw.asarray(a).to("cuda")
    assert (x.device, x.shape, x.dtype, x.ndim, x.size, len(x)) == ("cuda", (3, 4), tw.float32, 2, 12, 3)
    assert x.to("cuda") is x and x.to_device("cuda:0") is x
    for back in (x.to("cpu"), tw.asarray(x, device="cpu"), pickle.loads(pickle.dumps(x)).to("cpu")):
        assert back.device == "cpu"
        np.testing.assert_array_equal(back.numpy(), a)
    assert pickle.loads(pickle.dumps(x)).device == "cuda"
    np.testing.assert_array_equal(x.numpy(), a)
    assert x.tolist() == a.tolist() and x[1, 2].item() == a[1, 2] and float(x[0, 0]) == a[0, 0] and bool(x[0, 0] != 0)
    assert [row.tolist() for row in x] == a.tolist() and a[1, 1] in x and 9.0 not in x


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "f8e4m3", "i8", "u16", "i64", "bool", "c64", "c128"])
def test_every_dtype_lies_there(gpu: Any, dtype: str) -> None:
    a = (numbers(4, 6, dtype=np.float32) > 0).astype(np.float32) if dtype == "bool" else np.round(numbers(4, 6))
    host = tw.asarray(a.astype(np.complex64) * 1j if dtype[0] == "c" else np.abs(a)).astype(dtype)
    x = host.to("cuda")
    for view in (lambda x: x, lambda x: x.T, lambda x: x[::-2, 1::2], lambda x: x[1, ...], lambda x: x[2, 3]):
        assert view(x).dtype == host.dtype and view(x).tolist() == view(host).tolist()
    assert x.T.copy().strides == host.T.copy().strides and x.T.copy().tolist() == host.T.tolist()


def test_creation(gpu: Any) -> None:
    made = [tw.zeros((2, 3), device="cuda"), tw.ones((2, 3), "int8", device="cuda"), tw.full((2, 3), 2.5, device="cuda"),
            tw.arange(6, device="cuda"), tw.eye(3, device="cuda"), tw.linspace(0, 1, 5, device="cuda"), tw.array([1, 2], device="cuda")]
    want = [tw.zeros((2, 3)), tw.ones((2, 3), "int8"), tw.full((2, 3), 2.5), tw.arange(6), tw.eye(3), tw.linspace(0, 1, 5),
            tw.array([1, 2])]
    for x, y in zip(made, want, strict=True):
        assert (x.device, x.dtype) == ("cuda", y.dtype) and x.tolist() == y.tolist()
    assert tw.empty((5, 7), "f16", device="cuda").shape == (5, 7) and tw.zeros((0, 3), device="cuda").tolist() == []
    for like, value in ((tw.zeros_like, 0), (tw.ones_like, 1)):
        assert like(made[1]).tolist() == [[value] * 3] * 2 and like(made[1]).device == "cuda" and like(made[1]).dtype == tw.int8
    assert tw.full_like(made[0], 3).tolist() == [[3.0] * 3] * 2
    with pytest.raises(ArgumentError, match="the devices are 'cpu' and 'cuda'"):
        tw.zeros(3, device="tpu")


def test_text(gpu: Any) -> None:
    x = put(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert repr(x) == "Array([[0., 1., 2.],\n       [3., 4., 5.]], device='cuda')" and str(x[0]) == "[0. 1. 2.]"
    assert repr(x.astype("bf16")[0, :2]) == "Array([0, 1], dtype=bfloat16, device='cuda')" and f"{x[1, 1]:.1f}" == "4.0"
    a = np.arange(30 * 41, dtype=np.int32).reshape(30, 41)
    assert repr(put(a)).split(", dtype")[0] == repr(tw.asarray(a)).split(", dtype")[0]  # only what is shown is copied


def test_numpy_copies_nothing_by_itself(gpu: Any) -> None:
    x = put(numbers(3))
    for read in (np.asarray, np.array, memoryview):
        with pytest.raises((TypeError, ArgumentError, UnsupportedError), match="on cuda"):
            read(x)
    assert not hasattr(x, "__array_interface__") and not hasattr(tw.ones(3), "__cuda_array_interface__")
    assert isinstance(np.exp(x), tw.Array) and np.exp(x).device == "cuda"


# ---- views


def test_views_share_memory_and_launch_nothing(gpu: Any) -> None:
    a = numbers(4, 6)
    x = put(a)
    pairs: list[Any] = [
        (x.T, a.T), (x[1], a[1]), (x[::-1, ::2], a[::-1, ::2]), (x[..., None, 3], a[..., None, 3]), (x.reshape(3, 8), a.reshape(3, 8)),
        (x.reshape(2, 2, 6).transpose(1, 0, 2), a.reshape(2, 2, 6).transpose(1, 0, 2)), (x.swapaxes(0, 1), a.swapaxes(0, 1)),
        (x.diagonal(), a.diagonal()), (x[0].expand(5, 6), np.broadcast_to(a[0], (5, 6))), (x.mT, a.T), (x.ravel(), a.ravel()),
        (x.unfold(1, 3), np.lib.stride_tricks.sliding_window_view(a, 3, 1)), (tw.flip(x, axis=1), a[:, ::-1]), (x[2, 3], a[2, 3]),
        (tw.permute_dims(x, (1, 0)), a.T), (tw.squeeze(x[None], 0), a), (tw.moveaxis(x, 0, 1), a.T), (tw.split(x, 2)[1], a[2:]),
        (tw.expand_dims(x, axis=1), a[:, None]), (tw.broadcast_to(x[:, :1], (4, 9)), np.broadcast_to(a[:, :1], (4, 9))),
        (tw.unstack(x)[3], a[3]), (x.view(), a),
    ]
    if gpu is not None:
        assert not gpu.launches
    start = P.of(x).address  # type: ignore[union-attr]
    for view, want in pairs:
        assert view.device == "cuda" and view.shape == want.shape
        assert all(s == t for s, t, n in zip(view.strides, want.strides, want.shape, strict=True) if n != 1)
        assert start <= P.of(view).address < start + a.nbytes  # type: ignore[union-attr]
        np.testing.assert_array_equal(view.numpy(), want)
    np.testing.assert_array_equal(x.T.reshape(-1).numpy(), a.T.reshape(-1))  # this one copies
    for bad, message in ((lambda: x.reshape(5, 5), "reshape: "), (lambda: x[9], "index 9"), (lambda: x.squeeze(0), "size not equal")):
        with pytest.raises((ArgumentError, IndexError, ValueError), match=message):
            bad()


# ---- elementwise functions


def assert_same(got: Any, want: Any, tolerance: float = 2e-6) -> None:
    assert got.device == "cuda" and got.dtype == want.dtype, (got.dtype, want.dtype)
    np.testing.assert_allclose(got.numpy(), want, rtol=tolerance, atol=tolerance)


QUICK = {"exp", "abs", "floor", "isnan", "add", "divide", "floor_divide", "less", "bitwise_and"}  # the others are many


def each(table: Any) -> list[Any]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in table if n not in MISSING]


MISSING = {"cbrt", "i0", "float_power", "gcd", "lcm", "nextafter", "heaviside", "real", "imag", "angle", "conj", "logaddexp2", "fmax",
           "fmin"}


@pytest.mark.parametrize("name", each(E.UNARY))
def test_functions_of_one_array(gpu: Any, name: str) -> None:
    a = numbers(2, 3) / 2.1 + (1.5 if name == "acosh" else 1 if name in ("log", "log2", "log10", "sqrt", "rsqrt") else 0)
    a = a.astype(np.float32) if name != "bitwise_invert" else numbers(2, 3, dtype=np.int32)
    want = getattr(tw, name)(tw.asarray(a.astype(np.float64) if a.dtype.kind == "f" else a)).numpy()  # tested against NumPy by itself
    assert_same(getattr(tw, name)(put(a)), want.astype(want.dtype if want.dtype.kind != "f" else np.float32), 1e-5)


@pytest.mark.parametrize("name", each(E.BINARY))
def test_functions_of_two_arrays(gpu: Any, name: str) -> None:
    whole = name.startswith("bitwise")
    a, b = (numbers(2, 3, dtype=np.int32 if whole else np.float32) for _ in range(2))
    a = np.abs(a) if name == "pow" else a
    want = getattr(tw, name)(tw.asarray(a), tw.asarray(b)).numpy()
    assert_same(getattr(tw, name)(put(a), put(b)), want, 1e-5)
    if not whole:
        ints = [numbers(2, 3, dtype=np.int32) for _ in range(2)]
        want = getattr(tw, name)(*map(tw.asarray, ints)).numpy()
        assert_same(getattr(tw, name)(*map(put, ints)), want, 1e-5)


def test_operators_promote_as_on_the_host(gpu: Any) -> None:
    a, n = numbers(2, 3), numbers(2, 3, dtype=np.int8)
    x, m = put(a), put(n)
    for got, want in ((x + m, a + n), (2 * m + 1, 2 * n + 1), (x > 0.5, a > 0.5), (-x, -a), (abs(x), abs(a)), (m % 3, n % 3), (x**2, a**2),
                      (1 / x, 1 / a), (x == x, a == a), (tw.where(x > 0, x, 0), np.where(a > 0, a, 0)), (m & 3, n & 3), (~m, ~n)):
        assert_same(got, np.asarray(want).astype(got.dtype), 1e-6)
    assert (m + 0.5).dtype == tw.float32 and (m / 2).dtype == tw.float32 and (m + 1).dtype == tw.int8
    assert_same(tw.clip(x, -0.5, 0.5), a.clip(-0.5, 0.5))
    assert_same(tw.clip(m, 2, None), n.clip(2, None))
    assert_same(x.astype("f16"), a.astype(np.float16))
    assert_same(x.astype("f64") * 0.1, a.astype(np.float64) * 0.1, 1e-15)
    assert_same(tw.gelu(x), torch.nn.functional.gelu(torch.tensor(a)).numpy(), 1e-5)
    bf = tw.asarray(a).astype("bf16")
    assert (bf.to("cuda") * 3).tolist() == (bf * 3).tolist()


def test_layouts(gpu: Any) -> None:
    """Operands of every layout, without copies: what is launched is one kernel."""
    rng = fresh_rng()
    a, b = numbers(4, 6, 5), numbers(4, 6, 5)
    x, y = put(a), put(b)
    views: list[Any] = [lambda t: t, lambda t: t.transpose(2, 0, 1), lambda t: t[::-1], lambda t: t[:, ::2], lambda t: t[..., 1:4],
                        lambda t: t[:, :1], lambda t: t[0, 0, 0], lambda t: t.reshape(-1), lambda t: t[2, ::-1], lambda t: t[:, 3, :, None]]
    for _ in range(24):
        f, g = views[rng.integers(len(views))], views[rng.integers(len(views))]
        try:
            want = f(a) - g(b)
        except ValueError:
            with pytest.raises(ArgumentError, match="subtract: the shapes do not broadcast"):
                f(x) - g(y)
            continue
        before = len(gpu.launches) if gpu is not None else 0
        got = f(x) - g(y)
        assert gpu is None or len(gpu.launches) == before + 1
        np.testing.assert_array_equal(got.numpy(), want)


def test_a_new_shape_compiles_nothing(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "run", False)

    def both(n: int, m: int) -> None:
        a = numbers(n, m)
        x = put(a)
        assert ((x + x).shape, (x.T + x[:, 0]).shape) == ((n, m), (m, n))
        assert (tw.zeros(16 * n, device="cuda") + 1).shape == (16 * n,)

    both(67, 65)
    before = kernels._kernel.cache_info().misses
    for n, m in ((68, 67), (71, 69), (66, 71)):
        both(n, m)
    assert kernels._kernel.cache_info().misses == before


def test_rows_that_are_moved_16_bytes_at_a_time(gpu: Any) -> None:
    a = numbers(8, 64)
    for dtype in ("f32", "f16", "i8"):
        x = put(a).astype(dtype)
        host = x.numpy()
        for view in (lambda t: t, lambda t: t[:, 16:48], lambda t: t[:, 3:], lambda t: t[::2], lambda t: t.reshape(-1)[1:]):
            np.testing.assert_array_equal((view(x) + view(x)).numpy(), view(host) + view(host))


def test_rows_that_begin_elsewhere_are_another_plan(gpu: Any) -> None:
    a = numbers(64)
    x = put(a)
    assert_same(x[:32] + x[3], a[:32] + a[3])  # a number that is not aligned, beside rows that are
    assert_same(x[3:35] + x[0], a[3:35] + a[0])


def test_other_functions_are_compiled_for_their_shapes(gpu: Any) -> None:
    a, b = numbers(4, 6), numbers(6, 3)
    x, y = put(a), put(b)
    for got, want in ((tw.sum(x, axis=0), a.sum(0)), (x.mean(), a.mean()), (x.T.max(axis=0), a.T.max(0)), (x @ y, a @ b),
                      (tw.concat([x, x[:2]]), np.concatenate([a, a[:2]])), (tw.softmax(x, axis=1), torch.tensor(a).softmax(1).numpy()),
                      (tw.cumsum(x, axis=1), a.cumsum(1)), (tw.argmax(x, axis=1), a.argmax(1)), (tw.stack([x, x]), np.stack([a, a])),
                      (tw.tril(x), np.tril(a)), (x.sum(), a.sum()), (tw.sort(x, axis=0), np.sort(a, 0))):
        assert_same(got, np.asarray(want), 1e-5)
    with pytest.raises(UnsupportedError, match=r"reshape: on a GPU the order is 'C', got 'F'; transpose before and after"):
        x.reshape(24, order="F")


def test_functions_made_of_others(gpu: Any) -> None:
    a, n = numbers(3, 4), numbers(4, dtype=np.int32)
    x, m = put(a), put(n)
    for got, want in ((tw.roll(x, 2, axis=1), np.roll(a, 2, 1)), (tw.roll(x, -5), np.roll(a, -5)),
                      (tw.tile(x, (2, 1, 3)), np.tile(a, (2, 1, 3))),
                      (tw.repeat(x, 2, axis=0), np.repeat(a, 2, 0)), (tw.repeat(x, put(n[:3]), axis=0), np.repeat(a, n[:3], 0)),
                      (tw.diag(x[0], 1), np.diag(a[0], 1)), (tw.diag(x[0], -2), np.diag(a[0], -2)), (tw.diag(x), np.diag(a)),
                      (x.trace(), np.trace(a)), (tw.count_nonzero(m > 3), np.count_nonzero(n > 3)), (tw.round(x, 1), np.round(a, 1)),
                      (tw.sum(x, dtype="f64"), a.astype(np.float64).sum()), (tw.nonzero(m > 2)[0], np.nonzero(n > 2)[0]),
                      (tw.fmax(x, 0.5), np.fmax(a, 0.5)), (tw.isclose(x, x * 1.000001), np.isclose(a, a * np.float32(1.000001))),
                      (x.conj(), a),
                      (tw.meshgrid(x[0], m)[1], np.meshgrid(a[0], n)[1]), (tw.pad(x, ((1, 0), (0, 2))), np.pad(a, ((1, 0), (0, 2)))),
                      (tw.hstack([x, x]), np.hstack([a, a])), (tw.vstack([x, x[0]]), np.vstack([a, a[0]])), (tw.amax(x, axis=0), a.max(0)),
                      (tw.diff(x), np.diff(a)), (tw.rint(x), np.rint(a)), (tw.degrees(x), np.degrees(a)),
                      (tw.cond(x.sum() > 100, lambda a: a, lambda a: -a, x), -a), (tw.linalg.matrix_norm(x), np.linalg.norm(a)),
                      (tw.fft.rfft(x), np.fft.rfft(a).astype(np.complex64)), (x.astype("c64") * 2j, a.astype(np.complex64) * 2j)):
        assert_same(got, np.asarray(want).astype(got.dtype), 1e-5)
    assert tw.allclose(x, x * 1.000001) and not tw.allclose(x, x + 1) and tw.array_equal(x, x) and not tw.array_equal(x, x[:2])
    key = tw.random.key(3)
    assert tw.random.normal(put(np.asarray(key)), (4,)).tolist() == pytest.approx(tw.random.normal(key, (4,)).tolist())


def test_sessions_give_arrays_for_arrays(gpu: Any) -> None:
    session: Any = tw.compile(graph(lambda x: o.Neg()(x), (f32, (2, 4))), target="cuda")
    a = numbers(2, 4)
    assert_same(session(put(a)), -a)
    assert isinstance(session(a), DeviceArray)


def test_devices_that_differ(gpu: Any) -> None:
    x, here = put(numbers(3)), tw.ones(3)
    for call in (lambda: x + here, lambda: here * x, lambda: tw.where(here > 0, x, x), lambda: x + np.ones(3, np.float32),
                 lambda: tw.concat([x, here]), lambda: tw.softmax(x, here), lambda: x.__iadd__(here), lambda: x.__setitem__(0, here)):  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match=r"lie on different devices, got (f32|bool)\[3\] on cpu"):
            call()
    with pytest.raises(ArgumentError, match=r"jit: .*lambda.*: the arguments lie on different devices, got f32\[3\] on cpu and f32\["):
        tw.jit(lambda a, b: a + b)(x, here)
    assert_same(x + tw.asarray(2.0), x.numpy() + 2)  # one without axes comes by itself


# ---- writes


def test_writes_copy_what_others_hold(gpu: Any) -> None:
    a = numbers(4, 5)
    x = put(a)
    y = x[1:3]
    y[0] = 7
    b = a.copy()[1:3]
    b[0] = 7
    np.testing.assert_array_equal(x.numpy(), a)
    np.testing.assert_array_equal(y.numpy(), b)
    del y
    place = P.of(x).address  # type: ignore[union-attr]
    x[::2, 1:4] = put(np.arange(3, dtype=np.float32))
    a[::2, 1:4] = np.arange(3)
    x[3] = x[0]
    a[3] = a[0]
    x[..., 0] = tw.asarray(5)
    a[..., 0] = 5
    np.testing.assert_array_equal(x.numpy(), a)
    x += 1
    a += 1
    x *= x
    a *= a
    assert P.of(x).address != place  # type: ignore[union-attr]  # x[0] held it once
    place = P.of(x).address  # type: ignore[union-attr]
    x -= 1
    a -= 1
    x /= 2
    a /= 2
    assert P.of(x).address == place  # type: ignore[union-attr]
    np.testing.assert_allclose(x.numpy(), a, rtol=1e-6)
    z = x
    z += 1
    assert x is z
    w = put(np.arange(3))
    with pytest.raises(TypeError, match="setitem: cannot put float32 into int64"):
        w[0] = put(np.float32(1.5).reshape(1))
    with pytest.raises(ArgumentError, match=r"setitem: i64\[3\] does not broadcast to i64\[2\]"):
        w[:2] = put(np.arange(3))
    w.fill(4)
    assert w.tolist() == [4, 4, 4]


def test_index_arrays_and_masks(gpu: Any) -> None:
    a = numbers(5, 4)
    x, rows = put(a), np.array([3, 0, -1])
    for key in (rows, rows.tolist(), (rows, slice(1, 3)), (slice(None), np.array([1, 1])), (rows, np.array([0, 1, 2])), a > 0, a[:, 0] > 0):
        np.testing.assert_array_equal(x[key].numpy(), a[key])
    np.testing.assert_array_equal(x[put(rows)].numpy(), a[rows])
    np.testing.assert_array_equal(x[x > 0].numpy(), a[a > 0])
    with pytest.raises(IndexError, match="index: 5 is out of range for axis 0"):
        x[np.array([0, 5])]
    x[x > 1] = 0
    a[a > 1] = 0
    x[put(np.array([1, 2]))] = 9
    a[[1, 2]] = 9
    np.testing.assert_array_equal(x.numpy(), a)
    np.testing.assert_allclose(x.at[np.array([0, 0, 1])].add(1).numpy(), tw.asarray(a).at[[0, 0, 1]].add(1).numpy(), rtol=1e-6)
    np.testing.assert_array_equal(x.at[1:3].multiply(2).numpy(), tw.asarray(a).at[1:3].multiply(2).numpy())
    np.testing.assert_array_equal(x.at[0].set(1).numpy(), tw.asarray(a).at[0].set(1).numpy())
    np.testing.assert_array_equal(x.numpy(), a)


def test_out(gpu: Any) -> None:
    a = numbers(3)
    out = tw.empty(3, device="cuda")
    assert tw.exp(put(a), out=out) is out
    np.testing.assert_allclose(out.numpy(), np.exp(a), rtol=1e-6)
    with pytest.raises(ArgumentError, match="out: needs an Array of the result's shape on cuda"):
        tw.exp(put(a), out=tw.empty(3))


# ---- lazy


def test_lazy_functions_are_one_kernel(gpu: Any) -> None:
    a, b = numbers(4, 6), numbers(6)
    x, y = put(a), put(b)
    with tw.lazy():
        z = tw.tanh(x * y + 1) / (1 + tw.exp(-x))
        assert (z.shape, z.dtype, z.device) == ((4, 6), tw.float32, "cuda")
        assert gpu is None or not gpu.launches
        assert_same(z, np.tanh(a * b + 1) / (1 + np.exp(-a)), 1e-5)
        assert gpu is None or len(gpu.launches) == 1
        s = (x + 1)
        assert_same(tw.sum(s * 2, axis=0), ((a + 1) * 2).sum(0), 1e-5)
        assert_same(s.T, (a + 1).T)
    assert_same(s, a + 1)


# ---- transforms


def test_transforms(gpu: Any) -> None:
    a, w = numbers(4, 3), numbers(3)
    x, v = put(a), put(w)

    def loss(w: Any, x: Any) -> Any:
        return tw.mean((x @ w - 1) ** 2)

    leaf = torch.tensor(w, requires_grad=True)
    ((torch.tensor(a) @ leaf - 1) ** 2).mean().backward()
    assert_same(tw.grad(loss)(v, x), leaf.grad.numpy(), 1e-5)  # type: ignore[union-attr]
    value, grads = tw.jit(tw.value_and_grad(loss))(v, x.T.copy().T)  # strided operands are made contiguous
    assert value.device == grads.device == "cuda"
    assert_same(tw.vmap(lambda r, w: (r * w).sum(), in_axes=(0, None))(x, v), (a * w).sum(1), 1e-5)
    f = tw.jit(lambda p, g: {"w": p["w"] - 0.5 * g}, donate=0)
    p = {"w": put(w)}
    for _ in range(3):
        p = f(p, tw.ones(3, device="cuda"))
    assert_same(p["w"], w - 1.5, 1e-5)
    assert_same(tw.jit(lambda x: x[0] * 2)(x), a[0] * 2)


def test_kernels_of_users(gpu: Any) -> None:
    @tw.kernel("T[N], T[N] -> T[N]", grid=lambda N, BLOCK: tl.cdiv(N, BLOCK))
    def add(x, y, z, *, BLOCK=128):  # type: ignore[no-untyped-def]
        i = tl.program_id(0)
        z.partition(BLOCK)[i] = x.partition(BLOCK)[i] + y.partition(BLOCK)[i]

    a = numbers(200)
    x, out = put(a), tw.empty(200, device="cuda")
    assert_same(add(x, x), a + a)
    assert_same(add(x[::-1], x), a[::-1] + a)
    assert add(x, x, out=out) is out
    assert_same(out, a + a)
    with pytest.raises(InputError, match=r"kernel add: out must be an Array float32\[200\] on cuda"):
        add(x, x, out=tw.empty(200))
    with pytest.raises(ArgumentError, match="kernel add: the arguments lie on different devices"):
        add(x, tw.asarray(a))


# ---- streams, memory, errors


def test_streams(fake: FakeDriver) -> None:
    a = numbers(8)
    x = put(a)
    with tw.stream(7):
        y = x + 1
        assert fake.streams[-1] == 7 and (7, 0) in fake.waits and (0, 7) in fake.waits  # x goes back to stream 0
        z = tw.sum(y)
        assert fake.streams[-1] == 7
    fake.waits.clear()
    assert_same(y + 1, a + 2)
    assert (0, 7) in fake.waits and (7, 0) in fake.waits
    assert z.to("cuda", stream=9).tolist() == pytest.approx(float((a + 1).sum()), rel=1e-5) and (9, 7) in fake.waits
    assert tw.asarray(a).to("cuda", stream=11).numpy().tolist() == a.tolist()
    tw.synchronize()
    with pytest.raises(ArgumentError, match="a CPU has no streams, got 3"):
        tw.ones(3).to("cpu", stream=3)


def test_memory_is_freed(fake: FakeDriver) -> None:
    x = put(numbers(64))
    y = x + 1
    del y
    before = len(fake.memory.kept)
    for _ in range(5):
        y = (x + 1) * 2 - x  # the number 2 is kept
    assert len(fake.memory.kept) <= before + 3
    del y, x
    held = sum(a.nbytes for a in fake.memory.kept.values())
    many = [tw.zeros(1000, device="cuda") for _ in range(3 * device_array.KEPT)]
    large = tw.empty(1 << 19, device="cuda")
    del many, large  # small blocks are kept for the next result, up to a number
    assert sum(a.nbytes for a in fake.memory.kept.values()) < held + 2 * device_array.KEPT * 4096


def test_memory_of_pytorch_where_it_runs(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    fake.calls.clear()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    known = lambda torch: (lambda: 1, None, partial(device_array._given_to, torch.cuda.caching_allocator_delete))
    monkeypatch.setattr(device_array, "_torch_memory", known)  # not what a PyTorch with CUDA has inside
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", lambda n, d, s: taken.append((n, d, s)) or fake.memory.allocate(n))  # type: ignore[func-returns-value]
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", lambda at: taken.append("back") or fake.memory.free(at))  # type: ignore[func-returns-value]
    block = Block(100, 5)
    assert taken == [(100, 0, 5)] and block.address in fake.memory.kept
    del block
    assert taken[1:] == ["back"] and "cuMemAllocFromPoolAsync" not in fake.calls

    def full(n: int, d: int, s: int) -> int:
        raise RuntimeError("CUDA out of memory. Tried to allocate")

    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", full)
    with pytest.raises(ExecutionError, match=r"cuda: PyTorch's allocator has no memory for 100 bytes \(CUDA out of memory\)"):
        Block(100, 0)


def test_errors_are_found_later_and_name_the_function(gpu: Any) -> None:
    x = put(np.arange(1, 5))
    wrong = x // put(np.array([1, 0, 2, 3]))  # no error yet
    with pytest.raises(ExecutionError, match="floor_divide: integers are not divided by 0, got 2 and 0 at position 1"):
        wrong.numpy()
    assert (x // 2).tolist() == [0, 1, 1, 2]
    x[put(np.array([0, 9]))]
    with pytest.raises(ExecutionError, match=r"index: index out of range, got 9 at position 1|out of range, got 9 at position 1"):
        tw.synchronize()
    tw.synchronize()


def test_a_fault_of_the_driver_names_what_was_started(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    x = put(numbers(4))
    y = tw.exp(x) + 1
    monkeypatch.setattr(fake.library, "cuStreamSynchronize", lambda s: 700)
    with pytest.raises(ExecutionError, match=r"ILLEGAL_ADDRESS .the last functions that were started: exp, add."):
        y.numpy()


# ---- other libraries


class Told:
    """Another library's array with nothing but the CUDA array interface."""

    def __init__(self, x: Any, **more: Any) -> None:
        self.x = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **more}


def test_arrays_of_other_libraries(gpu: Any) -> None:
    a = numbers(4, 6)
    x = put(a)
    theirs = DeviceArray((4, 6), P.dt.f32, x, 0, P.of(x).address)  # type: ignore[attr-defined, union-attr]
    for given in (theirs, Told(x), Told(x[:, ::2])):
        for take in (tw.asarray, *([tw.from_dlpack] if hasattr(given, "__dlpack__") else [])):
            y = take(given)  # type: ignore[arg-type]
            assert y.device == "cuda" and P.of(y).address == P.of(x).address  # type: ignore[union-attr]
            np.testing.assert_array_equal(y.numpy(), a if y.shape == (4, 6) else a[:, ::2])
            y[0] = 1  # memory of others is never written
            np.testing.assert_array_equal(x.numpy(), a)
    assert_same(tw.add(x, theirs), a + a)
    assert x.__dlpack_device__() == (2, 0) and tw.from_dlpack(x[:, 1::2]).tolist() == a[:, 1::2].tolist()
    assert tw.from_dlpack(x[::-1]).tolist() == a[::-1].tolist()  # which is a copy
    with pytest.raises(BufferError, match="negative strides need a copy"):
        x[::-1].__dlpack__(copy=False)
    with pytest.raises(ValueError, match="from one device to another needs a copy"):
        tw.asarray(a, device="cuda", copy=False)


@pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")
def test_pytorch_shares_our_memory() -> None:
    a = numbers(33, 65)
    x = put(a)
    theirs = torch.from_dlpack(x.T)  # type: ignore[attr-defined]
    assert theirs.data_ptr() == P.of(x).address and theirs.stride() == (1, 65)  # type: ignore[union-attr]
    np.testing.assert_array_equal(theirs.cpu().numpy(), a.T)
    back = tw.asarray(theirs * 2)
    assert back.device == "cuda" and torch.equal(x.torch(), theirs.T)
    assert_same(back.T + x, a * 3)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(50):
            y = tw.exp(x) * 2
        z = torch.from_dlpack(y) + 1  # type: ignore[attr-defined]
    side.synchronize()
    torch.testing.assert_close(z.cpu(), torch.tensor(np.exp(a) * 2 + 1))


@pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")
def test_large_arrays_on_a_real_device() -> None:
    rng = fresh_rng()
    a, b = (rng.standard_normal((1000, 1003)).astype(np.float32) for _ in range(2))
    x, y = put(a), put(b)
    assert_same(x.T * 2 + y.T, a.T * 2 + b.T)
    assert_same(x[::3, 1:] - y[:1, ::-1][:, 1:], a[::3, 1:] - b[:1, ::-1][:, 1:])
    assert_same(tw.sum(x, axis=1), a.astype(np.float64).sum(1).astype(np.float32), 1e-3)
    assert_same(tw.ones((1 << 22,), device="cuda") + 1, np.full(1 << 22, 2, np.float32))
