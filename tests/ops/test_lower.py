"""Lowerings to tile IR, run by the tile interpreter, against the references; NaN, infinities and bad divisors included."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.ops.checks import Case, cases, check_lower
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ops import REGISTRY, FloorDivide, Op, Remainder
from tilewright.ops.families import Elementwise, i32, i64

SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 1e30, -1e30, 19.5, 20.5, -30.0, 100.0)
EXACT = ("bitcast", "cast", "where")  # what they give for special values depends on their dtypes


@pytest.mark.parametrize("case", cases(only=lambda op: issubclass(op, Elementwise)))
def test_lowering_is_the_reference(case: Case) -> None:
    arrays = case.arrays(fresh_rng())
    (want,) = run(case.graph(), arrays, case.env)
    check_lower(case.make(), arrays, want, case.graph().outputs[0].dtype.name)


@pytest.mark.parametrize(
    "op", [op for op in REGISTRY.values() if issubclass(op, Elementwise) and "f" in op.kinds and op.name not in EXACT]
)
def test_special_values(op: type[Op]) -> None:
    pairs = np.array(list(product(SPECIAL, SPECIAL)), np.float64)
    arrays = [np.ascontiguousarray(pairs[:, i]) for i in range(op.arity[0] if op.arity else 1)]
    if op.name in ("sin", "cos", "tan"):
        arrays[0] = arrays[0][np.abs(arrays[0]) < 1e6]
    made = op(**op.samples[0].attrs)
    with np.errstate(all="ignore"):
        want = made.ref(*arrays)
    check_lower(made, arrays, want, "bool" if want.dtype == bool else "f64")


@pytest.mark.parametrize("op", [Remainder(), FloorDivide()])
@pytest.mark.parametrize("kind", [i32, i64])
def test_integer_division_never_traps(op: Op, kind: type) -> None:
    dtype = kind().dtype.np
    least = np.iinfo(dtype).min
    pairs = np.array(list(product((0, 1, -1, 7, -7, least), (1, -1, 3, -3, least))), dtype)  # by 0: tests/transform/test_faults.py
    x, y = np.ascontiguousarray(pairs.T)
    g = Graph()
    g.outputs = [op(g.input(kind(len(x))), g.input(kind(len(x))))]
    (want,) = run(g, [x, y])
    check_lower(op, [x, y], want, "int")
