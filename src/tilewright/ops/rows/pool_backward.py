"""The backward pass of max pooling: every window adds its cotangent where its largest element stood."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim, Shape, product
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Composite, M, bf16, f32, f64, i32, i64, require_kind
from .pooling import Pairs, pooled

MOST = 64  # windows around an element that one kernel looks at
CHANNELS = 8  # from which a CPU looks at them


@register
class MaxPoolBackward(Composite):
    """out[..., *p] = the sum of g[..., *o] over windows o with indices[..., *o] = the flat place of p among `sizes`; windows are those of
    max pooling, which bounds the places that a window can name."""

    whole = True
    sizes: Shape
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    samples = [S(f32(1, 2, 2, 2), i64(1, 2, 2, 2), sizes=(5, 5), kernel=(4, 4), stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1),
                 low=(-2, 11), high=(2, 13)),
               S(f64(2, 3, 2), i32(2, 3, 2), sizes=(6,), kernel=(5,), stride=(1,), padding=((0, 0),), dilation=(1,), low=(-2, 1),
                 high=(2, 4)),
               S(bf16(M, 3), i64(M, 3), sizes=(8,), kernel=(5,), stride=(2,), padding=((1, 1),), dilation=(1,), low=(-2, 3), high=(2, 3)),
               S(f32(2, 9, 2), i64(2, 9, 2), sizes=(6,), kernel=(5,), stride=(1,), padding=((0, 0),), dilation=(1,), low=(-2, 1),
                 high=(2, 4))]
    errors = [E(f32(1, 3), i64(1, 4), sizes=(6,), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,),
                match="indices must have the shape of the cotangent"),
              E(f32(1, 4), i64(1, 4), sizes=(6,), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,),
                match=r"the cotangent must have the windows of the pool \(3,\)"),
              E(f32(1, 3), f32(1, 3), sizes=(6,), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,),
                match="indices must be integers")]

    def infer(self, g: TensorType, indices: TensorType) -> TensorType:
        n = len(self.kernel)
        require_kind((g,), "fiu")
        require(indices.dtype.is_int, "indices must be integers", indices=indices)
        require(g.shape == indices.shape, "indices must have the shape of the cotangent", g=g, indices=indices)
        want = pooled((*g.shape[:-n], *self.sizes), self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)[-n:]
        require(g.shape[-n:] == want, "the cotangent must have the windows of the pool {want}", want=want, g=g)
        return g.with_shape((*g.shape[:-n], *self.sizes))

    def ref(self, g: Any, indices: Any) -> Any:
        n = len(self.kernel)
        rows, windows = int(np.prod(g.shape[:-n])), int(np.prod(g.shape[-n:]))
        wide = np.float64 if g.dtype.kind not in "iu" else g.dtype
        out = np.zeros((rows, product(self.sizes)), wide)
        at: Any = (np.arange(rows)[:, None], indices.reshape(rows, windows))
        np.add.at(out, at, g.reshape(rows, windows).astype(wide))
        return out.astype(g.dtype).reshape(*g.shape[:-n], *self.sizes)

    def decompose(self, g: Value, indices: Value) -> Value:
        n = len(self.kernel)
        rows, windows = product(g.shape[:-n]), product(g.shape[-n:])
        flat = F.full(g.node.graph, (rows, product(self.sizes)), 0, g.dtype)
        small = (rows, windows)
        total = F.apply("scatter_along", flat, F.reshape(indices, small), F.reshape(g, small), axis=1)
        return F.reshape(total, (*g.shape[:-n], *self.sizes))

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """On a CPU channels run along registers, which takes some."""
        g = operands[0].shape
        several = len(g) == 2 + len(self.kernel) and isinstance(g[1], int) and g[1] >= CHANNELS
        own = target is not None and (target.kind == "cuda" or (target.kind == "cpu" and several))
        return not own or product(self.reach) > MOST

    @property
    def reach(self) -> tuple[int, ...]:
        """How many windows of an axis an element can be in."""
        return tuple(-(-((k - 1) * d + 1) // s) for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True))

    def flops(self, *types: TensorType) -> Dim:
        return self.infer(*types).numel * product(self.reach)
