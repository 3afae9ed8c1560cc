"""Every block format: equal, bit for bit, to the gguf package's code (and Q8_K, Q1_0, Q2_0 to their definition in words, blocks of
eight-bit floats to PyTorch's casts)."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
import torch

from tests.fresh import fresh_rng
from tilewright.core.errors import InputError
from tilewright.ops import quant
from tilewright.ops.quant import BlockFormat

gguf = pytest.importorskip("gguf", reason="the gguf package is the oracle (pip install tilewright[dev])")

NOT_IN_GGUF = {"Q8_K", "Q1_0", "Q2_0", "I8", "I16", "I32", "I64", "F64"}
FOREIGN = [f for n, f in quant.FORMATS.items() if n not in NOT_IN_GGUF and f.type_id < 1000]
# The gguf package only reads these. Errors relative to normal numbers with a few large ones among them.
ONLY_READ = {"Q2_K": 0.36, "Q3_K": 0.21, "Q4_K": 0.095, "Q5_K": 0.048, "Q6_K": 0.025, "IQ4_NL": 0.106, "IQ4_XS": 0.107, "IQ1_S": 0.58,
             "IQ1_M": 0.53, "IQ2_XXS": 0.43, "IQ2_XS": 0.37, "IQ2_S": 0.32, "IQ3_XXS": 0.235, "IQ3_S": 0.18}
WRITABLE = [f for f in FOREIGN if f.encode and f.name not in ("NVFP4", *ONLY_READ)]


def blocks(fmt: BlockFormat, n: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (n, fmt.bytes), dtype=np.uint8)


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    """Equal bits; which NaN a NaN is may depend on the order in which the processor sees two of them."""
    assert a.dtype == b.dtype == np.float32 and a.shape == b.shape
    nan = np.isnan(a)
    assert np.array_equal(nan, np.isnan(b))
    assert np.array_equal(a.view(np.uint32)[~nan], b.view(np.uint32)[~nan])


def test_the_list_is_complete_and_sized_as_gguf_says() -> None:
    for kind, (elements, size) in gguf.GGML_QUANT_SIZES.items():
        if kind.name == "Q8_1":  # only for activations, in no file
            continue
        fmt = quant.BY_ID[int(kind)]
        assert (fmt.name, fmt.elements) == (kind.name, elements)
        assert fmt.bytes == size


@pytest.mark.parametrize("fmt", FOREIGN, ids=str)
def test_dequantize_is_gguf_bit_for_bit(fmt: BlockFormat) -> None:
    rng = fresh_rng()
    raw = blocks(fmt, 300, rng).reshape(100, 3 * fmt.bytes)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(fmt.type_id))
    assert_same_bits(fmt.dequantize(raw), np.ascontiguousarray(want))


@pytest.mark.parametrize("fmt", WRITABLE, ids=str)
@pytest.mark.parametrize("kind", ["normal", "zero", "one sign", "large", "tiny", "ties"])
def test_quantize_is_gguf_bit_for_bit(fmt: BlockFormat, kind: str) -> None:
    rng = fresh_rng()
    x = rng.standard_normal((24, 3 * fmt.elements * (256 if fmt.elements == 1 else 1))).astype(np.float32)
    x = {
        "normal": x, "zero": x * 0, "one sign": np.abs(x), "large": x * 3e4, "tiny": x * np.float32(1e-9), "ties": np.round(x * 2) / 2,
    }[kind]  # fmt: skip
    with np.errstate(all="ignore"):
        want = gguf.quants.quantize(x, gguf.GGMLQuantizationType(fmt.type_id)).view(np.uint8)
    got = fmt.quantize(x)
    assert np.array_equal(got, want.reshape(got.shape))


@pytest.mark.parametrize("name", ONLY_READ)
def test_searched_scales_keep_the_error_small(name: str) -> None:
    """Read back by the gguf package; zeros, one sign, constants and few large numbers, too."""
    rng, fmt = fresh_rng(), quant.by_name(name)
    kind = gguf.GGMLQuantizationType(fmt.type_id)

    def read(x: np.ndarray) -> np.ndarray:
        packed = fmt.quantize(x)
        return np.asarray(gguf.quants.dequantize(packed, kind)).reshape(x.shape).astype(np.float64)

    x = rng.standard_normal((4 if name.startswith("IQ") else 24, 1024)).astype(np.float32)
    x[:, ::97] *= 4
    assert np.sqrt(((read(x) - x) ** 2).mean() / (x.astype(np.float64) ** 2).mean()) < ONLY_READ[name]
    assert not read(np.zeros((2, 256), np.float32)).any()
    for same in (3.0, -3.0) if name[:3] not in ("IQ1", "IQ2", "IQ3") else ():  # their points have no zero
        np.testing.assert_allclose(read(np.full((1, 256), same, np.float32)), same, rtol=0.5 * ONLY_READ[name] + 0.01)
        one = np.zeros((1, 256), np.float32)
        one[0, 5] = 100 * same
        np.testing.assert_allclose(read(one), one, atol=180 * ONLY_READ[name])
    for scale in (0.02, 1e3):
        assert np.sqrt(((read(x * np.float32(scale)) / scale - x) ** 2).mean()) < 1.2 * ONLY_READ[name] * float(np.sqrt((x**2).mean()))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256])
def test_groups_with_scales_and_zero_points(bits: int, group: int) -> None:
    """What is packed stands for (value - zero) * scale; numbers are rounded to half a step."""
    from tilewright.ops.quant.formats import pack_groups

    rng = fresh_rng()
    q = rng.integers(0, 1 << bits, (3, 2 * group)).astype(np.uint8)
    scale, zero = rng.uniform(0.01, 2, (3, 2)).astype(np.float32), rng.integers(0, 1 << bits, (3, 2))
    rows, name = pack_groups(q, scale, zero, bits, group)
    zeros, scales = (np.repeat(x.astype(np.float64), group, axis=1) for x in (zero, scale))
    np.testing.assert_allclose(quant.by_name(name).dequantize(rows), (q - zeros) * scales, rtol=1e-6, atol=1e-4)
    x = rng.standard_normal((3, 2 * group)).astype(np.float32)
    back = quant.by_name(name).dequantize(quant.by_name(name).quantize(x))
    step = np.ptp(x.reshape(3, 2, group), axis=-1, keepdims=True) / ((1 << bits) - 1)
    assert (np.abs(back - x).reshape(3, 2, group) <= 0.501 * step + 1e-6).all()


@pytest.mark.parametrize("size", [1e-3, 1.0, 300.0])
def test_nvfp4_takes_the_nearest_numbers(size: float) -> None:
    """Read back by the gguf package: scales are the nearest e4m3 of PyTorch, and no other code is closer."""
    x = (fresh_rng().standard_normal((7, 128)) * size).astype(np.float32)
    packed = quant.by_name("NVFP4").quantize(x)
    got = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.NVFP4).reshape(-1, 16)
    rows = x.reshape(-1, 16)
    scale = torch.from_numpy(np.minimum(np.abs(rows).max(1) / np.float32(6), 448)).to(torch.float8_e4m3fn).float().numpy()
    grid = scale[:, None] * np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    best = np.abs(grid[:, None, :] - rows[:, :, None]).min(-1)
    np.testing.assert_array_equal(np.abs(got - rows), best)


def test_bfloat16_keeps_infinities_and_quiets_nan() -> None:
    bits = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0xFFC00000, 0x3F7FFFFF, 0x00000001, 0x3F808000], np.uint32)
    fmt = quant.by_name("bf16")
    want = gguf.quants.quantize(bits.view(np.float32), gguf.GGMLQuantizationType.BF16)
    assert np.array_equal(fmt.quantize(bits.view(np.float32)), want)


def test_q8_k_from_its_definition() -> None:
    rng = fresh_rng()
    fmt = quant.by_name("Q8_K")
    raw = b""
    want = []
    for _ in range(5):
        d, q = float(np.float32(rng.standard_normal())), rng.integers(-128, 128, 256)
        raw += struct.pack("<f256b16h", d, *q, *q.reshape(16, 16).sum(1))
        want.append(np.float32(d) * q.astype(np.float32))
    assert_same_bits(fmt.dequantize(np.frombuffer(raw, np.uint8)), np.concatenate(want))


def test_q8_k_quantize_by_hand() -> None:
    rng = fresh_rng()
    fmt = quant.by_name("Q8_K")
    x = rng.standard_normal((7, 512)).astype(np.float32)
    x[0] = 0
    raw = fmt.quantize(x).reshape(-1, fmt.bytes)
    for row, block in zip(x.reshape(-1, 256), raw, strict=True):
        d, *rest = struct.unpack("<f256b16h", block.tobytes())
        q, sums = np.array(rest[:256]), np.array(rest[256:])
        assert np.array_equal(sums, q.reshape(16, 16).sum(1))
        assert q.min() == (-127 if row.any() else 0)
        assert np.abs(d * q - row).max() <= 0.51 * abs(d)


@pytest.mark.parametrize(("name", "per_byte", "low"), [("Q1_0", 8, None), ("Q2_0", 4, -1)])
def test_one_and_two_bits_from_their_definition(name: str, per_byte: int, low: int | None) -> None:
    rng = fresh_rng()
    fmt = quant.by_name(name)
    raw = blocks(fmt, 9, rng)
    raw[:, :2] = rng.standard_normal((9, 1)).astype(np.float16).view(np.uint8)
    want = np.zeros((9, fmt.elements), np.float32)
    for i in range(9):
        d = np.float32(raw[i, :2].view(np.float16)[0])
        for k in range(fmt.elements):
            q = int(raw[i, 2 + k // per_byte]) >> (8 // per_byte * (k % per_byte)) & (2 ** (8 // per_byte) - 1)
            want[i, k] = (d if q else -d) if low is None else np.float32(q + low) * d
    assert_same_bits(fmt.dequantize(raw), want)


@pytest.mark.parametrize("dtype", ["I8", "I16", "I32", "I64", "F64"])
def test_plain_numbers(dtype: str) -> None:
    fmt = quant.by_name(dtype)
    values = np.arange(-5, 6).astype(fmt.dtype)
    assert np.array_equal(fmt.dequantize(values.view(np.uint8)), values.astype(np.float32))


@pytest.mark.parametrize("name, kind, most", [("F8_E4M3", torch.float8_e4m3fn, 448.0), ("F8_E5M2", torch.float8_e5m2, 57344.0)])
def test_blocks_of_eight_bit_floats_are_those_of_pytorch(name: str, kind: torch.dtype, most: float) -> None:
    """All 256 codes, NaN and infinity too; numbers are written as PyTorch rounds them."""
    rng, fmt = fresh_rng(), quant.by_name(name)
    raw = blocks(fmt, 8, rng)
    raw[:2, 4:] = np.arange(256, dtype=np.uint8).reshape(2, 128)
    scales = rng.uniform(-3, 3, (8, 1)).astype(np.float32)
    raw[:, :4] = scales.view(np.uint8)
    assert_same_bits(fmt.dequantize(raw), torch.from_numpy(raw[:, 4:].copy()).view(kind).to(torch.float32).numpy() * scales)
    x = rng.standard_normal((8, 128)).astype(np.float32)
    packed = fmt.quantize(x)
    d = np.abs(x).max(1, keepdims=True) / np.float32(most)
    np.testing.assert_array_equal(packed[:, :4], d.view(np.uint8))
    want = torch.from_numpy(np.clip(x * (np.float32(1) / d), -most, most)).to(kind).view(torch.uint8).numpy()
    np.testing.assert_array_equal(packed[:, 4:], want)


@pytest.mark.parametrize("fmt", list(quant.FORMATS.values()), ids=str)
def test_shapes_and_errors(fmt: BlockFormat) -> None:
    assert fmt.dequantize(np.zeros((2, 0), np.uint8)).shape == (2, 0)
    assert fmt.dequantize(np.zeros((0, fmt.bytes), np.uint8)).shape == (0, fmt.elements)
    with pytest.raises(InputError, match=f"{fmt.name} is read from u8"):
        fmt.dequantize(np.zeros(fmt.bytes, np.int8))
    if fmt.bytes > 1:
        with pytest.raises(InputError, match=f"rows of a multiple of {fmt.bytes} bytes"):
            fmt.dequantize(np.zeros(fmt.bytes + 1, np.uint8))
    assert pickle.loads(pickle.dumps(fmt)) is fmt
    assert quant.by_name(fmt.name.lower()) is fmt


def test_a_strided_view_is_read_right() -> None:
    rng = fresh_rng()
    fmt = quant.by_name("Q5_K")
    raw = blocks(fmt, 8, rng)
    raw[:, :4] = 0
    assert_same_bits(fmt.dequantize(raw[::2]), fmt.dequantize(raw[::2].copy()))


def test_messages() -> None:
    with pytest.raises(InputError, match="no format 'Q9'; known: F32 F16 Q4_0"):
        quant.by_name("Q9")
    with pytest.raises(InputError, match="Q1_0 can only be read; writable: F32 F16"):
        quant.by_name("Q1_0").quantize(np.zeros(256))
    with pytest.raises(InputError, match="a row must be a multiple of 32 elements, got 33"):
        quant.by_name("Q4_0").quantize(np.zeros(33))
    with pytest.raises(InputError, match="finite numbers only"):
        quant.by_name("Q4_0").quantize(np.full(32, np.nan))


@pytest.mark.parametrize("fmt", [f for f in quant.FORMATS.values() if f.name != "TQ1_0"], ids=str)
def test_every_bit_of_a_block_belongs_to_one_field(fmt: BlockFormat) -> None:
    """And fields written into an empty block are read back: the description is complete, and packing is the inverse of unpacking."""
    owners = np.zeros(8 * fmt.bytes, int)
    for part in fmt.fields():
        for i in range(part.count):
            owners[part.place(i) : part.place(i) + part.width] += 1
    np.testing.assert_array_equal(owners, 1)
    raw = blocks(fmt, 5, fresh_rng())
    again = np.zeros_like(raw)
    for part in fmt.fields():
        part.pack(again, part.unpack(raw))
    np.testing.assert_array_equal(again, raw)


def test_the_comparison_notices_a_wrong_bit() -> None:
    fmt = quant.by_name("Q6_K")
    raw = blocks(fmt, 2, np.random.default_rng(1))
    raw[:, 208:] = np.array([1, 60], np.uint8)
    wrong = raw.copy()
    wrong[1, 17] ^= 1
    with pytest.raises(AssertionError):
        assert_same_bits(fmt.dequantize(raw), fmt.dequantize(wrong))
