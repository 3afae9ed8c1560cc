"""Block programs against the tile interpreter (in the emulator, with races on shared memory watched) and against float64."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import Emulated, graph, reference
from tests.cuda.tiled_kernels import check, emulate, matmul
from tests.fresh import fresh_rng
from tilewright.core.dtypes import DType, bf16, bool_, f16, f32, f64, i32, i64
from tilewright.core.errors import CompileError
from tilewright.ir.layout import Layout as Layout_
from tilewright.kernels.attention.cuda import tiled as attention_tiled
from tilewright.kernels.attention.cuda.tiled import TiledAttention
from tilewright.kernels.cuda import templates
from tilewright.kernels.cuda.tiled import TiledKernel, tensor_maps, tiled_kernel
from tilewright.ops.attention.forward import Attention
from tilewright.ops.views import Transpose
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.tiled.emit import emit_tiled
from tilewright.target.cuda.tiled.layout import Layout, blocked, fragment, log2, register_tile
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel, ViewType

NUMPY = {bf16: ml_dtypes.bfloat16, f16: np.float16, f32: np.float32, f64: np.float64}


@pytest.mark.parametrize("make", [
    lambda: blocked((8, 64), 4, (1, 0), 4), lambda: blocked((64, 8), 2, (0, 1), 8), lambda: fragment((64, 32), 4, 1),
    lambda: fragment((32, 64), 2, 2), lambda: register_tile((64, 64), 2, 2, neighbours=True),
    lambda: register_tile((16, 8), 1, 1, neighbours=False), lambda: register_tile((64, 16), 4, 1, neighbours=True),
])  # fmt: skip
def test_layouts_hold_every_element_once(make) -> None:  # type: ignore[no-untyped-def]
    """Registers and threads without copies name each bit of the position once."""
    layout: Layout = make()
    bits = sorted(b for b in (*layout.regs, *layout.threads) if b is not None)
    assert bits == list(range(len(bits)))
    assert len({layout.offset(r) for r in range(layout.count)}) == layout.count


def test_projection_and_transposition_of_layouts() -> None:
    lay = fragment((64, 32), 4, 1)
    rows = lay.project((64, 32), (64, 1))
    assert rows.regs == (3,) and rows.lanes[:2] == (None, None) and rows.warps == (4, 5)
    assert lay.transposed((64, 32)).transposed((32, 64)) == lay
    assert [lay.picks((64, 32), (64, 1))[r] for r in range(4)] == [0, 0, 1, 1]
    assert log2(lay.count) == len(lay.regs)


@pytest.mark.parametrize("swaps", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize(("dtype", "warps"), [(bf16, 4), (f16, 8), (f32, 4), (f64, 4)])
def test_products_with_edges(dtype: DType, warps: int, swaps: tuple[bool, bool]) -> None:
    """Every orientation of both operands; M, N and K end inside a tile, rows inside a chunk of a copy."""
    rng = fresh_rng()
    m, n, k = 100, 72, 84
    a, b = rng.standard_normal((m, k)).astype(NUMPY[dtype]), rng.standard_normal((k, n)).astype(NUMPY[dtype])
    out = f64 if dtype is f64 else f32
    c = np.full((m, n), np.nan, NUMPY[out])
    given = [np.ascontiguousarray(x.T) if s else x for x, s in zip((a, b), swaps, strict=True)]
    kernel = matmul(dtype, swap_a=swaps[0], swap_b=swaps[1], out=out)
    check(kernel, [*given, c, m, n, k], 4, warps=warps, stages=3, vectors={"a": 4, "b": 4, "c": 4})
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("swaps", list(itertools.product((False, True), repeat=2)))
def test_products_by_warpgroups_with_producers(swaps: tuple[bool, bool], tma: bool) -> None:
    """`wgmma` over stages that other warps fill, by TMA or by `cp.async`; every orientation; rings that go around."""
    rng = fresh_rng()
    m, n, k = 200, 136, 328
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    given = [np.ascontiguousarray(x.T) if s else x for x, s in zip((a, b), swaps, strict=True)]
    kernel = matmul(bf16, 128, 64, 64, swap_a=swaps[0], swap_b=swaps[1])
    for p in kernel.params[:2]:
        assert isinstance(p.type, ViewType)
    extents = {name: Layout_.contiguous(x.shape) for name, x in zip("ab", given, strict=True)} if tma else {}
    maps = tensor_maps(kernel, extents)
    assert len(maps) == 2 * tma
    check(kernel, [*given, c, m, n, k], 6, "sm_90a", warps=8, stages=3, vectors={"a": 8, "b": 8, "c": 4}, producers=4, maps=maps)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-3)


def test_tf32_products_by_warpgroups() -> None:
    """Both operands are rounded to tf32, not cut off: the left one in registers, the right one by TMA."""
    rng = fresh_rng()
    m, n, k = 130, 72, 100
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k)))
    c = np.full((m, n), np.nan, np.float32)
    kernel = matmul(f32, 64, 64, 32, swap_b=True, precision="tf32")
    maps = tensor_maps(kernel, {"b": Layout_.contiguous(b.shape)})
    assert maps["b"][0].rounded
    k_ = tiled_kernel(kernel, warps=4, stages=3, vectors={"a": 4, "b": 4}, producers=4, maps=maps)
    text = emulate(k_, [a, b, c, m, n, k], 6, "sm_90a")
    assert "m64n64k8.f32.tf32" in text and "cvt.rna.tf32" in text
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    np.testing.assert_allclose(c, want, rtol=3e-2, atol=3e-2)
    assert abs((c * want).sum() / (want**2).sum() - 1) < 2e-4  # numbers that are cut off are all too small, by 1e-3


def test_products_of_unaligned_rows_and_little_k() -> None:
    """Rows that start anywhere are copied element by element; a K of less than a tile, and none at all."""
    rng = fresh_rng()
    for k in (0, 3, 33):
        a, b = rng.standard_normal((65, k)).astype(np.float16), rng.standard_normal((k, 17)).astype(np.float16)
        c = np.full((65, 17), np.nan, np.float32)
        check(matmul(f16), [a, b, c, 65, 17, k], 2, warps=4, stages=2)
        np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-3, atol=1e-3)


def test_a_missing_barrier_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator watches races on shared memory."""
    from tilewright.target.cuda.tiled.emit import TiledEmitter

    monkeypatch.setattr(TiledEmitter, "barrier", lambda self: None)
    a = np.ones((64, 64), np.float16)
    with pytest.raises(Exception, match=r"race|other thread|without a barrier|before a barrier"):
        check(matmul(f16), [a, a, np.zeros((64, 64), np.float32), 64, 64, 64], 1, warps=4, vectors={"a": 8, "b": 8})


