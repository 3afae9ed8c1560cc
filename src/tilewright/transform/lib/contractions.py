"""Products: matmul, einsum, attention, convolution; and the recurrences that have a kernel of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import dtypes as dt
from ...core.dims import product
from ...core.errors import ShapeError
from ...ops import Attention, Concat, GatedDeltaRule, GroupedMatmul, LoraMatmul, Matmul, Reshape, Rope, SelectiveScan, Split
from ...ops import Conv as ConvOp
from ...ops.quant import by_name
from ..promote import as_tracer, dtype_of, promote
from ..trace import Functions, apply, dtype_given, install, user_place
from .creation import zeros
from .elementwise import FUNCTIONS as ELEMENTWISE
from .elementwise import _operator, _reflected
from .reductions import one_axis
from .shapes import broadcast_to, permute_dims, reshape
from .windows import each, pairs

public = FUNCTIONS = Functions()


@public
def matmul(a: Any, b: Any, *, dtype: Any = None) -> Any:
    """a @ b over the last two axes; leading axes broadcast, vectors lose their axis. Operands of eight bits may have a result of another
    `dtype`: f32, f16 or bf16 of floats, i32 of integers; wider ones are cast to it first."""
    if dtype is not None and any(dtype_of(v)[0].itemsize > 1 for v in (a, b)):
        a, b, dtype = as_tracer(a, dtype_given(dtype)), as_tracer(b, dtype_given(dtype)), None
    x, y = promote(a, b) if dtype is None else (as_tracer(a), as_tracer(b))
    if x.ndim == 0 or y.ndim == 0:
        raise ShapeError(f"matmul: needs operands of rank 1 or more, got {x.type} @ {y.type} ({user_place()})")
    row, column = x.ndim == 1, y.ndim == 1
    if row and column and x.shape == y.shape and x.value.dtype in (dt.f32, dt.f64):  # a sum over all of memory, which threads share
        left: Any = x
        return (left * y).sum()
    x = apply(Reshape(shape=(1, *x.shape)), x) if row else x
    y = apply(Reshape(shape=(*y.shape, 1)), y) if column else y
    out = apply(Matmul(dtype=None if dtype is None else dtype_given(dtype)), x, y)
    if not (row or column):
        return out
    shape = out.shape[:-2] + (() if row else out.shape[-2:-1]) + (() if column else out.shape[-1:])
    return apply(Reshape(shape=shape), out)


@public
def dot(a: Any, b: Any) -> Any:
    """The product of vectors or matrices; of more axes the last one of a with the second last of b, which do not broadcast."""
    x, y = as_tracer(a), as_tracer(b)
    if not x.ndim or not y.ndim:
        return ELEMENTWISE["mul"](a, b)
    if y.ndim < 3:
        return matmul(a, b)
    x, y = promote(a, b)
    return paired("dot", x, y, ((x.ndim - 1,), (y.ndim - 2,)))


def spelled(equation: Any, operands: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """(equation, operands), also of `einsum(a, [0, 1], b, [1, 2], [0, 2])`."""
    if isinstance(equation, str) or len(operands) < 1 or not isinstance(operands[0], (list, tuple)):
        return equation, operands
    every = [equation, *operands]
    letters = [chr(ord("A") + k) if k < 26 else chr(ord("a") + k - 26) for k in range(52)]
    terms = ["".join("..." if k is Ellipsis else letters[k] for k in names) for names in every[1::2] + every[-1:] * (len(every) % 2)]
    text = ",".join(terms[: len(every) // 2])
    return (f"{text}->{terms[-1]}" if len(every) % 2 else text), tuple(every[: len(every) // 2 * 2 : 2])


def _written_out(left: str, result: str | None, operands: Sequence[Any]) -> tuple[list[str], str, tuple[Any, ...]]:
    """Terms without ellipses and with distinct letters: an ellipsis stands for axes that broadcast, a letter that a term repeats for its
    diagonal."""
    terms, values = left.split(","), list(operands)
    if result is None:
        result = "..." * ("..." in left) + "".join(sorted(c for c in set(left) - {",", "."} if left.count(c) == 1))
    values = [as_tracer(v) for v in values]
    free = [c for c in map(chr, range(ord("A"), ord("z") + 1)) if c.isalpha() and c not in left]
    counts = [v.ndim - len(t.replace("...", "")) for t, v in zip(terms, values, strict=True)]
    most = max((n for t, n in zip(terms, counts, strict=True) if "..." in t), default=0)
    terms = [t.replace("...", "".join(free[max(most - n, 0) : most])) for t, n in zip(terms, counts, strict=True)]
    wide = {c for t, v in zip(terms, values, strict=True) for c, n in zip(t, v.shape, strict=False) if n != 1}
    for k, (t, v) in enumerate(zip(terms, values, strict=True)):
        if len(t) != v.ndim:
            continue  # `einsum` says so
        kept = [i for i, c in enumerate(t) if v.shape[i] != 1 or c not in free or c not in wide]
        t, v = "".join(t[i] for i in kept), reshape(v, [v.shape[i] for i in kept])
        while (c := next((c for c in t if t.count(c) > 1), None)) is not None:
            i = t.index(c)
            j, n = t.index(c, i + 1), v.shape[i]
            others = [a for a in range(v.ndim) if a not in (i, j)]
            if v.shape[j] != n:
                raise ShapeError(f"einsum: {c!r} names axes of one size, got {v.type} for {terms[k]!r} ({user_place()})")
            v = reshape(permute_dims(v, [*others, i, j]), [*(v.shape[a] for a in others), n * n])[..., :: n + 1]
            t = "".join(t[a] for a in others) + c
        terms[k], values[k] = t, v
    return terms, result.replace("...", "".join(free[:most])), tuple(values)


@public
def einsum(equation: Any, *operands: Any) -> Any:
    """Sums of products by named axes, two operands at a time: `einsum("bij,bjk->bik", a, b)`."""
    equation, operands = spelled(equation, operands)
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) == len(operands) and ("." in equation or any(len(set(t)) != len(t) for t in terms)):
        terms, result, operands = _written_out(left, result if arrow else None, operands)
        left, arrow = ",".join(terms), "->"
    if len(terms) != len(operands) or any(len(set(t)) != len(t) for t in terms):
        raise ShapeError(f"einsum: needs one term an operand, each with distinct letters, got {equation!r} ({user_place()})")
    if not arrow:
        result = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    values = promote(*operands)
    for t, v in zip(terms, values, strict=True):
        if len(t) != v.ndim:
            raise ShapeError(f"einsum: term {t!r} names {len(t)} axes, got {v.type} ({user_place()})")
    sizes: dict[str, Any] = {}
    for c, d in ((c, d) for t, v in zip(terms, values, strict=True) for c, d in zip(t, v.shape, strict=True)):
        if sizes.setdefault(c, d) != d:
            raise ShapeError(f"einsum: {c!r} of {equation!r} names axes of one size, got {', '.join(str(v.type) for v in values)} "
                             f"({user_place()})")
    if len(set(result)) != len(result) or not set(result) <= sizes.keys():
        raise ShapeError(f"einsum: the result must name axes of the operands, each once, got {equation!r} ({user_place()})")
    names = terms[0]
    out: Any = values[0]
    for i, (t, v) in enumerate(zip(terms[1:], values[1:], strict=True), 1):
        later = set(result).union(*terms[i + 1 :])
        names, out = _pair(names, out, t, v, later)
    drop = [i for i, c in enumerate(names) if c not in result]
    if drop:
        out = out.sum(axis=drop)
        names = "".join(c for c in names if c in result)
    return permute_dims(out, [names.index(c) for c in result])


def _pair(p: str, x: Any, q: str, y: Any, later: set[str]) -> tuple[str, Any]:
    """One matmul: shared axes that are kept are its batch, shared ones that nobody needs later are summed."""
    alone = [i for i, c in enumerate(p) if c not in q and c not in later]
    if alone:
        x, p = x.sum(axis=alone), "".join(c for i, c in enumerate(p) if i not in alone)
    alone = [i for i, c in enumerate(q) if c not in p and c not in later]
    if alone:
        y, q = y.sum(axis=alone), "".join(c for i, c in enumerate(q) if i not in alone)
    batch = [c for c in p if c in q and c in later]
    summed = [c for c in p if c in q and c not in later]
    rows, columns = [c for c in p if c not in q], [c for c in q if c not in p]
    size = {**dict(zip(p, x.shape, strict=True)), **dict(zip(q, y.shape, strict=True))}

    def shaped(v: Any, names: str, *groups: list[str]) -> Any:
        rotated = permute_dims(v, [names.index(c) for g in groups for c in g])
        return reshape(rotated, (*(size[c] for c in batch), *(product([size[c] for c in g]) for g in groups[1:])))

    out = matmul(shaped(x, p, batch, rows, summed), shaped(y, q, batch, summed, columns))
    names = [*batch, *rows, *columns]
    return "".join(names), reshape(out, tuple(size[c] for c in names))


@public
def dot_general(a: Any, b: Any, contract: Any, batch: Any = ((), ())) -> Any:
    """Sums of products over pairs of axes: `contract` and `batch` are (axes of a, axes of b). The result has the batch axes, then what is
    left of a, then of b."""
    x, y = promote(a, b)
    return paired("dot_general", x, y, contract, batch)


def paired(what: str, x: Any, y: Any, contract: Any, batch: Any = ((), ())) -> Any:
    """`dot_general` of operands of one dtype; `what` begins its errors."""
    found = []
    for name, (p, q) in (("contract", contract), ("batch", batch)):
        left, right = ([one_axis(what, i, v.ndim) for i in axes] for axes, v in ((p, x), (q, y)))
        if len(left) != len(right) or any(x.shape[i] != y.shape[k] for i, k in zip(left, right, strict=False)):
            raise ShapeError(f"{what}: {name} axes must pair up in size, got {tuple(p)} of {x.type} and {tuple(q)} of {y.type} "
                             f"({user_place()})")
        found.append((left, right))
    (ca, cb), (ba, bb) = found
    if len({*ca, *ba}) != len(ca) + len(ba) or len({*cb, *bb}) != len(cb) + len(bb):
        raise ShapeError(f"{what}: an axis is given twice, got contract={contract}, batch={batch} ({user_place()})")
    rows, columns = ([i for i in range(v.ndim) if i not in used] for v, used in ((x, {*ca, *ba}), (y, {*cb, *bb})))
    lead, inner, high, wide = ([v.shape[i] for i in axes] for v, axes in ((x, ba), (x, ca), (x, rows), (y, columns)))
    cases = [product(lead)] if lead else []
    left = reshape(permute_dims(x, [*ba, *rows, *ca]), (*cases, product(high), product(inner)))
    right = reshape(permute_dims(y, [*bb, *cb, *columns]), (*cases, product(inner), product(wide)))
    return reshape(matmul(left, right), (*lead, *high, *wide))


@public
def rope(x: Any, cos: Any, sin: Any, *, interleaved: bool = False, n_rot: int | None = None) -> Any:
    """Pairs of the first n_rot elements of each row rotated by the angles whose cosines and sines are given, [..., S, n_rot // 2]."""
    x, cos, sin = promote(x, cos, sin)
    return apply(Rope(interleaved=interleaved, n_rot=n_rot), x, cos, sin)


@public
def axial_rope(x: Any, rows: Any, columns: Any, *, interleaved: bool = False) -> Any:
    """Two-dimensional rope of x[..., H, W, D]: the first half of D is rotated by the row's angle, the second by the column's. `rows` is
    (cos, sin) of shape [H, D // 4], `columns` of [W, D // 4]."""
    x, *angles = promote(x, *rows, *columns)
    height, width, depth = x.shape[-3:] if x.ndim >= 3 else (0, 0, 0)
    quarter = depth // 4
    if x.ndim < 3 or depth % 4 or any(v.shape != (n, quarter) for v, n in zip(angles, (height, height, width, width), strict=True)):
        raise ShapeError(f"axial_rope: needs x[...,H,W,D] with D a multiple of 4, rows of [H,D//4] and columns of [W,D//4], got {x.type}, "
                         f"{', '.join(str(v.type) for v in angles)} ({user_place()})")
    a, b = apply(Split(axis=x.ndim - 1, sizes=(depth // 2, depth // 2)), x)
    rotated = rope(a, *(reshape(v, (height, 1, quarter)) for v in angles[:2]), interleaved=interleaved)
    return apply(Concat(axis=x.ndim - 1), rotated, rope(b, *(reshape(v, (1, width, quarter)) for v in angles[2:]), interleaved=interleaved))


@public
def attention(q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, causal: bool = False, scale: float | None = None,
              window: int | None = None, softcap: float | None = None) -> Any:
    """softmax(scale * q @ k.T + bias, masked) @ v for q[B,H,Sq,D], k[B,Hkv,Sk,D], v[B,Hkv,Sk,Dv].

    A mask is True where a query sees a key. With `causal` the last query sees all keys: query i sees keys 0 .. i + Sk - Sq, as a cache of
    earlier keys wants it. (PyTorch's `is_causal` begins at the other end: query i sees keys 0 .. i. The two are equal where Sq = Sk; a
    PyTorch module keeps PyTorch's meaning.) A query that sees no key gives zeros. `window` w leaves each query its last w keys.
    """
    q, k, v = promote(q, k, v)
    extras = [as_tracer(mask, dt.bool_)] if mask is not None else []
    extras += [as_tracer(bias, q.value.dtype)] if bias is not None else []
    op = Attention(scale=q.shape[-1] ** -0.5 if scale is None else scale, causal=causal, window=window, softcap=softcap,
                   has_mask=mask is not None, has_bias=bias is not None, offset=k.shape[2] - q.shape[2] if causal and q.ndim == 4 else 0)
    return apply(op, q, k, v, *extras)


@public
def conv(x: Any, w: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    """Convolution x[N,C,*s] with w[O,C/groups,*k]; stride, padding and dilation are ints or one an axis (padding also pairs)."""
    x, w = promote(x, w)
    n = x.ndim - 2
    return apply(ConvOp(stride=each(stride, n), padding=pairs(padding, n), dilation=each(dilation, n), groups=groups), x, w)


@public
def lora_matmul(x: Any, w: Any, a: Any, b: Any, *, scale: float = 1.0) -> Any:
    """x @ w + scale * ((x @ a) @ b): a product with a correction of low rank."""
    return apply(LoraMatmul(scale=scale), *promote(x, w, a, b))


@public
def grouped_matmul(x: Any, w: Any, ids: Any) -> Any:
    """Row i of x[M,K] times matrix ids[i] of w[G,K,N] (a mixture of experts). Rows are sorted by their matrix first, so that each matrix
    that has rows is read once, and no other. An index out of range is an ExecutionError."""
    x, w = promote(x, w)
    return apply(GroupedMatmul(), x, w, as_tracer(ids))


@public
def quantized_experts(x: Any, packed: Any, ids: Any, *, format: str) -> Any:  # noqa: A002
    """`grouped_matmul` with packed matrices u8[experts, n, row bytes] in a block format: row (s, t) of x[S,T,k], or of x[S,1,k] for all t,
    times the transpose of matrix ids[s, t]: [S,T,n]. Matrices are never unpacked as a whole."""
    from ...ops.packed.products import QExperts, codebooks

    x, stack, ids = as_tracer(x, dt.f32), as_tracer(packed), as_tracer(ids)
    if x.ndim != 3 or stack.ndim != 3:
        raise ShapeError(f"quantized_experts: needs x[S,T,k] and packed[experts,n,bytes], got {x.type} and {stack.type} ({user_place()})")
    experts, n, width = stack.shape
    name = by_name(format).name
    op = QExperts(format=name, n=n, k=x.shape[-1], experts=experts)
    return apply(op, x, reshape(stack, (experts * n, width)), ids, *(as_tracer(table) for table in codebooks(name)))


@public
def outer(a: Any, b: Any) -> Any:
    """All products of two vectors' elements."""
    x, y = promote(a, b)
    return broadcast_to(reshape(x, (-1, 1)), (x.size, y.size)) * reshape(y, (1, -1))


install(__matmul__=_operator(matmul), __rmatmul__=_operator(_reflected(matmul)), dot=matmul)


@public
def selective_scan(x: Any, delta: Any, a: Any, b: Any, c: Any, d: Any = None, z: Any = None, state: Any = None) -> Any:
    """Mamba's recurrence h = exp(delta a) h + delta x b, y = (c · h + d x) silu(z) over time: (y, last state).

    Shapes: x, delta, z [B,L,D] · a [D,N] · b, c [B,L,N] · d [D] · state [B,D,N]. Without d and state they are zero, without z there is no
    gate. States are computed again for the derivative, not kept.
    """
    x, delta, a, b, c, *rest = promote(x, delta, a, b, c, *(v for v in (d, z, state) if v is not None))
    given = iter(rest)
    batch, _, channels = x.shape if x.ndim == 3 else (0, 0, 0)
    size = a.shape[1] if a.ndim == 2 else 0
    dtype = x.value.dtype.name
    skip = next(given) if d is not None else zeros((channels,), dtype)
    gate = [next(given)] if z is not None else []
    first = next(given) if state is not None else zeros((batch, channels, size), dtype)
    return apply(SelectiveScan(gated=z is not None), x, delta, a, b, c, skip, *gate, first)


@public
def gated_delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any = None, *, scale: float | None = None,
                     delta: bool = True) -> Any:
    """The gated delta rule S = exp(g) S, S += k (beta (v - k · S))^T, o = scale q · S over time: (o, last state).

    Shapes: q, k [B,G,L,K] · v [B,H,L,V] · g, beta [B,H,L] · state [B,H,K,V] (zeros without one). The scale is K**-0.5 unless given.
    H/G heads share the queries and keys of a group. With `delta=False` there is no correction, S += k (beta v)^T: Mamba-2's recurrence.
    """
    q, k, v, g, beta, *rest = promote(q, k, v, g, beta, *(() if state is None else (state,)))
    if not rest and q.ndim == 4 and v.ndim == 4:
        rest = [zeros((*v.shape[:2], q.shape[-1], v.shape[-1]), q.value.dtype.name)]
    factor = q.shape[-1] ** -0.5 if scale is None and q.ndim else 1.0 if scale is None else scale
    return apply(GatedDeltaRule(scale=factor, delta=delta), q, k, v, g, beta, *(as_tracer(s) for s in rest))
