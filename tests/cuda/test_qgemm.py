"""Products of many rows with packed matrices on a GPU, in the emulator: codes become bf16 in registers; against gguf's dequantized numbers
(eight-bit floats: PyTorch's) in float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright.ops as o
from tests.cuda.launching import Emulated, program
from tests.cuda.test_qdot import build, linear, matrix
from tilewright.core.dims import sym
from tilewright.kernels.cuda.kernel import QFewKernel, QGemmKernel
from tilewright.kernels.quant.cuda import qfew, qgemm
from tilewright.kernels.quant.cuda.fragments import Fragments
from tilewright.ops import quant
from tilewright.ops.packed.quant_dot import GPU_FORMATS
from tilewright.target.cuda.code import emit_cuda, shared_bytes
from tilewright.target.cuda.device import CHIPS, cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.safety import async_safety
from tilewright.target.cuda.safety.barrier_safety import check
from tilewright.target.cuda.safety.token_launch import small_launch

Array = Any
# Rounding a number to 8 bits moves it by 2**-9 at most, sqrt(1/3) of that in the mean. A weight is rounded, its scale and what is added to
# it are: three such errors that are independent, 2**-9 together; a norm of hundreds of them does not stray far (0.8 to 1.5 were met).
TOLERANCE = 2.5 * 2**-9


def product(name: str, n: int, k: int) -> Any:
    return lambda x, r, w: o.add(o.QMatmul(format=name, n=n, k=k)(x, w), r)


def given(rng: np.random.Generator, m: int, n: int, k: int) -> tuple[Array, Array]:
    """Activations that bf16 holds."""
    x = rng.standard_normal((m, k)).astype(ml_dtypes.bfloat16).astype(np.float32)
    return x, rng.standard_normal((m, n)).astype(np.float32)


def near(y: Array, want: Array) -> bool:
    return bool(np.linalg.norm(y - want) <= TOLERANCE * np.linalg.norm(want))


SLOW = pytest.mark.slow
CASES = [
    *((f, 256, 20, 17) for f in ("Q5_K", "Q6_K", "MXFP4", "F8_E5M2")), ("Q4_K", 512, 20, 33), ("Q8_0", 96, 5, 20), ("Q5_1", 32, 17, 19),
    ("NVFP4", 192, 9, 21), ("F8_E4M3", 384, 3, 17),
    *(pytest.param(f, k, 37, 35, marks=SLOW) for f in GPU_FORMATS for k in (256, 768)),
]  # fmt: skip


@pytest.mark.parametrize("name, k, n, m", CASES)
def test_many_rows(name: str, k: int, n: int, m: int, rng: np.random.Generator) -> None:
    raw, numbers = matrix(rng, name, n, k)
    x, r = given(rng, m, n, k)
    e = Emulated(build(product(name, n, k), [(m, k), (m, n)], raw))
    assert isinstance(e.program.launches[-1].kernel, QGemmKernel)
    assert near(e(x, r)[0] - r, x.astype(np.float64) @ numbers.T)


# a cluster's blocks, panels, warps along K, groups of warps
PLANS = [("Q4_K", 512, 40, 5, (1, 2, 2, 2)), ("Q4_0", 1024, 50, 11, (2, 3, 2, 2)), ("Q6_K", 768, 20, 2, None), ("Q8_0", 96, 21, 16, None),
         ("NVFP4", 512, 35, 9, (2, 3, 1, 3)), ("F8_E4M3", 384, 3, 10, None), ("Q5_1", 32, 17, 3, None)]  # fmt: skip


@pytest.mark.parametrize("name, k, n, m, plan", [*PLANS, *(pytest.param(f, 1024, 70, 13, (4, 5, 1, 3), marks=SLOW) for f in GPU_FORMATS)])
def test_few_rows(name: str, k: int, n: int, m: int, plan: Any, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that nothing divides; the same bits whether the number of rows is known or not, and for a row alone."""
    if plan is not None:
        monkeypatch.setattr(qgemm, "plan", lambda *_: qfew.Plan(*plan))
    raw, numbers = matrix(rng, name, n, k)
    x, r = given(rng, m, n, k)
    known = Emulated(build(product(name, n, k), [(m, k), (m, n)], raw))
    kernel = known.program.launches[-1].kernel
    assert isinstance(kernel, QFewKernel)
    assert shared_bytes(kernel) == qfew.shared_bytes(k, kernel.tiles, kernel.per, kernel.warps, kernel.cluster)
    (y,) = known(x, r)
    assert near(y - r, x.astype(np.float64) @ numbers.T)
    rows = sym("S", 0, 16)
    unknown = Emulated(build(product(name, n, k), [(rows, k), (rows, n)], raw))
    np.testing.assert_array_equal(unknown(x, r)[0], y)
    np.testing.assert_array_equal(unknown(x[1:2], r[1:2])[0], y[1:2])
    assert unknown(x[:0], r[:0])[0].shape == (0, n)


SHAPES = [qgemm.Shape(*s) for s in ((8, 128), (4, 64), (4, 64, True), (8, 256, True), (4, 64, True, 2))]
MORE = [s for s in (*(qgemm.Shape(*x) for x in qgemm.COST), *(qgemm.Shape(4, m, True, n) for m, n in qgemm.JOIN)) if s not in SHAPES]


