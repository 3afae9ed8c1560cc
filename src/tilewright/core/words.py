"""Weights of eight bits as integer products read them, in NumPy alone: a start from the code cache makes them without the compiler."""
from __future__ import annotations

from typing import Any

import numpy as np

LANES = 16  # rows of weights side by side


def words_of(w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """i8[n, k] as words i32[ceil(n/16), ceil(k/4), 16] of four values along k, zeros outside."""
    n, k = w.shape
    panels, words = -(-n // LANES), -(-k // 4)
    whole = np.zeros((panels, words, LANES, 4), np.int8)
    for i in range(4):  # a lane of every word: no other copy of the weights is made
        part = w[:, i::4]
        inside = n // LANES
        whole[:inside, : part.shape[1], :, i] = part[: inside * LANES].reshape(inside, LANES, part.shape[1]).swapaxes(1, 2)
        if n % LANES:
            whole[inside, : part.shape[1], : n % LANES, i] = part[inside * LANES :].T
    return whole.view(np.int32).reshape(panels, words, LANES)
