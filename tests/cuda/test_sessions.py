"""Whole sessions on a stand-in for the driver: what a call copies, allocates, launches and gives back. No GPU, no PyTorch at run time."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import CUresult, FakeDriver, fake_gpu
from tests.cuda.launching import graph
from tests.onnx.models import helper, info, model
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.core.dtypes import bf16, f32, i64
from tilewright.core.errors import ExecutionError, InputError
from tilewright.core.pytree import flatten
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops.index.indexing import Gather
from tilewright.ops.rows.norms import Softmax
from tilewright.ops.rows.reductions import ArgMax
from tilewright.runtime import dlpack
from tilewright.runtime.arguments import from_dtype
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda import launch as cuda_launch
from tilewright.runtime.cuda import session as cuda_session
from tilewright.runtime.cuda.array import DeviceArray
from tilewright.runtime.cuda.modules import load_function


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as fake:
        yield fake


def test_a_module_runs_as_one_graph(gpu: FakeDriver, rng: np.random.Generator) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Linear(40, 8), torch.nn.Softmax(-1))
    x = rng.standard_normal((5, 24)).astype(np.float32)
    session: Any = tw.compile(net, (torch.from_numpy(x),), target="cuda")
    for _ in range(2):
        y = session(x)
        np.testing.assert_allclose(y.numpy(), net(torch.from_numpy(x)).detach().numpy(), rtol=1e-4, atol=1e-6)
        x = x[::-1].copy()
    assert gpu.calls["cuGraphLaunch"] == 2 and "cuLaunchKernelEx" not in gpu.calls
    assert session.report().data["input_copies"] == {session.interface.input_names[0]: 2}


def test_onnx_sessions_take_sizes_that_the_one_compile_does_not(gpu: FakeDriver, rng: np.random.Generator) -> None:
    """Sizes of one name that differ, and empty ones: the results lie on the GPU as others do."""
    nodes = [helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("Softmax", ["s"], ["y"])]
    x = rng.standard_normal((3, 4)).astype(np.float32)
    proto = model(nodes, [info("x", x, ["N", 4]), info("z", x, ["N", 4])], ["y"])
    session: Any = tw.compile(proto, target="cuda")
    for a, z in ((x, x), (x, x[:1]), (x[:1], x), (x[:0], x[:0])):
        y = session(a, z)
        e = np.exp(a + z)
        assert isinstance(y, DeviceArray) and y.shape == e.shape
        np.testing.assert_allclose(y.numpy(), e / e.sum(-1, keepdims=True), rtol=1e-5)
    with pytest.raises(InputError, match="'z' must be"):
        session(x, x[:, :3])


def test_onnx_sessions_give_arrays_of_the_host(gpu: FakeDriver, rng: np.random.Generator) -> None:
    """One segment, several with a step of the host between them, and bound outputs."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"]),
             helper.make_node("NonZero", ["y"], ["at"]), helper.make_node("Cast", ["at"], ["z"], to=1)]
    x, w = rng.standard_normal((5, 9)).astype(np.float32), rng.standard_normal((9, 4)).astype(np.float32)
    for count, outputs in ((2, "y"), (4, "yz")):
        proto = model(nodes[:count], [info("x", x)], list(outputs), {"w": w})
        session = tw.onnx.InferenceSession(proto, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        y, *z = session.run(None, {"x": x})
        assert type(y) is np.ndarray and session.get_providers() == ["CUDAExecutionProvider"]
        np.testing.assert_allclose(y, np.maximum(x.astype(np.float64) @ w, 0), rtol=1e-4, atol=1e-5)
        for places in z:
            np.testing.assert_array_equal(places, np.stack(np.nonzero(y)))
        binding, out = session.io_binding(), np.full_like(y, np.nan)
        binding.bind_cpu_input("x", x)
        binding.bind_ortvalue_output("y", tw.onnx.OrtValue.ortvalue_from_numpy(out))
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(out, y)


def test_a_jitted_function_and_its_donated_arrays(gpu: FakeDriver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # whoever imports it now fails
    x, w = rng.standard_normal((2, 6, 6)).astype(np.float32)
    value, slope = tw.jit(tw.value_and_grad(lambda x, w: tw.tanh(x @ w).sum(), argnums=1), target="cuda")(x, w)
    product = np.tanh(x.astype(np.float64) @ w)
    np.testing.assert_allclose(value.numpy(), product.sum(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(slope.numpy(), x.T @ (1 - product**2), rtol=1e-4, atol=1e-4)
    step = tw.jit(lambda p, g: p - 0.5 * g, target="cuda", donate=0)
    first = step(x, w)  # the host's array is copied, and stays as it is
    second = step(first, w)
    assert second.address == first.address
    np.testing.assert_allclose(second.numpy(), x - w, rtol=1e-6, atol=1e-6)
    with pytest.raises(InputError, match="array 0 of the arguments is donated, and array 1 shares its memory"):
        step(second, second)


def test_shapes_and_symbols_of_a_call(gpu: FakeDriver, rng: np.random.Generator) -> None:
    s, p = sym("S", 1, 64), sym("P", 0, 9)
    session: Any = tw.compile(graph(lambda x: Softmax(axis=1)(x), (f32, (3, s))), target="cuda")
    for n in (5, 7, 5):
        x = rng.standard_normal((3, n)).astype(np.float32)
        e = np.exp(x - x.max(1, keepdims=True))
        np.testing.assert_allclose(session(x).numpy(), e / e.sum(1, keepdims=True), rtol=1e-5)
    with pytest.raises(InputError, match=r"must be f32\[3,S\] with 1 <= S <= 64, got f32\[4,5\]"):
        session(np.zeros((4, 5), np.float32))
    g = Graph("append")
    cache, row = g.input(TensorType(f32, (10, 4)), "cache"), g.input(TensorType(f32, (1, 4)), "row")
    g.outputs = [o.UpdateSlice(axis=0, start=p)(cache, row)]
    g.donated, g.call_symbols = {0: 0}, tuple(p.symbols)
    appending: Any = tw.compile(g, target="cuda")
    state = appending.run_with({"P": 0}, np.zeros((10, 4), np.float32), np.ones((1, 4), np.float32))
    for at in (3, 9):
        place = state.address
        state = appending.in_place(state, np.full((1, 4), at, np.float32), P=at)
        assert state.address == place
    np.testing.assert_array_equal(state.numpy()[:, 0], [1, 0, 0, 3, 0, 0, 0, 0, 0, 9])


def test_sizes_that_no_input_shows_alone(gpu: FakeDriver) -> None:
    """A dim of two unknown symbols says neither: the call gives one, or the error names what is missing."""
    m, n = sym("M", 0, 9), sym("N", 0, 9)
    session: Any = tw.compile(graph(lambda x: o.Neg()(x), (f32, (m + n,))), target="cuda")
    x = np.arange(5, dtype=np.float32)
    with pytest.raises(InputError, match="no input shows the value of M; give it with run_with"):
        session(x)
    np.testing.assert_array_equal(session.run_with({"M": 2, "N": 3}, x).numpy(), -x)


def test_the_short_way_is_made_while_no_other_thread_runs(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    session: Any = tw.compile(graph(lambda x: o.Neg()(x), (f32, (3,))), target="cuda")
    held = []
    monkeypatch.setattr(cuda_session, "fast_call", lambda s, place: held.append(s._lock.locked()))
    session(np.zeros(3, np.float32))
    assert held == [True]


def test_errors_of_kernels(gpu: FakeDriver) -> None:
    session: Any = tw.compile(graph(lambda t, i: o.Gather(axis=0)(t, i), (f32, (5, 4)), (i64, (3,))), target="cuda")
    table, good = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([4, 0, 2])
    np.testing.assert_array_equal(session(table, good).numpy(), table[good])
    session(table, np.array([0, 7, 1]))
    with pytest.raises(ExecutionError, match="got 7 at position 1"):
        session.synchronize()
    np.testing.assert_array_equal(session(table, good).numpy(), table[good])


class Foreign:
    """Another library's array: one protocol, and memory of the fake's."""

    def __init__(self, array: DeviceArray, *, stream: int = 1, strides: tuple[int, ...] | None = None) -> None:
        self.array, told = array, array.__cuda_array_interface__
        self.__cuda_array_interface__ = {**told, "stream": stream, "strides": strides}


def test_a_fault_names_its_kernel(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each kernel is waited for; elsewhere the error says what to do about it."""
    g = graph(lambda x, w: o.Sum(axes=(1,))(Softmax(axis=1)(o.Matmul()(x, w))), (dt.f32, (3, 5)), (dt.f32, (5, 4)))
    strict: Any = tw.compile(g, target="cuda", validation="strict")
    plain: Any = tw.compile(g, target="cuda")
    arrays = np.ones((3, 5), np.float32), np.ones((5, 4), np.float32)
    np.testing.assert_allclose(strict(*arrays).numpy(), plain(*arrays).numpy())
    names = [(x.name, x.kernel.name) for x in strict.executable.program.launches]
    assert len(names) > 1
    waited: list[int] = []

    def second(stream: int) -> int:
        waited.append(stream)
        return 700 if len(waited) == 2 else 0

    monkeypatch.setattr(gpu.library, "cuStreamSynchronize", second)
    with pytest.raises(ExecutionError, match=rf"ILLEGAL_ADDRESS \(after {names[1][0]}, kernel {names[1][1]}\)$"):
        strict(*arrays)
    hint = "a kernel started before this failed: TILEWRIGHT_VALIDATION=strict waits for each and names it"
    with pytest.raises(ExecutionError, match=rf"cuGraphLaunch failed with CUDA_ERROR_ILLEGAL_ADDRESS \(2 kernels, a first\); {hint}"):
        cuda_launch.check(700, "cuGraphLaunch", "2 kernels, a first")


def test_arrays_of_other_libraries(gpu: FakeDriver, rng: np.random.Generator) -> None:
    session: Any = tw.compile(graph(lambda x, y: o.Sub()(x, y), (bf16, (3, 5)), (bf16, (3, 5))), target="cuda")
    x, y = rng.standard_normal((2, 3, 5)).astype(bf16.np)
    want = (x.astype(np.float32) - y.astype(np.float32)).astype(bf16.np)
    a, b = session(x, np.zeros_like(x)), session(y, np.zeros_like(y))
    np.testing.assert_array_equal(a.numpy(), x)
    before = dict(session.copies)
    pairs = [(a, b), (Foreign(a), b), (a, OnlyDlpack(b)), (Foreign(a, stream=77), OnlyDlpack(b))]
    for one, other in pairs:
        np.testing.assert_array_equal(session(one, other).numpy(), want)
    assert session.copies == before and gpu.waits == [(1, 77)]
    assert session.on(SimpleNamespace(__cuda_stream__=lambda: (0, 5)))(a, b).stream == 5
    assert gpu.waits[-4:] == [(5, 0), (5, 0), (5, 0), (0, 5)]  # both inputs and the last run; their memory waits for the end
    with pytest.raises(ExecutionError, match="a stream is a number or has __cuda_stream__, got a str"):
        session.on("5")
    with pytest.raises(InputError, match="must be contiguous, got u16"):
        session(a, Foreign(b, strides=(2, 6)))
    with pytest.raises(InputError, match=r"must be on the GPU, got bf16\[3,5\] on cpu"):
        session(a, torch.zeros(3, 5, dtype=torch.bfloat16))
    with pytest.raises(InputError, match="must be on the first GPU, where sessions run, got one on GPU 1"):
        session(a, OnSecond(b))
    with pytest.raises(InputError, match="got a list"):
        session(a, [1.0])


class OnlyDlpack:
    def __init__(self, array: DeviceArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self.array.__dlpack__(stream=stream)


class OnSecond(OnlyDlpack):
    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return dlpack.export(self.array.address, self.array.shape, self.array.dtype, (2, 1), self.array)


def test_training_keeps_its_state_on_the_gpu(gpu: FakeDriver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    opt = tw.optim.sgd(0.1, momentum=0.9)

    def step(params: Any, state: Any, x: Any) -> Any:
        value, grads = tw.value_and_grad(lambda p: ((x * p["w"]).sum() - 1) ** 2)(params)
        return *opt.update(params, grads, state), value

    x, w = rng.standard_normal((2, 4)).astype(np.float32)
    device, host = tw.jit(step, target="cuda", donate=(0, 1)), tw.jit(step, target="cpu")
    params = {"w": tw.jit(lambda w: w * 1, target="cuda")(w)}
    state, host_params = opt.init(params), {"w": w}
    host_state = opt.init(host_params)
    assert any(isinstance(s, DeviceArray) for s in flatten(state)[0])
    for _ in range(3):
        params, state, value = device(params, state, x)
        host_params, host_state, wanted = host(host_params, host_state, x)
        np.testing.assert_allclose(value.numpy(), wanted, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(params["w"].numpy(), host_params["w"], rtol=1e-3, atol=1e-3)


def test_a_profile(rng: np.random.Generator) -> None:
    with fake_gpu(run=False) as gpu:
        session: Any = tw.compile(graph(lambda x: (Softmax(axis=1)(x), o.Exp()(x)), (f32, (4, 4))), target="cuda")
        profile = session.profile(np.zeros((4, 4), np.float32), repeat=2)
        assert profile.total_us == 250 and len(profile.rows) == len(session.report().data["launches"]) == 2
        assert [e["ts"] for e in profile.events] == [0.0, profile.rows[0]["us"]] and "predicted" in str(profile)
        kept = len(gpu.memory.kept)
        session.profile(session(np.zeros((4, 4), np.float32))[0], repeat=1)
        assert len(gpu.memory.kept) == kept  # what the measured call needed has gone
        varying: Any = tw.compile(graph(lambda x: Softmax(axis=1)(x), (f32, (3, sym("S", 1, 64)))), target="cuda")
        small, large = (np.zeros((3, n), np.float32) for n in (4, 8))
        varying(small), varying(large)
        assert varying.report(at={"S": 7}).data["shape"] == {"S": 7}
        assert varying.profile(small, repeat=1).env == {"S": 4}  # its own shape, not the newest
        here = varying(large)
        varying.profile(small, repeat=1), varying(here)  # the fast path
        assert varying.last_env() == {"S": 8}


def test_a_profile_of_a_kernel_that_is_led_by_indices_runs_what_computes_them() -> None:
    """In the arena other values have taken the place of the indices by the end of a call: timed alone, the kernel would read anywhere."""
    with fake_gpu() as gpu:
        g = graph(lambda x, y: Gather(axis=0)(y, ArgMax(axis=1)(Softmax(axis=1)(x))), (f32, (4, 4)), (f32, (4, 8)))
        session: Any = tw.compile(g, target="cuda")
        session.profile(np.zeros((4, 4), np.float32), np.zeros((4, 8), np.float32), repeat=1)
        *before, led = [x.kernel.name for x in session.executable.launches]
        chain = next(i for i in range(len(gpu.launches)) if gpu.launches[i : i + 8] == [led] * 8)
        assert len(before) == 2 and gpu.launches[chain - len(before) : chain] == before


def test_memory_goes_back(gpu: FakeDriver) -> None:
    session: Any = tw.compile(graph(lambda x: o.Exp()(x), (f32, (4, 4))), target="cuda")
    y = session(np.zeros((4, 4), np.float32))
    capsule = y.__dlpack__()
    held = len(gpu.memory.kept)
    del y
    assert len(gpu.memory.kept) == held  # the capsule keeps it
    del capsule
    assert len(gpu.memory.kept) == held - 1
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(session(np.zeros((4, 4), np.float32)))
    session.close()
    del session
    gc.collect()
    assert not gpu.memory.kept


@pytest.mark.parametrize("dtype", [d for d in dt.ALL if d.kind != "c"], ids=str)
def test_capsules_against_numpy_and_torch(dtype: dt.DType, rng: np.random.Generator) -> None:
    """The same capsule with the CPU as its device: PyTorch reads what we write, and we read what PyTorch writes."""
    data = rng.integers(0, 2, (3, 2, 5)).astype(dtype.np)
    theirs = from_dtype()[dtype]

    class Ours:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __dlpack__(self, **_: Any) -> Any:
            return dlpack.export(data.ctypes.data, data.shape, dtype, (1, 0), data)

    tensor = torch.from_dlpack(Ours())  # type: ignore[attr-defined]
    assert tensor.dtype == theirs and tensor.tolist() == data.astype(np.float64).tolist()
    seen = dlpack.look(tensor.transpose(0, 2).__dlpack__())
    assert (seen.address, seen.shape, seen.strides, seen.dtype) == (data.ctypes.data, (5, 2, 3), (1, 5, 10), dtype)
    del tensor
    assert not any(x[3] is data for x in dlpack._alive.values())


@pytest.mark.parametrize("declared", [0, 16 << 10])
def test_dynamic_shared_memory_is_asked_for(declared: int) -> None:
    """A kernel that declares shared memory itself has less than 48 KB beside it unless the host asks."""
    text = f".entry k()\n{{\n  .shared .align 128 .b8 scratch[{declared}];\n  ret;\n}}\n"
    with fake_gpu():
        function = load_function(text, "k", 40 << 10)[1]
        assert (function.what.declared, function.what.allowed) == (declared, 40 << 10)


def test_memory_that_pytorch_keeps_is_asked_for(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    full, freed = [True], []

    def alloc(nbytes: int) -> Any:
        return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0) if full[0] else plain(nbytes)

    plain = gpu.cuMemAlloc
    monkeypatch.setattr(gpu, "cuMemAlloc", alloc, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(full[0]))
    with pytest.raises(ExecutionError, match=r"cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY \(5000 bytes\)"):
        cuda_driver.Memory(5000)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: full.__setitem__(0, False))
    assert cuda_driver.Memory(5000).address and freed == [True]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    monkeypatch.setattr(gpu.library, "cuMemAllocFromPoolAsync", lambda *args: CUresult.CUDA_ERROR_OUT_OF_MEMORY)
    with pytest.raises(ExecutionError, match=r"cuMemAllocFromPoolAsync failed with CUDA_ERROR_OUT_OF_MEMORY \(200 bytes\)"):
        DeviceArray.empty((50,), f32)
