"""The CPU target and the interpreter give the same bits: random kernels, plain, optimised and with fused multiply-adds."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.tile.kernels import random_arguments, random_kernel
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import Library, compile_ir
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel, ViewType, local_bytes
from tilewright.tile.passes import DEFAULT, optimise


def run_native(kernel: Kernel, args: list[Any], grid: int, level: Any) -> None:
    target = host_target(level=level)
    library = Library([compile_ir(emit_kernel(kernel, target), target)], [kernel.name])
    words: list[int] = []
    for p, a in zip(kernel.params, args, strict=True):
        if isinstance(p.type, ViewType):
            words += [a.ctypes.data, *(s // a.itemsize for s, known in zip(a.strides, p.type.strides, strict=True) if known is None)]
        else:
            words.append(a)
    block = np.array(words, np.int64)
    scratch = np.full(local_bytes(kernel) + 64, 0xFF, np.uint8)
    aligned = -(-scratch.ctypes.data // 64) * 64
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(library.address(kernel.name))
    function(block.ctypes.data, 0, grid, aligned)
    library.close()


@pytest.mark.parametrize("seed, level", [(0, "native"), (1, "native"), (2, "avx2"), (3, "baseline")])
def test_same_bits(seed: int, level: str) -> None:
    kernel = random_kernel(seed, 14)
    bits = [p for p in DEFAULT if p.name != "fma"]
    for version in (kernel, optimise(kernel, bits), optimise(kernel)):
        expected, got = random_arguments(seed), random_arguments(seed)
        run(version, expected, 2)
        run_native(version, got, 2, level)
        nan = np.isnan(expected[1])
        assert np.array_equal(nan, np.isnan(got[1]))
        assert np.array_equal(np.where(nan, 0, expected[1]).view(np.int32), np.where(nan, 0, got[1]).view(np.int32))
