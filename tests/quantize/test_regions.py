"""What the graph of a quantized model looks like: one region a layer, bytes between them, nothing written in f32 that is read once."""
from __future__ import annotations

import torch
from torch import nn

import tilewright as tw
from tilewright import ops as o
from tilewright.ir.graph import Graph, Node


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two, self.last = (nn.Conv2d(16, 16, k, padding=k // 2) for k in (1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.two(torch.relu(self.one(x))))
        return self.last(x)


def regions(graph: Graph) -> list[Node]:
    return [n for n in graph.nodes if isinstance(n.op, o.Fused)]


def test_residuals_are_read_as_codes() -> None:
    torch.manual_seed(3)
    session = tw.quantize(Residual().eval(), [torch.randn(1, 16, 8, 8) for _ in range(3)])
    found = regions(session.model.graph)
    convs = [n for n in found if any(isinstance(m.op, o.IntConv) for m in n.op.body.nodes)]  # type: ignore[attr-defined]
    assert len(convs) == 4 and len(found) == 5  # and the rounding of the input
    for n in convs[:-1]:
        assert n.types[0].dtype.name == "u8"
        assert all(v.dtype.name in ("u8", "i8") or v.type.numel <= 16 for v in n.operands)


def test_small_floats_say_what_they_cost() -> None:
    from tilewright.compile import small_float_cost
    from tilewright.core.dtypes import bf16, f16, f32
    from tilewright.target.cpu.host import host_target

    assert "AVX-512 BF16" in small_float_cost(bf16, host_target(level="avx2")) and "half the memory" in small_float_cost(f16, host_target())
    assert small_float_cost(f32, host_target()) == ""
    module = nn.Linear(8, 8)
    session = tw.compile(module, (torch.zeros(1, 8),), dtype="bf16", target=host_target(level="avx2"))
    assert any("widened" in note for note in session.model.notes) and "widened" in str(session.report())
