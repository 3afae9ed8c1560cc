"""Softmax and the norms: composites with a decomposition in plain ops. References work in f64.

The backward pass of layer norm and RMS norm over rows as one op.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...core.dims import Dim, Shape, product
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Pulled, S, Values, register
from ..families import Composite, M, N, bf16, f16, f32, f64, i32, require_axis, require_kind, require_one_dtype, show_shape
from .reductions import Moments, uneven, wide


def moments(x: Value) -> tuple[Value, Value]:
    """Mean and variance (over n) of each channel, axis 1; f32 where x has 16 bits."""
    mean, var = Moments()(F.widened(x))
    return mean, var


def batch_normed(x: Value, mean: Value, var: Value, affine: tuple[Value, ...], eps: float) -> Value:
    """(x - mean) / sqrt(var + eps) * weight + bias, in x's dtype."""
    operands = [F.cast(v, mean.dtype) for v in (x, mean, var, *affine)]
    return F.cast(F.one("batch_norm", *operands, eps=eps, affine="both" if affine else "none"), x.dtype)


def moved(running: Value, measured: Value, momentum: float) -> Value:
    return F.add(F.mul(running, 1 - momentum), F.mul(F.cast(measured, running.dtype), momentum))


def batch_norm_training(x: Value, mean: Value, var: Value, *affine: Value, momentum: float, eps: float) -> tuple[Value, Value, Value]:
    """(y, new mean, new variance): running statistics take momentum of the batch's mean and of its variance over n - 1."""
    require(len(x.shape) >= 2, "batch_norm: needs x of rank 2 or more", x=x.type)
    count = product((x.shape[0], *x.shape[2:]))
    require(count != 1, "batch_norm: training needs more than one value a channel", x=x.type)
    own_mean, own_var = moments(x)
    y = batch_normed(x, own_mean, own_var, affine, eps)
    return (y, moved(mean, own_mean, momentum), moved(var, unbiased(own_var, x), momentum))


def unbiased(var: Value, x: Value) -> Value:
    """The variance over n - 1 from that over n."""
    count = product((x.shape[0], *x.shape[2:]))
    if isinstance(count, int):
        return F.mul(var, count / max(count - 1, 1))
    n = F.dim_value(x.node.graph, count, var.dtype)
    return F.div(F.mul(var, n), F.maximum(F.sub(n, 1), 1))


class AlongAxis(Composite):
    work = 5
    whole = True
    cases = True
    samples = [S(f32(3, 5), axis=1), S(f32(3, 5), axis=0), S(f64(2, 3, 4), axis=1), S(bf16(2, 7), axis=1), S(f16(5), axis=0),
               S(f32(N, 3), axis=1), S(f32(2, M), axis=1), S(f32(0, 3), axis=1), S(f32(2, 0), axis=1)]
    errors = [E(f32(3), axis=-1, match="axis must be in 0..0, got axis=-1"), E(i32(3), axis=0, match="needs float operands; cast first")]

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "f")
        require_axis(getattr(self, "axis"), x.ndim)  # noqa: B009 - each op declares it
        return x


def shifted(x: Any, axis: int) -> Any:
    y = wide(x)
    with np.errstate(invalid="ignore"):
        return y - np.max(y, axis=axis, keepdims=True, initial=-np.inf)


