"""TILEWRIGHT_CHECKS=1: kernels that leave a buffer are caught before they do, whatever way they access it; others give the same bits."""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tests.session.handmade import signature
from tilewright.array.machine import kernel_of
from tilewright.build.code import compile_kernels
from tilewright.core.dtypes import f32, i32, i64
from tilewright.core.errors import ConfigError, ExecutionError
from tilewright.ir.graph import Graph
from tilewright.ir.layout import Layout
from tilewright.ir.types import TensorType
from tilewright.kernels.call import Call
from tilewright.kernels.launch import Buffer, Program
from tilewright.runtime.executable import CpuExecutable
from tilewright.runtime.session import Model, Session
from tilewright.target.cpu.bounds import checked_entry
from tilewright.target.cpu.cache import object_key
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import Library, compile_ir

N = 100
Body = Callable[[Any, Any, Any], None]


@pytest.fixture(autouse=True)
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CHECKS", "1")


def session_of(body: Body, grid: int = 1, level: Any = None) -> Session:
    """x -> temp -> y by a copy and the kernel `body(builder, temp, y)`. All are f32[100]; a broken body would meet memory of others."""
    n, size, shape = N, 4 * N, Layout.contiguous((N,))
    x, t, y = Buffer("x", "input", size, 0), Buffer("t", "temp", size), Buffer("y", "output", size, 0)
    first = Call("copy", "first")
    source, to = first.view("x", f32, x, shape), first.view("t", f32, t, shape, write=True)
    first.b.store(to, (first.b.pid,), first.b.load(source, (first.b.pid,), ()))
    second = Call("body", "second")
    source, to = second.view("t", f32, t, shape), second.view("y", f32, y, shape, write=True)
    body(second.b, source, to)
    program = Program([x], [y], [], [t], [first.finish(n), second.finish(grid)])
    graph, target = Graph("broken"), host_target(level=level)
    graph.outputs = [graph.input(TensorType(f32, (n,)), "x")]
    model = Model("broken", graph, signature("x"), target)
    code = compile_kernels([k for launch in program.launches for k in launch.kernels], target)
    return Session(model, CpuExecutable(program, model.interface, code, []), threads=1)


def whole(b: Any, x: Any, y: Any) -> None:
    b.store(y, (0,), b.load(x, (0,), (N,)))


def limited(b: Any, x: Any, y: Any) -> None:
    b.store(y, (96,), b.load(x, (96,), (16,), limit=(4,)), limit=(4,))
    b.store(y, (1000,), b.load(x, (1000,), (16,), limit=(0,)), limit=(-7,))
    b.store(y, (0,), b.load(x, (0,), (96,)))


def load_behind(b: Any, x: Any, y: Any) -> None:
    b.store(y, (0,), b.load(x, (1,), (N,)))


def load_one_behind_the_limit(b: Any, x: Any, y: Any) -> None:
    b.store(y, (96,), b.load(x, (96,), (16,), limit=(5,)), limit=(4,))


def store_before(b: Any, x: Any, y: Any) -> None:
    b.store(y, (-1,), b.load(x, (0,), (16,)))


def store_far(b: Any, x: Any, y: Any) -> None:
    b.store(y, (1 << 40,), b.load(x, (0,), ()))


def gather_behind(b: Any, x: Any, y: Any) -> None:
    b.store(y, (0,), b.gather(x, (0,), 0, b.cast(b.iota((16,), 0) * 7, i32)))


def local_behind(b: Any, x: Any, y: Any) -> None:
    local = b.scratch(f32, (16,))
    b.store(local, (1,), b.load(x, (0,), (16,)))
    b.store(y, (0,), b.load(local, (0,), (16,)))


def last_program(b: Any, x: Any, y: Any) -> None:
    b.store(y, (b.pid + 1,), b.load(x, (b.pid,), ()))


