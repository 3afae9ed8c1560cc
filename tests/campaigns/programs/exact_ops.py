"""The ops of random whole-number programs: how each one makes calls from its operands and picks."""

from __future__ import annotations

from typing import Any

from .program import Builder, Const, Op, Picks, Step, Unfit, Val

OPS: dict[str, Op] = {}
DTYPES = ("i32", "f32", "bool", "i64", "f64", "u8", "i8", "i16", "u16", "u32", "u64", "f16", "bf16")
INDICES = ("i64", "i32", "u8")


def op(fn: Any) -> Any:
    OPS[fn.__name__.rstrip("_")] = fn
    return fn


# ---- what operands must be


def whole(b: Builder, x: Val) -> Val:
    """An integer."""
    return x if x.dtype.is_int else b.call("astype", x, "i32")


def number(b: Builder, x: Val) -> Val:
    return b.call("astype", x, "i32") if x.dtype.is_bool else x


def floating(b: Builder, x: Val) -> Val:
    return x if x.dtype.is_float else b.call("astype", x, "f32")


def truth(b: Builder, x: Val) -> Val:
    return x if x.dtype.is_bool else b.call("not_equal", x, 0)


def ranked(x: Val, n: int = 1) -> Val:
    if len(x.shape) < n:
        raise Unfit
    return x


def axis_of(x: Val, p: Picks) -> int:
    """An axis, counted from the front or the end."""
    n = len(ranked(x).shape)
    return p(2 * n) - n


def fixed_axis(x: Val, p: Picks) -> int:
    """An axis of a known size that is not 0."""
    return int(p.of([i for i, d in enumerate(x.shape) if isinstance(d, int) and d > 0]))


def broadcast(x: Val, y: Val) -> bool:
    return all(1 in (m, n) or m == n for m, n in zip(x.shape[::-1], y.shape[::-1], strict=False))


def pair(b: Builder, args: list[Val]) -> tuple[Val, Val]:
    """Two operands that broadcast and have a common dtype."""
    x, y = args[0], args[-1]
    if not broadcast(x, y):
        y = x
    kinds = {x.dtype.name, y.dtype.name}
    if "u64" in kinds and kinds & {"bool", "i8", "i16", "i32", "i64"}:
        y = b.call("astype", y, x.dtype.name)
    return x, y


def same(b: Builder, x: Val, y: Val) -> Val:
    """y in the dtype of x."""
    return y if y.dtype is x.dtype else b.call("astype", y, x.dtype.name)


def scalar(x: Val, p: Picks) -> Any:
    """A Python number that x's dtype holds."""
    if x.dtype.is_float:
        return p.of((1.0, 2, 0.5, -1.0, 0, 3, -2.5))
    return p.of((1, 2, 3, 0, 7)) if x.dtype.kind == "u" else p.of((1, 2, 3, 0, -1, 7, -5))


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
    a = "abcdefgh"[: len(x.shape)]
    names = [next((a[i] for i, m in enumerate(x.shape) if m == d and p(3)), "") for d in y.shape]
    c = "".join(n if n and n not in names[:i] else "uvwxyz"[i] for i, n in enumerate(names))
    both = list(dict.fromkeys(a + c))
    mask = p(1 << len(both))
    result = [n for i, n in enumerate(both) if mask >> i & 1]
    if p(2):
        result.reverse()
    return b.call("einsum", f"{a},{c}->{''.join(result)}", x, y)


# ---- shapes


@op
def reshape(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = args[0]
    shape = list(x.shape)
    kind = p(5)
    if kind == 0 and len(shape) > 1:  # two neighbours as one
        i = p(len(shape) - 1)
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    elif kind == 1:
        shape.insert(p(len(shape) + 1), 1)
    elif kind == 2:
        i = int(p.of([i for i, d in enumerate(shape) if isinstance(d, int) and d > 0]))
        factor = p.of([f for f in (2, 3, 4, 5, 1) if shape[i] % f == 0])
        shape[i : i + 1] = [factor, shape[i] // factor][:: 1 if p(2) else -1]
    elif kind == 3:
        return b.call("squeeze", x, axis=shape.index(1)) if 1 in shape else b.call("expand_dims", x, p(2 * len(shape) + 2) - len(shape) - 1)
    else:
        return b.call("ravel", x) if 0 not in shape else x
    return b.call("reshape", x, tuple(shape))


@op
def permute(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0], 2)
    left = list(range(len(x.shape)))
    return b.call("permute_dims", x, tuple(left.pop(p(len(left))) for _ in x.shape))


@op
def flip(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0])
    return b.call("flip", x, p.of((None, axis_of(x, p))))


