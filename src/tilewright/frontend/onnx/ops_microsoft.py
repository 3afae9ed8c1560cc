"""com.microsoft: what ONNX Runtime's optimizers and quantizers write into files."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.errors import ShapeError, UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.index.weighted import grid_sample as sample_grid
from ...ops.linalg.functions import inv
from ...ops.quant.formats import GROUPS, pack_groups
from .elements import Elem
from .ops_cast import (
    dequantize,
    dynamic_quantize,
    integer_matmul,
    qlinear_conv,
    quantize,
    requantized,
    spread,
    to_quantized,
)
from .ops_index import gather_nd
from .ops_math import bit_shift
from .ops_nn import average_pool, conv, conv_transpose, gemm, group_norm, layer_norm, max_pool, product_of, rms_norm
from .ops_recurrent import activation as activation_of
from .ops_shape import pad, range_, trilu, unsqueeze
from .registry import Context, axis_of, nonnegative
from .tables import MICROSOFT, op, rows


@op("FusedMatMul", domain=MICROSOFT)
def fused_matmul(c: Context, a: Value, b: Value, *, alpha: float = 1.0, transA: int = 0, transB: int = 0, transBatchA: int = 0,
                 transBatchB: int = 0) -> Value:
    if transBatchA:
        a = F.transpose(a, (*range(1, len(a.shape) - 1), 0, len(a.shape) - 1))
    if transBatchB:
        b = F.transpose(b, (*range(1, len(b.shape) - 1), 0, len(b.shape) - 1))
    if len(a.shape) < 2 or len(b.shape) < 2:
        return F.mul(product_of(a, b), alpha)
    return F.matmul(a, b, transpose_a=bool(transA), transpose_b=bool(transB), alpha=alpha)


def _activated(x: Value, name: str, params: Any) -> Value:
    values = [*(params or ()), None, None]
    return F.minimum(F.maximum(x, values[0]), values[1]) if name == "Clip" else activation_of(name, *values[:2])(x)


@op("FusedConv", domain=MICROSOFT)
def fused_conv(c: Context, x: Value, w: Value, bias: Value | None = None, z: Value | None = None, *, activation: str = "",
               activation_params: Any = None, **attrs: Any) -> Value:
    out = conv(c, x, w, bias, **attrs)
    out = out if z is None else F.add(out, z)
    return _activated(out, activation, activation_params) if activation else out


@op("FusedGemm", domain=MICROSOFT)
def fused_gemm(c: Context, a: Value, b: Value, bias: Value | None = None, *, activation: str = "", activation_alpha: float = 0.01,
               activation_beta: float = 0.0, activation_gamma: float = 0.0, **attrs: Any) -> Value:
    out = gemm(c, a, b, bias, **attrs)
    return _activated(out, activation, [activation_alpha, activation_beta]) if activation else out


# --- norms ---------------------------------------------------------------------------------------------------------------------------


@op("SimplifiedLayerNormalization")
@op("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_norm(c: Context, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    y = rms_norm(c, x, scale, axis=axis, epsilon=epsilon)
    if not c.wanted(1):
        return y
    axes = tuple(range(axis_of(axis, len(x.shape)), len(x.shape)))
    return y, F.rsqrt(F.add(F.mean(F.square(F.cast(x, dt.f32)), axes, keepdims=True), epsilon))


def total_of(*values: Value | None) -> Value:
    total = None
    for v in values:
        if v is not None:
            total = v if total is None else F.add(total, v)
    assert total is not None
    return total


@op("SkipLayerNormalization", domain=MICROSOFT)
def skip_layer_norm(c: Context, x: Value, skip: Value, gamma: Value, beta: Value | None = None, bias: Value | None = None, *,
                    epsilon: float = 1e-12) -> Any:
    total = total_of(x, skip, bias)
    extra = (gamma,) if beta is None else (gamma, beta)
    y = O.LayerNorm(eps=epsilon, naxes=1, affine="weight" if beta is None else "both")(total, *extra)
    return (y, None, None, total) if c.wanted(3) else y


@op("SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_rms_norm(c: Context, x: Value, skip: Value, gamma: Value, bias: Value | None = None, *, epsilon: float = 1e-12) -> Any:
    total = total_of(x, skip, bias)
    y = O.RmsNorm(eps=epsilon, naxes=1, affine="weight")(total, gamma)
    return (y, None, None, total) if c.wanted(3) else y


@op("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_norm(c: Context, ids: Value, segments: Value | None, words: Value, positions: Value, segment_table: Value | None,
                     gamma: Value, beta: Value, mask: Value | None = None, position_ids: Value | None = None, *,
                     epsilon: float = 1e-12, mask_index_type: int = 0) -> Any:
    return _embedded(c, ids, (words, positions, segment_table), segments, gamma, beta, mask, position_ids, epsilon, lambda rows, _: rows)


@op("QEmbedLayerNormalization", domain=MICROSOFT)
def quantized_embed_layer_norm(c: Context, ids: Value, segments: Value | None, words: Value, positions: Value,
                               segment_table: Value | None, gamma: Value, beta: Value, mask: Value | None, *numbers: Value | None,
                               epsilon: float = 1e-12) -> Any:
    scales, zeros = numbers[:5], numbers[5:]

    def plain(x: Value, k: int) -> Value:
        scale, zero = scales[k], zeros[k]
        assert scale is not None
        return dequantize(c, x, F.reshape(scale, ()), None if zero is None else F.reshape(zero, ()))

    tables = words, positions, segment_table
    return _embedded(c, ids, tables, segments, plain(gamma, 3), plain(beta, 4), mask, None, epsilon, plain)


def _embedded(c: Context, ids: Value, tables: Sequence[Value | None], segments: Value | None, gamma: Value, beta: Value,
              mask: Value | None, position_ids: Value | None, epsilon: float, plain: Callable[[Value, int], Value]) -> Any:
    """Rows of the tables of words, positions and segments, made `plain` floats and added up, normalized."""
    words, positions, segment_table = tables
    assert words is not None and positions is not None
    batch, length = ids.shape
    at = F.slice_(positions, 0, 0, length) if position_ids is None else F.gather(positions, position_ids, 0)
    total = F.add(plain(F.gather(words, ids, 0), 0), plain(at, 1))
    if segments is not None and segment_table is not None:
        total = F.add(total, plain(F.gather(segment_table, segments, 0), 2))
    y = O.LayerNorm(eps=epsilon, naxes=1, affine="both")(total, gamma, beta)
    index = F.cast(F.sum_(mask, (1,)), dt.i32) if mask is not None else c.full((batch,), 0, dt.i32)
    return y, index, total


# --- weights of few bits -------------------------------------------------------------------------------------------------------------


def unpacked(packed: Any, bits: int) -> Any:
    """uint8 bytes of small numbers along the last axis, the lowest bits first."""
    if bits == 8:
        return packed
    parts = [(packed >> (bits * k)) & ((1 << bits) - 1) for k in range(8 // bits)]
    return np.stack(parts, -1).reshape(*packed.shape[:-1], -1)


def unpacked_values(x: Value, bits: int) -> Value:
    """Bytes of small numbers along the last axis, the lowest bits first, as one number a byte."""
    if bits == 8:
        return x
    parts = [F.one("bitwise_and", F.one("bitwise_right_shift", x, bits * k), (1 << bits) - 1) for k in range(8 // bits)]
    *front, last = x.shape
    return F.reshape(F.concat([F.reshape(p, (*x.shape, 1)) for p in parts], len(x.shape)), (*front, last * len(parts)))


@op("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(c: Context, data: Value, ids: Value, scales: Value, zeros: Value | None = None, *, bits: int = 4,
                           block_size: int = 128, gather_axis: int = 0, quantize_axis: int = 1) -> Value:
    """Rows of a quantized table; indices beyond it give zeros."""
    have, rank = c.elem(data), len(data.shape)
    rows, blocks = axis_of(gather_axis, rank), axis_of(quantize_axis, rank)
    if have.name not in ("u8", "i4", "u4") or bits not in (2, 4, 8) or block_size < 1 or (have.name == "u8" and rows == blocks):
        raise UnsupportedError(f"GatherBlockQuantized of {have.name}, bits={bits}, block_size={block_size}, gather_axis={gather_axis}")
    packed = bits if have.name == "u8" else 8
    if zeros is None and have.name == "u8":
        zeros = c.full(scales.shape, 1 << (bits - 1), dt.u8)
    elif zeros is not None:
        zeros = unpacked_values(zeros, packed)
        zeros = F.slice_(zeros, rank - 1, 0, scales.shape[-1]) if zeros.shape[-1] != scales.shape[-1] else zeros
    size = data.shape[rows]
    ids = nonnegative(c, ids, size)
    there = F.logical_and(F.greater_equal(ids, 0), F.less(ids, c.scalar(size, ids.dtype)))
    ids = F.where(there, ids, 0)

    def picked(x: Value) -> Value:
        return F.gather(x, ids, rows)

    def wide(x: Value, scale: Value, zero: Value | None, axis: int) -> Value:
        whole = unpacked_values(x, packed)
        numbers = [F.cast(spread(c, t, whole, axis, block_size), dt.i32) for t in (zero,) if t is not None]
        made = F.cast(F.sub(F.cast(whole, dt.i32), numbers[0]) if numbers else F.cast(whole, dt.i32), dt.f32)
        return F.cast(F.mul(made, F.cast(spread(c, scale, whole, axis, block_size), dt.f32)), scales.dtype)

    if rows == blocks:
        out = picked(wide(data, scales, zeros, blocks))
    else:
        axis = blocks if blocks < rows else blocks + len(ids.shape) - 1
        out = wide(picked(data), picked(scales), None if zeros is None else picked(zeros), axis)
    return F.where(F.reshape(there, (*(1,) * rows, *ids.shape, *(1,) * (rank - rows - 1))), out, 0.0)


NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
       -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
       0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0)
FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)


@op("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(c: Context, a: Value, b: Value, peaks: Value, *, K: int, N: int, block_size: int, quant_type: int, transB: int = 1,
                training_mode: int = 0) -> Value:
    """Weights of four bits (numbers of a table, the first one in the high bits) times the largest of their block; they become floats."""
    data = c.array(b, "the weights").reshape(-1)
    table = np.array(NF4 if quant_type == 1 else (*FP4, *(-v for v in FP4)), np.float32)
    values = table[np.stack([data >> 4, data & 15], -1).reshape(-1)[: N * K]]
    scale = np.repeat(c.array(peaks, "absmax").astype(np.float32).reshape(-1), block_size)[: N * K]
    w = c.constant((values * scale).reshape(N, K), "weights")
    return F.cast(F.matmul(F.cast(a, dt.f32), w, transpose_b=bool(transB)), a.dtype)


EIGHT_BITS = 4  # the accuracy level at which activations may be rounded to eight bits


@op("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(c: Context, a: Value, b: Value, scales: Value, zero: Value | None = None, order: Value | None = None,
                 bias: Value | None = None, *, K: int, N: int, bits: int = 4, block_size: int, accuracy_level: int = 0,
                 weight_prepacked: int = 0) -> Value:
    if bits not in (2, 4, 8) or block_size not in GROUPS:
        raise UnsupportedError(f"MatMulNBits with bits={bits} and block_size={block_size}; supported: 2, 4 and 8 bits, blocks of {GROUPS}")
    blocks = -(-K // block_size)
    values = unpacked(c.array(b, "the weights").astype(np.uint8, copy=False).reshape(N, blocks, -1), bits)[..., :block_size]
    values, x = values.reshape(N, -1), F.cast(a, dt.f32)
    s = c.array(scales, "the scales").astype(np.float32).reshape(N, blocks)
    if zero is None:
        z: Any = np.full((N, blocks), 1 << (bits - 1), np.float32)
    else:
        given = c.array(zero, "the zero points")
        z = unpacked(given.reshape(N, -1), bits)[:, :blocks] if given.dtype == np.uint8 else given.reshape(N, blocks)
    if order is not None and (group := c.array(order, "g_idx").reshape(-1)[:K]).size:
        if group.size != K or group.min() < 0 or group.max() >= blocks:
            raise ShapeError(f"MatMulNBits: g_idx must hold {K} numbers in 0..{blocks - 1}")
        sorted_ = np.argsort(group, kind="stable")
        if not np.array_equal(group[sorted_], np.arange(K) // block_size):  # groups of other sizes are no blocks: floats
            wide = (values[:, :K] - z[:, group].astype(np.float32)) * s[:, group]
            out = F.cast(F.matmul(x, c.constant(wide, "weights"), transpose_b=True), a.dtype)
            return out if bias is None else F.add(out, bias)
        if not np.array_equal(sorted_, np.arange(K)):  # columns of one scale side by side, here and in x
            values = np.concatenate([values[:, sorted_], values[:, K:]], axis=1)
            x = F.gather(x, c.constant(sorted_.astype(np.int64), "order"), len(x.shape) - 1)
    packed, name = pack_groups(values, s, z, max(bits, 4), block_size)  # two bits lie in four
    lead = (0,) * (len(x.shape) - 1)
    x = F.pad(x, (*lead, 0), (*lead, blocks * block_size - K))  # the last block is filled up
    product = O.QMatmul(format=name, n=N, k=blocks * block_size, rounded=accuracy_level == EIGHT_BITS)
    out = F.cast(product(x, c.constant(packed, "weights")), a.dtype)
    return out if bias is None else F.add(out, bias)


def _experts(c: Context, quantized: Value, scales: Value | None, bits: int, zero: Value | None) -> Any:
    """[E, rows, columns] of floats."""
    w = unpacked(c.array(quantized, "the experts' weights").astype(np.uint8), bits).astype(np.float32)
    s: Any = np.asarray(c.array(scales, "the scales")).astype(np.float32) if scales is not None else np.float32(1)
    if zero is None:
        z: Any = np.float32(1 << (bits - 1))
    else:
        z = unpacked(c.array(zero, "the zero points").astype(np.uint8), bits).astype(np.float32)
    if scales is not None and s.ndim == 2:
        s = s[..., None]
        z = z[..., : s.shape[1]].reshape(s.shape) if zero is not None else z
    elif scales is not None:  # one scale a block of columns
        block = -(-w.shape[-1] // s.shape[-1])
        s = np.repeat(s, block, -1)[..., : w.shape[-1]]
        z = np.repeat(z, block, -1)[..., : w.shape[-1]] if zero is not None else z
    return (w - z) * s


def _sparse_mixed(scores: Value) -> tuple[Value, Value]:
    """The two experts of SparseMixer and their shares: each the best that is left, by a softmax over those within 2 % of it."""
    inf, rest, shares, picks = float("-inf"), scores, [], []
    places = F.iota(scores.node.graph, (1, scores.shape[1]), 1, dt.i64)
    for _ in range(2):
        best, at = F.max_(rest, (1,), keepdims=True), O.ArgMax(axis=1, keepdims=True)(rest)
        far = F.greater(F.div(F.sub(best, scores), F.maximum(F.abs_(scores), best)), 0.02)
        shares.append(F.max_(F.softmax(F.where(far, inf, rest), 1), (1,), keepdims=True))
        picks.append(at)
        rest = F.where(F.equal(places, at), inf, rest)
    return F.concat(shares, 1), F.concat(picks, 1)


@op("MoE", domain=MICROSOFT)
def moe(c: Context, x: Value, router: Value, first: Any, b1: Value | None, second: Any, b2: Value | None = None, third: Any = None,
        b3: Value | None = None, *, k: int = 1, activation_type: str = "relu", normalize_routing_weights: int = 0,
        use_sparse_mixer: int = 0, activation_alpha: float = 1.0, activation_beta: float = 0.0, swiglu_fusion: int = 0,
        swiglu_limit: float | None = None, mixing: Value | None = None) -> Value:
    """Every row through its k experts. Weights are [E, out, in]; `mixing` gives the experts' shares where the router only chooses."""
    width = x.shape[-1]
    rows = F.reshape(x, (x.type.numel // width, width))
    scores = F.cast(router, dt.f32)
    if use_sparse_mixer:
        if k != 2:
            raise UnsupportedError(f"use_sparse_mixer with k={k}: it is defined for two experts")
        share, ids = _sparse_mixed(scores)
    else:
        share, ids = O.TopK(k=k, axis=1)(F.softmax(scores, 1))
        share = share if mixing is None else F.emit(O.GatherAlongAxis(axis=1), F.cast(mixing, dt.f32), ids)
        share = F.div(share, F.sum_(share, (1,), keepdims=True)) if normalize_routing_weights else share
    t = rows.shape[0]
    flat = F.reshape(ids, (t * k,))
    many = F.reshape(F.expand(F.reshape(rows, (t, 1, width)), (t, k, width)), (t * k, width))

    def through(v: Value, w: Any, b: Value | None) -> Value:
        out = O.GroupedMatmul(transpose_b=True)(v, c.constant(w.astype(v.dtype.np)) if isinstance(w, np.ndarray) else w, flat)
        return out if b is None else F.add(out, F.gather(b, flat, 0))

    h = through(many, first, b1)
    if activation_type == "swiglu":
        n = h.shape[-1]
        if swiglu_fusion == 0:
            gate, up = h, through(many, third, b3)
        elif swiglu_fusion == 2:
            gate, up = F.split(h, 1, (n // 2, n // 2))
        else:
            pairs = F.reshape(h, (t * k, n // 2, 2))
            gate, up = (F.reshape(p, (t * k, n // 2)) for p in F.split(pairs, 2, (1, 1)))
        if swiglu_limit is not None:
            gate, up = F.minimum(gate, swiglu_limit), F.minimum(F.maximum(up, -swiglu_limit), swiglu_limit)
        h = F.mul(F.mul(gate, F.sigmoid(F.mul(gate, activation_alpha))), F.add(up, activation_beta))
    else:
        h = h if activation_type == "identity" else F.one(activation_type, h)
        if third is not None:
            h = F.mul(h, through(many, third, b3))
    out = through(h, second, b2)
    total = F.sum_(F.mul(F.reshape(out, (t, k, out.shape[-1])), F.cast(F.reshape(share, (t, k, 1)), out.dtype)), (1,))
    return F.reshape(total, (*x.shape[:-1], out.shape[-1]))


@op("QMoE", domain=MICROSOFT)
def qmoe(c: Context, x: Value, router: Value, w1: Value, s1: Value, b1: Value | None, w2: Value, s2: Value, b2: Value | None = None,
         w3: Value | None = None, s3: Value | None = None, b3: Value | None = None, z1: Value | None = None, z2: Value | None = None,
         z3: Value | None = None, mixing: Value | None = None, *, expert_weight_bits: int = 4, block_size: int = 0, quant_type: str = "int",
         weights_prepacked: int = -1, accuracy_level: int = 0, normalize_routing_weights: int = 0, **attrs: Any) -> Value:
    """The weights become floats. Shares always add up to 1 where the router gives them, as in ONNX Runtime."""
    if quant_type != "int" or weights_prepacked == 1:
        raise UnsupportedError(f"QMoE with quant_type={quant_type!r} and weights_prepacked={weights_prepacked}; supported: plain integers")
    bits = [attrs.pop(f"fc{i}_expert_weight_bits", expert_weight_bits) for i in (1, 2, 3)]
    first, second, third = (None if w is None else _experts(c, w, s, n, z)
                            for w, s, z, n in zip((w1, w2, w3), (s1, s2, s3), (z1, z2, z3), bits, strict=True))
    return moe(c, x, router, first, b1, second, b2, third, b3, mixing=mixing,
               normalize_routing_weights=int(mixing is None or bool(normalize_routing_weights)), **attrs)


# --- int8 ----------------------------------------------------------------------------------------------------------------------------


def _numbers(c: Context, x: Value, scale: Value, zero: Value | None) -> Value:
    return dequantize(c, x, scale, zero, axis=0)


def _quantized(c: Context, y: Value, scale: Value, zero: Value | None, like: Value) -> Value:
    e: Elem = c.elem(zero if zero is not None else like)
    return to_quantized(c, F.div(y, spread(c, scale, y, 0, 0)), zero, e, y, 0, 0, True)


def _qbinary(name: str) -> Any:
    def handler(c: Context, a: Value, sa: Value, za: Value | None, b: Value, sb: Value, zb: Value | None, sy: Value,
                zy: Value | None = None) -> Value:
        return _quantized(c, F.one(name, _numbers(c, a, sa, za), _numbers(c, b, sb, zb)), sy, zy, a)

    return handler


op("QLinearAdd", domain=MICROSOFT)(_qbinary("add"))
op("QLinearMul", domain=MICROSOFT)(_qbinary("mul"))


@op("QGemm", domain=MICROSOFT)
def quantized_gemm(c: Context, a: Value, sa: Value, za: Value | None, b: Value, sb: Value, zb: Value | None, bias: Value | None = None,
                   sy: Value | None = None, zy: Value | None = None, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Value:
    """The bias holds i32 sums of the product's own scale."""
    a, b = (F.transpose(v, (1, 0)) if t else v for v, t in ((a, transA), (b, transB)))
    total = integer_matmul(c, a, b, za, zb)
    total = total if bias is None else F.add(total, bias)
    factor = F.mul(F.mul(F.reshape(sa, ()), F.reshape(sb, ()) if sb.shape in ((), (1,)) else sb), alpha)
    if sy is None:
        return F.mul(F.cast(total, dt.f32), factor)
    zero = None if zy is None else F.reshape(zy, ())
    return requantized(c, total, F.div(factor, F.reshape(sy, ())), zero, c.elem(a if zy is None else zy))


@op("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(c: Context, x: Value, sx: Value, zx: Value | None, sy: Value, zy: Value | None = None, *, alpha: float = 0.01) -> Value:
    y = _numbers(c, x, sx, zx)
    y = F.sigmoid(y) if c.node.op_type == "QLinearSigmoid" else F.one("leaky_relu", y, slope=alpha)
    return _quantized(c, y, sy, zy, x)


@op("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_pool(c: Context, x: Value, sx: Value, zx: Value | None, sy: Value, zy: Value | None = None, *,
                        channels_last: int = 0) -> Value:
    n = len(x.shape)
    axes = tuple(range(1, n - 1)) if channels_last else tuple(range(2, n))
    return _quantized(c, F.mean(_numbers(c, x, sx, zx), axes, keepdims=True), sy, zy, x)


@op("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(c: Context, x: Value, sx: Value, zx: Value | None, sy: Value, zy: Value | None = None, *,
                         channels_last: int = 0, **attrs: Any) -> Value:
    return _channels(lambda v: _quantized(c, average_pool(c, _numbers(c, v, sx, zx), **attrs), sy, zy, v), x, channels_last)


def _channels(fn: Callable[[Value], Value], x: Value, last: int) -> Value:
    """fn of x, whose channels fn wants first."""
    if not last:
        return fn(x)
    n = len(x.shape)
    return F.transpose(fn(F.transpose(x, (0, n - 1, *range(1, n - 1)))), (0, *range(2, n), 1))


@op("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(c: Context, sy: Value, zy: Value, *parts: Value, axis: int) -> Value:
    rows = []
    for i in range(0, len(parts), 3):
        x, s, z = parts[i : i + 3]
        same = [c.known(v) for v in (s, sy, z, zy)]
        equal = all(v is not None for v in same) and np.array_equal(same[0], same[1]) and np.array_equal(same[2], same[3])  # type: ignore[arg-type]
        rows.append(x if equal else _quantized(c, _numbers(c, x, s, z), sy, zy, x))
    return rows[0] if len(rows) == 1 else F.concat(rows, axis_of(axis, len(rows[0].shape)))


@op("QLinearConv", domain=MICROSOFT)
def ms_qlinear_conv(c: Context, x: Value, *more: Value, channels_last: int = 0, **attrs: Any) -> Value:
    return _channels(lambda v: qlinear_conv(c, v, *more, **attrs), x, channels_last)


@op("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(c: Context, a: Value, b: Value, sa: Value, sb: Value, za: Value | None = None, zb: Value | None = None,
                            bias: Value | None = None) -> Value:
    total = F.cast(integer_matmul(c, a, b, za, zb), dt.f32)
    out = F.mul(total, F.mul(F.reshape(sa, ()), sb if sb.shape not in ((), (1,)) else F.reshape(sb, ())))
    return out if bias is None else F.add(out, bias)


@op("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(c: Context, a: Value, b: Value, sb: Value, zb: Value | None = None, bias: Value | None = None) -> Value:
    quantized, scale, zero = dynamic_quantize(c, a)
    return matmul_integer_to_float(c, quantized, b, scale, sb, zero, zb, bias)


# --- images, positions, distances ----------------------------------------------------------------------------------------------------


@op("GroupNorm", domain=MICROSOFT)
def ms_group_norm(c: Context, x: Value, gamma: Value, beta: Value, *, groups: int, activation: int = 0,
                  channels_last: int = 1, epsilon: float = 1e-5) -> Value:
    y = _channels(lambda v: group_norm(c, v, F.cast(gamma, x.dtype), F.cast(beta, x.dtype), num_groups=groups, epsilon=epsilon), x,
                  channels_last)
    return F.silu(y) if activation else y


@op("SkipGroupNorm", domain=MICROSOFT)
def skip_group_norm(c: Context, x: Value, gamma: Value, beta: Value, skip: Value, bias: Value | None = None, **attrs: Any) -> Any:
    total = total_of(x, skip if len(skip.shape) == 4 else F.reshape(skip, (skip.shape[0], 1, 1, skip.shape[1])), bias)
    return ms_group_norm(c, total, gamma, beta, **attrs), total


def _gated(x: Value) -> Value:
    """The first half of the last axis times the gelu of the second."""
    axis, half = len(x.shape) - 1, x.shape[-1] // 2
    left, right = F.split(x, axis, (half, half))
    return F.mul(left, F.gelu(right))


@op("RelativePositionBias", domain=MICROSOFT)
def relative_position_bias(c: Context, table: Value, queries: Value, keys: Value, *, max_distance: int, is_bidirectional: int = 0) -> Value:
    """T5's: rows of the table by how far a key is away, near ones each by itself, far ones in buckets that grow."""
    (s,), (t,), buckets = c.dims(queries, "the queries' length"), c.dims(keys, "the keys' length"), int(table.shape[0])
    away = F.sub(F.iota(c.graph, (1, t), 1, dt.i64), F.iota(c.graph, (s, 1), 0, dt.i64))
    side = buckets // 2 if is_bidirectional else buckets
    base = F.where(F.greater(away, 0), side, F.mul(away, 0)) if is_bidirectional else F.mul(away, 0)
    far = F.abs_(away) if is_bidirectional else F.neg(F.minimum(away, 0))
    near = side // 2
    growth = F.mul(F.log(F.div(F.cast(F.maximum(far, 1), dt.f32), float(near))), (side - near) / float(np.log(max_distance / near)))
    wide = F.minimum(F.add(F.cast(growth, dt.i64), near), side - 1)
    rows = F.gather(table, F.add(base, F.where(F.less(far, near), far, wide)), 0)
    return F.reshape(F.transpose(rows, (2, 0, 1)), (1, table.shape[1], s, t))


@op("GatedRelativePositionBias", domain=MICROSOFT)
def gated_position_bias(c: Context, query: Value, bias: Value, places: Value, w: Value, w_bias: Value, scale: Value,
                        offsets: Value | None = None, *, num_heads: int) -> Value:
    if offsets is not None:
        raise UnsupportedError("GatedRelativePositionBias of rows without padding (token_offset)")
    b, s, wide = query.shape
    q = F.transpose(F.reshape(F.add(query, bias), (b, s, num_heads, wide // num_heads)), (0, 2, 1, 3))
    made = F.add(F.matmul(q, w), w_bias)
    gates = F.sigmoid(F.sum_(F.reshape(made, (b, num_heads, s, 2, made.shape[-1] // 2)), (4,)))
    u, r = F.split(gates, 3, (1, 1))
    return F.mul(F.add(F.mul(u, F.sub(F.mul(r, scale), 1.0)), 2.0), places)


def _unfolded(c: Context, x: Value, axis: int, size: int, step: int) -> Value:
    """Windows of `size` elements along an axis; their elements are a new last axis."""
    count, n = (x.shape[axis] - size) // step + 1, len(x.shape)
    at = F.add(F.mul(F.iota(c.graph, (count, 1), 0, dt.i64), step), F.iota(c.graph, (1, size), 1, dt.i64))
    return F.transpose(F.gather(x, at, axis), (*(a for a in range(n + 1) if a != axis + 1), axis + 1))


@op("CropAndResize", domain=MICROSOFT)
def crop_and_resize(c: Context, x: Value, boxes: Value, rows: Value, size: Value, *, mode: str = "bilinear",
                    extrapolation_value: float = 0.0) -> Value:
    """Boxes (y1, x1, y2, x2) of images, corners of 0 and 1, at one size."""
    n, sizes = boxes.shape[0], c.ints(size, "the size of crops")
    at = []
    for axis, count in enumerate(sizes):
        ends = [F.reshape(F.slice_(boxes, 1, k, 1), (n, 1)) for k in (axis, axis + 2)]
        steps = c.constant(np.linspace(0, 1, count, dtype=np.float32) if count > 1 else np.array([0.5], np.float32))
        at.append(F.add(F.mul(F.sub(ends[1], ends[0]), steps), ends[0]))
    y, x_at = (F.expand(F.reshape(v, shape), (n, *sizes)) for v, shape in zip(at, ((n, sizes[0], 1), (n, 1, sizes[1])), strict=True))
    grid = F.sub(F.mul(F.concat([F.reshape(v, (n, *sizes, 1)) for v in (x_at, y)], 3), 2.0), 1.0)
    out = sample_grid(F.gather(x, rows, 0), grid, mode=mode.removeprefix("bi"), padding="border", align=True)
    inside = F.logical_and(*(F.logical_and(F.greater_equal(v, 0.0), F.less_equal(v, 1.0)) for v in (x_at, y)))
    return F.where(F.reshape(inside, (n, 1, *sizes)), out, extrapolation_value)


@op("CDist", domain=MICROSOFT)
def distances(c: Context, a: Value, b: Value, *, metric: str = "sqeuclidean") -> Value:
    if metric not in ("sqeuclidean", "euclidean"):
        raise UnsupportedError(f"CDist with the metric {metric!r}")
    apart = F.sub(F.reshape(a, (a.shape[0], 1, a.shape[1])), F.reshape(b, (1, *b.shape)))
    squares = F.sum_(F.square(apart), (2,))
    return squares if metric == "sqeuclidean" else F.sqrt(squares)


rows({
    "GridSample": lambda c, x, grid, *, align_corners=0, mode="bilinear", padding_mode="zeros":
        sample_grid(x, grid, mode=mode.removeprefix("bi"), padding=padding_mode, align=bool(align_corners)),
    "TransposeMatMul": fused_matmul,
    "NhwcMaxPool": lambda c, x, **attrs: _channels(lambda v: max_pool(c, v, **attrs), x, 1),
    "Gelu": lambda c, x: F.gelu(x),
    "BiasGelu": lambda c, x, bias: F.gelu(F.add(x, bias)),
    "FastGelu": lambda c, x, bias=None: F.gelu(x if bias is None else F.add(x, bias), approximate="tanh"),
    "QuickGelu": lambda c, x, *, alpha=1.702: F.mul(x, F.sigmoid(F.mul(x, alpha))),
    "GemmFastGelu": lambda c, x, w, bias=None: F.gelu(total_of(product_of(x, w), bias), approximate="tanh"),
    "BiasAdd": lambda c, *parts: total_of(*parts),
    "BiasSplitGelu": lambda c, x, bias: _gated(F.add(x, bias)),
    "NhwcConv": lambda c, x, w, bias=None, **attrs: _channels(lambda v: conv(c, v, F.transpose(w, (0, 3, 1, 2)), bias, **attrs), x, 1),
    "Inverse": lambda c, x: inv(x),
    "ConvTransposeWithDynamicPads": lambda c, x, w, pads=None, bias=None, **attrs:
        conv_transpose(c, x, w, bias, pads=None if pads is None else c.ints(pads, "the pads"), **attrs),
    "Trilu": trilu, "LayerNormalization": layer_norm, "BitShift": bit_shift, "ExpandDims": unsqueeze, "GatherND": gather_nd, "Pad": pad,
    "Range": lambda c, a, b, step=None: range_(c, a, b, c.scalar(1, a.dtype) if step is None else step),
    "UnfoldTensor": lambda c, x, *, dim=-1, size, step=1: _unfolded(c, x, axis_of(dim, len(x.shape)), size, step),
    "QLinearWhere": lambda c, cond, x, sx, zx, y, sy, zy, sz, zz=None:
        _quantized(c, F.where(cond, *c.broadcast(_numbers(c, x, sx, zx), _numbers(c, y, sy, zy))), sz, zz, x),
    "QLinearSoftmax": lambda c, x, sx, zx, sy, zy=None, *, axis=-1, opset=13:
        _quantized(c, F.softmax(_numbers(c, x, sx, zx), axis_of(axis, len(x.shape))), sy, zy, x),
    "QuantizeLinear": quantize, "DequantizeLinear": dequantize,
}, domain=MICROSOFT)
