"""Files: symbolic sizes, segments, control flow, external data, functions, bad input; sessions, functions and export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import helper, numpy_helper

import tilewright as tw
from tests.fresh import fresh_rng
from tests.onnx.models import agree, info, model, one, peer
from tilewright.core.errors import InputError


def f(*shape: int) -> Any:
    return fresh_rng().standard_normal(shape).astype(np.float32)


def mlp() -> Any:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Gelu", ["c"], ["y"]),  # noqa: E501
             helper.make_node("ReduceMean", ["y"], ["m"], keepdims=0)]  # fmt: skip
    return model(nodes, [info("x", f(1, 3), ["N", 3])], ["y", "m"], {"w": f(3, 4), "b": f(4)})


def test_symbolic_sizes_need_one_compile() -> None:
    proto = mlp()
    session = tw.compile(proto)
    assert str(session.interface.inputs[0]) == "f32[N,3]"
    for n in (1, 2, 7, 64):
        x = f(n, 3)
        for a, b in zip(session(x), peer(proto, {"x": x}), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_shapes_computed_from_sizes_stay_symbolic() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Gather", ["s", "zero"], ["n"]),
             helper.make_node("Unsqueeze", ["n", "axis"], ["nn"]), helper.make_node("Concat", ["nn", "rest"], ["t"], axis=0),
             helper.make_node("Reshape", ["x", "t"], ["r"]), helper.make_node("Transpose", ["r"], ["y"], perm=[1, 0, 2])]  # fmt: skip
    weights = {"zero": np.array(0), "axis": np.array([0]), "rest": np.array([2, -1])}
    proto = model(nodes, [info("x", f(1, 6), ["N", 6])], ["y"], weights)
    session = tw.compile(proto)
    assert isinstance(session, tw.Session)
    for n in (1, 5):
        x = f(n, 6)
        np.testing.assert_array_equal(session(x), x.reshape(n, 2, 3).transpose(1, 0, 2))


def test_a_size_that_depends_on_data_cuts_the_program_and_is_reported() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("NonZero", ["a"], ["at"], name="where"),
             helper.make_node("Transpose", ["at"], ["t"]), helper.make_node("GatherND", ["a", "t"], ["v"]), helper.make_node("Exp", ["v"], ["y"])]  # fmt: skip  # noqa: E501
    proto = model(nodes, [info("x", f(4, 5))], ["y", "at"])
    session: Any = tw.compile(proto)
    for _ in range(4):
        x = f(4, 5)
        for a, b in zip(session(x), peer(proto, {"x": x}), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    text = session.report()
    assert "host: NonZero 'where': the size of its result depends on data" in text and "segment of" in text
    assert text.count("plan") <= 3, "a count that varies becomes a symbol after its second value"


def loop(cond: str) -> Any:
    x = info("x", f(3))
    body = helper.make_graph([helper.make_node("Add", ["c", "c"], ["d"]), helper.make_node("Identity", ["d"], ["out"]),
                              helper.make_node("ReduceSum", ["d"], ["s"], keepdims=0), helper.make_node("Less", ["s", "limit"], ["ok"])
                              if cond == "data" else helper.make_node("Identity", ["go"], ["ok"])],
                             "body", [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, []), info("c", f(3))],  # noqa: E501
                             [helper.make_tensor_value_info("ok", 9, []), info("d", f(3)), *([info("out", f(3))] if cond != "while" else [])])  # fmt: skip  # noqa: E501
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "ys"] if cond != "while" else ["y"], body=body)
    return model([node], [x], list(node.output), {"n": np.array(4), "limit": np.array(100.0, np.float32)})


@pytest.mark.parametrize("cond", ["fixed", "data", "while"])
def test_loops(cond: str) -> None:
    agree(loop(cond), {"x": np.abs(f(3)) + 1})


def test_a_loop_of_fixed_rounds_is_compiled() -> None:
    assert isinstance(tw.compile(loop("fixed")), tw.Session)
    assert not isinstance(tw.compile(loop("data")), tw.Session)


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("same", [True, False])
def test_if(value: bool, same: bool) -> None:
    sides = [helper.make_graph([helper.make_node("Exp", ["x"], ["a"])], "then", [], [info("a", f(3))]),
             helper.make_graph([helper.make_node("Neg", ["x"] if same else ["z"], ["b"])], "else", [], [info("b", f(3 if same else 5))])]  # fmt: skip  # noqa: E501
    node = helper.make_node("If", ["p"], ["y"], then_branch=sides[0], else_branch=sides[1])
    proto = model([node], [info("p", np.array(True)), info("x", f(3)), info("z", f(5))], ["y"])
    agree(proto, {"p": np.array(value), "x": f(3), "z": f(5)})


@pytest.mark.parametrize("op, weights", [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_recurrent_ops_with_lengths(op: str, weights: int, direction: str) -> None:
    d, h = 2 if direction == "bidirectional" else 1, 4
    arrays = [f(5, 3, 2), f(d, weights * h, 2), f(d, weights * h, h), f(d, 2 * weights * h), np.array([5, 2, 3], np.int32), f(d, 3, h)]
    attrs: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
    made, feed = one(op, arrays, outputs=3 if op == "LSTM" else 2, fixed=(1, 2, 3), hidden_size=h, direction=direction, **attrs)
    agree(made, feed, tol=1e-4)


# --- quantized models -------------------------------------------------------------------------------------------------------------------


def test_quantized_nodes_are_within_one_quantum() -> None:
    rng = fresh_rng()
    x, w = rng.integers(0, 256, (2, 3, 7, 7)).astype(np.uint8), rng.integers(-128, 128, (4, 3, 3, 3)).astype(np.int8)
    s, z = np.array(0.02, np.float32), np.array(120, np.uint8)
    each = (np.abs(f(4)) * 0.01 + 0.001).astype(np.float32)
    bias = rng.integers(-1000, 1000, 4).astype(np.int32)
    fixed = (1, 2, 3, 4, 5, 6, 7, 8)
    agree(*one("QLinearConv", [x, s, z, w, each, np.zeros(4, np.int8), np.array(0.5, np.float32), z, bias], fixed=fixed, pads=[1, 1, 1, 1]),
          quanta=1)  # fmt: skip
    a, b = rng.integers(0, 256, (5, 8)).astype(np.uint8), rng.integers(0, 256, (8, 6)).astype(np.uint8)
    agree(*one("QLinearMatMul", [a, s, z, b, s, np.array(7, np.uint8), np.array(0.3, np.float32), z]), quanta=1)
    agree(*one("MatMulInteger", [a, b, z, np.array(7, np.uint8)]), quanta=0)
    agree(*one("ConvInteger", [x, w.view(np.uint8), z, np.array(9, np.uint8)], fixed=(1, 2, 3), group=1), quanta=0)
    agree(*one("DynamicQuantizeLinear", [f(3, 5)], outputs=3), quanta=1)


@pytest.mark.parametrize("form", ["qdq", "operator", "dynamic"])
def test_models_that_onnxruntime_quantized(form: str, tmp_path: Path) -> None:
    from onnxruntime import quantization as q

    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["a"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["a"], ["c"]),
             helper.make_node("GlobalAveragePool", ["c"], ["d"]), helper.make_node("Flatten", ["d"], ["e"]),
             helper.make_node("MatMul", ["e", "v"], ["y"])]  # fmt: skip
    proto = model(nodes, [info("x", f(2, 3, 8, 8))], [info("y", f(2, 5))], {"w": f(6, 3, 3, 3), "b": f(6), "v": f(6, 5)}, opset=17)
    before, after = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(proto, before)
    if form == "dynamic":
        q.quantize_dynamic(before, after, op_types_to_quantize=["MatMul"])
    else:
        class Reader(q.CalibrationDataReader):
            def __init__(self) -> None:
                self.rows = iter([{"x": f(2, 3, 8, 8)} for _ in range(4)])

            def get_next(self) -> Any:
                return next(self.rows, None)

        style = q.QuantFormat.QDQ if form == "qdq" else q.QuantFormat.QOperator
        q.quantize_static(before, after, Reader(), quant_format=style, per_channel=True)
    x = f(2, 3, 8, 8)
    session = tw.compile(str(after))
    got, want, exact = session(x), peer(str(after), {"x": x})[0], peer(str(before), {"x": x})[0]
    assert np.abs(got - want).max() <= 0.02 * np.abs(exact).max()
    if form == "qdq":
        assert session.model.passes["integer-products"], "products between the pairs are those of integers"


# --- external data, functions -----------------------------------------------------------------------------------------------------------


def with_external(folder: Path, location: str, array: Any) -> Path:
    tensor = onnx.TensorProto(name="w", data_type=1, dims=array.shape, data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    proto = model([helper.make_node("Add", ["x", "w"], ["y"])], [info("x", array)], ["y"])
    proto.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_float_file_is_quantized_by_us() -> None:
    """int8 products, close to ONNX Runtime's floats, at any batch; a program of several segments has no one graph to quantize."""
    rng = fresh_rng()
    w, v = ((rng.random(s) - 0.5).astype(np.float32) for s in ((32, 48), (48, 8)))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["b"]),
             helper.make_node("MatMul", ["b", "v"], ["y"])]
    batches = [(rng.random((16, 32)) - 0.5).astype(np.float32) for _ in range(3)]
    proto = model(nodes, [info("x", batches[0], ["N", 32])], ["y"], {"w": w, "v": v})
    session = tw.quantize(proto, [{"x": x} for x in batches])
    assert "int" in str(session.report()) and len(session.quantization.quantized) == 2
    for x in (batches[1], batches[2][:5]):
        want = peer(proto, {"x": x})[0]
        assert np.linalg.norm(session(x) - want) < 0.03 * np.linalg.norm(want)
    cut = model([*nodes, helper.make_node("NonZero", ["y"], ["at"])], [info("x", batches[0])], ["at"], {"w": w, "v": v})
    with pytest.raises(tw.UnsupportedError, match="several segments"):
        tw.quantize(cut, batches)


