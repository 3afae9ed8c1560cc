"""Convolutions whose programs copy what they read, against PyTorch in f64: borders, wide padding, groups, dilation, steps, any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as tf

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.dims import sym
from tilewright.core.dtypes import f16, f32, f64
from tilewright.ir.graph import Graph
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.matmul.contractions import Conv
from tilewright.target.cpu.host import host_target

from .harness import run_graph
from .interpreted import interpret_graph
from .test_templates import LEVELS, fused, t

W = sym("W", 1, 4096)

# x, w, stride, padding, dilation, groups
CASES: dict[str, tuple[Any, ...]] = {
    "3x3": ((2, 5, 4, 67), (33, 5, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    "5 taps": ((1, 7, 130), (14, 7, 5), (1,), ((2, 2),), (1,), 1),
    "1x1": ((2, 6, 5, 9), (40, 6, 1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    "1x1 in a frame": ((1, 3, 4, 5), (32, 3, 1, 1), (1, 1), ((1, 0), (2, 1)), (1, 1), 1),
    "steps and dilation": ((1, 4, 11, 40), (16, 4, 3, 2), (2, 1), ((0, 2), (3, 1)), (2, 3), 1),
    "taps far outside": ((2, 20, 9, 15), (17, 20, 3, 3), (1, 2), ((7, 7), (5, 6)), (7, 5), 1),
    "padding wider than the input": ((1, 2, 3), (20, 2, 2), (1,), ((90, 75),), (1,), 1),
    "groups": ((2, 6, 4, 20), (36, 3, 2, 3), (1, 1), ((1, 0), (0, 2)), (1, 1), 2),
    "groups of four": ((2, 20, 5, 19), (20, 4, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 5),
    "groups of two": ((1, 38, 9, 11), (38, 2, 2, 3), (2, 2), ((0, 1), (-1, 2)), (1, 2), 19),
    "groups of eight": ((2, 88, 5, 19), (88, 8, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 11),
    "groups of eight, three axes": ((1, 40, 3, 5, 18), (40, 8, 2, 3, 2), (1, 2, 3), ((1, 1), (0, 1), (1, 0)), (1, 1, 2), 5),
    "every channel by itself": ((2, 54, 4, 6, 21), (54, 1, 3, 3, 3), (1, 1, 2), ((1, 1), (1, 1), (1, 1)), (1, 1, 1), 54),
    "four results of a channel": ((2, 19, 5, 21), (76, 1, 3, 3), (1, 2), ((1, 1), (1, 1)), (1, 1), 19),
    "many results of a channel": ((1, 5, 3, 21), (160, 1, 2, 3), (1, 1), ((0, 1), (1, 1)), (1, 1), 5),
    "fewer results than channels": ((1, 76, 5, 19), (38, 4, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 19),
    "more results than channels": ((1, 38, 5, 19), (152, 2, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 19),
    "three axes": ((1, 3, 4, 5, 18), (12, 3, 2, 3, 3), (1, 2, 1), ((1, 1), (0, 1), (1, 1)), (1, 1, 2), 1),
    "few results": ((2, 37, 5, 13), (3, 37, 3, 3), (1, 2), ((1, 1), (1, 0)), (1, 1), 1),
    "few results of groups": ((1, 64, 9, 11), (8, 32, 3, 3), (1, 1), ((6, 6), (6, 6)), (6, 6), 2),
    "cropped": ((1, 4, 9, 50), (18, 4, 2, 2), (1, 1), ((-1, 0), (-2, -3)), (1, 1), 1),
    "no results": ((0, 4, 9), (16, 4, 3), (1,), ((1, 1),), (1,), 1),
}


def conv(name: str, dtype: Any = f32, size: Any = None) -> Graph:
    x, w, stride, padding, dilation, groups = CASES[name]
    op = Conv(stride=stride, padding=padding, dilation=dilation, groups=groups)
    shape = x if size is None else (*x[:-1], size)
    return fused(lambda v: F.relu(F.add(op(v[0], v[1]), v[2])), t(dtype, *shape), t(dtype, *w), t(dtype, w[0], *[1] * (len(w) - 2)))


def inputs(name: str, dtype: Any = f32) -> list[Any]:
    x, w, *_ = CASES[name]
    return [fresh_rng().standard_normal(s).astype(dtype.np) for s in (x, w, (w[0], *[1] * (len(w) - 2)))]


def wanted(name: str, values: list[Any]) -> Any:
    _, _, stride, padding, dilation, groups = CASES[name]
    x, w, bias = (torch.from_numpy(v.astype("f8")) for v in values)
    fn: Any = {1: tf.conv1d, 2: tf.conv2d, 3: tf.conv3d}[len(stride)]
    around = tf.pad(x, [p for pair in reversed(padding) for p in pair])
    return tf.relu(fn(around, w, None, stride, 0, dilation, groups) + bias).numpy()


def close(got: Any, want: Any, limit: float) -> None:
    np.testing.assert_allclose(got.astype("f8"), want, rtol=limit, atol=limit * max(1.0, float(np.abs(want).max(initial=0))))


OLDER = [(name, level) for name in ("groups", "groups of four", "groups of eight", "every channel by itself", "four results of a channel",
                                    "fewer results than channels", "cropped", "few results") for level in LEVELS[1:]]


@pytest.mark.parametrize(("name", "level"), [*((name, "avx512") for name in CASES), *OLDER])
def test_values(name: str, level: str) -> None:
    graph, values = conv(name), inputs(name)
    (got,), _ = run_graph(graph, values, level)
    (again,), _ = run_graph(graph, values, level, parts=3)
    assert got.tobytes() == again.tobytes(), "the split of the grid changed the result"
    close(got, wanted(name, values), 2e-5)


@pytest.mark.parametrize("name", ["three axes", "steps and dilation", "taps far outside", "padding wider than the input", "cropped",
                                  "groups of two", "groups of eight", "every channel by itself", "many results of a channel",
                                  "fewer results than channels", "more results than channels", "few results"])
def test_no_access_leaves_its_memory(name: str) -> None:
    values = inputs(name)
    (got,), error = interpret_graph(conv(name), values)
    assert not error.any()
    close(got, wanted(name, values), 2e-5)


@pytest.mark.parametrize("dtype,limit", [(f64, 1e-12), (f16, 4e-3)], ids=["f64", "f16"])
@pytest.mark.parametrize("name", ["3x3", "few results"])
def test_dtypes(name: str, dtype: Any, limit: float) -> None:
    values = inputs(name, dtype)
    (got,), _ = run_graph(conv(name, dtype), values)
    assert got.dtype == dtype.np
    close(got, wanted(name, values), limit)


@pytest.mark.parametrize("transposed", [False, True])
def test_few_results_of_constant_weights_run_along_channels(transposed: bool) -> None:
    """NaN and infinities stay in the results whose windows hold them."""
    layer = torch.nn.ConvTranspose2d(19, 2, 4, 2, 1) if transposed else torch.nn.Conv2d(19, 2, 3, 2, 1)
    x = torch.from_numpy(fresh_rng().standard_normal((2, 19, 9, 8)).astype("f4"))
    x[0, 3, 4, 5], x[1, 18, 0, 0] = float("nan"), float("inf")
    session = tw.compile(torch.nn.Sequential(layer, torch.nn.Sigmoid()).eval(), (x,))
    assert "sums of lanes" in str(session.report())
    with torch.no_grad():
        want = torch.sigmoid(layer.double()(x.double())).numpy()
    np.testing.assert_allclose(np.asarray(session(x)), want, atol=2e-6)


@pytest.mark.parametrize("channels", [4, 7])
def test_few_results_of_few_channels_in_short_registers(channels: int) -> None:
    """Registers of four lanes hold fewer channels than lie innermost."""
    layer = torch.nn.Conv2d(channels, 3, 3, padding=1).eval()
    x = torch.from_numpy(fresh_rng().standard_normal((2, channels, 3, 5)).astype("f4"))
    with torch.no_grad():
        found, want = tw.compile(layer, (x,), target=host_target(level="baseline"))(x), layer.double()(x.double())
    np.testing.assert_allclose(np.asarray(found), want.numpy(), atol=2e-6)


@pytest.mark.parametrize("name", ["5 taps", "3x3", "few results"])
def test_a_size_known_at_run_time_and_one_image_of_several_give_the_same_bits(name: str) -> None:
    values = inputs(name)
    (whole,), _ = run_graph(conv(name), values)
    (same,), _ = run_graph(conv(name, size=W), values)
    assert same.tobytes() == whole.tobytes()
    x, w, stride, padding, dilation, _ = CASES[name]
    op = Conv(stride=stride, padding=padding, dilation=dilation)
    plain = single(lambda g, v: F.relu(F.add(op(v[0], v[1]), v[2])), t(f32, 1, *x[1:]), t(f32, *w), t(f32, *values[2].shape))
    (one,), _ = run_graph(plain, [values[0][-1:], *values[1:]])
    assert one.tobytes() == whole[-1:].tobytes()


@pytest.mark.parametrize("channels", [6, 21])
@pytest.mark.parametrize("order", [(0, 3, 1, 2), (0, 2, 3, 1)])
def test_few_channels_are_transposed_in_registers(channels: int, order: tuple[int, ...]) -> None:
    x = torch.randn((2, 65, 37, channels) if order[1] == 3 else (2, channels, 65, 37))

    class Move(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.permute(order).contiguous()

    session = tw.compile(Move(), (x,))
    assert session.executable is not None and session.executable.launches[0].kernel.name.startswith("transpose")
    np.testing.assert_array_equal(np.asarray(session(x)), x.permute(order).numpy())


@pytest.mark.parametrize(("channels", "results"), [(24, 24), (48, 48), (6, 12), (6, 96), (24, 12)])
def test_groups_of_few_channels_fill_registers(channels: int, results: int) -> None:
    """One kernel with constant weights, too, whose channels run along registers."""
    if channels == 48 and host_target().lanes(4) < 16:
        pytest.skip("groups of eight fill the registers of this CPU")
    module = torch.nn.Conv2d(channels, results, 3, padding=1, groups=6).eval()
    x = torch.randn(1, channels, 9, 10)
    session = tw.compile(module, (x,))
    assert "channels along registers" in str(session.report())
    close(np.asarray(session(x)), module.double()(x.double()).detach().numpy(), 2e-5)
