"""com.microsoft: attention, its caches of keys and values, rotary embedding."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dims import Dim, maximum
from ...core.dtypes import DType
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.attention.backward import AttentionSaved
from .ops_microsoft import matmul_integer_to_float, total_of, unpacked_values
from .registry import Context, static
from .tables import MICROSOFT, op


def heads(x: Value, count: int) -> Value:
    """[B, S, N * H] as [B, N, S, H]."""
    b, s, d = x.shape
    return F.transpose(F.reshape(x, (b, s, count, d // count)), (0, 2, 1, 3))


def merged(x: Value) -> Value:
    b, n, s, h = x.shape
    return F.reshape(F.transpose(x, (0, 2, 1, 3)), (b, s, n * h))


def attend(c: Context, q: Value, k: Value, v: Value, *, scale: float, mask: Value | None, bias: Value | None, causal: bool = False,
           offset: Dim = 0, hidden: float = -10000.0) -> tuple[Value, Value | None]:
    """Attention over [B, N, S, H], and its scores if the node's fourth result is wanted. As in ONNX Runtime `hidden` is added to the scores
    that a mask hides, so that a row whose every key is hidden sees those of the largest scores."""
    scale = scale or float(static((q.shape[-1],), "the size of a head")[0]) ** -0.5
    if mask is not None:
        away = F.where(_key_mask(c, mask, q.shape[0], k.shape[2]), 0.0, c.scalar(hidden, q.dtype))
        bias = away if bias is None else F.add(away, bias)
    extras = () if bias is None else (F.cast(bias, q.dtype),)
    out = F.emit(O.Attention(scale=scale, causal=causal, offset=offset, has_bias=bias is not None), q, k, v, *extras)
    if not c.wanted(3):
        return merged(out), None
    scores = F.matmul(q, k, transpose_b=True, alpha=scale)
    return merged(out), scores if bias is None else F.add(scores, bias)


def _key_mask(c: Context, mask: Value, batch: Dim, length: Dim) -> Value:
    """A padding mask as bools to broadcast over [B, N, S, T]: ends [B], ends and starts [2 * B], keys [B, T], or [B, S, T]."""
    if len(mask.shape) == 1:
        at = F.cast(F.reshape(mask, (mask.shape[0], 1, 1, 1)), dt.i64)
        keys = F.reshape(places(c, length), (1, 1, 1, length))
        if mask.shape[0] == batch:
            return F.less(keys, at)
        if mask.shape[0] != 2 * batch:
            raise UnsupportedError(f"a mask of {mask.shape[0]} lengths for a batch of {batch}: one for a row, or two")
        return F.logical_and(F.less(keys, F.slice_(at, 0, 0, batch)), F.greater_equal(keys, F.slice_(at, 0, batch, batch)))
    on = mask if mask.dtype.is_bool else F.greater(mask, 0)
    if len(mask.shape) == 2:
        return F.reshape(on, (mask.shape[0], 1, 1, mask.shape[1]))
    return F.reshape(on, (mask.shape[0], 1, *mask.shape[1:])) if len(mask.shape) == 3 else on


def with_past(past: Value | None, new: Value) -> Value:
    return new if past is None else F.concat([past, new], 2)


@op("Attention", domain=MICROSOFT)
def ms_attention(c: Context, x: Value, w: Value, bias: Value | None = None, mask: Value | None = None, past: Value | None = None,
                 relative: Value | None = None, past_length: Value | None = None, *, num_heads: int, unidirectional: int = 0,
                 scale: float = 0.0, mask_filter_value: float = -10000.0, qkv_hidden_sizes: Any = None, do_rotary: int = 0,
                 past_present_share_buffer: int = 0, rotary_embedding_dim: int = 0) -> Any:
    if do_rotary or past_present_share_buffer:
        raise UnsupportedError("com.microsoft.Attention with rotary embedding or a shared buffer")
    return _attend_all(c, total_of(F.matmul(x, w), bias), mask, past, relative, num_heads, unidirectional, scale, mask_filter_value,
                       qkv_hidden_sizes)


@op("QAttention", domain=MICROSOFT)
def quantized_attention(c: Context, x: Value, w: Value, bias: Value, sx: Value, sw: Value, mask: Value | None = None,
                        zx: Value | None = None, zw: Value | None = None, past: Value | None = None, *, num_heads: int,
                        unidirectional: int = 0, scale: float = 0.0, mask_filter_value: float = -10000.0, do_rotary: int = 0,
                        past_present_share_buffer: int = 0) -> Any:
    if do_rotary or past_present_share_buffer:
        raise UnsupportedError("com.microsoft.QAttention with rotary embedding or a shared buffer")
    made = matmul_integer_to_float(c, x, w, sx, sw, zx, zw, bias)
    return _attend_all(c, made, mask, past, None, num_heads, unidirectional, scale, mask_filter_value, None)


def _attend_all(c: Context, made: Value, mask: Value | None, past: Value | None, relative: Value | None, num_heads: int,
                unidirectional: int, scale: float, mask_filter_value: float, qkv_hidden_sizes: Any) -> Any:
    """Attention of queries, keys and values side by side in `made`."""
    total = made.shape[-1]
    sizes = list(qkv_hidden_sizes) if qkv_hidden_sizes else [total // 3] * 3
    q, k, v = (heads(p, num_heads) for p in F.split(made, 2, sizes))
    offset: Dim = 0
    if past is not None:
        offset = past.shape[3]
        k, v = (with_past(F.reshape(F.slice_(past, 0, i, 1), past.shape[1:]), t) for i, t in enumerate((k, v)))
    out = attend(c, q, k, v, scale=scale, causal=bool(unidirectional), offset=offset, bias=relative, mask=mask, hidden=mask_filter_value)[0]
    if not c.wanted(1):
        return out
    return out, F.concat([F.reshape(t, (1, *t.shape)) for t in (k, v)], 0)


@op("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(c: Context, query: Value, key: Value | None = None, value: Value | None = None, bias: Value | None = None,
                         mask: Value | None = None, relative: Value | None = None, past_key: Value | None = None,
                         past_value: Value | None = None, past_length: Value | None = None, cache: Value | None = None, *,
                         num_heads: int, scale: float = 0.0, mask_filter_value: float = -10000.0, unidirectional: int = 0) -> Any:
    if len(query.shape) == 5:  # [B, S, N, 3, H]
        b, s, n, _, h = query.shape
        q, k, v = (F.transpose(F.reshape(F.slice_(query, 3, i, 1), (b, s, n, h)), (0, 2, 1, 3)) for i in range(3))
    else:
        width = query.shape[-1]
        parts: list[Value | None] = [None, None, None]
        if bias is not None:
            rest = bias.shape[0] - 2 * width
            parts = list(F.split(bias, 0, (width, width, rest)))
        q = heads(total_of(query, parts[0]), num_heads)
        if key is None:
            k = v = q
        elif len(key.shape) == 5:  # [B, L, N, 2, H]
            b, s, n, _, h = key.shape
            k, v = (F.transpose(F.reshape(F.slice_(key, 3, i, 1), (b, s, n, h)), (0, 2, 1, 3)) for i in range(2))
        else:
            assert value is not None
            k = key if len(key.shape) == 4 else heads(total_of(key, parts[1]), num_heads)
            v = value if len(value.shape) == 4 else heads(total_of(value, parts[2]), num_heads)
    offset: Dim = 0 if past_key is None else past_key.shape[2]
    k, v = with_past(past_key, k), with_past(past_value, v)
    out, scores = attend(c, q, k, v, scale=scale, causal=bool(unidirectional), offset=offset, bias=relative, mask=mask,
                         hidden=mask_filter_value)
    return out, k, v, scores


@op("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_attention(c: Context, query: Value, key: Value, value: Value, mask: Value | None = None, bias: Value | None = None,
                      past_key: Value | None = None, past_value: Value | None = None, past_length: Value | None = None,
                      beams: Value | None = None, cache: Value | None = None, parts: Value | None = None, *, num_heads: int,
                      scale: float = 0.0, mask_filter_value: float = -10000.0, past_present_share_buffer: int = 0,
                      output_qk: int = 0) -> Any:
    """One query a row: over the keys of an encoder, or over a buffer that gets the new key at `past_length`."""
    if cache is not None:
        raise UnsupportedError("DecoderMaskedMultiHeadAttention with several beams (cache_indirection)")
    if past_key is None or past_value is None:
        out, scores = attend(c, heads(total_of(query, None if parts is None else F.slice_(parts, 0, 0, query.shape[-1])), num_heads), key,
                             value, scale=scale, mask=mask, bias=bias, hidden=mask_filter_value)
        return out, None, None, scores
    if past_length is None or not past_present_share_buffer:
        raise UnsupportedError("DecoderMaskedMultiHeadAttention with a past needs past_present_share_buffer and past_sequence_length")
    offsets = [None] * 3 if parts is None else F.split(parts, 0, (query.shape[-1],) * 3)
    q, k, v = (heads(total_of(t, o), num_heads) for t, o in zip((query, key, value), offsets, strict=True))
    first = F.expand(F.cast(F.reshape(past_length, (1, 1)), dt.i64), (q.shape[0], 1))
    k, v = (appended(c, past, new, first, past.shape[2], rest=True) for past, new in ((past_key, k), (past_value, v)))
    longest = next((t.shape[-1] for t in (mask, bias) if t is not None), k.shape[2])
    k_near, v_near = (t if t.shape[2] == longest else F.slice_(t, 2, 0, longest) for t in (k, v))
    if mask is None:  # keys behind the new one are not there at all
        seen = F.less_equal(F.reshape(places(c, longest), (1, 1, 1, longest)), F.reshape(first, (first.shape[0], 1, 1, 1)))
        bias = F.add(F.where(seen, 0.0, c.scalar(float("-inf"), q.dtype)), 0.0 if bias is None else bias)
    out, scores = attend(c, q, k_near, v_near, scale=scale, mask=mask, bias=bias, hidden=mask_filter_value)
    return out, k, v, scores


def rotate(c: Context, x: Value, cos: Value, sin: Value, positions: Value, *, interleaved: bool, width: int = 0) -> Value:
    """x[B, N, S, H] turned by the rows of cos and sin that positions [B, S] name."""
    b, _, s, h = x.shape
    n_rot = width or 2 * int(static((cos.shape[-1],), "the width of a rotation")[0])
    rows = [t if len(t.shape) == 4 else F.reshape(F.gather(t, positions, 0), (b, 1, s, t.shape[-1])) for t in (cos, sin)]
    return F.emit(O.Rope(interleaved=interleaved, n_rot=None if n_rot == h else n_rot), x, *(F.cast(r, x.dtype) for r in rows))


@op("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(c: Context, query: Value, key: Value | None, value: Value | None, past_key: Value | None,
                          past_value: Value | None, lengths: Value, total: Value, cos: Value | None = None, sin: Value | None = None,
                          position_ids: Value | None = None, bias: Value | None = None, sink: Value | None = None,
                          k_scale: Value | None = None, v_scale: Value | None = None, q_norm: Value | None = None,
                          k_norm: Value | None = None, *, num_heads: int, kv_num_heads: int, scale: float = 0.0, do_rotary: int = 0,
                          rotary_interleaved: int = 0, local_window_size: int = -1, softcap: float = 0.0, smooth_softmax: int = 0,
                          causal: int = 1, qk_output: int = 0, qk_norm_epsilon: float = 1e-6, k_quant_type: str = "NONE",
                          v_quant_type: str = "NONE", kv_cache_bit_width: int = 8, sliding_window_cache: int = 0,
                          blocks: tuple[Value, Value, int] | None = None) -> Any:
    """Row b sees lengths[b] + 1 keys: those of its past, and behind them the new ones. Present keys have the length of the buffer of the
    past, or `total` where that is more; of a cache that slides they are its last ones. `blocks` says which keys a query may see."""
    if key is None or value is None:
        h = query.shape[-1] // (num_heads + 2 * kv_num_heads)
        query, key, value = F.split(query, 2, (num_heads * h, kv_num_heads * h, kv_num_heads * h))
    q, k, v = heads(query, num_heads), heads(key, kv_num_heads), heads(value, kv_num_heads)
    (b, _, s, h), (longest,) = q.shape, c.dims(total, "the total sequence length")
    if q_norm is not None and k_norm is not None:
        q, k = (O.RmsNorm(eps=qk_norm_epsilon, naxes=1, affine="weight")(t, w) for t, w in ((q, q_norm), (k, k_norm)))
    steps, own = places(c, s), F.add(F.cast(F.reshape(lengths, (b, 1)), dt.i64), 1)
    first: Value | None = None  # the place of each row's first query; None: of a prompt, whose past does not count
    if s != longest:
        prompt = F.equal(c.scalar(s, dt.i64), c.scalar(longest, dt.i64))
        first = F.where(prompt, 0, F.sub(own, c.scalar(s, dt.i64)))
    if do_rotary:
        assert cos is not None and sin is not None
        at = steps if first is None else F.add(steps, first)
        if position_ids is not None:  # a prompt counts on from the first one
            at = F.add(steps, F.reshape(F.slice_(F.reshape(position_ids, (b * s,)), 0, 0, 1), (1, 1)))
            at = at if first is None else F.where(prompt, at, position_ids)
        at, turns = F.expand(at, (b, s)), bool(rotary_interleaved)
        q, k = (rotate(c, t, cos, sin, at, interleaved=turns) if t.shape[2] != 0 else t for t in (q, k))
    first = None if past_key is None else first
    end = own  # from here on places are those in the cache
    if sliding_window_cache and past_key is not None:
        held, kept = past_key.shape[2], _kept(c, past_key.shape[2], local_window_size)
        first, end, longest = (None, own, held + s) if first is None else (kept(first), F.add(F.sub(own, first), kept(first)), held + s)
    caches = [_Cache(*x, kv_cache_bit_width, k.dtype) for x in ((k_scale, k_quant_type), (v_scale, v_quant_type))]
    k, v = (appended(c, past, cache.held(new), end if new.shape[2] == 0 else first, longest)
            for past, new, cache in zip((past_key, past_value), (k, v), caches, strict=True))
    at = steps if first is None else F.add(steps, first)
    last = F.minimum(at, F.sub(end, 1)) if causal else F.expand(F.sub(end, 1), (b, s))
    keys, last = F.reshape(places(c, longest), (1, 1, 1, longest)), F.reshape(last, (b, 1, s, 1))
    seen = F.less_equal(keys, last)
    if local_window_size >= 0:  # queries behind a row's own length: ONNX Runtime counts back from that length or, if it tiles, from them
        tiled = not (softcap or smooth_softmax or qk_output or sink is not None)
        back = F.reshape(at, (at.shape[0], 1, s, 1)) if tiled else last
        seen = F.logical_and(seen, F.greater(keys, F.sub(back, local_window_size)))
    if blocks is not None:
        seen = F.logical_and(seen, _in_blocks(c, *blocks, num_heads, F.reshape(at, (at.shape[0], s)), longest))
    k_near, v_near = (cache.read(t if t.shape[2] == longest else F.slice_(t, 2, 0, longest))
                      for t, cache in zip((k, v), caches, strict=True))
    out, scores = sunk(q, k_near, v_near, seen, bias, sink, smooth=bool(smooth_softmax), scores=qk_output, scale=scale or float(h) ** -0.5,
                       softcap=softcap or None, causal=bool(causal), offset=longest - s)
    if sliding_window_cache and past_key is not None:
        move = F.minimum(F.add(F.sub(end, kept(own)), places(c, held)), c.scalar(longest - 1, dt.i64))
        k, v = (F.emit(O.GatherAlongAxis(axis=2), t, F.expand(F.reshape(move, (b, 1, held, 1)), (*t.shape[:2], held, t.shape[3])))
                for t in (k, v))
    return merged(out), k, v, scores


def _kept(c: Context, held: Dim, window: int) -> Callable[[Value], Value]:
    """How many of a row's keys a cache of `held` rows that slides still has: where it is full, all but the window and its slack go."""
    def kept(count: Value) -> Value:
        slack = c.scalar(held - window + 1, dt.i64)
        over = F.maximum(F.sub(count, c.scalar(held, dt.i64)), 0)
        return F.sub(count, F.mul(F.one("floor_divide", F.add(over, F.sub(slack, 1)), slack), slack))

    return kept


