"""Formats the gguf package lacks, against ggml's own code inside llama-cpp-python: Q8_K (both ways), Q1_0, Q2_0."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.ops import quant

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is the oracle; it is not installed")


class Traits(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
    ]


def traits(fmt: quant.BlockFormat) -> Any:
    library = next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so*"))
    get = ctypes.CDLL(str(library)).ggml_get_type_traits
    get.restype, get.argtypes = ctypes.POINTER(Traits), [ctypes.c_int]
    found = get(fmt.type_id).contents
    if found.name is None or found.size != fmt.bytes or found.block != fmt.elements:
        pytest.skip(f"this llama.cpp has no {fmt}")
    return found


@pytest.mark.parametrize("name", ["Q1_0", "Q2_0", "Q4_0", "Q8_0", "Q6_K", "IQ4_NL", "TQ2_0", "MXFP4"])
def test_dequantize(name: str) -> None:
    fmt = quant.by_name(name)
    raw = fresh_rng().integers(0, 256, (50, fmt.bytes), dtype=np.uint8)
    want = np.empty((50, fmt.elements), np.float32)
    traits(fmt).to_float(raw.ctypes.data, want.ctypes.data, want.size)
    np.testing.assert_array_equal(fmt.dequantize(raw), want)


def test_q8_k_both_ways() -> None:
    """ggml exports the two functions but keeps no `to_float` for this type, which stands in no file."""
    library = ctypes.CDLL(str(next((Path(llama_cpp.__file__).parent / "lib").glob("libggml-base.so*"))))
    fmt = quant.by_name("Q8_K")
    x = fresh_rng().standard_normal((20, 512)).astype(np.float32)
    want = np.empty((20, 2 * fmt.bytes), np.uint8)
    library.quantize_row_q8_K_ref(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(want.ctypes.data), ctypes.c_int64(x.size))
    packed = fmt.quantize(x)
    np.testing.assert_array_equal(packed, want)
    back = np.empty_like(x)
    library.dequantize_row_q8_K(ctypes.c_void_p(want.ctypes.data), ctypes.c_void_p(back.ctypes.data), ctypes.c_int64(x.size))
    np.testing.assert_array_equal(fmt.dequantize(packed), back)
