"""Packed constants: every element where the definition says, the rest zero, and back again."""
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fresh import fresh_rng
from tilewright.build.packing import pack_constants, packed_bytes, packed_shape, unpack
from tilewright.core.errors import CompileError
from tilewright.kernels.launch import Buffer, ConstBuffer, Packed
from tilewright.kernels.quant.panels import LANES, PANELS
from tilewright.kernels.select import stored_bytes
from tilewright.ops import quant
from tilewright.ops.structure import ConstantData


def const(array: np.ndarray, packed: Packed) -> ConstBuffer:
    data = ConstantData(array, "w")
    return ConstBuffer(data, Buffer("w", "const", packed_bytes(data.type, packed)), packed)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 70), st.integers(0, 20), st.sampled_from([1, 4, 16, 64]), st.booleans(), st.sampled_from(["f4", "f8", "i1", "f2"]))
def test_panels_hold_every_element(n: int, k: int, width: int, transposed: bool, kind: str) -> None:
    rng = np.random.default_rng(n * 100 + k)
    w = rng.integers(-100, 100, (n, k)).astype(kind)
    packed = Packed("panels", width, transposed)
    one = const(np.ascontiguousarray(w.T) if transposed else w, packed)
    (got,) = pack_constants([one])
    assert got.shape == packed_shape(one.data.array.shape, packed)
    want = np.zeros((-(-n // width) * width, k), kind)
    want[:n] = w
    np.testing.assert_array_equal(got, want.reshape(-(-n // width), width, k).transpose(0, 2, 1))
    np.testing.assert_array_equal(unpack(got, one.data.type, packed), one.data.array)


def test_plain_constants_stay_where_they_are() -> None:
    w = np.arange(64, dtype=np.float32).reshape(8, 8)
    strided = np.arange(64, dtype=np.float32).reshape(8, 8).T
    kept, copied = pack_constants([const(w, Packed()), const(strided, Packed())])
    assert kept is w
    assert copied.flags.c_contiguous
    assert copied.ctypes.data % 64 == 0
    np.testing.assert_array_equal(copied, strided)


def test_large_constants_are_packed_on_threads_alike() -> None:
    rng = np.random.default_rng(3)
    w = rng.standard_normal((1000, 900)).astype(np.float32)
    one = const(w, Packed("panels", 48))
    (a,), (b,) = pack_constants([one], threads=1), pack_constants([one], threads=3)
    np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(unpack(a, one.data.type, one.packed), w)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(3, 37, 20), (5, 300, 400), (1, 16, 16), (0, 5, 6)])
def test_panels_of_a_stack_follow_one_another(shape: tuple[int, int, int], transposed: bool) -> None:
    """Also where threads take parts of several matrices."""
    w = fresh_rng().standard_normal(shape).astype(np.float32)
    packed = Packed("panels", 16, transposed)
    one = const(w, packed)
    (got,) = pack_constants([one], threads=3)
    parts = [pack_constants([const(np.ascontiguousarray(m), packed)])[0] for m in w]
    assert got.shape == packed_shape(shape, packed) and got.nbytes == stored_bytes(one.data.type, packed)
    np.testing.assert_array_equal(got, np.concatenate(parts) if parts else got)
    np.testing.assert_array_equal(unpack(got, one.data.type, packed), w)


def test_panels_need_a_matrix() -> None:
    with pytest.raises(CompileError, match="panels need a matrix or a stack, and a width"):
        packed_shape((2, 3, 4, 5), Packed("panels", 16))


@pytest.mark.parametrize("name", sorted(PANELS))
def test_panels_give_the_file_back(name: str) -> None:
    """Any bytes, a last panel that is not full, one block and several."""
    rng = fresh_rng()
    fmt = quant.by_name(name)
    for n, blocks in ((1, 1), (16, 2), (37, 3), (0, 1)):
        raw = rng.integers(0, 256, (n, blocks * fmt.bytes)).astype(np.uint8)
        packed = Packed("quantized panels", LANES, False, name)
        one = const(raw, packed)
        (got,) = pack_constants([one])
        np.testing.assert_array_equal(unpack(got, one.data.type, packed), raw)
