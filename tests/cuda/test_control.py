"""Loops and branches on the CUDA target: their kernels, emulated, against the reference, and the host's part in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.control.programs import Maker
from tests.cuda.fake_driver import FakeDriver, fake_gpu
from tests.cuda.kernels import case
from tests.cuda.launching import Emulated, graph
from tests.ops.checks import Case, assert_close, cases
from tilewright.cli.inspect_cuda import inspect_cuda
from tilewright.core.dims import sym
from tilewright.core.dtypes import bf16, bool_, f16, f32, f64
from tilewright.core.errors import ExecutionError
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.kernels.cuda import whole
from tilewright.kernels.launch import flatten
from tilewright.ops import Concat, Cond, Matmul, Scan, Slice
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.runtime.cuda import flow as cuda_flow
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.safety.barrier_safety import check


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as fake:
        yield fake


SUMS = Scan(body=single(lambda g, v: F.add(v[0], v[1]), *[TensorType(f32, (6,))] * 2), carries=1, xs=1, length=4)


def draw(rng: np.random.Generator, *shapes: tuple[int, ...]) -> list[Any]:
    return [rng.uniform(-1, 1, s).astype(np.float32) for s in shapes]


def control_cases() -> list[Any]:
    """The samples of the ops; those with products take long to emulate."""
    found = [p for p in cases() if p.values[0].op.name in ("scan", "cond", "while")]
    long = [len(p.values[0].arrays(np.random.default_rng())[-1].shape) == 2 and p.values[0].op.name == "scan" for p in found]
    return [pytest.param(*p.values, id=p.id, marks=pytest.mark.slow if slow else ()) for p, slow in zip(found, long, strict=True)]


@pytest.mark.parametrize("op", control_cases())
def test_an_op_gives_its_reference(op: Case, rng: np.random.Generator) -> None:
    arrays = op.arrays(rng)
    want = run(op.graph(), arrays, op.env)
    for got, w, v in zip(Emulated(op.graph())(*arrays, env=op.env), want, op.graph().outputs, strict=True):
        assert_close(got, np.asarray(w), v.dtype.name, 2.0)


def test_a_scan_with_a_branch_and_a_loop_inside_is_one_launch() -> None:
    arrays = draw(np.random.default_rng(1), (300,), (5, 300))  # no sum so near 0 that its rounding decides the way
    emulated = Emulated(case("loops"))
    found = emulated(*arrays)
    assert emulated.launched == 1
    for got, want in zip(found, run(case("loops"), arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)


SLOW = pytest.mark.slow


@pytest.mark.parametrize("shapes", [((40, 40), (2, 40), (3, 2, 40)), pytest.param(((3, 3), (1, 3), (4, 1, 3)), marks=SLOW)], ids=str)
def test_a_recurrent_network_and_its_derivative_are_a_kernel_each(shapes: Any, gpu: FakeDriver, rng: np.random.Generator) -> None:
    def loss(w: Any, h: Any, x: Any) -> Any:
        last, ys = tw.scan(lambda h, x: ((new := tw.tanh(h @ w + x)), new * h), h, x)
        return (last * last).sum() + ys.sum()

    arrays, step = draw(rng, *shapes), tw.value_and_grad(loss, argnums=(0, 1, 2))
    f = tw.jit(step, target="cuda")
    value, grads = f(*arrays)
    want, wanted = step(*(a.astype(np.float64) for a in arrays))
    np.testing.assert_allclose(value.numpy(), want, rtol=1e-4, atol=1e-4)
    for a, b in zip(grads, wanted, strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-3, atol=1e-3)
    assert [type(x.kernel) is whole.WholeKernel for x in f.lower(*arrays).executable.program.launches].count(True) == 2


PRODUCTS: list[tuple[Any, ...]] = [
    (f32, (5, 7), (7, 33), {}),
    (bf16, (9, 5), (9, 70), {"transpose_a": True}),
    (f64, (2, 3, 17), (2, 40, 17), {"transpose_b": True}),
    (f16, (2, 3, 16), (16, 32), {"alpha": 0.5}),
    (f32, (3, 0), (0, 4), {}),
]


@pytest.mark.parametrize(("dtype", "left", "right", "options"), PRODUCTS, ids=str)
def test_products_in_a_branch(dtype: Any, left: Any, right: Any, options: dict[str, Any], rng: np.random.Generator) -> None:
    def product(g: Any, v: Any) -> Any:
        return F.add(Matmul(**options)(v[0], v[1]), v[2])

    a, b = (TensorType(dtype, s) for s in (left, right))
    n = Matmul(**options).infer(a, b).shape[-1]
    assert isinstance(n, int)
    bias = TensorType(dtype, (n,))
    op = Cond(then=single(product, a, b, bias), other=single(lambda g, v: F.neg(product(g, v)), a, b, bias))
    made = graph(lambda p, *x: p.node.graph.add(op, p, *x).values, (bool_, ()), *((t.dtype, t.shape) for t in (a, b, bias)))
    emulated = Emulated(made)
    (launch,) = emulated.program.launches
    assert any("small_matmul" in x.kernel.name for x in flatten(list(launch.kernel.items)))  # type: ignore[attr-defined]
    arrays = [x.astype(dtype.np) for x in draw(rng, left, right, (n,))]
    for flag in (True, False):
        (got,), (want,) = emulated(np.array(flag), *arrays), run(made, [np.array(flag), *arrays])
        assert_close(got, np.asarray(want), dtype.name, 4.0)


def test_programs_of_several_sizes_in_one_block(rng: np.random.Generator) -> None:
    """Rows on 128 threads between kernels on 256."""
    body = single(lambda g, v: (F.add(F.mul(v[0], 0.5), v[1]), F.sum_(v[0], (0,)), F.max_(v[1], (0,))),
                  *[TensorType(f32, (2100,))] * 2)  # fmt: skip
    arrays = draw(rng, (2100,), (3, 2100))
    made = graph(lambda h, x: h.node.graph.add(Scan(body=body, carries=1, xs=1, length=3), h, x).values, (f32, (2100,)), (f32, (3, 2100)))
    emulated = Emulated(made)
    (launch,) = emulated.program.launches
    sizes = {x.kernel.threads for x in flatten(list(launch.kernel.items))}  # type: ignore[attr-defined]
    assert len({n for n in sizes if n > 32}) > 1 and check(emit_cuda(launch.kernel, emulated.target)) == []
    for got, want in zip(emulated(*arrays), run(made, arrays), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_shared_memory_of_one_block(gpu: FakeDriver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two turning copies: as many of their programs at a time as shared memory has room for, which both use; none where one has no room."""

    def turn(h: Any) -> Any:
        return tw.softmax(tw.transpose(h * 0.5).reshape((16, 256))).reshape(64, 64)

    def turned(h: Any, x: Any) -> Any:
        return tw.scan(lambda h, x: (turn(turn(h)) + x, None), h, x)[0]

    arrays = draw(rng, (64, 64), (1, 64, 64))
    f = tw.jit(turned, target="cuda")
    np.testing.assert_allclose(f(*arrays).numpy(), turned(*(a.astype(np.float64) for a in arrays)), rtol=1e-4, atol=1e-5)
    session: Any = f.lower(*arrays)
    (launch,) = session.executable.program.launches
    copy = 32 * 33 * 4
    kernels: list[Any] = [x.kernel for x in flatten(list(launch.kernel.items))]
    assert [whole.scratch_bytes(k) for k in kernels].count(copy) == 2
    (text,) = session.ptx().values()
    assert f"scratch[{whole.SHARED // copy * copy}]" in text and check(text) == []
    with monkeypatch.context() as less:
        less.setattr(whole, "SHARED", copy - 1 + whole.REDUCED)
        apart = tw.jit(lambda *a: turned(*a), target="cuda").lower(*arrays)
    assert not any(isinstance(x.kernel, whole.WholeKernel) for x in apart.executable.program.launches)


