"""Products of other dtypes than bf16, and the path of older chips on this one, beside cuBLAS through PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from gpu_tools import BF16, Table, error, measure, ours, session

import tilewright.ops as o
from tilewright.core.dtypes import bf16, i32

FP8 = torch.float8_e4m3fn
ROWS = 256  # rows of a result that are checked: float64 products of all rows would take longer than the measurement


def products(table: Table) -> None:
    one = torch.ones((), device="cuda")

    def scaled(fast: bool) -> Callable[..., Any]:
        return lambda a, b: torch._scaled_mm(a, b.T, one, one, out_dtype=BF16, use_fast_accum=fast)

    plain = lambda a, b: a @ b.T
    _row(table, "matmul fp8 8192", _rand(FP8, 8192), _times(bf16), {"_scaled_mm": scaled(False), "fast accumulation": scaled(True)})
    torch.backends.cuda.matmul.allow_tf32 = True
    _row(table, "matmul tf32 4096", _rand(torch.float32, 4096), _times(None), {"cuBLAS": plain}, precision="tf32")
    torch.backends.cuda.matmul.allow_tf32 = False
    _row(table, "matmul f32 4096", _rand(torch.float32, 4096), _times(None), {"cuBLAS": plain})
    _row(table, "matmul f64 2048", _rand(torch.float64, 2048), _times(None), {"cuBLAS": plain})
    codes = _rand(torch.int8, 8192)
    _row(table, "matmul int8 8192, i32 results", codes, _times(i32), {"_int_mm": lambda a, b: torch._int_mm(a, b.T)})
    scale = torch.rand(8192, device="cuda") * 1e-4

    def requantized(a: Any, b: Any, s: Any) -> Any:
        zero = a.node.graph.constant(_zeros())
        return o.Requantize(axis=1)(o.IntMatmul(transpose_b=True)(a, b), s, zero)

    peer = torch.compile(lambda a, b: (torch._int_mm(a, b.T) * scale).round().clamp(-128, 127).to(torch.int8))
    _row(table, "matmul int8 8192, requantized", (*codes, scale), requantized, {"torch.compile": peer})
    _row(table, "matmul bf16 4096, sm_80 path", _rand(BF16, 4096), _times(None), {"cuBLAS": plain}, target="sm_80")


def _times(dtype: Any) -> Callable[..., Any]:
    return lambda a, b: o.Matmul(transpose_b=True, dtype=dtype)(a, b)


def _zeros() -> Any:
    import numpy as np

    from tilewright.ops.structure import ConstantData

    return ConstantData(np.zeros(8192, i32.np), "zero")


def _rand(dtype: torch.dtype, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    if dtype is torch.int8:
        return tuple(torch.randint(-128, 128, (n, n), device="cuda", dtype=dtype) for _ in range(2))  # type: ignore[return-value]
    return tuple(torch.randn(n, n, device="cuda").to(dtype) for _ in range(2))  # type: ignore[return-value]


def _row(
    table: Table, name: str, inputs: tuple[torch.Tensor, ...], build: Callable[..., Any], peers: dict[str, Callable[..., Any]],
    **options: Any,
) -> None:  # fmt: skip
    call, y = ours(session(build, *inputs, **options), *inputs)
    a, b = inputs[:2]
    times = measure({"ours": call, **{k: lambda p=p: p(a, b) for k, p in peers.items()}}, 2)
    want = a[:ROWS].double() @ b.double().T
    if len(inputs) > 2:
        want = torch.round(want.float() * inputs[2]).clamp(-128, 127)
    table.add(name, times, flops=2.0 * len(a) * len(b) * a.shape[1], err=error(y[:ROWS], want))
