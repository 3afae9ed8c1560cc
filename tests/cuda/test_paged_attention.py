"""Attention over pages of a cache: the GPU's kernel in the emulator and the CPU's ops, against PyTorch sequence by sequence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import Emulated, graph
from tests.ops.oracle_paged import paged_attention
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, f16, f32, i32, i64
from tilewright.kernels.cuda.kernel import DecodeKernel
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import CHIPS, cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.safety.barrier_safety import check

Array = Any
# sequences, heads, key heads, positions of a page, head size, pages of a row, dtype of q and of the cache, of the table, soft cap
CASES = [(3, 4, 2, 16, 64, 3, f32, f32, i32, None), (2, 3, 1, 24, 32, 2, f32, bf16, i64, 5.0)]
LONG = (2, 2, 2, 256, 16, 20, f16, f16, i32, None)  # parts of the keys all over the chip


def given(rng: np.random.Generator, case: tuple[Any, ...]) -> list[Array]:
    b, h, kv, page, d, width, q, cache, ids, _ = case
    pages = b * width + 2
    lengths = rng.integers(1, width * page + 1, b)
    lengths[0] = 0
    table = rng.permutation(pages)[: b * width].reshape(b, width)
    rows = [rng.standard_normal(s).astype(t.np) for s, t in (((b, h, 1, d), q), *(((pages, kv, page, d), cache),) * 2)]
    return [*rows, table.astype(ids.np), lengths.astype(ids.np)]


def build(case: tuple[Any, ...], batch: Any = None) -> Any:
    b, h, kv, page, d, width, q, cache, ids, cap = case
    pages = b * width + 2
    b = b if batch is None else batch
    op = o.PagedAttention(scale=d**-0.5, softcap=cap)
    pool: tuple[DType, tuple[int, ...]] = (cache, (pages, kv, page, d))
    return graph(lambda *x: op(*x), (q, (b, h, 1, d)), pool, pool, (ids, (b, width)), (ids, (b,)))


def wanted(inputs: list[Array], case: tuple[Any, ...]) -> Array:
    tensors = [torch.from_numpy(x.astype(np.float64)) for x in inputs[:3]] + [torch.from_numpy(x) for x in inputs[3:]]
    return paged_attention({"scale": case[4] ** -0.5, "softcap": case[-1]}, *tensors).numpy()


@pytest.mark.parametrize("case", [*CASES, pytest.param(LONG, marks=pytest.mark.slow)], ids=str)
def test_pages_on_both_targets(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    inputs = given(rng, case)
    want, tolerance = wanted(inputs, case), 2e-3 if case[6] is f16 else 2e-6
    e = Emulated(build(case))
    assert [isinstance(x.kernel, DecodeKernel) for x in e.program.launches] in ([True], [False, False])
    np.testing.assert_allclose(e(*inputs)[0].astype(np.float64), want, atol=tolerance)
    assert not e.errors.any()
    found = tw.compile(build(case))(*inputs)
    np.testing.assert_allclose(np.asarray(found, np.float64), want, atol=tolerance)


def test_sequences_alone_have_the_bits_they_have_together(rng: np.random.Generator) -> None:
    q, k, v, table, lengths = given(rng, CASES[0])
    e = Emulated(build(CASES[0], sym("B", 1, 9)))
    (whole,) = e(q, k, v, table, lengths)
    np.testing.assert_array_equal(e(q[1:2], k, v, table[1:2], lengths[1:2])[0], whole[1:2])


def test_a_page_that_is_none_is_an_error_where_it_is_read(rng: np.random.Generator) -> None:
    q, k, v, table, lengths = given(rng, CASES[0])
    table[1, 2], lengths[1] = 11, 33  # 11 pages
    e = Emulated(build(CASES[0]))
    e(q, k, v, table, lengths)
    assert e.errors.any()
    lengths[1] = 32  # nothing of that page is seen
    e(q, k, v, table, lengths)
    assert not e.errors.any()
    with pytest.raises(tw.ExecutionError, match="index out of range, got 11"):
        tw.compile(build(CASES[0]))(q, k, v, table, lengths)


@pytest.mark.parametrize("arch", ["sm_90a", *(pytest.param(a, marks=pytest.mark.slow) for a in CHIPS if a != "sm_90a")])
def test_kernels_are_safe_at_barriers_and_have_no_spills(arch: str) -> None:
    text = emit_cuda(Emulated(build(CASES[0]), arch).program.launches[0].kernel, cuda_target(arch))
    assert check(text) == []
    if find_ptxas() is not None:
        usage = assemble(text, arch)
        assert usage.spilled == 0 and usage.stack == 0 and not usage.warnings
