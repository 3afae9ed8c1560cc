"""Kernels that took one thread for a row, on many threads: extremes and scatters along an axis, emulated against PyTorch."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, bool_, f16, f32, f64, i32, i64
from tilewright.core.errors import ExecutionError
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.kernels.pointwise.cuda import pointwise
from tilewright.kernels.rows.cuda import reduce
from tilewright.ops import functions as F
from tilewright.passes import merge_matmuls

SLOW = pytest.mark.slow
SHAPES = [((3, 7), 1), ((1, 70), 1), ((2, 600), 1), ((70, 5), 0), ((2, 3, 40), 1), ((0, 5), 1)]


@pytest.mark.parametrize(("dtype", "arch"), [(f32, "sm_90a"), (bf16, "sm_80"), (i32, "sm_120"), pytest.param(f64, "sm_80", marks=SLOW)])
def test_places_of_extremes(dtype: DType, arch: str, rng: np.random.Generator) -> None:
    """Ties, NaN, and rows of nothing but the worst number."""
    for shape, axis in SHAPES:
        x = np.round(rng.standard_normal(shape) * 3).astype(dtype.np)
        worst = np.full(shape, np.iinfo(dtype.np).min if dtype.is_int else -np.inf).astype(dtype.np)
        given = [x, worst]
        if not dtype.is_int and x.size:
            given.append(x.copy())
            given[-1].reshape(-1)[[2, -1]] = np.nan
        for op, want in ((o.ArgMax, np.argmax), (o.ArgMin, np.argmin)):
            emulated = Emulated(graph(lambda v, op=op, axis=axis: op(axis=axis)(v), (dtype, shape)), arch)
            for a in given:
                wide = a if dtype.is_int else a.astype(np.float64)
                np.testing.assert_array_equal(emulated(a)[0], want(wide, axis))


LONG: dict[str, tuple[Any, list[tuple[int, ...]], Any]] = {
    "repeated": (lambda a, b: o.Mean(axes=(0, 1))(F.add(a, b)), [(37, 1), (37, 41)], lambda a, b: (a + b).mean()),
    "outer": (lambda a, b: o.Sum(axes=(0, 1))(F.mul(F.reshape(a, (37, 1)), b)), [(37,), (300,)], lambda a, b: (a[:, None] * b).sum()),
    "transposed": (lambda a, b: o.Max(axes=(0, 1))(F.add(F.transpose(a, (1, 0)), b)), [(41, 37), (37, 41)], lambda a, b: (a.T + b).max()),
    "channels": (lambda a, b: o.Sum(axes=(0, 2, 3))(F.mul(a, b)), [(5, 3, 9, 11), (1, 3, 1, 1)], lambda a, b: (a * b).sum((0, 2, 3))),
    "kept": (lambda a: o.Sum(axes=(0, 2), keepdims=True)(a), [(40, 3, 50)], lambda a: a.sum((0, 2), keepdims=True)),
}


@pytest.mark.parametrize(("dtype", "arch"), [
    (f32, "sm_90a"), pytest.param(bf16, "sm_80", marks=SLOW), pytest.param(f64, "sm_120", marks=SLOW)])  # fmt: skip
@pytest.mark.parametrize("name", LONG)
def test_long_rows_of_runs(name: str, dtype: DType, arch: str, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Few rows use all warps, however their operands lie. NaN stays."""
    for name_, value in {"RESIDENT": 64, "WARPS": 1, "BYTES": 1, "SMALL": 1, "BLOCKS": 12, "LEAST": 1}.items():
        monkeypatch.setattr(reduce, name_, value)
    build, shapes, want = LONG[name]
    emulated = Emulated(graph(build, *((dtype, s) for s in shapes)), arch)
    assert [re.sub(r"_[0-9a-f]{16}$", "", x.kernel.name)[-6:] for x in emulated.program.launches] == ["_tiles", "_parts"]
    given = [rng.standard_normal(s).astype(dtype.np) for s in shapes]
    for bad in (False, True):
        if bad:
            given[-1].reshape(-1)[-1] = np.nan
        limit = {"f32": 1e-5, "bf16": 0.01, "f64": 1e-12}[dtype.name]
        found = want(*(torch.tensor(x.astype(np.float64)) for x in given)).numpy()
        np.testing.assert_allclose(np.asarray(emulated(*given)[0], np.float64), found, rtol=limit, atol=30 * limit)


def scattered(dtype: DType, shape: tuple[int, ...], counts: tuple[int, ...], axis: int, mode: str) -> Any:
    return graph(lambda x, i, u: o.ScatterAlong(axis=axis, mode=mode)(x, i, u), (dtype, shape), (i64, counts), (dtype, counts))


