"""Donated inputs: updated in place where nothing needs the old value, copied where something does, the same as the interpreter."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import evaluate, sym
from tilewright.core.errors import ExecutionError, InputError, VerifyError
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.parse import parse
from tilewright.ir.text import to_text
from tilewright.ir.types import TensorType
from tilewright.ir.verify import verify
from tilewright.kernels.state import in_place_updates
from tilewright.ops.rows.cumulative import CumSum
from tilewright.runtime import workspace
from tilewright.runtime.memory import Allocation
from tilewright.runtime.state import State, StatefulCall, StateSpec

SIZE = 24


def program(kind: str = "plain", cache: dt.DType = dt.f32) -> Graph:
    """x[S,3] is appended to a cache after P rows; the result is the sum of all rows so far. `kind` says who reads the old cache."""
    past, new = sym("P", 0, SIZE - 1), sym("S", 1, 8)
    g = Graph(kind)
    x = g.input(TensorType(dt.f32, (new, 3)), "x")
    old = g.input(TensorType(cache, (SIZE, 3)), "cache")
    after = o.UpdateSlice(axis=0, start=past)(old, x)
    total = o.sum_(o.cast(o.slice_(after, 0, 0, past + new), dt.f32), (0,))
    g.outputs = [total, after]
    if kind == "read_later":
        g.outputs[0] = o.add(total, o.sum_(o.cast(old, dt.f32), (0,)))
        g.nodes.sort(key=lambda n: n.op.name != "update_slice" and not n.op.traits.source)
        from tilewright.ir.rewrite import sort_nodes

        sort_nodes(g)
    if kind == "shown":
        g.outputs.append(old)
    if kind == "from_itself":
        g.outputs[1] = o.UpdateSlice(axis=0, start=0)(after, o.slice_(after, 0, 4, 2))
    if kind == "twice":
        g.outputs[1] = o.UpdateSlice(axis=0, start=0)(after, o.mul(o.cast(o.slice_(after, 0, 4, 1), dt.f32), 2.0))
    g.donated, g.call_symbols = {1: 1}, tuple(past.symbols)
    verify(g)
    return g


def inputs(rng: Any, rows: int, dtype: Any = np.float32) -> tuple[Any, Any]:
    return rng.standard_normal((rows, 3)).astype(np.float32), rng.standard_normal((SIZE, 3)).astype(dtype)


@pytest.mark.parametrize("kind", ["plain", "read_later", "shown", "from_itself", "twice"])
def test_native_is_the_interpreter(kind: str) -> None:
    graph = program(kind)
    session = tw.compile(graph)
    rng = np.random.default_rng(0)
    for past, rows in ((0, 1), (5, 3), (16, 8)):
        x, cache = inputs(rng, rows)
        kept = cache.copy()
        got = session.run_with({"P": past}, x, cache)
        for a, b in zip(got, run(graph, [x, cache], {"P": past}), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(cache, kept)  # the caller's array stays as it is


def test_only_what_nobody_reads_again_is_updated_in_place() -> None:
    copies = {}
    for kind in ("plain", "twice", "shown", "from_itself"):
        executable = tw.compile(program(kind)).executable
        assert executable is not None
        copies[kind] = sum("copy" in launch.note for launch in executable.launches)
    assert copies["plain"] == copies["twice"] == 0
    assert copies["shown"] and copies["from_itself"]
    assert len(in_place_updates(program("plain"))) == 1
    assert not in_place_updates(program("shown"))


def test_states_advance_in_place_and_apart() -> None:
    session = tw.compile(program(cache=dt.f16))
    spec = StateSpec(session, 0)
    call = StatefulCall(session, spec)
    one, two = State(spec), State(spec)
    rng, seen = np.random.default_rng(1), []
    total = np.empty(3, np.float32)
    for rows in (1, 4, 8, 2):
        x = rng.standard_normal((rows, 3)).astype(np.float32)
        seen.append(x.astype(np.float16))
        call((one,), {"P": one.length, "S": rows}, (x,), (total,))
        one.fill(one.length + rows)
        np.testing.assert_allclose(total, np.concatenate(seen).astype(np.float32).sum(0), rtol=1e-4, atol=1e-4)
    assert not two.arrays[0].any()
    other = one.copy()
    np.testing.assert_array_equal(other.arrays[0][: one.length], np.concatenate(seen))
    other.arrays[0][:] = 0
    np.testing.assert_array_equal(one.arrays[0][: one.length], np.concatenate(seen))


def test_a_call_outside_the_state_is_refused() -> None:
    session = tw.compile(program())
    rng = np.random.default_rng(2)
    x, cache = inputs(rng, 4)
    with pytest.raises(InputError, match=r"update_slice .* would leave its operand: -P-S\+24 must not be negative, got P = 22, S = 4"):
        session.run_with({"P": 22}, x, cache)
    with pytest.raises(InputError, match=r"P must be in 0\.\.23, got 24"):
        session.run_with({"P": 24}, x, cache)
    with pytest.raises(InputError, match="no input shows the value of P"):
        session(x, cache)
    spec = StateSpec(session, 0)
    call, state = StatefulCall(session, spec), State(spec)
    with pytest.raises(InputError, match="would leave its operand"):
        call((state,), {"P": 22, "S": 4}, (x,), (np.empty(3, np.float32),))
    with pytest.raises(InputError, match=r"input 0 must be a contiguous f32\[4, 3\]"):
        call((state,), {"P": 0, "S": 4}, (x[:, ::-1],), (np.empty(3, np.float32),))


def test_a_saved_program_keeps_its_state(tmp_path: Path) -> None:
    session = tw.compile(program())
    session.save(tmp_path / "s.tw")
    loaded = tw.load(tmp_path / "s.tw")
    x, cache = inputs(np.random.default_rng(3), 5)
    for a, b in zip(loaded.run_with({"P": 7}, x, cache), session.run_with({"P": 7}, x, cache), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.interface == session.interface


def test_text_and_verifier_know_donated_inputs() -> None:
    graph = program()
    text = to_text(graph)
    assert "[call P=0..23, S=1..8](%x, %cache to 1)" in text
    again = parse(text)
    assert to_text(again) == text
    assert (again.donated, again.call_symbols) == (graph.donated, graph.call_symbols)
    graph.donated = {0: 1}
    with pytest.raises(VerifyError, match="donated input %x is"):
        verify(graph)
    graph.donated = {1: 5}
    with pytest.raises(VerifyError, match="cannot be donated"):
        verify(graph)


@pytest.mark.parametrize("length", [-1, 6, 1 << 40, 1.5, "5", None, True, float("nan")])
def test_a_length_set_by_hand_can_only_shorten(length: Any) -> None:
    state = State(StateSpec(tw.compile(program()), 0))
    state.fill(5)
    for way in ("truncate", "length"):
        with pytest.raises(InputError, match=r"state: can be truncated to 0\.\.5 elements, got "):
            state.truncate(length) if way == "truncate" else setattr(state, way, length)
        assert state.length == 5
    state.length = np.int32(3)  # type: ignore[assignment]
    assert state.length == 3 and type(state.length) is int
    with pytest.raises(InputError, match=r"state: holds 0\.\.24 elements, got 25"):
        state.fill(25)


@pytest.mark.parametrize(("env", "message"), [({"P": -3, "S": 4}, r"P must be in 0\.\.23, got -3"),
                                              ({"P": 24, "S": 4}, r"P must be in 0\.\.23, got 24"),
                                              ({"P": -(1 << 40), "S": 4}, r"P must be in 0\.\.23, got -1099511627776")])
def test_a_place_outside_the_state_reaches_no_kernel(env: dict[str, int], message: str) -> None:
    session = tw.compile(program())
    spec = StateSpec(session, 0)
    with pytest.raises(InputError, match=message):
        StatefulCall(session, spec)((State(spec),), env, (np.zeros((4, 3), np.float32),), (np.empty(3, np.float32),))


def test_a_call_without_memory_leaves_no_schedule_in_what_was_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The arena goes before a larger one comes; when none comes, schedules of smaller calls are made again in the next one."""
    size = sym("N", 1, 1 << 22)
    g = Graph("grows")
    x = g.input(TensorType(dt.f32, (size,)), "x")
    g.outputs = [o.sum_(o.matmul(o.reshape(o.exp(x), (size, 1)), g.constant(np.ones((1, 8), np.float32), "ones")), (0, 1))]
    session = tw.compile(g)
    small, large = np.full(64, 0.5, np.float32), np.zeros(1 << 20, np.float32)
    want = session(small)
    (used,) = session._free
    arena = used._arena

    def refuse(nbytes: int, **_: Any) -> Any:
        if nbytes > arena.nbytes:
            raise ExecutionError("memory: none left")
        return Allocation(nbytes)

    with monkeypatch.context() as m:
        m.setattr(workspace, "Allocation", refuse)
        with pytest.raises(ExecutionError, match="none left"):
            used.job((1 << 20,))
    assert not used.instances, "they point to memory that was given back"
    assert session(small) == want and np.isfinite(session(large))


