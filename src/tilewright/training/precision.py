"""Mixed precision: weights and activations stored in 16 bits, master weights in f32, and a loss scale that follows what f16 can hold.

    mixed = tw.training.mixed_precision(loss_of, opt, dtype="f16")
    state = mixed.init(params)                        # {"params": f32 masters, "optimizer": ..., "scale": ...}
    step = tw.jit(mixed.step, donate=0)
    state, loss = step(state, (x, labels))

Everything here is a pure function that traces into the step. Where a gradient is infinite or not a number, the step changes neither
parameters nor optimizer, and the scale shrinks; after `interval` good steps in a row it grows.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array.functions import staged, value_and_grad
from ..core import dtypes as dt
from ..core.errors import ConfigError
from ..core.pytree import flatten
from ..optim.base import Optimizer, tree_map, tw
from ..transform.trace import is_array, leaf_of, tracing

LARGEST = 2.0**24  # beyond it the scaled loss itself leaves the exact range of f32 sums for nothing
HALVES = ("f16", "bf16")


@dataclass(frozen=True)
class LossScale:
    """A number that the loss is multiplied with before it is differentiated, as pure functions over a state `{"scale", "good"}`."""

    initial: float = 2.0**15
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        ok = self.initial >= 1 and self.growth >= 1 and 0 < self.backoff <= 1 and self.interval >= 1
        if not ok:
            raise ConfigError(f"loss scale: initial, growth and interval must be at least 1 and backoff in (0, 1], got {self}")

    def init(self) -> Any:
        scale, good = np.float32(self.initial), np.int32(0)
        return {"scale": np.asarray(scale), "good": np.asarray(good)}

    def scaled(self, loss: Any, state: Any) -> Any:
        return tw.astype(loss, "f32") * state["scale"]

    def unscaled(self, grads: Any, state: Any) -> Any:
        """Gradients of the loss itself, in f32."""
        inverse = 1.0 / state["scale"]
        return tree_map(lambda g: tw.astype(g, "f32") * inverse, grads)

    def updated(self, state: Any, finite: Any) -> Any:
        """The state after a step: smaller after a bad one, larger after `interval` good ones in a row."""
        good = tw.where(finite, state["good"] + 1, 0)
        grown = tw.minimum(state["scale"] * self.growth, LARGEST)
        smaller = tw.maximum(state["scale"] * self.backoff, 1.0)
        full = good >= self.interval
        scale = tw.where(finite, tw.where(full, grown, state["scale"]), smaller)
        return {"scale": tw.astype(scale, "f32"), "good": tw.astype(tw.where(full, 0, good), "i32")}


@staged
def all_finite(tree: Any) -> Any:
    """Whether no element of a tree is infinite or NaN."""
    found: Any = None
    for x in flatten(tree)[0]:
        part = tw.all(tw.abs(x) < np.inf)
        found = part if found is None else tw.logical_and(found, part)
    return found


def cast_floats(tree: Any, dtype: str) -> Any:
    """The tree with its float arrays in another dtype; integers, numbers and the rest as they are."""
    wanted = dt.dtype(dtype)

    def one(x: Any) -> Any:
        if not is_array(x) or type(x) in (bool, int, float) or not leaf_of(x).type.dtype.is_float:
            return x
        return tw.astype(x, wanted.name) if tracing() else np.asarray(x).astype(wanted.np)

    return tree_map(one, tree)


def choose(condition: Any, new: Any, old: Any) -> Any:
    """Every leaf of one tree or the other, bit for bit."""
    return tree_map(lambda a, b: tw.where(condition, a, b), new, old)


@dataclass(frozen=True)
class MixedPrecision:
    """`init(params) -> state` and `step(state, batch) -> (state, loss)`. The loss is in f32; a step that was skipped has one, too."""

    init: Callable[[Any], Any]
    step: Callable[[Any, Any], tuple[Any, Any]]


def mixed_precision(loss: Callable[..., Any], optimizer: Optimizer, *, dtype: str = "bf16",
                    scale: LossScale | None = None) -> MixedPrecision:
    """A training step of `loss(params, *batch)` with weights and float inputs in `dtype` (`bf16` or `f16`) and f32 master weights.

    The scale is dynamic for f16. bf16 has the range of f32: there it stays at 1 unless one is given. Sums inside kernels are f32 anyway.
    """
    if dtype not in HALVES:
        raise ConfigError(f"mixed precision: dtype must be one of {' '.join(HALVES)}, got {dtype!r}")
    scaling = scale or (LossScale() if dtype == "f16" else LossScale(1.0, growth=1.0, backoff=1.0))

    def init(params: Any) -> Any:
        master = cast_floats(params, "f32")
        return {"params": master, "optimizer": optimizer.init(master), "scale": scaling.init()}

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        params, kept = state["params"], state["scale"]
        inputs = cast_floats(batch if isinstance(batch, tuple) else (batch,), dtype)

        def scaled(p: Any) -> Any:
            return scaling.scaled(loss(cast_floats(p, dtype), *inputs), kept)

        value, grads = value_and_grad(scaled)(params)
        finite = all_finite(grads)
        new, new_state = optimizer.update(params, scaling.unscaled(grads, kept), state["optimizer"])
        return {"params": choose(finite, new, params), "optimizer": choose(finite, new_state, state["optimizer"]),
                "scale": scaling.updated(kept, finite)}, value / kept["scale"]

    return MixedPrecision(init, staged(step))
