"""Every template against NumPy in f64 on fresh inputs: odd sizes, strided operands, zero sizes, all feature levels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.dims import sym
from tilewright.core.dtypes import bf16, bool_, f16, f32, f64, i16, i32, i64, u16
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.kernels.select import select
from tilewright.ops import functions as F
from tilewright.ops.attention.backward import AttentionBackward
from tilewright.ops.attention.forward import Attention, Rope
from tilewright.ops.base import single
from tilewright.ops.fused import Fused
from tilewright.ops.index.indexing import Gather
from tilewright.ops.matmul.contractions import Matmul
from tilewright.ops.rows.norms import LayerNorm, LogSoftmax, RmsNorm, Softmax
from tilewright.tile.text import to_text

from .harness import run_graph, target
from .interpreted import interpret_graph

LEVELS = ("avx512", "avx2", "baseline")
RTOL = {f32: 2e-5, f64: 1e-12, bf16: 2e-2, f16: 2e-3}


def t(dtype: Any, *shape: Any) -> TensorType:
    return TensorType(dtype, shape)


def draw(rng: np.random.Generator, type_: TensorType, env: dict[str, int]) -> Any:
    from tilewright.core.dims import evaluate

    shape = tuple(evaluate(d, env) for d in type_.shape)
    if type_.dtype.is_bool:
        return rng.random(shape) < 0.7
    if type_.dtype.is_int:
        return rng.integers(0, 3, shape).astype(type_.dtype.np)
    return rng.standard_normal(shape).astype(type_.dtype.np)


def check(graph: Graph, level: str = "avx512", seed: int = 0, **env: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [draw(rng, v.type, env) for v in graph.inputs]
    want = run(graph, inputs)
    got, error = run_graph(graph, inputs, level)
    again, _ = run_graph(graph, inputs, level, parts=3)
    assert not error.any()
    for g, a, w, v in zip(got, again, want, graph.outputs, strict=True):
        assert g.tobytes() == a.tobytes(), "the split of the grid changed the result"
        if v.dtype.is_float:
            x, y = g.astype(np.float64), np.asarray(w).astype(np.float64)
            np.testing.assert_allclose(x, y, rtol=RTOL[v.dtype], atol=RTOL[v.dtype] * max(1.0, float(np.abs(y).max(initial=0))))
        else:
            np.testing.assert_array_equal(g, w)


S = sym("S", 1, 64)


def fused(body: Callable[[tuple[Value, ...]], Any], *types: TensorType) -> Graph:
    """A graph of one region."""
    inner = single(lambda g, v: body(v), *types)
    return single(lambda g, v: Fused(body=inner)(*v), *types)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("m,n,k", [(1, 1, 1), (7, 65, 33), (6, 64, 16), (13, 5, 0), (0, 8, 8), (97, 130, 50), (5, 0, 4)])
def test_matmul_by_constant(level: str, m: int, n: int, k: int) -> None:
    w = np.random.default_rng(1).standard_normal((n, k)).astype("f4")

    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        return F.relu(F.add(Matmul(transpose_b=True)(v[0], g.constant(w, "w")), v[1]))

    check(single(body, t(f32, m, k), t(f32, n)), level)


@pytest.mark.parametrize("dtype", [f64, bf16, f16])
@pytest.mark.parametrize("level", LEVELS)
def test_matmul_dtypes(dtype: Any, level: str) -> None:
    w = np.random.default_rng(1).standard_normal((19, 37)).astype(dtype.np)
    check(single(lambda g, v: Matmul()(v[0], g.constant(w, "w")), t(dtype, 2, 9, 19)), level)


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)])
def test_batched_matmul(flags: tuple[bool, bool]) -> None:
    a = (2, 3, 5, 9) if not flags[0] else (2, 3, 9, 5)
    b = (3, 9, 70) if not flags[1] else (3, 70, 9)
    check(single(lambda g, v: Matmul(transpose_a=flags[0], transpose_b=flags[1], alpha=0.5)(v[0], v[1]), t(f32, *a), t(f32, *b)))


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_many_rows_by_small_numbers_in_place(dtype: Any) -> None:
    check(single(lambda g, v: Matmul()(v[0], v[1]), t(dtype, 8, 300, 5), t(dtype, 8, 5, 37)))


def test_matmul_epilogue_and_symbolic_rows() -> None:
    def body(v: tuple[Value, ...]) -> Value:
        return F.add(F.gelu(F.add(Matmul(transpose_b=True)(v[0], v[1]), v[2])), v[3])

    g = fused(body, t(f32, 2, S, 24), t(f32, 40, 24), t(f32, 40), t(f32, 2, S, 40))
    for s in (1, 5, 17):
        check(g, S=s)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 130), (2, 3, 4), (0, 5), (4097,)])
def test_pointwise(level: str, shape: tuple[int, ...]) -> None:
    def body(v: tuple[Value, ...]) -> Any:
        y = F.mul(F.add(v[0], v[1]), F.sigmoid(v[0]))
        return F.tanh(y), F.greater(y, v[1])

    check(fused(body, t(f32, *shape), t(f32, shape[-1])), level)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 6, 16, 23, 54, 64, 130])
def test_pointwise_rows_of_any_length(level: str, n: int) -> None:
    """Short rows with an operand that is the same for all of them: no row writes into the next one, whichever is written first."""
    graph = fused(lambda v: F.add(F.mul(v[0], v[1]), v[2]), t(f32, 3, 67, n), t(f32, 3, 1, n), t(f32, 3, 67, 1))
    x, w, b = (fresh_rng().standard_normal(s).astype("f4") for s in ((3, 67, n), (3, 1, n), (3, 67, 1)))
    (got,), _ = run_graph(graph, [x, w, b], level)
    np.testing.assert_allclose(got, x.astype("f8") * w + b, rtol=1e-6, atol=1e-6)
    (got,), error = interpret_graph(graph, [x, w, b])
    assert not error.any()
    np.testing.assert_allclose(got, x.astype("f8") * w + b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [f64, bf16, f16, i16, u16, i32, i64])
def test_pointwise_dtypes(dtype: Any) -> None:
    check(fused(lambda v: F.add(F.mul(v[0], v[1]), v[0]), t(dtype, 5, 33), t(dtype, 5, 1)))


@pytest.mark.parametrize("dtype", [i16, u16, i64])
def test_products_of_whole_numbers(dtype: Any) -> None:
    check(single(lambda g, v: F.matmul(v[0], v[1]), t(dtype, 5, 33), t(dtype, 33, 20)))


def test_views_and_copies() -> None:
    def body(g: Graph, v: tuple[Value, ...]) -> Any:
        x = F.transpose(v[0], (1, 0, 2))
        return F.reshape(x, (3, 10)), F.relu(x), v[0]

    check(single(body, t(f32, 2, 3, 5)))


VIEWS: dict[str, Callable[[Value], Value]] = {
    "transpose": lambda x: F.transpose(x, (2, 0, 1)), "slice": lambda x: F.slice_(x, 2, 1, 3), "flip": lambda x: F.flip(x, (1,)),
    "reshape": lambda x: F.reshape(x, (6, 5)), "expand": lambda x: F.expand(F.reshape(x, (1, 2, 3, 5)), (4, 2, 3, 5)),
    "several": lambda x: F.transpose(F.flip(F.slice_(x, 2, 0, 2), (0,)), (1, 2, 0)),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_allocate_nothing(name: str) -> None:
    """A view read by another op: one launch and no memory of its own, of an input and of a value in the middle."""
    g = single(lambda g, v: F.exp(VIEWS[name](v[0])), t(f32, 2, 3, 5))
    program = select(g, target("avx512"))
    assert (len(program.launches), len(program.temps)) == (1, 0)
    check(g)
    inner = single(lambda g, v: F.exp(VIEWS[name](Softmax(axis=2)(v[0]))), t(f32, 2, 3, 5))
    program = select(inner, target("avx512"))
    assert (len(program.launches), len(program.temps)) == (2, 1), "the softmax itself"
    check(inner)


def test_a_reshape_that_needs_a_copy_has_one() -> None:
    g = single(lambda g, v: F.exp(F.reshape(F.transpose(v[0], (1, 0, 2)), (3, 10))), t(f32, 2, 3, 5))
    assert len(select(g, target("avx512")).launches) == 2
    check(g)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n", [1, 16, 63, 64, 200])
@pytest.mark.parametrize("op", [LayerNorm(eps=1e-5), RmsNorm(eps=1e-6), Softmax(axis=2), LogSoftmax(axis=2), Softmax(axis=1)])
def test_rows(level: str, n: int, op: Any) -> None:
    check(single(lambda g, v: op(v[0]), t(f32, 2, 3, n)), level)


def test_residual_norm_region() -> None:
    def body(v: tuple[Value, ...]) -> Any:
        s = F.add(v[0], v[1])
        return s, F.relu(LayerNorm(eps=1e-5, affine="both")(s, v[2], v[3]))

    g = fused(body, t(f32, 2, S, 70), t(f32, 2, S, 70), t(f32, 70), t(f32, 70))
    check(g, S=3)


@pytest.mark.parametrize("fn", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("axes", [(2,), (0,), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions(fn: str, axes: tuple[int, ...], keepdims: bool) -> None:
    check(single(lambda g, v: F.apply(fn, v[0], axes=axes, keepdims=keepdims), t(f32, 3, 4, 21)))


ATTENTIONS = [(1, 1, 8, 8), (16, 16, 32, 32), (7, 50, 64, 64), (70, 70, 16, 24), (3, 200, 20, 80), (100, 130, 64, 64)]


@pytest.mark.parametrize(("level", "sq", "sk", "d", "dv"), [
    pytest.param(level, *sizes, marks=pytest.mark.slow if level != LEVELS[0] and sizes != (7, 50, 64, 64) else ())
    for level in LEVELS for sizes in ATTENTIONS
])
@pytest.mark.parametrize("causal", [False, True])
def test_attention(level: str, sq: int, sk: int, d: int, dv: int, causal: bool) -> None:
    op = Attention(scale=d**-0.5, causal=causal, offset=max(sk - sq, 0))
    check(single(lambda g, v: op(*v), t(f32, 2, 4, sq, d), t(f32, 2, 2, sk, d), t(f32, 2, 2, sk, dv)), level)


@pytest.mark.parametrize("causal,window,offset", [(False, None, 0), (True, None, 0), (True, 5, 0), (True, 46, -3), (False, 30, 7)])
def test_attention_of_many_heads_takes_more_rows_a_program_and_the_same_bits(causal: bool, window: int | None, offset: int) -> None:
    op = Attention(scale=0.2, causal=causal, window=window, offset=offset)
    many, alone = (
        single(lambda g, v: op(*v), *[t(f32, 1, heads, 110, 24)] * 3)
        for heads in (8 * target("avx512").cores, 1)
    )
    check(many)
    inputs = [draw(fresh_rng(), v.type, {}) for v in many.inputs]
    whole = run_graph(many, inputs)[0][0][:, 5:6]
    assert whole.tobytes() == run_graph(alone, [x[:, 5:6] for x in inputs])[0][0].tobytes()


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("mask,bias", [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("sk", [30, pytest.param(90, marks=pytest.mark.slow)])
def test_attention_masks(window: int | None, softcap: float | None, mask: bool, bias: bool, sk: int) -> None:
    op = Attention(scale=0.25, causal=window is not None, window=window, softcap=softcap, has_mask=mask, has_bias=bias)
    types = [t(f32, 1, 2, sk, 16)] * 3 + ([t(bool_, 1, 1, sk, sk)] if mask else []) + ([t(f32, 2, 1, sk)] if bias else [])
    check(single(lambda g, v: op(*v), *types))


def test_attention_fully_masked_row_is_zero() -> None:
    op = Attention(scale=1.0, has_mask=True)
    g = single(lambda g, v: op(*v), t(f32, 1, 1, 3, 8), t(f32, 1, 1, 70, 8), t(f32, 1, 1, 70, 8), t(bool_, 1, 1, 3, 70))
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal(s.shape).astype("f4") for s in [np.empty((1, 1, 3, 8)), np.empty((1, 1, 70, 8)), np.empty((1, 1, 70, 8))]
    )
    mask = np.ones((1, 1, 3, 70), bool)
    mask[..., 1, :] = False
    out, _ = run_graph(g, [q, k, v, mask])
    assert (out[0][0, 0, 1] == 0).all() and np.isfinite(out[0]).all()


@pytest.mark.parametrize("dtype", [bf16, f16, f64])
def test_attention_dtypes(dtype: Any) -> None:
    check(single(lambda g, v: Attention(scale=0.3)(*v), *[t(dtype, 1, 2, 33, 16)] * 3))


def test_attention_reads_one_qkv_buffer() -> None:
    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        parts = F.split(v[0], 2, (64, 64, 64))
        q, k, x = (F.transpose(F.reshape(p, (1, S, 4, 16)), (0, 2, 1, 3)) for p in parts)
        return F.reshape(F.transpose(Attention(scale=0.25, causal=True)(q, k, x), (0, 2, 1, 3)), (1, S, 64))

    g = single(body, t(f32, 1, S, 192))
    for s in (1, 20, 64):
        check(g, S=s)
    from tilewright.kernels.select import select

    from .harness import target

    assert len(select(g, target("avx512")).launches) == 1, "views of one buffer need no copies"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sq,sk", [(5, 5), (50, 50), (3, 130)])
def test_attention_rotates_on_the_way_in(level: str, sq: int, sk: int) -> None:
    def body(v: tuple[Value, ...]) -> Any:
        q, k = Rope()(v[0], v[3], v[4]), Rope()(v[1], v[5], v[6])
        return Attention(scale=0.2, causal=True, offset=sk - sq)(q, k, v[2])

    types = [
        t(f32, 1, 4, sq, 64),
        t(f32, 1, 2, sk, 64),
        t(f32, 1, 2, sk, 64),
        t(f32, sq, 32),
        t(f32, sq, 32),
        t(f32, sk, 32),
        t(f32, sk, 32),
    ]
    whole, apart = fused(body, *types), single(lambda g, v: body(v), *types)
    check(whole, level)
    rng = np.random.default_rng(3)
    inputs = [draw(rng, x, {}) for x in types]
    assert run_graph(whole, inputs, level)[0][0].tobytes() == run_graph(apart, inputs, level)[0][0].tobytes()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("ids", [(), (4,), (2, 3)])
def test_gather(axis: int, ids: tuple[int, ...]) -> None:
    check(single(lambda g, v: Gather(axis=axis)(v[0], v[1]), t(f32, 3, 4, 70), t(i64, *ids)))


def test_tied_weight_is_stored_once() -> None:
    w = np.random.default_rng(0).standard_normal((130, 24)).astype("f4")

    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        c = g.constant(w, "wte")
        return F.matmul(F.relu(F.gather(c, v[0])), c, transpose_b=True)

    g = single(body, t(i64, 1, S))
    from tilewright.kernels.select import select

    from .harness import target

    program = select(g, target("avx512"))
    assert [c.packed.form for c in program.constants] == ["panels"]
    check(g, S=5)


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (3, 0), (0, 0)])
@pytest.mark.parametrize("axis", [0, 1])
def test_gather_by_transposed_indices(axis: int, shape: tuple[int, int]) -> None:
    check(single(lambda g, v: F.gather(v[0], F.transpose(v[1], (1, 0)), axis), t(f32, 4, 5), t(i64, *shape)))


def test_gather_reports_a_bad_index() -> None:
    g = single(lambda g, v: Gather(axis=0)(v[0], v[1]), t(f32, 3, 4), t(i64, 2))
    for bad in (-1, 3):
        _, error = run_graph(g, [np.zeros((3, 4), "f4"), np.array([1, bad])])
        assert error[0] == 1 and error[2] == 1 and error[3] == bad


def test_this_suite_can_fail() -> None:
    good = single(lambda g, v: F.add(v[0], v[1]), t(f32, 4), t(f32, 4))
    broken = single(lambda g, v: F.sub(v[0], v[1]), t(f32, 4), t(f32, 4))
    x, y = np.arange(4, dtype="f4"), np.ones(4, "f4")
    out, _ = run_graph(good, [x, y], program=select(broken, target("avx512")))
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(out[0], run(good, [x, y])[0])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("n,k", [(70, 1300), (64, 512), (5, 129)])
def test_a_row_alone_has_the_bits_of_a_row_in_a_batch(level: str, n: int, k: int) -> None:
    w = np.random.default_rng(1).standard_normal((n, k)).astype("f4")
    x = np.random.default_rng(2).standard_normal((29, k)).astype("f4")
    m = sym("M", 1, 4096)

    def product(rows: Any) -> Graph:
        return single(lambda g, v: F.matmul(v[0], g.constant(w, "w"), transpose_b=True), t(f32, rows, k))

    (whole,), _ = run_graph(product(29), [x], level)
    np.testing.assert_allclose(whole, x.astype("f8") @ w.T.astype("f8"), rtol=1e-4, atol=2e-4)
    for rows, graph in ((1, product(1)), (7, product(7)), (29, product(m)), (2, product(m))):
        (part,), _ = run_graph(graph, [x[:rows]], level)
        assert part.tobytes() == whole[:rows].tobytes()


def test_the_code_of_attention_backward_does_not_grow_with_the_keys() -> None:
    def text(keys: int) -> str:
        operands = [TensorType(f32, (1, 2, keys, 64))] * 4
        graph = single(lambda g, v: AttentionBackward(causal=True, scale=0.125)(*v), *operands)
        (launch,) = select(graph, target("avx512")).launches
        return to_text(launch.kernel)

    assert len(text(4096)) < 1.05 * len(text(256))
