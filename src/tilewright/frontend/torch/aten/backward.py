"""Backward ops of ATen, as PyTorch's autograd leaves them in a graph: the rule of our own op for the forward pass, on its operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import product
from ....core.errors import UnsupportedError
from ....ir.graph import Graph, Value
from ....ops import functions as F
from ....ops.attention.backward import pull_back as attention_rule
from ....ops.complex import rules as C
from ....ops.rows.norms import NormBackward
from ....transform.vjp import pull_back
from .create import inner_embedding_bag
from .linear import cdist, convolution, one_attention, pool_attributes
from .places import pdist
from .reduce import cumprod
from .registry import Context, aten, axes_of, lookup, placed, rows
from .sample import grid_sampler
from .scatter import scatter_add
from .shape import edge_pad

Maybe = Value | None


def pulled(c: Context, forward: Callable[..., Value], operands: Sequence[Value], g: Value, wanted: Sequence[bool] | None = None,
           meta: Any = None) -> tuple[Maybe, ...]:
    """Cotangents of the operands of `forward(context, *operands)`, whose result has the cotangent g. `meta` is torch's fake of the result,
    where `forward` asks for it."""
    body = Graph("forward")
    inner = Context(body, c.symbols)
    inner.name, inner.place, inner.meta, inner.args = c.name, c.place, meta, ()
    inputs = [body.input(v.type, f"x{i}") for i, v in enumerate(operands)]
    body.place = c.place
    body.outputs = [forward(inner, *inputs)]
    return tuple(pull_back(body, c.graph, operands, (g,), wanted or (True,) * len(operands)))


@aten("convolution_backward.default")
@placed
def convolution_backward(c: Context, g: Value, x: Value, w: Value, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
                         output_padding: Any, groups: int, mask: Sequence[bool]) -> tuple[Maybe, ...]:
    def forward(inner: Context, x: Value, w: Value) -> Value:
        return convolution(inner, x, w, None, stride, padding, dilation, transposed, output_padding, groups)

    dx, dw = pulled(c, forward, (x, w), g, tuple(mask[:2])) if any(mask[:2]) else (None, None)
    return dx, dw, F.cast(O.ChannelSums()(F.widened(g)), g.dtype) if mask[2] else None


def _pool_backward(name: str) -> Any:
    forward = lookup(name)
    assert forward is not None

    def handler(c: Context, g: Value, x: Value, *rest: Any) -> Maybe:
        return pulled(c, lambda inner, v: forward(inner, v, *rest), (x,), g, meta=c.args[0])[0]

    return placed(handler)


for _n in (2, 3):
    aten(f"avg_pool{_n}d_backward.default")(_pool_backward(f"avg_pool{_n}d.default"))


def _adaptive_backward(n: int) -> Any:
    forward = lookup(f"_adaptive_avg_pool{n}d.default")
    assert forward is not None

    def handler(c: Context, g: Value, x: Value) -> Maybe:
        return pulled(c, lambda inner, v: forward(inner, v, list(g.shape[-n:])), (x,), g, meta=c.args[0])[0]

    return placed(handler)


for _n in (2, 3):
    aten(f"_adaptive_avg_pool{_n}d_backward.default")(_adaptive_backward(_n))


def _max_pool_backward(n: int) -> Any:
    def handler(c: Context, g: Value, x: Value, *rest: Any) -> Value:
        *window, index = rest
        return c.emit(O.MaxPoolBackward(sizes=x.shape[-n:], **pool_attributes(x, n, *window)), g, index)

    return placed(handler)


def _by_index(n: int) -> Any:
    """The backward pass of a maximum pool that says where its maxima stood: they add to what is there."""

    def handler(c: Context, g: Value, x: Value, *rest: Any) -> Value:
        index = next(v for v in reversed(rest) if isinstance(v, Value))
        lead = x.shape[:-n]
        pixels, windows = product(x.shape[-n:]), product(g.shape[-n:])
        rows = product(lead)
        flat = F.full(c.graph, (rows, pixels), 0, x.dtype)
        places = c.reshape(index, (rows, windows))
        total = scatter_add(c, flat, 1, places, c.reshape(g, (rows, windows)))
        return c.reshape(total, x.shape)

    return placed(handler)


for _n in (2, 3):
    aten(f"max_pool{_n}d_with_indices_backward.default")(_max_pool_backward(_n))
    aten(f"adaptive_max_pool{_n}d_backward.default")(_by_index(_n))


for _rank in (1, 2, 3):
    for _name, _mode in (("reflection", "reflect"), ("replication", "edge")):

        @aten(f"{_name}_pad{_rank}d_backward.default")
        @placed
        def pad_backward(c: Context, g: Value, x: Value, pads: Sequence[Any], mode: str = _mode) -> Maybe:
            return pulled(c, lambda inner, v: edge_pad(inner, v, pads, mode), (x,), g)[0]


@aten("tilewright.attention_backward.default")
@placed
def attention_backward(c: Context, g: Value, q: Value, k: Value, v: Value, mask: Maybe, out: Maybe, sums: Maybe, causal: bool,
                       scale: float, of_mask: bool) -> tuple[Maybe, ...]:
    saved = (out, sums) if out is not None and sums is not None else ()
    rest = () if mask is None else (mask,)
    op = one_attention(mask, causal, scale)
    found = attention_rule(op, (q, k, v, *rest), g, (True, True, True, *(of_mask for _ in rest)), saved)
    return *found[:3], found[3] if of_mask else None


@aten("tilewright.layer_norm_backward.default")
@placed
def layer_norm_backward(c: Context, g: Value, x: Value, shape: Sequence[int], w: Maybe, b: Maybe, eps: float,
                        mask: Sequence[bool]) -> tuple[Maybe, ...]:
    if eps < 0:
        raise UnsupportedError("layer_norm with a negative eps")
    if w is not None and w.dtype is not x.dtype:  # under autocast
        wide = layer_norm_backward(c, c.cast(g, dt.f32), c.cast(x, dt.f32), shape, c.cast(w, dt.f32), b, eps, mask)
        return tuple(v if v is None else c.cast(v, like.dtype) for v, like in zip(wide, (x, w, w), strict=True))
    n = len(shape)
    lead, tail = x.shape[: len(x.shape) - n], x.shape[len(x.shape) - n :]
    rows, width = product(lead), product(tail)
    flat = [F.reshape(v, (rows, width)) for v in (x, g)]
    affine = "none" if not mask[1] and not mask[2] else "both" if mask[2] else "weight"
    if w is None:  # a bias alone, or nothing
        made = NormBackward(eps=float(eps))(*flat)
        dx, dw, db = made, None, F.sum_(flat[1], (0,)) if mask[2] else None
    elif affine == "none":
        dx, dw, db = NormBackward(eps=float(eps))(flat[0], F.mul(flat[1], F.reshape(w, (1, width)))), None, None
    else:
        found = NormBackward(eps=float(eps), affine=affine)(flat[0], F.reshape(w, (width,)), flat[1])
        dx, dw, db = (*found, None)[:3]
    out = [None if v is None else F.reshape(v, s) for v, s in ((dx, x.shape), (dw, tail), (db, tail))]
    return tuple(v if m else None for v, m in zip(out, mask, strict=True))


@aten("native_layer_norm_backward.default")
@placed
def given_layer_norm_backward(c: Context, g: Value, x: Value, shape: Sequence[int], mean: Value, inverse: Value, w: Maybe, b: Maybe,
                              mask: Sequence[bool]) -> tuple[Maybe, ...]:
    """By the statistics of the forward pass; our kernel finds those of x again."""
    axes = tuple(range(len(x.shape) - len(shape), len(x.shape)))
    eps = _eps_of(inverse, x, axes)
    if eps is not None and w is not None and w.dtype is x.dtype:
        return layer_norm_backward(c, g, x, shape, w, b, eps, mask)
    wide = F.widened(g)
    mean, inverse = F.widened(mean), F.widened(inverse)
    hat = F.mul(F.sub(F.widened(x), mean), inverse)
    inner = wide if w is None else F.mul(wide, F.widened(w))
    along = F.mul(hat, F.mean(F.mul(inner, hat), axes, keepdims=True))
    dx = F.mul(F.sub(F.sub(inner, F.mean(inner, axes, keepdims=True)), along), inverse)
    lead = tuple(range(axes[0]))
    found = dx, F.sum_(F.mul(wide, hat), lead), F.sum_(wide, lead)
    return tuple(F.cast(v, like.dtype) if m else None for v, like, m in zip(found, (x, w or x, w or x), mask, strict=True))


def _eps_of(inverse: Value, x: Value, axes: tuple[int, ...]) -> float | None:
    """That of 1 / sqrt(var(x) + eps); None where the value was made in another way."""
    if not isinstance(inverse.node.op, O.Rsqrt) or not isinstance((total := inverse.node.operands[0].node).op, O.Add):
        return None
    var, eps = total.operands
    of = var.node.op
    made = isinstance(of, O.Var) and of == O.Var(axes=axes, keepdims=True, correction=0.0) and var.node.operands[0] is x
    number = eps.node.op
    return float(number.data.array.item()) if made and isinstance(number, O.Constant) else None


@aten("tilewright.embedding_bag_backward.default")
@placed
def embedding_bag_backward(c: Context, g: Value, table: Value, ids: Value, offsets: Value, by_count: bool, mode: int, weights: Maybe,
                           last: bool, padding: int) -> tuple[Maybe, ...]:
    rest = [] if weights is None else [weights]

    def forward(inner: Context, table: Value, ids: Value, offsets: Value, *rest: Value) -> Value:
        inner.differentiable = True
        out: Value = inner_embedding_bag(inner, table, ids, offsets, by_count, mode, False, rest[0] if rest else None, last, padding)[0]
        return out

    found = pulled(c, forward, (table, ids, offsets, *rest), g, (True, False, False, *(True for _ in rest)), meta=c.args[0])
    return found[0], found[3] if rest else None


def _resized(kind: str, n: int) -> None:
    @aten(f"upsample_{kind}{n}d_backward.default")
    def backward(c: Context, g: Value, output_size: Any, input_size: Any, *options: Any, **named: Any) -> Any:
        x = c.expand(c.scalar(0.0, g.dtype), tuple(input_size))
        forward = lookup(f"upsample_{kind}{n}d.default")
        assert forward is not None
        return c.built(pulled, c, lambda inner, x: forward(inner, x, output_size, *options, *named.values()), (x,), g, meta=c.args[0])[0]


for _kind, _n in (*(("nearest", n) for n in (1, 2, 3)), ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)):
    _resized(_kind, _n)


# --- pointwise ops and sums, spelled out ------------------------------------------------------------------------------------------------

UNARY = ("silu", "gelu", "hardswish", "hardsigmoid", "mish")


def _unary_backward(name: str) -> Any:
    forward = lookup(f"{name}.default")
    assert forward is not None

    def handler(c: Context, g: Value, x: Value, **how: Any) -> Maybe:
        return pulled(c, lambda inner, v: forward(inner, v, **how), (x,), g, meta=c.args[1])[0]

    return placed(handler)


for _name in UNARY:
    aten(f"{_name}_backward.default")(_unary_backward(_name))


def _conjugate(y: Value) -> Value:
    return C.conj(y) if y.dtype.kind == "c" else y


@aten("_softmax_backward_data.default")
@placed
def softmax_backward(c: Context, g: Value, y: Value, dim: int, dtype: Any) -> Value:
    axes = axes_of(dim, len(y.shape))
    scaled = F.mul(F.widened(g), F.widened(y))
    return c.cast(F.sub(scaled, F.mul(F.widened(y), F.sum_(scaled, axes, keepdims=True))), c.dtype)


@aten("_log_softmax_backward_data.default")
@placed
def log_softmax_backward(c: Context, g: Value, y: Value, dim: int, dtype: Any) -> Value:
    wide = F.widened(g)
    return c.cast(F.sub(wide, F.mul(F.exp(F.widened(y)), F.sum_(wide, axes_of(dim, len(y.shape)), keepdims=True))), c.dtype)


@aten("native_batch_norm_backward.default")
@placed
def batch_norm_backward(c: Context, g: Value, x: Value, w: Maybe, running: Maybe, running_var: Maybe, mean: Maybe, inverse: Maybe,
                        train: bool, eps: float, mask: Sequence[bool]) -> tuple[Maybe, ...]:
    if not train:
        assert running is not None and running_var is not None
        mean, inverse = running, F.rsqrt(F.add(F.widened(running_var), float(eps)))
    assert mean is not None and inverse is not None
    if product(x.shape) == 0:
        raise UnsupportedError("the backward pass of batch_norm over nothing")
    axes = tuple(a for a in range(len(x.shape)) if a != 1)
    wide_x, wide_g = F.widened(x), F.widened(g)
    along = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    mean, inverse = (F.reshape(F.cast(v, wide_x.dtype), along) for v in (mean, inverse))
    hat = F.mul(F.sub(wide_x, mean), inverse)
    total, moment = O.ChannelSums()(wide_g, F.mul(wide_g, hat))
    inner = wide_g
    if train:
        count = product(tuple(x.shape[a] for a in axes))
        each = 1.0 / count if isinstance(count, int) else F.div(1, F.dim_value(c.graph, count, wide_x.dtype))
        inner = F.sub(wide_g, F.mul(F.add(F.reshape(total, along), F.mul(hat, F.reshape(moment, along))), each))
    dtype = x.dtype if w is None else w.dtype
    scaled = F.mul(inner, inverse) if w is None else F.mul(F.mul(inner, inverse), F.reshape(F.cast(w, wide_x.dtype), along))
    return F.cast(scaled, x.dtype) if mask[0] else None, F.cast(moment, dtype) if mask[1] else None, \
        F.cast(total, dtype) if mask[2] else None


@aten("native_group_norm_backward.default")
@placed
def group_norm_backward(c: Context, g: Value, x: Value, mean: Value, inverse: Value, w: Maybe, n: Any, channels: Any, hw: Any, groups: int,
                        mask: Sequence[bool]) -> Any:
    """Over sizes that vary, where torch's own rule divides by a number of elements that it does not know."""
    if all(isinstance(d, int) for d in x.shape) or product(x.shape) == 0:
        return NotImplemented
    split, one = (n, groups, channels // groups, hw), (n, groups, 1, 1)
    wide_x, wide_g = (F.reshape(F.widened(v), split) for v in (x, g))
    mean, inverse = (F.reshape(F.cast(v, wide_x.dtype), one) for v in (mean, inverse))
    hat = F.mul(F.sub(wide_x, mean), inverse)
    inner = wide_g if w is None else F.mul(wide_g, F.reshape(F.cast(w, wide_x.dtype), (1, groups, channels // groups, 1)))
    each = F.div(1, F.dim_value(c.graph, channels // groups * hw, wide_x.dtype))
    total, moment = (F.mul(F.sum_(v, (2, 3), keepdims=True), each) for v in (inner, F.mul(inner, hat)))
    dx = F.mul(F.sub(F.sub(inner, total), F.mul(hat, moment)), inverse)
    dtype = x.dtype if w is None else w.dtype
    dw, db = (F.cast(F.reshape(F.sum_(v, (0, 3)), (channels,)), dtype) for v in (F.mul(wide_g, hat), wide_g))
    return F.cast(F.reshape(dx, x.shape), x.dtype) if mask[0] else None, dw if mask[1] else None, db if mask[2] else None


@aten("embedding_dense_backward.default")
@placed
def embedding_backward(c: Context, g: Value, ids: Value, rows: Any, padding: Any, by_count: bool) -> Any:
    if by_count:
        return NotImplemented
    width = g.shape[-1]
    flat, index = F.reshape(g, (ids.type.numel, width)), F.reshape(ids, (ids.type.numel,))
    if isinstance(padding, int) and padding >= 0:
        flat = F.where(F.reshape(F.equal(index, padding), (ids.type.numel, 1)), 0, flat)
    return c.cast(c.emit(O.ScatterAdd(axis=0), F.full(c.graph, (rows, width), 0, g.dtype), c.cast(index, dt.i64), flat), c.dtype)


@aten("grid_sampler_2d_backward.default", "grid_sampler_3d_backward.default")
@placed
def grid_sampler_backward(c: Context, g: Value, x: Value, grid: Value, mode: int, padding: int, align: bool,
                          mask: Sequence[bool], at: int = 0) -> tuple[Maybe, ...]:
    found = pulled(c, lambda inner, a, b: grid_sampler(inner, a, b, mode, padding, align), (x, grid), g, mask, meta=c.args[at])
    return tuple(F.zeros(v) if d is None and m else d for d, v, m in zip(found, (x, grid), mask, strict=True))  # the nearest: no slope


rows({
    "cudnn_grid_sampler_backward.default": lambda c, x, grid, g: grid_sampler_backward(c, g, x, grid, 0, 0, True, (True, True), 2),
    "_cdist_backward.default":
        lambda c, g, a, b, p, distances: pulled(c, lambda inner, x, y: cdist(inner, x, y, p), (a, b), g, (True, False), meta=c.args[4])[0],
    "_pdist_backward.default": lambda c, g, x, p, distances: pulled(c, lambda inner, v: pdist(inner, v, p), (x,), g, meta=c.args[3])[0],
    "tilewright.cumprod_backward.default": lambda c, g, x, dim: pulled(c, lambda inner, v: cumprod(inner, v, dim), (x,), g, meta=c.meta)[0],
    "threshold_backward.default": lambda c, g, x, threshold: F.where(F.less_equal(x, threshold), 0, c.cast(g, x.dtype)),
    "native_dropout_backward.default": lambda c, g, mask, scale: F.where(mask, F.mul(c.cast(g, c.dtype), scale), 0),
    "sigmoid_backward.default": lambda c, g, y: F.mul(g, _conjugate(F.mul(y, F.sub(1, y)))),
    "tanh_backward.default": lambda c, g, y: F.mul(g, _conjugate(F.sub(1, F.square(y) if y.dtype.kind != "c" else F.mul(y, y)))),
}, place=True)
