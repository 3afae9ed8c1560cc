"""Gaussian splats on a screen: tile lists in depth order, compositing front to back, and its backward pass.

A splat has a mean m (pixels, the centre of pixel (0, 0) at 0.5), a conic (a, b, c), an opacity o, a colour and a depth. At pixel p with
d = p - m its alpha is min(alpha_max, o exp(-(a dx² + 2 b dx dy + c dy²) / 2)); one below `alpha_min` draws nothing. With the transmittance
T (1 in front) a splat adds alpha T times its colour, and T becomes T (1 - alpha); the first splat that would bring T below `stop` ends the
pixel and is not drawn itself. Every operand has an axis of cameras in front. Lists hold 16x16 tiles, row by row.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dims import Dim
from ..core.errors import require
from ..ir.types import TensorType
from . import functions as F
from .base import E, MaybeValues, NotSupported, S, Sample, Values, register
from .families import General, N, f32, i32, require_kind, require_one_dtype, show_shape, values_of

TILE = 16  # pixels of a tile's side
RECORD = 10  # sums of one splat in one tile: 1, dx, dx², dy, dx dy, dy² weighted by the slope of log alpha; colours; depth


def tiles_of(width: int, height: int) -> tuple[int, int]:
    """Columns and rows of tiles.

    >>> tiles_of(800, 17)
    (50, 2)
    """
    return -(-width // TILE), -(-height // TILE)


def _require_size(width: int, height: int) -> None:
    require(width >= 1 and height >= 1, "an image has at least one pixel", width=width, height=height)


def _require_shapes(wanted: dict[str, tuple[TensorType, tuple[Dim, ...]]]) -> None:
    for name, (found, shape) in wanted.items():
        require(found.shape == shape, "{name} must be {shape}", name=name, shape=show_shape(shape), found=found)


def _folded(op: Any, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
    """A batch of batches of cameras is one longer batch."""
    rows = [F.broadcast_batch(v, b, size) for v, b in zip(inputs, batched, strict=True)]
    flat = [F.reshape(v, (v.shape[0] * v.shape[1], *v.shape[2:])) for v in rows]
    cameras = rows[0].shape[1]
    return tuple(F.reshape(v, (size, cameras, *v.shape[1:])) for v in values_of(op(*flat)))


def _rectangles(arrays: list[Any], across: int = 3, down: int = 2) -> list[Any]:
    """Splat i covers one or two tiles, 3 for every two splats: samples fill lists of a known length exactly."""
    rects, order = arrays
    for c, i in np.ndindex(*order.shape):
        x, y = rects[c, i, 0] % (across - 1), rects[c, i, 2] % down
        rects[c, i] = (x, x + 1 + i % 2, y, y + 1)
        order[c, i] = (i * 2 + 1) % order.shape[1] if order.shape[1] % 2 else i
    return [rects, order]


@register
class SplatBin(General):
    """Tile lists. `rects` holds the tiles [x0, x1) × [y0, y1) that a splat covers, `order` the splats of a camera by depth.

    Results: `ids` the splats of all tiles, tile by tile, each in depth order (what lies past the last list is unspecified); `slots` the
    number of an entry when the splats are walked in depth order; `starts` where each tile's list begins, and the end of the last; `spans`
    the first slot of a splat and how many it has. More than `capacity` entries a camera are an error."""

    work = 0
    faults = True
    width: int
    height: int
    capacity: Dim
    whole = True
    samples = [S(i32(2, 4, 4), i32(2, 4), width=40, height=30, capacity=6, low=0, high=9, fit=_rectangles),
               S(i32(1, 1, 4), i32(1, 1), width=33, height=17, capacity=1, low=0, high=9, fit=_rectangles),
               S(i32(1, 0, 4), i32(1, 0), width=33, height=17, capacity=0, low=0, high=9, fit=_rectangles)]
    errors = [E(i32(1, 4, 3), i32(1, 4), width=9, height=9, capacity=4, match=r"rects must be \[1,4,4\]"),
              E(f32(1, 4, 4), i32(1, 4), width=9, height=9, capacity=4, match="needs i32 operands"),
              E(i32(1, 4, 4), i32(1, 4), width=0, height=9, capacity=4, match="an image has at least one pixel, got width=0")]

    def infer(self, rects: TensorType, order: TensorType) -> tuple[TensorType, ...]:
        _require_size(self.width, self.height)
        require(rects.dtype is dt.i32 and order.dtype is dt.i32, "needs i32 operands; cast first", rects=rects, order=order)
        require(order.ndim == 2, "order must have an axis of cameras and one of splats", order=order)
        cameras, count = order.shape
        _require_shapes({"rects": (rects, (cameras, count, 4))})
        across, down = tiles_of(self.width, self.height)
        lists = order.with_shape((cameras, self.capacity))
        return lists, lists, order.with_shape((cameras, across * down + 1)), order.with_shape((cameras, count, 2))

    def ref(self, rects: Any, order: Any) -> Any:
        across, down = tiles_of(self.width, self.height)
        cameras, count = order.shape
        assert isinstance(self.capacity, int)
        ids, slots = np.zeros((2, cameras, self.capacity), np.int32)
        starts, spans = np.zeros((cameras, across * down + 1), np.int32), np.zeros((cameras, count, 2), np.int32)
        for c in range(cameras):
            lists: list[list[tuple[int, int]]] = [[] for _ in range(across * down)]
            slot = 0
            for g in order[c]:
                x0, x1, y0, y1 = rects[c, g]
                x0, x1, y0, y1 = max(x0, 0), min(x1, across), max(y0, 0), min(y1, down)
                spans[c, g] = slot, max(x1 - x0, 0) * max(y1 - y0, 0)
                for y in range(y0, y1):
                    for x in range(x0, x1):
                        lists[y * across + x].append((g, slot))
                        slot += 1
            starts[c, 1:] = np.cumsum([len(part) for part in lists])
            for i, (g, s) in enumerate(entry for part in lists for entry in part):
                ids[c, i], slots[c, i] = g, s
        return ids, slots, starts, spans

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return _folded(self, inputs, batched, size)


def _scene(cameras: int, count: Dim, entries: int, width: int, height: int) -> list[TensorType]:
    across, down = tiles_of(width, height)
    return [f32(cameras, count, 2), f32(cameras, count, 3), f32(cameras, count), f32(cameras, count, 3), f32(cameras, count),
            i32(cameras, entries), i32(cameras, entries), i32(cameras, across * down + 1), i32(cameras, count, 2)]


def _drawable(arrays: list[Any]) -> list[Any]:
    """Every splat is in every tile's list, conics are positive definite and wide: away from the thresholds."""
    means, conics, opacities, _, depths, ids, slots, starts, spans, *_ = arrays
    count, tiles = means.shape[1], starts.shape[1] - 1
    a, b, c = (conics[..., i] for i in range(3))
    a[...], b[...], c[...] = 0.002 + 0.001 * np.abs(a), 0.001 * b, 0.002 + 0.001 * np.abs(c)
    opacities[...] = 0.3 + 0.5 * np.abs(opacities)
    means[...] = 14 + 10 * means
    starts[...] = np.arange(tiles + 1) * count
    for c_ in range(means.shape[0]):
        order = np.argsort(depths[c_], kind="stable")
        if count:
            ids[c_], slots[c_] = np.tile(order, tiles), (order[None, :] * tiles + np.arange(tiles)[:, None]).reshape(-1)
        spans[c_] = np.stack([np.arange(count) * tiles, np.full(count, tiles)], -1)
    if len(arrays) > 9:  # the backward pass has what the forward pass left
        arrays[9][...], arrays[10][...] = 0.2 + 0.3 * np.abs(arrays[9]), count * np.arange(1, 2)
    return arrays


def _samples(extra: Sequence[str] = ()) -> list[Sample]:
    out = []
    for cameras, count, width, height in ((1, 3, 20, 9), (2, 5, 16, 18), (1, 0, 5, 3)):
        across, down = tiles_of(width, height)
        types = _scene(cameras, count, count * across * down, width, height)
        if extra:
            types += [f32(cameras, height, width), i32(cameras, height, width), f32(cameras, height, width, 3),
                      f32(cameras, height, width), f32(cameras, height, width)]
        out.append(S(*types, width=width, height=height, low=-1, high=1, fit=_drawable))
    return out


class _Raster(General):
    """What the forward and the backward pass share."""

    width: int
    height: int
    alpha_min: float = 1 / 255
    alpha_max: float = 0.99
    stop: float = 1e-4

    def checked(self, *types: TensorType) -> tuple[Dim, Dim]:
        """Cameras and splats."""
        _require_size(self.width, self.height)
        require(0 < self.alpha_min < self.alpha_max < 1, "needs 0 < alpha_min < alpha_max < 1", alpha_min=self.alpha_min,
                alpha_max=self.alpha_max)
        require(0 < self.stop < 1, "stop must be between 0 and 1", stop=self.stop)
        require_kind(types[:5], "f")
        require_one_dtype(types[:5])
        require(all(t.dtype is dt.i32 for t in types[5:9]), "tile lists are i32", lists=", ".join(str(t) for t in types[5:9]))
        means, conics, opacities, colors, depths, ids, slots, starts, spans = types[:9]
        require(opacities.ndim == 2, "opacities must have an axis of cameras and one of splats", opacities=opacities)
        cameras, count = opacities.shape
        across, down = tiles_of(self.width, self.height)
        capacity = ids.shape[-1] if ids.shape else 0
        _require_shapes({"means": (means, (cameras, count, 2)), "conics": (conics, (cameras, count, 3)),
                         "colors": (colors, (cameras, count, 3)), "depths": (depths, (cameras, count)),
                         "ids": (ids, (cameras, capacity)), "slots": (slots, (cameras, capacity)),
                         "starts": (starts, (cameras, across * down + 1)), "spans": (spans, (cameras, count, 2))})
        return cameras, count

    def alphas(self, c: int, arrays: Sequence[Any], at: tuple[int, int], ids: Any) -> tuple[Any, Any, Any, Any, Any]:
        """dx, dy, exp(...), alpha and which are drawn, of splats `ids` at a pixel."""
        means, conics, opacities = arrays[:3]
        dx, dy = at[0] + 0.5 - means[c, ids, 0], at[1] + 0.5 - means[c, ids, 1]
        a, b, k = conics[c, ids].T
        falloff = np.exp(-0.5 * (a * dx * dx + 2 * b * dx * dy + k * dy * dy))
        alpha = np.minimum(opacities[c, ids] * falloff, self.alpha_max)
        return dx, dy, falloff, alpha, alpha >= self.alpha_min


@register
class SplatRasterize(_Raster):
    """Colour [C,H,W,3], depth and transmittance [C,H,W] of splats given as means, conics, opacities, colours, depths and the lists of
    `splat_bin`; and the number (from 1, in the tile's list) of the last splat that each pixel took, which the backward pass reads."""

    width: int
    height: int
    alpha_min: float = 1 / 255
    alpha_max: float = 0.99
    stop: float = 1e-4
    whole = True
    unsupported = {"jvp": NotSupported("splats have a reverse-mode derivative only")}
    samples = _samples()
    errors = [E(*_scene(1, 3, 6, 20, 9)[:-1], i32(1, 2, 2), width=20, height=9, match=r"spans must be \[1,3,2\]"),
              E(*_scene(1, 3, 6, 20, 9), width=20, height=9, stop=0.0, match="stop must be between 0 and 1"),
              E(*_scene(1, N, 6, 20, 9), width=40, height=9, match=r"starts must be \[1,4\]")]

    def infer(self, means: TensorType, conics: TensorType, opacities: TensorType, colors: TensorType, depths: TensorType, ids: TensorType,
              slots: TensorType, starts: TensorType, spans: TensorType) -> tuple[TensorType, ...]:
        cameras, _ = self.checked(means, conics, opacities, colors, depths, ids, slots, starts, spans)
        image = means.with_shape((cameras, self.height, self.width))
        return means.with_shape((*image.shape, 3)), image, image, image.with_dtype(dt.i32)

    def ref(self, *arrays: Any) -> Any:
        dtype = arrays[0].dtype
        means, conics, opacities, colors, depths = (x.astype(np.float64) for x in arrays[:5])
        ids, _, starts, _ = arrays[5:]
        across, _ = tiles_of(self.width, self.height)
        shape = (means.shape[0], self.height, self.width)
        color, depth, left, last = np.zeros((*shape, 3)), np.zeros(shape), np.ones(shape), np.zeros(shape, np.int32)
        for c, y, x in np.ndindex(*shape):
            tile = y // TILE * across + x // TILE
            part = ids[c, starts[c, tile] : starts[c, tile + 1]]
            *_, alpha, drawn = self.alphas(c, (means, conics, opacities), (x, y), part)
            t = 1.0
            for i, g in enumerate(part):
                if not drawn[i]:
                    continue
                if t * (1 - alpha[i]) < self.stop:
                    break
                color[c, y, x] += alpha[i] * t * colors[c, g]
                depth[c, y, x] += alpha[i] * t * depths[c, g]
                t *= 1 - alpha[i]
                last[c, y, x] = i + 1
            left[c, y, x] = t
        return color.astype(dtype), depth.astype(dtype), left.astype(dtype), last

    def flops(self, *types: TensorType) -> Dim:
        return types[5].numel * (TILE * TILE * 30)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        given = [F.zeros(v) if g is None else g for v, g in zip(outputs[:3], cotangents[:3], strict=True)]
        back = SplatRasterizeBackward(**self.attrs())
        return (*back(*inputs, outputs[2], outputs[3], *given), None, None, None, None)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return _folded(self, inputs, batched, size)


