"""What a decode step is made of, in the emulator: products of few rows, attention of one row over a cache, ropes, lookups."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.ops as o
from tests.cuda.launching import Emulated, graph, program
from tilewright.core.dtypes import DType, bf16, f16, f32, i8, i64
from tilewright.kernels.attention.cuda import decode as decode_attention
from tilewright.kernels.cuda.kernel import BlockKernel, DecodeKernel, GemmKernel, ThinKernel
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.ops.rows.norms import RmsNorm
from tilewright.target.cuda.code import emit_cuda

Array = Any
TOLERANCE = {bf16: 6e-3, f16: 1e-3, f32: 5e-6}  # norm of the difference over the norm of the reference


def floats(rng: np.random.Generator, dtype: DType, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.np)


def check(got: Array, want: Array, dtype: DType, scale: Array | None = None) -> None:
    """`scale`: the size of what was summed up, where the sums themselves may cancel."""
    assert got.shape == want.shape and np.isfinite(got.astype(np.float64)).all()
    assert np.linalg.norm(got.astype(np.float64) - want) <= TOLERANCE[dtype] * np.linalg.norm(want if scale is None else scale) + 1e-12


def product(x: Any, w: Any, r: Any) -> Any:
    return o.Add()(r, o.Relu()(o.Matmul(transpose_b=True, alpha=0.5)(x, w)))


@pytest.mark.parametrize("dtype", [bf16, f16, f32], ids=str)
@pytest.mark.parametrize("shape", [(1, 10, 256), (1, 4, 4104), (1, 6, 8), (1, 4, 2056)], ids=str)
def test_one_row(shape: tuple[int, int, int], dtype: DType, rng: np.random.Generator) -> None:
    m, n, k = shape
    x, w, r = floats(rng, dtype, m, k), floats(rng, dtype, n, k), floats(rng, dtype, m, n)
    e = Emulated(graph(product, (dtype, x.shape), (dtype, w.shape), (dtype, r.shape)))
    assert e.program.launches[0].kernel.name.startswith("gemv")
    (y,) = e(x, w, r)
    a, b, c = (v.astype(np.float64) for v in (x, w, r))
    check(y, np.maximum(0.5 * (a @ b.T), 0) + c, dtype, 0.5 * np.sqrt((a * a) @ (b * b).T) + np.abs(c))


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("shape", [(2, 20, 64), (4, 34, 352), (33, 18, 544)], ids=str)
def test_few_rows(shape: tuple[int, int, int], dtype: DType, rng: np.random.Generator) -> None:
    """`mma.sync` with operands straight from memory; rows and columns past the end, K that the warps share unevenly."""
    m, n, k = shape
    x, w, r = floats(rng, dtype, m, k), floats(rng, dtype, n, k), floats(rng, dtype, n)
    e = Emulated(graph(product, (dtype, x.shape), (dtype, w.shape), (dtype, r.shape)), "sm_80")
    assert isinstance(e.program.launches[0].kernel, ThinKernel)
    (y,) = e(x, w, r)
    check(y, np.maximum(0.5 * (x.astype(np.float64) @ w.astype(np.float64).T), 0) + r.astype(np.float64), dtype)
    assert np.array_equal(y, e(x, w, r)[0])


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("sizes", [(64, 6), (264, 10), (2056, 4)], ids=str)
def test_a_norm_and_two_products_of_its_row_are_one_launch(sizes: tuple[int, int], dtype: DType, rng: np.random.Generator) -> None:
    k, n = sizes
    x, w, gate, up, r = (floats(rng, dtype, *s) for s in ((1, k), (k,), (n, k), (n, k), (1, n)))

    def layer(x: Any, w: Any, g: Any, u: Any, r: Any) -> Any:
        h = o.RmsNorm(eps=1e-5, affine="weight")(x, w)
        return o.add(r, o.mul(o.silu(o.Matmul(transpose_b=True)(h, g)), o.Matmul(transpose_b=True, alpha=0.5)(h, u)))

    e = Emulated(graph(layer, *((dtype, v.shape) for v in (x, w, gate, up, r))))
    assert [v.kernel.name.split("_")[0] for v in e.program.launches] == ["row"]
    a = x.astype(np.float64)
    h = a / np.sqrt((a * a).mean() + 1e-5) * w.astype(np.float64)
    g, u = h @ gate.astype(np.float64).T, 0.5 * (h @ up.astype(np.float64).T)
    silu, deep = g / (1 + np.exp(-g)), [np.sqrt((h * h) @ (m.astype(np.float64) ** 2).T) for m in (gate, up)]
    scale = np.abs(r.astype(np.float64)) + 1.1 * deep[0] * np.abs(u) + 0.5 * deep[1] * np.abs(silu)  # 1.1: the steepest slope of SiLU
    check(e(x, w, gate, up, r)[0], r.astype(np.float64) + silu * u, dtype, scale)


def test_a_norm_with_another_reader_is_computed_for_it() -> None:
    def both(x: Any, w: Any, m: Any) -> Any:
        h = o.RmsNorm(eps=1e-5, affine="weight")(x, w)
        return h, o.Matmul(transpose_b=True)(h, m)

    names = [v.kernel.name for v in program(graph(both, (bf16, (1, 64)), (bf16, (64,)), (bf16, (32, 64)))).launches]
    assert sorted(n.split("_")[0] for n in names) == ["rms", "row"]
    many = program(graph(both, (bf16, (2, 64)), (bf16, (64,)), (bf16, (32, 64)))).launches
    assert not any(v.kernel.name.startswith("row") for v in many)


def test_which_product_serves_how_many_rows() -> None:
    def kind(m: int, arch: str = "sm_90a") -> type:
        types = ((bf16, (m, 4096)), (bf16, (4096, 4096)))
        return type(program(graph(lambda x, w: o.Matmul(transpose_b=True)(x, w), *types), arch).launches[0].kernel)

    assert [kind(m) for m in (1, 2, 64)] == [BlockKernel, GemmKernel, GemmKernel]
    assert [kind(m, "sm_80") for m in (1, 2, 64, 65)] == [BlockKernel, ThinKernel, ThinKernel, TiledKernel]


def test_thin_products_share_k_and_read_no_row_in_vain() -> None:
    types = ((bf16, (16, 4096)), (bf16, (4096, 4096)))
    (launch,) = program(graph(lambda x, w: o.Matmul(transpose_b=True)(x, w), *types)).launches
    kernel = launch.kernel
    assert isinstance(kernel, GemmKernel) and (kernel.splits, kernel.rows, launch.grid) == (2, 16, 128)


def attention(q: Array, k: Array, v: Array, op: o.Attention) -> Array:
    """The reference of the op's own package is NumPy, too: this one is written apart from it."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.swapaxes(-1, -2) * op.scale
    s = np.tanh(s / op.softcap) * op.softcap if op.softcap is not None else s
    j = np.arange(k.shape[2])
    seen = (j <= op.offset if op.causal else j >= 0) & (j > op.offset - op.window if op.window is not None else j >= 0)
    e = np.where(seen, np.exp(s - s.max()), 0.0)
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total) @ v