def test_external_data(tmp_path: Path) -> None:
    w = f(4, 5)
    (tmp_path / "data.bin").write_bytes(w.tobytes())
    np.testing.assert_array_equal(tw.compile(str(with_external(tmp_path, "data.bin", w)))(w), w + w)


@pytest.mark.parametrize("location, why", [("../data.bin", "outside the model's folder"), ("/etc/passwd", "outside the model's folder"),
                                           ("none.bin", "there is no such file"), ("short.bin", "which has 4")])  # fmt: skip
def test_external_data_that_is_refused(location: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(f(4, 5).tobytes())
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "short.bin").write_bytes(b"1234")
    with pytest.raises(tw.TilewrightError, match=why):
        tw.compile(str(with_external(inner, location, f(4, 5))))


def test_functions_of_the_model() -> None:
    double = helper.make_function("own", "Twice", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["t"]),
                                  helper.make_node("LeakyRelu", ["t"], ["b"])], [helper.make_opsetid("", 17)])  # fmt: skip
    proto = model([helper.make_node("Twice", ["x"], ["t"], domain="own"), helper.make_node("Twice", ["t"], ["y"], domain="own")],
                  [info("x", f(3))], ["y"], domains=["own"], functions=[double])  # fmt: skip
    agree(proto, {"x": f(3)})


