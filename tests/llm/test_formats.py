"""Packed formats in kernels: rows unpack to the bits of the gguf package, products are close to f64."""
from __future__ import annotations

from typing import Any

import gguf
import numpy as np
import pytest

import tilewright as tw
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.quant.unpack import can_unpack
from tilewright.ops.packed.products import codebooks
from tilewright.ops.quant import FORMATS

PLAIN = ["F32", "F16", "BF16"]
READABLE = [name for name in FORMATS if can_unpack(name) and (name[0] != "U" or name in ("U4_16", "U4_128", "U8_32"))]


def rows_of(name: str, n: int, k: int, rng: Any) -> Any:
    """Random packed rows: every code occurs, scales are ordinary numbers."""
    fmt = FORMATS[name]
    if name in PLAIN:
        return fmt.quantize(rng.standard_normal((n, k)).astype(np.float32))
    blocks = rng.integers(0, 256, (n, k // fmt.elements, fmt.bytes), dtype=np.uint8)
    for at, _ in fmt.halves():
        blocks[..., at : at + 2] = (rng.standard_normal((n, k // fmt.elements, 1)) * 0.1).astype(np.float16).view(np.uint8)
    for scale in (fmt.scale, fmt.minimum):
        if scale is not None and scale.real.kind == "f32":
            at = scale.real.bits.parts[0].at // 8
            blocks[..., at : at + 4] = (rng.standard_normal((n, k // fmt.elements, 1)) * 0.1).astype(np.float32).view(np.uint8)
    if name == "MXFP4":
        blocks[..., 0] = rng.integers(118, 130, blocks.shape[:2])  # the exponent
    if name.startswith("F8"):
        codes = blocks[..., 4:]
        codes[...] = np.where((codes & 127) >= 124, codes & 0xBF, codes)  # finite
    if name == "IQ1_M":
        blocks[..., 55] = blocks[..., 55] & 15 | 0x20  # the upper bits of the scale, which stands in four nibbles
    return blocks.reshape(n, -1)


def numbers(name: str, rows: Any) -> Any:
    if name in ("F32", "Q8_K", "Q1_0", "Q2_0") or FORMATS[name].type_id >= 1000:  # the package has no dequantizer for these
        return FORMATS[name].dequantize(rows)
    return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name]).astype(np.float32)


@pytest.mark.parametrize("name", READABLE)
def test_rows_unpack_to_the_bits_of_gguf(name: str) -> None:
    rng = np.random.default_rng(1)
    k = 512 if FORMATS[name].elements > 1 else 75
    rows = rows_of(name, 9, k, rng)
    graph = Graph("lookup")
    ids = graph.input(TensorType(dt.i64, (sym("N", 0, 99),)), "ids")
    graph.outputs = [o.QGather(format=name, k=k)(graph.constant(rows, "table"), ids, *map(graph.constant, codebooks(name)))]
    session = tw.compile(graph)
    wanted = np.array([3, 0, 8, 3, 5])
    np.testing.assert_array_equal(session(wanted), numbers(name, rows)[wanted])
    with pytest.raises(tw.ExecutionError, match="index out of range, got 9 at position 1"):
        session(np.array([0, 9]))
    assert session(np.array([], np.int64)).shape == (0, k)


@pytest.mark.parametrize("name", READABLE)
def test_products_are_those_of_the_numbers(name: str) -> None:
    rng = np.random.default_rng(2)
    k, n = (512, 37) if FORMATS[name].elements > 1 else (75, 10)
    rows = rows_of(name, n, k, rng)
    graph = Graph("product")
    x = graph.input(TensorType(dt.f32, (sym("M", 0, 99), k)), "x")
    graph.outputs = [o.QMatmul(format=name, n=n, k=k)(x, graph.constant(rows, "w"), *map(graph.constant, codebooks(name)))]
    session = tw.compile(graph)
    values = rng.standard_normal((5, k)).astype(np.float32)
    got = session(values)
    exact = values.astype(np.float64) @ numbers(name, rows).astype(np.float64).T
    scale = np.abs(values).astype(np.float64) @ np.abs(numbers(name, rows)).astype(np.float64).T
    # f32 sums are within 1e-6 of the sum of absolute values; kernels that round x to 8 bits within 1/127 of each block's largest
    assert np.all(np.abs(got - exact) <= 8e-3 * scale)
    for i in range(5):
        np.testing.assert_array_equal(session(values[i : i + 1]), got[i : i + 1])
    assert session(values[:0]).shape == (0, n)
