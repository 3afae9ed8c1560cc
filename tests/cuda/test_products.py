"""Matrix products of every dtype on the kernels of all chips, emulated against float64; which kernel a product gets, and what it says."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import Emulated, graph, program, reference
from tilewright.core.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from tilewright.core.errors import ConfigError
from tilewright.kernels.cuda.kernel import BlockKernel, GemmKernel, TensorMap, ThinKernel, TransposeKernel
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.kernels.matmul.cuda import hopper
from tilewright.ops import functions as F
from tilewright.ops.attention.backward import AttentionBackward
from tilewright.ops.attention.forward import Attention
from tilewright.target.cuda.code import emit_all, emit_cuda
from tilewright.target.cuda.device import cuda_target

TOLERANCE = {bf16: 6e-3, f16: 1e-3, f32: 2e-6, f64: 1e-14, i32: 0.0}
TF32 = 1e-3  # two operands of 11 bits


def rand(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    if dtype.is_int:
        info = np.iinfo(dtype.np)
        return rng.integers(info.min, info.max, shape, dtype.np, endpoint=True)
    return rng.standard_normal(shape).astype(dtype.np)


def error(got: Any, a: Any, b: Any, ta: bool, tb: bool) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    want = (a.swapaxes(-1, -2) if ta else a) @ (b.swapaxes(-1, -2) if tb else b)
    assert got.shape == want.shape
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want))


CASES = [  # operands, result, M, N, K, transposed, chip
    (bf16, bf16, bf16, (65, 70, 72), (False, True), "sm_80"), (f16, f16, f16, (72, 72, 40), (True, False), "sm_80"),
    (bf16, bf16, bf16, (65, 33, 37), (False, False), "sm_120"), (f32, f32, f32, (65, 68, 36), (False, True), "sm_90a"),
    (f32, f32, f32, (40, 30, 50), (True, False), "sm_80"), (f64, f64, f64, (11, 13, 21), (False, True), "sm_90a"),
    (f64, f64, f64, (12, 66, 20), (True, False), "sm_80"), (f64, f64, f64, (70, 90, 38), (False, False), "sm_90a"),
    (f64, f64, f64, (66, 70, 35), (True, True), "sm_80"), (f64, f64, f64, (12, 14, 20), (False, True), "sm_120"),
    (i8, i8, i32, (65, 70, 160), (False, True), "sm_80"),
    (u8, i8, i32, (30, 35, 33), (True, False), "sm_120"), (f8e4m3, f8e5m2, bf16, (65, 30, 80), (False, True), "sm_120"),
    (f8e4m3, f8e5m2, f32, (33, 30, 80), (False, False), "sm_80"), (f32, f32, f32, (20, 30, 0), (False, False), "sm_80"),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{'x'.join(map(str, c[3]))}-{c[5]}")
def test_products(case: Any, rng: np.random.Generator) -> None:
    da, db, out, (m, n, k), (ta, tb), arch = case
    a, b = rand(rng, da, *((k, m) if ta else (m, k))), rand(rng, db, *((n, k) if tb else (k, n)))
    op = o.Matmul(transpose_a=ta, transpose_b=tb, dtype=out if da.itemsize == 1 else None)
    run = Emulated(graph(lambda x, y: op(x, y), (da, a.shape), (db, b.shape)), arch)
    assert [type(x.kernel) for x in run.program.launches] == [TiledKernel]
    (got,) = run(a, b)
    if k == 0:
        assert not got.any()
    else:
        assert error(got, a, b, ta, tb) <= TOLERANCE[out]


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_a_product_with_its_epilogue_in_a_batch(dtype: DType, rng: np.random.Generator) -> None:
    """Bias, activation and residual in one launch; two batches share a matrix laid out either way."""
    m, n, k = 50, 40, 24
    x, w, b, r = (rand(rng, dtype, *s) for s in ((2, m, k), (2, k, n), (n,), (2, m, n)))
    types = [(dtype, v.shape) for v in (x, w, b, r)]
    run = Emulated(graph(lambda x, w, b, r: o.Add()(o.Relu()(o.Add()(o.Matmul(alpha=0.5)(x, w), b)), r), *types), "sm_80")
    assert [type(v.kernel) for v in run.program.launches] == [TiledKernel]
    (got,) = run(x, w, b, r)
    x, w, b, r = (v.astype(np.float64) for v in (x, w, b, r))
    want = np.maximum(0.5 * (x @ w) + b, 0) + r
    assert np.linalg.norm(got.astype(np.float64) - want) <= TOLERANCE[dtype] * np.linalg.norm(want)


def heads(x: Any, perm: tuple[int, ...] = (0, 2, 1, 3)) -> Any:
    return o.Transpose(perm=perm)(x)


BATCHES: dict[str, tuple[Any, Any, tuple[tuple[int, ...], ...]]] = {  # graph, NumPy, shapes
    "heads of both sides": (
        lambda q, k: o.Matmul(transpose_b=True)(heads(q), heads(k)),
        lambda q, k: q.swapaxes(1, 2) @ k.transpose(0, 2, 3, 1), ((2, 9, 3, 8), (2, 12, 3, 8))),
    "a bias for all heads": (
        lambda q, k, b: o.Add()(o.Matmul(transpose_b=True)(q, k), b),
        lambda q, k, b: q @ k.swapaxes(2, 3) + b, ((2, 3, 9, 8), (2, 3, 12, 8), (2, 1, 9, 12))),
    "one left side": (lambda a, b: o.Matmul()(a, b), lambda a, b: a @ b, ((9, 8), (3, 8, 16))),
    "rows that do not follow one another": (
        lambda x, w: o.Matmul()(o.Transpose(perm=(1, 0, 2))(x), w), lambda x, w: x.swapaxes(0, 1) @ w, ((5, 7, 8), (8, 16))),
    "a residual for all batches": (
        lambda x, w, r: o.Add()(o.Matmul()(x, w), r), lambda x, w, r: x @ w + r, ((3, 7, 8), (8, 16), (7, 16))),
}  # fmt: skip


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name: str, rng: np.random.Generator) -> None:
    """Batch axes that no single stride describes: every one has an index of its own, nothing is copied."""
    build, plain, shapes = BATCHES[name]
    for dtype, arch in ((f16, "sm_80"), (f32, "sm_90a")):
        arrays = [rand(rng, dtype, *s) for s in shapes]
        run = Emulated(graph(build, *((dtype, s) for s in shapes)), arch)
        assert [type(x.kernel) for x in run.program.launches] == [TiledKernel]
        (got,) = run(*arrays)
        want = plain(*(x.astype(np.float64) for x in arrays))
        assert got.shape == want.shape and np.linalg.norm(got - want) <= TOLERANCE[dtype] * np.linalg.norm(want)
    assert isinstance(program(graph(build, *((f16, s) for s in shapes))).launches[-1].kernel, GemmKernel)


def test_requantized_products(rng: np.random.Generator) -> None:
    a, b = rand(rng, u8, 33, 64), rand(rng, i8, 20, 64)
    scale, zero = np.float32(0.001) * rng.random(20, np.float32), rng.integers(-9, 9, 20, np.int32)
    types = ((u8, a.shape), (i8, b.shape), (f32, (20,)), (i32, (20,)))
    build = lambda x, w, s, z: o.Requantize(axis=1)(o.IntMatmul(transpose_b=True)(x, w), s, z)
    run = Emulated(graph(build, *types), "sm_80")
    (got,) = run(a, b, scale, zero)
    sums = (a.astype(np.int64) @ b.astype(np.int64).T).astype(np.float32)
    np.testing.assert_array_equal(got, np.clip(np.rint(sums * scale) + zero, -128, 127).astype(np.int8))
    (last,) = [x.kernel for x in program(graph(build, *types)).launches if isinstance(x.kernel, GemmKernel)]
    assert (last.dtype, last.dtype_b) == ("u8", "i8")


def test_tf32_is_a_choice(rng: np.random.Generator) -> None:
    a, b = rand(rng, f32, 40, 72), rand(rng, f32, 72, 24)
    g = graph(lambda x, y: o.Matmul()(x, y), (f32, a.shape), (f32, b.shape))
    run = Emulated(g, "sm_80", features=("tf32",))
    (got,) = run(a, b)
    assert TOLERANCE[f32] < error(got, a, b, False, False) <= TF32
    assert "tf32" in run.program.launches[-1].note
    exact, rounded = (cast(Any, tw.compile(g, target="cuda", precision=p)) for p in (None, "tf32"))
    assert [type(x.kernel) for x in exact.executable.program.launches] == [TiledKernel]
    assert [type(x.kernel) for x in rounded.executable.program.launches] == [TransposeKernel, GemmKernel]
    assert "f32 products in tf32" in str(rounded.report()) and "tf32" not in str(exact.report())
    assert "copied: the matrix kernel wants rows along K" in str(rounded.report())
    with pytest.raises(ConfigError, match="precision must be one of auto, exact, tf32, got 'half'"):
        tw.compile(g, target="cuda", precision="half")


def test_doubles_are_multiplied_by_tensor_cores_where_there_are_some() -> None:
    for arch, core in (("sm_80", "m8n8k4"), ("sm_90a", "m16n8k8"), ("sm_120", "fma")):
        for ta, tb in ((False, False), (True, True)):  # rows or columns of 16 bytes: nothing is copied
            g = graph(lambda x, y, t=(ta, tb): o.Matmul(transpose_a=t[0], transpose_b=t[1])(x, y), *((f64, (512, 512)),) * 2)
            (launch,) = program(g, arch).launches
            assert core in emit_cuda(launch.kernel, cuda_target(arch))
            assert ("f64 tensor cores" in launch.note) == (core != "fma")


def test_no_product_runs_on_one_thread() -> None:
    """Every dtype with a kernel, on every chip, whatever the sizes."""
    for arch in ("sm_80", "sm_90a", "sm_120"):
        for dtype, out in ((bf16, None), (f16, None), (f32, None), (f64, None), (i8, i32), (f8e4m3, f32)):
            for m, n, k in ((300, 65, 33), (1024, 1024, 1024), (2, 7, 5)):
                found = program(graph(lambda x, y, d=out: o.Matmul(dtype=d)(x, y), (dtype, (m, k)), (dtype, (k, n))), arch)
                assert not any(isinstance(x.kernel, BlockKernel) for x in found.launches), (arch, dtype, m, n, k)


def test_eight_bit_operands_are_not_widened_first() -> None:
    def kernel(small: DType, wide: DType) -> Any:
        build = lambda x, y: o.Matmul()(o.Cast(dtype=wide)(x), o.Transpose(perm=(1, 0))(o.Cast(dtype=wide)(y)))
        return program(graph(build, (small, (64, 64)), (small, (128, 64)))).launches[-1].kernel

    assert kernel(f8e5m2, bf16).dtype == "f8e5m2" and kernel(i8, i32).dtype == "i8"
    assert kernel(f8e4m3, f32).params[0].type.dtype is f32  # whose sums keep all bits


def test_sums_of_eight_bit_floats_are_promoted() -> None:
    """The tensor core keeps fewer bits than f32: its sums are added up in f32 registers."""
    (launch,) = program(graph(lambda x, y: o.Matmul(transpose_b=True, dtype=bf16)(x, y), *((f8e4m3, (1024, 1024)),) * 2)).launches
    text = emit_cuda(launch.kernel, Emulated(graph(lambda x: o.Neg()(x), (f32, (1,)))).target)
    assert "k32.f32.e4m3.e4m3" in text and "sums kept in f32" in launch.note


@pytest.mark.parametrize("dtype, arch", [(f32, "sm_90a"), (f16, "sm_80"), (f64, "sm_90a")], ids=str)
def test_operands_that_are_expanded_or_flipped(dtype: DType, arch: str, rng: np.random.Generator) -> None:
    """Rows with a stride of 0 are one row, not rows one after another; with a negative one they lie before it."""
    m, n, k = 9, 24, 16
    left = {(1, k): o.Expand(shape=(m, k)), (m, 1): o.Expand(shape=(m, k)), (): o.Expand(shape=(m, k)), (m, k): o.Flip(axes=(0,))}
    right = {(1, n): o.Expand(shape=(k, n)), (k, 1): o.Expand(shape=(k, n)), (k, n): o.Flip(axes=(0,))}
    for (sa, fa), (sb, fb) in product(left.items(), right.items()):
        a, b = rand(rng, dtype, *sa), rand(rng, dtype, *sb)
        a = np.asarray(a, dtype.np)
        (got,) = Emulated(graph(lambda x, y, f=fa, g=fb: o.Matmul()(f(x), g(y)), (dtype, sa), (dtype, sb)), arch)(a, b)
        x, y = (f.ref(v.astype(np.float64)) for f, v in ((fa, a), (fb, b)))
        assert np.linalg.norm(got - x @ y) <= TOLERANCE[dtype] * np.linalg.norm(abs(x) @ abs(y))


def flipped(x: Any, axis: int) -> Any:
    return o.Flip(axes=(axis,))(x)


ROWS, IMAGE = (bf16, (2, 2, 72, 64)), (bf16, (2, 64, 12, 16))
FLIPPED: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a product": (lambda x, y: o.Matmul()(flipped(x, 0), y), ((bf16, (128, 64)), (bf16, (64, 128)))),
    "a batch": (lambda x, y: o.Matmul()(x, flipped(y, 0)), ((bf16, (3, 128, 64)), (bf16, (3, 64, 128)))),
    "a residual": (
        lambda x, y, r: o.Add()(o.Matmul()(x, y), flipped(r, 0)),
        ((bf16, (128, 64)), (bf16, (64, 128)), (bf16, (128, 128))),
    ),
    "attention": (lambda q, k, v: Attention(scale=0.125)(q, flipped(k, 2), flipped(v, 1)), (ROWS,) * 3),
    "its backward pass": (lambda q, k, v, g: AttentionBackward(scale=0.125)(flipped(q, 2), flipped(k, 1), v, flipped(g, 0)), (ROWS,) * 4),
    "a convolution": (
        lambda x, w, r: o.Add()(o.Conv((1, 1), ((0, 0), (0, 0)), (1, 1))(flipped(o.Relu()(x), 3), w), flipped(r, 2)),
        (IMAGE, (bf16, (64, 64, 1, 1)), IMAGE),
    ),
}


@pytest.mark.parametrize("name", FLIPPED)
def test_no_tensor_map_steps_back(name: str) -> None:
    build, types = FLIPPED[name]
    maps = [t for x in program(graph(build, *types)).launches for v in vars(x.kernel).values() if isinstance(v, tuple) for t in v]
    strides = [s for t in maps if isinstance(t, TensorMap) for s in t.strides]
    assert all(isinstance(s, int) and s > 0 for s in strides) and (strides or name == "attention")  # that one takes another kernel


def test_products_whose_results_the_tma_cannot_write_have_a_kernel_of_their_own() -> None:
    """Rows of 66 numbers of 16 bits begin inside 16 bytes: threads write them. All else is the same, the epilogue too."""
    linear = o.Matmul(transpose_b=True)
    shapes = ((300, 64), (64, 64), (66, 64), (300, 64), (300, 66))
    p = program(graph(lambda x, a, b, c, d: (o.add(linear(x, a), c), o.add(linear(x, b), d)), *((bf16, s) for s in shapes)))
    kernels = [x.kernel for x in p.launches if isinstance(x.kernel, GemmKernel)]
    assert [len(k.stored) for k in kernels] == [1, 0]
    texts = emit_all(kernels, cuda_target("sm_90a"))
    assert [texts[k.name][0].count(".param .align 64") for k in kernels] == [3, 2]  # tensor maps


def test_long_products_of_few_tiles_share_k_among_the_blocks_of_a_cluster() -> None:
    """Gradients of weights: as many parts as SMs are free, each of several steps; many tiles, or a short K, stay whole."""
    def chosen(m: int, n: int, k: int) -> tuple[int, int, int]:
        c = hopper.choose(m, n, k, 1, 132)
        return c.bm, c.bn, c.splits

    assert [chosen(*s) for s in ((512, 512, 4096), (768, 768, 4096), (1280, 320, 4000))] == [(64, 64, 2), (128, 192, 4), (128, 128, 4)]
    assert chosen(4096, 4096, 4096)[2] == chosen(768, 768, 256)[2] == chosen(512, 512, 512)[2] == 1
    for m, n, k in ((512, 512, 4096), (300, 64, 4096), (1280, 320, 4000)):
        launches = program(graph(lambda a, b: o.Matmul(transpose_b=True)(a, b), (bf16, (m, k)), (bf16, (n, k)))).launches
        kernel = launches[0].kernel
        assert isinstance(kernel, GemmKernel) and kernel.splits > 1 and kernel.slice == kernel.bn // kernel.splits
        text = emit_all([kernel], cuda_target("sm_90a"))[kernel.name][0]
        assert f".reqnctapercluster {kernel.splits}, 1, 1" in text


@pytest.mark.parametrize(("turned", "column"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_long_row_by_a_matrix_across_it_is_a_sum_of_rows(turned: bool, column: bool, rng: np.random.Generator) -> None:
    """Gradients of a layer with one output: no tile of one row on a few blocks. `column`: the matrix is the left operand."""
    row, matrix = ((5000, 1) if turned else (1, 5000)), (5000, 36)
    a, b = rand(rng, bf16, *row), rand(rng, bf16, *matrix)
    if column:
        op, given = o.Matmul(transpose_a=True, transpose_b=not turned, alpha=0.5), (b, a)
    else:
        op, given = o.Matmul(transpose_a=turned, alpha=0.5), (a, b)
    run = Emulated(graph(lambda x, y: op(x, y), *((bf16, x.shape) for x in given)), "sm_90a")
    assert not any(isinstance(x.kernel, GemmKernel | ThinKernel) for x in run.program.launches)
    want = 0.5 * a.astype(np.float64).reshape(1, 5000) @ b.astype(np.float64)
    np.testing.assert_allclose(run(*given)[0].astype(np.float64).reshape(want.shape), want, rtol=0, atol=0.01 * np.abs(want).max())


def test_rows_that_begin_at_any_element_leave_side_by_side() -> None:
    """Where K is short, what a product costs is its results: rows of an odd length are those of a block program, longer sums are not."""
    linear = o.Matmul(transpose_b=True)
    for k, kind in ((64, TiledKernel), (1024, GemmKernel)):
        p = program(graph(linear, (bf16, (4, 200, k)), (bf16, (399, k))))
        assert [type(x.kernel) for x in p.launches] == [kind]


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("keys", "start", "columns", "zeros"), [(20, 19, 20, 1), (20, 19, 13, 1), (20, 17, 18, 0), (20, 19, 30, 0)])
def test_scores_by_relative_place_have_rows_of_whole_pieces(keys: int, start: int, columns: int, zeros: int, constant: bool,
                                                            rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that only diagonals are read of gets columns of zeros; not where a diagonal goes on in the next row."""
    monkeypatch.setattr("tilewright.passes.results_in_eights.LARGE", 1)
    places = 2 * keys - 1
    a, b = rand(rng, bf16, 4, 3, keys, 16), rand(rng, bf16, 1, places, 3, 16)

    def build(x: Any, *given: Any) -> Any:
        y = given[0] if given else x.node.graph.constant(b, "places")
        scores = o.Matmul()(x, o.Transpose(perm=(0, 2, 3, 1))(y))
        row = o.Reshape(shape=(4, 3, keys * places))(scores)
        seen = F.slice_(row, 2, start, (places - 1) * keys)
        return F.slice_(o.Reshape(shape=(4, 3, keys, places - 1))(seen), 3, 0, columns)

    g = graph(build, (bf16, a.shape)) if constant else graph(build, (bf16, a.shape), (bf16, b.shape))
    given = (a,) if constant else (a, b)
    emulated = Emulated(g)
    kernels = [x.kernel for x in emulated.program.launches if isinstance(x.kernel, GemmKernel)]
    assert [(k.maps[2].sizes[0], k.matrices) for k in kernels] == [(places + 1, (0, 3))] * zeros
    want = reference(g, given)[0].astype(np.float64)
    np.testing.assert_allclose(emulated(*given)[0].astype(np.float64), want, rtol=0, atol=0.02 * np.abs(want).max())
