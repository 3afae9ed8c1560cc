"""Integer products with packed matrices against the dequantizers, for every format, at odd sizes, on every feature level."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32, i64
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.ops import QDot, QExpertsDot, QuantizeRows, quant
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.packed.quant_dot import FORMATS, GROUPED

from .harness import run_graph

HALVES = {"Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def packed(name: str, n: int, k: int, rng: np.random.Generator) -> Any:
    """Random blocks: every bit pattern of quantized values and scales, with sane half-precision fields."""
    fmt = quant.by_name(name)
    raw = rng.integers(0, 256, (n, k // fmt.elements, fmt.bytes)).astype(np.uint8)
    for at in HALVES.get(name, ()):
        raw[..., at : at + 2] = rng.uniform(-0.02, 0.02, raw.shape[:2]).astype(np.float16)[..., None].view(np.uint8)
    if name in GROUPED:
        raw[..., :8] = rng.uniform(-0.02, 0.02, (*raw.shape[:2], 2)).astype(np.float32).view(np.uint8)
    return raw.reshape(n, -1)


def product(name: str, w: Any, k: int, rows: Any) -> Graph:
    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        codes = QuantizeRows()(v[0])
        return F.add(QDot(format=name, n=len(w), k=k)(*codes, g.constant(w, "w")), 1.0)

    return single(body, TensorType(f32, (2, rows, k)))


BASELINE = ("Q4_0", "Q6_K")  # without vector instructions for bytes a format compiles for seconds: the others are slow tests
KERNELS = [*((level, name) for level in ("native", "avx512", "avx2", "baseline") for name in FORMATS),
           *((level, name) for level in ("native", "avx2") for name in ("U4_32", "U4_128", "U8_64"))]


@pytest.mark.parametrize("level, name", [
    pytest.param(level, name, marks=pytest.mark.slow if level != "native" and name not in BASELINE else ()) for level, name in KERNELS
])
def test_every_format(name: str, level: str) -> None:
    rng = fresh_rng()
    n, k = 37, 512 if quant.by_name(name).elements > 32 else 96
    w = packed(name, n, k, rng)
    x = rng.standard_normal((2, 7, k)).astype("f4")
    g = product(name, w, k, 7)
    (got,), _ = run_graph(g, [x], level)
    want = run(g, [x])[0].astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))
    (alone,), _ = run_graph(product(name, w, k, sym("M", 1, 64)), [x[:, :1]], level)
    assert alone.tobytes() == got[:, :1].tobytes(), "a row alone has other bits"


@pytest.mark.parametrize("name", ["Q4_1", "Q4_K", "Q6_K"])
def test_more_panels_at_once_give_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What large matrices use, for one row and for several; the last panels are fewer than four."""
    from tilewright.kernels.quant import qdot

    rng, k = fresh_rng(), 512
    w, x = packed(name, 90, k, rng), rng.standard_normal((2, 3, k)).astype("f4")
    found = []
    for programs in (qdot.PROGRAMS, 0):
        monkeypatch.setattr(qdot, "PROGRAMS", programs)
        found += [run_graph(product(name, w, k, rows), [x[:, :rows]], "avx512")[0][0] for rows in (1, 3)]
    assert found[0].tobytes() == found[2].tobytes() == found[1][:, :1].tobytes()
    assert found[1].tobytes() == found[3].tobytes()


def test_quantize_rows_is_exact() -> None:
    x = fresh_rng().standard_normal((3, 64)).astype("f4")
    x[1, :32] = 0
    g = single(lambda g, v: QuantizeRows()(v[0]), TensorType(f32, (3, 64)))
    for got, want in zip(run_graph(g, [x])[0], run(g, [x]), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shared", [True, False])
def test_chosen_matrices_of_a_stack(name: str, shared: bool) -> None:
    """Each row times the matrix it chose: the bits of a product with that matrix alone."""
    rng = fresh_rng()
    experts, n, k, tokens, used = 3, 48, 512 if name.endswith("K") else 96, 5, 2
    w = packed(name, experts * n, k, rng)
    x = rng.standard_normal((tokens, 1 if shared else used, k)).astype("f4")
    ids = rng.integers(0, experts - 1, (tokens, used))  # nobody chooses the last

    def body(g: Graph, v: tuple[Value, ...]) -> Value:
        out: Value = QExpertsDot(format=name, n=n, k=k, experts=experts)(*QuantizeRows()(v[0]), g.constant(w, "w"), v[1])
        return out

    rows = sym("S", 0, 40)
    graph = single(body, TensorType(f32, (rows, x.shape[1], k)), TensorType(i64, (rows, used)))
    (got,), error = run_graph(graph, [x, ids])
    assert not error.any()
    want = run(graph, [x, ids])[0].astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()))

    def with_one(own: Any) -> Graph:
        op = QDot(format=name, n=n, k=k)
        return single(lambda g, v: op(*QuantizeRows()(v[0]), g.constant(own, "w")), TensorType(f32, (1, k)))

    for token, slot in ((0, 0), (tokens - 1, 1)):
        (alone,), _ = run_graph(with_one(w[ids[token, slot] * n :][:n]), [x[token, [0 if shared else slot]]])
        assert alone.tobytes() == got[token, slot].tobytes()
    (none,), _ = run_graph(graph, [x[:0], ids[:0]])
    assert none.shape == (0, used, n)
    ids[1, 1] = experts
    assert run_graph(graph, [x, ids])[1].any(), "a choice out of range is reported"
