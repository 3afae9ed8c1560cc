"""What long campaigns found, as tests of their own."""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright import ops as o
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops.structure import ConstantData, Seen

from .engine.campaign import Campaign
from .files.mutate import Change
from .files.sessions import file_bytes, forged
from .llm_gguf import CAMPAIGN as GGUF
from .llm_gguf import Edit as FileEdit
from .llm_gguf import File
from .onnx_files import CAMPAIGN as ONNX
from .onnx_files import Case as OnnxCase
from .patterns import CAMPAIGN as PATTERNS
from .patterns import Case, Edit
from .saved_graphs import CAMPAIGN as SAVED_GRAPHS
from .saved_graphs import Case as GraphCase
from .scene_files import CAMPAIGN as SCENES
from .scene_files import Case as SceneCase


def check_case(campaign: Campaign, case: Any) -> None:
    """What the campaign asserts of every case."""
    campaign.run(case)


class Module(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -7.0, 6.0]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(
    "function", [tw.sign, lambda x: x // 3, lambda x: x // -3, lambda x: x % 3, lambda x: x % -3, lambda x: 7 // x],
    ids=["sign", "//3", "//-3", "%3", "%-3", "7//"],
)  # fmt: skip
def test_traced_functions_have_the_special_cases_of_arrays(function: Any, dtype: Any) -> None:
    x = np.array(SPECIAL, dtype)
    got, want = tw.jit(function)(x), np.asarray(function(tw.asarray(x)))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want) & ~np.isnan(want) | np.signbit(got) & np.isnan(want))


def test_a_remainder_of_zero_keeps_its_derivative() -> None:
    slope: Any = tw.grad(lambda x: tw.sum(x % 3.0))(np.array([3.0, -0.0, 1.0, -6.0], np.float32))
    np.testing.assert_array_equal(slope, np.ones(4))


BOUNDS = [(0.0, 1.0), (-0.0, 1.0), (-1.0, -0.0), (-1.0, 0.0), (0.0, None), (None, -0.0)]


