"""Optimizers as pure functions over trees of parameters, learning-rate schedules, and gradient clipping.

    opt = tw.optim.adamw(3e-4)
    state = opt.init(params)
    params, state = opt.update(params, grads, state)
"""
from __future__ import annotations

from .adaptive import adafactor, adam, adamw, lamb, lion
from .base import Optimizer
from .clipping import clip_by_global_norm, clip_by_value, clipped, global_norm
from .from_torch import TorchOptimizer, from_torch
from .schedules import constant, cosine, exponential, linear, one_cycle, piecewise, warmup
from .sgd import sgd

__all__ = [
    "Optimizer",
    "TorchOptimizer",
    "adafactor",
    "adam",
    "adamw",
    "clip_by_global_norm",
    "clip_by_value",
    "clipped",
    "constant",
    "cosine",
    "exponential",
    "from_torch",
    "global_norm",
    "lamb",
    "linear",
    "lion",
    "one_cycle",
    "piecewise",
    "sgd",
    "warmup",
]
