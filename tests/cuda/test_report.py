"""What a session for a GPU says about itself without one, and which target is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.kernels import case
from tests.cuda.launching import graph, program
from tilewright.compile import chosen_target
from tilewright.core.dtypes import bf16, f32, i32
from tilewright.core.errors import CompileError
from tilewright.kernels.attention.cuda.flash_kernels import FlashGradKernel, FlashStatsKernel, MmaGradKernel
from tilewright.kernels.cuda import templates
from tilewright.kernels.cuda.groups import Shared
from tilewright.kernels.cuda.kernel import BlockKernel, FlashKernel
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.kernels.sort.sorting import SortTemplate
from tilewright.passes.pipeline import run_pipeline
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.ptxas import find_ptxas
from tilewright.target.cuda.threads.emit import emit_block_kernel
from tilewright.tile.builder import KernelBuilder


def test_a_report_names_launches_kernels_and_barriers() -> None:
    session: Any = tw.compile(case("softmax_long"), target="sm_90a")
    data = session.report().data
    (launch,) = data["launches"]
    assert (launch["grid"], launch["block"]) == (8, 256) and launch["bytes"] == 2 * 8 * 8192 * 2
    (kernel,) = data["kernels"].values()
    assert kernel["barriers"]["bar.sync"] >= 1 and kernel["barriers"]["griddepcontrol.wait"] == 1
    assert (kernel["registers"] is None) == (find_ptxas() is None)
    text = str(session.report())
    assert "the previous kernel has ended" in text and "1 launches of 1 kernels" in text and "softmax" in session.report()._repr_html_()


class OnGpu:
    """Stands for a CUDA tensor where there is none."""

    is_cuda = True


def test_the_target_is_where_the_data_is() -> None:
    x = torch.zeros(2)
    assert chosen_target(torch.nn.Linear(2, 2), (x,), None) == "cpu"
    assert chosen_target(lambda v: v, (x, OnGpu()), None) == "cuda"
    assert chosen_target(lambda v: v, (), {"v": OnGpu()}) == "cuda"

    class Module(torch.nn.Module):
        def parameters(self, recurse: bool = True) -> Any:
            return iter([OnGpu()])

    assert chosen_target(Module(), (x,), None) == "cuda"


def test_attention_is_differentiated_by_tensor_cores_where_there_are_some() -> None:
    def build(dtype: Any, d: int = 64) -> Any:
        shape = (1, 2, 100, d)
        op = o.AttentionBackward(scale=0.125, causal=True)
        return graph(lambda *x: op(*x), *((dtype, shape),) * 4)

    assert [type(x.kernel) for x in program(build(bf16)).launches] == [FlashStatsKernel, BlockKernel, FlashGradKernel, FlashGradKernel]
    for arch in ("sm_80", "sm_120"):
        kinds = [type(x.kernel) for x in program(build(bf16), arch).launches]
        assert kinds == [TiledKernel, BlockKernel, MmaGradKernel, MmaGradKernel]
        assert not any(n.op.name == "attention_backward" for n in run_pipeline(build(bf16, 60), cuda_target(arch)).nodes)
    assert not any(n.op.name == "attention_backward" for n in run_pipeline(build(bf16)).nodes)
    assert any(n.op.name == "attention_backward" for n in run_pipeline(build(f32)).nodes)


def test_behind_its_forward_pass_it_reads_saved_logsumexps_and_writes_the_joined_cotangent() -> None:
    """q, k and v are parts of one projection: neither they nor their cotangents are copied."""
    for window in (None, 30):
        attrs: dict[str, Any] = {"scale": 0.125, "causal": True, "window": window}

        def rows(v: Any) -> Any:
            return o.reshape(o.transpose(v, (0, 2, 1, 3)), (200, 128))

        def step(x: Any, g: Any, attrs: Any = attrs) -> Any:
            q, k, v = (o.transpose(o.reshape(y, (2, 100, 2, 64)), (0, 2, 1, 3)) for y in o.split(x, 1, (128,) * 3))
            out = o.Attention(**attrs)(q, k, v)
            back = o.AttentionBackward(**attrs)(q, k, v, o.transpose(o.reshape(g, (2, 100, 2, 64)), (0, 2, 1, 3)))
            return rows(out), o.Concat(axis=1)(*(rows(y) for y in back))

        launches = program(graph(step, (bf16, (200, 384)), (bf16, (200, 128)))).launches
        assert [type(x.kernel) for x in launches] == [FlashKernel, BlockKernel, FlashGradKernel, FlashGradKernel]


def test_strange_rows_are_copied_first() -> None:
    T, K = (bf16, (1, 2, 64, 64)), (bf16, (1, 2, 64, 64))
    op = o.AttentionBackward(scale=0.125)
    turned = graph(lambda q, k, v, g: op(q, o.Transpose(perm=(0, 1, 3, 2))(k), v, g), T, K, K, T)
    launches = program(turned).launches
    assert len(launches) == 5 and "copy" in launches[0].note


def test_other_targets_decompose_it(rng: np.random.Generator) -> None:
    shape = (1, 2, 9, 64)
    x = [rng.standard_normal(shape).astype(np.float32).astype(bf16.np) for _ in range(4)]
    op = o.AttentionBackward(scale=0.125, causal=True)
    session: Any = tw.compile(graph(lambda *v: op(*v), *((bf16, shape),) * 4), target="cpu")
    for got, want in zip(session(*x), op.ref(*x), strict=True):
        wide = want.astype(np.float64)
        assert np.linalg.norm(np.asarray(got).astype(np.float64) - wide) <= 2e-2 * np.linalg.norm(wide)


def test_registers_that_spill_are_in_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of one thread a program that holds a whole tile: the report says so before anything runs, and what would fit."""
    monkeypatch.setattr(templates, "CUDA_TEMPLATES", [Shared(SortTemplate()), *templates.CUDA_TEMPLATES])
    session: Any = tw.compile(graph(lambda x: o.Sort(axis=0)(x), (i32, (70,))), target="sm_90a")
    (kernel,) = session.report().data["kernels"].values()
    (message,) = kernel["limits"]
    assert "at most 255 registers a thread, got about" in message and "threads fit" in message
    assert f"{message}; what does not fit spills" in str(session.report())


def test_a_kernel_with_too_much_shared_memory_is_refused() -> None:
    b = KernelBuilder("greedy")
    s = b.scratch(f32, (64, 1024), "shared")
    b.store(s, [0, 0], b.full((64, 64), 1.0))
    b.store(b.view("y", f32, (64, 1)), [0, 0], b.load(s, [0, 0], (64, 64)))
    k = b.build()
    with pytest.raises(CompileError, match=r"gpu: kernel greedy: at most 166912 bytes of shared memory, got 262144; .* takes 262144"):
        emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=64, programs=1), cuda_target("sm_80"))
