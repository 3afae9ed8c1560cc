"""ONNX files with bytes changed, lost or added, and models with fields changed: an error of ours, or a session whose result has the
declared dtype. Never a crash, a hang or gigabytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

import tilewright as tw

from .engine.campaign import MB, Campaign
from .files.mutate import BYTES, NUMBERS, Change, changed_bytes, drawn

FIELDS = ("number", "text", "drop", "double", "swap", "op", "type", "shape")
OPS = ("Add", "MatMul", "Reshape", "Conv", "Loop", "If", "Gather", "Slice", "Resize", "Softmax", "Nonsense", "LSTM", "Pad", "Expand",
       "Scan", "TopK", "NonZero", "Einsum", "GridSample", "ScatterND", "QuantizeLinear", "SequenceAt", "MatMulNBits", "GRU", "Tile",
       "OneHot", "Unique", "ConvTranspose", "MaxPool", "DFT")


@dataclass(frozen=True)
class Case:
    name: str
    how: str
    changes: tuple[Change, ...]


@cache
def models() -> dict[str, bytes]:
    """Small files of several kinds."""
    from onnx import helper as h
    from onnx import numpy_helper as nh

    rng = np.random.default_rng(0)

    def f(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    def info(name: str, shape: Any, kind: int = 1) -> Any:
        return h.make_tensor_value_info(name, kind, shape)

    def made(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: dict[str, Any], **more: Any) -> bytes:
        inits = [nh.from_array(np.asarray(w), n) for n, w in weights.items()]
        graph = h.make_graph(nodes, "m", inputs, outputs, initializer=inits)
        ids = [h.make_opsetid("", 20), h.make_opsetid("ai.onnx.ml", 3), h.make_opsetid("com.microsoft", 1)]
        data: bytes = h.make_model(graph, opset_imports=ids, **more).SerializeToString()
        return data

    n = h.make_node
    body = h.make_graph([n("Add", ["c", "c"], ["d"]), n("Identity", ["go"], ["ok"])], "b",
                        [info("i", [], 7), info("go", [], 9), info("c", [3])], [info("ok", [], 9), info("d", [3])])
    sides = [h.make_graph([n(op, ["x"], ["r"])], op, [], [info("r", [3])]) for op in ("Exp", "Neg")]
    step = h.make_graph([n("Add", ["c", "x"], ["d"]), n("Mul", ["d", "x"], ["o"])], "s", [info("c", [3]), info("x", [3])],
                        [info("d", [3]), info("o", [3])])
    twice = h.make_function("own", "Twice", ["a"], ["b"], [n("Add", ["a", "a"], ["b"])], [h.make_opsetid("", 20)])
    return {
        "mlp": made([n("MatMul", ["x", "w"], ["a"]), n("Add", ["a", "b"], ["c"]), n("Relu", ["c"], ["y"])], [info("x", ["N", 4])],
                    [info("y", ["N", 3])], {"w": f(4, 3), "b": f(3)}),
        "conv": made([n("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]), n("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
                      n("Flatten", ["b"], ["y"])], [info("x", [1, 2, 6, 6])], [info("y", [1, 27])], {"w": f(3, 2, 3, 3)}),
        "shapes": made([n("Shape", ["x"], ["s"]), n("Gather", ["s", "k"], ["n"]), n("Concat", ["n", "m"], ["t"], axis=0),
                        n("Reshape", ["x", "t"], ["r"]), n("Slice", ["r", "k", "e"], ["q"]), n("Expand", ["q", "w"], ["y"])],
                       [info("x", [2, 3])], [info("y", None)],
                       {"k": np.array([0]), "m": np.array([-1]), "e": np.array([1]), "w": np.array([4, 3])}),
        "loop": made([n("Loop", ["n", "", "x"], ["y"], body=body)], [info("x", [3])], [info("y", [3])], {"n": np.array(3)}),
        "if": made([n("If", ["p"], ["y"], then_branch=sides[0], else_branch=sides[1])], [info("p", [], 9), info("x", [3])],
                   [info("y", [3])], {}),
        "function": made([n("Twice", ["x"], ["y"], domain="own")], [info("x", [3])], [info("y", [3])], {}, functions=[twice]),
        "int8": made([n("QuantizeLinear", ["x", "s", "z"], ["q"]), n("DequantizeLinear", ["q", "s", "z"], ["y"])], [info("x", [2, 3])],
                     [info("y", [2, 3])], {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}),
        "tree": made([n("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", nodes_treeids=[0, 0, 0], nodes_nodeids=[0, 1, 2],
                        nodes_featureids=[0, 0, 0], nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"], nodes_values=[0.5, 0.0, 0.0],
                        nodes_truenodeids=[1, 0, 0], nodes_falsenodeids=[2, 0, 0], target_treeids=[0, 0], target_nodeids=[1, 2],
                        target_ids=[0, 0], target_weights=[1.0, 2.0], n_targets=1)], [info("x", [4, 2])], [info("y", [4, 1])], {}),
        "recurrent": made([n("LSTM", ["x", "w", "r", "b", "n"], ["a", "h"], hidden_size=3, direction="bidirectional"),
                           n("Squeeze", ["h"], ["y"])], [info("x", ["T", 2, 4])], [info("y", None)],
                          {"w": f(2, 12, 4), "r": f(2, 12, 3), "b": f(2, 24), "n": np.array([2, 1], np.int32)}),
        "image": made([n("Resize", ["x", "", "k"], ["a"], mode="cubic"), n("Pad", ["a", "p"], ["b"], mode="reflect"),
                       n("ConvTranspose", ["b", "w"], ["c"], strides=[2, 2]), n("GridSample", ["c", "g"], ["y"])],
                      [info("x", [1, 2, 4, 5])], [info("y", None)],
                      {"k": np.array([1, 1, 1.5, 2], np.float32), "p": np.array([0, 0, 1, 0, 0, 0, 0, 2]), "w": f(2, 3, 2, 2),
                       "g": f(1, 3, 3, 2)}),
        "host": made([n("NonMaxSuppression", ["x", "s", "m", "t"], ["a"]), n("TopK", ["s", "one"], ["v", "w"]), n("NonZero", ["v"], ["b"]),
                      n("Shape", ["a"], ["c"]), n("ScatterND", ["v", "i", "u"], ["d"]), n("Concat", ["c", "e"], ["y"], axis=0)],
                     [info("x", [1, 5, 4]), info("s", [1, 1, 5])], [info("y", None, 7), info("b", None, 7), info("d", None)],
                     {"m": np.array([3]), "t": np.array([0.5], np.float32), "one": np.array([1]), "e": np.array([4]),
                      "i": np.array([[0, 0, 0]]), "u": f(1)}),
        "attention": made([n("MultiHeadAttention", ["x", "x", "x"], ["a"], domain="com.microsoft", num_heads=2),
                           n("SkipLayerNormalization", ["a", "x", "g"], ["b"], domain="com.microsoft"),
                           n("Einsum", ["b", "b"], ["c"], equation="bij,bkj->bik"), n("CumSum", ["c", "k"], ["y"])],
                          [info("x", [1, 3, 8])], [info("y", [1, 3, 3])], {"g": f(8), "k": np.array(1)}),
        "packed": made([n("MatMulNBits", ["x", "w", "s", "z"], ["a"], domain="com.microsoft", K=32, N=4, bits=4, block_size=16),
                        n("DynamicQuantizeLinear", ["a"], ["q", "t", "u"]), n("MatMulInteger", ["q", "v", "u"], ["y"])],
                       [info("x", ["N", 32])], [info("y", ["N", 2], 6)],
                       {"w": rng.integers(0, 256, (4, 2, 8)).astype(np.uint8), "s": f(4, 2), "z": np.full((4, 1), 136, np.uint8),
                        "v": rng.integers(-9, 9, (4, 2)).astype(np.int8)}),
        "cached": made([n("GroupQueryAttention", ["x", "", "", "p", "p", "e", "t", *[""] * 5, "s", "s"], ["a", "q"], domain="com.microsoft",
                          num_heads=2, kv_num_heads=1, k_quant_type="PER_TENSOR", v_quant_type="PER_TENSOR", local_window_size=4,
                          sliding_window_cache=1), n("SparseAttention", ["a", "a", "a", "c", "c", "r", "l", "t", "k"], ["y", "v", "w"],
                                                     domain="com.microsoft", num_heads=2, kv_num_heads=2, sparse_block_size=16)],
                       [info("x", [1, 2, 64]), info("p", [1, 1, 5, 16], 3)], [info("y", None), info("q", None, 3)],
                       {"e": np.array([5], np.int32), "t": np.array([6], np.int32), "s": np.array([0.1], np.float32),
                        "c": f(1, 2, 32, 16), "r": np.array([[0, 1, 3]], np.int32), "l": np.array([[0, 0, 1]], np.int32),
                        "k": np.array([6], np.int32)}),
        "hybrid": made([n("CausalConvWithState", ["x", "w"], ["a", "b"], domain="com.microsoft", activation="silu"),
                        n("LinearAttention", ["a", "a", "a", "", "g", "g"], ["c", "d"], domain="com.microsoft", q_num_heads=2,
                          kv_num_heads=2), n("UnfoldTensor", ["c"], ["u"], domain="com.microsoft", size=2),
                        n("GatedRMSNorm", ["u", "n", "u"], ["y"], domain="com.microsoft")],
                       [info("x", [1, 4, 4])], [info("y", None), info("b", None), info("d", None)],
                       {"w": f(4, 1, 3), "g": f(1, 4, 2), "n": f(2)}),
        "scan": made([n("Scan", ["z", "x"], ["c", "y"], body=step, num_scan_inputs=1)], [info("x", ["T", 3])],
                     [info("y", ["T", 3])], {"z": f(3)}),
        "sequence": made([n("SplitToSequence", ["x", "k"], ["s"], axis=0), n("SequenceAt", ["s", "o"], ["a"]),
                          n("ConcatFromSequence", ["s"], ["b"], axis=1), n("STFT", ["w", "h", "", "l"], ["f"]),
                          n("ReduceSum", ["f"], ["g"], keepdims=0), n("Mul", ["b", "g"], ["y"])],
                         [info("x", [4, 3]), info("w", [1, 32, 1])], [info("y", None), info("a", None)],
                         {"k": np.array(2), "o": np.array(1), "h": np.array(8), "l": np.array(16)}),
    }


def draw(rng: np.random.Generator) -> Case:
    name = str(rng.choice(sorted(models())))
    how = str(rng.choice(["bytes", "fields"]))
    return Case(name, how, drawn(rng, BYTES if how == "bytes" else FIELDS))


def holders(message: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """(message, field) of everything in a protocol buffer."""
    found = []
    for field, value in message.ListFields():
        found.append((message, field))
        repeated = isinstance(value, (list, tuple)) or type(value).__name__.startswith("Repeated")
        for inner in list(value) if repeated else [value]:
            if hasattr(inner, "ListFields") and depth < 6:
                found += holders(inner, depth + 1)
    return found


def changed_fields(data: bytes, changes: tuple[Change, ...]) -> bytes:
    """The same model with other numbers, names, ops, types and sizes."""
    import onnx

    model = onnx.ModelProto()
    model.ParseFromString(data)
    for c in changes:
        every = holders(model)
        if not every:
            break
        message, field = every[c.at % len(every)]
        try:
            _change(model, message, field, c)
        except (TypeError, ValueError, AttributeError, OverflowError, IndexError):
            continue
    out: bytes = model.SerializeToString()
    return out


def _change(model: Any, message: Any, field: Any, c: Change) -> None:
    value = getattr(message, field.name)
    number = NUMBERS[c.value % len(NUMBERS)]
    if c.how == "op" and model.graph.node:
        model.graph.node[c.at % len(model.graph.node)].op_type = OPS[c.value % len(OPS)]
    elif c.how == "type" and model.graph.input:
        model.graph.input[c.at % len(model.graph.input)].type.tensor_type.elem_type = c.value % 30
    elif c.how == "shape" and model.graph.initializer:
        tensor = model.graph.initializer[c.at % len(model.graph.initializer)]
        tensor.dims.append(int(number)) if c.value % 2 else tensor.dims.__setitem__(0, int(number))
    elif c.how == "drop":
        message.ClearField(field.name)
    elif c.how in ("double", "swap") and hasattr(value, "__len__") and not isinstance(value, (str, bytes)):
        if c.how == "double":
            value.append(value[c.value % len(value)])
        else:
            a, b = c.value % len(value), c.at % len(value)
            value[a], value[b] = value[b], value[a]
    elif isinstance(value, (str, bytes)):
        texts = ["", "x", "y", "nowhere", "\0", "../../x", "9" * 300]
        text = texts[c.value % len(texts)]
        setattr(message, field.name, text if isinstance(value, str) else text.encode())
    elif isinstance(value, (int, float)):
        setattr(message, field.name, type(value)(number))
    elif hasattr(value, "__setitem__") and len(value):
        at = c.value % len(value)
        value[at] = type(value[at])(number) if isinstance(value[at], (int, float)) else "x"


def run(case: Case) -> None:
    data = models()[case.name]
    data = changed_bytes(data, case.changes) if case.how == "bytes" else changed_fields(data, case.changes)
    try:
        session: Any = tw.compile(data)
        inputs = tw.onnx.InferenceSession(data).get_inputs()
        kinds = {"float": np.float32, "int64": np.int64, "bool": np.bool_}
        arrays: list[Any] = []
        for i in inputs:
            kind = kinds.get(i.type.removeprefix("tensor(").removesuffix(")"))
            shape = [d if isinstance(d, int) else 2 for d in i.shape]
            if kind is None or any(not 0 <= d <= 64 for d in shape) or len(shape) > 6:
                return
            arrays.append(np.ones(shape, kind))
        outputs = session.interface.outputs if hasattr(session, "interface") else ()
        declared = sum(t.nbytes if isinstance(t.nbytes, int) else 0 for t in outputs)
        if getattr(session, "executable", None) is not None and not session.interface.symbols:
            declared += session.executable.arena_bytes({})
        if declared > DECLARED:
            return  # the file asks for results, or values on the way to them, of this size
        if case.name not in ("loop", "scan"):  # a changed number of rounds may be a program that runs for years
            session(*arrays)
    except tw.TilewrightError:
        return


DECLARED = 256 * MB  # results beyond it are not made: what is looked for is memory that no file asks for
CAMPAIGN = Campaign(draw=draw, check=run, quick=25, memory=1536 * MB, keep=("name", "how"))