@pytest.mark.parametrize(("dtype", "mode", "arch"), [
    (f32, "add", "sm_90a"), (bf16, "set", "sm_80"), (i64, "add", "sm_120"), (bool_, "set", "sm_80"),
    pytest.param(f32, "set", "sm_80", marks=SLOW), pytest.param(bf16, "add", "sm_80", marks=SLOW)], ids=str)  # fmt: skip
def test_scatter_along(dtype: DType, mode: str, arch: str, rng: np.random.Generator) -> None:
    for shape, counts, axis in [((3, 40), (3, 50), 1), ((50, 3), (33, 3), 0), ((3, 30, 5), (2, 20, 5), 1), ((3, 9), (3, 2), 1)]:
        x, u = (np.round(rng.standard_normal(s) * 8).astype(dtype.np) for s in (shape, counts))
        ids = rng.integers(0, shape[axis], counts)
        want = x.astype(np.float64)
        if mode == "add":
            want = torch.scatter_add(torch.tensor(want), axis, torch.tensor(ids), torch.tensor(u.astype(np.float64))).numpy()
        for at in np.ndindex(*counts) if mode == "set" else ():  # the last of equal ones stays, where PyTorch's may be any
            want[(*at[:axis], ids[at], *at[axis + 1 :])] = u[at]
        got = np.asarray(Emulated(scattered(dtype, shape, counts, axis, mode), arch)(x, ids, u)[0], np.float64)
        np.testing.assert_allclose(got, want, rtol=0.01 if dtype is bf16 else 1e-6, atol=0.5 if dtype is bf16 else 0)


def test_indices_that_are_equal_along_rows_scatter_rows(rng: np.random.Generator) -> None:
    def build(x: Any, ids: Any, u: Any) -> Any:
        return o.ScatterAlong(axis=0)(x, F.expand(F.reshape(ids, (40, 1)), (40, 6)), u)

    g = graph(build, (f32, (7, 6)), (i64, (40,)), (f32, (40, 6)))
    x, ids, u = rng.standard_normal((7, 6)).astype(np.float32), rng.integers(0, 7, 40), rng.standard_normal((40, 6)).astype(np.float32)
    emulated = Emulated(g)
    (words,) = (x for x in emulated.program.launches if x.name.endswith(".words"))
    assert words.grid == 40
    want = torch.index_add(torch.tensor(x), 0, torch.tensor(ids), torch.tensor(u)).numpy()
    np.testing.assert_allclose(emulated(x, ids, u)[0], want, rtol=1e-5, atol=1e-5)


def test_indices_that_are_a_row_of_others(rng: np.random.Generator) -> None:
    """Targets of edges, the second row of [2, edges]: contiguous, but not at the start of their memory."""
    g = graph(lambda x, e, u: o.ScatterAdd()(x, F.reshape(F.slice_(e, 0, 1, 1), (40,)), u), (f32, (7, 6)), (i64, (2, 40)), (f32, (40, 6)))
    x, u = (rng.standard_normal(shape).astype(np.float32) for shape in ((7, 6), (40, 6)))
    edges = rng.integers(0, 7, (2, 40))
    want = torch.index_add(torch.tensor(x), 0, torch.tensor(edges[1]), torch.tensor(u)).numpy()
    np.testing.assert_allclose(Emulated(g)(x, edges, u)[0], want, rtol=1e-5, atol=1e-5)


def test_an_index_outside_is_reported() -> None:
    with fake_gpu():
        session: Any = tw.compile(scattered(f32, (2, 20), (2, 18), 1, "add"), target="cuda")
        ids = np.zeros((2, 18), np.int64)
        ids[1, 3] = 20
        session(np.zeros((2, 20), np.float32), ids, np.ones((2, 18), np.float32))
        with pytest.raises(ExecutionError, match=r"index out of range, got 20 at position 21"):
            session.synchronize()


@pytest.mark.parametrize(("dtype", "arch", "flip"), [(bf16, "sm_120", (True, False)), (f32, "sm_80", (False, True)),
                                                     (f16, "sm_80", (False, False))], ids=str)  # fmt: skip
