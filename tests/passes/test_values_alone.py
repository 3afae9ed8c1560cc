"""Eigenvalues and singular values whose vectors nobody reads are computed without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ops import functions as F
from tilewright.ops.families import f64
from tilewright.ops.linalg.spectra import Eigh, Svd
from tilewright.passes.pipeline import run_pipeline


@pytest.mark.parametrize("read", [(), (1,)], ids=["values", "vectors"])
@pytest.mark.parametrize("kind", [Eigh, Svd])
def test_vectors_go_only_where_nobody_reads_them(kind: Any, read: tuple[int, ...]) -> None:
    g = Graph("spectrum")
    found = kind()(g.input(f64(5, 5), "a"))
    g.outputs = [F.exp(found[0]), *(found[i] for i in read)]
    a = fresh_rng().uniform(-1, 1, (5, 5))
    want = run(g, [a])
    made = run_pipeline(g)
    kept = [n.op.vectors for n in made.nodes if isinstance(n.op, (Eigh, Svd))]
    assert kept == [bool(read)]
    for x, y in zip(run(made, [a]), want, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12)
