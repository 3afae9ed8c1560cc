"""Attention of dynamo's graphs as one op with a backward pass of its own.

PyTorch takes `scaled_dot_product_attention` apart while AOTAutograd traces it: into a kernel of its own where one serves the operands, into
two products and a softmax where none does (key heads that are broadcast, biases that need a gradient, rows of odd length). Ours serve all
of these, so the calls are exchanged before. Key heads that the model repeats for its query heads are read as they are.

On a GPU the op also gives the logsumexps of its rows, and its backward pass reads them.
"""
from __future__ import annotations

import operator
from functools import cache
from typing import Any

from .tracing import Exchanged

SAVING = ("cuda",)  # devices whose kernels give logsumexps and read them again


@cache
def library() -> Any:
    """The ops, with meanings in PyTorch's own: a graph that holds them runs anywhere."""
    import torch

    lib: Any = torch.library
    made = lib.Library("tilewright", "FRAGMENT")
    made.define("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, bool rows, bool keeps) "
                "-> (Tensor, Tensor)")
    made.define("attention_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? out, Tensor? sums, bool causal, "
                "float scale, bool of_mask) -> (Tensor, Tensor, Tensor, Tensor)")
    made.impl("attention", _forward, "CompositeExplicitAutograd")
    made.impl("attention_backward", _backward, "CompositeExplicitAutograd")
    made.impl("attention", _fake_forward, "Meta")
    made.impl("attention_backward", _fake_backward, "Meta")

    def context(ctx: Any, inputs: Any, output: Any) -> None:
        *operands, causal, scale, _, keeps = inputs
        ctx.save_for_backward(*operands, *(output if keeps else (None, None)))
        ctx.attrs = (causal, scale)
        ctx.mark_non_differentiable(output[1])

    def backward(ctx: Any, g: Any, _: Any) -> Any:
        q, k, v, mask, out, sums = ctx.saved_tensors
        found = torch.ops.tilewright.attention_backward(g, q, k, v, mask, out, sums, *ctx.attrs, ctx.needs_input_grad[3])
        return (*(x if wanted else None for x, wanted in zip(found, ctx.needs_input_grad, strict=False)), None, None, None, None)

    lib.register_autograd("tilewright::attention", backward, setup_context=context, lib=made)
    return made


def _room(q: Any, width: int, rows: bool = True) -> Any:
    """Room for a result. `rows`: as projections read it, the heads of a row side by side; PyTorch's kernels leave it so, its products do
    not."""
    b, h, s, _ = q.shape
    return q.new_empty((b, s, h, width)).transpose(1, 2) if rows else q.new_empty((b, h, s, width))


def _sums(q: Any, keeps: bool) -> Any:
    import torch

    return q.new_empty(q.shape[:3] if keeps else (0,), dtype=torch.float32)


def _fake_forward(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, rows: bool, keeps: bool) -> Any:
    return _room(q, v.shape[-1], rows), _sums(q, keeps)


def _fake_backward(g: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, sums: Any, causal: bool, scale: float, of_mask: bool) -> Any:
    return *(_room(x, x.shape[-1]) for x in (q, k, v)), mask.new_empty(mask.shape) if of_mask else q.new_empty((0,))


def _scores(q: Any, k: Any, mask: Any, causal: bool, scale: float) -> Any:
    """In f32, or f64 for operands in f64."""
    import torch

    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    s = q @ k.mT * scale
    if mask is not None:
        s = s.masked_fill(~mask, -float("inf")) if mask.dtype == torch.bool else s + mask.to(s.dtype)
    if causal:
        s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool, device=q.device).tril(), -float("inf"))
    return s


def _wide(*tensors: Any) -> list[Any]:
    import torch

    return [x if x.dtype == torch.float64 else x.float() for x in tensors]


def _forward(q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float, rows: bool, keeps: bool) -> Any:
    import torch

    found = torch._C._nn.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    a, b = _wide(q, k)
    sums = _scores(a, b, mask, causal, scale).logsumexp(-1).float() if keeps else _sums(q, False)
    return _room(q, v.shape[-1], rows).copy_(found), sums


def _backward(g: Any, q: Any, k: Any, v: Any, mask: Any, out: Any, sums: Any, causal: bool, scale: float, of_mask: bool) -> Any:
    a, b, d, e = _wide(g, q, k, v)
    more = q.shape[1] // k.shape[1]
    p = _scores(b, d, mask, causal, scale).softmax(-1).nan_to_num(0.0)  # rows that see nothing
    dp = a @ e.repeat_interleave(more, 1).mT
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    shared = [x.unflatten(1, (-1, more)).sum(2) for x in (ds.mT @ b * scale, p.mT @ a)]
    results = [ds @ d.repeat_interleave(more, 1) * scale, *shared]
    found = [_room(x, x.shape[-1]).copy_(y) for x, y in zip((q, k, v), results, strict=True)]
    return *found, ds.sum_to_size(mask.shape).to(mask.dtype) if of_mask else q.new_empty((0,))


