"""The machine's ceilings: which of them bounds a piece of work, and that they are measured in a sane order."""
from __future__ import annotations

import pytest

from tilewright.runtime.machine import Level, Peaks, peaks

KNOWN = Peaks(2, 100.0, (Level("L1", 1e4, 80.0), Level("L2", 1e6, 40.0), Level("memory", float("inf"), 10.0)), 4.0)


@pytest.mark.parametrize(("flops", "moved", "want"), [
    (0, 0, (0.0, "flops")), (1000, 80, (10.0, "flops")), (100, 8000, (100.0, "L1")), (100, 10_000, (125.0, "L1")),
    (100, 10_001, (250.025, "L2")), (10, 2_000_000, (200_000.0, "memory")), (10**9, 2_000_000, (1e7, "flops")),
])
def test_the_ceiling_is_that_of_the_level_the_data_fits_in(flops: int, moved: int, want: tuple[float, str]) -> None:
    least, bound = KNOWN.least(flops, moved)
    assert least == pytest.approx(want[0])
    assert bound == want[1] or least == 0


def test_integer_products_have_a_higher_ceiling() -> None:
    assert KNOWN.least(1000, 1, integer=True) == (2.5, "flops")


def test_measured() -> None:
    found = peaks(1)
    assert found.flops > 0
    assert found.levels[-1].name == "memory"
    assert found.levels[-1].capacity == float("inf")
    assert [x.capacity for x in found.levels] == sorted(x.capacity for x in found.levels)
    assert all(x.bytes > 0 for x in found.levels)
    assert found.bytes == found.levels[-1].bytes
