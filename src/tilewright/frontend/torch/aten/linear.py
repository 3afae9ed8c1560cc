"""Contractions: matmul in its spellings, convolution, pooling, attention.

Distances between rows, products summed over a batch, and other small sums of products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .... import ops as O
from ....core.dims import Dim, product
from ....core.dtypes import compute_dtype, f32
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.attention.backward import AttentionSaved
from ....ops.random import draws
from ....ops.rows.pooling import fitted
from .elementwise import conj
from .registry import Context, aten, placed, rows
from .resize import adaptive
from .window import integer_conv, window_average


def p_norm(c: Context, x: Value, p: float, axis: int, *, keepdims: bool = False) -> Value:
    """The p-norm along an axis, with derivative 0 where it is 0."""
    sizes = c.emit(O.Abs(), x)
    zero = c.scalar(0.0, x.dtype)
    if p == 0:
        return c.emit(O.Sum(axes=(axis,), keepdims=keepdims), c.cast(c.emit(O.NotEqual(), x, zero), x.dtype))
    if p == 1:
        return c.emit(O.Sum(axes=(axis,), keepdims=keepdims), sizes)
    if p == math.inf:
        return c.emit(O.Max(axes=(axis,), keepdims=keepdims), sizes)
    if p == -math.inf:
        return c.emit(O.Min(axes=(axis,), keepdims=keepdims), sizes)
    raised = c.emit(O.Square(), x) if p == 2 else c.emit(O.Pow(), sizes, c.scalar(float(p), x.dtype))
    return root_of(c, c.emit(O.Sum(axes=(axis,), keepdims=keepdims), raised), p)


def root_of(c: Context, total: Value, p: float) -> Value:
    """The p-th root, with derivative 0 where it is 0."""
    zero = c.scalar(0.0, total.dtype)
    none = c.emit(O.Equal(), total, zero)
    safe = c.emit(O.Where(), none, c.scalar(1.0, total.dtype), total)
    root = c.emit(O.Sqrt(), safe) if p == 2 else c.emit(O.Pow(), safe, c.scalar(1.0 / p, total.dtype))
    return c.emit(O.Where(), none, zero, root)


@aten("_cdist_forward.default", "cdist.default", "_euclidean_dist.default")
def cdist(c: Context, a: Value, b: Value, p: float = 2.0, compute_mode: Any = None) -> Value:
    """Distances of every row of a from every row of b, from the differences (not through products, which cancel)."""
    if a.shape[-1] == 0 or any(d == 0 for d in c.shape):
        return c.expand(c.scalar(0.0, c.dtype), c.shape)
    if p in (1.0, 2.0, math.inf):
        lead = c.shape[:-2]
        sums = c.emit(O.PairSums(power=float(p)), c.expand(a, (*lead, *a.shape[-2:])), c.expand(b, (*lead, *b.shape[-2:])))
        return root_of(c, sums, 2.0) if p == 2.0 else sums
    left = c.reshape(a, (*a.shape[:-1], 1, a.shape[-1]))
    right = c.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
    gap = c.emit(O.Sub(), left, right)
    return c.reshape(p_norm(c, gap, float(p), len(gap.shape) - 1), c.shape)


@aten("addbmm.default")
def addbmm(c: Context, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    product = c.emit(O.Sum(axes=(0,), keepdims=False), c.emit(O.Matmul(), a, b))
    return scaled_sum(c, bias, product, beta, alpha)


def scaled_sum(c: Context, bias: Value, product: Value, beta: Any, alpha: Any) -> Value:
    """beta * bias + alpha * product; the bias is not read when beta is 0. Factors take the dtype: integers drop their fractions."""
    whole = (lambda v: v) if product.dtype.is_float or product.dtype.kind == "c" else int
    if whole(alpha) != 1:
        product = c.emit(O.Mul(), product, c.scalar(whole(alpha), product.dtype))
    if beta == 0:
        return c.expand(product, c.shape)
    if whole(beta) != 1:
        bias = c.emit(O.Mul(), bias, c.scalar(whole(beta), bias.dtype))
    return c.emit(O.Add(), product, bias)


@aten("_trilinear.default")
def trilinear(c: Context, a: Value, b: Value, w: Value, expand1: Any, expand2: Any, expand3: Any, sumdim: Any,
              unroll_dim: int = 1) -> Value:
    """The product of three tensors, each with axes of size 1 put in, summed over axes."""
    parts = []
    for x, axes in ((a, expand1), (b, expand2), (w, expand3)):
        sizes = list(x.shape)
        for axis in sorted(axes):
            sizes.insert(axis, 1)
        parts.append(c.reshape(x, sizes))
    product = c.emit(O.Mul(), c.emit(O.Mul(), parts[0], parts[2]), parts[1])
    return c.reshape(c.emit(O.Sum(axes=tuple(sorted(sumdim)), keepdims=False), product), c.shape)


def _stack(w: Value) -> tuple[Value, bool]:
    """A stack of matrices, and whether it is to be read transposed: models keep [G, N, K] and give a transposed view."""
    if isinstance(w.node.op, O.Transpose) and w.node.op.perm == (0, 2, 1):
        return w.node.operands[0], True
    return w, False


@aten("transformers.grouped_mm_fallback.default")
def grouped(c: Context, x: Value, w: Value, ends: Value) -> Value:
    """Rows x[M, K] in the order of their groups, times w[G, K, N]."""
    stack, in_rows = _stack(w)
    return c.emit(O.GroupedGemm(transpose_b=in_rows), x, stack, ends)


@aten("transformers.grouped_mm_fallback_backward.default")
def grouped_backward(c: Context, x: Value, w: Value, ends: Value, g: Value) -> tuple[Value, Value]:
    """The gradients of `grouped`, of the rows and of the matrices."""
    stack, in_rows = _stack(w)
    return c.emit(O.GroupedGemm(transpose_b=not in_rows), g, stack, ends), c.emit(O.GroupedOuter(), x, g, ends)


@aten("_grouped_mm.default", "tilewright.grouped_mm.default")
def grouped_mm(c: Context, a: Value, b: Value, offs: Value | None = None, bias: Value | None = None, out_dtype: Any = None) -> Value:
    """Groups along the rows of a, the columns of b, or the shared axis; two stacks are a batch. (torch itself refuses a bias.)"""
    return c.cast(_product(c, a, b, offs), c.dtype)


def _product(c: Context, a: Value, b: Value, ends: Value | None) -> Value:
    ranks = len(a.shape), len(b.shape)
    if ranks == (3, 3):
        return c.emit(O.Matmul(), a, b)
    assert ends is not None, "torch asks for offsets"
    if ranks == (2, 3):
        return grouped(c, a, b, ends)
    if ranks == (2, 2):
        return c.emit(O.GroupedOuter(), c.transpose(a, (1, 0)), b, ends)
    stack, in_rows = _stack(a)
    return c.transpose(c.emit(O.GroupedGemm(transpose_b=not in_rows), c.transpose(b, (1, 0)), stack, ends), (1, 0))


def _matmul(c: Context, a: Value, b: Value, alpha: float = 1.0, *, transpose_b: bool = False) -> Value:
    return c.emit(O.Matmul(transpose_b=transpose_b, alpha=float(alpha), recurrent=c.recurrent), a, b)


@aten("linear.default")
def linear(c: Context, x: Value, weight: Value, bias: Value | None = None) -> Value:
    rows = c.reshape(x, (1, *x.shape)) if len(x.shape) == 1 else x
    w = c.reshape(weight, (1, *weight.shape)) if len(weight.shape) == 1 else weight
    out = c.reshape(_matmul(c, rows, w, transpose_b=True), c.shape)
    return out if bias is None else c.emit(O.Add(), out, bias)


@aten("matmul.default", "mm.default", "bmm.default", "__matmul__.Tensor", "linalg_matmul.default")
def matmul(c: Context, a: Value, b: Value) -> Value:
    left = c.reshape(a, (1, *a.shape)) if len(a.shape) == 1 else a
    right = c.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    return c.reshape(_matmul(c, left, right), c.shape)


@aten("_scaled_mm.default")
def scaled_mm(c: Context, a: Value, b: Value, scale_a: Value, scale_b: Value, bias: Value | None = None, scale_result: Value | None = None,
              out_dtype: Any = None, use_fast_accum: bool = False) -> Any:
    """Eight-bit floats with a scale each, or one per row of a and per column of b: sums in f32, then scales and bias, rounded once. Whether
    sums may lose bits (`use_fast_accum`) is not ours to choose: they do not."""
    if c.dtype.itemsize == 1 or scale_result is not None:
        raise UnsupportedError(f"_scaled_mm: the result must be f32, f16 or bf16 without a scale of its own, got {c.dtype}")
    if not all(product(s.shape) == 1 or s.shape in ((a.shape[0], 1), (1, b.shape[1])) for s in (scale_a, scale_b)):
        raise UnsupportedError(f"_scaled_mm: scales must be one number, or one per row and column, got {scale_a.type} and {scale_b.type}")
    out = c.emit(O.Matmul(dtype=f32), a, b)
    for scale in (scale_a, scale_b):
        out = c.emit(O.Mul(), out, c.reshape(scale, ()) if product(scale.shape) == 1 else scale)
    if bias is not None:
        out = c.emit(O.Add(), out, c.cast(bias, f32))
    return c.cast(out, c.dtype)


@aten("mv.default", "dot.default", "inner.default")
def mv(c: Context, a: Value, b: Value) -> Any:
    if len(a.shape) == len(b.shape) == 1 and c.dtype.is_float:  # a sum over all of memory, which threads share
        wide = compute_dtype(c.dtype)
        return c.cast(c.emit(O.Sum(axes=(0,)), c.emit(O.Mul(), c.cast(a, wide), c.cast(b, wide))), c.dtype)
    return matmul(c, a, b) if len(b.shape) == 1 else NotImplemented


@aten("addmm.default", "baddbmm.default", "addmv.default")
def addmm(c: Context, bias: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1) -> Value:
    right = c.reshape(b, (*b.shape, 1)) if len(b.shape) == 1 else b
    if not c.dtype.is_float:
        return scaled_sum(c, bias, c.reshape(_matmul(c, a, right), c.shape), beta, alpha)
    return scaled_sum(c, bias, c.reshape(_matmul(c, a, right, alpha), c.shape), beta, 1)


def _tuple(v: Any, n: int) -> tuple[int, ...]:
    """A per-axis attribute: an int or a one-element list stands for every axis."""
    items = [v] if isinstance(v, int) else list(v)
    if not all(isinstance(i, int) for i in items):
        raise UnsupportedError(f"kernel, stride, padding and dilation must be static, got {items}")
    return tuple(items * n if len(items) == 1 else items)


def _conv(c: Context, x: Value, w: Value, bias: Value | None, stride: Any, padding: tuple[tuple[int, int], ...], dilation: Any, groups: int,
          transposed: bool = False, output_padding: Any = 0) -> Value:
    n = len(w.shape) - 2
    batched = x if len(x.shape) == n + 2 else c.reshape(x, (1, *x.shape))
    if not x.dtype.is_float and x.dtype.kind != "c":
        out = integer_conv(c, batched, w, _tuple(stride, n), padding, _tuple(dilation, n), groups, transposed, _tuple(output_padding, n))
        if bias is not None:
            out = c.emit(O.Add(), out, c.reshape(bias, (1, bias.shape[0], *[1] * n)))
        return out if batched is x else c.reshape(out, out.shape[1:])
    op = O.Conv(
        stride=_tuple(stride, n),
        padding=padding,
        dilation=_tuple(dilation, n),
        groups=groups,
        transposed=transposed,
        output_padding=_tuple(output_padding, n),
    )
    out = c.emit(op, batched, w)
    if bias is not None:
        out = c.emit(O.Add(), out, c.reshape(bias, (1, bias.shape[0], *[1] * n)))
    return out if batched is x else c.reshape(out, out.shape[1:])


def _both(padding: Any, n: int) -> tuple[tuple[int, int], ...]:
    return tuple((p, p) for p in _tuple(padding, n))


@aten("conv1d.padding", "conv2d.padding", "conv3d.padding")
def conv_named(c: Context, x: Value, w: Value, bias: Value | None = None, stride: Any = 1, padding: str = "valid", dilation: Any = 1,
               groups: int = 1) -> Value:
    n = len(w.shape) - 2
    total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(_tuple(dilation, n), w.shape[2:], strict=True)]
    return _conv(c, x, w, bias, stride, tuple((t // 2, t - t // 2) for t in total), dilation, groups)


@aten("convolution.default")
def convolution(c: Context, x: Value, w: Value, bias: Value | None, stride: Any, padding: Any, dilation: Any, transposed: bool,
                output_padding: Any, groups: int) -> Value:
    return _conv(c, x, w, bias, stride, _both(padding, len(w.shape) - 2), dilation, groups, transposed, output_padding)


@aten("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def conv_transpose(c: Context, x: Value, w: Value, bias: Value | None = None, stride: Any = 1, padding: Any = 0, output_padding: Any = 0,
                   groups: int = 1, dilation: Any = 1) -> Value:
    return _conv(c, x, w, bias, stride, _both(padding, len(w.shape) - 2), dilation, groups, True, output_padding)


def _steps(x: Value, n: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Kernel and stride of a pool, no larger than they need be."""
    k = _tuple(kernel, n)
    given = _tuple(stride, n) if stride not in (None, [], ()) else k
    return fitted(x.shape, k, given, _both(padding, n), _tuple(dilation, n))


