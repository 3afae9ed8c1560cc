"""Sessions of models with packed weights: the panels are stored as they are, and the graph can be had again from them."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.kernels.test_qdot import packed
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.packed.products import QMatmul
from tilewright.ops.packed.quant_dot import FORMATS


def model(name: str, rng: np.random.Generator) -> tuple[Graph, int]:
    """Two layers as a GGUF file has them, for any number of rows."""
    k, wide, n = (512, 256, 37) if name.endswith("K") else (96, 64, 37)
    up, down = packed(name, wide, k, rng), packed(name, n, wide, rng)

    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        h = F.silu(QMatmul(format=name, n=wide, k=k)(v[0], g.constant(up, "up")))
        y: Value = QMatmul(format=name, n=n, k=wide)(h, g.constant(down, "down"))
        return y

    return single(body, TensorType(f32, (sym("M", 1, 64), k))), k


@pytest.mark.parametrize("name", [n if n in ("Q4_K", "Q8_0") else pytest.param(n, marks=pytest.mark.slow) for n in FORMATS])
def test_save_and_load(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = fresh_rng()
    graph, k = model(name, rng)
    session = tw.compile(graph)
    x = rng.standard_normal((5, k)).astype("f4")
    want = session(x)
    assert session.executable is not None
    assert "quantized panels" in {c.packed.form for c in session.executable.program.constants}
    session.save(tmp_path / "q.tw")
    loaded = tw.load(tmp_path / "q.tw")
    assert loaded.model.notes == []
    np.testing.assert_array_equal(loaded(x), want)
    loaded.save(tmp_path / "again.tw")  # reads the graph, so the rows come back out of the panels
    monkeypatch.setenv("TILEWRIGHT_CPU", "baseline")
    other = tw.load(tmp_path / "again.tw")
    assert "another kind of CPU" in other.model.notes[0]
    np.testing.assert_allclose(other(x), want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
