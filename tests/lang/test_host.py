"""Python functions and native functions as ops, alone and inside compiled programs."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng


@tw.host_op("T[M, N] -> T[M, N], i64[M]")
def sorted_rows(x: Any) -> Any:
    """Rows in order, and where the largest element was."""
    assert not x.flags.writeable
    return np.sort(x, axis=1), np.argmax(x, axis=1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(4, 7), (1, 1), (0, 3)])
def test_python_functions(shape: tuple[int, int], dtype: Any) -> None:
    x = (fresh_rng().standard_normal(shape) * 50).astype(dtype)
    ordered, where = sorted_rows(x)
    np.testing.assert_array_equal(ordered, np.sort(x, axis=1))
    np.testing.assert_array_equal(where, np.argmax(x, axis=1))


def test_cases_of_vmap_and_arrays() -> None:
    x = fresh_rng().standard_normal((3, 4, 7)).astype(np.float32)
    ordered, where = tw.vmap(sorted_rows)(tw.asarray(x))
    assert type(ordered) is type(where) is type(sorted_rows(tw.asarray(x[0]))[0]) is tw.Array
    np.testing.assert_array_equal(ordered, np.sort(x, axis=2))
    np.testing.assert_array_equal(where, np.argmax(x, axis=2))


def test_inside_a_program_between_kernels() -> None:
    """Operands that do not lie contiguous are copied first; what comes before and after is fused as ever."""
    x = fresh_rng().standard_normal((6, 9)).astype(np.float32)
    f = tw.jit(lambda a: (tw.exp(sorted_rows((a * 2).T)[0]) + 1).sum(axis=0))
    want = (np.exp(np.sort(2 * x.T.astype(np.float64), axis=1)) + 1).sum(axis=0)
    for _ in range(3):
        np.testing.assert_allclose(f(x), want, rtol=1e-5)
    report = str(f.lower(x).report())
    assert "a function of the host" in report and "needs contiguous elements" in report


def test_it_is_called_once_a_call_and_sees_the_callers_state() -> None:
    seen: list[float] = []

    @tw.host_op("f32[N] -> f32[]")
    def watch(x: Any) -> Any:
        seen.append(float(x[0]))
        return x.sum()

    f = tw.jit(lambda a: watch(a) * 2)
    for k in range(3):
        assert f(np.full(4, k, np.float32)) == 8 * k
    assert seen == [0, 1, 2]


def test_derivatives_by_custom_vjp() -> None:
    @tw.host_op("f32[N] -> f32[N]")
    def cube(x: Any) -> Any:
        return x**3

    @tw.custom_vjp
    def cubed(x: Any) -> Any:
        return cube(x)

    cubed.defvjp(lambda x: (cube(x), x), lambda x, g: (g * 3 * x * x,))
    x = fresh_rng().standard_normal(5).astype(np.float32)
    np.testing.assert_allclose(tw.grad(lambda a: tw.sum(cubed(a)))(x), 3 * x * x, rtol=1e-5)
    with pytest.raises(tw.UnsupportedError, match=r"host_cube: has no reverse-mode derivative: .* tw.custom_vjp"):
        tw.grad(lambda a: tw.sum(cube(a)))(x)


def test_torch_in_torch_out() -> None:
    x = torch.randn(3, 5)
    torch.testing.assert_close(sorted_rows(x)[0], torch.sort(x, dim=1).values)


def test_errors_of_the_function_are_errors_of_the_call() -> None:
    @tw.host_op("f32[N] -> f32[N]")
    def picky(x: Any) -> Any:
        if x[0] < 0:
            raise ValueError("no negative numbers")
        return x

    f = tw.jit(lambda a: picky(a) + 1)
    for _ in range(2):
        with pytest.raises(tw.ExecutionError, match=r"picky: raised ValueError: no negative numbers \(test_host.py:\d+"):
            f(np.array([-1.0], np.float32))
        np.testing.assert_array_equal(f(np.array([1.0], np.float32)), [2.0])

    @tw.host_op("f32[N] -> f32[N]")
    def shorter(x: Any) -> Any:
        return x[1:]

    with pytest.raises(tw.ExecutionError, match=r"shorter: the function must return f32\[4\], got float32\[3\]"):
        shorter(np.zeros(4, np.float32))
    with pytest.raises(tw.InputError, match=r"sorted_rows: takes 1 arguments \(T\[M, N\] -> .*\), got 2"):
        sorted_rows(1, 2)
    with pytest.raises(tw.InputError, match=r"in0 must be T\[M, N\], got f32\[3\]"):
        sorted_rows(np.zeros(3, np.float32))
    with pytest.raises(tw.InputError, match="host_op: decorates a function, got a int"):
        tw.host_op("f32[N] -> f32[N]")(3)  # type: ignore[arg-type]


SCALE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_float, ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p)


def _scale(x: int, by: float, rows: int, columns: int, y: int) -> None:
    count = rows * columns
    given = np.frombuffer((ctypes.c_float * count).from_address(x), np.float32)  # type: ignore[call-overload]
    np.frombuffer((ctypes.c_float * count).from_address(y), np.float32)[:] = given * by  # type: ignore[call-overload]


def test_native_functions() -> None:
    """A compiled function and the C library's own."""
    native = SCALE(_scale)
    scale = tw.native_op("f32[M, N], f32 -> f32[M, N]", native, args=("in0", "in1", "M", "N:i32", "out0"), name="scale")
    x = fresh_rng().standard_normal((3, 5)).astype(np.float32)
    np.testing.assert_allclose(scale(x, 3.0), x * 3, rtol=1e-6)
    np.testing.assert_allclose(tw.jit(lambda a: scale(a.T, 0.5) + 1)(x), x.T / 2 + 1, rtol=1e-6)
    copy = tw.native_op("u8[N] -> u8[N]", ctypes.CDLL(None).memcpy, args=("out0", "in0", "N"), name="copied")
    data = fresh_rng().integers(0, 255, 33).astype(np.uint8)
    np.testing.assert_array_equal(copy(data), data)
    with pytest.raises(tw.InputError, match=r"in0 must be u8\[N\], got f32\[3\]; the dtype must be u8"):
        copy(np.zeros(3, np.float32))
    with pytest.raises(tw.InputError, match=r"args name arrays \(in0, out0\) and sizes \(N\), got 'M'"):
        tw.native_op("u8[N] -> u8[N]", native, args=("M",))
    with pytest.raises(tw.InputError, match="a native function has fixed dtypes"):
        tw.native_op("T[N] -> T[N]", native, args=("N",))
    with pytest.raises(tw.InputError, match="needs the address of a function, got 0"):
        tw.native_op("u8[N] -> u8[N]", 0, args=("N",))


def test_they_are_not_saved_and_not_for_gpus(tmp_path: Any) -> None:
    from tilewright.target.cuda.device import cuda_target

    x = np.zeros((2, 2), np.float32)
    f = tw.jit(lambda a: sorted_rows(a)[0])
    with pytest.raises(tw.UnsupportedError, match=r"save: .* contains host_sorted_rows, a function of this process"):
        f.lower(x).save(tmp_path / "x")
    from tilewright.compile import compile_graph, graph_signature

    graph = f._find((x,), {})[0].traced.graph
    with pytest.raises(tw.CompileError, match="sorted_rows is a function of the host, which runs on CPUs only"):
        compile_graph(graph, graph_signature(graph), cuda_target("sm_90a"))
