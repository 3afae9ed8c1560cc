"""What packed numbers mean, with the gguf package and PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def unpacked(a: dict[str, Any], rows: Any) -> Any:
    """The gguf package's numbers."""
    import gguf

    raw = rows.numpy()
    if a["format"] == "F32":
        return torch.from_numpy(raw.view(np.float32))
    with np.errstate(all="ignore"):  # random bytes hold scales that are infinite or NaN
        numbers = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[a["format"]])
    return torch.from_numpy(numbers.astype(np.float32))


def quantize_rows(a: dict[str, Any], x: Any) -> Any:
    """Symmetric int8 in blocks of 32. Multiplied by 127/peak as the definition says: dividing by the scale rounds ties another way, and so
    does PyTorch's number / tensor, which multiplies by a reciprocal."""
    lead, k = x.shape[:-1], x.shape[-1]
    blocks = x.float().reshape(x.numel() // 32, 32)
    peak = blocks.abs().amax(-1)
    scale = peak / 127
    codes = torch.round(blocks * torch.where(peak == 0, torch.zeros_like(peak), torch.full_like(peak, 127) / peak)[:, None])
    sums = codes.reshape(x.numel() // 16, 16).sum(-1)
    return codes.to(torch.int8).reshape(x.shape), scale.reshape(*lead, k // 32), sums.to(torch.int32).reshape(*lead, k // 16)


def qdot(a: dict[str, Any], codes: Any, scales: Any, sums: Any, w: Any) -> Any:
    return (codes.double() * scales.double().repeat_interleave(32, -1)) @ unpacked(a, w).double().T


def q8_blocks(a: dict[str, Any], x: Any) -> Any:
    codes, scales, _ = quantize_rows(a, x)
    return codes, scales.half()


def qexperts_dot(a: dict[str, Any], codes: Any, scales: Any, sums: Any, w: Any, ids: Any) -> Any:
    x = codes.double() * scales.double().repeat_interleave(32, -1)
    stack = unpacked(a, w).double().reshape(a["experts"], a["n"], a["k"])
    return torch.einsum("stk,stnk->stn", x.expand(*ids.shape, a["k"]), stack[ids.long()])
