"""Windows over planes, distances of pairs, factors, systems, searches and overwriting scatters on groups of threads, emulated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as nn

import tilewright.ops as o
from tests.cuda.launching import Emulated, graph
from tests.fresh import fresh_rng
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, f16, f32, f64, i32, i64
from tilewright.kernels.index.cuda.pad_edges import _source
from tilewright.kernels.linalg.cuda import cholesky, lu
from tilewright.kernels.select import select
from tilewright.ops import functions as F
from tilewright.target.cuda.device import cuda_target
from tilewright.transform.vjp import pull_back


def wide(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(x, np.float64))


def assert_close(got: Any, want: torch.Tensor, dtype: DType = f32) -> None:
    limit = {"f32": 2e-5, "f64": 1e-12, "bf16": 2e-2, "f16": 3e-3}[dtype.name]
    largest = float(want[want.isfinite()].abs().max())
    np.testing.assert_allclose(got.astype(np.float64), want.numpy(), rtol=limit, atol=limit * max(1.0, largest))


@pytest.mark.parametrize(("dtype", "groups", "channels", "results", "stride", "dilation"), [
    (f32, 1, 1, 1, 2, 1), (f64, 3, 3, 3, 1, 2), (bf16, 2, 4, 6, 2, 1)])
def test_transposed_windows_of_few_channels(dtype: DType, groups: int, channels: int, results: int, stride: int, dilation: int) -> None:
    rng = fresh_rng()
    x, w = (rng.normal(size=s).astype(dtype.np) for s in ((2, channels, 5, 19), (channels, results // groups, 3, 4)))
    op = o.Conv(stride=(stride, 1), padding=((1, 1), (2, 2)), dilation=(1, dilation), groups=groups, transposed=True)
    emulated = Emulated(graph(lambda a, b: F.one("tanh", op(a, b)), (dtype, x.shape), (dtype, w.shape)))
    assert any(k.kernel.name.startswith("conv_planes") for k in emulated.program.launches)
    want = nn.conv_transpose2d(wide(x), wide(w), None, (stride, 1), (1, 2), 0, groups, (1, dilation)).tanh()
    assert_close(emulated(x, w)[0], want, dtype)


LARGE: list[Any] = [  # dtype, images, channels, image, results, window, stride, padding, dilation, cores
    (f32, 2, 3, (9, 11), 3, (9, 9), (1, 1), ((4, 4), (4, 4)), (1, 1), 0),
    (bf16, 1, 4, (14, 14), 8, (13, 7), (2, 1), ((6, 5), (3, 4)), (1, 2), 1),
    (f16, 3, 5, (7, 7), 10, (13, 13), (1, 1), ((6, 6), (6, 6)), (1, 1), 1),
    (f32, 2, 6, (150,), 6, (67,), (2,), ((33, 33),), (1,), 1),
    (bf16, 1, 3, (5, 6, 7), 3, (5, 5, 5), (2, 1, 1), ((2, 2), (2, 1), (2, 2)), (1, 1, 1), 1),
    (f32, 1, 2, (40, 33), 2, (3, 31), (1, 1), ((0, 2), (15, 15)), (5, 1), 1),
]  # fmt: skip


@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_large_windows_of_every_channel(case: Any, last: bool) -> None:
    """In shared memory, with a bias and a residual; a pixel that is infinite or no number is seen by its own windows alone."""
    dtype, n, c, image, out, kernel, stride, padding, dilation, cores = case
    rng, rank = fresh_rng(), len(image)
    x, w, bias = (rng.normal(size=s).astype(dtype.np) for s in ((n, c, *image), (out, 1, *kernel), (out,)))
    x[(0, 0, *(0,) * rank)], x[(0, 1, *(-1,) * rank)] = np.inf, np.nan
    ends = (0, rank + 1, *range(1, rank + 1)), (0, *range(2, rank + 2), 1)

    def build(v: Any, u: Any, s: Any) -> Any:
        v = F.transpose(v, ends[0]) if last else v
        y = o.Conv(stride=stride, padding=padding, dilation=dilation, groups=c)(v, u)
        y = F.one("relu", F.add(y, F.reshape(s, (out, *(1,) * rank))))
        return F.transpose(y, ends[1]) if last else y

    given = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if last else x
    emulated = Emulated(graph(build, (dtype, given.shape), (dtype, w.shape), (dtype, bias.shape)), cores=cores)
    assert any(k.kernel.name.startswith("conv_depthwise_tiles") for k in emulated.program.launches)
    (got,) = emulated(given, w, bias)
    padded = nn.pad(wide(x), [p for pair in reversed(padding) for p in pair])
    conv: Any = (nn.conv1d, nn.conv2d, nn.conv3d)[rank - 1]
    want = conv(padded, wide(w), wide(bias), stride, 0, dilation, c).relu()
    assert_close(np.moveaxis(got, -1, 1) if last else got, want, dtype)


@pytest.mark.parametrize("batch", [1, 3])
def test_large_windows_of_a_batch_of_any_size(batch: int) -> None:
    """Whose planes are counted at run time; the image is flipped and its rows are every second one of a larger one."""
    rng, n = fresh_rng(), sym("N", 1)
    x, w = rng.normal(size=(batch, 4, 24, 10)).astype(np.float32), rng.normal(size=(4, 1, 9, 9)).astype(np.float32)
    op = o.Conv(stride=(1, 1), padding=((4, 4),) * 2, dilation=(1, 1), groups=4)
    emulated = Emulated(graph(lambda v, u: op(F.flip(F.slice_(v, 2, 1, 12, 2), (3,)), u), (f32, (n, *x.shape[1:])), (f32, w.shape)))
    assert any(k.kernel.name.startswith("conv_depthwise_tiles") for k in emulated.program.launches)
    want = nn.conv2d(wide(x)[:, :, 1::2].flip(3), wide(w), None, 1, 4, 1, 4)
    assert_close(emulated(x, w)[0], want)


def test_pools_of_any_strides() -> None:
    rng = fresh_rng()
    x = rng.normal(size=(2, 3, 40, 9)).astype(np.float32)
    x[0, 0, 3, 3], x[1, 1] = np.nan, -np.inf
    both = Emulated(graph(lambda v: o.MaxPoolIndices(kernel=(3, 2), stride=(2, 1), padding=((1, 1), (0, 0)), dilation=(1, 2))(
        F.transpose(v, (0, 1, 3, 2))), (f32, x.shape)))(x)
    want = nn.max_pool2d(torch.from_numpy(x).mT, (3, 2), (2, 1), (1, 0), (1, 2), return_indices=True)
    for got, w in zip(both, want, strict=True):
        np.testing.assert_array_equal(got, w.numpy())
    mean = o.AvgPool(kernel=(5, 3), stride=(1, 3), padding=((2, 2), (1, 1)), count_include_pad=False)
    got = Emulated(graph(mean, (f32, (2, 2, 7, 100))))(y := rng.normal(size=(2, 2, 7, 100)).astype(np.float32))[0]
    assert_close(got, nn.avg_pool2d(wide(y), (5, 3), (1, 3), (2, 1), count_include_pad=False))


@pytest.mark.parametrize("power", [2.0, float("inf")])
def test_distances_of_pairs(power: float) -> None:
    rng = fresh_rng()
    a, b = (rng.normal(size=(2, n, 17)).astype(np.float32) for n in (65, 7))
    got = Emulated(graph(o.PairSums(power=power), (f32, a.shape), (f32, b.shape)))(a, b)[0]
    assert_close(got, torch.cdist(wide(a), wide(b), p=power) ** (2 if power == 2 else 1))


@pytest.mark.parametrize(("n", "dtype"), [(1, f32), (7, f64), (17, f32)], ids=str)
def test_small_cholesky_factors(n: int, dtype: DType) -> None:
    x = fresh_rng().normal(size=(3, n, n))
    x = (x @ x.transpose(0, 2, 1) + n * np.eye(n)).astype(dtype.np)
    emulated = Emulated(graph(o.Cholesky(), (dtype, x.shape)))
    assert_close(emulated(x)[0], torch.linalg.cholesky(wide(x)), dtype)
    assert not emulated.errors[0]
    x[1] = -x[1]
    emulated(x)
    assert emulated.errors[0] and emulated.errors[2] == 1


def test_factors_by_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Panels of few columns on blocks of few rows; a row that wins a pivot moves to its place with all that was done to it."""
    monkeypatch.setattr(lu, "PANEL", 4)
    monkeypatch.setattr(lu, "COLUMNS", 8)
    rng = fresh_rng()
    for shape in ((2, 11, 11), (9, 14), (14, 6)):
        x = rng.normal(size=shape)
        emulated = Emulated(graph(lambda v: o.Lu(check=True)(v), (f64, shape)))
        assert all(k.kernel.name.startswith(("lu_panel", "lu_update")) for k in emulated.program.launches)
        for got, want in zip(emulated(x), o.Lu().ref(x), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)
        assert not emulated.errors[0]
    emulated(np.ones(shape))
    assert emulated.errors[0] and emulated.errors[3] == 1  # the second pivot
    monkeypatch.setattr(cholesky, "MOST", 0)
    x = rng.normal(size=(2, 11, 11))
    x = x @ x.transpose(0, 2, 1) + np.eye(11)
    emulated = Emulated(graph(o.Cholesky(), (f64, x.shape)))
    np.testing.assert_allclose(emulated(x)[0], np.linalg.cholesky(x), rtol=1e-9, atol=1e-11)
    x[1, 7, 7] = -1.0
    emulated(x)
    assert emulated.errors[0] and emulated.errors[2] == 1


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("upper", [False, True])
def test_triangular_systems_by_blocks_of_rows(upper: bool, transpose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lu, "PANEL", 4)
    monkeypatch.setattr(lu, "COLUMNS", 8)
    rng = fresh_rng()
    a, y = rng.normal(size=(11, 11)) + 8 * np.eye(11), rng.normal(size=(2, 11, 10))
    op = o.TriangularSolve(upper=upper, transpose=transpose, unit=upper)
    emulated = Emulated(graph(lambda u, v: op(u, v), (f64, a.shape), (f64, y.shape)))
    first: Any = emulated.program.launches[0].kernel
    assert len(emulated.program.launches) == 3 and first.threads == 8
    np.testing.assert_allclose(emulated(a, y)[0], op.ref(a, y), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("axis", [0, 1])
def test_the_last_of_several_updates_stays(axis: int) -> None:
    rng = fresh_rng()
    x, u = (rng.normal(size=s).astype(np.float32) for s in ((20, 30), (17, 25)))
    ids = rng.integers(0, x.shape[axis], u.shape)
    op = o.ScatterAlong(axis=axis, mode="set")
    emulated = Emulated(graph(op, (f32, x.shape), (i64, u.shape), (f32, u.shape)))
    assert any(k.kernel.name.startswith("scatter_claim") for k in emulated.program.launches)
    np.testing.assert_array_equal(emulated(x, ids, u)[0], op.ref(x, ids, u))
    ids[3, 4] = x.shape[axis]
    emulated(x, ids, u)
    assert emulated.errors[0] and emulated.errors[3] == x.shape[axis]


def test_indices_that_are_one_number_for_all() -> None:
    u = fresh_rng().normal(size=(40, 6)).astype(np.float32)
    add = o.ScatterAlong(axis=0)
    made = graph(lambda i, v: add(F.zeros(F.slice_(v, 0, 0, 20)), F.expand(i, u.shape), v), (i64, (1, 1)), (f32, u.shape))
    got = Emulated(made)(np.full((1, 1), 7), u)[0]
    want = np.zeros((20, 6))
    want[7] = u.astype(np.float64).sum(0)
    assert_close(got, torch.from_numpy(want))


@pytest.mark.parametrize(("shape", "sizes"), [((6, 7, 5), (3, 2)), ((2, 5, 9), (7, 4)), ((3, 100), (3,)), ((2, 3, 9, 7), (2, 4, 5))])
def test_windows_of_unequal_length(shape: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    """One launch each way: the windows that read an element are such a window themselves."""
    rng = fresh_rng()
    x, g = rng.normal(size=shape).astype(np.float32), rng.normal(size=(*shape[: -len(sizes)], *sizes)).astype(np.float32)
    pool: Any = (nn.adaptive_avg_pool1d, nn.adaptive_avg_pool2d, nn.adaptive_avg_pool3d)[len(sizes) - 1]
    leaf = wide(x).requires_grad_()
    want = pool(leaf[None], sizes)[0]
    body = graph(o.AdaptivePool(sizes=sizes), (f32, shape))
    forward = Emulated(body)
    backward = Emulated(graph(lambda u, v: pull_back(body, u.node.graph, (u,), (v,), (True,)), (f32, shape), (f32, g.shape)))
    assert len(forward.program.launches) == 1 and len(backward.program.launches) == 2
    assert_close(forward(x)[0], want.detach())
    assert_close(backward(x, g)[0], torch.autograd.grad(want, leaf, wide(g))[0])


@pytest.mark.parametrize(("dtype", "rows", "values"), [(f32, (9,), (3, 37)), (f64, (2, 300), (2, 200)), (i64, (300,), (20,))], ids=str)
def test_sorted_searches_are_one_launch(dtype: DType, rows: tuple[int, ...], values: tuple[int, ...]) -> None:
    rng = fresh_rng()
    edges, x = (np.round(rng.normal(size=s) * 5).astype(dtype.np) for s in (rows, values))
    edges.sort(-1)
    if dtype.is_float:
        x.reshape(-1)[:3] = np.nan, np.inf, -np.inf
    for right in (False, True):
        op = o.SearchSorted(right=right)
        emulated = Emulated(graph(lambda a, v, op=op: op(a, v), (dtype, rows), (dtype, values)))
        assert len(emulated.program.launches) == 1
        want = torch.searchsorted(torch.from_numpy(edges), torch.from_numpy(x), right=right)
        np.testing.assert_array_equal(emulated(edges, x)[0], want.numpy())


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize(("shape", "lo", "hi"), [
    ((2, 5, 7), (0, 2, 3), (0, 1, 4)), ((70, 9), (3, 0), (0, 2)), ((4, 3), (0, 0), (2, 0))], ids=str)  # fmt: skip
def test_pads_and_their_gradients_are_one_launch(mode: str, shape: tuple[int, ...], lo: tuple[int, ...], hi: tuple[int, ...]) -> None:
    rng = fresh_rng()
    full = tuple(a + d + b for a, d, b in zip(lo, shape, hi, strict=True))
    for dtype in (f32, bf16):
        for back in (False, True):
            op = o.PadEdges(lo=lo, hi=hi, mode=mode, back=back)
            x = rng.normal(size=full if back else shape).astype(dtype.np)
            emulated = Emulated(graph(op, (dtype, x.shape)))
            assert len(emulated.program.launches) == 1
            assert_close(emulated(x)[0].astype(np.float32), wide(op.ref(x.astype(np.float64))), dtype)


def test_places_in_long_axes_have_room_in_32_bits() -> None:
    def binary(name: str, x: Any, y: Any) -> Any:
        return {"min": np.minimum, "max": np.maximum}[name](x, y)

    planes: Any = SimpleNamespace(b=SimpleNamespace(binary=binary))
    place: Any = _source
    n = (1 << 31) - 5
    at = [-3, 0, 1, n - 2, n - 1, n, n + 3]
    with np.errstate(over="raise"):
        found = [int(place(planes, "reflect", np.int32(q), n)) for q in at]
    assert found == [3, 0, 1, n - 2, n - 1, n - 2, n - 5]
    for size, kind in (((1 << 31) - 9, i32), (1 << 31, i64)):  # sizes of a padded axis
        op = o.PadEdges(lo=(5,), hi=(4,), mode="reflect", back=True)
        (launch,) = select(graph(op, (f32, (size,))), cuda_target("sm_90a")).launches
        assert {getattr(r.type, "dtype", None) for i in launch.kernel.body.body if i.op == "iota" for r in i.results} == {kind}
