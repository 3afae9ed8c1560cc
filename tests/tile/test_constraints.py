"""Limits of targets: messages name the limit and what fits."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest

from tests.tile.kernels import matmul, softmax
from tilewright.core.dtypes import f32
from tilewright.core.errors import CompileError
from tilewright.core.target_spec import REFERENCE
from tilewright.target.cuda.device import cuda_target
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.constraints import TileLimits, check, findings, peak, vector_registers
from tilewright.tile.ir import TileType

AVX512, AVX2 = TileLimits("cpu", 64, 32), TileLimits("cpu", 32, 16)


@pytest.mark.parametrize("rows, cols, limits", [(6, 64, AVX512), (9, 48, AVX512), (6, 16, AVX2), (4, 24, AVX2)])
def test_register_tiles_that_fit(rows: int, cols: int, limits: TileLimits) -> None:
    assert check(matmul(rows, cols, 1), limits) == []


@pytest.mark.parametrize(
    "rows, cols, limits, message",
    [
        (8, 64, AVX512, r"at most 32 vector registers, got about 37; tile<8x64xf32> takes 32, 6 of its 8 rows fit"),
        (6, 32, AVX2, r"at most 16 vector registers, got about 29; tile<6x32xf32> takes 24, 2 of its 6 rows fit"),
        (24, 128, AVX2, r"got about 401; tile<24x128xf32> takes 384, rows of 56 elements fit"),
    ],
)
def test_register_tiles_that_spill(rows: int, cols: int, limits: TileLimits, message: str) -> None:
    (found,) = check(matmul(rows, cols, 1), limits)
    assert (found.severity, message in found.message) == ("warning", True)


def test_last_side_fills_vectors() -> None:
    found = findings(matmul(4, 24, 1), AVX512)
    assert found
    assert all("should fill vectors of 16" in f.message and "16 or 32 fits" in f.message for f in found)


def test_local_memory() -> None:
    with pytest.raises(
        CompileError, match=r"cpu: kernel softmax: at most 1024 bytes of local memory, got 2048; .* \(512,\) takes 2048, 1024 fit"
    ):
        check(softmax(), TileLimits("cpu", local_bytes=1024))


def test_gpu_sides() -> None:
    with pytest.raises(
        CompileError, match=r"gpu: kernel matmul: tile sides must be powers of two, got tile<6x64xf32>; 4 or 8 fits instead of 6"
    ):
        check(matmul(6, 64, 16), TileLimits("gpu"))
    assert check(matmul(64, 64, 16), TileLimits("gpu")) == []


def test_gpu_registers_and_shared_memory() -> None:
    with pytest.raises(
        CompileError, match=r"at most 255 registers a thread, got about 576 with 128 threads; .*tile<256x256xf32>; 384 threads fit"
    ):
        check(matmul(256, 256, 16), TileLimits("gpu"))
    b = KernelBuilder("big")
    b.scratch(f32, (64, 1024), "shared")
    with pytest.raises(CompileError, match=r"at most 232448 bytes of shared memory, got 262144"):
        check(b.build(), TileLimits("gpu"))


def followed(shape: tuple[int, int, int], limits: TileLimits, message: str) -> tuple[tuple[int, int, int], TileLimits]:
    """The product's tile, or the block, changed to what a message says fits."""
    rows, cols, depth = shape
    if found := re.search(r"([1-9]\d*) of its \d+ rows fit", message):
        return (int(found[1]), cols, depth), limits
    if found := re.search(r"rows of (\d+) elements fit", message) or re.search(r"; \d+ or (\d+) fits$", message):
        return (rows, int(found[1]), depth), limits
    if found := re.search(r"(\d+) threads fit", message):
        return shape, replace(limits, threads=int(found[1]))
    found = re.search(r"(\d+) or \d+ fits instead of (\d+)", message)
    assert found, message
    low, odd = map(int, found.groups())
    return (low if rows == odd else rows, low if cols == odd else cols, depth), limits


@pytest.mark.parametrize("limits", [AVX512, AVX2, TileLimits("gpu")], ids=["avx512", "avx2", "gpu"])
def test_whoever_does_what_the_messages_say_gets_a_kernel(limits: TileLimits) -> None:
    """Every tile that is refused has nothing left to be told after three messages at most."""
    refused = 0
    for rows, cols in itertools.product((1, 3, 6, 8, 24, 100, 256), (8, 24, 64, 100, 256, 512)):
        shape, now = (rows, cols, 1 if limits.kind == "cpu" else 16), limits
        left = findings(matmul(*shape), now)
        refused += bool(left)
        for _ in range(3):
            if left:
                shape, now = followed(shape, now, left[0].message)
                left = findings(matmul(*shape), now)
        assert not left, (rows, cols, [f.message for f in left])
    assert refused > 20


def test_limits_of_a_target() -> None:
    assert TileLimits.of(REFERENCE) == TileLimits("cpu", 16, 16)
    limits = TileLimits.of(cuda_target("sm_80"), 4)
    assert (limits.threads, limits.shared_bytes) == (4, 163 << 10)
    (found,) = check(matmul(48, 64, 16), limits)  # sides of any size are right on a GPU; registers in memory are slow
    assert found.severity == "warning" and "at most 255 registers a thread, got about " in found.message


def test_what_a_tile_takes() -> None:
    assert [vector_registers(TileType(s, f32), AVX512) for s in ((), (16,), (17,), (6, 64), (6, 1))] == [1, 1, 2, 24, 6]
    assert vector_registers(TileType((6, 1), f32), AVX512, "load") == 1


def test_peak_counts_what_a_loop_reads_from_outside() -> None:
    b = KernelBuilder("k")
    y = b.view("y", f32, (1,))
    kept = b.load(y, [0], (8,))
    with b.loop(0, 4) as loop:
        t = b.load(y, [loop.index], (8,))
        b.store(y, [0], t + kept)  # the sum takes the register of t
        b.store(y, [8], b.load(y, [16], (8,)))
    b.store(y, [0], b.full((8,), 0.0))
    kernel = b.build()
    tiles = {r: 1 for i in kernel.walk() for r in i.results if isinstance(r.type, TileType)}
    assert peak(kernel, tiles)[0] == 2
