"""Everything that threads may share, shared under a scheduler that changes its mind often: the bits are those of one thread."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import tilewright as tw
import tilewright.lang as tl
from tests.cuda.fake_driver import FakeDriver, fake_gpu
from tests.cuda.launching import graph
from tests.fresh import fresh_rng
from tests.session.test_state import program
from tests.shaken import shaken, together
from tilewright import ops as o
from tilewright.core.dtypes import f32
from tilewright.core.errors import ExecutionError, InputError
from tilewright.runtime.state import State, StatefulCall, StateSpec
from tilewright.runtime.workspace import KEPT

THREADS = 8


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(12, 30), torch.nn.Linear(30, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.gelu(self.first(x))
        return torch.softmax(self.second(y), -1), y.sum(0)


def seeds(count: int = THREADS) -> list[int]:
    return [int(s) for s in fresh_rng().integers(2**31, size=count)]


@pytest.mark.parametrize("threads", [1, 3])
def test_a_session(threads: int, tmp_path: Path) -> None:
    """Calls with more shapes than a workspace keeps, as tensors and arrays, with and without out=; reports, saves and bad calls between."""
    session = tw.compile(Model().eval(), (torch.randn(3, 12),), dynamic={"x": {0: tw.Dim("n", 1, 500)}}, threads=threads)
    sizes = [int(n) for n in fresh_rng().permutation(499)[: KEPT + 20] + 1]
    inputs = {n: torch.randn(n, 12) for n in sizes}
    want = {n: session(x) for n, x in inputs.items()}

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for step in range(60):
            n = rng.choice(sizes)
            kind = rng.randrange(12)
            if kind == 0:
                with pytest.raises(InputError, match="session: input 'x' must be"):
                    session(torch.randn(n, 13))
            elif kind == 1 and step % 20 == 0:
                session.save(tmp_path / f"{seed}.tw")
            elif kind == 2 and step % 20 == 0:
                assert session.report().data["name"] == "Model"
            elif kind < 6:
                found = session(inputs[n].numpy())
                assert all(np.array_equal(a, b.numpy()) for a, b in zip(found, want[n], strict=True))
            else:
                out = tuple(torch.full_like(t, torch.nan) for t in want[n]) if kind == 6 else None
                found = session(inputs[n], out=out)
                assert all(torch.equal(a, b) for a, b in zip(found, want[n], strict=True))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds()])


def test_a_session_that_finds_bad_data() -> None:
    """An error is raised in the thread whose data it is, and nowhere else."""
    table = torch.nn.Embedding(20, 4)
    session = tw.compile(table, (torch.zeros(6, dtype=torch.int64),), threads=2)
    good, bad = torch.arange(6), torch.tensor([0, 1, 2, 77, 4, 5])
    want = table(good).detach()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(80):
            if rng.random() < 0.3:
                with pytest.raises(ExecutionError, match="got 77 at position 3"):
                    session(bad)
            else:
                assert torch.equal(session(good), want)

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds()])


def test_states_beside_one_session() -> None:
    """Each thread with a state of its own."""
    session = tw.compile(program())
    spec = StateSpec(session, 0)
    call = StatefulCall(session, spec)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        state, rows, past = State(spec), [], 0
        while past < spec.capacity - 8:
            x = rng.standard_normal((int(rng.integers(1, 9)), 3)).astype(np.float32)
            out = np.empty(3, np.float32)
            call([state], {"P": past, "S": len(x)}, [x], [out])
            rows.append(x)
            past += len(x)
            np.testing.assert_allclose(out, np.concatenate(rows).astype(np.float64).sum(0), atol=1e-4)
            np.testing.assert_array_equal(state.arrays[0][:past], np.concatenate(rows))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds()])


def test_a_jitted_function() -> None:
    """Signatures that are new to every thread at once, cleared and forgotten meanwhile."""
    f = tw.jit(lambda x, y: {"sum": (x * y).sum(0), "all": (x + y, y)})
    data = [(np.full((n, 3), n, np.float32), np.full(3, 2.0, np.float32)) for n in range(1, 9)]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(25):
            x, y = rng.choice(data)
            if rng.random() < 0.05:
                f.clear()
            found = f(x, y)
            n = len(x)
            np.testing.assert_array_equal(found["sum"], np.full(3, 2.0 * n * n))
            np.testing.assert_array_equal(found["all"][0], np.full((n, 3), n + 2.0))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(6)])


def test_eager_functions() -> None:
    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(25):
            x = rng.integers(-50, 50, (int(rng.integers(1, 5)), 4)).astype(np.float32)
            np.testing.assert_array_equal(tw.maximum(x, np.float32(0)).sum(), np.maximum(x, 0).sum())
            np.testing.assert_array_equal(tw.concat([x, x], 1), np.concatenate([x, x], 1))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(6)])


def test_an_optimizer() -> None:
    """The optimizer is shared, parameters and states are each thread's own."""
    made = tw.optim.adamw(0.1)
    start = {"w": np.ones((3, 2), np.float32), "b": np.zeros(2, np.float32)}

    def steps(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        params, state = start, made.init(start)
        for _ in range(5):
            grads = {k: rng.standard_normal(v.shape).astype(np.float32) for k, v in params.items()}
            params, state = made.update(params, grads, state)
        return params

    chosen = seeds(4)
    want = {s: steps(s) for s in chosen}

    def work(seed: int) -> None:
        for _ in range(3):
            found = steps(seed)
            assert all(np.array_equal(found[k], want[seed][k]) for k in start)

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in chosen])


