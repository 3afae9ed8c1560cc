"""The runtime against the real thing: our own arrays on a GPU (skipped where there is none), and the stand-in for the driver against the
names and layouts of `cuda.bindings` (skipped where it is not installed)."""

from __future__ import annotations

import ctypes
import sys
import threading
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import CUresult, FakeDriver
from tests.cuda.launching import graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import bf16, f32, i64
from tilewright.core.errors import ExecutionError, InputError
from tilewright.ops.rows.norms import Softmax
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda import launch as cuda_launch
from tilewright.runtime.cuda.array import DeviceArray

WHY = cuda_driver.available()
on_gpu = pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")


def softmax(x: Any) -> Any:
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@on_gpu
def test_without_pytorch(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    s = sym("S", 1, 4096)
    session: Any = tw.compile(graph(lambda x: (Softmax(axis=1)(x), o.Neg()(x)), (f32, (s, 300))), target="cuda")
    for n in (5, 1000, 5, 1):
        x = rng.standard_normal((n, 300)).astype(np.float32)
        got, negated = session(x)
        np.testing.assert_allclose(got.numpy(), softmax(x), rtol=1e-5, atol=1e-7)
        again, _ = session(negated)  # our own array: nothing is copied
        np.testing.assert_allclose(again.numpy(), softmax(-x), rtol=1e-5, atol=1e-7)
    assert sum(session.copies.values()) == 4
    session.synchronize()


@on_gpu
def test_memory_of_results_is_used_again(rng: np.random.Generator) -> None:
    session: Any = tw.compile(graph(lambda x: o.Neg()(x), (f32, (1 << 20,))), target="cuda")
    x = session(rng.standard_normal(1 << 20).astype(np.float32))
    want = x.numpy()
    for _ in range(200):  # 800 MB in all, of which two arrays are alive
        x = session(x)
    np.testing.assert_array_equal(x.numpy(), want)
    zeros, copy = DeviceArray.zeros((3, 5), f32), x.copy()
    assert not zeros.numpy().any() and copy.address != x.address
    np.testing.assert_array_equal(copy.numpy(), want)


@on_gpu
def test_pytorch_shares_our_memory(rng: np.random.Generator) -> None:
    import torch

    session: Any = tw.compile(graph(lambda x: o.Neg()(x), (bf16, (33, 65))), target="cuda")
    x = rng.standard_normal((33, 65)).astype(bf16.np)
    ours = session(x)
    theirs = torch.from_dlpack(ours)  # type: ignore[attr-defined]
    assert theirs.data_ptr() == ours.address and theirs.dtype == torch.bfloat16 and theirs.is_cuda
    np.testing.assert_array_equal(theirs.float().cpu().numpy(), -x.astype(np.float32))
    back = session(theirs)  # a tensor in, a tensor out
    assert isinstance(back, torch.Tensor) and torch.equal(back, -theirs)
    assert torch.as_tensor(session.on(0)(ours), device="cuda").data_ptr() % 16 == 0
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        for _ in range(50):
            back = session(session(back))
    other.synchronize()
    assert torch.equal(back, -theirs)


@on_gpu
def test_calls_by_machine_code(rng: np.random.Generator) -> None:
    """Tensors that move, streams in turn, threads with a stream each, what is refused, and errors that kernels find."""
    torch = pytest.importorskip("torch")
    n = 1 << 18
    session: Any = tw.compile(graph(lambda x, y: (o.Sub()(x, y), o.Exp()(o.Sub()(x, y))), (f32, (n,)), (f32, (n,))), target="cuda")
    y = torch.randn(n, device="cuda")
    session(y, y)
    assert type(session._fast) is BuiltinFunctionType

    def many(stream: Any, results: list[Any]) -> None:
        with torch.cuda.stream(stream):
            for k in range(40):
                if k % 10 == 3:
                    torch.cuda._sleep(1_000_000)  # what the call must wait for comes late
                x = y * k
                results.append((session(x, torch.nn.Parameter(y, requires_grad=False)), x - y))
            stream.synchronize()

    results: list[Any] = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.current_stream(), torch.cuda.Stream()):
        many(stream, results)
        torch.cuda.synchronize()
    threads = [threading.Thread(target=many, args=(torch.cuda.Stream(), results)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(results) == 320
    for got, want in results:
        assert torch.equal(got[0], want) and torch.allclose(got[1], want.exp())
    for bad, message in ((y.double(), "must be f32"), (y[:5], "must be f32"), (y.cpu(), "must be on the GPU"), ([1], "got a list")):
        with pytest.raises(InputError, match=message):
            session(y, bad)
    apart = torch.randn(2 * n, device="cuda")[::2]
    assert torch.equal(session(apart, y)[0], apart - y) and session.copies == {"x0": 1}

    layers = torch.nn.Linear(256, 384), torch.nn.Sequential(torch.nn.Linear(256, 384), torch.nn.ReLU(), torch.nn.Linear(384, 256))
    for net in (layer.cuda().to(torch.bfloat16) for layer in layers):  # one kernel, and a graph: tensor maps follow inputs and results
        compiled: Any = tw.compile(net, (torch.zeros(256, 256, device="cuda", dtype=torch.bfloat16),))
        inputs = [torch.randn(256, 256, device="cuda", dtype=torch.bfloat16) for _ in range(20)]
        for x, got in [(x, compiled(x)) for x in inputs]:
            torch.testing.assert_close(got, net(x), rtol=2e-2, atol=2e-2)

    rows: Any = tw.compile(graph(lambda t, i: o.Gather(axis=0)(t, i), (f32, (5, 4)), (i64, (3,))), target="cuda")
    table, good, bad = torch.randn(5, 4, device="cuda"), torch.tensor([4, 0, 2], device="cuda"), torch.tensor([0, 1, 9], device="cuda")
    for _ in range(3):
        assert torch.equal(rows(table, good), table[good])
    rows(table, bad)
    torch.cuda.synchronize()
    with pytest.raises(ExecutionError, match="got 9 at position 2"):
        rows(table, good)
    assert torch.equal(rows(table, good), table[good])


@on_gpu
def test_a_stream_of_cuda_core(rng: np.random.Generator) -> None:
    core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    device = core.Device()
    device.set_current()
    stream = device.create_stream()
    session: Any = tw.compile(graph(lambda x: o.Neg()(x), (f32, (1 << 16,))), target="cuda")
    x = rng.standard_normal(1 << 16).astype(np.float32)
    first = session(x)
    for _ in range(9):  # on another stream than the first call, whose result it reads
        first = session.on(stream)(first)
    np.testing.assert_array_equal(first.numpy(), x)


def test_the_stand_in_has_the_names_and_layouts_of_the_bindings() -> None:
    cu = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    for name in vars(FakeDriver):
        assert not name.startswith("cu") or hasattr(cu, name), name
    for name in cuda_launch.PROTOTYPES:
        assert hasattr(cu, name.partition("_v2")[0]), name
    assert all(cu.CUresult(int(r)).name == r.name for r in CUresult)
    theirs, stream = cu.CUlaunchConfig(), 0x123456789A
    theirs.gridDimX, theirs.gridDimY, theirs.gridDimZ, theirs.blockDimX, theirs.blockDimY, theirs.blockDimZ = 7, 1, 1, 128, 1, 1
    theirs.sharedMemBytes, theirs.hStream, theirs.numAttrs = 96, stream, 0
    three = ctypes.c_uint * 3
    ours = cuda_launch.LaunchConfig(three(7, 1, 1), three(128, 1, 1), 96, stream, None, 0)
    assert ctypes.string_at(theirs.getPtr(), ctypes.sizeof(ours)) == bytes(ours)
    node, at = cu.CUDA_KERNEL_NODE_PARAMS(), 0x5000
    node.gridDimX, node.gridDimY, node.gridDimZ, node.blockDimX, node.blockDimY, node.blockDimZ = 7, 1, 1, 128, 1, 1
    node.func, node.sharedMemBytes, node.kernelParams = cu.CUfunction(0x77), 96, at
    mine = cuda_launch.KernelNode(0x77, three(7, 1, 1), three(128, 1, 1), 96, at, None, None, None)
    assert ctypes.string_at(node.getPtr(), ctypes.sizeof(mine)) == bytes(mine)
