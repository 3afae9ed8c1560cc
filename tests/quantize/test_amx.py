"""AMX products without a CPU that has them: their kernels in the tile interpreter, the machine code that LLVM makes, and the way to ask."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.fresh import fresh_rng
from tests.kernels.interpreted import interpret_graph
from tilewright import ops as o
from tilewright.core.dtypes import bf16, i32, u8
from tilewright.core.target_spec import TargetSpec
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.select import select
from tilewright.passes.pipeline import run_pipeline
from tilewright.target.cpu import amx
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import assembly


def with_tiles() -> TargetSpec:
    """Sapphire Rapids, as far as kernels and LLVM are concerned."""
    host = host_target()
    more = {"amx-tile", "amx-int8", "amx-bf16", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16"}
    return replace(host, cpu="sapphirerapids", features=host.features | more, masked=frozenset(), vector_bits=512, registers=32,
                   checks=False)


def product(dtype: Any, m: int, k: int, w: Any) -> Graph:
    graph = Graph("product")
    op = o.Matmul(transpose_b=True, dtype=i32 if dtype is u8 else None)
    graph.outputs = [op(graph.input(TensorType(dtype, (m, k)), "x"), graph.constant(w, "w"))]
    return graph


@pytest.mark.parametrize(("m", "k", "n"), [(1, 64, 16), (37, 128, 70), (32, 192, 64), (130, 64, 96)])
def test_products_of_bytes_in_the_interpreter(m: int, k: int, n: int) -> None:
    rng = fresh_rng()
    x, w = rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (n, k)).astype(np.int8)
    graph = run_pipeline(product(u8, m, k, w), with_tiles())
    assert any("AMX" in launch.note for launch in select(graph, with_tiles()).launches) == (n != 70)  # 40 columns a panel are no tiles
    (got,), _ = interpret_graph(graph, [x], with_tiles())
    np.testing.assert_array_equal(got, x.astype(np.int64) @ w.T.astype(np.int64))


def test_products_of_bf16_in_the_interpreter() -> None:
    rng = fresh_rng()
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((21, 96), (64, 96)))
    graph = run_pipeline(product(bf16, 21, 96, w), with_tiles())
    assert any("AMX" in launch.note for launch in select(graph, with_tiles()).launches)
    (got,), _ = interpret_graph(graph, [x], with_tiles())
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    assert np.abs(got.astype(np.float64) - want).max() < 2.0**-7 * np.abs(want).max()


@pytest.mark.parametrize(("channels", "out", "size", "kernel", "step", "groups"), [
    (64, 48, (5, 7), (3, 3), 1, 1), (32, 16, (9, 6), (3, 1), 2, 1), (128, 64, (6, 7), (1, 5), 1, 2)])
@pytest.mark.parametrize("dtype", [bf16, u8])
def test_convolutions_in_the_interpreter(dtype: Any, channels: int, out: int, size: tuple[int, int], kernel: tuple[int, int], step: int,
                                         groups: int) -> None:
    """Windows of pixels at the edges, of two images and of groups become rows of tiles."""
    rng, target = fresh_rng(), with_tiles()
    channels *= 2 if dtype is u8 else 1
    shapes = (2, channels, *size), (out, channels // groups, *kernel)
    padding = tuple((k // 2, k // 2) for k in kernel)
    common = {"stride": (step, step), "dilation": (1, 1), "padding": padding, "groups": groups}
    graph = Graph("convolution")
    x_in = graph.input(TensorType(dtype, shapes[0]), "x")
    if dtype is u8:
        x, w = rng.integers(0, 256, shapes[0]).astype(np.uint8), rng.integers(-128, 128, shapes[1]).astype(np.int8)
        graph.outputs = [o.IntConv(**common)(x_in, graph.constant(w, "w"))]
    else:
        x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in shapes)
        graph.outputs = [o.Conv(**common)(x_in, graph.constant(w, "w"))]
    graph = run_pipeline(graph, target)
    assert any("AMX" in launch.note for launch in select(graph, target).launches)
    (got,), _ = interpret_graph(graph, [x], target)
    want = torch.conv2d(torch.tensor(x.astype(np.float64)), torch.tensor(w.astype(np.float64)), stride=step,
                        padding=tuple(p for p, _ in padding), groups=groups).numpy()
    assert np.abs(got.astype(np.float64) - want).max() <= (0 if dtype is u8 else 2.0**-7) * np.abs(want).max()


def test_windows_that_fill_no_tiles_are_widened() -> None:
    """Intel's cores multiply vectors of bf16 pairs more slowly than f32."""
    target, graph = with_tiles(), Graph("first layer")
    w = np.zeros((64, 3, 7, 7), ml_dtypes.bfloat16)
    x = graph.input(TensorType(bf16, (1, 3, 20, 20)), "x")
    graph.outputs = [o.Conv(stride=(2, 2), dilation=(1, 1), padding=((3, 3), (3, 3)), groups=1)(x, graph.constant(w, "w"))]
    graph = run_pipeline(graph, target)
    for cpu, used in ((target, False), (replace(target, features=target.features - {"amx-tile"}), True)):
        kernels = [launch.kernel for launch in select(graph, cpu).launches]
        assert any("dot2" in str(kernel) for kernel in kernels) is used


@pytest.mark.parametrize(("dtype", "instruction"), [(u8, "tdpbusd"), (bf16, "tdpbf16ps")])
def test_machine_code(dtype: Any, instruction: str) -> None:
    """Tiles are configured before and released behind the products; sums stay in tiles inside the loop."""
    w = np.random.default_rng(1).integers(-9, 9, (64, 256)).astype(np.int8 if dtype is u8 else ml_dtypes.bfloat16)
    target = with_tiles()
    kernel = next(launch.kernel for launch in select(run_pipeline(product(dtype, 64, 256, w), target), target).launches)
    text = assembly(emit_kernel(kernel, target), target)
    lines = [line.split()[0] for line in text.splitlines() if line.strip() and not line.strip().startswith((".", "#"))]
    assert lines.count(instruction) == 8  # two halves of a panel, four tiles each
    assert lines.index("ldtilecfg") < lines.index("tilezero") < lines.index(instruction) and "tilerelease" in lines
    loop = lines[lines.index(instruction) - 6 : lines.index(instruction) + 6]
    assert "tilestored" not in loop


def test_a_machine_counts_as_having_tiles_only_if_they_work() -> None:
    assert amx.usable() is host_target().has("amx-tile") or not host_target().has("amx-tile")
