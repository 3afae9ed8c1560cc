"""Blocks: alignment, zeroes, lifetime, reuse."""

from __future__ import annotations

import gc
import io
import weakref
from typing import Any

import numpy as np
import pytest

from tilewright.core.errors import ExecutionError
from tilewright.runtime import outputs
from tilewright.runtime.memory import ALIGNMENT, HUGE, Allocation, Arenas, available


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 4097, HUGE - 1, HUGE, 3 * HUGE + 5])
def test_blocks_are_aligned_and_zero(nbytes: int) -> None:
    block = Allocation(nbytes)
    whole = block.array(np.uint8, (nbytes,))
    assert block.address % (HUGE if nbytes >= HUGE else ALIGNMENT) == 0
    assert not whole.any()
    whole[:] = 255
    if nbytes:
        assert whole.ctypes.data == block.address


def test_an_array_keeps_its_block() -> None:
    view = Allocation(4 * HUGE).array(np.float32, (HUGE - 16,), offset=64)
    gc.collect()
    view[:] = 1.5
    assert view.sum() == 1.5 * (HUGE - 16)


def test_an_array_outside_the_block_is_refused() -> None:
    with pytest.raises(TypeError, match="too small"):
        Allocation(64).array(np.int64, (9,))


@pytest.mark.parametrize("nbytes", [-1, 1 << 60])
def test_impossible_sizes_are_refused(nbytes: int) -> None:
    with pytest.raises(ExecutionError, match="memory: "):
        Allocation(nbytes)


def test_arenas_hand_blocks_out_again() -> None:
    arenas = Arenas(max_bytes=1 << 20, max_blocks=2)
    first = arenas.take(10_000)
    address = first.address
    arenas.give(first)
    assert arenas.take(arenas.size_class(10_000)).address == address
    for size in (1000, 5000, 9000):
        arenas.give(Allocation(arenas.size_class(size)))
    assert arenas.nbytes == arenas.size_class(1000) + arenas.size_class(5000), "the third was one too many"
    arenas.give(Allocation(1 << 21))
    assert arenas.nbytes < 1 << 20
    arenas.clear()
    assert arenas.nbytes == 0


@pytest.mark.parametrize("nbytes", [1, 4096, 4097, 100_000, 123_457, 10_000_001])
def test_size_classes_waste_little(nbytes: int) -> None:
    size = Arenas.size_class(nbytes)
    assert size >= nbytes and size % 4096 == 0
    assert size <= max(4096, nbytes + nbytes // 8 + 4096)
    assert Arenas.size_class(size) == size


def test_a_dropped_block_is_freed() -> None:
    block = Allocation(2 * HUGE)
    gone = weakref.ref(block.array(np.uint8, (1,)).base)
    del block
    gc.collect()
    assert gone() is None


def test_available_memory_is_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    room = available()
    assert 1 << 20 < room < 1 << 50
    real = open

    def limited(path: str, *args: object, **kwargs: object) -> object:
        return io.StringIO("4096\n") if path.startswith("/sys/fs/cgroup") else real(path, *args, **kwargs)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", limited)
    assert available() == 4096

    def missing(path: str, *args: object, **kwargs: object) -> object:
        raise FileNotFoundError(path)

    monkeypatch.setattr("builtins.open", missing)
    assert available() == 1 << 62, "where the system says nothing, nothing is refused"


def test_a_kept_block_of_another_size_is_never_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may change the order of the kept blocks between the look at one and taking it."""

    class Turned(list[Allocation]):
        def pop(self, index: Any = -1) -> Allocation:
            self.reverse()
            return super().pop(index)

    small, large = Allocation(64), Allocation(4096)
    monkeypatch.setattr(outputs, "_kept", Turned([small, large]))
    assert outputs._take(4096).nbytes == 4096


def test_kept_blocks_go_where_results_have_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_kept", [Allocation(4096), Allocation(8192)])
    monkeypatch.setattr(outputs, "_missed", 0)
    for _ in range(outputs.STALE):
        outputs._take(64)
    assert len(outputs._kept) == 2
    assert outputs._take(4096).nbytes == 4096
    for _ in range(outputs.STALE + 1):
        outputs._take(64)
    assert not outputs._kept