@op
def expand(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = args[0], args[-1]
    if p(2) and all(m in (1, n) for m, n in zip(x.shape[::-1], y.shape[::-1], strict=False)) and len(y.shape) >= len(x.shape):
        return b.call("broadcast_to", x, tuple(y.shape))
    shape = tuple(1 + p(3) if d == 1 else d for d in x.shape)
    return b.call("broadcast_to", x, (p(4), *shape) if p(2) else shape)


@op
def slices(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0])
    key: list[Any] = []
    if not all(isinstance(d, int) for d in x.shape):  # slices of traced arrays need known sizes
        raise Unfit
    for d in x.shape:
        kind = p(6)
        if kind == 5 and d:
            key.append(p(2 * d) - d)
        elif kind == 4:
            key.append(slice(None, None, -1))
        else:
            start, stop = p(d + 2) - 1, p(d + 2) - 1
            key.append(slice(None) if kind < 2 else slice(start, stop or None, p.of((None, 2, 3, -1, -2))))
    if p(4) == 3:
        key.insert(p(len(key) + 1), None)
    return b.call("getitem", x, tuple(key))


@op
def join(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = ranked(args[0]), same(b, args[0], args[-1])
    axis = p(len(x.shape))
    if len(y.shape) != len(x.shape) or any(m != n for i, (m, n) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis):
        y = x
    parts = p.of(([x, y], [y, x], [x, y, x], [x]))
    if p(4) == 3 and all(v.shape == x.shape for v in parts):
        return b.call("stack", parts, axis=axis - len(x.shape) - 1)
    return b.call("concat", parts, axis=axis)


@op
def split(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = args[0]
    axis = fixed_axis(x, p)
    n = x.shape[axis]
    ends = sorted((p(n + 1), p(n + 1)))
    return b.call(f"split[{p(len(ends) + 1)}]", x, ends, axis=axis)


@op
def pad(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(number(b, args[0]))
    return b.call("pad", x, [(p(3), p(3)) for _ in x.shape], value=float(scalar(x, p) if x.dtype.is_float else p.of((0, 3))))


@op
def triangle(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x = ranked(args[0], 2)
    if any(not isinstance(d, int) for d in x.shape[-2:]):
        raise Unfit
    return b.call(p.of(("tril", "triu")), x, p(5) - 2)


# ---- indices


def places(b: Builder, y: Val, size: Any, p: Picks) -> Val:
    """Indices below a size from the elements of y: in range, if the size is not 0."""
    if not isinstance(size, int) or size == 0:
        raise Unfit
    ids = whole(b, y)
    if size > 127 and ids.dtype.itemsize == 1:
        ids = b.call("astype", ids, "i64")
    return b.call("remainder", ids, size)


@op
def take(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = ranked(args[0]), args[-1]
    axis = axis_of(x, p)
    if not isinstance(x.shape[axis], int):  # an order of the axis is in range whatever its size is
        y = y if y.shape == (x.shape[axis],) else b.call("any", x, axis=tuple(i for i in range(len(x.shape)) if i != axis % len(x.shape)))
        return b.call("take", x, b.call("argsort", number(b, y), descending=True), axis=axis)
    if p(4) == 3 and x.shape[axis]:
        n = x.shape[axis]
        return b.call("take", x, [p(2 * n) - n for _ in range(1 + p(3))], axis=axis)
    if p(4) == 3:
        axis, x = None, b.call("ravel", x)  # type: ignore[assignment]
        return b.call("take", x, places(b, y, x.shape[0], p), axis=0)
    ids = places(b, y, x.shape[axis], p)
    if ids.shape and p(4) == 3:  # no plain array either
        ids = b.call("flip", b.call("transpose", ids), 0)
    return b.call("take", x, ids, axis=axis)


@op
def along(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """Elements in the order of another array of that shape, or at indices."""
    x, y = ranked(args[0]), args[-1]
    axis = axis_of(x, p)
    if y.shape != x.shape:
        y = x
    if p(2) == 0:
        return b.call("take_along_axis", x, b.call("argsort", number(b, y), axis=axis), axis=axis)
    return b.call("take_along_axis", x, places(b, y, x.shape[axis], p), axis=axis)


@op
def gather(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """x[i, k] with index arrays on neighbouring axes."""
    x, y = ranked(args[0], 2), args[-1]
    if not all(isinstance(d, int) for d in x.shape):
        raise Unfit
    first = p(len(x.shape) - 1)
    key = [slice(None)] * first + [places(b, y, x.shape[first + i], p) for i in range(2)]
    return b.call("getitem", x, tuple(key))


@op
def put(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    """Rows of x that other rows of x are added to, or that they replace."""
    x, y = number(b, ranked(args[0])), args[-1]
    ids = places(b, b.call("ravel", y), x.shape[0], p)
    rows = b.call("take", b.call("flip", x, 0), ids, axis=0)
    mode = p.of(("add", "set", "mul", "max", "min"))
    return b.call("scatter_add", x, ids, rows) if mode == "add" else b.call("scatter", x, ids, rows, mode=mode)


@op
def hot(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    return b.call("one_hot", whole(b, args[0]), p(5), dtype=p.of(("f32", "i32", "bool", "u8")))


@op
def count(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    n = 1 + p(7)
    return b.call("bincount", places(b, args[0], n, p), length=n)


