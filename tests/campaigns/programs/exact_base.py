"""What the ops of random whole-number programs share: their table, and operands of the kinds, shapes and dtypes that they need."""

from __future__ import annotations

from typing import Any

from .program import Builder, Op, Picks, Unfit, Val

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