def test_long_products_of_few_tiles(dtype: DType, arch: str, flip: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch,
                                    rng: np.random.Generator) -> None:  # fmt: skip
    """Parts of the rows are products of their own, added in f32."""
    monkeypatch.setattr(merge_matmuls, "LONGEST", 64)
    monkeypatch.setattr(merge_matmuls, "PART", 32)
    a, b = (rng.standard_normal((24, 192)).astype(dtype.np), rng.standard_normal((192, 40)).astype(dtype.np))
    given = [np.ascontiguousarray(x.T) if turned else x for x, turned in zip((a, b), flip, strict=True)]
    build = lambda x, y: F.matmul(x, y, transpose_a=flip[0], transpose_b=flip[1], alpha=0.5)
    emulated = Emulated(graph(build, *((dtype, x.shape) for x in given)), arch)
    assert any(x.kernel.name.startswith("sum") for x in emulated.program.launches)
    want = 0.5 * torch.tensor(a.astype(np.float64)) @ torch.tensor(b.astype(np.float64))
    limit = {"f32": 1e-5, "bf16": 8e-3, "f16": 1e-3}[dtype.name]
    np.testing.assert_allclose(np.asarray(emulated(*given)[0], np.float64), want.numpy(), rtol=limit, atol=8 * limit)


H, W, PATCH = np.arange(14) // 2, np.arange(22) // 2, np.arange(3)
PICKED: dict[str, tuple[tuple[int, ...], tuple[int, ...], list[Any]]] = {
    "resized": ((2, 3, 7, 11), (2, 3), [H[:, None], W]),
    "in the middle": ((3, 7, 11, 5), (1, 2), [H[:, None], W]),
    "pairs": ((3, 7, 11), (1, 2), [np.array([1, 5, 6]), np.array([0, 10, 3])]),
    "patches": ((2, 3, 7, 11), (2, 3), [(PATCH[:, None] + np.arange(5))[:, None, :, None], (PATCH[:, None] + np.arange(9))[None, :, None]]),
    "one axis": ((40, 9), (1,), [np.array([8, 0, 3])]),
}


@pytest.mark.parametrize("name", PICKED)
def test_elements_at_known_places(name: str, rng: np.random.Generator) -> None:
    """One block program, with the elementwise work behind it, whatever the order of axes in memory."""
    shape, axes, ids = PICKED[name]
    order = rng.permutation(len(shape))
    back = tuple(int(a) for a in np.argsort(order))
    x = rng.standard_normal(shape).astype(np.float32)

    def build(v: Any) -> Any:
        picked = o.Index(axes=axes)(o.Transpose(perm=back)(v), *(v.node.graph.constant(i) for i in ids))
        return o.Abs()(picked)

    emulated = Emulated(graph(build, (f32, tuple(shape[a] for a in order))))
    assert [x.kernel.name[:6] for x in emulated.program.launches] == ["picked"]
    np.testing.assert_array_equal(emulated(np.ascontiguousarray(x.transpose(order)))[0], np.abs(x)[(slice(None),) * axes[0] + tuple(ids)])


@pytest.mark.parametrize(("width", "dtype", "threads"), [
    (72, bf16, 2), (144, bf16, 4), (144, f32, 8), (120, bf16, 16), (48, f32, 16), (88, bf16, 4)], ids=str)  # fmt: skip
