"""Weights of a convolution in the order in which matrix units walk its windows.

`taps`: [O, C, taps…] becomes [O, taps…, C] ([taps…, C, O] when `transposed`), C filled up with zeros to a multiple of `width`. `folded`,
for images of few channels: [O, C, R, S] becomes [O, ceil(R/width), 8, width, 8/width]: `width` lines of taps and their channels are one
packed pixel, eight pixels a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..kernels.launch import Packed

Array = np.ndarray[Any, Any]
ACROSS = PIXEL = 8


def tap_shape(shape: Sequence[int], packed: Packed) -> tuple[int, ...]:
    out, channels, *kernel = shape
    if packed.form == "taps":
        inner = (*kernel, -(-channels // packed.width) * packed.width)
        return (*inner, out) if packed.transposed else (out, *inner)
    rows = kernel[0] if len(kernel) == 2 else 1
    return (out, -(-rows // packed.width), ACROSS, packed.width, PIXEL // packed.width)


def pack_taps(array: Array, packed: Packed, out: Array) -> None:
    channels = array.shape[1]
    out[...] = 0
    if packed.form == "taps":
        rows = np.moveaxis(out, -1, 0) if packed.transposed else out
        rows[..., :channels] = np.moveaxis(array, 1, -1)
        return
    lines = array if array.ndim == 4 else array[:, :, None]
    for f in range(packed.width):
        part = lines[:, :, f :: packed.width].transpose(0, 2, 3, 1)  # [O, lines, S, C]
        out[:, : part.shape[1], : part.shape[2], f, :channels] = part


def unpack_taps(storage: Array, shape: Sequence[int], packed: Packed) -> Array:
    out, channels, *kernel = shape
    if packed.form == "taps":
        lines = np.moveaxis(storage, -1, 0) if packed.transposed else storage
        return np.ascontiguousarray(np.moveaxis(lines, -1, 1)[:, :channels])
    rows, across = kernel if len(kernel) == 2 else (1, kernel[0])
    found = np.zeros((out, channels, rows, across), storage.dtype)
    for f in range(packed.width):
        count = -(-(rows - f) // packed.width)
        found[:, :, f :: packed.width] = storage[:, :count, :across, f, :channels].transpose(0, 3, 1, 2)
    return found.reshape(tuple(shape))
