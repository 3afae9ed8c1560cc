"""What is changed in the joint graph of a forward and a backward pass before it is cut in two.

Some of torch's backward ops read what their forward pass found on the way (the statistics of a norm, the logsumexps of attention). Our
kernels find these again, so they need not be kept, nor computed: such ops are exchanged for ones that read the operands alone.
"""
from __future__ import annotations

from functools import cache
from typing import Any


@cache
def library() -> Any:
    """The ops, with meanings in PyTorch's own ops: a graph that holds them runs anywhere."""
    import torch

    library: Any = torch.library
    made = library.Library("tilewright", "FRAGMENT")
    made.define("attention_backward(Tensor g, Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float? scale)"
                " -> (Tensor, Tensor, Tensor)")
    made.define("layer_norm_backward(Tensor g, Tensor x, SymInt[] shape, Tensor? w, Tensor? b, float eps, bool[3] mask)"
                " -> (Tensor, Tensor, Tensor)")
    aten = torch.ops.aten

    def attention(g: Any, q: Any, k: Any, v: Any, mask: Any, causal: bool, scale: float | None) -> Any:
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        return aten._scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=scale)

    def layer_norm(g: Any, x: Any, shape: Any, w: Any, b: Any, eps: float, mask: Any) -> Any:
        _, mean, inverse = aten.native_layer_norm(x, shape, w, b, eps)
        return aten.native_layer_norm_backward(g, x, shape, mean, inverse, w, b, mask)

    made.impl("attention_backward", attention, "CompositeExplicitAutograd")
    made.impl("layer_norm_backward", layer_norm, "CompositeExplicitAutograd")
    return made


def rewrite(module: Any) -> None:
    """Exchange the ops in a joint graph."""
    import torch

    library()
    aten, ours = torch.ops.aten, torch.ops.tilewright
    for node in list(module.graph.nodes):
        if node.target is aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
            g, q, k, v, _, _, dropout, causal = node.args
            if dropout:
                continue
            args = (g, q, k, v, node.kwargs.get("attn_mask"), causal, node.kwargs.get("scale"))
            _exchange(module, node, ours.attention_backward.default, args)
        elif node.target is aten.native_layer_norm_backward.default:
            g, x, shape, mean, _, w, b, mask = node.args
            forward = mean.args[0] if mean.op == "call_function" else None
            if forward is None or getattr(forward, "target", None) is not aten.native_layer_norm.default:
                continue
            _exchange(module, node, ours.layer_norm_backward.default, (g, x, shape, w, b, forward.args[4], mask))
    module.graph.eliminate_dead_code()
    module.recompile()


def _exchange(module: Any, node: Any, target: Any, args: tuple[Any, ...]) -> None:
    with module.graph.inserting_before(node):
        new = module.graph.call_function(target, args)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    module.graph.erase_node(node)


def partition(module: Any, inputs: Any, **options: Any) -> Any:
    """Cut a joint graph where the least must be kept; what is cheap is computed again in the backward pass."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    rewrite(module)
    return min_cut_rematerialization_partition(module, inputs, **options)