@pytest.mark.parametrize("op", ["Sign", "Relu", "Round", "Abs", "Neg", "Sigmoid", "Softplus", "Erf", "IsNaN", "LeakyRelu"])
def test_numbers_at_the_edges(op: str) -> None:
    x = np.array([1, -2, 0.0, -0.0, np.inf, -np.inf, np.nan, 2.5, -0.5], np.float32)
    proto, inputs = one(op, [x])
    (want,) = peer(proto, inputs)
    np.testing.assert_allclose(tw.compile(proto)(x), want, rtol=1e-6)


# --- bad input --------------------------------------------------------------------------------------------------------------------------


def test_results_of_one_node_that_are_known() -> None:
    """Constants that take the places of a node's results, and a weight that has the name of one."""
    x, w = f(4, 3), f(4, 3)
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("TopK", ["s", "one"], ["most", "at"], axis=0),
             helper.make_node("Add", ["x", "top_k.1"], ["a"]), helper.make_node("TopK", ["a", "one"], ["v", "i"]),
             helper.make_node("Concat", ["most", "at"], ["t"], axis=0)]
    agree(model(nodes, [info("x", x)], ["t", "v", "i"], {"one": np.array([1]), "top_k.1": w}), {"x": x})


def test_everything_that_is_missing_is_one_error() -> None:
    nodes = [helper.make_node("Foo", ["x"], ["a"], name="first", domain="nowhere"), helper.make_node("Bar", ["a"], ["y"], name="second")]
    with pytest.raises(tw.UnsupportedError, match=r"2 nodes that are not supported: nowhere.Foo .*first.*; ai.onnx.Bar .*second"):
        tw.compile(model(nodes, [info("x", f(3))], ["y"], domains=["nowhere"]))


