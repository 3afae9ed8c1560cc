"""`tw.Array`: views, copies on write, indexing, operators, protocols, files and errors. The oracle is NumPy."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import operator
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.dlpack

import tilewright as tw
from tilewright.array import arrays, machine
from tilewright.array.api import creation
from tilewright.core.errors import ArgumentError, ExecutionError, FormatError, InputError
from tilewright.runtime import dlpack, outputs
from tilewright.runtime.cuda.driver import available
from tilewright.runtime.memory import OutOfMemory

GRID = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def copied(a: Any) -> Any:
    return tw.asarray(a, copy=True)


VIEWS: dict[str, tuple[Any, Any]] = {
    "T": (lambda x: x.T, lambda a: a.T),
    "mT": (lambda x: x.mT, lambda a: a.mT),
    "permute": (lambda x: x.permute(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
    "slice": (lambda x: x[1:, ::-2, 1:3], lambda a: a[1:, ::-2, 1:3]),
    "newaxis": (lambda x: x[..., None, 1], lambda a: a[..., None, 1]),
    "flip": (lambda x: tw.flip(x, axis=(0, 2)), lambda a: np.flip(a, (0, 2))),
    "expand": (lambda x: x.expand(5, 2, 3, 4), lambda a: np.broadcast_to(a, (5, 2, 3, 4))),
    "diagonal": (lambda x: x.diagonal(1, 1, 2), lambda a: a.diagonal(1, 1, 2)),
    "reshape": (lambda x: x.reshape(4, -1), lambda a: a.reshape(4, -1)),
    "unfold": (lambda x: x.unfold(2, 2, 2), lambda a: np.lib.stride_tricks.sliding_window_view(a, 2, 2)[:, :, ::2]),
    "view": (lambda x: x.view(), lambda a: a[...]),
    "squeeze": (lambda x: tw.squeeze(x[:1], axis=0), lambda a: a[0]),
    "moveaxis": (lambda x: tw.moveaxis(x, 0, 2), lambda a: np.moveaxis(a, 0, 2)),
    "unstack": (lambda x: tw.unstack(x, axis=1)[2], lambda a: a[:, 2]),
    "swapaxes": (lambda x: x.swapaxes(-1, 0), lambda a: a.swapaxes(-1, 0)),
    "transpose": (lambda x: x.transpose(2, 0, 1), lambda a: a.transpose(2, 0, 1)),
    "permute_dims": (lambda x: tw.permute_dims(x, axes=(1, 2, 0)), lambda a: a.transpose(1, 2, 0)),
    "flip all": (lambda x: tw.flip(x), np.flip),
    "flip last": (lambda x: tw.flip(x, axis=-1), lambda a: a[..., ::-1]),
    "expand_dims": (lambda x: tw.expand_dims(x, axis=-2), lambda a: a[:, :, None]),
    "expand_dims first": (lambda x: tw.expand_dims(x), lambda a: a[None]),
    "broadcast_to": (lambda x: tw.broadcast_to(x[:, :1], (7, 2, 3, 4)), lambda a: np.broadcast_to(a[:, :1], (7, 2, 3, 4))),
    "windows of windows": (lambda x: x.unfold(-1, 3).unfold(1, 2), lambda a: np.lib.stride_tricks.sliding_window_view(a, (3, 2), (2, 1))),
    "a flipped view": (lambda x: tw.flip(x[:, ::2, 3:0:-1], axis=1).expand(1, 2, 2, 3), lambda a: a[None, :, ::-2, 3:0:-1]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_share_memory_and_writes_do_not_pass_through(name: str) -> None:
    of_array, of_numpy = VIEWS[name]
    x = copied(GRID)
    y = of_array(x)
    np.testing.assert_array_equal(np.asarray(y), of_numpy(GRID), strict=True)
    assert y.strides == of_numpy(GRID).strides
    assert np.shares_memory(np.asarray(x), np.asarray(y))
    y[...] = -1
    np.testing.assert_array_equal(np.asarray(x), GRID)
    np.testing.assert_array_equal(np.asarray(y), np.full(y.shape, -1, np.float32))


def test_a_write_copies_only_shared_memory() -> None:
    x = copied(GRID)
    place = np.asarray(x).ctypes.data
    x[0, 0, 0] = 5
    x += 1
    assert np.asarray(x).ctypes.data == place
    y = x.view()
    x[0] = 0
    assert np.asarray(x).ctypes.data != place == np.asarray(y).ctypes.data
    del y
    z = copied(GRID)[1]  # the only holder of the memory of what it is a view of
    place = np.asarray(z).ctypes.data
    z[0] = 7
    assert np.asarray(z).ctypes.data == place
    source = np.ones(3, np.float32)
    w = tw.asarray(source)
    w[0] = 2
    assert source[0] == 1, "memory of others is not ours to write"


WRONG = {
    "expand": (lambda x: x.expand(2, 2), "expand|broadcast"), "expand to less": (lambda x: x.expand(4), "broadcast|dimension"),
    "negative": (lambda x: tw.broadcast_to(x, (-2, 3, 4)), "negative|broadcast"),
    "flip": (lambda x: tw.flip(x, axis=3), "axis must be"), "huge axis": (lambda x: tw.flip(x, axis=1 << 70), "axis must be"),
    "sum of a huge axis": (lambda x: tw.sum(x, axis=1 << 70), "axis|too large"),
    "expand_dims": (lambda x: tw.expand_dims(x, axis=5), "axis"), "unfold": (lambda x: x.unfold(1, 4), "size is 1 to 3"),
    "step": (lambda x: x.unfold(1, 2, 0), "step at least 1"), "mT": (lambda x: x[0, 0].mT, "two axes or more"),
    "swapaxes": (lambda x: x.swapaxes(0, 3), "axis"), "transpose": (lambda x: x.transpose(0, 0, 1), "repeated axis"),
    "permute_dims": (lambda x: tw.permute_dims(x, (0, 1)), "axes"), "reshape": (lambda x: tw.reshape(x, (5, 5)), "cannot reshape"),
    "squeeze": (lambda x: x.squeeze(0), "not equal to one"), "view": (lambda x: x.view(np.int32), "argument"),
    "broadcast_to": (lambda x: tw.broadcast_to(x, 2, 3, 4), "argument"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize("name", WRONG)
def test_views_that_do_not_exist(name: str) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError), match=WRONG[name][1]):
        WRONG[name][0](copied(GRID))


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "iand", "ior", "ixor"])
def test_operators_in_place(name: str) -> None:
    op = getattr(operator, name)
    whole = name in ("iand", "ior", "ixor")
    a, b = (np.arange(n, n + 12, dtype=np.int32 if whole else np.float32).reshape(3, 4) for n in (1, 2))
    operands: list[Any] = [b, b[1], b[:, :1], 3, b.T.copy().T, b[::-1]]
    for other in operands:
        want = op(a.copy(), other)
        x = copied(a)
        x += 0 * x  # the kernels are known from here on
        kept, y = x.view(), x
        x = op(x, tw.asarray(other) if isinstance(other, np.ndarray) else other)
        assert x is y and x.dtype == want.dtype
        np.testing.assert_allclose(np.asarray(x), want, rtol=1e-6)
        np.testing.assert_array_equal(np.asarray(kept), a, "a view of it has changed")
    x = copied(a)
    x = op(x, x)
    np.testing.assert_allclose(np.asarray(x), op(a.copy(), a))
    square = copied(a[:3, :3])
    square = op(square, square.T)
    np.testing.assert_allclose(np.asarray(square), op(a[:3, :3].copy(), a[:3, :3].T), rtol=1e-6)
    with pytest.raises(ArgumentError, match="keeps the shape"):
        op(copied(a[0]), copied(a))


class Nowhere:
    __array_interface__ = {"shape": (3,), "typestr": "<f4", "data": (0, False), "version": 3}


REFUSED = {
    "floats into integers": (lambda: operator.iadd(tw.arange(3), 1.5), "add: an in-place operator keeps the dtype, got i64"),
    "quotients of integers": (lambda: operator.itruediv(tw.arange(3), 2), "divide: an in-place operator keeps the dtype"),
    "complex into floats": (lambda: operator.imul(tw.ones(3), 1j), "multiply: an in-place operator keeps the dtype"),
    "too many elements": (lambda: tw.ones(6).__setitem__(slice(None), tw.ones(5)), r"setitem: could not broadcast .* got f32\[5\] for"),
    "a float for an axis": (lambda: tw.sum(tw.ones((2, 2)), axis=1.0), "sum: an axis is an integer, got 1.0"),
    "memory at 0": (lambda: tw.asarray(Nowhere()), "asarray: the Nowhere describes no memory that can be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(ArgumentError, match=REFUSED[name][1]):
        REFUSED[name][0]()


def test_arrays_of_many_axes() -> None:
    x = tw.ones((1,) * 63 + (2,))
    assert (x + 1).tolist() == np.full(x.shape, 2.0).tolist() and (x * x + x).shape == x.shape and tw.flip(x).shape == x.shape
    x += 1
    assert tw.sum(x).item() == 4


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The results that functions allocate from now on."""
    made: list[Any] = []

    def new_array(*args: Any) -> Any:
        made.append(args)
        return outputs.new_array(*args)

    monkeypatch.setattr(machine, "new_array", new_array)
    return made