@pytest.mark.parametrize("shape", [*SHAPES, *(pytest.param(s, marks=SLOW) for s in MORE)], ids=lambda s: "-".join(map(str, s)))
def test_every_tile_gives_the_same_exact_numbers(shape: qgemm.Shape, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales that are powers of two and small integers as activations leave nothing to round."""
    n, k, m = 16 * shape.panels + 5, 256 * max(2, shape.splits) if shape.wgmma else 64, shape.rows + 3
    raw, _ = matrix(rng, "Q8_0", n, k)
    raw.reshape(n, -1, 34)[..., :2] = np.full((1,), 2.0**-4, np.float16).view(np.uint8)
    x, r = rng.integers(-8, 9, (m, k)).astype(np.float32), rng.integers(-8, 9, (m, n)).astype(np.float32)
    monkeypatch.setattr(qgemm, "chosen", lambda *_: shape)
    e = Emulated(build(linear("Q8_0", n, k), [(m, k), (m, n)], raw))
    np.testing.assert_array_equal(e(x, r)[0], np.maximum(x @ quant.by_name("Q8_0").dequantize(raw).T, 0) + r)


def test_a_row_alone_has_the_bits_it_has_among_many(rng: np.random.Generator) -> None:
    """A program for any number of rows takes its tile at every call."""
    n, k, rows = 20, 64, sym("S", 0, 300)
    raw, _ = matrix(rng, "Q4_1", n, k)
    x, r = given(rng, 67, n, k)
    e = Emulated(build(product("Q4_1", n, k), [(rows, k), (rows, n)], raw))
    assert len(e.program.launches[-1].variants) == 3
    (whole,) = e(x, r)
    for some in (slice(3, 4), slice(5, 25), slice(30, 67)):
        np.testing.assert_array_equal(e(x[some], r[some])[0], whole[some])
    assert e(x[:0], r[:0])[0].shape == (0, n)


def test_a_scale_that_is_no_number_spoils_its_column_alone(rng: np.random.Generator) -> None:
    for name in ("Q4_K", "F8_E4M3"):
        raw, numbers = matrix(rng, name, 9, 256)
        raw[4, :2] = np.full(1, np.nan, np.float16).view(np.uint8)
        if name == "F8_E4M3":
            raw[4, :4] = 0
            raw[4, 4 + 99] = 0x7F  # a code
        x, r = given(rng, 18, 9, 256)
        (y,) = Emulated(build(product(name, 9, 256), [(18, 256), (18, 9)], raw))(x, r)
        good = np.arange(9) != 4
        assert np.isnan(y[:, 4]).all()
        assert near((y - r)[:, good], x.astype(np.float64) @ numbers[good].T)


@pytest.mark.parametrize("name, arch", [("Q4_K", "sm_90a"), ("F8_E4M3", "sm_120"),
                                        *(pytest.param(f, a, marks=SLOW) for f in GPU_FORMATS for a in CHIPS)])  # fmt: skip
def test_kernels_are_safe_at_barriers_and_have_no_spills(
    name: str, arch: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    raw, _ = matrix(rng, name, 64, 2048)
    target = cuda_target(arch)
    fits = [s for s in (*SHAPES, *MORE) if not s.wgmma or arch == "sm_90a"]
    fits = [s for s in fits if qgemm.shared_bytes(Fragments(name, 2048), *s[:3]) <= target.l1d - 1024]
    for shape in fits if request.node.get_closest_marker("slow") else fits[-1:]:
        monkeypatch.setattr(qgemm, "chosen", lambda *_, shape=shape: shape)
        kernel = program(build(linear(name, 64, 2048), [(600, 2048), (600, 64)], raw), arch).launches[-1].kernel
        assert shared_bytes(kernel) == qgemm.shared_bytes(Fragments(name, 2048), *shape[:3])
        text = emit_cuda(kernel, target)
        assert check(text) == []
        launch = small_launch(kernel, text)
        assert launch is not None
        found = async_safety.check(text, launch)
        assert found.findings == () and found.met and all(found.met.values())
        if find_ptxas() is not None:
            usage = assemble(text, arch)
            assert usage.spilled == 0 and usage.stack == 0 and not usage.warnings


@pytest.mark.parametrize("name, arch, n, k", [("Q4_K", "sm_90a", 2048, 8192), ("Q8_0", "sm_80", 1600, 2048), *(
    pytest.param(f, a, n, k, marks=SLOW) for f in GPU_FORMATS for a in CHIPS for n, k in ((1600, 2048), (2048, 8192)))])  # fmt: skip
def test_kernels_of_few_rows_are_safe_and_have_no_spills(name: str, arch: str, n: int, k: int, rng: np.random.Generator) -> None:
    raw = np.zeros((n, matrix(rng, name, 1, k)[0].shape[1]), np.uint8)
    for m in (8, 16):
        kernel = program(build(linear(name, n, k), [(m, k), (m, n)], raw), arch).launches[-1].kernel
        if not isinstance(kernel, QFewKernel):  # the rows do not fit in the shared memory of this chip
            assert k == 8192 and arch != "sm_90a"
            continue
        text = emit_cuda(kernel, cuda_target(arch))
        assert check(text) == []
        launch = small_launch(kernel, text)
        assert launch is not None
        found = async_safety.check(text, launch)
        assert found.findings == () and found.met and all(found.met.values())
        if find_ptxas() is not None:
            usage = assemble(text, arch)
            assert usage.spilled == 0 and usage.stack == 0 and not usage.warnings
