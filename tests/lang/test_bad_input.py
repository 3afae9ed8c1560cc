"""What is wrong with a kernel, its arguments or its accesses: the kernel's name, the line, the value."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.lang.examples import example
from tilewright import lang as tl
from tilewright.core.errors import InputError

X = np.zeros(10, np.float32)


def made(fn: Any, signature: str = "f32[N] -> f32[N]", grid: Any = 1) -> Any:
    return tw.kernel(signature, grid=grid)(fn)


# --- the kernel itself ----------------------------------------------------------------------------------------------------
def shapes(x, y):
    y.store(0, x.load(0, 8) + tl.zeros(4))


def rank_of_mma(x, y):
    y.store(0, tl.mma(x.load(0, 4), x.load(0, 4), tl.zeros((4, 4))))


def shapes_of_mma(x, y):
    a = tl.zeros((4, 8))
    y.store(0, tl.mma(a, a, tl.zeros((4, 8))).sum().sum(0))  # type: ignore[attr-defined]


def writes_argument(x, y):
    x.store(0, 1.0)


def narrows(x, y):
    y.store(0, x.load(0, 8).to("i32") / 2)
    tl.scratch(4, "i32").store(0, x.load(0, 4))


def run_time_side(x, y):
    y.store(0, x.load(0, x.shape[0]))


def carried_type(x, y):
    acc = tl.zeros(4)
    for i in range(3):
        acc = tl.zeros(8) + i
    y.store(0, acc)


def loop_name(x, y):
    for i in range(3):
        last = x.load(i, 1)
    y.store(0, last)


def run_time_if(x, y):
    if x.load(0, 8) > 0:
        y.store(0, 1.0)


def returns_early(x, y):
    if tl.program_id() == 0:
        return
    y.store(0, 1.0)


def never_writes(x, y):
    x.load(0, 8)


def returns_result(x, y):
    return x.load(0, 8)


def while_loop(x, y):
    i = 0
    while i < 3:
        i += 1


def foreign_call(x, y):
    y.store(0, np.exp(x.load(0, 8)))


def unknown_name(x, y):
    y.store(0, nothing_of_this_name)  # type: ignore[name-defined]  # noqa: F821


def wrong_attribute(x, y):
    y.store(0, x.load(0, 8).mean())


def too_large(x, y):
    y.store(0, x.load(0, 1 << 20))


def rank_of_view(x, y):
    y.store((0, 0), 1.0)


def picks_element(x, y):
    y.store(0, x.load(0, 8)[3])


def float_position(x, y):
    y.store(0.5, 1.0)


def matmul_operator(x, y):
    y.store(0, x.load(0, 8) @ x.load(0, 8))


def static_assert(x, y):
    assert x.ndim == 2, "needs a matrix"


def grid_axis(x, y):
    y.store(tl.program_id(1), 1.0)


def helper(t):
    return t + tl.zeros(3)


def inside_helper(x, y):
    y.store(0, helper(x.load(0, 8)))


def atomic_floats(x, y):
    y.atomic("add", 0, 1.0)


def atomic_name(x, y):
    tl.scratch(4, "i32").atomic("twice", 0, 1)


def big_number(x, y):
    y.store(0, x.load(0, 8).to("i8") + 300)


@pytest.mark.parametrize("fn, message", [
    (shapes, r"shapes \(8,\) and \(4,\) do not broadcast \(test_bad_input.py:\d+: `y.store\(0, x.load\(0, 8\) \+ tl.zeros\(4\)\)`\)"),
    (rank_of_mma, r"mma: needs tiles of rank 2, got tile f32\[4\] @ tile f32\[4\] \+ tile f32\[4, 4\]"),
    (shapes_of_mma, r"mma: shapes do not fit, got tile f32\[4, 8\] @ tile f32\[4, 8\]"),
    (never_writes, r"the result y is never written"),
    (returns_result, r"return: results are written, not returned, as in `out\[i\] = x`"),
    (writes_argument, r"x.store: x is an argument, which is only read; write to a result"),
    (narrows, r"scratch.store: scratch holds i32, got tile f32\[4\]; cast it with .to\('i32'\)"),
    (run_time_side, r"x.load: the sides of a tile are positive integers, got an index; tiles have sizes that are known at compile time"),
    (carried_type, r"acc is tile f32\[4\] before the loop and tile f32\[8\] after an iteration; start it with that type"),
    (loop_name, r"last is assigned only inside the loop or branch of line \d+; give it a value before it"),
    (run_time_if, r"if: a condition is one bool, got tile bool\[8\]; use tl.where for tiles, or reduce it with .any\(\) or .all\(\)"),
    (returns_early, r"return: a kernel cannot leave a run-time loop or branch"),
    (while_loop, r"while: kernels loop with for"),
    (foreign_call, r"exp: cannot be called with values of a kernel; use the functions of tilewright.lang"),
    (unknown_name, r"nothing_of_this_name has no value here"),
    (wrong_attribute, r"a tile has no 'mean'; it has shape, dtype, ndim, T, to, sum"),
    (too_large, r"x.load: a tile is held in registers, and on a CPU has at most 16384 elements, got \(1048576,\); loop over smaller tiles"),
    (rank_of_view, r"y.store: needs 1 positions, got 2"),
    (picks_element, r"elements of a tile are not picked by position, got tile f32\[8\]"),
    (float_position, r"y.store: a position is an index, got 0.5"),
    (matmul_operator, r"@: products of tiles are tl.mma\(a, b, acc\)"),
    (static_assert, r"assert: needs a matrix"),
    (grid_axis, r"program_id: the grid has axes 0..0, got 1"),
    (inside_helper, r"do not broadcast \(test_bad_input.py:\d+: `return t \+ tl.zeros\(3\)`\)"),
    (atomic_floats, r"y.atomic: combines one integer, got 1.0 for f32"),
    (atomic_name, r"scratch.atomic: must be one of add max min and or xor exchange, got 'twice'"),
    (big_number, r"300 does not fit i8; cast the tile to a wider dtype"),
])  # fmt: skip
def test_messages_name_kernel_and_line(fn: Any, message: str) -> None:
    with pytest.raises(tw.CompileError, match=rf"^kernel {fn.__name__}: .*{message}") as found:
        made(fn)(X)
    assert "test_bad_input.py:" in str(found.value)


def test_the_decorator() -> None:
    for text in ("f32[N]", "f32[N -> f32[N]", "f32[N] -> f32[N] -> f32[N]", "", "f32[N] -> f32"):
        with pytest.raises(tw.ParseError, match=r"kernel shapes: a (signature|result)"):
            made(shapes, text)
    with pytest.raises(tw.InputError, match=r"'f32\[N\], f32\[N\] -> f32\[N\]' names 3 arrays, and the function takes 2 \(x, y\)"):
        made(shapes, "f32[N], f32[N] -> f32[N]")
    with pytest.raises(tw.InputError, match="kernel shapes: needs grid="):
        made(shapes, grid=None)
    with pytest.raises(tw.InputError, match="kernel: decorates a function, got a int"):
        made(3)
    with pytest.raises(tw.InputError, match="kernel: needs a signature"):
        tw.kernel(shapes)  # type: ignore[arg-type]

    def defaults(x, y, z=1): ...

    with pytest.raises(tw.InputError, match=r"parameters are arrays .without defaults. and, behind .*, constants; got z=1"):
        made(defaults)
    with pytest.raises(tw.InputError, match=r"grid takes sizes and constants by name \(N\), got M"):
        made(shapes, grid=lambda M: M)(X)
    for grid in ("a", None, 1.5, -1, np.int64(-1), True, (2, "a"), [[1]]):
        with pytest.raises(tw.InputError, match="kernel shapes: the grid has sizes of 0 or more, got "):
            made(shapes, grid=lambda: grid)(X)  # noqa: B023 - it is called here
    with pytest.raises(tw.ParseError, match=r"the dtype U of y is that of no argument"):
        made(shapes, "T[N] -> U[N]")(X)
    with pytest.raises(tw.ParseError, match=r"the size 'M' of y must be made of sizes of the arguments before it \(N\)"):
        made(shapes, "T[N] -> T[M]")(X)
    source = "import numpy, tilewright as tw\nf = eval('lambda x, y: None')\ntw.kernel('f32[N] -> f32[N]', grid=1)(f)(numpy.zeros(3, 'f4'))"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert "the source text of the function is not there; define it with def in a file or in a notebook" in run.stderr


def test_the_language_outside_of_kernels() -> None:
    with pytest.raises(tw.CompileError, match=r"lang: tl.exp works inside a function decorated with @tw.kernel only"):
        tl.exp(3)
    assert tl.cdiv(7, 2) == 4 and tl.lanes() >= 4


# --- arguments --------------------------------------------------------------------------------------------------------------
def test_arguments() -> None:
    matmul, add = example("matmul").matmul, example("vector_add").vector_add
    a = np.zeros((4, 8), np.float32)
    with pytest.raises(tw.InputError, match=r"kernel matmul: b must be T\[K, N\], got f32\[4,8\]; K is 8 \(K comes from a\), not 4"):
        matmul(a, a)
    with pytest.raises(tw.InputError, match=r"got f64\[8,4\]; the dtype must be f32 \(T is the dtype of a\); cast it first"):
        matmul(a, np.zeros((8, 4)))
    with pytest.raises(tw.InputError, match=r"K is 8 \(K comes from a\), not 4 \(test_bad_input.py:\d+\)"):
        tw.jit(lambda a: matmul(a, a))(a)
    with pytest.raises(tw.InputError, match=r"a must be T\[M, K\], got f32\[8\]; it has 1 axes instead of 2"):
        matmul(a[0], a)
    with pytest.raises(tw.InputError, match=r"kernel matmul: takes 2 arguments \(a, b\), got 3; results are returned, or written to out="):
        matmul(a, a.T, a)
    with pytest.raises(tw.InputError, match=r"kernel vector_add: has the constants BLOCK, got SIZE"):
        add(X, X, SIZE=3)
    with pytest.raises(tw.InputError, match=r"a constant must be hashable, got BLOCK=\[1\]"):
        add(X, X, BLOCK=[1])
    with pytest.raises(tw.InputError, match=r"kernel vector_add: x: elements of <U1 cannot be used"):
        add(["a"], X)
    with pytest.raises(tw.InputError, match=r"x must have bools, integers or floats, got c64\[3\]; pass its real and its imaginary part"):
        add(np.zeros(3, np.complex64), X)
    stencil = example("stencil").stencil
    with pytest.raises(tw.InputError, match=r"the size H - 2 of y must not be negative, got -1"):
        stencil(a[:1])


def test_results() -> None:
    add = example("vector_add").vector_add
    with pytest.raises(tw.InputError, match=r"out z must be f32\[10\], got float32\[9\]"):
        add(X, X, out=X[:9])
    with pytest.raises(tw.InputError, match=r"out z must be f32\[10\], got float64\[10\]"):
        add(X, X, out=np.zeros(10))
    with pytest.raises(tw.InputError, match=r"out= takes 1 arrays, got 2"):
        add(X, X, out=(X, X))
    with pytest.raises(tw.InputError, match="out= takes arrays whose memory can be written, got a list"):
        add(X, X, out=[[0.0] * 10])
    kept = X.copy()
    kept.flags.writeable = False
    with pytest.raises(tw.InputError, match="out z is read-only memory; pass an array that may be written"):
        add(X, X, out=kept)
    np.testing.assert_array_equal(add(kept, kept), 2 * kept)  # arguments may be
    add(X, X, out=np.empty(10, np.float32))
    with pytest.raises(tw.InputError, match="out z is read-only memory"):  # also where this shape ran before
        add(X, X, out=kept)
    with pytest.raises(tw.InputError, match="out= takes memory, which a traced function does not have"):
        tw.jit(lambda a: add(a, a, out=kept))(X)


# --- positions outside ------------------------------------------------------------------------------------------------------
@tw.kernel("f32[M, N] -> f32[M, N]", grid=lambda M: M)
def next_row(x, y, *, B=4):
    i = tl.program_id()
    for t in y[i].partition(B):
        t.store(x[i + 1].load(t.start[0], B))


@tw.kernel("f32[N] -> f32[N]", grid=lambda N, B: tl.cdiv(N, B))
def before(x, y, *, B=4):
    i = tl.program_id()
    y.partition(B)[i] = x.load(i * B - 1, B)


@tw.kernel("f32[N], i64[K] -> f32[K]", grid=1)
def picked(x, ids, y, *, B=4):
    y.store(0, x.gather(ids.load(0, B)))


@tw.kernel("f32[N] -> f32[N]", grid=1)
def scratch_overflow(x, y):
    room = tl.scratch(8)
    for i in range(x.shape[0]):
        room.store(i, x.load(i, 1))
    y.store(0, room.load(0, 8))


@tw.kernel("f32[N] -> f32[N]", grid=1)
def promised(x, y, *, B=4):
    for i in range(0, x.shape[0], B):
        y.store(i, x.load(i, B, inside=True))


CASES = [
    (next_row, (np.zeros((5, 9), np.float32),), r"program 4: subview: the position along axis 0 of x must be in 0..4, got 5",
     r"kernel next_row: x along axis 0: the position must be in 0..4, got 5, in program 4"),
    (before, (X,), r"program 0: load: the position along axis 0 of x must be in 0..9, got -1",
     r"kernel before: x along axis 0: the position must be in 0..9, got -1, in program 0"),
    (scratch_overflow, (X,), r"program 0: store: the position along axis 0 of scratch must be in 0..7, got 8",
     r"kernel scratch_overflow: scratch along axis 0: the position must be in 0..7, got 8, in program 0"),
    (picked, (X, np.array([1, 2, 10, 3])), r"program 0: gather: touches elements 1..10 of a buffer with 10",
     r"kernel picked: gather of x along axis 0: the position must be in 0..9, got 10, in program 0"),
    (promised, (X,), r"program 0: load: the position along axis 0 of x must be in 0..6, got 8",
     r"kernel promised: x along axis 0: the position must be in 0..9, got 8, in program 0"),
]  # fmt: skip


@pytest.mark.parametrize("kernel, args, debugged, checked", CASES, ids=[c[0].definition.name for c in CASES])
def test_outside(kernel: Any, args: tuple[Any, ...], debugged: str, checked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the debugger with the line and its text; compiled with checks, also in a jitted function, with the line: no crash."""
    with pytest.raises(tw.ExecutionError, match=rf"^kernel \w+, {debugged} \(test_bad_input.py:\d+: `"):
        kernel.debug(*args)
    monkeypatch.setenv("TILEWRIGHT_CHECKS", "1")
    for call in (kernel, tw.jit(lambda *a: kernel(*a))):
        with pytest.raises(tw.ExecutionError, match=checked) as found:
            call(*args)
        assert "test_bad_input.py:" in str(found.value)


