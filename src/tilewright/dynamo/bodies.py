"""Higher-order ops: graphs that other graphs call.

What is a formula in the end (`flex_attention` and its backward pass) is written out in PyTorch's ops, and compiled with the rest, as are
regions that a model has several times (`torch.compiler.nested_compile_region`). Branches and loops stay PyTorch's, and call their bodies:
each is a graph that is compiled like any other.
"""
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .backend import Compiled
    from .fragment import Refusal

FORMULAS = ("flex_attention", "flex_attention_backward")
WITH_BODIES = {"cond", "while_loop", "map_impl", "scan", "associative_scan"}


def _name(node: Any) -> str:
    import torch

    return str(node.target) if isinstance(node.target, torch._ops.HigherOrderOperator) else ""


def _bodies(module: Any) -> list[Any]:
    """The nodes that are graphs."""
    import torch

    return [n for n in module.graph.find_nodes(op="get_attr") if isinstance(getattr(module, n.target, None), torch.fx.GraphModule)]


def write_out(module: Any) -> None:
    """Put the ops of which formulas are made in their places."""
    written = (*FORMULAS, "invoke_subgraph")
    while found := [n for n in module.graph.nodes if n.op == "call_function" and _name(n) in written]:
        for node in found:
            if _name(node) in FORMULAS:
                _write(module, node)
            else:
                _put(module, node, getattr(module, node.args[0].target), node.args[2:])
        module.graph.eliminate_dead_code(lambda n: n.op in ("placeholder", "output") or n.is_impure())


def _write(module: Any, node: Any) -> None:
    import torch
    from torch._guards import detect_fake_mode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils import _pytree

    bodies = {n: getattr(module, n.target) for n in _bodies(module)}
    leaves, spec = _pytree.tree_flatten(node.args)
    holes = [i for i, x in enumerate(leaves) if isinstance(x, torch.fx.Node) and x not in bodies]
    dense = node.target.py_kernels[torch._C.DispatchKey.CompositeExplicitAutograd]

    def formula(*given: Any) -> Any:
        filled = [bodies.get(x, x) if isinstance(x, torch.fx.Node) else x for x in leaves]
        for i, x in zip(holes, given, strict=True):
            filled[i] = x
        return dense(*_pytree.tree_unflatten(filled, spec))

    fakes = [leaves[i].meta["val"] for i in holes]
    mode = detect_fake_mode(fakes)
    assert mode is not None
    with mode, torch.no_grad():
        traced = make_fx(formula)(*fakes)
    _put(module, node, traced, [leaves[i] for i in holes])


def _put(module: Any, node: Any, body: Any, operands: Sequence[Any]) -> None:
    """The nodes of a body in the place of a call that gives its results."""
    import torch

    env = dict(zip(body.graph.find_nodes(op="placeholder"), operands, strict=True))
    with module.graph.inserting_before(node):
        for n in body.graph.nodes:
            if n.op == "get_attr":
                name = f"{node.name}_{n.target}"
                held = getattr(body, n.target)
                (module.register_buffer if isinstance(held, torch.Tensor) else module.add_module)(name, held)
                env[n] = module.graph.get_attr(name)
                env[n].meta = dict(n.meta)
            elif n.op == "call_function":
                env[n] = module.graph.node_copy(n, env.__getitem__)
                env[n].meta = {"stack_trace": node.meta.get("stack_trace"), **n.meta}
    results = [env.get(x, x) for x in next(n for n in reversed(body.graph.nodes) if n.op == "output").args[0]]
    for user in list(node.users):
        assert user.target is operator.getitem
        user.replace_all_uses_with(results[user.args[1]])
        module.graph.erase_node(user)
    module.graph.erase_node(node)


def compile_bodies(module: Any, compiled: Callable[[Any], Compiled]) -> dict[Any, Refusal]:
    """Exchange the bodies that PyTorch's branches and loops call; why some of their nodes are not ours."""
    import torch

    found: dict[Any, Refusal] = {}
    for node in _bodies(module):
        if not node.users or not {_name(u) for u in node.users} <= WITH_BODIES:
            continue
        body = getattr(module, node.target)
        out = next(n for n in reversed(body.graph.nodes) if n.op == "output")
        alone = isinstance(out.args[0], torch.fx.Node)
        if alone:
            out.args = ((out.args[0],),)
            body.recompile()
        made = compiled(body)
        found |= made.refusals
        setattr(module, node.target, _module(made.call, alone))
    return found


def _module(call: Callable[[list[Any]], list[Any]], alone: bool) -> Any:
    """A body; `alone`: it gives one value, not several."""
    import torch

    class Body(torch.nn.Module):
        def forward(self, *args: Any) -> Any:
            found = call(list(args))
            return found[0] if alone else tuple(found)

    return Body()
