"""Convolution and pooling on the CUDA target without a GPU: windows, packed pixels and weights through the emulator and the model of the
tensor cores, against PyTorch."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph, program, reference
from tests.fresh import fresh_rng
from tests.ops.checks import Case, assert_close, cases
from tilewright.build.packing import pack_constants, unpack
from tilewright.core.dtypes import DType, bf16, f16, f32
from tilewright.ir.interp import run
from tilewright.kernels.conv.cuda import phases
from tilewright.kernels.conv.cuda.kernels import ConvKernel, HaloKernel, PatchKernel
from tilewright.kernels.cuda.kernel import BlockKernel, GemmKernel
from tilewright.kernels.cuda.tiled import TiledKernel
from tilewright.kernels.launch import Packed
from tilewright.ops import functions as F_
from tilewright.ops.matmul.contractions import Conv
from tilewright.passes.base import Log
from tilewright.passes.results_in_eights import ResultsInEights
from tilewright.target.cuda.code import shared_bytes
from tilewright.target.cuda.device import cuda_target

# batch, channels, height, width, results, taps, stride, padding, dilation
WINDOWS = [
    (2, 16, 5, 6, 8, (1, 1), (1, 1), (0, 0), (1, 1)), (2, 8, 6, 5, 24, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 72, 5, 7, 8, (3, 2), (2, 1), (1, 0), (1, 1)), (1, 13, 7, 7, 8, (2, 3), (1, 2), (0, 2), (2, 1)),
    (2, 3, 13, 15, 8, (7, 7), (2, 2), (3, 3), (1, 1)), (1, 5, 9, 6, 16, (2, 3), (3, 1), (0, 1), (1, 1)),
    (1, 3, 6, 6, 8, (3, 3), (1, 1), (1, 1), (1, 1)), (2, 3, 35, 39, 24, (11, 11), (4, 4), (2, 2), (1, 1)),
    (1, 2, 9, 25, 16, (3, 19), (1, 2), (1, 9), (1, 1)), (1, 4, 17, 14, 8, (9, 9), (1, 1), (4, 4), (1, 1)),
    (1, 16, 6, 6, 8, (1, 1), (2, 2), (0, 0), (1, 1)),
]  # fmt: skip
# ... sizes as a tuple, groups last
GROUPED: list[tuple[Any, ...]] = [
    (1, 128, (5, 6), 384, (3, 2), (1, 2), (1, 0), (2, 1), 2), (2, 192, (4, 3), 192, (1, 1), (1, 1), (0, 0), (1, 1), 3),
    (1, 40, (3, 5, 4), 24, (2, 3, 1), (1, 2, 1), (1, 1, 0), (1, 1, 1), 1),
    (2, 128, (3, 2, 4), 128, (2, 1, 3), (2, 1, 1), (0, 0, 2), (1, 1, 2), 2),
    (1, 32, (2, 3, 4), 8, (1, 1, 1), (1, 1, 1), (0, 0, 0), (1, 1, 1), 1),
    (2, 72, (4, 8, 7), 24, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
]  # fmt: skip


# chip, batch, channels, sizes, results, taps, stride, padding, dilation, groups
GATHERED: list[tuple[Any, ...]] = [
    ("sm_80", 2, 8, (6, 5), 24, (3, 3), (1, 1), (1, 1), (1, 1), 1), ("sm_90a", 1, 32, (5, 7), 20, (3, 2), (2, 1), (1, 0), (1, 1), 2),
    ("sm_120", 1, 13, (4, 5, 6), 8, (2, 3, 2), (1, 2, 1), (0, 1, 1), (2, 1, 1), 1),
    ("sm_80", 2, 36, (9,), 30, (3,), (2,), (1,), (1,), 3), ("sm_90a", 1, 24, (3, 4, 3), 70, (1, 2, 3), (1, 1, 2), (1, 0, 1), (1, 1, 1), 1),
    ("sm_120", 2, 72, (9, 9), 130, (1, 1), (1, 1), (0, 0), (1, 1), 1), ("sm_80", 1, 3, (15, 14), 8, (7, 7), (2, 2), (3, 3), (1, 1), 1),
    ("sm_90a", 1, 8, (3, 150), 8, (1, 2), (1, 1), (0, 0), (1, 130), 1),
]  # fmt: skip
# ... of which pixels are copied once
HALO: list[tuple[Any, ...]] = [
    ("sm_90a", 1, 32, (5, 7), 32, (3, 2), (2, 1), (1, 0), (1, 1), 2), ("sm_120", 1, 72, (6, 20), 48, (3, 3), (2, 2), (1, 1), (2, 1), 3),
    ("sm_90a", 2, 64, (9, 5), 64, (3, 3), (1, 1), (1, 1), (1, 1), 16), ("sm_80", 2, 36, (9,), 24, (3,), (2,), (1,), (1,), 3),
    ("sm_80", 2, 16, (5, 6), 32, (3, 3), (1, 1), (1, 1), (1, 1), 2), ("sm_90a", 1, 80, (4, 5), 32, (2, 3), (1, 1), (0, 2), (1, 1), 2),
    ("sm_90a", 1, 16, (7, 4), 32, (5, 5), (1, 1), (2, 2), (1, 1), 2), ("sm_90a", 1, 64, (6, 6), 64, (3, 3), (1, 1), (1, 1), (1, 1), 2),
    ("sm_80", 2, 64, (9, 5), 64, (3, 3), (1, 1), (1, 1), (1, 1), 8),
]  # fmt: skip
# ... every channel by itself
DEPTHWISE: list[tuple[Any, ...]] = [
    ("sm_90a", 2, 16, (5, 7), 16, (3, 3), (1, 1), (1, 1), (1, 1), 16), ("sm_80", 1, 24, (6, 9), 24, (3, 2), (2, 1), (1, 0), (1, 2), 24),
    ("sm_120", 1, 10, (9,), 10, (3,), (2,), (1,), (1,), 10),
    ("sm_90a", 1, 264, (3, 4, 5), 264, (3, 1, 2), (1, 1, 2), (1, 0, 0), (1, 1, 1), 264),
]  # fmt: skip


def numbers(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.np)


def wide(x: Any) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64))


TF32 = ("tf32-conv",)


@pytest.mark.parametrize("constant, dtype", [(False, f16), (True, bf16), (True, f32)], ids=["weights given", "weights constant", "tf32"])
@pytest.mark.parametrize("case", WINDOWS, ids=str)
def test_windows_on_the_tensor_cores(case: tuple[Any, ...], constant: bool, dtype: DType, rng: np.random.Generator) -> None:
    n, c, h, w, out, taps, stride, padding, dilation = case
    x, k = numbers(rng, dtype, n, c, h, w), numbers(rng, dtype, out, c, *taps)
    op = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation)
    if constant:
        g = graph(lambda v: op(v, v.node.graph.constant(k, "w")), (dtype, x.shape))
    else:
        g = graph(lambda v, u: op(v, u), (dtype, x.shape), (dtype, k.shape))
    emulated = Emulated(g, features=TF32)
    assert sum(isinstance(launch.kernel, GemmKernel) for launch in emulated.program.launches) == 1
    (got,) = emulated(x) if constant else emulated(x, k)
    want = F.conv2d(wide(x), wide(k), None, stride, padding, dilation).numpy()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("case", [
    (2, 64, (5, 7), 72, (3, 3), (1, 1), (1, 1)),
    (2, 72, (5, 7), 40, (1, 1), (0, 0), (1, 1)), (2, 20, (5, 7), 56, (1, 1), (0, 0), (1, 1)),
    (2, 24, (9,), 16, (1,), (0,), (1,)), (1, 16, (6, 5), 40, (2, 3), (0, 2), (2, 1)),
    (1, 64, (3, 4, 5), 32, (3, 3, 2), (1, 1, 0), (1, 1, 1)),
], ids=str)  # fmt: skip
def test_transposed_windows_with_steps_of_one_are_plain_ones(case: tuple[Any, ...], dtype: DType, rng: np.random.Generator) -> None:
    """As gradients of images are, whose weights come with the call."""
    n, c, sizes, out, taps, padding, dilation = case
    x, k = numbers(rng, dtype, n, c, *sizes), numbers(rng, dtype, c, out, *taps)
    op = o.Conv(stride=(1,) * len(taps), padding=tuple((p, p) for p in padding), dilation=dilation, transposed=True)
    emulated = Emulated(graph(lambda v, u: op(v, u), (dtype, x.shape), (dtype, k.shape)), features=TF32)
    assert sum(isinstance(launch.kernel, GemmKernel) for launch in emulated.program.launches) == 1
    (got,) = emulated(x, k)
    back: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(taps) - 1]
    want = back(wide(x), wide(k), None, 1, padding, 0, 1, dilation).numpy()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


@pytest.mark.parametrize("case", [
    (2, 16, (5, 7), 24, (3, 3), (2, 2), (1, 1), (1, 1)), (1, 8, (6, 5), 12, (1, 1), (2, 3), (0, 0), (1, 2)),
    (1, 12, (4, 5), 8, (5, 2), (3, 1), (2, 0), (0, 0)), (2, 16, (9,), 8, (4,), (3,), (0,), (2,)),
], ids=str)  # fmt: skip
def test_phases_of_transposed_windows(case: tuple[Any, ...], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """In tf32 as plain convolutions; phases that no tap reaches are zeros."""
    monkeypatch.setattr(phases, "LEAST", 0)
    n, c, sizes, out, taps, stride, padding, more = case
    x, k = numbers(rng, f32, n, c, *sizes), numbers(rng, f32, c, out, *taps)
    op = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=(1,) * len(taps), transposed=True, output_padding=more)
    emulated = Emulated(graph(lambda v, u: op(v, u), (f32, x.shape), (f32, k.shape)), features=TF32)
    assert any(isinstance(launch.kernel, GemmKernel) for launch in emulated.program.launches)
    (got,) = emulated(x, k)
    back: Any = (F.conv_transpose1d, F.conv_transpose2d)[len(taps) - 1]
    want = back(wide(x), wide(k), None, stride, padding, more).numpy()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


@pytest.mark.parametrize("case", GROUPED, ids=str)
def test_groups_and_three_axes_on_the_tensor_cores(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    n, c, sizes, out, taps, stride, padding, dilation, groups = case
    x, k = numbers(rng, f16, n, c, *sizes), numbers(rng, f16, out, c // groups, *taps)
    op = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation, groups=groups)
    emulated = Emulated(graph(lambda v, u: op(v, u), (f16, x.shape), (f16, k.shape)))
    kinds = [type(launch.kernel) for launch in emulated.program.launches if isinstance(launch.kernel, GemmKernel)]
    assert kinds == [GemmKernel if groups == 1 and set(taps) == {1} else PatchKernel if taps == (3, 3, 3) else ConvKernel]
    (got,) = emulated(x, k)
    convolve: Any = (F.conv2d, F.conv3d)[len(sizes) - 2]
    want = convolve(wide(x), wide(k), None, stride, padding, dilation, groups).numpy()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


# batch, channels, sizes, results, taps, stride, padding, dilation, steps of K in bf16
STEMS: list[tuple[Any, ...]] = [
    (1, 3, (4, 8, 8), 8, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 3),
    (1, 3, (5, 9, 10), 16, (3, 7, 7), (1, 2, 2), (1, 3, 3), (1, 1, 1), 14),
    (2, 1, (5, 4, 7), 8, (2, 2, 3), (2, 1, 1), (2, 0, 1), (2, 1, 1), 2),
    (1, 3, (2, 8, 9), 8, (1, 5, 5), (1, 2, 2), (0, 2, 2), (1, 1, 1), 3),
    (1, 16, (3, 4, 5), 8, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 9),
    (2, 2, (23,), 8, (5,), (2,), (2,), (1,), 1),
]  # fmt: skip


@pytest.mark.parametrize("constant, dtype", [(False, bf16), (True, bf16), (True, f32)], ids=["weights given", "weights constant", "tf32"])
@pytest.mark.parametrize("case", STEMS, ids=str)
def test_pixels_of_few_channels_hold_the_planes_of_a_window(case: tuple[Any, ...], constant: bool, dtype: DType,
                                                            rng: np.random.Generator) -> None:
    n, c, sizes, out, taps, stride, padding, dilation, steps = case
    x, k = numbers(rng, dtype, n, c, *sizes), numbers(rng, dtype, out, c, *taps)
    op = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation)
    if constant:
        g = graph(lambda v: op(v, v.node.graph.constant(k, "w")), (dtype, x.shape))
    else:
        g = graph(lambda v, u: op(v, u), (dtype, x.shape), (dtype, k.shape))
    emulated = Emulated(g, features=TF32)
    kernels = [launch.kernel for launch in emulated.program.launches if isinstance(launch.kernel, ConvKernel)]
    if dtype is bf16:
        (kernel,) = kernels
        assert prod(kernel.taps) == steps and kernel.channels == 64
    else:
        assert len(kernels) == (c < 16)
    (got,) = emulated(x) if constant else emulated(x, k)
    convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[len(sizes) - 1]
    want = convolve(wide(x), wide(k), None, stride, padding, dilation).numpy()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


def test_one_tap_is_a_plain_product_and_constant_weights_cost_no_launch() -> None:
    k = np.ones((8, 16, 1, 1), bf16.np)
    op = o.Conv(stride=(1, 1), padding=((0, 0),) * 2, dilation=(1, 1))
    g = graph(lambda v: op(v, v.node.graph.constant(k, "w")), (bf16, (2, 16, 4, 4)))
    launches = Emulated(g).program.launches
    assert [type(x.kernel) is GemmKernel for x in launches] == [False, True, False]  # channels last, the product, and back
    assert not any(isinstance(x.kernel, ConvKernel) for x in launches)


def some(cases: list[tuple[Any, ...]]) -> list[Any]:
    """The others are slow."""
    return [c if i < 4 else pytest.param(c, marks=pytest.mark.slow) for i, c in enumerate(cases)]


@pytest.mark.parametrize("case", some(GATHERED) + some(HALO) + DEPTHWISE, ids=str)
def test_windows_gathered_by_threads(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    """On chips without a TMA, and where it cannot gather: groups, three axes, long reaches; bias and activation in the epilogue."""
    arch, n, c, sizes, out, taps, stride, padding, dilation, groups = case
    constant, dtype = bool(c % 3), (bf16, f16)[len(sizes) % 2]
    x, k, b = numbers(rng, dtype, n, c, *sizes), numbers(rng, dtype, out, c // groups, *taps), numbers(rng, dtype, out, *(1,) * len(sizes))
    op = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation, groups=groups)
    types = [(dtype, x.shape), (dtype, b.shape), (dtype, k.shape)]
    if constant:
        g = graph(lambda v, u: o.Relu()(o.Add()(op(v, v.node.graph.constant(k, "w")), u)), *types[:2])
    else:
        g = graph(lambda v, u, w: o.Relu()(o.Add()(op(v, w), u)), *types)
    emulated = Emulated(g, arch)
    kind = HaloKernel if case in HALO else TiledKernel if case in GATHERED else BlockKernel
    assert [isinstance(v.kernel, kind) for v in emulated.program.launches if v.kernel.name.startswith("conv")] == [True]
    (got,) = emulated(x, b) if constant else emulated(x, b, k)
    convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[len(sizes) - 1]
    want = torch.relu(convolve(wide(x), wide(k), None, stride, padding, dilation, groups) + wide(b)).numpy()
    assert np.linalg.norm(got.astype(np.float64) - want) <= (6e-3 if dtype is bf16 else 1e-3) * np.linalg.norm(want)


@pytest.mark.parametrize("each", [4, 8])
def test_infinities_stay_in_their_group(each: int, rng: np.random.Generator) -> None:
    x, k = numbers(rng, f16, 1, 16, 4, 5), numbers(rng, f16, 16, each, 3, 3)
    x[0, each : 2 * each, 2, 2] = np.inf
    op = o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=16 // each)
    emulated = Emulated(graph(lambda v, u: op(v, u), (f16, x.shape), (f16, k.shape)), "sm_80")
    with np.errstate(invalid="ignore"):
        (got,) = emulated(x, k)
    assert any(isinstance(v.kernel, HaloKernel) for v in emulated.program.launches)
    assert not np.isfinite(got[:, each : 2 * each]).all() and np.isfinite(np.delete(got, range(each, 2 * each), 1)).all()


def test_an_epilogue_of_pixels_stops_at_the_edges(rng: np.random.Generator) -> None:
    """Programs of depthwise convolutions reach past the last line and column; what the epilogue reads there is one number a pixel."""
    x, k, r = numbers(rng, f16, 1, 16, 5, 7), numbers(rng, f16, 16, 1, 3, 3), numbers(rng, f16, 1, 1, 5, 7)
    op = o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=16)
    emulated = Emulated(graph(lambda v, u, m: o.Mul()(op(v, u), m), (f16, x.shape), (f16, k.shape), (f16, r.shape)), "sm_80")
    assert any(v.kernel.name.startswith("conv_depthwise") for v in emulated.program.launches)
    want = (F.conv2d(wide(x), wide(k), None, 1, 1, 1, 16) * wide(r)).numpy()
    assert np.linalg.norm(emulated(x, k, r)[0].astype(np.float64) - want) <= 1e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("width, channels, groups", [(27, 64, 8), (33, 32, 2)])
def test_lines_and_results_on_their_way_out_fit_in_shared_memory(width: int, channels: int, groups: int) -> None:
    op = o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=groups)
    g = graph(lambda v, w: op(v, w), (f16, (1, channels, 64, width)), (f16, (channels, channels // groups, 3, 3)))
    (kernel,) = (v.kernel for v in program(g, "sm_120").launches if isinstance(v.kernel, HaloKernel))
    assert kernel.stored and shared_bytes(kernel) <= cuda_target("sm_120").l1d


def test_a_flipped_image_is_another_kernel_with_a_name_that_ptx_knows() -> None:
    """Steps from pixel to pixel are part of the kernel."""
    k, op = np.ones((16, 8, 3, 3), bf16.np), o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=2)
    g = graph(lambda v: op(o.Flip(axes=(3,))(op(v, v.node.graph.constant(k, "a"))), v.node.graph.constant(k, "b")), (bf16, (2, 16, 6, 6)))
    names = [v.kernel.name for v in program(g, "sm_80").launches if isinstance(v.kernel, HaloKernel)]
    assert len({*names}) == 2 and all(name.isidentifier() for name in names)


def test_patches_are_for_results_of_16_bits() -> None:
    """Others are not TMA's to write."""
    op = o.Conv(stride=(1, 1, 1), padding=((1, 1),) * 3, dilation=(1, 1, 1))
    types = ((f16, (1, 64, 4, 8, 8)), (f16, (64, 64, 3, 3, 3)))
    for dtype, kind in ((f16, PatchKernel), (f32, ConvKernel)):
        launches = program(graph(lambda v, w, dtype=dtype: o.Cast(dtype=dtype)(o.Relu()(op(v, w))), *types)).launches
        assert [type(x.kernel) for x in launches if isinstance(x.kernel, GemmKernel)] == [kind]


