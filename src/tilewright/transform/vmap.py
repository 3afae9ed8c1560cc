"""Batching of Python functions, and Jacobians, which are batches of derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.dims import Dim
from ..core.errors import ShapeError, UnsupportedError, VerifyError
from ..core.pytree import Spec, flatten, unflatten
from ..ir.graph import Graph, Node, Value, inline
from ..ops import functions as F
from ..ops.base import name_origin
from .derive import Argnums, Called, Fn, checked_argnums, grad, jvp, named, unit_vectors, vjp
from .inline import Pass, prune
from .lib.shapes import moveaxis, reshape
from .promote import as_tracer
from .trace import Leaf, Tracer, current, is_array, leaf_of, user_place


class Batcher(Pass):
    """A pass into `graph`; batched values have the new axis in front."""

    def __init__(self, graph: Graph, size: Dim) -> None:
        super().__init__(graph)
        self.size = size
        self.batched: set[Value] = set()

    def node(self, n: Node, env: dict[Value, Value]) -> None:
        operands = tuple(env[v] for v in n.operands)
        flags = tuple(v in self.batched for v in operands)
        if not any(flags):
            self.copy(n, env)
        elif n.op.expands("batch", flags):
            self.expand(n, "batch", env)
        else:
            self.graph.place, before = n.place, len(self.graph.nodes)
            try:
                found = n.op.batch(operands, flags, self.size)
            except UnsupportedError as e:
                raise UnsupportedError(f"{e}{f' ({n.place})' if n.place else ''}") from None
            name_origin(self.graph.nodes[before:], n)
            for v, out in zip(n.values, found, strict=True):
                if out.shape != (self.size, *v.shape):
                    raise VerifyError(f"{n.op.name}: its batching rule gave {out.type} for {self.size} of {v.type}")
            self.batched.update(found)
            env.update(zip(n.values, found, strict=True))
            self.graph.place = ""


def batch_graph(body: Graph, batched: Sequence[bool], size: Dim, force: Sequence[bool] | None = None) -> tuple[Graph, tuple[bool, ...]]:
    """(graph, out_batched): the body with an axis of `size` in front of the batched inputs and of the batched outputs. `force` names
    outputs that must be batched."""
    made = Graph(f"{body.name}_batched")
    batcher, env = Batcher(made, size), dict[Value, Value]()
    for v, b in zip(body.inputs, batched, strict=True):
        env[v] = made.input(v.type.with_shape((size, *v.shape)) if b else v.type, v.name)
        if b:
            batcher.batched.add(env[v])
    batcher.run(body, env)
    wanted = [False] * len(body.outputs) if force is None else list(force)
    outputs, flags = [], []
    for v, must in zip(body.outputs, wanted, strict=True):
        out = env[v]
        flag = out in batcher.batched
        outputs.append(F.broadcast_batch(out, flag, size) if must else out)
        flags.append(flag or must)
    made.outputs = outputs
    return prune(made), tuple(flags)


def _prefix(axes: Any, spec: Spec, what: str) -> list[int | None]:
    """One axis a leaf from an int, None, or a tree whose leaves stand for whole subtrees."""
    if axes is None or isinstance(axes, int):
        return [axes] * spec.size
    children = list(axes.values()) if isinstance(axes, dict) else list(axes)
    if len(children) != len(spec.children):
        raise ShapeError(f"vmap: {what} must be an int, None, or fit the structure {spec}, got {axes} ({user_place()})")
    return [a for child, s in zip(children, spec.children, strict=True) for a in _prefix(child, s, what)]


def vmap(fn: Fn, in_axes: Any = 0, out_axes: Any = 0) -> Fn:
    """fn for many cases at once: `in_axes` says along which axis of each argument they lie (None: the same for all)."""

    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = flatten((tuple(args), dict(kwargs)))
        wanted = in_axes if isinstance(in_axes, int) or in_axes is None else tuple(in_axes)
        axes = _prefix(wanted, spec.children[0], "in_axes") + [0] * spec.children[1].size
        axes = [a if is_array(x) else None for a, x in zip(axes, leaves, strict=True)]
        moved = [x if a is None else _front(x, a) for x, a in zip(leaves, axes, strict=True)]
        sizes = {x.shape[0] for x, a in zip(moved, axes, strict=True) if a is not None}
        if len(sizes) != 1:
            raise ShapeError(f"vmap: the batched axes must have one size, got {sorted(map(str, sizes)) or 'no batched argument'} "
                             f"({user_place()})")
        size, = sizes
        types: list[Any] = [leaf_of(x) if is_array(x) else x for x in moved]
        types = [t if a is None else Leaf(t.type.with_shape(t.type.shape[1:]), t.weak) for t, a in zip(types, axes, strict=True)]
        case_args, case_kwargs = unflatten(spec, moved)
        called = Called(fn, case_args, case_kwargs, types)
        flags = [axes[i] is not None for i in called.arrays] + [False] * len(called.traced.captured)
        outer = current()
        graph, _ = batch_graph(called.graph, flags, size, [True] * len(called.graph.outputs))
        made = called.wrap(inline(graph, outer.graph, called.operands))
        targets = _prefix(out_axes, called.traced.out_spec, "out_axes")
        targets = [t for i, t in enumerate(targets) if i not in called.traced.statics]
        for x, t in zip(made, targets, strict=True):
            if t is None or not -x.ndim <= t < x.ndim:
                raise ShapeError(f"vmap: out_axes names axis {t} of the batched result {x.type} ({user_place()})")
        return called.traced.result([x if t == 0 else moveaxis(x, 0, t) for x, t in zip(made, targets, strict=True)])

    return named(run, fn, "vmap")


def _front(x: Any, axis: int) -> Tracer:
    x = as_tracer(x)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"vmap: in_axes names axis {axis} of {x.type} ({user_place()})")
    moved: Tracer = x if axis % x.ndim == 0 else moveaxis(x, axis, 0)
    return moved


def jacobian(fn: Fn, argnums: Argnums = 0, *, mode: str = "auto") -> Fn:
    """d result / d argument: for each result leaf a tree like the argument, of shape result.shape + argument.shape. `mode`: "reverse",
    "forward", or by which side is smaller."""

    def run(*args: Any) -> Any:
        chosen = checked_argnums("jacobian", argnums, len(args))
        if mode not in ("auto", "reverse", "forward"):
            raise ShapeError(f"jacobian: mode must be auto, reverse or forward, got {mode!r} ({user_place()})")
        found = tuple(_jacobian(fn, args, a, mode) for a in chosen)
        return found[0] if isinstance(argnums, int) else found

    return named(run, fn, "jacobian")


def _jacobian(fn: Fn, args: tuple[Any, ...], argnum: int, mode: str) -> Any:
    def of_one(*leaves: Any) -> Any:
        full = (*args[:argnum], unflatten(spec, list(leaves)), *args[argnum + 1 :])
        return tuple(flatten(fn(*full))[0])

    leaves, spec = flatten(args[argnum])
    values = [as_tracer(x) for x in leaves]
    whole = next((v for v in values if v.value.dtype.kind not in "fc"), None)
    if whole is not None:
        raise ShapeError(f"jacobian: cannot differentiate with respect to {whole.type}; integers and bools have no derivative, cast to a "
                         f"float ({user_place()})")
    called = Called(fn, args, {})
    outs, out_spec = called.graph.outputs, called.traced.out_spec
    sizes: list[Any] = [sum(v.type.numel for v in side) for side in (values, outs)]
    forward = mode == "forward" or (mode == "auto" and sizes[0] < sizes[1])
    rows = _columns(of_one, values, len(outs)) if forward else _rows(of_one, values)
    return unflatten(out_spec, [unflatten(spec, row) for row in rows])


def _rows(fn: Fn, values: list[Tracer]) -> list[list[Any]]:
    """Reverse mode: one pull-back for each element of each result."""
    results, pull = vjp(fn, *values)
    out = []
    for k, r in enumerate(results):
        def one(g: Any, k: int = k) -> Any:
            return pull(tuple(g if i == k else _zeros(v) for i, v in enumerate(results)))

        grads = vmap(one)(unit_vectors(r.shape, r.dtype))
        out.append([reshape(g, (*r.shape, *x.shape)) for g, x in zip(grads, values, strict=True)])
    return out


def _columns(fn: Fn, values: list[Tracer], n_out: int) -> list[list[Any]]:
    """Forward mode: one push for each element of each argument."""
    rows: list[list[Any]] = [[] for _ in range(n_out)]
    for k, x in enumerate(values):
        def one(t: Any, k: int = k) -> Any:
            return jvp(fn, values, [t if i == k else _zeros(v) for i, v in enumerate(values)])[1]

        pushed = vmap(one)(unit_vectors(x.shape, x.dtype))
        for row, p in zip(rows, pushed, strict=True):
            row.append(reshape(moveaxis(p, 0, -1), (*p.shape[1:], *x.shape)))
    return rows


def _zeros(x: Any) -> Any:
    from .lib.creation import zeros_like

    return zeros_like(x)


def hessian(fn: Fn, argnums: Argnums = 0) -> Fn:
    """Second derivatives of a scalar function: forward over reverse mode."""
    return named(jacobian(grad(fn, argnums), argnums, mode="forward"), fn, "hessian")
