"""Models with pairs of quantize and dequantize (PyTorch's pt2e form, and spelled out) run in integers, with PyTorch's results."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # defines the ops
from torch import nn

import tilewright as tw
from tilewright import ops as o
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32, i8, i64, u8
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.passes.pipeline import run_pipeline
from tilewright.target.cpu.host import host_target

Q = torch.ops.quantized_decomposed


def pair(x: torch.Tensor, scale: float, zero: int, dtype: torch.dtype, low: int, high: int) -> torch.Tensor:
    codes = Q.quantize_per_tensor(x, scale, zero, low, high, dtype)
    return Q.dequantize_per_tensor(codes, scale, zero, low, high, dtype)


class Net(nn.Module):
    """Signed and unsigned activations, weights by channel and by tensor, a pool between pairs of one scale, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-127, 128, (24, 16, 3, 3), dtype=torch.int8))
        self.register_buffer("ws", torch.rand(24) * 0.01 + 0.001)
        self.register_buffer("wz", torch.zeros(24, dtype=torch.int64))
        self.register_buffer("v", torch.randint(-127, 128, (24, 24, 1, 1), dtype=torch.int8))
        self.register_buffer("u", torch.randint(-127, 128, (10, 24 * 16), dtype=torch.int8))
        self.register_buffer("b", torch.randn(24))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = pair(x, 0.03, -5, torch.int8, -128, 127)
        w = Q.dequantize_per_channel(self.w, self.ws, self.wz, 0, -127, 127, torch.int8)
        y = pair(torch.relu(nn.functional.conv2d(x, w, self.b, padding=1)), 0.1, 0, torch.uint8, 0, 255)  # type: ignore[arg-type]
        v = Q.dequantize_per_tensor(self.v, 0.002, 0, -127, 127, torch.int8)
        y = pair(torch.relu(y + nn.functional.conv2d(y, v)), 0.15, 0, torch.uint8, 0, 255)
        y = pair(nn.functional.max_pool2d(y, 2), 0.15, 0, torch.uint8, 0, 255)
        u = Q.dequantize_per_tensor(self.u, 0.004, 0, -127, 127, torch.int8)
        return nn.functional.linear(pair(y.flatten(1), 0.15, 0, torch.uint8, 0, 127), u)


def names(graph: Graph) -> list[str]:
    inner = [m for n in graph.nodes if isinstance(n.op, o.Fused) for m in n.op.body.nodes]
    return [n.op.name for n in [*graph.nodes, *inner]]


def test_pt2e_models_run_in_integers() -> None:
    module, x = Net().eval(), torch.randn(2, 16, 8, 8)
    session = tw.compile(torch.export.export(module, (x,)), (x,))
    found = names(session.model.graph)
    assert found.count("int_conv") == 2 and "conv" not in found and "winograd_conv" not in found
    want = module(x)
    steps = (session(x) - want).abs().max() / want.abs().max()
    assert steps < 0.02  # a code beside a rounding boundary


def graph_of(spelled: bool, dtype: Any, zero: int, transpose: bool) -> tuple[Graph, Any]:
    rng = np.random.default_rng(3)
    w = rng.integers(-128, 128, (9, 20)).astype(np.int8)
    scale = rng.uniform(0.01, 0.02, 9).astype(np.float32)
    graph = Graph("pairs")
    x = graph.input(TensorType(dtype, (6, 20)), "x")
    if spelled:
        left = o.Mul()(o.Sub()(o.Cast(dtype=f32)(x), graph.constant(np.float32(zero))), graph.constant(np.float32(0.05)))
        right = o.Mul()(o.Cast(dtype=f32)(graph.constant(w)), graph.constant(scale[:, None]))
    else:
        left = o.Dequantize()(x, graph.constant(np.float32(0.05)), graph.constant(np.int32(zero)))
        right = o.Dequantize(axis=0)(graph.constant(w), graph.constant(scale), graph.constant(np.zeros(9, np.int32)))
    b = o.Transpose(perm=(1, 0))(right) if transpose else right
    y = o.Matmul(transpose_b=not transpose, alpha=0.5)(left, b)
    graph.outputs = [o.Add()(y, graph.constant(np.arange(9, dtype=np.float32)))]
    info = np.iinfo(dtype.np)
    codes = rng.integers(info.min, info.max + 1, (6, 20)).astype(dtype.np)
    left_, right_ = (codes.astype(np.float64) - zero) * np.float64(np.float32(0.05)), w * scale[:, None].astype(np.float64)
    want = 0.5 * left_ @ right_.T + np.arange(9)
    return graph, (codes, want)


