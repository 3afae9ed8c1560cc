"""Convolutions whose windows do not overlap, over images of few channels, are products of patches: a copy that lays the pixels of a window
side by side, and one matrix product. So are the gradients of their weights."""
from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

from .. import ops as o
from ..core.dims import Dim
from ..ir.graph import Value
from ..ir.rewrite import Match, P, Rule, Such, X, Y, rule
from ..ops import functions as F
from .absorb_conv import per_channel
from .base import Pass

FEW = 32  # bytes of channels: with more, a window's taps are read as they lie
LEAST = 16  # elements of a window, and results
S = Such("s", lambda v: True)


def patches(op: Any, x: Value, kernel: tuple[Dim, ...], results: Dim) -> Value | None:
    """x as [batch, windows, elements of a window], in the order of the weights' elements; None where windows overlap or are not known."""
    pads = {p for pair in op.padding for p in pair}
    channels, sizes = x.shape[1], x.shape[2:]
    known = all(isinstance(d, int) and d > 0 for d in (channels, *sizes, *kernel, results))
    if not known or getattr(op, "transposed", False) or op.groups != 1 or pads != {0} or tuple(op.stride) != kernel:
        return None
    if any(d != 1 and k != 1 for d, k in zip(op.dilation, kernel, strict=True)) or int(channels) * x.dtype.itemsize > FEW:
        return None
    counts = [int(s) // int(k) for s, k in zip(sizes, kernel, strict=True)]
    if int(channels) * prod(map(int, kernel)) < LEAST or int(results) < LEAST or prod(map(int, kernel)) == 1 or 0 in counts:
        return None
    for axis, (count, k) in enumerate(zip(counts, kernel, strict=True), 2):
        x = x if x.shape[axis] == count * k else F.slice_(x, axis, 0, count * k)
    n = len(kernel)
    apart = F.reshape(x, (x.shape[0], channels, *(d for pair in zip(counts, kernel, strict=True) for d in pair)))
    order = (0, *range(2, 2 * n + 2, 2), 1, *range(3, 2 * n + 3, 2))
    return F.reshape(F.transpose(apart, order), (x.shape[0], prod(counts), int(channels) * prod(map(int, kernel))))


def product_of(conv: Any, x: Value, w: Value, bias: Value | None) -> Value | None:
    found = patches(conv.op, x, tuple(w.shape[2:]), w.shape[0])
    if found is None:
        return None
    y = F.matmul(found, F.reshape(w, (w.shape[0], found.shape[2])), transpose_b=True)
    if bias is not None:
        y = F.add(y, F.reshape(bias, (w.shape[0],)))
    return F.reshape(F.transpose(y, (0, 2, 1)), conv.value.shape)


@rule(P(o.Add, P(o.Conv, X, Y, name="conv", once=True), S), changes="rounding")
def biased_patches(x: Value, y: Value, s: Value, conv: Any, m: Match) -> Value | None:
    return product_of(conv, x, y, s) if per_channel(s, conv.value) else None


@rule(P(o.Conv, X, Y, name="conv"), changes="rounding")
def convolved_patches(x: Value, y: Value, conv: Any, m: Match) -> Value | None:
    bias = [v for n in m.users(conv.value) if isinstance(n.op, o.Add) for v in n.operands if v is not conv.value]
    biased = len(bias) == 1 and m.readers(conv.value) == 1 and per_channel(bias[0], conv.value)  # a rule of its own
    return None if biased else product_of(conv, x, y, None)


@rule(P(o.WeightGradient, X, Y, name="root"), changes="rounding")
def gradient_of_patches(x: Value, y: Value, root: Any) -> Value | None:
    found = patches(root.op, x, tuple(root.op.kernel), y.shape[1])
    if found is None or y.shape[2:] != tuple(d // k for d, k in zip(x.shape[2:], root.op.kernel, strict=True)):
        return None
    n, pixels, deep = found.shape
    flat = F.reshape(F.transpose(F.reshape(y, (n, y.shape[1], pixels)), (0, 2, 1)), (n * pixels, y.shape[1]))
    return F.reshape(F.matmul(flat, F.reshape(found, (n * pixels, deep)), transpose_a=True), root.value.shape)


@dataclass(frozen=True)
class PatchProducts(Pass):
    """Before: padding is absorbed. After: a convolution (with its bias), or a gradient of its weights, whose step is its window and whose
    image has few channels, is a matrix product of patches."""

    name: ClassVar[str] = "patch-products"
    rules: ClassVar[tuple[Rule, ...]] = (biased_patches, convolved_patches, gradient_of_patches)