# batch, channels, sizes, results, taps, padding
FLAT: list[tuple[Any, ...]] = [
    (1, 72, (64, 8), 24, (3, 3), (1, 1)), (2, 40, (32, 16), 32, (2, 3), (0, 1)), (3, 64, (30, 7), 8, (5, 3), (2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("case", FLAT, ids=str)
def test_few_results_read_their_pixels_once(case: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Patches below one another, whose last ones may be outside, with a bias that is shorter than a tile is wide."""
    n, c, sizes, out, taps, padding = case
    x, w, s = numbers(rng, f16, n, c, *sizes), numbers(rng, f16, out, c, *taps), numbers(rng, f16, out)
    op = o.Conv(stride=(1, 1), padding=tuple((p, p) for p in padding), dilation=(1, 1))
    types = ((f16, v.shape) for v in (x, w, s))
    emulated = Emulated(graph(lambda v, u, b: o.Relu()(o.Add()(op(v, u), o.Reshape(shape=(out, 1, 1))(b))), *types), cores=1)
    (kernel,) = [launch.kernel for launch in emulated.program.launches if isinstance(launch.kernel, GemmKernel)]
    assert isinstance(kernel, PatchKernel) and kernel.stacked
    (got,) = emulated(x, w, s)
    want = F.conv2d(wide(x), wide(w), wide(s), 1, padding).relu().numpy()
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


def test_a_chain_of_convolutions_is_not_copied_between() -> None:
    """Values lie channels last from one to the next, on every chip, and constant weights cost no launch."""
    k = np.ones((16, 8, 3, 3), bf16.np)

    def chain(v: Any) -> Any:
        op = o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=2)
        return op(o.Relu()(op(v, v.node.graph.constant(k, "a"))), v.node.graph.constant(k, "b"))

    for arch in ("sm_80", "sm_90a", "sm_120"):
        kinds = [isinstance(x.kernel, HaloKernel) for x in Emulated(graph(chain, (bf16, (2, 16, 6, 6))), arch).program.launches]
        assert kinds == [False, True, True, False]  # channels last, both convolutions, and back


@pytest.mark.slow
def test_a_session_of_gathered_convolutions(rng: np.random.Generator) -> None:
    """On the stand-in for the driver: a block of a network with groups, in planned memory."""
    layers = (torch.nn.Conv2d(3, 16, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, 1, 1, groups=2), torch.nn.MaxPool2d(2))
    net = torch.nn.Sequential(*layers).to(torch.bfloat16)
    x = torch.from_numpy(rng.standard_normal((2, 3, 9, 9)).astype(np.float32)).to(torch.bfloat16)
    with fake_gpu():
        session: Any = tw.compile(net, (x,), target="cuda")
        kinds = [isinstance(launch.kernel, (HaloKernel, TiledKernel)) for launch in session.executable.program.launches]
        got = session(x.float().numpy().astype(bf16.np)).numpy().astype(np.float64)
    want = net.double()(x.double()).detach().numpy()
    assert sum(kinds) == 2 and np.linalg.norm(got - want) <= 1e-2 * np.linalg.norm(want)


def test_narrow_groups_are_left_to_multiply_adds() -> None:
    """A group of one channel would leave the tensor cores idle."""
    op = o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=16)
    g = graph(lambda v, w: op(v, w), (bf16, (1, 16, 6, 6)), (bf16, (16, 1, 3, 3)))
    assert not any(isinstance(x.kernel, TiledKernel) for x in Emulated(g, "sm_80").program.launches)


def conv_cases() -> list[Any]:
    return [p for p in cases() if p.values[0].op is o.Conv and p.values[0].env.get("M", 3) == 3 and p.values[0].env.get("N", 5) == 5]


@pytest.mark.parametrize("case", conv_cases())
def test_every_convolution_without_tensor_cores(case: Case, rng: np.random.Generator) -> None:
    arrays = case.arrays(rng)
    got = Emulated(case.graph(), "sm_80")(*arrays, env=case.env)
    assert_close(got[0], np.asarray(run(case.graph(), arrays, case.env)[0]), case.graph().outputs[0].dtype.name, 2.0)


@pytest.mark.parametrize("shape", [(4, 3, 5, 7), (4, 1, 3, 5, 7)], ids=str)
@pytest.mark.parametrize("form", [
    Packed("taps", 8), Packed("taps", 1, transposed=True), Packed("folded", 1, words=4, groups=8), Packed("folded", 2, words=8, groups=8),
], ids=str)  # fmt: skip
def test_packed_weights_read_back(form: Packed, shape: tuple[int, ...], rng: np.random.Generator) -> None:
    from tilewright.ir.graph import Graph
    from tilewright.kernels.launch import Buffer, ConstBuffer
    from tilewright.kernels.select import stored_bytes

    array = numbers(rng, f32, *shape)
    data = Graph("g").constant(array, "w").op.data  # type: ignore[attr-defined]
    (storage,) = pack_constants([ConstBuffer(data, Buffer("w", "const", 0, 0), form)])
    assert storage.nbytes == stored_bytes(data.type, form)
    np.testing.assert_array_equal(unpack(storage, data.type, form), array)


@pytest.mark.parametrize("channels", [8, 40])
def test_pools_of_values_that_lie_channels_last(channels: int, rng: np.random.Generator) -> None:
    """After a convolution on the tensor cores: no copy, no padding."""
    x, k = numbers(rng, bf16, 2, 8, 5, 6), numbers(rng, bf16, channels, 8, 1, 1)

    def pools(v: Any) -> tuple[Any, ...]:
        y = o.Conv(stride=(1, 1), padding=((0, 0),) * 2, dilation=(1, 1))(v, v.node.graph.constant(k, "w"))
        pads = ((1, 1), (0, 0))
        return (
            o.MaxPool(kernel=(3, 2), stride=(2, 1), padding=pads, dilation=(1, 2))(y),
            o.AvgPool(kernel=(3, 2), stride=(1, 2), padding=pads)(y),
            o.AvgPool(kernel=(3, 2), stride=(1, 2), padding=pads, count_include_pad=False)(y),
            o.Mean(axes=(2, 3))(y),
        )

    got = Emulated(graph(pools, (bf16, x.shape)))(x)
    y = torch.from_numpy(F.conv2d(wide(x), wide(k)).numpy().astype(np.float32).astype(bf16.np).astype(np.float64))
    want = (
        F.max_pool2d(y, (3, 2), (2, 1), (1, 0), (1, 2)),
        F.avg_pool2d(y, (3, 2), (1, 2), (1, 0)),
        F.avg_pool2d(y, (3, 2), (1, 2), (1, 0), count_include_pad=False),
        y.mean((2, 3)),
    )
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a.astype(np.float64), b.numpy(), rtol=1.2e-2, atol=1.2e-2)


def network(arch: str, build: Any, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[list[str], Any, Any]:
    """Names of the launches, the result and the wanted one of a graph between two convolutions of one tap."""
    first, last = (numbers(rng, f32, o, i, 1, 1) for o, i in ((16, shape[1]), (8, 16)))

    def between(v: Any) -> Any:
        conv, constant = o.Conv(stride=(1, 1), padding=((0, 0),) * 2, dilation=(1, 1)), v.node.graph.constant
        return conv(build(conv(v, constant(first, "a"))), constant(last, "b"))

    x = numbers(rng, f32, *shape)
    emulated = Emulated(graph(between, (f32, x.shape)), arch)
    return [launch.name for launch in emulated.program.launches], emulated(x)[0], run(graph(between, (f32, x.shape)), [x])[0]


@pytest.mark.parametrize("rooted", [False, True])
def test_norms_over_channels_are_norms_of_pixels(rooted: bool, rng: np.random.Generator) -> None:
    """Spelled out over the second axis between convolutions, with a weight and a bias of every channel: one launch, no copies."""
    weight, bias = numbers(rng, f32, 1, 16, 1, 1), numbers(rng, f32, 16, 1, 1)

    def norm(v: Any) -> Any:
        d = v if rooted else F_.sub(v, F_.mean(v, (1,), keepdims=True))
        y = F_.div(d, F_.one("sqrt", F_.add(F_.mean(o.Square()(d), (1,), keepdims=True), 1e-6)))
        y = F_.mul(y, v.node.graph.constant(weight, "w"))
        return y if rooted else F_.add(y, v.node.graph.constant(bias, "s"))

    names, got, want = network("sm_80", norm, (2, 8, 5, 6), rng)
    assert len(names) == 4 and "norm" in names[1], names  # the last one is the output's own memory
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * np.abs(want).max())


def test_what_is_kept_beside_a_mean_of_an_image_lies_channels_last(rng: np.random.Generator) -> None:
    """A gate of halves, scaled by a convolution of its mean: nothing is copied, an image of one pixel least of all."""
    weight = numbers(rng, f32, 8, 8, 1, 1)

    def gate(v: Any) -> Any:
        y = F_.mul(F_.slice_(v, 1, 0, 8), F_.slice_(v, 1, 8, 8))
        conv = o.Conv(stride=(1, 1), padding=((0, 0),) * 2, dilation=(1, 1))
        scale = conv(F_.mean(y, (2, 3), keepdims=True), v.node.graph.constant(weight, "w"))
        return F_.concat([F_.mul(y, scale), y], 1)

    names, got, want = network("sm_80", gate, (2, 8, 5, 6), rng)
    assert not any(n.endswith(".pixels") for n in names[1:]), names
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4 * np.abs(want).max())


def test_dilated_windows_of_every_channel(rng: np.random.Generator) -> None:
    """Rows of taps are apart, and those before and behind the image are left out; some windows lie behind it altogether."""
    x, k = numbers(rng, f32, 2, 9, 7, 12), numbers(rng, f32, 12, 1, 3, 2)

    def windows(v: Any) -> tuple[Any, ...]:
        y, w = o.Transpose(perm=(0, 3, 1, 2))(v), v.node.graph.constant(k, "w")
        both = o.Conv(stride=(2, 1), padding=((6, 6), (1, 1)), dilation=(2, 3), groups=12)(y, w), o.MaxPool(
            kernel=(3, 2), stride=(2, 2), padding=((1, 1), (1, 1)), dilation=(2, 1))(y)  # fmt: skip
        return tuple(o.Transpose(perm=(0, 2, 3, 1))(z) for z in both)

    made = Emulated(graph(windows, (f32, x.shape)))
    assert {n.kernel.name.rpartition("_")[0] for n in made.program.launches} == {"conv_depthwise", "max_pool"}
    y = wide(x).permute(0, 3, 1, 2)
    want = F.conv2d(y, wide(k), None, (2, 1), (6, 1), (2, 3), 12), F.max_pool2d(y, (3, 2), (2, 2), (1, 1), (2, 1))
    for a, b in zip(made(x), want, strict=True):
        np.testing.assert_allclose(a, b.permute(0, 2, 3, 1).numpy(), rtol=1e-5, atol=1e-5)


def test_a_convolution_without_input_channels_is_zero(rng: np.random.Generator) -> None:
    """Without input channels every sum is empty."""
    padding = ((1, 1),) * 2

    def conv(x: Any, w: Any) -> Any:
        return o.Conv(stride=(1, 1), padding=padding, dilation=(1, 1))(x, w)

    shapes = (2, 0, 5, 5), (3, 0, 2, 2)
    x, w = (numbers(rng, f32, *s) for s in shapes)
    np.testing.assert_array_equal(Emulated(graph(conv, *((f32, s) for s in shapes)))(x, w)[0], np.zeros((2, 3, 6, 6)))
    constant = Emulated(graph(lambda x: conv(x, x.node.graph.constant(w, "w")), (f32, shapes[0])))
    np.testing.assert_array_equal(constant(x)[0], np.zeros((2, 3, 6, 6)))


@pytest.mark.parametrize("arch, dtype, growth", [("sm_90a", bf16, 8), ("sm_90a", f32, 12), ("sm_80", f32, 8), ("sm_80", bf16, 16),
                                                 ("sm_80", bf16, 6)], ids=str)  # fmt: skip
def test_layers_of_a_dense_block_are_computed_in_one_place(arch: str, dtype: DType, growth: int, rng: np.random.Generator) -> None:
    """Only the block's input is copied; parts that begin elsewhere than at 16 bytes (growth 6 of bf16) are. Every layer reads a prefix."""
    first, layers = 16, 3
    weights = [numbers(rng, dtype, growth, first + i * growth, *((3, 3) if i else (1, 1))) * np.float32(0.2).astype(dtype.np)
               for i in range(layers)]

    def build(x: Any) -> Any:
        for w in weights:
            side = w.shape[-1] // 2
            conv = o.Conv(stride=(1, 1), padding=((side, side),) * 2, dilation=(1, 1))
            x = o.Concat(axis=1)(x, conv(o.Relu()(x), x.node.graph.constant(w, "w")))
        return o.Relu()(x)

    x = numbers(rng, dtype, 2, first, 5, 4)
    g = graph(build, (dtype, x.shape))
    emulated = Emulated(g, arch, features=TF32)
    copies = [launch.name for launch in emulated.program.launches if launch.name.startswith("concat")]
    assert copies == ["concat.0"] if growth != 6 else len(copies) > 3
    (got,) = emulated(x)
    want = run(g, [x])[0].astype(np.float64)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-2, atol=2e-2 * np.abs(want).max())


@pytest.mark.parametrize(("results", "bias"), [(3, True), (1, False), (8, True), (13, False)], ids=str)
def test_few_results_of_many_channels_have_zeros_beside_them(results: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pixels are read once for all taps, by copies that write pieces of 16 bytes; what the zeros give is cut off."""
    monkeypatch.setattr("tilewright.passes.results_in_eights.PIXELS", 1 << 11)
    rng = fresh_rng()
    weights = rng.standard_normal((results, 32, 3, 3)).astype(bf16.np)

    def build(x: Any, w: Any, b: Any) -> Any:
        y = Conv(stride=(1, 1), dilation=(1, 1), padding=((1, 1), (1, 1)))(x, w)
        return o.Add()(y, b) if bias else y

    g = graph(build, (bf16, (1, 32, 48, 56)), (bf16, weights.shape), (bf16, (1, results, 1, 1)))
    cut = ResultsInEights().run(g, Log())
    widths = [n.value.shape[1] for n in cut.nodes if isinstance(n.op, Conv)]
    assert widths == [-(-results // 8) * 8]
    arrays = [rng.standard_normal((1, 32, 48, 56)).astype(bf16.np), weights, rng.standard_normal((1, results, 1, 1)).astype(bf16.np)]
    np.testing.assert_array_equal(reference(cut, arrays)[0], reference(g, arrays)[0])