@register
class Softmax(AlongAxis):
    """exp(x - max) / sum along one axis; a row of only -inf is NaN, as in PyTorch."""

    fusion = "norm"
    axis: int

    def ref(self, x: Any) -> Any:
        e = np.exp(shifted(x, self.axis))
        return (e / np.sum(e, axis=self.axis, keepdims=True)).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        if x.shape[self.axis] == 0:
            return x
        e = F.exp(F.sub(x, F.max_(x, (self.axis,), keepdims=True)))
        return F.div(e, F.sum_(e, (self.axis,), keepdims=True))

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        y = output
        return (self._pull(y, g),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        assert tangents[0] is not None
        return (self._pull(outputs[0], tangents[0]),)  # the Jacobian is symmetric

    def _pull(self, y: Value, g: Value) -> Value:
        return F.mul(y, F.sub(g, F.sum_(F.mul(y, g), (self.axis,), keepdims=True)))


@register
class LogSoftmax(AlongAxis):
    """x - max - log(sum(exp(x - max))) along one axis."""

    fusion = "norm"
    axis: int

    def ref(self, x: Any) -> Any:
        d = shifted(x, self.axis)
        with np.errstate(divide="ignore", invalid="ignore"):
            return (d - np.log(np.sum(np.exp(d), axis=self.axis, keepdims=True))).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        if x.shape[self.axis] == 0:
            return x
        d = F.sub(x, F.max_(x, (self.axis,), keepdims=True))
        return F.sub(d, F.log(F.sum_(F.exp(d), (self.axis,), keepdims=True)))

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        y = output
        return (F.sub(g, F.mul(F.exp(y), F.sum_(g, (self.axis,), keepdims=True))),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        t, y = tangents[0], outputs[0]
        assert t is not None
        return (F.sub(t, F.sum_(F.mul(F.exp(y), t), (self.axis,), keepdims=True)),)


def require_affine(affine: str, allowed: tuple[str, ...], operands: tuple[TensorType, ...], shape: Shape) -> None:
    """The scale and shift operands are those that `affine` promises, and have `shape`."""
    require(affine in allowed, "affine must be one of {allowed}", allowed=" ".join(allowed), affine=affine)
    count = {"none": 0, "weight": 1, "both": 2}[affine]
    require(len(operands) == count, "affine={affine} takes {count} operands after the others", affine=affine, count=count,
            operands=len(operands))
    for name, v in zip(("weight", "bias"), operands, strict=False):
        require(v.shape == shape, "{name} must have shape {shape}", name=name, shape=show_shape(shape), value=v)


def require_eps(eps: float) -> None:
    require(eps >= 0, "eps must not be negative", eps=eps)


class LastAxesNorm(Composite):
    """A norm over the last `naxes` axes."""

    whole = True
    centred: ClassVar[bool] = True
    allowed: ClassVar[tuple[str, ...]] = ("none", "weight", "both")

    def infer(self, x: TensorType, *affine: TensorType) -> TensorType:
        naxes: int = getattr(self, "naxes")  # noqa: B009 - each op declares it
        require_kind((x, *affine), "f")
        require_one_dtype((x, *affine))
        require_eps(getattr(self, "eps"))  # noqa: B009
        require(1 <= naxes <= x.ndim, "naxes must be in 1..{ndim}", ndim=x.ndim, naxes=naxes)
        require_affine(getattr(self, "affine"), self.allowed, affine, x.shape[x.ndim - naxes :])  # noqa: B009
        return x

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return any(active[1:]) if rule == "batch" else rule == "jvp"

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        a = self.attrs()
        return pull_back(inputs, g, eps=a["eps"], naxes=a["naxes"], affine=a["affine"], centred=self.centred)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (self(*inputs),)


@register
class LayerNorm(LastAxesNorm):
    """(x - mean) / sqrt(var + eps) over the last naxes axes, then * weight, + bias."""

    fusion = "norm"
    eps: float = 1e-5
    naxes: int = 1
    affine: str = "none"
    work = 8
    samples = [S(f32(3, 5), fit=uneven), S(f32(3, 5), f32(5), affine="weight", fit=uneven),
               S(f32(2, 3, 8), f32(8), f32(8), affine="both", eps=1e-6), S(f64(2, 3, 4), f64(3, 4), f64(3, 4), naxes=2, affine="both"),
               S(bf16(2, 6), bf16(6), bf16(6), affine="both", fit=uneven), S(f16(3, 4), fit=uneven),
               S(f32(N, 4), f32(4), f32(4), affine="both", fit=uneven), S(f32(0, 4), f32(4), affine="weight"), S(f32(2, M), fit=uneven)]
    errors = [E(f32(3, 5), f32(4), affine="weight", match=r"weight must have shape \[5\], got value=f32\[4\]"),
              E(f32(3, 5), affine="both", match="affine=both takes 2 operands after the others"),
              E(f32(3, 5), naxes=3, match="naxes must be in 1..2, got naxes=3"),
              E(f32(3, 5), affine="bias", match="affine must be one of none weight both"), E(i32(3), match="needs float operands"),
              E(f32(3), eps=-1.0, match="eps must not be negative")]

    def ref(self, x: Any, *affine: Any) -> Any:
        axes = tuple(range(x.ndim - self.naxes, x.ndim))
        y = wide(x)
        d = y - np.mean(y, axis=axes, keepdims=True)
        return scale_shift(d / np.sqrt(np.mean(d * d, axis=axes, keepdims=True) + self.eps), *affine).astype(x.dtype)

    def decompose(self, x: Value, *affine: Value) -> Value:
        axes = tuple(range(len(x.shape) - self.naxes, len(x.shape)))
        dtype, x, affine = x.dtype, F.widened(x), tuple(map(F.widened, affine))  # a mean of 16 bits would be the error of every element
        d = F.sub(x, F.mean(x, axes, keepdims=True))
        y = F.mul(d, F.rsqrt(F.add(F.mean(F.square(d), axes, keepdims=True), self.eps)))
        return F.cast(scale_shift_values(y, affine), dtype)


@register
class RmsNorm(LastAxesNorm):
    """x / sqrt(mean(x*x) + eps) over the last naxes axes, then * weight."""

    fusion = "norm"
    eps: float = 1e-6
    naxes: int = 1
    affine: str = "none"
    allowed = ("none", "weight")
    centred = False
    work = 5
    samples = [S(f32(3, 5)), S(f32(3, 5), f32(5), affine="weight"), S(f64(2, 3, 4), f64(3, 4), naxes=2, affine="weight"),
               S(bf16(2, 6), bf16(6), affine="weight"), S(f32(N, 4), f32(4), affine="weight"), S(f16(2, 3))]
    errors = [E(f32(3, 5), f32(4), affine="weight", match=r"weight must have shape \[5\]"),
              E(f32(3), f32(3), f32(3), affine="both", match="affine must be one of none weight, got affine=both"),
              E(i32(3), match="needs float operands")]

    def ref(self, x: Any, *affine: Any) -> Any:
        axes = tuple(range(x.ndim - self.naxes, x.ndim))
        y = wide(x)
        return scale_shift(y / np.sqrt(np.mean(y * y, axis=axes, keepdims=True) + self.eps), *affine).astype(x.dtype)

    def decompose(self, x: Value, *affine: Value) -> Value:
        axes = tuple(range(len(x.shape) - self.naxes, len(x.shape)))
        y = F.mul(x, F.rsqrt(F.add(F.mean(F.square(x), axes, keepdims=True), self.eps)))
        return scale_shift_values(y, affine)


def scale_shift(y: Any, *affine: Any) -> Any:
    if affine:
        y = y * affine[0]
    return y + affine[1] if len(affine) > 1 else y


def scale_shift_values(y: Value, affine: tuple[Value, ...]) -> Value:
    if affine:
        y = F.mul(y, affine[0])
    return F.add(y, affine[1]) if len(affine) > 1 else y


def channel_shape(ndim: int, channels: Dim) -> Shape:
    """[C,1,1,...]: a vector of channels that broadcasts against x[N,C,*s]."""
    return (channels, *(1,) * (ndim - 2))


@register
class GroupNorm(Composite):
    """LayerNorm over each of `groups` groups of channels of x[N,C,*s]; weight and bias are per channel."""

    fusion = "norm"
    groups: int
    eps: float = 1e-5
    affine: str = "none"
    work = 8
    samples = [S(f32(2, 6, 3), groups=3), S(f32(2, 4, 3, 2), f32(4), f32(4), groups=2, affine="both"),
               S(f64(1, 4), f64(4), groups=1, affine="weight"), S(f32(N, 6, 4), f32(6), f32(6), groups=2, affine="both"),
               S(bf16(1, 4, 3), groups=2)]
    errors = [E(f32(2, 5, 3), groups=2, match="channels must divide into 2 groups, got channels=5"),
              E(f32(2), groups=1, match="needs x of rank 2 or more"),
              E(f32(2, 4), f32(3), groups=2, affine="weight", match=r"weight must have shape \[4\]")]

    def infer(self, x: TensorType, *affine: TensorType) -> TensorType:
        require_kind((x, *affine), "f")
        require_one_dtype((x, *affine))
        require_eps(self.eps)
        require(x.ndim >= 2, "needs x of rank 2 or more", x=x)
        channels = x.shape[1]
        require(isinstance(channels, int) and self.groups > 0 and channels % self.groups == 0, "channels must divide into {groups} groups",
                groups=self.groups, channels=channels)
        require_affine(self.affine, ("none", "weight", "both"), affine, (channels,))
        return x

    def ref(self, x: Any, *affine: Any) -> Any:
        y = wide(x).reshape(x.shape[0], self.groups, x.shape[1] // self.groups, *x.shape[2:])
        axes = tuple(range(2, y.ndim))
        d = y - np.mean(y, axis=axes, keepdims=True)
        y = (d / np.sqrt(np.mean(d * d, axis=axes, keepdims=True) + self.eps)).reshape(x.shape)
        return scale_shift(y, *(v.reshape(channel_shape(x.ndim, x.shape[1])) for v in affine)).astype(x.dtype)

    def decompose(self, x: Value, *affine: Value) -> Value:
        batch, channels, *sizes = x.shape
        if self.groups == 1:  # without a reshape: the elements of an image may lie in any order
            y: Value = LayerNorm(eps=self.eps, naxes=len(x.shape) - 1)(x)
        else:
            y = LayerNorm(eps=self.eps)(F.reshape(x, (batch, self.groups, channels // self.groups * product(sizes))))
        return scale_shift_values(F.reshape(y, x.shape), tuple(F.reshape(v, channel_shape(len(x.shape), channels)) for v in affine))


@register
class BatchNorm(Composite):
    """(x - mean) / sqrt(var + eps) with stored statistics per channel (axis 1), then * weight + bias."""

    eps: float = 1e-5
    affine: str = "none"
    work = 2
    samples = [S(f32(2, 3, 4, 5), f32(3), f32(3), low=(-2, -1, 0.1), high=(2, 1, 2)),
               S(f32(2, 3), f32(3), f32(3), f32(3), f32(3), affine="both", low=(-2, -1, 0.1, -1, -1), high=(2, 1, 2, 1, 1)),
               S(f64(N, 2, 3), f64(2), f64(2), f64(2), f64(2), affine="both", low=(-2, -1, 0.1, -1, -1), high=(2, 1, 2, 1, 1)),
               S(bf16(1, 2, 3), bf16(2), bf16(2), low=(-2, -1, 0.1), high=(2, 1, 2))]
    errors = [E(f32(2, 3), f32(4), f32(3), match=r"mean must have shape \[3\], got value=f32\[4\]"),
              E(f32(2, 3), f32(3), f32(3), f32(3), affine="both", match="affine=both takes 2 operands"),
              E(f32(3), f32(3), f32(3), match="needs x of rank 2 or more")]

    def infer(self, x: TensorType, mean: TensorType, var: TensorType, *affine: TensorType) -> TensorType:
        require_kind((x, mean, var, *affine), "f")
        require_one_dtype((x, mean, var, *affine))
        require_eps(self.eps)
        require(x.ndim >= 2, "needs x of rank 2 or more", x=x)
        for name, v in (("mean", mean), ("var", var)):
            require(v.shape == x.shape[1:2], "{name} must have shape {shape}", name=name, shape=show_shape(x.shape[1:2]), value=v)
        require_affine(self.affine, ("none", "both"), affine, x.shape[1:2])
        return x

    def ref(self, x: Any, mean: Any, var: Any, *affine: Any) -> Any:
        shape = channel_shape(x.ndim, x.shape[1])
        y = (wide(x) - mean.reshape(shape)) / np.sqrt(wide(var).reshape(shape) + self.eps)
        return scale_shift(y, *(v.reshape(shape) for v in affine)).astype(x.dtype)

    def decompose(self, x: Value, mean: Value, var: Value, *affine: Value) -> Value:
        shape = channel_shape(len(x.shape), x.shape[1])
        inverse = F.rsqrt(F.add(var, self.eps))
        y = F.mul(F.sub(x, F.reshape(mean, shape)), F.reshape(inverse, shape))
        return scale_shift_values(y, tuple(F.reshape(v, shape) for v in affine))


@register
class NormBackward(Composite):
    """Cotangents of x[R,N] and of its weight and bias [N], as far as `affine` ("none", "weight", "both") has them, given that of the
    result, the last operand. Operands: x, [weight], g. `centred`: layer norm; else RMS norm."""

    eps: float = 1e-5
    affine: str = "none"
    centred: bool = True
    work = 12
    whole = True
    samples = [S(f32(3, 5), f32(3, 5), fit=uneven), S(f32(7, 37), f32(37), f32(7, 37), affine="weight"),
               S(f32(70, 67), f32(67), f32(70, 67), affine="both", eps=1e-6), S(f64(2, 12), f64(12), f64(2, 12), affine="both"),
               S(f32(5, 33), f32(33), f32(5, 33), affine="weight", centred=False), S(f64(3, 8), f64(3, 8), centred=False),
               S(f32(N, 4), f32(4), f32(N, 4), affine="both", fit=uneven), S(f32(0, 4), f32(4), f32(0, 4), affine="both"),
               S(bf16(5, 33), bf16(33), bf16(5, 33), affine="both")]
    errors = [E(f32(3, 5), f32(3, 4), match="x and the cotangent must be one type"), E(f32(3), f32(3), match=r"needs x\[R,N\]"),
              E(f32(3, 5), f32(4), f32(3, 5), affine="weight", match=r"weight must have shape \[5\]"),
              E(f32(3, 5), f32(3, 5), affine="both", match="affine=both takes 3 operands, got operands=2"),
              E(f32(3, 5), f32(3, 5), affine="bias", match="affine must be one of none weight both"),
              E(i32(3, 5), i32(3, 5), match="needs float operands")]

    def infer(self, x: TensorType, *rest: TensorType) -> tuple[TensorType, ...] | TensorType:
        require_kind((x, *rest), "f")
        require_one_dtype((x, *rest))
        require(self.affine in ("none", "weight", "both"), "affine must be one of none weight both", affine=self.affine)
        count = 2 if self.affine == "none" else 3
        require(len(rest) + 1 == count, "affine={affine} takes {count} operands", affine=self.affine, count=count, operands=len(rest) + 1)
        require(x.ndim == 2, "needs x[R,N]", x=x)
        require(rest[-1] == x, "x and the cotangent must be one type", x=x, g=rest[-1])
        row = x.with_shape(x.shape[1:])
        for w in rest[:-1]:
            require(w == row, "weight must have shape {shape}", shape=show_shape(row.shape), weight=w)
        more = {"none": 0, "weight": 1, "both": 2}[self.affine]
        return (x, *(row,) * more) if more else x

    def ref(self, x: Any, *rest: Any) -> Any:
        *weight, g = (wide(a) for a in rest)
        y = wide(x)
        d = y - np.mean(y, -1, keepdims=True) if self.centred else y
        inverse = 1 / np.sqrt(np.mean(d * d, -1, keepdims=True) + self.eps)
        hat, gw = d * inverse, g * weight[0] if weight else g
        mean = np.mean(gw, -1, keepdims=True) if self.centred else 0
        dx = inverse * (gw - mean - hat * np.mean(gw * hat, -1, keepdims=True))
        out = (dx, np.sum(g * hat, 0), np.sum(g, 0))[: 1 + {"none": 0, "weight": 1, "both": 2}[self.affine]]
        return tuple(a.astype(x.dtype) for a in out) if len(out) > 1 else dx.astype(x.dtype)

    def decompose(self, x: Value, *rest: Value) -> Any:
        dtype = x.dtype
        x, *weight, g = (F.widened(v) for v in (x, *rest))  # terms cancel in the sums over rows: 16 bits would keep none of the rest
        d = F.sub(x, F.mean(x, (1,), keepdims=True)) if self.centred else x
        inverse = F.rsqrt(F.add(F.mean(F.square(d), (1,), keepdims=True), self.eps))
        hat, gw = F.mul(d, inverse), F.mul(g, weight[0]) if weight else g
        inner = F.sub(gw, F.mean(gw, (1,), keepdims=True)) if self.centred else gw
        dx = F.cast(F.mul(inverse, F.sub(inner, F.mul(hat, F.mean(F.mul(gw, hat), (1,), keepdims=True)))), dtype)
        if self.affine == "none":
            return dx
        dw = F.cast(F.sum_(F.mul(g, hat), (0,)), dtype)
        return (dx, dw) if self.affine == "weight" else (dx, dw, F.cast(F.sum_(g, (0,)), dtype))


def pull_back(inputs: Values, g: Value, *, eps: float, naxes: int, affine: str, centred: bool) -> MaybeValues:
    """The rule of a norm over the last naxes axes: one op over rows."""
    x, *rest = inputs
    lead, tail = x.shape[: len(x.shape) - naxes], x.shape[len(x.shape) - naxes :]
    rows, width = product(lead), product(tail)
    flat, cotangent = (F.reshape(v, (rows, width)) for v in (x, g))
    op = NormBackward(eps=eps, affine=affine, centred=centred)
    operands = (flat, *(F.reshape(w, (width,)) for w in rest[:1]), cotangent)
    made = op(*operands)  # in 16 bits only some targets have a kernel: see passes/decompose.py
    found = made if isinstance(made, tuple) else (made,)
    return tuple(F.reshape(v, like.shape) for v, like in zip(found, inputs, strict=True))
