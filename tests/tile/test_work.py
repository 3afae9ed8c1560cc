"""What a program of a kernel does, counted from its tile IR: trip counts, strides, functions, hoisting, dependent steps; by hand."""

from __future__ import annotations

import pytest

from tilewright.core.dtypes import bf16, f32, f64, i32
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel
from tilewright.tile.work import program_work, typical_work

LANES = 16


def rows(step: int | None = 1, fn: str = "exp") -> Kernel:
    """out[i, :] = fn(x[i, :]) in registers of 16, with `n` elements a row."""
    b = KernelBuilder("rows")
    x, out, n = b.view("x", f32, (None, step)), b.view("out", f32, (None, 1)), b.index("n")
    with b.loop(0, n, LANES) as loop:
        b.store(out, (b.pid, loop.index), b.unary(fn, b.load(x, (b.pid, loop.index), (LANES,))))
    return b.build()


def test_loops_run_as_often_as_their_words_say() -> None:
    work = program_work(rows(), [None, 160, None, 160, 160], 0, LANES)
    assert (work.accesses, work.math, work.math_registers) == (20, {("exp", "f32"): 160}, {("exp", "f32"): 10})
    assert (work.bytes, work.gathered, work.arithmetic, work.unknown) == (2 * 4 * 160, 0, 0, False)


def test_strided_reads_are_single_elements() -> None:
    """A stride that only the call knows counts as what it is."""
    for stride, gathered, accesses in ((7, 160, 10), (1, 0, 20), (0, 0, 20), (2, 0, 40)):
        work = program_work(rows(None), [None, 1, stride, None, 160, 160], 0, LANES)
        assert (work.gathered, work.accesses) == (gathered, accesses), stride


def test_rows_a_page_apart_collide() -> None:
    b = KernelBuilder("squares")
    x, out = b.view("x", f32, (None, 1)), b.view("out", f32, (None, 1))
    b.store(out, (0, 0), b.transpose(b.load(x, (0, 0), (LANES, LANES))))
    kernel = b.build()
    assert [program_work(kernel, [None, step, None, 96], 0, LANES).colliding for step in (1024, 1000, 4096)] == [16, 0, 16]


def test_what_a_loop_does_not_change_counts_once() -> None:
    b = KernelBuilder("once")
    x, out = b.view("x", f32, (1,)), b.view("out", f32, (1,))
    scale = b.load(x, (0,), (1,))
    with b.loop(0, 10) as loop:
        b.store(out, (loop.index * LANES,), b.load(x, (loop.index * LANES,), (LANES,)) * (scale + 1.0))
    work = program_work(b.build(), [None, None], 0, LANES)
    assert work.arithmetic == 1 + 10 and work.elements == 1 + 160


def test_limits_and_conditions_are_those_of_the_program() -> None:
    b = KernelBuilder("edge")
    x, out, n = b.view("x", f32, (1,)), b.view("out", f32, (1,)), b.index("n")
    with b.if_(b.compare("lt", b.pid * 64, n)):
        tile = b.load(x, (b.pid * 64,), (64,), limit=(n - b.pid * 64,))
        b.store(out, (b.pid * 64,), tile, limit=(n - b.pid * 64,))
    kernel = b.build()
    assert [program_work(kernel, [None, None, 100], p, LANES).accesses for p in range(3)] == [8, 6, 0]
    assert typical_work(kernel, [None, None, 100], 3, LANES).accesses == pytest.approx(14 / 3)


def test_dependent_steps_have_a_length() -> None:
    def chain(width: int) -> float:
        b = KernelBuilder("chain")
        x, out = b.view("x", f32, (1,)), b.view("out", f32, (1,))
        with b.loop(0, 100, carried=[b.full((width,), 0.0)]) as loop:
            loop.next(b.fma(b.load(x, (loop.index,), (1,)), b.load(x, (loop.index,), (1,)), loop.carried[0]))
        b.store(out, (0,), loop.results[0])
        work = program_work(b.build(), [None, None], 0, LANES)
        assert work.arithmetic == 100 * -(-width // LANES)
        return work.chain

    assert chain(1) == chain(64) == 400


def test_products_by_their_numbers() -> None:
    b = KernelBuilder("products")
    x, words, out = b.view("x", f32, (64, 1)), b.view("words", i32, (1,)), b.view("out", f32, (64, 1))
    half = b.view("half", bf16, (1,))
    w = b.load(words, (0,), (32,))
    acc = b.mma(b.load(x, (0, 0), (6, 4)), b.load(x, (0, 0), (4, 64)), b.full((6, 64), 0.0))
    b.store(out, (0, 0), acc)
    b.dot4(w, w, w)
    b.dot2(w, w, b.full((32,), 0.0))
    b.cast(b.load(half, (0,), (48,)), f32)
    b.cast(b.load(x, (0, 0), (8,)), f64)
    work = program_work(b.build(), [None] * 4, 0, LANES)
    assert work.packed == {"i8": 2, "bf16": 2} and work.widened == 48
    assert work.arithmetic == 6 * 4 * 4 + 6 * 4 + 3 + 2  # multiply-adds, broadcasts of the left operand, casts (f64 takes two registers)


def test_loops_over_data_are_unknown() -> None:
    b = KernelBuilder("data")
    ids, out = b.view("ids", i32, (1,)), b.view("out", f32, (1,))
    with b.loop(0, b.to_index(b.load(ids, (0,), ()))) as loop:
        b.store(out, (loop.index,), b.full((1,), 1.0))
    assert program_work(b.build(), [None, None], 0, LANES).unknown
