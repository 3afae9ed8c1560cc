"""Keeping gradients in bounds."""
from __future__ import annotations

from typing import Any

from ..array.functions import staged
from ..core.errors import InputError
from ..core.pytree import flatten
from .base import Optimizer, make, tree_map, tw


def _norm(tree: Any) -> Any:
    leaves, _ = flatten(tree)
    if not leaves:
        raise InputError("global_norm: needs at least one array")
    total: Any = None
    for x in leaves:
        part = tw.sum(tw.square(x))
        total = part if total is None else total + part
    return tw.sqrt(total)


def _by_norm(grads: Any, most: float) -> Any:
    scale = tw.minimum(1.0, most / (_norm(grads) + 1e-6))
    return tree_map(lambda g: g * scale, grads)


@staged
def global_norm(tree: Any) -> Any:
    """The Euclidean norm of all elements of a tree."""
    return _norm(tree)


@staged
def clip_by_global_norm(grads: Any, most: float) -> Any:
    """Gradients scaled down so that their norm is at most `most`."""
    return _by_norm(grads, most)


@staged
def clip_by_value(grads: Any, most: float) -> Any:
    """Every element between -most and most."""
    return tree_map(lambda g: tw.minimum(tw.maximum(g, -most), most), grads)


def clipped(optimizer: Optimizer, *, norm: float | None = None, value: float | None = None) -> Optimizer:
    """An optimizer whose gradients are clipped first, by value and then by their global norm."""
    if norm is None and value is None:
        raise InputError("clipped: give norm=, value= or both")

    def update(params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        if value is not None:
            grads = tree_map(lambda g: tw.minimum(tw.maximum(g, -value), value), grads)
        return optimizer.update(params, grads if norm is None else _by_norm(grads, norm), state)

    return make(optimizer.init, update, "clipped")