@pytest.mark.parametrize("spelled", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("dtype", "zero"), [(u8, 0), (u8, 131), (i8, 0), (i8, -7)])
def test_products_of_dequantized_codes(spelled: bool, transpose: bool, dtype: Any, zero: int) -> None:
    graph, (codes, want) = graph_of(spelled, dtype, zero, transpose)
    target = host_target()
    made = run_pipeline(graph, target)
    products = [n for n in [*made.nodes, *(m for n in made.nodes if isinstance(n.op, o.Fused) for m in n.op.body.nodes)]
                if isinstance(n.op, o.Matmul)]
    assert len(products) == 1 and products[0].types[0].dtype.name == "i32"
    assert np.abs(tw.compile(graph)(codes) - want).max() < 1e-5 * np.abs(want).max()


def test_what_is_not_symmetric_stays_in_float() -> None:
    graph = Graph("asymmetric")
    x = graph.input(TensorType(u8, (4, 8)), "x")
    left = o.Dequantize()(x, graph.constant(np.float32(0.1)), graph.constant(np.int32(0)))
    codes = np.arange(24, dtype=np.int8).reshape(3, 8) - 12
    right = o.Dequantize()(graph.constant(codes), graph.constant(np.float32(0.1)), graph.constant(np.int32(120)))
    graph.outputs = [o.Matmul(transpose_b=True)(left, right)]
    made = run_pipeline(graph, host_target())
    assert all(n.types[0].dtype.name != "i32" for n in made.nodes if isinstance(n.op, o.Matmul))
    given = np.arange(32, dtype=np.uint8).reshape(4, 8)
    want = (given * 0.1) @ ((codes.astype(np.float64) - 120) * 0.1).T
    assert np.abs(tw.compile(graph)(given) - want).max() < 1e-4


def test_rows_of_a_quantized_table_are_looked_up_before_they_are_dequantized() -> None:
    """The table in f32 is too large to be folded: it would be dequantized whole at every call."""
    codes = np.random.default_rng(0).integers(0, 256, (70_000, 64)).astype(np.uint8)
    graph = Graph("table")
    ids = graph.input(TensorType(i64, (sym("n", 1),)), "ids")
    table = o.Dequantize()(graph.constant(codes), graph.constant(np.float32(0.1)), graph.constant(np.int32(128)))
    graph.outputs = [o.Relu()(o.Gather()(table, ids))]
    made = run_pipeline(graph, host_target())
    assert not any(isinstance(d, int) and d == len(codes) for n in made.nodes if not isinstance(n.op, o.Constant) for t in n.types
                   for d in t.shape)
    given = np.array([0, 69_999, 5])
    want = np.maximum((codes[given].astype(np.float32) - 128) * np.float32(0.1), 0)
    np.testing.assert_allclose(tw.compile(graph)(given), want, rtol=1e-6)


def test_a_pair_of_the_same_scale_is_gone() -> None:
    graph = Graph("twice")
    x = graph.input(TensorType(u8, (4, 8)), "x")
    s, z = graph.constant(np.float32(0.1)), graph.constant(np.int32(3))
    graph.outputs = [o.Quantize(dtype=u8)(o.Dequantize()(x, s, z), s, z)]
    assert "round" not in names(run_pipeline(graph, host_target()))
