"""Random nested loops and branches: compiled code against the interpreter, one thread and two, with passes and without."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tests.control.programs import Maker
from tilewright.ir.interp import run
from tilewright.ir.verify import verify

from .engine.campaign import Campaign

OPTIONS = ({"threads": 2}, {"threads": 1, "passes": ["simplify-control"]}, {"threads": 1, "passes": ["fuse"]})


def case(rng: np.random.Generator) -> None:
    graph = Maker(int(rng.integers(1 << 32)), int(rng.choice([1, 3, 5, 17]))).program()
    verify(graph)
    arrays = [rng.uniform(-1, 1, v.shape).astype(v.dtype.np) for v in graph.inputs]
    want = run(graph, arrays)
    options = OPTIONS[int(rng.integers(len(OPTIONS)))]
    got = tw.compile(graph, validation="strict", **options)(*arrays)
    for a, b in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


CAMPAIGN = Campaign(case=case, quick=20)
