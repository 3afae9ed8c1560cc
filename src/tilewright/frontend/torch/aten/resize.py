"""Resizing (`interpolate`) and adaptive pools of any size."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .registry import Context, aten


def static(c: Context, x: Value, n: int, what: str) -> tuple[int, ...]:
    """The last n sizes of the result, which must be numbers like those of x."""
    sizes = tuple(d for d in c.shape[-n:] if isinstance(d, int))
    if len(sizes) != n or not all(isinstance(d, int) for d in x.shape[-n:]):
        raise UnsupportedError(f"{what} needs static sizes, got {x.type} to {c.shape}")
    return sizes


def _resize(c: Context, x: Value, n: int, mode: str, align: bool, factors: Any) -> Value:
    sizes = static(c, x, n, "interpolate")
    given = [f for f in factors or () if f is not None]
    scales = tuple(1.0 / float(f) for f in given) if len(given) == n else ()
    return c.emit(O.Resize(sizes=sizes, mode=mode, align_corners=align, scales=scales), x)


def _nearest(n: int) -> None:
    @aten(f"upsample_nearest{n}d.default")
    def plain(c: Context, x: Value, output_size: Any, *factors: Any) -> Value:
        return _resize(c, x, n, "nearest", False, factors)

    @aten(f"upsample_nearest{n}d.vec")
    def vec(c: Context, x: Value, output_size: Any, factors: Any = None) -> Value:
        return _resize(c, x, n, "nearest", False, factors)


def _linear(n: int, name: str) -> None:
    @aten(f"upsample_{name}{n}d.default")
    def plain(c: Context, x: Value, output_size: Any, align_corners: bool, *factors: Any) -> Value:
        return _resize(c, x, n, "linear", bool(align_corners), factors)

    @aten(f"upsample_{name}{n}d.vec")
    def vec(c: Context, x: Value, output_size: Any, align_corners: bool, factors: Any = None) -> Value:
        return _resize(c, x, n, "linear", bool(align_corners), factors)


for _n, _name in ((1, "linear"), (2, "bilinear"), (3, "trilinear")):
    _nearest(_n)
    _linear(_n, _name)


def adaptive(c: Context, x: Value, n: int, kind: str) -> Value:
    return c.emit(O.AdaptivePool(sizes=static(c, x, n, "an adaptive pool"), kind=kind), x)
