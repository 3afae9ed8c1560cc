"""Which stream waits for which, and who keeps what, where arrays, streams and threads of several owners meet (on the fake driver)."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import FakeDriver, fake_gpu
from tests.cuda.launching import graph
from tilewright.core.dtypes import bf16, f32
from tilewright.core.errors import ExecutionError
from tilewright.ir.types import TensorType
from tilewright.runtime.arguments import Bound
from tilewright.runtime.cuda import memory as cuda_memory
from tilewright.runtime.cuda.array import DeviceArray, upload
from tilewright.runtime.cuda.memory import TorchMemory, look

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as fake:
        yield fake


class Made:
    """A stream of another library."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.number


class Told:
    """Another library's array with nothing but the CUDA array interface."""

    def __init__(self, array: DeviceArray, stream: int) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "stream": stream}


def minus() -> Any:
    return tw.compile(graph(lambda x, y: o.Sub()(x, y), (f32, (2, 4)), (f32, (2, 4))), target="cuda")


class Adds(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2


def adds() -> Any:
    return tw.compile(Adds(), (torch.zeros(2, 4), torch.zeros(2, 4)), target="cuda")


def test_a_stream_lives_as_long_as_what_needs_it(gpu: FakeDriver) -> None:
    session, streams = minus(), [Made(5), Made(6)]
    alive = [weakref.ref(s) for s in streams]
    y = session.on(streams[0])(X, X)
    del streams[0]
    session.on(streams.pop())
    assert gpu.waits == [(6, 5)] and y.stream == 5  # at once, while the old one is there
    z = session(y, X)
    gc.collect()
    assert alive[0]() is not None  # y goes back in its order
    del y
    gc.collect()
    assert alive[0]() is None
    session.on(0)
    del session
    gc.collect()
    assert alive[1]() is not None and z.stream == 6
    with pytest.raises(ExecutionError, match="stream 2 is another one in every thread"):
        minus().on(2)
    with pytest.raises(ExecutionError, match="stream 2 is another one in every thread"):
        minus().on(Made(2))


class Theirs(TorchMemory):
    """PyTorch's memory with the CPU as its device, and 7 as its current stream."""

    def __init__(self, gpu: FakeDriver) -> None:
        super().__init__(torch.device("cpu"))
        self.gpu = gpu

    def place(self) -> None:
        return None

    def stream(self) -> int:
        return 7

    def empty(self, shape: Sequence[int], type_: TensorType, stream: int) -> Any:
        new = super().empty(shape, type_, stream)
        self.gpu.memory.add(new.numpy())
        self.gpu.memory.tensors.append(new)
        return new

    def _taken(self, value: Any, stream: int) -> Any:
        return torch.from_numpy(self.gpu.memory.view(value.address, value.nbytes).view(np.float32).reshape(value.shape))

    def admit(self, name: str, type_: TensorType, value: Any, bound: Bound, stream: int) -> tuple[int, ...]:
        plain = self._taken(value, stream) if isinstance(value, DeviceArray) else torch.from_numpy(value.copy())
        if not isinstance(value, DeviceArray):
            self.gpu.memory.add(plain.numpy())
        bound.addresses.append(plain.data_ptr())
        bound.kept.append(plain)
        return tuple(plain.shape)


def test_arrays_of_ours_among_tensors(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    session, ours = minus(), upload(X, f32, 3)
    monkeypatch.setattr(cuda_memory, "memory_of", lambda *_: Theirs(gpu))
    np.testing.assert_array_equal(session(X + 1, ours).numpy(), np.ones_like(X))
    assert gpu.waits == [(3, 7)]  # its memory goes back after this use


@pytest.mark.parametrize("theirs", [False, True])
def test_inputs_that_a_call_writes(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch, theirs: bool) -> None:
    session, ours, host = adds().on(7), upload(X, f32, 3), X.copy()
    if theirs:
        monkeypatch.setattr(cuda_memory, "memory_of", lambda *_: Theirs(gpu))
    before, copied = gpu.library.cuMemcpyDtoDAsync_v2, []

    def copy(*args: Any) -> Any:
        copied.append((3, 7) in gpu.waits)
        return before(*args)

    monkeypatch.setattr(gpu.library, "cuMemcpyDtoDAsync_v2", copy)
    session(ours, X)
    assert copied == ([] if theirs else [False]) and gpu.waits[-1] == (3, 7)  # the wait comes after the copy (PyTorch makes its own)
    session(host, X)
    np.testing.assert_array_equal(ours.numpy(), 2 * X)
    np.testing.assert_array_equal(host, 2 * X)


def test_a_tensor_of_bf16_goes_to_the_host(gpu: FakeDriver) -> None:
    target = np.zeros((2, 4), bf16.np)
    TorchMemory(torch.device("cpu")).copy(target, torch.from_numpy(X).bfloat16(), 0)
    np.testing.assert_array_equal(target, X.astype(bf16.np))


def test_pinned_memory_has_been_read(gpu: FakeDriver) -> None:
    upload(X, f32, 4)
    assert "cuStreamSynchronize" not in gpu.calls
    gpu.pinned.add(X.ctypes.data)
    upload(X, f32, 4)
    assert gpu.calls["cuStreamSynchronize"] == 1


def test_memory_comes_back_from_another_stream(gpu: FakeDriver) -> None:
    y = upload(X, f32, 3)
    capsule = y.__dlpack__(stream=9)
    assert gpu.waits == [(9, 3)]
    held = len(gpu.memory.kept)
    del y
    assert len(gpu.memory.kept) == held
    thread = threading.Thread(target=lambda box: box.clear(), args=([capsule],))
    del capsule
    thread.start()
    thread.join()
    del thread
    assert gpu.waits == [(9, 3), (3, 9)] and len(gpu.memory.kept) == held - 1


def test_threads_without_the_context(gpu: FakeDriver) -> None:
    y, box = upload(X, f32, 0), [upload(X, f32, 0)]
    entered: list[Any] = []

    def other() -> None:
        before = gpu.entered
        box.clear()  # frees
        entered.append(gpu.entered - before)

    held = len(gpu.memory.kept)
    threads = [threading.Thread(target=other), threading.Thread(target=lambda: entered.append(look(Told(y, 8), 0)))]
    for thread in threads:
        thread.start()
        thread.join()
    assert entered[0] == 1 and len(gpu.memory.kept) == held - 1
    assert len(entered) == 2 and gpu.waits == [(1, 8)]


def test_pytorch_waits_for_the_stream_an_array_names(gpu: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, y = TorchMemory(torch.device("cpu")), upload(X, f32, 0)
    monkeypatch.setattr(torch, "as_tensor", lambda value, device: list(gpu.waits))
    assert memory._taken(Told(y, 8), 7) == [(7, 8)]  # before it is taken


def test_weights_have_arrived_when_the_first_call_is_on_another_stream(gpu: FakeDriver, rng: np.random.Generator) -> None:
    """The driver's copy from the host comes back early, and streams like PyTorch's do not wait for the default one."""
    layer = torch.nn.Linear(4, 3)
    session: Any = tw.compile(layer, (torch.zeros(2, 4),), target="cuda")
    x = rng.standard_normal((2, 4)).astype(np.float32)
    with torch.no_grad():
        want = layer(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(session.on(5)(x).numpy(), want, rtol=1e-5, atol=1e-5)
    assert set(gpu.streams) == {5}


def test_a_captured_stream_is_refused(gpu: FakeDriver) -> None:
    """Before a kernel is started or another stream waited for; the session goes on elsewhere."""
    session: Any = tw.compile(graph(lambda x: o.Neg()(x), (f32, (2, 4))), target="cuda")
    for _ in range(2):  # by the first call, and by another stream than the last one's
        gpu.captured = 7
        launches, waits = len(gpu.launches), list(gpu.waits)
        with pytest.raises(ExecutionError, match="session: g: the stream is being captured"):
            session.on(7)(X)
        assert (len(gpu.launches), gpu.waits) == (launches, waits)
        gpu.captured = None
        np.testing.assert_array_equal(session.on(0)(X).numpy(), -X)
