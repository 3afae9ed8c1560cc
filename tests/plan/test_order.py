"""The order of launches: never wrong, and no more memory for a function because of how it is written."""
from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.plan.programs import launch
from tilewright.core import dtypes as dt
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.kernels.launch import Buffer, Program
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.plan.order import LEAST, dependencies, depth_first, greedy, ordered, peak
from tilewright.plan.plan import Plan

WIDTH = 256


def products(late: bool) -> Graph:
    """Eight products that are summed up: each as soon as it is there, or all of them at the end."""

    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        parts = []
        total: Value | None = None
        for i in range(8):
            w = g.constant(np.random.default_rng(i).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16)
            part = F.softmax(F.matmul(v[0], w), 1)
            if late:
                parts.append(part)
            else:
                total = part if total is None else F.matmul(F.add(total, part), w)
        if late:
            total = parts[0]
            for i, part in enumerate(parts[1:], 1):
                w = g.constant(np.random.default_rng(i).standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16)
                total = F.matmul(F.add(total, part), w)
        assert total is not None
        return total

    return single(body, TensorType(dt.f32, (512, WIDTH)))


def test_both_ways_to_write_it_take_the_same_memory() -> None:
    x = fresh_rng().standard_normal((512, WIDTH)).astype(np.float32)
    sizes = []
    for late in (False, True):
        graph = products(late)
        session = tw.compile(graph)
        np.testing.assert_allclose(session(x), run(graph, [x])[0], rtol=2e-3, atol=1e-3)
        assert session.executable is not None
        sizes.append(session.executable.plan.place({}).size)
    assert sizes[1] <= sizes[0] * 1.01, sizes


def scattered(rng: np.random.Generator, count: int) -> Program:
    """A random program: every launch reads some of what is there and writes a buffer of its own."""
    x = Buffer("x", "input", 64)
    temps = [Buffer(f"t{i}", "temp", int(rng.integers(1, 9)) * LEAST) for i in range(count)]
    out = Buffer("out", "output", 64)
    launches = []
    for i, t in enumerate(temps):
        chosen = [temps[int(k)] for k in set(rng.integers(0, i, min(i, 2)).tolist())] if i else []
        launches.append(launch(f"l{i}", [x, *chosen], [t]))
    launches.append(launch("last", temps[-4:], [out]))
    return Program([x], [out], [], temps, launches)


@pytest.mark.parametrize("_", range(30))
def test_random_programs_stay_right_and_never_grow(_: int) -> None:
    rng = fresh_rng()
    program = scattered(rng, int(rng.integers(3, 40)))
    steps = dependencies(program.launches)
    sizes = {b: int(b.nbytes) for b in program.temps}
    for way in (greedy, depth_first):
        order = way(steps, sizes)
        assert sorted(order) == list(range(len(steps)))
        place = {i: k for k, i in enumerate(order)}
        assert all(place[b] < place[i] for i, s in enumerate(steps) for b in s.before)
    found = ordered(program, ())
    assert {id(x) for x in found.launches} == {id(x) for x in program.launches}
    assert peak(found, {}) <= peak(program, {})
    assert Plan(found, ()).place({}).size > 0


def test_a_read_stays_before_the_write_that_follows_it() -> None:
    a, b, c = (Buffer(n, "temp", LEAST * 4) for n in "abc")
    x, out = Buffer("x", "input", 64), Buffer("out", "output", 64)
    launches = [launch("w", [x], [a]), launch("r", [a], [b]), launch("again", [x], [a]), launch("end", [a, b], [c])]
    launches.append(launch("o", [c], [out]))
    steps = dependencies(launches)
    assert steps[2].before == {0, 1}
    assert greedy(steps, {a: 1, b: 1, c: 1})[:3] == [0, 1, 2]


def test_what_prepares_an_operand_runs_just_before_it_is_read() -> None:
    """A packed weight is smaller than the step in front of its product: by itself it would be made long before."""
    x, out = Buffer("x", "input", 64), Buffer("out", "output", 64)
    launches, temps = [], []
    value = x
    for i in range(6):
        wide, packed, narrow = (Buffer(f"{n}{i}", "temp", size * LEAST) for n, size in (("wide", 12), ("packed", 9), ("narrow", 3)))
        weight = Buffer(f"w{i}", "input", 64)
        launches += [launch(f"up{i}", [value], [wide]), launch(f"pack{i}", [weight], [packed]), launch(f"dot{i}", [wide, packed], [narrow])]
        temps += [wide, packed, narrow]
        value = narrow
    packs_first = [x for x in launches if x.name.startswith("pack")] + [x for x in launches if not x.name.startswith("pack")]
    program = Program([x], [out], [], temps, [*packs_first, launch("end", [value], [out])])
    assert peak(ordered(program, ()), {}) == 24 * LEAST
