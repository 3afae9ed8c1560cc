"""Losses."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import ShapeError
from ...ops import SoftmaxCrossEntropy
from ..promote import as_float, as_tracer, dtype_of
from ..trace import Functions, Tracer, apply, as_array, user_place
from .reductions import log_softmax

public = FUNCTIONS = Functions()


@public
def softmax_cross_entropy(logits: Any, labels: Any) -> Any:
    """-log(softmax(logits)[label]) along the last axis, one loss a row. Labels are integers, or probabilities of the logits' shape."""
    x = as_float(logits)
    if x.ndim == 0:
        raise ShapeError(f"softmax_cross_entropy: needs logits of rank 1 or more, got {x.type} ({user_place()})")
    if dtype_of(labels)[0].is_float:
        shares = as_tracer(labels)
        if shares.shape != x.shape:
            raise ShapeError(f"softmax_cross_entropy: float labels are probabilities and have the logits' shape, got {shares.type} for "
                             f"{x.type}; cast class numbers to integers ({user_place()})")
        return -(log_softmax(x, -1) * shares).sum(axis=-1)
    if not isinstance(labels, Tracer):
        known = as_array(labels)
        bad = np.flatnonzero((known < 0) | (known >= x.shape[-1])).tolist() if isinstance(x.shape[-1], int) else []
        if bad:
            raise ShapeError(f"softmax_cross_entropy: label {int(known.flat[bad[0]])} is out of range for {x.shape[-1]} classes, at "
                             f"position {bad[0]} ({user_place()})")
    return apply(SoftmaxCrossEntropy(), x, as_tracer(labels))


@public
def mse(x: Any, y: Any) -> Any:
    """Mean of squared differences of two arrays of one shape, or of an array and a number."""
    x, y = as_float(x), as_tracer(y)
    if x.ndim and y.ndim and x.shape != y.shape:
        raise ShapeError(f"mse: both arrays must have one shape, got {x.type} and {y.type}; reshape or broadcast one of them "
                         f"({user_place()})")
    d = x - y
    return (d * d).mean()