def test_groups_of_short_rows_are_full(width: int, dtype: DType, threads: int, rng: np.random.Generator) -> None:
    """Channels of a batch norm whose pieces of 16 bytes are no power of two: smaller groups, several a row, at most an eighth idle."""
    g = graph(lambda x, a, b: o.Relu()(o.Add()(o.Mul()(x, a), b)), (dtype, (37, width)), (dtype, (width,)), (dtype, (width,)))
    emulated = Emulated(g)
    (launch,) = emulated.program.launches
    assert isinstance(launch.kernel, BlockKernel) and launch.kernel.threads == threads
    x, a, b = (rng.standard_normal(shape).astype(dtype.np) for shape in ((37, width), (width,), (width,)))
    want = np.maximum(x.astype(np.float64) * a.astype(np.float64) + b.astype(np.float64), 0)
    np.testing.assert_allclose(emulated(x, a, b)[0].astype(np.float64), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("most", [256, 4096, 8192])
def test_short_rows_of_a_run_time_length_stay_in_registers(most: int, rng: np.random.Generator) -> None:
    """One kernel for all lengths up to a bound: what lies behind a shorter row is masked; beyond 4096 rows are swept."""
    g = graph(lambda x: (o.Sum(axes=(1,))(x), o.Softmax(axis=1)(x)), (f32, (sym("r", 1, 1000), sym("n", 1, most))))
    run = Emulated(g, "sm_90a")
    for launch in run.program.launches:
        assert isinstance(launch.kernel, BlockKernel) and launch.kernel.threads == (32 if most == 256 else 128 if most == 4096 else 256)
    for n in (1, 3, 100, 255, most):
        x = rng.standard_normal((3, n)).astype(np.float32)
        e = np.exp(x.astype(np.float64))
        total, soft = run(x)
        np.testing.assert_allclose(total, x.astype(np.float64).sum(1), rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(soft, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("dtype", "rows"), [(f32, 24), (bf16, 24), (f16, 22), (f32, 7)], ids=str)
def test_short_rows_share_what_is_the_same_for_all(dtype: DType, rows: int, monkeypatch: pytest.MonkeyPatch,
                                                   rng: np.random.Generator) -> None:
    """A spline's bases: neighbours of lower order are computed in the same kernel, constants by column are loaded once for several rows."""
    monkeypatch.setattr(pointwise, "MANY", 1)
    g = np.linspace(-2, 2, 12).astype(np.float32).astype(dtype.np)

    def bases(at: Any, knots: Any) -> Any:
        cut = lambda v, i, n: o.Slice(starts=(*(0,) * (len(v.shape) - 1), i), sizes=(*v.shape[:-1], n), steps=(1,) * len(v.shape))(v)
        low, high = cut(knots, 0, 11), cut(knots, 1, 11)
        found = o.Cast(dtype=dtype)(o.LogicalAnd()(o.GreaterEqual()(at, low), o.Less()(at, high)))
        for k in (1, 2):
            n = 11 - k
            left = o.Div()(o.Sub()(at, cut(knots, 0, n)), o.Sub()(cut(knots, k, n), cut(knots, 0, n)))
            right = o.Div()(o.Sub()(cut(knots, k + 1, n), at), o.Sub()(cut(knots, k + 1, n), cut(knots, 1, n)))
            found = o.Add()(o.Mul()(left, cut(found, 0, n)), o.Mul()(right, cut(found, 1, n)))
        return found

    emulated = Emulated(graph(bases, (dtype, (rows, 1)), (dtype, (12,))))
    assert len(emulated.program.launches) <= 5  # the differences of knots, and the bases
    x = rng.uniform(-2.2, 2.2, (rows, 1)).astype(np.float32).astype(dtype.np)
    at, knots = torch.from_numpy(x.astype(np.float64)), torch.from_numpy(g.astype(np.float64))
    want = ((at >= knots[:-1]) & (at < knots[1:])).double()
    for k in (1, 2):
        want = ((at - knots[: -k - 1]) / (knots[k:-1] - knots[: -k - 1]) * want[:, :-1]
                + (knots[k + 1 :] - at) / (knots[k + 1 :] - knots[1:-k]) * want[:, 1:])
    tolerance = {"f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}[dtype.name]
    np.testing.assert_allclose(emulated(x, g)[0].astype(np.float64), want.numpy(), rtol=tolerance, atol=tolerance)


def test_steps_of_a_loop_and_their_results_are_few_launches(rng: np.random.Generator) -> None:
    """A recurrence of elementwise steps whose results are stacked: what a step reads and gives is in one kernel with its neighbours."""
    def steps(x: Any, decay: Any) -> Any:
        state, rows = decay, []
        for t in range(40):
            at = o.Slice(starts=(0, t, 0), sizes=(3, 1, 8), steps=(1, 1, 1))(x)
            e = o.Exp()(at)
            rows.append(o.Div()(o.Add()(o.Reshape(shape=(3, 1, 8))(state), e), e))
            state = o.Add()(o.Mul()(state, o.Tanh()(o.Reshape(shape=(3, 8))(at))), o.Reshape(shape=(3, 8))(at))
        return o.Concat(axis=1)(*rows)

    emulated = Emulated(graph(steps, (f32, (3, 40, 8)), (f32, (3, 8))))
    assert len(emulated.program.launches) <= 6
    x, state = (rng.standard_normal(shape).astype(np.float32) for shape in ((3, 40, 8), (3, 8)))
    (got,) = emulated(x, state)
    at = torch.from_numpy(x.astype(np.float64))
    now = torch.from_numpy(state.astype(np.float64))
    for t in range(40):
        e = at[:, t].exp()
        np.testing.assert_allclose(got[:, t], ((now + e) / e).numpy(), rtol=1e-4, atol=1e-5)
        now = now * at[:, t].tanh() + at[:, t]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_quotients_of_small_floats(dtype: DType, rng: np.random.Generator) -> None:
    """The short division rounds to what the exact quotient rounds to, with zeros, infinities, NaN and numbers at both ends."""
    edge = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -3.0, 6e-8, 1e-5, 6e4, 3e38, 1e-38, 2e-40], np.float32).astype(dtype.np)
    a, b = (v.ravel() for v in np.meshgrid(edge, np.concatenate([edge, rng.standard_normal(20).astype(dtype.np)])))
    (got,) = Emulated(graph(lambda x, y: o.Div()(x, y), (dtype, a.shape), (dtype, a.shape)))(a, b)
    want = (torch.from_numpy(a.astype(np.float64)) / torch.from_numpy(b.astype(np.float64))).numpy().astype(np.float32).astype(dtype.np)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))
