"""The backward pass of attention as one op: the cotangents of q, k and v (and of the scores, for a bias) from one set of weights.

Attention that also gives the logsumexps of its rows, from which its backward pass finds the weights again without a sweep of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim, at_least
from ...core.dtypes import compute_dtype
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Values, register
from ..families import Composite, bf16, boolean, f16, f32, f64
from .forward import Attention, in_products_faster

LONGEST = 1 << 15  # keys that the kernel keeps in local memory
WIDEST = 256  # head size
SWEPT = ("sm_90a", (64, 128))  # chip and head sizes of the sweep that finds logsumexps which nobody saved


@register
class AttentionBackward(Composite):
    """Cotangents of q, k and v given that of the result, the last operand; with `with_scores` also that of the scores [B,H,Sq,Sk], which a
    bias sums to its shape. Attributes are those of the attention. `saved`: the result and its logsumexps stand before the cotangent, for
    kernels that need not find them again."""

    scale: float
    causal: bool = False
    offset: Dim = 0
    window: int | None = None
    softcap: float | None = None
    has_mask: bool = False
    has_bias: bool = False
    with_scores: bool = False
    saved: bool = False  # the result and the logsumexps (`AttentionSaved`) stand before the cotangent
    whole = True
    samples = [S(f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 7), f32(2, 3, 4, 7), scale=0.4),
               S(f32(1, 4, 29, 8), f32(1, 2, 29, 8), f32(1, 2, 29, 8), f32(1, 4, 29, 8), scale=0.35, causal=True),
               S(f32(1, 2, 3, 4), f32(1, 1, 7, 4), f32(1, 1, 7, 4), f32(1, 2, 3, 4), scale=0.5, causal=True, offset=4, window=3),
               S(f32(1, 2, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4), f32(1, 2, 5, 4), scale=0.5, softcap=2.0, window=2, with_scores=True),
               S(f32(1, 2, 3, 4), f32(1, 1, 7, 4), f32(1, 1, 7, 4), f32(1, 2, 3, 4), scale=0.5, offset=9, window=2, with_scores=True),
               S(f32(2, 2, 3, 4), f32(2, 2, 5, 4), f32(2, 2, 5, 4), boolean(2, 1, 3, 5), f32(2, 2, 3, 4), scale=0.5, has_mask=True),
               S(f64(1, 2, 3, 4), f64(1, 2, 5, 4), f64(1, 2, 5, 4), boolean(5), f64(1, 2, 3, 5), f64(1, 2, 3, 4), scale=0.5, has_mask=True,
                 has_bias=True, with_scores=True),
               S(f32(1, 2, 26, 70), f32(1, 2, 67, 70), f32(1, 2, 67, 33), f32(1, 2, 26, 33), scale=0.1, causal=True, offset=41),
               S(f32(1, 1, 3, 4), f32(1, 1, 3, 4), f32(1, 1, 3, 4), f32(1, 1, 3, 4), scale=0.5, causal=True, offset=-1),
               S(f32(1, 2, 3, 4), f32(1, 1, 7, 4), f32(1, 1, 7, 4), f32(1, 2, 3, 4), f32(1, 2, 3), f32(1, 2, 3, 4), scale=0.5, saved=True)]
    errors = [E(f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 7), f32(2, 3, 4, 5), scale=0.4,
                match=r"the cotangent must be f32\[2,3,4,7\]"),
              E(f32(2, 3, 4, 5), scale=0.4, match="takes at least 3 operands")]

    @property
    def forward(self) -> Attention:
        attrs = self.attrs()
        del attrs["with_scores"], attrs["saved"]
        return Attention(**attrs)

    def _found(self, rest: tuple[Any, ...]) -> tuple[Any, ...]:
        """Mask, bias and cotangent, without what was saved."""
        return (*rest[:-3], rest[-1]) if self.saved else rest

    def swept(self, operands: Values, target: TargetSpec | None) -> bool:
        """Whether the backward pass finds the logsumexps by itself."""
        plain = not (self.has_mask or self.has_bias or self.with_scores) and self.softcap is None and self.window is None
        return plain and target is not None and target.cpu == SWEPT[0] and operands[0].shape[-1] in SWEPT[1]

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        if self.saved or operands[0].dtype.itemsize == 2:
            return not (fits(operands, target) and (self.saved or self.swept(operands, target)))
        return in_products_faster(operands, self.offset, target)

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> Any:
        require(len(rest) >= 1 + 2 * self.saved, "needs the cotangent of the result as its last operand")
        saved, rest = rest[-3:-1], self._found(rest)
        want = self.forward.infer(q, k, v, *rest[:-1])
        if self.saved:
            sums = TensorType(compute_dtype(q.dtype), q.shape[:3])
            require(saved == (want, sums), "the saved result and logsumexps must be {want} and {sums}", want=want, sums=sums, got=saved[0])
        require(rest[-1] == want, "the cotangent must be {want}", want=want, got=rest[-1])
        require(k.dtype is q.dtype, "k and v must have q's dtype", q=q.dtype, k=k.dtype)
        scores = q.with_shape((*q.shape[:3], k.shape[2]))
        return (q, k, v, scores) if self.with_scores else (q, k, v)

    def ref(self, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        *extras, g = self._found(rest)
        mask, bias = self.forward._extras(tuple(extras))
        heads, kv = q.shape[1], k.shape[1]
        q_, k_, v_, g_ = (x.astype(np.float64) for x in (q, np.repeat(k, heads // kv, 1), np.repeat(v, heads // kv, 1), g))
        u = np.matmul(q_, np.swapaxes(k_, -1, -2)) * self.scale
        t = np.tanh(u / self.softcap) if self.softcap is not None else None
        s = u if t is None else self.softcap * t
        s = s if bias is None else s + bias
        seen = self.forward._seen(s.shape[-2], s.shape[-1])
        s = np.where(seen if mask is None else seen & mask, s, -np.inf)
        top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
        e = np.exp(s - np.where(top == -np.inf, 0, top))
        total = np.sum(e, axis=-1, keepdims=True)
        p = np.divide(e, total, out=np.zeros_like(e), where=total != 0)
        dp = np.matmul(g_, np.swapaxes(v_, -1, -2))
        scores = p * (dp - np.sum(p * dp, axis=-1, keepdims=True))
        du = (scores if t is None else scores * (1 - t * t)) * self.scale
        shared = (q.shape[0], kv, heads // kv)
        dk = np.matmul(np.swapaxes(du, -1, -2), q_).reshape(*shared, *k.shape[2:]).sum(2)
        dv = np.matmul(np.swapaxes(p, -1, -2), g_).reshape(*shared, *v.shape[2:]).sum(2)
        out = (np.matmul(du, k_), dk, dv, scores)
        return tuple(x.astype(q.dtype) for x in (out if self.with_scores else out[:3]))

    def decompose(self, q: Value, k: Value, v: Value, *rest: Value) -> Any:
        *extras, g = self._found(rest)
        mask, bias = self.forward._extras(tuple(extras))
        (batch, heads, rows, _), kv, columns = q.shape, k.shape[1], k.shape[2]
        if columns == 0:
            nothing = (F.zeros(q), F.zeros(k), F.zeros(v))
            return (*nothing, F.full(q.node.graph, (batch, heads, rows, 0), 0, q.dtype)) if self.with_scores else nothing
        wide_k, wide_v = (Attention.repeated(x, q) for x in (k, v))
        u = F.matmul(q, wide_k, transpose_b=True, alpha=self.scale)
        t = None if self.softcap is None else F.tanh(F.div(u, self.softcap))
        s = u if t is None else F.mul(t, float(self.softcap or 0))
        s = s if bias is None else F.add(s, bias)
        for seen in (self.forward._position_mask(q.node.graph, rows, columns), mask):
            s = s if seen is None else F.where(seen, s, -np.inf)
        top = F.max_(s, (3,), keepdims=True)
        e = F.exp(F.sub(s, F.where(F.equal(top, -np.inf), 0.0, top)))
        total = F.sum_(e, (3,), keepdims=True)
        p = F.div(e, F.where(F.equal(total, 0.0), 1.0, total))
        dp = F.matmul(g, wide_v, transpose_b=True)
        scores = F.mul(p, F.sub(dp, F.sum_(F.mul(p, dp), (3,), keepdims=True)))
        du = scores if t is None else F.mul(scores, F.sub(1.0, F.square(t)))
        dk, dv = F.matmul(du, q, transpose_a=True, alpha=self.scale), F.matmul(p, g, transpose_a=True)
        if heads != kv:
            dk, dv = (F.sum_(F.reshape(x, (batch, kv, heads // kv, *x.shape[2:])), (2,)) for x in (dk, dv))
        out = (F.matmul(du, wide_k, alpha=self.scale), dk, dv)
        return (*out, scores) if self.with_scores else out

    def flops(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> Dim:
        b, h, sq, d = q.shape
        pairs = b * h * sq * k.shape[2]
        return 2 * pairs * (3 * d + 2 * v.shape[3]) + 10 * pairs


def pull_back(op: Attention, inputs: Values, g: Value, wanted: tuple[bool, ...], saved: Values = ()) -> MaybeValues:
    """The rule of attention; `saved`: its result and logsumexps. Sizes that the kernel does not serve go through the decomposition at
    once."""
    q, k, v, *extras = inputs
    biased = op.has_bias and wanted[-1]
    attrs: dict[str, Any] = {k: v for k, v in op.attrs().items() if k not in ("hidden", "empty")}
    back = AttentionBackward(**attrs, with_scores=biased, saved=bool(saved))
    operands = (q, F.cast(k, q.dtype), F.cast(v, q.dtype), *extras, *saved, g)
    made = back(*operands) if served(back, operands) else back.decompose(*operands)
    dq, dk, dv, *scores = made
    bias = F.sum_to(scores[0], extras[-1].shape) if biased else None
    more = (*((None,) if op.has_mask else ()), *((bias,) if op.has_bias else ()))
    return dq, F.cast(dk, k.dtype), F.cast(dv, v.dtype), *more


def heads_fit(q: Value, k: Value, v: Value, *_: Value) -> bool:
    """Whether tensor cores serve these in 16 bits: head sizes that are multiples of 8 up to 128, and keys."""
    d = q.shape[3]
    known = isinstance(d, int) and 0 < d <= 128 and d % 8 == 0 and d == v.shape[3]
    return known and q.dtype.itemsize == 2 and q.dtype is k.dtype is v.dtype and bool(at_least(k.shape[2], 1))


def fits(operands: Values, target: TargetSpec | None) -> bool:
    """Whether a target's tensor cores serve this attention with its logsumexps, or its backward pass given them."""
    return target is not None and target.kind == "cuda" and heads_fit(*operands)


