"""What a kernel reports is one record: two programs that fail at once never mix their positions and values.

The tile interpreter stops one program before each of its writes to the error block and runs another one in between.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.dtypes import f64, i64
from tilewright.ir.graph import Graph
from tilewright.kernels.launch import CLAIMED
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.linalg.factors import Cholesky
from tilewright.ops.linalg.systems import Lu
from tilewright.ops.pointwise.binary import FloorDivide
from tilewright.tile import interp
from tilewright.tile.ir import Kernel

from .interpreted import interpret_graph
from .test_templates import t

N = 9000


def index(size: int) -> Any:
    """Out of range everywhere, and nowhere twice the same."""
    return fresh_rng().permutation(size) + 100


CASES: dict[str, tuple[Callable[[], Graph], Callable[[], list[Any]]]] = {
    "gather": (lambda: single(lambda g, v: F.gather(v[0], v[1]), t(f64, 3, 4), t(i64, 50)), lambda: [np.zeros((3, 4)), index(50)]),
    "divide": (lambda: single(lambda g, v: FloorDivide()(v[0], v[1]), t(i64, N), t(i64, N)), lambda: [index(N), np.zeros(N, int)]),
    "lu": (lambda: single(lambda g, v: Lu(check=True)(v[0])[0], t(f64, 3, 5, 5)),
              lambda: [np.stack([np.diag([1.0] * k + [0.0] * (5 - k)) for k in (2, 0, 4)])]),
    "cholesky": (lambda: single(lambda g, v: Cholesky()(v[0]), t(f64, 3, 5, 5)),
                 lambda: [np.stack([np.diag([1.0] * k + [-1.0] * (5 - k)) for k in (2, 0, 4)])])}


@pytest.mark.parametrize("case", CASES)
def test_a_report_is_one_record(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, draw = CASES[case]
    graph, arrays = make(), draw()
    run, store = interp.run, interp._OPS["store"]
    between: Callable[[], None] | None = None
    left = 0

    def watched(i: Any, xs: list[Any]) -> None:
        nonlocal between, left
        if i.operands[0].name == "error":
            left -= 1
            if left == 0 and between is not None:
                other, between = between, None
                other()
        store(i, xs)

    monkeypatch.setitem(interp._OPS, "store", watched)
    records: list[list[list[int]]] = []

    def interleaved(kernel: Kernel, args: list[Any], grid: int, order: Any = None) -> None:
        nonlocal between, left
        if all(p.name != "error" for p in kernel.params):
            run(kernel, args, grid, order)
            return
        assert grid > 1
        error = next(a.data for p, a in zip(kernel.params, args, strict=True) if p.name == "error")

        def reported() -> list[int]:
            code, *rest = error.tolist()
            error[:] = 0
            return [code & ~CLAIMED, *rest]

        alone = []
        for p in (0, grid - 1):
            run(kernel, args, grid, [p])
            alone.append(reported())
        for n in range(1, 5):
            between, left = lambda: run(kernel, args, grid, [grid - 1]), n
            run(kernel, args, grid, [0])
            assert between is None, "a report is four writes"
            assert (got := reported()) in alone, f"mixed {alone} before write {n} to {got}"
        records.append(alone)

    monkeypatch.setattr(interp, "run", interleaved)
    interpret_graph(graph, arrays)
    assert len(records) == 1 and records[0][0] != records[0][1]