@pytest.mark.parametrize("low, high", BOUNDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_clipped_zero_keeps_its_sign(low: float | None, high: float | None, dtype: Any) -> None:
    x = np.array([0.0, -0.0, np.nan, -3.0, 3.0] * 15, dtype)
    want = torch.clamp(torch.from_numpy(x), low, high).numpy()
    for got in (tw.clip(x, low, high), tw.clip(tw.asarray(x), low, high), tw.jit(lambda x: tw.clip(x, low, high))(x)):
        np.testing.assert_array_equal(np.asarray(got), want)
        np.testing.assert_array_equal(np.signbit(np.asarray(got))[~np.isnan(x)], np.signbit(want)[~np.isnan(x)])


def test_activations_that_cut_keep_the_sign_of_zero() -> None:
    x = torch.tensor([0.0, -0.0, -1.0, 7.0])
    functions = torch.nn.functional
    for torchs, ours in ((functions.relu6, tw.relu6), (lambda x: functions.hardtanh(x, 0, 1), lambda x: tw.hardtanh(x, 0, 1)),
                         (torch.relu, tw.relu)):
        want = torch.signbit(torchs(x)).tolist()
        assert np.signbit(tw.jit(ours)(x.numpy())).tolist() == want
        assert torch.signbit(tw.compile(Module(torchs), (x,))(x)).tolist() == want


def test_onnx_clip_keeps_the_sign_of_zero() -> None:
    import onnxruntime
    from onnx import TensorProto, helper

    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", [4]), ("l", []), ("h", []), ("y", [4]))]
    graph = helper.make_graph([helper.make_node("Clip", ["x", "l", "h"], ["y"])], "g", info[:3], info[3:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    for low, high in ((0.0, 1.0), (-0.0, 1.0), (-1.0, -0.0)):
        feed = {"x": np.array([0.0, -0.0, -7.0, 7.0], np.float32), "l": np.array(low, np.float32), "h": np.array(high, np.float32)}
        want = onnxruntime.InferenceSession(model).run(None, feed)[0]
        assert np.signbit(tw.onnx.InferenceSession(model).run(None, feed)[0]).tolist() == np.signbit(want).tolist()


INDEX_NODES: list[tuple[str, dict[str, Any], list[int], Any]] = [
    ("GatherND", {}, [2, 3], [[0, 5], [1, -4], [-3, 5]]), ("GatherND", {"batch_dims": 1}, [2, 3], [[3], [-4]]),
    ("ScatterND", {}, [2, 3], [[0, 5], [1, -4], [-3, 5]]), ("ScatterND", {"reduction": "mul"}, [2, 3], [[0, 5], [1, -4]]),
    ("ScatterElements", {"axis": 1, "reduction": "max"}, [2, 3], [[3], [-4]]),
    ("ScatterElements", {"axis": 1, "reduction": "mul"}, [2, 3], [[3], [-4]]),
]  # fmt: skip


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("node, attributes, shape, bad", INDEX_NODES)
def test_an_index_beyond_its_axis_is_no_index_of_another_row(node: str, attributes: Any, shape: Any, bad: Any, constant: bool) -> None:
    from onnx import TensorProto, helper, numpy_helper

    for index in bad:
        ids = np.array([[0] * len(index), index] if node != "ScatterElements" else [index, [0]])
        updates = np.ones(ids.shape if node == "ScatterElements" else len(ids), np.float32)
        names = ["x", "i", *(["u"] if node != "GatherND" else [])]
        given = {"x": np.ones(shape, np.float32), "i": ids, "u": updates}
        types = {"x": TensorProto.FLOAT, "i": TensorProto.INT64, "u": TensorProto.FLOAT}
        fixed = [numpy_helper.from_array(ids, "i")] if constant else []
        inputs = [helper.make_tensor_value_info(n, types[n], given[n].shape) for n in names if n != "i" or not constant]
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph([helper.make_node(node, names, ["y"], **attributes)], "g", inputs, [out], fixed)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8).SerializeToString()
        with pytest.raises(tw.TilewrightError, match="index out of range"):
            tw.onnx.InferenceSession(model).run(None, {i.name: given[i.name] for i in inputs})


def test_integers_are_clipped_by_bounds_beyond_their_dtype() -> None:
    x = tw.asarray(np.array([-128, -1, 0, 127], np.int8))
    assert np.asarray(tw.clip(x, -1000, 3)).tolist() == [-128, -1, 0, 3]
    assert np.asarray(tw.clip(x, 1000)).tolist() == [127] * 4
    with pytest.raises(tw.TilewrightError, match="clip: a bound of int8 numbers must be a number, got nan"):
        tw.clip(x, float("nan"))


@pytest.mark.parametrize("key", ["[:, i, j]", "[i, :, j]", "[:, i, :, j]", "[1, :, k]", "[k, :, 0, j]", "[i, None, k]"])
def test_traced_indices_pick_what_numpy_picks(key: str) -> None:
    x, i, j, k = np.random.default_rng(0).random((3, 4, 5, 2), np.float32), np.int32(1), np.int32(0), np.array([[0], [1]])

    def pick(x: Any, i: Any, j: Any, k: Any) -> Any:
        return eval(f"x{key}", {"x": x, "i": i, "j": j, "k": k})

    np.testing.assert_array_equal(tw.jit(pick)(x, i, j, k), pick(x, np.array(i), np.array(j), k))


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "float64"])
def test_rms_norm_without_epsilon_is_pytorchs(kind: str) -> None:
    """PyTorch adds the epsilon of the dtype it computes in: of small floats that is f32."""
    x = torch.tensor([[1e-3, -2e-3, 5e-4], [0.3, 0.1, -0.2]], dtype=getattr(torch, kind))
    module = torch.nn.RMSNorm(3, dtype=x.dtype).eval()
    with torch.no_grad():
        torch.testing.assert_close(tw.compile(module, (x,))(x), module(x))