def test_arrays() -> None:
    """Threads read one Array, write views of it, which are copies from then on, and make Arrays of their own, small and on all cores."""
    host = fresh_rng().integers(-50, 50, (600, 500)).astype(np.float32)
    shared = tw.asarray(host)
    before, total = host.copy(), host.sum(dtype=np.float64)

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            i, k = int(rng.integers(500)), int(rng.integers(1, 90))
            view = shared[i : i + k].T
            view[0, :] = 7.0 * seed
            mine = before[i : i + k].T.copy()
            mine[0, :] = np.float32(7.0 * seed)
            np.testing.assert_array_equal(view, mine)
            view += 1
            np.testing.assert_array_equal(view.sum(axis=0), (mine + 1).sum(0))
            np.testing.assert_array_equal(shared * 2 - shared, before)  # large enough for all threads
            assert float(shared.sum(dtype="float64")) == total
            np.testing.assert_array_equal(shared[:, i % 500], before[:, i % 500])

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in range(4)])
    np.testing.assert_array_equal(shared, before)


def test_one_array_written_by_many() -> None:
    """Without a lock of the user's the order is open: every element is somebody's, and nobody's memory but this Array's is touched."""
    shared = tw.zeros((64, 33), "int64")
    beside = [tw.full((64, 33), k, "int64") for k in range(8)]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            i = rng.randrange(64)
            shared[i] = seed % 5
            shared[i, ::2] = shared[rng.randrange(64), ::2]
            shared[shared > 3] = 1
            assert shared.shape == (64, 33) and shared[i].copy().size == 33

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(5)])
    assert set(np.unique(shared.numpy()).tolist()) <= set(range(5))
    assert all((b == k).all() for k, b in enumerate(beside))


@tw.kernel("f32[M, 8] -> f32[M, 8], f32[M]", grid=lambda M: tl.cdiv(M, 4))
def scaled_rows(x, y, sums, *, scale=1.0):  # type: ignore[no-untyped-def]
    i = tl.program_id(0)
    rows = x.load((i * 4, 0), (4, 8)) * scale
    y.store((i * 4, 0), rows)
    sums.partition(4)[i] = rows.sum(1).reshape((4,))


def test_kernels_of_users() -> None:
    """Sizes, layouts and constants that are new to every thread at once, as calls of their own and inside jitted functions."""
    jitted = tw.jit(lambda x: scaled_rows(x + 1, scale=2.0)[1])

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            x = rng.integers(-9, 9, (int(rng.integers(1, 9)), 8)).astype(np.float32)
            given, scale = (np.asfortranarray(x) if rng.random() < 0.3 else x), float(rng.integers(1, 4))
            y, sums = scaled_rows(given, scale=scale)
            np.testing.assert_array_equal(y, x * scale)
            np.testing.assert_array_equal(sums, (x * scale).sum(1))
            np.testing.assert_array_equal(jitted(x), ((x + 1) * 2).sum(1))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(5)])


def test_an_onnx_session() -> None:
    """`run` with all outputs, with some, with a mistake; a binding a thread; sizes that change."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    matrix = fresh_rng().integers(-3, 3, (6, 5)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    made = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, ["n", 6])],
                             [helper.make_tensor_value_info(k, kind, ["n", 5]) for k in "yz"], [onnx.numpy_helper.from_array(matrix, "w")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = tw.onnx.InferenceSession(model.SerializeToString())

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        binding = session.io_binding()
        for _ in range(25):
            x = rng.integers(-9, 9, (int(rng.integers(1, 40)), 6)).astype(np.float32)
            if rng.random() < 0.2:
                with pytest.raises(InputError, match="onnx: the model has no input 'X'"):
                    session.run(None, {"X": x})
            y, z = session.run(None, {"x": x})
            np.testing.assert_array_equal(y, x @ matrix)
            np.testing.assert_array_equal(z, np.maximum(x @ matrix, 0))
            binding.bind_cpu_input("x", x)
            session.run_with_iobinding(binding)
            np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[1], z)

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(5)])


def test_a_torch_compiled_module() -> None:
    """Forward and backward passes of one compiled module on tensors of each thread's own; gradients of inputs, since those of weights add
    up in an order that PyTorch leaves open."""
    module = Model()
    call = torch.compile(module, backend="tilewright", dynamic=True)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mine = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(torch.stack([y.square().sum() for y in call(mine)]).sum(), mine)
        with torch.no_grad():
            return call(x)[0], found

    inputs = [torch.randn(n, 12) for n in (5, 3, 40, 7)]
    want = [both(x) for x in inputs]

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(5):
            k = rng.randrange(len(inputs))
            assert all(torch.equal(a, b) for a, b in zip(both(inputs[k]), want[k], strict=True))

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(4)])


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as fake:
        yield fake


def test_a_session_on_a_gpu(gpu: FakeDriver) -> None:
    """On the stand-in for the driver: every call gets the result of its own inputs."""
    session: Any = tw.compile(graph(lambda x, y: o.Sub()(o.Mul()(x, y), y), (f32, (2, 4)), (f32, (2, 4))), target="cuda")

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            x, y = (rng.integers(-9, 9, (2, 4)).astype(np.float32) for _ in range(2))
            found = session(x, y)
            session.synchronize()
            np.testing.assert_array_equal(found.numpy(), x * y - y)

    with shaken(seeds(1)[0]):
        together([functools.partial(work, s) for s in seeds(4)])


def test_the_scheduler_finds_a_race() -> None:
    """What these tests rely on: a read and a write that another thread comes between."""
    count = [0]

    def read() -> int:
        return count[0]

    def write(value: int) -> None:
        count[0] = value

    def work() -> None:
        for _ in range(500):
            write(read() + 1)

    with shaken(seeds(1)[0]):
        together([work] * 4)
    assert count[0] < 4 * 500
