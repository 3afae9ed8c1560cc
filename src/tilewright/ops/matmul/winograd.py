"""Winograd's convolution: 3×3 at step 1 by products of transformed tiles, 16 instead of 36 multiplications for 2×2 results, 36 instead of
144 for 4×4.

The transforms evaluate polynomials at 0, at pairs ±p and at infinity, so that they fall into even and odd parts. The pairs of 4×4 are
±11/16 and ±3/2, with which its error is about twice that of the direct sum (with the usual ±1 and ±2 it is seven times).
"""
from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from ...core.dims import Dim, ceildiv, product
from ...core.dtypes import compute_dtype
from ...core.errors import require
from ...core.needs import require_room
from ...core.winograd import PAIRS, TAPS, matrices, transformed
from ...ir.types import TensorType
from ..base import E, NotSupported, S, register
from ..families import Contraction, General, M, N, bf16, f32, f64, require_kind
from ..structure import ConstantData, Derived
from .contractions import Pairs

LATE = NotSupported("a compiled convolution becomes it; differentiate and batch the convolution")


class Transformed(Derived):
    """Weights for tiles of this size, made of those of a convolution. `small`: rounded to its own dtype."""

    def __init__(self, of: ConstantData, tile: int, *, small: bool = False) -> None:
        results, *others = of.type.shape
        rows = (tile + TAPS - 1) ** 2 * product(others) // TAPS**2
        super().__init__(of.name, TensorType(of.type.dtype if small else compute_dtype(of.type.dtype), (rows, results)))
        self.of, self.tile, self.small = of, tile, small

    def make(self) -> Any:
        return transformed(self.of.array, self.tile, small=self.small)

    @property
    def place(self) -> Hashable:
        return "transformed", self.of.place, self.of.type, self.tile, self.small


