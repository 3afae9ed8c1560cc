"""Weights of a convolution in the order in which its kernels walk windows.

`taps`: [O, C, taps…] becomes [O, taps…, C] ([taps…, C, O] when `transposed`), C filled up with zeros to a multiple of `width`. `folded`,
for images of few channels: [O, C, R, S] becomes [O, ceil(R/width), 8, width, 8/width]: `width` lines of taps and their channels are one
packed pixel, eight pixels a step.
`filters`, for CPUs: panels of `width` results, K outside them, see `filter_sizes` of kernels/launch.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..kernels.launch import Packed, filter_sizes

Array = np.ndarray[Any, Any]
ACROSS = PIXEL = 8


def tap_shape(shape: Sequence[int], packed: Packed) -> tuple[int, ...]:
    out, channels, *kernel = shape
    if packed.form == "filters":
        sizes: tuple[Any, Any, tuple[int, ...]] = filter_sizes(shape, packed)
        c, per, order = sizes
        window = (-(-c // packed.words), *kernel)
        if packed.words > 1:
            return (packed.groups, -(-per // packed.width), *(window[i] for i in order), packed.width, packed.words)
        return (packed.groups, -(-per // packed.width), *(window[i] for i in order), packed.width)
    if packed.form == "taps":
        inner = (*kernel, -(-channels // packed.width) * packed.width)
        return (*inner, out) if packed.transposed else (out, *inner)
    rows = kernel[0] if len(kernel) == 2 else 1
    return (out, -(-rows // packed.width), ACROSS, packed.width, PIXEL // packed.width)


def pack_taps(array: Array, packed: Packed, out: Array) -> None:
    channels = array.shape[1]
    if packed.form == "filters":
        _pack_filters(array, packed, out)
        return
    out[...] = 0
    if packed.form == "taps":
        rows = np.moveaxis(out, -1, 0) if packed.transposed else out
        rows[..., :channels] = np.moveaxis(array, 1, -1)
        return
    lines = array if array.ndim == 4 else array[:, :, None]
    for f in range(packed.width):
        part = lines[:, :, f :: packed.width].transpose(0, 2, 3, 1)  # [O, lines, S, C]
        out[:, : part.shape[1], : part.shape[2], f, :channels] = part


def _filter_rows(array: Array, packed: Packed) -> tuple[Array, tuple[int, ...]]:
    """The weights as a view [groups, results, channels, taps…], and the order of the axes behind results in K."""
    g = packed.groups
    _, _, order = filter_sizes(array.shape, packed)
    if not packed.transposed:
        return array.reshape(g, array.shape[0] // g, *array.shape[1:]), order
    transposed = np.flip(array, tuple(range(2, array.ndim)))
    return np.swapaxes(transposed.reshape(g, array.shape[0] // g, *array.shape[1:]), 1, 2), order


def _pack_filters(array: Array, packed: Packed, out: Array) -> None:
    rows, order = _filter_rows(array, packed)
    if packed.words > 1:
        out[...] = 0
        for p in range(out.shape[1]):
            part = rows[:, p * packed.width : (p + 1) * packed.width]
            lines = part.transpose(0, *(2 + i for i in order), 1)  # [groups, taps…, C, results]
            for i in range(packed.words):
                some = lines[..., i :: packed.words, :]
                out[:, p, ..., : some.shape[-2], : part.shape[1], i] = some
        return
    for p in range(out.shape[1]):
        part = rows[:, p * packed.width : (p + 1) * packed.width]
        out[:, p, ..., : part.shape[1]] = part.transpose(0, *(2 + i for i in order), 1)
        out[:, p, ..., part.shape[1] :] = 0


def unpack_taps(storage: Array, shape: Sequence[int], packed: Packed) -> Array:
    out, channels, *kernel = shape
    if packed.form == "filters":
        found = np.zeros(tuple(shape), storage.dtype)
        rows, order = _filter_rows(found, packed)
        if packed.words > 1:  # words apart again
            rest = storage.swapaxes(-1, -2)
            rest = rest.reshape(*rest.shape[:-3], -1, packed.width)
            storage = rest[..., : rows.shape[2], :]
        for p in range(storage.shape[1]):
            part = rows[:, p * packed.width : (p + 1) * packed.width]
            part[...] = storage[:, p, ..., : part.shape[1]].transpose(0, storage.ndim - 2, *(1 + order.index(i) for i in range(len(order))))
        return found
    if packed.form == "taps":
        lines = np.moveaxis(storage, -1, 0) if packed.transposed else storage
        return np.ascontiguousarray(np.moveaxis(lines, -1, 1)[:, :channels])
    down, across = kernel if len(kernel) == 2 else (1, kernel[0])
    found = np.zeros((out, channels, down, across), storage.dtype)
    for f in range(packed.width):
        count = -(-(down - f) // packed.width)
        found[:, :, f :: packed.width] = storage[:, :count, :across, f, :channels].transpose(0, 3, 1, 2)
    return found.reshape(tuple(shape))