def test_bytes_of_a_strided_constant_are_seen_as_numbers() -> None:
    rows = np.arange(64, dtype=np.uint8).reshape(4, 16)[:, :8]
    data = ConstantData(rows, "rows")
    from tilewright.core.dtypes import f32
    from tilewright.ir.types import TensorType

    np.testing.assert_array_equal(Seen(data, TensorType(f32, (4, 2))).array, np.ascontiguousarray(rows).view(np.float32))


def test_guarded_attention_with_an_infinite_bias() -> None:
    check_case(PATTERNS, Case(rule=769, probe=0, variant=32, edits=(Edit(kind="constant", at=0, how=10922),), seed=0))


@pytest.mark.parametrize("at, value", [(986887889, 1080688365), (1799113197, 220471144)], ids=["negative", "huge"])
def test_shapes_of_onnx_files(at: int, value: int) -> None:
    check_case(ONNX, OnnxCase(name="shapes", how="bytes", changes=(Change(at=at, how="byte", value=value),)))


def test_steps_beyond_64_bits_in_onnx_files() -> None:
    changes = Change(at=111979764, how="number", value=271066804), Change(at=371660464, how="number", value=0)
    check_case(ONNX, OnnxCase(name="conv", how="fields", changes=changes))


def test_a_matrix_of_integers_in_a_gguf_file() -> None:
    check_case(GGUF, File(kind="mistral", edits=(FileEdit(op="type", at=0, how=354511106),), whole=True))


@pytest.mark.parametrize(
    "case",
    [("colmap_text", Change(1460440732, "insert", 449358566)), ("transforms", Change(2015289760, "", 221682897)),
     ("transforms", Change(1595989169, "near", 1711730084))], ids=["absolute", "far", "root"],
)  # fmt: skip
def test_scene_files(case: tuple[str, Change]) -> None:
    check_case(SCENES, SceneCase(kind=case[0], changes=(case[1],), drawn=False))


def test_the_machine_is_measured_under_checks() -> None:
    from tilewright.runtime.machine import _measure
    from tilewright.target.cpu.host import host_target

    assert _measure(dataclasses.replace(host_target(), checks=True), 1).flops > 0


@pytest.mark.parametrize("table", [np.zeros(4, np.int64), np.full(3, 7), np.ones((2, 2), np.bool_)], ids=str)
def test_indices_into_a_table_of_one_number_are_checked(table: Any) -> None:
    take = tw.jit(lambda i: tw.take(table, i, axis=0))
    np.testing.assert_array_equal(take(np.array([1, 0])), table[:2])
    with pytest.raises(tw.ExecutionError, match="take: index out of range, got 9 at position 1"):
        take(np.array([0, 9]))


def test_index_copy_refuses_negative_indices_as_pytorch_does() -> None:
    x, i, rows = torch.zeros(4, 3), torch.tensor([3, 0]), torch.ones(2, 3)
    copy = tw.compile(Module(lambda given: torch.index_copy(given[0], 0, given[1], given[2])), ([x, i, rows],))
    assert torch.equal(copy([x, i, rows]), torch.index_copy(x, 0, i, rows))
    with pytest.raises(tw.ExecutionError, match="index_copy: index out of range, got -1 at position 1; must be in 0"):
        copy([x, torch.tensor([3, -1]), rows])


@pytest.mark.parametrize("count, replacement", [(3, False), (1, False), (7, True)])
def test_multinomial_refuses_what_is_no_distribution(count: int, replacement: bool) -> None:
    weights = torch.tensor([[1.0, 0.0, 2.0, 3.0]]).repeat(3, 1)
    draw = tw.compile(Module(lambda w: torch.multinomial(w, count, replacement)), (weights,))
    assert set(draw(weights).flatten().tolist()) <= {0, 2, 3}
    for bad in (float("nan"), float("inf"), -1.0):
        wrong = weights.clone()
        wrong[1, 2] = bad
        with pytest.raises(tw.ExecutionError, match="multinomial: weights must be finite, not negative and not all 0, got others in row 1"):
            draw(wrong)
    with pytest.raises(tw.ExecutionError, match="multinomial: weights must be finite"):
        draw(torch.zeros(3, 4))


