"""Decompositions have the op's own types and values."""

from __future__ import annotations

import pytest

from tests.fresh import fresh_rng
from tests.ops.checks import Case, cases, check_decompose, has


@pytest.mark.parametrize("case", cases(only=lambda op: has(op, "decompose")))
def test_decomposition_is_the_reference(case: Case) -> None:
    check_decompose(case, fresh_rng())
