"""Products with packed matrices on a GPU, in the emulator: every format that the tensor cores take against gguf's dequantized numbers
(eight-bit floats: PyTorch's), one row with its norm and quantized values, several rows, prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.ops as o
from tests.cuda.launching import Emulated, program
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType
from tilewright.kernels.cuda.kernel import QDotKernel, QGemmKernel
from tilewright.kernels.quant.cuda.fragments import fragment_shape, pack_fragments
from tilewright.ops import quant
from tilewright.ops.packed.quant_dot import GPU_FORMATS, QuantizeRows
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import CHIPS, cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.safety.barrier_safety import check

Array = Any


def matrix(rng: np.random.Generator, name: str, n: int, k: int) -> tuple[Array, Array]:
    """Random blocks with finite scales, and the numbers that gguf reads in them."""
    gguf = pytest.importorskip("gguf")
    import torch

    fmt = quant.by_name(name)
    raw = rng.integers(0, 256, (n, k // fmt.elements, fmt.bytes), dtype=np.uint8)
    for at, _ in fmt.halves():
        size = (n, k // fmt.elements, 1)
        raw[..., at : at + 2] = rng.uniform(-0.02, 0.02, size).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[..., 0] = rng.integers(118, 130, raw.shape[:2])
    if name.startswith("F8"):
        scales = rng.uniform(-0.02, 0.02, (n, k // 128, 1)).astype(np.float32)
        codes, kind = raw[..., 4:], torch.float8_e4m3fn if name == "F8_E4M3" else torch.float8_e5m2
        codes[...] = np.where((codes & 127) >= (127 if name == "F8_E4M3" else 124), codes & 0xBF, codes)  # finite
        raw[..., :4] = scales.view(np.uint8)
        wide = torch.from_numpy(codes.copy()).view(kind).to(torch.float64).numpy()
        return raw.reshape(n, -1), (wide * scales).reshape(n, k)
    rows = raw.reshape(n, -1)
    return rows, gguf.quants.dequantize(rows, getattr(gguf.GGMLQuantizationType, name)).astype(np.float64)


def rounded(x: Array) -> Array:
    """What the quantized values of a row stand for."""
    codes, scales, _ = QuantizeRows().ref(x)
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, -1)


def build(fn: Any, shapes: list[tuple[Any, ...]], *matrices: Array) -> Graph:
    g = Graph("q")
    inputs = [g.input(TensorType(f32, shape), f"x{i}") for i, shape in enumerate(shapes)]
    out = fn(*inputs, *(g.constant(m, f"w{i}") for i, m in enumerate(matrices)))
    g.outputs = [out] if isinstance(out, Value) else list(out)
    return g


def close(got: Array, want: Array, tolerance: float = 2e-6) -> None:
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)


def linear(name: str, n: int, k: int) -> Any:
    return lambda x, r, w: o.add(o.relu(o.QMatmul(format=name, n=n, k=k)(x, w)), r)


CASES = [*((f, 256, 20) for f in GPU_FORMATS), ("MXFP4", 96, 5), ("NVFP4", 192, 17), ("F8_E4M3", 384, 9),
         ("Q4_0", 96, 9), ("Q8_0", 576, 33), ("Q4_1", 64, 16), ("Q5_1", 32, 3), ("Q4_K", 2304, 18), ("Q4_K", 8192, 18)]  # fmt: skip


@pytest.mark.parametrize("name, k, n", CASES)
def test_one_row(name: str, k: int, n: int, rng: np.random.Generator) -> None:
    raw, numbers = matrix(rng, name, n, k)
    x, r = rng.standard_normal((1, k)).astype(np.float32), rng.standard_normal((1, n)).astype(np.float32)
    e = Emulated(build(linear(name, n, k), [(1, k), (1, n)], raw))
    assert [type(v.kernel) for v in e.program.launches] == [QDotKernel]
    close(e(x, r)[0], np.maximum(rounded(x) @ numbers.T, 0) + r)


@pytest.mark.parametrize("name, k, n, m", [("Q4_K", 256, 17, 5), ("Q6_K", 256, 16, 9), ("Q8_0", 96, 20, 2), ("Q5_1", 64, 7, 16),
                                           ("NVFP4", 64, 18, 4), ("F8_E5M2", 128, 3, 10)])  # fmt: skip
def test_several_rows(name: str, k: int, n: int, m: int, rng: np.random.Generator) -> None:
    """Sizes that no tile divides give the same bits whether the number of rows is known or not, and for a row alone."""
    raw, numbers = matrix(rng, name, n, k)
    x, r = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((m, n)).astype(np.float32)

    def product(x: Value, r: Value, w: Value) -> Value:
        return o.add(o.relu(o.QDot(format=name, n=n, k=k)(*o.QuantizeRows()(x), w)), r)

    known = Emulated(build(product, [(m, k), (m, n)], raw))
    assert isinstance(known.program.launches[-1].kernel, QDotKernel)
    (y,) = known(x, r)
    close(y, np.maximum(rounded(x) @ numbers.T, 0) + r)
    rows = sym("S", 1, 16)
    unknown = Emulated(build(product, [(rows, k), (rows, n)], raw))
    np.testing.assert_array_equal(unknown(x, r)[0], y)
    np.testing.assert_array_equal(unknown(x[1:2], r[1:2])[0], y[1:2])


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_a_norm_and_two_products_of_its_row_are_one_launch(name: str, rng: np.random.Generator) -> None:
    k, n = 512, 40
    (gate, g64), (up, u64) = matrix(rng, name, n, k), matrix(rng, name, n, k)
    weight = rng.uniform(0.5, 2, k).astype(np.float32)
    x, r = 3 * rng.standard_normal((1, k)).astype(np.float32), rng.standard_normal((1, n)).astype(np.float32)

    def layer(x: Value, r: Value, g: Value, u: Value, w: Value) -> Value:
        h = o.RmsNorm(eps=1e-5, affine="weight")(x, w)
        op = o.QMatmul(format=name, n=n, k=k)
        return o.add(r, o.mul(o.silu(op(h, g)), op(h, u)))

    e = Emulated(build(layer, [(1, k), (1, n)], gate, up, weight))
    assert [type(v.kernel) for v in e.program.launches] == [QDotKernel]
    wide = x.astype(np.float64)
    h = rounded(x * weight) / np.sqrt((wide * wide).mean() + 1e-5)
    a, b = h @ g64.T, h @ u64.T
    with np.errstate(over="ignore"):
        want = r + a / (1 + np.exp(-a)) * b
    close(e(x, r)[0], want, 4e-6)


@pytest.mark.parametrize("m", [1, 19])
def test_products_of_the_same_rows_that_are_only_viewed_are_one(m: int, rng: np.random.Generator) -> None:
    (q, q64), (v, v64) = matrix(rng, "Q4_0", 32, 64), matrix(rng, "Q4_0", 16, 64)
    x, still, turned = rng.standard_normal((m, 64)).astype(np.float32), np.ones((1, 8), np.float32), np.zeros((1, 8), np.float32)

    def heads(x: Value, cos: Value, sin: Value, q: Value, v: Value) -> Any:
        rows = [o.QMatmul(format="Q4_0", n=n, k=64)(x, w) for w, n in ((q, 32), (v, 16))]
        return [o.Rope()(o.reshape(r, (m, r.shape[1] // 16, 1, 16)), cos, sin) for r in rows]

    e = Emulated(build(heads, [(m, 64), (1, 8), (1, 8)], q, v))
    assert sum(isinstance(n.kernel, (QDotKernel, QGemmKernel)) for n in e.program.launches) == 1
    for got, numbers in zip(e(x, still, turned), (q64, v64), strict=True):
        close(got.reshape(m, -1), rounded(x) @ numbers.T if m == 1 else x @ numbers.T, 2e-6 if m == 1 else 6e-3)


def test_codes_that_are_read_twice_are_made_in_both_products(rng: np.random.Generator) -> None:
    (q, q64), (v, v64) = matrix(rng, "Q4_0", 32, 64), matrix(rng, "Q8_0", 16, 64)
    x = rng.standard_normal((1, 64)).astype(np.float32)
    e = Emulated(build(lambda x, q, v: (o.QMatmul(format="Q4_0", n=32, k=64)(x, q), o.QMatmul(format="Q8_0", n=16, k=64)(x, v)),
                       [(1, 64)], q, v))  # fmt: skip
    assert len(e.program.launches) == 2
    for got, numbers in zip(e(x), (q64, v64), strict=True):
        close(got, rounded(x) @ numbers.T)


@pytest.mark.parametrize("name", GPU_FORMATS)
def test_nothing_is_lost_when_a_matrix_is_packed(name: str, rng: np.random.Generator) -> None:
    """Strips packed one by one are those packed together, and no format grows by more than its six-bit scales (MXFP4: eight-bit ones)."""
    fmt = quant.by_name(name)
    raw, _ = matrix(rng, name, 40, 512)
    shape = fragment_shape(name, 40, raw.shape[1])
    whole, parts = np.full(shape, 255, np.uint8), np.full(shape, 254, np.uint8)
    pack_fragments(raw, name, whole, 0, shape[0])
    for i in range(shape[0]):
        pack_fragments(raw, name, parts, i, i + 1)
    np.testing.assert_array_equal(whole, parts)
    assert shape[0] == 3 and shape[2] * shape[1] <= (1.06 if name == "MXFP4" else 1.03) * 16 * 512 * fmt.bytes / fmt.elements


@pytest.mark.parametrize(
    "name, m",
    [("Q4_K", 1), ("Q6_K", 16), ("F8_E4M3", 1), *(pytest.param(f, m, marks=pytest.mark.slow) for f in GPU_FORMATS[8:] for m in (1, 2, 16))],
)
@pytest.mark.parametrize("arch", CHIPS)
def test_kernels_are_safe_at_barriers_and_have_no_spills(name: str, m: int, arch: str, rng: np.random.Generator) -> None:
    raw, _ = matrix(rng, name, 64, 512)
    kernel = program(build(linear(name, 64, 512), [(m, 512), (m, 64)], raw), arch).launches[-1].kernel
    text = emit_cuda(kernel, cuda_target(arch))
    assert check(text) == []
    if find_ptxas() is not None:
        usage = assemble(text, arch)
        assert usage.spilled == 0 and usage.stack == 0 and not usage.warnings


@pytest.mark.parametrize("name, units", [("Q4_K", 2), ("Q8_0", 1)])
def test_two_units_of_a_warp_are_asked_for_before_the_wait_where_registers_allow(name: str, units: int, rng: np.random.Generator) -> None:
    raw, _ = matrix(rng, name, 16, 8192)
    kernel = program(build(linear(name, 16, 8192), [(1, 8192), (1, 16)], raw), "sm_90a").launches[-1].kernel
    text = emit_cuda(kernel, cuda_target("sm_90a"))
    before, after = text.split("griddepcontrol.wait")
    assert "ld.global.nc" in before and ("ld.global.nc" in after) == (units == 1)
    if find_ptxas() is not None:
        assert assemble(text, "sm_90a").spilled == 0


def test_one_product_of_a_norm_starts_the_next_kernel_behind_its_wait(rng: np.random.Generator) -> None:
    """Attention follows, whose blocks would be in the way; two products of a norm (gate and up) start the next kernel at once."""
    raw, weight = [matrix(rng, "Q4_K", 16, 256)[0] for _ in range(2)], np.ones(256, np.float32)
    op = o.QMatmul(format="Q4_K", n=16, k=256)

    def order(products: int) -> bool:
        def layer(x: Value, w: Value, *matrices: Value) -> Value:
            h = o.RmsNorm(eps=1e-5, affine="weight")(x, w)
            made = [op(h, m) for m in matrices]
            return o.mul(made[0], made[-1]) if products > 1 else made[0]

        (launch,) = program(build(layer, [(1, 256)], weight, *raw[:products]), "sm_90a").launches
        text = emit_cuda(launch.kernel, cuda_target("sm_90a"))
        assert text.count("launch_dependents") == text.count("griddepcontrol.wait") == 1
        return text.index("launch_dependents") < text.index("griddepcontrol.wait")

    assert [order(1), order(2)] == [False, True]


@pytest.mark.parametrize("name", ["Q4_0", "F8_E4M3", "F8_E5M2"])
def test_a_scale_or_a_code_that_is_no_number_spoils_its_row_alone(name: str, rng: np.random.Generator) -> None:
    raw, numbers = matrix(rng, name, 9, 256)
    fmt = quant.by_name(name)
    nothing = np.full(1, np.nan, np.float16 if name == "Q4_0" else np.float32).view(np.uint8)
    raw[3, : len(nothing)] = nothing
    bad = [3]
    if name != "Q4_0":
        raw[7, fmt.bytes + 4 + 77] = 0xFF
        bad.append(7)
    x, r = rng.standard_normal((1, 256)).astype(np.float32), np.zeros((1, 9), np.float32)
    (y,) = Emulated(build(lambda x, r, w: o.add(o.QMatmul(format=name, n=9, k=256)(x, w), r), [(1, 256), (1, 9)], raw))(x, r)
    assert np.flatnonzero(np.isnan(y[0])).tolist() == bad
    good = [i for i in range(9) if i not in bad]
    close(y[:, good], rounded(x) @ numbers[good].T)
