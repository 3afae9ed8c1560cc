"""Memory touched ahead: large enough, given back beyond what is needed, and of no consequence for what is computed."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
from tilewright.runtime import ahead as module
from tilewright.runtime.ahead import Ahead, packed_estimate
from tilewright.runtime.memory import HUGE


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def finish(ahead: Ahead) -> None:
    """Wait until all that was wanted is touched."""
    ahead._thread.join()


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


def test_closing_stops_it() -> None:
    ahead = Ahead(900 << 20)
    ahead.close()
    assert not ahead._thread.is_alive()


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


@pytest.mark.parametrize("least", [1, 1 << 40])
def test_the_same_results(monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    monkeypatch.setattr(module, "LEAST", least)
    model = nn.Sequential(nn.Linear(1100, 900), nn.ReLU(), nn.Linear(900, 70)).eval()
    x = torch.randn(5, 1100)
    with torch.no_grad():
        torch.testing.assert_close(tw.compile(model, (x,))(x), model(x), rtol=1e-4, atol=1e-4)
