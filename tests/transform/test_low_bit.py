"""Functions of low-bit numbers and of recurrences against PyTorch: values, derivatives, odd sizes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as tf

import tilewright as tw
from tests.fresh import fresh_rng
from tests.ops.oracle_low_bit import gated_delta_rule, selective_scan
from tilewright.core.errors import InputError, ShapeError

rng = fresh_rng()


def codes(*shape: int, dtype: Any = np.int8) -> Any:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("m,k,n,constant,dtype", [(1, 3, 1, True, np.int8), (37, 130, 67, True, np.uint8), (37, 130, 67, False, np.int8),
                                                  (200, 64, 129, True, np.int8), (3, 1030, 16, False, np.uint8)])
def test_int_matmul_is_exact(m: int, k: int, n: int, constant: bool, dtype: Any) -> None:
    x, w = codes(m, k, dtype=dtype), codes(n, k)
    want = x.astype(np.int64) @ w.T.astype(np.int64)
    got = tw.jit(lambda x: tw.int_matmul(x, w, transpose_b=True))(x) if constant else tw.int_matmul(x, np.ascontiguousarray(w.T))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, want)


def test_a_row_alone_and_views() -> None:
    x, w = codes(2, 9, 24), codes(33, 12)
    f = tw.jit(lambda x: tw.int_matmul(x[:, ::2, 4:16], w, transpose_b=True))
    want = x[:, ::2, 4:16].astype(np.int64) @ w.T.astype(np.int64)
    np.testing.assert_array_equal(f(x), want)
    odd = tw.jit(lambda x: tw.int_matmul(x[:, :, 1::2], w, transpose_b=True))  # not words: copied first
    np.testing.assert_array_equal(odd(x), x[:, :, 1::2].astype(np.int64) @ w.T.astype(np.int64))


def test_a_layer_in_whole_numbers_is_one_launch() -> None:
    x, w, m = codes(20, 64), codes(48, 64), (rng.random(48) * 1e-3).astype(np.float32)
    f = tw.jit(lambda x: tw.maximum(tw.requantize(tw.int_matmul(x, w, transpose_b=True), m, 3, axis=1), 3))
    sums = torch.from_numpy(x).long() @ torch.from_numpy(w).long().T
    want = torch.clamp(torch.round(sums.float() * torch.from_numpy(m)) + 3, -128, 127).clamp(min=3).to(torch.int8)
    np.testing.assert_array_equal(f(x), want.numpy())
    executable = f.lower(x).executable
    assert executable is not None and len(executable.launches) == 1


@pytest.mark.parametrize("groups,c,o", [(1, 5, 19), (6, 6, 12), (2, 700, 4)])
def test_int_conv_is_exact(groups: int, c: int, o: int) -> None:
    x, w = codes(2, c, 9, 8, dtype=np.uint8), codes(o, c // groups, 3, 2)
    got = tw.int_conv(x, w, stride=(2, 1), padding=((1, 2), (0, 1)), dilation=(1, 2), groups=groups, border=128)
    padded = tf.pad(torch.from_numpy(x).double(), (0, 1, 1, 2), value=128.0)
    want = tf.conv2d(padded, torch.from_numpy(w).double(), stride=(2, 1), dilation=(1, 2), groups=groups)
    np.testing.assert_array_equal(got, want.numpy())


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_come_back_from_bytes(bits: int) -> None:
    q = 1 << (bits - 1)
    x = rng.integers(-q, q, (3, 24)).astype(np.int8)
    packed = tw.pack_quantized(x, bits)
    assert packed.shape == (3, 3 * bits) and packed.dtype == np.uint8
    np.testing.assert_array_equal(tw.unpack_quantized(packed, bits), x)
    with pytest.raises(ShapeError, match="bits must be 2, 4 or 8, got 3"):
        tw.unpack_quantized(packed, 3)
    if bits < 8:
        with pytest.raises(ShapeError, match=r"needs i8 .* a multiple of"):
            tw.pack_quantized(x[:, :1], bits)


@pytest.mark.parametrize("name,constant", [("Q8_0", True), ("Q4_0", False), ("Q5_1", False), ("MXFP4", True), ("NVFP4", False),
                                           ("F16", False), ("F8_E4M3", False)])
def test_products_with_packed_weights_have_a_derivative(name: str, constant: bool) -> None:
    w, x, g = rng.normal(size=(37, 768)), rng.normal(size=(2, 11, 768)).astype(np.float32), rng.normal(size=(2, 11, 37)).astype(np.float32)
    packed = tw.training.pack_blocks(w, name)
    numbers = tw.training.unpack_blocks(packed, name).astype(np.float64)
    assert np.abs(numbers - w).mean() < 0.2 and packed.nbytes < 0.6 * w.size * 4

    def loss(x: Any, packed: Any) -> Any:
        return (tw.quantized_matmul(x, packed, format=name) * g).sum()

    f = tw.jit(tw.grad(lambda x: loss(x, packed))) if constant else lambda x: tw.grad(loss)(x, packed)
    np.testing.assert_allclose(f(x), g.astype(np.float64) @ numbers, rtol=1e-4, atol=2e-4)
    if not constant:
        np.testing.assert_allclose(tw.quantized_matmul(x, packed, format=name), x.astype(np.float64) @ numbers.T, rtol=1e-4, atol=2e-3)
    session = tw.jit(tw.grad(loss)).lower(x, packed)
    assert session.executable is not None
    assert all(b.nbytes < w.size * 4 for b in session.executable.plan.temps), "no copy of the matrix in f32"


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_eight_bit_floats_of_other_tools_are_packed_as_they_are(kind: torch.dtype) -> None:
    """Scales per row, per 128 columns and per square, as PyTorch dequantizes them, bit for bit; and their product."""
    n, k = 150, 384
    w = torch.from_numpy(rng.normal(size=(n, k))).to(kind)
    small = ml_dtypes.float8_e4m3fn if kind is torch.float8_e4m3fn else ml_dtypes.float8_e5m2
    codes = w.view(torch.uint8).numpy().view(small)
    for shape, rows, columns in (((n,), 1, k), ((n, 3), 1, 128), ((2, 3), 128, 128), ((), n, k)):
        scale = rng.uniform(1e-4, 1e-2, shape).astype(np.float32)
        per = np.atleast_2d(scale.T).T if scale.ndim < 2 else scale
        want = w.float().numpy() * np.repeat(np.repeat(per, rows, 0)[:n], columns, 1)
        packed, name = tw.training.pack_scaled(codes, scale)
        np.testing.assert_array_equal(tw.training.unpack_blocks(packed, name), want)
    x = rng.normal(size=(3, k)).astype(np.float32)
    np.testing.assert_allclose(tw.quantized_matmul(x, packed, format=name), x.astype(np.float64) @ want.T, rtol=1e-4, atol=1e-4)


def test_four_bit_codes_of_other_tools_are_packed_as_they_are() -> None:
    q, zero = rng.integers(0, 16, (5, 256)).astype(np.int8), rng.integers(0, 16, (5, 2))
    scale = rng.uniform(1e-3, 1e-2, (5, 2)).astype(np.float16)
    wide = np.repeat(scale.astype(np.float32), 128, 1)
    packed, name = tw.training.pack_scaled(q - np.int8(8), scale)
    assert name == "Q4_0"
    np.testing.assert_array_equal(tw.training.unpack_blocks(packed, name), (q - np.float32(8)) * wide)
    packed, name = tw.training.pack_scaled(q, scale, zero)
    assert name == "Q4_1"
    np.testing.assert_allclose(tw.training.unpack_blocks(packed, name), (q - np.repeat(zero, 128, 1)) * wide, atol=15 * 1e-2 * 2**-11)


@pytest.mark.parametrize("bits, group, name", [(8, 64, "U8_64"), (8, 16, "U8_16"), (4, 128, "U4_128"), (8, 768, "U8_256"),
                                               (4, 48, "U4_16")])
def test_unsigned_groups_with_zero_points_multiply_in_f32(bits: int, group: int, name: str) -> None:
    """Any group that is a multiple of 16 columns; scales and zero points in f32, so that a product is off by rounding alone."""
    k = 768
    q, zero = rng.integers(0, 1 << bits, (37, k)).astype(np.uint8), rng.integers(0, 1 << bits, (37, k // group))
    scale, x = rng.uniform(1e-3, 1e-2, (37, k // group)).astype(np.float32), rng.normal(size=(3, k)).astype(np.float32)
    packed, found = tw.training.pack_scaled(q, scale, zero, bits=bits)
    assert found == name
    numbers = (q - np.repeat(zero, group, 1).astype(np.float64)) * np.repeat(scale, group, 1)
    got = tw.jit(lambda x: tw.quantized_matmul(x, packed, format=name))(x)
    np.testing.assert_allclose(got, x.astype(np.float64) @ numbers.T, rtol=1e-5, atol=1e-5 * np.abs(numbers).sum(1).max())
    middle, found = tw.training.pack_scaled(q, scale, bits=bits)
    want = (q - np.float32(1 << (bits - 1))) * np.repeat(scale, group, 1)
    np.testing.assert_allclose(tw.training.unpack_blocks(middle, found), want, atol=1e-5)


def test_packing_rejects_what_it_cannot_write() -> None:
    for codes, scale, zero, message in (
        (np.zeros((4, 64), np.float32), 1, None, r"needs quantized values \[n, k\] of u8, i8, float8_e4m3fn or float8_e5m2"),
        (np.zeros((4, 64), ml_dtypes.float8_e5m2), 1, None, "F8_E5M2 needs a multiple of 128 columns, got 64"),
        (np.full((4, 64), 8, np.int8), 1, None, r"quantized values of Q4_0 are -8 \.\.\. 7, got 8 \.\.\. 8"),
        (np.zeros((4, 64), np.int8), np.ones((4, 4)), None, r"scale must be one number, .* got \[4, 4\] for quantized values 4x64"),
        (np.zeros((4, 64), np.int8), 1e5, 3, "a scale does not fit in f16"),
        (np.zeros((4, 64), np.uint8), np.ones((4, 8)), 3, "groups of u8 values have 16, 32, 64, 128, 256 columns or more, got 8 in 4x64"),
    ):
        with pytest.raises(InputError, match=message):
            tw.training.pack_scaled(codes, scale, zero)
    with pytest.raises(InputError, match="holds finite numbers only"):
        tw.training.pack_blocks(np.full((1, 64), np.inf), "NVFP4")
    with pytest.raises(InputError, match="a row must be a multiple of 64"):
        tw.training.pack_blocks(np.zeros((1, 32)), "NVFP4")


def scan_operands(batch: int, length: int, d: int, n: int) -> list[Any]:
    wide, small = (batch, length, d), (batch, length, n)
    shapes = [wide, wide, (d, n), small, small, (d,), wide, (batch, d, n)]
    made = [rng.normal(size=s).astype(np.float32) for s in shapes]
    made[1], made[2] = np.log1p(np.exp(made[1] - 1)), -np.exp(made[2] * 0.5)
    return made


@pytest.mark.parametrize("batch,length,d,n,gated", [(2, 70, 37, 16, True), (1, 1, 1, 1, True), (3, 33, 16, 5, False)])
def test_selective_scan_and_its_derivatives(batch: int, length: int, d: int, n: int, gated: bool) -> None:
    x, delta, a, b, c, skip, z, h = scan_operands(batch, length, d, n)
    gy, gh = rng.normal(size=x.shape).astype(np.float32), rng.normal(size=h.shape).astype(np.float32)
    given = [x, delta, a, b, c, skip, *([z] if gated else []), h]

    def loss(*v: Any) -> Any:
        y, last = tw.selective_scan(*v[:6], v[6] if gated else None, v[-1])  # type: ignore[call-arg]
        return (y * gy).sum() + (last * gh).sum()

    tensors = [torch.from_numpy(v).double().requires_grad_() for v in given]
    y, last = selective_scan({}, *tensors)
    grads = torch.autograd.grad([y, last], tensors, [torch.from_numpy(gy).double(), torch.from_numpy(gh).double()])
    got = tw.selective_scan(*given[:6], given[6] if gated else None, h)  # type: ignore[call-arg]
    for ours, theirs in zip(got, (y, last), strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=2e-4, atol=2e-4)
    for ours, want in zip(tw.grad(loss, argnums=tuple(range(len(given))))(*given), grads, strict=True):
        scale = max(1.0, float(want.abs().max()))
        np.testing.assert_allclose(ours / scale, want.numpy() / scale, rtol=1e-3, atol=2e-4)


def test_a_scan_in_two_pieces_is_the_whole_one() -> None:
    """The last state carries on: bit for bit what one scan gives."""
    x, delta, a, b, c, skip, z, h = scan_operands(2, 50, 19, 8)
    f = tw.jit(tw.selective_scan)
    whole, last = f(x, delta, a, b, c, skip, z, h)
    y1, mid = f(x[:, :20], delta[:, :20], a, b[:, :20], c[:, :20], skip, z[:, :20], h)
    y2, end = f(x[:, 20:], delta[:, 20:], a, b[:, 20:], c[:, 20:], skip, z[:, 20:], mid)
    assert np.concatenate([y1, y2], 1).tobytes() == whole.tobytes() and end.tobytes() == last.tobytes()
    alone, _ = f(x[:1], delta[:1], a, b[:1], c[:1], skip, z[:1], h[:1])
    assert alone.tobytes() == whole[:1].tobytes()
    bare, _ = tw.selective_scan(x, delta, a, b, c)
    zero = selective_scan({}, *(torch.from_numpy(v).double() for v in (x, delta, a, b, c, skip * 0, h * 0)))[0]
    np.testing.assert_allclose(bare, zero.numpy(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("length,k,v,dtype", [(40, 37, 18, "f32"), (3, 5, 1, "f32"), (35, 16, 5, "bf16"), (9, 8, 8, "f16")])
def test_gated_delta_rule(length: int, k: int, v: int, dtype: str) -> None:
    """Against PyTorch's derivative of the recurrent form in f64; a chunk of the backward pass is 32 steps."""
    lead, kind = (2, 3, length), {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[dtype]
    near = {"f32": 1e-4, "f16": 2e-2, "bf16": 8e-2}[dtype]
    q, key, value = (rng.normal(size=(*lead, n)).astype(np.float32) for n in (k, k, v))
    key /= np.linalg.norm(key, axis=-1, keepdims=True)
    g, beta = -rng.random(lead).astype(np.float32), rng.random(lead).astype(np.float32)
    state = rng.normal(size=(2, 3, k, v)).astype(np.float32)
    given = [x.astype(kind) for x in (q, key, value, g, beta, state)]
    tensors = [torch.from_numpy(x.astype(np.float64)).requires_grad_() for x in given]
    want = gated_delta_rule({"scale": k**-0.5}, *tensors)
    for ours, theirs in zip(tw.gated_delta_rule(*given), want, strict=True):
        assert ours.dtype == kind
        np.testing.assert_allclose(ours.astype(np.float64), theirs.detach().numpy(), rtol=near, atol=near)
    go, gs = (rng.normal(size=s).astype(kind) for s in (value.shape, state.shape))
    grads = torch.autograd.grad(want, tensors, [torch.from_numpy(x.astype(np.float64)) for x in (go, gs)])
    ours = tw.vjp(tw.gated_delta_rule, *given)[1]((go, gs))
    for mine, theirs in zip(ours, grads, strict=True):
        scale = max(1.0, float(theirs.abs().max()))
        np.testing.assert_allclose(mine.astype(np.float64) / scale, theirs.numpy() / scale, rtol=2 * near, atol=near)
    if dtype != "f32":
        return  # a state of 16 bits is rounded between two pieces
    first, mid = tw.gated_delta_rule(*(x[:, :, : length // 2] for x in given[:5]), state)  # type: ignore[arg-type, call-arg]
    second, end = tw.gated_delta_rule(*(x[:, :, length // 2 :] for x in given[:5]), mid)  # type: ignore[call-arg]
    whole, last = tw.gated_delta_rule(*given)
    assert np.concatenate([first, second], 2).tobytes() == whole.tobytes() and end.tobytes() == last.tobytes()


def test_halves_round_to_even() -> None:
    """Quotients that are exact halves (steps that are powers of two), as PyTorch's own quantizers round them."""
    for step in (0.25, 2.0):
        x = (np.arange(-140, 140, dtype=np.float32) + np.float32(0.5)) * np.float32(step)
        found = tw.jit(lambda v, step=step: tw.quantize_linear(v, step))(x)
        want = torch.fake_quantize_per_tensor_affine(torch.tensor(x), step, 0, -128, 127).numpy() / step
        np.testing.assert_array_equal(np.asarray(found), want.astype(np.int8))
        for bits in (2, 4, 8):
            most = 2 ** (bits - 1) - 1
            rounded = tw.jit(lambda v, step=step, bits=bits: tw.fake_quantize(v, np.float32(step), bits=bits, mode="fixed"))(x)
            expected = torch.fake_quantize_per_tensor_affine(torch.tensor(x), step, 0, -most, most).numpy()
            np.testing.assert_array_equal(np.asarray(rounded), expected)


def test_packed_experts_are_products_with_the_chosen_matrices() -> None:
    w, x = rng.normal(size=(3, 10, 64)), rng.normal(size=(6, 1, 64)).astype(np.float32)
    ids = rng.integers(0, 3, (6, 2))
    packed = np.stack([np.asarray(tw.training.pack_blocks(m, "Q8_0")) for m in w])
    numbers = np.stack([np.asarray(tw.training.unpack_blocks(m, "Q8_0")) for m in packed])
    want = np.einsum("sk,stnk->stn", x[:, 0], numbers[ids])
    np.testing.assert_allclose(tw.quantized_experts(x, packed, ids, format="Q8_0"), want, rtol=1e-4, atol=2e-3)
    with pytest.raises(ShapeError, match=r"quantized_experts: needs x\[S,T,k\] and packed\[experts,n,bytes\]"):
        tw.quantized_experts(x[0], packed, ids, format="Q8_0")
