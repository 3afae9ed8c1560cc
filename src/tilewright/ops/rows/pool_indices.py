"""Max pooling that also says where: the flat index of each window's largest element within the spatial axes."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.dtypes import DType
from ...core.errors import require
from ...core.needs import require_room
from ...ir.types import TensorType
from .. import functions as F
from ..base import REGISTRY, E, MaybeValues, S, Values, register
from ..families import General, M, bf16, f32, f64, require_kind
from .pooling import Pairs, pooled, windows


@register
class MaxPoolIndices(General):
    """Largest element of each window and its flat index in the spatial axes; the first of equals; NaN wins; padding never does."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    dtype: DType = dt.i64
    cases = True
    samples = [S(f32(1, 2, 6, 7), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 0)), dilation=(1, 1)),
               S(f32(2, 3, 8), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(2,), dtype=dt.i32),
               S(f64(1, 1, 5, 5), kernel=(2, 2), stride=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1), ceil_mode=True),
               S(f32(M, 2, 40), kernel=(2,), stride=(1,), padding=((0, 0),), dilation=(1,)),
               S(bf16(1, 1, 6), kernel=(3,), stride=(1,), padding=((1, 1),), dilation=(1,)),
               S(f32(1, 1, 3, 4, 5), kernel=(2, 2, 2), stride=(1, 2, 1), padding=((1, 1), (0, 0), (1, 1)), dilation=(1, 1, 1))]
    errors = [E(f32(1, 1, 4), kernel=(2,), stride=(0,), padding=((0, 0),), dilation=(1,),
                match="kernel, stride and dilation must be positive"),
              E(f32(1, 1, 4), kernel=(0,), stride=(1,), padding=((0, 0),), dilation=(1,),
                match="kernel, stride and dilation must be positive"),
              E(f32(1, 1, 4), kernel=(2,), stride=(1,), padding=((0, 0),), dilation=(1,), dtype=dt.f32,
                match="indices must be of an integer"),
              E(f32(1, 1, 0), kernel=(2,), stride=(1,), padding=((1, 1),), dilation=(1,), match="has no value over an empty axis")]

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        require_kind((x,), "fiu")
        require(self.dtype.is_int, "indices must be of an integer dtype", dtype=self.dtype)
        out = x.with_shape(pooled(x.shape, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode))
        for d in x.shape[-len(self.kernel) :]:
            require_room(d - 1, "has no value over an empty axis", x=x)
        return out, out.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        n = len(self.kernel)
        out = pooled(x.shape, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)[-n:]
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        taps = windows(x, out, self.kernel, self.stride, self.padding, self.dilation, lowest)
        places = np.broadcast_to(np.arange(np.prod(x.shape[-n:])).reshape(x.shape[-n:]), x.shape)
        where = windows(places, out, self.kernel, self.stride, self.padding, self.dilation, -1)
        best = np.argmax(np.where(where < 0, np.asarray(lowest, taps.dtype), taps), axis=0)[None]
        first = np.where(np.take_along_axis(where, best, 0) < 0, np.where(where < 0, np.iinfo(np.int64).max, where).min(0), 0)
        index = np.maximum(np.take_along_axis(where, best, 0), first)[0]
        return np.take_along_axis(taps, best, 0)[0], index.astype(self.dtype.np)

    def flops(self, x: TensorType) -> Dim:
        out, _ = self.infer(x)
        return out.numel * product(self.kernel)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        x, g, n = inputs[0], cotangents[0], len(self.kernel)
        if g is None:
            return (None,)
        lead = x.shape[:-n]
        rows = (product(lead), product(x.shape[-n:]))
        flat = F.reshape(x, rows)
        picked: Any = REGISTRY["gather_along_axis"]
        small = (rows[0], product(g.shape[-n:]))
        y, where, given_g = (F.reshape(v, small) for v in (*outputs, g))
        given = picked(axis=1).vjp((flat, where), (y,), (given_g,), (True, False))
        return (F.reshape(given[0], x.shape),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        t, n = tangents[0], len(self.kernel)
        assert t is not None
        small = (product(t.shape[:-n]), product(outputs[0].shape[-n:]))
        flat = F.reshape(t, (small[0], product(t.shape[-n:])))
        return F.reshape(F.apply("gather_along_axis", flat, F.reshape(outputs[1], small), axis=1), outputs[0].shape), None
