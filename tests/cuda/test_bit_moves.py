"""Packed matrices that the GPU lays out by itself: the bytes are those that `pack_constants` makes on the host."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.fake_driver import fake_gpu
from tilewright.build.packing import pack_constants
from tilewright.kernels.launch import Buffer, ConstBuffer, Packed
from tilewright.kernels.quant.cuda.fragments import ROWS
from tilewright.ops import quant
from tilewright.ops.packed.quant_dot import FORMATS
from tilewright.ops.structure import ConstantData, Joined
from tilewright.runtime.cuda.constants import device_constants, host_constants


def constant(data: ConstantData, name: str, form: Packed | None = None) -> ConstBuffer:
    return ConstBuffer(data, Buffer("w", "const", 0, 0), form or Packed("fragments", ROWS, False, name))


def matrix(rng: np.random.Generator, name: str, n: int, columns: int) -> ConstantData:
    fmt = quant.by_name(name)
    raw = rng.integers(0, 256, (n, columns // fmt.elements * fmt.bytes), np.uint8)
    raw.flags.writeable = False
    return ConstantData(raw, name)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_gpu_lays_out_what_the_host_would(name: str, rng: np.random.Generator) -> None:
    """Rows that are no multiple of a strip, units of every size, and matrices that are joined."""
    size = quant.by_name(name).elements
    columns = size * int(rng.integers(1, 4)) if size < 256 else 256 * int(rng.integers(1, 3))
    parts = [matrix(rng, name, int(rng.integers(1, 20)), columns) for _ in range(2)]
    plain = ConstantData(rng.standard_normal(5).astype(np.float32), "plain")
    constants = [constant(parts[0], name), constant(plain, name, Packed()), constant(Joined(parts, 0), name)]
    want = pack_constants(constants)
    with fake_gpu() as gpu:
        arrays = host_constants(constants, 1)
        assert [a is None for a in arrays] == [True, False, True]
        found = device_constants(constants, arrays)
        for memory, array in zip(found, want, strict=True):
            got = gpu.memory.view(memory.address, array.nbytes)
            np.testing.assert_array_equal(got, np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        again = device_constants([constant(Joined(parts, 0), name)], [None])
        assert again[0] is found[2] and len(gpu.launches) == 2  # another program of the model shares it
        assert all(name.startswith("move_") for name in gpu.launches)


@pytest.mark.parametrize("name", ["MXFP4", "NVFP4", "F8_E4M3"])
def test_small_floats_are_laid_out_by_the_host(name: str, rng: np.random.Generator) -> None:
    c = constant(matrix(rng, name, 3, 256), name)
    (array,) = host_constants([c], 1)
    assert array is not None and np.array_equal(array, pack_constants([c])[0])


def test_no_rows_are_no_launch(rng: np.random.Generator) -> None:
    c = constant(matrix(rng, "Q4_0", 0, 64), "Q4_0")
    with fake_gpu() as gpu:
        (memory,) = device_constants([c], host_constants([c], 1))
        assert memory.nbytes == 0 and not gpu.launches
