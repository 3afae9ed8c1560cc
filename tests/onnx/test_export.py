"""Exported graphs beside ONNX Runtime: control flow, and ops as their samples have them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from onnx import helper

import tilewright as tw
from tests.fresh import fresh_rng
from tests.onnx.models import info, model, peer
from tests.ops.checks import cases
from tilewright.ir.interp import run


def f(*shape: int) -> Any:
    return fresh_rng().standard_normal(shape).astype(np.float32)


def mlp() -> Any:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Gelu", ["c"], ["y"]),  # noqa: E501
             helper.make_node("ReduceMean", ["y"], ["m"], keepdims=0)]  # fmt: skip
    return model(nodes, [info("x", f(1, 3), ["N", 3])], ["y", "m"], {"w": f(3, 4), "b": f(4)})


def test_export_of_sessions_and_functions(tmp_path: Path) -> None:
    proto, x = mlp(), f(6, 3)
    path = str(tmp_path / "out.onnx")
    tw.export_onnx(tw.compile(proto), path)
    for a, b in zip(peer(path, {"x": x}), peer(proto, {"x": x}), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return tw.attention(q, k, v, causal=True) + tw.layer_norm(q) * tw.silu(q).max(axis=-1, keepdims=True)

    arrays = [f(1, 2, 4, 8) for _ in range(3)]
    tw.export_onnx(attention, path, arrays)
    names = [i.name for i in ort.InferenceSession(path).get_inputs()]
    np.testing.assert_allclose(peer(path, dict(zip(names, arrays, strict=True)))[0], tw.jit(attention)(*arrays), rtol=1e-4, atol=1e-5)
    with pytest.raises(tw.UnsupportedError, match="has no form in ONNX"):
        tw.export_onnx(lambda a: tw.linalg.eigh(a)[0], path, (f(3, 3),))


def nested(a: Any, b: Any) -> Any:
    """A loop in a branch in a scan, all of which read what is around them."""

    def step(c: Any, row: Any) -> Any:
        h = tw.cond(
            tw.sum(row) > 0,
            lambda v: tw.while_loop(lambda w: tw.sum(w) < tw.sum(b[0]) + 20, lambda w: w + tw.abs(row) + 1, v),
            lambda v: v - b[0],
            c * 0.5,
        )
        return h, tw.tanh(h) + row

    return tw.scan(step, b[1], a)


CONTROL = {
    "nested": nested,
    "reverse": lambda a, b: tw.scan(lambda c, x: (c * 0.5 + x, (tw.tanh(c), x)), b[0], a, reverse=True),
    "counted": lambda a, b: tw.scan(lambda c, _: (c * b[0], c), a, None, 4),
    "mapped": lambda a, b: tw.scan(lambda c, x: (c, tw.exp(x)), (), a)[1],
    "bounded": lambda a, b: tw.while_loop(lambda c: tw.sum(c[0]) < 1e6, lambda c: (c[0] + tw.abs(a), c[1] + 1), (a, 0), 3),
    "sorted": lambda a, b: (tw.sort(a, axis=0), tw.argsort(a, axis=1), tw.sort(b, axis=-1)),
    "slope": tw.grad(lambda a, b: tw.sum(tw.scan(lambda c, x: (tw.tanh(c * 0.5 + x), c), b[0], a)[1])),
}


@pytest.mark.parametrize("name", CONTROL)
def test_control_flow_is_exported(name: str, tmp_path: Path) -> None:
    path, arrays = str(tmp_path / "out.onnx"), [f(5, 3), f(2, 3)]
    tw.export_onnx(CONTROL[name], path, arrays)
    feed = dict(zip([i.name for i in ort.InferenceSession(path).get_inputs()], arrays, strict=False))
    want = tw.jit(CONTROL[name])(*arrays)
    leaves = torch.utils._pytree.tree_leaves(want)
    for got in (peer(path, feed), torch.utils._pytree.tree_leaves(tw.compile(path)(**feed))):
        assert len(got) == len(leaves)
        for x, y in zip(got, leaves, strict=True):
            np.testing.assert_allclose(x, np.asarray(y), rtol=1e-4, atol=1e-5)


EXPORTED = (
    *("add", "mul", "maximum", "bitwise_not", "bitwise_xor", "trunc", "exp2", "log2", "log10", "sum", "max", "any", "all", "flip", "slice"),
    *("transpose", "pad", "strided", "scatter", "scatter_add", "update_slice", "sort", "arg_sort"),
)


def is_served(case: Any) -> bool:
    """ONNX Runtime has kernels for its dtypes, and inputs show its sizes."""
    graph = case.graph()
    known = {str(d) for v in graph.inputs for d in v.shape}
    return (
        not any(v.dtype.name in ("bf16", "c64", "c128") for v in graph.inputs)
        and case.env.keys() <= known
        and not (case.op.name in ("sort", "arg_sort") and graph.inputs[0].dtype.name == "bool")
    )


@pytest.mark.parametrize("case", [c for c in cases(only=lambda op: op.name in EXPORTED) if is_served(c.values[0])])
def test_exported_ops_give_what_their_references_give(case: Any, tmp_path: Path) -> None:
    path, graph = str(tmp_path / "out.onnx"), case.graph()
    arrays = [np.asarray(a) for a in case.arrays(fresh_rng())]
    want = run(case.graph(), arrays, case.env)
    tw.export_onnx(graph, path)
    session = ort.InferenceSession(path)
    got = session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})
    for x, y in zip(got, want, strict=True):
        error = 1e-2 if x.dtype == np.float16 else 1e-4
        np.testing.assert_allclose(x, np.asarray(y), rtol=error, atol=error)
