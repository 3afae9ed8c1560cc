"""Attention forward on Hopper, run in the emulator with its copies and products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.kernels import case
from tests.cuda.launching import Emulated, graph, program
from tilewright.core.dtypes import DType, bf16, bool_, f16
from tilewright.kernels.attention.cuda.flash import heads_together, lengths
from tilewright.kernels.cuda.kernel import PLANS
from tilewright.ops.attention.forward import Attention
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.safety import async_safety
from tilewright.target.cuda.safety.barrier_safety import check
from tilewright.target.cuda.safety.token_launch import small_launch

Array = Any
heads = pytest.mark.parametrize("d", [64, 128])


def emulated(*arrays: Array, dtype: DType, **how: Any) -> Array:
    types = [(bool_ if x.dtype == np.bool_ else dtype, x.shape) for x in arrays]
    (out,) = Emulated(graph(lambda *x: Attention(**{"scale": 0.125, **how})(*x), *types), cores=1)(*arrays)
    return out.astype(np.float64)


def reference(q: Array, k: Array, v: Array, seen: Array) -> Array:
    q, k, v = (x.astype(np.float64) for x in (q, *(np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))))
    scores = np.where(seen, q @ k.swapaxes(-1, -2) * 0.125, -np.inf)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.where(seen.any(-1)[..., None], weights / weights.sum(-1, keepdims=True) @ v, 0.0)


def normal(rng: np.random.Generator, dtype: DType, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(dtype.np)


def near(got: Array, want: Array, dtype: DType) -> bool:
    """In the norm: rounding of weights and results is a half unit at most, and a quarter on average."""
    return bool(np.linalg.norm(got - want) <= (2**-8 if dtype is bf16 else 2**-11) * np.linalg.norm(want))


@heads
def test_causal_rows_of_shared_heads(rng: np.random.Generator, d: int) -> None:
    """Lengths that are no multiples of a tile; one SM, whose blocks have several pieces of work each."""
    q, k, v = normal(rng, bf16, 1, 2, 140, d), normal(rng, bf16, 1, 1, 140, d), normal(rng, bf16, 1, 1, 140, d)
    assert near(emulated(q, k, v, dtype=bf16, causal=True), reference(q, k, v, np.tri(140, dtype=bool)), bf16)


@pytest.mark.slow
@heads
def test_many_pieces_of_many_tiles(rng: np.random.Generator, d: int) -> None:
    q, k, v = normal(rng, bf16, 2, 2, 411, d), normal(rng, bf16, 2, 1, 555, d), normal(rng, bf16, 2, 1, 555, d)
    seen = np.tri(411, 555, 144, dtype=bool) & ~np.tri(411, 555, 144 - 300, dtype=bool)
    assert near(emulated(q, k, v, dtype=bf16, causal=True, offset=144, window=300), reference(q, k, v, seen), bf16)


@heads
def test_scores_that_grow_from_tile_to_tile(rng: np.random.Generator, d: int) -> None:
    """Tiles come from the last to the first: the largest scores, some of them far beyond what 16 bits hold as powers of two, come last."""
    for dtype in (f16, bf16):
        q, k, v = normal(rng, dtype, 1, 1, 50, d), normal(rng, dtype, 1, 1, 333, d), normal(rng, dtype, 1, 1, 333, d)
        q[..., :25, :] *= dtype.np.type(0.02)  # rows that never grow, in the same warps
        k = (k * np.linspace(30, 1, 333)[:, None]).astype(dtype.np)
        assert near(emulated(q, k, v, dtype=dtype), reference(q, k, v, np.ones((50, 333), bool)), dtype)


@heads
def test_rows_that_see_nothing_for_a_while_or_at_all(rng: np.random.Generator, d: int) -> None:
    """Masked rows are zeros; others see nothing but very negative scores, or nothing in their first tiles."""
    q, k, v = normal(rng, bf16, 1, 1, 40, d), normal(rng, bf16, 1, 1, 260, d), normal(rng, bf16, 1, 1, 260, d)
    k[..., :130, 0] = bf16.np.type(-3000.0)  # beyond the smallest power of two that f32 holds, relative to no maximum
    q[..., 0] = bf16.np.type(1.0)
    seen = rng.random((40, 260)) < 0.5
    seen[3:9] = False
    seen[10:20, 130:] = False
    assert near(emulated(q, k, v, seen, dtype=bf16, has_mask=True), reference(q, k, v, seen), bf16)


@heads
def test_a_row_does_not_depend_on_the_others(rng: np.random.Generator, d: int) -> None:
    """The same bits whether rows of its warp are done again or not; and a NaN reaches the rows that see it, no others."""
    q, k, v = normal(rng, bf16, 1, 1, 32, d), normal(rng, bf16, 1, 1, 200, d), normal(rng, bf16, 1, 1, 200, d)
    plain = emulated(q, k, v, dtype=bf16)
    q[..., 1::2, :] *= bf16.np.type(300.0)
    assert (emulated(q, k, v, dtype=bf16)[..., ::2, :] == plain[..., ::2, :]).all()
    for key in (7, 30, 199):
        bad = k.copy()
        bad[..., key, 5] = np.nan
        out = emulated(q, bad, v, dtype=bf16, causal=True, offset=168)
        rows = np.arange(32) + 168 >= key
        assert np.isnan(out[..., rows, :]).all() and not np.isnan(out[..., ~rows, :]).any()


@heads
def test_waits_and_barriers(d: int) -> None:
    cases = ("attention_causal", "attention_window", "attention_extras") if d == 128 else ("attention_training", "attention")
    for source in cases:
        kernel = program(case(source)).launches[0].kernel
        text = emit_cuda(kernel, cuda_target())
        assert check(text) == []
        launch = small_launch(kernel, text)
        assert launch is not None
        found = async_safety.check(text, launch)
        assert found.findings == () and found.met and all(found.met.values())


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas here (CUDA toolkit or the package nvidia-cuda-nvcc)")
@heads
def test_the_assembler_takes_it_without_spills(d: int) -> None:
    """Plain and with a bias; a mask and a bias at once leave no register for a few bytes."""
    shape, square = (bf16, (4, 16, 1024, d)), (4, 16, 1024, 1024)
    both = {"causal": True, "has_mask": True, "has_bias": True}
    bias = [(bf16, square)]
    for how, extras in (({}, []), ({"causal": True}, []), ({"has_bias": True}, bias), (both, [(bool_, square), *bias])):
        launched = program(graph(lambda *x, how=how: Attention(scale=0.125, **how)(*x), shape, shape, shape, *extras)).launches[0]
        usage = assemble(emit_cuda(launched.kernel, cuda_target()), "sm_90a")
        most = 8 if how is both else 0
        assert usage.spilled <= most and usage.stack <= most and not usage.warnings, usage


def test_the_order_of_work_is_balanced() -> None:
    """Measured shapes keep the groups that were measured; others are never worse than the largest group, and mostly better."""
    for (lines, n, d), size in {(256, 1024, 64): 88, (128, 4096, 128): 12, (32, 16384, 128): 3}.items():
        plan = PLANS[d]
        tiles = lengths(n, n, 64 * plan.consumers, plan.keys, 0, None)
        assert heads_together(tiles, lines, plan.kept // (4 * d * n), 132, plan.per_sm) == size
    assert lengths(130, 200, 64, 128, 70, None) == [2, 2, 2] and lengths(130, 300, 64, 128, 170, 100) == [1 + 1, 2, 2]
    assert heads_together([1, 2], 10, 4, 132, 1) == 4  # fewer pieces than blocks
    assert heads_together([1, 2, 3, 4], 128, 48, 132, 1) < 48
