"""The fast path into a session on a GPU, with PyTorch's CPU tensors as if they lay there: what it takes, leaves to others and launches."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import FakeDriver, fake_gpu
from tests.cuda.launching import graph
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.core.errors import ExecutionError, InputError
from tilewright.ir.graph import Graph
from tilewright.ops.rows.norms import Softmax
from tilewright.runtime import torch_calls
from tilewright.runtime.cuda.fastcall import MISSED, TorchPlace, fast_call

S = sym("S", 1, 64)


@pytest.fixture(params=[False, True], ids=["Python", "machine code"])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    if not request.param:
        monkeypatch.setattr(torch_calls, "exchange", lambda: None)
    with fake_gpu() as fake:
        yield fake
        assert request.param or not fake.native


class Calls:
    """A session whose fast path takes tensors of the fake's memory; `stream` is PyTorch's current one."""

    def __init__(self, gpu: FakeDriver, g: Graph, *first: np.ndarray[Any, Any], env: dict[str, int] | None = None) -> None:
        self.gpu, self.stream, self.device = gpu, 0, -1
        session: Any = tw.compile(g, target="cuda")
        self.session = session
        self.session.run_with(env or {}, *first)  # loads the modules
        place: Any = TorchPlace(torch.device("cpu"), -1, lambda index: self.stream, lambda: self.device)
        place.alloc = self.make
        place.scope["empty"] = lambda shape, dtype, device: self.put(torch.empty(shape, dtype=dtype))
        if (functions := torch_calls.exchange()) is not None:
            self._current = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))(self._tell)
            address = ctypes.cast(self._current, ctypes.c_void_p).value
            place.exchange = lambda: (functions[0], address)
        self.fast: Any = fast_call(self.session, place)
        self.made: list[Any] = []  # what `make` gives next, if anything

    def _tell(self, kind: int, device: int, found: Any) -> int:
        assert (kind, device) == (1, 0)  # DLPack's CPU
        found[0] = self.stream
        return 0

    def make(self, shape: Any, strides: Any, dtype: Any) -> torch.Tensor:
        if self.made and (given := self.made.pop(0)) is not None:
            if isinstance(given, Exception):
                raise given
            assert isinstance(given, torch.Tensor)
            return given
        new = torch.empty_strided(shape, strides, dtype=dtype)
        assert new.is_contiguous()
        return self.put(new)

    def put(self, x: torch.Tensor) -> torch.Tensor:
        self.gpu.memory.add(x.detach().numpy())
        self.gpu.memory.tensors.append(x)
        return x

    def new(self, rng: np.random.Generator, *shape: int) -> torch.Tensor:
        return self.put(torch.from_numpy(rng.standard_normal(shape).astype(np.float32)))


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape, np.float32)


def test_one_kernel_and_tensors_that_move(gpu: FakeDriver, rng: np.random.Generator) -> None:
    c = Calls(gpu, graph(lambda x, y: o.Sub()(x, y), (f32, (3, 7)), (f32, (3, 7))), zeros(3, 7), zeros(3, 7))
    x, y, z = (c.new(rng, 3, 7) for _ in range(3))
    with torch.no_grad():
        results = [(c.fast((a, b)), a - b) for a, b in ((x, y), (x, z), (z, x), (torch.nn.Parameter(y), y), (x, y))]
    for got, want in results:  # every result has its own memory
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    native = torch_calls.exchange() is not None
    assert gpu.calls["cuGraphLaunch"] == 6 and 9 * native <= gpu.native <= 10 * native  # the first may lie where memory was freed
    np.testing.assert_array_equal(c.session(x.numpy(), zeros(3, 7)).numpy(), x.numpy())  # the complete way still knows its addresses
    c.stream = 9
    torch.testing.assert_close(c.fast((z, y)), z - y, rtol=0, atol=0)
    assert gpu.streams[-2:] == [0, 9] and gpu.waits == [(9, 0)]


def test_a_stream_that_is_captured_after_a_call_on_it(gpu: FakeDriver, rng: np.random.Generator) -> None:
    """Whoever captures has often called on the same stream before, to warm up."""
    c = Calls(gpu, graph(lambda x: o.Neg()(x), (f32, (4, 4))), zeros(4, 4))
    x, c.stream = c.new(rng, 4, 4), 7
    for _ in range(2):
        for _ in range(2):
            assert torch.equal(c.fast((x,)), -x)
        gpu.captured, count = 7, len(gpu.launches)
        with pytest.raises(ExecutionError, match="session: g: the stream is being captured"):
            c.fast((x,))
        assert len(gpu.launches) == count
        gpu.captured = None
    y = c.session.on(8)(x.numpy())
    gpu.captured = 8
    for given in (y, x.numpy()):  # the fast path, and the complete one
        with pytest.raises(ExecutionError, match="session: g: the stream is being captured"):
            c.session(given)
    assert len(gpu.launches) == count + 1


def test_what_is_handed_back(gpu: FakeDriver, rng: np.random.Generator) -> None:
    c = Calls(gpu, graph(lambda x, y: o.Sub()(x, y), (f32, (4, 4)), (f32, (4, 4))), zeros(4, 4), zeros(4, 4))
    x = c.new(rng, 4, 4)
    count = len(gpu.launches)
    other = [x.T, x[:2], x.double(), x.numpy(), None, x.reshape(16), c.new(rng, 17)[1:].reshape(4, 4), x.to(torch.complex64).imag]
    other += [torch._neg_view(x), torch.nn.Parameter(x)]  # the complete way warns that the result has no gradient
    for bad in other:
        assert c.fast((x, bad)) is MISSED and c.fast((bad, x)) is MISSED
    assert c.fast((x,)) is MISSED and c.fast((x, x), {"S": 3}) is MISSED and len(gpu.launches) == count
    assert c.fast((x, x)) is not MISSED


def test_shapes_with_odd_axes(gpu: FakeDriver, rng: np.random.Generator) -> None:
    """Axes of one element may have any stride; nothing is read of an empty tensor."""
    c = Calls(gpu, graph(lambda x, y: (o.Neg()(x), o.Abs()(y)), (f32, (3, 1, 5)), (f32, (0, 4))), zeros(3, 1, 5), zeros(0, 4))
    x, empty = c.new(rng, 3, 1, 5), c.put(torch.zeros(0, 4))
    for a in (x, x.as_strided((3, 1, 5), (5, 77, 1))):
        for b in (empty, empty.as_strided((0, 4), (9, 7))):
            got = c.fast((a, b))
            assert type(got) is tuple and torch.equal(got[0], -x) and got[1].shape == (0, 4)
    native = torch_calls.exchange() is not None
    assert gpu.calls["cuGraphLaunch"] == 5 and 7 * native <= gpu.native <= 8 * native  # the first may lie where memory was freed
    for bad in (x.as_strided((3, 1, 5), (5, 77, 0)), x.as_strided((3, 1, 5), (1, 77, 3))):
        assert c.fast((bad, empty)) is MISSED


def test_results_that_cannot_be_made(gpu: FakeDriver, rng: np.random.Generator) -> None:
    c = Calls(gpu, graph(lambda x: (y := o.Neg()(x), o.Abs()(y)), (f32, (4, 4))), zeros(4, 4))
    x = c.new(rng, 4, 4)
    first = c.put(torch.zeros(4, 4))
    gc.collect()
    count, holders = len(gpu.launches), (sys.getrefcount(x), sys.getrefcount(first), sys.getrefcount(MISSED))
    c.made = [first, MemoryError("no room")]
    with pytest.raises(MemoryError, match="no room"):
        c.fast((x,))
    assert len(gpu.launches) == count
    c.made = [first, torch.empty(4, 4, device="meta")] if torch_calls.exchange() else []  # the current device is another one
    for _ in range(10):
        assert [torch.equal(*pair) for pair in zip(c.fast((x,)), (-x, abs(x)), strict=True)] == [True, True]
        assert c.fast((x.T,)) is MISSED
    assert not c.made and gpu.native == (18 if torch_calls.exchange() else 0)
    gc.collect()
    assert (sys.getrefcount(x), sys.getrefcount(first), sys.getrefcount(MISSED)) == holders


def test_a_graph_that_cannot_be_pointed_elsewhere(gpu: FakeDriver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    c = Calls(gpu, graph(lambda x: o.Neg()(x), (f32, (4, 4))), zeros(4, 4))
    x, y = c.new(rng, 4, 4), c.put(torch.zeros(4, 4))
    assert torch.equal(c.fast((x,)), -x)
    c.made = [y] * 3
    monkeypatch.setattr(gpu, "_launch_of", lambda *_: (_ for _ in ()).throw(ValueError("as the driver does")))
    with pytest.raises(ValueError, match="as the driver does"):
        c.fast((x,))
    monkeypatch.undo()
    c.made = [y]
    assert c.fast((x,)) is y and torch.equal(y, -x)  # the words were there already, the graph was not


def test_only_what_moved_is_told_to_the_graph(gpu: FakeDriver, rng: np.random.Generator) -> None:
    made = graph(lambda x, y: (Softmax(axis=1)(x), Softmax(axis=0)(y)), (f32, (3, 16)), (f32, (16, 5)))
    c = Calls(gpu, made, zeros(3, 16), zeros(16, 5))
    x, y, new = c.new(rng, 3, 16), c.new(rng, 16, 5), c.new(rng, 3, 16)
    results = [c.put(torch.empty_like(x)), c.put(torch.empty_like(y))]
    for a, nodes in ((x, None), (x, 0), (new, 1), (new, 0), (x, 1)):
        c.made, count = list(results), gpu.calls.get("cuGraphExecKernelNodeSetParams_v2", 0)
        for got, want in zip(c.fast((a, y)), (torch.softmax(a, 1), torch.softmax(y, 0)), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert nodes in (None, gpu.calls.get("cuGraphExecKernelNodeSetParams_v2", 0) - count)
    assert len(c.session.executable.program.launches) == 2


@pytest.mark.parametrize("dtype", ["bool_", "u8", "i16", "u32", "f16", "f64"])
def test_other_dtypes(dtype: str, gpu: FakeDriver, rng: np.random.Generator) -> None:
    d = getattr(dt, dtype)
    c = Calls(gpu, graph(lambda x: o.Flip(axes=(0,))(x), (d, (5, 3))), np.zeros((5, 3), d.np))
    x = c.put(torch.from_numpy(rng.integers(0, 2, (5, 3)).astype(d.np)))
    assert torch.equal(c.fast((x,)), torch.from_numpy(x.numpy()[::-1].copy())) and c.fast((x.to(torch.int8),)) is MISSED
    assert (gpu.native > 0) == (torch_calls.exchange() is not None)


def test_a_dtype_that_pytorch_cannot_describe(gpu: FakeDriver, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(look: int, tensor: Any) -> Any:
        raise RuntimeError("no such dtype in DLPack")

    monkeypatch.setattr(torch_calls, "seen", refuse)
    c = Calls(gpu, graph(lambda x: o.Neg()(x), (f32, (4, 4))), zeros(4, 4))
    x = c.new(rng, 4, 4)
    assert torch.equal(c.fast((x,)), -x) and not gpu.native


def test_a_session_ends(gpu: FakeDriver, rng: np.random.Generator) -> None:
    c = Calls(gpu, graph(lambda x: o.Neg()(x), (f32, (4, 4))), zeros(4, 4))
    x = c.new(rng, 4, 4)
    assert torch.equal(c.fast((x,)), -x)
    gone = weakref.ref(c.session)
    del c
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_tensor_maps_follow_their_tensors(layers: int, native: bool, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products on the tensor cores read through maps of inputs and results, in one launch and in a graph; weights keep theirs."""
    if not native:
        monkeypatch.setattr(torch_calls, "exchange", lambda: None)
    seen: dict[int, list[int]] = {}  # the addresses of the last launch's maps, by its block of parameters

    def look(gpu: FakeDriver, function: int, grid: int, block: int, shared: int, pointers: int) -> tuple[Any, ...]:
        kernel = gpu._of(function)
        places = (ctypes.c_void_p * len(kernel.params)).from_address(pointers)
        found = [at or 0 for at, (_, size) in zip(places, kernel.params, strict=True) if size]
        assert found and not any(at % 64 for at in found)
        seen[pointers] = [ctypes.c_int64.from_address(at).value for at in found]
        return kernel, [], grid, block, shared

    monkeypatch.setattr(FakeDriver, "_launch_of", look)
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(layers))).to(torch.float16)
    with fake_gpu((9, 0), run=False) as gpu:
        first = torch.zeros(256, 256, dtype=torch.float16)
        c = Calls(gpu, tw.compile(net, (first,), target="cuda").model.graph, first.numpy())
        assert len(c.session.executable.program.launches) == layers
        weights = {w.address for w in c.session.executable._weights}
        for k in range(4):
            x = torch.zeros(256, 256, dtype=torch.float16)
            y = c.fast((x,)) if k != 2 else c.session(x.numpy())  # the complete way between, with memory of its own
            used = {a for addresses in seen.values() for a in addresses}
            ends = {c.session.schedule({}).addresses[0], y.address} if k == 2 else {x.data_ptr(), y.data_ptr()}
            assert ends <= used and len(used & weights) == layers
        most = 3 * (min(layers, 2) + 3) * native  # two maps, one or two nodes and the launch; memory that was freed may come again
        assert 3 * native <= gpu.native <= most


