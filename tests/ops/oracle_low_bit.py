"""PyTorch's meaning of the products of bytes and of recurrences: plain loops in f64, products in i64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as tf

from tests.ops.oracle_quantized import unpacked

Oracle = Callable[..., Any]


def pack_words(a: dict[str, Any], w: Any) -> Any:
    n, k = w.shape
    whole = tf.pad(w, (0, -k % 4, 0, -n % 16))
    turned = whole.reshape(whole.shape[0] // 16, 16, whole.shape[1] // 4, 4).transpose(1, 2).contiguous()
    return turned.view(torch.int32).reshape(turned.shape[:3]), w.sum(1).int()


def int_dot(a: dict[str, Any], x: Any, words: Any, sums: Any) -> Any:
    """Given sums are arbitrary here: 128 (true sums - given sums) is what they are off by for signed codes."""
    rows = words.contiguous().view(torch.int8).reshape(*words.shape, 4).transpose(1, 2).reshape(words.shape[0] * 16, words.shape[1] * 4)
    rows = rows[: len(sums)].long()
    kernel = a.get("kernel", ())
    off = 128 * (rows.sum(1) - sums.long()) if x.dtype == torch.int8 else torch.zeros(len(sums), dtype=torch.int64)
    if not kernel:
        return (x.long() @ rows.T + off).int()
    conv = {1: tf.conv1d, 2: tf.conv2d}[len(kernel)]
    taps = torch.movedim(rows.reshape(len(sums), *kernel, x.shape[-1]), -1, 1).double()
    lead = x.shape[: x.ndim - 1 - len(kernel)]
    flat = torch.movedim(x.reshape(-1, *x.shape[len(lead) :]), -1, 1).double()
    out = torch.movedim(conv(flat, taps, stride=a["stride"], dilation=a["dilation"]), 1, -1)
    return (out.reshape(*lead, *out.shape[1:]).round().long() + off).int()


def int_matmul(a: dict[str, Any], x: Any, w: Any) -> Any:
    return (x.long() @ (w.mT if a.get("transpose_b") else w).long()).int()


def int_conv(a: dict[str, Any], x: Any, w: Any) -> Any:
    pads = [p for pair in reversed(a["padding"]) for p in pair]
    wide = tf.pad(x.double(), pads, value=float(a.get("border", 0)))
    conv = {1: tf.conv1d, 2: tf.conv2d}[len(a["stride"])]
    if x.shape[0] == 0:
        taps = zip(wide.shape[2:], w.shape[2:], a["stride"], a["dilation"], strict=True)
        sizes = [(d - dil * (k - 1) - 1) // s + 1 for d, k, s, dil in taps]
        return torch.zeros((0, w.shape[0], *sizes), dtype=torch.int32)
    return conv(wide, w.double(), stride=a["stride"], dilation=a["dilation"], groups=a.get("groups", 1)).round().int()


def requantize(a: dict[str, Any], acc: Any, multiplier: Any, zero: Any) -> Any:
    kind = torch.uint8 if "dtype" in a and a["dtype"].name == "u8" else torch.int8
    shape = [] if a.get("axis") is None else [-1 if i == a["axis"] else 1 for i in range(acc.ndim)]
    codes = torch.round(acc.to(multiplier.dtype) * multiplier.reshape(shape)) + zero.reshape(shape)
    return torch.clamp(codes, torch.iinfo(kind).min, torch.iinfo(kind).max).to(kind)


def causal_conv(a: dict[str, Any], x: Any, weight: Any, bias: Any, state: Any) -> Any:
    """PyTorch's depthwise convolution of the state and the rows behind it."""
    whole = torch.cat([state, x], 1)
    if not x.numel():
        return x * 0, whole[:, x.shape[1] :]
    y = tf.conv1d(whole.mT, weight.T[:, None].contiguous(), bias, groups=x.shape[2]).mT
    return tf.silu(y), whole[:, x.shape[1] :]


