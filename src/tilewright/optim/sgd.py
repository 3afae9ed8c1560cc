"""Stochastic gradient descent."""
from __future__ import annotations

from typing import Any

from ..core.errors import InputError
from .base import Optimizer, Rate, by_parameter, zeros_like


def sgd(rate: Rate, *, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0) -> Optimizer:
    """p -= rate * g, with momentum (heavy ball, or Nesterov's) and L2 weight decay as PyTorch has them."""
    if nesterov and momentum <= 0:
        raise InputError(f"sgd: nesterov needs a momentum above 0, got momentum={momentum}")

    def rule(lr: Any, step: Any) -> Any:
        def one(p: Any, g: Any, *kept: Any) -> tuple[Any, ...]:
            d = g + weight_decay * p if weight_decay else g
            if not momentum:
                return (p - lr * d,)
            v = momentum * kept[0] + d
            return p - lr * (d + momentum * v if nesterov else v), v

        return one

    return by_parameter("sgd", rate, {"velocity": zeros_like} if momentum else {}, rule)