def test_checks_change_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    x, a, b = rng.standard_normal((7, 70), np.float32), rng.standard_normal((9, 20), np.float32), rng.standard_normal((20, 33), np.float32)
    q = rng.standard_normal((2, 9, 32), np.float32)
    calls = [lambda: example("softmax").softmax(x), lambda: example("matmul").matmul(a, b), lambda: example("stencil").stencil(x),
             lambda: example("attention").attention(q, q, q)]
    plain = [c() for c in calls]
    monkeypatch.setenv("TILEWRIGHT_CHECKS", "1")
    for c, want in zip(calls, plain, strict=True):
        np.testing.assert_array_equal(c(), want)


def test_divisions_by_zero_do_not_end_the_process() -> None:
    """Index values give an error in the debugger and some number in a compiled kernel; integers in tiles give 0, as everywhere."""

    @tw.kernel("i32[N], i64 -> i32[N]", grid=1)
    def divided(x, by, y, *, B=16):
        y.store(0, 7 // x.load(0, B) + x.load(0, B) % (x.load(0, B) * 0) + (5 // by) * 0)

    x = np.array([0, 1, -2, 3], np.int32)
    np.testing.assert_array_equal(divided(x, 1), [0, 7, -4, 2])
    np.testing.assert_array_equal(divided(x, 0), [0, 7, -4, 2])
    with pytest.raises(tw.ExecutionError, match=r"the divisor not zero, got 5 and 0 \(test_bad_input.py:\d+: `y.store"):
        divided.debug(x, 0)


def tile_at(x, k, y):
    y.partition(4)[0] = 7.0
    y.partition(4)[k] = x.partition(4)[k] + 1.0


@pytest.mark.parametrize("k", [3, 1 << 20, 1 << 30, 1 << 40, (1 << 59) + 1])
def test_tiles_far_behind_the_end_are_outside(k: int) -> None:
    y = np.full(6, 5, np.float32)
    made(tile_at, "f32[N], i64 -> f32[N]")(X[:6], k, out=y)
    assert y.tolist() == [7, 7, 7, 7, 5, 5]


def test_numbers_that_do_not_fit() -> None:
    with pytest.raises(tw.InputError, match="kernel tile_at: k must be a number that i64 holds, got 1180591620717411303424"):
        made(tile_at, "f32[N], i64 -> f32[N]")(X, 1 << 70)
    blocks = made(lambda x, y, *, B=4: None, grid=lambda N, B: tl.cdiv(N, B))
    for block, text in ((0, "ZeroDivisionError"), ("x", "TypeError"), (1.5, "TypeError")):
        with pytest.raises(tw.InputError, match=rf"kernel <lambda>: the grid cannot be computed for N=.*, B={block} \({text}"):
            blocks(X, B=block)


@pytest.mark.parametrize("out, says", [
    (lambda: np.ma.masked_array(np.zeros(10, np.float32)), "out= is a masked array"),
    (lambda: torch._neg_view(torch.zeros(10)), "out= is a negative view"),
    (lambda: torch.zeros(10, requires_grad=True), "out= requires grad"),
    (lambda: torch.zeros(1).expand(10), "several elements of out y lie at one place in memory"),
    (lambda: torch.zeros(10, device="meta"), "a tensor on meta"),
])  # fmt: skip
def test_memory_that_is_not_what_it_holds(out: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        made(doubled)(X, out=out())


def doubled(x, y):
    y.partition(16)[0] = x.partition(16)[0] * 2


def neighbours(x, y):
    y.store(tl.program_id(0), x.load(tl.program_id(0), 1) + x.load(tl.program_id(0) + 1, 1))


@pytest.mark.parametrize("of", [lambda a: a[:-1], lambda a: a[1:], lambda a: a[:0:-1], lambda a: a[-2::-1]])
def test_results_in_the_memory_of_an_argument(of: Any) -> None:
    """Programs read elements that others write: the results are those of memory apart."""
    kernel = made(neighbours, "f32[N] -> f32[N - 1]", lambda N: N - 1)
    a = np.arange(300, dtype=np.float32) ** 2
    want = a[:-1] + a[1:]
    assert kernel(a, out=of(a)) is not None
    np.testing.assert_array_equal(of(a), want)
    t = torch.arange(300.0) ** 2
    kernel(t, out=t[1:])
    np.testing.assert_array_equal(t[1:].numpy(), want)