FINE = {"whole": whole, "limited": limited}
BROKEN: dict[str, tuple[Body, int, str]] = {
    "load": (load_behind, 1, r"byte 400 of argument 0 \(temp:t\), which has 400 bytes, in program 0"),
    "limit": (load_one_behind_the_limit, 1, r"byte 400 of argument 0 \(temp:t\), which has 400 bytes, in program 0"),
    "store": (store_before, 1, r"byte -4 of argument 1 \(output:y\), which has 400 bytes, in program 0"),
    "far": (store_far, 1, r"byte 4,398,046,511,104 of argument 1 \(output:y\), which has 400 bytes, in program 0"),
    "gather": (gather_behind, 1, r"byte 420 of argument 0 \(temp:t\), which has 400 bytes, in program 0"),
    "local": (local_behind, 1, r"byte 64 of its local memory, in program 0"),
    "program": (last_program, N, r"byte 400 of argument 1 \(output:y\), which has 400 bytes, in program 99"),
}


@pytest.mark.parametrize("level", ["native", "baseline"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_kernel_is_caught(name: str, level: str) -> None:
    body, grid, what = BROKEN[name]
    session = session_of(body, grid, level)
    for _ in range(3):
        with pytest.raises(ExecutionError, match=rf"checks: kernel body_\w+ of launch 1 \(second\) must stay inside its buffers, "
                                                 rf"got {what}; this is a defect of Tilewright, report it with the model \(in broken\)"):
            session(fresh_rng().standard_normal(N).astype(np.float32))


@pytest.mark.parametrize("level", ["native", "baseline"])
@pytest.mark.parametrize("name", FINE)
def test_a_right_kernel_is_not(name: str, level: str) -> None:
    session, x = session_of(FINE[name], 1, level), fresh_rng().standard_normal(N).astype(np.float32)
    np.testing.assert_array_equal(session(x), x)


class Model1(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.first, self.second = torch.nn.Embedding(50, 24), torch.nn.Linear(24, 70), torch.nn.Linear(70, 9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.first(self.table(ids)))
        return torch.softmax(self.second(x).flip(-1)[..., ::2], -1).cumsum(-1)


def test_checked_code_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, ids = Model1().eval(), torch.randint(0, 50, (7, 11))
    dynamic = {"ids": {0: tw.Dim("n", 0, 100)}}
    session = tw.compile(model, (ids,), dynamic=dynamic)
    assert session.executable is not None and session.executable.code.checked
    monkeypatch.setenv("TILEWRIGHT_CHECKS", "0")
    plain = tw.compile(model, (ids,), dynamic=dynamic)
    assert plain.executable is not None and not plain.executable.code.checked
    for n in (7, 1, 0, 64):
        ids = torch.randint(0, 50, (n, 11))
        assert torch.equal(session(ids), plain(ids))
    with pytest.raises(ExecutionError, match="index out of range"):
        session(torch.full((3, 11), 50))


@pytest.mark.parametrize("form, name", [("elements", "add"), ("rows", "sum"), ("columns", "max"), ("arg_rows", "argmin")])
def test_eager_kernels_are_checked(form: str, name: str) -> None:
    inputs = 2 if form == "elements" else 1
    out = i64 if form == "arg_rows" else f32
    address = kernel_of.__wrapped__(form, name, (f32,) * inputs, out)
    a, b, c = 5, 7, 1 if form != "columns" else 3
    x = fresh_rng().standard_normal((inputs, a, b, c)).astype(np.float32)
    y = np.zeros(a * b if form == "elements" else a * c, out.np)
    at = [v.ctypes.data for v in x]
    words = {"elements": [*at, y.ctypes.data, a * b], "rows": [*at, b, y.ctypes.data, a, b], "arg_rows": [*at, b, y.ctypes.data, b, a],
             "columns": [*at, c * b, c, y.ctypes.data, c, b, a, c]}[form]
    given, scratch = np.array(words, np.int64), np.zeros(1 << 16, np.uint8)
    kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p])(address)
    for program in range(a * b if form == "elements" else a * c):  # those behind the last one have nothing to do, or trap
        if not y.all():
            kernel(given.ctypes.data, program, program + 1, scratch.ctypes.data)
    wanted = {"elements": lambda: x.sum(0), "rows": lambda: x[0].sum(1), "arg_rows": lambda: x[0].argmin(1), "columns": lambda: x[0].max(1)}
    np.testing.assert_allclose(y, wanted[form]().reshape(-1), rtol=1e-5, atol=1e-6)


def test_checked_eager_kernels_read_rows_from_the_last_one_on() -> None:
    """A view from the end reaches below its address: its bounds come from its strides."""
    x = np.arange(12, dtype=np.float32)[:, None] + np.arange(5, dtype=np.float32)
    for a in (x[::-1], x[:, 1:], x[::-2, :3]):
        y = np.zeros(a.shape[1], np.float32)
        words = np.array([a.ctypes.data, 0, a.strides[0] // 4, y.ctypes.data, len(y), len(a), 1, len(y)], np.int64)
        kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p])
        scratch = np.zeros(1 << 16, np.uint8)
        kernel(kernel_of.__wrapped__("columns", "sum", (f32,), f32))(words.ctypes.data, 0, 1, scratch.ctypes.data)
        np.testing.assert_array_equal(y, a.sum(0))


@pytest.mark.parametrize("elements, status", [(16, 0), (15, signal.SIGILL)])
def test_callers_that_tell_no_bounds_trap(elements: int, status: int) -> None:
    call = Call("body", "one")
    x, y = (Buffer(n, "input", 64, k) for k, n in enumerate("xy"))
    source, to = call.view("x", f32, x, Layout.contiguous((16,))), call.view("y", f32, y, Layout.contiguous((16,)), write=True)
    whole_row(call.b, source, to)
    target, kernel = host_target(), call.finish(1).kernel
    text = emit_kernel(kernel, target) + checked_entry("entry", kernel.name, 2, [(0, [], 4 * elements), (1, [], 64)])
    library = Library([compile_ir(text, target)], ["entry"])
    memory = np.arange(32, dtype=np.float32)
    words = np.array([memory.ctypes.data, memory.ctypes.data + 64], np.int64)
    entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p])(library.address("entry"))
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        entry(words.ctypes.data, 0, 1, 0)
        os._exit(0 if (memory[16:] == memory[:16]).all() else 1)
    found = os.waitpid(child, 0)[1]
    assert found == status