def test_lazy_functions_of_one_operand_twice() -> None:
    for dtype in (np.float32, np.int64, np.uint8):
        a: Any = np.arange(6).astype(dtype)
        with tw.lazy():
            x = tw.asarray(a)
            made = [x + x, x - x, x < x, tw.maximum(x, x), x * 0 + (x - x), tw.exp(tw.asarray(a.astype(np.float32)) * 0)]
        wanted = [a + a, a - a, a < a, a, a * 0, np.ones(6, np.float32)]
        for ours, theirs in zip(made, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(ours), theirs, strict=True)


def test_views_of_rank_0_are_arrays() -> None:
    """NumPy gives a scalar for some of them, which native code took for an array's header."""
    x = tw.asarray(np.array(5, np.uint8))
    for y in (tw.flip(x), tw.where(tw.flip(x) > 0, x, tw.flip(x)), tw.roll(x, 1), tw.squeeze(x), tw.flip(tw.flip(x))):
        np.testing.assert_array_equal(np.asarray(y + x), np.array(10, np.uint8), strict=True)


def test_a_pool_of_no_channels_in_a_file() -> None:
    """Blocks of channels were counted by dividing by none."""
    changes = (Change(at=1490132890, how="drop", value=0), Change(at=0, how="shape", value=0))
    check_case(ONNX, OnnxCase(name="conv", how="fields", changes=changes))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("weight", ["float16", "bfloat16", "float32", "float64"])
def test_an_rms_norm_with_a_weight_of_another_dtype(dtype: str, weight: str) -> None:
    """It was refused: operands must have one dtype."""
    module = torch.nn.RMSNorm(8).to(getattr(torch, weight))
    with torch.no_grad():
        module.weight.copy_(torch.randn(8))
    x = torch.randn(4, 8).to(getattr(torch, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has no fused form of it, and says so
        want, got = module(x), tw.compile(module, (x,))(x)
    assert got.dtype == want.dtype
    unit = max(torch.finfo(got.dtype).eps, torch.finfo(torch.float32).eps if dtype != "float64" else 0.0)
    torch.testing.assert_close(got, want, rtol=4 * unit, atol=4 * unit)


def test_padding_that_is_added_back_in_a_file() -> None:
    """A graph in a file is not taken apart again: the kernel for padding wrote beyond the smaller result."""
    check_case(SAVED_GRAPHS, GraphCase(name="pad_edges", sample=20, fit=False, changes=()))


@pytest.mark.parametrize("name", ["std", "pad_edges"])
def test_graphs_in_files_are_taken_apart_again(name: str, tmp_path: Path) -> None:
    """Ops that only passes take apart, in the graph of a file, have no kernel, or one that relies on the passes."""
    g = Graph(name)
    x = g.input(TensorType(f32, (3, 5)), "x")
    g.outputs = [o.Std(axes=(1,))(x) if name == "std" else o.PadEdges(lo=(0, 1), hi=(0, 1), mode="reflect", back=True)(x)]
    path = tmp_path / "forged.tw"
    path.write_bytes(file_bytes(*forged(g)))
    given = fresh_rng().standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_allclose(tw.load(path)(given), g.outputs[0].node.op.ref(given), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["sum", "prod", "any", "all"])
def test_columns_of_no_rows(name: str) -> None:
    """The tree over a few rows had no first one, and tiles of no columns never ended."""
    for shape in ((0, 0), (0, 5), (0, 3, 40)):
        x = np.zeros(shape, np.float32)
        np.testing.assert_array_equal(tw.jit(lambda v: getattr(tw, name)(v, axis=0))(x), getattr(np, name)(x, axis=0))
        assert tw.jit(lambda v: tw.softmax(v, axis=0))(x).shape == shape
