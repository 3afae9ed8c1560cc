"""PyTorch's meaning of quantization, low-rank and grouped products, and of the families in the files beside this one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tests.ops.oracle_complex import COMPLEX
from tests.ops.oracle_fourier import FOURIER
from tests.ops.oracle_linalg import LINALG
from tests.ops.oracle_low_bit import LOW_BIT
from tests.ops.oracle_random import RANDOM
from tests.ops.oracle_special import SPECIAL
from tests.ops.oracle_splats import SPLATS
from tests.ops.oracle_winograd import winograd_conv, winograd_tiles

Oracle = Callable[..., Any]


def limit(a: dict[str, Any]) -> int:
    return int(2 ** (a.get("bits", 8) - 1) - 1)


def with_scale(a: dict[str, Any], x: Any, scale: Any) -> Any:
    """PyTorch's own fake quantizer, in f32 scales (it takes no others)."""
    q, axis = limit(a), a.get("axis")
    if x.numel() == 0:
        return x
    if x.dtype == torch.float64:  # the quantizer takes f32 only
        s = scale if axis is None else scale.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return torch.clamp(torch.round(x / s), -q, q) * s
    wide = x.float()
    if axis is None:
        return torch.fake_quantize_per_tensor_affine(wide, scale.float(), torch.zeros((), dtype=torch.int32), -q, q).to(x.dtype)
    zeros = torch.zeros(scale.shape, dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(wide, scale.float(), zeros, axis, -q, q).to(x.dtype)


def fake_quantize(a: dict[str, Any], x: Any, *given: Any) -> Any:
    axis, mode, dtype = a.get("axis"), a.get("mode", "batch"), x.dtype
    if dtype == torch.bfloat16:  # a scale of 16 bits would give other codes
        x, given = x.float(), tuple(s.float() for s in given)
    axes = [i for i in range(x.ndim) if i != axis]
    measured = x.abs().amax(axes) / limit(a) if x.numel() else torch.zeros(() if axis is None else (x.shape[axis],), dtype=x.dtype)
    decay = a.get("decay", 0.99)
    scale = measured if mode == "batch" else given[0] if mode == "fixed" else decay * given[0] + (1 - decay) * measured
    y = with_scale(a, x, torch.where(scale == 0, torch.ones_like(scale), scale))
    return (y.to(dtype), scale.to(dtype)) if mode == "ema" else y.to(dtype)


def quantize(a: dict[str, Any], x: Any, scale: Any, zero: Any) -> Any:
    kind = torch.uint8 if "dtype" in a and a["dtype"].name == "u8" else torch.int8
    shape = [] if a.get("axis") is None else [-1 if i == a["axis"] else 1 for i in range(x.ndim)]
    codes = torch.round(x / scale.reshape(shape)) + zero.reshape(shape)
    return torch.clamp(codes, torch.iinfo(kind).min, torch.iinfo(kind).max).to(kind)


def dequantize(a: dict[str, Any], codes: Any, scale: Any, zero: Any) -> Any:
    shape = [] if a.get("axis") is None else [-1 if i == a["axis"] else 1 for i in range(codes.ndim)]
    return (codes.to(scale.dtype) - zero.reshape(shape)) * scale.reshape(shape)


def weighted_gather(a: dict[str, Any], x: Any, index: Any, weight: Any) -> Any:
    inside = (index >= 0) & (index < x.shape[2])
    safe = torch.where(inside, index, 0).long()[:, None].expand(-1, x.shape[1], -1, -1)
    found = torch.gather(x.double()[:, :, None].expand(-1, -1, index.shape[1], -1), 3, safe)
    return (torch.where(inside[:, None], found, 0.0) * weight.double()[:, None]).sum(2).to(x.dtype)


def gather_sum(a: dict[str, Any], x: Any, index: Any, weight: Any) -> Any:
    rows = x.double().movedim(a["axis"], -1)
    each = (rows[..., at.long().clamp(0, rows.shape[-1] - 1)] * w.double() for at, w in zip(index, weight, strict=True))
    return sum(each).movedim(-1, a["axis"]).to(x.dtype)


def pad_edges(a: dict[str, Any], x: Any) -> Any:
    """One axis at a time, in f64, as rows of images; back: the gradient of that."""
    if a["back"]:
        inner = [d - lo - hi for d, lo, hi in zip(x.shape, a["lo"], a["hi"], strict=True)]
        leaf = torch.zeros(inner, dtype=torch.float64, requires_grad=True)
        padded = pad_edges({**a, "back": False}, leaf)
        return torch.autograd.grad(padded, leaf, x.double(), create_graph=x.requires_grad)[0].to(x.dtype)
    mode, out = {"reflect": "reflect", "edge": "replicate", "wrap": "circular"}[a["mode"]], x.double()
    for axis, (before, after) in enumerate(zip(a["lo"], a["hi"], strict=True)):
        if before or after:
            rows = out.movedim(axis, -1)
            flat = rows.reshape(1, rows[..., 0].numel(), rows.shape[-1])
            sizes = (*rows.shape[:-1], rows.shape[-1] + before + after)
            padded = torch.nn.functional.pad(flat, (before, after), mode=mode) if flat.numel() else flat
            out = padded.reshape(sizes).movedim(-1, axis)
    return out.to(x.dtype)


def max_pool_backward(a: dict[str, Any], g: Any, indices: Any) -> Any:
    n = len(a["kernel"])
    rows = g.shape[:-n]
    flat = torch.zeros(*rows, math.prod(a["sizes"]), dtype=g.dtype)
    return flat.scatter_add(-1, indices.long().reshape(*rows, -1), g.reshape(*rows, -1)).reshape(*rows, *a["sizes"])


def tap_products(a: dict[str, Any], x: Any, g: Any) -> Any:
    around = [p for pair in reversed(a.get("padding", ())) for p in pair]
    windows = torch.nn.functional.pad(x.double(), around)
    for axis, (k, s, d, o) in enumerate(zip(a["kernel"], a["stride"], a["dilation"], g.shape[2:], strict=True), 2):
        taps = [windows.narrow(axis, i * d, (o - 1) * s + 1) if o else windows.narrow(axis, 0, 0) for i in range(k)]
        windows = torch.stack([t[(slice(None),) * axis + (slice(None, None, s),)] for t in taps], -1)
    rank = g.ndim - 2
    return (windows * g.double().reshape(*g.shape, *(1,) * rank)).sum((0, *range(2, 2 + rank))).to(x.dtype)


def weight_gradient(a: dict[str, Any], x: Any, g: Any) -> Any:
    rank = g.ndim - 2
    wide = torch.nn.functional.pad(x.double(), [p for pair in reversed(a["padding"]) for p in pair])
    w = torch.zeros(g.shape[1], x.shape[1] // a.get("groups", 1), *a["kernel"], dtype=torch.float64, requires_grad=True)
    y = torch.ops.aten.convolution(wide, w, None, a["stride"], [0] * rank, a["dilation"], False, [0] * rank, a.get("groups", 1))
    y = y[(slice(None), slice(None), *(slice(d) for d in g.shape[2:]))]
    twice = x.requires_grad or g.requires_grad
    return torch.autograd.grad(y, w, g.double(), create_graph=twice)[0].to(x.dtype)


def strided_add(a: dict[str, Any], x: Any) -> Any:
    lead, sizes = x.shape[: x.ndim - len(a["strides"])], x.shape[x.ndim - len(a["strides"]) :]
    places = torch.as_strided(torch.arange(a["size"] + 1), sizes, a["strides"], a.get("offset", 0)).reshape(-1)
    out = torch.zeros(lead.numel(), a["size"], dtype=torch.float64 if x.is_floating_point() else x.dtype)
    return out.index_add(1, places, x.to(out.dtype).reshape(lead.numel(), places.numel())).reshape(*lead, a["size"]).to(x.dtype)


def bag_sum(a: dict[str, Any], table: Any, ids: Any, bounds: Any = None) -> Any:
    if bounds is None:
        rows = table.double()[ids]
        return (rows.amax(1) if a.get("largest") else rows.mean(1) if a.get("mean") else rows.sum(1)).to(table.dtype)
    if table.dtype == torch.bfloat16:  # PyTorch has no bags of these
        return bag_sum(a, table.double(), ids, bounds).to(table.dtype)
    return torch.nn.functional.embedding_bag(ids.long(), table, bounds.long(), mode="max" if a.get("largest") else "sum",
                                               include_last_offset=True)


def grouped_gemm(a: dict[str, Any], x: Any, w: Any, ends: Any) -> Any:
    """The loop that transformers has for machines without a kernel (integrations/moe.py)."""
    out = x.new_zeros(x.shape[0], w.shape[1 if a.get("transpose_b") else 2])
    start = 0
    for i, end in enumerate(ends.tolist()):
        out[start:end] = x[start:end] @ (w[i].T if a.get("transpose_b") else w[i])
        start = end
    return out


def forest(a: dict[str, Any], x: Any, limits: Any, links: Any, weights: Any, roots: Any) -> Any:
    """One row and one tree after another, with branches."""
    found = torch.zeros(len(x), len(roots), weights.shape[1], dtype=torch.float64)
    for r, row in enumerate(x.tolist()):
        for t, at in enumerate(roots.tolist()):
            while at < len(links):
                feature, above, below = links[at].tolist()
                at = below if row[feature] <= limits[at].item() else above
            found[r, t] = weights[at - len(links)].double()
    parts, how = a.get("parts", 1), a.get("how", "sum")
    shares = [found[:, len(roots) * k // parts : len(roots) * (k + 1) // parts] for k in range(parts)]
    return torch.stack([s.sum(1) if how == "sum" else getattr(s, f"a{how}")(1).to(x.dtype) for s in shares])


CATALOGUE: dict[str, Oracle] = {
    "forest": forest,
    "fake_quantize": fake_quantize,
    "fake_quantize_lsq": with_scale,
    "quantize": quantize,
    "dequantize": dequantize,
    "lora_matmul": lambda a, x, w, p, q: x @ (w + a.get("scale", 1.0) * (p @ q)),
    "grouped_matmul": lambda a, x, w, ids: torch.bmm(x[:, None], (w.mT if a.get("transpose_b") else w)[ids.long()])[:, 0],
    "bag_sum": bag_sum,
    "pair_sums": lambda a, x, y: (torch.cdist(x.double(), y.double(), a["power"], compute_mode="donot_use_mm_for_euclid_dist")
                                  ** (2 if a["power"] == 2 else 1)).to(x.dtype),
    "strided_add": strided_add,
    "max_pool_backward": max_pool_backward,
    "tap_products": tap_products,
    "weight_gradient": weight_gradient,
    "pad_edges": pad_edges,
    "strided": lambda a, x: torch.as_strided(x.contiguous(), (*x.shape[:-1], *a["shape"]), (*x.contiguous().stride()[:-1], *a["strides"]),
                                             a.get("offset", 0)),
    "weighted_gather": weighted_gather,
    "gather_sum": gather_sum,
    "grouped_gemm": grouped_gemm,
    "grouped_outer": lambda a, x, y, ends: torch.stack([x[s:e].T @ y[s:e] for s, e in zip([0, *ends.tolist()], ends.tolist())]),  # noqa: B905
    "winograd_conv": winograd_conv,
    "winograd_tiles": winograd_tiles,
    **COMPLEX,
    **FOURIER,
    **LINALG,
    **LOW_BIT,
    **RANDOM,
    **SPECIAL,
    **SPLATS,
}
