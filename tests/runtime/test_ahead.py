"""Memory touched ahead: large enough, given back beyond what is needed, and of no consequence for what is computed."""
from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tests.shaken import HANG
from tilewright.build import ahead as module
from tilewright.build.ahead import Ahead, packed_estimate
from tilewright.kernels.launch import Packed
from tilewright.ops.structure import ConstantData
from tilewright.runtime.memory import HUGE
from tilewright.target.cpu.host import host_target


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def finish(ahead: Ahead) -> None:
    """Wait until all that was wanted is touched."""
    assert ahead._join is not None
    ahead._join()


def test_a_block_serves_what_fits() -> None:
    ahead = Ahead(64 << 20)
    finish(ahead)
    block = ahead.take(60 << 20)
    assert block.nbytes >= 60 << 20
    assert block.address % HUGE == 0
    array = block.array(np.uint8, (60 << 20,))
    assert not array.any(), "fresh memory is zero"


def test_too_much_goes_back() -> None:
    ahead = Ahead(256 << 20)
    finish(ahead)
    touched, before = ahead._touched, resident()
    block = ahead.take(8 << 20)
    assert block.nbytes >= 8 << 20
    if touched:  # the system has the call
        assert before - resident() > 200 << 20


def test_too_little_and_nothing_take_another_block() -> None:
    for wanted in (100 << 20, 1000, 0):
        ahead = Ahead(32 << 20)
        assert ahead.take(wanted).nbytes == wanted


def test_closing_stops_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made, ready = list[Ahead](), threading.Event()

    def advise(*_: int) -> int:
        """The first step takes until it is closed."""
        return int(not (ready.wait(HANG) and made[0]._stop.wait(HANG)))

    monkeypatch.setattr(module, "_madvise", lambda: advise)
    made.append(Ahead(900 << 20))
    ready.set()
    made[0].close()  # its thread is over
    assert made[0]._touched <= module.STEP


def test_what_is_expected() -> None:
    a = nn.Linear(300, 200)
    tied = nn.Sequential(nn.Embedding(200, 300), a, nn.LayerNorm(200))
    assert packed_estimate(a) == 300 * 200 * 4
    assert packed_estimate(tied) == 2 * 300 * 200 * 4
    tied[0].weight = a.weight
    assert packed_estimate(tied) == 300 * 200 * 4
    assert packed_estimate(torch.export.export(a, (torch.randn(2, 300),))) == 300 * 200 * 4
    assert packed_estimate(nn.Linear(3, 4, device="meta")) == 0
    assert packed_estimate(lambda x: x) == 0
    assert packed_estimate(None) == 0


class Attention(nn.Module):
    """Three products of one left operand, which a pass merges: nothing to guess; then one that is guessed; and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(130, 48)
        self.q, self.k, self.v, self.out = (nn.Linear(48, 48) for _ in range(4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        q, k, v = self.q(x), self.k(x), self.v(x)
        x = x + self.out(torch.softmax(q @ k.transpose(-1, -2), -1) @ v)
        result: torch.Tensor = (x @ self.table.weight.T + nn.functional.linear(x * 2, self.table.weight)).relu()
        return result


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(210, 190), nn.ReLU(), nn.Linear(190, 70)), lambda: torch.randn(5, 210)),
    "attention": (Attention, lambda: torch.randint(0, 130, (2, 9))),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 33)), lambda: torch.randn(2, 3, 8, 8)),
    "half": (lambda: nn.Sequential(nn.Linear(70, 50), nn.GELU(), nn.Linear(50, 30)).to(torch.bfloat16),
             lambda: torch.randn(3, 70).to(torch.bfloat16)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever was guessed, right or wrong: the results are those without guessing, and those of PyTorch."""
    make, example = MODELS[name]
    model, x = make().eval(), example()
    plain = tw.compile(model, (x,))(x)
    monkeypatch.setattr(module, "LEAST", 1)
    asked: list[bool] = []
    original = Ahead.packed

    def packed(self: Ahead, data: ConstantData, form: Packed) -> Any:
        found = original(self, data, form)
        asked.append(found is not None)
        return found

    monkeypatch.setattr(Ahead, "packed", packed)
    got = tw.compile(model, (x,))(x)
    assert torch.equal(got, plain)
    words = name == "half" and host_target().has("avx512bf16")  # pairs of bf16, which nobody guesses
    assert any(asked) or words, "at least one weight was guessed right"
    tolerance = 3e-2 if got.dtype == torch.bfloat16 else 1e-4
    with torch.no_grad():
        want = model.float()(x.float() if x.is_floating_point() else x)
    torch.testing.assert_close(got.float(), want, rtol=tolerance, atol=tolerance)


def test_memory_of_wrong_guesses_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST", 1)
    released: list[int] = []
    original = module._madvise

    def advise(where: int, size: int, how: int) -> int:
        released.append(size * (how == module.DONTNEED))
        return original()(where, size, how)

    monkeypatch.setattr(module, "_madvise", lambda: advise)
    model = nn.Sequential(nn.Linear(1000, 900)).eval()
    monkeypatch.setattr(Ahead, "packed", lambda self, data, packed: None)  # nobody ever asks for it
    x = torch.randn(3, 1000)
    with torch.no_grad():
        torch.testing.assert_close(tw.compile(model, (x,))(x), model(x), rtol=1e-4, atol=1e-4)
    assert sum(released) >= 900 * 1000 * 4 - 2 * 4096
