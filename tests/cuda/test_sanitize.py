"""What runs the device tests under compute-sanitizer, without one: logs are read rightly, and the planted faults are faults."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.emulator import Fault, Heap, run
from tests.cuda.sanitize import reports, spoilt
from tilewright.core.dtypes import f32
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.emit import emit_block_kernel
from tilewright.target.cuda.ptxas import assemble, find_ptxas
from tilewright.tile.builder import KernelBuilder

LOG = """========= COMPUTE-SANITIZER
========= Program hit CUDA_ERROR_INVALID_VALUE (error 1) due to "invalid argument" on CUDA API call to cuPointerGetAttribute.
=========
@@sanitize start tests/a.py::test_one[(1, 2)-f32]
.
========= Invalid __global__ write of size 16 bytes
=========     at softmax_1+0x10
=========     by thread (1,0,0) in block (0,0,0)
=========
@@sanitize end passed tests/a.py::test_one[(1, 2)-f32]
========= Error: Race reported between Write access at gemm+0x70 and Read access at gemm+0xf0 [508 hazards]
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
=================== 1 passed ===================
"""


def test_logs_are_read() -> None:
    write, race = reports(LOG)
    assert write[:2] == ("tests/a.py::test_one[(1, 2)-f32]", "Invalid __global__ write of size # bytes")
    assert write[2].splitlines()[-1].endswith("by thread (1,0,0) in block (0,0,0)")
    assert race[1].startswith("Error: Race reported between Write access at gemm+#")


FOUND = {"memcheck": "outside every buffer", "racecheck": "races with another", "synccheck": ""}  # the last is not emulated


@pytest.mark.parametrize("tool, found", FOUND.items())
def test_planted_faults_are_faults(tool: str, found: str, rng: np.random.Generator) -> None:
    b = KernelBuilder("turned")
    x, y = b.view("x", f32, (64, 1)), b.view("y", f32, (64, 1))
    s = b.scratch(f32, (64, 65), "shared")
    b.store(s, [0, 0], b.load(x, [0, 0], (64, 64)))
    b.store(y, [0, 0], b.load(s, [0, 0], (64, 64), axes=(1, 0)))
    k = b.build()
    text = emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=64, programs=1), cuda_target())
    heap, out = Heap(), np.zeros((64, 64), np.float32)
    words = [heap.add(rng.standard_normal((64, 64)).astype(np.float32)), heap.add(out)]
    run(text, heap, words, 1, 64)
    worse = spoilt(tool, text)
    if find_ptxas() is not None:
        assemble(worse, "sm_90a")
    assert worse != text
    if found:
        with pytest.raises(Fault, match=found):
            run(worse, heap, words, 1, 64)
