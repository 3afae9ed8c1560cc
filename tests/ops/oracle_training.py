"""PyTorch's meaning of the ops that training adds: losses, scattered sums, and backward passes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as tf


def attention_backward(forward: Any, a: dict[str, Any], q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """PyTorch's autograd of the attention above; the scores' cotangent is that of a bias of their shape."""
    *extras, g = (*rest[:-3], rest[-1]) if a.get("saved") else rest
    with torch.enable_grad():
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        score = torch.zeros(*q.shape[:3], k.shape[2], dtype=q.dtype)
        old = extras[-1].detach() if a.get("has_bias") else 0
        bias = (score + old).requires_grad_()
        masks = extras[:1] if a.get("has_mask") else []
        out = forward({**a, "has_bias": True}, *leaves, *masks, bias)
        found = torch.autograd.grad(out, [*leaves, bias], g.detach())
    found = tuple(torch.nan_to_num(x) for x in found)  # rows that see nothing
    return found if a.get("with_scores") else found[:3]


def attention_saved(forward: Any, a: dict[str, Any], q: Any, k: Any, v: Any, *rest: Any) -> Any:
    """The attention above, and PyTorch's logsumexp of its scores."""
    s = torch.einsum("bhqd,bhkd->bhqk", q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1)) * a["scale"]
    s = s if a.get("softcap") is None else torch.tanh(s / a["softcap"]) * a["softcap"]
    s = s + rest[-1] if a.get("has_bias") else s
    i, j = torch.arange(q.shape[2])[:, None] + a.get("offset", 0), torch.arange(k.shape[2])[None, :]
    seen = (j <= i) if a.get("causal") else (j > -1) & (i == i)
    seen = seen if a.get("window") is None else seen & (j > i - a["window"])
    seen = seen & rest[0] if a.get("has_mask") else seen
    return forward(a, q, k, v, *rest), torch.logsumexp(s.masked_fill(~seen, -torch.inf), -1).to(torch.promote_types(q.dtype, torch.float32))


def scatter_add(a: dict[str, Any], x: Any, ids: Any, updates: Any) -> Any:
    axis = a.get("axis", 0)
    rows = updates.reshape((*x.shape[:axis], ids.numel(), *x.shape[axis + 1 :]))
    return torch.index_add(x, axis, ids.reshape(-1), rows)


def cross_entropy(a: dict[str, Any], logits: Any, labels: Any) -> Any:
    rows = logits.reshape(-1, logits.shape[-1])
    loss = tf.cross_entropy(rows, labels.reshape(-1).long(), reduction="none").reshape(labels.shape)
    return (loss, torch.logsumexp(logits, -1)) if a.get("save") else loss


def norm_backward(a: dict[str, Any], x: Any, *rest: Any) -> Any:
    """PyTorch's autograd of its norms."""
    *weight, g = rest
    affine, eps = a.get("affine", "none"), a.get("eps", 1e-5)
    with torch.enable_grad():
        leaves = [v.detach().clone().requires_grad_() for v in (x, *weight)]
        if affine == "both":
            leaves.append(torch.zeros_like(leaves[1]).requires_grad_())
        scale, shift = (*leaves[1:], None, None)[:2]
        width = x.shape[1:]
        out = tf.layer_norm(leaves[0], width, scale, shift, eps) if a.get("centred", True) else tf.rms_norm(leaves[0], width, scale, eps)
        found = torch.autograd.grad(out, leaves, g.detach())
    return found if affine != "none" else found[0]
