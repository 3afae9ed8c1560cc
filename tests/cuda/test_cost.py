"""Predicted times of launches and the lint over them: small models for every chip, without a GPU, and a planted slow kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import graph
from tests.small_models import MODELS
from tilewright.core.dtypes import bf16, f32, i32
from tilewright.kernels.conv.cuda import hopper
from tilewright.kernels.cuda import templates
from tilewright.kernels.cuda.groups import Shared
from tilewright.kernels.matmul.matmul import MatmulTemplate
from tilewright.passes import results_in_eights
from tilewright.passes.patch_products import PatchProducts
from tilewright.runtime.cost import LIMITS, lint, numbers
from tilewright.runtime.cuda.cost import CHIPS, predict
from tilewright.runtime.cuda.profile import _kind
from tilewright.runtime.cuda.report import describe_launches
from tilewright.target.cuda.device import cuda_target


@pytest.mark.parametrize("arch", CHIPS)
@pytest.mark.parametrize("name", MODELS)
def test_no_launch_that_matters_is_predicted_slow(name: str, arch: str) -> None:
    module, x = MODELS[name]()
    module = module.eval().to(torch.bfloat16)
    session: Any = tw.compile(module, (x.to(torch.bfloat16) if x.is_floating_point() else x,), target=arch)
    launches, findings = describe_launches(session, {})
    assert findings == []
    assert all(0 < x["roofline"] <= 1 and x["predicted_us"] > 0 for x in launches)


def test_a_product_on_single_threads_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "CUDA_TEMPLATES", [Shared(MatmulTemplate()), *templates.CUDA_TEMPLATES])
    g = graph(lambda a, b: o.Matmul()(a, b), (bf16, (512, 512)), (bf16, (512, 512)))
    session: Any = tw.compile(g, target="sm_90a")
    (finding,) = session.report().data["lint"]
    assert "of the roofline" in finding and ("one thread a program" in finding or "other units of the chip" in finding)
    assert f"slow: {finding}" in str(session.report()) and "predicted" in str(session.report())


def convolved(x: tuple[int, ...], w: tuple[int, ...], stride: int) -> tuple[str, float]:
    """What the lint says, and the predicted time."""
    op = o.Conv(stride=(stride, stride), padding=((0, 0),) * 2, dilation=(1, 1))
    session: Any = tw.compile(graph(lambda a, b: op(a, b), (bf16, x), (bf16, w)), target="sm_90a")
    launches, findings = describe_launches(session, {})
    return "\n".join(findings), sum(x["predicted_us"] for x in launches)


def test_convolutions_of_few_channels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of K that are mostly empty, and windows that are gathered element by element; packed pixels and patches are faster."""
    long: tuple[Any, ...] = (32, 3, 227, 227), (64, 3, 11, 11), 4
    _, packed = convolved(*long)
    monkeypatch.setattr(hopper, "LONG", 1)
    found, us = convolved(*long)
    assert "121 steps of K, 5 % of what they multiply is asked for" in found and us > 4 * packed
    patches: tuple[Any, ...] = (32, 3, 224, 224), (768, 3, 16, 16), 16
    found, product = convolved(*patches)
    assert "instructions a thread" not in found
    monkeypatch.setattr(PatchProducts, "rules", ())
    found, us = convolved(*patches)
    assert "instructions a thread" in found and us > 2 * product


