"""Winograd's convolution in PyTorch: tiles by `unfold`, transforms from the inverse of a Vandermonde matrix."""

from __future__ import annotations

from itertools import product as cartesian
from typing import Any

import torch
import torch.nn.functional as tf

POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 11 / 16, -11 / 16, 1.5, -1.5)}


def transforms(m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices of pixels and of results."""
    n = m + 2
    points = torch.tensor(POINTS[m], dtype=torch.float64)
    powers = torch.zeros(n, n, dtype=torch.float64)  # values of a polynomial at the points, and its highest coefficient
    powers[:-1], powers[-1, -1] = points[:, None] ** torch.arange(n), 1
    norms = torch.ones(n, dtype=torch.float64)
    norms[:-1] = torch.stack([torch.prod(p - points[points != p]) for p in points])
    results = powers[:, :m].clone()
    results[-1] = torch.eye(m, dtype=torch.float64)[-1]
    return norms[:, None] * torch.linalg.inv(powers).T, results


def winograd_tiles(a: dict[str, Any], x: Any) -> Any:
    m, gradients = a["tile"], a.get("gradients", False)
    matrix = transforms(m)[gradients]
    (top, bottom), (left, right) = a.get("padding", ((0, 0), (0, 0)))
    more = 0 if gradients else 2
    down, across = -(-(x.shape[2] + top + bottom - more) // m), -(-(x.shape[3] + left + right - more) // m)
    padded = tf.pad(x.double(), (left, across * m + more - left - x.shape[3], top, down * m + more - top - x.shape[2]))
    tiles = padded.unfold(2, m + more, m).unfold(3, m + more, m)
    found = torch.einsum("ip,lq,zcrspq->ilzrsc", matrix, matrix, tiles)
    return found.reshape(len(matrix) ** 2, x.shape[0] * down * across, x.shape[1]).to(x.dtype)


def winograd_conv(a: dict[str, Any], x: Any, u: Any) -> Any:
    m, n, wide = a["tile"], a["tile"] + 2, x.double()
    pixels, results = transforms(m)
    *outside, (top, bottom), (left, right) = a["padding"]
    taps, groups = a.get("outer", ()), a.get("groups", 1)
    out = x.shape[-2] + top + bottom - 2, x.shape[-1] + left + right - 2
    down, across = (-(-d // m) for d in out)
    around = [down_to(across, m, left, x.shape[-1]), top, down_to(down, m, top, x.shape[-2])]
    padded = tf.pad(wide, (left, *around, *(p for pair in reversed(outside) for p in pair)))
    weights = u.double().reshape(n, n, *taps, x.shape[1] // groups, u.shape[1])
    total: Any = 0
    for tap in cartesian(*(range(t) for t in taps)):
        part = padded
        for axis, (t, k) in enumerate(zip(tap, taps, strict=True), 2):
            part = part.narrow(axis, t, part.shape[axis] - k + 1)
        tiles = part.unfold(-2, n, m).unfold(-2, n, m)  # [N, C, outer…, down, across, n, n]
        v = torch.einsum("ip,lq,...pq->...il", pixels, pixels, tiles)
        each = zip(v.chunk(groups, 1), weights[(slice(None), slice(None), *tap)].chunk(groups, -1), strict=True)
        total = total + torch.cat([torch.einsum("zc...il,ilco->zo...il", x, w) for x, w in each], 1)
    y = torch.einsum("im,ln,...rsil->...rmsn", results, results, total)
    y = y.reshape(*y.shape[:-4], down * m, across * m)
    return y[..., : out[0], : out[1]].to(x.dtype)


def down_to(tiles: int, m: int, before: int, size: int) -> int:
    """Zeros (or, if negative, elements too many) behind an axis so that its tiles are whole."""
    return tiles * m + 2 - before - size
