"""The selective scan of Mamba (Gu & Dao, arXiv:2312.00752) and its backward pass, each one op with a kernel.

For every channel d with a state of n numbers:   h_t = exp(delta_t a) h_(t-1) + delta_t x_t b_t      y_t = (c_t · h_t + skip x_t) silu(z_t)

Shapes: x, delta, z [B,L,D] · a [D,N] · b, c [B,L,N] · skip [D] · first state [B,D,N]  →  y [B,L,D], last state [B,D,N].
Operands may be stored in 16 bits: states and all arithmetic are f32.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Values, register, single
from ..families import Composite, M, N, bf16, f16, f32, f64, i32, require_one_dtype

Arrays = tuple[Any, ...]


def gated_types(gated: bool, *types: TensorType) -> list[TensorType]:
    """x, delta, a, b, c, skip, [z], first state, as checked types."""
    count = 8 if gated else 7
    require(len(types) == count, "gated={gated} takes {count} operands", gated=gated, count=count, operands=len(types))
    dtype = require_one_dtype(types)
    require(dtype.name in ("f16", "bf16", "f32", "f64"), "needs f16, bf16, f32 or f64 operands; cast first", dtype=dtype)
    x, delta, a, b, c, skip, *z, h = types
    require(x.ndim == 3 and a.ndim == 2 and a.shape[0] == x.shape[2], "needs x[B,L,D] and a[D,N]", x=x, a=a)
    (batch, length, d), n = x.shape, a.shape[1]
    require(isinstance(n, int), "the size of the state must be known", a=a)
    want = {"delta": (delta, x.shape), "b": (b, (batch, length, n)), "c": (c, (batch, length, n)), "skip": (skip, (d,)),
            "state": (h, (batch, d, n)), **({"z": (z[0], x.shape)} if z else {})}
    for name, (got, shape) in want.items():
        require(got.shape == shape, "{name} must be [{shape}]", name=name, shape=",".join(map(str, shape)), type=got)
    return list(types)


def split(gated: bool, values: tuple[Any, ...]) -> tuple[Any, Any, Any, Any, Any, Any, Any, Any]:
    """(x, delta, a, b, c, skip, z or None, state)."""
    x, delta, a, b, c, skip, *z, h = values
    return x, delta, a, b, c, skip, z[0] if gated else None, h


def sigmoid(z: Any) -> Any:
    return 1 / (1 + np.exp(-z))


def states(x: Any, delta: Any, a: Any, b: Any, h: Any) -> Any:
    """Every state, the first one included: [L+1,B,D,N]."""
    out = [h]
    for t in range(x.shape[1]):
        decay = np.exp(delta[:, t, :, None] * a)
        out.append(decay * out[-1] + (delta[:, t] * x[:, t])[..., None] * b[:, t, None])
    return np.stack(out)


def _shapes(length: Dim = 6, gated: bool = True, *, batch: Dim = 2, d: Dim = 5, n: int = 3, dtype: str = "f32") -> list[TensorType]:
    t = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64}[dtype]
    gate = [t(batch, length, d)] if gated else []
    return [t(batch, length, d), t(batch, length, d), t(d, n), t(batch, length, n), t(batch, length, n), t(d), *gate, t(batch, d, n)]


LOW, HIGH = (-1.0, 0.05, -2.0, -1, -1, -1), (1.0, 1.0, -0.1, 1, 1, 1)


def _s(types: list[TensorType], **attrs: Any) -> Any:
    rest = len(types) - 6
    return S(*types, low=(*LOW, *(-1.0,) * rest), high=(*HIGH, *(1.0,) * rest), **attrs)


@register
class SelectiveScan(Composite):
    """y and the last state. Operands: x, delta, a, b, c, skip, [z], first state; `gated` says whether there is a z."""

    gated: bool = True
    whole = True
    samples = [_s(_shapes()), _s(_shapes(4, False, n=1), gated=False), _s(_shapes(7, d=19, n=4, batch=1)), _s(_shapes(3, dtype="f64")),
               _s(_shapes(N, d=17)), _s(_shapes(0)), _s(_shapes(5, False, d=M, batch=N), gated=False),
               _s(_shapes(4, dtype="bf16")), _s(_shapes(5, d=17, dtype="f16")), _s(_shapes(3, d=32, n=16, batch=1))]
    errors = [E(*_shapes(), gated=False, match="gated=False takes 7 operands, got operands=8"),
              E(*_shapes()[:7], f32(2, 5, 4), match=r"state must be \[2,5,3\]"),
              E(f32(2, 6, 4), *_shapes()[1:], match=r"needs x\[B,L,D\] and a\[D,N\]"),
              E(*(t.with_dtype(i32().dtype) for t in _shapes()), match="needs f16, bf16, f32 or f64 operands"),
              E(*_shapes()[:3], f32(2, 6, 4), *_shapes()[4:], match=r"b must be \[2,6,3\]")]

    def infer(self, *types: TensorType) -> tuple[TensorType, TensorType]:
        given = gated_types(self.gated, *types)
        return given[0], given[-1]

    def ref(self, *arrays: Any) -> Any:
        dtype = arrays[0].dtype
        x, delta, a, b, c, skip, z, h = split(self.gated, tuple(v.astype(np.float64) for v in arrays))
        h = states(x, delta, a, b, h)
        y = np.einsum("lbdn,bln->bld", h[1:], c) + skip * x
        y = y * z * sigmoid(z) if z is not None else y
        return y.astype(dtype), h[-1].astype(dtype)

    def decompose(self, *values: Value) -> tuple[Value, ...]:
        dtype = values[0].dtype
        x, delta, a, b, c, skip, z, h = split(self.gated, tuple(F.widened(v) for v in values))
        (batch, length, _), n = x.shape, a.shape[1]

        def step(_: Graph, v: Values) -> Values:
            h, delta, u, b, c, a = v
            new = advanced(h, delta, u, b, a)
            return new, F.sum_(F.mul(new, F.reshape(c, (batch, 1, n))), (2,))

        stacked = [F.transpose(v, (1, 0, 2)) for v in (delta, F.mul(delta, x), b, c)]
        body = single(step, h.type, *(v.type.with_shape(v.shape[1:]) for v in stacked), a.type)
        last, ys = F.apply("scan", h, *stacked, a, body=body, carries=1, xs=4, length=length)
        y = F.add(F.transpose(ys, (1, 0, 2)), F.mul(x, skip))
        return F.cast(F.mul(y, F.silu(z)) if z is not None else y, dtype), F.cast(last, dtype)

    def flops(self, *types: TensorType) -> Dim:
        return types[0].numel * (7 * types[2].shape[1] + 6)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        """States are computed again in the backward pass, from marks every few steps."""
        gy, gh = (F.zeros(v) if g is None else g for v, g in zip(outputs, cotangents, strict=True))
        dx, ddelta, da, db, dc, dskip, *rest = SelectiveScanBackward(gated=self.gated)(*inputs, gy, gh)
        return (dx, ddelta, F.sum_(da, (0,)), F.sum_(db, (2,)), F.sum_(dc, (2,)), F.sum_(dskip, (0,)), *rest)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "jvp" or (rule == "batch" and (active[2] or active[5]))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        """The new axis and the batch axis are one."""
        whole = [v if i in (2, 5) else F.broadcast_batch(v, bat, size) for i, (v, bat) in enumerate(zip(inputs, batched, strict=True))]
        own = whole[0].shape[1]
        made = self(*(v if i in (2, 5) else F.reshape(v, (size * own, *v.shape[2:])) for i, v in enumerate(whole)))
        return tuple(F.reshape(v, (size, own, *v.shape[1:])) for v in made)


def advanced(h: Value, delta: Value, u: Value, b: Value, a: Value) -> Value:
    """One step of the state; u = delta * x."""
    batch, d, n = h.shape
    decay = F.exp(F.mul(F.reshape(delta, (batch, d, 1)), a))
    return F.add(F.mul(decay, h), F.mul(F.reshape(u, (batch, d, 1)), F.reshape(b, (batch, 1, n))))


LANES = 16  # channels of a program: the sums of b and c over channels come in parts, one a program


@register
class SelectiveScanBackward(Composite):
    """Cotangents of a selective scan's operands, given those of y and of the last state (the last two operands): dx, ddelta, da [B,D,N],
    db and dc in parts [B,L,D/16,N], dskip [B,D], [dz], dstate. What is summed over the batch or the parts is left to the reader."""

    gated: bool = True
    whole = True
    samples = [_s([*_shapes(), f32(2, 6, 5), f32(2, 5, 3)]), _s([*_shapes(4, False, n=1), f32(2, 4, 5), f32(2, 5, 1)], gated=False),
               _s([*_shapes(70, d=19, n=4, batch=1), f32(1, 70, 19), f32(1, 19, 4)]),
               _s([*_shapes(3, dtype="f64"), f64(2, 3, 5), f64(2, 5, 3)]), _s([*_shapes(N, d=17), f32(2, N, 17), f32(2, 17, 3)]),
               _s([*_shapes(0), f32(2, 0, 5), f32(2, 5, 3)]), _s([*_shapes(4, dtype="bf16"), bf16(2, 4, 5), bf16(2, 5, 3)]),
               _s([*_shapes(4, False, d=17, dtype="f16"), f16(2, 4, 17), f16(2, 17, 3)], gated=False)]
    errors = [E(*_shapes(), f32(2, 6, 5), match="gated=True takes 8 operands"),
              E(*_shapes(), f32(2, 6, 4), f32(2, 5, 3), match="cotangents must have the types of y and the state")]

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        x, delta, a, _, _, _, *rest, h = gated_types(self.gated, *types[:-2])
        require(types[-2:] == (x, h), "cotangents must have the types of y and the state", y=types[-2], state=types[-1])
        batch, length, d = x.shape
        part = x.with_shape((batch, length, -(-d // LANES) if isinstance(d, int) else (d + LANES - 1) // LANES, a.shape[1]))
        return (x, delta, h, part, part, x.with_shape((batch, d)), *rest, h)

    def ref(self, *arrays: Any) -> Any:
        dtype = arrays[0].dtype
        *given, gy, gh = (v.astype(np.float64) for v in arrays)
        x, delta, a, b, c, skip, z, h = split(self.gated, tuple(given))
        batch, length, d = x.shape
        n, parts = a.shape[1], -(-d // LANES)
        h, dz = states(x, delta, a, b, h), None
        if z is not None:
            y, s = np.einsum("lbdn,bln->bld", h[1:], c) + skip * x, sigmoid(z)
            dz, gy = gy * y * s * (1 + z * (1 - s)), gy * z * s
        dx, ddelta, dskip = skip * gy, np.zeros_like(x), (gy * x).sum(1)
        da, db, dc = np.zeros_like(h[0]), *(np.zeros((batch, length, parts * LANES, n)) for _ in range(2))
        g = gh
        for t in range(length)[::-1]:
            g = g + c[:, t, None] * gy[:, t, :, None]
            dc[:, t, :d] = h[t + 1] * gy[:, t, :, None]
            decay = np.exp(delta[:, t, :, None] * a)
            slope = g * h[t] * decay
            da += slope * delta[:, t, :, None]
            through = (g * b[:, t, None]).sum(-1)
            ddelta[:, t] = (slope * a).sum(-1) + through * x[:, t]
            dx[:, t] += through * delta[:, t]
            db[:, t, :d] = g * (delta[:, t] * x[:, t])[..., None]
            g = g * decay
        db, dc = (v.reshape(batch, length, parts, LANES, n).sum(3) for v in (db, dc))
        out = (dx, ddelta, da, db, dc, dskip, *([dz] if z is not None else []), g)
        return tuple(v.astype(dtype) for v in out)

    def flops(self, *types: TensorType) -> Dim:
        return types[0].numel * (24 * types[2].shape[1] + 12)

    def decompose(self, *values: Value) -> tuple[Value, ...]:
        dtype = values[0].dtype
        *given, gy, gh = (F.widened(v) for v in values)
        x, delta, a, b, c, skip, z, h = split(self.gated, tuple(given))
        batch, length, d = x.shape
        n = a.shape[1]

        def column(v: Value) -> Value:
            return F.reshape(v, (batch, d, 1))

        def row(v: Value) -> Value:
            return F.reshape(v, (batch, 1, n))

        def forward(_: Graph, v: Values) -> Values:
            h, delta, u, b, a = v
            new = advanced(h, delta, u, b, a)
            return new, h, new

        stacked = [F.transpose(v, (1, 0, 2)) for v in (delta, F.mul(delta, x), b)]
        body = single(forward, h.type, *(v.type.with_shape(v.shape[1:]) for v in stacked), a.type)
        _, before, after = F.apply("scan", h, *stacked, a, body=body, carries=1, xs=3, length=length)
        dz: list[Value] = []
        if z is not None:
            terms = F.mul(after, F.reshape(F.transpose(c, (1, 0, 2)), (length, batch, 1, n)))
            y = F.add(F.transpose(F.sum_(terms, (3,)), (1, 0, 2)), F.mul(x, skip))
            s = F.sigmoid(z)
            one = F.full(z.node.graph, z.shape, 1, z.dtype)
            dz = [F.mul(F.mul(gy, y), F.mul(s, F.add(one, F.mul(z, F.sub(one, s)))))]
            gy = F.mul(gy, F.silu(z))

        def backward(_: Graph, v: Values) -> Values:
            g, da, h, delta, x, b, c, gy, a = v
            g = F.add(g, F.mul(row(c), column(gy)))
            decay = F.exp(F.mul(column(delta), a))
            slope = F.mul(F.mul(g, h), decay)
            through = F.sum_(F.mul(g, row(b)), (2,))
            ddelta = F.add(F.sum_(F.mul(slope, a), (2,)), F.mul(through, x))
            db = F.mul(g, column(F.mul(delta, x)))
            return F.mul(g, decay), F.add(da, F.mul(slope, column(delta))), F.mul(through, delta), ddelta, db

        xs = [before, *(F.transpose(v, (1, 0, 2)) for v in (delta, x, b, c, gy))]
        back = single(backward, h.type, h.type, *(v.type.with_shape(v.shape[1:]) for v in xs), a.type)
        g, da, dx, ddelta, db = F.apply("scan", gh, F.zeros(h), *xs, a, body=back, carries=2, xs=6, length=length, reverse=True)
        dc = F.mul(after, F.reshape(F.transpose(gy, (1, 0, 2)), (length, batch, d, 1)))
        dx = F.add(F.transpose(dx, (1, 0, 2)), F.mul(gy, skip))
        made = (dx, F.transpose(ddelta, (1, 0, 2)), da, *(_in_parts(v) for v in (db, dc)), F.sum_(F.mul(gy, x), (1,)), *dz, g)
        return tuple(F.cast(v, dtype) for v in made)


def _in_parts(v: Value) -> Value:
    """[L,B,D,N] summed over sixteen channels at a time: [B,L,D/16,N]."""
    length, batch, d, n = v.shape
    parts = (d + LANES - 1) // LANES
    padded = F.pad(v, (0, 0, 0, 0), (0, 0, parts * LANES - d, 0))
    return F.transpose(F.sum_(F.reshape(padded, (length, batch, parts, LANES, n)), (3,)), (1, 0, 2, 3))
