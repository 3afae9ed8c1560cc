"""Kernels of the language as block programs: the worked examples and the language's ways in the PTX emulator, against float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.cuda.launching import Emulated
from tests.fresh import fresh_rng
from tests.lang import test_language as language
from tests.lang.examples import example
from tilewright import lang as tl
from tilewright.core.dtypes import dtype
from tilewright.core.pytree import flatten
from tilewright.ir.types import TensorType
from tilewright.transform.trace import Leaf, trace


def emulated(fn: Any, *arrays: Any, arch: str = "sm_80") -> list[Any]:
    """What a traced function computes on the emulated GPU."""
    _, spec = flatten((arrays, {}))
    traced = trace(fn, spec, [Leaf(TensorType(dtype(a.dtype), a.shape)) for a in arrays])
    return Emulated(traced.graph, arch)(*arrays)


def draw(*shape: int, dtype: Any = np.float32) -> Any:
    return fresh_rng().standard_normal(shape).astype(dtype)


def check(fn: Any, want: Any, *arrays: Any, limit: float = 1e-4) -> None:
    got = emulated(fn, *arrays)[0].astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=limit, atol=limit)


def test_vector_add_softmax_stencil() -> None:
    x, y, m = draw(1000), draw(1000), draw(5, 300)
    check(example("vector_add").vector_add, x + y, x, y)
    e = np.exp(m - m.max(1, keepdims=True))
    check(example("softmax").softmax, e / e.sum(1, keepdims=True), m)
    check(example("stencil").stencil, (m[:-2, 1:-1] + m[2:, 1:-1] + m[1:-1, :-2] + m[1:-1, 2:]) / 4, m)


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_matmul_and_attention(kind: Any) -> None:
    limit = 1e-3 if kind is np.float32 else 5e-2
    a, b = draw(70, 90, dtype=kind), draw(90, 50, dtype=kind)
    product = a.astype(np.float64) @ b.astype(np.float64)
    check(lambda a, b: example("matmul").matmul_tiles(a, b, BM=64, BN=64), product, a, b, limit=limit)
    q, k, v = draw(2, 70, 32, dtype=kind), draw(2, 50, 32, dtype=kind), draw(2, 50, 32, dtype=kind)
    check(lambda *p: example("attention").attention_tiles(*p, BM=32, BN=32), example("attention").reference(q, k, v), q, k, v, limit=limit)


def test_layer_norm() -> None:
    norm = example("layer_norm")
    x, w, b, dy = draw(5, 300), draw(300), draw(300), draw(5, 300)
    mean, rstd = x.mean(1, keepdims=True), 1 / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    hat, g = (x - mean) * rstd, dy * w
    check(lambda *p: norm.norm_forward(*p, 1e-5)[0], hat * w + b, x, w, b)
    want = rstd * (g - g.mean(1, keepdims=True) - hat * (g * hat).mean(1, keepdims=True))
    dx, dw, db = emulated(lambda *p: norm.norm_backward(*p, PARTS=2), x, w, mean[:, 0], rstd[:, 0], dy)
    for got, expected in ((dx, want), (dw.sum(0), (dy * hat).sum(0)), (db.sum(0), dy.sum(0))):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_loops_branches_dtypes() -> None:
    x = fresh_rng().integers(-5, 5, 9).astype(np.float32)
    check(language.loops, language.loops(x), x)
    s, t = fresh_rng().integers(-8, 8, (2, 21))
    s, t = s.astype(np.int32), t.astype(np.float32)
    for got, want in zip(emulated(language.mixed, s, t), language.mixed(s, t), strict=True):
        np.testing.assert_array_equal(got, want)
    @tw.kernel("f32[N], f32[M] -> f32[N, M]", grid=1)
    def outer(x, y, z, *, A=8, B=16):
        z.store((0, 0), x.load(0, A)[:, None] * y.load(0, B)[None, :])

    a, b = draw(5), draw(11)
    check(outer, np.outer(a, b), a, b)
    m = draw(13, 21)
    check(language.transposed, m.T, m)


def test_sides_are_powers_of_two() -> None:
    @tw.kernel("f32[N] -> f32[N]", grid=1)
    def odd(x, y):
        y.store(0, x.load(0, 24))

    with pytest.raises(tw.CompileError, match=r"kernel odd: x.load: on a GPU the sides .* powers of two, got \(24,\); 16 or 32 fits"):
        emulated(odd, draw(24))
    assert tl.cdiv(24, 16) == 2


@pytest.mark.parametrize(("step", "vector"), [(1, 1), (2, 2), (8, 8)])
def test_vectors_are_as_wide_as_positions_allow(step: int, vector: int) -> None:
    """Accesses of more elements at a time need positions that are multiples of them, also through rows of a view."""
    from tilewright.kernels.cuda.tiled import TiledKernel

    @tw.kernel("f32[M, N] -> f32[M, N]", grid=lambda M: M)
    def moved(x, y, *, STEP, B=512):
        i = tl.program_id(0)
        for start in range(0, x.shape[1] - STEP, B):
            y[i].store(start, x[i].load(start + STEP, B))

    x = draw(3, 200)
    graph = trace(lambda a: moved(a, STEP=step), flatten(((x,), {}))[1], [Leaf(TensorType(dtype(x.dtype), x.shape))]).graph
    program = Emulated(graph, "sm_80")
    (kernel,) = (k for launch in program.program.launches for k in launch.kernels)
    assert isinstance(kernel, TiledKernel) and kernel.vector("x") == vector and kernel.vector("y") == 8
    np.testing.assert_array_equal(program(x)[0][:, : 200 - step], x[:, step:])
    widths = {1: "ld.global.b32", 2: "ld.global.v2", 8: "ld.global.v4"}
    assert widths[vector] in program.texts[kernel.name]
