"""Type rules agree with the references, and errors are raised with their pinned messages."""

from __future__ import annotations

import pytest

from tests.fresh import fresh_rng
from tests.ops.checks import Case, cases, check_error, check_infer, error_cases
from tilewright.core.errors import ShapeError
from tilewright.ir.graph import Graph
from tilewright.ops import Add, Op
from tilewright.ops.base import ErrorSample
from tilewright.ops.families import f32


@pytest.mark.parametrize("case", cases())
def test_infer_agrees_with_the_reference(case: Case) -> None:
    check_infer(case, fresh_rng())


@pytest.mark.parametrize(("op", "error"), error_cases())
def test_rejected_with_its_message(op: type[Op], error: ErrorSample) -> None:
    check_error(op, error)


def test_a_wrong_number_of_operands_is_a_shape_error() -> None:
    g = Graph()
    x = g.input(f32(3))
    with pytest.raises(ShapeError, match=r"^add: takes 2 operands, got 1 \(m.py:1\)$"):
        g.add(Add(), x, place="m.py:1")
