"""Tables of rotary positions, computed as the models' own code does: frequencies and angles in f32."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import FormatError
from .config import RopeConfig

Array = np.ndarray[Any, Any]


def rope_tables(rope: RopeConfig, positions: int) -> tuple[Array, Array]:
    """cos and sin, f32[positions, dims / 2]."""
    exponent = np.arange(0, rope.dims, 2, dtype=np.float32) / np.float32(rope.dims)
    frequency = (np.float32(1.0) / np.power(np.float32(rope.base), exponent)).astype(np.float32)
    if rope.factors:
        if len(rope.factors) != len(frequency):
            raise FormatError(f"llm: {len(rope.factors)} rope factors for {len(frequency)} frequencies")
        frequency = frequency / np.asarray(rope.factors, np.float32)
    frequency = frequency * np.float32(rope.scale)
    angle = np.arange(positions, dtype=np.float32)[:, None] * frequency[None, :]
    magnitude = np.float32(rope.magnitude)
    return np.cos(angle) * magnitude, np.sin(angle) * magnitude
