"""Stochastic gradient descent."""
from __future__ import annotations

from typing import Any

from ..core.errors import InputError
from .base import Optimizer, Rate, counter, make, rate_at, tree_map, tree_unzip, zeros_like


def sgd(rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimizer:
    """p -= rate * g, with momentum (heavy ball, or Nesterov's) and L2 weight decay as PyTorch has them."""
    if nesterov and momentum <= 0:
        raise InputError(f"sgd: nesterov needs a momentum above 0, got momentum={momentum}")

    def init(params: Any) -> Any:
        state = {"step": counter()}
        return {**state, "velocity": tree_map(zeros_like, params)} if momentum else state

    def update(params: Any, grads: Any, state: Any) -> tuple[Any, Any]:
        step, lr = state["step"], rate_at(rate, state["step"])

        def decay(p: Any, g: Any) -> Any:
            return g + weight_decay * p if weight_decay else g

        if not momentum:
            return tree_map(lambda p, g: p - lr * decay(p, g), params, grads), {"step": step + 1}

        def one(p: Any, g: Any, v: Any) -> tuple[Any, Any]:
            d = decay(p, g)
            v = momentum * v + d
            return p - lr * (d + momentum * v if nesterov else v), v

        new, velocity = tree_unzip(one, 2, params, grads, state["velocity"])
        return new, {"step": step + 1, "velocity": velocity}

    return make(init, update, "sgd")
