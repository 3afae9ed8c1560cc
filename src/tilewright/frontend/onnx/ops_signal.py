"""Fourier transforms, windows and filter banks."""
from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops as O
from ...core.errors import ShapeError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.fourier import functions as fourier
from .registry import Context, axis_of, elem_number, limited, static
from .tables import op


def _transformed(c: Context, x: Value, axis: int, length: int | None, inverse: bool, onesided: bool) -> Value:
    """x[…, 1 or 2]: real or complex numbers as pairs."""
    rank = len(x.shape) - 1
    at = axis_of(axis, rank + 1)
    (have,) = static((x.shape[at],), "the size along which a transform goes")
    if inverse and onesided:
        n = 2 * (have - 1) if length is None else length
        half = fourier.resized(x, at, n // 2 + 1)
        pairs = half if x.shape[-1] == 2 else F.concat([half, F.mul(half, 0.0)], rank)
        out = fourier.half_backward(fourier.joined(pairs), n, at, 1.0 / n)
        return F.reshape(out, (*out.shape, 1))
    n = have if length is None else length
    x = fourier.resized(x, at, n)
    if x.shape[-1] == 1:
        real = F.reshape(x, x.shape[:-1])
        if not inverse:  # results that are real for every real input come out real
            half = fourier.back(O.RealDft(1.0)(fourier.last(real, at, rank)), at, rank)
            return half if onesided else _mirrored(c, half, at, n)
        x = F.concat([x, F.mul(x, 0.0)], rank)
    out = fourier.along(x, at, inverse=inverse, scale=1.0 / n if inverse else 1.0)
    return F.slice_(out, at, 0, n // 2 + 1) if onesided else out


def _mirrored(c: Context, half: Value, axis: int, n: int) -> Value:
    """All n results of a real transform: those behind the middle are conjugates of those before it."""
    count = (n - 1) // 2
    if not count:
        return half
    other = F.flip(F.slice_(half, axis, 1, count), (axis,))
    return F.concat([half, F.mul(other, c.constant(np.array([1, -1], half.dtype.np)))], axis)


@op("DFT")
def dft(c: Context, x: Value, length: Value | None = None, axis: Any = None, *, inverse: int = 0, onesided: int = 0) -> Value:
    at = (1 if c.version < 20 else -2) if axis is None else int(c.scalar_of(axis, "the axis"))
    return _transformed(c, x, at, None if length is None else int(c.scalar_of(length, "the length")), bool(inverse), bool(onesided))


@op("STFT")
def stft(c: Context, x: Value, step: Value, window: Value | None = None, length: Value | None = None, *, onesided: int = 1) -> Value:
    hop = int(c.scalar_of(step, "the frame step"))
    if length is not None:
        size = int(c.scalar_of(length, "the frame length"))
    elif window is not None:
        (size,) = static(window.shape, "the window's size")
    else:
        raise ShapeError("STFT needs a window or a frame length")
    batch, n = x.shape[:2]
    (n,) = static((n,), "the signal's length")
    if hop < 1 or not 0 < size <= n:
        raise ShapeError(f"STFT needs a positive step and frames that fit the signal, got step {hop}, frames of {size}, signal of {n}")
    count = (n - size) // hop + 1
    limited(count * size, 1 << 24, "the number of elements of all frames")
    if len(x.shape) == 2:
        x = F.reshape(x, (*x.shape, 1))
    at = (np.arange(count)[:, None] * hop + np.arange(size)[None, :]).reshape(-1)
    frames = F.reshape(F.gather(x, c.constant(at), 1), (batch, count, size, x.shape[-1]))
    if window is not None:
        (have,) = static(window.shape, "the window's size")
        low = (size - have) // 2
        window = F.pad(window, (low,), (size - have - low,)) if have < size else window
        frames = F.mul(frames, F.reshape(window, (size, 1)))
    return _transformed(c, frames, 2, None, False, bool(onesided))


@op("HannWindow", "HammingWindow", "BlackmanWindow")
def window(c: Context, size: Value, *, output_datatype: int = 1, periodic: int = 1) -> Value:
    n = limited(int(c.scalar_of(size, "the size")), 1 << 24, "the size of a window")
    t = 2 * np.pi * np.arange(n) / max(n if periodic else n - 1, 1)
    match c.node.op_type:
        case "HannWindow":
            w = 0.5 - 0.5 * np.cos(t)
        case "HammingWindow":
            w = 25 / 46 - 21 / 46 * np.cos(t)
        case _:
            w = 0.42 - 0.5 * np.cos(t) + 0.08 * np.cos(2 * t)
    return c.constant(w.astype(elem_number(output_datatype).np))


@op("MelWeightMatrix")
def mel_weights(c: Context, bins: Value, size: Value, rate: Value, low: Value, high: Value, *, output_datatype: int = 1) -> Value:
    n = int(c.scalar_of(bins, "the number of bands"))
    length, hertz = int(c.scalar_of(size, "the length")), int(c.scalar_of(rate, "the sample rate"))
    lowest, highest = float(c.scalar_of(low, "the lowest frequency")), float(c.scalar_of(high, "the highest frequency"))
    rows = length // 2 + 1
    limited(rows * n, 1 << 24, "the size of a filter bank")

    def mel(f: Any) -> Any:
        return 2595 * np.log10(1 + f / 700)

    edges = mel(lowest) + np.arange(n + 2) * ((mel(highest) - mel(lowest)) / (n + 2))
    spots = ((length + 1) * (700 * (10 ** (edges / 2595) - 1)) / hertz).astype(np.int64)
    out = np.zeros((rows, n))
    for i in range(n):
        left, middle, right = spots[i : i + 3]
        if left == middle:
            out[middle, i] = 1
        else:
            out[left : middle + 1, i] = (np.arange(left, middle + 1) - left) / (middle - left)
        if right != middle:
            out[middle:right, i] = (right - np.arange(middle, right)) / (right - middle)
    return c.constant(out.astype(elem_number(output_datatype).np))
