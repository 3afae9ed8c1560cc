"""The short way into a session on a GPU, with PyTorch's CPU tensors as if they lay there: what it takes, hands back and launches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import FakeDriver, fake_gpu
from tests.cuda.launching import graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.core.errors import ExecutionError, InputError
from tilewright.ir.graph import Graph
from tilewright.ops.composites import Softmax
from tilewright.runtime.cuda_fastcall import MISSED, TorchPlace, fast_call

S = sym("S", 1, 64)


@pytest.fixture
def gpu() -> Iterator[FakeDriver]:
    with fake_gpu() as fake:
        yield fake


class Calls:
    """A session whose short way takes tensors of the fake's memory; `stream` is PyTorch's current one."""

    def __init__(self, gpu: FakeDriver, g: Graph, *first: np.ndarray[Any, Any], env: dict[str, int] | None = None) -> None:
        self.gpu, self.stream = gpu, 0
        session: Any = tw.compile(g, target="cuda")
        self.session = session
        self.session.run_with(env or {}, *first)  # loads the modules
        place = TorchPlace(torch.device("cpu"), -1, lambda index: self.stream)
        place.scope |= {"strided": self._strided, "empty": lambda shape, dtype, device: self.put(torch.empty(shape, dtype=dtype))}
        self.fast: Any = fast_call(self.session, place)

    def _strided(self, shape: Any, strides: Any, dtype: Any, device: Any) -> torch.Tensor:
        new = torch.empty_strided(shape, strides, dtype=dtype, device=device)
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
    results = [(c.fast((a, b)), a - b) for a, b in ((x, y), (x, z), (z, x), (torch.nn.Parameter(y), y), (x, y))]
    for got, want in results:  # every result has its own memory
        torch.testing.assert_close(got, want, rtol=0, atol=0)
    assert gpu.calls["cuLaunchKernelEx"] == 6 and "cuGraphLaunch" not in gpu.calls
    np.testing.assert_array_equal(c.session(x.numpy(), zeros(3, 7)).numpy(), x.numpy())  # the complete way still knows its addresses
    c.stream = 9
    torch.testing.assert_close(c.fast((z, y)), z - y, rtol=0, atol=0)
    assert gpu.streams[-2:] == [0, 9] and gpu.waits == [(9, 0)]


def test_what_is_handed_back(gpu: FakeDriver, rng: np.random.Generator) -> None:
    c = Calls(gpu, graph(lambda x, y: o.Sub()(x, y), (f32, (4, 4)), (f32, (4, 4))), zeros(4, 4), zeros(4, 4))
    x = c.new(rng, 4, 4)
    count = len(gpu.launches)
    other = [x.T, x[:2], x.double(), x.numpy(), None, x.reshape(16), c.new(rng, 17)[1:].reshape(4, 4), x.to(torch.complex64).imag]
    other.append(torch._neg_view(x))
    for bad in other:
        assert c.fast((x, bad)) is MISSED and c.fast((bad, x)) is MISSED
    assert c.fast((x,)) is MISSED and c.fast((x, x), {"S": 3}) is MISSED and len(gpu.launches) == count
    assert c.fast((x, x)) is not MISSED


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
    threads = [threading.Thread(target=lambda: found.append(c.fast((table, good)))) for _ in range(3)]
    for t in threads:
        t.start()
        t.join()
    assert gpu.entered == count + 3 and all(torch.equal(f, table[good]) for f in found)  # each thread got the context
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
