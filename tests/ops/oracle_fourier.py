"""PyTorch's meaning of Fourier transforms of pairs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def dft(a: dict[str, Any], x: Any) -> Any:
    if x.numel() == 0:
        return x
    z = torch.complex(x[..., 0], x[..., 1])
    out = torch.fft.ifft(z, norm="forward") if a.get("inverse") else torch.fft.fft(z)
    return torch.view_as_real(out * a.get("scale", 1.0)).clone()


def dft_columns(a: dict[str, Any], x: Any, table: Any, *more: Any) -> Any:
    x = x if a.get("rows") else x.transpose(-2, -3)
    y = dft(a, x)
    if more:
        lanes, n = y.shape[-3:-1]
        angle = (2 if a.get("inverse") else -2) * torch.pi * torch.outer(torch.arange(lanes), torch.arange(n)).double() / (n * lanes)
        turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex(y[..., 0], y[..., 1]).dtype)
        y = torch.view_as_real(torch.complex(y[..., 0], y[..., 1]) * turn)
    return y if a.get("rows_out") else y.transpose(-2, -3)


def real_dft(a: dict[str, Any], x: Any) -> Any:
    if x.numel() == 0:
        return x.new_zeros((*x.shape[:-1], x.shape[-1] if a.get("full") else x.shape[-1] // 2 + 1, 2))
    z = torch.fft.fft(x) if a.get("full") else torch.fft.rfft(x)
    return torch.view_as_real(z * a.get("scale", 1.0)).clone()


def real_dft_back(a: dict[str, Any], x: Any) -> Any:
    if x.numel() == 0:
        return x.new_zeros((*x.shape[:-2], a["n"]))
    return torch.fft.irfft(torch.complex(x[..., 0], x[..., 1]), a["n"], norm="forward") * a.get("scale", 1.0)


def dft_rows(a: dict[str, Any], x: Any, *tables: Any) -> Any:
    kind = a.get("kind", "complex")
    if kind == "complex":
        return dft(a, x)
    return real_dft_back({**a, "n": 2 * x.shape[-2] - 2}, x) if kind == "back" else real_dft({**a, "full": kind == "full"}, x)


FOURIER: dict[str, Callable[..., Any]] = {"dft": dft, "dft_columns": dft_columns, "dft_rows": dft_rows, "real_dft": real_dft,
                                          "real_dft_back": real_dft_back}
