"""Symbolic dims: the normal form has the value of what was written, equal quotients are one, and text reads back as it was."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fresh import fresh_rng
from tilewright.core.dims import Dim, Expr, bounds, evaluate, floordiv, maximum, minimum, parse_dim, sym

S, T = sym("S", 1), sym("T", 0, 9)
POINTS = [(1, 0), (7, 9), (64, 3), (33, 5), (1000, 1)]


def tree(rng: Any, depth: int) -> tuple[Dim, list[int]]:
    """A random dim, and its values at POINTS by Python's own integers."""
    if depth == 0 or rng.random() < 0.2:
        k = int(rng.integers(-40, 41))
        return [(S, [s for s, _ in POINTS]), (T, [t for _, t in POINTS]), (k, [k] * len(POINTS))][int(rng.integers(3))]  # type: ignore[return-value]
    a, va = tree(rng, depth - 1)
    kind = rng.choice(["+", "-", "*", "//", "//", "%", "max", "min"])
    if kind in ("*", "//", "%"):
        k = int(rng.choice([1, 2, 3, 4, 6, 8, 16, 32]))
        if kind == "%":
            return a - k * floordiv(a, k), [v % k for v in va]
        return (a * k, [v * k for v in va]) if kind == "*" else (floordiv(a, k), [v // k for v in va])
    b, vb = tree(rng, depth - 1)
    fn: Any = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "max": maximum, "min": minimum}[str(kind)]
    return fn(a, b), [fn(x, y) for x, y in zip(va, vb, strict=True)]


def test_random_dims_have_the_values_of_integers() -> None:
    rng = fresh_rng()
    for _ in range(400):
        d, values = tree(rng, 5)
        lo, hi = bounds(d)
        for (s, t), want in zip(POINTS, values, strict=True):
            assert evaluate(d, {"S": s, "T": t}) == want and lo <= want <= hi, str(d)
        if isinstance(d, Expr):
            assert parse_dim(str(d), {"S": S, "T": T}) == d


@pytest.mark.parametrize("one,other", [
    ((S - 1) // 2 + 1, (S + 1) // 2), ((S // 2) // 3, S // 6), ((S // 2 + 5) // 3, (S + 10) // 6), ((4 * S + 6) // 8, (2 * S + 3) // 4),
    ((4 * S + 3) // 2, 2 * S + 1), (((S - 1) // 2 + 1 - 1) // 2 + 1, (S + 3) // 4)])
def test_equal_quotients_are_one(one: Dim, other: Dim) -> None:
    assert one == other


def test_larger_and_smaller_sizes_have_one_form_and_keep_their_bounds() -> None:
    assert maximum(256 - S, 0) + S == maximum(S, 256) == maximum(256, S)
    assert minimum(3 * S, S + T) == S + minimum(T, 2 * S)
    assert bounds(maximum(256 - S, 0)) == (0, 255) and bounds(T - minimum(T, 4)) == (0, 5)
    whole = 256 * floordiv(maximum(S, 256) + 255, 256)
    assert whole + maximum(256 - S, 0) - maximum(256, S) + S == whole
    assert bounds(-S - 3 * floordiv(-S, 3)) == (0, 2) and bounds(6 * floordiv(S + 1, 3) - 2 * S) == (-2, 2)
    frames = maximum(floordiv(S, 256), 1)  # windows of a signal that is padded to whole ones
    assert minimum(floordiv(maximum(S, 256) + 255, 256) + 4, frames + 3) == frames + 3
    many = sum((maximum(sym(f"n{i}", 0, 9), 5) for i in range(40)), start=S)
    assert bounds(many)[0] == 201  # in no time: not every combination of them is tried
