"""The machine's ceilings: which of them bounds a piece of work, and that they are measured in a sane order."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.quantize.test_amx import with_tiles
from tilewright.runtime import machine
from tilewright.runtime.machine import Level, Peaks, peaks
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.jit import assembly

KNOWN = Peaks(2, 100.0, (Level("L1", 1e4, 80.0), Level("L2", 1e6, 40.0), Level("memory", float("inf"), 10.0)), {"bf16": 2.0, "i8": 4.0})


@pytest.mark.parametrize(("flops", "moved", "want"), [
    (0, 0, (0.0, "flops")), (1000, 80, (10.0, "flops")), (100, 8000, (100.0, "L1")), (100, 10_000, (125.0, "L1")),
    (100, 10_001, (250.025, "L2")), (10, 2_000_000, (200_000.0, "memory")), (10**9, 2_000_000, (1e7, "flops")),
])
def test_the_ceiling_is_that_of_the_level_the_data_fits_in(flops: int, moved: int, want: tuple[float, str]) -> None:
    least, bound = KNOWN.least(flops, moved)
    assert least == pytest.approx(want[0])
    assert bound == want[1] or least == 0


def test_other_numbers_have_other_ceilings() -> None:
    assert KNOWN.least(1000, 1, numbers="i8") == (2.5, "flops")
    assert KNOWN.least(1000, 1, numbers="bf16") == (5.0, "flops")
    assert KNOWN.least(1000, 1, numbers="f64") == (20.0, "flops")
    assert Peaks(1, 100.0, KNOWN.levels).least(1000, 1, numbers="bf16") == (10.0, "flops")  # widened


def test_functions_launches_and_weights_have_a_place_in_it() -> None:
    assert KNOWN.least(100, 80, math=900) == (10.0, "math")
    assert replace(KNOWN, launch=70.0).least(100, 80) == (70.0, "launch")
    near, far = KNOWN.least(0, 10_000), KNOWN.least(0, 10_000, constants=9000, resident=5_000_000)
    assert near == (125.0, "L1") and far == (pytest.approx(1000 / 80 + 9000 / 10), "memory")  # type: ignore[comparison-overlap]


def test_what_was_measured_is_kept_and_only_grows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    made = [replace(KNOWN, threads=3), replace(KNOWN, threads=3, flops=90.0, launch=5.0, packed={"bf16": 3.0, "i8": 1.0})]
    monkeypatch.setattr(machine, "_measure", lambda target, threads: made.pop(0))
    peaks.cache_clear()
    try:
        assert peaks(3) == replace(KNOWN, threads=3) and len(made) == 1
        peaks.cache_clear()
        assert peaks(3) == replace(KNOWN, threads=3) and len(made) == 1  # from the folder
        assert machine.remeasure(3) == replace(KNOWN, threads=3, packed={"bf16": 3.0, "i8": 4.0}) and not made
        peaks.cache_clear()
        assert peaks(3).packed == {"bf16": 3.0, "i8": 4.0}
    finally:
        peaks.cache_clear()


def test_tiles_are_timed_where_there_are_tiles() -> None:
    """The kernels for a CPU with AMX become its instructions; the operations they count are those of the instructions."""
    kernels, work = machine._kernels(with_tiles())
    for name, code in (("bf16 tiles", "tdpbf16ps"), ("i8 tiles", "tdpbusd"), ("bf16", "vdpbf16ps"), ("i8", "vpdpbusd")):
        assert code in assembly(emit_kernel(kernels[name], with_tiles()), with_tiles()), name
    assert work["bf16 tiles"] / 2 == work["i8 tiles"] / 4 and work["i8"] == 4 * work["f32"]


def test_measured() -> None:
    found = peaks(1)
    assert found.flops > 0
    assert found.levels[-1].name == "memory"
    assert found.levels[-1].capacity == float("inf")
    assert [x.capacity for x in found.levels] == sorted(x.capacity for x in found.levels)
    assert all(x.bytes > 0 for x in found.levels)
    assert found.bytes == found.levels[-1].bytes
