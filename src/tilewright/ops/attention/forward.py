"""Attention and rotary embedding."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, at_least
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Pulled, S, Values, register
from ..families import Composite, M, N, bf16, boolean, f16, f32, f64, i32, require_broadcasts_to, require_kind, require_one_dtype

WIDEST_HEAD = 256  # the largest head size of a block program
MOST_SCORES = 1 << 31  # the most scores that are written to memory
RULES = "q[B,H,Sq,D] k[B,Hkv,Sk,D] v[B,Hkv,Sk,Dv]"


@register
class Attention(Composite):
    """softmax(scale * q @ k.T, soft-capped, + bias, masked) @ v, with H / Hkv query heads sharing a key head.

    Query i sees key j iff the mask says so and, when causal, j <= i + offset, and, with a window, j > i + offset - window.
    Scores that the mask hides become `hidden`, those that the positions hide -inf. A row whose scores are all -inf gives zeros, or NaN
    where `empty` is "nan", as a softmax does; its derivative is zero. Operands: q, k, v, [mask: bool, True = attend], [bias]. k and v may
    be stored in a smaller float than q (a cache); they are widened when read.
    """

    fusion, whole, by_heads = "contraction", True, True
    scale: float
    causal: bool = False
    offset: Dim = 0
    window: int | None = None
    softcap: float | None = None
    has_mask: bool = False
    has_bias: bool = False
    hidden: float = -np.inf
    empty: str = "zeros"
    samples = [S(f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 7), scale=0.4),
               S(f32(1, 4, 5, 8), f32(1, 2, 5, 8), f32(1, 2, 5, 8), scale=0.35, causal=True),
               S(f32(1, 2, 3, 4), f32(1, 1, 7, 4), f32(1, 1, 7, 4), scale=0.5, causal=True, offset=4, window=3),
               S(f32(1, 2, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4), scale=0.5, softcap=2.0, window=2),
               S(f32(2, 2, 3, 4), f32(2, 2, 5, 4), f32(2, 2, 5, 4), boolean(2, 1, 3, 5), scale=0.5, has_mask=True),
               S(f64(1, 2, 3, 4), f64(1, 2, 5, 4), f64(1, 2, 5, 4), boolean(5), f64(1, 2, 3, 5), scale=0.5, has_mask=True, has_bias=True),
               S(f32(1, 2, M, 4), f32(1, 2, M, 4), f32(1, 2, M, 4), scale=0.5, causal=True),
               S(bf16(1, 2, 3, 4), bf16(1, 2, 3, 4), bf16(1, 2, 3, 4), scale=0.5, low=-1, high=1),
               S(f32(1, 2, M, 4), f32(1, 2, M + N, 4), f32(1, 2, M + N, 4), scale=0.5, causal=True, offset=N),
               S(f32(1, 2, 3, 4), f32(1, 2, 3, 4), f32(1, 2, 3, 4), f32(3), scale=0.5, has_bias=True, causal=True, offset=-1),
               S(f32(1, 1, 2, 3), f32(1, 1, 0, 3), f32(1, 1, 0, 3), scale=0.5),
               S(f32(1, 4, M, 4), f16(1, 2, M + N, 4), f16(1, 2, M + N, 4), scale=0.5, causal=True, offset=N),
               S(f32(1, 2, 3, 4), bf16(1, 2, 5, 4), bf16(1, 2, 5, 4), scale=0.5),
               S(f32(2, 2, 3, 4), f32(2, 2, 5, 4), f32(2, 2, 5, 4), boolean(2, 1, 3, 1), scale=0.5, has_mask=True, hidden=-1e9),
               S(f32(1, 2, 3, 4), f32(1, 2, 3, 4), f32(1, 2, 3, 4), scale=-0.5, causal=True, offset=-1, empty="nan"),
               S(f64(1, 2, 9, 4), f64(1, 2, 70, 4), f64(1, 2, 70, 4), boolean(9, 1), scale=0.5, has_mask=True, empty="nan"),
               S(f16(1, 1, 3, 4), f16(1, 1, 5, 4), f16(1, 1, 5, 4), boolean(3, 1), scale=0.5, has_mask=True, hidden=-65504.0, empty="nan")]
    errors = [E(f32(2, 3, 4, 5), f32(2, 2, 6, 5), f32(2, 2, 6, 5), scale=1.0,
                match="query heads must be a multiple of key heads, got H=3, Hkv=2"),
              E(f32(2, 3, 4, 5), f32(2, 3, 6, 4), f32(2, 3, 6, 5), scale=1.0, match="q and k must have one head size, got q=5, k=4"),
              E(f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 7, 5), scale=1.0, match="k and v must agree in batch, heads and length"),
              E(f32(3, 4, 5), f32(3, 4, 5), f32(3, 4, 5), scale=1.0, match="needs"),
              E(i32(1, 1, 2, 3), i32(1, 1, 2, 3), i32(1, 1, 2, 3), scale=1.0, match="needs float operands"),
              E(f32(1, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), f32(2, 2), scale=1.0, has_mask=True,
                match="the mask must be bool, got mask=f32"),
              E(f32(1, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), boolean(3, 3), scale=1.0, has_mask=True,
                match=r"mask must broadcast to \[1,1,2,2\]"),
              E(f32(1, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), scale=1.0, has_bias=True,
                match="has_mask=False and has_bias=True take 4 operands"),
              E(f32(1, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), scale=1.0, window=0, match="window must be positive"),
              E(f32(1, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), scale=1.0, empty="none", match="empty must be 'zeros' or 'nan'"),
              E(f32(1, 1, 2, 3), f32(1, 1, 0, 3), f32(1, 1, 0, 3), scale=1.0, empty="nan", match="empty='nan' needs a key, got keys=0"),
              E(f32(1, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), scale=1.0, hidden=np.inf, match="hidden must be below inf"),
              E(f32(2, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), scale=1.0, match="q and k must have one batch size"),
              E(f16(1, 1, 2, 3), f32(1, 1, 2, 3), f32(1, 1, 2, 3), scale=1.0, match="that of q or a smaller one, got q=f16, k=f32")]

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> TensorType:
        count = 3 + self.has_mask + self.has_bias
        require(len(rest) + 3 == count, "has_mask={m} and has_bias={b} take {n} operands", m=self.has_mask, b=self.has_bias, n=count,
                operands=len(rest) + 3)
        mask, bias = self._extras(rest)
        floats = (q, k, v) if bias is None else (q, k, v, bias)
        require_kind(floats, "f")
        require_one_dtype((q,) if bias is None else (q, bias))
        require(k.dtype is v.dtype and (k.dtype is q.dtype or k.dtype.itemsize < q.dtype.itemsize <= 4),
                "k and v must have one dtype, that of q or a smaller one", q=q.dtype, k=k.dtype, v=v.dtype)
        require(q.ndim == k.ndim == v.ndim == 4, "needs {rules}", rules=RULES, q=q, k=k, v=v)
        (b, h, sq, d), (bk, hk, sk, dk) = q.shape, k.shape
        require(b == bk, "q and k must have one batch size", q=b, k=bk)
        require(d == dk, "q and k must have one head size", q=d, k=dk)
        require(isinstance(h, int) and isinstance(hk, int) and hk > 0 and h % hk == 0, "query heads must be a multiple of key heads", H=h,
                Hkv=hk)
        require(k.shape[:3] == v.shape[:3], "k and v must agree in batch, heads and length", k=k, v=v)
        require(self.window is None or self.window > 0, "window must be positive", window=self.window)
        require(self.softcap is None or self.softcap > 0, "softcap must be positive", softcap=self.softcap)
        require(self.empty in ("zeros", "nan"), "empty must be 'zeros' or 'nan'", empty=self.empty)
        require(self.empty == "zeros" or at_least(sk, 1), "empty='nan' needs a key", keys=sk)
        require(self.hidden < np.inf, "hidden must be below inf", hidden=self.hidden)
        if mask is not None:
            require(mask.dtype.is_bool, "the mask must be bool", mask=mask.dtype)
            require_broadcasts_to("mask", mask.shape, (b, h, sq, sk))
        if bias is not None:
            require_broadcasts_to("bias", bias.shape, (b, h, sq, sk))
        return q.with_shape((b, h, sq, v.shape[3]))

    def _extras(self, rest: tuple[Any, ...]) -> tuple[Any, Any]:
        """(mask, bias), None where absent."""
        return (rest[0] if self.has_mask else None, rest[-1] if self.has_bias else None)

    def ref(self, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        mask, bias = self._extras(rest)
        shared = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
        s = np.matmul(q, np.swapaxes(k, -1, -2)) * q.dtype.type(self.scale)  # rounded: what a large bias leaves of a score depends on it
        if self.softcap is not None:
            s = (self.softcap * np.tanh(s.astype(np.float64) / self.softcap)).astype(q.dtype)
        if bias is not None:
            s = s + bias
        s = (s if mask is None else np.where(mask, s, q.dtype.type(self.hidden))).astype(np.float64)
        s = np.where(self._seen(s.shape[-2], s.shape[-1]), s, -np.inf)
        top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
        e = np.exp(s - np.where(top == -np.inf, 0, top))
        total = np.sum(e, axis=-1, keepdims=True)
        p = e / total if self.empty == "nan" else np.divide(e, total, out=np.zeros_like(e), where=total != 0)
        return np.matmul(p.astype(q.dtype), v)

    def _seen(self, rows: int, columns: int) -> Any:
        offset: Any = self.offset
        i = np.arange(rows)[:, None] + offset
        j = np.arange(columns)[None, :]
        seen = np.ones((rows, columns), bool)
        if self.causal:
            seen &= j <= i
        return seen if self.window is None else seen & (j > i - self.window)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        q, _, v = operands[:3]
        program = q.dtype is not dt.f64 and all(isinstance(x.shape[-1], int) and x.shape[-1] <= WIDEST_HEAD for x in (q, v))
        return type(self) is Attention and not program and in_products_faster(operands, self.offset, target)

    def decompose(self, q: Value, k: Value, v: Value, *rest: Value) -> Value:
        return F.matmul(self.weights(q, k, *rest), self.repeated(v, q))

    def weights(self, q: Value, k: Value, *rest: Value) -> Value:
        """The weight of every key in every row of the result: [B, H, rows, keys]."""
        mask, bias = self._extras(rest)
        k, rows, columns = self.repeated(k, q), q.shape[2], k.shape[2]
        s = F.matmul(q, k, transpose_b=True, alpha=self.scale)
        if self.softcap is not None:
            s = F.mul(F.tanh(F.div(s, self.softcap)), self.softcap)
        if bias is not None:
            s = F.add(s, bias)
        s = s if mask is None else F.where(mask, s, self.hidden)
        seen = self._position_mask(q.node.graph, rows, columns)
        s = s if seen is None else F.where(seen, s, -np.inf)
        if columns == 0:
            return s
        if self.empty == "nan":
            return F.softmax(s, 3)
        top = F.max_(s, (3,), keepdims=True)
        e = F.exp(F.sub(s, F.where(F.equal(top, -np.inf), 0.0, top)))
        total = F.sum_(e, (3,), keepdims=True)
        return F.div(e, F.where(F.equal(total, 0.0), 1.0, total))

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        """A row that a finite `hidden` leaves nothing of is a mean of the values, which the backward pass's kernels do not know."""
        return (rule == "vjp" and self.hidden != -np.inf) or super().expands(rule, active)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        from .backward import pull_back

        return pull_back(self, inputs, g, wanted)

    @staticmethod
    def repeated(x: Value, q: Value) -> Value:
        """Keys or values in the dtype of the queries, each head as often in a row as there are queries' heads for it."""
        x = F.cast(x, q.dtype)
        b, h, s, d = x.shape
        if h == q.shape[1]:
            return x
        times = q.shape[1] // h
        return F.reshape(F.expand(F.reshape(x, (b, h, 1, s, d)), (b, h, times, s, d)), (b, h * times, s, d))

    def _position_mask(self, graph: Graph, rows: Dim, columns: Dim) -> Value | None:
        if not self.causal and self.window is None:
            return None
        i = F.iota(graph, (rows, 1), 0, dt.i64, start=self.offset)
        j = F.iota(graph, (1, columns), 1, dt.i64)
        causal = F.less_equal(j, i) if self.causal else None
        if self.window is None:
            return causal
        inside = F.greater(j, F.sub(i, self.window))
        return inside if causal is None else F.logical_and(causal, inside)

    def flops(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> Dim:
        b, h, sq, d = q.shape
        pairs = b * h * sq * k.shape[2]
        return 2 * pairs * (d + v.shape[3]) + 5 * pairs

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        """Cases are merged into the batch axis."""
        every = [F.broadcast_batch(v, b, size) for v, b in zip(inputs[:3], batched, strict=False)]
        cases = every[0].shape[1]
        for v, b in zip(inputs[3:], batched[3:], strict=True):
            lead = v if b else F.reshape(v, (1, *v.shape))
            lead = F.reshape(lead, (lead.shape[0], *(1,) * (5 - len(lead.shape)), *lead.shape[1:]))
            every.append(F.expand(lead, (size, cases, *lead.shape[2:])))
        merged = [F.reshape(v, (v.shape[0] * v.shape[1], *v.shape[2:])) for v in every]
        out = self(*merged)
        return (F.reshape(out, (size, out.shape[0] // size, *out.shape[1:])),)


def in_products_faster(operands: Values, offset: Dim, target: TargetSpec | None) -> bool:
    """Whether a GPU has only the shared kernel for this attention, where a thread computes whole rows: products on all threads and a
    softmax in between are faster by far, as long as there is room for the scores. (Over a cache, whose offset is a symbol, they would be
    other kernels at every call.)"""
    (batch, heads, rows, _), keys = operands[0].shape, operands[1].shape[2]
    pairs = batch * heads * rows * keys
    known = isinstance(offset, int) and not (isinstance(pairs, int) and pairs > MOST_SCORES)
    return target is not None and target.kind == "cuda" and rows != 1 and known


@register
class Rope(Composite):
    """Rotate pairs of the first n_rot elements of each row: (x1*cos - x2*sin, x2*cos + x1*sin).

    Pairs are the two halves, or neighbours when interleaved; elements after n_rot pass. cos and sin broadcast to [...,S,n_rot//2].
    """

    interleaved: bool = False
    n_rot: int | None = None
    work = 3
    whole = True
    samples = [S(f32(2, 3, 4, 6), f32(4, 3), f32(4, 3)), S(f32(2, 4, 6), f32(4, 3), f32(4, 3), interleaved=True),
               S(f32(2, 4, 8), f32(4, 2), f32(4, 2), n_rot=4), S(f64(3, 8), f64(3, 3), f64(3, 3), n_rot=6, interleaved=True),
               S(f32(1, 2, N, 4), f32(N, 2), f32(N, 2)), S(bf16(2, 4), bf16(2, 2), bf16(2, 2)), S(f16(2, 4), f16(1, 2), f16(1, 2))]
    errors = [E(f32(4, 6), f32(4, 2), f32(4, 2), match=r"cos must broadcast to \[4,3\], got shape=\[4,2\]"),
              E(f32(4, 5), f32(4, 2), f32(4, 2), match="n_rot must be even and in 2..5, got n_rot=5"),
              E(f32(4), f32(2), f32(2), match="needs x of rank 2 or more"),
              E(f32(4, 6), f32(4, 3), f64(4, 3), match="operands must have one dtype"),
              E(f32(4, N), f32(4, 1), f32(4, 1), match="the last dim of x must be known")]

    def _rotated(self, width: Any) -> int:
        return int(width) if self.n_rot is None else self.n_rot

    def infer(self, x: TensorType, cos: TensorType, sin: TensorType) -> TensorType:
        require_kind((x, cos, sin), "f")
        require_one_dtype((x, cos, sin))
        require(x.ndim >= 2, "needs x of rank 2 or more", x=x)
        width = x.shape[-1]
        require(isinstance(width, int), "the last dim of x must be known", x=x)
        n = self._rotated(width)
        require(n % 2 == 0 and 2 <= n and isinstance(width, int) and n <= width, "n_rot must be even and in 2..{width}", width=width,
                n_rot=n)
        require_broadcasts_to("cos", cos.shape, (*x.shape[:-1], n // 2))
        require_broadcasts_to("sin", sin.shape, (*x.shape[:-1], n // 2))
        return x

    def ref(self, x: Any, cos: Any, sin: Any) -> Any:
        n = self._rotated(x.shape[-1])
        out = np.array(x)
        first, second = (slice(0, n, 2), slice(1, n, 2)) if self.interleaved else (slice(0, n // 2), slice(n // 2, n))
        a, b = x[..., first], x[..., second]
        out[..., first] = a * cos - b * sin
        out[..., second] = b * cos + a * sin
        return out

    def decompose(self, x: Value, cos: Value, sin: Value) -> Value:
        *lead, width = x.shape
        n, axis = self._rotated(width), len(lead)
        rotated = x if n == width else F.slice_(x, axis, 0, n)
        if self.interleaved:
            pairs = F.reshape(rotated, (*lead, n // 2, 2))
            a, b = (F.reshape(p, (*lead, n // 2)) for p in F.split(pairs, axis + 1, (1, 1)))
        else:
            a, b = F.split(rotated, axis, (n // 2, n // 2))
        u, w = F.sub(F.mul(a, cos), F.mul(b, sin)), F.add(F.mul(b, cos), F.mul(a, sin))
        if self.interleaved:
            both = F.concat([F.reshape(u, (*lead, n // 2, 1)), F.reshape(w, (*lead, n // 2, 1))], axis + 1)
            out = F.reshape(both, (*lead, n))
        else:
            out = F.concat([u, w], axis)
        return out if n == width else F.concat([out, F.slice_(x, axis, n, width - n)], axis)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        """With the same angles it is linear in x."""
        return any(active[1:]) or (rule == "batch" and not active[0])

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        _, cos, sin = inputs
        return (self(g, cos, F.neg(sin)), None, None)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        assert tangents[0] is not None
        return (self(tangents[0], *inputs[1:]),)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return (self(*inputs),)