def _rows(fn: str, dtype: DType) -> Kernel:
    """Reduce columns and rows of a tile, and mix the results through broadcasting, a transpose and a change of shape."""
    b = KernelBuilder("mixed")
    x, y, z = b.view("x", dtype, (None, 1)), b.view("y", dtype, (None, 1)), b.view("z", dtype, (None, 1))
    t = b.load(x, (0, 0), (32, 64))
    across, down = b.reduce(fn, t, 1), b.reduce(fn, t, 0)
    mixed = b.binary("max", t, across) + down
    b.store(y, (0, 0), mixed, limit=(30, 61))
    b.store(z, (0, 0), b.transpose(b.reshape(mixed, (64, 32))), axes=(1, 0))
    return b.build()


@pytest.mark.parametrize("fn", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize(("dtype", "warps"), [(f32, 1), (f32, 8), (f64, 4), (i32, 2)])
def test_reductions_and_layout_changes(fn: str, dtype: DType, warps: int) -> None:
    rng = fresh_rng()
    x = rng.integers(-3, 4, (32, 64)).astype(dtype.np) if dtype is i32 else rng.uniform(0.9, 1.1, (32, 64)).astype(dtype.np)
    y, z = np.zeros((32, 64), dtype.np), np.zeros((64, 32), dtype.np)
    check(_rows(fn, dtype), [x, y, z], 1, warps=warps, vectors={"x": 4, "y": 1, "z": 4})


def test_gathered_rows() -> None:
    """Rows at indices, of which negative ones are zeros; runs end inside a chunk."""
    rng = fresh_rng()
    b = KernelBuilder("rows")
    table, ids, out = b.view("table", f32, (None, 1)), b.view("ids", i32, (1, 0)), b.view("out", f32, (None, 1))
    at = b.load(ids, (0, 0), (16, 1))
    b.store(out, (0, 0), b.gather(table, (0, 0), 0, at, run=32, limit=27, masked=True))
    weights = rng.standard_normal((9, 28)).astype(np.float32)
    rows = np.array([0, 8, -1, 3, 3, -1, 7, 1, 2, 4, 5, 6, 8, 0, -1, 2], np.int32)
    got = np.full((16, 32), np.nan, np.float32)
    check(b.build(), [weights, np.lib.stride_tricks.as_strided(rows, (16, 1), (4, 0)), got], 1, warps=2)
    want = np.where(rows[:, None] < 0, 0, weights[rows, :27])
    np.testing.assert_array_equal(got[:, :27], want)
    np.testing.assert_array_equal(got[:, 27:], 0)


def test_gathered_rows_as_operands_of_a_pipelined_product() -> None:
    """Rows of A at indices that depend on the step of K, as pixels of an image do."""
    rng = fresh_rng()
    b = KernelBuilder("windows")
    x, w, y = b.view("x", f16, (None, 1)), b.view("w", f16, (None, 1)), b.view("y", f32, (None, 1))
    with b.loop(0, 3, 1, [b.full((64, 32), 0.0, f32)]) as loop:
        row = b.iota((64, 1), 0, i32) + b.from_index(loop.index, i32) - 1
        inside = b.binary("and", b.cmp("ge", row, 0), b.cmp("lt", row, 50))
        a = b.gather(x, (0, 0), 0, b.select(inside, row, -1), run=16, masked=True)
        loop.next(b.mma(a, b.load(w, (loop.index * 16, 0), (16, 32)), loop.carried[0]))
    b.store(y, (0, 0), loop.results[0])
    image, weights = rng.standard_normal((50, 16)).astype(np.float16), rng.standard_normal((48, 32)).astype(np.float16)
    got = np.full((64, 32), np.nan, np.float32)
    check(b.build(), [image, weights, got], 1, warps=4, vectors={"x": 8, "w": 8})
    padded = np.zeros((66, 16))
    padded[1:51] = image
    want = sum(padded[i : i + 64] @ weights[16 * i : 16 * i + 16].astype(np.float64) for i in range(3))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)


