"""On a GPU: products of every dtype on every path, odd sizes, poisoned memory, against float64. Skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import graph
from tests.cuda.test_device import poison
from tests.cuda.test_products import BATCHES
from tilewright.core.dtypes import DType, bf16, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from tilewright.runtime.cuda import driver as cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")
TORCH = {
    bf16: torch.bfloat16, f16: torch.float16, f32: torch.float32, f64: torch.float64, f8e4m3: torch.float8_e4m3fn,
    f8e5m2: torch.float8_e5m2, i8: torch.int8, u8: torch.uint8,
}  # fmt: skip
TOLERANCE = {bf16: 6e-3, f16: 1e-3, f32: 4e-6, f64: 1e-14, i32: 0.0}
PROMOTED = 3e-4  # the error of f32 results of eight-bit floats: the tensor core adds up two steps of K by itself

SHAPES = [(64, 64, 64), (1, 520, 2056), (129, 263, 81), (300, 528, 208), (1000, 144, 2064), (128, 768, 4096)]
KINDS = [  # operands, result, target, precision
    (f8e4m3, f8e4m3, bf16, "cuda", None), (f8e4m3, f8e5m2, f32, "cuda", None), (f8e5m2, f8e4m3, f16, "cuda", None),
    (f32, f32, f32, "cuda", None), (f32, f32, f32, "cuda", "tf32"), (f32, f32, f32, "sm_80", "tf32"), (f64, f64, f64, "cuda", None),
    (f64, f64, f64, "sm_80", None),
    (i8, i8, i32, "cuda", None), (u8, i8, i32, "cuda", None), (i8, i8, i32, "sm_80", None), (bf16, bf16, bf16, "sm_80", None),
    (f16, f16, f16, "sm_80", None), (f8e4m3, f8e5m2, bf16, "sm_80", None), (bf16, bf16, bf16, "cuda", None),
]  # fmt: skip


def rand(dtype: DType, *shape: int) -> torch.Tensor:
    if dtype.is_int:
        low, high = (-128, 128) if dtype is i8 else (0, 256)
        return torch.randint(low, high, shape, device="cuda", dtype=TORCH[dtype])
    return torch.randn(*shape, device="cuda", dtype=torch.float64).to(TORCH[dtype])


def check(got: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    torch.cuda.synchronize()
    assert got.shape == want.shape and not got.isnan().any()
    assert (got.double() - want).norm() <= tolerance * want.norm()


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: f"{k[0]}-{k[1]}-{k[2]}-{k[3]}{'-tf32' if k[4] else ''}")
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products(shape: tuple[int, int, int], kind: Any) -> None:
    (m, n, k), (da, db, out, target, precision) = shape, kind
    for ta, tb in ((False, True), (False, False), (True, False), (True, True)):
        a, b = rand(da, *((k, m) if ta else (m, k))), rand(db, *((n, k) if tb else (k, n)))
        op = o.Matmul(transpose_a=ta, transpose_b=tb, dtype=out if da.itemsize == 1 else None)
        session: Any = tw.compile(
            graph(lambda x, y, p=op: p(x, y), (da, tuple(a.shape)), (db, tuple(b.shape))), target=target, precision=precision
        )
        poison()
        got = session(a, b)
        want = (a.double().T if ta else a.double()) @ (b.double().T if tb else b.double())
        small = da.itemsize == 1 and da.is_float and out is f32
        check(got, want, 1e-3 if precision else PROMOTED if small else TOLERANCE[out])
        assert torch.equal(got, session(a, b))


class Scaled(torch.nn.Module):
    w: torch.Tensor
    s: torch.Tensor
    bias: torch.Tensor

    def __init__(self, n: int, k: int) -> None:
        super().__init__()
        self.register_buffer("w", torch.randn(n, k).to(torch.float8_e4m3fn))
        self.register_buffer("s", torch.tensor(0.25))
        self.register_buffer("bias", torch.randn(n).bfloat16())

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, self.w.t(), scale, self.s, bias=self.bias, out_dtype=torch.bfloat16)


@pytest.mark.parametrize("m", [16, 300, 1024])
def test_a_module_with_scaled_products(m: int) -> None:
    module, x, scale = Scaled(512, 640).cuda(), rand(f8e4m3, m, 640), torch.tensor(3.0, device="cuda")
    session = tw.compile(module, (x, scale))
    poison()
    check(session(x, scale), 0.75 * (x.double() @ module.w.double().T) + module.bias.double(), TOLERANCE[bf16])


def test_requantized_products() -> None:
    a, b = rand(u8, 300, 512), rand(i8, 520, 512)
    scale, zero = torch.rand(520, device="cuda") * 1e-3, torch.randint(-9, 9, (520,), device="cuda", dtype=torch.int32)
    types = ((u8, (300, 512)), (i8, (520, 512)), (f32, (520,)), (i32, (520,)))
    build = lambda x, w, s, z: o.Requantize(axis=1)(o.IntMatmul(transpose_b=True)(x, w), s, z)
    for target in ("cuda", "sm_80"):
        poison()
        got = tw.compile(graph(build, *types), target=target)(a, b, scale, zero)
        sums = (a.double() @ b.double().T).float()
        assert torch.equal(got, (torch.round(sums * scale) + zero).clamp(-128, 127).to(torch.int8))


def test_eight_bit_floats_over_a_long_k() -> None:
    """f32 results stay within the bound of promoted sums at K = 16384, where the tensor cores' own would not."""
    a, b = rand(f8e4m3, 256, 16384), rand(f8e4m3, 256, 16384)
    g = graph(lambda x, y: o.Matmul(transpose_b=True, dtype=f32)(x, y), (f8e4m3, (256, 16384)), (f8e4m3, (256, 16384)))
    check(tw.compile(g, target="cuda")(a, b), a.double() @ b.double().T, PROMOTED)


@pytest.mark.parametrize("name", BATCHES)
def test_batches(name: str) -> None:
    build, plain, shapes = BATCHES[name]
    for dtype, target in ((f16, "cuda"), (f16, "sm_80"), (f32, "cuda")):
        tensors = [rand(dtype, *s) for s in shapes]
        poison()
        got = tw.compile(graph(build, *((dtype, s) for s in shapes)), target=target)(*tensors)
        check(got, torch.from_numpy(plain(*(t.double().cpu().numpy() for t in tensors))).cuda(), TOLERANCE[dtype])
