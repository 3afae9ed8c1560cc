"""From what was seen of an activation to the scale and zero point of its quantized values."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
OBSERVERS = ("minmax", "percentile", "mse")
BINS = 2048
STEPS = 100  # ranges that the search for the least squared error tries


@dataclass
class Seen:
    """The range of an activation over all batches, and after a second walk its histogram over that range."""

    low: float = np.inf
    high: float = -np.inf
    channels: tuple[Array, Array] | None = None  # the smallest and largest number of each channel
    counts: Array = field(default_factory=lambda: np.zeros(BINS))

    def widen(self, low: Array, high: Array) -> None:
        """By the extremes of a batch, or of each of its channels."""
        self.low, self.high = min(self.low, float(low.min())), max(self.high, float(high.max()))
        if low.ndim:
            old = (low, high) if self.channels is None else self.channels
            self.channels = np.minimum(low, old[0]), np.maximum(high, old[1])

    def count(self, x: Array) -> None:
        self.counts += np.histogram(x.reshape(-1).astype(np.float32), BINS, (self.low, max(self.high, self.low + 1e-30)))[0]

    @property
    def centres(self) -> Array:
        edges = np.linspace(self.low, self.high, BINS + 1)
        return (edges[1:] + edges[:-1]) / 2


def bounds(seen: Seen, observer: str, percentile: float) -> tuple[float, float]:
    """The range that quantized values shall cover; zero is always in it, since padding and activations make zeros."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    if observer == "minmax" or not seen.counts.any():
        return low, high
    if observer == "percentile":
        share = np.cumsum(seen.counts) / seen.counts.sum()
        tail = (1 - percentile / 100) / (2 if low < 0 < high else 1)
        edges = np.linspace(seen.low, seen.high, BINS + 1)
        last = edges[min(int(np.searchsorted(share, 1 - tail)) + 1, BINS)] if high > 0 else 0.0
        first = edges[int(np.searchsorted(share, tail, side="right"))] if low < 0 else 0.0
        return min(float(first), 0.0), max(float(last), 0.0)
    return least_squares(seen.centres, seen.counts, low, high)


def least_squares(x: Array, weights: Array, low: float, high: float) -> tuple[float, float]:
    """The range, a part of [low, high], whose quantized values have the least squared error."""
    best, found = np.inf, (low, high)
    for i in range(STEPS):
        part = 1 - i / (STEPS + 20)
        scale, zero = affine(low * part, high * part)
        quantized = np.clip(np.rint(x / scale) + zero, 0, 255)
        error = float((weights * (x - (quantized - zero) * scale) ** 2).sum())
        if error < best:
            best, found = error, (low * part, high * part)
    return found


def affine(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of unsigned quantized values over a range that holds zero."""
    scale = float(np.float32((high - low) / 255))
    if not scale > 0 or not np.isfinite(1 / np.float32(scale)):
        return 1.0, 0
    return scale, int(np.clip(np.rint(-low / scale), 0, 255))


def symmetric(rows: Array, observer: str = "minmax") -> tuple[Array, Array]:
    """Values i8 and scales f64[n] of weights [n, …], -127 … 127: by the largest magnitude of each row, or with the least squared error."""
    flat = rows.reshape(len(rows), -1)
    peak = np.abs(flat).max(1, initial=0.0)
    best = np.where(peak > 0, peak / 127, 1.0)
    if observer == "mse":
        least = np.full(len(flat), np.inf)
        whole = best
        for part in np.linspace(1.0, 0.6, 21):
            scale = whole * part
            error = ((np.clip(np.rint(flat / scale[:, None]), -127, 127) * scale[:, None] - flat) ** 2).sum(1)
            best, least = np.where(error < least, scale, best), np.minimum(error, least)
    best = best.astype(np.float32).astype(np.float64)
    best = np.where(best > 0, best, 1.0)
    quantized = np.clip(np.rint(flat / best[:, None]), -127, 127).astype(np.int8).reshape(rows.shape)
    return quantized, best
