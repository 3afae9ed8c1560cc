"""Views: reading the storage through the layout is the reference, from contiguous and from strided operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.ops.checks import Case, cases, check_views, read
from tilewright.core.dims import sym
from tilewright.ir.layout import Layout
from tilewright.ops import Expand, Flip, Op, Reshape, Slice, Split, Transpose
from tilewright.ops.families import View


@pytest.mark.parametrize("case", cases(only=lambda op: issubclass(op, View)))
def test_layout_reads_what_the_reference_gives(case: Case) -> None:
    check_views(case, fresh_rng())


CHAINS: list[list[Any]] = [
    [Transpose(perm=(2, 0, 1)), Slice(starts=(1, 0, 1), sizes=(3, 2, 2), steps=(1, 1, 1)), Flip(axes=(0,))],
    [Slice(starts=(0, 0, 1), sizes=(2, 3, 4), steps=(1, 1, 1)), Reshape(shape=(6, 4)), Transpose(perm=(1, 0))],
    [Reshape(shape=(2, 3, 5, 1)), Expand(shape=(2, 3, 5, 4)), Flip(axes=(1, 2))],
    [Transpose(perm=(0, 2, 1)), Reshape(shape=(2, 5, 3, 1)), Slice(starts=(0, 0, 0, 0), sizes=(2, 3, 2, 1), steps=(1, 2, 1, 1))],
]


@pytest.mark.parametrize("chain", CHAINS, ids=range(len(CHAINS)))
def test_views_of_views(chain: list[Op]) -> None:
    x = fresh_rng().normal(size=(2, 3, 5))
    layout, want = Layout.contiguous(x.shape), x
    for op in chain:
        (after,) = op.views(layout)
        assert after is not None
        layout, want = after, op.ref(want)
    np.testing.assert_array_equal(read(x.reshape(-1), layout, {}), want)


def test_a_reshape_that_needs_a_copy_has_no_layout() -> None:
    turned = Layout.contiguous((2, 3)).permute((1, 0))
    assert Reshape(shape=(6,)).view(turned) is None
    assert Reshape(shape=(6,)).view(Layout.contiguous((2, 3))) == Layout.contiguous((6,))


def test_split_has_one_layout_an_output() -> None:
    n = sym("N", 1, 9)
    first, second = Split(axis=1, sizes=(2, n)).views(Layout.contiguous((3, n + 2)))
    assert first == Layout((3, 2), (n + 2, 1), 0)
    assert second == Layout((3, n), (n + 2, 1), 2)
