"""Calling a session: values, frameworks, shapes, `out=`, copies, threads. The kernels are written by hand."""
from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.session.handmade import chain, chain_program, embedding, kernel, make_session
from tests.shaken import HANG
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.core.errors import ExecutionError, InputError
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.launch import Variant, Word
from tilewright.runtime.outputs import RECYCLED_FROM, address
from tilewright.runtime.workspace import KEPT

S = sym("S", 1, 5000)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("flops", [1, 10**9])  # below and above the threshold for one thread
def test_chain_crosses_threads_and_keeps_order(threads: int, flops: int) -> None:
    session = chain("reverse double reverse double copy reverse", S, flops=flops, inplace=True, threads=threads)
    for n in (1, 2, 7, 100, 1023, 5000, 3):
        for _ in range(3):
            x = torch.randn(n)
            assert torch.equal(session(x), (4 * x).flip(0))


def test_a_missing_barrier_would_show() -> None:
    """The same program with its barriers removed must go wrong sometimes: the test above can fail."""
    session = chain("reverse reverse reverse reverse reverse reverse", 200_000, threads=2)
    session(torch.randn(200_000))
    for workspace in session._free:
        for _, instance, _ in workspace.instances.values():
            instance.thunks[:, 3] = 0
    fresh = (torch.randn(200_000) for _ in range(300))  # what the last call left behind must not be right
    assert any(not torch.equal(session(x), x) for x in fresh)


def test_numpy_in_numpy_out_torch_in_torch_out() -> None:
    session = chain("double", S)
    x = np.random.default_rng(0).standard_normal(33).astype(np.float32)
    first, second = session(x), session(x)
    assert isinstance(first, np.ndarray)
    np.testing.assert_array_equal(first, 2 * x)
    np.testing.assert_array_equal(second, 2 * x)
    assert not np.shares_memory(first, second)
    out = session(torch.from_numpy(x))
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(out.numpy(), 2 * x)


def test_outputs_are_the_callers_own() -> None:
    session = chain("double copy", 16)
    a, b = torch.randn(16), torch.randn(16)
    ya, yb = session(a), session(b)
    assert torch.equal(ya, 2 * a)
    assert torch.equal(yb, 2 * b)
    assert ya.data_ptr() != yb.data_ptr()


def test_inputs_are_not_copied_unless_they_must_be() -> None:
    session = chain("double", 8)
    base = np.arange(32, dtype=np.float32)
    read_only = base[:8].copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(session(read_only), 2 * read_only)
    assert session.copies == {}
    for odd in (base[::4], base[7::-1], base[1:9]):
        np.testing.assert_array_equal(session(odd), 2 * odd)
    unaligned = np.frombuffer(b"\0" + base[:8].tobytes(), np.float32, 8, 1)
    np.testing.assert_array_equal(session(unaligned), 2 * base[:8])
    np.testing.assert_array_equal(session(base[:8].astype(">f4")), 2 * base[:8])
    assert session.copies == {"x": 4}
    t = torch.randn(8, 3)
    assert torch.equal(session(t[:, 1]), 2 * t[:, 1])
    with torch.no_grad():
        assert torch.equal(session(t[:, 1].detach().requires_grad_()), 2 * t[:, 1])
        assert torch.equal(session(torch.nn.Parameter(t[:, 0].contiguous())), 2 * t[:, 0])
    assert session.copies == {"x": 6}


def test_a_tensor_with_the_negative_bit() -> None:
    z = torch.randn(1, dtype=torch.complex64)
    negative = z.conj().imag
    assert negative.is_neg()
    session = chain("double", 1)
    session(torch.ones(1))
    assert torch.equal(session(negative), -2 * z.imag)


def test_a_tensor_that_is_conjugated_when_it_is_read() -> None:
    g = Graph("double")
    x = g.input(TensorType(dt.c64, (3,)), "x")
    g.outputs = [o.Add()(x, x)]
    session, z = tw.compile(g, target="cpu"), torch.randn(3, dtype=torch.complex64)
    session(z)
    assert z.conj().is_conj() and torch.equal(session(z.conj()), 2 * z.conj().resolve_conj())


