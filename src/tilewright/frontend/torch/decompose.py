"""torch's own decomposition of one FX node, as a small FX graph over the same fake tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ...core.errors import UnsupportedError
from .aten.registry import key_of, lookup
from .mutation import needs_functional


def _dispatch_name(target: Any) -> str:
    return str(target.name())


def decomposition(target: Any) -> Callable[..., Any] | None:
    """How torch writes `target` in other ops, or None."""
    import torch

    if not isinstance(target, torch._ops.OpOverload):
        return None
    if target.namespace == "torch_nn" and key_of(target).startswith("torch_nn._linear_cross_entropy_batch_chunked"):
        return chunked_cross_entropy
    if target._schema.name.startswith("aten::_foreach_"):
        return partial(_each, target)
    own = OWN.get(key_of(target))
    if own is not None:
        return own
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(_dispatch_name(target), "CompositeImplicitAutograd")
    found = torch._decomp.decomposition_table.get(target)
    if found is not None and key_of(target) in RECURRENT:
        return partial(_layer_by_layer, found)
    if found is not None and not (composite and _by_number(target)):
        return found
    return target.decompose if composite else None


def chunked_cross_entropy(x: Any, weight: Any, target: Any, bias: Any, classes: Any, *rest: Any) -> Any:
    """A linear layer and its cross entropy, which torch takes by chunks of the batch to save memory. (Its further outputs are gradients
    that only its own backward pass reads.)"""
    import torch

    whole = isinstance(rest[0], str)
    reduction, ignored, smoothing = rest[:3] if whole else ("none", rest[0], 0.0)
    logits = torch.nn.functional.linear(x, weight, bias)
    loss = torch.nn.functional.cross_entropy(logits, target, classes, reduction=reduction, ignore_index=ignored, label_smoothing=smoothing)
    return (loss, loss, loss, loss) if whole else loss


def _each(target: Any, *args: Any, **options: Any) -> Any:
    """An op over lists: the op of the same name on each element; numbers and tensors are for all of them, or a list too."""
    import torch

    name = target._schema.name.removeprefix("aten::_foreach_").rstrip("_")
    many = [isinstance(a, (list, tuple)) for a in args]
    if name.startswith("addc") and target._overloadname == "Tensor":  # the scalars lie in one tensor
        args, many = (*args[:-1], args[-1].unbind()), [*many[:-1], True]
    if name.startswith("addc") and len(args) == 4:
        def one(x: Any, a: Any, b: Any, value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return getattr(torch, name)(x, a, b, value=value)
            return x + value * (a * b if name == "addcmul" else a / b)
    else:
        bounds = {"maximum": "clamp_min", "minimum": "clamp_max"} if target._overloadname.startswith("Scalar") else {}
        one = {"norm": torch.linalg.vector_norm, "zero": torch.zeros_like, "copy": lambda x, y, *_: x.copy_(y)
               }.get(name) or getattr(torch, bounds.get(name, name))
    return [one(*(a[i] if m else a for a, m in zip(args, many, strict=True)), **options)
            for i in range(len(args[many.index(True)]))]


def _nearest_backward(name: str) -> Callable[..., Any]:
    """The derivative of torch's decomposition of the forward op, which reads by index."""

    def backward(g: Any, output_size: Any, input_size: Any, *scales: Any, **named: Any) -> Any:
        import torch

        forward = torch._decomp.decomposition_table[getattr(torch.ops.aten, name).default]
        found: Any = torch.func.vjp(lambda x: forward(x, list(output_size), *scales, **named), g.new_empty(input_size))
        return found[1](g)[0]

    return backward


def _masked_scatter_backward(g: Any, mask: Any, sizes: Any) -> Any:
    """Element k of the source went where the mask is True for the k-th time; one element more takes what the mask leaves out."""
    import torch

    chosen = mask.expand(g.shape).reshape(-1)
    count = math.prod(sizes)
    places = torch.where(chosen, chosen.to(torch.int64).cumsum(0) - 1, count)
    return g.new_zeros(count + 1).scatter(0, places, g.reshape(-1))[:count].reshape(sizes)