FOREVER = helper.make_graph([helper.make_node("Exp", ["c"], ["d"]), helper.make_node("Identity", ["go"], ["ok"])], "body",
                            [helper.make_tensor_value_info("i", 7, []), helper.make_tensor_value_info("go", 9, []), info("c", f(2, 3))],
                            [helper.make_tensor_value_info("ok", 9, []), info("d", f(2, 3))])


@pytest.mark.parametrize("nodes, why", [
    ([helper.make_node("Loop", ["", "", "x"], ["a"], name="endless", body=FOREVER)], "Loop 'endless'.*does not end"),
    ([helper.make_node("SequenceConstruct", ["x"], ["s"]), helper.make_node("SequenceInsert", ["s", "s"], ["a"])],
     "takes a sequence and a tensor"),
    ([helper.make_node("Add", ["x", "b"], ["a"], name="p"), helper.make_node("Neg", ["a"], ["b"], name="q")], "wait for each other"),
    ([helper.make_node("Add", ["x", "lost"], ["a"])], "'lost' is read and nothing gives it"),
    ([helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Exp", ["x"], ["a"])], "two nodes give the value 'a'"),
    ([helper.make_node("MatMul", ["x", "x"], ["a"], name="prod")], "node MatMul 'prod'"),
    ([helper.make_node("Softmax", ["x"], ["a"], name="soft", axis=9)], "axis must be in -2..1, got 9"),
    ([helper.make_node("Softmax", ["x"], ["a"], name="soft", colour=3)], "not as the standard has it"),
    ([helper.make_node("Add", ["", ""], ["a"], name="sum")], "not as the standard has it"),
    ([helper.make_node("RNN", ["x", "x", "x"], ["a"])], r"X must have three axes, got f32\[2,3\]"),
])  # fmt: skip
def test_graphs_that_make_no_sense(nodes: list[Any], why: str) -> None:
    with pytest.raises(tw.TilewrightError, match=why):
        tw.compile(model(nodes, [info("x", f(2, 3))], ["a"]))


def test_two_inputs_of_one_name_are_refused() -> None:
    with pytest.raises(tw.FormatError, match="two inputs of test have one name, got x, x"):
        tw.compile(model([helper.make_node("Neg", ["x"], ["y"])], [info("x", f(3))] * 2, ["y"]))


def test_bytes_that_are_no_model(tmp_path: Path) -> None:
    data = mlp().SerializeToString()
    for bad in (b"", b"nonsense", data[:40], data[: len(data) // 2]):
        with pytest.raises(tw.TilewrightError):
            tw.compile(bad)
    with pytest.raises(FileNotFoundError, match="onnx: could not read"):
        tw.compile(str(tmp_path / "none.onnx"))


HUGE: dict[str, Any] = {
    "expand": lambda: one("Expand", [f(1), np.array([1 << 40])], fixed=(1,)),
    "tile": lambda: one("Tile", [f(4), np.array([1 << 40])], fixed=(1,)),
    "range": lambda: one("Range", [np.array(v, np.float32) for v in (0.0, 1e12, 1e-3)], fixed=(0, 1, 2)),
    "pad": lambda: one("Pad", [f(4), np.array([1 << 50, 0])], fixed=(1,), mode="edge"),
    "resize": lambda: one("Resize", [f(1, 1, 2, 2), None, np.array([1, 1, 1e9, 1e9], np.float32)], fixed=(2,)),
    "window": lambda: one("HannWindow", [np.array(1 << 50)], fixed=(0,)),
    "pool": lambda: one("LpPool", [f(1, 1, 8, 8)], kernel_shape=[5000, 5000], pads=[5000] * 4),
    "split": lambda: one("Split", [f(3)], num_outputs=1 << 40),
    "one_hot": lambda: one("OneHot", [np.array([1, 2]), np.array([1 << 40]), f(2)], fixed=(1,)),
}


@pytest.mark.parametrize("name", HUGE)
def test_sizes_beyond_any_memory_are_errors(name: str) -> None:
    made, feed = HUGE[name]()
    with pytest.raises(tw.TilewrightError):
        tw.compile(made)(*feed.values())


@pytest.mark.parametrize("name", [b"\xff\xfe.onnx", "m\u00fc\u202e\n.onnx".encode()])
def test_names_that_are_no_text(name: bytes, tmp_path: Path) -> None:
    """A model may be anywhere, also where the program's cache names it after its file."""
    made, feed = one("Relu", [f(2, 3)])
    path = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
    Path(path).write_bytes(made.SerializeToString())
    for _ in range(2):  # compiled, then from the cache
        np.testing.assert_array_equal(tw.compile(path)(*feed.values()), np.maximum(next(iter(feed.values())), 0))


def test_a_name_that_no_file_can_have() -> None:
    with pytest.raises(tw.FileError, match="no file has such a name"):
        tw.compile("m\0.onnx")


def test_wrong_inputs_are_named() -> None:
    session: Any = tw.compile(one("NonZero", [f(2, 3)])[0])
    with pytest.raises(tw.InputError, match="input 'x0' must be f32, got int64"):
        session(np.zeros((2, 3), np.int64))
    with pytest.raises(tw.InputError, match=r"must have shape \[2,3\], got \[3, 2\]"):
        session(f(3, 2))


# --- sessions, functions, export --------------------------------------------------------------------------------------------------------


def test_inference_session() -> None:
    proto = mlp()
    session, theirs = tw.onnx.InferenceSession(proto.SerializeToString()), ort.InferenceSession(proto.SerializeToString())
    assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [(i.name, i.type, i.shape) for i in theirs.get_inputs()]
    assert [o.name for o in session.get_outputs()] == ["y", "m"]
    x = f(5, 3)
    np.testing.assert_allclose(session.run(["m"], {"x": x})[0], theirs.run(["m"], {"x": x})[0], rtol=1e-5)
    binding = session.io_binding()
    out = np.zeros((5, 4), np.float32)
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", tw.onnx.OrtValue(out))
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(out, theirs.run(["y"], {"x": x})[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(tw.InputError, match="no input 'z'"):
        session.run(None, {"z": x})
    helper.set_model_props(proto, {"character": "abc"})
    meta = tw.onnx.InferenceSession(proto).get_modelmeta()
    assert meta.custom_metadata_map == {"character": "abc"} and meta.graph_name == proto.graph.name


def test_addresses_can_be_bound() -> None:
    proto, x, out = mlp(), f(5, 3), np.zeros((5, 4), np.float32)
    session = tw.onnx.InferenceSession(proto)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, out.shape, out.ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(out, peer(proto, {"x": x})[0], rtol=1e-5, atol=1e-6)
    value = tw.onnx.OrtValue.ortvalue_from_shape_and_type([5, 3], np.float32)
    value.update_inplace(x)
    (again,) = session.run_with_ort_values(["y"], {"x": value})
    assert np.array_equal(again.numpy(), out) and again.data_type() == "tensor(float)"
    with pytest.raises(tw.UnsupportedError, match="bound on the CPU only"):
        binding.bind_input("x", "cuda", 0, np.float32, x.shape, 0)


def test_a_model_is_a_function_with_derivatives() -> None:
    proto = mlp()
    apply, params = tw.from_onnx(proto)
    assert sorted(params) == ["b", "w"]
    x = f(5, 3)
    grads = tw.grad(lambda p, v: apply(p, v)[1])(params, x)
    w, b = (torch.tensor(params[k], requires_grad=True) for k in ("w", "b"))
    want = torch.autograd.grad(torch.nn.functional.gelu(torch.tensor(x) @ w + b).mean(), (w, b))
    np.testing.assert_allclose(grads["w"], want[0].numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grads["b"], want[1].numpy(), rtol=1e-4, atol=1e-6)
    both = tw.vmap(lambda v: apply(params, v)[0])(np.stack([x, 2 * x]))
    np.testing.assert_allclose(both[1], apply(params, 2 * x)[0], rtol=1e-5, atol=1e-6)


def test_sequences_and_strings_come_and_go() -> None:
    nodes = [helper.make_node("SplitToSequence", ["x"], ["s"], axis=0), helper.make_node("SequenceAt", ["s", "k"], ["y"]),
             helper.make_node("SequenceLength", ["s"], ["n"])]  # fmt: skip
    agree(model(nodes, [info("x", f(3, 2))], ["y", "n"], {"k": np.array(-1)}), {"x": f(3, 2)})
    text = helper.make_tensor_value_info("t", 8, [2])
    made = model([helper.make_node("StringConcat", ["t", "t"], ["y"])], [text], ["y"])
    assert tw.compile(made)(np.array(["a", "ü"], object)).tolist() == ["aa", "üü"]
    assert numpy_helper is not None


def test_functions_that_double_are_refused() -> None:
    own, x, y = helper.make_opsetid("own", 1), info("x", f(2)), helper.make_tensor_value_info("y", 1, None)
    ids = [helper.make_opsetid("", 20), own]

    def calls(levels: int) -> Any:
        bodies = [[helper.make_node(f"F{k + 1}", ["a"], ["c"], domain="own"), helper.make_node(f"F{k + 1}", ["c"], ["b"], domain="own")]
                  for k in range(levels)]
        bodies.append([helper.make_node("Neg", ["a"], ["b"])])
        functions = [helper.make_function("own", f"F{k}", ["a"], ["b"], body, ids) for k, body in enumerate(bodies)]
        graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], domain="own")], "g", [x], [y])
        return helper.make_model(graph, opset_imports=ids, functions=functions)

    given = f(2)
    np.testing.assert_array_equal(tw.compile(calls(3))(given), given)
    with pytest.raises(tw.FormatError, match=r"onnx: functions make more than 15,\d00 nodes of the 5\d in the file"):
        tw.compile(calls(25))


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    os.mkfifo(tmp_path / "m.pt2")
    with pytest.raises(tw.FileError, match=r"onnx: could not read .*m\.onnx: it is no regular file"):
        tw.compile(tmp_path / "m.onnx")
    with pytest.raises(tw.CompileError, match=r"import_torch: could not read .*m\.pt2: it is no regular file"):
        tw.compile(tmp_path / "m.pt2")


def test_channels_are_joined_from_parts_of_symbolic_sizes() -> None:
    """The parts add up to a number that a convolution reads, and none of them is one."""
    n = helper.make_node
    nodes = [n("Conv", ["x", "u"], ["c"]), n("Shape", ["at"], ["k"]), n("Slice", ["c", "zero", "k", "one"], ["a"]),
             n("Slice", ["c", "k", "end", "one"], ["b"]), n("Concat", ["b", "a"], ["j"], axis=1), n("Conv", ["j", "w"], ["y"])]
    weights = {"u": f(16, 3, 3, 3), "w": f(8, 16, 3, 3), "zero": np.array([0]), "one": np.array([1]), "end": np.array([16])}
    x = f(1, 3, 12, 12)
    proto = model(nodes, [info("x", x, list(x.shape)), info("at", f(1), ["K"])], ["y"], weights)
    session = tw.compile(proto)
    for k in (1, 5, 16):
        np.testing.assert_allclose(session(x, f(k)), peer(proto, {"x": x, "at": f(k)})[0], rtol=1e-4, atol=1e-4)


def test_a_squeeze_without_axes_takes_the_sizes_of_each_call() -> None:
    proto = model([helper.make_node("Squeeze", ["x"], ["y"])], [info("x", f(1, 1, 4), ["N", 1, "K"])], ["y"], {})
    session = tw.compile(proto)
    for shape in ((1, 1, 4), (3, 1, 4), (1, 1, 1)):
        assert session(f(*shape)).shape == peer(proto, {"x": f(*shape)})[0].shape


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_recurrent_ops_read_rows_of_transposed_inputs(op: str) -> None:
    gates = 3 if op == "GRU" else 4
    node = helper.make_node(op, ["t", "w", "r", "b"], ["y"], hidden_size=5, direction="bidirectional")
    weights = {"w": f(2, 5 * gates, 6), "r": f(2, 5 * gates, 5), "b": f(2, 10 * gates)}
    x = f(3, 4, 6)
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]), node]
    agree(model(nodes, [info("x", x, ["B", "T", 6])], ["y"], weights), {"x": x})