def served(op: AttentionBackward, operands: Values) -> bool:
    q, k, v = operands[:3]
    sizes = (k.shape[2], q.shape[3], v.shape[3])
    if q.dtype.name in ("bf16", "f16"):  # by tensor cores; other targets decompose it
        return heads_fit(q, k, v)
    if q.dtype.name not in ("f32", "f64") or not all(isinstance(d, int) for d in sizes):
        return False
    keys, depth, values = sizes
    return bool(0 < keys <= LONGEST and max(depth, values) <= WIDEST)


@register
class AttentionSaved(Composite):
    """`Attention`; its second result is log Σ exp of each row's scores [B,H,Sq] in f32 or wider (−inf where a row sees nothing)."""

    scale: float
    causal: bool = False
    offset: Dim = 0
    window: int | None = None
    softcap: float | None = None
    has_mask: bool = False
    has_bias: bool = False
    empty: str = "zeros"
    whole, by_heads = True, True
    samples = [S(f32(2, 3, 4, 5), f32(2, 3, 6, 5), f32(2, 3, 6, 7), scale=0.4),
               S(f32(1, 4, 5, 8), f32(1, 2, 5, 8), f32(1, 2, 5, 8), scale=0.35, causal=True),
               S(bf16(1, 2, 3, 4), bf16(1, 1, 7, 4), bf16(1, 1, 7, 4), scale=0.5, causal=True, offset=4, window=3),
               S(f16(1, 1, 3, 4), f16(1, 1, 3, 4), f16(1, 1, 3, 4), scale=0.5, causal=True),
               S(f32(1, 2, 5, 4), f32(1, 2, 6, 4), f32(1, 2, 6, 4), f32(2, 1, 6), scale=0.5, softcap=2.0, has_bias=True),
               S(f32(1, 2, 3, 4), f32(1, 2, 3, 4), f32(1, 2, 3, 4), scale=0.5, causal=True, offset=-1, empty="nan"),
               S(f64(2, 2, 3, 4), f64(2, 1, 5, 4), f64(2, 1, 5, 4), boolean(2, 1, 3, 5), f64(5), scale=0.5, has_mask=True, has_bias=True)]
    errors = [E(f32(2, 3, 4, 5), f32(2, 3, 6, 4), f32(2, 3, 6, 5), scale=1.0, match="q and k must have one head size, got q=5, k=4")]

    @property
    def plain(self) -> Attention:
        return Attention(**self.attrs())

    def infer(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> tuple[TensorType, TensorType]:
        return self.plain.infer(q, k, v, *rest), TensorType(compute_dtype(q.dtype), q.shape[:3])

    def ref(self, q: Any, k: Any, v: Any, *rest: Any) -> Any:
        mask, bias = self.plain._extras(rest)
        shared = q.shape[1] // k.shape[1]
        s = np.matmul(q.astype(np.float64), np.swapaxes(np.repeat(k, shared, axis=1), -1, -2).astype(np.float64)) * self.scale
        s = s if self.softcap is None else self.softcap * np.tanh(s / self.softcap)
        s = s if bias is None else s + bias
        seen = self.plain._seen(s.shape[-2], s.shape[-1])
        s = np.where(seen if mask is None else seen & mask, s, -np.inf)
        top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
        with np.errstate(divide="ignore"):
            sums = np.log(np.sum(np.exp(s - np.where(top == -np.inf, 0, top)), axis=-1)) + top[..., 0]
        return self.plain.ref(q, k, v, *rest), sums.astype(np.float64 if q.dtype == np.float64 else np.float32)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return not fits(operands, target)

    def decompose(self, q: Value, k: Value, v: Value, *rest: Value) -> Any:
        op = self.plain
        mask, bias = op._extras(rest)
        dtype = compute_dtype(q.dtype)
        s = F.matmul(F.cast(q, dtype), F.cast(op.repeated(k, q), dtype), transpose_b=True, alpha=self.scale)
        s = s if self.softcap is None else F.mul(F.tanh(F.div(s, self.softcap)), self.softcap)
        s = s if bias is None else F.add(s, F.cast(bias, dtype))
        for seen in (op._position_mask(q.node.graph, q.shape[2], k.shape[2]), mask):
            s = s if seen is None else F.where(seen, s, -np.inf)
        top = F.max_(s, (3,), keepdims=True)
        e = F.exp(F.sub(s, F.where(F.equal(top, -np.inf), 0.0, top)))
        total = F.sum_(e, (3,))  # 0 where a row sees nothing: the −inf comes from the maximum, and the derivative is 0, not 0/0
        return op.decompose(q, k, v, *rest), F.add(F.log(F.where(F.equal(total, 0.0), 1.0, total)), F.max_(s, (3,)))

    def flops(self, q: TensorType, k: TensorType, v: TensorType, *rest: TensorType) -> Dim:
        return self.plain.flops(q, k, v)
