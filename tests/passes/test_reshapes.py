"""Reshapes between contractions and what follows them: moved so that it can be an epilogue, and not moved for ever."""

from __future__ import annotations

import numpy as np

from tests.fresh import fresh_rng
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ops import functions as F
from tilewright.ops.families import f64
from tilewright.passes.pipeline import run_pipeline


def test_two_contractions_that_meet_in_a_third_shape() -> None:
    g = Graph("joined")
    a, b, c, d = (g.input(f64(*shape), name) for name, shape in (("a", (4, 5)), ("b", (5, 6)), ("c", (3, 7)), ("d", (7, 8))))
    left, right = F.reshape(F.matmul(a, b), (2, 12)), F.reshape(F.matmul(c, d), (2, 12))
    g.outputs = [F.exp(F.add(F.mul(left, 0.1), right))]
    rng = fresh_rng()
    arrays = [rng.uniform(-1, 1, v.shape) for v in g.inputs]
    want = run(g, arrays)
    np.testing.assert_allclose(run(run_pipeline(g), arrays)[0], want[0], rtol=1e-12)