@pytest.mark.parametrize(("small", "most"), [(True, 2048), (False, 2048), (False, 4), (False, 0)],
                         ids=["one kernel", "recorded", "some recorded", "walked"])  # fmt: skip
@pytest.mark.parametrize("seed", [3, pytest.param(slice(4, 60), marks=pytest.mark.slow)], ids=str)
def test_nested_programs(seed: Any, small: bool, most: int, gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice, with the memory elsewhere the second time."""
    monkeypatch.setattr(cuda_flow, "RECORDED", most)
    monkeypatch.setattr(whole, "BYTES", whole.BYTES if small else -1)
    for one in range(60)[seed] if isinstance(seed, slice) else [seed]:
        made, drawn = Maker(one, 3).program(), np.random.default_rng(one)
        session: Any = tw.compile(Maker(one, 3).program(), target="cuda")
        held = []
        for _ in range(2):
            arrays = [drawn.uniform(-1, 1, (3, 3)).astype(np.float32) for _ in made.inputs]
            found = session(*arrays)
            held.append(found)
            for got, want in zip(found if isinstance(found, tuple) else (found,), run(made, arrays), strict=True):
                np.testing.assert_allclose(got.numpy(), want, rtol=1e-3, atol=1e-4)


def steps(w: Any, h: Any, x: Any) -> Any:
    last, ys = tw.scan(lambda h, x: ((new := tw.tanh(h * w + x)), new * h), h, x)
    return last, ys


SLICES: dict[str, tuple[Any, ...]] = {
    "a view": ((8,), (3, 10), lambda h, x: tw.scan(lambda h, x: (h * 0.5 + x, h), h, x[:, :8])),
    "rows of a view": ((4, 3), (3, 5, 3), lambda h, x: tw.scan(lambda h, x: (h * 0.5 + x, h), h, x[:, :4])),
    "another axis": ((2, 3), (2, 4, 3), lambda h, x: tw.scan(lambda h, x: (h * 0.5 + x, h), h, tw.transpose(x, (1, 0, 2)))),
    "parts, backwards": ((8,), (3, 10), lambda h, x: tw.scan(
        lambda h, x: (h * 0.5 + x[:8], tw.concatenate([h, x[:2]])), h, x, reverse=True)),
    "whole": ((2, 3), (3, 2, 3), lambda h, x: tw.scan(lambda h, x: (h * 0.5 + x, tw.softmax(x)), h, x)),
}  # fmt: skip


@pytest.mark.parametrize("which", SLICES)
def test_slices_that_are_no_16_bytes_apart(which: str, gpu: FakeDriver, rng: np.random.Generator) -> None:
    """No access is wider than its address allows (the emulator would refuse it); slices that are seen whole stay where they are."""
    carry, stack, fn = SLICES[which]
    arrays = draw(rng, carry, stack)
    f = tw.jit(fn, target="cuda")
    for got, want in zip(f(*arrays), fn(*(a.astype(np.float64) for a in arrays)), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-5)
    notes = [x.note for x in f.lower(*arrays).executable.program.launches]
    assert any("multiples of 16 bytes" in n for n in notes) is (which != "whole")


def test_parts_of_slices_and_a_count_that_varies(rng: np.random.Generator) -> None:
    """Where the last carries lie is known inside the kernel of the loop alone."""

    def body(_: Any, v: Any) -> Any:
        return F.add(v[0], Slice(starts=(0,), sizes=(8,), steps=(1,))(v[1])), Concat(axis=0)(v[0], v[1])

    n = sym("N", 0, 9)
    op = Scan(body=single(body, TensorType(f32, (8,)), TensorType(f32, (10,))), carries=1, xs=1, length=n)
    made = graph(lambda h, x: h.node.graph.add(op, h, x).values, (f32, (8,)), (f32, (n, 10)))
    emulated = Emulated(made)
    for count in (0, 3):
        arrays = draw(rng, (8,), (count, 10))
        for got, want in zip(emulated(*arrays), run(made, arrays), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


HOW = {  # bytes of a small launch, kernels of a recorded loop; graphs and single launches of a call
    "one block of threads": (1 << 15, 2048, (1, 0)),
    "recorded in the graph": (-1, 2048, (1, 0)),
    "the host launches every step": (-1, 3, (1, 5)),
}


@pytest.mark.parametrize("how", HOW)
def test_a_scan_and_what_the_host_does(how: str, gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    small, most, calls = HOW[how]
    monkeypatch.setattr(whole, "BYTES", small)
    monkeypatch.setattr(cuda_flow, "RECORDED", most)
    arrays = draw(rng, (2, 3), (2, 3), (5, 2, 3))
    gpu.calls.clear()
    f = tw.jit(steps, target="cuda")
    for got, want in zip(f(*arrays), steps(*(a.astype(np.float64) for a in arrays)), strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-5, atol=1e-6)
    assert (gpu.calls.get("cuGraphLaunch", 0), gpu.calls.get("cuLaunchKernelEx", 0)) == calls
    program = f.lower(*arrays).executable.program
    (row,) = cuda_flow.describe_control(program.block or program.launches, {})
    assert (row["kind"], row["steps"], row["launches"], row["synchronises"]) == ("scan", 5, ["pointwise"], False)
    assert how in row["how"]


@pytest.mark.parametrize("small", [True, False], ids=["one kernel", "read back"])
def test_predicates_and_what_the_report_says(small: bool, gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    def fn(x: Any) -> Any:
        y = tw.while_loop(lambda c: c.max() < 4.0, lambda c: c * 2, x)
        return tw.cond(y.sum() > 0, lambda a: a + 1, lambda a: a * x, y)

    monkeypatch.setattr(whole, "BYTES", whole.BYTES if small else -1)
    f = tw.jit(fn, target="cuda")
    for x, reads in ((np.array([0.3, -1, 1], np.float32), 4), (np.array([5, -9, 1], np.float32), 2)):
        got, before = f(x), gpu.calls.get("cuMemcpyDtoHAsync_v2", 0)
        np.testing.assert_array_equal(got.numpy(), fn(x))
        assert before == (0 if small else reads)
        gpu.calls.clear()
    report = f.lower(x).report()
    assert [(r["kind"], r["synchronises"]) for r in report.data["control"]] == [("while", not small), ("cond", not small)]
    assert str(report).count("waits for it") == (0 if small else 2)
    assert small or {x["inside"] for x in report.data["launches"]} >= {r["name"] for r in report.data["control"]}


@pytest.mark.parametrize("options", [pytest.param({}, marks=SLOW), {"checkpoints": 2, "reverse": True}], ids=str)
def test_derivatives(options: dict[str, Any], gpu: FakeDriver, rng: np.random.Generator) -> None:
    def loss(w: Any, h: Any, x: Any) -> Any:
        last, ys = tw.scan(lambda h, x: ((new := tw.sin(h * w + x)), new * h), h, x, **options)
        turned = tw.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * w), (0, last), max_iterations=5)[1]
        return (turned * turned).sum() + ys.sum()

    arrays = draw(rng, (3,), (3,), (5, 3))
    gradient = tw.grad(loss, argnums=(0, 1, 2))
    got = tw.jit(gradient, target="cuda")(*arrays)
    for a, b in zip(got, gradient(*(a.astype(np.float64) for a in arrays)), strict=True):
        np.testing.assert_allclose(a.numpy(), b, rtol=2e-4, atol=1e-5)


def test_strict_sessions_wait_after_every_kernel(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_flow, "RECORDED", 1)
    monkeypatch.setattr(whole, "BYTES", -1)
    graph = Maker(3, 3).program()
    session: Any = tw.compile(graph, target="cuda", validation="strict")
    found = session(*(np.zeros((3, 3), np.float32) for _ in graph.inputs))
    assert found is not None and gpu.calls["cuStreamSynchronize"] >= len(gpu.launches)


def test_bad_data_ends_a_loop(gpu: FakeDriver) -> None:
    """Its predicate would stay true for ever."""
    f: Any = tw.jit(lambda t, i: tw.while_loop(lambda c: c.sum() >= 0.0, lambda c: c + t[i].sum(), t[0]), target="cuda")
    table = np.ones((4, 3), np.float32)
    assert np.array_equal(f(-table, np.array([1, 2])).numpy(), -table[0])
    f(table, np.array([1, 7]))
    with pytest.raises(ExecutionError, match="got 7"):
        f.lower(table, np.array([1, 7])).synchronize()


@pytest.mark.parametrize("small", [True, False], ids=["one kernel", "walked"])
def test_donated_carries_saved_sessions_and_what_inspect_shows(
    small: bool, gpu: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(whole, "BYTES", whole.BYTES if small else -1)
    monkeypatch.setattr(cuda_flow, "RECORDED", 2)
    h, x = draw(rng, (6,), (4, 6))
    step = tw.jit(lambda h, x: tw.scan(lambda h, x: (h * 0.5 + x, h), h, x), target="cuda", donate=0)
    first, _ = step(h, x)
    wanted = ((((h * 0.5 + x[0]) * 0.5 + x[1]) * 0.5) + x[2]) * 0.5 + x[3]
    np.testing.assert_allclose(first.numpy(), wanted, rtol=1e-5, atol=1e-6)
    place = first.address
    again, ys = step(first, x)
    assert again.address == place
    np.testing.assert_allclose(ys.numpy()[0], wanted, rtol=1e-5, atol=1e-6)
    session: Any = tw.compile(graph(lambda h, x: h.node.graph.add(SUMS, h, x).values, (f32, (6,)), (f32, (4, 6))), target="cuda")
    session.save(tmp_path / "loop.tw")
    got, want = tw.load(tmp_path / "loop.tw")(h, x), session(h, x)
    np.testing.assert_array_equal(got.numpy(), want.numpy())
    inspect_cuda(session, tmp_path / "shown")
    said = (tmp_path / "shown" / "report.txt").read_text()
    assert "scan" in said and ("goes through it in one kernel" if small else "the host launches every step") in said
    tiles = "".join(p.read_text() for p in (tmp_path / "shown" / "kernels").glob("*.tile"))
    assert ("4 times (scan):" in tiles) is small
