"""Native functions called from kernels: text, rules, passes, interpreter and machine code; names that programs keep; SciPy's LAPACK."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.launching import graph
from tests.fresh import fresh_rng
from tests.session.saved import header_of
from tests.tile.test_against_cpu import run_native
from tests.tile.test_verify import build
from tilewright.core import natives
from tilewright.core.dtypes import f32, f64, i32
from tilewright.core.errors import CompileError, VerifyError
from tilewright.kernels.call import Call
from tilewright.kernels.launch import Native
from tilewright.ops.linalg.spectra import Svd
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel
from tilewright.tile.parse import parse
from tilewright.tile.passes import optimise
from tilewright.tile.text import to_text
from tilewright.tile.verify import verify


def libc(name: str) -> Any:
    function = getattr(ctypes.CDLL(None), name, None)
    return None if function is None else ctypes.cast(function, ctypes.c_void_p).value


@pytest.fixture
def library() -> Iterator[None]:
    before = dict(natives.LIBRARIES)
    natives.LIBRARIES.pop("libc", None)
    natives.provide("libc", libc)
    yield
    natives.LIBRARIES.clear()
    natives.LIBRARIES.update(before)


def natively(kernel: Kernel, args: list[Any], grid: int) -> None:
    run_native(kernel, args, grid, "native")


def copying(lanes: int = 8) -> Kernel:
    """Row by row through memory of its own: what the kernel stored is what the function reads, and the other way round."""
    b = KernelBuilder("copying")
    x, y, function = b.view("x", f32, (None, 1)), b.view("y", f32, (None, 1)), b.index("libc.memcpy")
    own = b.scratch(f32, (lanes,))
    b.store(own, (0,), b.load(x, (b.pid, 0), (lanes,)) * 2.0)
    b.call(function, b.subview(y, (b.pid, 0), (1,)), own, 4 * lanes)
    b.call(function, own, b.subview(x, (b.pid, 0), (1,)), 4)
    b.store(y, (b.pid, 1), b.load(own, (0,), (1,)))
    return b.build()


def test_same_bits_as_the_interpreter() -> None:
    x = fresh_rng().standard_normal((3, 8)).astype(np.float32)
    want = x * 2
    want[:, 1] = x[:, 0]
    kernel = copying()
    verify(kernel)
    assert to_text(parse(to_text(kernel))) == to_text(kernel)
    assert "call %libc.memcpy, %" in to_text(kernel)
    for version in (kernel, optimise(kernel)):
        for way in (run, natively):
            y = np.zeros_like(x)
            way(version, [x, y, libc("memcpy")], 3)
            np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(("body", "message"), [
    ("call", "needs the address of a function"),
    ("call %x, %n {kinds=(\"i64\",)}", "needs an index operand"),
    ("%0 = full {value=0.0} : tile<8xf32>\ncall %n, %0 {kinds=(\"i64\",)}", "needs an index operand"),
    ("%0 = full {value=0.0} : tile<8xf32>\ncall %n, %0 {kinds=(\"f32\",)}", "needs a number of f32"),
    ("call %n, %n {kinds=(\"ptr\",)}", "a pointer is a view"), ("call %n, %x", "one operand for each of"),
    ("call %n, %x {kinds=(\"text\",)}", "kinds are of ptr i64"),
    ("call %n, %x {fast=true}", "has no attribute 'fast'"),
    ("%0 = call %n, %x {kinds=(\"ptr\",)} : index", "gives 0 results"),
])  # fmt: skip
def test_rules(body: str, message: str) -> None:
    with pytest.raises(VerifyError, match=message):
        build(body)


def test_names(library: None) -> None:
    call = Call("k", "k")
    call.native("libc.memcpy")
    assert call.finish(1).arguments == (Native("libc.memcpy"),)
    assert natives.address("libc.memcpy") == libc("memcpy")
    with pytest.raises(CompileError, match="the library libc has no function 'frobnicate'"):
        natives.address("libc.frobnicate")
    with pytest.raises(CompileError, match=r"no library 'libm' for 'libm\.sin'; there are lapack, libc"):
        natives.address("libm.sin")
    with pytest.raises(CompileError, match="needs a new name"):
        natives.provide("libc", libc)


def test_lapack_in_the_interpreter() -> None:
    """The function itself: A = L L.T, in columns."""
    b = KernelBuilder("factor")
    a, n, function = b.view("a", f32, (None, 1)), b.view("n", i32, (1,)), b.index("lapack.spotrf")
    letter, info = b.scratch(i32, (1,)), b.scratch(i32, (1,))
    b.store(letter, (0,), b.full((), ord("U"), i32))
    b.call(function, letter, n, a, n, info)
    x = fresh_rng().standard_normal((5, 5)).astype(np.float32)
    x = x @ x.T + 5 * np.eye(5, dtype=np.float32)
    want = np.linalg.cholesky(x)
    for way in (run, natively):
        got = x.copy()
        way(b.kernel, [got, np.array([5], np.int32), natives.address("lapack.spotrf")], 1)
        np.testing.assert_allclose(np.tril(got), want, rtol=1e-5)


def test_a_saved_session_keeps_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = fresh_rng().standard_normal((3, 6, 4))
    session: Any = tw.compile(graph(lambda v: Svd()(v), (f64, x.shape)))
    want = session(x)
    session.save(tmp_path / "svd.tw")
    _, header = header_of(tmp_path / "svd.tw")
    assert '["n","lapack.dgesdd"]' in json.dumps(header, separators=(",", ":"))
    asked: list[str] = []
    before = natives.LIBRARIES["lapack"]

    def ask(name: str) -> int | None:
        asked.append(name)
        return before(name)

    monkeypatch.setitem(natives.LIBRARIES, "lapack", ask)
    loaded: Any = tw.load(tmp_path / "svd.tw")
    assert all(np.array_equal(a, b) for a, b in zip(loaded(x), want, strict=True))
    assert asked == ["dgesdd"]


def test_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    natives._lapack.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    with pytest.raises(CompileError, match=r"SciPy's LAPACK; install it with: pip install 'tilewright\[linalg\]'"):
        tw.linalg.svdvals(np.eye(11, 13))
    assert tw.linalg.cholesky(np.eye(3)).shape == (3, 3)


def test_one_module_of_scipy_is_loaded() -> None:
    """In a new process: `scipy.linalg` would take longer to import than everything else."""
    code = ("import sys, numpy as np, tilewright as tw\n"
            "assert not any(m.startswith('scipy') for m in sys.modules)\n"
            "print(tw.linalg.svdvals(np.eye(2)), 'scipy.linalg' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[1.", "1.]", "False"]
