"""Sizes that follow a call's symbols (a position in a cache): words in memory, graphs for each grid, parameters of matrix kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph, program
from tests.cuda.test_decode import attention, check, floats
from tilewright.build.cuda_late import make_late
from tilewright.compile import compile_graph, graph_signature, target_spec
from tilewright.core.dims import sym
from tilewright.core.dtypes import f16, f32
from tilewright.kernels.cuda.kernel import DecodeKernel
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.runtime.cuda import driver as cuda_driver

Array = Any


def test_a_position_is_a_word_in_memory(rng: np.random.Generator) -> None:
    """The position is a symbol of the call: the same kernels serve every value, and no grid follows it."""
    p, d = sym("P", 0, 31), 64
    op = o.Attention(scale=0.2, causal=True, offset=p)

    def layer(q: Any, new: Any, k: Any, v: Any) -> Any:
        update = o.UpdateSlice(axis=2, start=p)
        k, v = update(k, new), update(v, new)
        return op(q, o.slice_(k, 2, 0, p + 1), o.slice_(v, 2, 0, p + 1)), k, v

    g = graph(layer, (f32, (1, 2, 1, d)), (f32, (1, 2, 1, d)), (f32, (1, 2, 32, d)), (f32, (1, 2, 32, d)))
    g.donated, g.call_symbols = {2: 1, 3: 2}, tuple(p.symbols)
    e = Emulated(g)
    assert make_late(e.program, {"P"})
    (kernel,) = (x.kernel for x in e.program.launches)
    assert isinstance(kernel, DecodeKernel) and kernel.indirect
    q, new, k, v = (floats(rng, f32, 1, 2, n, d) for n in (1, 1, 32, 32))
    for at in (0, 1, 30, 31):
        y, k2, v2 = e(q, new, k, v, env={"P": at})
        assert np.array_equal(k2[:, :, at], new[:, :, 0]) and np.array_equal(np.delete(v2, at, 2), np.delete(v, at, 2))
        check(y, attention(q, k2[:, :, : at + 1], v2[:, :, : at + 1], o.Attention(scale=0.2, causal=True, offset=at)), f32)


def test_a_grid_that_follows_the_position_needs_a_graph_per_value() -> None:
    p = sym("P", 1, 31)
    g = graph(lambda x: o.Neg()(o.slice_(x, 0, 0, p)), (f32, (32, 8)))
    g.call_symbols = tuple(p.symbols)
    found = program(g)
    names = [x.kernel.name for x in found.launches]
    assert not make_late(found, {"P"}) and [x.kernel.name for x in found.launches] == names


def prompt_attention(rows: int, d: int, *, own: bool = False) -> Any:
    """Attention of some rows that begin at position P over a cache of 31, or over their `own` part of it."""
    p = sym("P", 0, 28)
    op = o.Attention(scale=0.25, causal=True, offset=p)

    def layer(q: Any, k: Any, v: Any) -> Any:
        seen = [o.slice_(x, 2, p, rows) if own else o.slice_(x, 2, 0, p + rows) for x in (k, v)]
        return o.Neg()(op(o.Neg()(q), *seen))

    g = graph(layer, (f16, (1, 2, rows, d)), (f16, (1, 1, 31, d)), (f16, (1, 1, 31, d)))
    g.call_symbols = tuple(p.symbols)
    return g


@pytest.mark.parametrize("own", [False, True])
def test_tensor_maps_follow_a_position(own: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Hopper keys and values come through maps, whose length or place is the position's: they are made anew, in one graph."""
    made: list[int] = []

    def tensor_map(dtype: str, address: int, sizes: list[int], *rest: Any) -> bytes:
        made.append(sizes[1])
        assert address >= 1 << 16  # memory, never an offset alone
        return bytes(128)

    monkeypatch.setattr(cuda_driver, "tensor_map", tensor_map)
    q, k, v = (floats(rng, f16, 1, h, n, 16) for h, n in ((2, 3), (1, 31), (1, 31)))
    with fake_gpu((9, 0), run=False) as gpu:
        g = prompt_attention(3, 16, own=own)
        session: Any = compile_graph(g, graph_signature(g), target_spec("cuda"))
        for at in (0, 5, 5, 28):
            made.clear()
            session.run_with({"P": at}, q, k, v)
            assert made[-2:] in ([3, 3] if own else [at + 3, at + 3], [])
        assert made[-2:] == ([] if own else [31, 31]) and len(session._schedules) == 1
        assert gpu.calls["cuGraphExecKernelNodeSetParams_v2"] >= 3 and gpu.calls["cuTensorMapReplaceAddress"] >= (6 if own else 3)


def test_tensor_cores_learn_a_position_by_new_parameters(rng: np.random.Generator) -> None:
    """Attention of several rows takes its numbers as parameters: one graph serves every position, with the node's parameters rewritten."""
    rows, d = 3, 16
    g = prompt_attention(rows, d)
    q, k, v = (floats(rng, f16, 1, h, n, d) for h, n in ((2, rows), (1, 31), (1, 31)))
    with fake_gpu() as gpu:
        session: Any = compile_graph(g, graph_signature(g), target_spec("cuda"))
        assert any(isinstance(x.kernel, TiledKernel) for x in session.executable.program.launches)
        for at in (0, 5, 28, 5):
            y = session.run_with({"P": at}, q, k, v).numpy()
            exact = [x.astype(np.float64) for x in (-q, k[:, :, : at + rows], v[:, :, : at + rows])]
            want = -o.Attention(scale=0.25, causal=True, offset=at).ref(*exact)
            assert np.linalg.norm(y - want) <= 3e-3 * np.linalg.norm(want)
        assert len(session._schedules) == 1 and gpu.calls["cuGraphExecKernelNodeSetParams_v2"] >= 3
