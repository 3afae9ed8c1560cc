"""Winograd's transforms in NumPy: the matrices, and weights as kernels read them, without anything of the compiler."""
from __future__ import annotations

from typing import Any

import numpy as np

PAIRS: dict[int, tuple[float, ...]] = {2: (1.0,), 4: (0.6875, 1.5)}  # by results of a tile along an axis
TAPS = 3
CHUNK = 1 << 14  # weights of a tap that are transformed at once


def points(tile: int) -> list[float]:
    """The finite ones, in the order of the transformed elements: 0, then p and -p of every pair. Infinity comes last."""
    return [0.0, *(q for p in PAIRS[tile] for q in (p, -p))]


def matrices(tile: int) -> tuple[Any, Any, Any]:
    """A [n, tile] of results, G [n, 3] of weights and B [n, n] of pixels, n = tile + 2: out = Aᵀ ((G w) · (B x))."""
    at, n = points(tile), tile + TAPS - 1
    end = np.eye(n)[-1:]
    a = np.array([[p**j for j in range(tile)] for p in at])
    norms = [np.prod([p - q for q in at if q != p]) for p in at]
    g = np.array([[p**j / norm for j in range(TAPS)] for p, norm in zip(at, norms, strict=True)])
    b = np.array([np.polynomial.polynomial.polyfromroots([q for q in at if q != p]) for p in at])
    b = np.concatenate([np.pad(b, ((0, 0), (0, n - b.shape[1]))), np.polynomial.polynomial.polyfromroots(at)[None]])
    return np.concatenate([a, end[:, -tile:]]), np.concatenate([g, end[:, -TAPS:]]), b


def transformed(w: np.ndarray[Any, Any], tile: int, *, small: bool = False) -> np.ndarray[Any, Any]:
    """Weights [O, C/g, outer taps…, 3, 3] as [(tile + 2)² · outer taps · C/g, O], rounded once, small floats to f32 or (`small`) to
    their own dtype."""
    _, g, _ = matrices(tile)
    both = np.kron(g, g)  # [(tile + 2)², 9]
    last = np.moveaxis(w, 1, -3).reshape(w.shape[0], -1, TAPS * TAPS)  # [O, outer taps and C, 9]
    out = np.empty((len(both), *last.shape[1::-1]), w.dtype if small or w.dtype.itemsize > 2 else np.float32)
    step = max(1, CHUNK // max(1, last.shape[0]))
    for at in range(0, last.shape[1], step):  # pieces that caches hold
        part = np.ascontiguousarray(last[:, at : at + step].T, np.float64)  # [9, some of C, O]
        out[:, at : at + step] = (both @ part.reshape(len(part), -1)).reshape(-1, *part.shape[1:])
    return out.reshape(-1, w.shape[0])