def test_out_reuses_memory() -> None:
    session = chain("double", S)
    x, y = torch.randn(10), torch.empty(10)
    assert session(x, out=y) is y
    assert torch.equal(y, 2 * x)
    n = np.empty(10, np.float32)
    assert session(x.numpy(), out=n) is n
    np.testing.assert_array_equal(n, 2 * x.numpy())


def test_out_may_be_the_input() -> None:
    session = chain("reverse", 101)
    x = torch.randn(101)
    want = x.flip(0)
    assert torch.equal(session(x, out=x), want)


@pytest.mark.parametrize(
    "bad", [torch.empty(9), torch.empty(10, dtype=torch.float64), torch.empty(20)[::2], torch.empty(10, requires_grad=True), 5]
)
def test_bad_out(bad: object) -> None:
    with pytest.raises(InputError, match=r"session: out= for output 0 must be a contiguous, writable f32\[10\] on the CPU, got "):
        chain("double", S)(torch.randn(10), out=bad)
    with pytest.raises(InputError, match=r"session: out= must hold 1 tensors, got 2"):
        chain("double", S)(torch.randn(10), out=(torch.empty(10), torch.empty(10)))


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_bad_input_names_what_was_expected_and_the_next_call_works(framework: str) -> None:
    convert = torch.from_numpy if framework == "torch" else np.asarray
    good = convert(np.ones(5, np.float32))
    session = chain("double", S)
    for _ in range(2):  # before and after the generated function exists
        for bad, got in [(np.ones(5001, np.float32), r"f32\[5001\]"), (np.ones(0, np.float32), r"f32\[0\]"),
                         (np.ones(5), r"f64\[5\]; cast it first"),
                         (np.ones((1, 5), np.float32), r"f32\[1,5\]"), (np.ones(5, np.complex64), r"c64\[5\]; cast it first")]:
            with pytest.raises(InputError, match=rf"^session: input 'x' must be f32\[S\] with 1 <= S <= 5000, got {got}$"):
                session(convert(bad))
        with pytest.raises(InputError, match=r"session: takes \(x\), got 2 positional arguments"):
            session(good, good)
        with pytest.raises(InputError, match=r"session: argument 'x' is missing"):
            session()
        with pytest.raises(InputError, match=r"session: unexpected argument 'z'"):
            session(good, z=good)
        with pytest.raises(InputError, match=r"session: input 'x' must be f32\[S\] .* got a int; pass a torch tensor or a NumPy array"):
            session(3)
        np.testing.assert_array_equal(np.asarray(session(good)), 2 * np.ones(5))
        np.testing.assert_array_equal(np.asarray(session(x=good)), 2 * np.ones(5))


def test_tensors_that_are_not_plain_cpu_memory() -> None:
    session = chain("double", 4)
    with pytest.raises(InputError, match=r"session: input 'x' must be on the CPU, got f32\[4\] on meta; pass x.cpu\(\)"):
        session(torch.empty(4, device="meta"))
    with pytest.raises(InputError, match=r"session: input 'x' must be a dense tensor, got layout torch.sparse_coo"):
        session(torch.ones(4).to_sparse())
    session(torch.ones(4))
    with pytest.raises(InputError, match="must be on the CPU"):
        session(torch.empty(4, device="meta"))


def test_an_index_out_of_range_names_op_position_and_value() -> None:
    table = np.random.default_rng(1).standard_normal(10).astype(np.float32)
    session = embedding(table, S)
    good = torch.tensor([0, 9, 4])
    for _ in range(2):
        np.testing.assert_array_equal(session(good).numpy(), table[[0, 9, 4]])
        for bad in (10, -1):
            with pytest.raises(ExecutionError, match=rf"^gather: index out of range, got {bad} at position 1 \(in handmade\)$"):
                session(torch.tensor([3, bad, 4]))
    np.testing.assert_array_equal(session(good).numpy(), table[[0, 9, 4]])


def test_zero_sized_tensors() -> None:
    z = sym("Z", 0, 8)
    session = chain("double copy", z)
    for n in (0, 3, 0):
        x = torch.randn(n)
        assert torch.equal(session(x), 2 * x)
    assert torch.equal(chain("double", 0)(torch.empty(0)), torch.empty(0))


def test_nan_and_infinity_pass_through() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    y = chain("copy copy", 4)(x)
    np.testing.assert_array_equal(y.view(torch.int32).numpy(), x.view(torch.int32).numpy())


