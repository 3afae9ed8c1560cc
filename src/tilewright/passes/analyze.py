"""Finds the form (see `forms`) of every value that is known in terms of its indices: iotas, masks made of them, constants.

One function per op, entered in `TRANSFER`; ops without an entry have no form. Rewrites keep values, so a cache stays valid.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dims import Dim, at_least
from ..core.dtypes import DType
from ..core.exact import key_of
from ..ir.graph import Graph, Node, Value
from ..ir.interp import apply
from .forms import Choice, Form, Linear, Number, conjunction, normal, number, where_all

Array = np.ndarray[Any, Any]
MAX_INTEGERS = 1 << 16
MAX_MASK = 1 << 24
LARGEST = 1 << 62  # the most that a form's numbers reach: forms compute in i64


# Recognizes constants that follow their indices: aranges, triangular and banded masks, 0/-inf biases, one number everywhere. Weights must
# never be read whole here, so a float constant is looked at only when its corners look like a mask.
def constant_form(a: Array) -> Form | None:
    if a.size == 0:
        return None
    kind = "b" if a.dtype == np.bool_ else "i" if a.dtype.kind in "iu" else "f"
    if a.size == 1:
        value = a.reshape(()).item() if kind != "f" else float(a.reshape(()))
        if value != value:
            return None
        if kind == "i":
            return Linear(int(value), (0,) * a.ndim) if abs(value) <= LARGEST else None
        return Choice((), value, value)
    if kind == "i" and a.size <= MAX_INTEGERS:
        return _linear(a)
    if a.size > MAX_MASK or (kind == "f" and not _looks_like_mask(a)) or kind == "i":
        return None
    return _mask(a)


def _linear(a: Array) -> Linear | None:
    origin = (0,) * a.ndim
    const = int(a[origin])
    coeffs = tuple(int(a[origin[:k] + (1,) + origin[k + 1 :]]) - const if n > 1 else 0 for k, n in enumerate(a.shape))
    if abs(const) + sum(abs(c) * n for c, n in zip(coeffs, a.shape, strict=True)) > LARGEST:
        return None
    want = np.full((), const, dtype=np.int64)
    for k, (c, n) in enumerate(zip(coeffs, a.shape, strict=True)):
        want = want + (c * np.arange(n, dtype=np.int64)).reshape((n,) + (1,) * (a.ndim - 1 - k))
    return Linear(const, coeffs) if np.array_equal(np.broadcast_to(want, a.shape), a) else None


def _looks_like_mask(a: Array) -> bool:
    """Rank 2 or more, and the four corners of the last two axes and one inner element are 0, 1 or hugely negative."""
    if a.ndim < 2:
        return False
    first = a.reshape(-1, *a.shape[-2:])[0] if a.flags.c_contiguous else a[(0,) * (a.ndim - 2)]
    probes = [float(first[i, j]) for i in (0, -1) for j in (0, -1)] + [float(first[first.shape[0] // 2, first.shape[1] // 2])]
    return all(p in (0.0, 1.0) or p <= -1e8 for p in probes)


def _equal(a: Array, value: Any) -> Array:
    """Where a is the value; 0.0 is not -0.0."""
    found: Array = a == value if a.dtype == np.bool_ else (a == value) & (np.signbit(a) == np.signbit(value))
    return found


def _mask(a: Array) -> Choice | None:
    """One value everywhere, or one in a diagonal band of the last two axes and another elsewhere, the same in every plane."""
    corner = a[(0,) * a.ndim]
    same = _equal(a, corner)
    if bool(np.all(same)):
        return Choice((), _number(corner), _number(corner))
    plane = same[(0,) * max(a.ndim - 2, 0)]
    if a.ndim < 2 or not bool(np.all(same == plane)):
        return None
    rest = a[~same]
    if not bool(np.all(_equal(rest, rest[0]))):
        return None
    values = _number(corner), _number(rest[0])
    for inside, (yes, no) in ((plane, values), (~plane, values[::-1])):
        found = _band(inside)
        if found is not None:
            bounds = tuple(Linear(f.const, (0,) * (a.ndim - 2) + f.coeffs) for f in found)
            return Choice(where_all(bounds, tuple(a.shape)).bounds, yes, no)
    return None


def _band(m: Array) -> tuple[Linear, ...] | None:
    """Bounds of a boolean matrix that is true exactly where lo <= j - i <= hi (a side that reaches the edge has no bound)."""
    rows, cols = m.shape
    if not np.array_equal(m[1:, 1:], m[:-1, :-1]):
        return None  # not constant along diagonals
    diagonals = np.concatenate([m[:0:-1, 0], m[0]])  # j - i from -(rows-1) to cols-1
    true = np.nonzero(diagonals)[0]
    if not true.size or not np.all(diagonals[true[0] : true[-1] + 1]):
        return None
    low, high = int(true[0]) - (rows - 1), int(true[-1]) - (rows - 1)
    bounds = []
    if high < cols - 1:
        bounds.append(Linear(high, (1, -1)))  # i - j + high >= 0
    if low > -(rows - 1):
        bounds.append(Linear(-low, (-1, 1)))
    return tuple(bounds)


def _number(v: Any) -> float | bool:
    return bool(v) if isinstance(v, np.bool_) else float(v)


EXACT = {"f64": 1 << 53, "f32": 1 << 24, "f16": 1 << 11, "bf16": 1 << 8, "f8e4m3": 1 << 4, "f8e5m2": 1 << 3}
Transfer = Callable[[Node, int, list[Form | None]], Form | None]


class Forms:
    """`forms.of(value)`: its Form or None."""

    def __init__(self, graph: Graph) -> None:
        self._cache: dict[Value, Form | None] = {}
        for n in graph.nodes:  # in order, so that looking up operands never recurses deeply
            for v in n.values:
                self.of(v)

    def of(self, value: Value) -> Form | None:
        if value not in self._cache:
            transfer = TRANSFER.get(type(value.op))
            found: Form | None = None
            if transfer is not None:
                operands = [self.of(v) for v in value.node.operands]
                if all(f is not None for f in operands) or isinstance(value.op, PARTIAL):
                    found = transfer(value.node, value.index, operands)
            if isinstance(found, Linear):
                found = normal(found, value.shape)
                found = found if fits(found, value) else None
            self._cache[value] = found
        return self._cache[value]


def fits(form: Linear, value: Value) -> bool:
    """The dtype holds every element exactly (integers would wrap around, floats round). Of unknown ranges, i64 holds all that occur."""
    known, dtype = form.range(value.shape), value.dtype
    if known is None or dtype.is_bool:
        return str(dtype.name) == "i64"
    if dtype.is_int:
        info = np.iinfo(dtype.np)
        return bool(dtype.name == "i64" or (int(info.min) <= known[0] and known[1] <= int(info.max)))
    return max(-known[0], known[1]) <= EXACT[dtype.name]


def uniform(value: Number, dtype: DType, ndim: int) -> Form:
    if dtype.is_int:
        return Linear(int(value), (0,) * ndim)
    return Choice((), value, value)


def constant(node: Node, _: int, __: list[Form | None]) -> Form | None:
    assert isinstance(node.op, o.Constant)
    return constant_form(node.op.data.array)


def iota(node: Node, _: int, __: list[Form | None]) -> Form | None:
    op = node.op
    assert isinstance(op, o.Iota)
    return Linear(op.start, tuple(op.step if k == op.axis else 0 for k in range(len(op.shape))))


def dim_value(node: Node, _: int, __: list[Form | None]) -> Form | None:
    assert isinstance(node.op, o.DimValue)
    return Linear(node.op.dim, ())


def cast(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    form, to = forms[0], node.types[0].dtype
    value = number(form)
    if isinstance(form, Choice):
        if to.is_int and all(v in (0, 1) for v in (form.yes, form.no)):
            return form.map(int) if form.bounds else uniform(form.yes, to, node.types[0].ndim)
        if to.is_bool:
            return form.map(bool)
        return form if to.is_float and all(v in (0, 1, -np.inf) for v in (form.yes, form.no)) else None
    assert isinstance(form, Linear)
    if to.is_bool:
        return None if value is None else Choice((), bool(value), bool(value))
    return form  # kept only if `fits`


def _remap(form: Form, fn: Callable[[Linear], Linear | None]) -> Form | None:
    """Apply a change of indices to a form: to itself, or to each of its bounds."""
    if isinstance(form, Linear):
        return fn(form)
    new = [fn(b) for b in form.bounds]
    return None if any(b is None for b in new) else Choice(tuple(b for b in new if b is not None), form.yes, form.no)


def reshape(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    old, new = node.operands[0].shape, node.types[0].shape
    kept = [k for k, n in enumerate(old) if n != 1]
    target = [k for k, n in enumerate(new) if n != 1]
    same = [old[k] for k in kept] == [new[k] for k in target]

    def move(f: Linear) -> Linear | None:
        if f.is_uniform:
            return Linear(f.const, (0,) * len(new))
        if not same:
            return None
        at = dict(zip(target, kept, strict=True))
        return Linear(f.const, tuple(f.coeffs[at[k]] if k in at else 0 for k in range(len(new))))

    assert forms[0] is not None
    return _remap(_ranked(forms[0], len(old)), move)


def _ranked(form: Form, ndim: int) -> Form:
    def pad(f: Linear) -> Linear:
        return Linear(f.const, (0,) * (ndim - len(f.coeffs)) + f.coeffs)

    moved = _remap(form, pad)
    assert moved is not None
    return moved


def transpose(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    op = node.op
    assert isinstance(op, o.Transpose) and forms[0] is not None
    perm = op.perm
    return _remap(_ranked(forms[0], len(perm)), lambda f: Linear(f.const, tuple(f.coeffs[p] for p in perm)))


def expand(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    assert forms[0] is not None
    return _ranked(forms[0], node.types[0].ndim)


def _window(form: Form, ndim: int, starts: tuple[Dim, ...], steps: tuple[int, ...]) -> Form | None:
    def move(f: Linear) -> Linear:
        const = f.const
        for c, s in zip(f.coeffs, starts, strict=True):
            const = const + c * s
        return Linear(const, tuple(c * s for c, s in zip(f.coeffs, steps, strict=True)))

    return _remap(_ranked(form, ndim), move)


def slice_(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    assert isinstance(node.op, o.Slice) and forms[0] is not None
    return _window(forms[0], node.types[0].ndim, node.op.starts, node.op.steps)


def flip(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    assert isinstance(node.op, o.Flip) and forms[0] is not None
    shape, axes = node.types[0].shape, node.op.axes
    starts = tuple(n - 1 if k in axes else 0 for k, n in enumerate(shape))
    return _window(forms[0], len(shape), starts, tuple(-1 if k in axes else 1 for k in range(len(shape))))


def split(node: Node, index: int, forms: list[Form | None]) -> Form | None:
    assert isinstance(node.op, o.Split) and forms[0] is not None
    ndim, axis = node.types[0].ndim, node.op.axis
    start: Dim = 0
    for n in node.op.sizes[:index]:
        start = start + n
    return _window(forms[0], ndim, tuple(start if k == axis else 0 for k in range(ndim)), (1,) * ndim)


ARITHMETIC = (o.Add, o.Sub, o.Mul, o.Maximum, o.Minimum)
COMPARE = (o.Equal, o.NotEqual, o.Less, o.LessEqual, o.Greater, o.GreaterEqual)


def arithmetic(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    a, b = forms
    if node.types[0].dtype.is_bool:
        return None
    if isinstance(a, Linear) and isinstance(b, Linear):
        if isinstance(node.op, o.Add):
            return a + b
        if isinstance(node.op, o.Sub):
            return a - b
        if isinstance(node.op, o.Mul) and (a.is_uniform or b.is_uniform):
            by, of = (a, b) if a.is_uniform else (b, a)
            moved = of + Linear(0, by.coeffs)
            return None if node.types[0].dtype.is_float and not at_least(by.const, 0) else moved.scaled(by.const)  # 0.0 times it is -0.0
    return _mapped(node, a, b)


def _mapped(node: Node, a: Form | None, b: Form | None) -> Form | None:
    """The op over a choice and one number, computed as it computes."""
    left, right = number(a), number(b)
    types = [v.dtype.np for v in node.operands]

    def fn(x: Number, y: Number) -> Number:
        made, = apply(node.op, [np.asarray(v, t) for v, t in zip((x, y), types, strict=True)])
        return made.item() if made.dtype.kind in "biu" else float(made)

    if left is not None and right is not None:
        value = fn(left, right)
        return None if value != value else uniform(value, node.types[0].dtype, node.types[0].ndim)
    if isinstance(a, Choice) and right is not None:
        return a.map(lambda v: fn(v, right))
    if isinstance(b, Choice) and left is not None:
        return b.map(lambda v: fn(left, v))
    return None


def neg(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    form = forms[0]
    if isinstance(form, Linear):
        return None if node.types[0].dtype.is_float else form.scaled(-1)
    return form.map(operator.neg) if form is not None else None


def compare(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    a, b = forms
    shape = node.types[0].shape
    if isinstance(a, Linear) and isinstance(b, Linear):
        d = b - a
        table: dict[type, tuple[Linear, ...]] = {
            o.LessEqual: (d,), o.Less: (d.shifted(-1),), o.GreaterEqual: (d.scaled(-1),), o.Greater: (d.scaled(-1).shifted(-1),),
            o.Equal: (d, d.scaled(-1))}
        if isinstance(node.op, o.NotEqual):
            found = where_all(table[o.Equal], shape)
            return found.map(operator.not_)
        return where_all(table[type(node.op)], shape)
    return _mapped(node, a, b)


def both(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    if not node.types[0].dtype.is_bool:
        return None
    a, b = conjunction(forms[0]), conjunction(forms[1])
    if a is False or b is False:
        return Choice((), False, False)
    if a is None or b is None:
        return None
    return where_all(tuple(f for c in (a, b) if not isinstance(c, bool) for f in c) or True, node.types[0].shape)


def either(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    if not node.types[0].dtype.is_bool:
        return None
    values = [number(f) for f in forms]
    if any(v is not None and v for v in values):
        return Choice((), True, True)
    for v, other in ((values[0], forms[1]), (values[1], forms[0])):
        if v is not None:  # false
            return other
    return None


def negate(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    form = forms[0]
    return form.map(operator.not_) if isinstance(form, Choice) and node.types[0].dtype.is_bool else None


def where(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    cond, a, b = forms
    known = number(cond)
    if known is not None:
        chosen = a if known else b
        return None if chosen is None else _ranked(chosen, node.types[0].ndim)
    yes, no = number(a), number(b)
    if not isinstance(cond, Choice) or yes is None or no is None or node.types[0].dtype.is_int:
        return None
    return cond.map(lambda v: yes if v else no)


def concat(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    """Operands that continue one another; an operand of size 1 along the axis has any slope there."""
    assert isinstance(node.op, o.Concat)
    axis = node.op.axis
    if all(number(f) is not None for f in forms):
        return forms[0] if len({key_of(number(f)) for f in forms}) == 1 else None
    parts = [(f, v.shape[axis]) for f, v in zip(forms, node.operands, strict=True)]
    if not all(isinstance(f, Linear) for f, _ in parts):
        return None
    slopes = {f.coeffs[axis] for f, n in parts if n != 1 and isinstance(f, Linear)}
    if len(slopes) != 1:
        return None
    slope = slopes.pop()
    first = parts[0][0]
    assert isinstance(first, Linear)
    whole = Linear(first.const, tuple(slope if k == axis else c for k, c in enumerate(first.coeffs)))
    start: Dim = 0
    for f, n in parts:
        assert isinstance(f, Linear)
        want = whole.shifted(slope * start)
        if f.const != want.const or any(c != w for k, (c, w) in enumerate(zip(f.coeffs, want.coeffs, strict=True)) if k != axis):
            return None
        start = start + n
    return whole


def cumsum(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    assert isinstance(node.op, o.CumSum)
    form = forms[0]
    if not isinstance(form, Linear) or not form.is_uniform or node.op.exclusive or node.op.reverse:
        return None
    return Linear(form.const, tuple(form.const if k == node.op.axis else 0 for k in range(node.types[0].ndim)))


def gather(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    """Indexing a tensor that is the same everywhere by known indices; others may be out of range, and the gather reports that."""
    value = number(forms[0])
    return None if value is None or None in forms[1:] else uniform(value, node.types[0].dtype, node.types[0].ndim)


def reduce(node: Node, _: int, forms: list[Form | None]) -> Form | None:
    value, x = number(forms[0]), node.operands[0]
    if value is None or not all(at_least(x.shape[k], 1) for k in node.op.attrs()["axes"]):  # extremes of nothing are something else
        return None
    return uniform(value, node.types[0].dtype, node.types[0].ndim)


GATHERS: tuple[type[o.Op], ...] = tuple(op for op in o.REGISTRY.values() if op.fusion == "gather" and not op.traits.composite)
PARTIAL: tuple[type[o.Op], ...] = (  # may be known though an operand is not
    o.Where, o.LogicalAnd, o.LogicalOr, o.BitwiseAnd, o.BitwiseOr, *GATHERS)
TRANSFER: dict[type, Transfer] = {
    o.Constant: constant, o.Iota: iota, o.DimValue: dim_value, o.Cast: cast, o.Reshape: reshape, o.Transpose: transpose,
    o.Expand: expand, o.Slice: slice_, o.Flip: flip, o.Split: split, o.Neg: neg, o.LogicalAnd: both, o.BitwiseAnd: both,
    o.LogicalOr: either, o.BitwiseOr: either, o.LogicalNot: negate, o.BitwiseNot: negate, o.Where: where, o.Concat: concat,
    o.CumSum: cumsum, o.Any: reduce, o.All: reduce, o.Max: reduce, o.Min: reduce,
    **dict.fromkeys(GATHERS, gather), **dict.fromkeys(ARITHMETIC, arithmetic), **dict.fromkeys(COMPARE, compare)}