def selective_scan(a: dict[str, Any], x: Any, delta: Any, decay: Any, b: Any, c: Any, skip: Any, *rest: Any) -> Any:
    """The loop of the paper; [B,L,D] and so on."""
    *z, h = rest
    ys = []
    for t in range(x.shape[1]):
        h = torch.exp(delta[:, t, :, None] * decay) * h + delta[:, t, :, None] * x[:, t, :, None] * b[:, t, None]
        ys.append((h * c[:, t, None]).sum(-1) + skip * x[:, t])
    y = torch.stack(ys, 1) if ys else x * 0
    return y * tf.silu(z[0]) if z else y, h


def selective_scan_backward(a: dict[str, Any], *values: Any) -> Any:
    *given, gy, gh = values
    leaves = [v.double().requires_grad_() for v in given]
    x, delta, decay, b, c, skip, *rest = leaves
    # per batch element and per sixteen channels, as the op leaves the sums: expanded leaves keep them apart
    batch, d = x.shape[0], x.shape[2]
    parts = -(-d // 16)
    wide_a = decay.detach().expand(batch, *decay.shape).clone().requires_grad_()
    wide_skip = skip.detach().expand(batch, d).clone().requires_grad_()
    wide_b, wide_c = (v.detach()[:, :, None].expand(*v.shape[:2], parts, v.shape[2]).clone().requires_grad_() for v in (b, c))
    *z, h = rest
    state = h
    ys = []
    for t in range(x.shape[1]):
        bt, ct = (v[:, t].repeat_interleave(16, 1)[:, :d] for v in (wide_b, wide_c))
        state = torch.exp(delta[:, t, :, None] * wide_a) * state + (delta[:, t] * x[:, t])[..., None] * bt
        ys.append((state * ct).sum(-1) + wide_skip * x[:, t])
    y = torch.stack(ys, 1) if ys else x * 0
    y = y * tf.silu(z[0]) if z else y
    wanted = [x, delta, wide_a, wide_b, wide_c, wide_skip, *z, h]
    grads = torch.autograd.grad([y, state], wanted, [gy.double(), gh.double()], allow_unused=True)
    return tuple((torch.zeros_like(w) if g is None else g).to(values[0].dtype) for g, w in zip(grads, wanted, strict=True))


def gated_delta_rule(a: dict[str, Any], q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any) -> Any:
    """As `torch_recurrent_gated_delta_rule` of transformers' Qwen3-Next; without the correction its memory is that of Mamba-2."""
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    out = []
    for t in range(q.shape[2]):
        state = state * g[:, :, t].exp()[..., None, None]
        memory = (state * k[:, :, t, :, None]).sum(-2) if a.get("delta", True) else 0.0
        delta = (v[:, :, t] - memory) * beta[:, :, t, None]
        state = state + k[:, :, t, :, None] * delta[:, :, None]
        out.append((state * (a.get("scale", 1.0) * q[:, :, t, :, None])).sum(-2))
    return (torch.stack(out, 2) if out else v), state


def gated_delta_rule_backward(a: dict[str, Any], *values: Any) -> Any:
    """PyTorch's derivative of the loop above, in f64."""
    *given, go, gs = values
    leaves = [v.double().clone().requires_grad_() for v in given]
    made = gated_delta_rule(a, *leaves)
    grads = torch.autograd.grad(made, leaves, [go.double(), gs.double()], allow_unused=True)
    if values[0].shape[2] == 0:
        return (*given[:5], gs)
    return tuple((torch.zeros_like(w) if g is None else g).to(go.dtype) for g, w in zip(grads, leaves, strict=True))


LOW_BIT: dict[str, Oracle] = {
    "gated_delta_rule": gated_delta_rule,
    "gated_delta_rule_backward": gated_delta_rule_backward,
    "int_conv": int_conv,
    "int_dot": int_dot,
    "int_matmul": int_matmul,
    "pack_words": pack_words,
    "qexperts_back": lambda a, g, w, ids, *books: torch.einsum(
        "stn,stnk->stk", g.double(), unpacked(a, w).double().reshape(a["experts"], a["n"], a["k"])[ids.long()]).to(g.dtype),
    "qmatmul_back": lambda a, g, w, *books: (g.double() @ unpacked(a, w).double()).to(g.dtype),
    "requantize": requantize,
    "causal_conv": causal_conv,
    "selective_scan": selective_scan,
    "selective_scan_backward": selective_scan_backward,
}
