"""The ops of random smooth programs. Domains are kept by formulas (`sqrt(1 + x²)`), kinks by distance (`maximum(x, 0.1234)`)."""

from __future__ import annotations

from typing import Any

from .exact_base import axis_of, broadcast, fixed_axis, ranked
from .program import Builder, Const, Op, Picks, Step, Unfit, Val

OPS: dict[str, Op] = {}
OFF = 0.1234567  # where random programs have no ties


def op(fn: Any) -> Any:
    OPS[fn.__name__.rstrip("_")] = fn
    return fn


def above_one(b: Builder, x: Val) -> Val:
    return b.call("add", b.call("square", x), 1.0)


@op
def unary(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    return b.call(p.of(("sin", "tanh", "sigmoid", "cos", "erf", "softplus", "gelu", "silu", "mish", "square", "neg", "atan", "asinh", "exp",
                        "expm1", "erfc")), args[0])  # fmt: skip


@op
def positive(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    return b.call(p.of(("sqrt", "log", "rsqrt", "reciprocal", "log1p")), above_one(b, args[0]))


@op
def kinked(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    name = p.of(("relu", "elu", "leaky_relu", "abs", "hardswish", "hardsigmoid"))
    return b.call(name, b.call("add", args[0], OFF))


def pair(args: list[Val]) -> tuple[Val, Val]:
    x, y = args[0], args[-1]
    return x, y if broadcast(x, y) else x


@op
def arithmetic(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    return b.call(p.of(("add", "mul", "sub")), *pair(args))


@op
def with_number(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    name, n = p.of(("mul", "add", "sub", "maximum", "minimum")), p.of((0.5, 2, -1.5, 3))
    n = OFF if name in ("maximum", "minimum") else n
    return b.call(name, args[0], n) if p(2) else b.call(name, n, args[0])


@op
def divide(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(args)
    kind = p(5)
    if kind == 1:
        return b.call("pow", above_one(b, x), p.of((1.5, 0.5, -0.5, -1.0, 0.3)))
    if kind == 2:
        return b.call("pow", x, p.of((2, 3, 4, 1)))
    if kind == 3:
        return b.call("hypot", above_one(b, x), y)
    return b.call("div", x, above_one(b, y)) if kind == 0 else b.call("logaddexp", x, y) if x is not y else x


@op
def select(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(args)
    return b.call("where", b.call(p.of(("greater", "less")), y, OFF), x, b.call("mul", x, p.of((0.5, -1.0))))


@op
def still(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(args)
    return b.call("mul", x, b.call("stop_gradient", y))


@op
def reduce(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0])
    name, axis, keep = p.of(("sum", "mean", "logsumexp", "max", "min", "prod", "var")), fixed_axis(x, p), bool(p(2))
    whole = None if 0 not in x.shape else axis
    if name in ("sum", "mean", "var", "logsumexp") and p(3) == 0:
        return b.call(name, x, axis=whole, keepdims=keep)
    return b.call(name, x, axis=axis, keepdims=keep)


@op
def running(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = args[0]
    return b.call(p.of(("cumsum", "cumprod")), x, axis=fixed_axis(x, p), exclusive=bool(p(2)), reverse=bool(p(2)))


@op
def norm(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = args[0]
    axis = fixed_axis(x, p)
    name = p.of(("softmax", "layer_norm", "log_softmax", "rms_norm", "group_norm"))
    if name in ("softmax", "log_softmax"):
        return b.call(name, x, axis=axis)
    if name == "group_norm":
        if len(ranked(x, 3).shape) > 4 or not x.shape[1] or 0 in x.shape or x.shape[1] % 2:
            raise Unfit
        return b.call("group_norm", x, p.of((2, 1)))
    if x.shape[-1] < 2:
        raise Unfit
    weight = Const("float64", tuple(1.0 + 0.25 * (i % 3) for i in range(x.shape[-1])))
    return b.call(name, x, weight) if p(2) else b.call(name, x)


@op
def order(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = args[0]
    axis = fixed_axis(x, p)
    if p(2):
        return b.call("top_k[0]", x, 1 + p(x.shape[axis]), axis=axis, largest=bool(p(2)))
    return b.call("sort", x, axis=axis, descending=bool(p(2)))


@op
def matmul(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = ranked(args[0]), ranked(args[-1])
    if p(3) == 0 and x.shape[-1]:
        columns = 1 + p(5)
        items = tuple(tuple(((3 * i + 7 * k) % 5 - 2) / 4 for k in range(columns)) for i in range(x.shape[-1]))
        return b.call("matmul", x, Const("float64", items))
    at = -2 if len(y.shape) > 1 else -1
    if y.shape[at] != x.shape[-1] or not all(1 in (m, n) or m == n for m, n in zip(x.shape[-3::-1], y.shape[-3::-1], strict=False)):
        y = b.call("swapaxes", ranked(x, 2), -1, -2)
    return b.call("matmul", x, y)


@op
def einsum(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = ranked(args[0]), args[-1]
    a = "abcdefgh"[: len(x.shape)]
    names = [next((a[i] for i, m in enumerate(x.shape) if m == d and p(3)), "") for d in y.shape]
    c = "".join(n if n and n not in names[:i] else "uvwxyz"[i] for i, n in enumerate(names))
    both = list(dict.fromkeys(a + c))
    mask = p(1 << len(both))
    return b.call("einsum", f"{a},{c}->{''.join(n for i, n in enumerate(both) if mask >> i & 1)}", x, y)


def full(b: Builder, x: Val, rank: int) -> Val:
    """x with axes of size 1 in front; nothing is empty."""
    if len(x.shape) > rank or 0 in x.shape:
        raise Unfit
    return b.call("reshape", x, (1,) * (rank - len(x.shape)) + tuple(x.shape)) if len(x.shape) < rank else x


@op
def attention(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    q = full(b, args[0], 4)
    other = args[-1]
    k = full(b, other, 4) if len(other.shape) <= 4 and other.shape[-1:] == q.shape[-1:] and 0 not in other.shape else q
    k = k if k.shape[:2] == q.shape[:2] else q
    causal = bool(p(2)) and k.shape[2] >= q.shape[2]
    return b.call("attention", q, k, b.call("tanh", k), causal=causal, **({"scale": 0.7} if p(2) else {}))


@op
def window(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """Convolution, pooling and resizing along the last one or two axes."""
    rank = p.of((4, 3))
    x = full(b, args[0], rank)
    channels, *sizes = x.shape[1:]
    kernel = min(1 + p(3), *sizes)
    stride, padding = 1 + p(2), p(2) if kernel > 1 else 0
    kind = p(5)
    if kind == 0:
        return b.call("mean_pool", x, kernel, stride=stride, padding=padding)
    if kind == 1:
        return b.call("max_pool", x, kernel, stride=stride, padding=padding)
    if kind == 2:
        mode = p.of(("linear", "nearest"))
        return b.call("resize", x, tuple(1 + p(6) for _ in sizes), mode=mode, **({"align_corners": bool(p(2))} if mode == "linear" else {}))
    out = 1 + p(3)
    lead = (channels, out) if kind == 3 else (out, channels)

    def filled(shape: tuple[int, ...], start: int) -> Any:
        step = len(shape) * 5 + 2
        if not shape:
            return ((start * 7) % 11 - 5) / 8
        return tuple(filled(shape[1:], start * 3 + i * step) for i in range(shape[0]))

    w = Const("float64", filled((*lead, *(kernel,) * len(sizes)), 1))
    return b.call("conv_transpose" if kind == 3 else "conv", x, w, stride=stride, padding=padding)


@op
def reshape(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = args[0]
    shape = list(x.shape)
    kind = p(3)
    if kind == 0 and len(shape) > 1:
        i = p(len(shape) - 1)
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    elif kind == 1:
        shape.insert(p(len(shape) + 1), 1)
    else:
        i = fixed_axis(x, p)
        factor = p.of([f for f in (2, 3, 4, 1) if shape[i] % f == 0])
        shape[i : i + 1] = [factor, shape[i] // factor]
    return b.call("reshape", x, tuple(shape))


@op
def permute(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0], 2)
    left = list(range(len(x.shape)))
    return b.call("permute_dims", x, tuple(left.pop(p(len(left))) for _ in x.shape))


@op
def shape(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0])
    kind = p(5)
    if kind == 0:
        return b.call("flip", x, axis_of(x, p))
    if kind == 1:
        return b.call("broadcast_to", x, (1 + p(3), *(1 + p(3) if d == 1 else d for d in x.shape)))
    if kind == 2:
        return b.call("pad", x, [(p(3), p(3)) for _ in x.shape], value=p.of((0.0, 0.5)))
    if kind == 3 and len(x.shape) > 1:
        return b.call(p.of(("tril", "triu")), x, p(5) - 2)
    y = args[-1]
    axis = p(len(x.shape))
    if len(y.shape) != len(x.shape) or any(m != n for i, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis):
        y = x
    return b.call("concat", [x, y], axis=axis)


@op
def slices(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = args[0]
    axis = fixed_axis(x, p)
    n = x.shape[axis]
    if p(2):
        ends = sorted((p(n + 1), p(n + 1)))
        return b.call(f"split[{p(3)}]", x, ends, axis=axis)
    step = p.of((None, 2, -1, -2))
    key = [slice(None)] * axis + [p.of((slice(None, None, step), slice(p(n), None, step), p(n)))]
    return b.call("getitem", x, tuple(key))


@op
def indices(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = args[0], args[-1]
    axis = fixed_axis(x, p)
    kind, n = p(3), x.shape[axis]
    if kind == 0:
        return b.call("take", x, [p(2 * n) - n for _ in range(1 + p(4))], axis=axis)
    if kind == 1:
        y = y if y.shape == x.shape else x
        return b.call("take_along_axis", b.call("sin", x), b.call("argsort", y, axis=axis), axis=axis)
    ids = [p(x.shape[0]) for _ in range(1 + p(3))]
    return b.call("scatter_add", x, ids, b.call("take", b.call("cos", x), ids[::-1], axis=0))