def test_what_a_block_program_cannot_have_is_named() -> None:
    b = KernelBuilder("odd")
    x = b.view("x", f32, (1,))
    b.store(x, (0,), b.load(x, (0,), (48,)))
    with pytest.raises(CompileError, match=r"sides of a tile must be powers of two, got tile<48xf32>"):
        emit_tiled(tiled_kernel(b.build(), warps=1), cuda_target())
    with pytest.raises(CompileError, match=r"bytes of shared memory, \d+ fit on sm_80; fewer stages or smaller tiles fit"):
        emit_tiled(tiled_kernel(matmul(f32, 128, 128, 64), warps=8, stages=5), cuda_target("sm_80"))
    with pytest.raises(CompileError, match="a product of 16x16 is too small for 4 warps"):
        emit_tiled(tiled_kernel(matmul(f16, 16, 16, 16), warps=4), cuda_target())


ATTENTION = [  # dtype, (B, H, Hkv, Sq, Sk, D, Dv), how operands lie and what the op has
    (bf16, (1, 2, 1, 70, 70, 24, 24), {}),
    (bf16, (1, 2, 2, 70, 90, 16, 64), {"causal": True, "offset": 20}),
    (f16, (1, 2, 2, 33, 49, 36, 36), {"mask": True, "turned": True}),
    (bf16, (1, 2, 1, 130, 130, 64, 64), {"bias": True, "softcap": 3.0, "window": 40, "causal": True}),
    (bf16, (1, 1, 1, 17, 33, 256, 256), {}),
    (bf16, (1, 1, 1, 5, 9, 8, 12), {"mask": True, "bias": True}),
    (f16, (1, 1, 1, 20, 40, 5, 7), {"causal": True, "offset": -3}),
    (bf16, (1, 2, 2, 33, 20, 16, 16), {"mask": True, "hidden": -1e9}),
    (f16, (1, 2, 2, 33, 20, 16, 16), {"mask": True, "empty": "nan"}),
    (f32, (1, 2, 1, 70, 50, 36, 36), {"mask": True, "bias": True}),
    (f32, (1, 1, 1, 65, 40, 80, 72), {"causal": True}),
    (f32, (2, 2, 2, 9, 90, 20, 100), {"turned": True}),
    (bf16, (1, 1, 1, 33, 40, 200, 136), {}),
]


