"""Ready times: import, a session's call, a block and GPT-2 cold, from the cache and from a saved session. Every one in fresh processes."""
from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from acceptance_common import Check, Setup, child, gpt2, tokens
from torch import nn

import tilewright as tw

IMPORT = "import time; t = time.perf_counter(); import tilewright; print(time.perf_counter() - t)"


def import_time(setup: Setup) -> Iterator[Check]:
    child(IMPORT)  # page cache
    times = [float(child(IMPORT)[0]) for _ in range(setup.pick(9, 2))]
    yield Check("import tilewright", statistics.median(times), 0.4, "s", detail=f"worst {max(times):.3f}")


def identity_call(setup: Setup) -> Iterator[Check]:
    x = torch.randn(8)
    session = tw.compile(nn.Identity(), (x,))
    for name, value in (("torch", x), ("numpy", x.numpy())):
        own = tw.compile(nn.Identity(), (x,)) if name == "numpy" else session
        times = []
        for _ in range(setup.pick(40, 5)):
            for _ in range(100):
                own(value)
            start = time.perf_counter()
            for _ in range(1000):
                own(value)
            times.append((time.perf_counter() - start) * 1e3)  # 1000 calls: milliseconds are microseconds a call
        yield Check(f"identity session, {name}", statistics.median(times), 5.0, "us", detail=f"best {min(times):.2f}")


# The clock starts when the ExportedProgram is there and stops at the first output. `first` runs an unrelated export before.
BLOCK = """
import sys, time, torch, warnings
from acceptance_common import Block, export
import tilewright as tw
d, s, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
module, x = Block(d).eval(), torch.randn(1, s, d)
if how != "fresh":
    program = export(module, (x,))
t = time.perf_counter()
session = tw.compile(program) if how == "program" else tw.compile(module, (x,))
y = session(x)
print(time.perf_counter() - t, float((y - module(x)).abs().max()))
"""


def block_cold(setup: Setup) -> Iterator[Check]:
    for d, s in setup.pick([(64, 32), (256, 128), (768, 512)], [(64, 32)]):
        for how, limit in (("program", 1.5), ("module", 1.5), ("fresh", None)):
            times = []
            for _ in range(setup.pick(3, 1)):
                with tempfile.TemporaryDirectory() as empty:
                    seconds, error = map(float, child(BLOCK, str(d), str(s), how, TILEWRIGHT_CACHE_DIR=empty))
                if not error < 1e-3:
                    raise RuntimeError(f"block d {d} s {s} is wrong by {error}")
                times.append(seconds)
            what = {"program": "ExportedProgram", "module": "module", "fresh": "module, torch.export imported too"}[how]
            yield Check(f"block d {d} s {s} cold, from {what}", statistics.median(times), limit, "s", detail=f"worst {max(times):.2f}")


GPT2 = """
import sys, time, torch
from acceptance_common import export, gpt2, tokens
import tilewright as tw
small = sys.argv[1] == "1"
module, x = gpt2(small), tokens(small, 1, 64)
program = export(module, (x,))
if sys.argv[2] == "supplied":  # memory that this machine has just used: a virtual one may have to ask its host for any other
    import ctypes, mmap
    block = mmap.mmap(-1, 700 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    block.madvise(mmap.MADV_HUGEPAGE)
    first = ctypes.c_char.from_buffer(block)
    ctypes.memset(ctypes.addressof(first), 1, len(block))
    del first
    block.close()
t = time.perf_counter()
session = tw.compile(program)
ready = time.perf_counter() - t
y = session(x)
print(ready, time.perf_counter() - t, float((y - module(x)).abs().max()), session.executable.code.compiled)
print(*(f"{k}={v:.2f}" for k, v in session.model.stages.items()))
"""


def _gpt2(setup: Setup, cache: str, bytecode: bool = True, memory: str = "any") -> tuple[float, float, int, str]:
    ready, first, error, compiled, *stages = child(GPT2, str(int(setup.small)), memory, bytecode=bytecode, TILEWRIGHT_CACHE_DIR=cache)
    if not float(error) < 1e-3:
        raise RuntimeError(f"GPT-2 is wrong by {error}")
    return float(ready), float(first), int(compiled), " ".join(stages)


def gpt2_cold(setup: Setup) -> Iterator[Check]:
    found = []
    for _ in range(setup.pick(3, 1)):
        with tempfile.TemporaryDirectory() as empty:
            found.append(_gpt2(setup, empty))
    ready, first, compiled, stages = sorted(found)[len(found) // 2]
    yield Check("GPT-2 ready, cold", ready, 4.0, "s", detail=f"{compiled} kernels compiled; {stages}")
    yield Check("GPT-2 ready, cold, and first output", first, None, "s")


def gpt2_from_cache(setup: Setup) -> Iterator[Check]:
    with tempfile.TemporaryDirectory() as cache:
        _gpt2(setup, cache)
        found = [_gpt2(setup, cache) for _ in range(setup.pick(5, 1))]
        supplied = [_gpt2(setup, cache, memory="supplied") for _ in range(setup.pick(5, 1))]
        bare = [_gpt2(setup, cache, bytecode=False)[0] for _ in range(setup.pick(3, 1))]
    ready, first, compiled, stages = sorted(found)[len(found) // 2]
    times = f"best {min(found)[0]:.2f}, worst {max(found)[0]:.2f}"
    yield Check("GPT-2 ready, from the cache", ready, 0.8, "s", detail=f"{times}; {compiled} kernels compiled; {stages}")
    yield Check("GPT-2 ready, from the cache, and first output", first, None, "s")
    ready, first, _, stages = sorted(supplied)[len(supplied) // 2]
    times = f"best {min(supplied)[0]:.2f}, worst {max(supplied)[0]:.2f}; first output {first:.2f}"
    yield Check("GPT-2 ready, from the cache, memory at hand", ready, 0.8, "s", detail=f"{times}; {stages}")
    yield Check("GPT-2 ready, from the cache, without byte code", statistics.median(bare), None, "s", detail=f"best {min(bare):.2f}")


SAVED = """
import sys, time
import numpy as np
import tilewright as tw
session = tw.load(sys.argv[1])
y = session(np.load(sys.argv[2]))
end = time.monotonic()
assert not session.model.notes and "torch" not in sys.modules, session.model.notes
print(end, bool(np.array_equal(y, np.load(sys.argv[3]))))
"""


def gpt2_saved(setup: Setup) -> Iterator[Check]:
    import numpy as np

    x = tokens(setup.small, 1, 16)
    module = gpt2(setup.small)
    session = tw.compile(module, (x,), dynamic={"x": {1: tw.Dim("S", 1, 1024)}})
    with tempfile.TemporaryDirectory() as folder:
        paths = [str(Path(folder) / n) for n in ("gpt2.tw", "ids.npy", "want.npy")]
        start = time.perf_counter()
        session.save(paths[0])
        saving = time.perf_counter() - start
        np.save(paths[1], x.numpy())
        np.save(paths[2], session(x).numpy())
        times = []
        for k in range(setup.pick(8, 2)):
            start = time.monotonic()
            end, same = child(SAVED, *paths)
            if same != "True":
                raise RuntimeError("a loaded session gives other bits")
            if k:  # the first one warms the page cache
                times.append(float(end) - start)
        size = Path(paths[0]).stat().st_size / 2**20
    yield Check("GPT-2 saved: process start to first output", statistics.median(times), 0.8, "s",
                detail=f"worst {max(times):.2f}; file {size:.0f} MiB, saved in {saving:.1f} s; same bits, no torch")
