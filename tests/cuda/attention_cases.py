"""The backward pass of attention with everything that it can have: cases for the emulator and the GPU, and their meaning in PyTorch."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.cuda.launching import graph
from tilewright.core.dtypes import DType, bool_
from tilewright.ir.graph import Graph
from tilewright.ops.attention.backward import pull_back
from tilewright.ops.attention.forward import Attention


@dataclass(frozen=True)
class Case:
    b: int
    h: int
    hk: int
    sq: int
    sk: int
    d: int
    mask: tuple[int, ...] | None = None
    bias: tuple[int, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    forward: bool = False  # its result is wanted too
    fixed: bool = False  # nobody asks for the bias's cotangent

    def __str__(self) -> str:
        said = [f"{self.b}x{self.h}x{self.sq}x{self.d}", f"{self.hk}x{self.sk}"]
        said += [f"{n}{list(s)}" for n, s in (("mask", self.mask), ("bias", self.bias)) if s is not None]
        return " ".join([*said, *(f"{n}={v}" for n, v in self.options.items())])

    @property
    def op(self) -> Attention:
        return Attention(scale=self.d**-0.5, has_mask=self.mask is not None, has_bias=self.bias is not None, **self.options)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """q, k, v, mask, bias and the result's cotangent, those that there are."""
        q, k = (self.b, self.h, self.sq, self.d), (self.b, self.hk, self.sk, self.d)
        return [q, k, k, *(s for s in (self.mask, self.bias) if s is not None), q]

    def graph(self, dtype: DType, names: dict[int, Any] | None = None) -> Graph:
        """`names`: symbols that stand for sizes."""
        types: list[tuple[DType, tuple[Any, ...]]] = [(dtype, tuple((names or {}).get(d, d) for d in s)) for s in self.shapes]
        if self.mask is not None:
            types[3] = (bool_, types[3][1])

        def build(*x: Any) -> Any:
            wanted = (True,) * 3 + (False,) * (self.mask is not None) + (not self.fixed,) * (self.bias is not None)
            out = [self.op(*x[:-1])] if self.forward else []
            back = [v for v in pull_back(self.op, x[:-1], x[-1], wanted) if v is not None]
            return [*out, *back]

        return graph(build, *types)

    def reference(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph gives, by PyTorch's derivatives."""
        op, place, offset = self.op, inputs[0].device, self.options.get("offset", 0)
        leaves = [x.double().requires_grad_() for x in (*inputs[:3], *(inputs[-2:-1] if op.has_bias else ()))]
        q, k, v = leaves[0], *(x.repeat_interleave(self.h // self.hk, 1) for x in leaves[1:3])
        s = q @ k.transpose(-1, -2) * op.scale
        s = s if op.softcap is None else op.softcap * torch.tanh(s / op.softcap)
        s = s + leaves[3] if op.has_bias else s
        i, j = torch.arange(self.sq, device=place)[:, None] + offset, torch.arange(self.sk, device=place)[None]
        seen = (j <= i) if op.causal else torch.ones_like(j <= i)
        seen = seen if op.window is None else seen & (j > i - op.window)
        seen = (seen & inputs[3] if op.has_mask else seen).expand(s.shape)
        p = torch.where(seen, torch.softmax(s.masked_fill(~seen & seen.any(-1, keepdim=True), -math.inf), -1), 0.0)
        out = p @ v
        found = torch.autograd.grad(out, leaves[:3] if self.fixed else leaves, inputs[-1].double())
        return [out.detach(), *found] if self.forward else list(found)


BACKWARD = [
    Case(1, 2, 1, 70, 75, 40, (70, 75), (2, 1, 75), {"softcap": 2.0, "causal": True}, forward=True),
    Case(1, 1, 1, 33, 150, 24),
    Case(1, 2, 1, 70, 150, 128, None, (70, 150), {"causal": True, "offset": 80}),
    Case(2, 1, 1, 40, 130, 64, (2, 1, 1, 130), None, {"softcap": 1.5, "window": 60}),
    Case(1, 2, 2, 150, 70, 80, None, (1, 2, 150, 70), {"causal": True, "offset": -90}, fixed=True),
    Case(1, 1, 1, 140, 20, 96, (140, 1), None, {"softcap": 4.0, "causal": True, "offset": -100}, forward=True),
    Case(1, 4, 2, 9, 200, 8, (1, 4, 9, 200), (200,), {"causal": True, "offset": 191, "window": 100}),
]  # fmt: skip
LARGE = [
    Case(2, 8, 2, 1000, 1000, 96, (2, 1, 1, 1000), (8, 1000, 1000), {"softcap": 30.0, "causal": True}, forward=True),
    Case(3, 4, 4, 513, 700, 128, None, (1, 4, 513, 700)), Case(2, 4, 4, 700, 700, 64, (700, 700), None, {"softcap": 5.0, "window": 300}),
]  # fmt: skip