def _pool(c: Context, op: Any, x: Value, n: int, kernel: Any, stride: Any, padding: Any, **attrs: Any) -> Value:
    k, steps = _steps(x, n, kernel, stride, padding, attrs.get("dilation", 1))
    batched = x if len(x.shape) == n + 2 else c.reshape(x, (1, *x.shape))
    out = c.emit(op(kernel=k, stride=steps, padding=_both(padding, n), **attrs), batched)
    return out if batched is x else c.reshape(out, out.shape[1:])


def _max_pool(n: int) -> Any:
    def handler(c: Context, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
                ceil_mode: bool = False) -> Value:
        return _pool(c, O.MaxPool, x, n, kernel, stride, padding, dilation=_tuple(dilation, n), ceil_mode=bool(ceil_mode))

    return handler


def _avg_pool(n: int) -> Any:
    def handler(c: Context, x: Value, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
                count_include_pad: bool = True, divisor_override: int | None = None) -> Any:
        if divisor_override is not None or not x.dtype.is_float:
            k, steps = _steps(x, n, kernel, stride, padding)
            return window_average(c, x, k, steps, _tuple(padding, n), bool(count_include_pad), divisor_override)
        return _pool(c, O.AvgPool, x, n, kernel, stride, padding, ceil_mode=bool(ceil_mode), count_include_pad=bool(count_include_pad))

    return handler