def whole_row(b: Any, x: Any, y: Any) -> None:
    b.store(y, (0,), b.load(x, (0,), (16,)))


def test_loops_are_checked_in_every_iteration() -> None:
    x = fresh_rng().standard_normal((9, 5)).astype(np.float32)
    out, ys = tw.jit(lambda x: tw.scan(lambda c, row: (c + row, c * 2), np.zeros(5, np.float32), x))(x)
    np.testing.assert_allclose(out, x.sum(0, dtype=np.float64), atol=1e-5)
    np.testing.assert_allclose(ys[1:], 2 * np.cumsum(x.astype(np.float64), 0)[:-1], atol=1e-5)


def test_a_saved_session_keeps_its_kind_of_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model, x = torch.nn.Linear(6, 4), torch.randn(3, 6)
    tw.compile(model, (x,)).save(tmp_path / "checked.tw")
    same = tw.load(tmp_path / "checked.tw")
    assert same.executable is not None and same.executable.code.checked and not same.model.notes
    monkeypatch.setenv("TILEWRIGHT_CHECKS", "0")
    other = tw.load(tmp_path / "checked.tw")
    assert other.executable is not None and not other.executable.code.checked and "compiled again" in other.model.notes[0]
    for session in (same, other):
        torch.testing.assert_close(session(x), model(x).detach())


def test_checked_code_has_entries_of_its_own_in_the_cache() -> None:
    target = host_target()
    assert target.checks and object_key("x", target) != object_key("x", dataclasses.replace(target, checks=False))


def test_the_setting_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CHECKS", "yes")
    with pytest.raises(ConfigError, match="config: TILEWRIGHT_CHECKS must be 0 or 1, got 'yes'"):
        host_target()
