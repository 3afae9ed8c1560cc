"""The ops of random whole-number programs on shapes and indices."""

from __future__ import annotations

from typing import Any

from .exact_base import axis_of, fixed_axis, number, op, ranked, same, scalar, whole
from .program import Builder, Picks, Step, Unfit, Val

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


