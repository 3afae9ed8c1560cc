"""Kernels that training needs, in the emulator, against PyTorch in f64: norms' backward pass, sums of columns, rows added at indices."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as tf

import tilewright as tw
import tilewright.ops as o
import tilewright.ops.functions as F
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, f16, f32, i64
from tilewright.kernels.matmul.cuda import tiled as products
from tilewright.kernels.rows.cuda import reduce
from tilewright.ops.index.weighted import grid_sample
from tilewright.transform.vjp import pull_back

TOLERANCE = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}


def floats(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.np)


def close(got: Any, want: Any, dtype: DType, bound: float = 0.0) -> None:
    wide = np.asarray(want, np.float64)
    assert np.linalg.norm(got.astype(np.float64) - wide) <= (bound or TOLERANCE[dtype.name]) * np.linalg.norm(wide)


def wide(x: Any) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64)).requires_grad_()


@pytest.mark.parametrize("case", [(f32, 37, 67, True), (bf16, 70, 264, True), (f16, 33, 96, False)], ids=str)
def test_norm_backward(case: tuple[DType, int, int, bool], rng: np.random.Generator) -> None:
    dtype, rows, n, centred = case
    x, w, g = floats(rng, dtype, rows, n), floats(rng, dtype, n), floats(rng, dtype, rows, n)
    op = o.NormBackward(affine="both" if centred else "weight", centred=centred)
    made = Emulated(graph(lambda *v: op(*v), (dtype, x.shape), (dtype, w.shape), (dtype, g.shape)))
    assert len(made.program.launches) == 2
    leaves = [wide(x), wide(w), *([torch.zeros(n, dtype=torch.float64, requires_grad=True)] if centred else [])]
    y = tf.layer_norm(leaves[0], (n,), leaves[1], leaves[-1], 1e-5) if centred else tf.rms_norm(leaves[0], (n,), leaves[1], 1e-5)
    for got, want in zip(made(x, w, g), torch.autograd.grad(y, leaves, wide(g).detach()), strict=True):
        close(got, want.numpy(), dtype)


@pytest.fixture(params=[True, False], ids=["few elements", "as it is"])
def tiles(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of few elements make many chunks of small arrays."""
    if request.param:
        for name, value in {"WARPS": 1, "BYTES": 1, "SMALL": 1, "LEAST": 1}.items():
            monkeypatch.setattr(reduce, name, value)