def test_what_a_slice_leaves_has_its_memory() -> None:
    """Schedules are made for the power of two above a number that calls give; what x[n:] needs is more than it leaves there."""
    rng = fresh_rng()
    size, first = sym("N", 1, 4096), sym("A", 0, 4096)
    g = Graph("rest")
    x = g.input(TensorType(dt.f32, (size,)), "x")
    g.outputs = [CumSum(axis=0)(CumSum(axis=0)(o.slice_(x, 0, first, size - first)))]
    g.call_symbols = tuple(first.symbols)
    session: Any = tw.compile(g)
    for n, a in ((700, 300), (995, 5), (0, 1000), (1000, 0), (1, 999), *rng.integers(1, 1000, (4, 2)).tolist()):
        n += a
        given = rng.integers(-3, 4, n).astype(np.float32)
        used = session.take()
        made = used.instance(tuple({"A": a, "N": n}[s.name] for s in session.interface.symbols))
        session.give(used)
        temps = session.executable.plan.temps
        assert temps and all(evaluate(b.nbytes, {"A": a, "N": n}) <= made.placement.sizes[b] for b in temps)
        np.testing.assert_array_equal(session.run_with({"A": a}, given), given[a:].cumsum().cumsum())
        assert session.last_env() == {"A": a, "N": n}
