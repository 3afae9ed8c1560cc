"""Constants in the form the kernels read them: packed once, into one aligned block, on a few threads.

A constant that is plain, contiguous and aligned is used where it lies, a large weight of a module too (see owners.py).
`panels` form: a matrix [N, K] becomes [ceil(N/width), K, width], zero-filled, so that a kernel reads `width` outputs of one k at once.
`words` form: [ceil(N/width), ceil(K/words), width, words], the same for `words` neighbours along K at once.
`taps`, `folded` and `filters` forms: weights of a convolution, as below.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from ..core.errors import CompileError
from ..core.workers import Workers
from ..ir.types import TensorType
from ..kernels.launch import ConstBuffer, Packed, filter_sizes
from ..runtime.memory import Allocation
from ..runtime.owners import may_stay
from .panels import panel_packer

if TYPE_CHECKING:
    from .ahead import Ahead

# --- Weights of a convolution in the order in which its kernels walk windows.

Array = np.ndarray[Any, Any]


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
    _, rows, across = (1, 1, *kernel)[-3:]
    return (out, -(-rows // packed.width), -(-across // packed.groups) * packed.groups, packed.width, packed.words // packed.width)


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
    lines = _lines(array)
    for f in range(packed.width):
        part = lines[:, :, f :: packed.width].transpose(0, 2, 3, 1)  # [O, lines, S, C]
        out[:, : part.shape[1], : part.shape[2], f, : part.shape[3]] = part


def _lines(array: Array) -> Array:
    """Weights [O, C, (D, R,) S] as [O, C D, R, S]."""
    rows = array.shape[-2] if array.ndim > 3 else 1
    return array.reshape(array.shape[0], -1, rows, array.shape[-1])


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
    channels = shape[1]
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
    found = np.zeros(tuple(shape), storage.dtype)
    lines = _lines(found)
    _, held, down, across = lines.shape
    for f in range(packed.width):
        count = -(-(down - f) // packed.width)
        lines[:, :, f :: packed.width] = storage[:, :count, :across, f, :held].transpose(0, 3, 1, 2)
    return found

ALIGNMENT = 64
IN_PLACE_ALIGNMENT = 16  # what a plain constant needs to be used where it lies
SPLIT_BYTES = 4 << 20  # a packing task for a thread
NEAR_BYTES = 1 << 20  # the same where NumPy makes arrays on the way, which then stay in cache and in memory that was used before
NATIVE_BYTES = 1 << 20  # panels from here on are packed by native code

Fill = Callable[[Array, int, int], None]  # fills panels of a storage, from one number up to another

# Packed forms that some executable holds, so that another program over the same constants (a batch, an adapter) packs nothing twice.
_held: WeakKeyDictionary[Any, dict[Packed, ref[Array]]] = WeakKeyDictionary()


def packed_shape(shape: Sequence[int], packed: Packed) -> tuple[int, ...]:
    """The shape of a constant's storage."""
    if packed.form == "plain":
        return tuple(shape)
    if packed.form == "quantized panels":
        from ..kernels.quant.panels import panel_shape  # brings in the op registry, which a loaded session does without

        return panel_shape(packed.format, *shape)
    if packed.form == "fragments":
        from ..kernels.quant.cuda.fragments import fragment_shape

        return fragment_shape(packed.format, *shape)
    if packed.form in ("taps", "folded", "filters"):
        return tap_shape(shape, packed)
    if len(shape) not in (2, 3) or packed.width < 1:
        raise CompileError(f"packing: panels need a matrix or a stack, and a width, got shape {tuple(shape)} and width {packed.width}")
    n, k = reversed(shape[-2:]) if packed.transposed else shape[-2:]
    if packed.form == "words":
        return (-(-n // packed.width), -(-k // packed.words), packed.width, packed.words)
    return (math.prod(shape[:-2]) * -(-n // packed.width), k, packed.width)


def packed_bytes(type_: TensorType, packed: Packed) -> int:
    shape = [d for d in type_.shape if isinstance(d, int)]
    return int(np.prod(packed_shape(shape, packed), dtype=np.int64)) * type_.dtype.itemsize


def pack_panels(array: Array, packed: Packed, out: Array, first: int, last: int) -> None:
    """Fill panels `first` to `last` - 1 of `out`. Those of a stack of matrices follow one another."""
    if array.ndim == 3:
        per = len(out) // max(len(array), 1)
        for i in range(first // max(per, 1), -(-last // max(per, 1))):
            pack_panels(array[i], packed, out[i * per : (i + 1) * per], max(first - i * per, 0), min(last - i * per, per))
        return
    rows = array.T if packed.transposed else array  # [N, K]
    if packed.form == "words":
        _pack_words(rows, out, first, last)
        return
    native = panel_packer(rows, packed.width) if out.nbytes >= NATIVE_BYTES else None
    if native is not None:
        native(out, first, last)
        return
    for p in range(first, last):
        part = rows[p * packed.width : (p + 1) * packed.width]
        out[p, :, : len(part)] = part.T
        out[p, :, len(part) :] = 0


def _pack_words(rows: Array, out: Array, first: int, last: int) -> None:
    """Panels of interleaved words. Whole words are moved as one integer each."""
    k = rows.shape[1]
    _, count, width, per = out.shape
    kind = np.dtype(f"u{rows.dtype.itemsize * per}")
    whole = out.view(kind).reshape(out.shape[:3])
    aligned = rows.strides[1] == rows.dtype.itemsize and k % per == 0 and rows.strides[0] % kind.itemsize == 0
    native = panel_packer(rows.view(kind), width) if aligned and out.nbytes >= NATIVE_BYTES else None
    if native is not None:
        native(whole, first, last)
        return
    for p in range(first, last):
        part = rows[p * width : (p + 1) * width]
        if k % per:
            part = np.pad(part, ((0, 0), (0, -k % per)))
        whole[p, :, : len(part)] = np.ascontiguousarray(part).view(kind).reshape(len(part), count).T
        whole[p, :, len(part) :] = 0


def unpack(storage: Array, type_: TensorType, packed: Packed) -> Array:
    """The constant as the graph knows it, from its storage in packed form."""
    shape = tuple(d for d in type_.shape if isinstance(d, int))
    if packed.form == "plain":
        return storage.reshape(shape)
    if packed.form == "quantized panels":
        from ..kernels.quant.unpack_panels import unpack_panels

        return unpack_panels(storage, packed.format, shape[0])
    if packed.form == "fragments":  # sessions on a GPU keep the plain form of what they save
        raise CompileError(f"packing: a matrix in fragments is not unpacked, got {packed.format}{list(shape)}")
    if packed.form in ("taps", "folded", "filters"):
        return unpack_taps(storage, shape, packed)
    if len(shape) == 3:
        parts = np.split(storage, shape[0]) if shape[0] else []
        return np.stack([unpack(p, TensorType(type_.dtype, shape[1:]), packed) for p in parts]) if parts else np.zeros(shape, storage.dtype)
    n = shape[1] if packed.transposed else shape[0]
    if packed.form == "words":
        k = shape[0] if packed.transposed else shape[1]
        lines = storage.transpose(0, 2, 1, 3).reshape(storage.shape[0] * packed.width, -1)[:n, :k]
        return np.ascontiguousarray(lines.T if packed.transposed else lines)
    panels, k, width = storage.shape
    rows = storage.transpose(0, 2, 1).reshape(panels * width, k)[:n]  # [N, K]
    return np.ascontiguousarray(rows.T if packed.transposed else rows)


def usable_in_place(array: Array, packed: Packed) -> bool:
    return packed.form == "plain" and array.flags.c_contiguous and array.ctypes.data % IN_PLACE_ALIGNMENT == 0 and may_stay(array)


def pack_constants(constants: Sequence[ConstBuffer], *, threads: int = 2, packers: Mapping[str, int] | None = None,
                   ahead: Ahead | None = None, copies: bool = False) -> list[Array]:
    """The storage of every constant, in order. Arrays are views of one block, or the constants themselves where they fit (not with
    `copies`). `packers`: see `quantized_panels.pack_all`; `ahead`: memory for the block, and what is packed already."""
    storages: list[Array | None] = [None] * len(constants)
    offsets: dict[int, int] = {}
    total = 0
    for i, c in enumerate(constants):
        if c.packed.form == "plain" and not copies and usable_in_place(c.data.array, c.packed):
            storages[i] = c.data.array
        elif (held := _held.get(c.data, {}).get(c.packed)) is not None and (known := held()) is not None:
            storages[i] = known
        elif ahead is not None and (packed_already := ahead.packed(c.data, c.packed)) is not None:
            storages[i] = packed_already
        else:
            offsets[i] = total
            total += -(-packed_bytes(c.data.type, c.packed) // ALIGNMENT) * ALIGNMENT
    block = (Allocation(total) if ahead is None else ahead.take(total)).array(np.uint8, (total,))
    tasks: list[tuple[Fill, Array, int, int]] = []
    panels: list[tuple[Array, str, Array]] = []
    for i, offset in offsets.items():
        c = constants[i]
        dtype = c.data.type.dtype.np
        shape = packed_shape([n for n in c.data.type.shape if isinstance(n, int)], c.packed)
        out = block[offset : offset + packed_bytes(c.data.type, c.packed)].view(dtype).reshape(shape)
        storages[i] = out
        fill = _transforming(c) or partial(_fill, c.data.array, c.packed)  # the array is perhaps made now
        if c.packed.form in ("plain", "taps", "folded", "filters"):
            tasks.append((fill, out, 0, 0))
        elif c.packed.form == "quantized panels":
            panels.append((c.data.array, c.packed.format, out))
        else:
            piece = NEAR_BYTES if c.packed.form == "fragments" else SPLIT_BYTES
            step = max(1, piece // max(1, math.prod(shape[1:]) * dtype.itemsize))
            tasks.extend((fill, out, p, min(p + step, shape[0])) for p in range(0, shape[0], step))
    if panels:
        from .quantized_panels import pack_all

        pack_all(panels, packers)
    if threads > 1 and total > 2 * SPLIT_BYTES:
        with Workers(threads) as pool:  # NumPy copies without the GIL
            pool.map(_run, tasks)
    else:
        for task in tasks:
            _run(task)
    for i in offsets:
        if (made := storages[i]) is not None:
            _held.setdefault(constants[i].data, {})[constants[i].packed] = ref(made)
    return [s for s in storages if s is not None]


def _run(task: tuple[Fill, Array, int, int]) -> None:
    fill, out, first, last = task
    fill(out, first, last)


def _transforming(constant: ConstBuffer) -> Fill | None:
    """Native code from weights of a convolution to panels of Winograd's; None for other constants."""
    of, tile = getattr(constant.data, "of", None), getattr(constant.data, "tile", None)
    if of is None or tile is None:
        return None
    from .winograd_packing import winograd_packer

    return winograd_packer(of.array, tile, constant.packed)


def _fill(array: Array, packed: Packed, out: Array, first: int, last: int) -> None:
    if packed.form == "plain":
        np.copyto(out, array)
    elif packed.form == "fragments":
        from ..kernels.quant.cuda.fragments import pack_fragments

        pack_fragments(array, packed.format, out, first, last)
    elif packed.form in ("taps", "folded", "filters"):
        pack_taps(array, packed, out)
    else:
        pack_panels(array, packed, out, first, last)