@register
class WinogradConv(Contraction):
    """x[N, C, outer…, H, W] by weights of 3×3 over the last two axes that `transformed` made, u[(tile + 2)² · outer taps · C/groups, O].
    Transformed weights of small floats are f32, or of their dtype: products of two small floats then."""

    fusion = "contraction"
    tile: int
    padding: Pairs
    outer: tuple[int, ...] = ()
    groups: int = 1
    unsupported = {"vjp": LATE, "jvp": LATE, "batch": LATE}
    samples = [S(f32(2, 3, 7, 6), f32(48, 5), tile=2, padding=((1, 1), (0, 1))),
               S(f32(1, 20, 9, 13), f32(720, 18), tile=4, padding=((1, 1), (2, 0))),
               S(bf16(1, 5, 6, 7), f32(180, 4), tile=4, padding=((1, 1), (1, 1))),
               S(bf16(1, 6, 7, 5), bf16(96, 5), tile=2, padding=((1, 1), (0, 1))),
               S(f64(1, 2, 4, 3), f64(72, 3), tile=4, padding=((0, 0), (0, 0))),
               S(f32(N, 4, 5, M + 2), f32(64, 7), tile=2, padding=((1, 1), (0, 0))),
               S(f32(0, 3, 5, 5), f32(48, 4), tile=2, padding=((0, 0), (0, 0))),
               S(f32(2, 6, 7, 5), f32(48, 40), tile=2, padding=((1, 1), (1, 1)), groups=2),
               S(f32(1, 4, 5, 6, 7), f32(432, 8), tile=4, padding=((1, 1), (1, 1), (0, 1)), outer=(3,)),
               S(f32(1, 6, 3, 4, 5), f32(64, 9), tile=2, padding=((0, 1), (1, 1), (0, 0)), outer=(2,), groups=3)]
    errors = [E(f32(1, 3, 5, 5), bf16(48, 4), tile=2, padding=((0, 0), (0, 0)), match="u must be f32, got"),
              E(f32(1, 3, 5, 5), f32(48, 4), tile=3, padding=((0, 0), (0, 0)), match="tile must be 2 or 4, got tile=3"),
              E(f32(1, 3, 5, 5), f32(50, 4), tile=2, padding=((0, 0), (0, 0)), match=r"u must have 48 rows, got u=f32\[50,4\]"),
              E(f32(1, 3, 5), f32(48, 4), tile=2, padding=((0, 0), (0, 0)), match=r"needs x\[N,C,outer…,H,W\] and a matrix u"),
              E(f32(1, 3, 5, 5), f32(48, 4), tile=2, padding=((0, 0), (0, 0)), groups=2, match="channels must divide into 2 groups"),
              E(f32(1, 3, 2, 5), f32(48, 4), tile=2, padding=((0, 0), (0, 0)), match="the taps do not fit the padded input")]

    @property
    def kernel(self) -> tuple[int, ...]:
        return (*self.outer, TAPS, TAPS)

    def infer(self, x: TensorType, u: TensorType) -> TensorType:
        require_kind((x, u), "f")
        require(u.dtype in (x.dtype, compute_dtype(x.dtype)), "u must be {dtype}", dtype=compute_dtype(x.dtype).name, x=x, u=u)
        require(self.tile in PAIRS, "tile must be 2 or 4", tile=self.tile)
        ranks = x.ndim == 2 + len(self.kernel) and len(self.padding) == len(self.kernel) and u.ndim == 2
        require(ranks, "needs x[N,C,outer…,H,W] and a matrix u", x=x, u=u)
        channels, results = x.shape[1], u.shape[1]
        whole = isinstance(channels, int) and isinstance(results, int) and channels % self.groups == results % self.groups == 0
        require(whole, "channels must divide into {g} groups", g=self.groups, x=x, u=u)
        rows = (self.tile + TAPS - 1) ** 2 * product(self.outer) * (channels // self.groups)
        require(u.shape[0] == rows, "u must have {rows} rows", rows=rows, u=u)
        out: list[Dim] = []
        for d, k, (lo, hi) in zip(x.shape[2:], self.kernel, self.padding, strict=True):
            room = d + lo + hi - k
            require_room(room, "the taps do not fit the padded input", size=d, kernel=k, padding=(lo, hi))
            out.append(room + 1)
        return x.with_shape((x.shape[0], results, *out))

    def ref(self, x: Any, u: Any) -> Any:
        a, _, b = matrices(self.tile)
        m, n, g, taps = self.tile, self.tile + TAPS - 1, self.groups, len(self.outer)
        padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *self.padding))
        h, w = (d - TAPS + 1 for d in padded.shape[-2:])
        rows, columns = -(-h // m), -(-w // m)
        padded = np.pad(padded, (*((0, 0),) * (2 + taps), (0, rows * m - h), (0, columns * m - w)))
        tiles = np.lib.stride_tricks.sliding_window_view(padded, (n, n), (-2, -1))[..., ::m, ::m, :, :]
        if taps:  # outer taps are more channels, outside them
            tiles = np.lib.stride_tricks.sliding_window_view(tiles, self.outer, tuple(range(2, 2 + taps)))
            tiles = np.moveaxis(tiles, range(-taps, 0), range(1, 1 + taps))
        outer, k = tiles.shape[2 + taps : -4], u.shape[0] // (n * n)
        rest = (int(np.prod(outer)), rows, columns, n, n)
        groups = tiles.reshape(x.shape[0], *self.outer, g, x.shape[1] // g, *rest)
        groups = np.moveaxis(groups, 1 + taps, 1).reshape(x.shape[0], g, k, *rest)
        v = np.einsum("ip,lq,zgcdrspq->zgcdrsil", b, b, groups, optimize=True)
        weights = u.astype(np.float64).reshape(n, n, k, g, u.shape[1] // g)
        y = np.einsum("im,ln,zgcdrsil,ilcgo->zgodrmsn", a, a, v, weights, optimize=True)
        y = y.reshape(x.shape[0], u.shape[1], *outer, rows * m, columns * m)
        return y[..., :h, :w].astype(x.dtype)

    def flops(self, x: TensorType, u: TensorType) -> Dim:
        """Those of the products alone."""
        n, o, *outer, h, w = self.infer(x, u).shape
        return 2 * n * product(outer) * ceildiv(h, self.tile) * ceildiv(w, self.tile) * u.shape[0] * o


@register
class WinogradTiles(General):
    """Transformed tiles of x[N, C, H, W] as [(tile + 2)², N · tiles of an image, C]: of the pixels that tiles of results read, or of the
    cotangents of results. Their products over the tiles, transformed back by both matrices of weights, are the gradient of the weights."""

    tile: int
    padding: Pairs = ((0, 0), (0, 0))
    gradients: bool = False
    unsupported = {"vjp": LATE, "jvp": LATE, "batch": LATE}
    samples = [S(f32(2, 3, 7, 6), tile=2, padding=((1, 1), (0, 1))), S(f32(1, 20, 9, 13), tile=4, padding=((1, 1), (2, 0))),
               S(f32(2, 18, 7, 4), tile=4, gradients=True), S(f64(1, 2, 4, 3), tile=2, gradients=True),
               S(f32(N, 4, 5, M + 2), tile=4, padding=((1, 1), (0, 0))), S(f32(0, 3, 5, 5), tile=2)]
    errors = [E(f32(1, 3, 5, 5), tile=3, match="tile must be 2 or 4, got tile=3"),
              E(f32(1, 3, 5), tile=2, match=r"needs x\[N,C,H,W\] of static channels"),
              E(f32(1, 3, 2, 5), tile=2, match="the taps do not fit the padded input"),
              E(bf16(1, 3, 5, 5), tile=2, match="needs f32 or f64")]

    @property
    def window(self) -> int:
        """Elements of a tile's side that are read."""
        return self.tile if self.gradients else self.tile + TAPS - 1

    def grid(self, x: TensorType) -> tuple[Dim, ...]:
        """Tiles along both axes of an image."""
        return tuple(ceildiv(d + lo + hi - (0 if self.gradients else TAPS - 1), self.tile)
                     for d, (lo, hi) in zip(x.shape[2:], self.padding, strict=True))

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "f")
        require(x.dtype is compute_dtype(x.dtype), "needs f32 or f64", x=x)
        require(self.tile in PAIRS, "tile must be 2 or 4", tile=self.tile)
        require(x.ndim == 4 and isinstance(x.shape[1], int), "needs x[N,C,H,W] of static channels", x=x)
        for d, (lo, hi) in zip(x.shape[2:], self.padding, strict=True):
            require_room(d + lo + hi - (1 if self.gradients else TAPS), "the taps do not fit the padded input", size=d, padding=(lo, hi))
        return x.with_shape(((self.tile + TAPS - 1) ** 2, x.shape[0] * product(self.grid(x)), x.shape[1]))

    def ref(self, x: Any) -> Any:
        a, _, b = matrices(self.tile)
        matrix, m = a if self.gradients else b, self.tile
        grid = [-(-(d + lo + hi - (0 if self.gradients else TAPS - 1)) // m) for d, (lo, hi) in zip(x.shape[2:], self.padding, strict=True)]
        around = [(lo, (n - 1) * m + self.window - d - lo) for n, d, (lo, _) in zip(grid, x.shape[2:], self.padding, strict=True)]
        wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), *((lo, max(hi, 0)) for lo, hi in around)))
        tiles = np.lib.stride_tricks.sliding_window_view(wide, (self.window,) * 2, (-2, -1))[:, :, ::m, ::m][:, :, : grid[0], : grid[1]]
        found = np.einsum("ip,lq,zcrspq->ilzrsc", matrix, matrix, tiles, optimize=True)
        return found.reshape(len(matrix) ** 2, -1, x.shape[1]).astype(x.dtype)

    def flops(self, x: TensorType) -> Dim:
        """As many for every result as a line of the matrix has factors, along both axes."""
        return 2 * self.window * self.infer(x).numel
