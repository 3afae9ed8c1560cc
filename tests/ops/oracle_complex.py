"""PyTorch's meaning of complex numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

COMPLEX: dict[str, Callable[..., Any]] = {
    "real": lambda a, z: torch.real(z).clone(),
    "imag": lambda a, z: torch.imag(z).clone(),
    "complex": lambda a, re, im: torch.complex(re, im),
    "view_as_real": lambda a, z: torch.view_as_real(z).clone(),
    "view_as_complex": lambda a, x: torch.complex(x[..., 0], x[..., 1]),
}
