"""Weights of linear layers in eight or four bits, by groups of columns with a scale and perhaps a zero point; activations stay as they are.

The packed blocks are those of language models: Q8_0, and Q4_1 with `scale` and `-zero * scale`. A group of 64 or 128 columns is two or four
blocks that share both. Zero points of eight bits are a small product beside it: of each group's sum of inputs by `(128 - zero) * scale`.
"""
from __future__ import annotations

import numpy as np

from .. import ops as o
from ..core.dtypes import f32
from ..ir.graph import Graph, Value
from ..ops import functions as F
from ..training.scaled_blocks import pack_scaled
from .layers import Layer
from .observers import Array

GROUPS = (32, 64, 96, 128)
BLOCK = 32


def affine_groups(rows: Array, group: int, bits: int, *, zero_points: bool) -> tuple[Array, Array, Array]:
    """Codes [n, k] (0 … 2^bits - 1), and scales (numbers of f16) and zero points [n, k / group]."""
    n, k = rows.shape
    parts = rows.reshape(n, k // group, group)
    top = 2**bits - 1
    if zero_points:
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        scale = (high - low) / top
    else:
        peak = np.abs(parts).max(-1)
        low, scale = -peak, 2 * peak / (top - 1)
    scale = np.where(scale > 0, scale, 1).astype(np.float16).astype(np.float64)
    scale = np.where(scale > 0, scale, 2.0**-24)
    zero = np.clip(np.rint(-low / scale), 0, top) if zero_points else np.full_like(scale, 2 ** (bits - 1))
    codes = np.clip(np.rint(parts / scale[..., None]) + zero[..., None], 0, top)
    return codes.reshape(n, k), scale, zero


def weight_product(graph: Graph, layer: Layer, x: Value, group: int, bits: int, *, zero_points: bool) -> Value:
    """A linear layer by packed weights."""
    n, k = layer.rows.shape
    codes, scale, zero = affine_groups(layer.rows, group, bits, zero_points=zero_points)
    if bits == 4:
        packed, name = pack_scaled(codes.astype(np.int8), scale, zero)
    else:
        packed, name = _eight(codes - 128, scale), "Q8_0"
    rows = graph.constant(packed, f"{layer.node.operands[1].node.name}_{name}")
    x = F.cast(x, f32)
    out: Value = o.QMatmul(format=name, n=n, k=k)(x, rows, name=layer.node.name, place=layer.node.place)
    if bits == 8 and zero_points:
        sums = F.sum_(F.reshape(x, (*x.shape[:-1], k // group, group)), (len(x.shape),))
        lacks = ((128 - zero) * scale).astype(np.float32)
        out = F.add(out, F.matmul(sums, graph.constant(lacks, f"{layer.node.name}_zeros"), transpose_b=True))
    alpha = getattr(layer.node.op, "alpha", 1.0)
    return out if alpha == 1.0 else F.mul(out, alpha)


def _eight(codes: Array, scale: Array) -> Array:
    """Blocks of Q8_0: a scale in f16 and 32 codes."""
    n, k = codes.shape
    d = np.repeat(scale, k // scale.shape[1] // BLOCK, axis=1).astype(np.float16)
    blocks = codes.astype(np.int8).reshape(n, k // BLOCK, BLOCK)
    return np.concatenate([np.ascontiguousarray(d[..., None]).view(np.uint8), blocks.view(np.uint8)], axis=-1).reshape(n, -1)