def test_close_and_context_manager() -> None:
    with chain("double", 4) as session:
        x = torch.ones(4)
        session(x)
        session(x)
    for _ in range(2):
        with pytest.raises(InputError, match="session: handmade is closed"):
            session(x)
    with pytest.raises(InputError, match="session: handmade is closed"):
        session.report()
    assert "closed" in repr(session)


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_session_that_is_dropped_is_freed_at_once(calls: int) -> None:
    session = tw.compile(torch.nn.Linear(5, 3), (torch.randn(2, 5),))
    for _ in range(calls):
        session(torch.randn(2, 5))
    weights = weakref.ref(session.executable)
    gc.disable()
    try:
        del session
        assert weights() is None, "it waits for a collection of cycles, with all its weights"
    finally:
        gc.enable()


def test_close_while_other_threads_call() -> None:
    """A call either finishes with the right result or says that the session is closed."""
    for _ in range(20):
        session = chain("double reverse", S, threads=1)
        other: list[Any] = []
        begun = threading.Barrier(4)

        def work(session: Any = session, begun: threading.Barrier = begun, other: list[Any] = other) -> None:
            x = torch.randn(7)
            begun.wait()
            try:
                for _ in range(200):
                    if not torch.equal(session(x), (2 * x).flip(0)):
                        other.append("wrong")
            except InputError as e:
                if "is closed" not in str(e):
                    other.append(e)
            except BaseException as e:
                other.append(e)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for t in threads:
            t.start()
        begun.wait()
        session.close()
        for t in threads:
            t.join()
        assert not other


def test_eight_python_threads_at_once() -> None:
    session = chain("reverse double reverse double", S, threads=2)
    problems: list[str] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            x = rng.standard_normal(int(rng.integers(1, 5000))).astype(np.float32)
            if not np.array_equal(session(x), 4 * x):
                problems.append(f"thread {seed}: wrong values for {len(x)} elements")

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(HANG)
        assert not t.is_alive()
    assert problems == []


def test_many_shapes_keep_few_instances_and_one_arena() -> None:
    session = chain("double copy double copy", S)
    rng = np.random.default_rng(5)
    session(np.ones(5000, np.float32))
    (workspace,) = session._free
    before = workspace.nbytes
    for n in rng.integers(1, 5000, 200):
        x = rng.standard_normal(int(n)).astype(np.float32)
        np.testing.assert_array_equal(session(x), 4 * x)
    assert session._free == [workspace]
    assert len(workspace.instances) <= KEPT
    assert workspace.nbytes == before


def test_instances_follow_a_growing_arena() -> None:
    session = chain("reverse double reverse double", S)
    for n in (10, 5000, 10, 4999, 10):
        x = torch.randn(n)
        assert torch.equal(session(x), 4 * x)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
def test_memory_of_a_large_result_is_used_again_only_when_nobody_holds_it(framework: str) -> None:
    n = RECYCLED_FROM // 4
    session = chain("double", n)
    x: Any = torch.randn(n) if framework == "torch" else np.random.default_rng(2).standard_normal(n).astype(np.float32)
    seen = set()
    for _ in range(4):
        y = session(x)
        seen.add(address(y))
        del y
    assert len(seen) == 1
    first = session(x)
    part = first[5:9]
    want = part + 0
    del first
    second = session(-x)
    assert address(second) not in seen
    assert bool((part == want).all())
    assert bool((second == -2 * x).all())


def test_variants_are_chosen_by_the_shape() -> None:
    """`double` in general, `copy` for 10 to 20 elements, `reverse` for 15 to 30: the first that fits."""
    program, inputs, output = chain_program("double", S)
    (one,) = program.launches
    x, y = one.arguments
    one.variants = (Variant(S, 10, 20, kernel("copy"), (x, y), S), Variant(S * 2, 30, 60, kernel("reverse"), (x, y, Word(S)), S))
    session = make_session(program, inputs, output)
    for n in (1, 9, 10, 15, 20, 21, 30, 31, 5000, 12):
        for _ in range(2):
            v = torch.randn(n)
            assert torch.equal(session(v), v if 10 <= n <= 20 else v.flip(0) if 15 <= n <= 30 else 2 * v), n
    kinds = {session.executable.costs(session.take().instance((n,)))[0]["kernel"] for n in (5, 12, 25)} if session.executable else set()
    assert len(kinds) == 3
