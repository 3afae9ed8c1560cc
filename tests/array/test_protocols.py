"""Memory that comes from and goes to other libraries and files, in forms that break careless readers."""
from __future__ import annotations

import array
import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core.errors import ArgumentError, FormatError, InputError, ParseError


class Capsule:
    """A producer that always gives the same capsule."""

    def __init__(self, capsule: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.capsule, self.device = capsule, device

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_a_capsule_is_used_once() -> None:
    for capsule in (torch.utils.dlpack.to_dlpack(torch.arange(3.0)), tw.arange(3, dtype=tw.float32).__dlpack__(max_version=(1, 0))):
        assert tw.from_dlpack(Capsule(capsule)).tolist() == [0, 1, 2]
        with pytest.raises(InputError, match="the capsule was used before"):
            tw.from_dlpack(Capsule(capsule))
    with pytest.raises(ArgumentError, match=r"lies on device \(8, 0\); move it to the CPU first"):
        tw.from_dlpack(Capsule(None, (8, 0)))
    with pytest.raises(ArgumentError, match="needs an object with __dlpack__, got a PyCapsule"):
        tw.from_dlpack(torch.utils.dlpack.to_dlpack(torch.arange(3.0)))


def test_layouts_and_dtypes_through_dlpack() -> None:
    x = tw.arange(12, dtype=tw.float32).reshape(3, 4)
    for view in (x[::-1], x.T[:, ::-2], x[1:1], x[0, 0], tw.broadcast_to(x[0], (2, 4)), x[:, 1:3]):
        assert torch.from_dlpack(view).tolist() == np.from_dlpack(view).tolist() == tw.from_dlpack(view).tolist() == view.tolist()
    with pytest.raises(BufferError, match="negative strides cannot be exported without a copy"):
        x[::-1].__dlpack__(copy=False)
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64, torch.int8):
        t = torch.ones(3).to(dtype)
        back = torch.from_dlpack(tw.from_dlpack(t))
        assert back.dtype is dtype and back.float().tolist() == [1, 1, 1] if not dtype.is_complex else back.tolist() == t.tolist()


def test_memory_of_others_is_never_written() -> None:
    for flag in (True, False):
        a = np.ones(3, np.float32)
        a.setflags(write=flag)
        x = tw.asarray(a)
        x[0] = 5
        x += 1
        assert a.tolist() == [1, 1, 1] and x.tolist() == [6, 2, 2]


def test_strange_numpy_arrays() -> None:
    assert (tw.asarray(np.arange(3, dtype=">f4")) + 1).tolist() == [1, 2, 3]
    assert (tw.asarray(np.zeros(3, [("a", "f4"), ("b", "i1")])["a"]) + 1).tolist() == [1, 1, 1]  # strides of 5 bytes
    assert tw.exp(tw.asarray(np.frombuffer(b"\0" * 13, "u1")[1:].view("f4"))).tolist() == [1, 1, 1]  # not aligned
    for bad in (np.array([1, None], object), np.zeros(3, [("a", "f4"), ("b", "i4")]), np.array(["a"]), np.array(["2020-01-01"], "M8[D]"),
                np.zeros(2, "V4"), None, [2**70]):
        with pytest.raises(ParseError, match=r"asarray: dtype: .* is not one of bool i8"):
            tw.asarray(bad)
    with pytest.raises(ArgumentError, match="a masked array would lose its mask"):
        tw.asarray(np.ma.masked_array([1.0, 2.0], [0, 1]))


def test_buffers_keep_their_dtype_and_memory() -> None:
    numbers = array.array("d", [1, 2])
    x = tw.asarray(numbers)
    numbers[0] = 7
    assert x.dtype == tw.float64 and x.tolist() == [7, 2]
    assert tw.asarray(memoryview(np.arange(3, dtype=np.int16))).dtype == tw.int16
    assert tw.asarray((ctypes.c_int32 * 3)(1, 2, 3)).tolist() == [1, 2, 3]
    assert memoryview(x).format == "d" and bytes(tw.asarray([1, 2], dtype=tw.uint8)) == b"\x01\x02"


def test_torch_asarray_does_not_read_the_bytes_of_an_array() -> None:
    x = tw.arange(6).reshape(2, 3)
    with pytest.raises((RuntimeError, ValueError, BufferError)):
        torch.asarray(x)
    assert torch.as_tensor(x).tolist() == x.torch().tolist() == x.tolist()


def test_numpy_functions_that_write_their_argument() -> None:
    x = tw.zeros(3)
    y = x.view()
    np.add.at(x, [0, 0, 2], 1)
    assert x.tolist() == [2, 0, 1] and y.tolist() == [0, 0, 0]
    np.copyto(y, 7)
    assert y.tolist() == [7, 7, 7] and x.tolist() == [2, 0, 1]
    made = np.frompyfunc(lambda v: [v], 1, 1)(x)
    assert type(made) is np.ndarray and made.dtype == object


def test_files_in_other_forms(tmp_path: Path) -> None:
    def stored(a: Any, **how: Any) -> Path:
        np.save(tmp_path / "a.npy", a, **how)
        return tmp_path / "a.npy"

    assert (tw.load_arrays(stored(np.arange(3, dtype=">f4"))) + 1).tolist() == [1, 2, 3]
    assert tw.load_arrays(stored(np.zeros((0, 3)))).shape == (0, 3) and tw.load_arrays(stored(np.array(3.0))).item() == 3
    np.savez(tmp_path / "a.npz", x=np.arange(3, dtype=">i4"))
    assert tw.load_arrays(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]
    for bad in (stored(np.array([1, None], object), allow_pickle=True), stored(np.zeros(2, [("a", "f4")]))):
        with pytest.raises(FormatError, match=r"load_arrays: a\.npy"):
            tw.load_arrays(bad)
    for name in ("a.npy", "a.npz"):
        whole = (tmp_path / name).read_bytes()
        for cut in (0, 20, len(whole) - 3):
            (tmp_path / name).write_bytes(whole[:cut])
            with pytest.raises(FormatError, match=f"load_arrays: {name[:-4]}"):
                tw.load_arrays(tmp_path / name)
    for dtype in (tw.bfloat16, tw.float8_e5m2):
        with pytest.raises(ArgumentError, match=r"a \.npy file cannot hold .*; use \.safetensors"):
            tw.save(tmp_path / "b.npy", tw.ones(2, dtype=dtype))
    tw.save(tmp_path / "c.safetensors", {"a": tw.arange(6).reshape(2, 3).T[::-1], "s": tw.asarray(2.0), "e": tw.zeros((0, 2))})
    found = tw.load_arrays(tmp_path / "c.safetensors")
    assert found["a"].tolist() == [[2, 5], [1, 4], [0, 3]] and found["s"].item() == 2 and found["e"].shape == (0, 2)
    found["a"][0, 0] = 99  # a mapped file is not written
    assert tw.load_arrays(tmp_path / "c.safetensors")["a"][0, 0].item() == 2
