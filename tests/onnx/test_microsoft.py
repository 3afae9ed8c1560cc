"""com.microsoft against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.onnx.models import agree, helper, info, model, one, ours, peer

MS = "com.microsoft"


def f(*shape: int) -> Any:
    return fresh_rng().standard_normal(shape).astype(np.float32)


def u8(*shape: int) -> Any:
    return fresh_rng().integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> Any:
    return fresh_rng().integers(-128, 128, shape).astype(np.int8)


def s(v: float) -> Any:
    return np.array(v, np.float32)


def z(v: int) -> Any:
    return np.array(v, np.uint8)


IDS = np.array([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], np.int32)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
ROWS = np.array([[1, -1, 3], [0, 12, 2]])  # one counts from the end, one is beyond ten rows
FLOATS: dict[str, Any] = {
    "fused_matmul": lambda: one("FusedMatMul", [f(2, 4, 3), f(2, 4, 5)], domain=MS, transA=1, alpha=0.5),
    "gelu": lambda: one("Gelu", [f(3, 4)], domain=MS),
    "bias_gelu": lambda: one("BiasGelu", [f(3, 4), f(4)], domain=MS),
    "fast_gelu": lambda: one("FastGelu", [f(3, 4), f(4)], domain=MS),
    "quick_gelu": lambda: one("QuickGelu", [f(3, 4)], domain=MS),
    "skip_layer_norm": lambda: one("SkipLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8), f(8)], domain=MS),
    "skip_rms_norm": lambda: one("SkipSimplifiedLayerNormalization", [f(2, 3, 8), f(2, 3, 8), f(8), f(8)], domain=MS),
    "embed": lambda: one("EmbedLayerNormalization", [IDS, IDS % 2, f(10, 8), f(6, 8), f(2, 8), f(8), f(8)], domain=MS, outputs=2),
    "attention_mask": lambda: one("Attention", [f(2, 5, 8), f(8, 24), f(24), MASK], domain=MS, num_heads=2),
    "attention_causal": lambda: one("Attention", [f(2, 5, 8), f(8, 24), f(24)], domain=MS, num_heads=2, unidirectional=1),
    "attention_lengths": lambda: one("Attention", [f(2, 5, 8), f(8, 24), f(24), np.array([3, 5], np.int32)], domain=MS, num_heads=2),
    "mha": lambda: one("MultiHeadAttention", [f(2, 5, 8), f(2, 5, 8), f(2, 5, 8), f(24), MASK], domain=MS, num_heads=2),
    "mha_bias": lambda: one("MultiHeadAttention", [f(2, 5, 8), f(2, 6, 8), f(2, 6, 8), None, None, f(1, 2, 5, 6)], domain=MS, num_heads=2),
    "mha_past": lambda: one("MultiHeadAttention", [f(1, 1, 8), f(1, 1, 8), f(1, 1, 8), None, None, None, f(1, 2, 4, 4), f(1, 2, 4, 4)],
                            domain=MS, outputs=3, num_heads=2),
    "gqa": lambda: one("GroupQueryAttention", [f(2, 3, 32), f(2, 3, 16), f(2, 3, 16), None, None, np.array([2, 2], np.int32),
                                               np.array([3], np.int32)], domain=MS, outputs=3, num_heads=4, kv_num_heads=2),
    "gqa_rotary_past": lambda: one("GroupQueryAttention", [f(1, 1, 64), f(1, 1, 32), f(1, 1, 32), f(1, 2, 4, 16), f(1, 2, 4, 16),
                                                           np.array([4], np.int32), np.array([5], np.int32), f(16, 8), f(16, 8)],
                                   domain=MS, outputs=3, num_heads=4, kv_num_heads=2, do_rotary=1),
    "rotary": lambda: one("RotaryEmbedding", [f(1, 3, 16), np.array([[0, 1, 2]]), f(16, 4), f(16, 4)], domain=MS),
    "rotary_pairs": lambda: one("RotaryEmbedding", [f(1, 2, 3, 8), np.array([[4, 5, 6]]), f(16, 4), f(16, 4)], domain=MS, interleaved=1),
    "integer_to_float": lambda: one("MatMulIntegerToFloat", [u8(3, 8), i8(8, 5), s(0.02), np.abs(f(5)), z(7), i8(5), f(5)], domain=MS),
    "gemm_to_float": lambda: one("QGemm", [u8(3, 8), s(0.02), z(7), i8(8, 5), s(0.01), np.array(3, np.int8)], domain=MS),
    "quantized_attention": lambda: one("QAttention", [u8(2, 5, 8), i8(8, 24), f(24), s(0.01), s(0.02), MASK, z(7), np.array(0, np.int8)],
                                       domain=MS, fixed=(1, 2, 3, 4, 6, 7), num_heads=2),
    "conv_integer_late": lambda: one("ConvInteger", [u8(1, 4, 6, 5), i8(6, 2, 3, 3), z(7), np.array(-3, np.int8)], fixed=(1, 3), group=2,
                                     pads=[1, 2, 0, 1], strides=[2, 1]),
    "fused_conv": lambda: one("FusedConv", [f(1, 3, 6, 6), f(4, 3, 3, 3), f(4)], domain=MS, activation="Relu"),
    "fused_gemm": lambda: one("FusedGemm", [f(3, 4), f(4, 5), f(5)], domain=MS, activation="Relu"),
    **{f"qmoe_{summed}{chosen}": lambda summed=summed, chosen=chosen: one(
        "QMoE", [f(5, 8), f(5, 4), u8(4, 16, 4), np.abs(f(4, 16)) * 0.1, f(4, 16), u8(4, 8, 8), np.abs(f(4, 8)) * 0.1, f(4, 8)]
        + [None] * 6 * chosen + [np.abs(f(5, 4))] * chosen, domain=MS, fixed=(2, 3, 5, 6), k=2, activation_type="relu",
        normalize_routing_weights=summed, expert_weight_bits=4, fc2_expert_weight_bits=4) for summed in (0, 1) for chosen in (0, 1)},
    **{f"rows_of_{bits}_bits": lambda bits=bits: one("GatherBlockQuantized", [u8(10, 4 * bits), ROWS, f(10, 2), u8(10, -(-bits // 4))],
                                                    domain=MS, fixed=(0, 2, 3), bits=bits, block_size=16) for bits in (2, 4, 8)},
    **{f"rows_of_{kind}_{rows}{blocks}": lambda kind=kind, rows=rows, blocks=blocks: small_rows(kind, rows, blocks)
       for kind in ("int4", "uint4") for rows, blocks in ((0, 1), (1, 1), (2, 1), (1, 0))},
    **{f"bnb4_{kind}": lambda kind=kind: one("MatMulBnb4", [f(3, 40), u8(140), np.abs(f(18))], domain=MS, fixed=(1, 2), K=40, N=7,
                                             block_size=16, quant_type=kind) for kind in (0, 1)},
    "quantized_embed": lambda: one("QEmbedLayerNormalization",
                                   [IDS, IDS % 2, u8(10, 8), u8(6, 8), u8(2, 8), u8(8), u8(8), MASK, s(0.02), s(0.03), s(0.01), s(0.05),
                                    s(0.04), z(120), z(130), z(3), z(100), z(128)], domain=MS, fixed=(2, 3, 4, 5, 6, *range(8, 18)),
                                   outputs=2),
    "grid_sample": lambda: one("GridSample", [f(2, 3, 5, 6), np.tanh(f(2, 4, 4, 2))], domain=MS, mode="bicubic", padding_mode="border"),
    **{f"linear_attention_{rule}": lambda rule=rule: linear_attention(rule) for rule in ("linear", "gated", "delta", "gated_delta")},
    "linear_attention_gate": lambda: one("LinearAttentionGate", [f(2, 5, 4), f(4), f(4), f(2, 5, 4)], domain=MS, outputs=2),
    "gated_rms_norm": lambda: one("GatedRMSNorm", [f(2, 5, 16), f(8), f(2, 5, 16)], domain=MS, activation="sigmoid"),
    "gated_add": lambda: one("GatedAdd", [f(2, 5, 4), f(2, 5, 4), f(2, 5, 1)], domain=MS),
    "causal_conv": lambda: one("CausalConvWithState", [f(2, 6, 5), f(6, 1, 4), f(6), f(2, 6, 3)], domain=MS, outputs=2, activation="silu"),
    "causal_conv_channels_last": lambda: one("CausalConvWithState", [f(2, 5, 6), f(6, 1, 4), f(6)], domain=MS, outputs=2, dilation=2,
                                             channels_last=1),
    **{f"rotary_of_three_{layout}": lambda layout=layout: one(
        "MRotaryEmbedding", [f(2, 5, 64), fresh_rng().integers(0, 20, (3, 2, 5)), f(20, 8), f(20, 8)], domain=MS, mrope_section=[4, 2, 2],
        mrope_layout=layout, num_heads=4, rotary_embedding_dim=16) for layout in (0, 1)},
    "inverse": lambda: one("Inverse", [f(3, 4, 4) + 4 * np.eye(4, dtype=np.float32)], domain=MS),
    **{f"distances_{metric}": lambda metric=metric: one("CDist", [f(3, 4), f(5, 4)], domain=MS, metric=metric)
       for metric in ("sqeuclidean", "euclidean")},
    "unfold": lambda: one("UnfoldTensor", [f(3, 7, 5)], domain=MS, dim=1, size=3, step=2),
    **{f"crops_{mode}": lambda mode=mode: one(
        "CropAndResize", [f(2, 3, 7, 9), np.array([[0.1, 0.2, 0.8, 0.9], [-0.2, 0, 1.1, 1.3], [0.9, 0.8, 0.1, 0.2]], np.float32),
                          np.array([0, 1, 1], np.int32), np.array([5, 1], np.int32)], domain=MS, fixed=(3,), mode=mode,
        extrapolation_value=0.7) for mode in ("bilinear", "nearest")},
    "range": lambda: one("Range", [np.float32(2), np.float32(9)], domain=MS, fixed=(0, 1)),
    "pad": lambda: one("Pad", [f(2, 3), np.array([0, 1, 1, 0])], domain=MS, mode="reflect", fixed=(1,)),
    "gather_nd": lambda: one("GatherND", [f(2, 3, 4), np.array([[0, 1], [1, 2]])], domain=MS),
    "expand_dims": lambda: one("ExpandDims", [f(2, 3), np.array(-1, np.int32)], domain=MS, fixed=(1,)),
    "conv_transpose_pads": lambda: one("ConvTransposeWithDynamicPads", [f(1, 3, 5, 5), f(3, 2, 3, 3), np.array([1, 1, 0, 0]), f(2)],
                                       domain=MS, fixed=(2,), strides=[2, 2]),
    "transpose_matmul": lambda: one("TransposeMatMul", [f(2, 4, 3), f(2, 4, 5)], domain=MS, transA=1, alpha=0.5),
}  # fmt: skip


def small_rows(kind: str, rows: int, blocks: int) -> Any:
    number, low = np.dtype(getattr(ml_dtypes, kind)), -8 if kind == "int4" else 0
    scales = [6, 40, 3]
    scales[blocks] = -(-scales[blocks] // 16)
    table, zeros = (fresh_rng().integers(low, low + 16, shape).astype(number) for shape in ((6, 40, 3), scales))
    return one("GatherBlockQuantized", [table, np.array([[1, 2], [0, -1]]), f(*scales), zeros], domain=MS, fixed=(0, 2, 3), block_size=16,
               gather_axis=rows, quantize_axis=blocks)


def linear_attention(rule: str) -> Any:
    keys = f(2, 5, 2, 8)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    gates = -np.abs(f(2, 5, 4)) if "gated" in rule else None, np.abs(f(2, 5, 4)) * 0.3 if "delta" in rule else None
    return one("LinearAttention", [f(2, 5, 16), keys.reshape(2, 5, 16), f(2, 5, 24), f(2, 4, 8, 6), *gates], domain=MS, outputs=2,
               q_num_heads=2, kv_num_heads=4, update_rule=rule)


WORDS = np.array([["", "a", "abcd"], ["hällo", "x" * 37, "abc"]], object)
EXACT: dict[str, Any] = {
    **{f"hash_{a.dtype}_{positive}": lambda a=a, positive=positive: one("MurmurHash3", [a], domain=MS, seed=42, positive=positive)
       for a in (WORDS, np.arange(-3, 3).reshape(2, 3), np.arange(3, dtype=np.int32)) for positive in (0, 1)},
    "unique": lambda: one("Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], domain=MS, outputs=3),
}


@pytest.mark.parametrize("name", EXACT)
def test_steps_of_the_host(name: str) -> None:
    proto, feed = EXACT[name]()
    for a, b in zip(ours(proto, feed), peer(proto, feed), strict=True):
        assert a.dtype == b.dtype and np.array_equal(a, b)


CODES: dict[str, Any] = {
    "add": lambda: one("QLinearAdd", [u8(2, 3), s(0.02), z(10), u8(2, 3), s(0.03), z(5), s(0.05), z(7)], domain=MS),
    "mul": lambda: one("QLinearMul", [u8(2, 3), s(0.02), z(10), u8(2, 3), s(0.03), z(5), s(0.05), z(7)], domain=MS),
    "sigmoid": lambda: one("QLinearSigmoid", [u8(2, 3), s(0.02), z(128), s(1 / 255), z(0)], domain=MS, fixed=(1, 2, 3, 4)),
    "leaky": lambda: one("QLinearLeakyRelu", [u8(2, 3), s(0.02), z(128), s(0.02), z(100)], domain=MS, fixed=(1, 2, 3, 4), alpha=0.1),
    "global_pool": lambda: one("QLinearGlobalAveragePool", [u8(1, 3, 4, 4), s(0.02), z(128), s(0.02), z(100)], domain=MS),
    "pool": lambda: one("QLinearAveragePool", [u8(1, 3, 4, 4), s(0.02), z(128), s(0.02), z(100)], domain=MS, kernel_shape=[2, 2],
                        strides=[2, 2]),
    "pool_channels_last": lambda: one("QLinearAveragePool", [u8(1, 4, 5, 3), s(0.02), z(128), s(0.02), z(100)], domain=MS,
                                      kernel_shape=[2, 3], strides=[2, 1], channels_last=1),
    "conv_channels_last": lambda: one("QLinearConv", [u8(1, 6, 5, 4), s(0.02), z(128), i8(6, 2, 3, 3), np.abs(f(6)) * 0.01, i8(6) * 0,
                                                      s(0.1), z(100)], domain=MS, fixed=(1, 2, 3, 4, 5, 6, 7), channels_last=1, group=2,
                                      pads=[1, 0, 1, 2]),
    "gemm": lambda: one("QGemm", [u8(3, 8), s(0.02), z(7), i8(8, 5), np.abs(f(5)) * 0.02, i8(5), np.arange(5, dtype=np.int32) * 99,
                                   s(0.3), z(9)], domain=MS, fixed=(3, 4, 5, 6), alpha=0.5),
    "gemm_transposed": lambda: one("QGemm", [u8(8, 3), s(0.02), z(7), i8(5, 8), s(0.01), np.array(0, np.int8), None, s(0.3), z(9)],
                                   domain=MS, fixed=(3, 4, 5), transA=1, transB=1),
    "pool_of_pixels": lambda: one("NhwcMaxPool", [u8(2, 9, 8, 3)], domain=MS, kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
    "where": lambda: one("QLinearWhere", [f(2, 3) > 0, u8(2, 3), s(0.02), z(10), u8(2, 1), s(0.03), z(5), s(0.05), z(7)], domain=MS,
                         fixed=(2, 3, 5, 6, 7, 8)),
    "concat": lambda: one("QLinearConcat", [s(0.02), z(3), u8(2, 3), s(0.03), z(5), u8(2, 3), s(0.02), z(3)], domain=MS, axis=0),
    "softmax": lambda: one("QLinearSoftmax", [u8(2, 5), s(0.02), z(128), s(1 / 256), z(0)], domain=MS, fixed=(1, 2, 3, 4), axis=-1, opset=13),  # noqa: E501
}  # fmt: skip


NOTHING = np.array([[0, 0, 0, 0, 0], [0, 1, 1, 1, 1]], np.int32)  # a row of hidden keys alone, one that begins with a hidden key
MASKED: dict[str, Any] = {
    "attention": lambda: one("Attention", [f(2, 5, 8), f(8, 24), f(24), NOTHING], domain=MS, num_heads=2),
    "causal": lambda: one("Attention", [f(2, 5, 8), f(8, 24), f(24), NOTHING], domain=MS, num_heads=2, unidirectional=1),
    "ends_and_starts": lambda: one("Attention", [f(2, 5, 8), f(8, 24), f(24), np.array([3, 5, 1, 2], np.int32)], domain=MS, num_heads=2),
    "past": lambda: one("Attention", [f(2, 2, 8), f(8, 24), f(24), NOTHING, f(2, 2, 2, 3, 4)], domain=MS, num_heads=2, outputs=2,
                        unidirectional=1),
    "mha": lambda: one("MultiHeadAttention", [f(2, 4, 8), f(2, 5, 8), f(2, 5, 6), f(22), NOTHING, f(1, 2, 4, 5)], domain=MS, num_heads=2),
    "decoder": lambda: one("DecoderMaskedMultiHeadAttention",
                           [*[f(2, 1, 8)] * 3, NOTHING, None, f(2, 2, 7, 4), f(2, 2, 7, 4), np.array([4], np.int32), None, None, f(24)],
                           domain=MS, num_heads=2, outputs=3, past_present_share_buffer=1),
    "decoder_bias": lambda: one("DecoderMaskedMultiHeadAttention",
                                [*[f(2, 1, 8)] * 3, None, f(2, 1, 1, 5), f(2, 2, 7, 4), f(2, 2, 7, 4), np.array([4], np.int32)],
                                domain=MS, num_heads=2, outputs=3, past_present_share_buffer=1),
    "decoder_across": lambda: one("DecoderMaskedMultiHeadAttention", [f(2, 1, 8), f(2, 2, 5, 4), f(2, 2, 5, 4), NOTHING], domain=MS,
                                  num_heads=2),
}


@pytest.mark.parametrize("name", MASKED)
def test_a_row_that_sees_nothing_is_as_in_onnx_runtime(name: str) -> None:
    """-10000 is added to the scores of hidden keys, which then differ by 1e-3 at least."""
    agree(*MASKED[name](), tol=5e-3)


@pytest.mark.parametrize("name", FLOATS)
def test_floats(name: str) -> None:
    agree(*FLOATS[name](), tol=2e-5)


@pytest.mark.parametrize("name", CODES)
def test_codes_are_within_one_quantum(name: str) -> None:
    attrs = CODES[name]()
    agree(*attrs, quanta=1)


def test_dynamic_quantize_matmul() -> None:
    agree(*one("DynamicQuantizeMatMul", [f(3, 8), i8(8, 5), np.abs(f(5)), i8(5), f(5)], domain=MS, fixed=(1, 2, 3, 4)), tol=1e-2)


def nbits(bits: int, group: int, *, k: int, n: int, zeros: str = "", bias: bool = False) -> Any:
    blocks = -(-k // group)
    zero = {"": None, "integer": u8(n, -(-blocks * bits // 8)), "float": f(n, blocks)}[zeros]
    return one("MatMulNBits", [f(3, k), u8(n, blocks, group * bits // 8), np.abs(f(n, blocks)) * np.float32(0.1), zero, None,
                               f(n) if bias else None], domain=MS, fixed=(1, 2, 3), K=k, N=n, bits=bits, block_size=group)


@pytest.mark.parametrize("bits, group, options", [
    (4, 16, {"k": 64, "n": 6}), (4, 32, {"k": 96, "n": 7, "zeros": "integer", "bias": True}),
    (4, 64, {"k": 128, "n": 5, "zeros": "integer"}),
    (4, 128, {"k": 256, "n": 6, "zeros": "float"}), (4, 256, {"k": 512, "n": 4}), (4, 32, {"k": 50, "n": 6, "zeros": "integer"}),
    (8, 16, {"k": 32, "n": 5}), (8, 32, {"k": 64, "n": 6, "zeros": "integer", "bias": True}),
    (8, 128, {"k": 128, "n": 3, "zeros": "integer"}),
    (2, 32, {"k": 128, "n": 6}), (2, 64, {"k": 192, "n": 5, "zeros": "integer", "bias": True}),
])  # fmt: skip
def test_matmul_nbits_stays_packed(bits: int, group: int, options: Any) -> None:
    """Right within the rounding of f32 sums, and the session holds quantized values and not floats. Two bits lie in four."""
    import tilewright as tw

    model, feed = nbits(bits, group, **options)
    agree(model, feed)
    bits = max(bits, 4)
    program: Any = tw.compile(model).executable.program
    assert any(f"U{bits}_{group} " in launch.note for launch in program.launches)
    assert sum(c.data.type.nbytes for c in program.constants) < options["n"] * (options["k"] + group) * (bits / 8 + 8 / group) + 64


@pytest.mark.parametrize("bits, group", [(4, 16), (4, 32), (4, 128), (8, 32), (8, 256)])
def test_matmul_nbits_may_round_activations(bits: int, group: int) -> None:
    """At accuracy level 4 activations become eight bits, a scale for every 32 of them; groups of 16 columns stay in f32."""
    import tilewright as tw

    k, n = 512, 21
    rng = fresh_rng()
    x, q, scale = f(5, k), rng.integers(0, 1 << bits, (n, k)).astype(np.uint8), np.abs(f(n, k // group))
    packed = (q[:, 0::2] | (q[:, 1::2] << 4) if bits == 4 else q).reshape(n, k // group, -1)
    model, feed = one("MatMulNBits", [x, packed, scale], domain=MS, fixed=(1, 2), K=k, N=n, bits=bits, block_size=group, accuracy_level=4)
    w = ((q.astype(np.float64) - (1 << bits - 1)).reshape(n, -1, group) * scale[..., None]).reshape(n, k)
    peak = np.repeat(np.abs(x).reshape(5, -1, 32).max(-1), 32, axis=-1)
    session = tw.compile(model)
    got = np.asarray(session(*feed.values()), np.float64)
    error = np.abs(got - x.astype(np.float64) @ w.T)
    integers = any("in integers" in launch.note for launch in session.executable.program.launches)
    assert integers == (group >= 32)
    assert np.all(error <= (0.51 / 127 if integers else 1e-6) * (peak @ np.abs(w).T))
    if integers:
        assert error.max() > 1e-6, "nothing was rounded"


def test_matmul_nbits_with_columns_in_another_order() -> None:
    """ONNX Runtime takes no g_idx on this machine: against the definition. Groups of unequal sizes become floats."""
    import tilewright as tw

    k, n, group = 64, 5, 16
    rng = fresh_rng()
    x, q, scale = f(3, k), rng.integers(0, 16, (n, k)).astype(np.uint8), np.abs(f(n, k // group))
    packed = (q[:, 0::2] | (q[:, 1::2] << 4)).reshape(n, k // group, group // 2)
    even, uneven = rng.permutation(np.arange(k) // group).astype(np.int32), (np.arange(k) * 3 % 7 % 4).astype(np.int32)
    for index in (even, uneven):
        model, feed = one("MatMulNBits", [x, packed, scale, None, index], domain=MS, fixed=(1, 2, 4), K=k, N=n, bits=4, block_size=group)
        want = x.astype(np.float64) @ ((q.astype(np.float64) - 8) * scale[:, index]).T
        np.testing.assert_allclose(tw.compile(model)(*feed.values()), want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    model = one("MatMulNBits", [x, packed, scale, None, even + 1], domain=MS, fixed=(1, 2, 4), K=k, N=n, bits=4, block_size=group)[0]
    with pytest.raises(tw.TilewrightError, match=r"g_idx must hold 64 numbers in 0\.\.3"):
        tw.compile(model)


@pytest.mark.parametrize(("direction", "kind"), [("forward", np.int8), ("bidirectional", np.uint8)])
def test_an_lstm_that_quantizes_its_inputs_and_states(direction: str, kind: Any) -> None:
    """One row: of several, ONNX Runtime quantizes the states of each thread's rows by themselves."""
    n, width, sides = 8, 12, 1 if direction == "forward" else 2
    signed = kind is np.int8
    draw = i8 if signed else u8
    shape = (sides,) if signed else (sides, 4 * n)
    scale = (fresh_rng().random(shape) * 0.01 + 0.002).astype(np.float32)
    zero = np.full(shape, 0 if signed else 121, kind)
    weights = {"w": draw(sides, width, 4 * n), "r": draw(sides, n, 4 * n), "b": f(sides, 8 * n) / 8, "s": scale, "z": zero,
               "p": f(sides, 3 * n) / 8}
    names = ["x", "w", "r", "b", "", "h", "", "p", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "last", "cell"], domain=MS, direction=direction, hidden_size=n)
    for h in (f(sides, 1, n) / 2, np.zeros((sides, 1, n), np.float32)):
        x = f(5, 1, width)
        agree(model([node], [info("x", x, ["T", 1, width]), info("h", h)], ["y", "last", "cell"], weights, domains=[MS]), {"x": x, "h": h})