def _attended(query: Any, key: Any, value: Any, heads: int, w: Any, b: Any, out_w: Any, out_b: Any, mask: Any, kind: int | None) -> Any:
    """Multi-head attention over [N, L, E]; `mask` is True where nothing is seen: [L, L] (kind 0), [N, L] (1) or [N, H, L, L] (2)."""
    import torch
    import torch.nn.functional as F

    n, rows, width = query.shape
    if query is key is value:
        parts = list(F.linear(query, w, b).chunk(3, -1))
    else:
        parts = [F.linear(x, wi, bi) for x, wi, bi in zip((query, key, value), w.chunk(3), b.chunk(3), strict=True)]
    q, k, v = (x.reshape(n, x.shape[1], heads, width // heads).transpose(1, 2) for x in parts)
    if mask is not None:
        mask = mask.bool() if mask.dtype != torch.bool else mask
        mask = ~(mask[:, None, None, :] if kind == 1 or (kind is None and tuple(mask.shape) == (n, key.shape[1]) and n != rows) else mask)
    found = F.scaled_dot_product_attention(q, k, v, mask)
    return F.linear(found.transpose(1, 2).reshape(n, rows, width), out_w, out_b)


def _encoder_layer(src: Any, width: int, heads: int, w: Any, b: Any, out_w: Any, out_b: Any, use_gelu: bool, norm_first: bool, eps: float,
                   w1: Any, b1: Any, w2: Any, b2: Any, up_w: Any, up_b: Any, down_w: Any, down_b: Any, mask: Any = None,
                   mask_type: int | None = None) -> Any:
    """The layer that torch.nn.TransformerEncoderLayer calls in inference."""
    import torch.nn.functional as F

    def attend(x: Any) -> Any:
        return _attended(x, x, x, heads, w, b, out_w, out_b, mask, mask_type)

    def feed(x: Any) -> Any:
        up = F.linear(x, up_w, up_b)
        return F.linear(F.gelu(up) if use_gelu else F.relu(up), down_w, down_b)

    if norm_first:
        x = src + attend(F.layer_norm(src, (width,), w1, b1, eps))
        return x + feed(F.layer_norm(x, (width,), w2, b2, eps))
    x = F.layer_norm(src + attend(src), (width,), w1, b1, eps)
    return F.layer_norm(x + feed(x), (width,), w2, b2, eps)


RECURRENT = ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")


def _layer_by_layer(found: Callable[..., Any], x: Any, state: Any, params: Any, biases: bool, layers: int, dropout: float, train: bool,
                    *rest: Any) -> Any:
    """A recurrent network with the dropout between its layers, which torch's decomposition forgets. The last states have the shape of the
    first ones (in torch 2.11 those of an LSTM come with an axis more)."""
    import torch

    states, several = (state, True) if isinstance(state, (tuple, list)) else ([state], False)
    apart = train and dropout != 0 and layers > 1
    steps = layers if apart else 1
    own, cells = len(params) // steps, states[0].shape[0] // steps
    ends: list[list[Any]] = [[] for _ in states]
    for i in range(steps):
        first = [s[i * cells : (i + 1) * cells] for s in states]
        part = params[i * own : (i + 1) * own]
        x, *last = found(x, first if several else first[0], part, biases, layers // steps, 0.0, train, *rest)
        for known, new, old in zip(ends, last, first, strict=True):
            known.append(new.reshape(old.shape))
        x = torch.dropout(x, dropout, train=True) if i < steps - 1 else x
    return (x, *(torch.cat(known) for known in ends))


def _fake_quantize(x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """x rounded to quantized values and back, and where it was inside their range."""
    import torch

    values = torch.round(x * (1.0 / scale)) + zero
    inside = (values >= low) & (values <= high)
    return ((values.clamp(low, high) - zero) * scale).to(x.dtype), inside


def _fake_quantize_channels(x: Any, scale: Any, zero: Any, axis: int, low: int, high: int) -> Any:
    along = [-1 if a == axis else 1 for a in range(x.ndim)]
    return _fake_quantize(x, scale.view(along), zero.view(along), low, high)


def _weight_norm_backward(g: Any, v: Any, scale: Any, norms: Any, axis: int) -> Any:
    """The gradients of w = v * scale / norms, where norms are those of v over all axes but one."""
    along = (g * v).sum([a for a in range(v.ndim) if a != axis], keepdim=True) / norms
    return scale / norms * (g - v * (along / norms)), along.to(scale.dtype)


def _fractional_max_pool(x: Any, window: Any, sizes: Any, samples: Any) -> Any:
    """Maxima of windows whose places follow from a random number for each plane and axis, and where they were found."""
    import torch

    n, outer = len(sizes), x.ndim - len(sizes)
    places: Any = 0
    for axis, (k, out, size) in enumerate(zip(window, sizes, x.shape[outer:], strict=True)):
        draw = samples[..., axis if n == 3 else 1 - axis].reshape(*x.shape[:outer], 1)  # the first is for the width of images
        steps, alpha = torch.arange(out - 1, dtype=x.dtype, device=x.device), (size - k) / max(out - 1, 1)
        starts = ((steps + draw) * alpha).to(torch.int64) - (draw * alpha).to(torch.int64)
        along = torch.cat([starts, torch.full_like(draw, size - k, dtype=torch.int64)], -1)[..., None] + torch.arange(k, device=x.device)
        places = places * size + along.reshape(*x.shape[:outer], *(out if a == axis else 1 for a in range(n)),
                                               *(k if a == axis else 1 for a in range(n)))
    places = places.flatten(outer + n)
    found = x.flatten(outer).gather(outer, places.flatten(outer)).reshape(places.shape)
    best = found.argmax(-1, keepdim=True)
    return found.gather(-1, best)[..., 0], places.gather(-1, best)[..., 0]


def _fractional_max_pool_backward(g: Any, x: Any, window: Any, sizes: Any, places: Any) -> Any:
    outer = x.ndim - len(sizes)
    return g.new_zeros(x.shape).flatten(outer).scatter_add(outer, places.flatten(outer), g.flatten(outer)).reshape(x.shape)


OWN: dict[str, Callable[..., Any]] = {  # decompositions that torch does not have
    "masked_scatter_backward.default": _masked_scatter_backward,
    "_weight_norm_interface_backward.default": _weight_norm_backward,
    **{f"{kind}{n}d_backward.default": _nearest_backward(f"{kind}{n}d") for n in (1, 2, 3)
       for kind in ("upsample_nearest", "_upsample_nearest_exact")},
    **{f"fractional_max_pool{n}d.default": _fractional_max_pool for n in (2, 3)},
    **{f"fractional_max_pool{n}d_backward.default": _fractional_max_pool_backward for n in (2, 3)},
    "_transformer_encoder_layer_fwd.default": _encoder_layer,
    "fake_quantize_per_tensor_affine_cachemask.default": _fake_quantize,
    "fake_quantize_per_channel_affine_cachemask.default": _fake_quantize_channels,
}


def _by_number(target: Any) -> bool:
    """Losses name their reduction by a number, which torch's decompositions in Python do not understand; its own in C++ does."""
    return any(a.name == "reduction" for a in target._schema.arguments)


@cache
def _useful() -> dict[Any, Any]:
    """Decompositions of ops that we have no function for: composites that we know stay whole."""
    import torch

    return {
        op: fn
        for op, fn in torch._decomp.decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload) and lookup(key_of(op)) is None
    }


def expand(node: Any) -> tuple[Any, list[Any]]:
    """(graph module, FX nodes for its placeholders): `node` written in other ops."""
    import torch
    from torch.utils import _pytree

    fn = decomposition(node.target)
    assert fn is not None
    leaves, spec = _pytree.tree_flatten((node.args, node.kwargs))
    holes = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]

    def body(*values: Any) -> Any:
        filled = list(leaves)
        for i, v in zip(holes, values, strict=True):
            filled[i] = v
        args, kwargs = _pytree.tree_unflatten(filled, spec)
        out = fn(*map(_plain, args), **{k: _plain(v) for k, v in kwargs.items()})
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)

    fakes = [leaves[i].meta["val"] for i in holes]
    mode = next((f.fake_mode for f in fakes if isinstance(f, torch._subclasses.FakeTensor)), None)
    if mode is None:
        mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    module = _trace(body, fakes, mode)
    if needs_functional(module):
        module = _trace(torch.func.functionalize(body, remove="mutations"), fakes, mode)
    if needs_functional(module):
        raise UnsupportedError("torch's decomposition writes to views in place, which is not supported")
    return module, [leaves[i] for i in holes]


def _plain(x: Any) -> Any:
    """FX's lists cannot be changed, and some decompositions change theirs."""
    return [_plain(v) for v in x] if isinstance(x, list) else x


def _trace(body: Any, fakes: list[Any], mode: Any) -> Any:
    import torch
    from torch.fx.experimental.proxy_tensor import make_fx

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mode, torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):  # plain ops, not calls into oneDNN
            module = make_fx(body, decomposition_table=_useful(), tracing_mode="real")(*fakes)
    module.graph.eliminate_dead_code()
    return module