def chosen_by_rate() -> Any:
    """Nested branches by a scalar whose results differ in their shapes, as resamplers have them."""
    def branch(rate: int, step: int, other: Any) -> list[Any]:
        end = [helper.make_tensor_value_info("end", 1, None)]
        then = helper.make_graph([helper.make_node("Slice", ["x", "zero", "far", "one", f"step{step}"], ["end"])], "then", [], end)
        rest = helper.make_graph(other, "else", [], end)
        return [helper.make_node("Equal", ["rate", f"rate{rate}"], ["is"]),
                helper.make_node("If", ["is"], ["end"], then_branch=then, else_branch=rest)]

    nodes = branch(8, 2, branch(16, 3, [helper.make_node("Identity", ["x"], ["end"])]))
    weights = {"rate8": np.array(8), "rate16": np.array(16), "zero": np.array([0]), "far": np.array([99]), "one": np.array([1]),
               "step2": np.array([2]), "step3": np.array([3])}
    return model(nodes, [info("x", f(2, 12)), info("rate", np.array(1))], ["end"], weights)


def test_branches_that_scalars_decide_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "0")
    proto = chosen_by_rate()
    session: Any = tw.compile(proto)
    walked: list[int] = []
    step = session._program._following

    def counted(*args: Any) -> Any:
        walked.append(1)
        return step(*args)

    session._program._following = counted
    for rate in (8, 16, 5, 8, 16, 5):
        x = f(2, 12)
        before = len(walked)
        out = session(x, np.array(rate))
        np.testing.assert_array_equal(out, x[:, :: {8: 2, 16: 3}.get(rate, 1)])
    assert walked and len(walked) == before  # the last three calls asked nothing


