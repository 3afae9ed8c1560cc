"""Ops whose results have sizes that depend on data, and reading of images: they run on the host between compiled segments."""
from __future__ import annotations

import io
from typing import Any

import numpy as np

from ...core.errors import ExecutionError, UnsupportedError
from .tables import MICROSOFT, host


def _comparable(x: Any) -> Any:
    """NumPy sorts its own types only."""
    a = np.asarray(x)
    return a.astype(np.float32) if a.dtype.kind == "V" or "bfloat16" in str(a.dtype) else a


@host("NonZero")
def non_zero(step: Any, x: Any) -> Any:
    a = np.asarray(x)
    return np.array(np.nonzero(a.reshape(1) if not a.ndim else a), np.int64)[: max(a.ndim, 1)]


@host("Compress")
def compress(step: Any, x: Any, condition: Any, *, axis: int | None = None) -> Any:
    keep = np.flatnonzero(np.asarray(condition))
    return np.ascontiguousarray(np.take(x, keep, axis=axis) if axis is not None else np.asarray(x).reshape(-1)[keep])


@host("Unique")
def unique(step: Any, x: Any, *, axis: int | None = None, sorted: int = 1) -> Any:  # noqa: A002
    given = np.asarray(x)
    a = _comparable(given)
    if a.dtype.kind == "O":
        a = a.astype(str)
    _, first, inverse, counts = np.unique(a, return_index=True, return_inverse=True, return_counts=True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        first, inverse, counts = first[order], place[inverse], counts[order]
    values = given.reshape(-1)[first] if axis is None else np.take(given, first, axis=axis)
    return np.ascontiguousarray(values), first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


@host("Unique", domain=MICROSOFT)
def unique_in_order(step: Any, x: Any) -> Any:
    values, _, inverse, counts = unique(step, x, sorted=0)
    return values, inverse, counts


@host("NonMaxSuppression")
def non_max_suppression(step: Any, boxes: Any, scores: Any, most: Any = None, iou: Any = None, least: Any = None, *,
                        center_point_box: int = 0) -> Any:
    limit = 0 if most is None else int(np.asarray(most).reshape(-1)[0])
    overlap = 0.0 if iou is None else float(np.asarray(iou).reshape(-1)[0])
    threshold = None if least is None else float(np.asarray(least).reshape(-1)[0])
    found = []
    for b in range(boxes.shape[0]):
        p = boxes[b].astype(np.float32)
        if center_point_box:
            half = p[:, 2:] / 2
            low, high = p[:, :2] - half, p[:, :2] + half
        else:
            low, high = np.minimum(p[:, :2], p[:, 2:]), np.maximum(p[:, :2], p[:, 2:])
        area = np.prod(high - low, axis=1)
        for k in range(scores.shape[1]):
            s = scores[b, k]
            order = np.argsort(-s, kind="stable")
            if threshold is not None:
                order = order[s[order] > threshold]
            kept: list[int] = []
            while len(order) and len(kept) < limit:
                i = order[0]
                kept.append(int(i))
                rest = order[1:]
                inner = np.maximum(np.minimum(high[i], high[rest]) - np.maximum(low[i], low[rest]), 0)
                shared = np.prod(inner, axis=1)
                union = area[i] + area[rest] - shared
                ratio = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
                order = rest[~(ratio > overlap)]
            found += [(b, k, i) for i in kept]
    return np.array(found, np.int64).reshape(-1, 3)


@host("BitCast")
def bit_cast(step: Any, x: Any, *, to: int) -> Any:
    from .elements import elem

    return np.ascontiguousarray(x).view(elem(to).np).reshape(np.asarray(x).shape)


@host("ImageDecoder")
def image_decoder(step: Any, data: Any, *, pixel_format: str = "RGB") -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise UnsupportedError("onnx: ImageDecoder needs the package pillow; pip install pillow") from None
    try:
        with Image.open(io.BytesIO(np.asarray(data, np.uint8).tobytes())) as image:
            if pixel_format == "Grayscale":
                return np.asarray(image.convert("L"))[:, :, None]
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError) as e:
        raise ExecutionError(f"onnx: ImageDecoder: the bytes are no image that can be read: {e}") from None
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels
