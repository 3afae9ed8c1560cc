"""Gaussian splats: projection of 3-D Gaussians to a screen, their tile lists, and compositing. Every input has a derivative, cameras too.

Projection is an elementwise function of the rows of all inputs (`row_map`): one kernel computes it, and the general rules differentiate it.
Gaussians that are not finite, behind the near plane or beyond the far plane draw nothing and have no slope: they are replaced by harmless
ones before anything is computed from them. Coefficients of colours that are not finite count as 0.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.dims import Dim
from ...core.dtypes import f32
from ...core.errors import ShapeError
from ...core.pytree import flatten
from ...ir.types import TensorType
from ...ops import RowMap, SplatBin, SplatRasterize, StopGradient
from ...ops.families import show_shape
from ...ops.splats import TILE, tiles_of
from ..promote import as_tracer
from ..trace import Functions, Leaf, Tracer, apply, trace, user_place
from .elementwise import FUNCTIONS as E
from .ordering import argsort
from .shapes import reshape

public = FUNCTIONS = Functions()
CAMERAS = ("pinhole", "fisheye")
SH0, SH1 = 0.5 / math.sqrt(math.pi), math.sqrt(3 / (4 * math.pi))  # spherical harmonics, by degree
SH2 = tuple(math.sqrt(n / math.pi) / 4 for n in (15, 5))
SH3 = tuple(math.sqrt(n / math.pi) / 4 for n in (17.5, 105, 10.5, 7))


class SplatView(NamedTuple):
    """Gaussians as cameras see them: what `splat_prepare` gives and `splat_rasterize` draws. Every array has the cameras in front."""

    means: Any  # pixels [C,N,2]
    conics: Any  # inverse covariances (xx, xy, yy) [C,N,3]
    opacities: Any  # [C,N], 0 for what is not drawn
    colors: Any  # [C,N,3]
    depths: Any  # along the view axis [C,N]
    radii: Any  # half width and half height in pixels of what is drawn, 0 for nothing [C,N,2]
    ids: Any  # Gaussians of all 16x16 tiles, tile by tile, front to back [C,capacity]
    slots: Any  # an entry's number when Gaussians are walked in depth order [C,capacity]
    starts: Any  # where the list of a tile begins; the last is the number of entries [C,tiles+1]
    spans: Any  # first slot of a Gaussian and how many it has [C,N,2]


class SplatImage(NamedTuple):
    """Colour [C,H,W,3], depth [C,H,W] (the sum of weighted depths; divide by alpha for a mean) and alpha [C,H,W]."""

    color: Any
    depth: Any
    alpha: Any


def _need(ok: bool, text: str) -> None:
    if not ok:
        raise ShapeError(f"splat: {text} ({user_place()})")


def _checked(given: dict[str, Any]) -> dict[str, Tracer]:
    """Operands as tracers of f32, with the shapes of N Gaussians and C cameras."""
    found = {name: as_tracer(x) for name, x in given.items()}
    for name, x in found.items():
        _need(x.value.dtype.name == "f32", f"{name} must be f32, got {x.type}; cast first")
    count = found["means"].shape[0] if found["means"].ndim else 0
    shapes = {"means": (count, 3), "scales": (count, 3), "quats": (count, 4), "opacities": (count,)}
    for name, shape in shapes.items():
        _need(found[name].shape == shape, f"{name} must be {show_shape(shape)}, got {found[name].type}")
    sh = found["sh"]
    ok = sh.ndim == 3 and sh.shape[0] == count and sh.shape[1] in (1, 4, 9, 16) and sh.shape[2] == 3
    _need(ok, f"sh must be [{count},K,3] with K = 1, 4, 9 or 16 coefficients (degree 0 to 3), got {sh.type}")
    return found


def _dot(*pairs: tuple[Any, Any]) -> Any:
    total = pairs[0][0] * pairs[0][1]
    for a, b in pairs[1:]:
        total = total + a * b
    return total


def _harmonics(direction: list[Any], count: int) -> list[Any]:
    """Real spherical harmonics of a direction, in the order and with the signs that Gaussian splatting uses."""
    x, y, z = direction
    out: list[Any] = [SH0]
    if count > 1:
        out += [y * -SH1, z * SH1, x * -SH1]
    if count > 4:
        xx, yy, zz = x * x, y * y, z * z
        a, b = SH2
        out += [x * y * (2 * a), y * z * (-2 * a), (zz * 2.0 - xx - yy) * b, x * z * (-2 * a), (xx - yy) * a]
    if count > 9:
        a, b, c, d = SH3
        out += [y * (xx * 3.0 - yy) * -a, x * y * z * (2 * b), y * (zz * 4.0 - xx - yy) * -c, z * (zz * 2.0 - xx * 3.0 - yy * 3.0) * d,
                x * (zz * 4.0 - xx - yy) * -c, z * (xx - yy) * b, x * (xx - yy * 3.0) * -a]
    return out


def _pinhole(x: Any, y: Any, z: Any, k: Sequence[Any], size: Sequence[Any]) -> tuple[Any, Any, list[Any], list[Any]]:
    """Pixel and the rows of the Jacobian. Beyond 1.3 times the field of view the Jacobian is that of its border."""
    fx, fy, cx, cy = k
    inverse = 1.0 / z
    u, v = x * inverse, y * inverse
    rows = []
    for ratio, f, c, n in ((u, fx, cx, size[0]), (v, fy, cy, size[1])):
        margin = 0.15 * n / f
        near = E["maximum"](E["minimum"](ratio, (n - c) / f + margin), -c / f - margin)
        rows.append((f * inverse, -f * near * inverse))
    zero = None
    return fx * u + cx, fy * v + cy, [rows[0][0], zero, rows[0][1]], [zero, rows[1][0], rows[1][1]]


def _fisheye(x: Any, y: Any, z: Any, k: Sequence[Any], size: Sequence[Any]) -> tuple[Any, Any, list[Any], list[Any]]:
    """The distance from the principal point grows with the angle to the axis."""
    fx, fy, cx, cy = k
    flat = x * x + y * y
    far = flat > z * z * 1e-6  # nearer to the axis the limit of small angles is exact in f32
    safe = E["where"](far, flat, z * z)
    r = E["sqrt"](safe)
    distance = flat + z * z
    scale = E["where"](far, E["atan2"](r, z) / r, (1.0 - flat / (3.0 * z * z)) / z)
    slope = E["where"](far, (z / distance - scale) / safe, -2.0 / (3.0 * z * z * z))  # the scale's derivative by r, over r
    back = -1.0 / distance
    return (fx * x * scale + cx, fy * y * scale + cy,
            [fx * (scale + x * x * slope), fx * x * y * slope, fx * x * back],
            [fy * x * y * slope, fy * (scale + y * y * slope), fy * y * back])


def _row_times(row: Sequence[Any], columns: Sequence[Sequence[Any]]) -> list[Any]:
    """A row of three (None is zero) times a matrix given by rows."""
    used = [(a, m) for a, m in zip(row, columns, strict=True) if a is not None]
    return [_dot(*((a, m[j]) for a, m in used)) for j in range(3)]


def _clean(x: Any, valid: Any, otherwise: float) -> Any:
    return E["where"](valid, x, otherwise)


COLUMN = Leaf(TensorType(f32, (16,)))  # one lane a Gaussian


class Projection(NamedTuple):
    """How Gaussians come to a screen: a function of one lane a Gaussian. The size of the screen is data: one code serves every size."""

    near: float
    far: float
    blur: float
    camera: str
    antialias: bool
    alpha_min: float

    def columns(self, m: list[Any], s: list[Any], q: list[Any], opacities: list[Any], sh: list[Any], view: list[Any],
                k: list[Any], screen: list[Any]) -> list[Any]:
        """Columns of the projected Gaussians: mean, conic, opacity, colour, depth, radii, tiles and the key of depth order."""
        w = [view[4 * i : 4 * i + 4] for i in range(3)]
        intrinsic = (k[0], k[4], k[2], k[5])
        # What is not finite becomes harmless.
        length = _dot(*((c, c) for c in q))
        total = m[0] + m[1] + m[2] + s[0] + s[1] + s[2] + opacities[0]
        valid = E["logical_and"](E["isfinite"](total), E["logical_and"](length > 1e-30, E["isfinite"](length)))
        m, s = [_clean(c, valid, 0.0) for c in m], [_clean(c, valid, 0.0) for c in s]
        opacity = _clean(opacities[0], valid, 0.0)
        q = [_clean(q[0], valid, 1.0), *(_clean(c, valid, 0.0) for c in q[1:])]
        inverse = 1.0 / E["sqrt"](_dot(*((c, c) for c in q)))
        qw, qx, qy, qz = (c * inverse for c in q)
        axes = [[1.0 - 2.0 * (qy * qy + qz * qz), 2.0 * (qx * qy - qw * qz), 2.0 * (qx * qz + qw * qy)],
                  [2.0 * (qx * qy + qw * qz), 1.0 - 2.0 * (qx * qx + qz * qz), 2.0 * (qy * qz - qw * qx)],
                  [2.0 * (qx * qz - qw * qy), 2.0 * (qy * qz + qw * qx), 1.0 - 2.0 * (qx * qx + qy * qy)]]

        # Where a camera sees them.
        px, py, pz = (_dot((row[0], m[0]), (row[1], m[1]), (row[2], m[2])) + row[3] for row in w)
        seen = E["logical_and"](valid, E["logical_and"](pz > self.near, pz < self.far))
        px, py, pz = _clean(px, seen, 0.0), _clean(py, seen, 0.0), _clean(pz, seen, 1.0)
        project = _pinhole if self.camera == "pinhole" else _fisheye
        u, v, *jacobian = project(px, py, pz, intrinsic, screen)
        rotation = [row[:3] for row in w]
        spread = [[c * size for c, size in zip(_row_times(_row_times(row, rotation), axes), s, strict=True)] for row in jacobian]
        (a0, a1, a2), (b0, b1, b2) = spread
        xx, xy, yy = (_dot((p[0], r[0]), (p[1], r[1]), (p[2], r[2])) for p, r in
                      (((a0, a1, a2), (a0, a1, a2)), ((a0, a1, a2), (b0, b1, b2)), ((b0, b1, b2), (b0, b1, b2))))
        minors = (a0 * b1 - a1 * b0, a1 * b2 - a2 * b1, a2 * b0 - a0 * b2)
        area = _dot(*((c, c) for c in minors))  # the determinant as a sum of squares: nothing cancels
        determinant = area + self.blur * (xx + yy) + self.blur * self.blur
        safe = E["logical_and"](seen, E["logical_and"](determinant > 1e-20, E["isfinite"](determinant)))
        flat = 1.0 / E["where"](safe, determinant, 1.0)
        xx, yy = xx + self.blur, yy + self.blur
        if self.antialias:
            some = E["logical_and"](safe, area > 1e-20)
            kept = E["where"](some, E["sqrt"](E["where"](some, area, 1.0) * flat), 0.0)
            opacity = opacity * kept
        opacity = E["where"](safe, opacity, 0.0)
        conics = [_clean(c * flat, safe, other) for c, other in ((yy, 1.0), (-xy, 0.0), (xx, 1.0))]

        # Colours.
        eye = [-_dot(*((w[i][j], w[i][3]) for i in range(3))) for j in range(3)]
        direction = [c - e for c, e in zip(m, eye, strict=True)]
        reach = _dot(*((c, c) for c in direction))
        inverse = 1.0 / E["sqrt"](E["where"](reach > 1e-30, reach, 1.0))
        basis = _harmonics([c * inverse for c in direction], len(sh) // 3)
        colors = []
        for channel in range(3):
            coefficients = sh[channel::3]
            coefficients = [_clean(c, E["isfinite"](c), 0.0) for c in coefficients]
            light = _dot(*((c, h) for c, h in zip(coefficients, basis, strict=True))) + 0.5
            colors.append(E["maximum"](light, 0.0))

        # What is drawn, without a derivative.
        strength, wide, high, mx, my, depth = (apply(StopGradient(), c) for c in (opacity, xx, yy, u, v, pz))
        visible = strength > self.alpha_min
        reach = E["log"](E["where"](visible, strength * (1 / self.alpha_min), 1.0)) * 2.0
        radii, rects = [], []
        for centre, variance, tiles in ((mx, wide, screen[2]), (my, high, screen[3])):
            radius = E["sqrt"](reach * variance) * 1.0001 + 0.01
            ends = (E["floor"]((centre - radius) * (1 / TILE)), E["floor"]((centre + radius) * (1 / TILE)) + 1.0)
            rects += [E["where"](visible, E["maximum"](E["minimum"](e, tiles), 0.0), 0.0) for e in ends]
            radii.append(E["where"](visible, radius, 0.0))
        corners = [E["astype"](e, "i32") for e in rects]
        return [u, v, *conics, opacity, *colors, pz, *radii, *corners, E["where"](visible, depth, math.inf)]


@public
def splat_prepare(means: Any, scales: Any, quats: Any, opacities: Any, sh: Any, viewmats: Any, intrinsics: Any, *, width: int, height: int,
                  near: float = 0.01, far: float = 1e10, blur: float = 0.3, camera: str = "pinhole", antialias: bool = False,
                  alpha_min: float = 1 / 255, capacity: int | None = None) -> SplatView:
    """3-D Gaussians as cameras see them, with their tile lists: the first half of `splat_render`.

    Shapes: means, scales [N,3] · quats [N,4] (w, x, y, z; of any length but 0) · opacities [N] · sh [N,K,3], K = 1, 4, 9 or 16 coefficients
    · viewmats [C,4,4] or [4,4] (world to camera: x right, y down, z forward) · intrinsics [C,3,3] or [3,3]. The result always has an axis
    of cameras. `blur` is added to the variance in pixels; with `antialias` opacities fall by what it adds to the area. `capacity` is the
    longest that the tile lists of a camera may be together; a scene that needs more is an error that says how many.
    """
    view, k = as_tracer(viewmats), as_tracer(intrinsics)
    view = reshape(view, (1, *view.shape)) if view.ndim == 2 else view
    k = reshape(k, (1, *k.shape)) if k.ndim == 2 else k
    x = _checked({"means": means, "scales": scales, "quats": quats, "opacities": opacities, "sh": sh, "viewmats": view, "intrinsics": k})
    count: Dim = x["means"].shape[0]
    _need(view.ndim == 3 and view.shape[1:] == (4, 4), f"viewmats must be [C,4,4] or [4,4], got {view.type}")
    _need(k.ndim == 3 and k.shape[1:] == (3, 3), f"intrinsics must be [C,3,3] or [3,3], got {k.type}")
    _need(k.shape[0] in (1, view.shape[0]), f"there must be one intrinsics matrix, or one a view, got {k.type} for {view.type}")
    _need(camera in CAMERAS, f"camera must be pinhole or fisheye, got {camera!r}")
    _need(width >= 1 and height >= 1, f"an image has at least one pixel, got width={width}, height={height}")
    options = Projection(near, far, blur, camera, antialias, alpha_min)
    terms = x["sh"].shape[1]
    operands = [reshape(x[n], (1, count, size)) for n, size in (("means", 3), ("scales", 3), ("quats", 4), ("opacities", 1))]
    operands += [reshape(x["sh"], (1, count, 3 * terms)), reshape(view, (view.shape[0], 1, 16)), reshape(k, (k.shape[0], 1, 9))]
    across, down = tiles_of(width, height)
    operands.append(as_tracer(np.array([[[width, height, across, down]]], np.float32)))
    leaves, spec = flatten((tuple([COLUMN] * v.shape[2] for v in operands), {}))
    made = trace(options.columns, spec, leaves)
    groups = (2, 3, 1, 3, 1, 2, 4, 1)
    op = RowMap(body=made.graph, groups=groups, summed=(False,) * len(groups))
    means2, conics, opacity, colors, depths, radii, rects, keys = apply(op, *operands)
    cameras = view.shape[0]
    rows = (cameras, count)
    order = argsort(reshape(keys, rows), -1, dtype="i32")
    limit = _capacity(count, across * down) if capacity is None else capacity
    lists = apply(SplatBin(width=width, height=height, capacity=limit), rects, order)
    return SplatView(means2, conics, reshape(opacity, rows), colors, reshape(depths, rows), radii, *lists)


def _capacity(count: Dim, tiles: int) -> Dim:
    """Entries that the tile lists of a camera get where nothing is said: 24 a Gaussian and a quarter of a million."""
    usual = count * 24 + (1 << 18)
    return min(usual, count * tiles) if isinstance(count, int) and isinstance(usual, int) else usual


@public
def splat_rasterize(view: SplatView, *, width: int, height: int, background: Any = None, alpha_min: float = 1 / 255,
                    alpha_max: float = 0.99, stop: float = 1e-4) -> SplatImage:
    """Draw what `splat_prepare` made, front to back: the second half of `splat_render`, with the same size and `alpha_min`.

    `background` [3] or [C,3] shines through what is left. A pixel ends at the first Gaussian that would bring what is left below `stop`.
    """
    op = SplatRasterize(width=width, height=height, alpha_min=alpha_min, alpha_max=alpha_max, stop=stop)
    v = SplatView(*view)
    color, depth, left, _ = apply(op, v.means, v.conics, v.opacities, v.colors, v.depths, v.ids, v.slots, v.starts, v.spans)
    if background is not None:
        behind = as_tracer(background)
        cameras = color.shape[0]
        _need(behind.shape in ((3,), (cameras, 3)), f"background must be [3] or [{cameras},3], got {behind.type}")
        color = color + reshape(left, (*left.shape, 1)) * reshape(behind, (-1, 1, 1, 3) if behind.ndim == 2 else (3,))
    return SplatImage(color, depth, 1.0 - left)


@public
def splat_render(means: Any, scales: Any, quats: Any, opacities: Any, sh: Any, viewmats: Any, intrinsics: Any, *, width: int, height: int,
                 background: Any = None, near: float = 0.01, far: float = 1e10, blur: float = 0.3, camera: str = "pinhole",
                 antialias: bool = False, alpha_min: float = 1 / 255, alpha_max: float = 0.99, stop: float = 1e-4,
                 capacity: int | None = None) -> SplatImage:
    """Pictures of 3-D Gaussians: colour, depth and alpha as cameras see them. One camera ([4,4] and [3,3]) gives [H,W,3], [H,W] and [H,W],
    C cameras ([C,4,4]) give [C,H,W,3] and so on. See `splat_prepare` and `splat_rasterize` for the arguments."""
    single = len(as_tracer(viewmats).shape) == 2
    view = splat_prepare(means, scales, quats, opacities, sh, viewmats, intrinsics, width=width, height=height, near=near, far=far,
                         blur=blur, camera=camera, antialias=antialias, alpha_min=alpha_min, capacity=capacity)
    image = splat_rasterize(view, width=width, height=height, background=background, alpha_min=alpha_min, alpha_max=alpha_max, stop=stop)
    return SplatImage(*(reshape(v, v.shape[1:]) for v in image)) if single else image
