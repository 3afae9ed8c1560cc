"""Products with packed matrices: one row (decode) and prompts of 16, 64 and 512 rows, beside cuBLAS on the same numbers in bf16.

Every format that the tensor cores take. Six matrices are read in turn, so that none waits in L2 for its next product (cuBLAS: three of
bf16). Results are checked against float64 products of the dequantized numbers before they are timed: activations are rounded to int8 (up
to 16 rows) or bf16, so the norm of the difference is a percent or less; more stops the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gpu_tools import BF16, Table, error, measure, ours

import tilewright as tw
import tilewright.ops as o
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops import quant

FORMATS = ("Q4_K", "Q4_0", "Q8_0", "Q6_K", "MXFP4", "NVFP4", "F8_E4M3", "F8_E5M2")
PROMPTS = (16, 64, 512)
SHAPES = ((16384, 2048), (2048, 8192))
MATRICES = 6
WORST = 2e-2


def blocks(rng: np.random.Generator, name: str, n: int, k: int) -> Any:
    """Random codes with ordinary scales."""
    fmt = quant.by_name(name)
    raw = np.frombuffer(rng.bytes(n * k // fmt.elements * fmt.bytes), np.uint8).reshape(n, k // fmt.elements, fmt.bytes).copy()
    for at, what in fmt.halves():
        scale = rng.uniform(0.5e-3, 1e-3, (n, k // fmt.elements, 1)) * (7.5 if what == "minimum" else 1.0)
        raw[..., at : at + 2] = scale.astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[..., 0] = rng.integers(118, 122, raw.shape[:2])
    elif name == "NVFP4":
        raw[..., :4] = rng.integers(16, 32, (*raw.shape[:2], 4))
    elif name.startswith("F8"):
        raw[..., :4] = rng.uniform(0.5e-4, 1e-4, (n, k // fmt.elements, 1)).astype(np.float32).view(np.uint8)
        codes = raw[..., 4:]
        codes[...] = np.where((codes & 127) >= 120, codes & 0x9F, codes)  # finite
    return raw.reshape(n, -1)


def one(table: Table, name: str, n: int, k: int, rows: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    matrices = [blocks(rng, name, n, k) for _ in range(MATRICES)]
    wide = [torch.from_numpy(quant.by_name(name).dequantize(m)).cuda() for m in matrices[:3]]
    peers = [w.to(BF16) for w in wide]
    for m in rows:
        x = torch.randn(m, k, device="cuda")
        g = Graph("packed")
        value = g.input(TensorType(f32, (m, k)), "x")
        g.outputs = [o.QMatmul(format=name, n=n, k=k)(value, g.constant(w, f"w{i}")) for i, w in enumerate(matrices)]
        compiled: Any = tw.compile(g, target="cuda")
        call, found = ours(compiled, x)
        wrong = max(error(y, x.double() @ w.double().T) for y, w in zip(found, wide, strict=False))
        if not wrong < WORST:
            raise RuntimeError(f"{name} {m}x{n}x{k} is wrong: {wrong:.3g} of the norm")
        small, out = x.to(BF16), torch.empty(m, n, device="cuda", dtype=BF16)

        def cublas(small: Any = small, out: Any = out) -> None:
            for i in range(MATRICES):
                torch.matmul(small, peers[i % 3].T, out=out)

        times = {key: t / MATRICES for key, t in measure({"ours": call, "cuBLAS bf16": cublas}, 4).items()}
        table.add(f"{name} {m}x{n}x{k}", times, flops=2.0 * m * n * k if m > 16 else 0, nbytes=float(matrices[0].nbytes), err=wrong)


def packed(table: Table) -> None:
    for n, k in SHAPES:
        for name in FORMATS:
            one(table, name, n, k, (1, *PROMPTS))
