"""On a GPU: convolutions against float64, poisoned memory: gathered by threads, with groups, over three axes. Skipped without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import graph
from tests.cuda.test_conv import DEPTHWISE, GATHERED, GROUPED, HALO
from tests.cuda.test_device import check, poison, rand
from tilewright.core.dtypes import DType, bf16, f16
from tilewright.kernels.conv.cuda.kernels import PatchKernel
from tilewright.runtime.cuda import driver as cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")
LARGE: list[tuple[Any, ...]] = [
    ("sm_80", 8, 64, (56, 56), 256, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    ("sm_90a", 4, 256, (28, 28), 512, (3, 3), (2, 2), (1, 1), (1, 1), 4),
    ("sm_90a", 2, 32, (17, 30, 31), 130, (3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1), 1),
    ("sm_90a", 3, 192, (9, 15, 16), 192, (3, 3, 3), (2, 1, 2), (1, 2, 0), (1, 2, 1), 3),
    ("sm_90a", 5, 256, (56, 56), 256, (3, 3), (1, 1), (1, 1), (1, 1), 32),
    ("sm_90a", 3, 144, (57, 55), 144, (3, 3), (2, 2), (1, 1), (1, 1), 144),
    ("sm_90a", 2, 1000, (14, 13), 1000, (5, 5), (1, 1), (2, 2), (1, 1), 1000),
    ("sm_90a", 3, 240, (27, 29), 240, (3, 3), (2, 2), (1, 1), (1, 1), 10),
    ("sm_80", 2, 128, (31, 33), 256, (5, 3), (1, 2), (2, 1), (1, 1), 8),
    ("sm_90a", 2, 72, (12, 13, 14), 136, (1, 3, 2), (1, 1, 1), (0, 1, 0), (1, 1, 3), 1),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("case", [*GATHERED, *HALO, *DEPTHWISE, *(("sm_90a", *case) for case in GROUPED), *LARGE], ids=str)
def test_convolutions(case: tuple[Any, ...], dtype: DType) -> None:
    arch, n, c, sizes, out, taps, stride, padding, dilation, groups = case
    x, k, b = rand(dtype, n, c, *sizes), rand(dtype, out, c // groups, *taps), rand(dtype, out, *(1,) * len(sizes))
    convolve: Any = (F.conv1d, F.conv2d, F.conv3d)[len(sizes) - 1]
    want = convolve(x.double(), k.double(), None, stride, padding, dilation, groups)
    r = rand(dtype, *want.shape)
    op = o.Conv(stride=stride, padding=tuple((p, p) for p in padding), dilation=dilation, groups=groups)
    g = graph(lambda x, k, b, r: o.Relu()(o.Add()(o.Add()(op(x, k), b), r)), *((dtype, tuple(t.shape)) for t in (x, k, b, r)))
    session: Any = tw.compile(g, target="cuda" if arch == "sm_90a" else "sm_80")
    poison()
    got = session(x, k, b, r)
    check(got, torch.relu(want + b.double() + r.double()), dtype)
    assert torch.equal(got, session(x, k, b, r))


PATCHES: list[tuple[int, int, tuple[int, ...], int, tuple[int, ...], tuple[int, ...]]] = [
    (2, 64, (8, 16, 24), 64, (3, 3, 3), (1, 1, 1)), (1, 72, (4, 15, 16), 64, (3, 3, 3), (1, 1, 1)),
    (2, 128, (7, 13, 9), 64, (1, 3, 2), (0, 2, 0)),
    (3, 40, (10, 16, 9), 64, (3, 3, 3), (0, 1, 0)), (1, 64, (16, 56, 56), 64, (3, 3, 3), (1, 1, 1)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("case", PATCHES, ids=str)
def test_convolutions_by_patches(case: tuple[Any, ...], dtype: DType) -> None:
    n, c, sizes, out, taps, padding = case
    x, k, b = rand(dtype, n, c, *sizes), rand(dtype, out, c, *taps), rand(dtype, out, 1, 1, 1)
    op = o.Conv(stride=(1, 1, 1), padding=tuple((p, p) for p in padding), dilation=(1, 1, 1))
    g = graph(lambda x, k, b: o.Relu()(o.Add()(op(x, k), b)), *((dtype, tuple(t.shape)) for t in (x, k, b)))
    session: Any = tw.compile(g, target="cuda")
    assert any(isinstance(v.kernel, PatchKernel) for v in session.executable.program.launches)
    poison()
    got = session(x, k, b)
    check(got, torch.relu(F.conv3d(x.double(), k.double(), None, 1, padding) + b.double()), dtype)
    assert torch.equal(got, session(x, k, b))
