"""Lifetimes, in-place sharing, placement per bucket, barriers, and the validators that watch over them."""
from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.plan.programs import chain, launch
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import Dim, sym
from tilewright.core.errors import VerifyError
from tilewright.core.validation import validate
from tilewright.ir.graph import Graph
from tilewright.kernels.launch import Buffer, Pointer, Program
from tilewright.kernels.select import select
from tilewright.ops.families import f32
from tilewright.passes.pipeline import run_pipeline
from tilewright.plan import validate as checks
from tilewright.plan.barriers import Access, accesses, derive_barriers, is_serial
from tilewright.plan.lifetimes import lifetimes, share_inplace
from tilewright.plan.plan import Plan, round_up
from tilewright.target.cpu.host import host_target


def test_chain_lifetimes_and_inplace() -> None:
    program = chain(1000, 5, inplace=True)
    plain = lifetimes(program)
    assert [(i.first, i.last) for i in plain] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    shared = share_inplace(program, plain)
    assert [(len(i.buffers), i.first, i.last) for i in shared] == [(4, 0, 4)]
    assert Plan(program, ()).place({}).size == 1024


def test_inplace_needs_the_last_reader_and_enough_room() -> None:
    x, a, b, c = Buffer("x", "input", 256), Buffer("a", "temp", 256), Buffer("b", "temp", 256), Buffer("c", "temp", 512)
    y = Buffer("y", "output", 256)
    late = Program([x], [y], [], [a, b], [launch("0", [x], [a]), launch("1", [a], [b], inplace=True), launch("2", [a, b], [y])])
    assert len(share_inplace(late, lifetimes(late))) == 2
    grows = Program([x], [y], [], [a, c], [launch("0", [x], [a]), launch("1", [a], [c], inplace=True), launch("2", [c], [y])])
    assert len(share_inplace(grows, lifetimes(grows))) == 2
    of_input = Program([x], [y], [], [a], [launch("0", [x], [a], inplace=True), launch("1", [a], [y])])
    assert len(share_inplace(of_input, lifetimes(of_input))) == 1
    assert not any(x in i.buffers for i in share_inplace(of_input, lifetimes(of_input)))


def test_the_smaller_of_with_and_without_inplace_is_kept() -> None:
    # Sharing keeps the large buffer alive for the small one's long life; without it the large storage is free for reuse.
    x, y = Buffer("x", "input", 64), Buffer("y", "output", 64)
    big, small, other = Buffer("big", "temp", 6400), Buffer("small", "temp", 64), Buffer("other", "temp", 6400)
    steps = [launch("0", [x], [big]), launch("1", [big], [small], inplace=True), launch("2", [x], [other])]
    steps.append(launch("3", [other, small], [y]))
    placed = Plan(Program([x], [y], [], [big, small, other], steps), ()).place({})
    assert not placed.inplace
    assert placed.size == 6400 + 64


def test_reading_before_writing_is_an_error() -> None:
    t, y = Buffer("t", "temp", 64), Buffer("y", "output", 64)
    with pytest.raises(VerifyError, match=r"plan: launch 0 \(k\) reads t, which no earlier launch has written"):
        lifetimes(Program([], [y], [], [t], [launch("k", [t], [y])]))
    x = Buffer("x", "input", 64)
    with pytest.raises(VerifyError, match=r"writes x, which is input"):
        lifetimes(Program([x], [], [], [], [launch("k", [], [x])]))


def test_buckets_reuse_offsets() -> None:
    s = sym("S", 1, 1000)
    (symbol,) = s.symbols
    plan = Plan(chain(s * 256, 4), [symbol])
    assert plan.place({"S": 65}) is plan.place({"S": 128})
    assert plan.place({"S": 64}) is not plan.place({"S": 65})
    assert plan.place({"S": 1000}).size == plan.place({"S": 513}).size == 2 * 256000
    assert [round_up(n, symbol) for n in (1, 2, 3, 5, 513, 1000)] == [1, 2, 4, 8, 1000, 1000]


def test_a_size_that_shrinks_gets_its_own_placement() -> None:
    s = sym("S", 1, 1000)
    (symbol,) = s.symbols
    size: Dim = (1000 - s) * 64
    plan = Plan(chain(size, 4), [symbol])
    assert plan.place({"S": 600}).size >= 2 * 400 * 64


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)])
def test_a_launch_that_reads_backwards_touches_what_lies_before_its_pointer(axes: tuple[int, ...]) -> None:
    """The pointer of a flipped view is at its last element: a barrier is due before any byte of the buffer is written again."""
    g = Graph()
    g.outputs = [o.CumSum(axis=1)(o.Flip(axes=axes)(o.Softmax(axis=1)(g.input(f32(64, 1000), "x"))))]
    program = select(run_pipeline(g), host_target())
    sums = program.launches[-1]
    (read,) = (b for b in sums.reads if b.kind == "temp")
    sizes = {b: int(str(b.nbytes)) for b in (*sums.reads, *sums.writes)}
    assert [(a.lo, a.hi) for a in accesses(sums, {}, sizes) if a.space == "arena"] == [(0, sizes[read])]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)])