def keeps_sums(q: Any) -> bool:
    """Whether kernels give the logsumexps of its rows (`heads_fit` of the backward pass)."""
    return q.device.type in SAVING and q.dtype.itemsize == 2 and q.shape[-1] % 8 == 0 and 0 < q.shape[-1] <= 128


def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
           scale: float | None = None, enable_gqa: bool = False, rows: bool = False) -> Any:
    """What stands in a graph for PyTorch's function; `rows`: how that leaves its result."""
    import torch

    library()
    q, k, v = query, key, value
    plain = torch._C._nn.scaled_dot_product_attention
    device = q.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        q, k, v, attn_mask = (x.to(dtype) if x is not None and x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x
                              for x in (q, k, v, attn_mask))
    if q.dim() == k.dim() == v.dim() == 4:  # kernels know the number of heads and their sizes: a guard where they vary
        for x in (q, k, v):
            int(x.shape[1]), int(x.shape[3])
    grouped = enable_gqa or k.shape[1] in (1, q.shape[1]) if q.dim() == k.dim() == v.dim() == 4 else False
    ours = grouped and not dropout_p and q.dtype == k.dtype == v.dtype and q.shape[0] == k.shape[0] and k.shape[:3] == v.shape[:3]
    ours = ours and q.shape[1] % k.shape[1] == 0 and q.shape[3] == k.shape[3] and not (is_causal and attn_mask is not None)
    ours = ours and (attn_mask is None or attn_mask.dtype in (torch.bool, q.dtype))
    if not ours:
        return plain(q, k, v, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    scale = int(q.shape[3]) ** -0.5 if scale is None else float(scale)
    trained = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (q, k, v, attn_mask))
    keeps = trained and keeps_sums(q) and q.shape[3] == v.shape[3]
    return torch.ops.tilewright.attention(q, k, v, attn_mask, is_causal, scale, rows, keeps)[0]


def exchange(module: Any) -> None:
    """Exchange the calls in dynamo's graph and in the bodies of its checkpoints and branches."""
    import torch

    for part in module.modules():
        graph: Any = getattr(part, "graph", None)
        found = [n for n in graph.nodes if n.target is torch._C._nn.scaled_dot_product_attention] if graph is not None else []
        for node in found:
            node.target = attend
            given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), node.args, strict=False)) | node.kwargs
            heads = [_unrepeated(given[name]) for name in ("key", "value")]
            if all(h is not None for h in heads):
                given |= {"key": heads[0], "value": heads[1], "enable_gqa": True}
            value = node.meta.get("example_value")
            node.args, node.kwargs = (), given | {"rows": value is not None and value.dim() == 4 and value.transpose(1, 2).is_contiguous()}
        if found:
            part.recompile()


def _put() -> None:
    import torch
    from torch._guards import TracingContext

    def inner(*args: Any, **named: Any) -> Any:
        traced = TracingContext.try_get() is not None  # other threads call as ever
        return (attend if traced else torch._C._nn.scaled_dot_product_attention)(*args, **named)

    torch.nn.functional.scaled_dot_product_attention = inner


def _restore() -> None:
    import torch

    torch.nn.functional.scaled_dot_product_attention = torch._C._nn.scaled_dot_product_attention


inner_attention = Exchanged(_put, _restore)  # inside, functions of PyTorch's that dynamo does not look into call ours, too


def _shape(node: Any) -> tuple[Any, ...] | None:
    value: Any = getattr(node, "meta", {}).get("example_value")
    return tuple(value.shape) if hasattr(value, "shape") else None


def _calls(node: Any, *names: str) -> bool:
    """A call of a method or of a function of these names."""
    if getattr(node, "op", "") == "call_method":
        return node.target in names
    return getattr(node, "op", "") == "call_function" and getattr(node.target, "__name__", "") in names


def _unrepeated(node: Any) -> Any:
    """x[B, Hkv, S, D] where a value repeats each of its heads for a group of query heads."""
    whole = _shape(node)
    if whole is None or len(whole) != 4:
        return None
    if _calls(node, "repeat_interleave"):
        x, *more = node.args
        by, axis = more[0] if more else node.kwargs.get("repeats"), more[1] if len(more) > 1 else node.kwargs.get("dim")
        before = _shape(x)
        known = isinstance(by, int) and axis in (1, -3) and before is not None and len(before) == 4
        return x if known and before is not None and isinstance(before[1], int) else None
    if not _calls(node, "reshape", "view", "flatten") or not _calls(node.args[0], "expand"):
        return None
    wide, narrow = node.args[0], node.args[0].args[0]
    x = narrow.args[0] if _calls(narrow, "getitem", "unsqueeze") else None
    index = narrow.args[1] if x is not None and len(narrow.args) > 1 else None
    every = slice(None, None, None)
    beside = index == 2 if _calls(narrow, "unsqueeze") else narrow.target is operator.getitem and index in (
        (every, every, None), (every, every, None, every), (every, every, None, every, every))
    before, between = _shape(x), _shape(wide)
    if not beside or before is None or between is None or len(before) != 4 or len(between) != 5:
        return None
    b, h, s, d = before
    fits = isinstance(h, int) and isinstance(between[2], int) and between == (b, h, between[2], s, d)
    return x if fits and whole == (b, h * between[2], s, d) else None