def test_a_result_that_scalars_decide_is_the_callers_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "0")
    nodes = [helper.make_node("Add", ["n", "n"], ["m"]), helper.make_node("Range", ["zero", "m", "one"], ["r"]),
             helper.make_node("Slice", ["x", "start", "mm", "start"], ["y"]), helper.make_node("Unsqueeze", ["m", "start"], ["mm"])]
    weights = {"zero": np.array(0), "one": np.array(1), "start": np.array([0])}
    session: Any = tw.compile(model(nodes, [info("x", f(9)), info("n", np.array(1))], ["y", "m", "w"], {**weights, "w": f(3)}))
    x = f(9)
    for _ in range(3):
        y, m, w = session(x, np.array(2))
        assert y.shape == (4,) and m == 4
        m += 1
        w += 1
    assert session(x, np.array(2))[1] == 4 and not np.array_equal(session(x, np.array(2))[2], w)


def test_providers_are_an_order_of_preference(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilewright.runtime.cuda import driver

    monkeypatch.setattr(driver, "available", lambda: "no driver")
    x = f(2, 3)
    data = one("Relu", [x])[0].SerializeToString()
    assert tw.onnx.get_available_providers() == ["CPUExecutionProvider"]
    lists: list[Any] = [["CUDAExecutionProvider", "CPUExecutionProvider"], [("CUDAExecutionProvider", {}), "CPUExecutionProvider"]]
    for providers in lists:
        with pytest.warns(UserWarning, match="there is no GPU that can be used here"):
            session = tw.onnx.InferenceSession(data, providers=providers)
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert np.array_equal(session.run(None, {"x0": x})[0], np.maximum(x, 0))
    with pytest.warns(UserWarning, match="there is no provider FooProvider here, only CPUExecutionProvider and CUDAExecutionProvider"):
        tw.onnx.InferenceSession(data, providers=["FooProvider"])
    with pytest.raises(InputError, match=r"inputs are given by name, \{'x0': array\}, got list"):
        session.run(None, [x])  # type: ignore[arg-type]


def _sizes(*values: int) -> Any:
    return np.array(values, np.int64)


SIZED: dict[str, tuple[list[Any], list[Any], dict[str, Any], int]] = {  # nodes, what n is from call to call, weights, plans that are tried
    "range": ([helper.make_node("Range", ["zero", "n", "one"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=1)],
              [np.array(v) for v in (3, 5, 9, 0, 7, 1, 6)], {"zero": np.array(0), "one": np.array(1)}, 5),
    "slice": ([helper.make_node("Slice", ["x", "one", "n", "one"], ["r"]), helper.make_node("Exp", ["r"], ["y"])],
              [_sizes(v) for v in (3, 5, 12, 20, 1, -2, 7)], {"one": _sizes(1)}, 5),
    "expand": ([helper.make_node("Expand", ["x", "n"], ["e"]), helper.make_node("Relu", ["e"], ["y"])],
               [_sizes(*v, 5, 12) for v in ((2,), (3,), (7,), (9,), (4,), (0,))], {}, 5),
    "reshape": ([helper.make_node("Reshape", ["x", "n"], ["e"]), helper.make_node("ReduceSum", ["e", "one"], ["y"])],
                [_sizes(5, 12), _sizes(12, 5), _sizes(60, 1), _sizes(-1, 6), _sizes(5, 12)], {"one": _sizes(1)}, 9),
}


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The number of nodes of each plan that is made; no earlier call is stored."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    from tilewright.frontend.onnx.program import Program

    found: list[int] = []
    plan = Program.plan

    def noting(self: Any, items: Any, *args: Any, **options: Any) -> Any:
        found.append(len(items))
        return plan(self, items, *args, **options)

    monkeypatch.setattr(Program, "plan", noting)
    return found


@pytest.mark.parametrize("name", SIZED)
def test_integers_that_decide_sizes_are_symbols_from_the_second_one_on(name: str, plans: list[int]) -> None:
    nodes, values, weights, most = SIZED[name]
    x = fresh_rng().standard_normal((5, 12)).astype(np.float32)
    shape = [f"n{k}" for k in range(values[0].ndim)]
    inputs = [info("n", values[0], shape)] + ([info("x", x)] if any("x" in n.input for n in nodes) else [])
    proto = model(nodes, inputs, ["y"], weights)
    session = tw.compile(proto)
    for _ in range(2):
        for n in values:
            feed = {"n": n, "x": x} if len(inputs) == 2 else {"n": n}
            np.testing.assert_allclose(session(*feed.values()), peer(proto, feed)[0], rtol=1e-5, atol=1e-6)
    assert len(plans) <= most


def test_a_cache_whose_total_length_is_an_input_has_one_plan(plans: list[int]) -> None:
    q, k, past = (np.ones(s, np.float32) for s in ((1, 1, 64), (1, 1, 32), (1, 2, 20, 16)))
    node = helper.make_node("GroupQueryAttention", ["q", "k", "k", "past", "past", "own", "total"], ["y", "a", "b"], domain="com.microsoft",
                            num_heads=4, kv_num_heads=2)
    total = np.array(5, np.int32)
    proto = model([node], [info("q", q), info("k", k), info("past", past), info("own", total.reshape(1)), info("total", total)],
                  ["y", "a", "b"], domains=["com.microsoft"])
    session = tw.compile(proto)
    for n in (5, 6, 9, 20, 6, 13):
        feed = {"q": q, "k": k, "past": past, "own": np.array([n - 1], np.int32), "total": np.array(n, np.int32)}
        for a, b in zip(session(*feed.values()), peer(proto, feed), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)
    assert len(plans) <= 4  # before a call, the first length, any other one