def test_temporaries_give_their_memory_to_results(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    a = copied(np.ones(1_000_000, np.float32))
    b = a * 2
    made.clear()
    c = ((a * b + b) * 2 - a) / b
    assert len(made) == 1
    assert (c[0].item(), a[0].item(), b[0].item()) == (3.5, 1, 2)
    d = a + b
    kept = d
    made.clear()
    d = d * 2  # kept holds it
    assert len(made) == 1
    assert kept[0].item() == 3
    held = functools.partial(operator.add, a * 1)  # only the partial object holds the operand, and no operator is in the code
    assert held(b)[0].item() == held(b)[0].item() == 3


@pytest.mark.skipif(not machine.is_supported(), reason="without native code nothing is fused")
def test_eight_lazy_functions_allocate_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    made = counted(monkeypatch)
    x = copied(np.linspace(0, 1, 1000, dtype=np.float32))
    with tw.lazy():
        y = tw.exp(tw.sin(x * 2 + 1) - x) / 3 * x + 1
        assert not made
        assert y.shape == (1000,)
        value = np.asarray(y)
    assert len(made) == 1
    a = np.asarray(x, np.float64)
    np.testing.assert_allclose(value, np.exp(np.sin(a * 2 + 1) - a) / 3 * a + 1, rtol=1e-6)


def _chain(x: Any, y: Any) -> Any:
    return tw.exp(tw.sin(x * 2 + y) - x) / 3 * y + 1


def _sum_of_many(x: Any, y: Any) -> Any:
    for k in range(12):
        x = x + tw.full(x.shape, float(k), dtype=tw.float32)
    return x


def _diamond(x: Any, y: Any) -> Any:
    z = x * y
    return (z + 1) * (z - 1) + tw.abs(z)


def _repeated(x: Any, y: Any) -> Any:
    for _ in range(60):
        x = tw.sin(x) * 0.5 + y
    return x


def _centered(x: Any, y: Any) -> Any:
    x = x * y
    x = x - tw.mean(x)
    return x / tw.sqrt(tw.mean(x * x) + 1e-5)


@pytest.mark.parametrize(("program", "more"), [(_chain, 0), (_sum_of_many, 4), (_diamond, 0), (_repeated, 0), (_centered, 0)])
def test_lazy_peaks_are_not_above_eager_ones(program: Any, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expression holds one temporary more of twelve that are added up than eager operators, which write into them."""
    live, peaks = [0, 0], []

    def new_array(shape: Any, dtype: Any) -> Any:
        made = outputs.new_array(shape, dtype)
        live[0] += made.nbytes
        live[1] = max(live)
        weakref.finalize(made, lambda n: live.__setitem__(0, live[0] - n), made.nbytes)
        return made

    for module in (machine, creation):
        monkeypatch.setattr(module, "new_array", new_array)
    x, y = (copied(np.random.default_rng(k).random(1_000_000, np.float32)) for k in range(2))  # too large for the native forms
    results = []
    for mode in ("eager", "lazy"):
        live[:] = 0, 0
        with tw.lazy() if mode == "lazy" else contextlib.nullcontext():
            results.append(np.array(program(x, y)))
        peaks.append(live[1] >> 20)  # nobody speaks of numbers beside arrays
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
    assert 0 < peaks[1] <= peaks[0] + more, peaks


def test_lazy_operands_keep_the_values_they_had() -> None:
    x = copied(np.arange(5, dtype=np.float32))
    with tw.lazy():
        y = x * 2
        z, w = y + 1, y - 1
        x[0] = 100
        x += 1
        assert (z.tolist(), w.tolist()) == ([1, 3, 5, 7, 9], [-1, 1, 3, 5, 7])
        assert tw.sum(z * w).item() == 115
        many = sum((x * k for k in range(20)), x)  # more operands than a kernel takes
    np.testing.assert_allclose(np.asarray(many), np.asarray(x) * 191, rtol=1e-6)
    with pytest.raises(ArgumentError, match="the modes are 'lazy' and 'eager', got 'fast'"):
        tw.set_mode("fast")


def test_index_arrays_masks_and_updates() -> None:
    x = copied(GRID)
    mask = np.asarray(x) % 2 == 0
    np.testing.assert_array_equal(np.asarray(x[x % 2 == 0]), GRID[mask])
    np.testing.assert_array_equal(np.asarray(x[tw.asarray([1, 0]), :, tw.asarray([0, 3])]), GRID[[1, 0], :, [0, 3]])
    x[x > 20] = 0
    x[tw.asarray([0]), 1] = tw.asarray([9, 8, 7, 6])
    want = GRID.copy()
    want[want > 20] = 0
    want[[0], 1] = [9, 8, 7, 6]
    np.testing.assert_array_equal(np.asarray(x), want)
    y = tw.zeros(4)
    assert y.at[tw.asarray([1, 1, 2])].add(2.0).tolist() == [0, 4, 2, 0]
    assert y.tolist() == [0, 0, 0, 0]
    assert y.at[1:3].set(5).at[0].max(3).tolist() == [3, 5, 5, 0]
    with pytest.raises(IndexError, match="out of bounds"):
        x[5]
    with pytest.raises(TypeError, match=r"cannot put float32 into int64; use .astype"):
        tw.arange(3)[0:2] = tw.asarray([1.5, 2.5])


def test_python_protocols() -> None:
    x = copied(GRID)
    assert len(x) == 2
    assert [r.shape for r in x] == [(3, 4), (3, 4)]
    assert 5 in x
    assert 99 not in x
    assert float(x[0, 0, 1]) == 1
    assert int(tw.asarray(7)) == range(9)[tw.asarray(7)] == 7
    assert complex(tw.asarray(2.0)) == 2
    assert bool(tw.asarray([1]))
    with pytest.raises(ValueError, match=r"is ambiguous; use tw.any or tw.all"):
        bool(x)
    with pytest.raises(TypeError, match=r"float\(\): needs an Array of one element, got f32\[2,3,4\]"):
        float(x)
    with pytest.raises(TypeError, match="unhashable"):
        hash(x)
    assert repr(tw.asarray([1.0, 2.0])) == "Array([1., 2.])"
    assert repr(tw.zeros((0, 3))) == "Array([], shape=(0, 3), dtype=float32)"
    assert "dtype=int8" in repr(tw.ones(2, dtype=tw.int8))
    assert "<table>" in tw.ones((2, 20))._repr_html_()
    assert "…" in tw.ones((2, 20))._repr_html_()
    for again in (pickle.loads(pickle.dumps(x.T)), copy.copy(x.T), copy.deepcopy(x.T)):
        np.testing.assert_array_equal(np.asarray(again), GRID.T)
    half = tw.ones(3, dtype=tw.bfloat16)
    assert pickle.loads(pickle.dumps(half)).dtype == tw.bfloat16
    assert memoryview(x).shape == (2, 3, 4)
    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_char * 4).from_buffer(x)
    assert not np.asarray(x).flags.writeable
    with pytest.raises(ArgumentError, match=r"use tw.asarray, tw.zeros, tw.arange ... to make one"):
        tw.Array()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.complex64, torch.bool])
def test_dlpack_both_ways_without_copies(dtype: torch.dtype) -> None:
    t = torch.arange(6).reshape(2, 3).to(dtype)
    x = tw.from_dlpack(t.T)
    assert np.asarray(x).ctypes.data == t.data_ptr()
    assert x.shape == (3, 2)
    back: Any = torch.utils.dlpack.from_dlpack(x)
    assert torch.equal(back, t.T)
    assert back.dtype == dtype
    if dtype != torch.bfloat16:
        assert back.data_ptr() == t.data_ptr()
        np.testing.assert_array_equal(np.from_dlpack(x), t.T.numpy())


class _Old:
    """A producer of before DLPack 1.0, without a device."""

    def __init__(self, t: torch.Tensor) -> None:
        self.capsule = t.__dlpack__()

    def __dlpack__(self) -> Any:
        return self.capsule


def test_capsules_of_both_versions_are_used_once() -> None:
    t = torch.arange(4.0)
    old = _Old(t)
    x = tw.asarray(old)
    assert x.tolist() == [0, 1, 2, 3]
    with pytest.raises(InputError, match="the capsule was used before"):
        tw.from_dlpack(old)
    capsule = np.arange(3.0).__dlpack__(max_version=(1, 0))
    assert dlpack.take(capsule, "t").tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="the capsule was used before"):
        dlpack.take(capsule, "t")
    with pytest.raises(ArgumentError, match="needs an object with __dlpack__, got a int"):
        tw.from_dlpack(3)
    with pytest.raises(BufferError, match="asked for"):
        x.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ValueError, match="no memory to share, and copy=False"):
        tw.asarray([1], copy=False)


def test_numpy_functions_and_arrays_of_numpy() -> None:
    x = copied(GRID)
    numpy: Any = np
    for made in (numpy.exp(x), numpy.add(x, 1), GRID + x, np.float32(2) * x, numpy.concatenate([x, x]), numpy.hypot(x, x),
                 numpy.linalg.norm(x), numpy.flip(x)):
        assert isinstance(made, tw.Array)
    out = np.empty_like(GRID)
    assert numpy.multiply(x, 2, out=out) is out
    np.testing.assert_array_equal(out, GRID * 2)
    assert isinstance(tw.exp(GRID), np.ndarray)
    assert isinstance(tw.median(GRID), np.ndarray)
    into = tw.zeros((2, 3, 4))
    assert tw.add(x, x, out=into) is into
    np.testing.assert_array_equal(np.asarray(into), GRID * 2)
    with pytest.raises(ArgumentError, match=r"out: must have the result's shape, got f32\[3\] for f32\[2,3,4\]"):
        tw.exp(x, out=tw.zeros(3))
    frozen = np.zeros((2, 3, 4), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ArgumentError, match="is read-only"):
        tw.exp(x, out=frozen)
    with pytest.raises(ArgumentError, match=r"out: cannot put f32\[2,3,4\] into i64"):
        tw.exp(x, out=tw.zeros((2, 3, 4), dtype=tw.int64))


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(("call", "kind", "text"), [
    (lambda: tw.ones(3) + tw.ones(4), ArgumentError, r"add: the shapes do not broadcast, got f32\[3\] and f32\[4\] \(test_arrays.py:"),
    (lambda: tw.ones((2, 3)) @ tw.ones((2, 3)), ArgumentError,
     r"matmul: inner sizes differ, got f32\[2,3\] @ f32\[2,3\]: 3 != 2; did you mean b.T\?"),
    (lambda: tw.ones(3).reshape(2), ArgumentError, r"reshape: .*got f32\[3\] to 2"),
    (lambda: tw.arange(3) // 0, ExecutionError, "floor_divide: division of integers by zero"),
    (lambda: tw.take(tw.arange(3), tw.asarray([7])), ExecutionError, "take: index 7 is out of bounds"),
    (lambda: tw.sum(tw.ones(3), axis=2), ArgumentError, r"sum: axis must be in \[-1, 1\), got 2"),
    (lambda: tw.max(tw.zeros(0)), ArgumentError, r"max: nothing has no max, got f32\[0\]"),
    (lambda: tw.ones(3, device="gpu9"), ArgumentError, "ones|full: the devices are 'cpu', got 'gpu9'"),
    (lambda: tw.bitwise_and(tw.ones(2), tw.ones(2)), ArgumentError, "bitwise_and: the dtype must be bool, unsigned, signed, got f32"),
    (lambda: tw.asarray([1, 2], dtype=tw.uint64) + tw.asarray([1]), Exception, "have no common integer dtype; cast one of them"),
    (lambda: tw.einsum("ij,jk->ik", tw.ones((2, 3)), tw.ones((2, 3))), ArgumentError, "einsum: "),
    (lambda: tw.asarray([[1], [2, 3]]), ArgumentError, r"lists of numbers that make one, got \[\[1\], \[2, 3\]\]"),
    (lambda: tw.linalg.inv(tw.zeros((2, 2))), ExecutionError, "inv: Singular matrix"),
    (lambda: tw.asarray(ENDLESS), ArgumentError, "asarray: a list holds lists of numbers, got a list that holds itself"),
    (lambda: tw.zeros((1,) * 70), ArgumentError, "zeros: an Array has at most 64 axes, got 70"),
    (lambda: tw.zeros((1 << 50,)), OutOfMemory, r"zeros: Unable to allocate 4.00 PiB .* \(test_arrays.py:"),
    (lambda: tw.tile(tw.ones(3), (1 << 50,)), OutOfMemory, "tile: Unable to allocate"),
    (lambda: tw.ones((1 << 24, 1)) @ tw.ones((1, 1 << 24)), OutOfMemory, "matmul: Unable to allocate"),
    (lambda: tw.arange(0, float("nan")), ArgumentError, "arange: cannot compute length"),
    (lambda: tw.linspace(0, 1, -3), ArgumentError, "linspace: Number of samples, -3"),
    (lambda: tw.frombuffer(b"1234", offset=9), ArgumentError, "frombuffer: offset must be"),
], ids=range(21))
def test_errors_say_what_is_wrong(call: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


def test_files(tmp_path: Path) -> None:
    x, h = copied(GRID), tw.asarray([1.5, -2], dtype=tw.bfloat16)
    tw.save(tmp_path / "x.npy", x)
    assert not arrays.is_alone(tw.load_arrays(tmp_path / "x.npy")), "the file is mapped"
    np.testing.assert_array_equal(np.asarray(tw.load_arrays(tmp_path / "x.npy")), GRID)
    tw.save(tmp_path / "x.npz", {"x": x})
    np.testing.assert_array_equal(np.asarray(tw.load_arrays(tmp_path / "x.npz")["x"]), GRID)
    tw.save(tmp_path / "x.safetensors", {"x": x.T, "h": h})
    from safetensors.torch import load_file

    theirs = load_file(tmp_path / "x.safetensors")
    assert torch.equal(theirs["x"], torch.from_numpy(GRID.T.copy()))
    ours = tw.load_arrays(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(np.asarray(ours["x"]), GRID.T)
    assert ours["h"].dtype == tw.bfloat16
    assert ours["h"].astype(tw.float32).tolist() == [1.5, -2]
    with pytest.raises(InputError, match=r"must end in .npy, .npz or .safetensors, got 'x.bin'"):
        tw.save(tmp_path / "x.bin", x)
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(FormatError, match="the header does not fit the file of 16 bytes"):
        tw.load_arrays(tmp_path / "bad.safetensors")


def test_transforms_take_and_give_arrays() -> None:
    x = copied(GRID)
    f = tw.jit(lambda a, b: {"s": (a * b).sum(), "t": a + 1})
    made = f(x, x)
    assert isinstance(made["s"], tw.Array)
    assert isinstance(made["t"], tw.Array)
    assert isinstance(f(GRID, GRID)["t"], np.ndarray)
    assert made["s"].item() == (GRID * GRID).sum()
    assert tw.grad(lambda a: (a * a).sum())(x).tolist() == (2 * GRID).tolist()
    assert isinstance(tw.vmap(lambda a: a.sum())(x), tw.Array)
    last, all_ = tw.scan(lambda c, v: (c + v, c), tw.zeros((3, 4)), x)
    np.testing.assert_array_equal(np.asarray(last), GRID.sum(0))
    assert isinstance(all_, tw.Array)
    donated = copied(np.ones(5, np.float32))
    other = donated.view()
    stepped = tw.jit(lambda p: p + 1, donate=0)(donated)
    assert stepped.tolist() == [2] * 5
    assert other.tolist() == [1] * 5
    assert tw.jit(lambda a: tw.asarray(a) + x)(x).tolist() == (2 * GRID).tolist()
    assert isinstance(tw.softmax(x, axis=-1), tw.Array)
    session = tw.jit(lambda a: a + 1).lower(x)
    np.testing.assert_array_equal(session(x.T.T), GRID + 1)


def test_a_gpu_that_is_not_there() -> None:
    if why := available():
        with pytest.raises(ExecutionError, match=r"zeros: there is no device 'cuda' here \(cuda: "):
            tw.zeros(3, device="cuda")
        with pytest.raises(ExecutionError, match="to_device: there is no device 'cuda' here"):
            tw.ones(3).to("cuda")
    assert tw.__array_namespace_info__().devices() == (("cpu",) if why else ("cpu", "cuda"))
    with pytest.raises(ArgumentError, match=r"zeros: the devices are 'cpu' and 'cuda' \(the first GPU\), got 'tpu'"):
        tw.zeros(3, device="tpu")


def test_numbers_are_searched_in_the_dtype_of_the_array() -> None:
    x = tw.asarray([1, 5], dtype=tw.uint64)
    assert [tw.searchsorted(x, v).item() for v in (0, 5, 6, 2**63)] == [0, 1, 2, 2]
    assert [tw.searchsorted(x.astype(tw.uint8), v).item() for v in (-1, 5, 300)] == [0, 1, 2]
    assert tw.searchsorted(tw.asarray([1.0, 2.0]), 2, side="right").item() == 2 and tw.searchsorted(tw.asarray([1, 2]), 1.5).item() == 1
