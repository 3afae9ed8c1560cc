"""QDQ pairs around a layer: one integer kernel, whose epilogue is one multiplication, one addition and the rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.onnx.models import agree, helper, info, model
from tilewright import ops as o


@pytest.mark.parametrize(("codes", "zero", "after"), [(np.uint8, 120, "Identity"), (np.uint8, 0, "Relu"), (np.int8, -3, "Identity")])
def test_scales_bias_and_bounds_of_a_layer_are_one_step(codes: Any, zero: int, after: str) -> None:
    rng, n = fresh_rng(), helper.make_node
    x = rng.integers(np.iinfo(codes).min, np.iinfo(codes).max, (1, 8, 6, 5)).astype(codes)
    weights: dict[str, Any] = {
               "w": rng.integers(-127, 128, (24, 8, 3, 3)).astype(np.int8), "ws": rng.uniform(0.001, 0.01, 24).astype(np.float32),
               "wz": np.zeros(24, np.int8), "b": rng.integers(-9999, 9999, 24).astype(np.int32), "xs": np.float32(0.02),
               "xz": np.array(zero, codes), "bz": np.zeros(24, np.int32), "ys": np.float32(0.03), "yz": np.array(zero, codes)}
    weights["bs"] = weights["ws"] * weights["xs"]
    nodes = [n("DequantizeLinear", ["x", "xs", "xz"], ["a"]), n("DequantizeLinear", ["w", "ws", "wz"], ["v"], axis=0),
             n("DequantizeLinear", ["b", "bs", "bz"], ["c"], axis=0), n("Conv", ["a", "v", "c"], ["d"], pads=[1, 1, 1, 1]),
             n(after, ["d"], ["e"]), n("QuantizeLinear", ["e", "ys", "yz"], ["y"])]
    proto = model(nodes, [info("x", x)], ["y"], weights)
    agree(proto, {"x": x}, quanta=1)
    regions = [r.op.body for r in tw.compile(proto).model.graph.nodes if isinstance(r.op, o.Fused)]
    behind = [m.op.name for r in regions if any(isinstance(m.op, o.IntConv) for m in r.nodes) for m in r.nodes]
    assert behind.count("mul") == 1 and not {"div", "relu", "maximum"} & set(behind)


@pytest.mark.parametrize("codes", [np.uint8, np.int8])
def test_large_weights_of_integer_products_are_packed_by_the_compiler(codes: Any) -> None:
    rng = fresh_rng()
    low, high = np.iinfo(codes).min, np.iinfo(codes).max + 1
    a, w = rng.integers(0, 256, (3, 301)).astype(np.uint8), rng.integers(low, high, (301, 259)).astype(codes)
    zeros = {"w": w, "zw": rng.integers(low, high, 259).astype(codes)}
    z = np.array(rng.integers(0, 256), np.uint8)
    proto = model([helper.make_node("MatMulInteger", ["a", "w", "za", "zw"], ["y"])], [info("a", a), info("za", z)], ["y"], zeros)
    session = tw.compile(proto)
    np.testing.assert_array_equal(session(a, z), (a.astype(np.int32) - z) @ (w.astype(np.int32) - zeros["zw"]))
    assert {"pack_words", "transpose", "sum"}.isdisjoint(n.op.name for n in session.model.graph.nodes)