class _Cache:
    """How keys or values lie in their cache: as they are, as bytes times a scale, or as two numbers of four bits a byte."""

    def __init__(self, scale: Value | None, kind: str, bits: int, dtype: DType) -> None:
        if kind != "NONE" and (scale is None or bits not in (4, 8)):
            raise UnsupportedError(f"a cache of keys and values that is quantized to {bits} bits, or that has no scale")
        self.scale, self.bits, self.dtype = None if kind == "NONE" else scale, bits, dtype

    def held(self, x: Value) -> Value:
        if self.scale is None:
            return x
        low, high = (-128, 127) if self.bits == 8 else (-8, 7)
        number = F.minimum(F.maximum(F.one("round", F.div(F.cast(x, dt.f32), self.scale)), low), high)
        if self.bits == 8:
            return F.cast(number, dt.i8)
        pairs = F.reshape(F.cast(F.add(number, 8.0), dt.u8), (*x.shape[:-1], x.shape[-1] // 2, 2))
        low_, high_ = (F.reshape(p, pairs.shape[:-1]) for p in F.split(pairs, 4, (1, 1)))
        return F.one("bitwise_or", low_, F.one("bitwise_left_shift", high_, 4))

    def read(self, x: Value) -> Value:
        if self.scale is None:
            return x
        number = F.cast(x, dt.f32) if self.bits == 8 else F.sub(F.cast(unpacked_values(x, 4), dt.f32), 8.0)
        return F.cast(F.mul(number, self.scale), self.dtype)


def _in_blocks(c: Context, starts: Value, columns: Value, size: int, count: int, at: Value, length: Dim) -> Value:
    """Which of `length` keys queries at [B, S] may see, [B, N, S, T]: blocks of `size` in rows [L, R + 1] and columns [L, C]; heads take
    the layouts in turn."""
    bounds, cols = c.array(starts, "block_row_indices"), c.array(columns, "block_col_indices")
    side = bounds.shape[1] - 1
    table = np.zeros((count, side, side), np.bool_)
    for n in range(count):
        bound, col = (a[n % bounds.shape[0]] for a in (bounds, cols))
        table[n, np.repeat(np.arange(side), np.diff(bound)), col[: bound[-1]]] = True
    rows = F.gather(c.constant(table), F.minimum(F.one("floor_divide", at, size), side - 1), 1)
    keys = F.minimum(F.one("floor_divide", F.reshape(places(c, length), (length,)), size), side - 1)
    return F.transpose(F.gather(rows, keys, 3), (1, 0, 2, 3))


@op("SparseAttention", domain=MICROSOFT)
def sparse_attention(c: Context, query: Value, key: Value | None, value: Value | None, past_key: Value, past_value: Value, starts: Value,
                     columns: Value, total: Value, lengths: Value, cos: Value | None = None, sin: Value | None = None, *,
                     sparse_block_size: int, **attrs: Any) -> Any:
    return group_query_attention(c, query, key, value, past_key, past_value, F.sub(lengths, 1), total, cos, sin,
                                 blocks=(starts, columns, sparse_block_size), **attrs)[:3]


def places(c: Context, count: Dim) -> Value:
    return F.iota(c.graph, (1, count), 1, dt.i64)


def appended(c: Context, past: Value | None, new: Value, first: Value | None, longest: Dim, *, rest: bool = False) -> Value:
    """[B, N, T, H]: of each row the first elements of the past, `first` [B, 1] of them, then the new ones, then zeros, or the `rest` of the
    past. T is the length of the past, or `longest` where that is more."""
    b, n, s, h = new.shape
    room = longest if past is None else maximum(longest, past.shape[2])
    if past is None or first is None:
        return new if s == room else F.pad(new, (0, 0, 0, 0), (0, 0, room - s, 0))
    first, at, held = F.reshape(first, (b, 1, 1, 1)), places(c, room), past.shape[2]
    if held == 0:
        return F.pad(new, (0, 0, 0, 0), (0, 0, room - s, 0))
    wide = past if held == room else F.gather(past, F.minimum(F.reshape(at, (room,)), c.scalar(held - 1, dt.i64)), 2)
    kept = wide if rest else F.where(F.less(F.reshape(at, (1, 1, room, 1)), first), wide, 0.0)
    if s == 0:
        return kept
    row = F.reshape(F.mul(F.iota(c.graph, (b * n,), 0, dt.i64), c.scalar(room, dt.i64)), (b, n, 1, 1))
    ids = F.add(F.add(row, first), F.reshape(places(c, s), (1, 1, s, 1)))
    made = F.one("scatter", F.reshape(kept, (b * n * room, h)), F.reshape(ids, (b * n * s,)), F.reshape(new, (b * n * s, h)))
    return F.reshape(made, (b, n, room, h))


def sunk(q: Value, k: Value, v: Value, seen: Value, bias: Value | None, sink: Value | None, *, smooth: bool, scores: int,
         **attrs: Any) -> tuple[Value, Value | None]:
    """Attention whose softmax has one more key without a value, with the score `sink` of a head or 0 (`smooth`); and the scores before (1)
    or after (2) the softmax."""
    extras = (seen,) if bias is None else (seen, F.cast(bias, q.dtype))
    attrs = {**attrs, "has_mask": True, "has_bias": bias is not None}
    if sink is None and not smooth and not scores:
        return F.emit(O.Attention(**attrs), q, k, v, *extras), None
    out, sums = AttentionSaved(**attrs)(q, k, v, *extras)
    sums = F.reshape(sums, (*sums.shape, 1))
    score = 0.0 if sink is None else F.reshape(sink, (1, sink.shape[0], 1, 1))
    share = F.sigmoid(F.sub(sums, score)) if smooth or sink is not None else None
    out = out if share is None else F.mul(out, F.cast(share, out.dtype))
    if not scores:
        return out, None
    u = F.matmul(q, O.Attention.repeated(k, q), transpose_b=True, alpha=attrs["scale"])
    u = u if attrs["softcap"] is None else F.mul(F.tanh(F.div(u, attrs["softcap"])), attrs["softcap"])
    u = u if bias is None else F.add(u, bias)
    if scores == 2:
        u = F.exp(F.sub(u, F.cast(sums, u.dtype)))
        u = u if share is None else F.mul(u, F.cast(share, u.dtype))
    return out, F.where(seen, u, 0.0)


@op("RotaryEmbedding", domain=MICROSOFT)
def ms_rotary(c: Context, x: Value, positions: Value, cos: Value, sin: Value, *, interleaved: int = 0, num_heads: int = 0,
              rotary_embedding_dim: int = 0, scale: float = 1.0, is_packed_batching: int = 0) -> Value:
    flat = len(x.shape) == 3
    width = 2 * int(static((cos.shape[-1],), "the width of a rotation")[0])
    n = num_heads or (int(x.shape[-1]) // width if flat else 0)
    y = heads(x, n) if flat else x
    b, _, s, _ = y.shape
    if len(positions.shape) < 3 and positions.type.numel == 1:  # the first position of all rows
        first = F.reshape(F.cast(positions, dt.i64), (1, 1))
        positions = F.expand(F.add(first, F.iota(c.graph, (1, s), 1, dt.i64)), (b, s))
    y = rotate(c, y, cos, sin, positions, interleaved=bool(interleaved), width=rotary_embedding_dim)
    return merged(y) if flat else y


@op("MRotaryEmbedding", domain=MICROSOFT)
def multimodal_rotary(c: Context, x: Value, positions: Value, cos: Value, sin: Value, *, mrope_section: Any, mrope_layout: int = 0,
                      **attrs: Any) -> Value:
    """Each angle by one of three positions [3, B, S]: in sections, or in turns as long as the sections last."""
    which = np.repeat(np.arange(3), mrope_section)
    if mrope_layout:
        which[:] = 0
        for k in (1, 2):
            which[k : 3 * mrope_section[k] : 3] = k
    _, b, s = positions.shape

    def mixed(table: Value) -> Value:
        t, h, w = (F.reshape(p, (b, 1, s, len(which))) for p in F.split(F.gather(table, positions, 0), 0, (1, 1, 1)))
        return F.where(c.constant(which == 0), t, F.where(c.constant(which == 1), h, w))

    return ms_rotary(c, x, positions, mixed(cos), mixed(sin), **attrs)
