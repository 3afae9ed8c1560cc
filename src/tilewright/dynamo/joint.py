"""What is changed in the joint graph of a forward and a backward pass before it is cut in two.

Some of torch's backward ops read what their forward pass found on the way (the statistics of a norm). Our kernels find these again, so
they need not be kept, nor computed: such ops are exchanged for ones that read the operands alone.
"""
from __future__ import annotations

import operator
from dataclasses import replace
from functools import cache
from typing import Any

from .fragment import _is_view
from .settle import settle
from .tracing import Exchanged


@cache
def library() -> Any:
    """The ops, with meanings in PyTorch's own ops: a graph that holds them runs anywhere."""
    import torch

    library: Any = torch.library
    made = library.Library("tilewright", "FRAGMENT")
    made.define("layer_norm_backward(Tensor g, Tensor x, SymInt[] shape, Tensor? w, Tensor? b, float eps, bool[3] mask)"
                " -> (Tensor, Tensor, Tensor)")
    made.define("embedding_bag_backward(Tensor g, Tensor table, Tensor ids, Tensor offsets, bool by_count, int mode, Tensor? weights,"
                " bool last, int padding) -> (Tensor, Tensor)")
    made.define("cumprod_backward(Tensor g, Tensor x, int dim) -> Tensor")
    aten = torch.ops.aten

    def embedding_bag(g: Any, table: Any, ids: Any, offsets: Any, by_count: bool, mode: int, weights: Any, last: bool, padding: int) -> Any:
        _, *kept = aten._embedding_bag(table, ids, offsets, by_count, mode, False, weights, last, padding)
        dense = aten._embedding_bag_dense_backward(g, ids, *kept, table.shape[0], by_count, mode, weights, padding)
        none = torch.zeros_like if weights is None else lambda _: aten._embedding_bag_per_sample_weights_backward(
            g, table, ids, offsets, kept[0], mode, padding)
        return dense, none(g[:0] if weights is None else g)

    def layer_norm(g: Any, x: Any, shape: Any, w: Any, b: Any, eps: float, mask: Any) -> Any:
        _, mean, inverse = aten.native_layer_norm(x, shape, w, b, eps)
        return aten.native_layer_norm_backward(g, x, shape, mean, inverse, w, b, mask)

    def cumprod(g: Any, x: Any, dim: int) -> Any:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            return torch.autograd.grad(leaf.cumprod(dim), leaf, g)[0]

    made.impl("cumprod_backward", cumprod, "CompositeExplicitAutograd")
    made.impl("cumprod_backward", lambda g, x, dim: torch.empty_like(x), "Meta")
    made.impl("embedding_bag_backward", embedding_bag, "CompositeExplicitAutograd")
    made.impl("layer_norm_backward", layer_norm, "CompositeExplicitAutograd")
    return made


def _put() -> None:
    import torch

    library()
    op, key = torch.ops.aten.cumprod_backward.default, torch._C.DispatchKey.CompositeImplicitAutograd

    def backward(g: Any, x: Any, dim: int, out: Any) -> Any:
        if torch.is_grad_enabled() or x.is_complex() or not x.dim() or not isinstance(x.shape[dim], int):
            return op._op_dk(key, g, x, dim, out)
        return torch.ops.tilewright.cumprod_backward(g, x, dim)

    op.py_kernels[key] = backward
    op._dispatch_cache.clear()


def _restore() -> None:
    import torch

    op = torch.ops.aten.cumprod_backward.default
    op.py_kernels.pop(torch._C.DispatchKey.CompositeImplicitAutograd, None)
    op._dispatch_cache.clear()


whole_products = Exchanged(_put, _restore)  # inside, backward passes of running products are traced whole: torch writes a step an element


def rewrite(module: Any) -> None:
    """Exchange the ops in a joint graph."""
    import torch

    library()
    aten, ours = torch.ops.aten, torch.ops.tilewright
    for node in list(module.graph.nodes):
        if node.target is aten.native_layer_norm_backward.default:
            g, x, shape, mean, _, w, b, mask = node.args
            forward = mean.args[0] if mean.op == "call_function" else None
            if forward is None or getattr(forward, "target", None) is not aten.native_layer_norm.default:
                continue
            _exchange(module, node, ours.layer_norm_backward.default, (g, x, shape, w, b, forward.args[4], mask))
        elif node.target in (aten._embedding_bag_backward.default, aten._embedding_bag_per_sample_weights_backward.default):
            _exchange_bag(module, node)
        elif node.target is aten.add.Tensor and not node.kwargs:
            _exchange_tied(module, node)
    module.graph.eliminate_dead_code()
    module.recompile()


def _exchange_tied(module: Any, node: Any) -> None:
    """The gradient of a table that is a weight, too: rows are added to the other gradient, not to zeros of its size."""
    import torch

    aten = torch.ops.aten
    for rows, other in (node.args, node.args[::-1]):
        if getattr(rows, "target", None) is not aten.embedding_dense_backward.default or len(rows.users) > 1:
            continue
        g, ids, _, padding, by_count = rows.args
        fake = other.meta.get("val") if isinstance(other, torch.fx.Node) else None
        alike = isinstance(fake, torch.Tensor) and fake.shape == rows.meta["val"].shape and fake.dtype == g.meta["val"].dtype
        if alike and g.meta["val"].dtype in (torch.float32, torch.float64) and padding == -1 and not by_count:
            _exchange(module, node, aten.index_put.default, (other, [ids], g, True))
            return