@register
class SplatRasterizeBackward(_Raster):
    """Cotangents of the means, conics, opacities, colours and depths of `splat_rasterize`, given its operands, the transmittance and the
    last splats it found, and the cotangents of colour, depth and transmittance. Pixels are walked from behind; every tile leaves its sums
    of a splat in the splat's own slots, which are added in order."""

    width: int
    height: int
    alpha_min: float = 1 / 255
    alpha_max: float = 0.99
    stop: float = 1e-4
    whole = True
    unsupported = {"vjp": NotSupported("splats have a first derivative only"), "jvp": NotSupported("splats have a first derivative only")}
    samples = _samples(("backward",))
    errors = [E(*_samples(("backward",))[0].types[:-1], f32(1, 9, 21), width=20, height=9, match=r"cotangents must be those of")]

    def infer(self, means: TensorType, conics: TensorType, opacities: TensorType, colors: TensorType, depths: TensorType, ids: TensorType,
              slots: TensorType, starts: TensorType, spans: TensorType, left: TensorType, last: TensorType, dcolor: TensorType,
              ddepth: TensorType, dleft: TensorType) -> tuple[TensorType, ...]:
        cameras, _ = self.checked(means, conics, opacities, colors, depths, ids, slots, starts, spans)
        image = means.with_shape((cameras, self.height, self.width))
        ok = (left, last, dcolor, ddepth, dleft) == (image, image.with_dtype(dt.i32), image.with_shape((*image.shape, 3)), image, image)
        require(ok, "cotangents must be those of a {height}x{width} image", height=self.height, width=self.width, color=dcolor,
                depth=ddepth, transmittance=dleft)
        return means, conics, opacities, colors, depths

    def ref(self, *arrays: Any) -> Any:
        dtype = arrays[0].dtype
        means, conics, opacities, colors, depths = (x.astype(np.float64) for x in arrays[:5])
        ids, _, starts, _ = arrays[5:9]
        left, last, dcolor, ddepth, dleft = arrays[9:]
        across, _ = tiles_of(self.width, self.height)
        dm, dq, do, dc, dd = (np.zeros(x.shape) for x in (means, conics, opacities, colors, depths))
        for c, y, x in np.ndindex(*left.shape):
            tile = y // TILE * across + x // TILE
            start = starts[c, tile]
            part = ids[c, start : min(start + last[c, y, x], starts[c, tile + 1])]
            dx, dy, falloff, alpha, drawn = self.alphas(c, (means, conics, opacities), (x, y), part)
            t, behind = float(left[c, y, x]), float(dleft[c, y, x])
            for i in range(len(part))[::-1]:
                if not drawn[i]:
                    continue
                g = part[i]
                t /= 1 - alpha[i]
                own = dcolor[c, y, x] @ colors[c, g] + ddepth[c, y, x] * depths[c, g]
                slope = t * (own - behind)
                behind += alpha[i] * (own - behind)
                dc[c, g] += alpha[i] * t * dcolor[c, y, x]
                dd[c, g] += alpha[i] * t * ddepth[c, y, x]
                if opacities[c, g] * falloff[i] < self.alpha_max:
                    a, b, k = conics[c, g]
                    do[c, g] += slope * falloff[i]
                    moved = slope * alpha[i]
                    dm[c, g] += moved * np.array([a * dx[i] + b * dy[i], b * dx[i] + k * dy[i]])
                    dq[c, g] -= moved * np.array([0.5 * dx[i] ** 2, dx[i] * dy[i], 0.5 * dy[i] ** 2])
        return tuple(x.astype(dtype) for x in (dm, dq, do, dc, dd))

    def flops(self, *types: TensorType) -> Dim:
        return types[5].numel * (TILE * TILE * 50)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return _folded(self, inputs, batched, size)


