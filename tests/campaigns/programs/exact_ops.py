"""The ops of random whole-number programs: how each one makes calls from its operands and picks."""

from __future__ import annotations

from typing import Any

from . import exact_shapes  # noqa: F401  enters the ops on shapes
from .exact_base import DTYPES, INDICES, OPS, axis_of, broadcast, fixed_axis, floating, number, op, pair, ranked, same, scalar, truth, whole
from .program import Builder, Const, Picks, Step, Unfit, Val

__all__ = ["DTYPES", "OPS"]


# ---- elementwise


@op
def unary(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = number(b, args[0])
    names = ["neg", "abs", "sign", "square"]
    names += ["floor", "ceil", "round", "trunc", "relu"] if x.dtype.is_float else ["bitwise_not"]
    return b.call(p.of(names), x)


@op
def arithmetic(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args)
    return b.call(p.of(("add", "sub", "mul", "maximum", "minimum")), number(b, x), number(b, y))


@op
def with_number(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = number(b, args[0])
    name, n = p.of(("add", "sub", "mul", "maximum", "minimum")), scalar(x, p)
    return b.call(name, x, n) if p(2) == 0 else b.call(name, n, x)


@op
def compare(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args)
    return b.call(p.of(("less", "equal", "not_equal", "less_equal", "greater", "greater_equal")), number(b, x), number(b, y))


@op
def logic(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args)
    name = p.of(("logical_and", "logical_or", "logical_xor", "logical_not"))
    return b.call(name, x) if name == "logical_not" else b.call(name, x, y)


@op
def bits(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args)
    x, y = (v if v.dtype.is_bool else whole(b, v) for v in (x, y))
    return b.call(p.of(("bitwise_and", "bitwise_or", "bitwise_xor")), x, same(b, x, y))


@op
def shift(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args)
    x = whole(b, x)
    amount = b.call("bitwise_and", same(b, x, whole(b, y)), 8 * x.dtype.itemsize - 1)
    return b.call(p.of(("bitwise_left_shift", "bitwise_right_shift")), x, amount)


@op
def divide(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """By numbers, and by arrays in which zeros are replaced."""
    x, y = (number(b, v) for v in pair(b, args))
    name = p.of(("floor_divide", "remainder"))
    if p(2) == 0:
        return b.call(name, x, p.of((3, 2, 7, 1)))
    y = same(b, x, y)
    return b.call(name, x, b.call("where", b.call("equal", y, 0), 1, y))


@op
def halve(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    return b.call("div", floating(b, args[0]), p.of((2.0, 4, 0.5)))


@op
def power(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args)
    x = whole(b, x)
    return b.call("pow", x, p.of((2, 3, 0, 1, 5))) if p(2) else b.call("pow", x, b.call("bitwise_and", same(b, x, whole(b, y)), 3))


@op
def select(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args[:2])
    c = args[-1] if broadcast(args[-1], x) and broadcast(args[-1], y) else x
    if p(3) == 0:
        return b.call("where", truth(b, c), number(b, x), scalar(number(b, x), p))
    return b.call("where", truth(b, c), number(b, x), number(b, y))


@op
def clip(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = number(b, args[0])
    low, high = p.of(((0, 5), (1, 2), (0, 100))) if x.dtype.kind == "u" else p.of(((-1, 3), (-8, 8), (2, 5)))
    return b.call("clip", x, low, high)


@op
def cast(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    return b.call("astype", args[0], p.of(DTYPES))


# ---- reductions, order


@op
def reduce(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, name = args[0], p.of(("sum", "max", "min", "prod", "any", "all"))
    n = len(x.shape)
    mask = p(1 << n) if n else 0
    axis = p.of((None, tuple(i for i in range(n) if mask >> i & 1), axis_of(x, p) if n else None))
    if name in ("max", "min"):
        gone = range(n) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        if any(not isinstance(x.shape[a], int) or x.shape[a] == 0 for a in gone):
            raise Unfit
        x = number(b, x)
    return b.call(name, x, axis=axis, keepdims=bool(p(2)))


@op
def extreme(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = number(b, args[0])
    return b.call(p.of(("argmax", "argmin")), x, axis=fixed_axis(x, p), keepdims=bool(p(2)), dtype=p.of(INDICES))


@op
def running(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0])
    return b.call(p.of(("cumsum", "cumprod")), x, axis=axis_of(x, p), exclusive=bool(p(2)), reverse=bool(p(2)))


@op
def order(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = number(b, ranked(args[0]))
    name, axis, descending = p.of(("sort", "argsort")), axis_of(x, p), bool(p(2))
    return b.call(name, x, axis=axis, descending=descending, **({"dtype": p.of(INDICES)} if name == "argsort" else {}))


@op
def largest(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = number(b, args[0])
    axis = fixed_axis(x, p)
    return b.call(f"top_k[{p(2)}]", x, 1 + p(x.shape[axis]), axis=axis, largest=bool(p(2)), dtype=p.of(INDICES))


# ---- products


@op
def matmul(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """With another operand, a constant, or the operand's own transpose."""
    x, y = ranked(args[0]), ranked(args[-1])
    if p(4) != 3:
        x, y = floating(b, x), floating(b, y)
    else:
        x, y = whole(b, x), whole(b, y)
    kind, inner = p(3), x.shape[-1]
    if kind == 0 and isinstance(inner, int):
        columns = 1 + p(5)
        dtype = {"f32": "float32", "f64": "float64"}.get(x.dtype.name, "uint8" if x.dtype.kind == "u" else "int8")
        items = tuple(tuple((3 * i + 7 * k) % 5 - 2 * (x.dtype.kind != "u") for k in range(columns)) for i in range(inner))
        if not inner:
            raise Unfit
        return b.call("matmul", x, Const(dtype, items))
    y = same(b, x, y)
    at = -2 if len(y.shape) > 1 else -1
    if y.shape[at] != inner or not all(1 in (m, n) or m == n for m, n in zip(x.shape[-3::-1], y.shape[-3::-1], strict=False)):
        y = b.call("swapaxes", ranked(x, 2), -1, -2)
    return b.call("matmul", x, y)


@op
def einsum(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = floating(b, ranked(args[0])), floating(b, args[-1])
    y = same(b, x, y)
    if max(len(x.shape), len(y.shape)) > 8:
        raise Unfit
    a = "abcdefgh"[: len(x.shape)]
    names = [next((a[i] for i, m in enumerate(x.shape) if m == d and p(3)), "") for d in y.shape]
    c = "".join(n if n and n not in names[:i] else "stuvwxyz"[i] for i, n in enumerate(names))
    both = list(dict.fromkeys(a + c))
    mask = p(1 << len(both))
    result = [n for i, n in enumerate(both) if mask >> i & 1]
    if p(2):
        result.reverse()
    return b.call("einsum", f"{a},{c}->{''.join(result)}", x, y)


@op
def window(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """Convolutions and pooling along the last one or two axes, with weights of small integers."""
    x = floating(b, args[0])
    rank = p.of((4, 3))
    if len(x.shape) > rank or any(not isinstance(d, int) or d == 0 for d in x.shape[-rank + 1 :]):
        raise Unfit
    if len(x.shape) < rank:
        x = b.call("reshape", x, (1,) * (rank - len(x.shape)) + tuple(x.shape))
    channels, *sizes = x.shape[1:]
    kernel = min(p.of((3, 1, 2, 5)), *sizes)
    stride, padding = p.of((1, 2, 3)), p.of((kernel // 2, 0))
    kind = p(6)
    if kind == 0:
        return b.call("max_pool", x, kernel, stride=stride, padding=padding)
    if kind == 1:
        return b.call("resize", x, tuple(1 + p(2 * d) for d in sizes))
    groups = p.of([g for g in (1, channels, 2) if channels % g == 0])
    outs = groups * (1 + p(3))
    shape = (channels, outs // groups) if kind == 2 else (outs, channels // groups)

    def filled(left: tuple[int, ...], at: int) -> Any:
        return at * 7 % 5 - 2 if not left else tuple(filled(left[1:], at * 3 + i) for i in range(left[0]))

    if channels * outs * kernel * kernel > 4096:
        raise Unfit
    dtype = {"f64": "float64"}.get(x.dtype.name, "float32")
    w = Const(dtype, filled((*shape, *(kernel,) * len(sizes)), 1))
    x = x if x.dtype.itemsize >= 4 else b.call("astype", x, "f32")
    if kind == 2:
        return b.call("conv_transpose", x, w, stride=stride, padding=padding, groups=groups)
    return b.call("conv", x, w, stride=stride, padding=padding, groups=groups, dilation=1 if kernel * 2 > min(sizes) else p.of((1, 2)))


@op
def int_matmul(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """Bytes with bytes, summed in i32."""
    x, y = ranked(args[0], 2), ranked(args[-1], 2)
    x = b.call("astype", b.call("bitwise_and", whole(b, x), 31), p.of(("i8", "u8")))
    y = b.call("astype", b.call("bitwise_and", whole(b, y), 15), "i8")
    if len(x.shape) != 2 or len(y.shape) != 2 or y.shape[0] != x.shape[1]:
        raise Unfit
    return b.call("int_matmul", x, y)
