"""Losses."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.errors import ShapeError
from ...ops import SoftmaxCrossEntropy
from ..promote import as_float, dtype_of
from ..trace import apply, user_place
from .indexing import whole
from .reductions import log_softmax

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def public(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__.rstrip("_")] = fn
    return fn


@public
def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """-log(softmax(logits)[label]) along the last axis, one loss a row. Labels are integers, or probabilities of the logits' shape."""
    x = as_float(logits)
    if dtype_of(labels)[0].is_float:
        return -(log_softmax(x, -1) * labels).sum(axis=-1)
    if x.ndim == 0:
        raise ShapeError(f"softmax_cross_entropy: needs logits of rank 1 or more, got {x.type} ({user_place()})")
    return apply(SoftmaxCrossEntropy(), x, whole(labels, x.shape[-1]))


@public
def mse(x: Any, y: Any) -> Any:
    """Mean of squared differences."""
    d = as_float(x) - y
    return (d * d).mean()