def test_nothing_read_backwards_is_no_fault(shape: tuple[int, ...]) -> None:
    g = Graph()
    x = g.input(f32(*shape), "x")
    g.outputs = [o.Sum(axes=tuple(range(len(shape))))(o.Cast(dtype=dt.f64)(o.Flip(axes=tuple(range(len(shape))))(o.CumSum(axis=0)(x))))]
    session = tw.compile(g, validation="strict")
    np.testing.assert_array_equal(session(np.zeros(shape, np.float32)), 0.0)


def random_program(seed: int, steps: int) -> Program:
    """A random DAG of launches; every temp is read at least once, some in place."""
    rng = random.Random(seed)
    x, y = Buffer("x", "input", 512, 0), Buffer("y", "output", 512, 0)
    temps: list[Buffer] = []
    launches = []
    for k in range(steps):
        out = Buffer(f"t{k}", "temp", rng.choice([64, 100, 512, 4096, 5000]))
        reads = rng.sample(temps, min(len(temps), rng.randint(1, 3))) or [x]
        launches.append(launch(f"k{k}", reads, [out], inplace=rng.random() < 0.5, flops=rng.choice([1, 10**8])))
        temps.append(out)
    launches.append(launch("last", temps[-2:], [y]))
    return Program([x], [y], [], temps, launches)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30))
def test_random_programs_are_placed_right(seed: int, steps: int) -> None:
    program = random_program(seed, steps)
    placed = Plan(program, ()).place({})
    validate("plan", "strict", program, placed, {})


def test_validators_notice_overlap_alignment_and_bounds() -> None:
    program = chain(1000, 5)
    placed = Plan(program, ()).place({})
    t0, t1 = program.temps[0], program.temps[1]
    placed.offsets[t1] = placed.offsets[t0]
    with pytest.raises(VerifyError, match=r"plan: buffers t0 and t1 overlap in the arena at launch 1"):
        validate("plan", "normal", program, placed, {})
    placed.offsets[t0] = 8
    assert any("not a multiple of 64" in str(f) for f in checks.arena_bounds(program, placed, {}))
    placed.offsets[t0] = 1 << 20
    assert any("ends beyond the arena" in str(f) for f in checks.arena_bounds(program, placed, {}))
    broken = program.launches[0]
    broken.arguments = (*broken.arguments, Pointer(t0, 960, 64))
    assert any("touches bytes 960..1024 of t0, which has 1000" in str(f) for f in checks.pointer_bounds(program, placed, {}))
    broken.arguments = (Pointer(program.outputs[0], 0, 4),)
    assert any("declares no access" in str(f) for f in checks.pointer_bounds(program, placed, {}))
    validate("plan", "none", program, placed, {})


def needs_barrier(touched: list[list[Access]], serial: list[bool], barriers: list[bool]) -> bool:
    """Brute force: is some conflicting pair on different threads without a barrier between?"""
    for i in range(len(touched)):
        for j in range(i + 1, len(touched)):
            pairs = [(a, b) for a in touched[i] for b in touched[j] if a.space == b.space and (a.write or b.write)]
            clash = any(set(range(a.lo, a.hi)) & set(range(b.lo, b.hi)) for a, b in pairs)
            if clash and not (serial[i] and serial[j]) and not any(barriers[i + 1 : j + 1]):
                return True
    return False


access = st.builds(
    lambda space, lo, n, write: Access(space, lo, lo + n, write), st.integers(0, 1), st.integers(0, 10), st.integers(1, 5), st.booleans()
)
steps_strategy = st.lists(st.tuples(st.lists(access, max_size=3), st.booleans()), max_size=12)


@settings(max_examples=150, deadline=None)
@given(steps_strategy)
def test_barriers_separate_every_conflict_and_each_is_needed(steps: list[tuple[list[Access], bool]]) -> None:
    touched, serial = [s[0] for s in steps], [s[1] for s in steps]
    barriers = derive_barriers(touched, serial)
    assert not needs_barrier(touched, serial, barriers)
    for k in [k for k, b in enumerate(barriers) if b]:
        fewer = list(barriers)
        fewer[k] = False
        assert needs_barrier(touched, serial, fewer)


def test_serial_neighbours_need_no_barrier() -> None:
    small = Plan(chain(64, 6), ()).place({})
    assert small.sync((True,) * 6) == [False] * 6
    assert small.sync((False,) * 6) == [False, True, True, True, True, True]
    assert is_serial(1, 10**9, 10**9)
    assert is_serial(100, 1000, 1000)
    assert not is_serial(100, 10**7, 0)