def _exchange_bag(module: Any, node: Any) -> None:
    """Both backward ops of embedding bags are results of one of ours, which reads what the forward op read."""
    import torch

    dense = node.target is torch.ops.aten._embedding_bag_backward.default
    source = node.args[3 if dense else 4]
    forward: Any = source.args[0] if source.op == "call_function" else None
    if getattr(forward, "target", None) is not torch.ops.aten._embedding_bag.default or (dense and node.args[9]):
        return  # sparse gradients are torch's
    defaults: tuple[Any, ...] = (None, None, None, False, 0, False, None, False, -1)
    table, ids, offsets, by_count, mode, _, weights, last, padding = tuple(forward.args) + defaults[len(forward.args):]
    if by_count:  # torch counts other rows than those that it divides
        return
    args = (node.args[0], table, ids, offsets, by_count, mode, weights, last, padding)
    with module.graph.inserting_before(node):
        both = module.graph.call_function(torch.ops.tilewright.embedding_bag_backward.default, args)
        own = module.graph.call_function(operator.getitem, (both, 0 if dense else 1))
    fake = node.meta["val"]
    kept = fake if weights is None or not dense else weights.meta["val"]
    both.meta = dict(node.meta) | {"val": (fake, kept) if dense else (table.meta["val"], fake)}
    own.meta = dict(node.meta)
    node.replace_all_uses_with(own)
    module.graph.erase_node(node)


def _exchange(module: Any, node: Any, target: Any, args: tuple[Any, ...]) -> None:
    with module.graph.inserting_before(node):
        new = module.graph.call_function(target, args)
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    module.graph.erase_node(node)


def _compute_constants_again(module: Any) -> None:
    """What depends on no input (the places of a resize, a mask of positions) folds in both passes: a kept copy of it would be data."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    free: set[Any] = set()
    for node in module.graph.nodes:
        fixed = node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and free.issuperset(node.all_input_nodes)
        if fixed and torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            free.add(node)
            node.meta.setdefault("recompute", CheckpointPolicy.MUST_RECOMPUTE)


def keep_old_values(module: Any) -> None:
    """The backward pass must not compute again from inputs that the forward pass has written: it reads values from before the write."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    aten = torch.ops.aten
    holes = module.graph.find_nodes(op="placeholder")
    for hole in holes:
        others = [u for u in hole.users if u.target is not aten.copy_.default or u.args[0] is not hole]
        if len(others) == len(hole.users) or not others:
            continue
        with module.graph.inserting_after(holes[-1]):
            old = module.graph.call_function(aten.clone.default, (hole,))
        old.meta = dict(hole.meta) | {"recompute": CheckpointPolicy.MUST_SAVE}
        for user in others:
            user.replace_input_with(hole, old)


def _keep_what_was_drawn(module: Any) -> None:
    """A checkpoint computes its ops again, but random ones: their results are kept, of a dropout the mask alone."""
    import torch
    from torch.utils.checkpoint import CheckpointPolicy

    aten, graph = torch.ops.aten, module.graph
    for node in list(graph.nodes):
        again = node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
        if not again or torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
            continue
        results = {u.args[1]: u for u in node.users} if isinstance(node.meta["val"], tuple) else {0: node}
        if node.target is aten.native_dropout.default and 0 in results and node.args[2] is not False and node.args[1] < 1:
            value = results.pop(0)
            mask = results.get(1) or graph.call_function(operator.getitem, (node, 1))
            node.append(mask)
            mask.meta = dict(node.meta) | {"val": node.meta["val"][1]}
            with graph.inserting_before(value.next):
                scaled = graph.call_function(aten.mul.Tensor, (node.args[0], 1 / (1 - node.args[1])))
                kept = graph.call_function(aten.where.ScalarOther, (mask, scaled, 0.0))
            scaled.meta, kept.meta = dict(value.meta), dict(value.meta)
            value.replace_all_uses_with(kept)
            graph.erase_node(value)
            results[1] = mask
        del node.meta["recompute"]
        for kept in results.values():
            kept.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    module.recompile()


def _fused(module: Any) -> Any:
    """Inside, torch's minimal cut may compute every op again that our kernels fuse: it knows those alone that inductor's graphs are made
    of, and keeps what another op of the backward pass reads (`tanh_backward` the result of a tanh)."""
    from torch._functorch import partitioners

    plain = partitioners.get_default_op_list
    views = {n.target.overloadpacket for n in module.graph.nodes if n.op == "call_function" and _is_view(n)}
    packets = views | {n.target.overloadpacket for n in module.graph.nodes if _cheap(n.target)}

    def extended() -> Any:
        found = plain()
        return replace(found, fusible_ops=found.fusible_ops | packets, recomputable_ops=found.recomputable_ops | packets,
                       view_ops=found.view_ops | views)

    def put() -> None:
        partitioners.get_default_op_list = extended

    def restore() -> None:
        partitioners.get_default_op_list = plain

    return Exchanged(put, restore)


def _cheap(op: Any) -> bool:
    """An op, or the backward op of one, that computes every element alone."""
    import torch

    tags = getattr(op, "tags", ())
    name = getattr(getattr(op, "overloadpacket", None), "__name__", "")
    forward = getattr(torch.ops.aten, name.removesuffix("_backward"), None) if name.endswith("_backward") else None
    tags = tags if forward is None else [*tags, *getattr(forward, forward.overloads()[0]).tags]
    pointwise = torch.Tag.pointwise in tags
    return pointwise and torch.Tag.nondeterministic_seeded not in tags


def partition(module: Any, inputs: Any, **options: Any) -> Any:
    """Cut a joint graph where the least must be kept; what is cheap is computed again in the backward pass."""
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    settle(module)
    rewrite(module)
    _compute_constants_again(module)
    _keep_what_was_drawn(module)
    keep_old_values(module)
    with _fused(module):
        return min_cut_rematerialization_partition(module, inputs, **options)
