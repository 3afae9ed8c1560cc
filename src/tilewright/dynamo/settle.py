"""Sizes that our kernels need to know, or to be equal, become so before a graph is imported: torch guards what was assumed.

`dynamic=True` makes every size of every argument vary, channels and taps of a convolution as well as its batch. A guard on the former costs
a compile where they change, which weights never do; without it the op would run in PyTorch.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

Pairs = Iterable[tuple[Any, Any]]


def _convolution(x: Any, w: Any, *_: Any) -> tuple[Iterable[Any], Pairs]:
    return (*w.shape, x.shape[1]), ()


def _attention(q: Any, k: Any, v: Any, *_: Any) -> tuple[Iterable[Any], Pairs]:
    return (q.shape[1], k.shape[1], q.shape[-1], v.shape[-1]), [*zip(k.shape[:3], v.shape[:3], strict=True), (q.shape[0], k.shape[0])]


def _channels(x: Any, *_: Any) -> tuple[Iterable[Any], Pairs]:
    return (x.shape[-3],), ()


def _second(x: Any, *_: Any) -> tuple[Iterable[Any], Pairs]:
    return (x.shape[1],), ()


NEEDS: dict[str, Callable[..., tuple[Iterable[Any], Pairs]]] = {
    "convolution": _convolution, "pixel_shuffle": _channels, "pixel_unshuffle": _channels, "native_group_norm": _second,
    **dict.fromkeys(("scaled_dot_product_attention", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
                     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"), _attention)}


def settle(module: Any) -> None:
    """Fix what the ops of a graph need. (Only a size with a value to go by is fixed: one that depends on data stays.)"""
    import torch
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    def vary(*sizes: Any) -> bool:
        found = [s for s in sizes if isinstance(s, torch.SymInt) and not s.node.expr.is_Integer]
        return bool(found) and not any(map(free_unbacked_symbols, found))

    for node in module.graph.nodes:
        packet = getattr(node.target, "overloadpacket", None)
        needs = None if packet is None else NEEDS.get(packet.__name__)
        if needs is None or node.target.namespace != "aten":
            continue
        fixed, pairs = needs(*(a.meta.get("val") if isinstance(a, torch.fx.Node) else a for a in node.args))
        for size in fixed:
            if vary(size):
                int(size)
        for a, b in pairs:
            if vary(a, b):
                bool(a == b)
