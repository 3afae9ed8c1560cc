"""Loops, branches and operations on bad data, for random whole-number programs. Their bodies are steps of any ops, nested too."""

from __future__ import annotations

from typing import Any

from . import exact_ops
from .exact_base import number, pair, ranked, same, truth, whole
from .program import Builder, Op, Picks, Step, Unfit, Val, steps

OPS: dict[str, Op] = dict(exact_ops.OPS)
LARGEST_LOOP = 5


def op(fn: Any) -> Any:
    OPS[fn.__name__.rstrip("_")] = fn
    return fn


def like(b: Builder, x: Val, wanted: Val) -> Val:
    """x in the type of a carry: cast, repeated, or one number of it everywhere."""
    if x.shape != wanted.shape:
        lead = len(wanted.shape) - len(x.shape)
        if lead < 0 or any(m not in (1, n) for m, n in zip(x.shape, wanted.shape[lead:], strict=True)):
            x = b.call("sum", x)
        x = b.call("broadcast_to", x, tuple(wanted.shape))
    return x if x.dtype is wanted.dtype else b.call("astype", x, wanted.dtype.name)


def grown(b: Builder, given: list[Val], step: Step, captured: list[Val], which: slice = slice(None)) -> Val:
    """The last value of a body: its parameters are 0, 1, …, what it reads from around it comes next, its own steps follow."""
    values = list(enumerate([*given, *captured]))
    steps(b, values, step.body[which], OPS, set())
    return values[-1][1] if len(values) > len(given) + len(captured) else given[-1]


def row(x: Val, b: Builder) -> Val:
    """The first slice, for the types and first values of a scan's body."""
    return b.call("getitem", x, (0,))


@op
def scan(b: Builder, args: list[Val], p: Picks, step: Step) -> Val:
    init, xs, reverse = number(b, args[0]), args[-1], bool(p(2))
    stacked = p(2)
    options = {"reverse": True} if reverse else {}
    if not xs.shape or not isinstance(xs.shape[0], int) or not 0 < xs.shape[0] <= LARGEST_LOOP:
        def alone(inner: Builder, given: list[Val]) -> list[Val | None]:
            made = like(inner, grown(inner, given, step, [args[0]]), init)
            return [made, made if stacked else None]

        body = b.body([init], alone)
        body = type(body)((*body.params, -1), body.calls, body.outputs)  # the slice that a scan without xs does not have
        return b.call("scan_stack" if stacked else "scan_carry", body, init, None, p(LARGEST_LOOP + 1), **options)

    def each(inner: Builder, given: list[Val]) -> list[Val | None]:
        made = grown(inner, given, step, [args[0]])
        return [like(inner, made, init), made if stacked else None]

    return b.call("scan_stack" if stacked else "scan_carry", b.body([init, row(xs, b)], each), init, xs, **options)


@op
def while_(b: Builder, args: list[Val], p: Picks, step: Step) -> Val:
    """A counter ends it; how often it runs may depend on the data."""
    init, count = number(b, args[0]), p(LARGEST_LOOP + 1)
    bound: Any = count
    if p(2):
        bound = b.call("astype", b.call("remainder", b.call("sum", whole(b, args[-1])), LARGEST_LOOP + 1), "i64")
    counter = b.call("sum", b.call("astype", b.call("zeros_like", init), "i64"))

    def test(inner: Builder, given: list[Val]) -> list[Val | None]:
        return [inner.call("less", given[0], bound)]

    def body(inner: Builder, given: list[Val]) -> list[Val | None]:
        made = like(inner, grown(inner, given[1:], step, [args[-1]]), init)
        return [inner.call("add", given[0], 1), made]

    question, turn = b.body([counter, init], test), b.body([counter, init], body)
    limit = {"max_iterations": p(4)} if p(3) == 2 else {}
    return b.call("while_array", Packed(question), Packed(turn), (counter, init), **limit)


def Packed(body: Any) -> Any:
    """A function of one tuple."""
    return type(body)(body.params, body.calls, body.outputs, packed=True)


@op
def cond(b: Builder, args: list[Val], p: Picks, step: Step) -> Val:
    x, y = number(b, args[0]), args[-1]
    predicate = b.call("any", truth(b, y)) if p(2) else b.call("greater", b.call("sum", whole(b, y)), p(3))
    half = len(step.body) // 2

    def side(which: slice) -> Any:
        return b.body([x], lambda inner, given: [like(inner, grown(inner, given, step, [y], which), x)])

    return b.call("cond", predicate, side(slice(half)), side(slice(half, None)), x)


@op
def repeat(b: Builder, args: list[Val], p: Picks, step: Step) -> Val:
    init = number(b, args[0])
    upper: Any = p(LARGEST_LOOP + 1)
    if p(2):
        upper = b.call("remainder", b.call("sum", whole(b, args[-1])), LARGEST_LOOP + 1)
    counter = b.call("sum", b.call("astype", b.call("zeros_like", init), "i64"))
    body = b.body([counter, init], lambda inner, given: [like(inner, grown(inner, given, step, [args[-1]]), init)])
    return b.call("fori_loop", p(2), upper, body, init)


# ---- what may find bad data


@op
def wild_take(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, ids = ranked(args[0]), whole(b, args[-1])
    axis = p(len(x.shape))
    if not isinstance(x.shape[axis], int):
        raise Unfit
    return b.call("wild_take", x, ids, axis=axis)


@op
def wild_divide(b: Builder, args: list[Val], p: Picks, _: Step) -> Val:
    x, y = pair(b, args)
    x = whole(b, x)
    return b.call("wild_floor_divide", x, same(b, x, y))
