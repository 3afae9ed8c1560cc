"""The backend's calls of sessions on a GPU: graphs over tensors of the host, which the emulated GPU finds in its memory."""
from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

from tests.cuda.fake_driver import FakeDriver, fake_gpu
from tilewright.core.dims import evaluate
from tilewright.dynamo import call, fragment
from tilewright.dynamo.backend import watching

from .check import assert_same, check


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Graphs run on the emulated GPU; the host's allocator and one stream stand for torch's."""
    with fake_gpu() as fake:

        def scope(session: Any) -> dict[str, Any]:
            def start(addresses: list[int], env: dict[str, int], stream: int, begin: Any = session.start) -> None:
                assert not any(a % 16 for a in addresses)
                before = list(fake.memory.buffers)
                types = [*session.interface.inputs, *session.interface.outputs]
                for at, t in {a: t for a, t in zip(addresses, types, strict=True) if a}.items():
                    fake.memory.add(np.ctypeslib.as_array((ctypes.c_uint8 * evaluate(t.nbytes, env)).from_address(at)))
                begin(addresses, env, stream)
                session.synchronize()
                fake.memory.buffers[:] = [b for b in fake.memory.buffers if b in before or b[0] in fake.memory.kept]

            def alloc(shape: Any, strides: Any, dtype: Any) -> Any:
                return torch.empty_strided(shape, strides, dtype=dtype)

            def faster(session: Any, plain: Any) -> Any:
                """Machine code, over memory that the emulated GPU knows."""
                found = call._faster(session, lambda *words: session.start(list(words[:-1]), {}, words[-1]))
                return found and (lambda *words: start(list(words[:-1]), {}, words[-1], lambda a, _, stream: found(*a, stream)))

            return {"alloc": alloc, "start": start, "faster": faster, "stream": lambda _: 0, "current": lambda: 0,
                    "device": torch.device("cpu")}

        monkeypatch.setattr(call, "_gpu_scope", scope)
        monkeypatch.setattr(fragment, "_device", lambda module: "cuda")
        monkeypatch.setattr(fragment.Reader, "_away", lambda reader, fake: fake.dtype is torch.int16)
        yield fake


class Net(nn.Module):
    """Rows of a table, attention, a norm, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.n, self.qkv, self.o = nn.Embedding(7, 16), nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 5)

    def forward(self, ids: torch.Tensor) -> Any:
        x = self.e(ids)
        q, k, v = self.qkv(self.n(x)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        return self.o(x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def picture() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, groups=4),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))


def steps(call: Any, module: nn.Module, x: torch.Tensor, half: bool) -> Any:
    """Results, gradients and buffers of two training steps."""
    found = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            y = call(x)
        (y.float() * torch.arange(y.numel()).cos().reshape(y.shape)).sum().backward()
        found.append((y.detach().clone(), [p.grad.clone() for p in module.parameters() if p.grad is not None]))
        with torch.no_grad():
            for p in module.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
        module.zero_grad()
    return found, [b.clone() for b in module.buffers()]


@pytest.mark.parametrize("half", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_training_steps(half: bool, gpu: FakeDriver) -> None:
    """Parameters are read where they lie: the second step sees the new ones. Statistics of batch norms are written in place."""
    module = Net() if half else picture()
    x = torch.randint(7, (1, 5)) if half else torch.randn(2, 3, 6, 6)
    other = copy.deepcopy(module)
    with watching() as found:
        got = steps(torch.compile(module, backend="tilewright", options={"precision": "exact"}), module, x, half)
    want = steps(other, other, x, half)
    assert [c.kind for c in found] == ["forward", "backward"] and not sum(c.splits for c in found), [c.refusals for c in found]
    assert gpu.launches and gpu.native  # the second step is bound and launched by machine code
    if not half:
        assert_same(got, want)
    for (a, da), (b, db) in zip(got[0], want[0], strict=True):
        for p, q in zip((a, *da), (b, *db), strict=True):
            assert float((p - q).norm()) <= 0.06 * float(q.norm()) + 1e-3  # bf16 beside bf16: single elements may differ by more


def test_dropout_and_its_gradient_share_a_mask(gpu: FakeDriver) -> None:
    x = torch.ones(40, 16, requires_grad=True)
    y = torch.compile(lambda x: F.dropout(x, 0.5) * 1.0, backend="tilewright")(x)
    y.sum().backward()
    assert x.grad is not None and torch.equal(y.detach(), x.grad) and 0.3 < float((y == 0).float().mean()) < 0.7


def test_arguments_between_aligned_addresses(gpu: FakeDriver) -> None:
    """They are copied, and what the graph writes there is copied back."""

    def f(x: Any, y: Any, z: Any) -> Any:
        y.add_(x)
        return x * 2 + z

    memory = torch.randn(3, 40)
    check(f, memory[0, 1:33].view(4, 8), memory[1, 3:35].view(8, 4).T, memory[2, 2:3].expand(4, 8))


def test_sizes_that_vary(gpu: FakeDriver) -> None:
    compiled = torch.compile(lambda x, w: (x @ w).softmax(-1), backend="tilewright", dynamic=True)
    w = torch.randn(8, 6)
    with watching() as found:
        for n in (3, 5, 17):
            x = torch.randn(n, 8)
            assert_same(compiled(x, w), (x @ w).softmax(-1))
    assert len(found) == 1 and found[0].splits == 0


def test_tensors_of_the_host_in_a_graph_of_the_gpu(gpu: FakeDriver) -> None:
    """(Those of i16 stand for them here.) They are sent to the GPU, and results fetched from there."""

    def f(x: Any, n: Any) -> Any:
        n.add_(1)
        return x * n, n + 2, (n * 3).T

    (made,) = check(f, torch.randn(2, 3), torch.ones(2, 3, dtype=torch.int16))
    fragment = made.steps[0].fragment
    assert fragment is not None and sum(s.away for s in fragment.sources) == 1


def test_a_target_elsewhere(gpu: FakeDriver) -> None:
    compiled = torch.compile(lambda x: x + 1, backend="tilewright", options={"target": "cpu"})
    with pytest.warns(UserWarning, match="target cpu cannot read tensors on the device cuda"):
        y = compiled(torch.ones(2))
    assert torch.equal(y, torch.full((2,), 2.0))