def test_many_rows_of_a_norm_are_shared_by_blocks(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WARPS": 1, "BYTES": 1, "SMALL": 1, "LEAST": 1}.items():
        monkeypatch.setattr(reduce, name, value)
    x, w, g = floats(rng, f32, 150, 67), floats(rng, f32, 67), floats(rng, f32, 150, 67)
    made = Emulated(graph(lambda *v: o.NormBackward(affine="both")(*v), *((f32, v.shape) for v in (x, w, g))))
    assert len(made.program.launches) == 3
    leaves = [wide(x), wide(w), torch.zeros(67, dtype=torch.float64, requires_grad=True)]
    y = tf.layer_norm(leaves[0], (67,), leaves[1], leaves[2], 1e-5)
    for got, want in zip(made(x, w, g), torch.autograd.grad(y, leaves, wide(g).detach()), strict=True):
        close(got, want.numpy(), f32)


@pytest.mark.parametrize("case", [(f32, (300, 33)), (bf16, (5, 16, 264)), (f16, (64, 8))], ids=str)
def test_column_sums(case: tuple[DType, tuple[int, ...]], rng: np.random.Generator) -> None:
    """With elementwise work before the sum, whose result is wanted too, and after it."""
    dtype, shape = case
    axes = tuple(range(len(shape) - 1))

    def build(x: Any, y: Any) -> Any:
        product = o.Mul()(x, y)
        return product, o.Cast(dtype=f32)(o.Sum(axes=axes)(product))

    x, y = floats(rng, dtype, *shape), floats(rng, dtype, *shape)
    made = Emulated(graph(build, (dtype, shape), (dtype, shape)))
    assert [n.kernel.name[:9] for n in made.program.launches] [:1] == ["sum_tiles"]
    product, total = made(x, y)
    exact = x.astype(np.float64) * y.astype(np.float64)
    close(product, exact, dtype)
    close(total, exact.sum(axes), dtype)


def test_column_sums_of_a_batch_that_may_be_empty(rng: np.random.Generator) -> None:
    made = Emulated(graph(lambda x: o.Sum(axes=(1,))(x), (f32, (sym("N", 0, 9), 70, 33))))
    for n in (0, 3):
        x = floats(rng, f32, n, 70, 33)
        (got,) = made(x)
        assert got.shape == (n, 33)
        close(got, x.sum(1, dtype=np.float64), f32)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_rows_added_at_indices(dtype: DType, rng: np.random.Generator) -> None:
    table, ids = floats(rng, dtype, 11, 33), rng.integers(0, 11, (5, 9))
    ids[0] = 3  # many of one kind
    updates = floats(rng, dtype, 5, 9, 33)
    made = Emulated(graph(lambda *v: o.ScatterAdd()(*v), (dtype, (11, 33)), (i64, (5, 9)), (dtype, (5, 9, 33))))
    (got,) = made(table, ids, updates)
    want = table.astype(np.float64)
    np.add.at(want, ids, updates.astype(np.float64))
    close(got, want, dtype)
    assert not made.errors.any()
    ids[2, 3] = 11
    made(table, ids, updates)
    assert list(made.errors[2:]) == [21, 11]


# chip, dtype, batch, channels, sizes, results, taps, stride, padding, dilation, groups, and what a launch's note says
WEIGHTS: list[tuple[Any, ...]] = [
    ("sm_90a", bf16, 2, 64, (4, 5), 64, (2, 2), (1, 1), (1, 1), (1, 1), 1, "windows"),
    ("sm_90a", bf16, 3, 72, (6, 5), 60, (2, 1), (1, 2), (2, 0), (2, 1), 1, "windows"),
    ("sm_90a", f16, 5, 20, (30, 17), 140, (3, 3), (3, 2), (2, 1), (2, 1), 1, "pixels in"),
    ("sm_90a", bf16, 2, 24, (7, 9), 48, (3, 3), (1, 1), (1, 1), (1, 1), 6, "6 of 6 groups"),
    ("sm_90a", bf16, 2, 192, (5, 4), 384, (2, 3), (1, 2), (0, 1), (1, 1), 3, "1 of 3 groups"),
    ("sm_90a", f16, 1, 160, (33,), 80, (3,), (1,), (1,), (1,), 10, "2 of 10 groups"),
    ("sm_90a", f32, 3, 68, (9, 11), 84, (3, 3), (1, 2), (1, 0), (1, 1), 1, "two bf16"),
    ("sm_90a", f32, 2, 24, (9, 11), 16, (1, 1), (1, 1), (0, 0), (1, 1), 1, "tf32"),
    ("sm_90a", f32, 2, 3, (30, 22), 24, (5, 4), (2, 2), (2, 1), (1, 1), 1, "two bf16"),
    ("sm_90a", f32, 2, 24, (7, 9), 24, (3, 3), (1, 1), (1, 1), (1, 1), 3, "two bf16"),
    ("sm_80", f16, 2, 24, (81,), 40, (5,), (2,), (2,), (1,), 1, ""),
    ("sm_120", f32, 2, 20, (14, 15), 36, (2, 3), (1, 2), (0, 1), (2, 1), 2, ""),
    ("sm_90a", bf16, 2, 3, (25, 30), 40, (5, 3), (2, 2), (2, 1), (1, 1), 1, "pixels in"),
    ("sm_80", bf16, 1, 130, (9, 8), 9, (1, 1), (1, 1), (0, 0), (1, 1), 1, ""),
    ("sm_90a", bf16, 2, 16, (5, 9, 8), 8, (2, 3, 1), (1, 1, 2), (1, 1, 0), (1, 1, 1), 1, ""),
]  # fmt: skip


@pytest.mark.parametrize("case", WEIGHTS, ids=str)
def test_gradients_of_convolution_weights(case: tuple[Any, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "MOST_PARTS", 2)  # sums of more are added by whole blocks
    chip, dtype, batch, channels, sizes, results, taps, stride, padding, dilation, groups, note = case
    conv = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation, groups=groups)
    x, w = floats(rng, dtype, batch, channels, *sizes), floats(rng, dtype, results, channels // groups, *taps)
    leaves = [wide(x), wide(w)]
    op: Any = (tf.conv1d, tf.conv2d, tf.conv3d)[len(sizes) - 1]
    y = op(*leaves, stride=stride, padding=padding, dilation=dilation, groups=groups)
    g = floats(rng, dtype, *y.shape)

    def build(x: Any, w: Any, g: Any) -> Any:
        return conv.vjp((x, w), (conv(x, w),), (g,), (False, True))[1]

    features = ("tf32-conv",) if dtype is f32 and chip == "sm_90a" else ()
    made = Emulated(graph(build, (dtype, x.shape), (dtype, w.shape), (dtype, g.shape)), chip, features=features)
    kinds = ("conv_weight_gradient", "conv_window_gradient")
    assert any(launch.kernel.name.startswith(kinds) and note in launch.note for launch in made.program.launches)
    (got,) = made(x, w, g)
    bound = 1e-5 if "two" in note else 1e-3 if "tf32" in note else 0.0
    close(got, torch.autograd.grad(y, leaves, wide(g).detach())[1].numpy(), dtype, bound)


# dtype, batch, channels, sizes, taps, stride, dilation, padding
DEPTHWISE: list[tuple[Any, ...]] = [
    (bf16, 3, 40, (9, 21), (3, 3), (1, 1), (1, 1), (1, 1)), (f32, 1, 4, (40,), (5,), (2,), (1,), (0,)),
    (f16, 2, 3, (11, 14), (7, 7), (1, 2), (1, 1), (3, 2)), (bf16, 2, 66, (70,), (9,), (1,), (2,), (8,)),
    (f32, 2, 2, (5, 6, 7), (2, 1, 3), (1, 1, 1), (2, 1, 1), (1, 0, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_gradients_of_depthwise_weights(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    dtype, batch, channels, sizes, taps, stride, dilation, padding = case
    x, w = floats(rng, dtype, batch, channels, *sizes), floats(rng, dtype, channels, 1, *taps)
    leaves = [wide(x), wide(w)]
    torch_op: Any = (tf.conv1d, tf.conv2d, tf.conv3d)[len(sizes) - 1]
    y = torch_op(*leaves, stride=stride, padding=padding, dilation=dilation, groups=channels)
    g = floats(rng, dtype, *y.shape)
    op = o.TapProducts(kernel=taps, stride=stride, dilation=dilation, padding=tuple((p, p) for p in padding))
    made = Emulated(graph(lambda *v: op(*v), (dtype, x.shape), (dtype, g.shape)))
    (got,) = made(x, g)
    assert got.shape == (channels, *taps)
    close(got[:, None], torch.autograd.grad(y, leaves, wide(g).detach())[1].numpy(), dtype)


@pytest.mark.parametrize("case", DEPTHWISE, ids=str)
def test_gradients_of_depthwise_weights_channels_last(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Sums of columns, whatever the number of axes, in one launch or two."""
    dtype, batch, channels, sizes, taps, stride, dilation, padding = case
    x, w = floats(rng, dtype, batch, channels, *sizes), floats(rng, dtype, channels, 1, *taps)
    leaves = [wide(x), wide(w)]
    torch_op: Any = (tf.conv1d, tf.conv2d, tf.conv3d)[len(sizes) - 1]
    y = torch_op(*leaves, stride=stride, padding=padding, dilation=dilation, groups=channels)
    g = floats(rng, dtype, *y.shape)
    first = (0, len(sizes) + 1, *range(1, len(sizes) + 1))

    def build(*v: Any) -> Any:
        op = o.TapProducts(kernel=taps, stride=stride, dilation=dilation, padding=tuple((p, p) for p in padding))
        return op(*(o.Transpose(perm=first)(u) for u in v))

    given = [np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (x, g)]
    made = Emulated(graph(build, *((dtype, v.shape) for v in given)))
    assert len(made.program.launches) == 2, "nothing is copied"
    close(made(*given)[0][:, None], torch.autograd.grad(y, leaves, wide(g).detach())[1].numpy(), dtype)


# dtype, sizes, kernel, stride, padding, dilation
POOLS: list[tuple[Any, ...]] = [
    (f32, (2, 3, 11, 14), (3, 3), (2, 2), (1, 1), (1, 1)), (bf16, (1, 40, 9), (2,), (3,), (0,), (2,)),
    (f32, (2, 5, 6, 7), (2, 3, 1), (1, 1, 1), (1, 1, 0), (1, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("case", POOLS, ids=str)
def test_max_pool_backward(case: tuple[Any, ...], last: bool, rng: np.random.Generator) -> None:
    """Overlapping windows, gaps between them, and a result that another reads channels last."""
    dtype, shape, kernel, stride, padding, dilation = case
    n, x = len(kernel), wide(floats(rng, dtype, *shape))
    y, indices = (tf.max_pool1d, tf.max_pool2d, tf.max_pool3d)[n - 1](x, kernel, stride, padding, dilation, return_indices=True)
    g = floats(rng, dtype, *y.shape)
    op = o.MaxPoolBackward(sizes=shape[-n:], kernel=kernel, stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation)
    order = (0, *range(2, len(shape)), 1)

    def build(g: Any, i: Any) -> Any:
        return o.Transpose(perm=order)(op(g, i)) if last else op(g, i)

    made = Emulated(graph(build, (dtype, g.shape), (i64, indices.shape)))
    assert made.program.launches[0].kernel.name.startswith("max_pool_backward")
    (got,) = made(g, indices.numpy())
    want = torch.autograd.grad(y, x, wide(g).detach())[0].numpy()
    close(got, want.transpose(order) if last else want, dtype)


def test_max_pool_backward_of_any_number_of_elements(rng: np.random.Generator) -> None:
    """A batch without a limit may have more elements than 32 bits count."""
    op = o.MaxPoolBackward(sizes=(9,), kernel=(3,), stride=(1,), padding=((1, 1),), dilation=(1,))
    n, x = sym("N", 1), wide(floats(rng, f32, 5, 9))
    y, indices = tf.max_pool1d(x, 3, 1, 1, return_indices=True)
    g = floats(rng, f32, 5, 9)
    made = Emulated(graph(lambda *v: op(*v), (f32, (n, 9)), (i64, (n, 9))))
    assert re.search(r"\bdiv\b.*i64", str(made.program.launches[0].kernel))
    close(made(g, indices.numpy())[0], torch.autograd.grad(y, x, wide(g).detach())[0].numpy(), f32)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_batch_norm_in_training(dtype: DType, rng: np.random.Generator) -> None:
    """Statistics are computed once, weights are widened where they are read, and nothing whole is stored between the passes."""
    shape, axes = (3, 6, 5, 7), (0, 2, 3)
    x, w, g = floats(rng, dtype, *shape), floats(rng, dtype, 6), floats(rng, dtype, *shape)

    def build(x: Any, w: Any, g: Any) -> Any:
        xf, gf = (o.Cast(dtype=f32)(v) for v in (x, g))
        column = o.Reshape(shape=(6, 1, 1))
        mean, kept = o.Mean(axes=axes)(xf), o.Mean(axes=axes, keepdims=True)(xf)
        scale = o.Rsqrt()(F.add(o.Mean(axes=axes)(o.Square()(o.Sub()(xf, kept))), 1e-5))
        normal = o.Mul()(o.Sub()(xf, column(mean)), column(scale))
        first, second = o.Sum(axes=axes)(gf), o.Sum(axes=axes)(o.Mul()(gf, normal))
        count = float(np.prod(shape) // 6)
        inner = o.Sub()(o.Sub()(gf, F.div(column(first), count)), o.Mul()(normal, F.div(column(second), count)))
        return o.Cast(dtype=dtype)(o.Mul()(inner, o.Mul()(column(o.Cast(dtype=f32)(w)), column(scale)))), second

    made = Emulated(graph(build, (dtype, shape), (dtype, (6,)), (dtype, shape)))
    sizes = [b.nbytes for launch in made.program.launches for b in launch.writes if b.kind == "temp"]
    assert max(sizes) <= 6 * 4 and len(made.program.launches) <= 9
    leaves = [wide(x), wide(w)]
    y = tf.batch_norm(leaves[0], None, None, leaves[1], None, training=True)
    for got, want in zip(made(x, w, g), torch.autograd.grad(y, leaves, wide(g).detach()), strict=True):
        close(got, want.numpy(), dtype)


def test_a_result_on_an_operand_of_a_kernel_of_several_results(rng: np.random.Generator) -> None:
    """The first result takes the memory of an operand that only the second one needs: everything is read before anything is written."""

    def build(a: Any, c: Any, x: Any) -> Any:
        sums, wide = o.CumSum(axis=0)(a), o.Cast(dtype=f32)(x)
        total = o.Add()(sums, o.Mul()(wide, c))
        return o.CumSum(axis=0)(total), o.CumSum(axis=0)(wide)

    a, c, x = floats(rng, f32, 24, 40), floats(rng, f32, 24, 40), floats(rng, bf16, 24, 40)
    with fake_gpu():
        session: Any = tw.compile(graph(build, (f32, a.shape), (f32, c.shape), (bf16, x.shape)), target="cuda")
        first, second = (y.numpy() for y in session(a, c, x))
    assert first.shape == second.shape == a.shape
    total = np.cumsum(a.astype(np.float64), 0) + x.astype(np.float64) * c
    close(first, np.cumsum(total, 0), f32)
    close(second, np.cumsum(x.astype(np.float64), 0), f32)


def last(x: Any) -> Any:
    """[N, spatial…, C] as [N, C, spatial…]."""
    rank = len(x.shape)
    return o.Transpose(perm=(0, rank - 1, *range(1, rank - 1)))(x)


@pytest.mark.parametrize("case", [
    (bf16, (3, 24, 9, 7), True), (f32, (2, 33, 5, 6), True), (f32, (3, 5, 7, 9), False), (bf16, (40, 70), False),
    (f16, (2, 3, 600), False), (bf16, (2, 8, 3, 5, 4), True), (f32, (700, 3, 1, 1), True),
], ids=str)  # fmt: skip
def test_batch_norm_statistics(case: tuple[DType, tuple[int, ...], bool], rng: np.random.Generator, tiles: None) -> None:
    """Mean and variance in one sweep, also of values far from zero, and what is computed from them in its second launch."""
    dtype, shape, is_last = case
    stored = (shape[0], *shape[2:], shape[1]) if is_last else shape

    def build(x: Any, running: Any) -> Any:
        mean, var = o.Moments()(o.Cast(dtype=f32)(last(x) if is_last else x))
        return mean, o.Rsqrt()(o.Add()(var, F.full(x.node.graph, (), 1e-5, f32))), o.Add()(o.Mul()(running, mean), var)

    made = Emulated(graph(build, (dtype, stored), (f32, shape[1:2])))
    assert 1 <= len(made.program.launches) <= 2 and all("moments" in x.kernel.name for x in made.program.launches)
    x = (rng.standard_normal(stored) * (1.0 if dtype is not f32 else 1e-2) + (3.0 if dtype is not f32 else 50.0)).astype(dtype.np)
    x.reshape(-1, stored[-1])[0, 0] = 64.0  # the element around which a chunk is summed is an outlier
    running = rng.standard_normal(shape[1]).astype(np.float32)
    wide = x.astype(np.float64)
    wide = np.moveaxis(wide, -1, 1) if is_last else wide
    axes = (0, *range(2, len(shape)))
    mean, var = wide.mean(axes), wide.var(axes)
    got = made(x, running)
    np.testing.assert_allclose(got[0], mean, rtol=2e-6)
    np.testing.assert_allclose(got[1], 1 / np.sqrt(var + 1e-5), rtol=2e-4)
    np.testing.assert_allclose(got[2], running * mean + var, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("case", [((3, 24, 9, 7), (True, True)), ((2, 33, 5, 6), (True, False)), ((3, 5, 7, 9), (False, False))], ids=str)
def test_sums_of_channels_together(case: tuple[tuple[int, ...], tuple[bool, bool]], rng: np.random.Generator, tiles: None) -> None:
    """Two sums of two operands in one sweep, whatever their order in memory."""
    shape, order = case
    stored = [(shape[0], *shape[2:], shape[1]) if is_last else shape for is_last in order]

    def build(x: Any, y: Any, mean: Any) -> Any:
        x, y = (o.Cast(dtype=f32)(last(v) if is_last else v) for v, is_last in zip((x, y), order, strict=True))
        centred = o.Sub()(y, o.Reshape(shape=(1, shape[1], *(1,) * (len(shape) - 2)))(mean))
        total, moment = o.ChannelSums()(x, o.Mul()(x, centred))
        return total, o.Mul()(moment, mean), o.Cast(dtype=bf16)(moment)

    made = Emulated(graph(build, (bf16, stored[0]), (f32, stored[1]), (f32, shape[1:2])))
    assert len(made.program.launches) <= 2
    x, y, mean = floats(rng, bf16, *stored[0]), floats(rng, f32, *stored[1]), floats(rng, f32, shape[1])
    got = made(x, y, mean)
    wx, wy = (np.moveaxis(v.astype(np.float64), -1, 1) if at_end else v.astype(np.float64) for v, at_end in zip((x, y), order, strict=True))
    axes = (0, *range(2, len(shape)))
    moment = (wx * (wy - mean.reshape(1, -1, *(1,) * (len(shape) - 2)))).sum(axes)
    close(got[0], wx.sum(axes), f32)
    close(got[1], moment * mean, f32)
    close(got[2], moment, bf16)


@pytest.mark.parametrize("case", [
    (bf16, (2, 16, 9, 11), (3, 3), (2, 2), (1, 1), (1, 1)), (f32, (1, 5, 7, 6), (2, 3), (1, 2), (0, 1), (2, 1)),
], ids=str)  # fmt: skip
def test_max_pool_of_channels_last(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Values, places and their backward pass without a copy: equal elements, NaN, and windows of nothing but the lowest value."""
    dtype, shape, kernel, stride, padding, dilation = case
    n = len(kernel)
    attrs = {"kernel": kernel, "stride": stride, "padding": tuple((p, p) for p in padding), "dilation": dilation}
    stored = (shape[0], *shape[2:], shape[1])

    def build(x: Any) -> Any:
        return [o.Transpose(perm=(0, *range(2, n + 2), 1))(v) for v in o.MaxPoolIndices(**attrs)(last(x))]

    x = np.round(rng.standard_normal(stored) * 2).astype(dtype.np)
    x[0, :3, ..., 0] = -np.inf
    x.reshape(-1, shape[1])[shape[2] // 2, 1] = np.nan
    g = graph(build, (dtype, stored))
    made = Emulated(g)
    assert len(made.program.launches) == 1
    got = made(x)
    exact = torch.from_numpy(np.moveaxis(x.astype(np.float64), -1, 1).copy())
    want, places = tf.max_pool2d(exact, kernel, stride, padding, dilation, return_indices=True)
    np.testing.assert_array_equal(np.moveaxis(got[0].astype(np.float64), -1, 1), want.numpy())
    np.testing.assert_array_equal(np.moveaxis(got[1], -1, 1), places.numpy())


def test_gradients_of_samples_add_rows_of_channels_once(rng: np.random.Generator) -> None:
    """Whatever the number of taps: one sorted addition of rows, one lookup."""
    x, grid, g = floats(rng, f32, 2, 5, 6, 7), floats(rng, f32, 2, 3, 4, 2), floats(rng, f32, 2, 5, 3, 4)

    def build(a: Any, b: Any, c: Any) -> Any:
        body = graph(lambda u, v: grid_sample(u, v, mode="linear", padding="zeros", align=False), (f32, x.shape), (f32, grid.shape))
        return pull_back(body, a.node.graph, (a, b), (c,), (True, True))

    made = Emulated(graph(build, *((f32, v.shape) for v in (x, grid, g))))
    assert len([launch for launch in made.program.launches if "segments" in launch.kernel.name]) == 1
    leaves = [wide(x), wide(grid)]
    y = tf.grid_sample(leaves[0], leaves[1], align_corners=False)
    for got, want in zip(made(x, grid, g), torch.autograd.grad(y, leaves, wide(g).detach()), strict=True):
        close(got, want.numpy(), f32, 1e-5)
