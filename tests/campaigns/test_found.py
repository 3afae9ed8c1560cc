"""What long campaigns found, as tests of their own."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.ops.structure import ConstantData, Seen

from .engine.campaign import Campaign
from .files.mutate import Change
from .llm_gguf import CAMPAIGN as GGUF
from .llm_gguf import Edit as FileEdit
from .llm_gguf import File
from .onnx_files import CAMPAIGN as ONNX
from .onnx_files import Case as OnnxCase
from .patterns import CAMPAIGN as PATTERNS
from .patterns import Case, Edit
from .scene_files import CAMPAIGN as SCENES
from .scene_files import Case as SceneCase


def check_case(campaign: Campaign, case: Any) -> None:
    """What the campaign asserts of every case."""
    campaign.run(case)


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