def test_windows_that_threads_gather_again_for_every_tap_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution to three results: what its blocks copy, not what is in memory; with zeros beside the results TMA copies pixels once."""
    shapes: tuple[Any, ...] = (8, 64, 384, 384), (3, 64, 3, 3), 1
    _, once = convolved(*shapes)
    monkeypatch.setattr(results_in_eights, "MOST", 0)
    found, us = convolved(*shapes)
    assert "windows are gathered 9 times over" in found and us > 2 * once


def test_parts_of_k_are_predicted_as_parts() -> None:
    """A gradient of weights shares its pixels among all SMs: a tile takes one part of them."""
    op = o.WeightGradient(kernel=(3, 3), stride=(1, 1), dilation=(4, 4), padding=((4, 4),) * 2)
    g = graph(lambda a, b: op(a, b), (bf16, (32, 64, 56, 56)), (bf16, (32, 64, 56, 56)))
    session: Any = tw.compile(g, target="sm_90a")
    (gradient,) = (x for x in describe_launches(session, {})[0] if x["kernel"].startswith("conv_window_gradient"))
    assert gradient["reason"] == "" and 5 < gradient["predicted_us"] < 30


@pytest.mark.parametrize("op, shapes, most", [
    (o.Matmul(transpose_b=True), ((64, 4096), (4096, 4096)), 30.0), (o.AttentionBackward(scale=0.125), ((4, 8, 1024, 64),) * 4, 300.0),
], ids=["few rows", "attention backward"])  # fmt: skip
def test_products_of_smaller_chips_are_predicted_on_their_tensor_cores(op: Any, shapes: tuple[Any, ...], most: float) -> None:
    session: Any = tw.compile(graph(lambda *x: op(*x), *((bf16, s) for s in shapes)), target="sm_80")
    assert sum(x["predicted_us"] for x in describe_launches(session, {})[0]) < most


def test_copies_of_tiles_bound_grouped_products() -> None:
    """Tiles of 128 x 128 are copied with 64 flops a byte: 29.4 us on an H200, of which the tensor cores take 12."""
    g = graph(lambda *v: o.GroupedGemm(transpose_b=True)(*v), (bf16, (8192, 512)), (bf16, (16, 1024, 512)), (i32, (16,)))
    session: Any = tw.compile(g, target="sm_90a")
    (product,) = (x for x in describe_launches(session, {})[0] if x["kernel"].startswith("grouped_matmul"))
    assert 25 < product["predicted_us"] < 34


def test_small_products_of_a_batch_share_an_sm() -> None:
    """A tile of 64 rows for 27, and no stages that nothing fills: 4096 blocks take few turns."""
    g = graph(lambda x: o.Matmul(transpose_b=True)(x, x), (bf16, (4096, 27, 64)))
    session: Any = tw.compile(g, target="sm_90a")
    (product,) = (x for x in describe_launches(session, {})[0] if x["kernel"].startswith("matmul"))
    assert product["predicted_us"] < 12, product


def test_what_a_prediction_is_made_of() -> None:
    """Few blocks, other units and the launch itself."""
    g = graph(lambda a, b: o.Matmul(transpose_b=True)(a, b), (f32, (4096, 4096)), (f32, (4096, 4096)))
    session: Any = tw.compile(g, target="sm_90a")
    (launch,), target = session.executable.program.launches, cuda_target("sm_90a")
    text, flops, nbytes = session.executable.code[launch.kernel.name].ptx, 2 * 4096**3, 3 * 4 * 4096**2
    assert numbers(launch.kernel) is f32
    whole = predict(launch.kernel, 1056, 384, flops, nbytes, target, text)
    assert whole.bound == "flops" and whole.share > 0.9 and whole.roofline_us == pytest.approx(flops / 50e6, rel=1e-6)
    few = predict(launch.kernel, 4, 384, flops, nbytes, target, text)
    assert few.share < LIMITS["cuda"] and few.reason == "4 blocks of 384 threads on 132 SMs"
    (found,) = lint([("big", whole, None), ("few", few, None)], LIMITS["cuda"])
    assert str(found) == f"few: {few.us:.1f} us predicted, 97 % of the call, 3 % of the roofline by flops: {few.reason}"
    assert predict(launch.kernel, 1, 384, 10, 10, target, text).bound == "launch"


def test_a_profile_tells_sizes_of_one_kernel_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two products by one kernel over other K are timed apart, two of one size together."""
    monkeypatch.setattr("tilewright.build.cuda.run_beside", lambda *_: None)

    def build(a: Any, b: Any, c: Any, d: Any) -> Any:
        times = o.Matmul(transpose_b=True)
        return [times(a, b), times(b, a), times(c, d)]

    g = graph(build, *((f32, (128, 64)),) * 2, *((f32, (128, 256)),) * 2)
    with fake_gpu(run=False):
        session: Any = tw.compile(g, target="cuda")
        session(*(np.zeros(tuple(map(int, v.type.shape)), np.float32) for v in session.model.graph.inputs))
        steps = session.schedule({}).steps
        assert len({s.launch.kernel.name for s in steps}) == 1
        assert len(steps) == 3 and len({_kind(s) for s in steps}) == 2
