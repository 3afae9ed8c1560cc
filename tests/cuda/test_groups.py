"""Waits that follow from tokens while a kernel is written, and where the shared memory of swizzled matrices begins."""

from __future__ import annotations

import re

import pytest

from tests.cuda.test_async_safety import kernel
from tilewright.core.errors import CompileError
from tilewright.target.cuda.matmul.groups import COPIES, PIECES, PRODUCTS, Groups
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.ptx.text import KernelText
from tilewright.target.cuda.safety.async_safety import check, symbols


def numbers(k: KernelText) -> list[str]:
    """The waits that were written: their count, with `r` where only sources are read, and `free` for stages handed back."""
    found = (re.search(r"wait_group(?:\.sync\.aligned)?(\.read)? (\d)|(free)", line) for line in k.lines)
    return [m[3] or m[2] + ("r" if m[1] else "") for m in found if m is not None]


def test_a_wait_counts_later_groups_and_hands_back_what_has_ended() -> None:
    k = KernelText("k", [])
    g = Groups(k, *PRODUCTS)
    before = g.carried(lambda: k.emit("// free"))
    start = g.in_flight
    scores, sums = g.commit(lambda: k.emit("// free")), g.commit()
    g.wait(scores)  # the one before has ended with it: two stages are free
    g.wait(before)
    g.wait(sums, sometimes=True)
    g.again(start)
    g.wait(sums)
    assert numbers(k) == ["1", "free", "free", "0", "0"] and g.in_flight == 0


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_ring_of_pieces_waits_for_the_oldest(stages: int) -> None:
    k = KernelText("k", [])
    g = Groups(k, *PIECES)
    ahead = [g.commit() for _ in range(stages - 1)]
    start = g.in_flight
    g.wait(ahead[0])
    g.commit()
    g.again(start)
    g.drain()
    assert numbers(k) == [str(stages - 2), "0"]


def test_places_that_are_written_in_turn() -> None:
    k = KernelText("k", [])
    g = Groups(k, *COPIES, guard="%p1")
    g.room(2)
    g.wait(g.commit(), read=True)
    assert numbers(k) == ["1r", "0r"] and all(line.startswith("  @%p1 cp.async.bulk.") for line in k.lines)


def test_a_round_that_leaves_more_than_it_found_is_refused() -> None:
    g = Groups(KernelText("k", []), *PIECES)
    start = g.in_flight
    g.commit()
    with pytest.raises(CompileError, match=r"a round starts with 0 groups in flight and leaves 1 \(kernel k\)"):
        g.again(start)


def test_swizzled_matrices_rely_on_the_declared_alignment() -> None:
    """The backward pass of attention takes the dynamic memory as it is: declared with less, its matrices would be off their places."""
    text, launch = kernel("attention_backward flash_grad")
    assert symbols(text, 4)["ring"] % 1024 == 0
    less = text.replace(".align 1024 .b8 ring", ".align 512 .b8 ring")
    assert less != text and "use" in {f.kind for f in check(less, launch).findings}


@pytest.mark.skipif(find_ptxas() is None, reason="no ptxas here (CUDA toolkit or the package nvidia-cuda-nvcc)")
def test_the_assembler_keeps_to_it() -> None:
    """Static shared memory (barriers) is rounded up, so the dynamic part behind it begins at a multiple of 1024, and is counted as such."""
    text, _ = kernel("attention_backward flash_grad")
    assert assemble(text, "sm_90a").shared == 1024
    assert assemble(text.replace(".align 1024 .b8 ring", ".align 128 .b8 ring"), "sm_90a").shared == 128
