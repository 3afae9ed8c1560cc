"""Small models, and the comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx as onnx
import onnxruntime as ort
from onnx import helper as helper
from onnx import numpy_helper as numpy_helper

import tilewright as tw


def info(name: str, array: Any, shape: Any = None) -> Any:
    a = np.asarray(array)
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape if shape is None else shape)


def model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], weights: Mapping[str, Any] | None = None, opset: int = 20,
          domains: Sequence[str] = (), **more: Any) -> Any:
    """A ModelProto; `outputs` are names or value infos."""
    outs = [helper.make_empty_tensor_value_info(o) if isinstance(o, str) else o for o in outputs]
    inits = [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "test", list(inputs), outs, initializer=inits)
    ids = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 3 if d == "ai.onnx.ml" else 1) for d in domains)]
    return helper.make_model(graph, opset_imports=ids, ir_version=10, **more)


def peer(proto: Any, feed: Mapping[str, Any]) -> list[Any]:
    """What ONNX Runtime gives."""
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1  # its threads wait for work in loops
    data = proto if isinstance(proto, (str, bytes)) else proto.SerializeToString()
    found: list[Any] = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, dict(feed))
    return found


def ours(proto: Any, feed: Mapping[str, Any]) -> list[Any]:
    out = tw.compile(proto)(*feed.values())
    return list(out) if isinstance(out, tuple) else [out]


def agree(proto: Any, feed: Mapping[str, Any], *, tol: float = 1e-5, quanta: float | None = None) -> None:
    """Our results have the dtypes and shapes of ONNX Runtime's and its numbers."""
    got, want = ours(proto, feed), peer(proto, feed)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.shape == b.shape and (a.dtype == b.dtype or a.dtype.kind == b.dtype.kind == "O")
        if b.dtype.kind in "OUS":
            assert [str(v) for v in a.reshape(-1)] == [str(v) for v in b.reshape(-1)]
        elif quanta is not None:
            assert np.max(np.abs(a.astype(np.float64) - b.astype(np.float64)), initial=0) <= quanta
        else:
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=tol,
                                       atol=tol * max(1.0, float(np.max(np.abs(b), initial=0))))


def one(op: str, arrays: Sequence[Any], *, outputs: int = 1, fixed: Sequence[int] = (), domain: str = "", version: int = 20,
        **attrs: Any) -> tuple[Any, dict[str, Any]]:
    """A model of one node and its inputs; `fixed` ones are initializers."""
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(arrays)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], name=f"the_{op}", domain=domain, **attrs)
    given = {n: a for i, (n, a) in enumerate(zip(names, arrays, strict=True)) if a is not None and i not in fixed}
    weights = {n: a for i, (n, a) in enumerate(zip(names, arrays, strict=True)) if a is not None and i in fixed}
    made = model([node], [info(n, a) for n, a in given.items()], [f"y{i}" for i in range(outputs)], weights, opset=version,
                 domains=[domain] if domain else [])
    return made, given


__all__ = ["agree", "info", "model", "one", "onnx", "ours", "peer"]