CASES = [
    ((1, 4, 2, 37, 64), {"causal": True, "offset": 36}), ((2, 2, 1, 5, 128), {}),
    ((1, 1, 1, 150, 64), {"causal": True, "offset": 100, "window": 30}),
    ((1, 2, 1, 9, 64), {"causal": True, "offset": -1}), ((1, 2, 1, 70, 32), {"softcap": 5.0}), ((1, 1, 1, 270, 32), {}),
]  # fmt: skip


@pytest.mark.parametrize("dtype, short", [(bf16, 4096), (f32, 4096), (f32, 0)], ids=["block-bf16", "block", "parts"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_of_one_row(case: Any, dtype: DType, short: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_attention, "SHORT", short)
    (b, h, kv, keys, d), attrs = case
    op = o.Attention(scale=0.2, **attrs)
    q, k, v = floats(rng, dtype, b, h, 1, d), floats(rng, dtype, b, kv, keys, d), floats(rng, dtype, b, kv, keys, d)
    e = Emulated(graph(lambda *x: op(*x), *((dtype, x.shape) for x in (q, k, v))))
    assert isinstance(e.program.launches[0].kernel, DecodeKernel) == bool(short)
    check(e(q, k, v)[0], attention(q, k, v, op), dtype)


@pytest.mark.parametrize("short", [4096, 0])
@pytest.mark.parametrize("case", [(32, 5, None), (64, 23, 7), (128, 40, None), (256, 9, None)], ids=str)
def test_attention_of_one_row_over_a_cache_in_eight_bits(
    case: tuple[int, int, int | None], short: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values become numbers in registers; a half of a row has a part of a block, one or several. The cache goes on behind the keys seen."""
    monkeypatch.setattr(decode_attention, "SHORT", short)
    d, keys, window = case
    op = o.Q8Attention(scale=0.2, causal=True, offset=keys - 1, window=window)
    q = floats(rng, f32, 1, 4, 1, d)
    codes = [rng.integers(-127, 128, (1, 2, keys + 3, d)).astype(np.int8) for _ in range(2)]
    scales = [rng.uniform(0.001, 0.02, (1, 2, keys + 3, d // 32)).astype(np.float16) for _ in range(2)]
    given: list[Array] = [*codes, *scales]
    types = [(f32, q.shape), *((t, x.shape) for x, t in zip(given, (i8, i8, f16, f16), strict=True))]
    e = Emulated(graph(lambda q, *x: op(q, *(o.slice_(part, 2, 0, keys) for part in x)), *types))
    assert isinstance(e.program.launches[0].kernel, DecodeKernel) == bool(short)
    for x in given:
        x[:, :, keys:] = np.nan if x.dtype == np.float16 else 127
    k, v = (c.astype(np.float32) * np.repeat(s.astype(np.float32), 32, -1) for c, s in zip(codes, scales, strict=True))
    check(e(q, *given)[0], attention(q, k[:, :, :keys], v[:, :, :keys], op), f32)


def rotated(x: Array, cos: Array, sin: Array) -> Array:
    a, b = np.split(x.astype(np.float64), 2, -1)
    c, s = cos.astype(np.float64), sin.astype(np.float64)
    return np.concatenate([a * c - b * s, b * c + a * s], -1)


def test_the_query_is_rotated_on_the_way_in(rng: np.random.Generator) -> None:
    q, k, v = floats(rng, bf16, 1, 4, 1, 64), floats(rng, bf16, 1, 2, 40, 64), floats(rng, bf16, 1, 2, 40, 64)
    cos, sin = floats(rng, bf16, 1, 32), floats(rng, bf16, 1, 32)
    op = o.Attention(scale=0.2, causal=True, offset=39)
    e = Emulated(graph(lambda q, k, v, c, s: o.Neg()(op(o.Rope()(q, c, s), k, v)), *((bf16, x.shape) for x in (q, k, v, cos, sin))))
    assert len(e.program.launches) == 1
    check(e(q, k, v, cos, sin)[0], -attention(rotated(q, cos, sin), k, v, op), bf16)


@pytest.mark.parametrize("width", [8, 64, 128])
def test_rope(width: int, rng: np.random.Generator) -> None:
    x, cos, sin = floats(rng, bf16, 2, 3, 5, width), floats(rng, bf16, 5, width // 2), floats(rng, bf16, 5, width // 2)
    check(Emulated(graph(lambda *v: o.Rope()(*v), *((bf16, t.shape) for t in (x, cos, sin))))(x, cos, sin)[0], rotated(x, cos, sin), bf16)


def test_a_lookup_of_long_rows_is_checked(rng: np.random.Generator) -> None:
    table, ids = floats(rng, bf16, 11, 264), np.array([3, 10, 0])
    e = Emulated(graph(lambda t, i: o.Neg()(o.Gather(axis=0)(t, i)), (bf16, table.shape), (i64, (3,))))
    np.testing.assert_array_equal(e(table, ids)[0], -table[ids])
    assert not e.errors.any()
    e(table, np.array([3, 11, 0]))
    assert (e.errors[0], e.errors[3]) == (1, 11)


def test_such_a_region_passes_the_verifier() -> None:
    """`tw.compile` verifies the graph after the passes."""
    import tilewright as tw

    def layer(x: Any, w: Any, m: Any) -> Any:
        return o.Matmul(transpose_b=True)(o.RmsNorm(eps=1e-5, affine="weight")(x, w), m)

    session: Any = tw.compile(graph(layer, (bf16, (1, 64)), (bf16, (64,)), (bf16, (32, 64))), target="sm_90a", validation="strict")
    assert [x["note"] for x in session.report().data["launches"]] == ["norm and 1 products, 32 threads, 1 rows"]


@pytest.mark.parametrize("dtype, cache, short", [(bf16, bf16, 4096), (f32, f16, 4096), (f32, f32, 0)], ids=["bf16", "f32-f16", "parts"])
@pytest.mark.parametrize("window", [None, 7])
def test_attention_appends_to_its_caches(
    dtype: DType, cache: DType, short: int, window: int | None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch: the key is rotated, both rows are written in place, and the row sees itself."""
    monkeypatch.setattr(decode_attention, "SHORT", short)
    at, d, heads = 21, 64, (4, 2)
    new = floats(rng, dtype, 1, (heads[0] + 2 * heads[1]) * d)
    cos, sin = floats(rng, dtype, 1, d // 2), floats(rng, dtype, 1, d // 2)
    k, v = (floats(rng, cache, 1, heads[1], 40, d) for _ in range(2))
    op = o.Attention(scale=0.2, causal=True, offset=at, window=window)

    def layer(new: Any, cos: Any, sin: Any, k: Any, v: Any) -> Any:
        q_row, k_row, v_row = o.split(new, 1, (heads[0] * d, heads[1] * d, heads[1] * d))
        q_row, k_row, v_row = (
            o.transpose(o.reshape(x, (1, 1, n, d)), (0, 2, 1, 3)) for x, n in ((q_row, heads[0]), (k_row, heads[1]), (v_row, heads[1]))
        )
        update = o.UpdateSlice(axis=2, start=at)
        k, v = update(k, o.Rope()(k_row, cos, sin)), update(v, v_row)
        y = op(o.Rope()(q_row, cos, sin), o.slice_(k, 2, 0, at + 1), o.slice_(v, 2, 0, at + 1))
        return o.Neg()(y), k, v

    g = graph(layer, *((t, x.shape) for x, t in ((new, dtype), (cos, dtype), (sin, dtype), (k, cache), (v, cache))))
    g.donated = {3: 1, 4: 2}
    e = Emulated(g)
    assert [x.kernel.name.split("_")[0] for x in e.program.launches] == (["decode"] if short else ["decode", "decode"])
    q_row, k_row, v_row = (x.reshape(1, -1, 1, d) for x in np.split(new, [heads[0] * d, (heads[0] + heads[1]) * d], 1))
    turned = rotated(k_row, cos, sin)
    want_k, want_v = k.astype(np.float64), v.astype(np.float64)
    want_k[:, :, at : at + 1], want_v[:, :, at : at + 1] = turned, v_row.astype(np.float64)
    y, k, v = e(new, cos, sin, k, v)
    # the next kernel's matrices do not come before its own few loads
    early = [e.texts[x.kernel.name] for x in e.program.launches if getattr(x.kernel, "early", False)]
    assert len(early) == bool(short) and all("griddepcontrol.wait;\n  griddepcontrol.launch_dependents" in text for text in early)
    check(k, want_k, cache)
    np.testing.assert_array_equal(np.delete(v, at, 2), np.delete(want_v, at, 2).astype(v.dtype))
    check(v, want_v, cache)
    check(y, -attention(rotated(q_row, cos, sin), k[:, :, : at + 1], v[:, :, : at + 1], op), dtype)


@pytest.mark.parametrize("d, short, window", [(32, 4096, None), (64, 4096, 7), (128, 4096, None), (64, 0, None), (256, 4096, None)])
def test_attention_appends_codes_and_scales(
    d: int, short: int, window: int | None, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One launch rotates the key, rounds both rows to quantized values and appends those; the row sees itself as it was rounded."""
    monkeypatch.setattr(decode_attention, "SHORT", short)
    at, heads = 21, (4, 2)
    q, k_new, v_new = (floats(rng, f32, 1, n, 1, d) for n in (heads[0], heads[1], heads[1]))
    v_new[:, :, :, :32] = 0  # a block without a peak
    cos, sin = floats(rng, f32, 1, d // 2), floats(rng, f32, 1, d // 2)
    codes = [rng.integers(-127, 128, (1, heads[1], 40, d)).astype(np.int8) for _ in range(2)]
    scales = [rng.uniform(0.001, 0.02, (1, heads[1], 40, d // 32)).astype(np.float16) for _ in range(2)]
    op = o.Q8Attention(scale=0.2, causal=True, offset=at, window=window)

    def layer(q: Any, k: Any, v: Any, cos: Any, sin: Any, *caches: Any) -> Any:
        k_codes, v_codes = o.Q8Blocks()(o.Rope()(k, cos, sin)), o.Q8Blocks()(v)
        new = [k_codes[0], v_codes[0], k_codes[1], v_codes[1]]
        after = [o.UpdateSlice(axis=2, start=at)(old, x) for old, x in zip(caches, new, strict=True)]
        return (o.Neg()(op(o.Rope()(q, cos, sin), *(o.slice_(x, 2, 0, at + 1) for x in after))), *after)

    given: list[Array] = [q, k_new, v_new, cos, sin, *codes, *scales]
    g = graph(layer, *((t, x.shape) for x, t in zip(given, (*[f32] * 5, i8, i8, f16, f16), strict=True)))
    g.donated = {5 + i: 1 + i for i in range(4)}
    e = Emulated(g)
    assert [x.kernel.name.split("_")[0] for x in e.program.launches] == (["decode"] if short else ["decode", "decode"])
    y, *after = e(*given)
    turned = rotated(k_new, cos, sin).astype(np.float32)
    for i, row in enumerate((turned, v_new)):
        want, size = o.Q8Blocks().ref(row)
        assert np.abs(after[i][:, :, at].astype(int) - want[:, :, 0]).max() <= 1  # rounding of the rope may move a tie
        np.testing.assert_allclose(after[2 + i][:, :, at], size[:, :, 0], rtol=2e-3, atol=1e-6)
    for x, before in zip(after, given[5:], strict=True):
        np.testing.assert_array_equal(np.delete(x, at, 2), np.delete(before, at, 2))
    k, v = (c.astype(np.float32) * np.repeat(s.astype(np.float32), 32, -1) for c, s in zip(after[:2], after[2:], strict=True))
    check(y, -attention(rotated(q, cos, sin), k[:, :, : at + 1], v[:, :, : at + 1], op), f32)


@pytest.mark.parametrize("blocks", [1, 2])
def test_blocks_of_a_head_leave_the_bits(blocks: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four blocks share the keys of a head where the chip has room; fewer of them give the same bits."""
    q, k, v = floats(rng, bf16, 1, 2, 1, 64), floats(rng, bf16, 1, 2, 530, 64), floats(rng, bf16, 1, 2, 530, 64)
    g = graph(lambda *x: o.Attention(scale=0.125, causal=True, offset=529)(*x), *((bf16, x.shape) for x in (q, k, v)))
    e = Emulated(g)
    assert [(x.kernel.cluster, x.grid) for x in e.program.launches if isinstance(x.kernel, DecodeKernel)] == [(4, 8)]
    (want,) = e(q, k, v)
    monkeypatch.setattr(decode_attention, "CLUSTER", blocks)
    (got,) = Emulated(g)(q, k, v)
    np.testing.assert_array_equal(got, want)


def test_a_batch_of_one_divides_nothing_and_has_the_bits_of_its_row(rng: np.random.Generator) -> None:
    q, k, v = floats(rng, bf16, 2, 4, 1, 32), floats(rng, bf16, 2, 2, 21, 32), floats(rng, bf16, 2, 2, 21, 32)

    def run(*rows: Array) -> tuple[Array, bool]:
        e = Emulated(graph(lambda *x: o.Attention(scale=0.125)(*x), *((bf16, x.shape) for x in rows)))
        text = emit_cuda(e.program.launches[0].kernel, e.target)
        return e(*rows)[0], "  div." in text.replace("div.rn.f32", "") or "  rem." in text

    (both, divides), (alone, divides_alone) = run(q, k, v), run(q[1:], k[1:], v[1:])
    assert divides and not divides_alone
    np.testing.assert_array_equal(alone, both[1:])


def test_how_many_blocks_a_head_has() -> None:
    """As many as the chip has SMs for, and with a thread for every column."""

    def blocks(heads: int, d: int, cores: int = 132, **kw: Any) -> int:
        g = graph(lambda *x: o.Attention(scale=0.125)(*x), (bf16, (1, heads, 1, d)), *[(bf16, (1, heads, 40, d))] * 2)
        (launch,) = Emulated(g, cores=cores, **kw).program.launches
        assert isinstance(launch.kernel, DecodeKernel) and launch.grid == heads * launch.kernel.cluster
        return launch.kernel.cluster

    assert [blocks(h, 64) for h in (33, 34, 66, 67)] == [4, 2, 2, 1]
    assert [blocks(8, 256), blocks(8, 64, 16), blocks(8, 64, arch="sm_80")] == [2, 2, 1]


def test_loads_that_are_early_stay_early() -> None:
    """The assembler moves loads of constants (`.nc`) behind the wait for the previous kernel: those that stand before it are plain ones."""
    shapes = ((1, 2048), (2048,), (64, 2048))
    layer = lambda x, w, m: o.Matmul(transpose_b=True)(RmsNorm(eps=1e-5, affine="weight")(x, w), m)
    g = graph(layer, *((bf16, s) for s in shapes))
    e = Emulated(g)
    (launch,) = e.program.launches
    before, after = emit_cuda(launch.kernel, e.target).split("griddepcontrol.wait")
    assert before.count("ld.global.L1::no_allocate") == 2 and ".nc" not in before and "ld.global" in after
