"""What runs the device tests' calls under compute-sanitizer, without one: calls are made again as they were, logs are read rightly, and the
planted faults are faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.emulator import Fault, Heap, run
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import graph
from tests.cuda.recorded import Entry, Recorder, contents, in_order, read, replay, temporaries_apart
from tests.cuda.sanitize import finished, reports, spoilt
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32, i64
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.threads.emit import emit_block_kernel
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


def test_tests_are_whole_when_all_their_calls_were_made(tmp_path: Path) -> None:
    lines = ["end passed a[x y]", "calls 1 a[x y]", "calls 2 a[x y]", "written 0 a[x y]", "end passed b", "calls 3 b", "written 0 b",
             "end failed c", "written 0 c", "end passed d"]  # fmt: skip
    (tmp_path / "tests.000.log").write_text("".join(f"\n@@sanitize {line}\n" for line in lines))
    (tmp_path / "racecheck.000.calls.log").write_text("@@sanitize made 1 2xsame 0.50 a[x y]\n@@sanitize made 3 1xunshared 0 b\n")
    assert finished("racecheck", tmp_path) == {"b"} and not finished("memcheck", tmp_path)


def test_calls_are_made_again(tmp_path: Path, rng: np.random.Generator) -> None:
    """Sizes that change, a temporary value, a kernel that finds bad data; nothing twice."""
    recorder = Recorder(tmp_path)
    with fake_gpu() as fake, recorder.recording():
        s = sym("S", 1, 9)
        session = tw.compile(graph(lambda x: o.CumSum(axis=1)(o.CumSum(axis=0)(x)), (f32, (s, 30))), target="cuda")
        given = [rng.standard_normal((n, 30)).astype(np.float32) for n in (5, 3)]
        for x in (*given, *given):
            session(x)
        assert len(recorder.write("one")) == 1
        session(given[0])
        assert recorder.write("another") == []
        rows = tw.compile(graph(lambda t, i: o.Gather(axis=0)(t, i), (f32, (5, 4)), (i64, (2,))), target="cuda")
        rows(np.zeros((5, 4), np.float32), np.array([4, 5]))
        assert len(recorder.write("a third")) == 1
        launched = fake.launches
    sums, bad = (read(tmp_path, e.name) for e in sorted(contents(tmp_path), key=lambda e: -e.calls))
    assert (sums.test, bad.test) == ("one", "a third")
    with fake_gpu() as fake, temporaries_apart():
        assert replay(sums) == ["same", "same"] and replay(bad) == ["failed"]
        assert fake.launches == launched[:4] + launched[-1:]
        sums.calls[0].inputs[0][2] ^= 0x40
        assert replay(sums) == ["other", "same"]


def test_every_kernel_is_seen_first() -> None:
    def entry(name: str, nbytes: int, seconds: float, *kernels: str) -> Entry:
        return Entry(name, "", 1, seconds, nbytes, {k: {"shared": k.isupper()} for k in kernels})

    entries = [entry("d", 4, 1, "A"), entry("c", 3, 2, "B", "x"), entry("b", 2, 9, "A", "y"), entry("a", 1, 0, "A")]
    assert [e.name for e in in_order(entries, "shared", backwards=False)] == ["a", "c", "b", "d"]
    assert [e.name for e in in_order(entries, "", backwards=True)] == ["a", "b", "c", "d"]


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
