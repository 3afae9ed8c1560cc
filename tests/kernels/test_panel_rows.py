"""A table that is looked up in and multiplied with lies in memory once, in panels; its rows are the bits of the gguf package."""
from __future__ import annotations

import gguf
import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.llm.test_formats import rows_of
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.quant.panels import PANELS
from tilewright.ops.quant import FORMATS
from tilewright.ops.structure import ConstantData

from .test_qdot import packed


@pytest.mark.parametrize("name", sorted(PANELS))
def test_rows_are_the_file_s(name: str) -> None:
    rng = fresh_rng()
    n, k = int(rng.integers(17, 80)), FORMATS[name].elements * int(rng.integers(1, 4))
    grouped = FORMATS[name].grouped
    raw = packed(name, n, k, rng) if grouped else rows_of(name, n, k, rng)
    graph = Graph("tied")
    count = sym("S", 1, 64)
    ids = graph.input(TensorType(dt.i64, (count,)), "ids")
    x = graph.input(TensorType(dt.f32, (count, k)), "x")
    table = graph.constant(ConstantData(raw, "table"), "table")
    graph.outputs = [o.QGather(format=name, k=k)(table, ids), o.QMatmul(format=name, n=n, k=k, rounded=grouped)(x, table)]
    session = tw.compile(graph)
    assert session.executable is not None
    program = session.executable.program
    assert [c.packed.form for c in program.constants] == ["quantized panels"]
    assert any("reads the panels" in launch.note for launch in program.launches)
    wanted = rng.permutation(np.concatenate([np.arange(n), [0, n - 1]]))[:64]
    own = FORMATS[name].dequantize  # groups are no format of files
    want = own(raw) if grouped else gguf.quants.dequantize(raw, getattr(gguf.GGMLQuantizationType, name))
    rows, product = session(wanted, rng.standard_normal((len(wanted), k)).astype(np.float32))
    np.testing.assert_array_equal(rows.view(np.int32), want[wanted].view(np.int32))
    assert product.shape == (len(wanted), n)
    with pytest.raises(tw.ExecutionError, match=f"got {n} at position 1"):
        session(np.array([0, n]), np.zeros((2, k), np.float32))
