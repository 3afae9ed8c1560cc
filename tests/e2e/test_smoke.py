"""One test of every part, in a minute: `make smoke`."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.cli.main import main
from tilewright.llm.tiny import write_tiny_model


def test_a_module_compiled_saved_and_opened(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval()
    x = torch.from_numpy(fresh_rng().standard_normal((5, 16)).astype(np.float32))
    session = tw.compile(module, (x,), dynamic={"input": {0: tw.Dim("N", 1, 64)}})
    want = module(x).detach()
    torch.testing.assert_close(session(x), want, rtol=1e-4, atol=1e-5)
    session.save(tmp_path / "m.tw")
    with tw.load(tmp_path / "m.tw") as opened:
        assert torch.equal(opened(x), session(x))
    torch.testing.assert_close(session(x[:2]), want[:2], rtol=1e-4, atol=1e-5)


def test_a_convolution_network() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1)).eval()
    x = torch.from_numpy(fresh_rng().standard_normal((2, 3, 9, 11)).astype(np.float32))
    torch.testing.assert_close(tw.compile(module, (x,))(x), module(x).detach(), rtol=1e-3, atol=1e-4)


def test_functions_of_arrays_and_their_derivatives() -> None:
    x = fresh_rng().standard_normal((3, 4))
    f = tw.jit(lambda a: tw.sum(tw.tanh(a) * a))
    t = torch.from_numpy(x).requires_grad_()
    (torch.tanh(t) * t).sum().backward()
    assert t.grad is not None
    np.testing.assert_allclose(tw.grad(f)(x), t.grad.numpy(), rtol=1e-12)
    np.testing.assert_allclose(tw.vmap(f)(x), (np.tanh(x) * x).sum(1), rtol=1e-12)


def test_a_language_model_and_its_command(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", layers=1)
    with tw.load_llm(path, threads=1) as llm:
        text = "".join(llm.generate([3, 1, 4], max_tokens=4))
        assert llm.generate_batch([[3, 1, 4]], max_tokens=4) == [text]
    assert main(["generate", str(path), "the", "--max-tokens", "2", "--quiet"]) == 0


def test_the_doctor_finds_nothing_wrong() -> None:
    assert main(["doctor"]) == 0
