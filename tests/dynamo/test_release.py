"""What a training step holds: saved tensors go while the backward pass runs, and what is cheap is not saved."""
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.multiprocessing.reductions import StorageWeakRef

from tilewright.dynamo import release
from tilewright.dynamo.backend import watching
from tilewright.runtime.workspace import Workspace

from .check import assert_same
from .test_direct import is_direct


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "LEAST", 1 << 12)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32)) for _ in range(3)))


def gradients(call: Any, module: nn.Module, x: torch.Tensor, *, twice: bool = False) -> list[Any]:
    module.zero_grad()
    x.grad = None
    loss = call(x).square().mean()
    loss.backward(retain_graph=twice)
    if twice:
        loss.backward()
    return [p.grad.clone() for p in (x, *module.parameters()) if p.grad is not None]


@pytest.mark.usefixtures("small")
def test_saved_tensors_go_behind_their_last_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = model(), torch.randn(128, 32, requires_grad=True)
    want = gradients(module, module, x)
    call = torch.compile(module, backend="tilewright", dynamic=False)
    for _ in range(2):
        assert_same(gradients(call, module, x), want)
    y = call(x)
    assert is_direct(y)
    given = {x.untyped_storage().data_ptr(), *(p.untyped_storage().data_ptr() for p in module.parameters())}
    saved = [t for t in y.grad_fn.saved_tensors if t.untyped_storage().data_ptr() not in given]
    memory = [StorageWeakRef(t.untyped_storage()) for t in saved]
    del saved
    gone: list[int] = []
    plain = Workspace.part

    def part(self: Workspace, begin: int, end: int) -> int:
        gone.append(sum(m.expired() for m in memory))
        return plain(self, begin, end)

    monkeypatch.setattr(Workspace, "part", part)
    y.backward(torch.ones_like(y))
    assert gone[0] == 0 and gone == sorted(gone) and gone[-1] >= len(memory) - 3 and len(gone) > 4, (gone, len(memory))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_is_retained_stays(dynamic: bool) -> None:
    module, x = model(), torch.randn(128, 32, requires_grad=True)
    call = torch.compile(module, backend="tilewright", dynamic=dynamic)
    with watching() as found:
        for twice in (False, True, True, False):
            want = gradients(module, module, x, twice=twice)
            assert_same(gradients(call, module, x, twice=twice), want)
    assert [c.kind for c in found] == ["forward", "backward"]
    assert found[1].steps[0].fragment is not None and found[1].steps[0].fragment.released


def test_a_graph_with_wrappers_may_be_walked_twice() -> None:
    """inductor's error about donated buffers is not ours: nothing that somebody holds is written to."""
    x, w = torch.randn(16, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)
    f = lambda x, w: ((x @ w).relu() @ w, x.view(-1))
    call = torch.compile(f, backend="tilewright")
    for twice in (False, True):
        found = []
        for g in (call, f):
            a, b = g(x, w)
            loss = a.sum() + b.sum()
            found.append(torch.autograd.grad(loss, (x, w), retain_graph=twice))
            found[-1] += torch.autograd.grad(loss, (x, w)) if twice else ()
        assert_same(found[0], found[1])


def test_the_result_of_a_tanh_is_computed_again() -> None:
    """torch's list of cheap ops lacks the backward ops that its own backend never sees."""

    def gelu(x: Any) -> Any:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

    first, second = nn.Linear(8, 48), nn.Linear(48, 8)
    call = torch.compile(lambda x: second(gelu(first(x))), backend="tilewright")
    kept: dict[int, tuple[int, ...]] = {}

    def pack(t: torch.Tensor) -> torch.Tensor:
        kept[t.untyped_storage().data_ptr()] = tuple(t.shape)
        return t

    x = torch.randn(40, 8, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = call(x)
    wide = [s for s in kept.values() if sorted(s) == [40, 48]]
    assert len(wide) == 2, kept  # what the activation reads, and what the second layer reads
    assert_same(torch.autograd.grad(y.sum(), x), torch.autograd.grad(second(gelu(first(x))).sum(), x))


def test_rows_of_a_tied_table_are_added_to_its_other_gradient() -> None:
    """The table has one gradient as a table and one as a weight; nothing of the table's size is made beside their sum."""
    table = torch.randn(4096, 64, requires_grad=True)
    ids = torch.randint(0, 4096, (3, 5))
    f = lambda table: F.embedding(ids, table).tanh() @ table.T
    call = torch.compile(f, backend="tilewright")
    with watching() as found:
        (got,) = torch.autograd.grad(call(table).square().sum(), table)
    assert_same(got, torch.autograd.grad(f(table).square().sum(), table)[0])
    session = found[1].steps[0].session
    assert session.executable.arena_bytes({}) < 2 * table.nbytes