@pytest.mark.parametrize(("dtype", "sizes", "how"), ATTENTION, ids=lambda x: str(x))
def test_attention_of_any_shape(dtype: DType, sizes: tuple[int, ...], how: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Head sizes that are no power of two, values wider than keys, transposed operands, rows that see nothing."""
    monkeypatch.setattr(templates, "CUDA_TEMPLATES", [TiledAttention(), *templates.CUDA_TEMPLATES])
    rng, how = fresh_rng(), dict(how)
    batch, heads, kv, sq, sk, d, dv = sizes
    mask, bias, turned = (how.pop(k, False) for k in ("mask", "bias", "turned"))
    shapes = [(batch, heads, sq, d), (batch, kv, sk, d), (batch, kv, sk, dv)]
    if turned:
        shapes[1:] = [(*s[:2], s[3], s[2]) for s in shapes[1:]]
    types = [(dtype, s) for s in shapes]
    xs = [rng.standard_normal(s).astype(NUMPY[dtype]) for s in shapes]
    if mask:
        types.append((bool_, (batch, 1, sq, sk)))
        xs.append(rng.random((batch, 1, sq, sk)) > 0.3)
        xs[-1][:, :, 0] = False
    if bias:
        types.append((dtype, (1, heads, sq, sk)))
        xs.append(rng.standard_normal((1, heads, sq, sk)).astype(NUMPY[dtype]))

    def fn(q, k, v, *rest):  # type: ignore[no-untyped-def]
        if turned:
            k, v = (Transpose(perm=(0, 1, 3, 2))(x) for x in (k, v))
        return Attention(scale=d**-0.5, has_mask=mask, has_bias=bias, **how)(q, k, v, *rest)

    g = graph(fn, *types)
    e = Emulated(g)
    assert any(isinstance(x.kernel, TiledKernel) for x in e.program.launches)
    (got,), (want,) = e(*xs), reference(g, xs)
    near = 2e-6 if dtype is f32 else 2e-2
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=near, atol=near)


@pytest.mark.parametrize("config", attention_tiled.F32, ids=str)
def test_tiles_of_f32_attention(config: attention_tiled.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile that may be chosen: rows and keys that end inside it, values wider than keys."""
    monkeypatch.setattr(attention_tiled, "fastest", lambda *_: config)
    shapes = (1, 2, config.rows + 3, 20), (1, 1, config.keys + 5, 20), (1, 1, config.keys + 5, 40)
    g = graph(lambda q, k, v: Attention(scale=0.3)(q, k, v), *((f32, s) for s in shapes))
    rng = fresh_rng()
    xs = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    np.testing.assert_allclose(Emulated(g)(*xs)[0], reference(g, xs)[0], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("dtype", "op"), [(f32, "fma.rn.f32"), (bf16, "mma")], ids=str)
def test_zeros_beside_a_head_are_not_multiplied(dtype: DType, op: str) -> None:
    """Heads are padded to a power of two in shared memory; of 128 numbers the head's are multiplied, and what fills an instruction."""

    def count(d: int) -> int:
        g = graph(lambda q, k, v: Attention(scale=0.3)(q, k, v), *((dtype, (1, 1, 256, d)),) * 3)
        session: Any = tw.compile(g, target="sm_90a")
        text = "".join(code.ptx for code in session.executable.code.values())
        return sum(len(line.split(",")) for line in text.splitlines() if op in line)  # wide instructions have more operands

    assert count(68) < 0.8 * count(127)


@pytest.mark.parametrize(("dtype", "arch"), [(f32, "sm_90a"), (bf16, "sm_90a"), (bf16, "sm_80")], ids=str)
def test_scores_beside_attention_are_read_along_rows(dtype: DType, arch: str) -> None:
    """A bias that was looked up has its heads innermost: it is put into rows, once for two layers. Outputs need no copy."""

    def build(x: Any, table: Any, places: Any) -> Any:
        bias = o.Reshape(shape=(1, 4, 24, 24))(Transpose(perm=(2, 0, 1))(o.Gather(axis=0)(table, places)))
        attend = Attention(scale=0.3, has_bias=True)
        return attend(attend(x, x, x, bias), x, x, bias)

    g = graph(build, (dtype, (2, 4, 24, 16)), (dtype, (32, 4)), (i64, (24, 24)))
    e = Emulated(g, arch)
    kinds = [launch.kernel.name.rpartition("_")[0] for launch in e.program.launches]
    assert len(kinds) == 4 and kinds[1] == "pointwise"  # the lookup, the copy, and two layers
    rng = fresh_rng()
    xs = [rng.standard_normal(v.type.shape).astype(NUMPY[dtype]) for v in g.inputs[:2]] + [rng.integers(0, 32, (24, 24))]
    near = 2e-6 if dtype is f32 else 2e-2
    np.testing.assert_allclose(e(*xs)[0].astype(np.float64), reference(g, xs)[0].astype(np.float64), rtol=near, atol=near)


def test_few_rows_of_a_product_read_no_foreign_shared_memory() -> None:
    """Where fewer rows than the tensor cores take are copied, what they read behind the last stage must be the block's own memory."""
    from tilewright.kernels.cuda.kernel import GemmKernel
    from tilewright.target.cuda.matmul.gemm import BK, dynamic_shared, stage_bytes

    for rows, bn, stages in itertools.product((8, 16, 32, 48), (16, 32, 64), (2, 10)):
        k = GemmKernel("k", bm=64, bn=bn, stages=stages, rows=rows)
        last = 1023 + stage_bytes(k) * (stages - 1)  # the ring begins at the next multiple of 1024
        assert last + 64 * BK <= dynamic_shared(k)


@pytest.mark.parametrize(("arch", "block"), [("sm_80", False), ("sm_80", True), ("sm_90a", False)])
def test_a_row_of_the_least_biases_is_an_average(arch: str, block: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Hugging Face masks rows of padding: the least number of the dtype is no infinity, whatever it is multiplied by."""
    if block:
        monkeypatch.setattr(templates, "CUDA_TEMPLATES", [TiledAttention(), *templates.CUDA_TEMPLATES])
    rng, least = fresh_rng(), float(ml_dtypes.finfo(ml_dtypes.bfloat16).min)
    q, k, v = (rng.standard_normal((1, 1, n, 64)).astype(ml_dtypes.bfloat16) for n in (6, 9, 9))
    bias = np.zeros((1, 1, 6, 9), ml_dtypes.bfloat16)
    bias[..., 1, :], bias[..., 2, :4], bias[..., 3, :], bias[..., 3, 2] = least, least, -np.inf, 0
    op = Attention(scale=0.125, has_bias=True)
    e = Emulated(graph(lambda *x: op(*x), *((bf16, x.shape) for x in (q, k, v, bias))), arch)
    (got,) = e(q, k, v, bias)
    q, k, v, b = (x.astype(np.float64) for x in (q, k, v, bias))
    s = q @ k.swapaxes(2, 3) * 0.125 + b
    p = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(got.astype(np.float64), p / p.sum(-1, keepdims=True) @ v, rtol=0, atol=2e-2)
    np.testing.assert_allclose(got.astype(np.float64)[..., 1, :], v.mean(2), rtol=0, atol=2e-2)
