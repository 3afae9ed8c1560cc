"""The rows of `functions.py`: a few in every run, all of them, with gradients and with symbolic sizes, among the slow tests."""
from __future__ import annotations

import warnings

import pytest

from . import functions_more  # noqa: F401  enters its rows
from .functions import ROWS
from .run_row import check_row

QUICK = {
    "plain": ("elementwise/step functions of f16", "elementwise/copysign selected, bf16", "elementwise/bits selected",
        "elementwise/div ints",
              "reductions/zero sizes", "scans/stable sort", "indexing/masked index", "views/view of a dtype", "views/view u8 as wider",
              "views/view i64 as smaller", "views/view bf16 as i16", "views/strided result", "views/unfold of nothing",
              "views/repeat_interleave sizes", "views/negative and conjugate views", "writes/two overlapping views",
                  "pictures/nearest backward",
              "pictures/adaptive averages of size 0"),
    "grad": ("elementwise/sgn", "indexing/complex rows", "reductions/f16 and bf16", "losses/batch_norm bf16 gradients",
        "losses/batch_norm f16 gradients", "writes/slices"),
    "dynamic": ("elementwise/div a number", "indexing/index_put into an argument", "views/cat channels last"),
}


def check(mode: str, name: str) -> None:
    kind, _, rest = name.partition("/")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # splits, and what torch says about the inputs
        check_row(ROWS[kind][rest], mode)


@pytest.mark.parametrize(("mode", "name"), [(mode, name) for mode, names in QUICK.items() for name in names])
def test_quick(mode: str, name: str) -> None:
    check(mode, name)


CASES = [(mode, f"{kind}/{name}") for kind, rows in ROWS.items() for name, row in rows.items() for mode in QUICK
         if (mode != "grad" or row.grad) and (mode != "dynamic" or row.dynamic) and f"{kind}/{name}" not in QUICK[mode]]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "name"), CASES)
def test_row(mode: str, name: str) -> None:
    check(mode, name)
