"""Convolutions of 3×3 at step 1 become Winograd's, whose products are a quarter (or less than half) as many, and so do the gradients of
their inputs and weights in f32. Weights that are not constants are transformed in every call, where images are large enough for it.

Those of small floats are multiplied in f32 then. Where the CPU multiplies pairs of bf16 numbers, twice as fast, tiles of 2×2 are rounded
to bf16 and multiplied so, which leaves an error of 2.5 times that of the result's own rounding; elsewhere only the quarter pays for bf16,
and only where an image has enough tiles for the weights.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from .. import ops as o
from ..core.dims import Dim, at_least, at_most, divisible, product
from ..core.dtypes import bf16, f16, f32
from ..core.winograd import TAPS, matrices, transformed
from ..ir.graph import Graph, Value
from ..ir.rewrite import Match, P, Var, X, rule
from ..ops import functions as F
from ..ops.matmul.winograd import Transformed
from .base import Log, Pass, apply_rules

LEAST = 16  # channels and results: fewer do not pay for the transforms
LARGE = 1 << 17  # weights of a tap from which tiles of 2×2 are better: those of 4×4 would have more weights than caches hold

PIXELS_OF_A_TILE = 9  # that the direct sum in bf16 computes while a tile of 4×4 is multiplied in f32
FAR = 16  # tiles that are multiplied while the weights come from L3
NEAR = 1 << 20  # bytes of transformed weights that stay in L2
PIXELS = 196  # results of an image from which a transform of weights in every call pays, whatever the batch: it must not change a bit
FULL = 64  # channels and results whose products in bf16 pay for transforms of 2×2 tiles
FEWEST = 4  # the fewest of these tiles for which weights are read
SIDE = 7  # pixels along an axis from which the tiles of a gradient of weights pay


@rule(P(o.Conv, X, Var("w"), name="conv"), changes="rounding")
def winograd(x: Value, w: Value, conv: Any, m: Match) -> Value | None:
    op = conv.op
    inside = all(isinstance(p, int) and p >= 0 for pair in op.padding for p in pair)
    plain = set(op.stride) == set(op.dilation) == {1} and inside
    results, channels, *kernel = w.shape
    known = isinstance(channels, int) and isinstance(results, int) and channels >= LEAST and results // op.groups >= LEAST
    size = w.type.numel
    if not plain or w.dtype not in (f32, bf16, f16) or tuple(kernel[-2:]) != (3, 3) or not known or not isinstance(size, int):
        return None
    tile = 4 if size // 9 < LARGE else 2
    if isinstance(w.op, o.Constant):
        pixels = conv.values[0].shape[2:]
        small = m.known.pairs and w.dtype is bf16 and _pays_in_pairs(w, op.groups, pixels)
        if op.transposed or (w.dtype is bf16 and not small and not _pays_in_bf16(w, op.groups, pixels, tile, m.known.matrix)):
            return None
        tile = 2 if small else tile
        made: Any = Transformed(w.op.data, tile, small=small)
        if w.op.data.array.flags.writeable:  # its owner may change it later
            made = transformed(w.op.data.array, tile, small=small)
        u, padding = m.graph.constant(made, w.node.name), op.padding
    else:
        image = product(conv.values[0].shape[2:])
        plain = not op.transposed or (op.groups == 1 and not any(op.output_padding))
        if tile == 2 or w.dtype is not f32 or not plain or not isinstance(image, int) or image < PIXELS:
            return None
        u, padding = _transform(w, op.transposed, tile, m), op.padding
        if op.transposed:
            padding = tuple((k - 1 - lo, k - 1 - hi) for k, (lo, hi) in zip(kernel, op.padding, strict=True))
            if any(p < 0 for pair in padding for p in pair):
                return None
    whole = o.WinogradConv(tile=tile, padding=padding, outer=tuple(kernel[:-2]), groups=op.groups)
    out: Value = whole(x, u, name=conv.name, place=conv.place)
    return out


def _pays_in_pairs(w: Value, groups: int, pixels: tuple[Dim, ...]) -> bool:
    """Whether tiles of 2×2, transformed in f32 and multiplied in bf16, take less time than the direct sum in bf16 and than tiles of 4×4
    that are multiplied in f32. Measured on a Zen 4 core: a tile takes as long as 2.75 pixels of the direct sum."""
    results, channels, *_ = w.shape
    if not divisible(channels, 2) or not (at_least(channels, FULL) and at_least(results, FULL * groups)):
        return False
    known = [d for d in pixels if isinstance(d, int)]
    return len(known) < len(pixels) or 4 * prod(known) >= 11 * max(FEWEST, prod((*known[:-2], *(-(-d // 2) for d in known[-2:]))))


def _pays_in_bf16(w: Value, groups: int, pixels: tuple[Dim, ...], tile: int, matrix: bool) -> bool:
    """Whether products in f32 of an image's tiles, and reading their weights in f32 from the cache that holds them, take less time than
    the direct sum in bf16, which multiplies twice as fast. Measured on a Zen 5 core: pixels of a tile's time, and weights of one position
    in tiles' time. `matrix`: AMX multiplies whole registers of channels, and f32 the others."""
    results, channels, *_ = w.shape
    if matrix:
        return not (divisible(channels, 32) and divisible(results, 16 * groups))
    known = [d for d in pixels if isinstance(d, int)]
    if tile != 4 or len(known) < len(pixels):
        return tile == 4
    weights = product((results, channels, *w.shape[2:-2]))
    tiles = prod((*known[:-2], *(-(-d // tile) for d in known[-2:])))
    return prod(known) >= PIXELS_OF_A_TILE * (tiles + (FAR // 4 if at_most(weights * 4 * (tile + 2) ** 2, NEAR) else FAR))


@rule(P(o.Conv, X, Var("g"), name="conv"), changes="rounding")
def winograd_weight_gradient(x: Value, g: Value, conv: Any, m: Match) -> Value | None:
    """A convolution of 3×3 results sums over images and pixels: the gradient of weights, x[C, N, H, W] by cotangents [O, N, h, w]."""
    op, out = conv.op, conv.values[0]
    inside = all(isinstance(p, int) and p >= 0 for pair in op.padding for p in pair)
    plain = set(op.stride) == set(op.dilation) == {op.groups} == {1} and not op.transposed and inside and x.dtype is f32
    sides, size = g.shape[2:], product(out.shape[:2])
    if not plain or out.shape[2:] != (TAPS, TAPS) or isinstance(g.op, o.Constant) or not isinstance(size, int):
        return None
    if not all(isinstance(d, int) and d >= SIDE for d in sides) or min(out.shape[:2]) < LEAST:
        return None
    swap = (1, 0, 2, 3)
    pixels = o.WinogradTiles(tile=4, padding=op.padding)(F.transpose(x, swap))
    cotangents = o.WinogradTiles(tile=4, gradients=True)(F.transpose(g, swap))
    products = F.matmul(F.transpose(cotangents, (0, 2, 1)), pixels)  # [36, O, C], so that taps are the only axis that moves
    _, weights, _ = matrices(4)
    back = m.graph.constant(np.ascontiguousarray(np.kron(weights, weights).T.astype(np.float32)))
    taps = F.reshape(F.matmul(back, F.reshape(products, (len(weights) ** 2, size))), (TAPS, TAPS, out.shape[1], out.shape[0]))
    return F.transpose(taps, (3, 2, 0, 1))


def _transform(w: Value, transposed: bool, tile: int, m: Match) -> Value:
    """Weights of the call by a product with both transforms. Those of a transposed convolution are read in reverse."""
    _, g, _ = matrices(tile)
    both = np.kron(g, g).astype(np.float32)
    rank = len(w.shape)
    outer = tuple(range(2, rank - 2))
    if transposed:
        w = F.flip(w, outer) if outer else w
        both = np.ascontiguousarray(both[:, ::-1])
    order = (rank - 2, rank - 1, *outer, *((0, 1) if transposed else (1, 0)))
    taps = F.transpose(w, order)
    flat = F.reshape(taps, (TAPS * TAPS, product(taps.shape[2:])))
    return F.reshape(F.matmul(m.graph.constant(both), flat), (len(both) * product(taps.shape[2:-1]), taps.shape[-1]))


@dataclass(frozen=True)
class Winograd(Pass):
    """Before: batch norms are in the weights of their convolutions.
    After: on a CPU, no convolution with 3×3 taps along its last axes at step 1 in f32, f16 or bf16 by constant weights of 16 channels and
    results a group (in bf16: where `_pays_in_pairs` or `_pays_in_bf16`), nor by other weights in f32 where an image has PIXELS results.
    What it becomes depends on the weights' type and the size of an image, never on the batch."""

    matrix: bool = False  # the CPU has AMX for bf16
    pairs: bool = False  # it multiplies pairs of bf16 numbers, and has no AMX
    name: ClassVar[str] = "winograd"

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, [winograd, winograd_weight_gradient], log, known=self)
        return graph
