"""`tilewright run` and `tilewright inspect` of ONNX files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.fresh import fresh_rng
from tests.onnx.models import one
from tilewright.cli.main import main


def test_run_writes_what_the_model_gives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = fresh_rng().standard_normal((3, 4)).astype(np.float32)
    onnx.save(one("Softmax", [x])[0], tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", x)
    assert main(["run", str(tmp_path / "m.onnx"), "--input", f"x0={tmp_path / 'x.npy'}", "-o", str(tmp_path / "y.npz")]) == 0
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y0"], e / e.sum(1, keepdims=True), rtol=1e-5)
    assert "y0: float32[3, 4]" in capsys.readouterr().out


def test_run_names_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(one("Add", [np.zeros(3, np.float32), np.zeros(3, np.float32)])[0], tmp_path / "m.onnx")
    assert main(["run", str(tmp_path / "m.onnx")]) == 1
    assert "the inputs x0, x1 are missing" in capsys.readouterr().err


def test_inspect_of_a_model_in_segments_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(one("NonZero", [np.zeros(3, np.float32)])[0], tmp_path / "m.onnx")
    assert main(["inspect", str(tmp_path / "m.onnx")]) == 1
    assert "host: NonZero" in capsys.readouterr().err