def test_graphs_and_shapes_that_vary(gpu: FakeDriver, rng: np.random.Generator) -> None:
    def two(x: Any, y: Any) -> Any:
        return Softmax(axis=1)(x), o.Neg()(Softmax(axis=0)(y))

    c = Calls(gpu, graph(two, (f32, (S, 16)), (f32, (16, 5))), zeros(3, 16), zeros(16, 5))
    y, kept = c.new(rng, 16, 5), []
    for n in (3, 3, 8, 3):
        x = c.new(rng, n, 16)
        found = c.fast((x, y))
        if n == 8 and found is MISSED:  # the complete way makes the schedule
            c.session(x.numpy(), y.numpy())
            found = c.fast((x, y))
        kept.append((found, (torch.softmax(x, 1), -torch.softmax(y, 0))))
    for pair, wanted in kept:
        for got, want in zip(pair, wanted, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert gpu.calls["cuGraphLaunch"] == 6 and c.fast((c.new(rng, 65, 16), y)) is MISSED


def test_donated_tensors_and_a_position(gpu: FakeDriver, rng: np.random.Generator) -> None:
    p = sym("P", 0, 9)
    g = graph(lambda cache, row: o.UpdateSlice(axis=0, start=p)(cache, row), (f32, (10, 4)), (f32, (1, 4)))
    g.donated, g.call_symbols = {0: 0}, tuple(p.symbols)
    c = Calls(gpu, g, zeros(10, 4), zeros(1, 4), env={"P": 0})
    cache, row = c.put(torch.zeros(10, 4)), c.new(rng, 1, 4)
    want = torch.zeros(10, 4)
    for at in (3, 9, 9, 0):
        row += 1
        want[at] = row[0]
        assert c.fast((cache, row), {"P": at}, False) is cache
        torch.testing.assert_close(cache, want, rtol=0, atol=0)
    for env, keep in (({"P": 10}, False), ({}, False), ({"Q": 1}, False), ({"P": 1}, True)):
        assert c.fast((cache, row), env, keep) is MISSED
    c.device = 1  # the thread has turned to another GPU, whose default stream is another one
    assert c.fast((cache, row), {"P": 1}, False) is MISSED


def test_rules_for_a_symbol_of_the_call(gpu: FakeDriver, rng: np.random.Generator) -> None:
    """The maximum over an empty axis is the complete way's to refuse."""
    p = sym("P", 0, 9)
    g = graph(lambda x: o.Max(axes=(0,))(o.Slice(starts=(0, 0), sizes=(p, 4), steps=(1, 1))(x)), (f32, (10, 4)))
    g.call_symbols = tuple(p.symbols)
    c = Calls(gpu, g, zeros(10, 4), env={"P": 3})
    x = c.new(rng, 10, 4)
    torch.testing.assert_close(c.fast((x,), {"P": 5}), x[:5].amax(0), rtol=0, atol=0)
    assert c.session.last_env() == {"P": 5} and c.fast((x,), {"P": 0}) is MISSED


def test_errors_and_threads(gpu: FakeDriver, rng: np.random.Generator) -> None:
    from tilewright.core.dtypes import i64

    c = Calls(gpu, graph(lambda t, i: o.Gather(axis=0)(t, i), (f32, (5, 4)), (i64, (3,))), zeros(5, 4), np.zeros(3, np.int64))
    table, good, bad = c.new(rng, 5, 4), c.put(torch.tensor([4, 0, 2])), c.put(torch.tensor([0, 1, 9]))
    found: list[Any] = []
    count = gpu.entered
    threads = [threading.Thread(target=lambda: found.extend(c.fast((table, good)) for _ in range(3))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert gpu.entered == count + 3 and len(found) == 9 and all(torch.equal(f, table[good]) for f in found)  # each got the context
    c.fast((table, bad))
    with pytest.raises(ExecutionError, match="got 9 at position 2"):
        c.fast((table, good))
    torch.testing.assert_close(c.fast((table, good)), table[good])


def test_a_jitted_function_takes_it(gpu: FakeDriver, rng: np.random.Generator) -> None:
    f = tw.jit(lambda p, n: {"y": [p["w"] * 2 - p["b"], n], "w": p["w"]}, target="cuda", static=1)
    host = {k: rng.standard_normal((2, 3)).astype(np.float32) for k in "wb"}
    first = f(host, "name")
    w, b = f(host, "name")["w"], first["y"][0]
    for one, other in ((w, b), (b, w), (w, w)):
        found = f({"b": other, "w": one}, "name")
        np.testing.assert_array_equal(found["y"][0].numpy(), 2 * one.numpy() - other.numpy())
        assert found["y"][1] == "name" and list(found) == ["y", "w"]
    copies = gpu.calls["cuMemcpyHtoDAsync_v2"]
    short = f._fast
    assert short != f._dispatch and f({"w": w, "b": b}, "name") and f._fast is short and gpu.calls["cuMemcpyHtoDAsync_v2"] == copies
    assert f({"w": w, "b": b}, "other")["y"][1] == "other"  # compiled anew
    np.testing.assert_array_equal(f(host, "name")["w"].numpy(), host["w"])  # arrays of the host still come the long way


def test_donated_arrays_of_a_jitted_function_lie_apart(gpu: FakeDriver, rng: np.random.Generator) -> None:
    step = tw.jit(lambda p, g: (p - g, p * g), target="cuda", donate=0)
    x, y = rng.standard_normal((2, 4, 4)).astype(np.float32)
    p, g = step(x, y)
    want_p, want_g = x - y, x * y
    for _ in range(3):
        kept = g
        p, g = step(p, g)
        want_p, want_g = want_p - want_g, want_p * want_g
        np.testing.assert_allclose(p.numpy(), want_p, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(g.numpy(), want_g, rtol=1e-5, atol=1e-6)
        assert kept.address != g.address and step._fast != step._dispatch
    with pytest.raises(InputError, match="array 0 of the arguments is donated, and array 1 shares its memory"):
        step(p, p)