def _adaptive(n: int) -> Any:
    def handler(c: Context, x: Value, output_size: Any) -> Any:
        sizes = x.shape[-n:]
        wanted = c.shape[-n:]
        if all(d == 1 for d in wanted):
            rank = len(x.shape)
            return c.emit(O.Mean(axes=tuple(range(rank - n, rank)), keepdims=True), x)
        kernel = [i // o for i, o in zip(sizes, wanted, strict=True) if isinstance(i, int) and isinstance(o, int) and i % o == 0]
        if len(kernel) != n:
            return adaptive(c, x, n, "mean")
        return _pool(c, O.AvgPool, x, n, kernel, kernel, 0, ceil_mode=False, count_include_pad=True)

    return handler


for _n in (1, 2, 3):
    aten(f"max_pool{_n}d.default")(_max_pool(_n))
    aten(f"avg_pool{_n}d.default")(_avg_pool(_n))
    aten(*([f"adaptive_avg_pool{_n}d.default"] + ([f"_adaptive_avg_pool{_n}d.default"] if _n > 1 else [])))(_adaptive(_n))


def pool_attributes(x: Value, n: int, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    k, steps = _steps(x, n, kernel, stride, padding, dilation)
    return {"kernel": k, "stride": steps, "padding": _both(padding, n), "dilation": _tuple(dilation, n), "ceil_mode": bool(ceil_mode)}


def _max_pool_indices(n: int) -> Any:
    """Two nodes, so that the plain one is left when nobody reads the indices."""

    def handler(c: Context, x: Value, *window: Any) -> Any:
        attrs = pool_attributes(x, n, *window)
        return c.emit(O.MaxPool(**attrs), x), c.emit_all(O.MaxPoolIndices(**attrs), x)[1]

    return handler


for _n in (2, 3):
    aten(f"max_pool{_n}d_with_indices.default")(_max_pool_indices(_n))
aten("max_pool1d_with_indices.default")(_max_pool_indices(1))


@aten("scaled_dot_product_attention.default")
def attention(c: Context, q: Value, k: Value, v: Value, attn_mask: Value | None = None, dropout_p: float = 0.0, is_causal: bool = False, *,
              scale: float | None = None, enable_gqa: bool = False) -> Value:
    width = q.shape[-1]
    if scale is None:
        if not isinstance(width, int):
            raise UnsupportedError("attention needs a static head size")
        scale = 1.0 / math.sqrt(width)
    operands = [_rank4(c, x, q) for x in (q, k, v)]
    boolean = attn_mask is not None and attn_mask.dtype.is_bool
    if attn_mask is not None:
        mask = attn_mask if boolean else c.cast(attn_mask, q.dtype)
        if len(mask.shape) > 4 or len(q.shape) > 4:
            full = (*q.shape[:-1], k.shape[-2])
            mask = c.reshape(c.expand(mask, full), (1, product(full[:-2]), *full[-2:]))
        elif len(q.shape) == 3 and len(mask.shape) == 3:
            mask = c.reshape(mask, (1, *mask.shape))  # heads stand where the batch was
        operands.append(mask)
    op = O.Attention(scale=float(scale), causal=bool(is_causal), has_mask=boolean, has_bias=attn_mask is not None and not boolean)
    if dropout_p:
        return c.reshape(_dropped(c, op, float(dropout_p), *operands), c.shape)
    return c.reshape(c.emit(op, *operands), c.shape)


@placed
def _dropped(c: Context, op: O.Attention, p: float, q: Value, k: Value, v: Value, *rest: Value) -> Value:
    """Attention whose weights go through a dropout."""
    return O.matmul(draws.dropout(c.key(), op.weights(q, k, *rest), p), op.repeated(v, q))


def _rank4(c: Context, x: Value, q: Value) -> Value:
    """[..., S, D] as [B, H, S, D]; batch dims that torch would broadcast are expanded."""
    lead, own = q.shape[:-2], x.shape[:-2]
    if x is not q and len(lead) == 4 - 2 and len(own) == 2:
        return c.expand(x, (lead[0], *x.shape[1:])) if own[0] != lead[0] else x
    if len(own) != len(lead):
        raise UnsupportedError(f"attention needs q, k and v of one rank, got {q.type} and {x.type}")
    heads: Sequence[Dim] = own if len(own) == 2 else (1, product(own))
    return c.reshape(x, (*heads, *x.shape[-2:]))


def one_attention(mask: Value | None, causal: bool, scale: float) -> O.Attention:
    """Attention over operands [B, H, S, D]."""
    boolean = mask is not None and mask.dtype.is_bool
    return O.Attention(scale=scale, causal=causal, has_mask=boolean, has_bias=mask is not None and not boolean)


@aten("tilewright.attention.default")
def own_attention(c: Context, q: Value, k: Value, v: Value, mask: Value | None, causal: bool, scale: float, rows: bool, keeps: bool) -> Any:
    from ..convert import Missing

    op, operands = one_attention(mask, causal, scale), (q, k, v) if mask is None else (q, k, v, mask)
    if not keeps:
        return c.emit(op, *operands), Missing("the logsumexp of attention is not kept")
    return c.emit_all(AttentionSaved(**{name: x for name, x in op.attrs().items() if name != "hidden"}), *operands)


@aten("_scaled_dot_product_flash_attention_for_cpu.default")
def flash_attention(c: Context, q: Value, k: Value, v: Value, dropout_p: float = 0.0, is_causal: bool = False, *,
                    attn_mask: Value | None = None, scale: float | None = None) -> Any:
    from ..convert import Missing

    out = attention(c, q, k, v, attn_mask, dropout_p, is_causal, scale=scale)
    return out, Missing("the logsumexp of attention is not supported")


@aten("_scaled_dot_product_flash_attention.default", "_scaled_dot_product_efficient_attention.default",
      "_scaled_dot_product_cudnn_attention.default")
def gpu_attention(c: Context, q: Value, k: Value, v: Value, *rest: Any, scale: float | None = None, **_: Any) -> Any:
    """What torch calls on a GPU: dropout and causality behind the operands, and with a bias and a flag before them."""
    from ..convert import Missing

    mask, dropout, causal = (*_behind(rest), 0.0, False)[:3] if rest and not isinstance(rest[0], float) else (None, *rest, 0.0, False)[:3]
    out = attention(c, q, k, v, mask, dropout, causal, scale=scale)
    return out, *(Missing("what attention keeps for its backward pass is not supported") for _ in c.meta[1:])


def _behind(rest: Sequence[Any]) -> tuple[Any, ...]:
    mask, _, *more = rest
    return mask, *more


rows({
    "_int_mm.default": lambda c, a, b: c.emit(O.IntMatmul(), a, b),
    "vdot.default": lambda c, a, b: matmul(c, conj(c, a), b),
    "outer.default ger.default":
        lambda c, a, b: c.emit(O.Mul(), c.reshape(c.cast(a, c.dtype), (*a.shape, 1)), c.reshape(c.cast(b, c.dtype), (1, *b.shape))),
    "conv1d.default conv2d.default conv3d.default": lambda c, x, w, bias=None, stride=1, padding=0, dilation=1, groups=1:
        _conv(c, x, w, bias, stride, _both(padding, len(w.shape) - 2), dilation, groups),
})
