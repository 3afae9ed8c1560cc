"""Bad arguments of traced functions and transforms: every error is Tilewright's own and names the rule, the values and the line."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core.errors import InputError, ParseError, ShapeError, TilewrightError, TraceError
from tilewright.ops import REGISTRY

HERE = Path(__file__).name
A = np.ones((3, 4), np.float32)
I3 = np.arange(3)
Z = np.zeros((0, 3), np.float32)
ADAM = tw.optim.adam(1e-3)


def change(x: Any) -> Any:
    x[0] = 1
    return x


def rule(forward: Any, backward: Any) -> Any:
    @tw.custom_vjp
    def product(x: Any, y: Any) -> Any:
        return x * y

    product.defvjp(forward, backward)
    return lambda x: product(x, x).sum()


AT_A_LINE: list[tuple[Any, type[TilewrightError], str]] = [
    # shapes and axes
    (lambda: tw.jit(lambda x: x + x[:, :3])(A), ShapeError, "add: shapes do not broadcast, got shapes=[3,4] [3,3]"),
    (lambda: tw.jit(lambda x: x @ x)(A), ShapeError, "matmul: inner sizes differ: 4 != 3"),
    (lambda: tw.jit(lambda x: x.sum(axis=5))(A), ShapeError, "sum: axis must be in -2..1, got axis=5"),
    (lambda: tw.jit(lambda x: x.sum(axis=(0, 0)))(A), ShapeError, "sum: an axis is given twice, got axis=(0, 0)"),
    (lambda: tw.jit(lambda x: tw.einsum("ij,jk->ik", x, x))(A), ShapeError, "einsum: 'j' of 'ij,jk->ik' names axes of one size"),
    (lambda: tw.jit(lambda x: tw.einsum("ij->iz", x))(A), ShapeError, "einsum: the result must name axes of the operands"),
    (lambda: tw.pad(A, ((1,), (2, 3, 4))), ShapeError, "pad: widths must be one (before, after) an axis of f32[3,4]"),
    (lambda: tw.jit(lambda: tw.zeros((2**40, 2**40)))(), ShapeError, "expand: a result has at most"),
    (lambda: tw.jit(lambda x: tw.broadcast_to(x, (2**31, 2**31, 1024)))(np.float32(1)), ShapeError, "expand: a result has at most"),
    (lambda: tw.zeros((-3,)), ShapeError, "zeros: sizes must not be negative, got shape=(-3,)"),
    (lambda: tw.zeros((3.0,)), ShapeError, "zeros: a shape is an int or a sequence of ints, got (3.0,)"),
    (lambda: tw.jit(lambda x: x.reshape(x.sum(), 2))(I3), TraceError, "trace: an index or a size needs the elements"),
    (lambda: tw.arange(0, 10, 0), ShapeError, "arange: needs numbers and a step that is not 0"),
    (lambda: tw.eye(-1), ShapeError, "eye: sizes must not be negative"),
    (lambda: tw.one_hot(I3, -2), ShapeError, "one_hot: needs integers and a number of classes of at least 0"),
    (lambda: tw.one_hot(A, 2), ShapeError, "one_hot: needs integers"),
    (lambda: tw.fft.fft(A, n=0), ShapeError, "fft: needs a known size of at least 1"),
    (lambda: tw.jit(lambda x: x.max(axis=0))(Z), ShapeError, "max: has no value over an empty axis"),
    (lambda: tw.jit(lambda x, i: x[i])(A, np.array([np.nan])), ShapeError, "gather: indices must be integers, got ids=f64[1]"),
    (lambda: tw.jit(lambda x, i: x[i])(A, A > 0), ShapeError, "index: a mask would give a shape that depends on its elements"),
    (lambda: tw.jit(lambda x: x[..., ...])(A), ShapeError, "index: an index has at most one ellipsis, got 2"),
    (lambda: tw.jit(lambda x: x[::0])(A), ShapeError, "index: a slice has integers and a step that is not 0, got slice(None"),
    (lambda: tw.jit(lambda x: x[0.0:2])(A), ShapeError, "index: a slice has integers"),
    (lambda: tw.argmax(A, (0, 1)), ShapeError, "argmax: takes one axis, an int, got axis=(0, 1)"),  # type: ignore[call-overload]
    (lambda: tw.jit(lambda x: x.sum(axis=1.0))(A), ShapeError, "sum: takes one axis, an int, got axis=1.0"),
    # values and dtypes
    (lambda: tw.sin([[1, 2], [3]]), InputError, "sin: an operand must be an array or a number, or lists of numbers that make one, got [[1"),
    (lambda: tw.jit(lambda x: tw.maximum(x, "abc"))(A), InputError, "maximum: an operand must be an array or a number"),
    (lambda: tw.jit(lambda x: tw.concatenate([x, None]))(A), InputError, "concat: an operand must be an array or a number"),
    (lambda: tw.jit(lambda x: x.astype("f13"))(A), ParseError, "astype: dtype: 'f13' is not one of"),
    *((lambda name=name: getattr(tw, name)(2, dtype="quark"), ParseError, f"{name}: dtype: 'quark' is not one of")
      for name in ("zeros", "ones", "empty", "eye", "tri", "arange")),
    *((lambda name=name: getattr(tw, name)(A, dtype="quark"), ParseError, f"{name}: dtype: 'quark' is not one of")
      for name in ("zeros_like", "ones_like", "empty_like", "sum")),
    (lambda: tw.jit(lambda x: tw.take(x, [0, 5], axis=0))(A), ShapeError, "take: index out of range, got 5 at position 1; must be in -3."),
    (lambda: tw.jit(lambda x: x[[0, -9]])(A), ShapeError, "index: index out of range, got -9 at position 1; must be in -3..2"),
    (lambda: tw.jit(lambda x: x + 300)(np.int8(1)), ShapeError, "trace: 300 does not fit i8"),
    (lambda: tw.jit(lambda x: x + 2**70)(np.int64(1)), ShapeError, "does not fit i64"),
    (lambda: tw.jit(lambda x: x.astype("f32"))(A * 1j), ShapeError, "astype: a c64 array is not cast to f32; use tw.real"),
    (lambda: tw.jit(change)(A), TraceError, "trace: a traced f32[3,4] does not change in place; use tw.where, tw.scatter"),
    (lambda: tw.jit(lambda x: x if x.sum() > 0 else -x)(A), TraceError, "use tw.cond"),
    # derivatives and batches
    (lambda: tw.grad(lambda x: (x * 1.0).sum())(I3), ShapeError, "grad: cannot differentiate with respect to i64[3]"),
    (lambda: tw.jacobian(lambda x: x * 2)(I3), ShapeError, "jacobian: cannot differentiate with respect to i64[3]"),
    (lambda: tw.grad(lambda x: x)(A), ShapeError, "grad: the loss must be a float scalar, got f32[3,4]; reduce it"),
    (lambda: tw.grad(lambda x: (x * 1j).sum())(A), ShapeError, "grad: the loss must be a float scalar, got c64[]; compute it from floats"),
    (lambda: tw.grad(lambda x: x.sum(), argnums=3)(A), ShapeError, "grad: argnums must name one of 1 positional arguments, got 3"),
    (lambda: tw.jvp(lambda x: x, (A,), (A, A)), ShapeError, "jvp: the tangents must have the structure of the primals"),
    (lambda: tw.vjp(lambda x: x, A)[1](A[0]), ShapeError, "vjp: a cotangent must have the type of its result f32[3,4], got f32[4]"),
    (lambda: tw.vmap(lambda x, y: x, in_axes=(0,))(A, A), ShapeError, "vmap: in_axes must be an int, None, or fit the structure"),
    (lambda: tw.vmap(lambda x: x, in_axes=5)(A), ShapeError, "vmap: in_axes names axis 5 of f32[3,4]"),
    (lambda: tw.vmap(lambda x, y: x)(A, A.T), ShapeError, "vmap: the batched axes must have one size, got ['3', '4']"),
    (lambda: tw.vmap(lambda x: x, out_axes=7)(A), ShapeError, "vmap: out_axes names axis 7 of the batched result f32[3,4]"),
    (lambda: tw.vmap(lambda x: x, out_axes=None)(A), ShapeError, "vmap: out_axes names axis None of the batched result"),
    (lambda: tw.grad(3), InputError, "grad: needs a function, got a int"),  # type: ignore[arg-type]
    (lambda: tw.grad(lambda x: x.sum(), argnums="x")(A), ShapeError, "grad: argnums must be an int or several, got 'x'"),  # type: ignore[arg-type]
    (lambda: tw.grad(lambda x: x.sum(), argnums=0.0)(A), ShapeError, "grad: argnums must be an int or several, got 0.0"),  # type: ignore[arg-type]
    (lambda: tw.grad(lambda x: x.sum(), argnums=())(A), ShapeError, "grad: argnums must be an int or several, got ()"),
    # losses and matrices
    (lambda: tw.softmax_cross_entropy(A[:, :3], I3 * 1.0), ShapeError, "softmax_cross_entropy: float labels are probabilities and have"),
    (lambda: tw.jit(lambda x: tw.softmax_cross_entropy(x, np.array([0, -1, 2])))(A), ShapeError,
     "softmax_cross_entropy: label -1 is out of range for 4 classes, at position 1"),
    (lambda: tw.mse(A[:, :1], A[:, 0]), ShapeError, "mse: both arrays must have one shape, got f32[3,1] and f32[3]"),
    (lambda: tw.linalg.inv(A), ShapeError, "inv: needs square matrices, got x=f32[3,4]"),
    (lambda: tw.linalg.slogdet(A), ShapeError, "slogdet: needs square matrices, got x=f32[3,4]"),
    (lambda: tw.linalg.matrix_power(A, 2.5), ShapeError, "matrix_power: the exponent must be an int, got 2.5"),  # type: ignore[arg-type]
    # optimizers
    (lambda: ADAM.update({"w": I3}, {"w": I3}, ADAM.init({"w": I3})), InputError, "adam: a parameter must be of a float dtype, got i64[3]"),
    (lambda: ADAM.update({"w": A}, {"w": I3}, ADAM.init({"w": A})), InputError, "adam: a gradient must be of a float dtype, got i64[3]"),
    (lambda: ADAM.update({"w": A}, {"w": None}, ADAM.init({"w": A})), InputError, "adam: a gradient is an array, got a NoneType"),
    (lambda: ADAM.update({"w": A}, {"w": A}, tw.optim.sgd(0.1).init({"w": A})), InputError, "adam: the state must be one that adam's init"),
    (lambda: ADAM.update({"w": A}, {"w": A}, ADAM.init({"w": A[0]})), InputError, "adam: the state must be one of these parameters, got"),
    # control flow
    (lambda: tw.scan(lambda c, x: (c, c), A, length=2.5), ShapeError, "scan: length must be an int, got 2.5"),  # type: ignore[arg-type]
    (lambda: tw.scan(lambda c, x: (c.astype("f64"), x), np.float32(0), A), ShapeError, "scan: a carried value keeps its type, but carry 0"),
    (lambda: tw.scan(lambda c, x: c, np.float32(0), A), ShapeError, "scan: the step must return (carry, y), got an array; y may be None"),
    (lambda: tw.scan(lambda c, x: (c, x), 0.0, (A, A.T)), ShapeError, "scan: xs and length must give one number of steps, got 3, 4"),
    (lambda: tw.cond(True, lambda x: x, lambda x: x[0], A), ShapeError, "cond: both branches must give the same types"),
    (lambda: tw.while_loop(lambda c: c, lambda c: c, np.float32(0)), ShapeError, "while: the condition must give one bool scalar"),
    (lambda: tw.fori_loop(0.5, 3, lambda i, c: c, np.float32(0)), ShapeError, "fori_loop: the bounds must be integers, got 0.5 and 3"),
    # rules of users
    (lambda: tw.grad(rule(lambda x, y: (x * y, None), lambda r, g: (g,)))(A), ShapeError, "must return one cotangent an argument, 2"),
    (lambda: tw.grad(rule(lambda x, y: (x * y, None), lambda r, g: (g[0], g)))(A), ShapeError, "have the type of its argument f32[3,4]"),
    (lambda: tw.grad(rule(lambda x, y: x * y, lambda r, g: (g, g)))(A), ShapeError, "forward must return (result, saved), got *"),
    (lambda: tw.optim.adamw(1e-3).update({"w": A}, {"w": A[0]}, tw.optim.adamw(1e-3).init({"w": A})), InputError,
     "adamw: a gradient has the shape of its parameter, got f32[4] for f32[3,4]"),
]


@dataclasses.dataclass(frozen=True)
class Unhashable:
    held: list[int]


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("case", range(len(AT_A_LINE)), ids=lambda i: f"{i}-{AT_A_LINE[i][2].split(':')[0]}")
def test_the_line_is_named(case: int) -> None:
    call, kind, text = AT_A_LINE[case]
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)
    assert f"({HERE}:" in str(caught.value) or f" at {HERE}:" in str(caught.value), caught.value


@pytest.mark.parametrize(("call", "kind", "text"), [
    (lambda: tw.jit(lambda x: x, static=4), InputError, "jit: static names arguments of <lambda>(x), got 4"),
    (lambda: tw.jit(lambda x: x, static="y"), InputError, "jit: static names arguments of <lambda>(x), got 'y'"),
    (lambda: tw.jit(lambda x: x, donate="x"), InputError, "jit: donate names arguments by their positions, got 'x'"),  # type: ignore[arg-type]
    (lambda: tw.jit(lambda x, s: x, static=1)(A, A), InputError, "must be hashable, got a ndarray"),
    (lambda: tw.jit(lambda x, s: x)(A, memoryview(bytearray(4))), InputError, "must be hashable, got a memoryview"),
    (lambda: tw.jit(lambda x, s: x)(A, Unhashable([1])), InputError, "must be hashable, got a Unhashable (unhashable type: 'list')"),
    (lambda: tw.jit(lambda x: x)(ENDLESS), InputError, "pytree: an argument holds itself"),
    (lambda: tw.jit(lambda x: x)(np.ma.masked_array([1.0, 2.0], [False, True])), InputError, "jit: a masked array would lose its mask"),
    (lambda: tw.jit(lambda x: x)(torch.ones(3, device="meta")), InputError,
     "dense and in the CPU's memory, got a tensor on meta; pass x.cpu()"),
    (lambda: tw.jit(lambda x: x)(2**70), InputError, "jit: a Python int is an i64 array, got"),
    (lambda: tw.jit(lambda x: x)(np.array(["a"])), InputError, "jit: an array must have one of the dtypes"),
    (lambda: tw.astype(A, "f8"), ParseError, "the number counts bits, not bytes as NumPy's codes do"),
    (lambda: tw.optim.sgd(-1.0).update(A, A, tw.optim.sgd(-1.0).init(A)), InputError, "optim: the rate must be a number of at least 0"),
], ids=range(13))
def test_arguments_that_jit_and_optimizers_refuse(call: Any, kind: type[TilewrightError], text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert text in str(caught.value)


def test_names_of_dtypes() -> None:
    assert tw.astype(A, "float64").dtype == np.float64
    assert tw.zeros(2, "int32").dtype == np.int32


def test_a_number_that_no_longer_fits() -> None:
    f = tw.jit(lambda x: x + 1)
    assert f(3) == 4
    with pytest.raises(InputError, match="a Python int is an i64 array"):
        f(2**63)
    assert f(4) == 5


def test_dicts_of_other_kinds_are_dicts() -> None:
    f = tw.jit(lambda p: {k: v * 2 for k, v in p.items()})
    for tree in ({"a": A, "b": I3}, OrderedDict(a=A, b=I3), defaultdict(list, a=A, b=I3), {"b": I3, "a": A}):
        got = f(tree)
        assert set(got) == set(tree)
        np.testing.assert_array_equal(got["b"], I3 * 2)


@pytest.mark.parametrize("count", [2, 20])
def test_donated_memory_is_nobody_elses(count: int) -> None:
    """Two donated arrays, or a donated and a plain one, in one memory would be overwritten while they are read."""
    @tw.jit(donate=(0, 1))
    def f(x: Any, y: Any, *rest: Any) -> Any:
        return x + 1, y * 2, sum(r.sum() for r in rest)

    base = np.arange(40, dtype=np.float32)
    rest = [np.ones(3, np.float32)] * (count - 2)  # plain arrays may share memory among themselves
    for x, y in ((base[:10], base[:10]), (base[:10], base[9:19]), (base[5:15], base[0:10])):
        before = base.copy()
        with pytest.raises(InputError, match=r"jit: f: array \d of the arguments is donated, and array \d shares its memory"):
            f(x, y, *rest)
        np.testing.assert_array_equal(base, before)
    if rest:
        with pytest.raises(InputError, match=r"array 0 of the arguments is donated, and array 5 shares"):
            f(base[:10], base[10:20], *rest[:3], base[2:5], *rest[4:])
    x, y, _ = f(base[:10], base[10:20], *rest)
    np.testing.assert_array_equal(base, np.concatenate([np.arange(10) + 1, np.arange(10, 20) * 2, np.arange(20, 40)]))
    assert np.shares_memory(x, base) and np.shares_memory(y, base)


def test_a_custom_op_that_contradicts_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("shorter", "infer", "kernel"):
        monkeypatch.setitem(REGISTRY, f"bad_input_{name}", REGISTRY["add"])  # and gone afterwards
        del REGISTRY[f"bad_input_{name}"]
    shorter = tw.custom_op("bad_input_shorter", infer=lambda x: x, ref=lambda x: x[:1], decompose=lambda x: x[:1])
    with pytest.raises(ShapeError, match=r"decompose must give the types that infer gives, f32\[3,4\], got f32\[1,4\]"):
        shorter(A)
    with pytest.raises(ShapeError, match="infer must give types like its arguments, got infer=3"):
        tw.custom_op("bad_input_infer", infer=lambda x: 3, ref=lambda x: x, decompose=lambda x: x)(A)
    with pytest.raises(ShapeError, match="kernel must give a tile, got None"):
        tw.custom_op("bad_input_kernel", ref=lambda x: x, kernel=lambda t, x: None)(A)
