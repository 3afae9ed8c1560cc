"""Losses as one op, so that their backward pass reads the logits once."""
from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, bounds
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Op, S, Values, register
from ..families import Composite, N, bf16, f32, f64, i32, i64, require_kind
from ..index.indexing import GatherAlongAxis, check_indices, require_ids
from .reductions import LogSumExp, wide

MOST_CLASSES = 1 << 15  # a row of so many classes fits in a block's registers


@register
class SoftmaxCrossEntropy(Composite):
    """-log(softmax(logits)[label]) along the last axis, for integer labels of the leading axes. With `save`, also logsumexp(logits)."""

    faults = True
    save: bool = False
    work = 5
    samples = [S(f32(5, 7), i64(5), low=(-3, 0), high=(3, 6)), S(f64(2, 3, 4), i32(2, 3), low=(-3, 0), high=(3, 3)),
               S(f32(9), i64(), low=(-3, 0), high=(3, 8)), S(f32(N, 3), i64(N), low=(-3, 0), high=(3, 2)),
               S(bf16(4, 5), i64(4), low=(-3, 0), high=(3, 4)), S(f32(5, 7), i64(5), save=True, low=(-3, 0), high=(3, 6))]
    errors = [E(f32(5, 7), i64(4), match="labels must have the logits' leading shape"),
              E(f32(5, 7), f32(5), match="indices must be integers"),
              E(i32(5, 7), i64(5), match="needs float operands"), E(f32(5, 0), i64(5), match="needs at least one class"),
              E(f32(), i64(), match="needs logits of rank 1 or more")]

    def infer(self, logits: TensorType, labels: TensorType) -> TensorType | tuple[TensorType, ...]:
        require_kind((logits,), "f")
        require_ids(labels)
        require(logits.ndim >= 1, "needs logits of rank 1 or more", logits=logits)
        require(logits.shape[-1] != 0, "needs at least one class", logits=logits)
        require(labels.shape == logits.shape[:-1], "labels must have the logits' leading shape", logits=logits, labels=labels)
        out = logits.with_shape(logits.shape[:-1])
        return (out, out) if self.save else out

    def ref(self, logits: Any, labels: Any) -> Any:
        check_indices(self.name, labels, logits.shape[-1], logits.ndim - 1)
        y = wide(logits)
        top = np.max(y, axis=-1, keepdims=True)
        total = np.log(np.sum(np.exp(y - top), axis=-1)) + top[..., 0]
        loss = (total - np.take_along_axis(y, labels[..., None].astype(np.int64), -1)[..., 0]).astype(logits.dtype)
        return (loss, total.astype(logits.dtype)) if self.save else loss

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """One kernel of a GPU reads short rows once. It takes no elementwise producers with it, as the plainer ops' kernels do."""
        logits = operands[0]
        short = isinstance(classes := logits.shape[-1], int) and classes <= MOST_CLASSES and logits.dtype.itemsize <= 4
        return not (target is not None and target.kind == "cuda" and short and not logits.op.traits.elementwise)

    def decompose(self, logits: Value, labels: Value) -> Value | Values:
        last = len(logits.shape) - 1
        total: Value = LogSumExp(axes=(last,))(logits)
        picked = GatherAlongAxis(axis=last)(logits, F.reshape(labels, (*labels.shape, 1)))
        loss = F.sub(total, F.reshape(picked, labels.shape))
        return (loss, total) if self.save else loss

    def for_vjp(self) -> Op:
        return dataclasses.replace(self, save=True)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        (logits, labels), (_, total) = inputs, outputs
        # the same labels, checked, since nobody may ask for the loss itself; wide, since the classes need not fit their dtype
        labels = F.cast(labels, dt.i64)
        labels = F.gather(F.iota(logits.node.graph, logits.shape[-1:], 0, labels.dtype), labels, 0)
        share = F.exp(F.sub(logits, _column(total)))
        loss, saved = cotangents
        out: Value | None = None
        if loss is not None:
            out = F.mul(F.where(self._hit(logits, labels), F.sub(share, 1), share), _column(loss))
        if saved is not None:
            more = F.mul(share, _column(saved))
            out = more if out is None else F.add(out, more)
        return out, None

    @staticmethod
    def _hit(logits: Value, labels: Value) -> Value:
        """Whether an element is its row's label: compared in 32 bits where they hold every class."""
        if bounds(logits.shape[-1])[1] < 1 << 31:
            labels = F.cast(labels, dt.i32)
        classes = F.iota(logits.node.graph, logits.shape[-1:], 0, labels.dtype)
        return F.equal(_column(labels), classes)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        logits, labels = (F.broadcast_batch(v, b, size) for v, b in zip(inputs, batched, strict=True))
        made = self(logits, labels)
        return made if isinstance(made, tuple) else (made,)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "jvp"


def _column(x: Value) -> Value:
    return F.reshape(x, (*x.shape, 1))


