"""Random programs over Arrays: views of views, writes into them, in-place operators, reductions. Every Array is a value of its own however
memory is shared below, so NumPy on copies is the oracle, for all variables after all steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw

from .engine.campaign import Campaign, Invalid

DTYPES = ("int8", "uint8", "int32", "int64", "float32", "float64", "bool")
MANY = 2_000_000  # elements of a variable, however it is expanded


@dataclass(frozen=True)
class Step:
    kind: str
    x: int  # variables and numbers by their places, modulo how many there are
    y: int
    numbers: tuple[int, ...]


@dataclass(frozen=True)
class Case:
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    lazy: bool
    steps: tuple[Step, ...]


def _slices(shape: tuple[int, ...], numbers: tuple[int, ...]) -> Any:
    """A basic index: slices of any sign and step, an integer, an ellipsis or a new axis."""
    key: list[Any] = []
    for i, n in enumerate(shape):
        a, b, c = (numbers[(3 * i + k) % len(numbers)] for k in range(3))
        step = (1, 2, -1, 3, -2, 1)[a % 6]
        key.append(b % n if n and a % 11 == 5 else slice(b % 5 - 2 if a % 3 == 0 else None, c % 6 - 3 if b % 3 == 0 else None, step))
    extra = numbers[0] % 7
    return (..., *key[1:]) if extra == 1 and key else (None, *key) if extra == 2 else tuple(key)


VIEWS: dict[str, Callable[[Any, Any, tuple[int, ...]], Any]] = {
    "slice": lambda np_, x, n: x[_slices(x.shape, n)],
    "transpose": lambda np_, x, n: x.T,
    "permute": lambda np_, x, n: np_.permute_dims(x, tuple(np.random.default_rng(n[0]).permutation(x.ndim).tolist())),
    "flip": lambda np_, x, n: np_.flip(x, axis=n[0] % x.ndim if x.ndim and n[1] % 2 else None),
    "ravel": lambda np_, x, n: np_.reshape(x, (-1,)),
    "fold": lambda np_, x, n: np_.reshape(x, (2, -1) if n[0] % 2 else (-1, 3)),
    "expand": lambda np_, x, n: np_.broadcast_to(x, (n[0] % 4, *x.shape)),
    "squeeze": lambda np_, x, n: np_.squeeze(x, axis=tuple(i for i, d in enumerate(x.shape) if d == 1)),
    "move": lambda np_, x, n: np_.moveaxis(x, n[0] % max(x.ndim, 1), n[1] % max(x.ndim, 1)),
}
MADE: dict[str, Callable[[Any, Any, Any, tuple[int, ...]], Any]] = {
    "add": lambda np_, x, y, n: x + y,
    "multiply": lambda np_, x, y, n: x * y,
    "maximum": lambda np_, x, y, n: np_.maximum(x, y),
    "less": lambda np_, x, y, n: x < y,
    "where": lambda np_, x, y, n: np_.where(x > 0, x, y),
    "sum": lambda np_, x, y, n: np_.sum(x, axis=n[0] % x.ndim if x.ndim and n[1] % 3 else None, keepdims=bool(n[2] % 2)),
    "max": lambda np_, x, y, n: np_.max(x, axis=n[0] % x.ndim if x.ndim and n[1] % 3 else None),
    "concat": lambda np_, x, y, n: np_.concat([x, y], axis=n[0] % max(x.ndim, 1)),
    "take": lambda np_, x, y, n: np_.take(x, np_.asarray([n[0] % 3, 0, n[1] % 2]), axis=n[2] % max(x.ndim, 1)),
    "mask": lambda np_, x, y, n: x[x > 1],
    "copy": lambda np_, x, y, n: np_.asarray(x, copy=True),
}
WRITES: dict[str, Callable[[Any, Any, tuple[int, ...]], Any]] = {
    "set": lambda x, y, n: x.__setitem__(_slices(x.shape, n), y),
    "set number": lambda x, y, n: x.__setitem__(_slices(x.shape, n), x.dtype.type(n[0] % 2)),
    "set mask": lambda x, y, n: x.__setitem__(x > 0, x.dtype.type(n[0] % 2)),
    "set whole": lambda x, y, n: x.__setitem__(..., y),
}
KINDS = (*VIEWS, *MADE, *WRITES, "in-place add", "in-place multiply", "set own part")


def draw(rng: np.random.Generator) -> Case:
    def numbers() -> tuple[int, ...]:
        return tuple(int(v) for v in rng.integers(0, 60, 6))

    sizes = (0, 1, 2, 3, 5, 70) if rng.random() < 0.9 else (1, 40, 300)
    inputs = tuple((str(rng.choice(DTYPES)), tuple(int(v) for v in rng.choice(sizes, rng.integers(0, 4)))) for _ in range(2))
    steps = tuple(Step(str(rng.choice(KINDS)), int(rng.integers(0, 60)), int(rng.integers(0, 60)), numbers())
                  for _ in range(rng.integers(3, 14)))
    return Case(inputs, bool(rng.random() < 0.15), steps)


def check(case: Case) -> None:
    if not case.inputs or any(s.kind not in KINDS or len(s.numbers) < 6 for s in case.steps):
        raise Invalid
    given = [np.asarray(np.arange(int(np.prod(s))).reshape(s) % 7 - 2).astype(d) for d, s in case.inputs]
    if case.lazy:
        with tw.lazy():
            _run(case, given)
    else:
        _run(case, given)


def _run(case: Case, given: list[Any]) -> None:
    theirs, ours = [np.array(a) for a in given], [tw.asarray(np.array(a)) for a in given]
    for number, step in enumerate(case.steps):
        i, j = step.x % len(ours), step.y % len(ours)
        try:
            with np.errstate(all="ignore"):
                made = _step(np, step, theirs, i, j)
        except (ValueError, IndexError, TypeError, OverflowError):  # NumPy has no such step: ours may refuse it in its own way
            continue
        if made is not None and (made.size > MANY or made.ndim > 6):
            continue
        found = _step(tw, step, ours, i, j)
        if made is not None:
            theirs.append(np.array(made))
            ours.append(found)
        for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            np.testing.assert_array_equal(np.asarray(a), b, err_msg=f"variable {k} after step {number} ({step.kind})")
            if a.dtype != b.dtype:
                raise AssertionError(f"variable {k} after step {number} ({step.kind}): {a.dtype} instead of {b.dtype}")


def _step(np_: Any, step: Step, variables: list[Any], i: int, j: int) -> Any:
    """One step; gives a new variable, or None where one was written."""
    x, y, n = variables[i], variables[j], step.numbers
    if step.kind in VIEWS:
        return VIEWS[step.kind](np_, x, n)
    if step.kind in MADE:
        if x.dtype != y.dtype or (step.kind == "take" and not x.ndim):
            raise TypeError("one dtype; NumPy takes from a number as if it were a row")
        if math.prod(np.broadcast_shapes(x.shape, y.shape) if step.kind in ("add", "multiply", "maximum", "less", "where") else ()) > MANY:
            raise ValueError("too large")
        return MADE[step.kind](np_, x, y, n)
    if step.kind in WRITES:
        if x.dtype != y.dtype:
            raise TypeError("one dtype")
        WRITES[step.kind](x, np.array(y) if np_ is np else y, n)
    elif step.kind == "set own part":  # what is read lies in the memory that is written
        part = x[_slices(x.shape, n)]
        x[_slices(x.shape, (*n[3:], *n[:3]))] = part.copy() if np_ is np else part
    else:
        if x.dtype != y.dtype or str(x.dtype) == "bool":
            raise TypeError("one dtype")
        if np_ is np:
            y = y.copy()
        if step.kind == "in-place add":
            x += y
        else:
            x *= y
        variables[i] = x
    return None


CAMPAIGN = Campaign(draw=draw, check=check, quick=60)
